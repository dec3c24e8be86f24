package fsm

import (
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// folders makes a workload use local volumes without a size.
func folders(names ...string) func(*commandv1.WorkloadPut) {
	return demand(func(d *commandv1.Demand) {
		d.Volumes, d.LocalData = nil, nil
		for _, n := range names {
			d.Volumes = append(d.Volumes, &commandv1.VolumeUse{Name: n, Driver: DriverLocal, Retain: true})
			d.LocalData = append(d.LocalData, &commandv1.LocalData{Name: "volume " + n})
		}
	})
}

func movesVolumes(n *commandv1.RegisterNode) { n.VolumeMoves = true }

func moveVolume(name, from, to, end string) Command {
	return &commandv1.Command{Body: &commandv1.Command_MoveVolume{MoveVolume: &commandv1.MoveVolume{Name: name, From: from, To: to, End: end}}}
}

func (w *world) advance(id string, phases ...MovePhase) {
	w.t.Helper()
	for _, p := range phases {
		w.ok(w.phaseStep(id, p))
	}
}

func (w *world) phaseStep(id string, phase MovePhase) Command {
	b := &commandv1.MoveStep{Workload: id, Phase: string(phase), Reason: "planned"}
	if m, ok := w.s.Move(id); ok {
		b.Move = GenerationPB(m.ID)
	}
	return &commandv1.Command{Body: &commandv1.Command_AdvanceMoves{AdvanceMoves: &commandv1.AdvanceMoves{Steps: []*commandv1.MoveStep{b}}}}
}

// inMove returns a world in which db runs on node a with volumes data and logs, and their move to b is in a phase.
func inMove(t testing.TB, phase MovePhase) *world {
	return moveOfIn(t, "db", [2]string{"data", "logs"}, phase)
}

func moveOfIn(t testing.TB, id string, volumes [2]string, phase MovePhase) *world {
	w := formed(t)
	for _, n := range []string{"a", "b", "c"} {
		w.ok(register(n, movesVolumes))
	}
	w.place(id, "a", folders(volumes[:]...))
	w.run(id)
	if phase == "" {
		return w
	}
	w.ok(moveVolume(volumes[0], "a", "b", ""))
	if phase == MoveCopying {
		return w
	}
	w.advance(id, MoveStopping)
	if phase == MoveStopping {
		return w
	}
	w.ok(w.says(id, "Stopped"))
	w.advance(id, MoveFinal)
	if phase == MoveFinal {
		return w
	}
	w.advance(id, MovePlaced)
	switch phase {
	case MoveDone:
		w.run(id)
		w.advance(id, MoveDone)
	case MoveKept:
		w.ok(removeBut(id, false))
	}
	return w
}

func (w *world) phase() MovePhase {
	if m, ok := w.s.Move("db"); ok {
		return m.Phase
	}
	return ""
}

func TestVolumeMoveSwitchesInOneCommand(t *testing.T) {
	w := inMove(t, MoveFinal)
	before, _ := w.s.Move("db")
	is(t, "the node while the data is copied", w.workload("db").Node, "a")
	is(t, "what is reserved on the new node", w.s.Alloc("b").CPU, int64(1000))
	w.ok(w.phaseStep("db", MovePlaced))
	w.do(w.phaseStep("db", MoveDone)) // refused: the workload does not run yet
	is(t, "phase", w.phase(), MovePlaced)
	db := w.workload("db")
	is(t, "node", db.Node, "b")
	is(t, "desired state", db.Desired, DesiredRunning)
	is(t, "volumes", w.volumes(), "default/data/local/b held of db, default/logs/local/b held of db")
	v, _ := w.s.Volume("", "data", DriverLocal, "b")
	is(t, "copy in use", v.Copy, before.ID)
	is(t, "bound by data", db.BoundByData(w.node("b")), true)
	is(t, "what is reserved on the former node", w.s.Alloc("a").CPU > 0, true)
	w.run("db")
	w.advance("db", MoveDone, "")
	w.ok(gone("db", "a", nil))
	is(t, "what is reserved on the former node at the end", w.s.Alloc("a").CPU, int64(0))
}

func TestVolumeMoveIsRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(w *world)
		do   Command
		want string
	}{
		{"no such volume", nil, moveVolume("none", "a", "b", ""), "does not exist"},
		{"to no node", nil, moveVolume("data", "a", "x", ""), "does not exist"},
		{"to its node", nil, moveVolume("data", "a", "a", ""), "is on node a already"},
		{"an agent that cannot", func(w *world) { w.ok(register("d")) }, moveVolume("data", "a", "d", ""), "cannot move volumes"},
		{"a cordoned node", func(w *world) { w.ok(cordon("b", true)) }, moveVolume("data", "a", "b", ""), "not schedulable"},
		{"a second user", func(w *world) { w.place("web", "a", folders("data")); w.run("web") }, moveVolume("data", "a", "b", ""), "used by 2 workloads"},
		{"a second user of another volume of the workload", func(w *world) { w.place("web", "a", folders("logs")); w.run("web") }, moveVolume("data", "a", "b", ""), "used by other workloads too"},
		{"a volume of the name on the new node", func(w *world) { w.ok(reportVolumes("b", false, "logs")) }, moveVolume("data", "a", "b", ""), "has a volume \"logs\" already"},
		{"a volume with a size", func(w *world) { w.place("sized", "a", mounts("local:sized")); w.run("sized") }, moveVolume("sized", "a", "b", ""), "has a size"},
		{"other local data", func(w *world) {
			w.place("stack", "a", folders("x"), demand(func(d *commandv1.Demand) {
				d.LocalData = append(d.LocalData, &commandv1.LocalData{Name: "volumes of the stack"})
			}))
			w.run("stack")
		}, moveVolume("x", "a", "b", ""), "other local data"},
		{"a second move", func(w *world) { w.ok(moveVolume("data", "a", "b", "")) }, moveVolume("logs", "a", "c", ""), "wait for its end"},
		{"too slow", nil, &commandv1.Command{Body: &commandv1.Command_MoveVolume{MoveVolume: &commandv1.MoveVolume{Name: "data", From: "a", To: "b", BytesPerSecond: 5}}}, "bytes_per_second"},
		{"no move to end", nil, moveVolume("data", "a", "", MoveCancel), "no move of volume"},
		{"an unknown end", func(w *world) { w.ok(moveVolume("data", "a", "b", "")) }, moveVolume("data", "a", "", "later"), "none of cancel, settle"},
		{"a volume of a move is deleted", func(w *world) {
			w.ok(moveVolume("data", "a", "b", ""))
			w.ok(removeBut("db", false))
			w.ok(gone("db", "a", nil))
		}, deleteVolume("data", "a"), "move from node"},
		{"a volume created on the new node", func(w *world) { w.ok(moveVolume("data", "a", "b", "")) }, putVolume("data", "b"), "wait for its end"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := inMove(t, "")
			if c.set != nil {
				c.set(w)
			}
			if r := w.do(c.do); r.Kind == OK || !strings.Contains(r.Reason, c.want) {
				t.Errorf("the result is %s %q, want a refusal with %q", r.Kind, r.Reason, c.want)
			}
		})
	}
}

func TestVolumeMoveEndsWithTheWorkload(t *testing.T) {
	for _, c := range []struct {
		name  string
		phase MovePhase
		do    func(w *world)
		want  MovePhase
		node  string
		state Desired
	}{
		{"another specification while copying", MoveCopying, func(w *world) { w.ok(put("db", folders("data"), content("c1:other"))) }, MoveUndone, "a", DesiredRunning},
		{"the same specification while copying", MoveCopying, func(w *world) { w.do(put("db", folders("data", "logs"))) }, MoveCopying, "a", DesiredRunning},
		{"a start while stopping", MoveStopping, func(w *world) { w.ok(setDesired("db", "Running")) }, MoveUndone, "a", DesiredRunning},
		{"a stop while stopping", MoveStopping, func(w *world) { w.do(setDesired("db", "Stopped")) }, MoveStopping, "a", DesiredStopped},
		{"a cancel", MoveFinal, func(w *world) { w.ok(moveVolume("data", "a", "", MoveCancel)) }, MoveUndone, "a", DesiredRunning},
		{"the new node is removed", MoveFinal, func(w *world) { w.ok(removeNode("b", true)) }, MoveUndone, "a", DesiredRunning},
		{"an eviction while the node is up", MoveCopying, func(w *world) { w.do(w.evict("db", CodePreempted, false)) }, MoveCopying, "a", DesiredRunning},
		{"a cancel while the workload runs on the new node", MovePlaced, func(w *world) { w.run("db"); w.do(moveVolume("data", "b", "", MoveCancel)) }, MovePlaced, "b", DesiredRunning},
		{"a cancel after the workload was stopped on the new node", MovePlaced, func(w *world) {
			w.run("db")
			w.ok(setDesired("db", "Stopped"))
			w.ok(w.says("db", "Stopped"))
			w.ok(moveVolume("data", "b", "", MoveCancel))
		}, MoveUndone, "a", DesiredStopped},
		{"a cancel while the node of the former copy is down", MovePlaced, func(w *world) {
			w.run("db")
			w.ok(setDesired("db", "Stopped"))
			w.ok(w.says("db", "Stopped"))
			w.ok(nodeState("a", false))
			w.do(moveVolume("data", "b", "", MoveCancel))
		}, MovePlaced, "b", DesiredStopped},
		{"a settle", MovePlaced, func(w *world) { w.ok(moveVolume("data", "b", "", MoveSettle)) }, MoveDone, "b", DesiredRunning},
		{"the planner settles while the workload does not run", MovePlaced, func(w *world) { w.do(w.phaseStep("db", MoveDone)) }, MovePlaced, "b", DesiredRunning},
		{"the planner settles while the workload is stopped by a person", MovePlaced, func(w *world) {
			w.run("db")
			w.ok(setDesired("db", "Stopped"))
			w.ok(w.says("db", "Stopped"))
			w.do(w.phaseStep("db", MoveDone))
		}, MovePlaced, "b", DesiredStopped},
		{"the planner settles while the new node is down", MovePlaced, func(w *world) {
			w.run("db")
			w.ok(nodeState("b", false))
			w.do(w.phaseStep("db", MoveDone))
		}, MovePlaced, "b", DesiredRunning},
		{"the new copy is dropped while the node of the other copy is down", MoveCopying, func(w *world) {
			w.ok(moveVolume("data", "a", "", MoveCancel))
			w.ok(nodeState("a", false))
			w.do(w.phaseStep("db", MoveDropping))
		}, MoveUndone, "a", DesiredRunning},
		{"a person says that the new copy of an undone move is not needed", MoveCopying, func(w *world) {
			w.ok(moveVolume("data", "a", "", MoveCancel))
			w.ok(moveVolume("data", "a", "", MoveSettle))
		}, MoveDropping, "a", DesiredRunning},
		{"the new copy is dropped", MoveCopying, func(w *world) {
			w.ok(moveVolume("data", "a", "", MoveCancel))
			w.ok(w.phaseStep("db", MoveDropping))
		}, MoveDropping, "a", DesiredRunning},
		{"the record of an undone move is removed before its copy is dropped", MoveCopying, func(w *world) {
			w.ok(moveVolume("data", "a", "", MoveCancel))
			w.do(w.phaseStep("db", ""))
		}, MoveUndone, "a", DesiredRunning},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := inMove(t, c.phase)
			c.do(w)
			is(t, "phase", w.phase(), c.want)
			is(t, "node", w.workload("db").Node, c.node)
			is(t, "desired state", w.workload("db").Desired, c.state)
			if c.want == MoveUndone {
				m, _ := w.s.Move("db")
				v, ok := w.s.Volume("", "data", DriverLocal, "a")
				is(t, "the record says that the move was undone", ok && v.Undone == m.ID && v.Copy.IsZero(), true)
			}
		})
	}
}

// TestVolumeMoveNeedsItsNodes: a node that has a copy which may be needed is removed only with discard_data.
func TestVolumeMoveNeedsItsNodes(t *testing.T) {
	for _, phase := range []MovePhase{MoveCopying, MoveStopping, MoveFinal, MovePlaced, MoveKept, MoveUndone} {
		w := inMove(t, phase)
		if r := w.do(removeNode("a", true)); r.Kind == OK || !strings.Contains(r.Reason, "--discard-data") {
			t.Errorf("phase %s: removing the source returned %s %q, want a refusal", phase, r.Kind, r.Reason)
		}
	}
	w := inMove(t, MoveDone)
	w.ok(removeNode("a", true))
	is(t, "phase", w.phase(), MovePhase(""))

	// The new node is given up: the workload returns to the copy on the former node.
	w = inMove(t, MovePlaced)
	c := removeNode("b", true)
	c.GetRemoveNode().DiscardData = true
	w.ok(nodeState("a", false))
	if r := w.do(c); r.Kind == OK || !strings.Contains(r.Reason, "--settle") {
		t.Errorf("removing the target while the former copy cannot be used returned %s %q, want a refusal", r.Kind, r.Reason)
	}
	w.ok(nodeState("a", true))
	w.ok(c)
	is(t, "node", w.workload("db").Node, "a")
	is(t, "phase", w.phase(), MoveUndone)
	is(t, "volumes", w.volumes(), "default/data/local/a held of db, default/logs/local/a held of db")
}

// TestVolumesOfAMoveAreTaken: no other workload is placed on a copy of a volume that moves.
func TestVolumesOfAMoveAreTaken(t *testing.T) {
	w := inMove(t, MoveCopying)
	w.ok(put("web", folders("data")))
	for _, node := range []string{"a", "b"} {
		if r := w.do(w.assign("web", node)); !strings.Contains(r.Reason, "moves from node a to node b") {
			t.Errorf("an assignment to node %s returned %s %q", node, r.Kind, r.Reason)
		}
	}
	w.ok(w.assign("web", "c"))

	// A volume that comes to the new node in spite of that undoes the move at the switch.
	w = inMove(t, MoveFinal)
	w.ok(reportVolumes("b", false, "logs"))
	w.do(w.phaseStep("db", MovePlaced))
	is(t, "phase", w.phase(), MoveUndone)
	is(t, "desired state", w.workload("db").Desired, DesiredRunning)
}

// TestAsideCopiesMakeNoRecord: a copy that is not in use keeps the record of its node, but makes none.
func TestAsideCopiesMakeNoRecord(t *testing.T) {
	w := inMove(t, MovePlaced)
	aside := reportVolumes("a", true, "data", "logs")
	for _, v := range aside.GetReportVolumes().GetVolumes() {
		v.Aside = true
	}
	w.do(aside)
	is(t, "volumes", w.volumes(), "default/data/local/b held of db, default/logs/local/b held of db")
}

// TestARestoreKeepsWhereMovedDataIs: a backup from before a move brings neither the former node nor a second record.
func TestARestoreKeepsWhereMovedDataIs(t *testing.T) {
	w := inMove(t, "")
	backup := w.s
	w.ok(moveVolume("data", "a", "b", ""))
	w.advance("db", MoveStopping)
	w.ok(w.says("db", "Stopped"))
	w.advance("db", MoveFinal, MovePlaced)
	w.run("db")
	s, err := Restored(backup, w.s, RestoreInfo{At: w.now})
	if err != nil {
		t.Fatal(err)
	}
	w.s = s
	is(t, "node", w.workload("db").Node, "b")
	is(t, "phase", w.phase(), MovePlaced)
	is(t, "volumes", w.volumes(), "default/data/local/b held of db, default/logs/local/b held of db")
}

// TestMovesInNewSchedulers: after the restore of a backup into new schedulers, the volumes may have moved since. So no copy is
// deleted, and no workload gets another copy, until a person says which copy is used.
func TestMovesInNewSchedulers(t *testing.T) {
	restored := func(t *testing.T, phase MovePhase) *world {
		w := inMove(t, phase)
		s, err := Restored(w.s, New(), RestoreInfo{At: w.now})
		if err != nil {
			t.Fatal(err)
		}
		w.s, w.index = s, s.Info().Index
		return w
	}
	for _, phase := range []MovePhase{MoveCopying, MoveStopping, MoveFinal, MovePlaced, MoveDone} {
		w := restored(t, phase)
		is(t, "phase after "+string(phase), w.phase(), MoveKept)
		for _, p := range []MovePhase{MoveStopping, MoveFinal, MovePlaced, MoveDone, MoveUndone, MoveDropping, ""} {
			w.do(w.phaseStep("db", p))
			is(t, "phase after the planner proposed "+string(p), w.phase(), MoveKept)
		}
		m, _ := w.s.Move("db")
		for _, node := range []string{"a", "b"} {
			v, ok := w.s.Volume("", "data", DriverLocal, node)
			is(t, "the record on node "+node+" permits to use a copy that was set aside", ok && !v.Undone.Less(m.ID), false)
		}
	}
	w := restored(t, MoveFinal)
	w.ok(moveVolume("data", "a", "", MoveCancel))
	is(t, "phase", w.phase(), MoveUndone)
	is(t, "node", w.workload("db").Node, "a")

	w = restored(t, MoveFinal)
	if r := w.do(moveVolume("data", "a", "", MoveSettle)); r.Kind == OK {
		t.Error("a workload that may run on the former node was settled on the new one")
	}
	w.ok(setDesired("db", "Stopped"))
	w.ok(w.says("db", "Stopped"))
	w.ok(moveVolume("data", "a", "", MoveSettle))
	is(t, "phase", w.phase(), MovePlaced)
	is(t, "node", w.workload("db").Node, "b")

	w = restored(t, MovePlaced)
	w.ok(moveVolume("data", "b", "", MoveSettle))
	is(t, "phase", w.phase(), MoveDone)

	w = restored(t, MovePlaced)
	w.ok(setDesired("db", "Stopped"))
	w.ok(w.says("db", "Stopped"))
	w.ok(moveVolume("data", "b", "", MoveCancel))
	is(t, "phase", w.phase(), MoveUndone)
	is(t, "node", w.workload("db").Node, "a")
}

// TestAMoveSettlesAfterARun: the time for which the workload has run starts again when it fails or restarts.
func TestAMoveSettlesAfterARun(t *testing.T) {
	w := inMove(t, MovePlaced)
	since := func() int64 { m, _ := w.s.Move("db"); return m.RunsSince }
	runs := func(restarts int32, health string) Command {
		x := w.workload("db")
		return report(&commandv1.WorkloadReport{Workload: "db", Node: "b", Generation: GenerationPB(x.Generation), State: "Running", Acknowledged: true, RestartCount: restarts, Health: health})
	}
	is(t, "since before the start", since(), int64(0))
	w.run("db")
	first := since()
	is(t, "runs", first > 0, true)
	w.now += minute
	w.ok(runs(1, ""))
	is(t, "a restart counts as a new start", since() > first, true)
	w.ok(runs(1, Unhealthy))
	is(t, "since while it is unhealthy", since(), int64(0))
	w.ok(runs(1, Healthy))
	is(t, "runs again", since() > 0, true)
}

// TestALostNodeReturnsItsVolumes: the workload of a lost node starts nowhere with an empty volume while another node keeps a
// copy of its data.
func TestALostNodeReturnsItsVolumes(t *testing.T) {
	for _, up := range []bool{false, true} {
		w := inMove(t, MovePlaced)
		w.run("db")
		w.ok(gone("db", "a", nil))
		w.ok(nodeState("b", false))
		c := &commandv1.Command{Body: &commandv1.Command_FenceNode{FenceNode: &commandv1.FenceNode{Id: "b", DiscardData: true}}}
		w.ok(c)
		w.ok(nodeState("a", up))
		w.do(w.evict("db", CodeNodeLost, true))
		want := map[bool]string{false: "b", true: "a"}[up]
		is(t, "node", w.workload("db").Node, want)
	}
}

func volumeMovesScenario(w *world) {
	for _, id := range []string{"a", "b"} {
		w.do(register(id, movesVolumes))
	}
	w.do(put("db", folders("data", "logs")))
	w.do(w.assign("db", "a"))
	w.do(w.says("db", "Running"))
	w.do(moveVolume("data", "a", "b", ""))
	w.do(w.phaseStep("db", MoveStopping))
	w.do(moveVolume("data", "a", "", MoveCancel))
	w.do(w.says("db", "Running"))
	w.do(w.phaseStep("db", MoveDropping))
	w.do(w.phaseStep("db", ""))
	w.do(moveVolume("data", "a", "b", ""))
	w.do(w.phaseStep("db", MoveStopping))
	w.do(w.says("db", "Stopped"))
	w.do(w.phaseStep("db", MoveFinal))
	w.do(w.phaseStep("db", MovePlaced))
	w.do(gone("db", "a", nil))
	w.do(w.phaseStep("db", MoveDone))
	w.do(w.says("db", "Running"))
	w.do(w.phaseStep("db", MoveDone))
	w.do(w.phaseStep("db", ""))
	w.do(moveVolume("logs", "b", "a", ""))
	w.do(w.phaseStep("db", MoveStopping))
	w.do(w.says("db", "Stopped"))
	w.do(w.phaseStep("db", MoveFinal))
	w.do(w.phaseStep("db", MovePlaced))
	w.do(removeBut("db", false))
	w.do(moveVolume("logs", "a", "", MoveSettle))
	w.do(w.phaseStep("db", ""))
}
