package fsm

import (
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/policy"
)

// autoscaled adds an autoscaler, with low and high as limits of the number of members, to each
// workload of the PutWorkloads command c.
func autoscaled(c Command, low, high uint32) Command {
	for _, p := range append(c.GetPutWorkloads().GetWorkloads(), c.GetScaleGroup().GetMembers()...) {
		p.Demand.Autoscale = &commandv1.Autoscale{Min: low, Max: high, Cpu: 70}
	}
	return c
}

func byLeader(b *commandv1.ScaleGroup) { b.Autoscaled, b.Reason = true, "CPU use is 90 %" }

func ifMembers(c Command, n uint32) Command {
	c.GetPutWorkloads().IfMembers = new(n)
	return c
}

func ifMembersScenario(w *world) {
	w.do(register("a"))
	w.do(ifMembers(autoscaled(group(1, 2, 0, false), 1, 4), 0))
	w.do(autoscaled(scaling(1, 3), 1, 4))
	w.do(ifMembers(autoscaled(group(1, 2, 0, false), 1, 4), 2))
	w.do(ifMembers(autoscaled(group(1, 3, 0, false), 1, 4), 3))
}

// TestAutoscaledGroup: the leader changes the number of members within the limits. A person may scale the
// group to 0 members, which pauses the autoscaler.
func TestAutoscaledGroup(t *testing.T) {
	w := formed(t, "a")
	w.ok(autoscaled(group(1, 2, 0, false), 2, 4))
	w.everybodyRuns()
	w.ok(autoscaled(scaling(1, 4, byLeader), 2, 4))
	is(t, "members of group web", w.members(), "web-0 web-1 web-2 web-3")
	is(t, "message of the event GroupScaled", w.eventOf(EventGroupScaled).Message, "web from 2 to 4: CPU use is 90 %")
	refused(t, w.do(scaling(1, 5, byLeader)), Invalid, "count: 5 is not in 2..4, the limits of autoscale of web")
	refused(t, w.do(scaling(1, 1)), Invalid, "not in 2..4")
	refused(t, w.do(scaling(1, 0, byLeader)), Invalid, "not in 2..4")
	w.ok(scaling(1, 3))
	is(t, "members of group web after a person scaled it", w.members(), "web-0 web-1 web-2")
	w.ok(scaling(1, 0))
	is(t, "members of group web after a scale to 0", w.members(), "web-0-")
	refused(t, w.do(scaling(1, 2, byLeader)), Conflict, "does not choose")
	w.ok(autoscaled(scaling(1, 2), 2, 4))
	is(t, "members of group web after it was started again", w.members(), "web-0 web-1")
	w.ok(group(1, 2, 0, false))
	refused(t, w.do(scaling(1, 3, byLeader)), Conflict, "does not choose")
}

// TestMembersWithin: MembersWithin returns how many members the quota of the group's namespace
// permits.
func TestMembersWithin(t *testing.T) {
	w := formed(t, "a")
	w.ok(autoscaled(group(1, 2, 0, false), 2, 4))
	first := w.workload("web-0")
	_, limited := MembersWithin(w.s, first, 2)
	is(t, "the quota limits the number of members, although there is no quota", limited, false)
	for quota, want := range map[uint64]int{1: 2, 2: 2, 3: 3, 9: 9} {
		w.ok(putNamespace(first.In(), func(b *commandv1.PutNamespace) { b.Quota = &commandv1.Quota{Workloads: int64(quota)} }))
		n, limited := MembersWithin(w.s, first, 2)
		is(t, "the quota limits the number of members", limited, true)
		is(t, "number of members that the quota permits", n, want)
	}
}

// TestApplyKeepsTheNumber: a client that applies a file names the number of members that it saw (if_members). Its
// command is refused if the group has another number by now.
func TestApplyKeepsTheNumber(t *testing.T) {
	w := formed(t, "a")
	w.ok(ifMembers(autoscaled(group(1, 2, 0, false), 1, 4), 0))
	refused(t, w.do(ifMembers(autoscaled(group(1, 3, 0, false), 1, 4), 3)), Conflict, "web has been scaled from 3 to 2 members meanwhile, by a person or the autoscaler")
	w.ok(ifMembers(autoscaled(group(1, 2, 0, false), 1, 4), 2))
}

// TestAutoscaleChangesNoOrder: a change of the autoscaler's limits is stored at once, gives no member a new order, and
// starts no rolling update.
func TestAutoscaleChangesNoOrder(t *testing.T) {
	w := formed(t, "a")
	w.ok(autoscaled(group(1, 2, 1, false), 1, 4))
	w.everybodyRuns()
	before := w.workload("web-1")
	w.ok(autoscaled(group(1, 2, 1, false), 1, 9))
	after := w.workload("web-1")
	is(t, "stored maximum number of members", after.Demand.Autoscale.Max, 9)
	is(t, `generation of workload "web-1"`, after.Generation, before.Generation)
	is(t, "message of the event WorkloadUpdated", w.eventOf(EventWorkloadUpdated).Message, "autoscale from 1 to 9 at 70 % CPU")
	w.ok(group(1, 2, 1, false))
	is(t, "settings of the autoscaler after they were removed", w.workload("web-1").Demand.Autoscale, nil)
	is(t, `generation of workload "web-1"`, w.workload("web-1").Generation, before.Generation)
	if r, ok := w.s.Rollout("web"); ok {
		t.Errorf("the change of the limits began an update: %+v", r)
	}
}

// TestAutoscaleFaults: a PutWorkloads with invalid settings of the autoscaler is refused, and the reason names the
// setting.
func TestAutoscaleFaults(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(*commandv1.Demand)
		text string
	}{
		{"a min of 0 is refused", func(d *commandv1.Demand) { d.Autoscale.Min = 0 }, "autoscale.min: 0"},
		{"a max below min is refused", func(d *commandv1.Demand) { d.Autoscale.Max = 1 }, "autoscale.max: 1"},
		{"a max above the limit is refused", func(d *commandv1.Demand) { d.Autoscale.Max = 1001 }, "autoscale.max: 1001"},
		{"a cpu of 0 % is refused", func(d *commandv1.Demand) { d.Autoscale.Cpu = 0 }, "autoscale.cpu: 0"},
		{"a cpu above 80 % is refused", func(d *commandv1.Demand) { d.Autoscale.Cpu = 81 }, "autoscale.cpu: 81"},
		{"an autoscaler without a CPU request is refused", func(d *commandv1.Demand) { d.CpuMillicores = 0 }, "cpu_millicores"},
		{"an autoscaler of a virtual machine is refused", func(d *commandv1.Demand) { d.Type = "vm" }, "containers"},
		{"a job", func(d *commandv1.Demand) { d.Job = &commandv1.Job{} }, "services"},
		{"local data", func(d *commandv1.Demand) { d.LocalData = []*commandv1.LocalData{{Name: "volume a"}} }, "local data"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := autoscaled(group(1, 1, 0, false), 2, 4)
			c.set(cmd.GetPutWorkloads().Workloads[0].Demand)
			refused(t, formed(t).do(cmd), Invalid, c.text)
		})
	}
}

// TestUndoKeepsTheNumber: after the autoscaler has changed the number of members, a command that undoes the
// last update is refused. If a user applies the former file instead, the group gets the former specification
// and keeps its number of members.
func TestUndoKeepsTheNumber(t *testing.T) {
	w := formed(t, "a")
	w.ok(autoscaled(group(1, 2, 1, false), 2, 8))
	w.everybodyRuns()
	w.ok(autoscaled(group(2, 2, 1, false), 2, 8))
	for range 4 {
		w.step()
		w.proceed()
	}
	is(t, "versions of the members and phase of the update (updated)", w.versions(), "2 2 Completed")
	is(t, "UndoFault before the number of members changes", UndoFault(w.s, w.rolled()), "")
	w.ok(autoscaled(scaling(2, 4, byLeader), 2, 8))
	refused(t, w.do(rolloutAction("undo")), Conflict, "4 members by now, not 2", "apply the former file")
	is(t, "members of group web", w.members(), "web-0 web-1 web-2 web-3")
	w.ok(scaling(2, 0))
	refused(t, w.do(rolloutAction("undo")), Conflict, "0 members by now, not 2")
	w.ok(autoscaled(scaling(2, 2), 2, 8))
	w.ok(rolloutAction("undo"))
	is(t, "an undo with the same number of members as before the update", w.versions(), "2 2 Running back")

	w.everybodyRuns()
	w.ok(ifMembers(autoscaled(group(2, 2, 1, false), 2, 8), 2))
	w.ok(ifMembers(autoscaled(group(3, 4, 1, false), 4, 8), 2))
	refused(t, w.do(rolloutAction("undo")), Conflict, "4 members by now, not 2")
}

// TestAutoRevertDeletesNoMember: an update adds members to a group with an autoscaler and fails. The automatic rollback
// restores the former members, leaves the added ones as they are, and does not wait for added members that fail.
func TestAutoRevertDeletesNoMember(t *testing.T) {
	w := formed(t, "a")
	w.ok(autoscaled(group(1, 3, 1, true), 3, 8))
	w.everybodyRuns()
	w.ok(autoscaled(group(2, 4, 1, true), 4, 8))
	w.everybodyRuns()
	for range 2 {
		w.wait(5 * second)
		w.step()
	}
	is(t, "the update goes on", w.versions(), "2 1 1 2 Running")
	w.proceed()
	is(t, "the second member gets the new specification", w.versions(), "2 2 1 2 Running")
	w.everybodyRuns("web-1", "web-3")
	w.ok(w.says("web-1", "Failed"))
	w.ok(w.says("web-3", "Failed"))
	w.wait(minute)
	w.step()
	is(t, "the second member fails, and the update is reverted", w.versions(), "2 2 1 2 Running back")
	is(t, "message of the event RolloutReverting", strings.Contains(w.eventOf(EventRolloutReverting).Message, "apply the former file"), true)
	for range 4 {
		w.step()
		w.proceed("web-3")
	}
	is(t, "the former members have the former specification", w.versions(), "1 1 1 2 Completed back")
	is(t, "members of group web", w.members(), "web-0 web-1 web-2 web-3")

	w = formed(t, "a")
	w.ok(group(1, 1, 1, true))
	w.everybodyRuns()
	w.ok(group(2, 2, 1, true))
	w.wait(minute)
	w.step()
	is(t, "without an autoscaler, the revert also restores the number of members", w.members(), "web-0")
}

// TestAutoscaledMembersKeepThePolicy: the leader adds members to a group whose owner may act only in one namespace.
// These members have the policy of the first member and are checked against the present version of the policy, which
// may have become stricter meanwhile.
func TestAutoscaledMembersKeepThePolicy(t *testing.T) {
	shop := func(c Command, ask func(*commandv1.WorkloadPut)) Command {
		for _, p := range append(c.GetPutWorkloads().GetWorkloads(), c.GetScaleGroup().GetMembers()...) {
			inNamespace("shop")(p)
			ask(p)
		}
		return autoscaled(c, 1, 8)
	}
	made := func(bound string, ask func(*commandv1.WorkloadPut)) *world {
		w := formed(t, "a")
		w.ok(putNamespace("shop"))
		if bound != "" {
			w.ok(putPolicy(bound))
			w.ok(bind(bound, "shop"))
		}
		w.ok(confined(shop(group(1, 1, 0, false), ask), "shop"))
		return w
	}
	root := asking(policy.RuleUser, "0")
	w := made("", root)
	w.ok(shop(scaling(1, 3, byLeader), root))
	for _, m := range Members(w.s, "web") {
		is(t, "policy of "+m.ID, m.Policy, policy.Baseline)
	}

	w = made("own", root)
	w.ok(putPolicy("own", func(m *commandv1.Policy) { m.Users = []string{"1000"} }))
	w.ok(bind("", "shop"))
	refused(t, w.do(shop(scaling(1, 3, byLeader), root)), NotAllowed, "web-1", `"own"`, "rule users")
	is(t, "members of group web", w.members(), "web-0")

	w = made("", root)
	w.ok(setDrifts([]*commandv1.Drift{drifted("a", "web-2", DriftOrphan)}))
	w.ok(shop(scaling(1, 2, byLeader), root))
	refused(t, w.do(shop(scaling(1, 3, byLeader), root)), Denied, `"web-2"`, "persysctl drift")
	is(t, "members of group web", w.members(), "web-0 web-1")
}

func autoscaleScenario(w *world) {
	w.do(register("a"))
	w.do(ifMembers(autoscaled(group(1, 2, 1, false), 2, 4), 0))
	w.everybodyRuns()
	w.do(autoscaled(scaling(1, 4, byLeader), 2, 4))
	w.do(autoscaled(scaling(1, 5, byLeader), 2, 4))
	w.do(ifMembers(autoscaled(group(1, 2, 1, false), 2, 4), 2))
	w.do(ifMembers(autoscaled(group(1, 4, 1, false), 2, 8), 4))
	w.do(scaling(1, 0, byLeader))
	w.do(scaling(1, 0))
	w.do(autoscaled(scaling(1, 3, byLeader), 2, 8))
	w.do(autoscaled(scaling(1, 3), 2, 8))
	w.do(group(1, 3, 1, false))
	w.do(scaling(1, 4, byLeader))
	w.do(autoscaled(group(1, 1, 0, false), 0, 4))
	w.do(put("alone", demand(func(d *commandv1.Demand) { d.Autoscale = &commandv1.Autoscale{Min: 1, Max: 2, Cpu: 50} })))
}
