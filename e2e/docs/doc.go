// Package docs runs every command of the README and of docs/, on machines of its own.
//
// A command block is a fence marked sh. It runs as the reader would run it, in the
// order of the page, in a shell that keeps its folder and its exported variables
// from block to block. An HTML comment directly above the fence, which no reader
// sees, says what the reader knows:
//
//	<!-- run: on s2 -->                  on this machine (default: where the block before ran)
//	<!-- run: until "Persys is up" -->   it stays in the foreground: wait for this text
//	<!-- run: TOKEN from s1: COMMAND --> the word TOKEN stands for what COMMAND prints on s1
//	<!-- run: before on s3: COMMAND -->  run this first; the text above says it in words
//	<!-- run: says "three schedulers" --> its output must contain this
//	<!-- run: exit 1 -->                 it must end with this code
//	<!-- run: by TestDemo -->            a test of that name in e2e runs it, with what it needs
//
// A machine named laptop has its shell in the root of the repository.
// Several go into one comment, separated by semicolons. Pages are run in the order
// of the list in the test; the machines stay as the page before left them.
//
// A machine is a network namespace on a bridge with its own host name and its own
// /var/lib/persys, /etc/persys and /root. apt-get and systemctl are stand-ins that
// unpack the real packages and start what the real units say; everything that
// begins with persys is the program that make release built.
package docs
