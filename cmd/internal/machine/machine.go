// Package machine makes the machine on which it runs part of a cluster: it writes a setting for a service of the
// package persys and starts the service. It needs systemd and root.
package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/persys/compute/pki"
)

// Time limits and periods of waiting for a service.
const (
	// startLimit is how long Up and Join wait for a service that was started. It is long because a program
	// that joins tries all addresses in its token several times.
	startLimit = 2 * time.Minute
	pollEvery  = 200 * time.Millisecond
)

// initSetting is the setting that makes a scheduler the first one of a new cluster.
const initSetting = "SCHEDULER_INIT"

// Machine is a machine on which the operating system package persys is installed.
type Machine struct {
	Root string // folder that contains /etc and /var of the machine; / except in tests
	// Systemctl runs systemctl and returns its output without surrounding space.
	Systemctl func(ctx context.Context, args ...string) (string, error)
	Say       func(text string) // shows one line of progress
}

// Here returns the machine on which this process runs. say shows lines of progress. It returns an error if
// this process may not start services, or if the machine has no systemd or no package persys.
func Here(say func(string)) (*Machine, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("this command writes settings in /etc/persys and starts services, so it needs root: run it with sudo")
	}
	if _, err := exec.LookPath("systemctl"); err != nil {
		return nil, errors.New("this command starts services of systemd, and this machine has no systemctl; start the programs by hand: persys-scheduler --init on the first machine, then persys-scheduler --join TOKEN and persys-agent --join TOKEN")
	}
	m := &Machine{Root: "/", Say: say, Systemctl: func(ctx context.Context, args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput() //nolint:gosec // no shell, and the arguments are constants of this package
		return strings.TrimSpace(string(out)), err
	}}
	for _, s := range services {
		if _, err := os.Stat(m.path(s.settings)); err != nil {
			return nil, fmt.Errorf("this command needs the package persys, which contains the services and %s (make release builds packages for Debian, RPM and Alpine): %w", s.settings, err)
		}
	}
	return m, nil
}

// service is a service of the package persys.
type service struct {
	unit     string // name of its unit, without ".service"
	settings string // its environment file
	join     string // its setting for a join token
	identity string // the folder of its identity, which exists once it has joined
}

// services maps each role that a join token can have, except user, to the service with this role.
var services = map[pki.Role]service{
	pki.RoleScheduler: {"persys-scheduler", "/etc/persys/scheduler.env", "SCHEDULER_JOIN", "/var/lib/persys/scheduler/tls"},
	pki.RoleAgent:     {"persys-agent", "/etc/persys/agent.env", "PERSYS_JOIN", "/var/lib/persys/state.db.tls"},
	pki.RoleGateway:   {"persys-gateway", "/etc/persys/gateway.env", "PERSYS_GATEWAY_JOIN", "/var/lib/persys/gateway/tls"},
}

// AdminDir is the folder in which the first scheduler of a cluster keeps the identity of the admin.
const AdminDir = "/var/lib/persys/scheduler/admin"

func (m *Machine) path(name string) string { return filepath.Join(m.Root, name) }

// Admin is the identity of the admin that a new cluster makes, and the join tokens beside it.
func (m *Machine) Admin() pki.IdentityStore { return pki.IdentityStore{Dir: m.path(AdminDir)} }

// FirstToken returns the join token for agents that a new cluster makes. It contains the addresses of the schedulers, and
// has most likely expired.
func (m *Machine) FirstToken() (pki.JoinToken, error) {
	raw, err := os.ReadFile(m.firstToken())
	if err != nil {
		return pki.JoinToken{}, err
	}
	return pki.ParseJoinToken(string(raw))
}

func (m *Machine) firstToken() string {
	return filepath.Join(m.path(AdminDir), string(pki.RoleAgent)+".token")
}

// Up starts the first scheduler of a new cluster, and waits until the identity of its admin and the first tokens exist.
// If this machine's scheduler is the first one of a cluster already, Up only makes sure that it runs. Up returns an error
// if a program of this machine belongs to another cluster.
func (m *Machine) Up(ctx context.Context) error {
	s := services[pki.RoleScheduler]
	first, err := m.first()
	if err != nil {
		return err
	}
	if !first {
		for role, s := range services {
			if m.Joined(role) {
				return fmt.Errorf("%s holds an identity of %s, so this machine belongs to a cluster already and cannot start another one; persysctl status shows that cluster; to leave it, stop the service and remove the folder", s.identity, s.unit)
			}
			if token, err := m.setting(s.settings, s.join); err != nil {
				return err
			} else if token != "" {
				return fmt.Errorf("%s: %s is set, so this machine belongs to a cluster already and cannot start another one; persysctl status shows that cluster", s.settings, s.join)
			}
		}
		if err := m.set(s.settings, initSetting, "true"); err != nil {
			return err
		}
	}
	m.Say("starting " + s.unit)
	if err := m.start(ctx, s.unit, false); err != nil {
		return err
	}
	return m.await(ctx, s.unit, func() bool {
		if first {
			return m.Admin().Exists()
		}
		_, err := m.FirstToken()
		return err == nil && m.Admin().Exists()
	})
}

// Join starts the program for which token is a join token, and waits until it has joined. The program keeps its identity
// afterwards, so a second Join with any token of the same cluster changes nothing. Join returns an error if the program
// belongs to another cluster.
func (m *Machine) Join(ctx context.Context, token string) error {
	t, err := pki.ParseJoinToken(token)
	if err != nil {
		return err
	}
	s, ok := services[t.Role]
	if !ok {
		return fmt.Errorf("the token has the role %s, and only programs with the roles scheduler, agent and gateway run as services", t.Role)
	}
	if first, err := m.first(); err != nil {
		return err
	} else if first && t.Role == pki.RoleScheduler {
		return fmt.Errorf("%s: %s is set, so the scheduler of this machine is the first one of its own cluster and cannot join cluster %s", s.settings, initSetting, t.Cluster)
	}
	identity := pki.IdentityStore{Dir: m.path(s.identity)}
	joined := identity.Exists()
	if joined {
		have, err := identity.Membership()
		if err != nil {
			return err
		}
		if have.Cluster != t.Cluster {
			return fmt.Errorf("%s of this machine belongs to cluster %s, and the token is for cluster %s: to leave the first one, stop the service and remove the folder %s", s.unit, have.Cluster, t.Cluster, s.identity)
		}
	} else if err := m.set(s.settings, s.join, strings.TrimSpace(token)); err != nil {
		return err
	}
	m.Say("starting " + s.unit)
	if err := m.start(ctx, s.unit, !joined); err != nil {
		return err
	}
	return m.await(ctx, s.unit, identity.Exists)
}

// first reports whether the scheduler of this machine is the first one of its cluster.
func (m *Machine) first() (bool, error) {
	file := services[pki.RoleScheduler].settings
	text, err := m.setting(file, initSetting)
	if err != nil || text == "" {
		return false, err
	}
	first, err := strconv.ParseBool(text)
	if err != nil {
		return false, fmt.Errorf("%s: %s: %q is not a boolean: use true or false", file, initSetting, text)
	}
	return first, nil
}

// Joined reports whether the program with the given role belongs to a cluster.
func (m *Machine) Joined(role pki.Role) bool {
	return pki.IdentityStore{Dir: m.path(services[role].identity)}.Exists()
}

// start starts a service now and at every boot. If again is set, a running service is started again, so that it reads
// its settings.
func (m *Machine) start(ctx context.Context, unit string, again bool) error {
	verbs := [][]string{{"enable", "--now", unit}}
	if again {
		verbs = [][]string{{"enable", unit}, {"restart", unit}}
	}
	for _, args := range verbs {
		if out, err := m.Systemctl(ctx, args...); err != nil {
			return fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}

// await waits until done reports true and the service runs. Meanwhile it shows the status that the service reports, such
// as the address that does not answer.
func (m *Machine) await(ctx context.Context, unit string, done func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	status := ""
	for {
		state, _ := m.Systemctl(ctx, "is-active", unit) // systemctl also prints the state when it fails because the unit is not active
		if done() && state == "active" {
			return nil
		}
		if now, err := m.Systemctl(ctx, "show", "--property=StatusText", "--value", unit); err == nil && now != status {
			status = now
			m.Say(unit + ": " + status)
		}
		hint := "journalctl -u " + unit + " says why"
		if status != "" {
			hint = status + "; " + hint
		}
		if state == "failed" {
			return fmt.Errorf("%s has failed: %s", unit, hint)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s was started, and is not ready yet (%s); it keeps trying: %s", unit, state, hint)
		case <-tick.C:
		}
	}
}

// setting returns the value of a setting in an environment file, or "" if it is not set. If several lines set it, the
// last of these is used, as systemd does.
func (m *Machine) setting(file, name string) (value string, err error) {
	raw, err := os.ReadFile(m.path(file))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	for line := range strings.Lines(string(raw)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), name+"="); ok {
			value = strings.Trim(v, `"'`)
		}
	}
	return value, nil
}

// set writes a setting with its value to an environment file. It leaves all other lines, including comments,
// unchanged. The file is replaced as a whole, so that a crash leaves either the old or the new one, and keeps its mode
// and its owner, the user of the service.
func (m *Machine) set(file, name, value string) error {
	path, err := filepath.EvalSymlinks(m.path(file))
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	lines := slices.DeleteFunc(strings.Split(strings.TrimRight(string(raw), "\n"), "\n"), func(line string) bool {
		return strings.HasPrefix(strings.TrimSpace(line), name+"=")
	})
	lines = append(lines, name+"="+value, "")
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.WriteString(strings.Join(lines, "\n"))
	if err = errors.Join(err, keepOwner(f, info), f.Chmod(info.Mode().Perm()), f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("write %s: %w", file, err)
	}
	return pki.SyncDir(filepath.Dir(path))
}
