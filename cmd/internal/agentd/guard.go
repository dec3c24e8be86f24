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
	"github.com/persys/compute/agent/driver/libvirt"
	"github.com/persys/compute/agent/fencer"
)

// GuardCommand as the first argument makes this program a guard. UntilIdle after it ends the guard when it
// is no longer needed; agents and guards start guards with it.
const (
	GuardCommand = "guard"
	UntilIdle    = "--until-idle"
)

// guardFor returns the agent's connection to its guards; nil if there are none.
func (c *Config) guardFor(version string, log *slog.Logger) (agent.Fencer, error) {
	if c.Guard == "off" {
		return nil, nil
	}
	if err := os.MkdirAll(c.GuardDir, 0o700); err != nil {
		return nil, fmt.Errorf("PERSYS_GUARD_DIR %q: %w", c.GuardDir, err)
	}
	client := &fencer.Client{Dir: c.GuardDir, Version: version, Logger: log}
	if c.Guard == "auto" {
		client.Start = func() error {
			p, err := startGuard(true)
			if err == nil {
				go func() { _, _ = p.Wait() }() // it outlives this process; until then reap it
			}
			return err
		}
	}
	return client, nil
}

// startGuard starts this program as a guard, with the settings of this process, in a session of its own, so
// that a signal to the agent does not end it.
func startGuard(untilIdle bool) (*os.Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := []string{GuardCommand}
	if untilIdle {
		args = append(args, UntilIdle)
	}
	// A guard does not join, so it gets no token.
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
		name, _, _ := strings.Cut(v, "=")
		// And it must not answer for the process that a supervisor watches.
		return slices.Contains([]string{"PERSYS_JOIN", "PERSYS_JOIN_FILE", "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}, name)
	})
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return cmd.Process, nil
}

// ErrGuardOff means that PERSYS_GUARD asks for no guard: a supervisor must not restart it.
var ErrGuardOff error = guardOff{}

type guardOff struct{}

func (guardOff) Error() string { return "PERSYS_GUARD is off: there is nothing to guard" }

// ExitCode is EX_CONFIG of sysexits.h (persys-guard.service knows it).
func (guardOff) ExitCode() int { return 78 }

// supervised tells the supervisor (systemd; sd_notify(3)) that the guard is ready, and afterwards at least
// three times per WATCHDOG_USEC that it is alive. A supervisor that hears nothing kills it and starts
// another one. So a guard comes back that was paused or killed together with its agent and its second
// guard. beat is nil if no supervisor listens.
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
	// A name that begins with @ is an abstract socket, in Go too.
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
		_, _ = conn.Write([]byte(word)) // if the supervisor's buffer is full, it gets the next message
	}, func() { conn.Close() }, nil
}

// stops returns the kinds of workloads that a guard with these settings can stop.
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
	if c.VM && libvirt.Built { // libvirt itself may be installed later
		out = append(out, driver.VM)
	}
	return out
}

// RunGuard is `persys-agent guard`: it stops exclusive workloads when the lease ends.
func RunGuard(ctx context.Context, cfg Config, version string, untilIdle bool, log *slog.Logger) error {
	// A guard is idle for months: keep its memory small.
	debug.SetGCPercent(20)
	node, version, err := cfg.begin(version)
	if err != nil {
		return err
	}
	if cfg.Guard == "off" {
		return ErrGuardOff
	}
	beat, done, err := supervised(os.Getenv, os.Getpid())
	if err != nil {
		return err
	}
	defer done()
	log = log.With("node", node)
	opt := fencer.Options{
		Dir: cfg.GuardDir, Grace: cfg.GuardGrace, UntilIdle: untilIdle, Version: version, Logger: log, Beat: beat,
		Stops:  cfg.stops(),
		Second: func() (*os.Process, error) { return startGuard(untilIdle) },
		Runtime: &fencer.Drivers{New: func(cluster string) ([]driver.Driver, error) {
			// Asked each time: an agent that starts later may find a libvirt that did not exist before.
			return drivers(&cfg, offersVMs(&cfg) == nil, log)(agent.Binding{
				ClusterID: cluster, NodeID: node,
				Owns:    func(driver.ID) bool { return false },
				Taken:   func(driver.Kind, driver.ID) bool { return false },
				Content: func(driver.ID, string) (string, bool) { return "", false },
			})
		}},
	}
	return fencer.Run(ctx, opt)
}
