package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	agentv1 "github.com/persys/compute/api/agent/v1"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/spec"
	"github.com/persys/compute/testbed"
)

// disked is the simulated driver, extended with an engine that measures the disk use of instances.
type disked struct {
	hooked
	mu     *sync.Mutex
	bytes  map[driver.ID]int64
	err    *error
	capped *bool
	looks  *int
}

func (d disked) Occupied(context.Context, []driver.Observed) (map[driver.ID]int64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	*d.looks++
	out := map[driver.ID]int64{}
	for id, n := range d.bytes {
		out[id] = n
	}
	return out, *d.err
}

// As in the drivers for Docker and Compose, Usage does not report disk use; the separate method Occupied does.
func (d disked) Usage(ctx context.Context, of []driver.Observed) ([]driver.Usage, error) {
	out, err := d.hooked.Usage(ctx, of)
	for i := range out {
		out[i].Disk = -1
	}
	return out, err
}

func (d disked) List(ctx context.Context) ([]driver.Observed, error) {
	all, err := d.hooked.List(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range all {
		all[i].DiskCapped = *d.capped
	}
	return all, err
}

func (d disked) set(id driver.ID, bytes int64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bytes[id], *d.err = bytes, err
}

func (d disked) measured() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return *d.looks
}

func measuring(t *testing.T, change ...func(*Config)) (*rig, disked) {
	t.Helper()
	r := newRig(t, append(change, func(c *Config) {
		c.DiskInterval, c.UsageInterval, c.ReconcileInterval = 5*time.Millisecond, 5*time.Millisecond, 20*time.Millisecond
	})...)
	d := disked{mu: &sync.Mutex{}, bytes: map[driver.ID]int64{}, err: new(error), capped: new(bool), looks: new(int)}
	r.make = func(b Binding) ([]driver.Driver, error) {
		list, err := r.factory(b)
		next := d
		next.hooked = list[0].(hooked)
		return []driver.Driver{next}, err
	}
	return r.start(), d
}

func withDisk(gb int64) option {
	return func(r *agentv1.ApplyWorkloadRequest) { r.Spec.GetContainer().DiskGb = gb }
}

// A workload that grows beyond its disk limit is stopped, and stays stopped until it gets more disk.
func TestAWorkloadOverItsDiskLimitIsStopped(t *testing.T) {
	r, d := measuring(t)
	r.apply("web", "img:1", withDisk(1))
	r.reaches("web", running)
	if got := r.status("web").Metadata["disk_limit"]; got != "1 GiB, measured" {
		t.Errorf("disk_limit %q", got)
	}
	d.set("web", 1<<30, nil) // a disk use of exactly the limit is allowed
	r.until(func() bool { u, ok := r.a.used.Get("web"); return ok && u.Disk == 1<<30 }, func() string { return "the agent has not recorded a disk use of 1 GiB for the workload" })
	r.reaches("web", running)
	if told, _ := r.a.session.WorkloadUsage(0); len(told) != 1 || told[0].DiskBytes != 1<<30 || told[0].DiskLimitBytes != 1<<30 || told[0].DiskCapped {
		t.Errorf("the heartbeat reports the workload's usage %v; want a disk use of 1 GiB, which is exactly the limit", told)
	}
	d.set("web", 1<<30+200<<20, nil)
	r.reaches("web", failing)
	st := r.status("web")
	if !strings.Contains(st.Message, "disk: the workload occupies 1224 MiB, its limit is 1024 MiB; stopped") || st.Metadata["failure_reason"] != string(driver.ResourceQuotaExceeded) {
		t.Errorf("the status of the stopped workload has message %q and metadata %v; want the disk use and the limit in the message, and failure_reason RESOURCE_QUOTA_EXCEEDED", st.Message, st.Metadata)
	}
	stops := func() (n int) {
		all, err := r.engine.Driver(driver.Identity{ClusterID: r.a.runner.State().Bound, NodeID: "node-a"}).List(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range all {
			if o.State == driver.Running {
				n++
			}
		}
		return n
	}
	r.until(func() bool { return stops() == 0 }, func() string { return "the agent does not stop the workload that exceeds its disk limit" })
	// The workload stays stopped when the scheduler repeats its order, and when a measurement fails.
	r.apply("web", "img:1", withDisk(1), revision("rev-1-r1"))
	r.reaches("web", failing)
	d.set("web", 0, errors.New("busy"))
	r.apply("web", "img:1", withDisk(1), revision("rev-1-r2"))
	r.reaches("web", failing)
	if stops() != 0 {
		t.Error("the workload was started again although it exceeds its disk limit")
	}
	d.set("web", 1<<30+200<<20, nil)
	r.apply("web", "img:1", withDisk(2))
	r.reaches("web", running)
	// When files were deleted and the disk use is below the limit, the agent starts the workload again.
	d.set("web", 3<<30, nil)
	r.reaches("web", failing)
	d.set("web", 1<<30, nil)
	r.reaches("web", running)
	// The engine now reports that it enforces the disk limit itself. So the agent does not stop the workload.
	d.mu.Lock()
	*d.capped = true
	d.mu.Unlock()
	r.until(func() bool { return r.status("web").Metadata["disk_limit"] == "2 GiB, enforced by the engine" }, func() string { return fmt.Sprint(r.status("web")) })
	d.set("web", 9<<30, nil)
	seen := d.measured()
	// Wait for two more measurements: when the second one is done, the agent has evaluated the
	// first one.
	r.until(func() bool { return d.measured() >= seen+2 }, func() string { return "the agent did not measure the disk use twice more" })
	r.reaches("web", running)
	if u, _ := r.a.used.Get("web"); u.Disk != 9<<30 {
		t.Errorf("the recorded disk use of the workload is %d bytes, want 9 GiB", u.Disk)
	}
}

// A local volume with a size has a limit of its own, so its size is subtracted from the disk limit of the
// workload. The agent adds the content of a volume without a size, which is only a folder, to the workload's
// disk use.
func TestDiskLimitAndVolumes(t *testing.T) {
	limit := func(disk int64, vols ...*agentv1.ManagedVolumeSpec) *agentv1.WorkloadSpec {
		s := container("img:1")
		s.GetContainer().DiskGb, s.GetContainer().ManagedVolumes = disk, vols
		return s
	}
	sized, plain := &agentv1.ManagedVolumeSpec{Name: "a", SizeGb: 3}, &agentv1.ManagedVolumeSpec{Name: "b"}
	far := &agentv1.ManagedVolumeSpec{Name: "c", SizeGb: 3, Driver: "nfs"}
	for _, c := range []struct {
		in   *agentv1.WorkloadSpec
		want int64
	}{
		{limit(0), 0}, {limit(5), 5}, {limit(5, sized), 2}, {limit(3, sized), 0}, {limit(1, sized), 0}, {limit(5, plain, far), 5},
		{&agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Vm{Vm: &agentv1.VMSpec{Disks: []*agentv1.DiskConfig{{SizeGb: 9}}}}}, 0},
	} {
		if got, err := spec.Traits(c.in); err != nil || got.DiskLimit != c.want<<30 {
			t.Errorf("the disk limit with volumes %v is %d, error %v; want %d GiB", c.in, got.DiskLimit, err, c.want)
		}
	}
	r, d := measuring(t)
	r.apply("db", "img:1", withDisk(1), managed(&agentv1.ManagedVolumeSpec{Name: "data", MountPath: "/data"}))
	r.reaches("db", running)
	d.set("db", 1<<30-1<<20, nil)
	data := filepath.Join(filepath.Dir(r.cfg.StatePath), "volumes", "local", "data")
	if err := os.WriteFile(filepath.Join(data, "f"), make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	r.reaches("db", failing)
	if err := os.Remove(filepath.Join(data, "f")); err != nil {
		t.Fatal(err)
	}
	r.reaches("db", running)
}

// Reserved resources, not actual usage, decide whether an order is accepted. Existing workloads keep
// running even if their reservations exceed the threshold.
func TestReservationsAboveTheThresholdAreRefused(t *testing.T) {
	limits := func(cpu, memoryMB, gb int64) option {
		return func(r *agentv1.ApplyWorkloadRequest) {
			c := r.Spec.GetContainer()
			c.Resources, c.DiskGb = &agentv1.ResourceLimits{CpuMillicores: cpu, MemoryBytes: memoryMB << 20}, gb
		}
	}
	// The machine has 4000 millicores, 8192 MiB and 100 GB.
	r := newRig(t, func(c *Config) {
		c.Threshold, c.ReservedCPU, c.ReservedMemory, c.ReservedDisk = 80, 1000, 192, 20
	}).start()
	r.apply("a", "img:1", limits(2000, 1000, 10))
	out := r.apply("b", "img:1", limits(401, 0, 0))
	if out.Applied || out.Status.GetMetadata()["failure_reason"] != "INSUFFICIENT_RESOURCES" ||
		!strings.Contains(out.Message, "CPU: needs 401 millicores, but 2000 of the 2400 that node \"node-a\" offers are already reserved (the node has 4000, keeps 1000 for itself, and offers 80 %") {
		t.Errorf("an order with too much CPU was answered %v, want a refusal with the numbers", out)
	}
	if out := r.apply("b", "img:1", limits(400, 5401, 0)); out.Applied || !strings.Contains(out.Message, "memory: needs 5401 MiB, but 1000 of the 6400") {
		t.Errorf("an order with too much memory was answered %v, want a refusal with the numbers", out)
	}
	if out := r.apply("b", "img:1", limits(400, 5400, 55)); out.Applied || !strings.Contains(out.Message, "disk: needs 55 GB, but 10 of the 64") {
		t.Errorf("an order with too much disk was answered %v, want a refusal with the numbers", out)
	}
	if out := r.apply("b", "img:1", limits(400, 5400, 54)); !out.Applied {
		t.Errorf("an order that needs exactly the remaining resources was refused: %v", out)
	}
	intro := r.a.session.Registration().Capabilities
	if intro.ResourceThresholdPercent != 80 || intro.CpuReservedMillicores != 1000 || intro.MemoryReservedMb != 192 || intro.DiskReservedGb != 20 {
		t.Errorf("the node registered with %v", intro)
	}
	// After the threshold was lowered, a workload keeps running and may be changed, but an order that
	// reserves more for it is refused.
	r.cfg.Threshold = 10
	r.restart()
	r.reaches("a", running)
	if out := r.apply("a", "img:2", limits(1999, 1000, 10)); !out.Applied {
		t.Errorf("an order that asks for less than before was refused: %v", out)
	}
	if out := r.apply("a", "img:3", limits(2001, 1000, 10)); out.Applied {
		t.Error("an update that needs more than the node has was applied")
	}
	r.delete("b")
	r.gone("b")
	if out := r.apply("c", "img:1"); !out.Applied {
		t.Errorf("an order that reserves no resources was refused: %v", out)
	}
}

// A node registers the agent's own storage pools first, then those of its engines. An engine's pool is
// left out if it has the name of one of the agent's pools. Heartbeats report how full each pool is. If
// the pools change, the agent registers again.
func TestPoolsOfAnEngine(t *testing.T) {
	r, d := pooling(t)
	d.set(driver.Pool{Name: "fast", Type: "local", Total: 50 << 30, Used: 5 << 30}, driver.Pool{Name: "root", Type: "local", Total: 1 << 30})
	names := func() (out []string) {
		for _, p := range r.a.session.Registration().Capabilities.StoragePools {
			out = append(out, fmt.Sprint(p.Name, " ", p.Type, " ", p.TotalGb))
		}
		return out
	}
	r.until(func() bool { return strings.Join(names(), ",") == "root local 100,fast local 50" }, func() string { return fmt.Sprint(names()) })
	r.until(func() bool { return r.a.runner.Registers(false) }, func() string { return "the pools of the engine changed, but no new registration is due" })
	use := r.a.session.Usage().StoragePools
	if len(use) != 2 || use[1].Name != "fast" || use[1].UsedGb != 5 {
		t.Errorf("the heartbeat reports that %v of the engine's pool is in use, want 5 GB in pool fast", use)
	}
	r.a.runner.Registers(true)
	d.fail(errors.New("away"))
	d.awaitLook(t)
	if got := names(); len(got) != 2 || r.a.runner.Registers(false) {
		t.Errorf("the pools of an engine that does not answer must stay, got %v", got)
	}
}

// pooled is the simulated driver, extended with an engine that has storage pools.
type pooled struct {
	hooked
	*poolList
}

type poolList struct {
	mu    sync.Mutex
	pools []driver.Pool
	err   error
	looks int
}

func (p *poolList) set(pools ...driver.Pool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pools = pools
}

func (p *poolList) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err, p.looks = err, 0
}

func (p *poolList) awaitLook(t *testing.T) {
	t.Helper()
	testbed.Until(t, "a look", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.looks > 1
	})
}

func (p *poolList) Pools(context.Context) ([]driver.Pool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.looks++
	if p.err != nil {
		return nil, p.err
	}
	return p.pools, nil
}

func pooling(t *testing.T) (*rig, *poolList) {
	t.Helper()
	r := newRig(t, func(c *Config) { c.ReconcileInterval = 10 * time.Millisecond })
	p := &poolList{}
	r.make = func(b Binding) ([]driver.Driver, error) {
		list, err := r.factory(b)
		return []driver.Driver{pooled{list[0].(hooked), p}}, err
	}
	return r.start(), p
}

// A new leader gets a complete list of resource readings. In readings that are outdated, the CPU use is marked
// as unmeasured.
func TestOldReadingsAreUnmeasured(t *testing.T) {
	r, _ := measuring(t)
	now := time.Now()
	reading := func(id driver.ID, age, cpu time.Duration) driver.Usage {
		return driver.Usage{ID: id, Instance: "1", At: now.Add(-age), CPU: cpu}
	}
	const kind = driver.Kind("test") // no driver of the agent replaces these readings
	r.a.used.Observe(kind, []driver.Usage{reading("old", 3*time.Minute, time.Second), reading("new", 3*time.Minute, time.Second)})
	r.a.used.Observe(kind, []driver.Usage{reading("old", 2*time.Minute, 31*time.Second), reading("new", 0, 91*time.Second)})
	told, _ := r.a.session.WorkloadUsage(0)
	unmeasured := map[string]bool{}
	for _, u := range told {
		unmeasured[u.WorkloadId] = u.CpuUnmeasured
	}
	if len(told) != 2 || unmeasured["new"] || !unmeasured["old"] {
		t.Errorf("the complete list is %v; want both readings, and only the old one unmeasured", told)
	}
}
