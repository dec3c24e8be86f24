package agentd

import (
	"context"
	"os"
	"path/filepath"

	"github.com/persys/compute/cmd/internal/setup"
)

// Name is the name of the program.
const Name = "persys-agent"

// Main runs the program with os.Args until ctx ends. The calling program must serve the tasks that the agent
// runs in child processes (package child): stack.Task and gitfetch.Task.
func Main(ctx context.Context, version string) error {
	var cfg Config
	fencers, untilIdle := false, false
	if len(os.Args) > 1 && os.Args[1] == FencerCommand {
		fencers = true
		os.Args = append(os.Args[:1:1], os.Args[2:]...)
		if len(os.Args) > 1 && os.Args[1] == UntilIdle {
			untilIdle = true
			os.Args = append(os.Args[:1:1], os.Args[2:]...)
		}
	}
	set, err := setup.Load(Name, version, "runs workloads on one machine; `persys-agent fencer` stops the exclusive ones when its lease ends", &cfg, "PERSYS_CONFIG_FILE", files()...)
	if err != nil || set == nil {
		return err
	}
	log, err := set.Logger(cfg.LogLevel, cfg.LogFormat)
	if err != nil {
		return err
	}
	if fencers {
		return RunFencer(ctx, cfg, version, untilIdle, log)
	}
	return Run(ctx, cfg, version, log)
}

// files are the paths at which legacy v1 agents look for their settings file (contract/env.md).
func files() []string {
	const name = "agent_config.yaml"
	out := []string{filepath.Join("/etc/persys", name)}
	if home, err := os.UserHomeDir(); err == nil && os.Geteuid() != 0 {
		out = append(out, filepath.Join(home, ".persys", name))
	}
	return append(out, name)
}
