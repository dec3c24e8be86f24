// Probe is the only program in the drivers' test image. Its first argument selects what it does, for example
// serve, exit or allocate.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	args := os.Args[1:]
	if len(args) == 0 {
		args = []string{"serve"}
	}
	switch args[0] {
	case "serve":
		serve()
	case "write": // writes a file of n bytes, then serves
		if err := os.WriteFile(args[1], make([]byte, number(args[2])), 0o600); err != nil {
			fmt.Fprintln(os.Stderr, "probe:", err)
			os.Exit(1)
		}
		serve()
	case "exit":
		fmt.Fprintf(os.Stderr, "probe: exiting with code %s\n", args[1])
		os.Exit(number(args[1]))
	case "chatter": // writes more output than a workload's status can hold
		for i := range 2000 {
			fmt.Fprintf(os.Stderr, "probe: %4000s: complaint %d\n", "at length", i)
		}
		os.Exit(9)
	case "allocate":
		allocate(number(args[1]))
	case "stubborn": // ignores SIGTERM
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("probe: ready")
		for {
			time.Sleep(time.Hour)
		}
	case "ends": // n seconds after the named signal, writes a file and ends; any other SIGTERM is ignored
		ends(args[1], number(args[2]), args[3])
	case "quits": // ends with the exit code n on SIGTERM
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGTERM)
		fmt.Println("probe: ready")
		<-stop
		os.Exit(number(args[1]))
	case "exists": // is the command of a health check
		if _, err := os.Stat(args[1]); err != nil {
			os.Exit(1)
		}
	case "until": // ends with exit code 0 once a file exists
		for {
			if _, err := os.Stat(args[1]); err == nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	case "say":
		fmt.Println(args[1])
		fmt.Fprintln(os.Stderr, args[2])
		os.Exit(number(args[3]))
	case "cat":
		if _, err := io.Copy(os.Stdout, os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, "probe:", err)
			os.Exit(1)
		}
	case "shout": // writes to the output of the container's first process
		if err := os.WriteFile("/proc/1/fd/1", []byte(args[1]+"\n"), 0); err != nil {
			fmt.Fprintln(os.Stderr, "probe:", err)
			os.Exit(1)
		}
	case "wait":
		fmt.Println("waiting")
		for {
			time.Sleep(time.Hour)
		}
	case "size": // waits for the terminal's size, which is set shortly after the terminal was opened
		for range 500 {
			if z, err := unix.IoctlGetWinsize(1, unix.TIOCGWINSZ); err == nil && z.Row > 0 {
				fmt.Println(z.Row, z.Col)
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		fmt.Println("no size")
	default:
		fmt.Fprintf(os.Stderr, "probe: unknown argument %q\n", args[0])
		os.Exit(2)
	}
}

func ends(name string, seconds int, file string) {
	signal.Ignore(syscall.SIGTERM)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SignalNum(name))
	fmt.Println("probe: ready")
	<-stop
	time.Sleep(time.Duration(seconds) * time.Second)
	if err := os.WriteFile(file, []byte(name), 0o600); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(2)
	}
	return n
}

func allocate(mib int) {
	var held [][]byte
	for range mib {
		block := make([]byte, 1<<20)
		for i := 0; i < len(block); i += 4096 {
			block[i] = 1
		}
		held = append(held, block)
	}
	fmt.Println("probe: allocated", len(held), "MiB")
}

// serve reports the container's environment over HTTP, echoes UDP, and ends on SIGTERM.
func serve() {
	udp, err := net.ListenPacket("udp", ":9090")
	if err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := udp.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = udp.WriteTo(buf[:n], from)
		}
	}()
	http.HandleFunc("/facts", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"args": os.Args, "env": os.Environ()})
	})
	http.HandleFunc("/write", func(w http.ResponseWriter, r *http.Request) {
		if err := os.WriteFile(r.FormValue("path"), []byte("probe"), 0o644); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
		}
	})
	http.HandleFunc("/read", func(w http.ResponseWriter, r *http.Request) {
		data, err := os.ReadFile(r.FormValue("path"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		_, _ = w.Write(data)
	})
	// Use one core for a while and return how much CPU time the process got.
	http.HandleFunc("/burn", func(w http.ResponseWriter, _ *http.Request) {
		var before, after syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
		for start := time.Now(); time.Since(start) < time.Second; {
		}
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
		fmt.Fprint(w, time.Duration(after.Utime.Nano()+after.Stime.Nano()-before.Utime.Nano()-before.Stime.Nano()).Milliseconds())
	})
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "probe") })
	listener, err := net.Listen("tcp", ":8080")
	if err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
	fmt.Println("probe: ready")
	fmt.Fprintln(os.Stderr, "probe: on stderr")
	go func() { _ = http.Serve(listener, nil) }()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, os.Interrupt)
	<-stop
	fmt.Println("probe: stopping")
}
