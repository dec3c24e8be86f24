package fsm

import (
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// autoscaled adds an autoscaler to the puts of group or scaling.
func autoscaled(c Command, low, high uint32) Command {
	for _, p := range append(c.GetPutWorkloads().GetWorkloads(), c.GetScaleGroup().GetMembers()...) {
		p.Demand.Autoscale = &commandv1.Autoscale{Min: low, Max: high, Cpu: 70}
	}
	return c
}

func byLeader(b *commandv1.ScaleGroup) { b.Autoscaled, b.Reason = true, "CPU use is 90 %" }

func ifCount(c Command, n uint32) Command {
	c.GetPutWorkloads().IfCount = new(n)
	return c
}

// TestAutoscaledGroup: the leader changes the number of members within the limits. A person may also stop all
// members, which pauses the autoscaler.
func TestAutoscaledGroup(t *testing.T) {
	w := formed(t, "a")
	w.ok(autoscaled(group(1, 2, 0, false), 2, 4))
	w.everybodyRuns()
	w.ok(autoscaled(scaling(1, 4, byLeader), 2, 4))
	is(t, "members", w.members(), "web-0 web-1 web-2 web-3")
	is(t, "event", w.eventOf(EventGroupScaled).Message, "web from 2 to 4: CPU use is 90 %")
	refused(t, w.do(scaling(1, 5, byLeader)), Invalid, "count: 5 is not in 2..4, the limits of autoscale of web")
	refused(t, w.do(scaling(1, 1)), Invalid, "not in 2..4")
	refused(t, w.do(scaling(1, 0, byLeader)), Invalid, "not in 2..4")
	w.ok(scaling(1, 3))
	is(t, "a person's number", w.members(), "web-0 web-1 web-2")
	w.ok(scaling(1, 0))
	is(t, "none", w.members(), "web-0-")
	refused(t, w.do(scaling(1, 2, byLeader)), Conflict, "does not choose")
	w.ok(autoscaled(scaling(1, 2), 2, 4))
	is(t, "started again", w.members(), "web-0 web-1")
	w.ok(group(1, 2, 0, false))
	refused(t, w.do(scaling(1, 3, byLeader)), Conflict, "does not choose")
}

// TestApplyKeepsTheNumber: an apply that was prepared for another number of members is refused.
func TestApplyKeepsTheNumber(t *testing.T) {
	w := formed(t, "a")
	w.ok(ifCount(autoscaled(group(1, 2, 0, false), 1, 4), 0))
	refused(t, w.do(ifCount(autoscaled(group(1, 3, 0, false), 1, 4), 3)), Conflict, "from 3 to 2 members")
	w.ok(ifCount(autoscaled(group(1, 2, 0, false), 1, 4), 2))
}

// TestAutoscaleChangesNoOrder: other limits are stored without a new order for the nodes, and do not wait for a
// rolling update.
func TestAutoscaleChangesNoOrder(t *testing.T) {
	w := formed(t, "a")
	w.ok(autoscaled(group(1, 2, 1, false), 1, 4))
	w.everybodyRuns()
	before := w.workload("web-1")
	w.ok(autoscaled(group(1, 2, 1, false), 1, 9))
	after := w.workload("web-1")
	is(t, "limit", after.Demand.Autoscale.Max, 9)
	is(t, "generation", after.Generation, before.Generation)
	is(t, "event", w.eventOf(EventWorkloadUpdated).Message, "autoscale from 1 to 9 at 70 % CPU")
	w.ok(group(1, 2, 1, false))
	is(t, "without", w.workload("web-1").Demand.Autoscale, nil)
	is(t, "generation", w.workload("web-1").Generation, before.Generation)
	if r, ok := w.s.Rollout("web"); ok {
		t.Errorf("the change of the limits began an update: %+v", r)
	}
}

// TestAutoscaleFaults: a command with senseless settings is refused.
func TestAutoscaleFaults(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(*commandv1.Demand)
		text string
	}{
		{"min of 0", func(d *commandv1.Demand) { d.Autoscale.Min = 0 }, "autoscale.min: 0"},
		{"max below min", func(d *commandv1.Demand) { d.Autoscale.Max = 1 }, "autoscale.max: 1"},
		{"max above the limit", func(d *commandv1.Demand) { d.Autoscale.Max = 1001 }, "autoscale.max: 1001"},
		{"cpu of 0", func(d *commandv1.Demand) { d.Autoscale.Cpu = 0 }, "autoscale.cpu: 0"},
		{"cpu above 80", func(d *commandv1.Demand) { d.Autoscale.Cpu = 81 }, "autoscale.cpu: 81"},
		{"no cpu request", func(d *commandv1.Demand) { d.CpuMillicores = 0 }, "cpu_millicores"},
		{"a virtual machine", func(d *commandv1.Demand) { d.Type = "vm" }, "containers"},
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

func autoscaleScenario(w *world) {
	w.do(register("a"))
	w.do(ifCount(autoscaled(group(1, 2, 1, false), 2, 4), 0))
	w.everybodyRuns()
	w.do(autoscaled(scaling(1, 4, byLeader), 2, 4))
	w.do(autoscaled(scaling(1, 5, byLeader), 2, 4))
	w.do(ifCount(autoscaled(group(1, 2, 1, false), 2, 4), 2))
	w.do(ifCount(autoscaled(group(1, 4, 1, false), 2, 8), 4))
	w.do(scaling(1, 0, byLeader))
	w.do(scaling(1, 0))
	w.do(autoscaled(scaling(1, 3, byLeader), 2, 8))
	w.do(autoscaled(scaling(1, 3), 2, 8))
	w.do(group(1, 3, 1, false))
	w.do(scaling(1, 4, byLeader))
	w.do(autoscaled(group(1, 1, 0, false), 0, 4))
	w.do(put("alone", demand(func(d *commandv1.Demand) { d.Autoscale = &commandv1.Autoscale{Min: 1, Max: 2, Cpu: 50} })))
}
