package fsm

import (
	"encoding/binary"
	"fmt"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
)

// Graves. A fence, a removed node and `delete --force` all state that a machine
// runs nothing any more, and with the last node that held it the record of a
// deleted workload goes. The machine may return with its disk all the same, and
// then runs what nobody knows. A grave is what is remembered of such a workload:
// enough to know its ghost by, and to say until which generation it was deleted.
// Feature level 4; before it, nothing is remembered.

// MaxGraves is how many deleted workloads are remembered; the oldest go first.
const MaxGraves = 10_000

// Grave is what is left of a deleted workload. A record of the same id that is
// made later has no grave: its own generation says what is older.
type Grave struct {
	Workload   string
	Generation Generation // the last that was given out for it
	Node       string     // where it was last, "" = nowhere
	Claims     Demand     // see claims
	At         int64      // Unix nanoseconds
	Index      uint64
}

// claims is the part of a demand that takes something of a node.
func claims(d *Demand) Demand {
	return Demand{Type: d.Type, CPU: d.CPU, Memory: d.Memory, Disk: d.Disk, Pool: d.Pool, Ports: d.Ports, Exclusive: d.Exclusive}
}

// Grave returns what is remembered of a deleted workload.
func (s State) Grave(workload string) (*Grave, bool) { return s.r.graves.Get(workload) }

// Graves scans what is remembered of deleted workloads, by id.
func (s State) Graves(fn func(*Grave) bool) {
	s.r.graves.Scan(func(_ string, g *Grave) bool { return fn(g) })
}

// GraveCount is the number of deleted workloads that are remembered.
func (s State) GraveCount() int { return s.r.graves.Len() }

// Haunts reports whether a word from node n shows that it still has what lies in
// g. A peer that knows no generations shows nothing, as in LeftOn; one that names
// a later generation was told more than this state knows, and is left alone.
func (g *Grave) Haunts(n *Node, said Generation, state Actual) bool {
	return n != nil && n.Up && !said.IsZero() && !g.Generation.Less(said) && present(state)
}

// haunts makes a residual of what a node has of a deleted workload.
func (t *Tx) haunts(r *commandv1.WorkloadReport) bool {
	g, ok := t.r.graves.Get(r.GetWorkload())
	n, _ := t.r.nodes.Get(r.GetNode())
	if !ok || r.GetGone() || r.GetRefused() || !g.Haunts(n, generationOf(r.GetGeneration()), Actual(r.GetState())) {
		return false
	}
	if _, ok := t.r.residuals.Get(pair(n.ID, g.Workload)); ok {
		return false
	}
	t.putResidual(&Residual{
		Node:       n.ID,
		Workload:   g.Workload,
		Generation: g.Generation,
		Engine:     n.Engine(),
		Demand:     g.Claims,
		Since:      t.r.info.Clock,
		Reason:     CodeLeftBehind,
	})
	t.event(Event{
		Type: EventDriftDetected, Workload: g.Workload, Node: n.ID, Reason: CodeLeftBehind,
		Message: "was deleted, and is still there: the node is told to remove it",
	})
	return true
}

// dig remembers a workload whose record goes.
func (t *Tx) dig(w *Workload) {
	if t.r.info.FeatureLevel < 4 {
		return
	}
	g := &Grave{
		Workload: w.ID, Generation: w.Generation, Node: w.Node, Claims: claims(w.Demand),
		At: t.r.info.Clock, Index: t.meta.Index,
	}
	if g.Node == "" {
		g.Node = w.PreviousNode
	}
	if g.Generation.Less(t.next) {
		g.Generation = t.next // of the command that deletes it
	}
	t.dropGrave(w.ID)
	own(t, &t.r.graves, ownGraves).Set(g.Workload, g)
	own(t, &t.r.gravesByAge, ownGravesByAge).Set(graveKey(g), struct{}{})
	t.foldGrave(g)
	for t.r.graves.Len() > MaxGraves {
		oldest, _, _ := t.r.gravesByAge.Min()
		t.dropGrave(oldest[graveKeyPrefix:])
	}
}

func (t *Tx) dropGrave(id string) {
	g, ok := t.r.graves.Get(id)
	if !ok {
		return
	}
	own(t, &t.r.graves, ownGraves).Delete(id)
	own(t, &t.r.gravesByAge, ownGravesByAge).Delete(graveKey(g))
	t.foldGrave(&Grave{Workload: id})
}

// foldGrave adds to the digest what is left of a grave; one without a generation
// is gone.
func (t *Tx) foldGrave(g *Grave) {
	e := encoder(t.sideFold)
	e.str("grave")
	e.grave(g)
	t.sideFold = e
}

// graveKeyPrefix is how many bytes stand before the id in a graveKey.
const graveKeyPrefix = 8

// graveKey sorts by Index, then id.
func graveKey(g *Grave) string {
	b := make([]byte, graveKeyPrefix, graveKeyPrefix+len(g.Workload))
	binary.BigEndian.PutUint64(b, g.Index)
	return string(append(b, g.Workload...))
}

func gravePB(g *Grave) *commandv1.GraveRecord {
	return &commandv1.GraveRecord{
		Workload: g.Workload, Generation: generationPB(g.Generation), Node: g.Node, Claims: demandPB(&g.Claims), At: g.At, Index: g.Index,
	}
}

func graveOf(m *commandv1.GraveRecord) (*Grave, error) {
	if !bounds.ValidID(m.GetWorkload()) {
		return nil, fmt.Errorf("grave: workload id %q does not match %s", clip(m.GetWorkload()), bounds.IDRule)
	}
	if err := portsInRange(m.GetClaims()); err != nil {
		return nil, fmt.Errorf("grave of %q: %w", m.GetWorkload(), err)
	}
	return &Grave{
		Workload: m.GetWorkload(), Generation: generationOf(m.GetGeneration()), Node: m.GetNode(), Claims: demandValue(m.GetClaims()),
		At: m.GetAt(), Index: m.GetIndex(),
	}, nil
}
