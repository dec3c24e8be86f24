// Command gateway is the HTTP face of one or more clusters.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/persys/compute/cmd/internal/gatewayd"
	"github.com/persys/compute/cmd/internal/setup"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "persys-gateway:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var cfg gatewayd.Config
	ok, err := setup.Load("persys-gateway", version, "REST, OpenAPI and webhooks over the schedulers' API", &cfg, "PERSYS_GATEWAY_CONFIG", "config.yaml")
	if err != nil || !ok {
		return err
	}
	log, err := setup.Logger(os.Stderr, cfg.LogLevel, cfg.LogFormat)
	if err != nil {
		return err
	}
	srv, err := gatewayd.Start(ctx, cfg, version, log)
	if err != nil {
		return err
	}
	return srv.Run(ctx)
}
