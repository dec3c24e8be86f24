// Command agent is the agent, which runs the workloads of one machine, as a separate program. Command persys
// contains it too.
package main

import (
	"context"

	"github.com/persys/compute/agent/driver/compose/gitfetch"
	"github.com/persys/compute/child"
	"github.com/persys/compute/cmd/internal/agentd"
	"github.com/persys/compute/cmd/internal/setup"
	"github.com/persys/compute/stack"
)

// version is set by the linker.
var version = "dev"

func main() {
	child.Serve(stack.Task, gitfetch.Task)
	setup.Main(agentd.Name, func(ctx context.Context) error { return agentd.Main(ctx, version) })
}
