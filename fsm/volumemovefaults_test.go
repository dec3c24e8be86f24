package fsm

import (
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// TestANamespaceStaysWhileItsVolumesMove: a later namespace of the same name would get the copies that the nodes keep.
func TestANamespaceStaysWhileItsVolumesMove(t *testing.T) {
	w := formed(t)
	w.ok(putNamespace("shop"))
	for _, n := range []string{"a", "b"} {
		w.ok(register(n, movesVolumes))
	}
	w.place("db", "a", folders("data"), inNamespace("shop"), demand(func(d *commandv1.Demand) { d.Volumes[0].Retain = false }))
	w.run("db")
	w.ok(&commandv1.Command{Body: &commandv1.Command_MoveVolume{MoveVolume: &commandv1.MoveVolume{Name: "data", Namespace: "shop", From: "a", To: "b"}}})
	w.advance("db", MoveStopping)
	w.ok(w.says("db", "Stopped"))
	w.advance("db", MoveFinal, MovePlaced)
	w.ok(remove("db", false))
	w.ok(gone("db", "a", nil))
	w.ok(gone("db", "b", nil))
	is(t, "phase", w.phase(), MoveKept)
	c := &commandv1.Command{Body: &commandv1.Command_DeleteNamespace{DeleteNamespace: &commandv1.DeleteNamespace{Name: "shop"}}}
	if r := w.do(c); r.Kind == OK || !strings.Contains(r.Reason, "a person must say") {
		t.Errorf("the result is %s %q, want a refusal because of the move", r.Kind, r.Reason)
	}
}

// reportCopy is a report of a node that has a copy of a volume in use.
func reportCopy(node, name string, id Generation) Command {
	c := reportVolumes(node, false, name)
	c.GetReportVolumes().GetVolumes()[0].Copy = GenerationPB(id)
	c.GetReportVolumes().GetVolumes()[0].SizeGb = 0
	return c
}

// TestARecordTakesOverANewerCopy: a node that was removed and has registered again reports the copy that a move had made.
func TestARecordTakesOverANewerCopy(t *testing.T) {
	w := inMove(t, MovePlaced)
	m, _ := w.s.Move("db")
	w.run("db")
	w.advance("db", MoveDone, "")
	c := removeNode("b", true)
	c.GetRemoveNode().DiscardData = true
	w.ok(c)
	w.ok(register("b", movesVolumes))
	w.ok(w.assign("db", "b"))
	copyOn := func(node string) Generation {
		v, _ := w.s.Volume("", "data", DriverLocal, node)
		return v.Copy
	}
	is(t, "copy of the new record", copyOn("b"), Generation{})
	older := m.ID
	older.Sequence--
	aside := reportCopy("b", "data", m.ID)
	aside.GetReportVolumes().GetVolumes()[0].Aside = true
	w.do(aside)
	is(t, "copy after the report of a copy that is not in use", copyOn("b"), Generation{})
	w.ok(reportCopy("b", "data", m.ID))
	is(t, "copy after the report", copyOn("b"), m.ID)
	w.do(reportCopy("b", "data", older))
	is(t, "copy after the report of an older copy", copyOn("b"), m.ID)
}

// restoredOver restores the state of w into new schedulers to which the nodes have reported their copies in use.
func restoredOver(t *testing.T, w *world, reports ...Command) *world {
	t.Helper()
	next := formedAgain(w)
	for _, n := range []string{"a", "b", "c"} {
		next.ok(register(n, movesVolumes))
	}
	for _, c := range reports {
		next.ok(c)
	}
	w.index = max(w.index, next.index)
	return w.withState(restored(t, w.s, next.s))
}

// TestARestoreKeepsTheFormerCopy: nodes do not report which copy a move came from, nor which move was undone.
func TestARestoreKeepsTheFormerCopy(t *testing.T) {
	w := inMove(t, MoveDone)
	first, _ := w.s.Move("db")
	w.advance("db", "")
	w.ok(gone("db", "a", nil))
	w.ok(moveVolume("data", "b", "a", ""))
	w.advance("db", MoveStopping)
	w.ok(w.says("db", "Stopped"))
	w.advance("db", MoveFinal, MovePlaced)
	second, _ := w.s.Move("db")
	w = restoredOver(t, w, reportCopy("a", "data", second.ID), reportCopy("a", "logs", second.ID))
	is(t, "phase", w.phase(), MoveKept)
	v, _ := w.s.Volume("", "data", DriverLocal, "a")
	is(t, "former copy", v.Former, first.ID)
	w.ok(setDesired("db", "Stopped"))
	w.ok(w.says("db", "Stopped"))
	w.ok(moveVolume("data", "a", "", MoveCancel))
	v, _ = w.s.Volume("", "data", DriverLocal, "b")
	is(t, "copy after the cancel", v.Copy, first.ID)
	is(t, "undone after the cancel", v.Undone, second.ID)

	// The record of an undone move is merged too.
	w = restoredOver(t, w, reportCopy("b", "data", first.ID), reportCopy("b", "logs", first.ID))
	v, _ = w.s.Volume("", "data", DriverLocal, "b")
	is(t, "undone after another restore", v.Undone, second.ID)
}

// TestAStopDuringAMoveLasts: a user's stop of a workload that is stopped for a move is no second request for the same state.
func TestAStopDuringAMoveLasts(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(w *world)
		want Desired
	}{
		{"no stop", func(*world) {}, DesiredRunning},
		{"a stop", func(w *world) { w.do(setDesired("db", "Stopped")) }, DesiredStopped},
		{"a stop while the workload runs still", func(w *world) { w.run("db"); w.ok(setDesired("db", "Stopped")) }, DesiredStopped},
		{"an apply with the desired state Stopped", func(w *world) { w.ok(put("db", folders("data", "logs"), desired("Stopped"))) }, DesiredStopped},
		{"an apply of the same file", func(w *world) { w.ok(put("db", folders("data", "logs"))) }, DesiredRunning},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := inMove(t, MoveStopping)
			c.do(w)
			is(t, "phase", w.phase(), MoveStopping)
			w.ok(w.says("db", "Stopped"))
			w.advance("db", MoveFinal, MovePlaced)
			is(t, "phase", w.phase(), MovePlaced)
			is(t, "desired state after the move", w.workload("db").Desired, c.want)
		})
	}
}

// TestTheSameFileDoesNotUndoAMove: pipelines apply the same file again and again.
func TestTheSameFileDoesNotUndoAMove(t *testing.T) {
	for _, phase := range []MovePhase{MoveCopying, MoveStopping, MoveFinal} {
		w := inMove(t, phase)
		before := w.workload("db").Generation
		r := w.ok(put("db", folders("data", "logs")))
		is(t, "phase", w.phase(), phase)
		is(t, "the order is the same", w.workload("db").Generation, before)
		is(t, "unchanged", r.Items[0].Unchanged, true)
		w.ok(put("db", folders("data", "logs"), func(p *commandv1.WorkloadPut) { p.CallerRevision = "rev-2" }))
		is(t, "phase after another revision of the caller", w.phase(), phase)
	}
	w := inMove(t, MoveFinal)
	w.ok(put("db", folders("data", "logs"), content("c1:other")))
	is(t, "phase after an apply with another content", w.phase(), MoveUndone)
	is(t, "desired state", w.workload("db").Desired, DesiredRunning)
}

// groupInMove returns a world with the members web-0 and web-1, of which web-0 is stopped because its volume moves from a to b.
func groupInMove(t *testing.T, members int) *world {
	w := formed(t)
	for _, n := range []string{"a", "b", "c"} {
		w.ok(register(n, movesVolumes))
	}
	w.ok(folderGroup(1, members))
	for i, node := range []string{"a", "c"}[:members] {
		id := MemberIDs("web", members)[i]
		w.ok(w.assign(id, node))
		w.run(id)
	}
	w.ok(moveVolume("data", "a", "b", ""))
	w.advance("web-0", MoveStopping)
	return w
}

func folderGroup(version, members int) Command {
	c := group(version, members, 1, false)
	for _, p := range c.GetPutWorkloads().GetWorkloads() {
		folders("data")(p)
	}
	return c
}

func (w *world) movePhase(id string) MovePhase {
	if m, ok := w.s.Move(id); ok {
		return m.Phase
	}
	return ""
}

// TestUpdatesStartMembersThatAMoveStopped: the stop of a move is no wish of a user, so an update does not keep it.
func TestUpdatesStartMembersThatAMoveStopped(t *testing.T) {
	w := groupInMove(t, 2)
	w.ok(folderGroup(2, 2))
	for range 3 {
		w.step()
		w.everybodyRuns()
		w.wait(10 * second)
	}
	is(t, "phase", w.movePhase("web-0"), MoveUndone)
	is(t, "desired state after an update", w.workload("web-0").Desired, DesiredRunning)

	// An undo of the update gives back a member that was stopped for a move meanwhile.
	w = groupInMove(t, 2)
	w.ok(moveVolume("data", "a", "", MoveCancel))
	w.ok(w.phaseStep("web-0", MoveDropping))
	w.ok(w.phaseStep("web-0", ""))
	w.run("web-0")
	w.ok(folderGroup(2, 2))
	for range 6 {
		w.step()
		w.everybodyRuns()
		w.wait(10 * second)
	}
	is(t, "versions", w.versions(), "2 2 Completed")
	w.ok(moveVolume("data", "a", "b", ""))
	w.advance("web-0", MoveStopping)
	w.ok(rolloutAction("undo"))
	for range 3 {
		w.step()
		w.everybodyRuns()
		w.wait(10 * second)
	}
	is(t, "desired state after an undo", w.workload("web-0").Desired, DesiredRunning)

	scale := func(w *world, count int) {
		c := scaling(1, count)
		for _, p := range c.GetScaleGroup().GetMembers() {
			folders("data")(p)
		}
		w.ok(c)
	}
	w = groupInMove(t, 2)
	scale(w, 3)
	is(t, "members after scaling", w.members(), "web-0- web-1 web-2")
	is(t, "phase after scaling", w.movePhase("web-0"), MoveStopping)
	w = groupInMove(t, 1)
	scale(w, 2)
	is(t, "members after scaling a group of one", w.members(), "web-0- web-1")
	is(t, "phase after scaling a group of one", w.movePhase("web-0"), MoveStopping)
	scale(w, 0)
	w.ok(w.says("web-0", "Stopped"))
	w.advance("web-0", MoveFinal, MovePlaced)
	is(t, "members after scaling to none", w.members(), "web-0-")
}

// TestTheStopOfAMoveIsNotKeptForAnUndo: the former specifications of an update do not say that a member was stopped.
func TestTheStopOfAMoveIsNotKeptForAnUndo(t *testing.T) {
	w := groupInMove(t, 2)
	w.ok(folderGroup(2, 2))
	for _, p := range w.rolled().Former {
		is(t, "desired state of former member "+p.GetId(), p.GetDesired(), "Running")
	}
}
