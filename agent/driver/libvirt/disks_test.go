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

// fussy is a shelf (a fake hypervisor) that also has storage pools. A test can make its calls fail.
type fussy struct {
	*shelf
	refusal error
	stuck   error                        // error of the fake hypervisor's shutdown; nil if shutdown succeeds
	volumes map[string]map[string]string // XML of each volume, by pool and by volume name
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

// drawer is the fixture of a test: a driver on a fake hypervisor, with two images named a and b in the
// driver's folder of images.
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

func (w *drawer) machine(image string, more ...*agentv1.DiskConfig) *agentv1.VMSpec {
	return &agentv1.VMSpec{Vcpus: 1, MemoryMb: 64, OsImage: w.image(image), Disks: append([]*agentv1.DiskConfig{{Device: "vda"}}, more...)}
}

// try calls Ensure for a machine with one disk made from the image, and with the further disks in
// more. The content identifies the specification: with another content, the driver updates the machine.
func (w *drawer) try(content, image string, more ...*agentv1.DiskConfig) error {
	spec := specFor(w.machine(image, more...))
	spec.Content = content
	return w.Ensure(w.Context(), spec)
}

func (w *drawer) fails(content, image string, more ...*agentv1.DiskConfig) {
	w.Helper()
	w.hv.refusal = errors.New("refused by the test")
	if err := w.try(content, image, more...); !errors.Is(err, w.hv.refusal) {
		w.Fatalf("Ensure returned %v, want a refusal", err)
	}
	w.hv.refusal = nil
}

func (w *drawer) works(content, image string, more ...*agentv1.DiskConfig) {
	w.Helper()
	if err := w.try(content, image, more...); err != nil {
		w.Fatal(err)
	}
}

// from returns the image from which the disk at path was made, as qemu-img reports it.
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

// files returns the names of the files in a folder that belong to the machine named web.
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

// After a failed creation there is no domain that records the image of a disk, but the mark file beside the
// disk does. If the next order names another image, the machine gets a new disk of that image. If the next
// order is the same, the machine gets the existing disk.
func TestDiskOfAFailedCreation(t *testing.T) {
	w := newDrawer(t)
	vda := filepath.Join(w.opt.Images, "web-vda.qcow2")
	w.fails("c1:1", "a")
	before := w.stat(vda)
	w.fails("c1:1", "a")
	if after, err := os.Stat(vda); err != nil || !os.SameFile(before, after) {
		t.Errorf("a repetition of the failed order made a new disk (error %v), want the existing disk", err)
	}
	w.works("c1:2", "b")
	if from := w.from(vda); from != "b" {
		t.Errorf("after an order with image \"b\" the disk is made from image %q", from)
	}
	if all := w.files(w.opt.Images); len(all) != 3 { // the three files are the disk, its mark and the domain's folder
		t.Errorf("the machine has the files %q; want the disk, its mark and the domain's folder", all)
	}
	// Somebody undefined the domain in libvirt. The mark file beside the disk still names the image from which
	// the disk was made last.
	delete(w.hv.all, "web")
	before = w.stat(vda)
	w.works("c1:3", "b")
	if after, err := os.Stat(vda); err != nil || !os.SameFile(before, after) {
		t.Errorf("somebody undefined the domain: Ensure replaced its disk (error %v), want the same disk", err)
	}
	// Mark files of earlier versions name no image. With such a mark the machine keeps its disk, even if
	// earlier calls with another image failed.
	delete(w.hv.all, "web")
	if err := errors.Join(os.RemoveAll(w.at.keep("web")),
		os.WriteFile(vda+diskfile.MarkSuffix, []byte("2026-01-02T03:04:05Z\ncluster-1\nweb\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	w.fails("c1:4", "b", &agentv1.DiskConfig{Device: "vdb", SizeGb: 1})
	w.works("c1:5", "a")
	if after, err := os.Stat(vda); err != nil || !os.SameFile(before, after) {
		t.Errorf("the mark file names no image: Ensure replaced the disk (error %v), want the same disk", err)
	}
}

// A disk that a failed order made, and that the next order does not name, is deleted once the machine of
// the next order runs.
func TestDiskThatOnlyAFailedOrderNamed(t *testing.T) {
	for _, first := range []bool{true, false} {
		w := newDrawer(t)
		if !first {
			w.works("c1:0", "a")
		}
		more := &agentv1.DiskConfig{Device: "vdb", SizeGb: 1, Path: filepath.Join(w.dir, "web-data.qcow2")}
		w.fails("c1:1", "a", more)
		if all := w.files(w.dir); len(all) != 2 {
			t.Fatalf("the failed order left the files %q; want one disk and its mark file", all)
		}
		w.works("c1:2", "a")
		if all := w.files(w.dir); len(all) != 0 {
			t.Errorf("after the next order (failed order first: %t) the files %q of the failed order's disk are left", first, all)
		}
	}
}

// If there is no domain, Remove deletes the disks of the machine beside which the driver wrote a mark file, in
// any folder. It deletes no other files.
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
	// Somebody replaced the disk by a foreign one of the same name: the journal in the domain's folder lists
	// the path, but the mark file beside the disk names another workload.
	if err := (diskfile.Mark{Cluster: "cluster-1", Node: "node-a", Workload: "web-2"}).Write(swapped.Path); err != nil {
		t.Fatal(err)
	}
	// A domain that no agent made has the name of the workload. Remove must not delete disks that this domain
	// may use.
	w.hv.all["web"] = &domain{name: "web", uuid: "u", state: stateShutoff, persistent: true, config: "<domain/>"}
	if err := w.Remove(t.Context(), "web"); err != nil {
		t.Fatal(err)
	}
	if all := w.files(w.opt.Images); len(all) != 3 {
		t.Errorf("the machine has the files %q; want the disk, its mark and the domain's folder", all)
	}
	delete(w.hv.all, "web")
	// Another node shares the folder of the domain. The owner file in the folder says that this other node
	// used the disk last.
	owners := filepath.Join(w.at.keep("web"), ownerFile)
	mine, err := os.ReadFile(owners)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(owners, []byte(owner(driver.Spec{ID: "web", ClusterID: "cluster-1", NodeID: "node-b"})), 0o600); err != nil {
		t.Fatal(err)
	}
	if disks, err := w.journaledDisks("web", "web"); err != nil || len(disks) != 0 {
		t.Errorf("for a folder of another node journaledDisks returned %v, %v; want no disks", disks, err)
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
		t.Errorf("after Remove the files %q are in the folder, want only %q", left, want)
	}
}

// A disk on shared storage belongs to the node that used it last. After a workload has moved, its previous
// node may get an order to delete the workload. That node then leaves the disk alone.
func TestAFormerNodeKeepsTheDiskOfAMovedWorkload(t *testing.T) {
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
			t.Errorf("the previous node removed or replaced the disk on shared storage (domain defined: %v): its image is %q, want a", defined, from)
		}
		if err := there.Remove(t.Context(), "web"); err != nil {
			t.Fatal(err)
		}
		if all := w.files(w.dir); len(all) != 0 {
			t.Errorf("after Remove on the new node (domain defined on the previous node: %v) the files %q of the disk are left", defined, all)
		}
	}
}

// An update of a machine to another image is interrupted before the driver has stopped the guest. If the
// next order names the old image again, the guest keeps its disk and no data is lost. If the next order
// names the new image, the driver replaces the disk.
func TestAnInterruptedUpdateToAnotherImage(t *testing.T) {
	for content, want := range map[string]string{"a": "a", "b": "b"} {
		w := newDrawer(t)
		vda := filepath.Join(w.opt.Images, "web-vda.qcow2")
		w.works("c1:1", "a")
		before := w.stat(vda)
		w.hv.stuck = errors.New("the daemon went away")
		if err := w.try("c1:2", "b"); !errors.Is(err, w.hv.stuck) {
			t.Fatalf("the fake hypervisor cannot stop the guest: Ensure returned %v, want its error", err)
		}
		w.hv.stuck = nil
		if content == "a" { // the next order names the content of the running guest, so the driver does not stop the guest, and the test does
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
			t.Errorf("after the order with image %q the disk is made from image %q; it is the disk from before the update: %t, want this only for image a", content, from, os.SameFile(before, after))
		}
		if left, err := diskfile.Exists(vda + diskfile.StagedSuffix); left || err != nil {
			t.Errorf("after the order with image %q a staged disk file is left: %v", content, err)
		}
		if o := readRecord(w.hv.all["web"].config).Disks[0]; o.Staged || o.Former != "" {
			t.Errorf("after the order with image %q the record of the disk is %+v, want it without Staged and Former", content, o)
		}
	}
}

// If an order names no image, the machine keeps its disk. It also keeps the disk if a later order names the
// image from which the disk was made.
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
		t.Errorf("Ensure replaced the disk, although the image of the disk did not change (error %v)", err)
	}
}

// If the folder of a disk is missing, the driver returns an error and does not make an empty disk: the file
// system of the folder is probably not mounted.
func TestDiskWhoseFolderIsNotMounted(t *testing.T) {
	w := newDrawer(t)
	dir := filepath.Join(t.TempDir(), "data")
	data := &agentv1.DiskConfig{Device: "vdb", SizeGb: 1, Path: filepath.Join(dir, "web-data.qcow2")}
	w.works("c1:1", "a", data)
	if err := errors.Join(w.Halt(t.Context(), "web", 0), os.Rename(dir, dir+".away"), os.Mkdir(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := w.try("c1:1", "a", data); driver.ClassOf(err) != driver.StorageAttachFailed || !strings.Contains(err.Error(), "mounted") {
		t.Errorf("Ensure returned %v, want an error that a file system is not mounted", err)
	}
	if all := w.files(dir); len(all) != 0 {
		t.Errorf("the file system of the folder is not mounted, but Ensure created the files %q", all)
	}
	if err := errors.Join(os.Remove(dir), os.Rename(dir+".away", dir), os.Remove(data.Path)); err != nil {
		t.Fatal(err)
	}
	w.works("c1:1", "a", data) // now the folder exists and only the disk is missing, as if a person deleted it: the disk is made again
	if there, err := diskfile.Exists(data.Path); !there || err != nil {
		t.Errorf("the file of the disk was removed, but Ensure did not make a new disk: %v", err)
	}
}

// If a volume has disappeared from its pool, or libvirt does not know the pool, the driver does not make an
// empty volume instead: the pool's storage may not be mounted.
func TestVolumeThatIsLost(t *testing.T) {
	w := newDrawer(t)
	data := &agentv1.DiskConfig{Device: "vdb", Pool: "fast", SizeGb: 1}
	w.works("c1:1", "a", data)
	if err := w.Halt(t.Context(), "web", time.Second); err != nil {
		t.Fatal(err)
	}
	was := w.hv.volumes["fast"]
	for _, left := range []map[string]string{{}, nil} { // {} means that the pool has lost the volume, nil that libvirt does not know the pool
		w.hv.volumes["fast"] = left
		for _, content := range []string{"c1:1", "c1:2"} {
			err := w.try(content, "a", data)
			if driver.ClassOf(err) != driver.StorageAttachFailed || !strings.Contains(err.Error(), "mounted") || !strings.Contains(err.Error(), "pool-list") || len(left) != 0 {
				t.Errorf("Ensure with %s returned %v, and volumes %v exist; want an error that the storage is not mounted or the pool is missing", content, err, left)
			}
		}
	}
	w.hv.volumes["fast"] = was
	w.works("c1:2", "a", data)
}

// The format of a raw disk is never detected from its content. Otherwise a guest could write a qcow2 header
// that names a file of the host, and would get access to that file.
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
			t.Errorf("the driver treated a raw disk whose guest wrote %.4q as qcow2", text)
		}
	}
}

// An update of a machine to another image waits for the guest to stop. Until then the driver still treats the
// machine's raw disk as raw.
func TestARawDiskDuringAnInterruptedUpdate(t *testing.T) {
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
			t.Fatalf("the fake hypervisor cannot stop the guest: Ensure returned %v, want its error", err)
		}
	}
	if err := try("c1:4", "a", "qcow2"); driver.ClassOf(err) != driver.InvalidSpecification {
		t.Errorf("during the update the driver treated the raw disk as qcow2: %v", err)
	}
}

// overlay returns the header of a qcow2 disk whose backing file is another file.
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

// writes overwrites the start of the raw disk at path with text, as its guest could.
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

// An update of a machine that a legacy v1 agent made is interrupted after it has defined the new configuration.
// While the machine runs, its live description is still that of the legacy v1 agent. So the driver reports its
// content as unknown.
func TestAnInterruptedUpdateOfALegacyMachine(t *testing.T) {
	w := newDrawer(t)
	w.opt.Owns = func(driver.ID) bool { return true }
	old := "<domain><name>web</name></domain>"
	w.hv.all["web"] = &domain{name: "web", uuid: "u", state: stateRunning, active: true, persistent: true, config: old, live: old}
	w.hv.stuck = errors.New("the daemon went away")
	if err := w.try("c1:2", "a"); !errors.Is(err, w.hv.stuck) {
		t.Fatalf("the fake hypervisor cannot stop the guest: Ensure returned %v, want its error", err)
	}
	if o, err := listed(t.Context(), w.Driver, "web"); err != nil || o.State != driver.Running || o.Content != "" {
		t.Errorf("List returned error %v and content %q for the machine of a legacy v1 agent, want an unknown content (\"\")", err, o.Content)
	}
}

// After a workload has moved, its previous node does not delete disks that the new node can reach. It keeps the
// disks that are local to it as long as the workload exists.
func TestVolumesOnThePreviousNodeOfAWorkload(t *testing.T) {
	for _, how := range []string{"deleted", "deleted, and may run on another node", "moved to another node"} {
		w := newDrawer(t)
		w.works("c1:1", "a", &agentv1.DiskConfig{Device: "vdb", Pool: "far", SizeGb: 1}, &agentv1.DiskConfig{Device: "vdc", Pool: "fast", SizeGb: 1})
		remove := w.Remove
		lives := how == "moved to another node"
		if how != "deleted" {
			remove = func(ctx context.Context, id driver.ID) error { return w.Leave(ctx, id, lives) }
		}
		if err := remove(t.Context(), "web"); err != nil {
			t.Fatal(err)
		}
		if far, fast := len(w.hv.volumes["far"]), len(w.hv.volumes["fast"]); (far == 1) != (how != "deleted") || (fast == 1) != lives {
			t.Errorf("after a workload was %s, %d volumes in the shared pool and %d in the local pool are left", how, far, fast)
		}
	}
}

// If somebody else created a volume with the workload's id in its name, the driver neither uses nor removes it.
// An order with another image gets a new volume.
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
		t.Fatalf("the guest runs on volume %q of the volumes %v, want a volume of its own and not the stranger's; its XML is %s", a, fast, w.hv.all["web"].live)
	}
	if again := order("c1:2", "a", "fast"); again != a {
		t.Errorf("after an update with the same image the guest runs on volume %q, want the volume %q from before", again, a)
	}
	if b := order("c1:3", "b", "fast"); b == a || !strings.Contains(fast[b], "/b.qcow2") || len(fast) != 2 {
		t.Errorf("after an update to another image the guest runs on volume %q (before: %q) of the volumes %v; want a new volume made from image b", b, a, fast)
	}
	if far := order("c1:4", "b", "far"); w.hv.volumes["far"][far] == "" || len(fast) != 1 {
		t.Errorf("after an update to pool \"far\" the guest runs on volume %q of the volumes %v there; the former pool has %v, want the old volume removed", far, w.hv.volumes["far"], fast)
	}
	if err := w.Remove(t.Context(), "web"); err != nil || len(fast) != 1 || len(w.hv.volumes["far"]) != 0 {
		t.Errorf("after Remove (error %v) the pools have the volumes %v and %v; want only the stranger's volume", err, fast, w.hv.volumes["far"])
	}
	// Another cluster has a workload with the same id and uses the same pool. Its workload gets a volume of
	// its own.
	if err := try(w, "c1:1", "a", "fast"); err != nil {
		t.Fatal(err)
	}
	other := newDrawer(t)
	other.opt.ClusterID, other.identity.ClusterID, other.hv.volumes = "cluster-2", "cluster-2", w.hv.volumes
	if err := try(other, "c1:1", "a", "fast"); err != nil || len(fast) != 3 {
		t.Errorf("the pool has the volumes %v (error %v); want three: one each of two clusters and of a stranger", fast, err)
	}
	if err := errors.Join(other.Remove(t.Context(), "web"), w.Remove(t.Context(), "web")); err != nil || len(fast) != 1 {
		t.Errorf("after Remove by both clusters the pool has the volumes %v (error %v); want only the stranger's volume", fast, err)
	}
	// An earlier version of the driver named volumes in another way. If our record lists such a volume, the
	// driver uses it until the order names another image.
	if err := try(w, "c1:1", "a", "fast"); err != nil {
		t.Fatal(err)
	}
	old := readRecord(w.hv.all["web"].live).Disks[0].Volume
	d := w.hv.all["web"]
	d.config, d.live = strings.ReplaceAll(d.config, old, theirs), strings.ReplaceAll(d.live, old, theirs)
	delete(fast, old)
	if kept := order("c1:2", "a", "fast"); kept != theirs {
		t.Errorf("an update with the same image replaced volume %q, which an earlier version of the driver named, by %q", theirs, kept)
	}
	if b := order("c1:3", "b", "fast"); b == theirs || len(fast) != 1 {
		t.Errorf("after an update to another image the guest runs on volume %q of the volumes %v; want a new volume in place of the old one", b, fast)
	}
}

// Volumes of a failed creation are deleted when the next order is carried out or when the workload is
// removed. Volumes in a shared pool are deleted only by the next order, because the workload may run on
// another node.
func TestVolumesOfAFailedCreation(t *testing.T) {
	w := newDrawer(t)
	fast, far := w.hv.volumes["fast"], w.hv.volumes["far"]
	fast["web-vdb.qcow2"] = "<volume/>"
	disk := func(device, pool string) *agentv1.DiskConfig {
		return &agentv1.DiskConfig{Device: device, Pool: pool, SizeGb: 1}
	}
	w.fails("c1:1", "a", disk("vdb", "fast"), disk("vdc", "far"))
	if len(fast) != 2 || len(far) != 1 {
		t.Fatalf("the failed creation made the volumes %v and %v, want one in each pool", fast, far)
	}
	w.works("c1:2", "a")
	if len(fast) != 1 || len(far) != 0 {
		t.Errorf("after the next order the first pool has the volumes %v and the second %v; want one and none", fast, far)
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
		t.Errorf("after Remove the pools have the volumes %v and %v; want one volume in each", fast, far)
	}
}
