package libvirt

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/libvirt/libvirttest"
	"github.com/persys/compute/testbed"
)

// A libvirt daemon with cgroups enforces a guest's CPU quota, also after an update of the guest and after a
// restart of the daemon. A daemon without cgroups runs the guest without the quota, and the workload's status
// says so.
func TestQuotaOnLibvirt(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	plain := theDaemon(t)
	vm := tiny(plain, "serve")
	vm.CpuMillicores = 500
	o := ensured(t, ctx, openDriver(t, plain, "node-a"), order("unkept", "c1:1", vm))
	if o.Metadata["cpu_limit"] != "500 millicores, not enforced" || !strings.Contains(o.Message, "cgroup") {
		t.Errorf("without cgroups the status has limit %q and message %q; want \"not enforced\" and the reason", o.Metadata["cpu_limit"], o.Message)
	}

	daemon, err := libvirttest.Start(ctx, "cpu")
	testbed.Need(t, "a libvirt daemon with cgroups", err)
	t.Cleanup(func() {
		if err := daemon.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := libvirttest.WriteTiny(filepath.Join(daemon.Dir, "serve.img"), libvirttest.Serve); err != nil {
		t.Fatal(err)
	}
	d := openDriver(t, daemon, "node-a")
	vm = tiny(daemon, "serve")
	kept := func(content string, millicores int64, want string) driver.Observed {
		t.Helper()
		vm.CpuMillicores = millicores
		o := ensured(t, ctx, d, order("kept", content, vm))
		if o.Message != "" {
			t.Errorf("with a CPU limit of %d millicores the workload's status has the message %q, want none", millicores, o.Message)
		}
		info, err := daemon.Virsh(ctx, "schedinfo", "--live", "kept") // the quota that the kernel enforces
		if fields := strings.Join(strings.Fields(info), " "); err != nil || !strings.Contains(fields, "global_quota : "+want+" ") {
			t.Errorf("with a CPU limit of %d millicores virsh schedinfo prints %q (error %v); want global_quota %s", millicores, fields, err, want)
		}
		return o
	}
	kept("c1:1", 500, "50000")
	if o := kept("c1:2", 250, "25000"); o.Metadata["cpu_limit"] != "250 millicores, enforced by the hypervisor" {
		t.Errorf("the metadata cpu_limit is %q, want an enforced limit", o.Metadata["cpu_limit"])
	}
	if err := daemon.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	testbed.Within(t, testbed.Patience, "the driver lists domains after libvirt's restart", func() error { _, err := d.List(ctx); return err })
	kept("c1:2", 250, "25000")
}
