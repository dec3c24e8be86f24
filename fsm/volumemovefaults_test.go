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

	// The update begins before the move stops the member, which then waits for its turn.
	w = groupInMove(t, 2)
	w.ok(moveVolume("data", "a", "", MoveCancel))
	w.ok(w.phaseStep("web-0", MoveDropping))
	w.ok(w.phaseStep("web-0", ""))
	w.run("web-0")
	w.ok(moveVolume("data", "a", "b", ""))
	w.ok(folderGroup(2, 2))
	w.advance("web-0", MoveStopping)
	for range 6 {
		w.step()
		w.everybodyRuns("web-0")
		w.wait(10 * second)
	}
	is(t, "phase after its turn", w.movePhase("web-0"), MoveUndone)
	is(t, "desired state after its turn", w.workload("web-0").Desired, DesiredRunning)

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

// TestARestoreMakesNoEmptyVolume: a backup from before the switch of a move is restored into new schedulers. The data may be on the
// new node, so an order to the former node must not make an empty volume.
func TestARestoreMakesNoEmptyVolume(t *testing.T) {
	for _, phase := range []MovePhase{MoveCopying, MoveStopping, MoveFinal} {
		for _, reported := range []bool{false, true} {
			t.Run(string(phase)+map[bool]string{true: " and the new node reports the copy"}[reported], func(t *testing.T) {
				w := inMove(t, phase)
				m, _ := w.s.Move("db")
				var reports []Command
				if reported {
					reports = []Command{reportCopy("b", "data", m.ID), reportCopy("b", "logs", m.ID)}
				}
				start := func() *world {
					old := *w
					return restoredOver(t, &old, reports...)
				}
				r := start()
				is(t, "phase", r.phase(), MoveKept)
				is(t, "desired state", r.workload("db").Desired, DesiredRunning)
				if phase != MoveCopying {
					is(t, "the order to stop is the present order", r.workload("db").Acknowledged, false)
				}
				for _, name := range []string{"data", "logs"} {
					v, ok := r.s.Volume("", name, DriverLocal, "a")
					is(t, "the order says that the volume is no new one", ok && !v.Undone.IsZero(), true)
					is(t, "the order takes no copy back that was set aside for the move", v.Undone.Less(m.ID), true)
				}
				r.ok(moveVolume("data", "a", "", MoveCancel))
				is(t, "phase after a cancel", r.phase(), MoveUndone)
				is(t, "node after a cancel", r.workload("db").Node, "a")
				v, _ := r.s.Volume("", "data", DriverLocal, "a")
				is(t, "undone after a cancel", v.Undone, m.ID)

				r = start()
				if x := r.do(moveVolume("data", "a", "", MoveSettle)); x.Kind == OK {
					t.Error("a workload that may run on the former node was settled on the new one")
				}
				is(t, "phase after the refusal", r.phase(), MoveKept)
				r.ok(setDesired("db", "Stopped"))
				r.ok(r.says("db", "Stopped"))
				r.ok(moveVolume("data", "a", "", MoveSettle))
				is(t, "phase after a settle", r.phase(), MovePlaced)
				is(t, "node after a settle", r.workload("db").Node, "b")
				is(t, "volumes after a settle", r.volumes(), "default/data/local/b held of db, default/logs/local/b held of db")
			})
		}
	}
}

// TestARestoreKeepsTheRecordOfTheFormerCopy: the record of the former node has the id of a copy that an earlier move made. A cancel
// must name this copy, although the new node reports a newer one.
func TestARestoreKeepsTheRecordOfTheFormerCopy(t *testing.T) {
	w := inMove(t, MoveDone)
	first, _ := w.s.Move("db")
	w.advance("db", "")
	w.ok(gone("db", "a", nil))
	w.ok(moveVolume("data", "b", "c", ""))
	w.advance("db", MoveStopping)
	w.ok(w.says("db", "Stopped"))
	w.advance("db", MoveFinal)
	second, _ := w.s.Move("db")
	w = restoredOver(t, w, reportCopy("c", "data", second.ID), reportCopy("c", "logs", second.ID))
	is(t, "phase", w.phase(), MoveKept)
	w.ok(moveVolume("data", "b", "", MoveCancel))
	v, _ := w.s.Volume("", "data", DriverLocal, "b")
	is(t, "copy after the cancel", v.Copy, first.ID)
	is(t, "undone after the cancel", v.Undone, second.ID)
}

// TestAMoveChecksTheNewNodeAgain: the new node may have been cordoned or drained while the data was copied.
func TestAMoveChecksTheNewNodeAgain(t *testing.T) {
	for _, phase := range []MovePhase{MoveCopying, MoveFinal} {
		for name, c := range map[string]Command{
			"cordoned": cordon("b", true),
			"draining": {Body: &commandv1.Command_DrainNode{DrainNode: &commandv1.DrainNode{Id: "b", On: true}}},
		} {
			w := inMove(t, phase)
			w.ok(c)
			next := map[MovePhase]MovePhase{MoveCopying: MoveStopping, MoveFinal: MovePlaced}[phase]
			w.ok(w.phaseStep("db", next))
			is(t, "phase after the node was "+name+" in phase "+string(phase), w.phase(), MoveUndone)
			is(t, "desired state", w.workload("db").Desired, DesiredRunning)
			is(t, "node", w.workload("db").Node, "a")
		}
	}
	// The resources that the move reserves are not counted twice.
	w := inMove(t, MoveFinal)
	w.ok(put("big", demand(func(d *commandv1.Demand) { d.CpuMillicores = 3000 })))
	w.ok(w.assign("big", "b"))
	w.ok(w.phaseStep("db", MovePlaced))
	is(t, "phase on a full node", w.phase(), MovePlaced)
}

// TestARetryDuringTheLastCopyDoesNotUndoTheMove: a retry gives the stopped workload a new order.
func TestARetryDuringTheLastCopyDoesNotUndoTheMove(t *testing.T) {
	w := inMove(t, MoveFinal)
	w.ok(&commandv1.Command{Body: &commandv1.Command_RetryWorkload{RetryWorkload: &commandv1.RetryWorkload{Id: "db"}}})
	w.do(w.phaseStep("db", MovePlaced))
	is(t, "phase before the node has confirmed the new order", w.phase(), MoveFinal)
	w.ok(w.says("db", "Stopped"))
	w.ok(w.phaseStep("db", MovePlaced))
	is(t, "phase", w.phase(), MovePlaced)
}

// drainedAfterTheSwitch returns a world in which the workload of a placed move was evicted from the new node without its data.
func drainedAfterTheSwitch(t *testing.T) *world {
	w := inMove(t, MovePlaced)
	w.run("db")
	w.ok(gone("db", "a", nil))
	w.ok(&commandv1.Command{Body: &commandv1.Command_DrainNode{DrainNode: &commandv1.DrainNode{Id: "b", On: true, DiscardData: true}}})
	w.ok(w.evict("db", CodeDraining, false))
	is(t, "phase", w.phase(), MoveKept)
	is(t, "node", w.workload("db").Node, "")
	return w
}

// TestAWorkloadIsNotPlacedOnAnUnusedCopy: no agent starts a workload on a copy of its volumes that is not in use.
func TestAWorkloadIsNotPlacedOnAnUnusedCopy(t *testing.T) {
	undrain := &commandv1.Command{Body: &commandv1.Command_DrainNode{DrainNode: &commandv1.DrainNode{Id: "b"}}}
	w := drainedAfterTheSwitch(t)
	w.ok(undrain)
	for _, node := range []string{"a", "b"} {
		w.do(w.assign("db", node))
		is(t, "node after an assignment to "+node, w.workload("db").Node, "")
	}
	w.ok(w.assign("db", "c"))
	if r := w.do(moveVolume("data", "b", "", MoveCancel)); !strings.Contains(r.Reason, "is on node \"c\"") {
		t.Errorf("a cancel returned %s %q", r.Kind, r.Reason)
	}
	w.ok(moveVolume("data", "b", "", MoveSettle))
	is(t, "phase after a settle", w.phase(), MoveDone)

	w = drainedAfterTheSwitch(t)
	w.ok(moveVolume("data", "b", "", MoveCancel))
	is(t, "phase after a cancel", w.phase(), MoveUndone)
	is(t, "node after a cancel", w.workload("db").Node, "a")
	is(t, "volumes after a cancel", w.volumes(), "default/data/local/a held of db, default/logs/local/a held of db")

	w = drainedAfterTheSwitch(t)
	w.ok(undrain)
	w.ok(moveVolume("data", "b", "", MoveSettle))
	w.do(w.assign("db", "a"))
	is(t, "node while the former copy is deleted", w.workload("db").Node, "")
	w.ok(w.assign("db", "b"))
	v, _ := w.s.Volume("", "data", DriverLocal, "b")
	is(t, "the volume has the copy of the move", v.Copy.IsZero(), false)

	w = inMove(t, MoveCopying)
	w.ok(moveVolume("data", "a", "", MoveCancel))
	w.ok(&commandv1.Command{Body: &commandv1.Command_DrainNode{DrainNode: &commandv1.DrainNode{Id: "a", On: true, DiscardData: true}}})
	w.ok(w.evict("db", CodeDraining, false))
	w.do(w.assign("db", "b"))
	is(t, "node while the new copy of an undone move is there", w.workload("db").Node, "")
}

// TestANamespaceHasALimitOfMoves: one namespace cannot take all moves.
func TestANamespaceHasALimitOfMoves(t *testing.T) {
	w := formed(t)
	big := func(n *commandv1.RegisterNode) { n.VolumeMoves, n.CpuMillicores, n.MemoryMib = true, 100_000, 100_000 }
	w.ok(register("a", big))
	w.ok(register("b", big))
	w.ok(putNamespace("shop"))
	move := func(i int, in string) Result {
		id := "db" + in + decimal(i)
		w.place(id, "a", folders(id), inNamespace(in), demand(func(d *commandv1.Demand) { d.CpuMillicores = 10 }))
		w.run(id)
		return w.do(&commandv1.Command{Body: &commandv1.Command_MoveVolume{MoveVolume: &commandv1.MoveVolume{Name: id, Namespace: in, From: "a", To: "b"}}})
	}
	for i := range MaxMovesIn {
		is(t, "move "+decimal(i), move(i, "shop").Kind, OK)
	}
	if r := move(MaxMovesIn, "shop"); !strings.Contains(r.Reason, "maximum of a namespace") {
		t.Errorf("one move more returned %s %q", r.Kind, r.Reason)
	}
	is(t, "a move of another namespace", move(0, "").Kind, OK)
}

// TestTextsOfMoves: texts name the node of the volume, and the node to which a workload returns.
func TestTextsOfMoves(t *testing.T) {
	deleted := func(w *world) { w.ok(remove("db", false)); w.ok(gone("db", "a", nil)); w.ok(gone("db", "b", nil)) }
	for _, c := range []struct {
		name  string
		phase MovePhase
		set   func(w *world)
		do    Command
		want  string
	}{
		{"a second move", MoveCopying, nil, moveVolume("data", "a", "c", ""), "persysctl volume move data --node a --cancel"},
		{"a second move after the switch", MovePlaced, func(w *world) { w.run("db") }, moveVolume("data", "b", "c", ""), "persysctl volume move data --node b --settle"},
		{"the new node is removed", MovePlaced, func(w *world) { w.run("db") }, removeNode("b", true),
			`has the newest copy of data of db (volume data, volume logs): to start them elsewhere without it, use --discard-data; workload db then returns to node a`},
		{"the node is removed without a move", "", nil, removeNode("a", true), "has the only copy of data of db"},
		{"a settle without a volume", MovePlaced, func(w *world) {
			w.ok(put("db", folders("data", "logs"), demand(func(d *commandv1.Demand) {
				for _, v := range d.Volumes {
					v.Retain = false
				}
			})))
			w.run("db")
			deleted(w)
		}, moveVolume("data", "a", "", MoveSettle), "keep the copy of node \"a\" (persysctl volume move data --node a --cancel)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := inMove(t, c.phase)
			if c.set != nil {
				c.set(w)
			}
			if r := w.do(c.do); r.Kind == OK || !strings.Contains(r.Reason, c.want) {
				t.Errorf("the result is %s %q, want a refusal with %q", r.Kind, r.Reason, c.want)
			}
		})
	}
}
