package lease

import (
	"slices"
	"testing"
	"time"

	"github.com/persys/compute/agent/workload"
)

var db = Workload{workload.Container, "db"}

func TestLeasesAreRenewedAndLapse(t *testing.T) {
	vm := Workload{workload.VM, "vm"}
	me := Process{PID: 7, Start: 1}
	held := func() *Lease {
		return &Lease{Deadline: 100, Leased: []Workload{db}}
	}
	for _, c := range []struct {
		name     string
		have     *Lease
		in       Renewal
		now      time.Duration
		deadline time.Duration
		lapses   uint64
		lapsed   bool
		leased   []Workload
		toStop   []Workload
	}{
		{"a renewal with a later deadline extends the lease", held(), Renewal{Deadline: 200, Leased: []Workload{db}}, 50, 200, 0, false, []Workload{db}, nil},
		{"a renewal with an earlier deadline changes nothing", held(), Renewal{Deadline: 60, Leased: []Workload{db}}, 50, 100, 0, false, []Workload{db}, nil},
		{"a renewal adds one more workload under the same deadline", held(), Renewal{Leased: []Workload{vm, db}}, 50, 100, 0, false, []Workload{db, vm}, nil},
		{"a renewal without a workload ends its lease", held(), Renewal{Leased: nil}, 50, 100, 0, false, nil, nil},
		{"a renewal after the deadline comes too late: the lease has lapsed", held(), Renewal{Deadline: 200, Leased: []Workload{db}}, 100, 100, 1, true, nil, []Workload{db}},
		{"a new lease does not begin before the agent has confirmed the lapse", &Lease{Deadline: 100, Lapses: 1, Lapsed: true, ToStop: []Workload{db}},
			Renewal{Deadline: 300, Leased: []Workload{db}}, 150, 100, 1, true, nil, []Workload{db}},
		{"a confirmed lapse still stops its workloads", &Lease{Deadline: 100, Lapses: 1, Lapsed: true, ToStop: []Workload{db}},
			Renewal{Deadline: 300, Lapses: 1, Leased: []Workload{vm}}, 150, 300, 1, false, []Workload{vm}, []Workload{db}},
		{"after a confirmed lapse a workload that was ordered again is leased", &Lease{Deadline: 100, Lapses: 1, Lapsed: true, ToStop: []Workload{db}},
			Renewal{Deadline: 300, Lapses: 1, Leased: []Workload{db}}, 150, 300, 1, false, []Workload{db}, nil},
		{"the agent confirms the lapse, but its new deadline has passed as well", &Lease{Deadline: 100, Lapses: 1, Lapsed: true},
			Renewal{Deadline: 140, Lapses: 1, Leased: []Workload{db}}, 150, 140, 2, true, nil, []Workload{db}},
		{"the confirmation of a lapse that has not happened is ignored", &Lease{Deadline: 100, Leased: []Workload{db}},
			Renewal{Deadline: 300, Lapses: 9, Leased: []Workload{db}}, 50, 300, 0, false, []Workload{db}, nil},
		{"a message with Ask changes nothing", held(), Renewal{Ask: true}, 50, 100, 0, false, []Workload{db}, nil},
		{"a renewal by an agent with another state file ends the lease", &Lease{Instance: "one", Deadline: 100, Leased: []Workload{db}},
			Renewal{Instance: "two", Ask: true}, 50, 100, 1, true, nil, []Workload{db}},
		{"an agent with another state file drops no workload from the list", &Lease{Instance: "one", Deadline: 100, Leased: []Workload{db}},
			Renewal{Instance: "two"}, 50, 100, 1, true, nil, []Workload{db}},
		{"a renewal by another process with the same state file is accepted", &Lease{Instance: "one", Deadline: 100, Leased: []Workload{db}},
			Renewal{Instance: "one", Ask: true}, 50, 100, 0, false, []Workload{db}, nil},
		{"a lease without workloads does not lapse", &Lease{Deadline: 100}, Renewal{}, 500, 100, 0, false, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.in.Agent = me
			c.have.renew(c.in, c.now)
			l := c.have
			if l.Deadline != c.deadline || l.Lapses != c.lapses || l.Lapsed != c.lapsed ||
				!slices.Equal(l.Leased, c.leased) || !slices.Equal(l.ToStop, c.toStop) || l.Agent != me {
				t.Errorf("got %+v", l)
			}
		})
	}
}
