package libvirt

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/drivertest"
	"github.com/persys/compute/agent/driver/libvirt/libvirttest"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/testbed"
)

// daemon is the libvirt daemon that this package's tests share.
type daemon struct {
	once sync.Once
	*libvirttest.Daemon
	err error
}

var shared daemon

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.Daemon != nil {
		if code != 0 {
			fmt.Fprintln(os.Stderr, shared.Log())
		}
		if err := shared.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "closing the daemon:", err)
			code = 1
		}
	}
	testbed.Exit(code)
}

// theDaemon returns the shared libvirt daemon, started by the first test that needs it.
func theDaemon(t *testing.T) *libvirttest.Daemon {
	t.Helper()
	shared.once.Do(func() {
		if missing := libvirttest.Missing(); missing != "" {
			shared.err = fmt.Errorf("%s", missing)
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if shared.Daemon, shared.err = libvirttest.Start(ctx); shared.err != nil {
			return
		}
		for name, mode := range map[string]libvirttest.Mode{"serve": libvirttest.Serve, "exit": libvirttest.Exit, "panic": libvirttest.Panic} {
			if err := libvirttest.WriteTiny(filepath.Join(shared.Dir, name+".img"), mode); err != nil {
				shared.err = err
			}
		}
	})
	testbed.Need(t, "a libvirt daemon", shared.err)
	return shared.Daemon
}

// images returns the folder for the disks of the tests. The user that QEMU runs as can enter it.
func images(d *libvirttest.Daemon) string { return filepath.Join(d.Dir, "images") }

const testCluster = "vm-test"

// atDaemon returns the shared daemon, a context with a time limit, and a driver of node-a.
func atDaemon(t *testing.T, limit time.Duration, change ...func(*Options)) (*libvirttest.Daemon, context.Context, *Driver) {
	t.Helper()
	daemon := theDaemon(t)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return daemon, ctx, openDriver(t, daemon, "node-a", change...)
}

func openDriver(t *testing.T, d *libvirttest.Daemon, node string, change ...func(*Options)) *Driver {
	t.Helper()
	opt := Options{
		URI: d.URI, ClusterID: testCluster, NodeID: node, Images: images(d), StopGrace: 300 * time.Millisecond, Acceleration: "qemu",
	}
	for _, c := range change {
		c(&opt)
	}
	drv, err := New(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := drv.Close(); err != nil {
			t.Error(err)
		}
	})
	return drv
}

// tiny returns the specification of a machine that boots one of the images of package libvirttest with a guest
// of 512 bytes.
func tiny(d *libvirttest.Daemon, name string) *agentv1.VMSpec {
	return &agentv1.VMSpec{
		Vcpus: 1, MemoryMb: 24, OsImage: filepath.Join(d.Dir, name+".img"),
		Disks: []*agentv1.DiskConfig{{Device: "vda", Format: "qcow2"}},
	}
}

func body(vm *agentv1.VMSpec) *agentv1.WorkloadSpec {
	return &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Vm{Vm: vm}}
}

func TestConformance(t *testing.T) {
	d := theDaemon(t)
	drivertest.Run(t, drivertest.Harness{
		Cluster: testCluster, Prefix: "c-",
		Open: func(t *testing.T, node string) driver.Driver { return openDriver(t, d, node) },
		Steady: func(version int) *agentv1.WorkloadSpec {
			vm := tiny(d, "serve")
			vm.Metadata = map[string]string{"version": fmt.Sprint(version)}
			return body(vm)
		},
		LogLine: libvirttest.TinyLine,
		// Emulated guests are slow on a busy machine, so allow more than the default of 30 s.
		Patience:    2 * time.Minute,
		NoExitCodes: true,
		Crash: func(code int) *agentv1.WorkloadSpec {
			if code == 0 {
				return body(tiny(d, "exit"))
			}
			return body(tiny(d, "panic"))
		},
		Missing:  func() *agentv1.WorkloadSpec { return body(tiny(d, "nobody-has-this")) },
		Stranger: func(t *testing.T, id driver.ID) func() { return stranger(t, d, id) },
		Outage: func(t *testing.T, node string) (driver.Driver, func(), func()) {
			drv := openDriver(t, d, node)
			down := false
			cut := func() {
				if err := d.Down(t.Context()); err != nil {
					t.Error(err)
				}
				down = true
			}
			restore := func() {
				if down {
					down = false
					// If libvirt was killed at a moment from which it cannot recover (see
					// TestAnInterruptedStartNamesItsRepair), repair it as an operator would.
					if err := d.Recover(context.WithoutCancel(t.Context())); err != nil {
						t.Error(err)
					}
				}
			}
			t.Cleanup(restore) // the next tests use the same daemon
			return drv, cut, restore
		},
		Away: time.Minute,
		Full: func(t *testing.T, node string) (driver.Driver, func(), func()) {
			fill, empty := drivertest.Fill(t, d.Small())
			return openDriver(t, d, node, func(o *Options) { o.Images = filepath.Join(d.Small(), "images") }), fill, empty
		},
	})
}

// stranger creates a running domain that no agent made: its metadata lacks our element.
func stranger(t *testing.T, d *libvirttest.Daemon, id driver.ID) func() {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	virsh := func(args ...string) string {
		t.Helper()
		out, err := d.Virsh(ctx, args...)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(out)
	}
	err := d.Define(ctx, fmt.Sprintf(`<domain type='qemu'><name>%s</name><memory unit='MiB'>24</memory><os><type>hvm</type></os></domain>`, id))
	if err != nil {
		t.Fatal(err)
	}
	virsh("start", string(id))
	before := virsh("dominfo", string(id))
	gone := false
	remove := func() {
		if !gone {
			gone = true
			virsh("destroy", string(id))
			virsh("undefine", string(id))
		}
	}
	t.Cleanup(remove)
	facts := func(info string) string { // facts returns the output of virsh without the processor time, which changes
		var out []string
		for line := range strings.Lines(info) {
			if !strings.HasPrefix(line, "CPU time") {
				out = append(out, line)
			}
		}
		return strings.Join(out, "")
	}
	return func() {
		t.Helper()
		if after := virsh("dominfo", string(id)); facts(after) != facts(before) {
			t.Errorf("the driver changed the domain of a stranger from\n%s\nto\n%s", before, after)
		}
		remove()
	}
}
