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

// GuardCommand is the word after the program's name that makes it a guard. UntilIdle, after it,
// lets it end when it is not needed any more: for guards that an agent or a guard starts.
const (
	GuardCommand = "guard"
	UntilIdle    = "--until-idle"
)

// guardFor is the agent's way to its guards, nil when there are to be none.
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
		name, _, _ := strings.Cut(v, "=")
		// Nor does it answer for whom a supervisor watches.
		return slices.Contains([]string{"PERSYS_JOIN", "PERSYS_JOIN_FILE", "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}, name)
	})
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return cmd.Process, nil
}

// ErrGuardOff says that nobody wants a guard: a supervisor need not try again.
var ErrGuardOff error = guardOff{}

type guardOff struct{}

func (guardOff) Error() string { return "PERSYS_GUARD is off: there is nothing to guard" }

// ExitCode is EX_CONFIG of sysexits.h (persys-guard.service knows it).
func (guardOff) ExitCode() int { return 78 }

// supervised is how a guard tells the supervisor that started it (systemd; sd_notify(3)) that it is
// there, and afterwards at least three times in WATCHDOG_USEC that it is not stuck. A supervisor that
// hears nothing kills it and starts another: a guard that was paused or killed together with its agent
// and its second comes back that way. beat is nil where nobody listens.
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
	// A name that begins with @ is in the kernel's own name space, as Go writes it too.
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
		_, _ = conn.Write([]byte(word)) // a supervisor that has no room for it hears the next one
	}, func() { conn.Close() }, nil
}

// stops are the kinds that a guard with these settings can stop.
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
	if c.VM && libvirt.Built { // libvirt itself may come later
		out = append(out, driver.VM)
	}
	return out
}

// RunGuard is `persys-agent guard`: it stops what is to be stopped when the lease ends.
func RunGuard(ctx context.Context, cfg Config, version string, untilIdle bool, log *slog.Logger) error {
	// It does next to nothing for months, and must never be in the way.
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
			// Not once and for all: an agent that starts later may find a libvirt that was not there before.
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
