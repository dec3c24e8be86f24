// Package schedulerd is the program persys-scheduler, one replica of the Persys control plane:
//
//	persys-scheduler [flags]     run a replica of the control plane
//	persys-scheduler recover     make the survivor of a lost quorum the only replica
package schedulerd

import (
	"context"
	"errors"
	"os"
	"runtime/debug"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/persys/compute/cluster"
	"github.com/persys/compute/cmd/internal/setup"
	"github.com/persys/compute/replica"
	"github.com/persys/compute/stack"
)

// Name is the name of the program.
const Name = "persys-scheduler"

// Main runs the program with os.Args until ctx ends.
func Main(ctx context.Context, version string) error {
	if len(os.Args) > 1 && os.Args[1] == "recover" {
		cmd, err := recoverCommand()
		if err != nil {
			return err
		}
		cmd.SetArgs(os.Args[2:])
		return cmd.ExecuteContext(ctx)
	}
	var cfg replica.Config
	set, err := setup.Load(Name, version, "one replica of the Persys control plane", &cfg, "PERSYS_SCHEDULER_CONFIG")
	if err != nil || set == nil {
		return err
	}
	log, err := set.Logger(cfg.LogLevel, cfg.LogFormat)
	if err != nil {
		return err
	}
	if os.Getenv("GOGC") == "" {
		// Requests allocate short-lived memory, up to a few hundred MB per second, while the state stays in
		// memory. So Go's garbage collector starts when the heap is four times the live memory, not twice as
		// by default. The variable GOGC overrides this.
		debug.SetGCPercent(300)
	}
	// When the heap reaches half of the memory that this program may use, the garbage collector runs more
	// often. The other half is for the processes that check Compose stacks. The variable GOMEMLIMIT
	// overrides this.
	if _, err := memlimit.Set(memlimit.WithRatio(0.5), memlimit.WithProvider(replica.Memory)); err != nil {
		log.Warn("the garbage collector does not know how much memory this program may use", "err", err)
	}
	cfg.Status = setup.Status
	cfg.Stacks = stack.NewLoader(stack.Options{AtOnce: stacksAtOnce()})
	var reopened time.Time
	for {
		r, err := replica.Start(ctx, cfg, version, log)
		if err != nil && ctx.Err() != nil {
			log.Info("stopped before it was ready", "err", err)
			return nil
		}
		if err != nil {
			return err
		}
		err = r.Run(ctx)
		switch {
		case ctx.Err() != nil:
			return err
		case errors.Is(err, cluster.ErrDiverged):
			// The state of this replica differed from the state of the majority. The replica has moved its data to
			// another folder and now joins again.
			log.Error("starting again with an empty state", "err", err)
		case errors.Is(err, cluster.ErrCorrupt) && cfg.RepairsItself() && time.Since(reopened) > cluster.RepairEvery:
			reopened = time.Now()
			log.Error("the process starts again and checks its data", "err", err)
		default:
			return err
		}
	}
}

// stacksAtOnce returns how many Compose stacks may be checked at the same time: a check may need 450 MiB.
func stacksAtOnce() int {
	if memory, err := replica.Memory(); err == nil && memory < 2<<30 {
		return 1
	}
	return 2
}
