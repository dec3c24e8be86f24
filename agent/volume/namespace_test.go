package volume

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/persys/compute/agent/driver"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

// as attaches one volume on behalf of a workload in a namespace, and returns the path of the
// volume.
func (b *bench) as(workload, namespace string, s *agentv1.ManagedVolumeSpec) (string, error) {
	b.Helper()
	out, err := b.m.Attach(b.Context(), workload, namespace, driver.Container, []*agentv1.ManagedVolumeSpec{s})
	if err != nil {
		return "", err
	}
	return filepath.Base(out[0].Path), b.m.Trim(b.Context(), workload, namespace, []*agentv1.ManagedVolumeSpec{s})
}

func TestVolumesOfNamespacesAreApart(t *testing.T) {
	b := newBench(t, Machine{})
	for _, c := range []struct{ name, workload, namespace, volume, want string }{
		{"a workload without namespace gets the folder name that legacy v1 agents use", "web", "", "data", "data"},
		{"a workload of the default namespace shares the volume of a workload without namespace", "api", "default", "data", "data"},
		{"a workload of namespace shop gets a volume of that namespace", "shop-web", "shop", "data", "shop~data"},
		{"a second workload of namespace shop shares the volume", "shop-api", "shop", "data", "shop~data"},
		{"a workload of namespace bank gets another volume of the same name", "bank-web", "bank", "data", "bank~data"},
		{"namespace shop-web with volume data gets a folder of its own", "x", "shop-web", "data", "shop-web~data"},
		{"the default namespace with volume shop-web-data gets a folder of its own", "y", "", "shop-web-data", "shop-web-data"},
		{"namespace Shop does not share the volume of namespace shop", "z", "Shop", "data", "shop~d00aae6b7fbf~data"},
	} {
		got, err := b.as(c.workload, c.namespace, folder(c.volume))
		if err != nil || got != c.want {
			t.Errorf("%s: the path of the volume is %q (error %v), want %q", c.name, got, err, c.want)
		}
	}
	// Both namespaces have a volume of the same name. When the volume of one is deleted, that of the other
	// stays.
	if err := b.m.Release(t.Context(), "bank-web", Retention{}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"bank~data": false, "shop~data": true, "data": true} {
		if _, err := os.Stat(filepath.Join(b.cfg.Pools[0].Path, name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOldVolumesStayWithTheirUsers covers volumes that were made before volume ids contained the namespace.
// A workload that already uses such a volume may still use it, even if the workload is in another
// namespace.
func TestOldVolumesStayWithTheirUsers(t *testing.T) {
	type try struct{ workload, namespace, want string } // want is the path; if it is empty, the attachment must be refused
	for _, c := range []struct {
		name    string
		owner   string
		users   []string
		attempt []try
	}{
		{"the workload that uses an old volume, and others of its namespace, get that volume", "w", []string{"w"}, []try{{"w", "shop", "old"}, {"x", "shop", "old"}, {"y", "bank", "bank~old"}, {"z", "", ""}}},
		{"the owner of a released old volume gets that volume again", "w", nil, []try{{"w", "shop", "old"}, {"z", "", ""}}},
		{"two workloads of two namespaces that use the same old volume keep it", "w", []string{"w", "v"}, []try{{"w", "shop", "old"}, {"v", "bank", "old"}, {"u", "bank", "bank~old"}}},
		{"an old volume without users belongs to the default namespace", "", nil, []try{{"w", "shop", "shop~old"}, {"z", "", "old"}, {"y", "default", "old"}}},
		{"an old volume whose user is in the default namespace belongs to that namespace", "w", []string{"w"}, []try{{"z", "", "old"}, {"x", "shop", "shop~old"}, {"w", "", "old"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, Machine{})
			path := filepath.Join(b.cfg.Pools[0].Path, "old")
			if err := os.MkdirAll(path, 0o755); err != nil {
				t.Fatal(err)
			}
			b.store.vols["local:old"] = Volume{ID: "local:old", Name: "old", Driver: Local, StagePath: path, Phase: Retained, Owner: c.owner, CreatedAt: time.Now()}
			for _, u := range c.users {
				a := Attachment{ID: "local:old:" + u, VolumeID: "local:old", WorkloadID: u, MountPath: "/data", StagePath: path}
				b.store.atts[a.ID] = a
			}
			b.restart()
			for _, a := range c.attempt {
				got, err := b.as(a.workload, a.namespace, folder("old"))
				if (err != nil) != (a.want == "") || got != a.want {
					t.Errorf("workload %q of namespace %q got the volume %q (error %v), want %q", a.workload, a.namespace, got, err, a.want)
				}
			}
		})
	}
}

func TestAReusedIDDoesNotInheritVolumes(t *testing.T) {
	b := newBench(t, Machine{})
	if _, err := b.as("db", "shop", folder("data")); err != nil {
		t.Fatal(err)
	}
	if err := b.m.Release(t.Context(), "db", Retention{Keep: true}); err != nil { // the workload moved, and was deleted on another node
		t.Fatal(err)
	}
	for _, namespace := range []string{"", "bank"} {
		if got, err := b.as("db", namespace, folder("data")); err != nil || got == "shop~data" {
			t.Fatalf("a workload of namespace %q got the volume %q of namespace shop (error %v)", namespace, got, err)
		}
		if err := b.m.Release(t.Context(), "db", Retention{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(b.cfg.Pools[0].Path, "shop~data")); err != nil {
		t.Error("the delete of a workload in another namespace removed the data of this volume:", err)
	}
}
