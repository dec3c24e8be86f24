// Command scheduler is one replica of the Persys control plane.
//
//	persys-scheduler [flags]     run a replica
//	persys-scheduler recover     make the survivor of a lost quorum the only replica
package main

import (
	"context"
	"errors"
	"os"
	"runtime/debug"

	"github.com/persys/compute/cluster"
	"github.com/persys/compute/cmd/internal/setup"
	"github.com/persys/compute/replica"
)

// version is set by the linker.
var version = "dev"

func main() { setup.Main("persys-scheduler", run) }

// run ends when ctx does.
func run(ctx context.Context) error {
	if len(os.Args) > 1 && os.Args[1] == "recover" {
		cmd, err := recoverCommand()
		if err != nil {
			return err
		}
		cmd.SetArgs(os.Args[2:])
		return cmd.ExecuteContext(ctx)
	}
	var cfg replica.Config
	set, err := setup.Load("persys-scheduler", version, "one replica of the Persys control plane", &cfg, "PERSYS_SCHEDULER_CONFIG")
	if err != nil || set == nil {
		return err
	}
	log, err := set.Logger(cfg.LogLevel, cfg.LogFormat)
	if err != nil {
		return err
	}
	if os.Getenv("GOGC") == "" {
		// Requests make short-lived garbage, up to a few hundred MB per second, beside a state that stays.
		// Collect when the heap is four times the live memory, not twice as by default. GOGC overrides
		// this.
		debug.SetGCPercent(300)
	}
	for {
		r, err := replica.Start(ctx, cfg, version, log)
		if err != nil {
			return err
		}
		err = r.Run(ctx)
		// A replica whose state diverged has moved it aside and joins again.
		if ctx.Err() != nil || !errors.Is(err, cluster.ErrDiverged) {
			return err
		}
		log.Error("starting again with an empty state", "err", err)
	}
}
