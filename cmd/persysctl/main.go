// Command persysctl is the command line without the other programs, for machines on which no scheduler, agent
// or gateway runs. Command persys contains it too.
package main

import (
	"os"

	"github.com/persys/compute/child"
	"github.com/persys/compute/cmd/internal/persysctl"
	"github.com/persys/compute/stack"
)

// version is set with -ldflags "-X main.version=…".
var version = "dev"

func main() {
	child.Serve(stack.Task)
	os.Exit(persysctl.Main(persysctl.Name, version))
}
