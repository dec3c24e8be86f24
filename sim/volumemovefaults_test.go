package sim

import (
	"bytes"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/order"
	"github.com/persys/compute/sched"
)

// newTerm makes another replica the leader. It knows only the state.
func (w *moveWorld) newTerm() {
	w.term++
	w.cache, w.changes = sched.NewCache(), nil
	clear(w.sent)
	for _, n := range w.nodes {
		n.report = sched.MoveReport{}
	}
	w.must(&commandv1.Command{Body: &commandv1.Command_Barrier{Barrier: &commandv1.Barrier{}}})
}

// second starts a second move of the volume, which must be refused.
func (w *moveWorld) second() {
	if _, open := w.state.Move("db"); open && w.do(w.move("")).Kind == fsm.OK {
		w.t.Fatal("a second move of the volume began before the first had settled")
	}
}

func (w *moveWorld) remove() *commandv1.Command {
	return &commandv1.Command{Body: &commandv1.Command_DeleteWorkload{DeleteWorkload: &commandv1.DeleteWorkload{Id: "db", KeepVolumes: true}}}
}

// lateOrder delivers the orders to start the workload again, past the check of generations. It must not start the workload once the node has set its copy aside.
func (w *moveWorld) lateOrder(id string) {
	n := w.nodes[id]
	var aside bool
	for _, v := range n.volumes {
		aside = !v.Aside.IsZero()
	}
	x, _ := w.state.Workload("db")
	if x.Node == id && x.Desired == fsm.DesiredRunning || !aside {
		return // the order is not late
	}
	for _, g := range append([][2]order.Generation{{}}, w.given...) {
		if err := w.start(n, g[0], g[1]); err == nil {
			w.t.Fatalf("an order from before the move started the workload on the copy that was set aside\n%s", strings.Join(w.notes, "\n"))
		}
	}
}

// removeNode removes a node. Without discard, the node must stay if it has the only copy.
func (w *moveWorld) removeNode(id string, discard bool) {
	_, moves := w.state.Move("db")
	x, _ := w.state.Workload("db")
	r := w.do(&commandv1.Command{Body: &commandv1.Command_RemoveNode{RemoveNode: &commandv1.RemoveNode{Id: id, Force: true, DiscardData: discard}}})
	needed := x.Node == id || id == "a" && moves && w.phase() != fsm.MoveDone
	if !discard && needed && r.Kind == fsm.OK {
		w.t.Fatalf("node %s was removed in phase %q although it has a copy that is needed", id, w.phase())
	}
	if r.Kind == fsm.OK && !discard && id == "a" {
		w.register(id)
	}
}

// snapshot writes the state to a snapshot and reads it again.
func (w *moveWorld) snapshot() {
	var b bytes.Buffer
	if err := w.state.WriteSnapshot(&b); err != nil {
		w.t.Fatal(err)
	}
	s, err := fsm.ReadSnapshot(&b)
	if err != nil {
		w.t.Fatal(err)
	}
	w.state, w.cache, w.changes = s, sched.NewCache(), nil
}

func (w *moveWorld) backup() { w.saved = w.state }

// restore replaces the state by the backup.
func (w *moveWorld) restore() { w.restoreInto(w.state) }

// rebuild restores the backup into new schedulers, which know nothing.
func (w *moveWorld) rebuild() {
	w.restoreInto(fsm.New())
	w.rebuilt = true
	for _, id := range []string{"a", "b"} {
		if w.nodes[id].up {
			w.register(id)
		}
	}
}

func (w *moveWorld) restoreInto(present fsm.State) {
	s, err := fsm.Restored(w.saved, present, fsm.RestoreInfo{At: w.now, By: "test"})
	if err != nil {
		w.t.Fatal(err)
	}
	w.state, w.index = s, s.Info().Index
	w.incarnation = s.Info().Incarnation
	w.newTerm()
}
