package fsm

import commandv1 "github.com/persys/compute/api/command/v1"

// A move stops its workload for a while. This file keeps that stop apart from a stop by a user: requests that copy the
// desired state of a workload must not copy the stop of a move.

// Wanted returns the desired state of a workload for the time after its move: Running if the workload is stopped only while
// its volumes move. Without such a move it is the desired state in the record.
func Wanted(v MoveView, w *Workload) Desired {
	if m, ok := v.Move(w.ID); ok && m.Stops() && m.Resume && w.Desired == DesiredStopped {
		return DesiredRunning
	}
	return w.Desired
}

func (t *Tx) wanted(w *Workload) Desired { return Wanted(t.state(), w) }

// asPut is w.AsPut with the desired state that Wanted returns.
func (t *Tx) asPut(w *Workload) *commandv1.WorkloadPut {
	p := w.AsPut()
	p.Desired = string(t.wanted(w))
	return p
}

// stayStopped records that a user wants a workload to be stopped which is stopped for a move already. So the end of the move
// does not start the workload.
func (t *Tx) stayStopped(w *Workload) {
	if m, ok := t.r.moves.Get(w.ID); ok && m.Stops() && m.Resume {
		next := *m
		next.Resume = false
		t.putMove(m, &next)
	}
}

// desiredInMove returns the desired state that a put gives to the record old. same says that the put has the content and the
// demand of the record: such a put with the desired state Running leaves a workload stopped that is stopped for a move.
func (t *Tx) desiredInMove(old *Workload, desired Desired, same bool) Desired {
	switch {
	case desired == DesiredStopped:
		t.stayStopped(old)
	case desired == DesiredRunning && same && t.wanted(old) == DesiredRunning:
		return old.Desired
	}
	return desired
}
