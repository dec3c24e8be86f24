package libvirt

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/libvirt/libvirttest"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/testbed"
)

// lanEnv is a variable that passes parameters to the test process in the bridge's network namespace, one
// per line: the daemon's address and folder, the guest's image, and the words of a command that pings
// from the router.
const lanEnv = "PERSYS_TEST_LAN"

const lanBridge = "brlan"

// Guests on a plain bridge have a static address or one from a DHCP server on the bridge. The driver learns the
// guest's address although the guest sends no packet to this machine.
//
// The driver looks for bridges and listens in its own network namespace. So the test creates the bridge in
// the network namespace of libvirt's daemon, and runs itself again as a process in that namespace.
func TestGuestOnABridge(t *testing.T) {
	if beside := os.Getenv(lanEnv); beside != "" {
		lines := strings.Split(beside, "\n")
		guestsOnABridge(t, &libvirttest.Daemon{URI: lines[0], Dir: lines[1]}, lines[2], lines[3:])
		return
	}
	daemon := theDaemon(t)
	image := realGuest(t)
	busybox := testbed.Program(t, "busybox")
	ctx, cancel := context.WithTimeout(t.Context(), 22*time.Minute)
	defer cancel()
	lan, err := daemon.LAN(ctx, lanBridge, netip.MustParsePrefix("10.77.0.1/24"), netip.MustParseAddr("10.77.0.100"), netip.MustParseAddr("10.77.0.149"))
	testbed.Need(t, "a bridge with a DHCP server", err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := lan.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	ping, err := lan.AtRouter(busybox, "ping", "-c", "1", "-W", "2")
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	again, err := daemon.Here(self, "-test.run", "^"+t.Name()+"$", "-test.v", "-test.timeout", "21m")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, again[0], again[1:]...)
	cmd.Env = append(os.Environ(), lanEnv+"="+strings.Join(append([]string{daemon.URI, daemon.Dir, image}, ping...), "\n"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	t.Logf("output of the test process beside the bridge:\n%s", out)
	if err != nil {
		t.Errorf("the test process beside the bridge failed: %v\noutput of the DHCP server:\n%s", err, lan.Log())
	}
}

// guestsOnABridge boots a guest for each case, all at the same time, and checks the addresses that the driver
// reports for each.
func guestsOnABridge(t *testing.T, daemon *libvirttest.Daemon, image string, ping []string) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	start := time.Now()
	d := openDriver(t, daemon, "node-a", func(o *Options) { o.StopGrace = 30 * time.Second })
	leased := func(prefix string) func(string) bool {
		return func(ip string) bool {
			a, err := netip.ParseAddr(ip)
			return err == nil && netip.MustParsePrefix(prefix).Contains(a)
		}
	}
	exactly := func(want string) func(string) bool { return func(ip string) bool { return ip == want } }
	cases := []struct {
		id       driver.ID
		what     string
		networks []*agentv1.NetworkConfig
		// want holds, in order, one function for each address that the driver should report. It returns
		// whether the reported address is right.
		want []func(string) bool
	}{
		{
			id: "told", what: "a static address",
			networks: []*agentv1.NetworkConfig{{Network: lanBridge, IpAddress: "10.77.0.5/24"}},
			want:     []func(string) bool{exactly("10.77.0.5")},
		}, {
			id: "leased", what: "a guest with one address by DHCP, and one on libvirt's network",
			networks: []*agentv1.NetworkConfig{{Network: "default"}, {Network: lanBridge}},
			want:     []func(string) bool{leased("192.168.122.0/24"), leased("10.77.0.0/24")},
		},
	}
	for _, c := range cases {
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if t.Failed() {
				text, err := consoleLog(ctx, d, c.id)
				t.Logf("console of %s: %s %v", c.id, text, err)
			}
			if err := errors.Join(d.Halt(ctx, c.id, 0), d.Remove(ctx, c.id)); err != nil {
				t.Error(err)
			}
		})
		err := d.Ensure(ctx, driver.Spec{
			ID: c.id, Revision: "1", Content: "c1:1", ClusterID: testCluster, NodeID: "node-a", Running: true,
			Body: body(&agentv1.VMSpec{
				Vcpus: 1, MemoryMb: 192, OsImage: image, Networks: c.networks,
				Disks: []*agentv1.DiskConfig{{Device: "vda", Format: "qcow2"}},
			}),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	hints, err := d.Events(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		t.Run(c.what, func(t *testing.T) {
			o, err := listed(ctx, d, c.id)
			for late := time.After(15 * time.Minute); err == nil && len(o.Addresses) < len(c.want); o, err = listed(ctx, d, c.id) {
				select { // lists the domains after each hint and at intervals, as an agent does, until all addresses are known
				case <-hints:
				case <-time.After(5 * time.Second):
				case <-late:
					t.Fatalf("within the time limit the driver reported only the addresses %v of the guest, with the metadata %v", o.Addresses, o.Metadata)
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("the guest has addresses %v after %s", o.Addresses, time.Since(start))
			if len(o.Addresses) != len(c.want) || o.Metadata["vm.primary_ip"] != o.Addresses[0] {
				t.Fatalf("the guest has the addresses %v and the metadata %v, want one address for each interface", o.Addresses, o.Metadata)
			}
			for i, fits := range c.want {
				if !fits(o.Addresses[i]) {
					t.Errorf("the driver reports for interface %d of the guest the unexpected address %s", i, o.Addresses[i])
				}
			}
			// The guest itself prints the address that the driver reports, and another host on the bridge
			// can reach the guest at this address.
			said := "guest: address " + o.Addresses[len(o.Addresses)-1] + "/24"
			testbed.Within(t, 15*time.Minute, "the guest's console", func() error {
				text, err := consoleLog(ctx, d, c.id)
				if err == nil && !strings.Contains(text, said) {
					err = fmt.Errorf("the guest's console lacks %q: %s", said, text)
				}
				return err
			})
			testbed.Within(t, testbed.Patience, "an answer to ping", func() error {
				args := append(slices.Clone(ping), o.Addresses[len(o.Addresses)-1])
				if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
					return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
				}
				return nil
			})
			// A restarted agent reads the address from the record on disk, because the guest may stay silent
			// from now on.
			if now, err := listed(ctx, openDriver(t, daemon, "node-a"), c.id); err != nil || !slices.Equal(now.Addresses, o.Addresses) {
				t.Errorf("after a restart of the agent, List returns the addresses %v, %v; want the same as before", now.Addresses, err)
			}
		})
	}
}
