package fsm

import (
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/policy"
)

// fails returns a report in which the node of workload id says that it cannot run the workload, for
// the reason code. elsewhere says that another node may be able to.
func (w *world) fails(id, code string, elsewhere bool) Command {
	w.t.Helper()
	return report(&commandv1.WorkloadReport{
		Workload: id, Node: w.workload(id).Node, Generation: w.generation(id), State: "Pending", Code: code, Message: "it does not work here",
		Retryable: true, ObservedAt: w.now, TryElsewhere: elsewhere,
	})
}

// moves lets workload id fail on its node, evicts it from that node, and assigns it to node to.
func (w *world) moves(id, to string) {
	w.t.Helper()
	from := w.workload(id).Node
	w.ok(w.fails(id, "STORAGE_FULL", true))
	w.ok(w.evict(id, CodeFailedOnNode, false))
	w.ok(gone(id, from, w.generation(id)))
	w.bind(id, to)
}

func reschedules(attempts int32, interval int64) func(*commandv1.WorkloadPut) {
	return demand(func(d *commandv1.Demand) {
		d.Reschedule = &commandv1.Reschedule{Attempts: attempts, Interval: interval}
	})
}

func writesToHost(p *commandv1.WorkloadPut) {
	p.Demand.Asks = []*commandv1.Ask{{Rule: policy.RuleHostPath, Value: "/srv/web", Field: "volumes"}}
}

func nodeFailuresScenario(w *world) {
	w.do(register("a"))
	w.do(register("b"))
	w.place("web", "a", reschedules(2, 10*minute))
	w.do(w.evict("web", CodeFailedOnNode, false))
	w.do(w.fails("web", "PORT_BIND_CONFLICT", false))
	w.do(w.evict("web", CodeFailedOnNode, false))
	w.moves("web", "b")
	w.do(w.fails("web", "IMAGE_NOT_ON_NODE", true))
	w.do(w.says("web", "Running"))
	w.do(w.evict("web", CodeFailedOnNode, false))
	w.do(put("web", reschedules(0, 60*minute)))
	w.do(w.fails("web", "STORAGE_FULL", true))
	w.do(w.evict("web", CodeFailedOnNode, false))
	w.do(put("web", reschedules(1, 60*minute)))
	w.moves("web", "a")
	w.do(w.fails("web", "STORAGE_FULL", true))
	w.do(w.evict("web", CodeFailedOnNode, false))
	w.do(userRetry("web"))
	w.moves("web", "b")
	w.do(setDesired("web", "Stopped"))
	w.do(put("bad", reschedules(11, 60*minute)))
	w.do(put("bad", reschedules(1, 1)))
	w.place("db", "a", demand(func(d *commandv1.Demand) { d.Exclusive = true }))
	w.do(w.fails("db", "STORAGE_FULL", true))
	w.do(w.evict("db", CodeFailedOnNode, false))
}

func TestFailedNodesAreRecorded(t *testing.T) {
	for _, c := range []struct {
		name string
		then func(w *world)
		want int
	}{
		{"a node that could not run the workload is remembered", func(w *world) {}, 2},
		{"nodes are remembered while the workload runs", func(w *world) { w.run("web") }, 2},
		{"an apply without a change keeps the list of failed nodes", func(w *world) { w.do(put("web")) }, 2},
		{"another specification clears the list of failed nodes", func(w *world) { w.ok(put("web", content("c1:new"))) }, 0},
		{"a retry by a person clears the list of failed nodes", func(w *world) { w.ok(userRetry("web")) }, 0},
		{"a stop clears the list of failed nodes", func(w *world) { w.ok(setDesired("web", "Stopped")) }, 0},
		{"a drain keeps the list of failed nodes", func(w *world) {
			w.run("web")
			w.ok(w.evict("web", CodeDraining, false))
		}, 2},
		{"the oldest entry is dropped when the list of failed nodes is full", func(w *world) {
			for range MaxNodeFailures {
				w.wait(30 * minute)
				w.moves("web", "a")
			}
		}, MaxNodeFailures},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := formed(t, "a", "b")
			w.place("web", "a")
			w.moves("web", "b")
			w.moves("web", "a")
			c.then(w)
			x := w.workload("web")
			if len(x.FailedOn) != c.want {
				t.Fatalf("the record of the workload remembers %d nodes that it left, want %d: %+v", len(x.FailedOn), c.want, x.FailedOn)
			}
			if c.want == 2 && (x.FailedOn[0].Node != "a" || x.FailedOn[1].Node != "b" || x.FailedOn[1].Code != "STORAGE_FULL" || x.FailedOn[1].At == 0) {
				t.Errorf("the record of the workload remembers the nodes %+v, want node a, then node b, each with code and time", x.FailedOn)
			}
			if err := w.s.Check(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A workload leaves a node because of a failure only while the node reports that it cannot run the
// workload.
func TestOnlyAFailingWorkloadLeavesItsNode(t *testing.T) {
	for _, c := range []struct {
		name string
		then func(w *world)
		want bool
	}{
		{"a workload leaves a node that reports that it cannot run the workload", func(w *world) { w.ok(w.fails("web", "STORAGE_FULL", true)) }, true},
		{"a workload stays while its agent has not tried often enough", func(w *world) { w.ok(w.fails("web", "STORAGE_FULL", false)) }, false},
		{"a workload that runs again stays", func(w *world) {
			w.ok(w.fails("web", "STORAGE_FULL", true))
			w.run("web")
		}, false},
		{"a workload that got a new order stays", func(w *world) {
			w.ok(w.fails("web", "STORAGE_FULL", true))
			w.ok(userRetry("web"))
		}, false},
		{"a workload that was moved as often as its limit allows stays", func(w *world) {
			for _, n := range []string{"b", "a", "b"} {
				w.moves("web", n)
			}
			w.ok(w.fails("web", "STORAGE_FULL", true))
		}, false},
		{"a workload that writes to a folder of its host stays", func(w *world) {
			w.ok(put("web", writesToHost))
			w.ok(w.fails("web", "STORAGE_FULL", true))
		}, false},
		{"a workload that writes to a folder of its host leaves the node if it has a limit of moves", func(w *world) {
			w.ok(put("web", writesToHost, reschedules(1, 60*minute)))
			w.ok(w.fails("web", "STORAGE_FULL", true))
		}, true},
		{"a workload that was given up stays", func(w *world) {
			w.ok(w.fails("web", "STORAGE_FULL", true))
			w.ok(w.retry("web", 5, 0, true))
		}, false},
		{"an exclusive workload stays", func(w *world) {
			w.ok(put("web", demand(func(d *commandv1.Demand) { d.Exclusive = true })))
			w.ok(w.fails("web", "STORAGE_FULL", true))
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := formed(t, "a", "b")
			w.place("web", "a")
			c.then(w)
			w.do(w.evict("web", CodeFailedOnNode, false))
			if left := w.workload("web").Node == ""; left != c.want {
				t.Errorf("the workload left its node: %t, want %t", left, c.want)
			}
		})
	}
}

func TestAMemberOfASystemWorkloadKeepsItsNode(t *testing.T) {
	w := formed(t, "a")
	w.ok(put("log", systemPut))
	w.ok(placeMembers(w.member("log", "a")))
	w.bind("log-a", "a")
	w.ok(w.fails("log-a", "STORAGE_FULL", true))
	w.do(w.evict("log-a", CodeFailedOnNode, false))
	if x := w.workload("log-a"); x.Node != "a" {
		t.Errorf("the member of the system workload must keep its node, but its record says that it left: %+v", x.FailedOn)
	}
}
