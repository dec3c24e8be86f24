package agent

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	agentv1 "github.com/persys/compute/api/agent/v1"

	"github.com/persys/compute/agent/driver"
)

func managed(volumes ...*agentv1.ManagedVolumeSpec) option {
	return func(r *agentv1.ApplyWorkloadRequest) { r.Spec.GetContainer().ManagedVolumes = volumes }
}

// seen keeps what the driver was given for each workload.
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
		t.Fatalf("given %+v", vols)
	}
	if err := os.WriteFile(filepath.Join(vols[0].Path, "f"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	kept := func(why string) {
		t.Helper()
		if !exists(filepath.Join(vols[0].Path, "f")) {
			t.Fatal("lost by " + why)
		}
	}
	r.apply("web", "img:2", managed(data))
	r.until(func() bool { return r.hooks.count("ensure web") > 1 && r.status("web").GetActualState() == running }, func() string { return "the update" })
	kept("an update")

	r = r.restart()
	r.reaches("web", running)
	kept("a restart")

	r.delete("web", func(d *agentv1.DeleteWorkloadRequest) { d.KeepVolumes = true })
	r.gone("web")
	kept("a move")
	if n := r.hooks.count("leave web"); n != 1 {
		t.Errorf("its engine was told %d times that it lives on elsewhere", n)
	}
	r.apply("web", "img:2", managed(data))
	r.reaches("web", running)
	r.delete("web")
	r.gone("web")
	if exists(vols[0].Path) {
		t.Error("the volume outlived its workload, against its policy")
	}
	if n := r.hooks.count("leave web"); n != 1 {
		t.Error("its engine was told that what was deleted lives on elsewhere")
	}

	keep := &agentv1.ManagedVolumeSpec{Name: "keep", MountPath: "/data", RetainPolicy: "Retain"}
	given = r.seen()
	r.apply("db", "img:1", managed(keep))
	r.reaches("db", running)
	at := given("db")[0].Path
	r.delete("db")
	r.gone("db")
	if !exists(at) {
		t.Error("a volume to be retained was deleted")
	}
}

// A volume that cannot be had keeps its workload from starting, with the reason in the status.
func TestVolumeThatCannotBeHad(t *testing.T) {
	r := newRig(t).start()
	r.apply("web", "img:1", managed(&agentv1.ManagedVolumeSpec{Name: "data", Driver: "nfs", MountPath: "/data"}))
	st := r.reaches("web", failing)
	if st.Metadata["failure_reason"] != string(driver.StorageProvisionFailed) || !strings.Contains(st.Message, "PERSYS_STORAGE_NFS_SERVER") {
		t.Errorf("%v", st)
	}
	if r.hooks.count("ensure web") != 0 {
		t.Error("started without its volume")
	}
	// It can be deleted all the same.
	r.delete("web")
	r.gone("web")
}

func TestPoolsAreRegistered(t *testing.T) {
	s := leader()
	r := newRig(t, under(s)).start()
	r.until(func() bool { beats, n := s.said(); return n > 0 && len(beats) > 0 }, func() string { return "no heartbeat" })
	s.mu.Lock()
	defer s.mu.Unlock()
	pools := s.registers[0].Capabilities.StoragePools
	if len(pools) != 1 || pools[0].Name != "root" || pools[0].Type != "local" || pools[0].TotalGb != 100 {
		t.Errorf("pools %v", pools)
	}
	if u := s.beats[0].Usage.StoragePools; len(u) != 1 || u[0].UsedGb != 10 || u[0].TotalGb != 100 {
		t.Errorf("usage %v", u)
	}
}
