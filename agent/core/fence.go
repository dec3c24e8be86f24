package core

import (
	"cmp"
	"fmt"

	"github.com/persys/compute/agent/workload"
)

// Epoch identifies one leadership term of one cluster. It is zero if the agent knows no leader: the agent has
// heard from no scheduler, or only from schedulers that send no epochs.
type Epoch struct {
	ClusterID   string `json:"cluster_id,omitempty"`
	Shard       string `json:"shard,omitempty"` // shard of the cluster; empty if no scheduler has named a shard
	Incarnation uint64 `json:"incarnation,omitempty"`
	Term        uint64 `json:"term,omitempty"`
}

// Owned reports whether the epoch identifies a leadership term. An epoch that has only a cluster id does not.
func (e Epoch) Owned() bool { return e.Incarnation != 0 || e.Term != 0 }

// Less reports whether e is older than other, an epoch of the same cluster. It compares the incarnations first,
// then the terms.
func (e Epoch) Less(other Epoch) bool {
	if e.Incarnation != other.Incarnation {
		return e.Incarnation < other.Incarnation
	}
	return e.Term < other.Term
}

func (e Epoch) String() string { return fmt.Sprintf("%s/%d/%d", e.ClusterID, e.Incarnation, e.Term) }

// Refusal is the reason why an order is refused. If Fenced is true, a repetition cannot succeed: the sender
// lost its leadership, the order is outdated, or the order is for another agent. Other refusals name a
// fault in the order.
type Refusal struct {
	Fenced  bool
	Message string
	Class   workload.Class // failure class; set unless the order itself is invalid
}

// Error implements error.
func (r *Refusal) Error() string { return r.Message }

func fencedf(format string, args ...any) *Refusal {
	return &Refusal{Fenced: true, Message: fmt.Sprintf(format, args...)}
}

// Refusedf returns a Refusal with this text for an order that has a fault (Fenced is false).
func Refusedf(format string, args ...any) *Refusal {
	return &Refusal{Message: fmt.Sprintf(format, args...)}
}

// judgeEpoch checks the epoch of an order. This check refuses orders of deposed leaders.
// It returns the epoch to store.
//
// An order without epoch comes from a legacy v1 scheduler or from an operator's command line. It is accepted
// until the agent has seen the epoch of a leader, and always by a standalone agent. After that an order without
// epoch is refused, because nothing shows whether its sender still leads.
func judgeEpoch(seen Epoch, standalone bool, in *Epoch) (Epoch, *Refusal) {
	if in == nil {
		if seen.Owned() && !standalone {
			return seen, fencedf("epoch: missing, but this node belongs to the schedulers of cluster %q (epoch %s)", seen.ClusterID, seen)
		}
		return seen, nil
	}
	got := *in
	switch {
	case got.ClusterID == "":
		return seen, Refusedf("epoch.cluster_id: must not be empty")
	case seen.ClusterID != "" && got.ClusterID != seen.ClusterID:
		return seen, fencedf("epoch.cluster_id: this node belongs to cluster %q, the order is from cluster %q", seen.ClusterID, got.ClusterID)
	case otherShard(seen, got):
		return seen, fencedf("epoch.shard: this node belongs to shard %q, the order is from shard %q of cluster %q", seen.Shard, got.Shard, got.ClusterID)
	case got.Less(seen):
		return seen, fencedf("epoch: %s is older than %s, which this node has seen", got, seen)
	}
	got.Shard = cmp.Or(got.Shard, seen.Shard)
	return got, nil
}

// otherShard reports whether the sender names a shard other than this node's. The shard of a cluster
// never changes, so one of the two is misconfigured. Schedulers of older releases name no shard and
// are accepted.
func otherShard(seen, got Epoch) bool {
	return seen.Shard != "" && got.Shard != "" && seen.Shard != got.Shard
}

// JudgeNode refuses an order that names another node. Such an order arrives if this node now has the network
// address that the other node had before.
func JudgeNode(self, meant string) *Refusal {
	if meant != "" && meant != self {
		return fencedf("node_id: this is node %q, but the order is for node %q", self, meant)
	}
	return nil
}

// judgeInstance refuses an order that is meant for a previous agent with the same node id: the agent of this
// machine before its disk was wiped, or the agent of a machine that this one replaced. Instances of that
// agent may still run.
func judgeInstance(self, meant string) *Refusal {
	if meant != "" && meant != self {
		return fencedf("instance_id: this is agent instance %s, but the order is for agent instance %s: this agent has to be registered first", self, meant)
	}
	return nil
}

// judgeApply checks the generation of an apply, so that outdated orders are refused. held is the generation of
// the stored intent, and deleted that of the tombstone; zero means that there is none. The generation of an
// apply must be higher than deleted and not lower than held.
func judgeApply(id string, held, deleted, in workload.Generation, standalone bool) *Refusal {
	none := workload.Generation{}
	switch {
	case in == none && standalone:
		return nil
	case in == none && held != none:
		return fencedf("generation: missing, but workload %q has generation %s", id, held)
	case in == none && deleted != none:
		return fencedf("generation: missing, but workload %q was deleted at generation %s", id, deleted)
	case in.Less(held):
		return fencedf("generation: %s of workload %q is outdated, this node has generation %s", in, id, held)
	case deleted != none && !deleted.Less(in):
		return fencedf("generation: %s of workload %q is outdated, the workload was deleted at generation %s", in, id, deleted)
	}
	return nil
}

// judgeDelete checks the generation of a delete. If it is lower than held, the delete is for a previous
// assignment of the workload and is refused.
func judgeDelete(id string, held, in workload.Generation, standalone bool) *Refusal {
	return judgeApply(id, held, workload.Generation{}, in, standalone)
}
