package fsm

import (
	"encoding/binary"
	"fmt"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
)

// Tombstones. A fence, a removed node and `delete --force` all state that a machine
// runs nothing any more, and with the last node that held it the record of a
// deleted workload goes. The machine may return with its disk all the same, and
// then runs what nobody knows. A grave is what is remembered of such a workload:
// enough to know its ghost by, and to say until which generation it was deleted.

// MaxTombstones is how many deleted workloads are remembered; the oldest go first.
const MaxTombstones = 10_000

// Tombstone is what is left of a deleted workload. A record of the same id that is
// made later has no grave: its own generation says what is older.
type Tombstone struct {
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

// Tombstone returns what is remembered of a deleted workload.
func (s State) Tombstone(workload string) (*Tombstone, bool) { return s.r.tombstones.Get(workload) }

// Tombstones scans what is remembered of deleted workloads, by id.
func (s State) Tombstones(fn func(*Tombstone) bool) {
	s.r.tombstones.Scan(func(_ string, g *Tombstone) bool { return fn(g) })
}

// TombstoneCount is the number of deleted workloads that are remembered.
func (s State) TombstoneCount() int { return s.r.tombstones.Len() }

// StillRunsOn reports whether a word from node n shows that it still has what lies in
// g. A peer that knows no generations shows nothing, as in LeftOn; one that names
// a later generation was told more than this state knows, and is left alone.
func (g *Tombstone) StillRunsOn(n *Node, said Generation, state Actual) bool {
	return n != nil && n.Up && !said.IsZero() && !g.Generation.Less(said) && present(state)
}

// haunts makes a residual of what a node has of a deleted workload.
func (t *Tx) haunts(r *commandv1.WorkloadReport) bool {
	g, ok := t.r.tombstones.Get(r.GetWorkload())
	n, _ := t.r.nodes.Get(r.GetNode())
	if !ok || r.GetGone() || r.GetRefused() || !g.StillRunsOn(n, GenerationOf(r.GetGeneration()), Actual(r.GetState())) {
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
	g := &Tombstone{
		Workload: w.ID, Generation: w.Generation, Node: w.Node, Claims: claims(w.Demand),
		At: t.r.info.Clock, Index: t.meta.Index,
	}
	if g.Node == "" {
		g.Node = w.PreviousNode
	}
	if g.Generation.Less(t.next) {
		g.Generation = t.next // of the command that deletes it
	}
	t.dropTombstone(w.ID)
	own(t, &t.r.tombstones, ownGraves).Set(g.Workload, g)
	own(t, &t.r.tombstonesByAge, ownGravesByAge).Set(tombstoneKey(g), struct{}{})
	t.foldTombstone(g)
	for t.r.tombstones.Len() > MaxTombstones {
		oldest, _, _ := t.r.tombstonesByAge.Min()
		t.dropTombstone(oldest[tombstoneKeyPrefix:])
	}
}

func (t *Tx) dropTombstone(id string) {
	g, ok := t.r.tombstones.Get(id)
	if !ok {
		return
	}
	own(t, &t.r.tombstones, ownGraves).Delete(id)
	own(t, &t.r.tombstonesByAge, ownGravesByAge).Delete(tombstoneKey(g))
	t.foldTombstone(&Tombstone{Workload: id})
}

// foldGrave adds to the digest what is left of a grave; one without a generation
// is gone.
func (t *Tx) foldTombstone(g *Tombstone) {
	e := encoder(t.sideFold)
	e.str("grave")
	e.tombstone(g)
	t.sideFold = e
}

// graveKeyPrefix is how many bytes stand before the id in a graveKey.
const tombstoneKeyPrefix = 8

// graveKey sorts by Index, then id.
func tombstoneKey(g *Tombstone) string {
	b := make([]byte, tombstoneKeyPrefix, tombstoneKeyPrefix+len(g.Workload))
	binary.BigEndian.PutUint64(b, g.Index)
	return string(append(b, g.Workload...))
}

func tombstonePB(g *Tombstone) *commandv1.GraveRecord {
	return &commandv1.GraveRecord{
		Workload: g.Workload, Generation: GenerationPB(g.Generation), Node: g.Node, Claims: demandPB(&g.Claims), At: g.At, Index: g.Index,
	}
}

func tombstoneOf(m *commandv1.GraveRecord) (*Tombstone, error) {
	if !bounds.ValidID(m.GetWorkload()) {
		return nil, fmt.Errorf("grave: workload id %q does not match %s", clip(m.GetWorkload()), bounds.IDRule)
	}
	if err := portsInRange(m.GetClaims()); err != nil {
		return nil, fmt.Errorf("grave of %q: %w", m.GetWorkload(), err)
	}
	return &Tombstone{
		Workload: m.GetWorkload(), Generation: GenerationOf(m.GetGeneration()), Node: m.GetNode(), Claims: demandValue(m.GetClaims()),
		At: m.GetAt(), Index: m.GetIndex(),
	}, nil
}
