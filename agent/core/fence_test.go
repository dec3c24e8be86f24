package core

import (
	"strings"
	"testing"

	"github.com/persys/compute/agent/workload"
)

func TestJudgeEpoch(t *testing.T) {
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
		says       string // text of the refusal; empty: accepted
	}{
		{"the first epoch is taken", Epoch{}, false, in("c1", 1, 1), Epoch{ClusterID: "c1", Incarnation: 1, Term: 1}, false, ""},
		{"the same epoch is taken", seen, false, in("c1", 5, 7), seen, false, ""},
		{"a later term is taken", seen, false, in("c1", 5, 8), Epoch{ClusterID: "c1", Incarnation: 5, Term: 8}, false, ""},
		{"a later incarnation wins over a lower term", seen, false, in("c1", 6, 1), Epoch{ClusterID: "c1", Incarnation: 6, Term: 1}, false, ""},
		{"a lower term is fenced", seen, false, in("c1", 5, 6), seen, true, "c1/5/6 is older than c1/5/7"},
		{"a lower incarnation is fenced whatever its term", seen, false, in("c1", 4, 99), seen, true, "older"},
		{"another cluster is refused by both names", seen, false, in("c2", 9, 9), seen, true, `belongs to cluster "c1", the order is from cluster "c2"`},
		{"an epoch without cluster is refused", seen, false, in("", 9, 9), seen, false, "epoch.cluster_id"},
		{"no epoch is taken while none is known", Epoch{}, false, nil, Epoch{}, false, ""},
		{"no epoch is taken while only the cluster is known", Epoch{ClusterID: "c1"}, false, nil, Epoch{ClusterID: "c1"}, false, ""},
		{"no epoch is refused once one is known", seen, false, nil, seen, true, "missing"},
		{"no epoch is taken by a standalone agent", seen, true, nil, seen, false, ""},
		{"a shard is remembered", seen, false, sharded("c1", "east", 5, 7), Epoch{ClusterID: "c1", Shard: "east", Incarnation: 5, Term: 7}, false, ""},
		{"and stays when a scheduler names none", east, false, in("c1", 5, 8), Epoch{ClusterID: "c1", Shard: "east", Incarnation: 5, Term: 8}, false, ""},
		{"another shard is refused by both names", east, false, sharded("c1", "west", 9, 9), east, true, `belongs to shard "east", the order is from shard "west" of cluster "c1"`},
		{"a configured shard refuses another one", Epoch{Shard: "east"}, false, sharded("c2", "west", 1, 1), Epoch{Shard: "east"}, true, "west"},
		{"a configured cluster refuses another one", Epoch{ClusterID: "c1"}, false, in("c2", 1, 1), Epoch{ClusterID: "c1"}, true, "c2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			next, no := judgeEpoch(c.seen, c.standalone, c.in)
			if next != c.next {
				t.Errorf("remembers %v, want %v", next, c.next)
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
		t.Errorf("taken, want a refusal that says %q", says)
	case no != nil && (no.Fenced != fenced || !strings.Contains(no.Message, says)):
		t.Errorf("refused with fenced=%t: %s; want fenced=%t and %q", no.Fenced, no.Message, fenced, says)
	}
}

func TestJudgeGeneration(t *testing.T) {
	g := func(incarnation, sequence uint64) workload.Generation {
		return workload.Generation{Incarnation: incarnation, Sequence: sequence}
	}
	none := workload.Generation{}
	for _, c := range []struct {
		name              string
		held, deleted, in workload.Generation
		standalone        bool
		apply, delete     string // text of the refusal; empty: accepted
	}{
		{"a new id", none, none, g(1, 1), false, "", ""},
		{"without generations", none, none, none, false, "", ""},
		{"equal", g(1, 5), none, g(1, 5), false, "", ""},
		{"higher", g(1, 5), none, g(1, 6), false, "", ""},
		{"a later incarnation", g(1, 5), none, g(2, 1), false, "", ""},
		{"lower", g(1, 5), none, g(1, 4), false, "outdated", "outdated"},
		{"a former incarnation", g(2, 1), none, g(1, 9), false, "outdated", "outdated"},
		{"missing", g(1, 5), none, none, false, "missing", "missing"},
		{"missing, standalone", g(1, 5), none, none, true, "", ""},
		{"below a tombstone", none, g(1, 5), g(1, 4), false, "deleted at 1.5", ""},
		{"at a tombstone", none, g(1, 5), g(1, 5), false, "deleted at 1.5", ""},
		{"above a tombstone", none, g(1, 5), g(1, 6), false, "", ""},
		{"missing after a delete", none, g(1, 5), none, false, "missing", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			checkRefusal(t, judgeApply("w", c.held, c.deleted, c.in, c.standalone), true, c.apply)
			checkRefusal(t, judgeDelete("w", c.held, c.in, c.standalone), true, c.delete)
		})
	}
}

func TestJudgeInstance(t *testing.T) {
	checkRefusal(t, judgeInstance("i1", "i1"), true, "")
	checkRefusal(t, judgeInstance("i1", ""), true, "")
	checkRefusal(t, judgeInstance("i1", "i0"), true, "this is instance i1, the order is for i0")
}

func TestJudgeNode(t *testing.T) {
	checkRefusal(t, JudgeNode("a", "a"), true, "")
	checkRefusal(t, JudgeNode("a", ""), true, "")
	checkRefusal(t, JudgeNode("a", "b"), true, `this is node "a", the order is for "b"`)
}
