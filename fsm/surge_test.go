package fsm

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/rollout"
)

// surging turns c, a command that stores a group, into a start-first update: it adds surge members (extra
// members that start before old ones stop) and sets the number of canaries.
func surging(c Command, canary int) Command {
	b := c.GetPutWorkloads()
	b.Update.StartFirst, b.Update.Canary = true, int32(canary)
	n := len(b.Workloads)
	for i := range SurgeCount(b.Update, n) {
		p := b.Workloads[0].CloneVT()
		p.Id = fmt.Sprintf("web-%d", n+i)
		p.Demand.Surge = true
		b.Surge = append(b.Surge, p)
	}
	return c
}

// canaries sets the number of canaries (members that change first and wait for a user's promotion)
// of an update without surge members (extra members).
func canaries(c Command, n int) Command {
	c.GetPutWorkloads().Update.Canary = int32(n)
	return c
}

// extras returns the ids of the surge members (extra members of an update) that are not being
// deleted.
func (w *world) extras() string {
	var out []string
	w.s.Workloads("", func(x *Workload) bool {
		if x.Demand.Surge && x.Desired != DesiredDeleted {
			out = append(out, x.ID)
		}
		return true
	})
	return strings.Join(out, " ")
}

// surgingWorld returns a world where web runs with 3 members in version 1, and a start-first update to version 2
// has created its surge members (the extra members that start first).
func surgingWorld(t *testing.T, parallel, canary int, reverts bool) *world {
	w := rollingWorld(t)
	w.ok(surging(group(2, 3, parallel, reverts), canary))
	w.step()
	return w
}

func TestStartFirst(t *testing.T) {
	w := surgingWorld(t, 1, 0, false)
	is(t, "versions of the members and phase of the update: the surge member is made first", w.versions(), "1 1 1 2 Running")
	is(t, "number of members of the group, without the surge member", Count(Members(w.s, "web")), 3)
	is(t, "id of the surge member", w.extras(), "web-3")
	again := w.ok(surging(group(2, 3, 1, false), 0))
	is(t, "item 0 is Unchanged when the same specification is applied again", again.Items[0].Unchanged, true)
	is(t, "surge members of the continued update", w.extras(), "web-3")
	w.proceed()
	is(t, "after the surge member has settled a member is changed", w.versions(), "2 1 1 2 Running")
	for range 3 {
		w.proceed()
	}
	w.step()
	is(t, "the update ends without surge members", w.versions(), "2 2 2 2 Completed")
	is(t, "surge members that are not being deleted after the update", w.extras(), "")
	is(t, "number of members in the record of the ended update", len(w.rolled().Members), 3)
	w.ok(gone("web-3", "a", nil))
	is(t, "the record of the surge member is gone once its node has removed it", w.versions(), "2 2 2 Completed")
	is(t, "item 0 of an update without a change is Unchanged", w.ok(surging(group(2, 3, 1, false), 0)).Items[0].Unchanged, true)
	is(t, "versions of the members and phase of the update after an apply without a change", w.versions(), "2 2 2 Completed")
}

// TestSurgeMembersAreJudged: a policy that forbids only the extra members of an update refuses the update.
func TestSurgeMembersAreJudged(t *testing.T) {
	w := rollingWorld(t)
	w.ok(bind("baseline", DefaultNamespace))
	next := surging(group(2, 3, 1, false), 0)
	for _, p := range next.GetPutWorkloads().GetSurge() {
		privileged(p)
	}
	refused(t, w.do(next), NotAllowed, "workload web-3", "privileged")
	is(t, "surge members of a refused update", w.extras(), "")
}

// TestNoSurgeMemberIsLeft: after an update has ended or was replaced, in whatever way, none of its
// surge members (extra members that start first) is left.
func TestNoSurgeMemberIsLeft(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(w *world)
		want string // surge members that are left
	}{
		{"an abort deletes the surge member", func(w *world) { w.ok(rolloutAction("abort")); w.step() }, ""},
		{"an undo deletes the surge member", func(w *world) { w.ok(rolloutAction("undo")); w.step() }, ""},
		{"a failure with auto_revert deletes the surge member", func(w *world) { w.ok(w.retry("web-3", 5, 0, true)); w.step(); w.step() }, ""},
		{"another update that stops first deletes the surge member", func(w *world) { w.ok(group(3, 3, 1, false)) }, ""},
		{"another update without an update policy deletes the surge member", func(w *world) { w.ok(group(3, 3, 0, false)) }, ""},
		{"another update that starts first keeps its surge member", func(w *world) { w.ok(surging(group(3, 3, 1, false), 0)) }, "web-3"},
		{"an apply of the former specification deletes the surge member", func(w *world) { w.ok(surging(group(1, 3, 1, false), 0)); w.step() }, ""},
		{"an apply with more members deletes the surge member", func(w *world) { w.ok(surging(group(2, 5, 1, false), 0)) }, ""},
		{"an apply with fewer members deletes the surge member", func(w *world) { w.ok(surging(group(2, 2, 1, false), 0)) }, ""},
		{"an apply with fewer members makes a surge member in its next step", func(w *world) { w.ok(surging(group(2, 2, 1, false), 0)); w.step() }, "web-2"},
		{"a deletion of the group deletes the surge member", func(w *world) {
			w.ok(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{GroupOf: "web"}}})
		}, ""},
		{"deletions of all members delete the surge member", func(w *world) {
			w.ok(rolloutAction("pause"))
			for i := range 3 {
				w.ok(remove(fmt.Sprintf("web-%d", i), true))
			}
		}, ""},
		{"a deletion of the surge member ends it", func(w *world) { w.ok(remove("web-3", false)) }, ""},
		{"a pause keeps the surge member", func(w *world) { w.ok(rolloutAction("pause")) }, "web-3"},
		{"a snapshot keeps the surge member", func(w *world) {
			read, err := ReadSnapshot(bytes.NewReader(snapshotBytes(w.t, w.s)))
			if err != nil {
				w.t.Fatal(err)
			}
			mustEqualStates(w.t, "out of a snapshot", read, w.s)
		}, "web-3"},
		{"a restore ends the update and its surge member", func(w *world) { w.s = restoring(w.t, w.s, w.s) }, ""},
		{"a restore of an earlier backup ends the update and its surge member", func(w *world) { w.s = restoring(w.t, rollingWorld(w.t.(*testing.T)).s, w.s) }, ""},
		{"a restore into a new cluster ends the update and its surge member", func(w *world) { w.s = restoring(w.t, w.s, New()) }, ""},
		{"a recovery of the last replica keeps the surge member", func(w *world) { w.s = w.s.Recovered("r0", RestoreInfo{At: w.now}) }, "web-3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := surgingWorld(t, 1, 0, true)
			w.everybodyRuns()
			c.do(w)
			is(t, "surge members of group web", w.extras(), c.want)
			if err := w.s.Check(); err != nil {
				t.Error(err)
			}
		})
	}
}

func restoring(t testing.TB, backup, present State) State {
	t.Helper()
	s, err := Restored(backup, present, RestoreInfo{At: present.Info().Clock + second})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestRestoreRemovesSurgeMembers: a restore ends updates, so the nodes of their surge members (extra
// members) get an order to remove them.
func TestRestoreRemovesSurgeMembers(t *testing.T) {
	w := surgingWorld(t, 1, 0, true)
	w.everybodyRuns()
	s := restoring(t, rollingWorld(t).s, w.s)
	found := false
	s.Residuals("a", func(r *Residual) bool { found = found || r.Workload == "web-3"; return true })
	is(t, `node "a" has a residual of surge member "web-3"`, found, true)
	_, known := s.Workload("web-3")
	is(t, `surge member "web-3" has a record`, known, false)
}

func TestCanary(t *testing.T) {
	w := rollingWorld(t)
	w.ok(canaries(group(2, 3, 1, true), 1))
	w.do(advance(GenerationPB(RolloutID(w.rolled())), &commandv1.AdvanceRollout{AwaitPromotion: true}))
	is(t, "phase of the update after a command to wait for the promotion too early", w.rolled().Phase, rollout.Running)
	is(t, "refusal of a promotion before the canaries have settled", w.do(rolloutAction("promote")).Reason,
		"the canaries of web have not settled yet: persysctl rollout status web")
	w.step()
	w.proceed()
	is(t, "the update waits for its promotion", w.versions(), "2 1 1 AwaitPromotion")
	is(t, "message of the event RolloutAwaits", w.eventOf(EventRolloutAwaits).Message, "web")
	w.proceed()
	is(t, "versions of the members and phase of the update while it waits for its promotion", w.versions(), "2 1 1 AwaitPromotion")
	is(t, "refusal of a scale of the group while it waits for a promotion", w.do(scaling(3, 4)).Reason,
		"web has an update that waits for its promotion: scale it when the update has ended (persysctl rollout status web), or apply a specification with another count")
	again := w.ok(canaries(group(2, 3, 1, true), 1))
	is(t, "item 1 of the repeated apply is Unchanged", again.Items[1].Unchanged, true)
	is(t, "versions of the members and phase of the update after the repeated apply", w.versions(), "2 1 1 AwaitPromotion")
	read, err := ReadSnapshot(bytes.NewReader(snapshotBytes(t, w.s)))
	if err != nil {
		t.Fatal(err)
	}
	mustEqualStates(t, "out of a snapshot", read, w.s)
	is(t, "verdict on a resume of an update that is not paused", w.do(rolloutAction("resume")).Kind, AlreadyDone)
	w.ok(w.says("web-0", "Failed"))
	is(t, "refusal of a promotion while a canary is down", w.do(rolloutAction("promote")).Reason,
		"web-0, a canary, is not available: wait until it is, or persysctl rollout abort web")
	w.everybodyRuns()
	w.ok(rolloutAction("promote"))
	is(t, "message of the event RolloutPromoted", w.eventOf(EventRolloutPromoted).Message, "web")
	is(t, "verdict on a second promotion", w.do(rolloutAction("promote")).Kind, AlreadyDone)
	longer := canaries(group(2, 3, 1, true), 1)
	longer.GetPutWorkloads().Update.HealthyDeadline = minute
	w.ok(longer)
	w.step()
	is(t, "after the promotion the other members are updated, even if a user applies another update policy", w.versions(), "2 2 1 Running")
	w.proceed()
	w.proceed()
	is(t, "versions of the members and phase of the update (the update ends)", w.versions(), "2 2 2 Completed")
	is(t, "refusal of a promotion of an ended update", w.do(rolloutAction("promote")).Reason, "the update of web has ended")
	is(t, "refusal of an abort of an ended update", w.do(rolloutAction("abort")).Reason, "the update of web has ended: persysctl rollout undo web")

	w.ok(canaries(group(3, 3, 1, true), 1))
	w.step()
	w.proceed()
	w.ok(rolloutAction("pause"))
	is(t, "refusal of a promotion of a paused update", w.do(rolloutAction("promote")).Reason, "the update of web is paused: persysctl rollout resume web")
	w.ok(rolloutAction("resume"))
	w.step()
	is(t, "a resumed update waits again", w.versions(), "3 2 2 AwaitPromotion")
	w.ok(rolloutAction("abort"))
	is(t, "reason of the update after an abort", w.rolled().Reason, "aborted by request")
	w.step()
	is(t, "the canary is reverted", w.versions(), "2 2 2 Running back")
	w.proceed()
	w.step()
	is(t, "the revert does not wait for a promotion", w.versions(), "2 2 2 Completed back")
	is(t, "refusal of a promotion in a group without canaries", func() string {
		w.ok(group(4, 3, 1, true))
		return w.do(rolloutAction("promote")).Reason
	}(), "the update of web has no canaries: it needs `canary` in its `update`")
}

// TestCanaryFails: a canary that fails while the update waits for its promotion makes the update
// fail, as any other member does.
func TestCanaryFails(t *testing.T) {
	for reverts, want := range map[bool]string{false: "2 1 1 Paused", true: "2 1 1 Running back"} {
		w := rollingWorld(t)
		w.ok(canaries(group(2, 3, 1, reverts), 1))
		w.step()
		w.proceed()
		w.ok(w.says("web-0", "Failed"))
		w.step()
		is(t, "versions of the members and phase of the update (before its deadline)", w.versions(), "2 1 1 AwaitPromotion")
		w.wait(30 * second)
		w.step()
		is(t, fmt.Sprintf("after its deadline, auto_revert %v", reverts), w.versions(), want)
	}
}

// TestSurgingCanary: with start-first the canaries are extra members, and an abort changes no other member.
func TestSurgingCanary(t *testing.T) {
	w := surgingWorld(t, 1, 2, false)
	is(t, "one canary at a time", w.versions(), "1 1 1 2 Running")
	w.proceed()
	w.proceed()
	is(t, "the update waits with both canaries", w.versions(), "1 1 1 2 2 AwaitPromotion")
	w.ok(rolloutAction("abort"))
	w.step()
	is(t, "surge members that are not being deleted", w.extras(), "")
	is(t, "the members of the group have their former version", strings.HasPrefix(w.versions(), "1 1 1 "), true)
	is(t, "phase of the update", w.rolled().Phase, rollout.Completed)
}

// TestRevertOfAStartFirstUpdate: a start-first update fails and is reverted. Its extra members (surge members) that
// are available stay until the ordinary members have their previous specifications.
func TestRevertOfAStartFirstUpdate(t *testing.T) {
	w := surgingWorld(t, 1, 0, true)
	w.proceed()
	is(t, "one member is changed", w.versions(), "2 1 1 2 Running")
	w.ok(w.says("web-0", "Failed"))
	w.wait(30 * second)
	w.step()
	is(t, "surge members, and versions of the members and phase of the reverted update", w.extras()+": "+w.versions(), "web-3: 2 1 1 2 Running back")
	w.step()
	w.proceed()
	is(t, "surge members, and versions of the members and phase after the revert", w.extras()+": "+w.versions(), ": 1 1 1 2 Completed back")
}

// TestSurgeMemberHasNoRoom: if the quota has no room for a surge member (an extra member that starts first), the
// update pauses and no member is changed.
func TestSurgeMemberHasNoRoom(t *testing.T) {
	w := rollingWorld(t)
	w.ok(putNamespace(DefaultNamespace, limits(350, 0, 0, 0)))
	w.ok(surging(group(2, 3, 1, false), 0))
	w.step()
	is(t, "versions of the members and phase of the update (the update pauses)", w.versions(), "1 1 1 Paused")
	if why := w.rolled().Reason; !strings.Contains(why, "over the quota") || !strings.Contains(why, "no room for an extra member of web") {
		t.Errorf("the rollout paused with reason %q, want one that says that the quota has no room for an extra member", why)
	}
	w.ok(putNamespace(DefaultNamespace, limits(400, 0, 0, 0)))
	w.ok(rolloutAction("resume"))
	w.step()
	is(t, "with more quota the update continues", w.versions(), "1 1 1 2 Running")
}

// TestSurgeMemberNeedsItsPort: a surge member (an extra member that starts first) that gets no node
// because an old member holds its fixed host port has a reason that names the port.
func TestSurgeMemberNeedsItsPort(t *testing.T) {
	w := rollingWorld(t)
	c := surging(group(2, 3, 1, false), 0)
	b := c.GetPutWorkloads()
	for _, p := range append(b.Workloads, b.Surge...) {
		p.Demand.HostPorts = []*commandv1.Port{{Port: 8080, Protocol: "tcp"}}
	}
	w.ok(c)
	w.step()
	w.ok(&commandv1.Command{Body: &commandv1.Command_ExplainUnplaced{ExplainUnplaced: &commandv1.ExplainUnplaced{Workloads: []*commandv1.Unplaced{
		{Workload: "web-3", IfGeneration: w.generation("web-3"), Code: CodeUnplaced, Message: "0/1 nodes fit: 1 host ports"}}}}})
	w.wait(30 * second)
	w.step()
	is(t, "reason in the record of the update", w.rolled().Reason, "web-3: 0/1 nodes fit: 1 host ports; an extra member needs a node where host port 8080/tcp is free (for 30 s)")
	is(t, "no member was changed", w.versions(), "1 1 1 2 Paused")
}

// TestSurgeMembersAreNotAssembled: Assemble builds a state from mirrored records without updates.
// In that state a surge member (an extra member of an update) is only a residual, a record of an
// instance that its node must remove.
func TestSurgeMembersAreNotAssembled(t *testing.T) {
	w := surgingWorld(t, 1, 0, false)
	w.everybodyRuns()
	a := Assemble(Origin{ClusterID: "c1", FeatureLevel: FeatureLevel})
	if err := a.Node(nodePB(w.node("a"))); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"web-0", "web-3"} {
		if err := a.Workload(workloadPB(w.workload(id))); err != nil {
			t.Fatal(err)
		}
	}
	s, err := a.State()
	if err != nil {
		t.Fatal(err)
	}
	_, left := s.r.residuals.Get(pair("a", "web-3"))
	is(t, `node "a" has a residual of the surge member`, left, true)
	x, known := s.Workload("web-3")
	is(t, "the surge member has a record and is being deleted", known && x.Desired == DesiredDeleted, true)
	x, _ = s.Workload("web-0")
	is(t, "node of the member that is no surge member", x.Node, "a")
}

func TestSurgeFaults(t *testing.T) {
	for name, c := range map[string]struct {
		change func(b *commandv1.PutWorkloads)
		want   string
	}{
		"no surge members":          {func(b *commandv1.PutWorkloads) { b.Surge = nil }, "update.start_first: the command has no surge members"},
		"stop-first":                {func(b *commandv1.PutWorkloads) { b.Update.StartFirst = false }, "surge: is only for the update of a group with start_first"},
		"an unmarked surge member":  {func(b *commandv1.PutWorkloads) { b.Surge[0].Demand.Surge = false }, "demand.surge must be set"},
		"a marked member":           {func(b *commandv1.PutWorkloads) { b.Workloads[0].Demand.Surge = true }, "demand.surge: must be set only in the list surge"},
		"a member twice":            {func(b *commandv1.PutWorkloads) { b.Surge[0].Id = "web-1" }, "is there twice"},
		"another group":             {func(b *commandv1.PutWorkloads) { b.Surge[0].Demand.Group = "api" }, "the command is for group"},
		"an exclusive surge member": {func(b *commandv1.PutWorkloads) { b.Surge[0].Demand.Exclusive = true }, "start_first is not for workloads that are exclusive"},
		"files that do not exist":   {func(b *commandv1.PutWorkloads) { b.Surge[0].Bundle = strings.Repeat("a", 64) }, "surge: "},
		"an orphan with the id":     {func(*commandv1.PutWorkloads) {}, `start-first needs its id for an extra member of web: adopt or delete it`},
		"a negative canary":         {func(b *commandv1.PutWorkloads) { b.Update.Canary = -1 }, "update.canary: -1 is negative"},
		"an id that is taken": {func(b *commandv1.PutWorkloads) { b.Surge[0].Id = "other" },
			"workload other exists, and start-first needs its id for an extra member of web: delete it, or set order: stop-first"},
	} {
		w := rollingWorld(t)
		w.ok(put("other"))
		c2 := surging(group(2, 3, 1, false), 0)
		if name == "an orphan with the id" {
			w.ok(setDrifts([]*commandv1.Drift{drifted("a", "web-3", DriftOrphan)}))
		}
		c.change(c2.GetPutWorkloads())
		if err := w.do(c2).Err(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("a put of the group with this fault: %s, returned error %v, want a refusal with %q", name, err, c.want)
		}
		is(t, name+": versions", w.versions(), "1 1 1")
	}
	w := rollingWorld(t)
	if err := w.do(put("alone", func(p *commandv1.WorkloadPut) {
		p.Demand = &commandv1.Demand{Type: "container", Surge: true}
	})).Err(); err == nil {
		t.Error("a workload outside of a group must not be a surge member")
	}
}
