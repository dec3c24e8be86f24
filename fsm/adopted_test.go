package fsm

import (
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

func adoptRevision(g *commandv1.Generation, workload, node, revision string) Command {
	return &commandv1.Command{Body: &commandv1.Command_SetDrifts{SetDrifts: &commandv1.SetDrifts{
		Adoptions: []*commandv1.DriftAdoption{{Workload: workload, Node: node, IfGeneration: g, Revision: revision}},
	}}}
}

// imported returns the state after an import from etcd. Its workload web runs on node a with the revision rev-9, which
// a legacy v1 scheduler ordered.
func imported(t *testing.T) *world {
	t.Helper()
	w := formed(t, "a", "b")
	w.ok(put("web"))
	w.ok(w.assign("web", "a"))
	w.ok(w.says("web", "Running"))
	a := Assemble(Origin{ClusterID: "c1", FeatureLevel: FeatureLevel})
	for _, id := range []string{"a", "b"} {
		if err := a.Node(nodePB(w.node(id))); err != nil {
			t.Fatal(err)
		}
	}
	m := workloadPB(w.workload("web"))
	m.Adopted = "rev-9"
	if err := a.Workload(m); err != nil {
		t.Fatal(err)
	}
	s, err := a.State()
	if err != nil {
		t.Fatal(err)
	}
	next := formed(t)
	if next.s, err = Restored(s, next.s, RestoreInfo{At: next.now, By: "tester", Source: "etcd"}); err != nil {
		t.Fatal(err)
	}
	next.index, next.term = next.s.Info().Index, next.s.Info().Term
	return next
}

// TestAdoptedRevision: an imported workload gets the revision that its node reports, and no new order, until its
// specification changes.
func TestAdoptedRevision(t *testing.T) {
	for _, c := range []struct {
		fact string
		do   func(t *testing.T, w *world)
		want string // expected revision of the workload; "" = the revision derived from the content hash
	}{
		{"an import keeps the revision", func(*testing.T, *world) {}, "rev-9"},
		{"the reported revision is adopted without a new order", func(t *testing.T, w *world) {
			before := *w.workload("web")
			w.ok(adoptRevision(w.generation("web"), "web", "a", "rev-7"))
			if after := w.workload("web"); after.Generation != before.Generation || !after.Acknowledged {
				t.Errorf("the report must not cause a new order for the workload, but its record is %+v", after)
			}
		}, "rev-7"},
		{"a revision that another node reports is not adopted", func(t *testing.T, w *world) {
			is(t, "number of skipped items of the command", w.do(adoptRevision(w.generation("web"), "web", "b", "rev-7")).Skipped, 1)
		}, "rev-9"},
		{"a revision that is too long is not adopted", func(t *testing.T, w *world) {
			is(t, "number of skipped items of the command", w.do(adoptRevision(w.generation("web"), "web", "a", strings.Repeat("x", MaxAdopted+1))).Skipped, 1)
		}, "rev-9"},
		{"an apply of the same content keeps the adopted revision", func(t *testing.T, w *world) { w.do(put("web")) }, "rev-9"},
		{"a stop keeps the adopted revision", func(t *testing.T, w *world) { w.ok(setDesired("web", "Stopped")) }, "rev-9"},
		{"a changed content drops the adopted revision", func(t *testing.T, w *world) { w.ok(put("web", content("c1:fedcba9876543210"))) }, ""},
		{"a move drops the adopted revision", func(t *testing.T, w *world) {
			w.ok(nodeState("a", false))
			w.ok(w.evict("web", CodeNodeLost, true))
			w.ok(w.assign("web", "b"))
		}, ""},
		{"a restart drops the adopted revision", func(t *testing.T, w *world) { w.ok(userRetry("web")) }, ""},
	} {
		t.Run(c.fact, func(t *testing.T) {
			w := imported(t)
			c.do(t, w)
			got := w.workload("web")
			if c.want == "" {
				is(t, "revision of the content", strings.HasPrefix(got.Revision(), "c1-"), true)
				return
			}
			is(t, `revision of workload "web"`, got.Revision(), c.want)
			back, err := workloadOf(workloadPB(got))
			if err != nil || back.Adopted != got.Adopted {
				t.Errorf("the record read from the snapshot has the adopted revision %q (error %v), want the one before the snapshot", back.Adopted, err)
			}
		})
	}
}
