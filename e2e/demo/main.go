// Command demo shows on this machine that a cluster survives its leader: three
// schedulers form a Raft group, two agents run a container, the leader is killed,
// and the next change succeeds.
//
//	make demo               stays up until Ctrl-C, and prints commands to try
//	make demo ARGS=--exit   ends by itself
//
// It runs the real programs, persysctl and the Docker engine. Without an engine, or
// with --simulate, only the containers are simulated.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"
)

func main() {
	opt := options{}
	flag.BoolVar(&opt.exit, "exit", false, "end by itself instead of staying up until Ctrl-C")
	flag.BoolVar(&opt.simulate, "simulate", false, "simulate workloads even if there is a Docker engine")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "demo: unexpected argument %q (make demo ARGS='--exit --simulate')\n", flag.Arg(0))
		os.Exit(2)
	}
	// Ignore further signals until the end: a second Ctrl-C must not leave containers behind.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	tty := term.IsTerminal(int(os.Stdout.Fd()))
	d := &demo{opt: opt, out: screen{w: os.Stdout, live: tty, colour: tty && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}}
	err := d.run(ctx)
	switch {
	case err == nil:
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "demo: interrupted")
		os.Exit(130)
	default:
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}
