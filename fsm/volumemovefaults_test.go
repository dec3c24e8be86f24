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
