package fsm

import (
	"encoding/binary"
	"fmt"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/order"
)

// `persysctl node fence`, `node remove` and `delete --force` state that a machine no longer runs a
// workload. If such a statement covers the last node that might run a deleted workload, the record
// of the workload is removed. But the machine may return with its disk and run the workload again.
// The state recognises a report about such a workload by its tombstone, and orders the node to
// remove the instance.

// MaxTombstones is the number of tombstones that are kept. The oldest are dropped first.
const MaxTombstones = 10_000

// Tombstone is the record of a deleted workload. When a workload with the same id is created, the
// tombstone is dropped: the generation in the new record then shows which instances are older.
type Tombstone struct {
	Workload   string
	Generation Generation // last generation that was issued for the workload
	Node       string     // last node of the workload; "" if it had none
	Claims     Demand     // the resources and ports that the workload reserved
	At         int64      // Unix nanoseconds
	Index      uint64
	Revision   uint64 // number of the last revision; not part of the digest
	// KeepVolumes is set if the workload was deleted and its volumes that have a name are kept.
	KeepVolumes bool
}

// claims returns the part of a demand that reserves resources or ports on a node.
func claims(d *Demand) Demand {
	return Demand{Type: d.Type, CPU: d.CPU, Memory: d.Memory, Disk: d.Disk, Pool: d.Pool, Ports: d.Ports, Exclusive: d.Exclusive, Devices: d.Devices}
}

// Tombstone returns the tombstone of a deleted workload.
func (s State) Tombstone(workload string) (*Tombstone, bool) { return s.r.tombstones.Get(workload) }

// Tombstones scans the tombstones, by workload id.
func (s State) Tombstones(fn func(*Tombstone) bool) {
	s.r.tombstones.Scan(func(_ string, g *Tombstone) bool { return fn(g) })
}

// TombstoneCount returns the number of tombstones.
func (s State) TombstoneCount() int { return s.r.tombstones.Len() }

// StillRunsOn reports whether a report of node n shows that n still runs the deleted workload. said is the
// reported generation. If said is unset, the report comes from a legacy v1 agent and proves nothing: that
// agent may report before it has received its present order. If said is newer than the generation of the
// tombstone, the order was given before a restore and is not part of the restored state; such an instance is
// not removed.
func (g *Tombstone) StillRunsOn(n *Node, said Generation, state Actual) bool {
	return n != nil && n.Up && !said.IsZero() && !g.Generation.Less(said) && present(state)
}

// deletedReturned adds a residual, which makes the leader order the node to remove the instance, if
// a report shows that a node still runs a deleted workload.
func (t *Tx) deletedReturned(r *commandv1.WorkloadReport) bool {
	g, ok := t.r.tombstones.Get(r.GetWorkload())
	n, _ := t.r.nodes.Get(r.GetNode())
	if !ok || r.GetGone() || r.GetRefused() || !g.StillRunsOn(n, order.GenerationOf(r.GetGeneration()), Actual(r.GetState())) {
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

		KeepVolumes: g.KeepVolumes,
	})
	t.event(Event{
		Type: EventDriftDetected, Workload: g.Workload, Node: n.ID, Reason: CodeLeftBehind,
		Message: "the workload was deleted, but the node still has it and is ordered to remove it",
	})
	return true
}

// addTombstone adds a tombstone for workload w, whose record is removed.
func (t *Tx) addTombstone(w *Workload) {
	g := &Tombstone{
		Workload: w.ID, Generation: w.Generation, Node: w.Node, Claims: claims(w.Demand),
		At: t.r.info.Clock, Index: t.meta.Index, Revision: w.Number(), KeepVolumes: w.KeepVolumes,
	}
	if g.Node == "" {
		g.Node = w.PreviousNode
	}
	if g.Generation.Less(t.next) {
		g.Generation = t.next // the generation of the command that deletes the workload
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

// foldTombstone adds a tombstone to the digest. The removal of a tombstone is encoded as a
// tombstone without a generation.
func (t *Tx) foldTombstone(g *Tombstone) {
	e := encoder(t.sideFold)
	e.str("tombstone") // says that the next fields are those of a tombstone
	e.tombstone(g)
	t.sideFold = e
}

// tombstoneKeyPrefix is the number of bytes before the id in a tombstoneKey.
const tombstoneKeyPrefix = 8

// tombstoneKey returns a key that sorts by Index, then by id.
func tombstoneKey(g *Tombstone) string {
	b := make([]byte, tombstoneKeyPrefix, tombstoneKeyPrefix+len(g.Workload))
	binary.BigEndian.PutUint64(b, g.Index)
	return string(append(b, g.Workload...))
}

func tombstonePB(g *Tombstone) *commandv1.TombstoneRecord {
	return &commandv1.TombstoneRecord{
		Workload: g.Workload, Generation: GenerationPB(g.Generation), Node: g.Node, Claims: demandPB(&g.Claims), At: g.At, Index: g.Index,
		Revision: g.Revision, KeepVolumes: g.KeepVolumes,
	}
}

func tombstoneOf(m *commandv1.TombstoneRecord) (*Tombstone, error) {
	if !bounds.ValidID(m.GetWorkload()) {
		return nil, fmt.Errorf("tombstone: workload id %q does not match %s", clip(m.GetWorkload()), bounds.IDRule)
	}
	if err := portsInRange(m.GetClaims()); err != nil {
		return nil, fmt.Errorf("tombstone of %q: %w", m.GetWorkload(), err)
	}
	return &Tombstone{
		Workload: m.GetWorkload(), Generation: order.GenerationOf(m.GetGeneration()), Node: m.GetNode(), Claims: demandValue(m.GetClaims()),
		At: m.GetAt(), Index: m.GetIndex(),
		Revision: m.GetRevision(), KeepVolumes: m.GetKeepVolumes(),
	}, nil
}
