package lease

import (
	"slices"
	"testing"
	"time"

	"github.com/persys/compute/agent/workload"
)

var db = Workload{workload.Container, "db"}

func TestLease(t *testing.T) {
	vm := Workload{workload.VM, "vm"}
	me := Process{PID: 7, Start: 1}
	held := func() *Lease {
		return &Lease{Deadline: 100, Guarded: []Workload{db}}
	}
	for _, c := range []struct {
		name     string
		have     *Lease
		in       Renewal
		now      time.Duration
		deadline time.Duration
		lapses   uint64
		lapsed   bool
		guarded  []Workload
		toStop   []Workload
	}{
		{"a later end is taken over", held(), Renewal{Deadline: 200, Guarded: []Workload{db}}, 50, 200, 0, false, []Workload{db}, nil},
		{"an earlier end changes nothing", held(), Renewal{Deadline: 60, Guarded: []Workload{db}}, 50, 100, 0, false, []Workload{db}, nil},
		{"one more workload under the same lease", held(), Renewal{Guarded: []Workload{vm, db}}, 50, 100, 0, false, []Workload{db, vm}, nil},
		{"a workload that was removed", held(), Renewal{Guarded: nil}, 50, 100, 0, false, nil, nil},
		{"a renewal after the deadline: it has lapsed", held(), Renewal{Deadline: 200, Guarded: []Workload{db}}, 100, 100, 1, true, nil, []Workload{db}},
		{"without confirmation no lease begins", &Lease{Deadline: 100, Lapses: 1, Lapsed: true, ToStop: []Workload{db}},
			Renewal{Deadline: 300, Guarded: []Workload{db}}, 150, 100, 1, true, nil, []Workload{db}},
		{"confirmed: what lapsed is stopped all the same", &Lease{Deadline: 100, Lapses: 1, Lapsed: true, ToStop: []Workload{db}},
			Renewal{Deadline: 300, Lapses: 1, Guarded: []Workload{vm}}, 150, 300, 1, false, []Workload{vm}, []Workload{db}},
		{"confirmed, and ordered anew", &Lease{Deadline: 100, Lapses: 1, Lapsed: true, ToStop: []Workload{db}},
			Renewal{Deadline: 300, Lapses: 1, Guarded: []Workload{db}}, 150, 300, 1, false, []Workload{db}, nil},
		{"confirmed, but the new lease has ended as well", &Lease{Deadline: 100, Lapses: 1, Lapsed: true},
			Renewal{Deadline: 140, Lapses: 1, Guarded: []Workload{db}}, 150, 140, 2, true, nil, []Workload{db}},
		{"a lapse that has not happened is not confirmed", &Lease{Deadline: 100, Guarded: []Workload{db}},
			Renewal{Deadline: 300, Lapses: 9, Guarded: []Workload{db}}, 50, 300, 0, false, []Workload{db}, nil},
		{"asking changes nothing", held(), Renewal{Ask: true}, 50, 100, 0, false, []Workload{db}, nil},
		{"an agent with another file ends the lease", &Lease{Instance: "one", Deadline: 100, Guarded: []Workload{db}},
			Renewal{Instance: "two", Ask: true}, 50, 100, 1, true, nil, []Workload{db}},
		{"an agent with another file drops no workload", &Lease{Instance: "one", Deadline: 100, Guarded: []Workload{db}},
			Renewal{Instance: "two"}, 50, 100, 1, true, nil, []Workload{db}},
		{"the same file in another process goes on", &Lease{Instance: "one", Deadline: 100, Guarded: []Workload{db}},
			Renewal{Instance: "one", Ask: true}, 50, 100, 0, false, []Workload{db}, nil},
		{"without guarded workloads nothing lapses", &Lease{Deadline: 100}, Renewal{}, 500, 100, 0, false, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.in.Agent = me
			c.have.renew(c.in, c.now)
			l := c.have
			if l.Deadline != c.deadline || l.Lapses != c.lapses || l.Lapsed != c.lapsed ||
				!slices.Equal(l.Guarded, c.guarded) || !slices.Equal(l.ToStop, c.toStop) || l.Agent != me {
				t.Errorf("got %+v", l)
			}
		})
	}
}
