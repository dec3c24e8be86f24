package agent

import (
	"cmp"
	"fmt"

	agentv1 "github.com/persys/compute/api/agent/v1"

	"github.com/persys/compute/agent/driver"
)

// Epoch is the highest leadership this agent has heard of. The zero value is "none": an agent that
// only ever met schedulers without epochs, or none at all.
type Epoch struct {
	ClusterID   string `json:"cluster_id,omitempty"`
	Shard       string `json:"shard,omitempty"` // of the cluster; empty if no scheduler named one
	Incarnation uint64 `json:"incarnation,omitempty"`
	Term        uint64 `json:"term,omitempty"`
}

// owned reports whether a leadership, not only a cluster, is known.
func (e Epoch) owned() bool { return e.Incarnation != 0 || e.Term != 0 }

// less orders epochs of one cluster: by incarnation, then term.
func (e Epoch) less(other Epoch) bool {
	if e.Incarnation != other.Incarnation {
		return e.Incarnation < other.Incarnation
	}
	return e.Term < other.Term
}

func (e Epoch) String() string {
	return fmt.Sprintf("%s/%d/%d", e.ClusterID, e.Incarnation, e.Term)
}

func (e Epoch) proto() *agentv1.Epoch {
	if !e.owned() {
		return nil
	}
	return &agentv1.Epoch{ClusterId: e.ClusterID, Shard: e.Shard, Incarnation: e.Incarnation, Term: e.Term}
}

// epochMessage is satisfied by the epochs of both APIs.
type epochMessage interface {
	GetClusterId() string
	GetShard() string
	GetIncarnation() uint64
	GetTerm() uint64
}

func epochFrom(m epochMessage) Epoch {
	return Epoch{ClusterID: m.GetClusterId(), Shard: m.GetShard(), Incarnation: m.GetIncarnation(), Term: m.GetTerm()}
}

// refusal is why an order is not taken. Fenced ones are final for the sender: it is deposed, late
// or mistaken about whom it speaks to. The others name a fault in the order.
type refusal struct {
	fenced  bool
	message string
	class   driver.Class // of a refusal that is no fault of the order; empty otherwise
}

func fencedf(format string, args ...any) *refusal {
	return &refusal{fenced: true, message: fmt.Sprintf(format, args...)}
}

func refusedf(format string, args ...any) *refusal {
	return &refusal{message: fmt.Sprintf(format, args...)}
}

// judgeEpoch is the first fence. It returns the epoch to remember, which must be on disk before
// anything is done for the sender.
//
// An order without epoch comes from a legacy v1 scheduler or an operator's command line. It is
// taken while no leadership is known, and always by a standalone agent; after that it would
// sidestep the fence.
func judgeEpoch(seen Epoch, standalone bool, in *agentv1.Epoch) (Epoch, *refusal) {
	if in == nil {
		if seen.owned() && !standalone {
			return seen, fencedf("epoch: missing, but this node belongs to the schedulers of cluster %q (epoch %s)", seen.ClusterID, seen)
		}
		return seen, nil
	}
	got := epochFrom(in)
	switch {
	case got.ClusterID == "":
		return seen, refusedf("epoch.cluster_id: must not be empty")
	case seen.ClusterID != "" && got.ClusterID != seen.ClusterID:
		return seen, fencedf("epoch.cluster_id: this node belongs to cluster %q, the order is from cluster %q", seen.ClusterID, got.ClusterID)
	case otherShard(seen, got):
		return seen, fencedf("epoch.shard: this node belongs to shard %q, the order is from shard %q of cluster %q", seen.Shard, got.Shard, got.ClusterID)
	case got.less(seen):
		return seen, fencedf("epoch: %s is older than %s, which this node has seen", got, seen)
	}
	got.Shard = cmp.Or(got.Shard, seen.Shard)
	return got, nil
}

// otherShard reports whether the sender names another shard than this node's. A cluster has one
// shard for ever, so a difference means that one of the two is set up wrongly; who names none, a
// scheduler of an older release, is not judged by it.
func otherShard(seen, got Epoch) bool {
	return seen.Shard != "" && got.Shard != "" && seen.Shard != got.Shard
}

// judgeNode refuses what was meant for another machine: an address that changed hands.
func judgeNode(self, meant string) *refusal {
	if meant != "" && meant != self {
		return fencedf("node_id: this is node %q, the order is for %q", self, meant)
	}
	return nil
}

// judgeInstance refuses what was meant for another agent of this name: the machine before it was
// wiped, or the one whose place this has taken. What the answer said would be taken for the word
// of that one, whose instances may still run.
func judgeInstance(self, meant string) *refusal {
	if meant != "" && meant != self {
		return fencedf("instance_id: this is instance %s, the order is for %s: this agent has to be registered first", self, meant)
	}
	return nil
}

func generationFrom(m *agentv1.Generation) driver.Generation {
	return driver.Generation{Incarnation: m.GetIncarnation(), Sequence: m.GetSequence()}
}

func generationProto(g driver.Generation) *agentv1.Generation {
	if g == (driver.Generation{}) {
		return nil
	}
	return &agentv1.Generation{Incarnation: g.Incarnation, Sequence: g.Sequence}
}

// judgeApply is the second fence. held is the generation of the intent, buried that of the
// tombstone; zero means none. A delete ends everything up to its generation, so an apply must be
// above a tombstone, but only not below what is held.
func judgeApply(id string, held, buried, in driver.Generation, standalone bool) *refusal {
	none := driver.Generation{}
	switch {
	case in == none && standalone:
		return nil
	case in == none && held != none:
		return fencedf("generation: missing, workload %q is at %s", id, held)
	case in == none && buried != none:
		return fencedf("generation: missing, workload %q was deleted at %s", id, buried)
	case in.Less(held):
		return fencedf("generation: %s of workload %q is outdated, this node has %s", in, id, held)
	case buried != none && !buried.Less(in):
		return fencedf("generation: %s of workload %q is outdated, it was deleted at %s", in, id, buried)
	}
	return nil
}

// judgeDelete is the second fence for deletes: one that is older than what is held is about a
// former assignment.
func judgeDelete(id string, held, in driver.Generation, standalone bool) *refusal {
	return judgeApply(id, held, driver.Generation{}, in, standalone)
}
