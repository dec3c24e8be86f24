package e2e

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/persys/compute/agent/driver/libvirt/libvirttest"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// TestVirtualMachine runs a real guest with the real programs. The guest is applied, boots from an image
// with its seed, is reached on its console through any replica and the gateway, survives a restart of
// libvirt, is stopped, started, updated and deleted. The tests of the driver cover disks and seeds.
func TestVirtualMachine(t *testing.T) {
	needed := func(err error) { t.Helper(); testbed.Need(t, "libvirt and a real guest", err) }
	if missing := libvirttest.Missing(); missing != "" {
		needed(errors.New(missing))
	}
	image, err := libvirttest.Guest(t.Context())
	needed(err)
	daemon, err := libvirttest.Start(t.Context())
	needed(err)
	t.Cleanup(func() {
		if err := daemon.Close(); err != nil {
			t.Error(err)
		}
	})
	images := filepath.Join(daemon.Dir, "images")
	must(t, os.MkdirAll(images, 0o755))
	c := start(t, harness.Options{Binaries: shipped(t), SchedulerEnv: fast(nil)})
	a := got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Env: map[string]string{
		"PERSYS_DOCKER_ENABLED": "false", "PERSYS_FENCER": "off",
		"PERSYS_VM_ENABLED": "true", "PERSYS_LIBVIRT_URI": daemon.URI, "PERSYS_VM_IMAGES": images, "PERSYS_VM_ACCELERATION": "qemu",
	}}))
	began := time.Now()
	const patience = 3 * time.Minute // time limit for the boot of a guest without KVM on a busy machine
	// says waits until the console of the guest has shown all lines in lines, after the first occurrence of the
	// text after.
	says := func(after string, lines ...string) {
		t.Helper()
		must(t, testbed.Poll(t.Context(), patience, "the guest's console", func(ctx context.Context) error {
			res, err := c.Ctl(ctx, "logs", "guest")
			if err != nil {
				return err
			}
			_, text, found := strings.Cut(res.Stdout, after)
			if !found {
				return fmt.Errorf("the console log does not contain %q:\n%s%s", after, res.Stdout, res.Stderr)
			}
			for _, l := range lines {
				if !strings.Contains(text, l) {
					return fmt.Errorf("the console log does not contain %q:\n%s%s", l, res.Stdout, res.Stderr)
				}
			}
			return nil
		}))
		t.Logf("the guest printed %q after %s", after, time.Since(began).Round(100*time.Millisecond))
	}
	file := filepath.Join(t.TempDir(), "guest.yaml")
	apply := func(memory, message string) {
		t.Helper()
		must(t, os.WriteFile(file, fmt.Appendf(nil, `id: guest
resources: {cpu: 900m}
vm:
  cpus: 1
  memory: %s
  image: %s
  disks: [{size: 1Gi}]
  networks: [default]
  cloud_init: |
    #cloud-config
    final_message: %s
`, memory, image, message), 0o600))
		ctl(t, c, "apply", "-f", file)
	}
	reach := func(what string, want func(*controlv1.WorkloadView) bool) *controlv1.WorkloadView {
		t.Helper()
		view, err := c.WaitWorkload(t.Context(), "guest", patience, want)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		return view
	}

	apply("192Mi", "it is me")
	reach("booted", runningOn(a.NodeID))
	says("guest: boot 1", "user-data| final_message: it is me", "guest: ready")
	must(t, testbed.Poll(t.Context(), patience, "the guest's address and a note", func(ctx context.Context) error {
		res, err := c.Ctl(ctx, "get", "guest")
		// persysctl shows a note that the CPU limit is not enforced, because the libvirt of this test has
		// no cgroups.
		if err == nil && !(strings.Contains(res.Stdout, "192.168.122.") && strings.Contains(res.Stdout, "its CPU limit of 900 millicores is not enforced")) {
			err = fmt.Errorf("persysctl get does not show the guest's address:\n%s%s", res.Stdout, res.Stderr)
		}
		return err
	}))

	// Kill the libvirt daemon and start it again. The guest must keep running and answer on its console.
	domain := got[string](t)(daemon.Virsh(t.Context(), "list", "--name", "--id"))
	must(t, daemon.Restart(t.Context()))
	console := func(ctx context.Context, through ...string) error {
		term, err := c.OpenTerminal(ctx, c.CtlEnv(through...), 31, 77, "console", "guest")
		if err != nil {
			return err
		}
		err = errors.Join(term.Shows(ctx, settle, "connected to the console"), term.Type("ping\r"), term.Shows(ctx, settle, "guest: pong"), term.Type("\x1d"))
		code, cerr := term.Close(settle)
		if err = errors.Join(err, cerr); err == nil && code != 0 {
			err = fmt.Errorf("persysctl console ended with exit code %d", code)
		}
		return err
	}
	must(t, testbed.Poll(t.Context(), patience, "an answer on the console", func(ctx context.Context) error { return console(ctx) }))
	// Use the console from a browser, and through each follower: the address of the follower is then the
	// first in the list of persysctl.
	leader := got[int](t)(c.WaitLeader(t.Context(), electionLimit))
	for i, s := range c.Schedulers {
		if i != leader {
			must(t, console(t.Context(), freeAddr(t), s.GRPC))
		}
	}
	must(t, consoleOverGateway(t.Context(), gatewayOf(t, c), "guest", "ping\r", "guest: pong"))
	if now := got[string](t)(daemon.Virsh(t.Context(), "list", "--name", "--id")); now != domain {
		t.Errorf("after the restart of libvirt its list of running domains is %q, want %q as before", now, domain)
	}
	reach("after libvirt's restart", runningOn(a.NodeID))
	if strings.Contains(ctl(t, c, "logs", "guest"), "guest: boot 2") {
		t.Error("the restart of libvirt has rebooted the guest")
	}

	ctl(t, c, "stop", "guest")
	reach("stopped", func(w *controlv1.WorkloadView) bool { return w.GetStatus() == "Stopped" })
	says("guest: power button", "guest: bye")
	ctl(t, c, "start", "guest")
	says("guest: boot 2", "guest: ready") // the guest boots a second time from the same disk
	reach("started", running)
	apply("208Mi", "changed")
	says("guest: boot 3", "user-data| final_message: changed", "guest: ready")
	reach("updated", running)
	ctl(t, c, "delete", "guest", "--wait", "--timeout", patience.String())
	left, err := os.ReadDir(images)
	must(t, err)
	for _, f := range left {
		if strings.HasPrefix(f.Name(), "guest") {
			t.Errorf("the file %s is left", f.Name())
		}
	}
	if out := got[string](t)(daemon.Virsh(t.Context(), "list", "--all", "--name")); strings.Contains(out, "guest") {
		t.Errorf("libvirt still has %q", out)
	}
	t.Logf("the whole test took %s", time.Since(began).Round(time.Second))
}

// consoleOverGateway opens the console of a workload over the gateway's websocket, as the page of the web
// console does. It types the text typed and waits until the output contains want.
func consoleOverGateway(ctx context.Context, gateway, workload, typed, want string) error {
	ctx, cancel := context.WithTimeout(ctx, settle)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, "ws://"+gateway+"/v1/workloads/"+workload+"/exec", &websocket.DialOptions{Subprotocols: []string{"persys.exec.v1"}})
	if err != nil {
		return err
	}
	defer ws.CloseNow()
	for _, m := range []string{
		`{"open":{"console":true,"input":true,"tty":true}}`,
		`{"input":"` + base64.StdEncoding.EncodeToString([]byte(typed)) + `"}`,
	} {
		if err := ws.Write(ctx, websocket.MessageText, []byte(m)); err != nil {
			return err
		}
	}
	said := ""
	for !strings.Contains(said, want) {
		_, data, err := ws.Read(ctx)
		if err != nil {
			return fmt.Errorf("the console said %q: %w", said, err)
		}
		m := &clusterv1.ExecResponse{}
		if err := protojson.Unmarshal(data, m); err != nil {
			return fmt.Errorf("%s: %w", data, err)
		}
		said += string(m.GetOutput().GetData())
	}
	return ws.Close(websocket.StatusNormalClosure, "")
}
