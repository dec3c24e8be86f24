package gatewayd

import (
	"context"

	"github.com/persys/compute/cmd/internal/setup"
)

// Name is the name of the program.
const Name = "persys-gateway"

// Main runs the program with os.Args until ctx ends.
func Main(ctx context.Context, version string) error {
	var cfg Config
	set, err := setup.Load(Name, version, "REST, OpenAPI and webhooks over the schedulers' API", &cfg, "PERSYS_GATEWAY_CONFIG", "config.yaml")
	if err != nil || set == nil {
		return err
	}
	log, err := set.Logger(cfg.LogLevel, cfg.LogFormat)
	if err != nil {
		return err
	}
	srv, err := Start(ctx, cfg, version, log)
	if err != nil {
		return err
	}
	return srv.Run(ctx)
}
