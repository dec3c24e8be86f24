package fsm

import (
	"encoding/binary"
	"fmt"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
)

// A fence, the removal of a node, and `delete --force` all state that a machine runs nothing any
// more. The record of a deleted workload is removed with the last node that held it. The machine
// may still return with its disk and run the workload. A tombstone remembers the deleted
// workload, so that a report about it is recognised and the node is told to remove it.

// MaxTombstones is the number of tombstones that are kept. The oldest are dropped first.
const MaxTombstones = 10_000

// Tombstone remembers a deleted workload. A new record with the same id replaces its tombstone,
// because the generation of the record tells which instances are older.
type Tombstone struct {
	Workload   string
	Generation Generation // the last that was issued for it
	Node       string     // its last node, "" if it had none
	Claims     Demand     // see claims
	At         int64      // Unix nanoseconds
	Index      uint64
}

// claims returns the part of a demand that reserves something on a node.
func claims(d *Demand) Demand {
	return Demand{Type: d.Type, CPU: d.CPU, Memory: d.Memory, Disk: d.Disk, Pool: d.Pool, Ports: d.Ports, Exclusive: d.Exclusive}
}

// Tombstone returns the tombstone of a deleted workload.
func (s State) Tombstone(workload string) (*Tombstone, bool) { return s.r.tombstones.Get(workload) }

// Tombstones scans the tombstones, by workload id.
func (s State) Tombstones(fn func(*Tombstone) bool) {
	s.r.tombstones.Scan(func(_ string, g *Tombstone) bool { return fn(g) })
}

// TombstoneCount returns the number of tombstones.
func (s State) TombstoneCount() int { return s.r.tombstones.Len() }

// StillRunsOn reports whether a report of node n shows that it still runs the deleted workload.
// A report without a generation, from a legacy v1 peer, shows nothing, as in LeftOn. A
// generation after the tombstone was issued by a state that this one does not know; such a
// workload is left alone.
func (g *Tombstone) StillRunsOn(n *Node, said Generation, state Actual) bool {
	return n != nil && n.Up && !said.IsZero() && !g.Generation.Less(said) && present(state)
}

// deletedReturned adds a residual for a deleted workload that a node still runs.
func (t *Tx) deletedReturned(r *commandv1.WorkloadReport) bool {
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

// addTombstone remembers a workload whose record is removed.
func (t *Tx) addTombstone(w *Workload) {
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
	own(t, &t.r.tombstones, ownTombstones).Set(g.Workload, g)
	own(t, &t.r.tombstonesByAge, ownTombstonesByAge).Set(tombstoneKey(g), struct{}{})
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
	own(t, &t.r.tombstones, ownTombstones).Delete(id)
	own(t, &t.r.tombstonesByAge, ownTombstonesByAge).Delete(tombstoneKey(g))
	t.foldTombstone(&Tombstone{Workload: id})
}

// foldTombstone adds a tombstone to the digest. One without a generation stands for a removal.
func (t *Tx) foldTombstone(g *Tombstone) {
	e := encoder(t.sideFold)
	e.str("grave") // the name of this table in the digest
	e.tombstone(g)
	t.sideFold = e
}

// tombstoneKeyPrefix is the number of bytes before the id in a tombstoneKey.
const tombstoneKeyPrefix = 8

// tombstoneKey sorts by Index, then by id.
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
		return nil, fmt.Errorf("tombstone: workload id %q does not match %s", clip(m.GetWorkload()), bounds.IDRule)
	}
	if err := portsInRange(m.GetClaims()); err != nil {
		return nil, fmt.Errorf("tombstone of %q: %w", m.GetWorkload(), err)
	}
	return &Tombstone{
		Workload: m.GetWorkload(), Generation: GenerationOf(m.GetGeneration()), Node: m.GetNode(), Claims: demandValue(m.GetClaims()),
		At: m.GetAt(), Index: m.GetIndex(),
	}, nil
}
