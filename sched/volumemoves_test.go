package sched

import (
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// inMove returns a world in which the move of db's volume from node a to node b is in a phase.
func inMove(t *testing.T, phases ...fsm.MovePhase) *world {
	w := newWorld(t)
	w.reports = map[string]MoveReport{}
	can := func(n *commandv1.RegisterNode) { n.VolumeMoves = true }
	w.node("a", can)
	w.apply("db", demand(func(d *commandv1.Demand) {
		d.Volumes, d.LocalData = []*commandv1.VolumeUse{{Name: "data", Driver: "local"}}, []*commandv1.LocalData{{Name: "volume data"}}
	}))
	w.settle()
	w.node("b", can)
	w.do(&commandv1.Command{Body: &commandv1.Command_MoveVolume{MoveVolume: &commandv1.MoveVolume{Name: "data", From: "a", To: "b"}}})
	for _, p := range phases {
		if p == fsm.MoveFinal {
			w.say("db", "Stopped")
		}
		m, _ := w.state.Move("db")
		w.do(&commandv1.Command{Body: &commandv1.Command_AdvanceMoves{AdvanceMoves: &commandv1.AdvanceMoves{Steps: []*commandv1.MoveStep{{Workload: "db", Move: fsm.GenerationPB(m.ID), Phase: string(p)}}}}})
		if p == fsm.MoveStopping {
			w.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: []*commandv1.WorkloadReport{
				{Workload: "db", Node: "a", Generation: fsm.GenerationPB(w.get("db").Generation), Acknowledged: true, State: "Running", ObservedAt: w.now}}}}})
		}
	}
	return w
}

func TestNextPhaseOfAMove(t *testing.T) {
	stopping, final, placed := []fsm.MovePhase{fsm.MoveStopping}, []fsm.MovePhase{fsm.MoveStopping, fsm.MoveFinal}, []fsm.MovePhase{fsm.MoveStopping, fsm.MoveFinal, fsm.MovePlaced}
	undone := []fsm.MovePhase{fsm.MoveUndone}
	dropping := []fsm.MovePhase{fsm.MoveUndone, fsm.MoveDropping}
	says := func(node, state string) func(w *world) {
		return func(w *world) {
			m, _ := w.state.Move("db")
			w.reports[node+"/db"] = MoveReport{Workload: "db", Move: m.ID, State: state, Message: "why"}
		}
	}
	after := func(d int64) func(w *world) { return func(w *world) { w.now += d } }
	down := func(node string, d int64) func(w *world) {
		return func(w *world) {
			w.heard[node] = false
			w.do(&commandv1.Command{Body: &commandv1.Command_SetNodeStates{SetNodeStates: &commandv1.SetNodeStates{Nodes: []*commandv1.NodeState{{Id: node}}}}})
			w.now += d
		}
	}
	silent := func(node string) func(w *world) {
		return func(w *world) { w.silent = map[string]int64{node: w.now} }
	}
	up := func(node string) func(w *world) {
		return func(w *world) {
			w.heard[node] = true
			w.do(&commandv1.Command{Body: &commandv1.Command_SetNodeStates{SetNodeStates: &commandv1.SetNodeStates{Nodes: []*commandv1.NodeState{{Id: node, Up: true}}}}})
		}
	}
	runs := func(w *world) {
		x := w.get("db")
		w.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: []*commandv1.WorkloadReport{
			{Workload: "db", Node: x.Node, Generation: fsm.GenerationPB(x.Generation), Acknowledged: true, State: "Running", ObservedAt: w.now}}}}})
	}
	cordoned := func(w *world) { w.cordon("b", true) }
	tainted := func(w *world) {
		w.do(&commandv1.Command{Body: &commandv1.Command_TaintNode{TaintNode: &commandv1.TaintNode{Id: "b", Taints: []*commandv1.NodeTaint{{Taint: &commandv1.Taint{Key: "gpu", Effect: "NoSchedule"}}}}}})
	}
	for _, c := range []struct {
		name  string
		start []fsm.MovePhase
		do    []func(w *world)
		want  string // next phase; "-" = none, "" = the record is removed
	}{
		{"nothing is reported", nil, nil, "-"},
		{"the target copies", nil, []func(*world){says("b", MoveReportCopying)}, "-"},
		{"a pass is complete", nil, []func(*world){says("b", MoveReportCopied)}, "stopping"},
		{"the source says so", nil, []func(*world){says("a", MoveReportCopied)}, "-"},
		{"a report about another move", nil, []func(*world){says("b", MoveReportCopied), func(w *world) {
			r := w.reports["b/db"]
			r.Move.Sequence--
			w.reports["b/db"] = r
		}}, "-"},
		{"the copy failed", nil, []func(*world){says("b", MoveReportFailed)}, "undone"},
		{"the copy takes more than a day", nil, []func(*world){after(25 * 3600 * second)}, "undone"},
		{"the source is lost for a minute", nil, []func(*world){down("a", 60*second)}, "-"},
		{"the source is lost for long", nil, []func(*world){down("a", 660*second)}, "undone"},
		{"the target is lost for a minute", nil, []func(*world){down("b", 60*second)}, "-"},
		{"the target is lost for long", nil, []func(*world){down("b", 660*second)}, "undone"},
		{"the workload runs still", stopping, nil, "-"},
		{"the workload does not stop", stopping, []func(*world){after(660 * second)}, "undone"},
		{"the workload is stopped", stopping, []func(*world){func(w *world) { w.say("db", "Stopped") }}, "final"},
		{"the target is lost while the workload is stopped", final, []func(*world){down("b", 0)}, "undone"},
		{"the copy is not complete", final, []func(*world){says("b", MoveReportCopied)}, "-"},
		{"the copy is complete", final, []func(*world){says("b", MoveReportReady)}, "placed"},
		{"a pass is complete, and the target is cordoned", nil, []func(*world){says("b", MoveReportCopied), cordoned}, "undone"},
		{"a pass is complete, and the target is tainted", nil, []func(*world){says("b", MoveReportCopied), tainted}, "undone"},
		{"the copy is complete, and the target is cordoned", final, []func(*world){says("b", MoveReportReady), cordoned}, "undone"},
		{"the copy is complete, and the target is tainted", final, []func(*world){says("b", MoveReportReady), tainted}, "undone"},
		{"the copy is complete, and the stop is not confirmed for the present order", final, []func(*world){says("b", MoveReportReady), func(w *world) {
			w.do(&commandv1.Command{Body: &commandv1.Command_RetryWorkload{RetryWorkload: &commandv1.RetryWorkload{Id: "db"}}})
		}}, "-"},
		{"the copy is complete, and the source is lost", final, []func(*world){says("b", MoveReportReady), down("a", 0)}, "placed"},
		{"the copy is complete, and the target is lost", final, []func(*world){says("b", MoveReportReady), down("b", 0)}, "undone"},
		{"the last copy takes too long", final, []func(*world){after(4*3600*second + 60*second)}, "undone"},
		{"the workload has just started", placed, []func(*world){runs}, "-"},
		{"the workload has run for a minute", placed, []func(*world){runs, after(61 * second)}, "done"},
		{"the workload has run for a minute, and its node was not heard since", placed, []func(*world){runs, after(30 * second), silent("b"), after(31 * second)}, "-"},
		{"the workload has run for a minute, and its node was marked down", placed, []func(*world){runs, after(61 * second), down("b", 61*second)}, "-"},
		{"the workload has run for a minute, and its node was back since", placed, []func(*world){runs, down("b", 61*second), up("b")}, "-"},
		{"the workload was stopped by a person", placed, []func(*world){runs, func(w *world) {
			w.do(&commandv1.Command{Body: &commandv1.Command_SetDesired{SetDesired: &commandv1.SetDesired{Id: "db", Desired: "Stopped"}}})
			w.say("db", "Stopped")
		}, after(25 * 3600 * second)}, "-"},
		{"the workload does not run for long", placed, []func(*world){after(30 * 24 * 3600 * second)}, "-"},
		{"the source has not taken its copy back", undone, []func(*world){says("a", MoveReportKept), after(30 * 24 * 3600 * second)}, "-"},
		{"the source has taken its copy back", undone, []func(*world){says("a", MoveReportHeld)}, "dropping"},
		{"the source had taken its copy back, and is down", undone, []func(*world){says("a", MoveReportHeld), down("a", 0)}, "-"},
		{"the target deletes its copy", dropping, nil, "-"},
		{"the target has deleted its copy", dropping, []func(*world){says("b", MoveReportDropped)}, ""},
		{"the target does not answer for a day", dropping, []func(*world){after(25 * 3600 * second)}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := inMove(t, c.start...)
			for _, do := range c.do {
				do(w)
			}
			got := "-"
			for _, cmd := range w.plain().Commands {
				if b := cmd.GetAdvanceMoves(); b != nil {
					got = b.GetSteps()[0].GetPhase()
				}
			}
			if got != c.want {
				m, _ := w.state.Move("db")
				t.Errorf("the next phase is %q, want %q (%+v)", got, c.want, m)
			}
		})
	}
}

// TestALostNodeWaitsForTheFormerCopy: a workload that may leave its lost node returns to the node with the former copy of its
// volumes, when that node has reported the copy. Until then it starts nowhere.
func TestALostNodeWaitsForTheFormerCopy(t *testing.T) {
	for _, reported := range []bool{false, true} {
		w := inMove(t, fsm.MoveStopping, fsm.MoveFinal, fsm.MovePlaced)
		w.say("db", "Running")
		w.heard["b"] = false
		w.do(&commandv1.Command{Body: &commandv1.Command_SetNodeStates{SetNodeStates: &commandv1.SetNodeStates{Nodes: []*commandv1.NodeState{{Id: "b"}}}}})
		w.do(&commandv1.Command{Body: &commandv1.Command_FenceNode{FenceNode: &commandv1.FenceNode{Id: "b", DiscardData: true}}})
		if m, _ := w.state.Move("db"); reported {
			w.reports["a/db"] = MoveReport{Workload: "db", Move: m.ID, State: MoveReportKept}
		}
		leaves := false
		for _, c := range w.plain().Commands {
			leaves = leaves || c.GetEvict() != nil
		}
		if leaves != reported {
			t.Errorf("the former copy is reported: %t, and the workload leaves its lost node: %t", reported, leaves)
		}
	}
}

// TestNothingLeavesDuringAMove: a drain does not evict a workload whose volumes are being moved.
func TestNothingLeavesDuringAMove(t *testing.T) {
	w := inMove(t)
	w.do(&commandv1.Command{Body: &commandv1.Command_DrainNode{DrainNode: &commandv1.DrainNode{Id: "a", On: true, DiscardData: true}}})
	for _, c := range w.plain().Commands {
		if c.GetEvict() != nil {
			t.Errorf("the planner proposes %s", c)
		}
	}
}

// TestAWorkloadIsPlacedBesideAMove: a workload that uses a volume of a name that moves is placed on another node, and waits only
// if no other node fits.
func TestAWorkloadIsPlacedBesideAMove(t *testing.T) {
	w := inMove(t)
	use := demand(func(d *commandv1.Demand) { d.Volumes = []*commandv1.VolumeUse{{Name: "data", Driver: "local"}} })
	high := func(p *commandv1.WorkloadPut) { p.Demand.Priority = 10 }
	w.apply("web", use, high)
	for range 3 {
		w.step()
	}
	if x := w.get("web"); x.Node != "" || x.Reason.Message != `volume "data" of workload db moves from node a to node b; no other node fits, so the workload is placed when the move has ended` {
		t.Errorf("without another node, web is on %q: %s", x.Node, x.Reason.Message)
	}
	w.apply("plain", high) // an equal demand without the volume is not kept back
	for range 3 {
		w.step()
	}
	if x := w.get("plain"); x.Node == "" {
		t.Errorf("a workload without the volume is not placed: %s", x.Reason.Message)
	}
	w.node("c", func(n *commandv1.RegisterNode) { n.CpuMillicores, n.MemoryMib = 1000, 1024 }) // the scores of a and b are better
	for range 3 {
		w.step()
	}
	if x := w.get("web"); x.Node != "c" {
		t.Errorf("with another node, web is on %q: %s", x.Node, x.Reason.Message)
	}
}

// TestNothingIsPreemptedOnANodeOfAMove: the workload could not be placed there.
func TestNothingIsPreemptedOnANodeOfAMove(t *testing.T) {
	w := inMove(t)
	for _, id := range []string{"x", "y"} {
		w.apply(id, demand(func(d *commandv1.Demand) { d.CpuMillicores, d.Priority = 3000, 1 }))
		w.settle()
	}
	w.apply("web", demand(func(d *commandv1.Demand) {
		d.CpuMillicores, d.Priority = 2000, 10
		d.Volumes = []*commandv1.VolumeUse{{Name: "data", Driver: "local"}}
	}))
	for range 5 {
		w.step()
	}
	for _, id := range []string{"x", "y"} {
		if w.get(id).Node == "" {
			t.Errorf("workload %s was evicted", id)
		}
	}
}
