package sched

import (
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/policy"
)

// broken makes a simulated node fail to run every workload, with a failure code whose cause is the
// node, such as a full disk; with code "" the node works again.
func (w *world) broken(node, code string) {
	w.ailing[node] = code
	w.state.WorkloadsOn(node, func(x *fsm.Workload) bool {
		if x.Acknowledged && x.Desired == fsm.DesiredRunning {
			r := &commandv1.WorkloadReport{Workload: x.ID, Node: node, State: "Running", Generation: fsm.GenerationPB(x.Generation), ObservedAt: w.now}
			if code != "" {
				cannotRun(r, code)
			}
			w.report(r)
		}
		return true
	})
}

// cannotRun makes a report say that the node cannot run the workload, as an agent does after a few attempts.
func cannotRun(r *commandv1.WorkloadReport, code string) {
	r.State, r.Code, r.Message, r.Retryable, r.TryElsewhere = "Pending", code, "it does not work here", true, true
}

// at checks that workload id is assigned to node. The workload need not run.
func (w *world) at(t *testing.T, id, node string) {
	t.Helper()
	if x := w.get(id); x.Node != node {
		t.Fatalf("workload %q is on node %q with reason %+v, want node %q", id, x.Node, x.Reason, node)
	}
}

func moves(attempts int32, within int64) func(*commandv1.WorkloadPut) {
	return demand(func(d *commandv1.Demand) { d.Reschedule = &commandv1.Reschedule{Attempts: attempts, Interval: within} })
}

func writesToHost(p *commandv1.WorkloadPut) {
	p.Demand.Asks = []*commandv1.Ask{{Rule: policy.RuleHostPath, Value: "/srv/web", Field: "volumes"}}
}

func (w *world) pass(d int64) {
	w.t.Helper()
	for end := w.now + d; w.now < end; {
		if !w.step() {
			w.now += second
		}
		w.answer()
	}
}

// TestWorkloadsLeaveNodesThatCannotRunThem: a workload that its node cannot run moves to another node, or stays for a reason. In each
// case, web is on node a, and node b has room for it.
func TestWorkloadsLeaveNodesThatCannotRunThem(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(*commandv1.WorkloadPut)
		run  func(t *testing.T, w *world)
	}{
		{"a workload leaves a node that cannot run it", nil, func(t *testing.T, w *world) {
			w.broken("a", "STORAGE_FULL")
			w.settle()
			w.on(t, "web", "b")
			x := w.get("web")
			if len(x.FailedOn) != 1 || x.FailedOn[0].Node != "a" || x.FailedOn[0].Code != "STORAGE_FULL" {
				t.Errorf("the record of web remembers the nodes %+v, want node a with its failure", x.FailedOn)
			}
			e := Explain(w.state, x, w.tuning)
			if !strings.Contains(e.Moves, "it left node a at 2023-11-14 22:13 UTC (STORAGE_FULL: it does not work here)") {
				t.Errorf("persysctl why says %q about the moves of web, want the node that it left", e.Moves)
			}
		}},
		{"a failure before the agent has tried often enough moves nothing", nil, func(t *testing.T, w *world) {
			w.report(&commandv1.WorkloadReport{Workload: "web", Node: "a", State: "Pending", Code: "STORAGE_FULL"})
			w.pass(3600 * second)
			w.at(t, "web", "a")
		}},
		{"a failure whose cause is the program itself moves nothing", nil, func(t *testing.T, w *world) {
			w.fails["web"] = "RUNTIME_ERROR"
			w.say("web", "Failed")
			w.pass(3600 * second)
			w.at(t, "web", "a")
		}},
		{"work on the order, such as a slow pull, moves nothing", nil, func(t *testing.T, w *world) {
			w.report(&commandv1.WorkloadReport{Workload: "web", Node: "a", State: "Pending", Code: fsm.CodeWorking, Message: "pulling"})
			w.pass(3600 * second)
			w.at(t, "web", "a")
		}},
		{"a workload that no other node can take stays, until one can", nil, func(t *testing.T, w *world) {
			w.cordon("b", true)
			w.broken("a", "STORAGE_FULL")
			generation := w.get("web").Generation
			w.pass(600 * second)
			x := w.get("web")
			if w.at(t, "web", "a"); x.Generation != generation || x.Reason.Code != "STORAGE_FULL" {
				t.Fatalf("web has generation %v and reason %+v, want the same generation as before and the reason that the agent reports", x.Generation, x.Reason)
			}
			if e := Explain(w.state, x, w.tuning); e.Moves != "it stays on node a and is tried there again: no other node takes it" {
				t.Errorf("persysctl why says %q about the moves of web, want that it is tried again on node a", e.Moves)
			}
			w.cordon("b", false)
			w.settle()
			w.on(t, "web", "b")
		}},
		{"a workload does not bounce between two nodes that cannot run it", nil, func(t *testing.T, w *world) {
			w.ailing["b"] = "PORT_BIND_CONFLICT"
			w.broken("a", "STORAGE_FULL")
			w.pass(1000 * second)
			w.at(t, "web", "b")
			x := w.get("web")
			if e := Explain(w.state, x, w.tuning); len(x.FailedOn) != 1 || !strings.HasSuffix(e.Moves, "no other node takes it; it left node a at 2023-11-14 22:13 UTC (STORAGE_FULL: it does not work here)") {
				t.Errorf("web left the nodes %+v, and persysctl why says %q; want one node, and that no other node takes web", x.FailedOn, e.Moves)
			}
			w.pass(2500 * second)
			if x := w.get("web"); len(x.FailedOn) != 3 {
				t.Errorf("web left the nodes %+v within an hour, want 3 nodes", x.FailedOn)
			}
			w.node("c")
			w.pass(200 * second) // the first move was more than an hour ago
			w.on(t, "web", "c")
		}},
		{"a workload returns to the node that it left longest ago, if no other one can run it", nil, func(t *testing.T, w *world) {
			w.ailing["b"] = "IMAGE_NOT_ON_NODE" // node b can never run it
			w.broken("a", "NETWORK_UNREACHABLE")
			w.settle()
			w.at(t, "web", "b")
			w.ailing["a"] = "" // node a recovers at once
			w.pass(1190 * second)
			w.at(t, "web", "b")
			w.pass(20 * second)
			w.on(t, "web", "a")
		}},
		{"a workload that writes to folders of its host stays", writesToHost, func(t *testing.T, w *world) {
			w.broken("a", "STORAGE_FULL")
			w.pass(600 * second)
			w.at(t, "web", "a")
			if e := Explain(w.state, w.get("web"), w.tuning); !strings.Contains(e.Moves, "it can write to folders of its host") {
				t.Errorf("persysctl why says %q about the moves of web, want that it can write to folders of its host", e.Moves)
			}
		}},
		{"a workload that writes to folders of its host moves if its specification says so", func(p *commandv1.WorkloadPut) {
			writesToHost(p)
			moves(1, 10*minute)(p)
		}, func(t *testing.T, w *world) {
			w.broken("a", "STORAGE_FULL")
			w.settle()
			w.on(t, "web", "b")
		}},
		{"a drain that moves a failing workload does not count as a move off a failing node", nil, func(t *testing.T, w *world) {
			w.cordon("b", true)
			w.broken("a", "STORAGE_FULL")
			w.pass(60 * second)
			w.drain("a", true)
			w.cordon("b", false)
			w.settle()
			w.on(t, "web", "b")
			if x := w.get("web"); len(x.FailedOn) != 0 {
				t.Errorf("the record of web lists the nodes %+v as left for a failure, want none, because a drain is not counted", x.FailedOn)
			}
		}},
		{"a failing workload of a lost node is placed on another one", nil, func(t *testing.T, w *world) {
			w.cordon("b", true)
			w.broken("a", "STORAGE_FULL")
			w.pass(60 * second)
			w.heard["a"] = false
			w.cordon("b", false)
			w.settle()
			w.on(t, "web", "b")
		}},
		{"nothing moves in a frozen mode", nil, func(t *testing.T, w *world) {
			w.do(&commandv1.Command{Body: &commandv1.Command_SetMode{SetMode: &commandv1.SetMode{Mode: "degraded"}}})
			w.broken("a", "STORAGE_FULL")
			w.pass(60 * second)
			w.at(t, "web", "a")
			if e := Explain(w.state, w.get("web"), w.tuning); e.Moves != "it stays on node a while the mode of the control plane is degraded" {
				t.Errorf("persysctl why says %q about the moves of web, want that it stays because of the mode", e.Moves)
			}
		}},
		{"a workload preempts on a node that it has never left rather than on one that it left", demand(func(d *commandv1.Demand) {
			d.CpuMillicores, d.Priority = 4000, 5
		}), func(t *testing.T, w *world) {
			w.broken("a", "STORAGE_FULL")
			w.settle()
			w.on(t, "web", "b")
			full := demand(func(d *commandv1.Demand) { d.CpuMillicores = 4000 })
			w.ailing["a"] = ""
			w.apply("low-a", full)
			w.node("c")
			w.apply("low-c", full)
			w.settle()
			w.drain("b", true)
			w.pass(60 * second)
			w.on(t, "web", "c")
		}},
		{"a job that its node cannot run moves to another node", func(p *commandv1.WorkloadPut) { p.Demand.Job = &commandv1.Job{} }, func(t *testing.T, w *world) {
			w.broken("a", "STORAGE_FULL")
			w.settle()
			w.on(t, "web", "b")
		}},
		{"a workload moves only as often as its limit allows", moves(2, 10*minute), func(t *testing.T, w *world) {
			for _, n := range []string{"b", "c", "d"} {
				w.node(n)
				w.ailing[n] = "STORAGE_FULL"
			}
			start := w.now
			w.broken("a", "STORAGE_FULL")
			w.pass(9 * minute)
			x := w.get("web")
			if len(x.FailedOn) != 2 {
				t.Fatalf("web left the nodes %+v, want 2 nodes, the limit of its moves", x.FailedOn)
			}
			if e := Explain(w.state, x, w.tuning); !strings.Contains(e.Moves, "it was moved 2 times within 10 min, and reschedule allows 2; it may move again after 2023-11-14 22:23 UTC") {
				t.Errorf("persysctl why says %q about the moves of web, want the limit of moves and the time of the next move", e.Moves)
			}
			w.pass(3600 * second)
			for _, f := range w.get("web").FailedOn {
				n := 0
				for _, g := range w.get("web").FailedOn {
					if g.At >= f.At && g.At < f.At+10*minute {
						n++
					}
				}
				if n > 2 {
					t.Errorf("web left %d nodes within the 10 min after second %d, want at most 2: %+v", n, (f.At-start)/second, w.get("web").FailedOn)
				}
			}
			for _, n := range []string{"a", "b", "c", "d"} {
				w.cordon(n, true)
			}
			w.node("z")
			w.pass(11 * minute)
			w.on(t, "web", "z")
		}},
		{"reschedule with attempts 0 moves nothing", moves(0, 10*minute), func(t *testing.T, w *world) {
			w.broken("a", "STORAGE_FULL")
			w.pass(600 * second)
			w.at(t, "web", "a")
			if e := Explain(w.state, w.get("web"), w.tuning); !strings.HasSuffix(e.Moves, "reschedule.attempts is 0") {
				t.Errorf("persysctl why says %q about the moves of web, want that reschedule.attempts is 0", e.Moves)
			}
		}},
		{"a workload with local data stays", demand(func(d *commandv1.Demand) { d.LocalData = []*commandv1.LocalData{{Name: "volume data"}} }), func(t *testing.T, w *world) {
			w.broken("a", "STORAGE_FULL")
			w.pass(600 * second)
			w.at(t, "web", "a")
		}},
		{"an exclusive workload stays", demand(func(d *commandv1.Demand) { d.Exclusive = true }), func(t *testing.T, w *world) {
			w.broken("a", "STORAGE_FULL")
			w.pass(600 * second)
			w.at(t, "web", "a")
		}},
		{"a workload that may run on one node only stays", demand(func(d *commandv1.Demand) {
			d.Constraints = []*commandv1.Constraint{{Key: fsm.NodeIDLabel, Op: "=", Values: []string{"a"}}}
		}), func(t *testing.T, w *world) {
			w.broken("a", "STORAGE_FULL")
			w.pass(600 * second)
			w.at(t, "web", "a")
		}},
		{"a workload that may run on two nodes only moves to the other one", demand(func(d *commandv1.Demand) {
			d.Constraints = []*commandv1.Constraint{{Key: fsm.NodeIDLabel, Op: "in", Values: []string{"a", "b"}}}
		}), func(t *testing.T, w *world) {
			w.broken("a", "STORAGE_FULL")
			w.settle()
			w.on(t, "web", "b")
		}},
		{"a drained workload avoids the node that it left", nil, func(t *testing.T, w *world) {
			w.broken("a", "STORAGE_FULL")
			w.settle()
			w.on(t, "web", "b")
			w.node("c")
			w.drain("b", true)
			w.settle()
			w.on(t, "web", "c")
			w.node("d")
			if v := verdictOn(Explain(w.state, w.get("web"), w.tuning), "a"); v.Fits || v.Filter != "earlier failure" || !strings.HasSuffix(v.Reason, "UTC (STORAGE_FULL: it does not work here), and another node fits") {
				t.Errorf("persysctl why gives node a the verdict %+v, want the earlier failure", v)
			}
			w.cordon("d", true)
			if v := verdictOn(Explain(w.state, w.get("web"), w.tuning), "a"); !v.Fits {
				t.Errorf("persysctl why gives node a the verdict %+v, want that it fits, because no other node does", v)
			}
		}},
		{"a workload returns to a node that it left if no other node fits", nil, func(t *testing.T, w *world) {
			w.broken("a", "STORAGE_FULL")
			w.settle()
			w.on(t, "web", "b")
			w.ailing["a"] = ""
			w.drain("b", true)
			w.settle()
			w.on(t, "web", "a")
		}},
		{"a retry by a person forgets the nodes that the workload left", nil, func(t *testing.T, w *world) {
			w.ailing["b"] = "STORAGE_FULL"
			w.broken("a", "STORAGE_FULL")
			w.pass(60 * second)
			w.at(t, "web", "b")
			w.do(&commandv1.Command{Body: &commandv1.Command_RetryWorkload{RetryWorkload: &commandv1.RetryWorkload{Id: "web"}}})
			w.ailing["a"] = ""
			w.pass(60 * second)
			w.on(t, "web", "a")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.node("a")
			w.apply("web", func(p *commandv1.WorkloadPut) {
				if c.set != nil {
					c.set(p)
				}
			})
			w.settle()
			w.node("b")
			w.on(t, "web", "a")
			c.run(t, w)
		})
	}
}

func verdictOn(e Explanation, node NodeID) Verdict {
	for _, v := range e.Nodes {
		if v.Node == node {
			return v
		}
	}
	return Verdict{}
}

// TestOnlyAsManyFailingWorkloadsMoveAsFit: two workloads fail on their node, and another node has room for
// one of them: exactly one of the two moves.
func TestOnlyAsManyFailingWorkloadsMoveAsFit(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	big := demand(func(d *commandv1.Demand) { d.CpuMillicores = 2000 })
	w.apply("one", big)
	w.apply("two", big)
	w.settle()
	w.node("b", func(n *commandv1.RegisterNode) { n.CpuMillicores = 2000 })
	w.broken("a", "STORAGE_FULL")
	w.settle()
	if one, two := w.get("one"), w.get("two"); one.Node+two.Node != "ab" && one.Node+two.Node != "ba" {
		t.Errorf("workload one is on node %q and workload two on node %q, want one of the two on node \"b\" and the other on node \"a\"", one.Node, two.Node)
	}
}

// TestPortOfAWorkloadThatItsNodeCannotRun: a new order moves web from port 80 to port 443, and node a cannot
// carry it out. So web may hold port 80 for ever. Workload api, which demands port 80 now, does not wait for
// web: it moves to node b.
func TestPortOfAWorkloadThatItsNodeCannotRun(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	port := func(p uint32, exclusive bool) func(*commandv1.WorkloadPut) {
		return demand(func(d *commandv1.Demand) {
			d.Exclusive, d.HostPorts = exclusive, []*commandv1.Port{{Port: p, Protocol: "tcp"}}
		})
	}
	w.apply("web", port(80, true))
	w.apply("api")
	w.settle()
	w.ailing["a"] = "STORAGE_FULL"
	w.apply("web", port(443, true))
	w.settle()
	w.apply("api", port(80, false))
	w.settle()
	w.node("b")
	w.settle()
	w.at(t, "web", "a")
	w.on(t, "api", "b")
}

// TestWaitingFailuresCostNothing: workloads fail on their node, and no other node has room for them. The planner
// must evaluate them again only after a node has changed.
func TestWaitingFailuresCostNothing(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	for _, id := range []string{"x", "y", "z"} {
		w.apply(id)
	}
	w.settle()
	w.broken("a", "STORAGE_FULL")
	w.pass(10 * second)
	if n := len(w.cache.workloads.ids); n != 0 || len(w.cache.stuck.ids) != 3 {
		t.Errorf("%d workloads are evaluated in each step, and %d wait for a change of a node; want 0 and 3", n, len(w.cache.stuck.ids))
	}
	w.node("b")
	w.settle()
	w.on(t, "x", "b")
}
