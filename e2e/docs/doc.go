// Package docs runs every command of the README and of docs/, on machines of its own.
//
// A command block is a fence marked sh. Blocks run in the order of the page, in a
// shell that keeps its folder and its exported variables from block to block. An
// HTML comment directly above the fence says how to run the block:
//
//	<!-- run: on s2 -->                  on this machine (default: that of the previous block)
//	<!-- run: until "Persys is up" -->   the command does not end: wait for this text
//	<!-- run: TOKEN from s1: COMMAND --> replace the word TOKEN by the output of COMMAND on s1
//	<!-- run: before on s3: COMMAND -->  run this first; the text of the page says so in words
//	<!-- run: says "three schedulers" --> the output must contain this
//	<!-- run: exit 1 -->                 the block must end with this exit code
//	<!-- run: by TestDemo -->            the test of that name in e2e runs it
//
// A machine named laptop has its shell in the root of the repository.
// One comment holds several rules, separated by semicolons. Pages run in the order
// of the list in the test; the machines stay as the previous page left them.
//
// A machine is a network namespace on a bridge with its own host name and its own
// /var/lib/persys, /etc/persys and /root. apt-get and systemctl are stand-ins that
// unpack the real packages and start the commands of the real units. Programs whose
// name begins with persys are those that make release built.
package docs
