package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	agentv1 "github.com/persys/compute/api/agent/v1"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/volume"
)

func managed(volumes ...*agentv1.ManagedVolumeSpec) option {
	return func(r *agentv1.ApplyWorkloadRequest) { r.Spec.GetContainer().ManagedVolumes = volumes }
}

// seen records the volumes that the driver gets for each workload. It returns a function that looks up these
// volumes by workload id.
func (r *rig) seen() func(id string) []driver.Volume {
	var mu sync.Mutex
	last := map[driver.ID][]driver.Volume{}
	r.hooks.set(func(h *hooks) {
		h.ensure = func(s driver.Spec) error {
			mu.Lock()
			defer mu.Unlock()
			last[s.ID] = s.Volumes
			return nil
		}
	})
	return func(id string) []driver.Volume {
		mu.Lock()
		defer mu.Unlock()
		return last[driver.ID(id)]
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func TestVolumesFollowTheirWorkload(t *testing.T) {
	r := newRig(t).start()
	given := r.seen()
	data := &agentv1.ManagedVolumeSpec{Name: "data", MountPath: "/data"}
	r.apply("web", "img:1", managed(data))
	r.reaches("web", running)
	vols := given("web")
	if len(vols) != 1 || vols[0].MountPath != "/data" || vols[0].Path != filepath.Join(filepath.Dir(r.cfg.StatePath), "volumes", "local", "data") {
		t.Fatalf("the driver got the volumes %+v", vols)
	}
	if err := os.WriteFile(filepath.Join(vols[0].Path, "f"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	kept := func(why string) {
		t.Helper()
		if !exists(filepath.Join(vols[0].Path, "f")) {
			t.Fatal("the file in the volume was lost by  " + why)
		}
	}
	r.apply("web", "img:2", managed(data))
	r.until(func() bool { return r.hooks.count("ensure web") > 1 && r.status("web").GetActualState() == running }, func() string { return "the updated workload does not run" })
	kept("an update")

	r = r.restart()
	r.reaches("web", running)
	kept("a restart")

	r.delete("web", func(d *agentv1.DeleteWorkloadRequest) { d.KeepVolumes = true })
	r.gone("web")
	kept("a move")
	if n := r.hooks.count("leave web"); n != 1 {
		t.Errorf("the driver's Leave was called %d times for a workload that runs on another node, want once", n)
	}
	r.apply("web", "img:2", managed(data))
	r.reaches("web", running)
	r.delete("web")
	r.gone("web")
	if exists(vols[0].Path) {
		t.Error("the volume was not deleted with its workload, although its policy says so")
	}
	if n := r.hooks.count("leave web"); n != 1 {
		t.Error("for the delete of a workload that runs on no other node, the agent called the driver's Leave; want Remove")
	}

	keep := &agentv1.ManagedVolumeSpec{Name: "keep", MountPath: "/data", RetainPolicy: "Retain"}
	given = r.seen()
	r.apply("db", "img:1", managed(keep))
	r.reaches("db", running)
	at := given("db")[0].Path
	r.delete("db")
	r.gone("db")
	if !exists(at) {
		t.Error("a volume with the policy retain was deleted")
	}
}

// If a person deletes a workload but not its volumes, the volumes stay, and garbage collection never
// removes them. When the workload is applied again, it gets its data back. The volumes also stay if a new
// order arrives before the removal is carried out.
func TestADeleteCanKeepTheVolumes(t *testing.T) {
	r := newRig(t).start()
	given := r.seen()
	data := &agentv1.ManagedVolumeSpec{Name: "data", MountPath: "/data"}
	r.apply("web", "img:1", managed(data))
	r.reaches("web", running)
	file := filepath.Join(given("web")[0].Path, "f")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.delete("web", func(d *agentv1.DeleteWorkloadRequest) { d.KeepVolumes, d.RetainVolumes = true, true })
	r.gone("web")
	if left, kept := r.hooks.count("leave web"), r.hooks.count("remove instance web"); !exists(file) || left != 0 || kept != 1 {
		t.Errorf("after a delete that keeps the volumes, the file in the volume exists: %t; Leave was called %d times and RemoveInstance %d times, want 0 and 1", exists(file), left, kept)
	}
	list, err := r.api.ListVolumes(context.Background(), &agentv1.ListVolumesRequest{})
	if v := list.GetVolumes(); err != nil || len(v) != 1 || v[0].GetRetainPolicy() != "Retain" || v[0].GetOwner() != "" {
		t.Errorf("after the delete the agent lists the volumes %v, error %v; want volume data with policy Retain and without owner", v, err)
	}
	r.apply("web", "img:1", managed(data))
	r.reaches("web", running)
	if !exists(file) {
		t.Error("the workload was applied again, but the file in its volume is gone")
	}
	r.delete("web")
	r.gone("web")
	if exists(file) {
		t.Error("the workload was deleted without keep_volumes, but the file in its volume still exists")
	}
}

func TestApplyOverAPendingDeleteRecreates(t *testing.T) {
	r := newRig(t).start()
	var block atomic.Bool
	r.hooks.set(func(h *hooks) {
		h.remove = func(driver.ID) error {
			if block.Load() {
				return driver.Errorf(driver.RuntimeError, "remove", "busy")
			}
			return nil
		}
	})
	r.apply("web", "sim/run", content("c1:a"))
	r.reaches("web", running)
	for _, elsewhere := range []bool{false, true, false} {
		before, removed, left := r.observed("web").RuntimeID, r.hooks.count("remove web"), r.hooks.count("leave web")
		block.Store(true)
		r.delete("web", func(d *agentv1.DeleteWorkloadRequest) { d.KeepVolumes = elsewhere })
		r.until(func() bool { return r.hooks.count("remove web") > removed }, func() string { return "the agent never called the driver's Remove for the deleted workload" })
		block.Store(false)
		r.apply("web", "sim/run", content("c1:a"))
		r.until(func() bool {
			o := r.observed("web")
			return o != nil && o.RuntimeID != before && o.State == driver.Running
		}, func() string { return "the new order did not replace the instance whose delete was pending" })
		r.reaches("web", running)
		// Between the two orders the workload may have run on another node and used the shared volume there.
		// So every removal of the instance must call the driver's method Leave, which keeps the volume, and
		// not Remove, even after the new order.
		left = r.hooks.count("leave web") - left
		if removed = r.hooks.count("remove web") - removed; elsewhere && left != removed || !elsewhere && left != 0 {
			t.Errorf("a delete with keep_volumes=%t was followed by a new order: %d of %d removals called the driver's Leave, want all with keep_volumes and none without", elsewhere, left, removed)
		}
	}
}

// Volumes that an engine itself made stay if the delete says that the workload continues on another node.
// A delete of a legacy v1 scheduler does not say whether the workload continues, so it removes these volumes.
func TestEngineVolumesStayWhenTheWorkloadMoves(t *testing.T) {
	for _, c := range []struct {
		name           string
		by             *schedulers
		order          []option
		keep           bool
		left, retained int
	}{
		{"a delete without keep_volumes removes the engine's volumes", leader(), []option{by(1), at(1)}, false, 0, 0},
		{"a delete with keep_volumes keeps the engine's volumes", leader(), []option{by(1), at(1)}, true, 1, 1},
		{"a delete of a legacy v1 scheduler removes the engine's volumes", existing(), nil, false, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, under(c.by)).start()
			r.apply("web", "img:1", c.order...)
			r.reaches("web", running)
			r.delete("web", func(d *agentv1.DeleteWorkloadRequest) {
				d.KeepVolumes = c.keep
				if c.order != nil {
					d.Epoch, d.Generation = epoch(1), gen(1)
				}
			})
			r.gone("web")
			if left, retained := r.hooks.count("leave web"), r.hooks.count("keep volumes of web"); left != c.left || retained != c.retained {
				t.Errorf("Leave was called %d times, and %d times with the volumes kept; want %d and %d", left, retained, c.left, c.retained)
			}
		})
	}
}

// If a volume cannot be attached, its workload does not start, and the status names the volume.
func TestAMissingVolumeKeepsAWorkloadFromStarting(t *testing.T) {
	r := newRig(t).start()
	r.apply("web", "img:1", managed(&agentv1.ManagedVolumeSpec{Name: "data", Driver: "nfs", MountPath: "/data"}))
	st := r.waitsFor("web", driver.StorageProvisionFailed)
	if !strings.Contains(st.Message, "PERSYS_STORAGE_NFS_SERVER") {
		t.Errorf("the status of a workload whose volume is missing does not name the missing setting: %v", st)
	}
	if r.hooks.count("ensure web") != 0 {
		t.Error("the workload was started without its volume")
	}
	// The workload was never started. The agent can still delete it.
	r.delete("web")
	r.gone("web")
}

func TestPoolsAreRegistered(t *testing.T) {
	s := leader()
	r := newRig(t, under(s)).start()
	r.until(func() bool { beats, n := s.said(); return n > 0 && len(beats) > 0 }, func() string { return "the agent sent no heartbeat" })
	s.mu.Lock()
	defer s.mu.Unlock()
	pools := s.registers[0].Capabilities.StoragePools
	if len(pools) != 1 || pools[0].Name != "root" || pools[0].Type != "local" || pools[0].TotalGb != 100 {
		t.Errorf("the node registered the storage pools %v", pools)
	}
	if u := s.beats[0].Usage.StoragePools; len(u) != 1 || u[0].UsedGb != 10 || u[0].TotalGb != 100 {
		t.Errorf("the heartbeat reports the pool usage %v", u)
	}
}

// nfsClient is a fake machine with an NFS client. Mounts on it succeed, unless a test sets the function mount.
type nfsClient struct {
	volume.System
	mu    sync.Mutex
	at    string                      // mount point of the volume
	mount func(context.Context) error // called in place of mount; nil if mounts succeed
}

func (c *nfsClient) becomes(at string, mount func(context.Context) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.mount = at, mount
}

func (c *nfsClient) Run(ctx context.Context, program string, args ...string) (string, error) {
	if program != "mount" {
		return "", nil
	}
	c.mu.Lock()
	mount := c.mount
	c.mu.Unlock()
	if mount != nil {
		return "", mount(ctx)
	}
	c.becomes(args[len(args)-1], nil)
	return "", nil
}

func (c *nfsClient) Find(string) bool               { return true }
func (c *nfsClient) Filesystems() ([]string, error) { return []string{"nfs"}, nil }

func (c *nfsClient) Mounts() ([]volume.Mount, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at == "" {
		return nil, nil
	}
	return []volume.Mount{{Path: c.at, Type: "nfs4", Source: "files:/srv"}}, nil
}

func (c *nfsClient) Space(string) (volume.Space, error) {
	return volume.Space{Total: 1 << 40, Free: 1 << 40, Device: 1}, nil
}

// onNFS returns a rig whose machine has an NFS server for volumes.
func onNFS(t *testing.T, change ...func(*Config)) (*rig, *nfsClient) {
	c := &nfsClient{}
	r := newRig(t, append(change, func(cfg *Config) {
		dir := t.TempDir()
		cfg.Storage = volume.Config{System: c, Pools: []volume.PoolConfig{{Name: volume.DefaultPool, Path: filepath.Join(dir, "local")}},
			NFS: volume.NFSConfig{Root: filepath.Join(dir, "nfs"), Server: "files", Export: "/srv"}}
	})...)
	return r, c
}

var shared = &agentv1.ManagedVolumeSpec{Name: "data", Driver: volume.NFS, MountPath: "/data"}

// After a reboot, mounting from a file server may hang for minutes, or for ever. Meanwhile the agent must still
// start and stop other workloads.
func TestAMountThatHangsDoesNotBlockTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leader()
		r, files := onNFS(t, under(s))
		r.start()
		r.apply("web", "img:1", by(1), at(5), managed(shared))
		r.reaches("web", running)
		r.halt()
		before, _ := s.said()
		files.becomes("", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		began := time.Now()
		r.start()
		r.until(func() bool { beats, _ := s.said(); return len(beats) > len(before) }, func() string { return "the agent sends no heartbeat while a mount hangs" })
		s.mu.Lock()
		defer s.mu.Unlock()
		if took := s.beatAt[len(before)].Sub(began); took >= 10*time.Second {
			t.Errorf("while a mount hangs, the agent sent its first heartbeat only after %v, want it sooner than the length of a lease", took)
		}
	})
}

// If the agent cannot release the volumes of a deleted workload, it repeats the delete, and the delay between
// attempts grows.
func TestADeleteThatWaitsForAVolumeBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, files := onNFS(t, func(c *Config) { c.RetryBase, c.RetryMax = time.Second, 8*time.Second })
		r.start()
		r.apply("web", "img:1", managed(shared))
		r.reaches("web", running)
		files.becomes("", func(context.Context) error { return errors.New("mount.nfs: Connection refused") })
		var removed []time.Time
		r.hooks.set(func(h *hooks) {
			h.remove = func(driver.ID) error {
				if removed = append(removed, time.Now()); len(removed) == 5 {
					files.becomes("", nil)
				}
				return nil
			}
		})
		r.delete("web")
		r.gone("web")
		r.halt()
		if took := removed[len(removed)-1].Sub(removed[0]); len(removed) != 5 || took < 15*time.Second { // the four waits between five attempts are 1, 2, 4 and 8 s
			t.Errorf("the delete was tried %d times within %v, want 5 attempts, with delays of 1, 2, 4 and 8 s between them", len(removed), took)
		}
	})
}
