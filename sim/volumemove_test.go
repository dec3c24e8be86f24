package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/volume"
	agentv1 "github.com/persys/compute/api/agent/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/order"
	"github.com/persys/compute/order/wire"
	"github.com/persys/compute/sched"
)

// moveWorld has the real state machine, the real planner and the real records of volumes of two nodes, with folders on
// disk. Only the engines, the network and the time are simulated. Workload db adds one to the number in its volume's file
// in each round in which it runs.
//
// db writes the number to two files, and a copy takes one round for each file, so that there are incomplete copies.
//
// Two promises are checked after each round: there are never two running instances, and some disk has a complete copy with the
// newest number that db has written. A third is checked at each start of db: it finds the newest number in both files.
type moveWorld struct {
	t           *testing.T
	state       fsm.State
	cache       *sched.Cache
	changes     []fsm.Change
	index       uint64
	term        uint64
	now         int64
	nodes       map[string]*moveNode
	sent        map[sched.Order]bool
	newest      int
	givenUp     bool                  // a user has given up what was written since the switch, until db starts again
	given       [][2]order.Generation // copies and undone moves of all orders to start db
	rebuildIn   int                   // rounds until the schedulers are replaced by new ones
	rebuilt     bool                  // the schedulers were replaced by new ones
	notes       []string
	saved       fsm.State
	incarnation uint64
}

// moveNode is one node: its disk survives a kill of its agent.
type moveNode struct {
	id       string
	dir      string
	volumes  map[string]volume.Volume
	attached map[string]volume.Attachment
	storage  *volume.Manager
	up       bool
	runs     bool
	wants    string // desired state of the stored order; "" = none
	seen     order.Generation
	report   sched.MoveReport
	move     order.Generation // the move and the phase of the present pass
	phase    fsm.MovePhase
	copied   int   // files of the present pass that are copied
	heard    int64 // time of the last heartbeat
	began    int64 // time of the last start of db
}

// numbers are the names of the files of db.
var numbers = [...]string{"n", "m"}

func (n *moveNode) PutVolume(v volume.Volume) error         { n.volumes[v.ID] = v; return nil }
func (n *moveNode) DropVolume(id string) error              { delete(n.volumes, id); return nil }
func (n *moveNode) PutAttachment(a volume.Attachment) error { n.attached[a.ID] = a; return nil }
func (n *moveNode) DropAttachment(id string) error          { delete(n.attached, id); return nil }

// restart starts the agent of the node again: it has only what is on its disk.
func (n *moveNode) restart(t *testing.T) {
	var have volume.Records
	for _, v := range n.volumes {
		have.Volumes = append(have.Volumes, v)
	}
	for _, a := range n.attached {
		have.Attachments = append(have.Attachments, a)
	}
	m, err := volume.New(volume.Config{Pools: []volume.PoolConfig{{Name: "root", Path: n.dir}}, Node: n.id, Logger: slog.New(slog.DiscardHandler)}, n, have)
	if err != nil {
		t.Fatal(err)
	}
	m.Mount(t.Context())
	n.storage, n.report, n.copied = m, sched.MoveReport{}, 0
}

const (
	moveSecond = int64(1e9)
	moveLease  = 10 * moveSecond // a node that is silent for this long is lost
)

func newMoveWorld(t *testing.T) *moveWorld {
	w := &moveWorld{t: t, state: fsm.New(), cache: sched.NewCache(), term: 1, incarnation: 1, now: 1_700_000_000 * moveSecond, nodes: map[string]*moveNode{}, sent: map[sched.Order]bool{}}
	w.must(&commandv1.Command{Body: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{ClusterId: "c1", Incarnation: 1}}})
	for _, id := range []string{"a", "b"} {
		n := &moveNode{id: id, dir: filepath.Join(t.TempDir(), id), volumes: map[string]volume.Volume{}, attached: map[string]volume.Attachment{}, up: true}
		n.restart(t)
		w.nodes[id] = n
		w.register(id)
	}
	w.must(&commandv1.Command{Body: &commandv1.Command_CordonNode{CordonNode: &commandv1.CordonNode{Id: "b", On: true}}})
	w.must(w.put("Running"))
	for range 5 {
		w.round()
	}
	w.must(&commandv1.Command{Body: &commandv1.Command_CordonNode{CordonNode: &commandv1.CordonNode{Id: "b"}}})
	if !w.nodes["a"].runs || w.newest == 0 {
		t.Fatal("the workload must run on node a before the move")
	}
	return w
}

func (w *moveWorld) register(id string) {
	w.must(&commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: &commandv1.RegisterNode{
		Id: id, Endpoint: "10.0.0.1:1", CpuMillicores: 4000, MemoryMib: 4096, Protocol: 1, InstanceId: id, VolumeMoves: true,
		Types: []string{"container"}, StorageDrivers: []string{"local"}, Pools: []*commandv1.Pool{{Name: "root", Type: "local", TotalGb: 100}},
	}}})
}

func (w *moveWorld) put(desired string) *commandv1.Command {
	return &commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: []*commandv1.WorkloadPut{{
		Id: "db", Spec: []byte("spec"), Content: "c1:" + strings.Repeat("0", 64), Desired: desired,
		Demand: &commandv1.Demand{Type: "container", CpuMillicores: 1000, MemoryMib: 256, StorageDrivers: []string{"local"},
			Volumes: []*commandv1.VolumeUse{{Name: "data", Driver: "local", Retain: true}}, LocalData: []*commandv1.LocalData{{Name: "volume data"}}},
	}}}}}
}

func (w *moveWorld) move(end string) *commandv1.Command { return w.moveFrom("a", end) }

// moveFrom moves the volume from a node to the other one, or ends such a move.
func (w *moveWorld) moveFrom(from, end string) *commandv1.Command {
	to := map[string]string{"a": "b", "b": "a"}[from]
	return &commandv1.Command{Body: &commandv1.Command_MoveVolume{MoveVolume: &commandv1.MoveVolume{Name: "data", From: from, To: to, End: end}}}
}

func (w *moveWorld) do(c *commandv1.Command) fsm.Result {
	w.index++
	c.Head = &commandv1.Head{At: w.now, By: "test", Epoch: &commandv1.Epoch{Incarnation: w.incarnation, Term: w.term}}
	s, r, changes := w.state.Apply(fsm.Meta{Index: w.index, Term: w.term}, c)
	w.state = s
	w.changes = append(w.changes, changes...)
	if err := s.Check(); err != nil {
		w.t.Fatalf("after %s: %v", c, err)
	}
	return r
}

func (w *moveWorld) must(c *commandv1.Command) {
	w.t.Helper()
	if err := w.do(c).Err(); err != nil {
		w.t.Fatalf("%s: %v", c, err)
	}
}

// The methods below implement sched.Liveness.

func (w *moveWorld) Expired(_ int64, fn func(string, int64) bool) {
	w.state.Nodes("", func(n *fsm.Node) bool { return !n.Up || w.nodes[n.ID].heard+moveLease > w.now || fn(n.ID, 1) })
}
func (w *moveWorld) NextExpiry() int64 { return 0 }
func (w *moveWorld) Returned(_ int64, fn func(string, int64) bool) {
	w.state.Nodes("", func(n *fsm.Node) bool { return n.Up || !w.nodes[n.ID].up || fn(n.ID, 2) })
}
func (w *moveWorld) DownSince(string) int64         { return 0 }
func (w *moveWorld) Outstanding(o sched.Order) bool { return w.sent[o] }
func (w *moveWorld) MoveReport(node, _ string) (sched.MoveReport, bool) {
	r := w.nodes[node].report
	return r, r.State != ""
}

func (w *moveWorld) Heard(node string) int64 { return w.nodes[node].heard }

// phase returns the phase of the move; "" if there is none.
func (w *moveWorld) phase() fsm.MovePhase {
	m, ok := w.state.Move("db")
	if !ok {
		return ""
	}
	return m.Phase
}

// round lets the leader plan one step, the agents carry out what they were told, and db write.
func (w *moveWorld) round() {
	w.t.Helper()
	w.now += moveSecond
	for _, n := range w.nodes {
		if n.up {
			n.heard = w.now
		}
	}
	s := sched.Next(sched.World{State: w.state, Changes: w.changes, Live: w, Now: w.now, Epoch: fsm.Epoch{Incarnation: w.incarnation, Term: w.term}, Tuning: sched.DefaultTuning()}, w.cache)
	w.changes = nil
	before, _ := w.state.Move("db")
	for _, c := range s.Commands {
		w.do(c)
	}
	if m, ok := w.state.Move("db"); ok && before != nil && before.Phase == fsm.MovePlaced && m.Phase == fsm.MoveDone {
		if to := w.nodes[m.To]; !to.up || !to.runs || w.now-to.began < 60*moveSecond {
			w.t.Fatalf("the former copy is to be deleted although db runs on node %s (%t, up %t) for %d s only\n%s", to.id, to.runs, to.up, (w.now-to.began)/moveSecond, strings.Join(w.notes, "\n"))
		}
	}
	for _, o := range s.Orders {
		w.sent[o] = true
	}
	w.orders()
	for _, id := range []string{"a", "b"} {
		w.part(w.nodes[id])
	}
	for _, id := range []string{"a", "b"} {
		if n := w.nodes[id]; n.runs && n.up {
			w.newest++
			w.write(n, w.newest)
		}
	}
	w.check()
}

// orders delivers the orders that wait.
func (w *moveWorld) orders() {
	sent := slices.SortedFunc(maps.Keys(w.sent), func(a, b sched.Order) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(fmt.Sprintf("%+v", a), fmt.Sprintf("%+v", b)))
	})
	for _, o := range sent {
		n := w.nodes[o.Node]
		if !n.up {
			continue
		}
		delete(w.sent, o)
		x, ok := w.state.Workload(o.Workload)
		r := &commandv1.WorkloadReport{Workload: o.Workload, Node: o.Node, Generation: fsm.GenerationPB(o.Generation), ObservedAt: w.now}
		switch {
		case o.Generation.Less(n.seen):
			continue
		case o.Op == sched.OpDelete:
			n.seen, n.runs, n.wants = o.Generation, false, ""
			keep := ok && x.Desired != fsm.DesiredDeleted
			if err := n.storage.Release(context.Background(), "db", volume.Retention{Keep: keep, Retain: !keep}); err != nil {
				w.t.Fatal(err)
			}
			r.Gone = true
		case !ok || x.Node != o.Node || x.Generation != o.Generation:
			continue
		case x.Desired == fsm.DesiredStopped:
			n.seen, n.runs, n.wants = o.Generation, false, "stopped"
			r.Acknowledged, r.State = true, "Stopped"
		default:
			n.seen, n.wants = o.Generation, "running"
			v, _ := w.state.Volume("default", "data", "local", o.Node)
			if err := w.start(n, v.Copy, v.Undone); err != nil {
				r = failedStart(x, o.Node, w.now, err)
				break
			}
			r.Acknowledged, r.State = true, "Running"
		}
		w.must(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: []*commandv1.WorkloadReport{r}}}})
	}
}

// failedStart is the report of an agent that could not start db.
func failedStart(x *fsm.Workload, node string, now int64, err error) *commandv1.WorkloadReport {
	return &commandv1.WorkloadReport{
		Workload: x.ID, Node: node, Generation: fsm.GenerationPB(x.Generation), ObservedAt: now,
		Acknowledged: true, State: "Failed", Code: "storage_attach_failed", Message: err.Error(), Retryable: true,
	}
}

// start starts db on a node with the copy that an order names.
func (w *moveWorld) start(n *moveNode, copy, undone order.Generation) error {
	w.given = append(w.given, [2]order.Generation{copy, undone})
	spec := &agentv1.ManagedVolumeSpec{Name: "data", MountPath: "/data", RetainPolicy: "Retain"}
	if !copy.IsZero() {
		spec.Copy = wire.Agent(copy)
	}
	if !undone.IsZero() {
		spec.Undone = wire.Agent(undone)
	}
	got, err := n.storage.Attach(context.Background(), "db", "", driver.Container, []*agentv1.ManagedVolumeSpec{spec})
	if err != nil {
		return err
	}
	found, whole := content(got[0].Path)
	if !whole || found != w.newest && !w.givenUp {
		w.t.Fatalf("db starts on node %s with %d (complete: %t), but has written %d\n%s", n.id, found, whole, w.newest, strings.Join(w.notes, "\n"))
	}
	w.newest, w.givenUp = found, false
	if !n.runs {
		n.began = w.now
	}
	n.runs = true
	return nil
}

func read(path string) int {
	raw, _ := os.ReadFile(path)
	n, _ := strconv.Atoi(string(raw))
	return n
}

// content returns the number of a copy. whole is false if the copy is not complete.
func content(folder string) (number int, whole bool) {
	number = read(filepath.Join(folder, numbers[0]))
	return number, number == read(filepath.Join(folder, numbers[1]))
}

// newestOn reports whether a node has a complete copy with the newest number.
func (w *moveWorld) newestOn(id string) bool {
	copies, _ := filepath.Glob(filepath.Join(w.nodes[id].dir, "*"))
	hidden, _ := filepath.Glob(filepath.Join(w.nodes[id].dir, ".aside-*"))
	unmounted, _ := filepath.Glob(filepath.Join(w.nodes[id].dir+".off", "*"))
	for _, folder := range slices.Concat(copies, hidden, unmounted) {
		if number, whole := content(folder); whole && number == w.newest {
			return true
		}
	}
	return false
}

func (w *moveWorld) write(n *moveNode, number int) {
	for _, v := range n.volumes {
		for _, file := range numbers {
			if err := os.WriteFile(filepath.Join(v.StagePath, file), []byte(strconv.Itoa(number)), 0o600); err != nil {
				w.t.Fatalf("db cannot write on node %s: %v\n%s", n.id, err, strings.Join(w.notes, "\n"))
			}
		}
	}
}

// part does what package mover does in one phase of the move.
func (w *moveWorld) part(n *moveNode) {
	m, ok := w.state.Move("db")
	if !ok || !n.up {
		n.report = sched.MoveReport{}
		return
	}
	n.storage.SetMoves(map[order.Generation]bool{m.ID: true})
	say := func(state string) { n.report = sched.MoveReport{Workload: "db", Move: m.ID, State: state} }
	if n.report.Move != m.ID {
		n.report = sched.MoveReport{}
	}
	if n.move != m.ID || n.phase != m.Phase {
		n.move, n.phase, n.copied = m.ID, m.Phase, 0
	}
	until := func(state string, step func() error) {
		if n.report.State == state {
			return
		}
		n.report = sched.MoveReport{}
		if err := step(); err != nil {
			w.notes = append(w.notes, err.Error())
		} else if state != "" {
			say(state)
		}
	}
	from := w.nodes[m.From]
	switch {
	case n.id == m.To && (m.Phase == fsm.MoveCopying || m.Phase == fsm.MoveFinal):
		last := m.Phase == fsm.MoveFinal
		if last && n.storage.IsComplete(m.ID, "default", "data") {
			say(sched.MoveReportReady)
			return
		}
		if !from.up || last && (from.runs || from.wants == "running") {
			return
		}
		source, err := from.storage.OpenSource(m.ID, m.Copies[0], "db", "default", "data", last)
		if err != nil {
			w.notes = append(w.notes, err.Error())
			return
		}
		defer source.Close()
		target, err := n.storage.OpenTarget(m.ID, "db", "default", "data", "")
		if err != nil {
			w.notes = append(w.notes, err.Error())
			return
		}
		defer target.Close()
		raw, err := source.ReadFile(numbers[n.copied])
		if err == nil {
			err = target.WriteFile(numbers[n.copied], raw, 0o600)
		}
		if err != nil {
			w.t.Fatal(err)
		}
		if n.copied++; n.copied < len(numbers) {
			return
		}
		n.copied = 0
		if !last {
			say(sched.MoveReportCopied)
			return
		}
		if err := n.storage.Complete(m.ID, "default", "data"); err != nil {
			w.t.Fatal(err)
		}
		say(sched.MoveReportReady)
	case n.id == m.To && m.Phase == fsm.MoveKept:
		until(sched.MoveReportReady, func() error {
			if !n.storage.IsComplete(m.ID, "default", "data") {
				return errors.New("the copy of node " + n.id + " is not complete")
			}
			return nil
		})
	case n.id == m.From && (m.Phase == fsm.MovePlaced || m.Phase == fsm.MoveKept):
		until(sched.MoveReportKept, func() error { return n.storage.KeepCopy(m.ID, m.Copies[0], "db", "default", "data", false) })
	case n.id == m.From && (m.Phase == fsm.MoveUndone || m.Phase == fsm.MoveDropping):
		until(sched.MoveReportHeld, func() error { return n.storage.KeepCopy(m.ID, m.Copies[0], "db", "default", "data", true) })
	case n.id == m.To && m.Phase == fsm.MoveUndone:
		until("", func() error { return n.storage.Retire(m.ID, "db", "default", "data") })
	case n.id == m.To && m.Phase == fsm.MoveDropping, n.id == m.From && m.Phase == fsm.MoveDone:
		until(sched.MoveReportDropped, func() error {
			return n.storage.DropCopy(context.Background(), m.ID, "db", "default", "data", n.id == m.From)
		})
	}
}

// check verifies the promises.
func (w *moveWorld) check() {
	w.t.Helper()
	running := 0
	for _, n := range w.nodes {
		if n.runs {
			running++
		}
	}
	if running > 1 {
		w.t.Fatalf("two instances run\n%s", strings.Join(w.notes, "\n"))
	}
	if w.newest > 0 && !w.newestOn("a") && !w.newestOn("b") && !w.givenUp {
		w.t.Fatalf("db has written %d, but no disk has a complete copy of that\n%s", w.newest, strings.Join(w.notes, "\n"))
	}
}

// lose makes a node unreachable: its instance goes on, but cannot be seen. This test stops it, as a fencer does, so that
// what it writes does not count.
func (w *moveWorld) lose(id string) {
	n := w.nodes[id]
	n.up, n.runs = false, false
}

// back makes a lost node come back with an agent that knows only its disk.
func (w *moveWorld) back(id string) {
	n := w.nodes[id]
	if n.up {
		return
	}
	n.up = true
	if began := n.began; n.heard+moveLease > w.now {
		defer func() { n.began = began }() // the schedulers have not noticed it
	}
	n.restart(w.t)
	x, ok := w.state.Workload("db")
	if !ok || x.Node != id || x.Desired != fsm.DesiredRunning || n.wants != "running" {
		return
	}
	// The agent starts the instance of its stored order again.
	if v, ok := w.state.Volume("default", "data", "local", id); ok {
		if err := w.start(n, v.Copy, v.Undone); err != nil {
			w.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: []*commandv1.WorkloadReport{failedStart(x, id, w.now, err)}}}})
		}
	}
}

// TestVolumeMoveTable breaks something after each step of a move, in every way of a table. Two instances must never run,
// the newest data must never be deleted, and in the end the workload runs with its newest data.
func TestVolumeMoveTable(t *testing.T) {
	faults := []struct {
		name  string
		now   func(w *moveWorld)
		later func(w *moveWorld) // a minute later
		gone  bool               // the workload need not run at the end
	}{
		{"nothing", func(*moveWorld) {}, nil, false},
		{"the agent of the source is killed", func(w *moveWorld) { w.nodes["a"].restart(w.t) }, nil, false},
		{"the agent of the target is killed", func(w *moveWorld) { w.nodes["b"].restart(w.t) }, nil, false},
		{"the leader changes", func(w *moveWorld) { w.newTerm() }, nil, false},
		{"the source is lost for a minute", func(w *moveWorld) { w.lose("a") }, func(w *moveWorld) { w.back("a") }, false},
		{"the target is lost for a minute", func(w *moveWorld) { w.lose("b") }, func(w *moveWorld) { w.back("b") }, false},
		{"both are lost for a minute", func(w *moveWorld) { w.lose("a"); w.lose("b") }, func(w *moveWorld) { w.back("a"); w.back("b") }, false},
		{"a user cancels the move", func(w *moveWorld) { w.do(w.move("cancel")) }, nil, false},
		{"a user settles the move", func(w *moveWorld) { w.do(w.move("settle")) }, nil, false},
		{"a user starts a second move", func(w *moveWorld) { w.second() }, nil, false},
		{"a user applies the workload again", func(w *moveWorld) { w.must(w.put("Running")) }, nil, false},
		{"a user stops the workload and starts it later", func(w *moveWorld) { w.must(w.put("Stopped")) }, func(w *moveWorld) { w.must(w.put("Running")) }, false},
		{"a user deletes the workload, but not its volume", func(w *moveWorld) { w.must(w.remove()) }, nil, true},
		{"an old order for the source arrives late", func(w *moveWorld) { w.lateOrder("a") }, nil, false},
		{"the source is removed without discard_data", func(w *moveWorld) { w.removeNode("a", false) }, nil, false},
		{"the target is removed without discard_data", func(w *moveWorld) { w.removeNode("b", false) }, func(w *moveWorld) { w.register("b") }, false},
		{"the target is removed with discard_data", func(w *moveWorld) { w.givenUp = true; w.lose("b"); w.removeNode("b", true) }, func(w *moveWorld) { w.nodes["b"].up = true; w.register("b") }, false},
		{"the state is restored from a snapshot", func(w *moveWorld) { w.snapshot() }, nil, false},
		{"the state is restored from a backup of the time before the move", func(w *moveWorld) { w.restore() }, nil, false},
	}
	const steps = 14
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			seen := map[fsm.MovePhase]bool{}
			for step := range steps {
				w := newMoveWorld(t)
				w.backup()
				w.must(w.move(""))
				for range step {
					w.round()
				}
				seen[w.phase()] = true
				w.notes = append(w.notes, fmt.Sprintf("step %d, phase %q", step, w.phase()))
				f.now(w)
				w.check()
				for i := range 150 {
					if i == 60 && f.later != nil {
						f.later(w)
					}
					if i > 90 {
						w.now += 30 * moveSecond // the limits of phases come within the remaining rounds
					}
					w.round()
				}
				if w.phase() == fsm.MoveKept { // the former copy of a deleted workload is kept until a person says so
					w.must(w.move("settle"))
					for range 5 {
						w.round()
					}
				}
				if w.phase() != "" {
					m, _ := w.state.Move("db")
					t.Fatalf("step %d: the move has not ended: %s %s\n%s", step, m.Phase, m.Reason, strings.Join(w.notes, "\n"))
				}
				if running := w.nodes["a"].runs || w.nodes["b"].runs; running == f.gone {
					x, _ := w.state.Workload("db")
					t.Fatalf("step %d: at the end the workload runs: %t (%+v)\n%s", step, running, x, strings.Join(w.notes, "\n"))
				}
			}
			for _, p := range []fsm.MovePhase{fsm.MoveCopying, fsm.MoveStopping, fsm.MoveFinal, fsm.MovePlaced} {
				if !seen[p] {
					t.Errorf("no step broke something in phase %s", p)
				}
			}
		})
	}
}
