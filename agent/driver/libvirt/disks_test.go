package libvirt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/libvirt/diskfile"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/testbed"
)

// fussy is a shelf with storage pools whose calls a test can make fail.
type fussy struct {
	*shelf
	refusal error
	stuck   error                        // error of shutdown
	volumes map[string]map[string]string // XML by pool and name
}

func (f *fussy) volume(_ context.Context, pool, name, xml string) error {
	if f.volumes[pool] == nil {
		return driver.Errorf(driver.StorageProvisionFailed, "volume", "%s: %w", pool, errAbsent)
	}
	if _, there := f.volumes[pool][name]; !there {
		f.volumes[pool][name] = xml
	}
	return nil
}

func (f *fussy) removeVolume(_ context.Context, pool, name string) error {
	delete(f.volumes[pool], name)
	return nil
}

func (f *fussy) growVolume(_ context.Context, pool, name string, _ int64) error {
	if _, there := f.volumes[pool][name]; !there {
		return driver.Errorf(driver.RuntimeResourceMissing, "volume", "%s: %w", name, errAbsent)
	}
	return nil
}

func (f *fussy) pools(context.Context) ([]driver.Pool, error) {
	return []driver.Pool{{Name: "fast", Type: "local"}, {Name: "far", Type: "ceph-rbd"}}, nil
}

func (f *fussy) define(ctx context.Context, xml string) error {
	if f.refusal != nil {
		return f.refusal
	}
	return f.shelf.define(ctx, xml)
}

func (f *fussy) shutdown(ctx context.Context, uuid string) error {
	if f.stuck != nil {
		return f.stuck
	}
	return f.shelf.shutdown(ctx, uuid)
}

func (f *fussy) destroy(_ context.Context, uuid string) error {
	return f.shutdown(context.Background(), uuid)
}

func (f *fussy) undefine(_ context.Context, uuid string) error {
	delete(f.all, f.on(uuid).name)
	return nil
}

// drawer is the fixture: a driver on a fussy shelf, with images a and b in its folder.
type drawer struct {
	*testing.T
	*Driver
	hv  *fussy
	dir string
}

func newDrawer(t *testing.T) *drawer {
	t.Helper()
	testbed.Program(t, "qemu-img")
	hv := &fussy{shelf: newShelf(), volumes: map[string]map[string]string{"fast": {}, "far": {}}}
	w := &drawer{T: t, Driver: driverOn(t, hv), hv: hv, dir: t.TempDir()}
	for _, name := range []string{"a", "b"} {
		if err := diskfile.Make(t.Context(), w.image(name), "qcow2", 1<<20, nil); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w *drawer) image(name string) string { return filepath.Join(w.dir, name+".qcow2") }

// try ensures a machine from an image, with optional further disks.
func (w *drawer) try(content, image string, more ...*agentv1.DiskConfig) error {
	spec := specFor(&agentv1.VMSpec{Vcpus: 1, MemoryMb: 64, OsImage: w.image(image), Disks: append([]*agentv1.DiskConfig{{Device: "vda"}}, more...)})
	spec.Content = content
	return w.Ensure(w.Context(), spec)
}

func (w *drawer) fails(content, image string, more ...*agentv1.DiskConfig) {
	w.Helper()
	w.hv.refusal = errors.New("refused by the test")
	if err := w.try(content, image, more...); !errors.Is(err, w.hv.refusal) {
		w.Fatalf("%v, want the refusal", err)
	}
	w.hv.refusal = nil
}

func (w *drawer) works(content, image string, more ...*agentv1.DiskConfig) {
	w.Helper()
	if err := w.try(content, image, more...); err != nil {
		w.Fatal(err)
	}
}

// from returns the source image of a disk.
func (w *drawer) from(path string) string {
	w.Helper()
	out, err := exec.CommandContext(w.Context(), "qemu-img", "info", "--output=json", path).Output()
	if err != nil {
		w.Fatal(err)
	}
	var info struct {
		Backing string `json:"backing-filename"`
	}
	if err := json.Unmarshal(out, &info); err != nil {
		w.Fatal(err)
	}
	return strings.TrimSuffix(filepath.Base(info.Backing), ".qcow2")
}

// files returns the files in a folder that belong to the machine web.
func (w *drawer) files(dir string) []string {
	w.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "web*"))
	if err != nil {
		w.Fatal(err)
	}
	return all
}

func (w *drawer) stat(path string) os.FileInfo {
	w.Helper()
	info, err := os.Stat(path)
	if err != nil {
		w.Fatal(err)
	}
	return info
}

// After a failed creation no domain records the image of a disk, but the disk's mark does. A corrected order gets
// a disk of its own image, and a repeated order reuses the existing disk.
func TestDiskOfAFailedCreation(t *testing.T) {
	w := newDrawer(t)
	vda := filepath.Join(w.opt.Images, "web-vda.qcow2")
	w.fails("c1:1", "a")
	before := w.stat(vda)
	w.fails("c1:1", "a")
	if after, err := os.Stat(vda); err != nil || !os.SameFile(before, after) {
		t.Errorf("the same order made the disk again (%v)", err)
	}
	w.works("c1:2", "b")
	if from := w.from(vda); from != "b" {
		t.Errorf("the disk is made from %s, want b", from)
	}
	if all := w.files(w.opt.Images); len(all) != 3 { // disk, mark, folder
		t.Errorf("files %q; want the disk, its mark and the folder", all)
	}
	// After somebody undefined the domain, the mark names the present image.
	delete(w.hv.all, "web")
	before = w.stat(vda)
	w.works("c1:3", "b")
	if after, err := os.Stat(vda); err != nil || !os.SameFile(before, after) {
		t.Errorf("a machine that was undefined lost its disk (%v)", err)
	}
	// The mark of an earlier version names no image, so the disk stays, whatever failed meanwhile.
	delete(w.hv.all, "web")
	if err := errors.Join(os.RemoveAll(w.at.keep("web")),
		os.WriteFile(vda+diskfile.MarkSuffix, []byte("2026-01-02T03:04:05Z\ncluster-1\nweb\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	w.fails("c1:4", "b", &agentv1.DiskConfig{Device: "vdb", SizeGb: 1})
	w.works("c1:5", "a")
	if after, err := os.Stat(vda); err != nil || !os.SameFile(before, after) {
		t.Errorf("a disk whose image nobody knows was made anew (%v)", err)
	}
}

// A disk of a failed order that the next order does not name is deleted once that one runs.
func TestDiskThatOnlyAFailedOrderNamed(t *testing.T) {
	for _, first := range []bool{true, false} {
		w := newDrawer(t)
		if !first {
			w.works("c1:0", "a")
		}
		more := &agentv1.DiskConfig{Device: "vdb", SizeGb: 1, Path: filepath.Join(w.dir, "web-data.qcow2")}
		w.fails("c1:1", "a", more)
		if all := w.files(w.dir); len(all) != 2 {
			t.Fatalf("files %q; want the disk and its mark", all)
		}
		w.works("c1:2", "a")
		if all := w.files(w.dir); len(all) != 0 {
			t.Errorf("first %v: %q are left", first, all)
		}
	}
}

// Remove without a domain deletes the disks with our mark, wherever they are, and nothing else.
func TestRemoveAfterAFailedCreation(t *testing.T) {
	w := newDrawer(t)
	path := func(name string) string { return filepath.Join(w.dir, name) }
	ours := &agentv1.DiskConfig{Device: "vdb", SizeGb: 1, Path: path("web-data.qcow2")}
	theirs := &agentv1.DiskConfig{Device: "vdc", SizeGb: 1, Path: path("web-theirs.qcow2")}
	swapped := &agentv1.DiskConfig{Device: "vdd", SizeGb: 1, Path: path("web-swapped.qcow2")}
	if err := diskfile.Make(t.Context(), theirs.Path, "qcow2", 1<<20, nil); err != nil {
		t.Fatal(err)
	}
	w.fails("c1:1", "a", ours, theirs, swapped)
	// The disk was replaced by a foreign one under the same name: the journal names it, but it is not ours.
	if err := (diskfile.Mark{Cluster: "cluster-1", Node: "node-a", Workload: "web-2"}).Write(swapped.Path); err != nil {
		t.Fatal(err)
	}
	// While a stranger's domain has the name, nothing that it may use is touched.
	w.hv.all["web"] = &domain{name: "web", uuid: "u", state: stateShutoff, persistent: true, config: "<domain/>"}
	if err := w.Remove(t.Context(), "web"); err != nil {
		t.Fatal(err)
	}
	if all := w.files(w.opt.Images); len(all) != 3 {
		t.Errorf("%q; want the disk, its mark and the folder", all)
	}
	delete(w.hv.all, "web")
	// An agent of another node with the same folder used it last.
	owners := filepath.Join(w.at.keep("web"), ownerFile)
	mine, err := os.ReadFile(owners)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(owners, []byte(owner(driver.Spec{ID: "web", ClusterID: "cluster-1", NodeID: "node-b"})), 0o600); err != nil {
		t.Fatal(err)
	}
	if disks, err := w.journaledDisks("web", "web"); err != nil || len(disks) != 0 {
		t.Errorf("%v, %v: disks of another node's folder", disks, err)
	}
	if err := os.WriteFile(owners, mine, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // removing an absent machine succeeds
		if err := w.Remove(t.Context(), "web"); err != nil {
			t.Fatal(err)
		}
	}
	left := append(w.files(w.opt.Images), w.files(w.dir)...)
	if want := []string{swapped.Path, swapped.Path + diskfile.MarkSuffix, theirs.Path}; !slices.Equal(left, want) {
		t.Errorf("left are %q, want %q", left, want)
	}
}

// A disk on shared storage belongs to the node that used it last. Another node that is ordered to delete a
// workload which moved on leaves the disk alone.
func TestDiskThatMovedOn(t *testing.T) {
	for _, defined := range []bool{true, false} {
		w := newDrawer(t)
		shared := filepath.Join(w.dir, "web-shared.qcow2")
		order := func(d *drawer, content string) driver.Spec {
			spec := specFor(&agentv1.VMSpec{Vcpus: 1, MemoryMb: 64, OsImage: w.image("a"), Disks: []*agentv1.DiskConfig{{Device: "vda", Path: shared}}})
			spec.Content, spec.NodeID = content, d.opt.NodeID
			return spec
		}
		if !defined {
			w.hv.refusal = errors.New("refused by the test")
		}
		if err := w.Ensure(t.Context(), order(w, "c1:1")); !errors.Is(err, w.hv.refusal) {
			t.Fatal(err)
		}
		there := newDrawer(t)
		there.opt.NodeID, there.identity.NodeID = "node-b", "node-b"
		if err := there.Ensure(t.Context(), order(there, "c1:1")); err != nil {
			t.Fatal(err)
		}
		if err := w.Remove(t.Context(), "web"); err != nil {
			t.Fatal(err)
		}
		if from := w.from(shared); from != "a" {
			t.Errorf("defined %v: the disk is from %q", defined, from)
		}
		if err := there.Remove(t.Context(), "web"); err != nil {
			t.Fatal(err)
		}
		if all := w.files(w.dir); len(all) != 0 {
			t.Errorf("defined %v: %q are left", defined, all)
		}
	}
}

// If an update to another image is interrupted before the guest has stopped, the guest keeps its disk. Going
// back to the former image loses nothing, and another order for the new image still replaces the disk.
func TestImageOfAnUpdateCutShort(t *testing.T) {
	for content, want := range map[string]string{"a": "a", "b": "b"} {
		w := newDrawer(t)
		vda := filepath.Join(w.opt.Images, "web-vda.qcow2")
		w.works("c1:1", "a")
		before := w.stat(vda)
		w.hv.stuck = errors.New("the daemon went away")
		if err := w.try("c1:2", "b"); !errors.Is(err, w.hv.stuck) {
			t.Fatalf("%v, want that it cannot be stopped", err)
		}
		w.hv.stuck = nil
		if content == "a" { // the guest runs the wanted content again and is not touched until it ends
			if err := w.hv.shutdown(t.Context(), w.hv.all["web"].uuid); err != nil {
				t.Fatal(err)
			}
			w.works("c1:1", content)
		} else {
			w.works("c1:3", content)
		}
		after, err := os.Stat(vda)
		if err != nil {
			t.Fatal(err)
		}
		if from := w.from(vda); from != want || os.SameFile(before, after) != (want == "a") {
			t.Errorf("back to %s: the disk is from %q, the former one: %v", content, from, os.SameFile(before, after))
		}
		if left, err := diskfile.Exists(vda + diskfile.StagedSuffix); left || err != nil {
			t.Errorf("back to %s: a staged disk is left: %v", content, err)
		}
		if o := readRecord(w.hv.all["web"].config).Disks[0]; o.Staged || o.Former != "" {
			t.Errorf("back to %s: %+v, which reads as one that waits", content, o)
		}
	}
}

// An order without an image keeps the disk, and so does a later order that names the disk's image again.
func TestImageThatIsNamedAgain(t *testing.T) {
	w := newDrawer(t)
	vda := filepath.Join(w.opt.Images, "web-vda.qcow2")
	w.works("c1:1", "a")
	before := w.stat(vda)
	spec := specFor(&agentv1.VMSpec{Vcpus: 1, MemoryMb: 64, Disks: []*agentv1.DiskConfig{{Device: "vda"}}})
	spec.Content = "c1:2"
	if err := w.Ensure(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	w.works("c1:3", "a")
	if after, err := os.Stat(vda); err != nil || !os.SameFile(before, after) {
		t.Errorf("the disk was made anew (%v)", err)
	}
}

// If a disk's whole folder is missing, the disk is not made again: its file system is probably not mounted.
func TestDiskWhoseFolderIsNotMounted(t *testing.T) {
	w := newDrawer(t)
	dir := filepath.Join(t.TempDir(), "data")
	data := &agentv1.DiskConfig{Device: "vdb", SizeGb: 1, Path: filepath.Join(dir, "web-data.qcow2")}
	w.works("c1:1", "a", data)
	if err := errors.Join(w.Halt(t.Context(), "web", 0), os.Rename(dir, dir+".away"), os.Mkdir(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := w.try("c1:1", "a", data); driver.ClassOf(err) != driver.StorageAttachFailed || !strings.Contains(err.Error(), "mounted") {
		t.Errorf("%v, want that nothing is mounted", err)
	}
	if all := w.files(dir); len(all) != 0 {
		t.Errorf("%q were made", all)
	}
	if err := errors.Join(os.Remove(dir), os.Rename(dir+".away", dir), os.Remove(data.Path)); err != nil {
		t.Fatal(err)
	}
	w.works("c1:1", "a", data) // a person deleted the disk
	if there, err := diskfile.Exists(data.Path); !there || err != nil {
		t.Errorf("a disk that was removed is not made anew: %v", err)
	}
}

// A volume that disappeared from its pool, or whose pool is unknown to libvirt, is not made again: the pool's
// storage may not be mounted.
func TestVolumeThatIsLost(t *testing.T) {
	w := newDrawer(t)
	data := &agentv1.DiskConfig{Device: "vdb", Pool: "fast", SizeGb: 1}
	w.works("c1:1", "a", data)
	if err := w.Halt(t.Context(), "web", time.Second); err != nil {
		t.Fatal(err)
	}
	was := w.hv.volumes["fast"]
	for _, left := range []map[string]string{{}, nil} { // nil: libvirt does not know the pool
		w.hv.volumes["fast"] = left
		for _, content := range []string{"c1:1", "c1:2"} {
			err := w.try(content, "a", data)
			if driver.ClassOf(err) != driver.StorageAttachFailed || !strings.Contains(err.Error(), "mounted") || !strings.Contains(err.Error(), "pool-list") || len(left) != 0 {
				t.Errorf("%s: %v, and %v was made; want that nothing is mounted, or the pool is not there", content, err, left)
			}
		}
	}
	w.hv.volumes["fast"] = was
	w.works("c1:2", "a", data)
}

// The content of a raw disk never determines its format: a guest could write a qcow2 header that names another
// file, and so get access to that file.
func TestRawDiskWithContent(t *testing.T) {
	w := newDrawer(t)
	vdb := filepath.Join(w.opt.Images, "web-vdb.img")
	data := &agentv1.DiskConfig{Device: "vdb", SizeGb: 1, Format: "raw"}
	for i, text := range []string{"LUKS\xba\xbe\x00\x01", w.overlay()} {
		content := func(n int) string { return fmt.Sprintf("c1:%d%d", i, n) }
		data.Format, data.Path = "raw", ""
		w.works(content(1), "a", data)
		w.writes(vdb, text)
		if err := w.Halt(t.Context(), "web", 0); err != nil {
			t.Fatal(err)
		}
		w.works(content(1), "a", data)
		w.works(content(2), "a", data)
		data.Format, data.Path = "qcow2", vdb
		if err := w.try(content(3), "a", data); err == nil {
			t.Errorf("%.4q: a raw disk became qcow2", text)
		}
	}
}

// A raw disk stays raw while an update to another image waits for its guest to stop.
func TestRawDiskOfAnUpdateCutShort(t *testing.T) {
	w := newDrawer(t)
	vda := filepath.Join(w.opt.Images, "web-vda.img")
	try := func(content, image, format string) error {
		spec := specFor(&agentv1.VMSpec{Vcpus: 1, MemoryMb: 64, OsImage: w.image(image), Disks: []*agentv1.DiskConfig{{Device: "vda", Format: format, Path: vda}}})
		spec.Content = content
		return w.Ensure(t.Context(), spec)
	}
	if err := try("c1:1", "a", "raw"); err != nil {
		t.Fatal(err)
	}
	w.writes(vda, w.overlay())
	w.hv.stuck = errors.New("the guest takes its time")
	for _, content := range []string{"c1:2", "c1:3"} {
		if err := try(content, "b", "raw"); !errors.Is(err, w.hv.stuck) {
			t.Fatalf("%v, want that it cannot be stopped", err)
		}
	}
	if err := try("c1:4", "a", "qcow2"); driver.ClassOf(err) != driver.InvalidSpecification {
		t.Errorf("%v: a raw disk became qcow2", err)
	}
}

// overlay returns the header of a qcow2 disk backed by another file.
func (w *drawer) overlay() string {
	w.Helper()
	path := filepath.Join(w.T.TempDir(), "overlay")
	if err := diskfile.Make(w.Context(), path, "qcow2", 1<<20, &diskfile.Image{Path: w.image("b"), Format: "qcow2", Size: 1 << 20}); err != nil {
		w.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		w.Fatal(err)
	}
	return string(text)
}

// writes writes to a raw disk as a guest would.
func (w *drawer) writes(path, text string) {
	w.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		w.Fatal(err)
	}
	if _, err = f.WriteString(text); errors.Join(err, f.Close()) != nil {
		w.Fatal(err)
	}
}

// A machine of a legacy v1 agent runs with its live description until it stops, whatever is defined meanwhile.
func TestUpdateOfALegacyMachineCutShort(t *testing.T) {
	w := newDrawer(t)
	w.opt.Owns = func(driver.ID) bool { return true }
	old := "<domain><name>web</name></domain>"
	w.hv.all["web"] = &domain{name: "web", uuid: "u", state: stateRunning, active: true, persistent: true, config: old, live: old}
	w.hv.stuck = errors.New("the daemon went away")
	if err := w.try("c1:2", "a"); !errors.Is(err, w.hv.stuck) {
		t.Fatalf("%v, want that it cannot be stopped", err)
	}
	if o, err := listed(t.Context(), w.Driver, "web"); err != nil || o.State != driver.Running || o.Content != "" {
		t.Errorf("%v: it runs %q, want what nobody knows", err, o.Content)
	}
}

// A former node whose machine runs elsewhere leaves the disks that the other node can reach.
func TestVolumeThatMovedOn(t *testing.T) {
	for _, elsewhere := range []bool{true, false} {
		w := newDrawer(t)
		w.works("c1:1", "a", &agentv1.DiskConfig{Device: "vdb", Pool: "far", SizeGb: 1}, &agentv1.DiskConfig{Device: "vdc", Pool: "fast", SizeGb: 1})
		remove := w.Remove
		if elsewhere {
			remove = func(ctx context.Context, id driver.ID) error { return w.Leave(ctx, id, true) }
		}
		if err := remove(t.Context(), "web"); err != nil {
			t.Fatal(err)
		}
		if far, fast := len(w.hv.volumes["far"]), len(w.hv.volumes["fast"]); (far == 1) != elsewhere || fast != 0 {
			t.Errorf("elsewhere %v: %d volumes that other nodes reach are left, and %d of this node", elsewhere, far, fast)
		}
	}
}

// A volume that a stranger made under a workload's name is neither used nor removed, and another image makes
// another volume.
func TestVolumesOfPools(t *testing.T) {
	const theirs = "web-vda.qcow2"
	w := newDrawer(t)
	fast := w.hv.volumes["fast"]
	fast[theirs] = "<volume/>"
	try := func(d *drawer, content, image, pool string) error {
		spec := specFor(&agentv1.VMSpec{Vcpus: 1, MemoryMb: 64, OsImage: w.image(image), Disks: []*agentv1.DiskConfig{{Device: "vda", Pool: pool}}})
		spec.Content, spec.ClusterID, spec.NodeID = content, d.identity.ClusterID, d.identity.NodeID
		return d.Ensure(t.Context(), spec)
	}
	order := func(content, image, pool string) (volume string) {
		t.Helper()
		if err := try(w, content, image, pool); err != nil {
			t.Fatal(err)
		}
		return readRecord(w.hv.all["web"].live).Disks[0].Volume
	}
	a := order("c1:1", "a", "fast")
	if a == theirs || !strings.Contains(fast[a], "/a.qcow2") || !strings.Contains(w.hv.all["web"].live, "volume='"+a+"'") && !strings.Contains(w.hv.all["web"].live, `volume="`+a+`"`) {
		t.Fatalf("the guest runs on volume %s of %v: %s", a, fast, w.hv.all["web"].live)
	}
	if again := order("c1:2", "a", "fast"); again != a {
		t.Errorf("the same image makes volume %s, was %s", again, a)
	}
	if b := order("c1:3", "b", "fast"); b == a || !strings.Contains(fast[b], "/b.qcow2") || len(fast) != 2 {
		t.Errorf("another image: volume %s (was %s) of %v", b, a, fast)
	}
	if far := order("c1:4", "b", "far"); w.hv.volumes["far"][far] == "" || len(fast) != 1 {
		t.Errorf("another pool: volume %s of %v; the former pool has %v", far, w.hv.volumes["far"], fast)
	}
	if err := w.Remove(t.Context(), "web"); err != nil || len(fast) != 1 || len(w.hv.volumes["far"]) != 0 {
		t.Errorf("removed (%v), and left are %v and %v", err, fast, w.hv.volumes["far"])
	}
	// Another cluster with the same workload and the same pool.
	if err := try(w, "c1:1", "a", "fast"); err != nil {
		t.Fatal(err)
	}
	other := newDrawer(t)
	other.opt.ClusterID, other.identity.ClusterID, other.hv.volumes = "cluster-2", "cluster-2", w.hv.volumes
	if err := try(other, "c1:1", "a", "fast"); err != nil || len(fast) != 3 {
		t.Errorf("two clusters and a stranger share %v (%v)", fast, err)
	}
	if err := errors.Join(other.Remove(t.Context(), "web"), w.Remove(t.Context(), "web")); err != nil || len(fast) != 1 {
		t.Errorf("left are %v (%v)", fast, err)
	}
	// A volume with an earlier version's name, which our record lists, stays until the image changes.
	if err := try(w, "c1:1", "a", "fast"); err != nil {
		t.Fatal(err)
	}
	old := readRecord(w.hv.all["web"].live).Disks[0].Volume
	d := w.hv.all["web"]
	d.config, d.live = strings.ReplaceAll(d.config, old, theirs), strings.ReplaceAll(d.live, old, theirs)
	delete(fast, old)
	if kept := order("c1:2", "a", "fast"); kept != theirs {
		t.Errorf("an update left the volume %s for %s", theirs, kept)
	}
	if b := order("c1:3", "b", "fast"); b == theirs || len(fast) != 1 {
		t.Errorf("another image: volume %s of %v", b, fast)
	}
}

// Volumes of a failed creation are deleted with the next order or with the workload. Volumes in a shared pool are
// deleted only with the next order, because the workload may run on another node.
func TestVolumesOfAFailedCreation(t *testing.T) {
	w := newDrawer(t)
	fast, far := w.hv.volumes["fast"], w.hv.volumes["far"]
	fast["web-vdb.qcow2"] = "<volume/>"
	disk := func(device, pool string) *agentv1.DiskConfig {
		return &agentv1.DiskConfig{Device: device, Pool: pool, SizeGb: 1}
	}
	w.fails("c1:1", "a", disk("vdb", "fast"), disk("vdc", "far"))
	if len(fast) != 2 || len(far) != 1 {
		t.Fatalf("made %v and %v", fast, far)
	}
	w.works("c1:2", "a")
	if len(fast) != 1 || len(far) != 0 {
		t.Errorf("the next order leaves %v and %v", fast, far)
	}
	if err := w.Remove(t.Context(), "web"); err != nil {
		t.Fatal(err)
	}
	w.fails("c1:1", "a", disk("vdb", "fast"), disk("vdc", "far"))
	for range 2 {
		if err := w.Remove(t.Context(), "web"); err != nil {
			t.Fatal(err)
		}
	}
	if len(fast) != 1 || len(far) != 1 {
		t.Errorf("removed, and left are %v and %v", fast, far)
	}
}
