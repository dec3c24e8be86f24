package libvirt

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/libvirt/diskfile"
)

// listing is a fake hypervisor whose only function is to list domains.
type listing struct {
	hypervisor
	all  []domain
	down error
}

func (l *listing) domains(context.Context) ([]domain, error) { return l.all, l.down }

func (l *listing) domain(_ context.Context, name string) (*domain, error) {
	if l.down != nil {
		return nil, l.down
	}
	for _, d := range l.all {
		if d.name == name {
			return &d, nil
		}
	}
	return nil, driver.Errorf(driver.RuntimeResourceMissing, "domain", "%s: %w", name, errAbsent)
}

// The cloud-init seed of a deleted machine is garbage. The seed is not garbage if it has another owner, if the
// agent has an order for the machine or works on it, or if the seed is new. While libvirt does not answer,
// Garbage returns an error.
func TestSeedsOfDeletedMachinesAreGarbage(t *testing.T) {
	images := t.TempDir()
	hv := &listing{}
	d, err := newDriver(Options{ClusterID: "c1", NodeID: "node-a", Images: images}, hv)
	if err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	keep := func(name, cluster, node string, at time.Time, marked bool) {
		t.Helper()
		dir := d.at.keep(name)
		if err := diskfile.MakeFolder(dir); err != nil {
			t.Fatal(err)
		}
		files := map[string]string{"cloud-init-1.iso": "iso"}
		if marked {
			files[ownerFile] = owner(driver.Spec{ID: driver.ID(name), ClusterID: cluster, NodeID: node})
		}
		for f, text := range files {
			path := filepath.Join(dir, f)
			if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chtimes(path, at, at)); err != nil {
				t.Fatal(err)
			}
		}
	}
	keep("gone", "c1", "node-a", old, true)
	keep("defined", "c1", "node-a", old, true)
	keep("wanted", "c1", "node-a", old, true)
	keep("busy", "c1", "node-a", old, true)
	keep("young", "c1", "node-a", time.Now(), true)
	keep("sibling", "c1", "node-b", old, true)
	keep("stranger", "c2", "node-a", old, true)
	keep("unmarked", "c1", "node-a", old, false)
	if err := os.Symlink(d.at.keep("gone"), d.at.keep("link")); err != nil {
		t.Fatal(err)
	}
	hv.all = []domain{{name: "defined", persistent: true}}
	q := driver.GarbageQuery{
		Wanted: func(id driver.ID) bool { return id == "wanted" }, Busy: func(id driver.ID) bool { return id == "busy" }, Settled: time.Minute,
	}
	ctx := t.Context()
	found, err := d.Garbage(ctx, q)
	if err != nil || len(found) != 1 || found[0].Kind != driver.ISO || found[0].Name != "gone" || found[0].Workload != "gone" || found[0].Bytes == 0 {
		t.Fatalf("Garbage returned %+v, %v; want only the seed of machine gone", found, err)
	}
	hv.down = driver.Errorf(driver.RuntimeUnhealthy, "domains", "away")
	if _, err := d.Garbage(ctx, q); err == nil {
		t.Error("Garbage returned no error while libvirt does not answer")
	}
	if err := d.Collect(ctx, found[0]); err == nil {
		t.Error("Collect returned no error while libvirt does not answer")
	}
	hv.down = nil
	for range 2 { // removing an absent domain succeeds too
		if err := d.Collect(ctx, found[0]); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"defined", "sibling", "stranger", "unmarked"} {
		if err := d.Collect(ctx, driver.Garbage{Kind: driver.ISO, Name: name, Workload: driver.ID(name)}); err != nil {
			t.Error(err)
		}
	}
	left, err := filepath.Glob(filepath.Join(images, "*"+keepSuffix, "cloud-init-1.iso"))
	if err != nil || len(left) != 7 {
		t.Errorf("after Collect %d seeds are left (error %v); want all except that of machine gone: %v", len(left), err, left)
	}
}
