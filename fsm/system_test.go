package fsm

import (
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

func systemPut(p *commandv1.WorkloadPut) {
	p.Demand.Template = &commandv1.Template{Kind: TemplateSystem}
}

func placeMembers(changes ...*commandv1.MemberChange) Command {
	return &commandv1.Command{Body: &commandv1.Command_PlaceMembers{PlaceMembers: &commandv1.PlaceMembers{Changes: changes}}}
}

// member returns the change that creates the member of a system workload (one instance per node)
// for a node.
func (w *world) member(template, node string) *commandv1.MemberChange {
	return &commandv1.MemberChange{Template: template, IfGeneration: w.generation(template), Node: node}
}

// noMember returns the change that deletes the member of a system workload for a node.
func (w *world) noMember(template, node string) *commandv1.MemberChange {
	c := w.member(template, node)
	c.Delete, c.Message = true, "the node no longer matches"
	return c
}

// updated returns a command that gives a system workload another specification, with an update
// policy that changes one member at a time.
func updated(id string, opts ...func(*commandv1.WorkloadPut)) Command {
	c := put(id, append(opts, systemPut, func(p *commandv1.WorkloadPut) { p.Content, p.Spec = "c1:bb", []byte("y") })...)
	c.GetPutWorkloads().Update = &commandv1.UpdatePolicy{MaxParallel: 1, MinHealthy: 1e9, HealthyDeadline: 60e9}
	return c
}

// systemScenario has members that are created, refused, updated in a rolling update, undone, stopped and deleted.
func systemScenario(w *world) {
	w.do(register("a"))
	w.do(register("b"))
	w.do(put("log", systemPut))
	w.do(w.assign("log", "a"))
	w.do(placeMembers(w.member("log", "a"), w.member("log", "b"), w.member("log", "c"), w.noMember("log", "c")))
	w.do(placeMembers(w.member("log", "a")))
	w.do(put("log-a"))
	w.do(w.assign("log-a", "a"))
	w.do(w.assign("log-b", "a"))
	w.do(w.assign("log-b", "b"))
	w.run("log-a")
	w.run("log-b")
	w.do(updated("log"))
	if r, ok := w.s.Rollout("log"); ok {
		w.do(&commandv1.Command{Body: &commandv1.Command_AdvanceRollout{AdvanceRollout: &commandv1.AdvanceRollout{
			Group: "log", IfRollout: GenerationPB(RolloutID(r)), Take: []string{"log-a"},
		}}})
	}
	w.do(&commandv1.Command{Body: &commandv1.Command_SetRollout{SetRollout: &commandv1.SetRollout{Group: "log", Action: "undo"}}})
	w.do(setDesired("log", "Stopped"))
	w.do(setDesired("log", "Running"))
	w.do(userRetry("log"))
	w.do(register("c"))
	w.do(drain("c", true))
	w.do(placeMembers(w.member("log", "c")))
	w.do(placeMembers(w.noMember("log", "b")))
	w.do(placeMembers(w.member("log", "b")))
	w.do(remove("log", false))
}

func TestMembersOfASystemWorkload(t *testing.T) {
	start := func(t *testing.T) *world {
		w := formed(t, "a", "b")
		w.ok(put("log", systemPut))
		w.ok(placeMembers(w.member("log", "a"), w.member("log", "b")))
		return w
	}
	t.Run("a member is bound to its node", func(t *testing.T) {
		w := start(t)
		m, _ := w.s.Workload("log-a")
		c := m.Demand.Constraints[len(m.Demand.Constraints)-1]
		if !m.IsMember() || m.Owner != "log" || m.SpecID() != "log" || m.Demand.Group != "log" || c.Key != NodeIDLabel || c.Values[0] != "a" {
			t.Errorf("the member of node a is %+v with demand %+v, want owner and group log and a constraint on node a", m, m.Demand)
		}
	})
	t.Run("a node gets only one member of a system workload", func(t *testing.T) {
		w := start(t)
		if r := w.do(placeMembers(w.member("log", "a"))); r.Skipped != 1 || !strings.Contains(r.Reason, "already") {
			t.Errorf("a command that creates a second member for node a returned %+v, want it skipped", r)
		}
	})
	t.Run("an id that is taken or too long is replaced by a hash", func(t *testing.T) {
		w := formed(t, "a")
		w.ok(put("log-a"))
		w.ok(put("log", systemPut))
		w.ok(placeMembers(w.member("log", "a")))
		m, ok := MemberOf(w.s, "log", "a")
		if !ok || m.ID != HashedID("log", "a") {
			t.Fatalf("for node a MemberOf returned the member %v (found: %t), want a member with a hashed id", m, ok)
		}
		w.ok(remove("log-a", true))
		if r := w.do(placeMembers(w.member("log", "a"))); r.Skipped != 1 {
			t.Errorf("after the plain id has become free, a command that creates another member for node a returned %+v, want it skipped", r)
		}
	})
	t.Run("members follow the put of their system workload", func(t *testing.T) {
		w := start(t)
		w.ok(put("log", systemPut, func(p *commandv1.WorkloadPut) { p.Content = "c1:bb" }))
		for _, id := range []string{"log-a", "log-b"} {
			if m, _ := w.s.Workload(id); m.Content != "c1:bb" || m.Run.Node == "" || m.Owner != "log" {
				t.Errorf("member %s has content %s, want c1:bb as its system workload", id, m.Content)
			}
		}
	})
	t.Run("with an update policy, members wait for their turn, and undo changes the system workload too", func(t *testing.T) {
		w := start(t)
		for _, id := range []string{"log-a", "log-b"} {
			w.ok(w.assign(id, strings.TrimPrefix(id, "log-")))
			w.run(id)
		}
		before, _ := w.s.Workload("log")
		w.ok(updated("log"))
		r, ok := w.s.Rollout("log")
		if m, _ := w.s.Workload("log-a"); !ok || len(r.Members) != 2 || m.Content == "c1:bb" {
			t.Fatalf("the update is %+v, want one of two members, and member log-a without the new content", r)
		}
		w.ok(&commandv1.Command{Body: &commandv1.Command_SetRollout{SetRollout: &commandv1.SetRollout{Group: "log", Action: "undo"}}})
		if after, _ := w.s.Workload("log"); after.Content != before.Content {
			t.Errorf("after the undo, the system workload has content %s, want %s", after.Content, before.Content)
		}
	})
	t.Run("a member cannot be put, and a group cannot take the name of a system workload", func(t *testing.T) {
		w := start(t)
		for _, c := range []Command{
			put("log-a"),
			&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{GroupOf: "log"}}},
			put("log"),
		} {
			if r := w.do(c); r.Kind != Conflict {
				t.Errorf("command %v returned %s: %s; want Conflict", c, r.Kind, r.Reason)
			}
		}
	})
	t.Run("stop and delete reach every member", func(t *testing.T) {
		w := start(t)
		w.ok(setDesired("log", "Stopped"))
		if m, _ := w.s.Workload("log-b"); m.Desired != DesiredStopped {
			t.Errorf("after a stop of the system workload, its member has the desired state %s, want Stopped", m.Desired)
		}
		w.ok(remove("log", false))
		if n := w.s.WorkloadCount(); n != 0 {
			t.Errorf("after the delete of the system workload, %d workloads are left, want none", n)
		}
	})
}
