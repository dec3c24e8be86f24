package sched

import (
	"fmt"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// lists returns the entry for workload id in its node's list of workloads, with the values that the state
// expects. The functions set change it.
func (w *world) lists(id string, set ...func(*Reported)) Reported {
	x := w.get(id)
	r := Reported{Workload: id, Revision: x.Revision(), Observation: fsm.Observation{State: fsm.ActualRunning, Generation: x.Generation}}
	for _, f := range set {
		f(&r)
	}
	return r
}

func state(s fsm.Actual) func(*Reported) { return func(r *Reported) { r.Observation.State = s } }
func revision(v string) func(*Reported)  { return func(r *Reported) { r.Revision = v } }
func former(r *Reported)                 { r.Observation.Generation.Sequence-- }
func ungenerated(r *Reported)            { r.Observation.Generation = fsm.Generation{} }

func (w *world) compare(node string, listed ...Reported) []Difference {
	n, _ := w.state.Node(node)
	return Compare(w.state, n, listed, func(id string) bool {
		return w.sent[Order{Op: OpApply, Node: node, Workload: id, Generation: w.generationOf(id)}]
	})
}

func (w *world) generationOf(id string) fsm.Generation {
	if x, ok := w.state.Workload(id); ok {
		return x.Generation
	}
	return fsm.Generation{}
}

// note applies the command that records the differences found on a node, and returns its body; nil
// if there is nothing new to record.
func (w *world) note(node string, found []Difference) *commandv1.SetDrifts {
	c := Drifts(w.state, node, found, w.now)
	if c != nil {
		w.do(&commandv1.Command{Body: &commandv1.Command_SetDrifts{SetDrifts: c}})
	}
	return c
}

func told(found []Difference) string {
	var out []string
	for _, d := range found {
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s %s/%s", d.Workload, d.Type, d.Scheduler, d.Agent)))
	}
	return strings.Join(out, "; ")
}

func TestCompareFindsDifferences(t *testing.T) {
	for _, c := range []struct {
		fact   string
		listed func(w *world) []Reported
		want   string
	}{
		{"a workload in the desired state does not differ", func(w *world) []Reported { return []Reported{w.lists("web")} }, ""},
		{"a report without a generation counts", func(w *world) []Reported { return []Reported{w.lists("web", ungenerated)} }, ""},
		{"a workload that is not listed is missing", func(*world) []Reported { return nil }, "web missing_on_agent Running/"},
		{"a workload listed at a former generation is missing", func(w *world) []Reported { return []Reported{w.lists("web", former)} }, "web missing_on_agent Running/"},
		{"a workload reported as gone is missing", func(w *world) []Reported {
			return []Reported{w.lists("web", func(r *Reported) { r.Gone = true })}
		}, "web missing_on_agent Running/"},
		{"another state is a difference", func(w *world) []Reported { return []Reported{w.lists("web", state(fsm.ActualStopped))} }, "web state_mismatch Running/Stopped"},
		{"the case of a state does not matter", func(w *world) []Reported { return []Reported{w.lists("web", state("RUNNING"))} }, ""},
		{"a pending workload does not differ yet", func(w *world) []Reported { return []Reported{w.lists("web", state(fsm.ActualPending))} }, ""},
		{"another revision is a difference", func(w *world) []Reported { return []Reported{w.lists("web", revision("c1-other"))} }, "web revision_mismatch REV/c1-other"},
		{"a report without a revision does not differ in revision", func(w *world) []Reported { return []Reported{w.lists("web", revision(""))} }, ""},
		{"an unknown workload is an orphan", func(w *world) []Reported {
			return []Reported{w.lists("web"), {Workload: "ghost", Observation: fsm.Observation{State: fsm.ActualRunning}}}
		}, "ghost orphan_on_agent /Running"},
		{"a workload of another node is an orphan", func(w *world) []Reported {
			return []Reported{w.lists("web"), {Workload: "db", Observation: fsm.Observation{State: fsm.ActualRunning}}}
		}, "db orphan_on_agent Running on b/Running"},
		{"an instance of a former placement is not drift", func(w *world) []Reported {
			return []Reported{w.lists("web"), w.lists("db", former)}
		}, ""},
		{"a workload that is being deleted is not an orphan", func(w *world) []Reported {
			r := w.lists("web", ungenerated)
			w.do(&commandv1.Command{Body: &commandv1.Command_DeleteWorkload{DeleteWorkload: &commandv1.DeleteWorkload{Id: "web"}}})
			return []Reported{r}
		}, ""},
		{"an order that the agent has not answered yet is no drift", func(w *world) []Reported {
			w.apply("web", func(p *commandv1.WorkloadPut) { p.Spec = []byte("another") })
			w.step()
			return nil
		}, ""},
		{"a workload in a backoff does not differ", func(w *world) []Reported {
			w.say("web", "Failed")
			w.step()
			return nil
		}, ""},
		{"a workload that is to be stopped may be absent", func(w *world) []Reported {
			w.do(&commandv1.Command{Body: &commandv1.Command_SetDesired{SetDesired: &commandv1.SetDesired{Id: "web", Desired: "Stopped"}}})
			w.say("web", "Stopped")
			return nil
		}, ""},
		{"a name that is listed twice counts once", func(w *world) []Reported {
			ghost := Reported{Workload: "ghost", Observation: fsm.Observation{State: fsm.ActualRunning}}
			return []Reported{w.lists("web"), ghost, ghost}
		}, "ghost orphan_on_agent /Running"},
	} {
		t.Run(c.fact, func(t *testing.T) {
			w := newWorld(t)
			w.node("b")
			w.apply("db")
			w.settle()
			w.node("a")
			w.cordon("b", true)
			w.apply("web")
			w.settle()
			want := strings.ReplaceAll(c.want, "REV", w.get("web").Revision())
			if got := told(w.compare("a", c.listed(w)...)); got != want {
				t.Fatalf("Compare found %q, want %q", got, want)
			}
		})
	}
}

// TestOrphanOfALegacyAgentHasItsRevision: the drift of an orphan (an instance without a record) on
// a legacy v1 agent records the revision that the agent runs, so that a person who adopts it keeps
// that revision. The drift of an orphan on a newer agent has no revision, because such agents
// compare contents.
func TestOrphanOfALegacyAgentHasItsRevision(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	for protocol, want := range map[uint32]string{0: "rev-7", 1: ""} {
		n, _ := w.state.Node("a")
		at := *n
		at.Facts.Protocol = protocol
		r := Reported{Workload: "ghost", Revision: "rev-7", Observation: fsm.Observation{State: fsm.ActualRunning}}
		found := Compare(w.state, &at, []Reported{r}, func(string) bool { return false })
		c := Drifts(w.state, "a", found, w.now)
		if len(c.GetOpen()) != 1 || c.Open[0].GetRevision() != want {
			t.Errorf("for an orphan on an agent of protocol %d the state has the drifts %v, want one with revision %q", protocol, c.GetOpen(), want)
		}
	}
}

// TestStatusWithoutInstanceIsNoOrphan: a legacy v1 agent may report a status although its engine has no
// instance. Such a report is not recorded as an orphan (an instance without a record).
func TestStatusWithoutInstanceIsNoOrphan(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	n, _ := w.state.Node("a")
	r := Reported{Workload: "ghost", Nothing: true, Observation: fsm.Observation{State: fsm.ActualStopped}}
	for nothing, want := range map[bool]int{true: 0, false: 1} {
		r.Nothing = nothing
		if got := Compare(w.state, n, []Reported{r}, func(string) bool { return false }); len(got) != want {
			t.Errorf("for a status with Nothing=%v Compare returned %v, want a difference only if Nothing is false", nothing, got)
		}
	}
}

// TestDriftsFitIntoTheLog: if a node has very many orphans (instances without a record), their
// drifts are recorded by several commands, one for each comparison, so that each command fits into the log.
func TestDriftsFitIntoTheLog(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	var found []Difference
	for i := range 1200 {
		found = append(found, Difference{Workload: fmt.Sprintf("%0120d", i), Type: fsm.DriftOrphan, Agent: "Running"})
	}
	for round := range 3 {
		c := w.note("a", found)
		if size := c.SizeVT(); size > 256<<10 || len(c.GetOpen()) == 0 {
			t.Fatalf("round %d records %d drifts in %d bytes, want at least one drift, in at most 256 KiB", round, len(c.GetOpen()), size)
		}
	}
	if c := w.note("a", found); c != nil || w.state.DriftCount() != 1200 {
		t.Fatalf("the state has %d drifts, and the next command records %d more, want all 1200 drifts on record, and no further command", w.state.DriftCount(), len(c.GetOpen()))
	}
	for range 3 {
		w.note("a", nil)
	}
	if w.state.DriftCount() != 0 {
		t.Fatalf("%d drifts are left in the state, want none", w.state.DriftCount())
	}
}

// adopted is a View in which one workload runs an adopted revision.
type adopted struct {
	fsm.View
	w *fsm.Workload
}

func (a adopted) Workload(id string) (*fsm.Workload, bool) {
	if id == a.w.ID {
		return a.w, true
	}
	return a.View.Workload(id)
}

func TestDriftsAreRecordedAndClosed(t *testing.T) {
	running := func(t *testing.T) *world {
		w := newWorld(t)
		w.node("a")
		w.apply("web")
		w.settle()
		return w
	}
	t.Run("a drift is recorded once, and closed when the difference ends", func(t *testing.T) {
		w := running(t)
		if c := w.note("a", w.compare("a")); len(c.GetOpen()) != 1 || c.GetOpen()[0].GetAction() != fsm.ActionReconcile {
			t.Fatalf("after the first comparison the command to record drifts is %v, want one drift with the action reconcile", c)
		}
		if c := w.note("a", w.compare("a")); c != nil {
			t.Fatalf("after a second comparison with the same difference the command to record drifts is %v, want none", c)
		}
		if c := w.note("a", w.compare("a", w.lists("web"))); len(c.GetClosed()) != 1 {
			t.Fatalf("after the difference has ended the command to record drifts is %v, want one that closes the drift", c)
		}
		if n := w.state.DriftCount(); n != 0 {
			t.Fatalf("%d drifts are open after the difference ended, want none", n)
		}
	})
	t.Run("a missing workload stays on record while it is retried", func(t *testing.T) {
		w := running(t)
		w.note("a", w.compare("a"))
		w.say("web", "Missing")
		w.now += w.tuning.MissingGrace
		w.step() // in this step, the planner schedules a retry of web
		if c := w.note("a", w.compare("a")); len(c.GetClosed()) != 0 {
			t.Fatalf("during the backoff of workload web its drift must stay open, but the command is %v", c)
		}
		w.settle()
		if w.note("a", w.compare("a", w.lists("web"))); w.state.DriftCount() != 0 || w.get("web").Status != fsm.StatusRunning {
			t.Fatalf("%d drifts are open, web is %s, want no drift and web running", w.state.DriftCount(), w.get("web").Status)
		}
	})
	t.Run("an imported workload takes over the revision that its node runs", func(t *testing.T) {
		w := running(t)
		web := *w.get("web")
		web.Adopted = "rev-9"
		c := Drifts(adopted{w.state, &web}, "a", []Difference{{Workload: "web", Type: fsm.DriftRevision, Scheduler: "rev-9", Agent: "rev-7"}}, w.now)
		if len(c.GetAdoptions()) != 1 || c.GetAdoptions()[0].GetRevision() != "rev-7" || len(c.GetOpen())+len(c.GetRepairs()) != 0 {
			t.Fatalf("Drifts returned %v, want only the adoption of revision rev-7", c)
		}
		web.Restarts = 1 // since then, a person has requested a restart
		c = Drifts(adopted{w.state, &web}, "a", []Difference{{Workload: "web", Type: fsm.DriftRevision, Scheduler: web.Revision(), Agent: "rev-7"}}, w.now)
		if len(c.GetAdoptions()) != 0 || len(c.GetRepairs()) != 1 {
			t.Fatalf("after a requested restart Drifts returned %v, want a repair and no adoption", c)
		}
	})
	t.Run("a workload with another revision is ordered again with growing pauses", func(t *testing.T) {
		w := running(t)
		begun, repairs := w.now, 0
		for w.now-begun < 3600*second {
			c := w.note("a", w.compare("a", w.lists("web", revision("c1-other"))))
			if repairs += len(c.GetRepairs()); len(c.GetClosed()) != 0 {
				t.Fatalf("the drift must stay open while the node has another revision, but the command is %v", c)
			}
			w.settle() // the node accepts the order, but still reports the wrong revision
			w.now += 30 * second
		}
		if repairs < 4 || repairs > 12 {
			t.Fatalf("workload web got %d repair orders in an hour, want 4 to 12", repairs)
		}
		if w.note("a", w.compare("a", w.lists("web"))); w.state.DriftCount() != 0 {
			t.Fatal("the drift must be closed once the node agrees with the state, but is still open")
		}
	})
	t.Run("an orphan that a person deletes stays on record until it is gone", func(t *testing.T) {
		w := running(t)
		ghost := Reported{Workload: "ghost", Observation: fsm.Observation{State: fsm.ActualRunning}}
		c := w.note("a", w.compare("a", w.lists("web"), ghost))
		if len(c.GetOpen()) != 1 || c.GetOpen()[0].GetAction() != fsm.ActionInvestigate {
			t.Fatalf("after the comparison the command to record drifts is %v, want one drift with the action investigate", c)
		}
		w.now += 3600 * second
		if s := w.plan(); len(s.Orders)+len(s.Commands) != 0 {
			t.Fatalf("the planner must leave an orphan alone, but proposes %+v", s)
		}
		w.do(&commandv1.Command{Body: &commandv1.Command_DropOrphan{DropOrphan: &commandv1.DropOrphan{Node: "a", Workload: "ghost"}}})
		if c := w.note("a", w.compare("a", w.lists("web"), ghost)); c != nil {
			t.Fatalf("while the node deletes the orphan its drift must not change, but the command is %v", c)
		}
		s := w.plan()
		if len(s.Orders) != 1 || s.Orders[0].Op != OpDelete || s.Orders[0].Workload != "ghost" {
			t.Fatalf("the planner gives the orders %+v, want only the order to delete ghost", s.Orders)
		}
		w.sent[s.Orders[0]] = true
		w.answer()
		if w.note("a", w.compare("a", w.lists("web"))); w.state.DriftCount() != 0 || w.state.ResidualCount() != 0 {
			t.Fatalf("the state has %d drifts and %d residuals, want none of either", w.state.DriftCount(), w.state.ResidualCount())
		}
	})
	t.Run("only a difference seen by two comparisons is recorded", func(t *testing.T) {
		w := running(t)
		first := w.compare("a")
		if !Unknown(w.state, "a", first) {
			t.Fatal("Unknown must be true for a difference that the state does not have on record")
		}
		second := w.compare("a", w.lists("web", state(fsm.ActualFailed)))
		if got := Confirmed(w.state, "a", first, second); len(got) != 0 {
			t.Fatalf("Confirmed of two different comparisons returned %v, want none", got)
		}
		if got := Confirmed(w.state, "a", second, second); len(got) != 1 {
			t.Fatalf("Confirmed of two equal comparisons returned %v, want the one difference", got)
		}
		w.note("a", second)
		if Unknown(w.state, "a", second) || len(Confirmed(w.state, "a", nil, second)) != 1 {
			t.Fatal("a recorded drift must not need a second comparison")
		}
	})
}

// The state shortens long texts of a drift. If a node reports the same long texts again, this must not be
// recorded as a new difference.
func TestLongTextsOfADriftAreRecordedOnce(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	for _, d := range []Difference{
		{Workload: "ghost", Type: fsm.DriftOrphan, Agent: "Running", Revision: strings.Repeat("x", fsm.MaxAdopted+1)},
		{Workload: "web", Type: fsm.DriftRevision, Scheduler: strings.Repeat("y", 256), Agent: strings.Repeat("x", 256)},
	} {
		if w.note("a", []Difference{d}) == nil {
			t.Errorf("the difference of type %s must be recorded, but is not", d.Type)
		}
		if c := w.note("a", []Difference{d}); c != nil {
			t.Errorf("the difference of type %s is on record, but the next comparison records it again: %v", d.Type, c)
		}
	}
}

// The drift of an orphan (an instance without a record) stores the revision that its agent reports, even one of
// 256 bytes, the longest that a caller may name.
func TestOrphanKeepsTheLongestRevision(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	longest := strings.Repeat("x", 256)
	w.note("a", []Difference{{Workload: "ghost", Type: fsm.DriftOrphan, Agent: "Running", Revision: longest}})
	if d, ok := w.state.Drift("a", "ghost", fsm.DriftOrphan); !ok || d.Revision != longest {
		t.Errorf("the drift of the orphan must have the revision that the agent reported, but is %+v", d)
	}
}

// A recorded drift must not give a new generation to a workload that was given up. The planner never
// issues an order for such a workload, and the reports of its node, which name the earlier
// generation, would be ignored from then on.
func TestADriftDoesNotRetryAWorkloadThatWasGivenUp(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	w.apply("web")
	w.settle()
	w.fails["web"] = "INVALID_IMAGE"
	w.apply("web", func(p *commandv1.WorkloadPut) { p.Spec = []byte("other") })
	w.settle()
	if !w.get("web").Retry.Terminal {
		t.Fatal("the planner must have given web up, but has not")
	}
	was := w.get("web").Generation
	// The agent reports the revision that the workload had before its last change.
	w.note("a", w.compare("a", w.lists("web", revision("c1-former"), state(fsm.ActualFailed))))
	w.settle()
	w.now += 60 * second
	w.settle()
	if x := w.get("web"); x.Generation != was && !x.Acknowledged {
		t.Errorf("web was given up, so it must keep its generation, but has the unordered generation %s: status %s, acknowledged %t", x.Generation, x.Status, x.Acknowledged)
	}
	r := w.try(&commandv1.Command{Body: &commandv1.Command_SetDesired{SetDesired: &commandv1.SetDesired{Id: "web", Desired: "Running"}}})
	if r.Kind == fsm.AlreadyDone {
		t.Error("starting a workload that was given up must give it a new order, but returned AlreadyDone")
	}
}
