// Command gateway serves the REST API and the web console of one or more clusters.
package main

import (
	"context"

	"github.com/persys/compute/cmd/internal/gatewayd"
	"github.com/persys/compute/cmd/internal/setup"
)

// version is set by the linker.
var version = "dev"

func main() { setup.Main("persys-gateway", run) }

func run(ctx context.Context) error {
	var cfg gatewayd.Config
	set, err := setup.Load("persys-gateway", version, "REST, OpenAPI and webhooks over the schedulers' API", &cfg, "PERSYS_GATEWAY_CONFIG", "config.yaml")
	if err != nil || set == nil {
		return err
	}
	log, err := set.Logger(cfg.LogLevel, cfg.LogFormat)
	if err != nil {
		return err
	}
	srv, err := gatewayd.Start(ctx, cfg, version, log)
	if err != nil {
		return err
	}
	return srv.Run(ctx)
}
