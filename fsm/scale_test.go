package fsm

import (
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// scaling returns the command that sets the number of members of group web to count. It contains
// the specifications of all members; version distinguishes them from other versions.
func scaling(version, count int, opts ...func(*commandv1.ScaleGroup)) Command {
	puts := group(version, max(1, count), 0, false).GetPutWorkloads().GetWorkloads()
	b := &commandv1.ScaleGroup{Group: "web", Count: uint32(count), Content: puts[0].GetContent(), Members: puts}
	for _, o := range opts {
		o(b)
	}
	return &commandv1.Command{Body: &commandv1.Command_ScaleGroup{ScaleGroup: b}}
}

// members returns the ids of the members of web that are not being deleted. A member that is not desired to
// run has a "-" behind its id.
func (w *world) members() string {
	var out []string
	for _, m := range Members(w.s, "web") {
		if out = append(out, m.ID); m.Desired != DesiredRunning {
			out[len(out)-1] += "-"
		}
	}
	return strings.Join(out, " ")
}

// TestScale: scaling creates and deletes members, and leaves the other members as they are.
func TestScale(t *testing.T) {
	w := formed(t, "a")
	w.ok(group(1, 2, 0, false))
	w.everybodyRuns()
	before := w.workload("web-0")
	w.ok(scaling(1, 12))
	is(t, "members of group web after a scale to 12", w.members(), "web-0 web-1 web-2 web-3 web-4 web-5 web-6 web-7 web-8 web-9 web-10 web-11")
	is(t, `record of member "web-0", which was there before`, w.workload("web-0"), before)
	is(t, "message of the event GroupScaled", w.eventOf(EventGroupScaled).Message, "web from 2 to 12")
	is(t, "verdict on the repeated command", w.do(scaling(1, 12)).Kind, AlreadyDone)
	res := w.ok(scaling(1, 1))
	is(t, "members of group web after a scale to 1", w.members(), "web-0")
	is(t, "number of items in the result", len(res.Items), 12)
	is(t, "item 11 of the result is Deleted", res.Items[11].Deleted, true)

	w.ok(scaling(1, 0))
	is(t, "members of group web after a scale to 0", w.members(), "web-0-")
	is(t, "verdict on a second scale to 0", w.do(scaling(1, 0)).Kind, AlreadyDone)
	w.ok(scaling(1, 2))
	is(t, "members of group web after a scale from 0 to 2", w.members(), "web-0 web-1")
	w.ok(setDesired("web-0", "Stopped"))
	w.ok(setDesired("web-1", "Stopped"))
	w.ok(scaling(1, 3))
	is(t, "members of group web, which was stopped, after a scale to 3", w.members(), "web-0- web-1- web-2-")
	w.ok(group(1, 2, 0, false))
	is(t, "members of group web after an apply with count 2", w.members(), "web-0 web-1")
}

// TestScaleRefusals: the state machine refuses a change of the number of members that was prepared for another
// state or that is not allowed. A refused command changes nothing.
func TestScaleRefusals(t *testing.T) {
	for _, c := range []struct {
		name  string
		setup func(*world)
		cmd   Command
		kind  Kind
		text  string
	}{
		{"an unknown group is refused", nil, scaling(1, 3, func(b *commandv1.ScaleGroup) { b.Group = "api" }), NotFound, "only a workload with `count`"},
		{"a count above the limit is refused", nil, scaling(1, 3, func(b *commandv1.ScaleGroup) { b.Count = 1001 }), Invalid, "count: 1001"},
		{"new members with another specification than the group has are refused", nil, scaling(2, 3), Conflict, "changed meanwhile"},
		{"a scale to more members without their specifications is refused", nil, scaling(1, 3, func(b *commandv1.ScaleGroup) { b.Members = nil }), Conflict, "changed meanwhile"},
		{"a scale that expects another number of members is refused", nil, scaling(1, 3, func(b *commandv1.ScaleGroup) { b.From = new(uint32(4)) }), Conflict, "2 members by now, not 4"},
		{"a scale is refused if another workload has the id of a new member", func(w *world) { w.ok(put("web-2")) }, scaling(1, 3), Conflict, "web-2 exists"},
		{"a scale of a group that is being updated is refused", func(w *world) { w.ok(group(2, 2, 1, false)) }, scaling(1, 3), Conflict, "being updated"},
		{"a scale of a group with a paused update is refused", func(w *world) { w.ok(group(2, 2, 1, false)); w.ok(rolloutAction("pause")) }, scaling(1, 3), Conflict, "paused update"},
		{"a suggestion that the namespace does not allow is refused", nil, scaling(1, 3, suggested), NotAllowed, "--allow-scaling"},
		{"a scale that exceeds the quota is refused", func(w *world) { w.ok(putNamespace("default", limits(0, 0, 0, 2))) }, scaling(1, 3), OverQuota, "quota"},
		{"a scale of a job is refused", func(w *world) {
			w.ok(put("job-0", job(), func(p *commandv1.WorkloadPut) { p.Demand.Group = "job" }))
		}, scaling(1, 3, func(b *commandv1.ScaleGroup) { b.Group = "job" }), Invalid, "is a job"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := formed(t, "a")
			w.ok(group(1, 2, 0, false))
			w.everybodyRuns()
			if c.setup != nil {
				c.setup(w)
			}
			refused(t, w.do(c.cmd), c.kind, c.text)
			is(t, "members of group web", w.members(), "web-0 web-1")
		})
	}
	w := formed(t, "a")
	w.ok(putNamespace("default", func(b *commandv1.PutNamespace) { b.AllowScaling = true }))
	w.ok(group(1, 2, 0, false))
	w.ok(scaling(1, 3, suggested))
	is(t, "members of group web after a suggestion that the namespace allows", w.members(), "web-0 web-1 web-2")
	is(t, "message of the event GroupScaled", w.eventOf(EventGroupScaled).Message, "web from 2 to 3: cpu is high")
}

func suggested(b *commandv1.ScaleGroup) { b.Suggested, b.Reason = true, "cpu is high" }

// TestScalingDownNeedsNoPolicy: after a policy became stricter, a group above its limits may still shrink, but
// not grow.
func TestScalingDownNeedsNoPolicy(t *testing.T) {
	w := formed(t, "a")
	w.ok(group(1, 3, 0, false))
	w.ok(putPolicy("p", func(m *commandv1.Policy) { m.MaxWorkloads = 1 }))
	w.ok(bind("p", "default"))
	w.ok(scaling(1, 2))
	is(t, "members of group web after a scale to 2", w.members(), "web-0 web-1")
	refused(t, w.do(scaling(1, 3)), NotAllowed, "max_workloads")
}

func scaleScenario(w *world) {
	w.ok(register("a"))
	w.ok(group(1, 2, 1, false))
	w.everybodyRuns()
	w.do(scaling(1, 4))
	w.do(scaling(1, 4))
	w.do(scaling(2, 5))
	w.do(scaling(1, 0))
	w.do(scaling(1, 2))
	w.do(scaling(1, 3, suggested))
	w.do(putNamespace("default", func(b *commandv1.PutNamespace) { b.AllowScaling = true }))
	w.do(scaling(1, 3, suggested))
	w.do(scaling(1, 3, func(b *commandv1.ScaleGroup) { b.Count = 1001 }))
	w.everybodyRuns()
	w.do(group(2, 3, 1, false))
	w.do(scaling(1, 5))
}
