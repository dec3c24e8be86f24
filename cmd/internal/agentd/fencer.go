package agentd

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/persys/compute/agent"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/fencer"
	"github.com/persys/compute/agent/store"
	"github.com/persys/compute/pki"
)

// FencerCommand as the first argument makes this program a fencer. UntilIdle as the second argument makes the fencer
// end when no workload needs it any more. Agents and fencers pass UntilIdle when they start a fencer. A fencer is a
// process that stops exclusive workloads when the node's lease ends.
const (
	FencerCommand = "fencer"
	UntilIdle     = "--until-idle"
)

// fencerFor returns the agent's connection to its fencers (processes that stop exclusive workloads when the node's
// lease ends); nil if the setting PERSYS_FENCER is off.
func (c *Config) fencerFor(version string, log *slog.Logger) (agent.Fencer, error) {
	if c.Fencer == "off" {
		return nil, nil
	}
	if err := os.MkdirAll(c.FencerDir, 0o700); err != nil {
		return nil, fmt.Errorf("PERSYS_FENCER_DIR %q: %w", c.FencerDir, err)
	}
	client := &fencer.Client{Dir: c.FencerDir, Version: version, Logger: log}
	if c.Fencer == "auto" {
		client.Start = func() error {
			p, err := startFencer(true)
			if err == nil {
				go func() { _, _ = p.Wait() }() // the fencer outlives this process; if it ends earlier, Wait reaps it
			}
			return err
		}
	}
	return client, nil
}

// startFencer starts this program as a fencer with the settings of this process. The fencer runs in its own
// process session, so that a signal to the agent does not end it.
func startFencer(untilIdle bool) (*os.Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := []string{FencerCommand}
	if untilIdle {
		args = append(args, UntilIdle)
	}
	// A fencer does not join a cluster, so it gets no join token.
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
	cmd.Args[0] = Name // the executable file may contain several programs; the name in Args[0] selects the one that runs
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		// Remove these variables from the fencer's environment: it needs no join token, and must not report to the
		// supervisor (systemd) that watches this process.
		return slices.Contains([]string{"PERSYS_JOIN", "PERSYS_JOIN_FILE", "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}, name)
	})
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return cmd.Process, nil
}

// ErrFencerOff means that PERSYS_FENCER turns the fencer off, so a supervisor must not restart the fencer.
var ErrFencerOff error = fencerOff{}

type fencerOff struct{}

func (fencerOff) Error() string { return "PERSYS_FENCER is off: this machine runs no fencer" }

// ExitCode is EX_CONFIG of sysexits.h. persys-fencer.service does not restart a process that exits with
// it.
func (fencerOff) ExitCode() int { return 78 }

// supervised reports to the supervisor (systemd; sd_notify(3)) that the fencer is ready, and then at least
// three times per WATCHDOG_USEC that it is alive. If these reports stop, the supervisor kills the fencer and
// starts another one. So a fencer runs again even after the agent and both fencers of the node were paused or killed
// together. The fencer calls beat regularly to send the reports. beat is nil if there is no supervisor.
func supervised(env func(string) string, pid int) (beat, done func(), err error) {
	done = func() {}
	path := env("NOTIFY_SOCKET")
	if path == "" {
		return nil, done, nil
	}
	every := time.Duration(math.MaxInt64)
	if text := env("WATCHDOG_USEC"); text != "" && (env("WATCHDOG_PID") == "" || env("WATCHDOG_PID") == strconv.Itoa(pid)) {
		micros, err := strconv.ParseInt(text, 10, 64)
		if err != nil || micros <= 0 {
			return nil, done, fmt.Errorf("WATCHDOG_USEC %q: must be a number of microseconds above 0", text)
		}
		every = time.Duration(micros) * time.Microsecond / 3
	}
	// In NOTIFY_SOCKET, a name that begins with @ is an abstract socket; package net uses the same notation.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, done, fmt.Errorf("NOTIFY_SOCKET %q: %w", path, err)
	}
	var last time.Time
	return func() {
		word := "WATCHDOG=1"
		switch now := time.Now(); {
		case last.IsZero():
			word, last = "READY=1\n"+word, now
		case now.Sub(last) < every:
			return
		default:
			last = now
		}
		_ = conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		_, _ = conn.Write([]byte(word)) // if the supervisor's buffer is full, this report is dropped; a later one arrives
	}, func() { conn.Close() }, nil
}

// stops returns the kinds of workloads (containers, stacks, virtual machines) that a fencer with these settings can
// stop.
func (c *Config) stops() []driver.Kind {
	if c.Simulate != "" {
		return []driver.Kind{driver.Container, driver.Compose, driver.VM}
	}
	out := []driver.Kind{}
	if c.Docker {
		out = append(out, driver.Container)
	}
	if c.Docker && c.Compose {
		out = append(out, driver.Compose)
	}
	if c.VM { // also without libvirt, because it may be installed later
		out = append(out, driver.VM)
	}
	return out
}

// RunFencer runs the command `persys-agent fencer`: it stops exclusive workloads when the node's lease ends.
func RunFencer(ctx context.Context, cfg Config, version string, untilIdle bool, log *slog.Logger) error {
	// A fencer is idle for months, so its memory is kept small.
	debug.SetGCPercent(20)
	node, version, err := cfg.begin(version)
	if err != nil {
		return err
	}
	if cfg.Fencer == "off" {
		return ErrFencerOff
	}
	beat, done, err := supervised(os.Getenv, os.Getpid())
	if err != nil {
		return err
	}
	defer done()
	log = log.With("node", node)
	opt := fencer.Options{
		Dir: cfg.FencerDir, Grace: cfg.FencerGrace, UntilIdle: untilIdle, Version: version, Logger: log, Beat: beat,
		Stops:  cfg.stops(),
		Second: func() (*os.Process, error) { return startFencer(untilIdle) },
		Runtime: &fencer.Drivers{New: func(cluster string) ([]driver.Driver, error) {
			// The drivers are opened again for each request, because libvirt may be installed after the
			// fencer has started.
			binding := agent.Binding{
				ClusterID: cluster, NodeID: node,
				Owns:    func(driver.ID) bool { return false },
				Taken:   func(driver.Kind, driver.ID) bool { return false },
				Content: func(driver.ID, string) (string, bool) { return "", false },
			}
			if key, err := pki.LoadKey(store.KeyPath(cfg.StatePath)); err != nil {
				log.Warn("the key of the agent cannot be read, so no pre_stop runs when a lease ends", "err", err)
			} else {
				binding.Sealer = key
			}
			return drivers(&cfg, offersVMs(&cfg) == nil, log)(binding)
		}},
	}
	return fencer.Run(ctx, opt)
}
