// Command gateway is the REST API and the web console of clusters, as a separate program. Command persys
// contains it too.
package main

import (
	"context"

	"github.com/persys/compute/cmd/internal/gatewayd"
	"github.com/persys/compute/cmd/internal/setup"
)

// version is set by the linker.
var version = "dev"

func main() {
	setup.Main(gatewayd.Name, func(ctx context.Context) error { return gatewayd.Main(ctx, version) })
}
