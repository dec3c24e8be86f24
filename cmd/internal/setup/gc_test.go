package setup

import (
	"testing"
	"time"
)

func TestRoomBetweenCollections(t *testing.T) {
	const mib = 1 << 20
	type step struct {
		live  uint64
		since time.Duration
		want  int
	}
	for _, c := range []struct {
		name  string
		max   uint64
		steps []step
	}{
		{"an idle replica stays small", roomMax, []step{{15 * mib, time.Minute, 100}, {15 * mib, time.Minute, 100}}},
		{"collections that come fast are spread, within the bound", roomMax, []step{
			{32 * mib, 100 * time.Millisecond, 100}, {32 * mib, 100 * time.Millisecond, 200}, {32 * mib, 100 * time.Millisecond, 400},
			{32 * mib, time.Second, 800}, {32 * mib, time.Second, 1600}, {32 * mib, time.Second, 1600}, {32 * mib, 2 * time.Second, 1600},
			{32 * mib, time.Minute, 800}, {32 * mib, time.Minute, 400}, {32 * mib, time.Minute, 200}, {32 * mib, time.Minute, 100}}},
		{"records that grow get no more room for it", roomMax, []step{
			{128 * mib, time.Second, 100}, {128 * mib, time.Second, 200}, {160 * mib, 3 * time.Second, 160}, {200 * mib, 3 * time.Second, 128}, {512 * mib, 3 * time.Second, 100}}},
		{"very many take what the default gives", roomMax, []step{{4096 * mib, 100 * time.Millisecond, 100}}},
		{"a small machine grants less", 64 * mib, []step{{32 * mib, 100 * time.Millisecond, 100}, {32 * mib, 100 * time.Millisecond, 200}, {32 * mib, 100 * time.Millisecond, 200}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &pacer{max: c.max}
			for i, s := range c.steps {
				if got := p.next(s.live, s.since); got != s.want {
					t.Fatalf("collection %d: %d %%, want %d", i, got, s.want)
				}
			}
		})
	}
	if memoryTotal() == 0 {
		t.Error("the memory of this machine is not known")
	}
}
