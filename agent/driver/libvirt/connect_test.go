package libvirt

import (
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	lv "github.com/digitalocean/go-libvirt"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/testbed"
)

func TestURIsNameASocketOfThisMachine(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", "/run/user/7")
	for _, c := range []struct {
		uri        string
		sockets    []string
		hypervisor string
		err        string
	}{
		{uri: "qemu:///system", sockets: []string{"/run/libvirt/virtqemud-sock", "/run/libvirt/libvirt-sock"}, hypervisor: "qemu:///system"},
		{uri: "qemu:///session", sockets: []string{"/run/user/7/libvirt/virtqemud-sock", "/run/user/7/libvirt/libvirt-sock"}, hypervisor: "qemu:///session"},
		{uri: "qemu+unix:///system?socket=/s", sockets: []string{"/s"}, hypervisor: "qemu:///system"},
		{uri: "qemu:///system?mode=direct", sockets: []string{"/run/libvirt/virtqemud-sock"}, hypervisor: "qemu:///system"},
		{uri: "qemu:///system?mode=legacy", sockets: []string{"/run/libvirt/libvirt-sock"}, hypervisor: "qemu:///system"},
		{uri: "qemu:///system?mode=both", err: "must be auto, direct or legacy"},
		{uri: "qemu+ssh://root@other/system", err: "must name libvirt on this machine"},
		{uri: "qemu+tcp:///system", err: "must name libvirt on this machine"},
		{uri: "qemu://other/system", err: "must name libvirt on this machine"},
		{uri: "/run/libvirt/libvirt-sock", err: "must have a hypervisor and a path"},
		{uri: "qemu:", err: "must have a hypervisor and a path"},
	} {
		e, err := parseURI(c.uri)
		if c.err != "" {
			if driver.ClassOf(err) != driver.InvalidConfiguration || !strings.Contains(err.Error(), c.err) {
				t.Errorf("parseURI(%q) returned the error %v; want %q", c.uri, err, c.err)
			}
			continue
		}
		if err != nil || !slices.Equal(e.sockets, c.sockets) || string(e.hypervisor) != c.hypervisor {
			t.Errorf("parseURI(%q) returned %+v, error %v; want the sockets %q and the hypervisor %s", c.uri, e, err, c.sockets, c.hypervisor)
		}
	}
}

func TestAvailableNamesTheMissingSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	err := Available("qemu+unix:///system?socket=" + socket)
	if driver.ClassOf(err) != driver.RuntimeUnhealthy || !strings.Contains(err.Error(), "no libvirt daemon listens at "+socket+": install libvirt") {
		t.Errorf("without a socket Available returned %v; want the socket and how to install libvirt", err)
	}
	if err := Available(theDaemon(t).URI); err != nil {
		t.Errorf("a libvirt daemon listens, but Available returned %v; want nil", err)
	}
}

// The errors of a real daemon arrive with libvirt's code and text, and get the class of their code.
func TestErrorsOfTheDaemonHaveClasses(t *testing.T) {
	_, ctx, d := atDaemon(t, time.Minute)
	hv := d.hv
	const nobody = "00000000-0000-4000-8000-000000000000"
	_, noDomain := hv.domain(ctx, "nobody")
	_, noNetwork := hv.network(ctx, "nowhere")
	_, noConsole := hv.console(ctx, nobody)
	for _, c := range []struct {
		what  string
		err   error
		class driver.Class
		text  string
		code  lv.ErrorNumber // 0: the error wraps errAbsent
	}{
		{"an unknown domain", noDomain, driver.RuntimeResourceMissing, "Domain not found: no domain with matching name 'nobody'", 0},
		{"a start of an unknown domain", hv.start(ctx, nobody), driver.RuntimeResourceMissing, "Domain not found: no domain with matching uuid", 0},
		{"a console of an unknown domain", noConsole, driver.RuntimeResourceMissing, "Domain not found", 0},
		{"an unknown network", noNetwork, driver.RuntimeResourceMissing, "Network not found", 0},
		{"an unknown pool", hv.growVolume(ctx, "nowhere", "vol", 1), driver.RuntimeResourceMissing, "Storage pool not found", 0},
		{"broken XML", hv.define(ctx, "<domain"), driver.InvalidConfiguration, "(domain_definition):1:", lv.ErrXMLDetail},
		{"a wrong value", hv.define(ctx, "<domain type='qemu'><name>x</name><memory>lots</memory><os><type>hvm</type></os></domain>"), driver.InvalidConfiguration, "memory", lv.ErrXMLError},
	} {
		var e lv.Error
		if driver.ClassOf(c.err) != c.class || !strings.Contains(c.err.Error(), c.text) {
			t.Errorf("%s returned %v; want an error of class %s with the text %q", c.what, c.err, c.class, c.text)
		} else if c.code == 0 && !errors.Is(c.err, errAbsent) || c.code != 0 && (!errors.As(c.err, &e) || lv.ErrorNumber(e.Code) != c.code) {
			t.Errorf("%s returned %#v; want libvirt's error code %d (0 means an error that wraps errAbsent)", c.what, c.err, c.code)
		}
	}
}

// While a daemon hangs, the driver closes its connection to it, so calls do not wait for the end of their time limits.
func TestAHangingDaemonIsFoundByTheCheck(t *testing.T) {
	daemon, ctx, d := atDaemon(t, time.Minute, func(o *Options) { o.CallTimeout = time.Hour })
	v := d.hv.(*connection)
	v.checkEvery, v.checkWithin = 50*time.Millisecond, 500*time.Millisecond
	if _, err := d.List(ctx); err != nil {
		t.Fatal(err)
	}
	if err := daemon.Signal(ctx, "STOP"); err != nil {
		t.Fatal(err)
	}
	_, err := d.List(ctx)
	if err := daemon.Signal(ctx, "CONT"); err != nil {
		t.Fatal(err)
	}
	if driver.ClassOf(err) != driver.RuntimeUnhealthy || !strings.Contains(err.Error(), "the connection to libvirt was lost") {
		t.Errorf("List of a daemon that hangs returned %v; want the lost connection and class %s", err, driver.RuntimeUnhealthy)
	}
	testbed.Within(t, 20*time.Second, "the daemon that was stopped and continues answers again", func() error { _, err := d.List(ctx); return err })
}

// When a guest ends, its console session ends too, even while somebody types. TestMain finds goroutines
// that do not end.
func TestAConsoleEndsWithItsGuest(t *testing.T) {
	daemon, ctx, d := atDaemon(t, 2*time.Minute)
	for range 5 {
		ensured(t, ctx, d, order("hangup", "c1:1", tiny(daemon, "serve")))
		line, err := d.hv.console(ctx, uuidOf(testCluster, "hangup"))
		if err != nil {
			t.Fatal(err)
		}
		typed, ended := make(chan error, 1), make(chan error, 1)
		go func() {
			for {
				if _, err := line.Write([]byte("x")); err != nil {
					typed <- err
					return
				}
			}
		}()
		go func() {
			_, err := io.Copy(io.Discard, line)
			ended <- err
		}()
		if _, err := daemon.Virsh(ctx, "destroy", "hangup"); err != nil {
			t.Fatal(err)
		}
		for what, done := range map[string]chan error{"Read": ended, "Write": typed} {
			select {
			case <-done:
			case <-time.After(30 * time.Second):
				t.Errorf("30 s after the virtual machine was destroyed, a call of %s on the session with its console has not returned", what)
			}
		}
		if err := line.Close(); err != nil {
			t.Error(err)
		}
	}
}
