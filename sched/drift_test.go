package sched

import (
	"fmt"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// lists is the expected report of the node of id.
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

// note records the differences found on a node.
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

func TestCompare(t *testing.T) {
	for _, c := range []struct {
		fact   string
		listed func(w *world) []Reported
		want   string
	}{
		{"what is as it ought to be does not differ", func(w *world) []Reported { return []Reported{w.lists("web")} }, ""},
		{"a peer without generations is believed", func(w *world) []Reported { return []Reported{w.lists("web", ungenerated)} }, ""},
		{"what is not there is missing", func(*world) []Reported { return nil }, "web missing_on_agent Running/"},
		{"what is there at a former generation is missing", func(w *world) []Reported { return []Reported{w.lists("web", former)} }, "web missing_on_agent Running/"},
		{"what is gone is missing", func(w *world) []Reported {
			return []Reported{w.lists("web", func(r *Reported) { r.Gone = true })}
		}, "web missing_on_agent Running/"},
		{"another state", func(w *world) []Reported { return []Reported{w.lists("web", state(fsm.ActualStopped))} }, "web state_mismatch Running/Stopped"},
		{"the same state in other letters is the same", func(w *world) []Reported { return []Reported{w.lists("web", state("RUNNING"))} }, ""},
		{"what is being worked on does not differ yet", func(w *world) []Reported { return []Reported{w.lists("web", state(fsm.ActualPending))} }, ""},
		{"another revision", func(w *world) []Reported { return []Reported{w.lists("web", revision("c1-other"))} }, "web revision_mismatch REV/c1-other"},
		{"no revision says nothing", func(w *world) []Reported { return []Reported{w.lists("web", revision(""))} }, ""},
		{"what nobody knows is an orphan", func(w *world) []Reported {
			return []Reported{w.lists("web"), {Workload: "ghost", Observation: fsm.Observation{State: fsm.ActualRunning}}}
		}, "ghost orphan_on_agent /Running"},
		{"what belongs elsewhere is an orphan", func(w *world) []Reported {
			return []Reported{w.lists("web"), {Workload: "db", Observation: fsm.Observation{State: fsm.ActualRunning}}}
		}, "db orphan_on_agent Running on b/Running"},
		{"what it left behind is stopped without a word", func(w *world) []Reported {
			return []Reported{w.lists("web"), w.lists("db", former)}
		}, ""},
		{"what is being deleted is no orphan", func(w *world) []Reported {
			r := w.lists("web", ungenerated)
			w.do(&commandv1.Command{Body: &commandv1.Command_DeleteWorkload{DeleteWorkload: &commandv1.DeleteWorkload{Id: "web"}}})
			return []Reported{r}
		}, ""},
		{"an order that is not answered", func(w *world) []Reported {
			w.apply("web", func(p *commandv1.WorkloadPut) { p.Spec = []byte("another") })
			w.step()
			return nil
		}, ""},
		{"a backoff", func(w *world) []Reported {
			w.say("web", "Failed")
			w.step()
			return nil
		}, ""},
		{"what is to be stopped may be absent", func(w *world) []Reported {
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
				t.Fatalf("got %q, want %q", got, want)
			}
		})
	}
}

// TestDriftsFitIntoTheLog: very many orphans are recorded in several rounds.
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
			t.Fatalf("round %d: %d drifts of %d bytes", round, len(c.GetOpen()), size)
		}
	}
	if c := w.note("a", found); c != nil || w.state.DriftCount() != 1200 {
		t.Fatalf("%d drifts are noted, and then %d more", w.state.DriftCount(), len(c.GetOpen()))
	}
	for range 3 {
		w.note("a", nil)
	}
	if w.state.DriftCount() != 0 {
		t.Fatalf("%d are left", w.state.DriftCount())
	}
}

func TestDrifts(t *testing.T) {
	running := func(t *testing.T) *world {
		w := newWorld(t)
		w.node("a")
		w.apply("web")
		w.settle()
		return w
	}
	t.Run("a record is opened once, and closed when it is gone", func(t *testing.T) {
		w := running(t)
		if c := w.note("a", w.compare("a")); len(c.GetOpen()) != 1 || c.GetOpen()[0].GetAction() != fsm.ActionReconcile {
			t.Fatalf("%v", c)
		}
		if c := w.note("a", w.compare("a")); c != nil {
			t.Fatalf("again: %v", c)
		}
		if c := w.note("a", w.compare("a", w.lists("web"))); len(c.GetClosed()) != 1 {
			t.Fatalf("after: %v", c)
		}
		if n := w.state.DriftCount(); n != 0 {
			t.Fatalf("%d are open", n)
		}
	})
	t.Run("what is missing stays on record while it is tried again", func(t *testing.T) {
		w := running(t)
		w.note("a", w.compare("a"))
		w.say("web", "Missing")
		w.now += w.tuning.MissingGrace
		w.step() // a backoff
		if c := w.note("a", w.compare("a")); len(c.GetClosed()) != 0 {
			t.Fatalf("closed in the backoff: %v", c)
		}
		w.settle()
		if w.note("a", w.compare("a", w.lists("web"))); w.state.DriftCount() != 0 || w.get("web").Status != fsm.StatusRunning {
			t.Fatalf("%d are open, web is %s", w.state.DriftCount(), w.get("web").Status)
		}
	})
	t.Run("another revision is ordered anew, less and less often", func(t *testing.T) {
		w := running(t)
		begun, repairs := w.now, 0
		for w.now-begun < 3600*second {
			c := w.note("a", w.compare("a", w.lists("web", revision("c1-other"))))
			if repairs += len(c.GetRepairs()); len(c.GetClosed()) != 0 {
				t.Fatalf("closed although it differs: %v", c)
			}
			w.settle() // the node obeys, and has it all the same
			w.now += 30 * second
		}
		if repairs < 4 || repairs > 12 {
			t.Fatalf("%d repairs in an hour", repairs)
		}
		if w.note("a", w.compare("a", w.lists("web"))); w.state.DriftCount() != 0 {
			t.Fatal("still open")
		}
	})
	t.Run("an orphan that a person deletes stays on record until it is gone", func(t *testing.T) {
		w := running(t)
		ghost := Reported{Workload: "ghost", Observation: fsm.Observation{State: fsm.ActualRunning}}
		c := w.note("a", w.compare("a", w.lists("web"), ghost))
		if len(c.GetOpen()) != 1 || c.GetOpen()[0].GetAction() != fsm.ActionInvestigate {
			t.Fatalf("%v", c)
		}
		w.now += 3600 * second
		if s := w.plan(); len(s.Orders)+len(s.Commands) != 0 {
			t.Fatalf("something is done about an orphan: %+v", s)
		}
		w.do(&commandv1.Command{Body: &commandv1.Command_DropOrphan{DropOrphan: &commandv1.DropOrphan{Node: "a", Workload: "ghost"}}})
		if c := w.note("a", w.compare("a", w.lists("web"), ghost)); c != nil {
			t.Fatalf("while it is deleted: %v", c)
		}
		s := w.plan()
		if len(s.Orders) != 1 || s.Orders[0].Op != OpDelete || s.Orders[0].Workload != "ghost" {
			t.Fatalf("%+v", s.Orders)
		}
		w.sent[s.Orders[0]] = true
		w.answer()
		if w.note("a", w.compare("a", w.lists("web"))); w.state.DriftCount() != 0 || w.state.ResidualCount() != 0 {
			t.Fatalf("%d drifts, %d residuals", w.state.DriftCount(), w.state.ResidualCount())
		}
	})
	t.Run("only what two looks saw is new", func(t *testing.T) {
		w := running(t)
		first := w.compare("a")
		if !Unknown(w.state, "a", first) {
			t.Fatal("not unknown")
		}
		second := w.compare("a", w.lists("web", state(fsm.ActualFailed)))
		if got := Confirmed(w.state, "a", first, second); len(got) != 0 {
			t.Fatalf("%v", got)
		}
		if got := Confirmed(w.state, "a", second, second); len(got) != 1 {
			t.Fatalf("%v", got)
		}
		w.note("a", second)
		if Unknown(w.state, "a", second) || len(Confirmed(w.state, "a", nil, second)) != 1 {
			t.Fatal("what is on record needs no second look")
		}
	})
}

// A drift does not order a workload again that was given up: the planner gives no such
// order, and after it no report of the node would count.
func TestADriftOfWhatWasGivenUp(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	w.apply("web")
	w.settle()
	w.fails["web"] = "INVALID_IMAGE"
	w.apply("web", func(p *commandv1.WorkloadPut) { p.Spec = []byte("other") })
	w.settle()
	if !w.get("web").Retry.Terminal {
		t.Fatal("not given up")
	}
	was := w.get("web").Generation
	// The agent says that the former revision is what is there.
	w.note("a", w.compare("a", w.lists("web", revision("c1-former"), state(fsm.ActualFailed))))
	w.settle()
	w.now += 60 * second
	w.settle()
	if x := w.get("web"); x.Generation != was && !x.Acknowledged {
		t.Errorf("a new order %s, and the planner never gives it: %s, acknowledged %t", x.Generation, x.Status, x.Acknowledged)
	}
	r := w.try(&commandv1.Command{Body: &commandv1.Command_SetDesired{SetDesired: &commandv1.SetDesired{Id: "web", Desired: "Running"}}})
	if r.Kind == fsm.AlreadyDone {
		t.Error("a start of what was given up is answered with: done already")
	}
}
