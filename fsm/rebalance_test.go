package fsm

import (
	"bytes"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/policy"
)

// move returns the move of a workload between nodes, as the planner would propose it now.
func (w *world) move(id, from, to string, opts ...func(*commandv1.WorkloadMove)) *commandv1.WorkloadMove {
	w.t.Helper()
	a, b := w.s.Alloc(from), w.s.Alloc(to)
	m := &commandv1.WorkloadMove{
		Workload: id, From: from, To: to, Gain: 123_456, Reason: "load 50.0 % here, 0.0 % there",
		FromReserved: a.Reserved().PB(), ToReserved: b.Reserved().PB(),
	}
	if n, ok := w.s.Node(to); ok {
		m.ToKeys = n.KeysHash()
	}
	if x, ok := w.s.Workload(id); ok {
		m.IfGeneration = GenerationPB(x.Generation)
	}
	for _, o := range opts {
		o(m)
	}
	return m
}

func moves(list ...*commandv1.WorkloadMove) Command {
	return &commandv1.Command{Body: &commandv1.Command_MoveWorkloads{MoveWorkloads: &commandv1.MoveWorkloads{Moves: list}}}
}

// running stores a workload, assigns it to a node, and reports that it runs there.
func (w *world) running(id, node string, opts ...func(*commandv1.WorkloadPut)) {
	w.t.Helper()
	w.place(id, node, opts...)
	w.run(id)
}

func inGroup(group string) func(*commandv1.WorkloadPut) {
	return demand(func(d *commandv1.Demand) { d.Group = group })
}

// TestMoveWorkloads: a workload that moves leaves its node, which still has to stop it, and the record and an event
// tell why.
func TestMoveWorkloads(t *testing.T) {
	w := formed(t, "a", "b")
	w.running("web", "a")
	before := w.workload("web")
	res := w.ok(moves(w.move("web", "a", "b")))
	x := w.workload("web")
	is(t, "number of items in the result", len(res.Items), 1)
	is(t, "verdict in item 0 of the result", res.Items[0].Kind, OK)
	is(t, `node of workload "web"`, x.Node, "")
	is(t, "former node in the record of the workload", x.PreviousNode, "a")
	is(t, "the move gives the workload a newer generation", before.Generation.Less(x.Generation), true)
	is(t, `reason code of workload "web"`, x.Reason.Code, CodeRebalanced)
	is(t, `message of the reason of workload "web"`, x.Reason.Message, "moves to node b to even out the load: load 50.0 % here, 0.0 % there")
	is(t, "recorded move of the workload", *x.Moved, Moved{At: w.now, From: "a", To: "b", Gain: 123_456})
	is(t, "events of the last command", strings.Join(w.events(), " "), EventWorkloadEvicted)
	e := w.eventOf(EventWorkloadEvicted)
	is(t, "node of the event", e.Node, "a")
	is(t, "reason of the event", e.Reason, CodeRebalanced)
	is(t, `detail "to" of the event`, detail(e, "to"), "b")
	is(t, `detail "gain_percent" of the event`, detail(e, "gain_percent"), "12.3")
	_, left := w.s.Residual("a", "web")
	is(t, "node a has a residual of the workload", left, true)
	w.ok(gone("web", "a", nil))
	w.bind("web", "b")
	is(t, "target in the recorded move", w.workload("web").Moved.To, "b")
}

// TestMovesAreJudgedAgain: a planned move that the present state no longer permits is skipped with
// a reason, and changes nothing.
func TestMovesAreJudgedAgain(t *testing.T) {
	tests := []struct {
		name  string
		setup func(w *world)                  // before the move is proposed; without it, web runs on a
		then  func(w *world)                  // between the proposal and its commit
		set   func(m *commandv1.WorkloadMove) // changes the proposal
		put   []func(*commandv1.WorkloadPut)  // of web
		why   string
	}{
		{name: "the workload is gone", then: func(w *world) { w.ok(remove("web", true)) }, why: `workload "web" does not exist`},
		{name: "the workload changed", then: func(w *world) { w.ok(put("web", content("c1:other"))) }, why: "planned for"},
		{name: "the workload is on another node", set: func(m *commandv1.WorkloadMove) { m.From, m.FromReserved = "b", m.ToReserved }, why: `is on node "a", not on "b"`},
		{name: "the workload is on the target node already", set: func(m *commandv1.WorkloadMove) { m.To = "a" }, why: "is on node a already"},
		{name: "the workload is exclusive", put: []func(*commandv1.WorkloadPut){exclusive}, why: "the workload is exclusive"},
		{name: "the workload has local data", put: []func(*commandv1.WorkloadPut){demand(func(d *commandv1.Demand) { d.LocalData = []*commandv1.LocalData{{Name: "volume data"}} })}, why: "the workload has local data on its node"},
		{name: "the workload writes to folders of its host", put: []func(*commandv1.WorkloadPut){demand(func(d *commandv1.Demand) {
			d.Asks = []*commandv1.Ask{{Rule: string(policy.RuleHostPath), Value: "/data"}}
		})}, why: "the workload can write to folders of its host"},
		{name: "the workload is a job", put: []func(*commandv1.WorkloadPut){demand(func(d *commandv1.Demand) { d.Job = &commandv1.Job{} })}, why: "the workload is a job"},
		{name: "the workload does not run yet", setup: func(w *world) { w.place("web", "a") }, why: "is not available"},
		{name: "the workload does not run any more", then: func(w *world) { w.ok(w.says("web", "Failed")) }, why: "is not available"},
		{name: "the node of the workload is draining", then: func(w *world) { w.ok(drain("a", true)) }, why: "the workload's node is not ready, is draining or is cordoned"},
		{name: "the node of the workload is lost", then: func(w *world) { w.ok(nodeState("a", false)) }, why: "the workload's node is not ready, is draining or is cordoned"},
		{name: "the target node is cordoned", then: func(w *world) { w.ok(cordon("b", true)) }, why: `node "b" is not schedulable`},
		{name: "the target node is lost", then: func(w *world) { w.ok(nodeState("b", false)) }, why: `node "b" is not schedulable`},
		{name: "the target node is removed", then: func(w *world) { w.ok(removeNode("b", true)) }, why: `node "b" does not exist`},
		{name: "another workload was placed on the target node", then: func(w *world) { w.place("new", "b") }, why: `the amounts that are reserved on node "b" have changed`},
		{name: "a workload was deleted on the node that the workload leaves", setup: func(w *world) { w.running("web", "a"); w.running("old", "a") },
			then: func(w *world) { w.ok(remove("old", true)) }, why: `the amounts that are reserved on node "a" have changed`},
		{name: "another workload on the node has a smaller demand now", setup: func(w *world) { w.running("web", "a"); w.running("old", "a") },
			then: func(w *world) { w.ok(put("old", demand(func(d *commandv1.Demand) { d.MemoryMib = 16 }))) }, why: `the amounts that are reserved on node "a" have changed`},
		{name: "the target node has too little free CPU", setup: func(w *world) {
			w.running("web", "a")
			w.running("large", "b", demand(func(d *commandv1.Demand) { d.CpuMillicores = 3500 }))
		}, why: `node "b" has no 1000 millicores left`},
		{name: "the target node has a new taint", then: func(w *world) {
			w.ok(&commandv1.Command{Body: &commandv1.Command_TaintNode{TaintNode: &commandv1.TaintNode{Id: "b", Taints: []*commandv1.NodeTaint{
				{Taint: &commandv1.Taint{Key: "dedicated", Effect: "NoSchedule"}}}}}})
		}, why: `the labels or taints of node "b" have changed`},
		{name: "the target node has a new label", then: func(w *world) {
			w.ok(&commandv1.Command{Body: &commandv1.Command_LabelNode{LabelNode: &commandv1.LabelNode{Id: "b", Labels: []*commandv1.NodeLabel{
				{Key: "zone", Value: "far"}}}}})
		}, why: `the labels or taints of node "b" have changed`},
		{name: "the target node no longer runs the workload type", then: func(w *world) { w.ok(register("b", func(n *commandv1.RegisterNode) { n.Types = []string{"vm"} })) },
			why: `node "b" does not run type container`},
		{name: "another workload has the host port on the target node", put: []func(*commandv1.WorkloadPut){hostPort(80)}, setup: func(w *world) {
			w.running("web", "a", hostPort(80))
			w.running("other", "b", hostPort(80))
		}, why: `port 80/tcp of node "b" is held by workload "other"`},
		{name: "another member of its group is not available", setup: func(w *world) {
			w.running("web", "a", inGroup("g"))
			w.place("web2", "a", inGroup("g"))
		}, why: "another member of the workload's group is not available"},
		{name: "the workload was moved within the last hour", setup: func(w *world) {
			w.running("web", "b")
			w.ok(moves(w.move("web", "b", "a")))
			w.ok(gone("web", "b", nil))
			w.bind("web", "a")
			w.run("web")
			w.now += BalanceQuiet - 10*second
		}, why: "the workload was moved within the last hour to even out the load"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := formed(t, "a", "b")
			if tt.setup != nil {
				tt.setup(w)
			} else {
				w.running("web", "a", tt.put...)
			}
			m := w.move("web", "a", "b")
			if tt.set != nil {
				tt.set(m)
			}
			if tt.then != nil {
				tt.then(w)
			}
			before, _ := w.s.Workload("web")
			res := w.do(moves(m))
			after, _ := w.s.Workload("web")
			is(t, "verdict on the command", res.Kind, OK)
			is(t, "number of skipped items of the command", res.Skipped, 1)
			is(t, "verdict on the move", res.Items[0].Kind, Conflict)
			is(t, "workload of the move", res.Items[0].ID, "web")
			if !strings.Contains(res.Items[0].Reason, tt.why) {
				t.Errorf("the move was skipped with reason %q, want %q", res.Items[0].Reason, tt.why)
			}
			is(t, "record of the workload after the dropped move", after, before)
		})
	}
}

// TestAMoveIsQuietForAnHour: a workload that was moved to even out the load may be moved for that
// purpose again only after an hour.
func TestAMoveIsQuietForAnHour(t *testing.T) {
	w := formed(t, "a", "b")
	w.running("web", "a")
	w.ok(moves(w.move("web", "a", "b")))
	w.ok(gone("web", "a", nil))
	w.bind("web", "b")
	w.run("web")
	w.now = w.workload("web").Moved.At + BalanceQuiet - 2*second
	is(t, "number of skipped moves just before an hour has passed", w.do(moves(w.move("web", "b", "a"))).Skipped, 1)
	w.ok(moves(w.move("web", "b", "a")))
}

// TestMovesOfOneCommandSeeEachOther: a move is refused if the earlier moves of the same command leave too few
// free resources, take a host port of its workload, or make a member of its group unavailable.
func TestMovesOfOneCommandSeeEachOther(t *testing.T) {
	tests := []struct {
		name   string
		of, to []func(*commandv1.WorkloadPut) // options of the two workloads that move
		why    string
	}{
		{"both fit", nil, nil, ""},
		{"a move is dropped if the first move leaves too little CPU", []func(*commandv1.WorkloadPut){demand(func(d *commandv1.Demand) { d.CpuMillicores = 2100 })},
			[]func(*commandv1.WorkloadPut){demand(func(d *commandv1.Demand) { d.CpuMillicores = 1900 })}, `earlier moves to node "b" leave too few free resources for workload "two"`},
		{"a move is dropped if the first move takes its host port", []func(*commandv1.WorkloadPut){portOf2("127.0.0.1")}, []func(*commandv1.WorkloadPut){portOf2("")}, "takes a host port"},
		{"a move is dropped if the first move moves a member of the same group", []func(*commandv1.WorkloadPut){inGroup("g")}, []func(*commandv1.WorkloadPut){inGroup("g")}, "another member of the workload's group is not available"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := formed(t, "a", "c", "b")
			w.running("one", "a", tt.of...)
			w.running("two", "c", tt.to...)
			if strings.Contains(tt.why, "too few free resources") {
				w.running("small", "b", demand(func(d *commandv1.Demand) { d.CpuMillicores = 100 }))
			}
			res := w.do(moves(w.move("one", "a", "b"), w.move("two", "c", "b")))
			is(t, "verdict in item 0 of the result", res.Items[0].Kind, OK)
			if got := res.Items[1].Reason; got != tt.why && (tt.why == "" || !strings.Contains(got, tt.why)) {
				t.Errorf("the second move was skipped with reason %q, want %q", got, tt.why)
			}
		})
	}
}

func portOf2(address string) func(*commandv1.WorkloadPut) { return portOf(80, address) }

// TestInvalidMoves: a command with an invalid field is refused as a whole.
func TestInvalidMoves(t *testing.T) {
	w := formed(t, "a", "b")
	w.running("web", "a")
	is(t, "verdict on a command without moves", w.do(moves()).Kind, AlreadyDone)
	many := make([]*commandv1.WorkloadMove, MaxBalanceMoves+1)
	for i := range many {
		many[i] = w.move("web", "a", "b")
	}
	refused(t, w.do(moves(many...)), Invalid, "moves: has 251 entries")
	refused(t, w.do(moves(w.move("web", "a", "b", func(m *commandv1.WorkloadMove) { m.To = "b/c" }))), Invalid, "moves[0].to")
	refused(t, w.do(moves(w.move("web", "a", "b", func(m *commandv1.WorkloadMove) { m.Gain = 0 }))), Invalid, "moves[0].gain: 0 is not above 0")
	refused(t, w.do(moves(w.move("web", "a", "b", func(m *commandv1.WorkloadMove) { m.Reason = strings.Repeat("x", 513) }))), Invalid, "moves[0].reason: has 513 bytes")
	refused(t, w.do(confined(moves(w.move("web", "a", "b")), "shop")), Denied)
	w.ok(setMode("degraded", "etcd is away"))
	refused(t, w.do(moves(w.move("web", "a", "b"))), Frozen)
}

func setBalance(perHour, atOnce, minGain uint32) Command {
	return &commandv1.Command{Body: &commandv1.Command_SetRebalancePolicy{SetRebalancePolicy: &commandv1.SetRebalancePolicy{
		Policy: &commandv1.RebalancePolicy{PerHour: perHour, AtOnce: atOnce, MinGainPercent: minGain},
	}}}
}

// TestRebalancePolicy: the policy of moves by the leader is part of the state, also after a snapshot and a restore from a
// backup, and its ranges are checked.
func TestRebalancePolicy(t *testing.T) {
	w := formed(t, "a")
	is(t, "Rebalance in the state", w.s.Info().Rebalance, RebalancePolicy{})
	is(t, "verdict on a policy without moves, which is the default", w.do(setBalance(0, 0, 0)).Kind, AlreadyDone)
	w.ok(setBalance(20, 2, 15))
	want := RebalancePolicy{PerHour: 20, AtOnce: 2, MinGainPercent: 15}
	is(t, "Rebalance in the state", w.s.Info().Rebalance, want)
	is(t, "message of the event RebalancePolicy", w.eventOf(EventRebalancePolicy).Message, "the leader may move 20 workloads an hour by itself, 2 at once, for a gain of at least 15 % of a node")
	is(t, "verdict on the repeated command", w.do(setBalance(20, 2, 15)).Kind, AlreadyDone)
	refused(t, w.do(setBalance(10_001, 2, 15)), Invalid, "per_hour: 10001 is not in 0..10000")
	refused(t, w.do(setBalance(20, 0, 15)), Invalid, "at_once: 0 is not in 1..250")
	refused(t, w.do(setBalance(20, 251, 15)), Invalid, "at_once: 251 is not in 1..250")
	refused(t, w.do(setBalance(20, 2, 101)), Invalid, "min_gain_percent: 101 is not in 1..100")
	refused(t, w.do(setBalance(0, 2, 0)), Invalid, "per_hour: must not be 0")
	is(t, "Rebalance in the state", w.s.Info().Rebalance, want)
	again, err := ReadSnapshot(bytes.NewReader(snapshotBytes(t, w.s)))
	if err != nil {
		t.Fatal(err)
	}
	is(t, "policy of moves after a snapshot", again.Info().Rebalance, want)
	w.ok(setMode("degraded", "because"))
	refused(t, w.do(setBalance(0, 0, 0)), Frozen, "degraded")
	w.ok(setMode("normal", ""))
	w.ok(setBalance(0, 0, 0))
	is(t, "Rebalance in the state", w.s.Info().Rebalance, RebalancePolicy{})
}

func rebalancePolicyScenario(w *world) {
	w.do(setBalance(20, 2, 15))
	w.do(setBalance(20, 2, 15))
	w.do(setBalance(20, 0, 15))
	w.do(setBalance(0, 0, 0))
}

func rebalanceScenario(w *world) {
	w.do(register("a"))
	w.do(register("b"))
	for _, id := range []string{"one", "two"} {
		w.do(put(id))
		w.do(w.assign(id, "a"))
		w.do(w.says(id, "Running"))
	}
	w.do(moves(w.move("one", "a", "b"), w.move("one", "a", "b"), w.move("none", "a", "b")))
	w.do(moves(w.move("one", "a", "b")))
	w.do(gone("one", "a", nil))
	w.do(w.assign("one", "b"))
	w.do(w.says("one", "Running"))
	w.do(moves(w.move("one", "b", "a")))
	w.now += BalanceQuiet
	stale := w.move("two", "a", "b")
	stale.ToReserved.MemoryMib--
	w.do(moves(stale))
	w.do(moves(w.move("one", "b", "a")))
	w.do(moves())
}

// TestAMoveAfterADroppedOne: after a dropped move, later moves from or to the same nodes are dropped too,
// because their gains were computed as if the dropped move had been carried out. Moves between other nodes
// are carried out.
func TestAMoveAfterADroppedOne(t *testing.T) {
	w := formed(t, "a", "b", "c", "d")
	for _, p := range [][2]string{{"one", "a"}, {"two", "a"}, {"three", "c"}} {
		w.running(p[0], p[1])
	}
	first := w.move("one", "a", "b", func(m *commandv1.WorkloadMove) { m.IfGeneration.Sequence++ })
	res := w.do(moves(first, w.move("two", "a", "d"), w.move("three", "c", "b")))
	is(t, "number of skipped items of the command", res.Skipped, 3)
	is(t, `the reason of item 1 says that an earlier move from or to node "a" was dropped`, strings.Contains(res.Items[1].Reason, `an earlier move from or to node "a" was dropped`), true)
	res = w.do(moves(first, w.move("three", "c", "d")))
	is(t, "verdict on a move between other nodes", res.Items[1].Kind, OK)
}
