// Command persysctl is what a person types: it applies workloads, shows where
// they run and why, and carries out the day-two verbs of a cluster. It speaks
// gRPC to any scheduler; the package dial finds the leader.
//
// Results go to stdout. Progress, warnings and errors go to stderr, so that a
// pipe only ever sees results. An error is one sentence, followed by the
// command to type next where there is one.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/persys/compute/cmd/internal/setup"
)

// version is set with -ldflags "-X main.version=…".
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second Ctrl-C ends the program at once.
	context.AfterFunc(ctx, stop)
	code := run(ctx, system(), setup.TakeArgs(os.Args[1:]))
	stop()
	os.Exit(code)
}
