package fsm

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/rollout"
)

// policy returns an update policy with 5 s of minimum healthy time and a deadline of 30 s.
func policy(parallel int, reverts bool) *commandv1.UpdatePolicy {
	return &commandv1.UpdatePolicy{MaxParallel: int32(parallel), MinHealthy: 5 * second, HealthyDeadline: 30 * second, AutoRevert: reverts}
}

// group puts web-0 to web-(n-1) in one version, with an update policy if parallel is above 0.
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
		c.GetPutWorkloads().Update = policy(parallel, reverts)
	}
	return c
}

// demanding sets the CPU demand of the members of a group. The last amount is that of all
// further members.
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
		w.t.Fatal("web has no rollout")
	}
	return r
}

func (w *world) wait(d int64) { w.now += d }

// step applies the command that the leader would propose for the rollout of web, if any.
func (w *world) step() {
	w.t.Helper()
	r := w.rolled()
	d := r.Next(w.s.Seen, w.now+second)
	if !d.Idle() {
		w.ok(advance(GenerationPB(RolloutID(r)), &commandv1.AdvanceRollout{
			Settled: d.Settled, Take: d.Take, Complete: d.Complete, Failure: d.Failure, Revert: d.Revert,
		}))
	}
}

// everybodyRuns places the members of web on node a and reports them as running, except some.
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

// versions formats the versions of the members of web and the phase of the rollout.
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
	is(t, "what is new needs no turns", w.versions(), "1 1 1")
	w.everybodyRuns()
	return w
}

// proceed lets the members run for the minimum healthy time, and takes the next step.
func (w *world) proceed(except ...string) {
	w.t.Helper()
	w.everybodyRuns(except...)
	w.wait(5 * second)
	w.step()
}

func TestRollout(t *testing.T) {
	w := rollingWorld(t)
	res := w.ok(group(2, 3, 1, false))
	is(t, "nobody has it yet", w.versions(), "1 1 1 Running")
	is(t, "the answer tells of what they get", res.Items[0].Revision, "c1-"+strings.Repeat("0", 16))
	is(t, "and changes something", res.Items[0].Unchanged, false)
	again := w.ok(group(2, 3, 1, false))
	is(t, "applied again it goes on as it is", again.Items[0].Unchanged, true)
	is(t, "without another event", len(w.events()), 0)
	w.step()
	is(t, "the first has its turn", w.versions(), "2 1 1 Running")
	w.step()
	is(t, "and nobody else before it runs", w.versions(), "2 1 1 Running")
	w.everybodyRuns()
	w.step()
	is(t, "nor before it has run for long enough", w.versions(), "2 1 1 Running")
	w.proceed()
	is(t, "then the next", w.versions(), "2 2 1 Running")

	read, err := ReadSnapshot(bytes.NewReader(snapshotBytes(t, w.s)))
	if err != nil {
		t.Fatal(err)
	}
	mustEqualStates(t, "out of a snapshot", read, w.s)

	w.proceed()
	w.proceed()
	is(t, "until all have it", w.versions(), "2 2 2 Completed")
	is(t, "which is told", w.eventOf(EventRolloutCompleted).Message, "web")
	is(t, "nothing goes on", len(rollingOf(w.s)), 0)
	w.ok(rolloutAction("undo"))
	is(t, "an undo goes through it as well", w.versions(), "2 2 2 Running back")
	for range 4 {
		w.proceed()
		w.step()
	}
	is(t, "until it is undone", w.versions(), "1 1 1 Completed back")
	w.ok(group(3, 3, 0, false))
	is(t, "without a policy all change at once", w.versions(), "3 3 3")
	for i := range 3 {
		w.do(remove(fmt.Sprintf("web-%d", i), true))
	}
	is(t, "nothing is left of the group", w.s.r.rollouts.Len(), 0)
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
	is(t, "two at a time are one too many", take("web-0", "web-1").Skipped, 1)
	is(t, "nobody was changed", w.versions(), "1 1 1 Running")
	w.ok(w.says("web-2", "Failed"))
	is(t, "nor one that runs while another is down", take("web-0").Reason,
		"web-0 would be one more than the 1 members of web that may be unavailable")
	is(t, "but the one that is down", take("web-2").Skipped, 0)
	is(t, "its turn comes once", take("web-2").Skipped, 1)
	is(t, "a stranger has none", take("w").Skipped, 1)
	w.ok(group(3, 3, 1, false))
	is(t, "a step for what was superseded is refused", take("web-2").Skipped, 1)
	w.do(advance(GenerationPB(RolloutID(w.rolled())), &commandv1.AdvanceRollout{Complete: true}))
	is(t, "it is not complete because somebody says so", w.rolled().Phase, rollout.Running)
	w.step()
	w.ok(drain("a", true))
	is(t, "a drain takes nobody else meanwhile", w.do(w.evict("web-0", CodeDraining, false)).Reason,
		`workload "web-0" waits with leaving node a for the update of its group`)
	is(t, "but what is down", w.do(w.evict("web-2", CodeDraining, false)).Skipped, 0)
	w.ok(setMode("degraded", "etcd is away"))
	is(t, "a frozen cluster stays as it is", take("web-2").Kind, Frozen)
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
	is(t, "it pauses", w.versions(), "2 1 1 Paused")
	is(t, "and says why", w.rolled().Reason, "web-0 was not healthy for 5 s within 30 s")
	is(t, "to everybody", w.eventOf(EventRolloutPaused).Message, "web: web-0 was not healthy for 5 s within 30 s")
	again := w.ok(group(2, 3, 1, false))
	is(t, "applied again it stays paused", fmt.Sprint(again.Items[0].Unchanged, again.Items[1].Unchanged), "true true")
	w.ok(rolloutAction("resume"))
	w.step()
	is(t, "resumed it has its time again", w.versions(), "2 1 1 Running")
	w.ok(w.retry("web-0", 5, 0, true))
	w.step()
	is(t, "what is given up fails at once", w.rolled().Reason, "web-0 was given up: RetriesExhausted")
	w.ok(rolloutAction("resume"))
	is(t, "resumed it is tried again", w.workload("web-0").Retry.Terminal, false)
	w.ok(rolloutAction("undo"))
	w.step()
	is(t, "undone it goes back", w.versions(), "1 1 1 Running back")

	w = fail(true)
	is(t, "or it goes back by itself", w.versions(), "2 1 1 Running back")
	w.step()
	w.proceed()
	w.step()
	is(t, "to what was there", w.versions(), "1 1 1 Completed back")
	is(t, "and says why", w.rolled().Reason, "web-0 was not healthy for 5 s within 30 s")

	w = fail(false)
	w.ok(group(3, 3, 1, true))
	is(t, "another apply supersedes it", w.versions(), "2 1 1 Running")
	w.step()
	is(t, "and begins with what is down", w.versions(), "3 1 1 Running")
	w.wait(minute)
	w.step()
	w.step()
	is(t, "if that fails too, it goes back to what last worked", w.versions(), "1 1 1 Running back")
	w.ok(w.says("web-0", "Failed"))
	w.wait(minute)
	w.step()
	is(t, "a way back that fails pauses", w.versions(), "1 1 1 Paused back")
	is(t, "there is nothing behind it to go back to", w.do(rolloutAction("undo")).Kind, Conflict)
	w.ok(rolloutAction("resume"))
	is(t, "but it can go on", w.versions(), "1 1 1 Running back")

	w = fail(false)
	patient := group(2, 3, 1, true)
	patient.GetPutWorkloads().Update.HealthyDeadline = 35 * second
	w.ok(patient)
	w.step()
	is(t, "applied with more time, what has it already has that, too", w.versions(), "2 1 1 Running")
}

// TestRolloutOutlivesAFrozenMode: the healthy deadline of a member restarts after a frozen mode.
func TestRolloutOutlivesAFrozenMode(t *testing.T) {
	w := rollingWorld(t)
	w.ok(group(2, 3, 1, true))
	w.step()
	w.ok(setMode("degraded", "etcd is away"))
	w.wait(10 * minute)
	w.ok(setMode("normal", ""))
	w.step()
	is(t, "it goes on", w.versions(), "2 1 1 Running")
	w.wait(30 * second)
	w.step()
	is(t, "and has its deadline", w.versions(), "2 1 1 Running back")
}

// TestRolloutOfAStoppedMember: the healthy deadline of a member that was stopped on request
// restarts when the member is started.
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
	is(t, "started again, it is waited for", w.versions(), "2 2 1 Running")
}

// TestRolloutHoldsTheQuota: the quota is checked again when a waiting member is updated, and
// other workloads may have used it.
func TestRolloutHoldsTheQuota(t *testing.T) {
	w := rollingWorld(t)
	w.ok(putNamespace(DefaultNamespace, limits(500, 0, 0, 0)))
	w.ok(demanding(group(2, 3, 1, false), 160))
	w.ok(put("other", func(p *commandv1.WorkloadPut) { p.Demand = &commandv1.Demand{Type: "container", CpuMillicores: 150} }))
	w.step()
	is(t, "the turn would go over the quota", w.versions(), "1 1 1 Paused")
	if why := w.rolled().Reason; !strings.Contains(why, "over the quota of namespace") {
		t.Errorf("paused with %q", why)
	}
}

// TestRolloutHoldsTheQuotaAtOnce: a waiting member that will shrink frees no quota before it is
// updated, so a new member cannot use it.
func TestRolloutHoldsTheQuotaAtOnce(t *testing.T) {
	w := rollingWorld(t)
	w.ok(putNamespace(DefaultNamespace, limits(500, 0, 0, 0)))
	shrunk := func(n int) Command { return demanding(group(2, n, 1, false), 10, 10, 10, 250) }
	for name, err := range map[string]error{
		"the state machine": w.do(shrunk(4)).Err(),
		"a plan":            Fits(w.s, shrunk(4).GetPutWorkloads(), nil),
	} {
		if err == nil || !strings.Contains(err.Error(), "300 used, 250 more asked for, limit 500") || !strings.Contains(err.Error(), "wait for their turn") {
			t.Errorf("%s says %v", name, err)
		}
	}
	is(t, "nothing has begun", w.versions(), "1 1 1")
	w.ok(shrunk(3))
	for range 3 {
		w.step()
		w.proceed()
	}
	is(t, "they shrink first", w.versions(), "2 2 2 Completed")
	w.ok(shrunk(4))
	is(t, "then there is room", w.s.UseOf(DefaultNamespace).CPU, 280)
}

// TestRolloutRevertsWithinTheQuota: a revert to more and smaller members needs quota for them
// beside the members that have not shrunk yet. A rollout that cannot revert pauses with a reason.
func TestRolloutRevertsWithinTheQuota(t *testing.T) {
	w := rollingWorld(t)
	w.ok(putNamespace(DefaultNamespace, limits(300, 0, 0, 0)))
	w.ok(demanding(group(2, 2, 1, true), 150))
	w.ok(gone("web-2", "a", nil))
	w.step()
	is(t, "one has grown", w.versions(), "2 1 Running")
	w.ok(w.says("web-0", "Failed"))
	w.wait(minute)
	w.step()
	is(t, "it stands still", w.versions(), "2 1 Paused")
	if why := w.rolled().Reason; !strings.Contains(why, "it cannot go back: over the quota") {
		t.Errorf("paused with %q", why)
	}
	w.ok(putNamespace(DefaultNamespace, limits(350, 0, 0, 0)))
	w.ok(rolloutAction("undo"))
	is(t, "with room it goes back", w.versions(), "2 1 1 Running back")
}

// TestRolloutAuthor: events and revisions of a member name the caller that put the group, not the
// leader that advances the rollout.
func TestRolloutAuthor(t *testing.T) {
	w := rollingWorld(t)
	c := group(2, 3, 1, true)
	c.Head = &commandv1.Head{At: w.now, By: "ada"}
	w.ok(c)
	w.step()
	is(t, "event", w.eventOf(EventWorkloadUpdated).By, "ada")
	is(t, "revisions", told(w.s.Revisions("web-0")), "1:v: 2:v:ada")
	w.wait(31 * second)
	w.step()
	is(t, "who begins the way back", w.eventOf(EventRolloutReverting).By, "tester")
	w.step()
	is(t, "its revision", told(w.s.Revisions("web-0")), "1:v: 2:v:ada 3:v:tester")
}

// TestRolloutRevertsItsOwnOnly: an automatic revert does not touch workloads that a caller
// deleted, created or changed meanwhile.
func TestRolloutRevertsItsOwnOnly(t *testing.T) {
	inWeb := demand(func(d *commandv1.Demand) { d.Group = "web" })
	theirs := func(p *commandv1.WorkloadPut) { p.Namespace, p.Content = "shop", "c1:theirs" }
	for _, c := range []struct {
		name      string
		meanwhile []func(w *world) Command
		want      string
	}{
		{"a deleted member", []func(*world) Command{func(*world) Command { return remove("web-2", true) }}, "1 1 Completed back"},
		{"a changed member", []func(*world) Command{func(*world) Command { return put("web-2", content("c1:mine"), inWeb) }}, "1 1 mine Completed back"},
		{"a created member", []func(*world) Command{func(*world) Command { return put("web-7", content("c1:mine"), inWeb) }}, "1 1 1 mine Completed back"},
		{"a workload of another namespace with the id of a member", []func(*world) Command{
			func(*world) Command { return putNamespace("shop") },
			func(*world) Command { return remove("web-2", true) },
			func(w *world) Command { return put("web-2", inWeb, theirs) },
		}, "1 1 theirs Completed back"},
		{"a second put of the group is reverted", []func(*world) Command{func(*world) Command { return group(2, 1, 1, true) }}, "1 1 1 Completed back"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := rollingWorld(t)
			w.ok(group(2, 3, 1, true))
			w.step()
			is(t, "begun", w.versions(), "2 1 1 Running")
			for _, do := range c.meanwhile {
				w.ok(do(w))
			}
			w.wait(31 * second)
			w.step()
			for range 8 {
				w.step()
				w.proceed()
			}
			is(t, "in the end", w.versions(), c.want)
		})
	}
}

// TestRolloutKeepsToItsNamespace: a rollout, or its undo, does not change a member that was
// deleted and created again in another namespace.
func TestRolloutKeepsToItsNamespace(t *testing.T) {
	w := rollingWorld(t)
	w.ok(group(2, 3, 1, false))
	w.ok(putNamespace("shop"))
	w.ok(remove("web-0", true))
	same := group(1, 1, 0, false).GetPutWorkloads().Workloads[0]
	same.Namespace = "shop"
	w.ok(puts("", same))
	w.everybodyRuns()
	w.step()
	is(t, "another team has the same there", w.versions(), "1 1 1 Paused")
	refused(t, w.do(rolloutAction("undo")), Conflict, `workload web-0 is in namespace "shop" and cannot be moved to "default"`)
}

// TestRolloutLeavesOtherNamespacesAlone: workloads of the same group name in another namespace
// are no members of a rollout or of its undo.
func TestRolloutLeavesOtherNamespacesAlone(t *testing.T) {
	theirs := func(id, version string) Command {
		return put(id, content("c1:"+version), inNamespace("shop"), demand(func(d *commandv1.Demand) { d.Group = "web" }))
	}
	w := rollingWorld(t)
	w.ok(putNamespace("shop"))
	w.ok(theirs("web-7", "before"))
	w.ok(group(2, 3, 1, true))
	w.ok(theirs("web-7", "since"))
	w.ok(theirs("web-8", "new"))
	w.ok(rolloutAction("undo"))
	is(t, "after an undo", w.versions(), "1 1 1 since new Running back")
	if r, _ := w.s.Rollout("web"); len(r.Members) != 3 {
		t.Errorf("the way back has %d members, want 3", len(r.Members))
	}
	w.ok(group(2, 3, 1, true))
	w.step()
	w.wait(31 * second)
	w.step()
	if r, _ := w.s.Rollout("web"); !r.Reverting || len(r.Members) != 3 {
		t.Errorf("the way back that it takes by itself: %t, of %d members", r.Reverting, len(r.Members))
	}
}

// TestRolloutEvents: each event names the namespace of the group, and the last one the outcome.
func TestRolloutEvents(t *testing.T) {
	for name, end := range map[string]func(*world){
		"deleted": func(w *world) {
			for i := range 3 {
				w.ok(remove(fmt.Sprint("web-", i), true))
			}
		},
		"all in another group": func(w *world) {
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
			is(t, "begun in", w.eventOf(EventRolloutStarted).In(), DefaultNamespace)
			end(w)
			_, there := w.s.Rollout("web")
			is(t, "a record of the update", there, false)
			e := w.eventOf(EventRolloutSuperseded)
			is(t, "ended", e.In()+", "+e.Message, "default, web: no member is left")
		})
	}
}

func TestRolloutScales(t *testing.T) {
	w := rollingWorld(t)
	w.ok(group(2, 3, 1, false))
	w.step()
	w.ok(group(2, 5, 1, false))
	is(t, "new members are made at once", w.versions(), "2 1 1 2 2 Running")
	w.everybodyRuns("web-4")
	w.wait(5 * second)
	w.step()
	is(t, "the others wait until they are well", w.versions(), "2 1 1 2 2 Running")
	w.ok(w.assign("web-4", "a"))
	w.proceed()
	is(t, "and go on", w.versions(), "2 2 1 2 2 Running")
	w.ok(group(2, 2, 1, false))
	for _, id := range []string{"web-2", "web-3", "web-4"} {
		w.ok(gone(id, "a", nil))
	}
	is(t, "surplus goes at once", w.versions(), "2 2 Running")
	w.proceed()
	is(t, "and the rest is done", w.versions(), "2 2 Completed")
	w.ok(group(2, 3, 1, false))
	is(t, "more of the same need no turns", w.versions(), "2 2 2 Completed")

	w.everybodyRuns()
	w.ok(setDesired("web-1", "Stopped"))
	w.ok(w.says("web-1", "Stopped"))
	w.ok(remove("web-2", true))
	w.ok(group(3, 3, 1, false))
	is(t, "what an apply starts or makes is no matter of turns", w.versions(), "2 3 3 Running")
	w.everybodyRuns()
	w.ok(setDesired("web-0", "Stopped"))
	w.step()
	is(t, "what was stopped meanwhile gets it", w.versions(), "3 3 3 Running")
	is(t, "and stays stopped", w.workload("web-0").Desired, DesiredStopped)
	w.ok(w.says("web-0", "Stopped"))
	w.wait(5 * second)
	w.step()
	is(t, "nobody waits for it", w.versions(), "3 3 3 Completed")

	w.ok(setDesired("web-0", "Running"))
	w.everybodyRuns()
	w.ok(group(4, 3, 1, false))
	w.ok(put("web-2", content("c1:mine"), demand(func(d *commandv1.Demand) { d.Group = "web" })))
	for range 4 {
		w.proceed()
	}
	is(t, "what somebody changed by itself is left alone", w.versions(), "4 4 mine Completed")
}

// TestUndoOfAPausedRevert: a put of the former version that was paused can be undone.
func TestUndoOfAPausedRevert(t *testing.T) {
	w := rollingWorld(t)
	w.ok(group(2, 3, 1, false))
	w.step()
	w.ok(group(1, 3, 1, false))
	w.ok(rolloutAction("pause"))
	w.ok(rolloutAction("undo"))
	is(t, "it goes on", w.versions(), "2 1 1 Running back")
	w.step()
	is(t, "and goes back", w.versions(), "1 1 1 Running back")
}

func TestRolloutIsRefused(t *testing.T) {
	w := rollingWorld(t)
	c := group(2, 3, 1, false)
	c.GetPutWorkloads().Update.HealthyDeadline = 5 * second
	is(t, "a deadline that nobody can meet", w.do(c).Reason, "update.healthy_deadline: 5000000000 ns must be more than min_healthy_time, 5000000000 ns, and at most a day")
	is(t, "an action before there is an update", w.do(rolloutAction("pause")).Kind, NotFound)
	w.ok(group(2, 3, 1, false))
	is(t, "an action that nobody knows", w.do(rolloutAction("stop")).Kind, Invalid)
	w.ok(rolloutAction("pause"))
	is(t, "a pause of what is paused", w.do(rolloutAction("pause")).Kind, AlreadyDone)
	c = rolloutAction("resume")
	c.Head = &commandv1.Head{At: w.now, By: "ada", Namespaces: []string{"shop"}}
	is(t, "somebody of another namespace", w.do(c).Kind, Denied)
	w.ok(rolloutAction("resume"))
}
