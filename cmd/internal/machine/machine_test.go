package machine

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/persys/compute/pki"
)

// fake is a machine whose services are files in a folder.
type fake struct {
	*Machine
	t       *testing.T
	calls   []string
	said    []string
	starts  func(unit string) // what a service does when it starts
	state   string            // what is-active says
	status  string            // what the service reports
	refuses error             // what enable and restart return
}

func newFake(t *testing.T) *fake {
	t.Helper()
	f := &fake{t: t, state: "active", starts: func(string) {}}
	f.Machine = &Machine{Root: t.TempDir(), Say: func(s string) { f.said = append(f.said, s) }, Systemctl: f.systemctl}
	for _, s := range services {
		f.write(s.settings, "# Settings\n#"+s.join+"=persys-join-1.…\n")
	}
	return f
}

func (f *fake) write(file, text string) {
	f.t.Helper()
	path := f.path(file)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fake) systemctl(_ context.Context, args ...string) (string, error) {
	unit := args[len(args)-1]
	switch args[0] {
	case "is-active":
		if f.state != "active" {
			return f.state, errors.New("exit status 3")
		}
		return f.state, nil
	case "show":
		return f.status, nil
	}
	f.calls = append(f.calls, strings.Join(args, " "))
	if f.refuses != nil {
		return "Unit " + unit + " is masked.", f.refuses
	}
	if args[0] == "restart" || slices.Contains(args, "--now") {
		f.starts(unit)
	}
	return "", nil
}

// joins stores the identity of a program that has joined a cluster.
func (f *fake) joins(folder, cluster string, role pki.Role) {
	f.write(filepath.Join(folder, "identity.pem"), "")
	if err := (pki.IdentityStore{Dir: f.path(folder)}).SaveMembership(pki.Membership{Cluster: cluster, Role: role, Name: "s1"}); err != nil {
		f.t.Fatal(err)
	}
}

func aToken(t *testing.T, role pki.Role, cluster string) string {
	t.Helper()
	text, err := pki.JoinToken{ID: "1", Secret: make([]byte, 32), Cluster: cluster, Role: role, Root: strings.Repeat("a", 64), Schedulers: []string{"10.0.0.1:8085"}}.Export()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestUpMakesOneCluster(t *testing.T) {
	f := newFake(t)
	f.starts = func(string) {
		f.write(filepath.Join(AdminDir, "identity.pem"), "")
		f.write(filepath.Join(AdminDir, "agent.token"), aToken(t, pki.RoleAgent, "c1"))
	}
	for range 2 { // the second time nothing changes
		if err := f.Up(t.Context()); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(f.path("/etc/persys/scheduler.env"))
		if want := "# Settings\n#SCHEDULER_JOIN=persys-join-1.…\nSCHEDULER_INIT=true\n"; err != nil || string(raw) != want {
			t.Fatalf("the settings are %q (%v), want %q", raw, err, want)
		}
	}
	if want := []string{"enable --now persys-scheduler", "enable --now persys-scheduler"}; !slices.Equal(f.calls, want) {
		t.Errorf("systemctl was called with %q, want %q", f.calls, want)
	}
	if token, err := f.FirstToken(); err != nil || token.Schedulers[0] != "10.0.0.1:8085" {
		t.Errorf("the first token is %v, %v", token, err)
	}
	// This machine runs the first scheduler of a cluster. Join with a token of another cluster must fail.
	if err := f.Join(t.Context(), aToken(t, pki.RoleScheduler, "c2")); err == nil || !strings.Contains(err.Error(), "SCHEDULER_INIT is set") {
		t.Errorf("the first scheduler of a cluster may join another one: %v", err)
	}
}

func TestUpRefusesAMemberOfACluster(t *testing.T) {
	for role, s := range services {
		f := newFake(t)
		f.write(s.settings, s.join+"=persys-join-1.x.y\n")
		if err := f.Up(t.Context()); err == nil || !strings.Contains(err.Error(), s.settings+": "+s.join+" is set") {
			t.Errorf("with a token of role %s, Up returns %v, want an error that names the setting", role, err)
		}
		if len(f.calls) != 0 {
			t.Errorf("with a token of role %s, a service was started: %q", role, f.calls)
		}
	}
}

// TestUpRefusesAnIdentity: a program that joined a cluster by a flag has no setting, but an identity.
func TestUpRefusesAnIdentity(t *testing.T) {
	for role, s := range services {
		f := newFake(t)
		f.joins(s.identity, "c1", role)
		if err := f.Up(t.Context()); err == nil || !strings.Contains(err.Error(), s.identity+" holds an identity of "+s.unit) {
			t.Errorf("with the identity of a program of role %s, Up returns %v, want an error that names its folder", role, err)
		}
		if len(f.calls) != 0 {
			t.Errorf("with the identity of a program of role %s, a service was started: %q", role, f.calls)
		}
	}
}

// TestInitIsABoolean: SCHEDULER_INIT=false means the same as a missing SCHEDULER_INIT.
func TestInitIsABoolean(t *testing.T) {
	s := services[pki.RoleScheduler]
	for text, first := range map[string]bool{"false": false, "0": false, `"false"`: false, "": false, "true": true, "1": true} {
		f := newFake(t)
		f.write(s.settings, "SCHEDULER_INIT="+text+"\n")
		f.starts = func(string) { f.joins(s.identity, "c1", pki.RoleScheduler) }
		err := f.Join(t.Context(), aToken(t, pki.RoleScheduler, "c1"))
		if first != (err != nil) {
			t.Errorf("with SCHEDULER_INIT=%s, Join returns %v", text, err)
		}
		f = newFake(t)
		f.write(s.settings, "SCHEDULER_INIT="+text+"\n")
		f.starts = func(string) {
			f.write(filepath.Join(AdminDir, "identity.pem"), "")
			f.write(filepath.Join(AdminDir, "agent.token"), aToken(t, pki.RoleAgent, "c1"))
		}
		if err := f.Up(t.Context()); err != nil {
			t.Errorf("with SCHEDULER_INIT=%s, Up returns %v", text, err)
		}
		if now, err := f.first(); !now || err != nil {
			t.Errorf("with SCHEDULER_INIT=%s, Up leaves the setting %t, %v", text, now, err)
		}
	}
	f := newFake(t)
	f.write(s.settings, "SCHEDULER_INIT=maybe\n")
	if err := f.Up(t.Context()); err == nil || !strings.Contains(err.Error(), s.settings+`: SCHEDULER_INIT: "maybe" is not a boolean`) {
		t.Errorf("with a value that is no boolean, Up returns %v", err)
	}
}

// TestSettingsAreReplaced: a settings file is replaced as a whole and keeps its mode, its owner and the links to it.
// Nothing else stays in the folder.
func TestSettingsAreReplaced(t *testing.T) {
	f := newFake(t)
	const former = "# mine\nOTHER=1\n"
	f.write("/etc/persys/real.env", former)
	link, path := f.path("/etc/persys/link.env"), f.path("/etc/persys/real.env")
	uid := os.Geteuid()
	if uid == 0 {
		uid = 1234
	}
	if err := errors.Join(os.Symlink("real.env", link), os.Chmod(path, 0o640), os.Chown(path, uid, -1)); err != nil {
		t.Fatal(err)
	}
	open, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if err := f.set("/etc/persys/link.env", "A", "b"); err != nil {
		t.Fatal(err)
	}
	if raw, err := io.ReadAll(open); err != nil || string(raw) != former {
		t.Errorf("the former file was changed in place: %q, %v", raw, err)
	}
	raw, err := os.ReadFile(path)
	if err != nil || string(raw) != former+"A=b\n" {
		t.Errorf("the file is %q, %v", raw, err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o640 || int(info.Sys().(*syscall.Stat_t).Uid) != uid {
		t.Errorf("the file has mode %v and owner %v, %v", info.Mode(), info.Sys(), err)
	}
	if to, err := os.Readlink(link); err != nil || to != "real.env" {
		t.Errorf("the link leads to %q, %v", to, err)
	}
	list, err := os.ReadDir(f.path("/etc/persys"))
	if err != nil || len(list) != len(services)+2 {
		t.Errorf("the folder contains %v (error %v)", list, err)
	}
}

func TestJoin(t *testing.T) {
	for role, s := range services {
		t.Run(string(role), func(t *testing.T) {
			f := newFake(t)
			f.starts = func(string) { f.joins(s.identity, "c1", role) }
			f.write(s.settings, "# mine\n"+s.join+"=persys-join-1.old.x\nOTHER=1\n")
			token := aToken(t, role, "c1")
			for range 2 { // the second token of the same cluster changes nothing
				if err := f.Join(t.Context(), token); err != nil {
					t.Fatal(err)
				}
				raw, err := os.ReadFile(f.path(s.settings))
				if want := "# mine\nOTHER=1\n" + s.join + "=" + aToken(t, role, "c1") + "\n"; err != nil || string(raw) != want {
					t.Fatalf("the settings are %q (%v), want %q", raw, err, want)
				}
				token = aToken(t, role, "c1") + "\n"
			}
			if want := []string{"enable " + s.unit, "restart " + s.unit, "enable --now " + s.unit}; !slices.Equal(f.calls, want) {
				t.Errorf("systemctl was called with %q, want %q", f.calls, want)
			}
			if err := f.Join(t.Context(), aToken(t, role, "c2")); err == nil || !strings.Contains(err.Error(), "belongs to cluster c1, and the token is for cluster c2") {
				t.Errorf("a member of one cluster may join another one: %v", err)
			}
		})
	}
}

func TestJoinSaysWhatItWaitsFor(t *testing.T) {
	f := newFake(t)
	f.state, f.status = "failed", "joining: 10.0.0.1:8085 does not answer"
	err := f.Join(t.Context(), aToken(t, pki.RoleAgent, "c1"))
	if want := "persys-agent has failed: " + f.status + "; journalctl -u persys-agent says why"; err == nil || err.Error() != want {
		t.Errorf("Join returns %v, want %s", err, want)
	}
	if !slices.Contains(f.said, "persys-agent: "+f.status) {
		t.Errorf("the progress %q does not contain the status of the service", f.said)
	}

	f = newFake(t)
	f.refuses = errors.New("exit status 1")
	if err := f.Join(t.Context(), aToken(t, pki.RoleAgent, "c1")); err == nil || !strings.Contains(err.Error(), "systemctl enable persys-agent: exit status 1: Unit persys-agent is masked.") {
		t.Errorf("Join returns %v, want the error of systemctl", err)
	}
	if err := f.Join(t.Context(), aToken(t, pki.RoleUser, "c1")); err == nil || !strings.Contains(err.Error(), "the token has the role user") {
		t.Errorf("Join with the token of a person returns %v", err)
	}
	if err := f.Join(t.Context(), "persys-join-1.cut"); err == nil {
		t.Error("Join accepts a truncated token")
	}
}
