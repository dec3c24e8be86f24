// Package persysctl is the command line of Persys Compute: it applies workloads, shows where they run and
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
//	up, token, identity, audit, ca, namespace, context, offline
//	wait, follow, watchflag, format, complete, trace: shared by commands
package persysctl

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/persys/compute/cmd/internal/setup"
)

// Name is the name of the command line when it is installed as a separate program.
const Name = "persysctl"

// Program is another program in the same executable file. Help and completion list it; main starts it before
// this package sees the command line.
type Program struct {
	Name, Short string
}

func (p Program) command() *cobra.Command {
	return &cobra.Command{
		Use: p.Name + " [flags]", Short: p.Short, DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usagef("%s must be the first word: %s", p.Name, cmd.CommandPath())
		},
		Long: fmt.Sprintf("%s.\n\nIts settings: persys %s --help.", p.Short, p.Name),
	}
}

// Main runs the command line in os.Args and returns the exit code. name is the name under which the program
// was called; programs are the other programs in the same executable file.
func Main(name, version string, programs ...Program) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The first Ctrl-C cancels ctx, so that the command can end cleanly. stop then restores the default handling of
	// signals, so that a second Ctrl-C kills the program at once.
	context.AfterFunc(ctx, stop)
	return run(ctx, system(name, version, programs), setup.TakeArgs(os.Args[1:]))
}
