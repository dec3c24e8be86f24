package core

import (
	"strings"
	"testing"

	"github.com/persys/compute/agent/workload"
)

func TestOrdersOfALowerEpochAreRefused(t *testing.T) {
	seen := Epoch{ClusterID: "c1", Incarnation: 5, Term: 7}
	in := func(cluster string, incarnation, term uint64) *Epoch {
		return &Epoch{ClusterID: cluster, Incarnation: incarnation, Term: term}
	}
	sharded := func(cluster, shard string, incarnation, term uint64) *Epoch {
		e := in(cluster, incarnation, term)
		e.Shard = shard
		return e
	}
	east := seen
	east.Shard = "east"
	for _, c := range []struct {
		name       string
		seen       Epoch
		standalone bool
		in         *Epoch
		next       Epoch
		fenced     bool
		says       string // text of the refusal; empty if the order is accepted
	}{
		{"the first epoch is accepted", Epoch{}, false, in("c1", 1, 1), Epoch{ClusterID: "c1", Incarnation: 1, Term: 1}, false, ""},
		{"the same epoch is accepted", seen, false, in("c1", 5, 7), seen, false, ""},
		{"a later term is accepted", seen, false, in("c1", 5, 8), Epoch{ClusterID: "c1", Incarnation: 5, Term: 8}, false, ""},
		{"a later incarnation wins over a lower term", seen, false, in("c1", 6, 1), Epoch{ClusterID: "c1", Incarnation: 6, Term: 1}, false, ""},
		{"a lower term is fenced", seen, false, in("c1", 5, 6), seen, true, "c1/5/6 is older than c1/5/7"},
		{"a lower incarnation is fenced whatever its term", seen, false, in("c1", 4, 99), seen, true, "older"},
		{"an order of another cluster is refused, and the refusal has both cluster ids", seen, false, in("c2", 9, 9), seen, true, `belongs to cluster "c1", the order is from cluster "c2"`},
		{"an epoch without cluster is refused", seen, false, in("", 9, 9), seen, false, "epoch.cluster_id"},
		{"an order without epoch is accepted while no epoch is known", Epoch{}, false, nil, Epoch{}, false, ""},
		{"an order without epoch is accepted while only the cluster is known", Epoch{ClusterID: "c1"}, false, nil, Epoch{ClusterID: "c1"}, false, ""},
		{"an order without epoch is refused once an epoch is known", seen, false, nil, seen, true, "missing"},
		{"an order without epoch is accepted by a standalone agent", seen, true, nil, seen, false, ""},
		{"the shard of the first order is stored", seen, false, sharded("c1", "east", 5, 7), Epoch{ClusterID: "c1", Shard: "east", Incarnation: 5, Term: 7}, false, ""},
		{"the stored shard stays if a scheduler sends no shard", east, false, in("c1", 5, 8), Epoch{ClusterID: "c1", Shard: "east", Incarnation: 5, Term: 8}, false, ""},
		{"an order of another shard is refused, and the refusal has both shards", east, false, sharded("c1", "west", 9, 9), east, true, `belongs to shard "east", the order is from shard "west" of cluster "c1"`},
		{"an order of a shard other than the configured one is refused", Epoch{Shard: "east"}, false, sharded("c2", "west", 1, 1), Epoch{Shard: "east"}, true, "west"},
		{"an order of a cluster other than the configured one is refused", Epoch{ClusterID: "c1"}, false, in("c2", 1, 1), Epoch{ClusterID: "c1"}, true, "c2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			next, no := judgeEpoch(c.seen, c.standalone, c.in)
			if next != c.next {
				t.Errorf("the epoch that the agent stores is %v, want %v", next, c.next)
			}
			checkRefusal(t, no, c.fenced, c.says)
		})
	}
}

func checkRefusal(t *testing.T, no *Refusal, fenced bool, says string) {
	t.Helper()
	switch {
	case says == "" && no != nil:
		t.Errorf("refused: %s", no.Message)
	case says != "" && no == nil:
		t.Errorf("the order was accepted, want a refusal that says %q", says)
	case no != nil && (no.Fenced != fenced || !strings.Contains(no.Message, says)):
		t.Errorf("the order was refused with fenced=%t: %s; want fenced=%t and %q", no.Fenced, no.Message, fenced, says)
	}
}

func TestOrdersOfALowerGenerationAreRefused(t *testing.T) {
	g := func(incarnation, sequence uint64) workload.Generation {
		return workload.Generation{Incarnation: incarnation, Sequence: sequence}
	}
	none := workload.Generation{}
	for _, c := range []struct {
		name              string
		held, deleted, in workload.Generation
		standalone        bool
		apply, delete     string // text of the refusal of an apply and of a delete; empty if the order is accepted
	}{
		{"an order for an unknown workload id is accepted", none, none, g(1, 1), false, "", ""},
		{"a first order without a generation is accepted", none, none, none, false, "", ""},
		{"an order of the stored generation is accepted", g(1, 5), none, g(1, 5), false, "", ""},
		{"an order of a higher generation than the stored one is accepted", g(1, 5), none, g(1, 6), false, "", ""},
		{"an order of a later incarnation than the stored one is accepted", g(1, 5), none, g(2, 1), false, "", ""},
		{"an order of a lower generation than the stored one is refused", g(1, 5), none, g(1, 4), false, "outdated", "outdated"},
		{"an order of an earlier incarnation than the stored one is refused", g(2, 1), none, g(1, 9), false, "outdated", "outdated"},
		{"an order without a generation is refused once a generation is stored", g(1, 5), none, none, false, "missing", "missing"},
		{"a standalone agent accepts an order without a generation", g(1, 5), none, none, true, "", ""},
		{"an apply of a lower generation than the tombstone's is refused, a delete is accepted", none, g(1, 5), g(1, 4), false, "deleted at generation 1.5", ""},
		{"an apply of the tombstone's generation is refused, a delete is accepted", none, g(1, 5), g(1, 5), false, "deleted at generation 1.5", ""},
		{"an order of a higher generation than the tombstone's is accepted", none, g(1, 5), g(1, 6), false, "", ""},
		{"after a delete, an apply without a generation is refused, a delete is accepted", none, g(1, 5), none, false, "missing", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			checkRefusal(t, judgeApply("w", c.held, c.deleted, c.in, c.standalone), true, c.apply)
			checkRefusal(t, judgeDelete("w", c.held, c.in, c.standalone), true, c.delete)
		})
	}
}

func TestOrdersForAnotherAgentInstanceAreRefused(t *testing.T) {
	checkRefusal(t, judgeInstance("i1", "i1"), true, "")
	checkRefusal(t, judgeInstance("i1", ""), true, "")
	checkRefusal(t, judgeInstance("i1", "i0"), true, "this is agent instance i1, but the order is for agent instance i0")
}

func TestOrdersForAnotherNodeAreRefused(t *testing.T) {
	checkRefusal(t, JudgeNode("a", "a"), true, "")
	checkRefusal(t, JudgeNode("a", ""), true, "")
	checkRefusal(t, JudgeNode("a", "b"), true, `this is node "a", but the order is for node "b"`)
}
