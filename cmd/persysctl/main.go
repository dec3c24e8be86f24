// Command persysctl is the command line of Persys Compute: it applies workloads, shows where they run and
// why, and operates the cluster. It makes gRPC calls to any scheduler (package dial finds the leader), or
// requests to a gateway (restconn).
//
// Results go to stdout. Progress, warnings and errors go to stderr, so that a pipe contains only results. An
// error is one sentence, followed by the next command to type if there is one.
//
// Each file holds one subject:
//
//	root, suggest        the command tree, wrong commands
//	connect, target      settings, which cluster is called, the connection
//	errors, output       failures and exit codes, tables, JSON, YAML, jsonpath
//	apply, plan, get, list, why, logs, exec, history, rollout, compose
//	change               delete, retry, restart, start, stop
//	nodes, node, drain, drift, volume, gc, top
//	status, replica, mode, events, backup, recovery, ui
//	token, identity, audit, ca, namespace, context, offline
//	wait, follow, watchflag, format, complete, trace: shared by commands
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/persys/compute/child"
	"github.com/persys/compute/cmd/internal/setup"
	"github.com/persys/compute/stack"
)

// version is set with -ldflags "-X main.version=…".
var version = "dev"

func main() {
	child.Serve(stack.Task)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// After the first Ctrl-C the signals have their default effect again, so that a second Ctrl-C kills
	// the program.
	context.AfterFunc(ctx, stop)
	code := run(ctx, system(), setup.TakeArgs(os.Args[1:]))
	stop()
	os.Exit(code)
}
