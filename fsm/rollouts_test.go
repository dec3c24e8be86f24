package fsm

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/rollout"
)

// updates returns an update policy with a minimum healthy time of 5 s and a deadline of 30 s.
func updates(parallel int, reverts bool) *commandv1.UpdatePolicy {
	return &commandv1.UpdatePolicy{MaxParallel: int32(parallel), MinHealthy: 5 * second, HealthyDeadline: 30 * second, AutoRevert: reverts}
}

// group returns a command that stores the members web-0 to web-(n-1) of group web with the same
// specification, which version distinguishes. If parallel is above 0, the group has an update
// policy that changes this number of members at a time.
func group(version, n, parallel int, reverts bool) Command {
	var list []*commandv1.WorkloadPut
	for i := range n {
		list = append(list, put(fmt.Sprintf("web-%d", i), func(p *commandv1.WorkloadPut) {
			p.Content, p.Spec = fmt.Sprintf("c1:%064d", version), fmt.Appendf(nil, "version %d", version)
			p.Demand = &commandv1.Demand{Type: "container", CpuMillicores: 100, Group: "web"}
		}).GetPutWorkloads().Workloads[0])
	}
	c := puts("web", list...)
	if parallel > 0 {
		c.GetPutWorkloads().Update = updates(parallel, reverts)
	}
	return c
}

// demanding sets the CPU demands of the members of a group, one after the other. The last value applies to
// all further members.
func demanding(c Command, cpu ...int64) Command {
	for i, p := range c.GetPutWorkloads().GetWorkloads() {
		p.Demand.CpuMillicores = cpu[min(i, len(cpu)-1)]
	}
	return c
}

func advance(id *commandv1.Generation, b *commandv1.AdvanceRollout) Command {
	b.Group, b.IfRollout = "web", id
	return &commandv1.Command{Body: &commandv1.Command_AdvanceRollout{AdvanceRollout: b}}
}

func rolloutAction(action string) Command {
	return &commandv1.Command{Body: &commandv1.Command_SetRollout{SetRollout: &commandv1.SetRollout{Group: "web", Action: action}}}
}

// rolled returns the rollout of web, which must exist.
func (w *world) rolled() *rollout.Rollout {
	w.t.Helper()
	r, ok := w.s.Rollout("web")
	if !ok {
		w.t.Fatal("the state has no rollout record of group web")
	}
	return r
}

func (w *world) wait(d int64) { w.now += d }

// step applies the command that the leader would propose next for the rollout of web, if there is one.
func (w *world) step() {
	w.t.Helper()
	r := w.rolled()
	d := r.Next(w.s.Seen, w.now+second)
	if !d.Idle() {
		w.ok(advance(GenerationPB(RolloutID(r)), &commandv1.AdvanceRollout{
			Settled: d.Settled, Take: d.Take, Complete: d.Complete, Failure: d.Failure, Revert: d.Revert, AwaitPromotion: d.Await,
		}))
	}
}

// everybodyRuns places the members of web on node a. It reports all of them as running, except the named ones.
func (w *world) everybodyRuns(except ...string) {
	w.t.Helper()
	for i := range 9 {
		id := fmt.Sprintf("web-%d", i)
		if wl, ok := w.s.Workload(id); ok && !strings.Contains(strings.Join(except, " "), id) {
			if wl.Node == "" {
				w.ok(w.assign(id, "a"))
			}
			w.run(id)
		}
	}
}

// versions returns, as text, which version of the specification each member of web has, and the
// phase of the rolling update.
func (w *world) versions() string {
	var out []string
	w.s.Group("web", func(x *Workload) bool {
		out = append(out, strings.TrimLeft(strings.TrimPrefix(x.Content, "c1:"), "0"))
		return true
	})
	if r, ok := w.s.Rollout("web"); ok {
		out = append(out, string(r.Phase))
		if r.Reverting {
			out = append(out, "back")
		}
	}
	return strings.Join(out, " ")
}

// rollingWorld returns a world where web runs with 3 members in version 1.
func rollingWorld(t *testing.T) *world {
	w := formed(t, "a")
	w.ok(group(1, 3, 1, false))
	is(t, "all members of a new group are created at once", w.versions(), "1 1 1")
	w.everybodyRuns()
	return w
}

// proceed lets all members run for the minimum healthy time, except the named ones, and applies the next step
// of the rollout.
func (w *world) proceed(except ...string) {
	w.t.Helper()
	w.everybodyRuns(except...)
	w.wait(5 * second)
	w.step()
}

func TestRolloutUpdatesMembersInTurn(t *testing.T) {
	w := rollingWorld(t)
	res := w.ok(group(2, 3, 1, false))
	is(t, "no member has the new version yet", w.versions(), "1 1 1 Running")
	is(t, "revision in the answer, which the waiting member will get", res.Items[0].Revision, "c1-"+strings.Repeat("0", 16))
	is(t, "item 0 of the answer is Unchanged", res.Items[0].Unchanged, false)
	again := w.ok(group(2, 3, 1, false))
	is(t, "item 0 is Unchanged when the same specification is applied again", again.Items[0].Unchanged, true)
	is(t, "number of events of a repeated apply", len(w.events()), 0)
	w.step()
	is(t, "the first member is updated first", w.versions(), "2 1 1 Running")
	w.step()
	is(t, "no other member is changed before the first runs", w.versions(), "2 1 1 Running")
	w.everybodyRuns()
	w.step()
	is(t, "no other member is changed before the first has run for the minimum healthy time", w.versions(), "2 1 1 Running")
	w.proceed()
	is(t, "then the next member gets the new version", w.versions(), "2 2 1 Running")

	read, err := ReadSnapshot(bytes.NewReader(snapshotBytes(t, w.s)))
	if err != nil {
		t.Fatal(err)
	}
	mustEqualStates(t, "out of a snapshot", read, w.s)

	w.proceed()
	w.proceed()
	is(t, "the update completes when all members have the new version", w.versions(), "2 2 2 Completed")
	is(t, "message of the event RolloutCompleted", w.eventOf(EventRolloutCompleted).Message, "web")
	is(t, "number of updates in progress", len(rollingOf(w.s)), 0)
	w.ok(rolloutAction("undo"))
	is(t, "an undo also updates the members in turn", w.versions(), "2 2 2 Running back")
	for range 4 {
		w.proceed()
		w.step()
	}
	is(t, "the undo completes when all members have the former version", w.versions(), "1 1 1 Completed back")
	w.ok(group(3, 3, 0, false))
	is(t, "without an update policy all members change at once", w.versions(), "3 3 3")
	for i := range 3 {
		w.do(remove(fmt.Sprintf("web-%d", i), true))
	}
	is(t, "number of rollout records in the state", w.s.r.rollouts.Len(), 0)
}

func rollingOf(s State) (out []string) {
	s.Rolling(func(r *rollout.Rollout) bool { out = append(out, r.Group); return true })
	return out
}

func TestRolloutBounds(t *testing.T) {
	w := rollingWorld(t)
	w.ok(group(2, 3, 1, false))
	id := GenerationPB(RolloutID(w.rolled()))
	take := func(ids ...string) Result {
		return w.do(advance(id, &commandv1.AdvanceRollout{Take: ids}))
	}
	is(t, "number of skipped steps that change two members although max_parallel is 1", take("web-0", "web-1").Skipped, 1)
	is(t, "no member was changed", w.versions(), "1 1 1 Running")
	w.ok(w.says("web-2", "Failed"))
	is(t, "a running member is not updated while another member is down", take("web-0").Reason,
		"web-0 would be one more than the 1 members of web that may be unavailable")
	is(t, "number of skipped steps that change a member which is down", take("web-2").Skipped, 0)
	is(t, "number of skipped steps that change a member which was changed before", take("web-2").Skipped, 1)
	is(t, "number of skipped steps that change a workload outside of the group", take("w").Skipped, 1)
	w.ok(group(3, 3, 1, false))
	is(t, "number of skipped steps of an update that was superseded", take("web-2").Skipped, 1)
	w.do(advance(GenerationPB(RolloutID(w.rolled())), &commandv1.AdvanceRollout{Complete: true}))
	is(t, "phase of the update after a command to complete it too early", w.rolled().Phase, rollout.Running)
	w.step()
	w.ok(drain("a", true))
	is(t, "a drain evicts no available member while another one is unavailable", w.do(w.evict("web-0", CodeDraining, false)).Reason,
		`workload "web-0" leaves node a only when the update of its group permits it`)
	is(t, "number of skipped evictions of a member that is down", w.do(w.evict("web-2", CodeDraining, false)).Skipped, 0)
	w.ok(setMode("degraded", "etcd is away"))
	is(t, "verdict on a step of the update in a frozen mode", take("web-2").Kind, Frozen)
}

func TestRolloutFails(t *testing.T) {
	fail := func(reverts bool) *world {
		w := rollingWorld(t)
		w.ok(group(2, 3, 1, reverts))
		w.step()
		w.everybodyRuns("web-0")
		w.ok(w.says("web-0", "Failed"))
		w.wait(30 * second)
		w.step()
		return w
	}
	w := fail(false)
	is(t, "the failed update pauses", w.versions(), "2 1 1 Paused")
	is(t, "the record gives the reason of the failure", w.rolled().Reason, "web-0 was not healthy for 5 s within 30 s")
	is(t, "the event gives the reason of the failure", w.eventOf(EventRolloutPaused).Message, "web: web-0 was not healthy for 5 s within 30 s")
	again := w.ok(group(2, 3, 1, false))
	is(t, "items are Unchanged when the same specification is applied to a paused update", fmt.Sprint(again.Items[0].Unchanged, again.Items[1].Unchanged), "true true")
	w.ok(rolloutAction("resume"))
	w.step()
	is(t, "a resumed update gives the member its full deadline again", w.versions(), "2 1 1 Running")
	w.ok(w.retry("web-0", 5, 0, true))
	w.step()
	is(t, "an update fails at once when a member is given up", w.rolled().Reason, "web-0 was given up: RetriesExhausted")
	w.ok(rolloutAction("resume"))
	is(t, `member "web-0" is given up after the update was resumed`, w.workload("web-0").Retry.Terminal, false)
	w.ok(rolloutAction("undo"))
	w.step()
	is(t, "an undo reverts the group", w.versions(), "1 1 1 Running back")

	w = fail(true)
	is(t, "with auto_revert a failed update reverts the group", w.versions(), "2 1 1 Running back")
	w.step()
	w.proceed()
	w.step()
	is(t, "the revert restores the former versions", w.versions(), "1 1 1 Completed back")
	is(t, "the record gives the reason of the rollback", w.rolled().Reason, "web-0 was not healthy for 5 s within 30 s")

	w = fail(false)
	w.ok(group(3, 3, 1, true))
	is(t, "another apply supersedes the revert", w.versions(), "2 1 1 Running")
	w.step()
	is(t, "the rollback begins with the member that is down", w.versions(), "3 1 1 Running")
	w.wait(minute)
	w.step()
	w.step()
	is(t, "if the rollback fails too, the group goes back to the last specification that worked", w.versions(), "1 1 1 Running back")
	w.ok(w.says("web-0", "Failed"))
	w.wait(minute)
	w.step()
	is(t, "a revert that fails pauses", w.versions(), "1 1 1 Paused back")
	is(t, "verdict on an undo of a revert", w.do(rolloutAction("undo")).Kind, Conflict)
	w.ok(rolloutAction("resume"))
	is(t, "a paused rollback can be resumed", w.versions(), "1 1 1 Running back")

	w = fail(false)
	patient := group(2, 3, 1, true)
	patient.GetPutWorkloads().Update.HealthyDeadline = 35 * second
	w.ok(patient)
	w.step()
	is(t, "members that were updated already also get the new time limit", w.versions(), "2 1 1 Running")
}

// TestRolloutOutlivesAFrozenMode: no member can make progress in a frozen mode. So when the mode ends, each
// member has the full time again within which it must become healthy.
func TestRolloutOutlivesAFrozenMode(t *testing.T) {
	w := rollingWorld(t)
	w.ok(group(2, 3, 1, true))
	w.step()
	w.ok(setMode("degraded", "etcd is away"))
	w.wait(10 * minute)
	w.ok(setMode("normal", ""))
	w.step()
	is(t, "versions of the members and phase of the update (the update continues)", w.versions(), "2 1 1 Running")
	w.wait(30 * second)
	w.step()
	is(t, "after the healthy deadline the update is rolled back", w.versions(), "2 1 1 Running back")
}

// TestRolloutOfAStoppedMember: when a user starts a stopped member, the time within which
// it must become healthy starts again.
func TestRolloutOfAStoppedMember(t *testing.T) {
	w := rollingWorld(t)
	w.ok(group(2, 3, 1, true))
	w.step()
	w.ok(setDesired("web-0", "Stopped"))
	w.step()
	w.ok(rolloutAction("pause"))
	w.wait(10 * minute)
	w.ok(rolloutAction("resume"))
	w.ok(setDesired("web-0", "Running"))
	w.step()
	is(t, "the update waits for a member that was started again", w.versions(), "2 2 1 Running")
}

// TestRolloutHoldsTheQuota: the quota is checked again when a waiting member is updated, because other
// workloads may have used the quota meanwhile.
func TestRolloutHoldsTheQuota(t *testing.T) {
	w := rollingWorld(t)
	w.ok(putNamespace(DefaultNamespace, limits(500, 0, 0, 0)))
	w.ok(demanding(group(2, 3, 1, false), 160))
	w.ok(put("other", func(p *commandv1.WorkloadPut) { p.Demand = &commandv1.Demand{Type: "container", CpuMillicores: 150} }))
	w.step()
	is(t, "an update that would exceed the quota pauses", w.versions(), "1 1 1 Paused")
	if why := w.rolled().Reason; !strings.Contains(why, "over the quota of namespace") {
		t.Errorf("the rollout paused with reason %q, want one that names the quota of the namespace", why)
	}
}

// TestWaitingMembersFreeNoQuota: an update makes a member smaller. Until the member is updated, its larger
// demand counts in the quota, so a new member cannot use the difference.
func TestWaitingMembersFreeNoQuota(t *testing.T) {
	w := rollingWorld(t)
	w.ok(putNamespace(DefaultNamespace, limits(500, 0, 0, 0)))
	shrunk := func(n int) Command { return demanding(group(2, n, 1, false), 10, 10, 10, 250) }
	for name, err := range map[string]error{
		"the state machine": w.do(shrunk(4)).Err(),
		"a plan":            Fits(w.s, shrunk(4).GetPutWorkloads(), nil, RoomShares{}),
	} {
		if err == nil || !strings.Contains(err.Error(), "300 used, 250 more asked for, limit 500") || !strings.Contains(err.Error(), "wait for their turn") {
			t.Errorf("%s answered the put with error %v, want a refusal that names the quota and the members that wait for their turn", name, err)
		}
	}
	is(t, "a refused apply changes no member", w.versions(), "1 1 1")
	w.ok(shrunk(3))
	for range 3 {
		w.step()
		w.proceed()
	}
	is(t, "all members get the smaller size", w.versions(), "2 2 2 Completed")
	w.ok(shrunk(4))
	is(t, "CPU that namespace default uses after the update", w.s.UseOf(DefaultNamespace).CPU, 280)
}

// TestRolloutRevertsWithinTheQuota: a failed update to fewer, larger members is reverted to more,
// smaller ones. The restored members need quota while other members are still large. If the quota has no
// room for that, the rollout pauses with a reason.
func TestRolloutRevertsWithinTheQuota(t *testing.T) {
	w := rollingWorld(t)
	w.ok(putNamespace(DefaultNamespace, limits(300, 0, 0, 0)))
	w.ok(demanding(group(2, 2, 1, true), 150))
	w.ok(gone("web-2", "a", nil))
	w.step()
	is(t, "one member has the larger size", w.versions(), "2 1 Running")
	w.ok(w.says("web-0", "Failed"))
	w.wait(minute)
	w.step()
	is(t, "the update is paused", w.versions(), "2 1 Paused")
	if why := w.rolled().Reason; !strings.Contains(why, "it cannot go back: over the quota") {
		t.Errorf("the rollout paused with reason %q, want one that says that the revert is over the quota", why)
	}
	w.ok(putNamespace(DefaultNamespace, limits(350, 0, 0, 0)))
	w.ok(rolloutAction("undo"))
	is(t, "the group reverts once the quota has room", w.versions(), "2 1 1 Running back")
}

// TestRolloutAuthor: events and revisions of a member name the caller who changed the group, not the leader
// that carries out the rolling update.
func TestRolloutAuthor(t *testing.T) {
	w := rollingWorld(t)
	c := group(2, 3, 1, true)
	c.Head = &commandv1.Head{At: w.now, By: "ada"}
	w.ok(c)
	w.step()
	is(t, "caller in the event WorkloadUpdated", w.eventOf(EventWorkloadUpdated).By, "ada")
	is(t, `revisions of member "web-0", each with its author`, told(w.s.Revisions("web-0")), "1:v: 2:v:ada")
	w.wait(31 * second)
	w.step()
	is(t, "author of the event about the revert", w.eventOf(EventRolloutReverting).By, "tester")
	w.step()
	is(t, `revisions of member "web-0" after the revert, each with its author`, told(w.s.Revisions("web-0")), "1:v: 2:v:ada 3:v:tester")
}

// TestRevertSparesMembersThatCallersChanged: an automatic revert does not touch workloads that a caller
// deleted, created or changed meanwhile.
func TestRevertSparesMembersThatCallersChanged(t *testing.T) {
	inWeb := demand(func(d *commandv1.Demand) { d.Group = "web" })
	theirs := func(p *commandv1.WorkloadPut) { p.Namespace, p.Content = "shop", "c1:theirs" }
	for _, c := range []struct {
		name      string
		meanwhile []func(w *world) Command
		want      string
	}{
		{"a deleted member is not restored", []func(*world) Command{func(*world) Command { return remove("web-2", true) }}, "1 1 Completed back"},
		{"a changed member keeps its change", []func(*world) Command{func(*world) Command { return put("web-2", content("c1:mine"), inWeb) }}, "1 1 mine Completed back"},
		{"a created member is kept", []func(*world) Command{func(*world) Command { return put("web-7", content("c1:mine"), inWeb) }}, "1 1 1 mine Completed back"},
		{"a workload of another namespace with the id of a member is kept", []func(*world) Command{
			func(*world) Command { return putNamespace("shop") },
			func(*world) Command { return remove("web-2", true) },
			func(w *world) Command { return put("web-2", theirs) },
		}, "1 1 Completed back"},
		{"a second put of the group is reverted", []func(*world) Command{func(*world) Command { return group(2, 1, 1, true) }}, "1 1 1 Completed back"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := rollingWorld(t)
			w.ok(group(2, 3, 1, true))
			w.step()
			is(t, "the update has begun", w.versions(), "2 1 1 Running")
			for _, do := range c.meanwhile {
				w.ok(do(w))
			}
			w.wait(31 * second)
			w.step()
			for range 8 {
				w.step()
				w.proceed()
			}
			is(t, "versions after the revert", w.versions(), c.want)
		})
	}
}

// TestRolloutKeepsToItsNamespace: if a member of a group is deleted, and a workload with its id is created in another
// namespace, neither the group's rolling update nor its undo changes that workload.
func TestRolloutKeepsToItsNamespace(t *testing.T) {
	w := rollingWorld(t)
	w.ok(group(2, 3, 1, false))
	w.ok(putNamespace("shop"))
	w.ok(remove("web-0", true))
	same := group(1, 1, 0, false).GetPutWorkloads().Workloads[0]
	same.Namespace, same.Demand.Group = "shop", ""
	w.ok(puts("", same))
	w.everybodyRuns()
	w.step()
	is(t, "the rollout pauses without a change of the workload in another namespace", w.versions(), "1 1 Paused")
	is(t, "content of the workload in another namespace", w.workload("web-0").Content, same.Content)
	refused(t, w.do(rolloutAction("undo")), Conflict, `workload web-0 is in namespace "shop" and cannot be moved to "default"`)
}

// TestRolloutEvents: each event of a rollout has the namespace of the group, and the last event has the outcome.
func TestRolloutEvents(t *testing.T) {
	for name, end := range map[string]func(*world){
		"deleted": func(w *world) {
			for i := range 3 {
				w.ok(remove(fmt.Sprint("web-", i), true))
			}
		},
		"all members move to another group": func(w *world) {
			c := group(3, 3, 0, false)
			for _, p := range c.GetPutWorkloads().Workloads {
				p.Demand.Group = "shop"
				w.ok(puts("", p))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := rollingWorld(t)
			w.ok(group(2, 3, 1, false))
			is(t, "namespace of the event about the start", w.eventOf(EventRolloutStarted).In(), DefaultNamespace)
			end(w)
			_, there := w.s.Rollout("web")
			is(t, "the group has a rollout record", there, false)
			e := w.eventOf(EventRolloutSuperseded)
			is(t, "namespace and message of the last event of the update", e.In()+", "+e.Message, "default, web: no member is left")
		})
	}
}

func TestRolloutChangesTheNumberOfMembers(t *testing.T) {
	w := rollingWorld(t)
	w.ok(group(2, 3, 1, false))
	w.step()
	w.ok(group(2, 5, 1, false))
	is(t, "an apply creates additional members at once", w.versions(), "2 1 1 2 2 Running")
	w.everybodyRuns("web-4")
	w.wait(5 * second)
	w.step()
	is(t, "the other members wait until the new ones have settled", w.versions(), "2 1 1 2 2 Running")
	w.ok(w.assign("web-4", "a"))
	w.proceed()
	is(t, "versions of the members and phase of the update (the update continues)", w.versions(), "2 2 1 2 2 Running")
	w.ok(group(2, 2, 1, false))
	for _, id := range []string{"web-2", "web-3", "web-4"} {
		w.ok(gone(id, "a", nil))
	}
	is(t, "an apply deletes surplus members at once", w.versions(), "2 2 Running")
	w.proceed()
	is(t, "the remaining members are updated", w.versions(), "2 2 Completed")
	w.ok(group(2, 3, 1, false))
	is(t, "additional members with the same specification wait for no turn", w.versions(), "2 2 2 Completed")

	w.everybodyRuns()
	w.ok(setDesired("web-1", "Stopped"))
	w.ok(w.says("web-1", "Stopped"))
	w.ok(remove("web-2", true))
	w.ok(group(3, 3, 1, false))
	is(t, "members that an apply starts or creates do not wait for their turn", w.versions(), "2 3 3 Running")
	w.everybodyRuns()
	w.ok(setDesired("web-0", "Stopped"))
	w.step()
	is(t, "a member that was stopped meanwhile gets the new version", w.versions(), "3 3 3 Running")
	is(t, `desired state of member "web-0", which was stopped`, w.workload("web-0").Desired, DesiredStopped)
	w.ok(w.says("web-0", "Stopped"))
	w.wait(5 * second)
	w.step()
	is(t, "the update does not wait for the stopped member", w.versions(), "3 3 3 Completed")

	w.ok(setDesired("web-0", "Running"))
	w.everybodyRuns()
	w.ok(group(4, 3, 1, false))
	w.ok(put("web-2", content("c1:mine"), demand(func(d *commandv1.Demand) { d.Group = "web" })))
	for range 4 {
		w.proceed()
	}
	is(t, "the update does not touch a member that a user changed by itself", w.versions(), "4 4 mine Completed")
}

// TestUndoOfAPausedRevert: during an update, a user applies the previous specification and pauses this second
// update. If the user then undoes it, the group still gets the previous specification.
func TestUndoOfAPausedRevert(t *testing.T) {
	w := rollingWorld(t)
	w.ok(group(2, 3, 1, false))
	w.step()
	w.ok(group(1, 3, 1, false))
	w.ok(rolloutAction("pause"))
	w.ok(rolloutAction("undo"))
	is(t, "the undo starts a rollback", w.versions(), "2 1 1 Running back")
	w.step()
	is(t, "the group is rolled back", w.versions(), "1 1 1 Running back")
}

func TestRolloutIsRefused(t *testing.T) {
	w := rollingWorld(t)
	c := group(2, 3, 1, false)
	c.GetPutWorkloads().Update.HealthyDeadline = 5 * second
	is(t, "a deadline shorter than the minimum healthy time is refused", w.do(c).Reason, "update.healthy_deadline: 5000000000 ns must be more than min_healthy_time, 5000000000 ns, and at most a day")
	is(t, "an action on a group without an update is not found", w.do(rolloutAction("pause")).Kind, NotFound)
	w.ok(group(2, 3, 1, false))
	is(t, "an unknown action is refused", w.do(rolloutAction("stop")).Kind, Invalid)
	w.ok(rolloutAction("pause"))
	is(t, "a pause of a paused update is AlreadyDone", w.do(rolloutAction("pause")).Kind, AlreadyDone)
	c = rolloutAction("resume")
	c.Head = &commandv1.Head{At: w.now, By: "ada", Namespaces: []string{"shop"}}
	is(t, "a user of another namespace is refused", w.do(c).Kind, Denied)
	w.ok(rolloutAction("resume"))
}
