package garbage

import (
	"testing"
	"time"

	"github.com/persys/compute/agent/volume"
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
