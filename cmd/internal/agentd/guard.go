package agentd

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/persys/compute/agent"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/guard"
)

// GuardCommand is the word after the program's name that makes it a guard. UntilIdle, after it,
// lets it end when it is not needed any more: for guards that an agent or a guard starts.
const (
	GuardCommand = "guard"
	UntilIdle    = "--until-idle"
)

// guardFor is the agent's way to its guards, nil when there are to be none.
func (c *Config) guardFor(version string, log *slog.Logger) (agent.Guard, error) {
	if c.Guard == "off" {
		return nil, nil
	}
	if err := os.MkdirAll(c.GuardDir, 0o700); err != nil {
		return nil, fmt.Errorf("PERSYS_GUARD_DIR %q: %w", c.GuardDir, err)
	}
	client := &guard.Client{Dir: c.GuardDir, Version: version, Logger: log}
	if c.Guard == "auto" {
		client.Start = func() error {
			p, err := startGuard(true)
			if err == nil {
				go func() { _, _ = p.Wait() }() // it outlives us; until then it is not to be a zombie
			}
			return err
		}
	}
	return client, nil
}

// startGuard starts this program as a guard with the settings of this process, in a session of its
// own: what ends the agent does not end it.
func startGuard(untilIdle bool) (*os.Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := []string{GuardCommand}
	if untilIdle {
		args = append(args, UntilIdle)
	}
	// A guard joins nothing: a token is not shown once more.
	rest := os.Args[1:]
	for i := 0; i < len(rest); i++ {
		switch name, _, one := strings.Cut(strings.TrimLeft(rest[i], "-"), "="); {
		case name == "join" && strings.HasPrefix(rest[i], "-"):
			if !one {
				i++
			}
		default:
			args = append(args, rest[i])
		}
	}
	cmd := exec.Command(self, args...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "PERSYS_JOIN=") || strings.HasPrefix(v, "PERSYS_JOIN_FILE=")
	})
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return cmd.Process, nil
}

// RunGuard is `persys-agent guard`: it stops what is to be stopped when the lease ends.
func RunGuard(ctx context.Context, cfg Config, version string, untilIdle bool, log *slog.Logger) error {
	// It does next to nothing for months, and must never be in the way.
	debug.SetGCPercent(20)
	if err := cfg.complete(); err != nil {
		return err
	}
	node, err := agent.NodeID(cfg.NodeID)
	if err != nil {
		return err
	}
	if cfg.Version != "" {
		version = cfg.Version
	}
	log = log.With("node", node)
	factory := drivers(&cfg, offersVMs(&cfg) == nil, log)
	opt := guard.Options{
		Dir: cfg.GuardDir, Grace: cfg.GuardGrace, UntilIdle: untilIdle, Version: version, Logger: log,
		Second: func() (*os.Process, error) { return startGuard(untilIdle) },
		Runtime: &guard.Drivers{New: func(cluster string) ([]driver.Driver, error) {
			return factory(agent.Binding{
				ClusterID: cluster, NodeID: node,
				Owns:    func(driver.ID) bool { return false },
				Content: func(driver.ID, string) (string, bool) { return "", false },
			})
		}},
	}
	return guard.Run(ctx, opt)
}
