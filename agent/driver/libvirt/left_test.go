package libvirt

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/libvirt/diskfile"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

// leaver is the fixture of TestDisksOfAMovedMachine: a machine that has moved to another node, with one disk
// in the folder of images and one in a storage pool.
type leaver struct {
	*drawer
	vda    string
	before os.FileInfo
}

func newLeaver(t *testing.T) leaver {
	t.Helper()
	w := leaver{drawer: newDrawer(t)}
	w.vda = filepath.Join(w.opt.Images, "web-vda.qcow2")
	w.order(t, "shop")
	w.before = w.stat(w.vda)
	for range 2 { // the call is repeated, as an agent does that restarts after a crash
		if err := w.Leave(t.Context(), "web", true); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w leaver) order(t *testing.T, namespace string) {
	t.Helper()
	spec := specFor(w.machine("a", &agentv1.DiskConfig{Device: "vdb", Pool: "fast", SizeGb: 1}))
	spec.Content, spec.Body.Namespace = "c1:1", namespace
	if err := w.Ensure(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
}

// same reports whether the disk file is still the one that the machine left. A new file may get the inode of
// a deleted one, so the change time is compared too.
func (w leaver) same() bool {
	after, err := os.Stat(w.vda)
	return err == nil && os.SameFile(w.before, after) && after.ModTime().Equal(w.before.ModTime())
}

func (w leaver) garbage(t *testing.T, after time.Duration) []driver.Garbage {
	t.Helper()
	no := func(driver.ID) bool { return false }
	found, err := w.Garbage(t.Context(), driver.GarbageQuery{Wanted: no, Busy: no, LeftFor: after})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestDisksOfAMovedMachine: the disks of a machine that moved to another node stay on its previous node for the
// time LeftFor, because they may be the only copy of its data.
func TestDisksOfAMovedMachine(t *testing.T) {
	for name, check := range map[string]func(t *testing.T, w leaver){
		"the disks stay, and are garbage after some time": func(t *testing.T, w leaver) {
			if len(w.hv.all) != 0 || !w.same() || len(w.hv.volumes["fast"]) != 1 {
				t.Fatalf("after the move there are %d domains, the files %q and the volumes %v; want no domain, and both disks", len(w.hv.all), w.files(w.opt.Images), w.hv.volumes["fast"])
			}
			if found := w.garbage(t, time.Hour); len(found) != 0 {
				t.Errorf("the machine moved a moment ago, but Garbage lists its disks: %+v", found)
			}
			found := w.garbage(t, 0)
			if len(found) != 1 || found[0].Kind != driver.LeftDisk || found[0].Workload != "web" || found[0].Bytes == 0 || !strings.Contains(found[0].Reason, w.vda) {
				t.Fatalf("the machine moved longer ago than LeftFor: Garbage returned %+v, want its disks", found)
			}
			for range 2 { // removing absent disks succeeds
				if err := w.Collect(t.Context(), found[0]); err != nil {
					t.Fatal(err)
				}
			}
			if left := w.files(w.opt.Images); len(left) != 0 || len(w.hv.volumes["fast"]) != 0 {
				t.Errorf("after Collect the files %q and the volumes %v are left, want none", left, w.hv.volumes["fast"])
			}
		},
		"a machine that returns gets its disks back": func(t *testing.T, w leaver) {
			found := w.garbage(t, 0)
			w.order(t, "shop")
			if !w.same() || len(w.garbage(t, 0)) != 1 || w.garbage(t, 0)[0].Kind != driver.Orphan {
				t.Errorf("the machine that returned must run on the disk that it left, and Garbage must not list that disk; Garbage returned %+v", w.garbage(t, 0))
			}
			if err := w.Collect(t.Context(), found[0]); err != nil || !w.same() {
				t.Errorf("Collect of a disk from an outdated list removed the disk of the machine that had returned (error %v)", err)
			}
			if err := w.Remove(t.Context(), "web"); err != nil || len(w.files(w.opt.Images)) != 0 {
				t.Errorf("Remove of the machine that had returned left the files %q (error %v)", w.files(w.opt.Images), err)
			}
		},
		"a machine of another namespace with the same id does not get the disks": func(t *testing.T, w leaver) {
			w.order(t, "bank")
			if w.same() {
				t.Error("a machine of namespace bank got the disk that a machine of namespace shop had left")
			}
		},
		"a delete of the workload removes the disks": func(t *testing.T, w leaver) {
			if err := w.Remove(t.Context(), "web"); err != nil || len(w.files(w.opt.Images)) != 0 || len(w.hv.volumes["fast"]) != 0 {
				t.Errorf("after the delete of the workload the files %q and the volumes %v are left (error %v), want none", w.files(w.opt.Images), w.hv.volumes["fast"], err)
			}
		},
		"disks that another node took over stay": func(t *testing.T, w leaver) {
			found := w.garbage(t, 0)
			mark := diskfile.Mark{Cluster: w.identity.ClusterID, Node: "node-b", Workload: "web"}
			if err := errors.Join(mark.Write(w.vda), w.Collect(t.Context(), found[0])); err != nil || !w.same() {
				t.Errorf("Collect deleted the disk that another node had taken over (error %v)", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) { check(t, newLeaver(t)) })
	}
}

// TestDisksOfAFailedMachineThatMoved: a machine whose creation failed leaves disks but no domain. A later
// machine with the same id and namespace gets these disks. If the namespace is not recorded, any machine with
// the id gets them.
func TestDisksOfAFailedMachineThatMoved(t *testing.T) {
	for name, c := range map[string]struct {
		recorded bool
		comes    string // namespace of the machine that comes back
		kept     bool
	}{
		"a machine of the same namespace returns":                         {true, "shop", true},
		"a machine of another namespace comes":                            {true, "bank", false},
		"a machine comes, and the namespace of the disks is not recorded": {false, "shop", true},
	} {
		t.Run(name, func(t *testing.T) {
			w := leaver{drawer: newDrawer(t)}
			w.vda = filepath.Join(w.opt.Images, "web-vda.qcow2")
			w.hv.refusal = errors.New("refused by the test")
			spec := specFor(w.machine("a", &agentv1.DiskConfig{Device: "vdb", Pool: "fast", SizeGb: 1}))
			spec.Content, spec.Body.Namespace = "c1:1", "shop"
			if err := w.Ensure(t.Context(), spec); !errors.Is(err, w.hv.refusal) {
				t.Fatalf("Ensure returned %v, want the error of the fake hypervisor", err)
			}
			w.hv.refusal = nil
			if !c.recorded {
				spec.Body = nil
				if err := os.WriteFile(filepath.Join(w.at.keep("web"), ownerFile), []byte(owner(spec)), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			w.before = w.stat(w.vda)
			if err := w.Leave(t.Context(), "web", true); err != nil {
				t.Fatal(err)
			}
			w.order(t, c.comes)
			if w.same() != c.kept {
				t.Errorf("the machine runs on the disk that the earlier machine left: %t, want %t", w.same(), c.kept)
			}
		})
	}
}
