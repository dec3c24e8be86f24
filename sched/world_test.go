package sched

import (
	"fmt"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// world runs a real state machine, which applies the planner's commands, and agents that carry out every
// order.
type world struct {
	t       failer
	state   fsm.State
	index   uint64
	now     int64
	tuning  Tuning
	cache   *Cache
	changes []fsm.Change
	heard   map[string]bool       // nodes that are alive: they have a valid lease
	sent    map[Order]bool        // orders that the agents have not answered yet
	reports map[string]MoveReport // reports about moves of volumes, by node/workload
	silent  map[string]int64      // nodes that send no heartbeats now, with the times of their last ones

	downSince map[string]int64 // for each lost node, when this leader learned that the node is down
	fails     map[string]string
	ailing    map[string]string // nodes that can run no workload, with the code that they report
	shift     int64             // added to the ends of leases; with 1, settle can distinguish the end of a lease from a deadline of the planner
}

const testStart = int64(1_700_000_000) * second

// failer is the common part of a test, a benchmark and one run of a property test.
type failer interface {
	Helper()
	Fatalf(string, ...any)
}

func newWorld(t failer) *world {
	w := &world{
		t: t, state: fsm.New(), now: testStart, tuning: DefaultTuning(), cache: NewCache(),
		heard: map[string]bool{}, sent: map[Order]bool{}, fails: map[string]string{}, ailing: map[string]string{},
	}
	w.do(&commandv1.Command{Body: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{ClusterId: "c1", Incarnation: 1}}})
	return w
}

// do applies a command. A refused command fails the test.
func (w *world) do(c *commandv1.Command) fsm.Result {
	w.t.Helper()
	r := w.try(c)
	if err := r.Err(); err != nil {
		w.t.Fatalf("command %T was refused: %v", c.GetBody(), err)
	}
	return r
}

func (w *world) try(c *commandv1.Command) fsm.Result {
	w.index++
	if c.Head == nil {
		c.Head = &commandv1.Head{At: w.now, By: "test", Epoch: &commandv1.Epoch{Incarnation: 1, Term: 1}}
	}
	s, r, ch := w.state.Apply(fsm.Meta{Index: w.index, Term: 1}, c)
	w.state = s
	w.changes = append(w.changes, ch...)
	return r
}

func (w *world) node(id string, set ...func(*commandv1.RegisterNode)) {
	w.t.Helper()
	n := &commandv1.RegisterNode{
		Id: id, Endpoint: "10.0.0.1:50051", CpuMillicores: 4000, MemoryMib: 8192, Protocol: 1, InstanceId: id,
		Types: []string{"container", "compose"}, Pools: []*commandv1.Pool{{Name: "fast", Type: "local", TotalGb: 100}},
	}
	for _, f := range set {
		f(n)
	}
	w.heard[id] = true
	w.do(&commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: n}})
}

func (w *world) apply(id string, set ...func(*commandv1.WorkloadPut)) {
	w.t.Helper()
	p := put(id, set...)
	w.do(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: []*commandv1.WorkloadPut{p}}}})
}

func put(id string, set ...func(*commandv1.WorkloadPut)) *commandv1.WorkloadPut {
	p := &commandv1.WorkloadPut{
		Id: id, Spec: []byte("spec"), Desired: "Running",
		Demand: &commandv1.Demand{Type: "container", CpuMillicores: 500, MemoryMib: 256},
	}
	for _, f := range set {
		f(p)
	}
	p.Content = fmt.Sprintf("c1:%064x", hash(7, p.GetDemand().String(), string(p.GetSpec())))
	return p
}

func demand(f func(*commandv1.Demand)) func(*commandv1.WorkloadPut) {
	return func(p *commandv1.WorkloadPut) { f(p.Demand) }
}

func (w *world) drain(id string, on bool) {
	w.do(&commandv1.Command{Body: &commandv1.Command_DrainNode{DrainNode: &commandv1.DrainNode{Id: id, On: on}}})
}

func (w *world) cordon(id string, on bool) {
	w.do(&commandv1.Command{Body: &commandv1.Command_CordonNode{CordonNode: &commandv1.CordonNode{Id: id, On: on}}})
}

func (w *world) get(id string) *fsm.Workload {
	w.t.Helper()
	x, ok := w.state.Workload(id)
	if !ok {
		w.t.Fatalf("the state has no workload %s", id)
	}
	return x
}

// The methods below implement Liveness.

func (w *world) Expired(now int64, fn func(NodeID, int64) bool) {
	w.state.Nodes("", func(n *fsm.Node) bool { return !n.Up || w.heard[n.ID] || fn(n.ID, 1) })
}

func (w *world) NextExpiry() int64 { return w.now + 10*second + w.shift }

func (w *world) Returned(now int64, fn func(NodeID, int64) bool) {
	w.state.Nodes("", func(n *fsm.Node) bool { return n.Up || !w.heard[n.ID] || fn(n.ID, 2) })
}

func (w *world) DownSince(id NodeID) int64 { return w.downSince[id] }

func (w *world) Outstanding(o Order) bool { return w.sent[o] }

func (w *world) MoveReport(node, workload string) (MoveReport, bool) {
	r, ok := w.reports[node+"/"+workload]
	return r, ok
}

func (w *world) Heard(node string) int64 {
	if at, ok := w.silent[node]; ok {
		return at
	}
	return w.now
}

// plan plans one step with the cache.
func (w *world) plan() Step {
	s := Next(World{
		State: w.state, Changes: w.changes, Live: w, Now: w.now, Epoch: fsm.Epoch{Incarnation: 1, Term: 1}, Tuning: w.tuning,
	}, w.cache)
	w.changes = nil
	return s
}

func (w *world) plain() Step {
	return Next(World{State: w.state, Live: w, Now: w.now, Epoch: fsm.Epoch{Incarnation: 1, Term: 1}, Tuning: w.tuning}, nil)
}

// step runs one planning step and applies its commands. It reports whether the step had any command
// or order.
func (w *world) step() bool {
	w.t.Helper()
	s := w.plan()
	for _, c := range s.Commands {
		r := w.try(c)
		if err := r.Err(); err != nil {
			w.t.Fatalf("the planner's %T was refused: %v", c.GetBody(), err)
		}
		if r.Skipped > 0 {
			w.t.Fatalf("every item of the planner's command %T must be applied, but %d were skipped: %s", c.GetBody(), r.Skipped, r.Reason)
		}
	}
	for _, o := range s.Orders {
		w.sent[o] = true
	}
	return len(s.Commands)+len(s.Orders) > 0
}

// answer makes the agents carry out every order that the planner has given.
func (w *world) answer() {
	w.t.Helper()
	var reports []*commandv1.WorkloadReport
	for _, o := range sortedOrders(w.sent) {
		delete(w.sent, o)
		if n, ok := w.state.Node(o.Node); !ok || !n.Up || !w.heard[o.Node] {
			continue
		}
		r := &commandv1.WorkloadReport{Workload: o.Workload, Node: o.Node, Generation: fsm.GenerationPB(o.Generation), ObservedAt: w.now}
		if o.Op == OpDelete {
			r.Gone = true
		} else {
			r.Acknowledged, r.State = true, "Running"
			if x, ok := w.state.Workload(o.Workload); ok && x.Desired == fsm.DesiredStopped {
				r.State = "Stopped"
			}
			if code := w.fails[o.Workload]; code != "" {
				r.State, r.Code, r.Message, r.Retryable = "Failed", code, "it broke", true
			}
			if code := w.ailing[o.Node]; code != "" && r.State != "Stopped" {
				cannotRun(r, code)
			}
		}
		reports = append(reports, r)
	}
	if len(reports) > 0 {
		w.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: reports}}})
	}
}

// say applies a report by the node of workload id: the workload, at its present generation, is in
// the given state.
func (w *world) say(id, state string) {
	w.t.Helper()
	x := w.get(id)
	w.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: []*commandv1.WorkloadReport{
		{Workload: id, Node: x.Node, State: state, Generation: fsm.GenerationPB(x.Generation), ObservedAt: w.now}}}}})
}

func sortedOrders(m map[Order]bool) []Order {
	var out []Order
	for o := range m {
		out = append(out, o)
	}
	sortOrders(out)
	return out
}

// settle runs steps until the planner proposes nothing, and fails after too many steps. If the planner has
// requested its next step for a later time, the clock of the test moves towards it, by at most a minute per
// step.
func (w *world) settle() {
	w.t.Helper()
	for i := range 400 {
		if w.step() {
			w.answer()
			continue
		}
		at := w.cacheWake()
		if at == 0 || at > w.now+60*second || i > 300 {
			return
		}
		w.now = at
	}
	w.t.Fatalf("the world must settle within 400 steps, but the last step is %+v", w.plain())
}

// cacheWake returns the earliest deadline in the cache, ignoring the ends of leases.
func (w *world) cacheWake() int64 {
	s := w.plan()
	if s.WakeAt == w.NextExpiry() {
		return 0
	}
	return s.WakeAt
}
