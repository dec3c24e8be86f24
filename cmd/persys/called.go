package main

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/persys/compute/cmd/internal/agentd"
	"github.com/persys/compute/cmd/internal/gatewayd"
	"github.com/persys/compute/cmd/internal/persysctl"
	"github.com/persys/compute/cmd/internal/schedulerd"
)

// Further names that the function called returns, besides the names of the programs.
const (
	persysName = "persys"       // the command line
	toolsName  = "persys tools" // a command of tools
)

// called returns which program a command line starts, and the command line of that program. If the
// executable was started through a link that has the name of a program, the result is that program. Under
// every other name, the first argument names the program.
func called(args []string) (name string, rest []string) {
	if len(args) == 0 {
		return persysName, []string{persysName}
	}
	switch base := strings.TrimSuffix(filepath.Base(args[0]), ".exe"); base {
	case schedulerd.Name, agentd.Name, gatewayd.Name, persysctl.Name:
		return base, args
	}
	if len(args) == 1 {
		return persysName, args
	}
	if args[1] == "help" && len(args) == 3 && slices.ContainsFunc(programs(), func(p persysctl.Program) bool { return p.Name == args[2] }) {
		args = []string{args[0], args[2], "--help"}
	}
	switch word := args[1]; word {
	case "scheduler", "agent", "gateway":
		return persysName + "-" + word, append(args[:1:1], args[2:]...)
	case "ctl":
		return persysctl.Name, append(args[:1:1], args[2:]...)
	case "dev", "env", "metrics", "api":
		return toolsName, args
	}
	return persysName, args
}

// programs returns the programs that the help of the command line lists.
func programs() []persysctl.Program {
	return []persysctl.Program{
		{Name: "dev", Short: "Run a whole cluster in one process, on this machine"},
		{Name: "scheduler", Short: "Run one replica of the control plane"},
		{Name: "agent", Short: "Run the workloads of this machine"},
		{Name: "gateway", Short: "Serve the REST API and the web console"},
	}
}
