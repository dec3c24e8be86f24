package garbage

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/volume"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/order"
)

func TestWhichVolumesAreGarbage(t *testing.T) {
	now := time.Now()
	move := order.Generation{Incarnation: 1, Sequence: 5}
	old := volume.Volume{Phase: volume.Released, ReleasedAt: now.Add(-2 * time.Hour)}
	for _, c := range []struct {
		name   string
		change func(*volume.Volume)
		want   bool
	}{
		{"released two hours ago", func(*volume.Volume) {}, true},
		{"released a minute ago", func(v *volume.Volume) { v.ReleasedAt = now.Add(-time.Minute) }, false},
		{"in use", func(v *volume.Volume) { v.Phase = volume.Attached }, false},
		{"to be retained", func(v *volume.Volume) { v.Retain = true }, false},
		{"made by a move", func(v *volume.Volume) { v.Copy = move }, false},
		{"set aside for a move", func(v *volume.Volume) { v.Aside = move }, false},
		{"being copied", func(v *volume.Volume) { v.Phase, v.Incoming = volume.Moving, move }, false},
	} {
		v := old
		c.change(&v)
		if got := isOld(&v, now, time.Hour); got != c.want {
			t.Errorf("%s: garbage is %t, want %t", c.name, got, c.want)
		}
	}
}

type noStore struct{}

func (noStore) PutVolume(volume.Volume) error         { return nil }
func (noStore) DropVolume(string) error               { return nil }
func (noStore) PutAttachment(volume.Attachment) error { return nil }
func (noStore) DropAttachment(string) error           { return nil }

// TestACopyThatWasTakenBackIsNoGarbage: a workload has left this node with its volume, and the volume returns. Until the
// workload starts here, nothing uses the copy, which is the only one.
func TestACopyThatWasTakenBackIsNoGarbage(t *testing.T) {
	folder := t.TempDir()
	m, err := volume.New(volume.Config{Pools: []volume.PoolConfig{{Name: "root", Path: folder}}}, noStore{}, volume.Records{})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(err)
	_, err = m.Attach(t.Context(), "db", "default", driver.Container, []*agentv1.ManagedVolumeSpec{{Name: "data", MountPath: "/data"}})
	must(err)
	must(os.WriteFile(filepath.Join(folder, "data", "file"), []byte("x"), 0o600))
	move := order.Generation{Incarnation: 1, Sequence: 5}
	root, err := m.OpenSource(move, order.Generation{}, "db", "default", "data", true)
	must(err)
	must(root.Close())
	must(m.Release(t.Context(), "db", volume.Retention{Keep: true}))
	v := m.List()[0].Volume
	if v.Aside = (order.Generation{}); !isOld(&v, time.Now().Add(2*time.Hour), time.Hour) {
		t.Fatalf("the volume is %+v, want garbage if it was not set aside", v)
	}
	must(m.KeepCopy(move, order.Generation{}, "db", "default", "data", true))
	if v := m.List()[0].Volume; isOld(&v, time.Now().Add(1000*time.Hour), time.Hour) {
		t.Errorf("the copy that was taken back is garbage: %+v", v)
	}
}
