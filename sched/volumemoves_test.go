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
	undone := append(placed[:0:0], fsm.MoveUndone)
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
	runs := func(w *world) {
		x := w.get("db")
		w.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: []*commandv1.WorkloadReport{
			{Workload: "db", Node: x.Node, Generation: fsm.GenerationPB(x.Generation), Acknowledged: true, State: "Running", ObservedAt: w.now}}}}})
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
		{"the copy is complete, and the source is lost", final, []func(*world){says("b", MoveReportReady), down("a", 0)}, "placed"},
		{"the copy is complete, and the target is lost", final, []func(*world){says("b", MoveReportReady), down("b", 0)}, "undone"},
		{"the last copy takes too long", final, []func(*world){after(3660 * second)}, "undone"},
		{"the workload has just started", placed, []func(*world){runs}, "-"},
		{"the workload has run for a minute", placed, []func(*world){runs, after(61 * second)}, "done"},
		{"the workload does not run", placed, []func(*world){after(901 * second)}, "kept"},
		{"the target deletes its copy", undone, nil, "-"},
		{"the target has deleted its copy", undone, []func(*world){says("b", MoveReportDropped)}, ""},
		{"the target does not answer for a day", undone, []func(*world){after(25 * 3600 * second)}, ""},
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
