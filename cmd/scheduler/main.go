// Command scheduler is one replica of the control plane, as a separate program. Command persys contains it
// too.
package main

import (
	"context"

	"github.com/persys/compute/child"
	"github.com/persys/compute/cmd/internal/schedulerd"
	"github.com/persys/compute/cmd/internal/setup"
	"github.com/persys/compute/stack"
)

// version is set by the linker.
var version = "dev"

func main() {
	child.Serve(stack.Task)
	setup.Main(schedulerd.Name, func(ctx context.Context) error { return schedulerd.Main(ctx, version) })
}
