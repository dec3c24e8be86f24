package sim

import (
	"slices"
	"strings"

	"github.com/persys/compute/agent/driver"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// jobIDs are the jobs that users apply in a run with the fault Jobs. The last one is exclusive.
var jobIDs = []string{"j0", "j1", "xj"}

func isJobID(id string) bool { return slices.Contains(jobIDs, id) }

func isJob(flavour string) bool { return strings.HasPrefix(flavour, "job") }

// alsoSucceeds is an exit code other than 0 that means success for jobs whose flavour begins with tolerant.
const (
	alsoSucceeds = 3
	tolerant     = "job3"
)

// jobOf returns what the planner needs to know about a job of a flavour. Some jobs have a deadline, which their instances
// may miss.
func (w *world) jobOf(flavour string) *commandv1.Job {
	j := &commandv1.Job{}
	if w.chance(300) {
		j.Deadline = w.between(10, 60) * sec
	}
	if strings.HasPrefix(flavour, tolerant) {
		j.SuccessCodes = []int32{0, alsoSucceeds}
	}
	return j
}

// endsJob makes the instance of a job end by itself after some time, in most cases with success.
func (e *engine) endsJob(i *instance) {
	w, run, began := e.m.w, i.runtimeID, i.started
	code := 0
	if w.chance(200) {
		code = 1
		if w.has(Jobs) {
			code = pick(&w.clock, []int{1, alsoSucceeds})
		}
	}
	took := w.between(500, 20_000) * ms
	if w.chance(100) {
		took = w.between(60, 150) * sec // longer than the time to the next run of a cron, and than any deadline
	}
	w.after(took, &e.m.power, func() {
		switch {
		case e.has[i.id] != i || i.runtimeID != run || i.started != began || i.state != driver.Running:
		case code == 0:
			e.end(i, driver.Stopped, 0, "is done")
			w.noteExit(e.m, i)
		default:
			e.end(i, driver.Failed, code, "fails")
			w.noteExit(e.m, i)
		}
	})
}

// jobChanged checks the promises of jobs after the record of a job was changed:
//
//   - A job that reported success is not ordered again, unless a user asks for it.
//   - A job is recorded as succeeded only if one of its instances ended by itself with an exit code that means success.
//   - A retry waits until its back-off has ended, and a job has no more attempts than its specification allows.
func (w *world) jobChanged(after fsm.State, c fsm.Command, old, x *fsm.Workload) {
	user := len(c.GetHead().GetRequest()) > 0
	again := x.Generation != old.Generation && x.Desired == fsm.DesiredRunning && !x.Finished()
	clock := after.Info().Clock
	flavour, _ := w.users.flavourOf(x.Content)
	switch {
	case again && !user && (old.Completed() || old.Finished()):
		w.violate("job", x.ID, x.Node, "%s orders generation %s, although the job has reported success or has ended at generation %s", fsm.ArmName(c), x.Generation, old.Generation)
	case !old.Finished() && x.Finished() && x.Result.Succeeded && !w.oracle.succeeded[x.ID+" "+flavour]:
		w.violate("job", x.ID, old.Node, "%s records a success, but no instance of %s has ended with success", fsm.ArmName(c), x.Content)
	case again && c.GetScheduleRetries() != nil && clock < old.Retry.NextAt:
		w.violate("job", x.ID, x.Node, "an attempt begins %d ms before its back-off ends", (old.Retry.NextAt-clock)/ms)
	case !x.Finished() && x.Retry.NextAt != 0 && x.Actual.Exit != nil && x.Retry.MaxAttempts > 0 && x.Retry.Attempts >= x.Retry.MaxAttempts:
		w.violate("job", x.ID, x.Node, "a retry follows attempt %d of %d", x.Retry.Attempts, x.Retry.MaxAttempts)
	}
	w.exitKept(c, old, x)
	if x.Finished() && !old.Finished() {
		w.oracle.finished[x.ID] = w.now
		w.report.Jobs++
	}
}

// noteExit notes that an instance has ended by itself.
func (w *world) noteExit(m *machine, i *instance) {
	if succeeds(i) {
		w.oracle.succeeded[i.id+" "+i.flavour] = true
	}
	w.owes(m, i)
}

// succeeds reports whether the exit code of an instance means success.
func succeeds(i *instance) bool {
	return i.exit == 0 || i.exit == alsoSucceeds && strings.HasPrefix(i.flavour, tolerant)
}

// startedAgain checks, when an instance starts, that the workload is not a job that has ended with success. An exclusive
// job, and any job on the node on which it succeeded, must never start again. A node to which an earlier attempt
// was ordered may start the job until it learns of the end: see overlapAllowed.
func (w *world) startedAgain(m *machine, i *instance) {
	x, ok := w.truth.Workload(i.id)
	if !ok || !x.Finished() || !x.Result.Succeeded || x.IsTemplate() {
		return
	}
	late := m.holds() && m.session.heldSince != 0 && w.now-max(m.session.heldSince, w.oracle.finished[x.ID]) > overlapAllowed
	if late || exclusive(i.id) || x.Result.Node == m.id {
		w.violate("job", i.id, m.id, "an instance of generation %s starts, although the job succeeded on node %s %d s ago", i.generation, x.Result.Node, (w.now-w.oracle.finished[x.ID])/sec)
	}
}

// runsAgain replaces each command of the planner that ends jobs with success by a forced retry of its first job. So it
// imitates a planner that ignores the success of a job. The state machine refuses the retries of a planner for such a job.
func runsAgain(cmds []fsm.Command) {
	for _, c := range cmds {
		ends := c.GetFinishJobs().GetEnds()
		if len(ends) == 0 || !ends[0].GetSucceeded() {
			continue
		}
		c.Body = &commandv1.Command_RetryWorkload{RetryWorkload: &commandv1.RetryWorkload{Id: ends[0].GetWorkload()}}
	}
}
