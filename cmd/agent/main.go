// Command agent runs workloads on one machine.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/persys/compute/cmd/internal/agentd"
	"github.com/persys/compute/cmd/internal/setup"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "persys-agent:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var cfg agentd.Config
	ok, err := setup.Load("persys-agent", version, "runs workloads on one machine", &cfg, "PERSYS_CONFIG_FILE", "")
	if err != nil || !ok {
		return err
	}
	log, err := setup.Logger(os.Stderr, cfg.LogLevel, cfg.LogFormat)
	if err != nil {
		return err
	}
	return agentd.Run(ctx, cfg, version, log)
}
