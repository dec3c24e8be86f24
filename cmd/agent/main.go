// Command agent runs workloads on one machine.
package main

import (
	"context"
	"os"
	"path/filepath"

	"github.com/persys/compute/agent/driver/compose/gitfetch"
	"github.com/persys/compute/child"
	"github.com/persys/compute/cmd/internal/agentd"
	"github.com/persys/compute/cmd/internal/setup"
	"github.com/persys/compute/stack"
)

// version is set by the linker.
var version = "dev"

func main() {
	child.Serve(stack.Task, gitfetch.Task)
	setup.Main("persys-agent", run)
}

func run(ctx context.Context) error {
	var cfg agentd.Config
	fencers, untilIdle := false, false
	if len(os.Args) > 1 && os.Args[1] == agentd.FencerCommand {
		fencers = true
		os.Args = append(os.Args[:1:1], os.Args[2:]...)
		if len(os.Args) > 1 && os.Args[1] == agentd.UntilIdle {
			untilIdle = true
			os.Args = append(os.Args[:1:1], os.Args[2:]...)
		}
	}
	set, err := setup.Load("persys-agent", version, "runs workloads on one machine; `persys-agent fencer` stops the exclusive ones when its lease ends", &cfg, "PERSYS_CONFIG_FILE", files()...)
	if err != nil || set == nil {
		return err
	}
	log, err := set.Logger(cfg.LogLevel, cfg.LogFormat)
	if err != nil {
		return err
	}
	if fencers {
		return agentd.RunFencer(ctx, cfg, version, untilIdle, log)
	}
	return agentd.Run(ctx, cfg, version, log)
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
