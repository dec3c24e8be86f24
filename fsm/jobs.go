package fsm

import (
	"fmt"
	"slices"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// A job is a workload that runs to completion. While it has no result, it is placed, ordered and
// retried as any other workload. When its outcome is known, the planner ends the job: its record
// keeps the result, and its node removes the instance. Only a restart that a person requests, or
// another specification, runs it again.

// Job holds what the planner needs to know about a workload that runs to completion. It never changes.
type Job struct {
	Parallelism  uint32  // members of the group that may have a node at the same time; 0 = all
	Deadline     int64   // nanoseconds from the first assignment until the job is given up; 0 = no limit
	SuccessCodes []int32 // exit codes that mean success, sorted; empty = 0 only
	TTL          int64   // nanoseconds from the end of the job until its record is deleted; 0 = never
}

// Succeeds reports whether an exit code means success.
func (j *Job) Succeeds(code int32) bool {
	if len(j.SuccessCodes) == 0 {
		return code == 0
	}
	return slices.Contains(j.SuccessCodes, code)
}

// Exit describes how an instance ended. Times are Unix nanoseconds on the agent's clock; 0 = unknown.
type Exit struct {
	Code      int32
	StartedAt int64
	EndedAt   int64
	Output    string // only for jobs: the end of the output, at most MaxExitOutput bytes
}

// MaxExitOutput is the maximum length of Exit.Output in bytes.
const MaxExitOutput = 4 << 10

// JobResult is the result of a finished job. It never changes, except that the node reports Exit later if the
// job was ended while its instance ran.
type JobResult struct {
	Succeeded bool
	At        int64 // Unix nanoseconds
	Exit      *Exit // nil if no node reported the end of an instance
	Node      string
	Code      string // reason code of a failure
	Message   string
}

// Finished reports whether w is a job with a result.
func (w *Workload) Finished() bool { return w.Result != nil }

// FinishesOn reports whether w is a job with an unfinished attempt on the draining node n that may end there, because
// the deadline of the drain is later than now, Unix nanoseconds. An attempt that has failed must first be counted,
// and then the job may move. A job that could not be started yet moves at once. If the engine of the node does not
// answer, the job may still run there. It then stays even if the planner has already counted a failure because the
// order took too long.
func (w *Workload) FinishesOn(n *Node, now int64) bool {
	return w.Demand.Job != nil && w.Active() && w.Node == n.ID && n.Up && n.Draining && now < n.JobsUntil &&
		!w.Retry.Terminal && (w.Retry.NextAt == 0 || w.engineSilent()) && w.mayRun()
}

// mayRun reports whether the node of a job may run an instance of its present specification, or has reported the end of
// an attempt that is not counted yet.
func (w *Workload) mayRun() bool {
	if !w.Acknowledged && !w.reportedSame() {
		return false // the node has accepted no order with the present specification
	}
	switch a := w.Actual; {
	case a.State == ActualRunning, w.engineSilent():
		return true
	case a.State == ActualPending:
		// Without a code the agent has only accepted the order. Any other code than CodeWorking says why the agent
		// could not start the instance.
		return a.Code == CodeWorking || a.Code == ""
	}
	return w.Acknowledged
}

// engineSilent reports whether the node cannot say whether it runs an instance of w, because its engine does not answer.
func (w *Workload) engineSilent() bool {
	return w.Actual.State == ActualUnknown || w.Actual.State == ActualPending && w.Actual.Code == "RUNTIME_UNHEALTHY"
}

// reportsEnd reports whether w is a job whose node has reported that the run of the present order ended.
func (w *Workload) reportsEnd() bool {
	return w.Demand.Job != nil && w.ReportsPresent() && (w.Actual.State == ActualStopped || w.Actual.State == ActualFailed)
}

// reportsSuccess reports whether w is a job whose node has reported that the run of the present order ended with success. The
// planner finishes this job in its next step.
func (w *Workload) reportsSuccess() bool {
	if w.Demand.Job == nil {
		return false
	}
	return w.Completed() || w.ExitedAsWanted()
}

// exitedWithCode is the failure class that agents report for a container that ended by itself with an exit code
// other than 0 (contract, semantics section 12).
const exitedWithCode = "RUNTIME_ERROR"

// ExitedAsWanted reports whether the node of job w reports, for the run of the present order, a failure that is a success:
// the container ended by itself with an exit code other than 0 that means success. A container that was ended for another
// reason, for example because it used too much memory, has failed with any exit code.
func (w *Workload) ExitedAsWanted() bool {
	a, job := w.Actual, w.Demand.Job
	return job != nil && w.Desired == DesiredRunning && w.Node != "" && w.ReportsPresent() &&
		a.State == ActualFailed && a.Code == exitedWithCode && a.Exit != nil && job.Succeeds(a.Exit.Code)
}

// drainEnded returns why a decision for the drain of n is skipped: the drain was ended after the planner had
// made the decision.
func (n *Node) drainEnded() string { return "node " + n.ID + " is no longer draining" }

// EndsText says that a job may end on the draining node n, and until when.
func (n *Node) EndsText() string {
	return "node " + n.ID + " is draining; the job may end there until " + clockText(n.JobsUntil)
}

// AwaitsExit reports whether w is a finished job whose record does not say how its last instance ended, and
// whether said is the generation of the order by which node was told to remove that instance. The planner
// ends a job at its deadline while the instance still runs. So the node reports the exit code, the times and
// the output later, when it has stopped the instance.
func (w *Workload) AwaitsExit(node string, said Generation) bool {
	return w.Finished() && w.Result.Exit == nil && node != "" && w.Result.Node == node && said == w.Generation
}

// ExpiresAt returns when the record of a finished job is deleted, in Unix nanoseconds; 0 = never.
func (w *Workload) ExpiresAt() int64 {
	if !w.Finished() || w.Demand.Job == nil || w.Demand.Job.TTL == 0 {
		return 0
	}
	return w.Result.At + w.Demand.Job.TTL
}

// keepsResult reports whether a finished job keeps its result when p stores the workload again: it does if p
// is a job with the same content and the desired state Running. The job then does not run again.
func keepsResult(p *commandv1.WorkloadPut, old *Workload) bool {
	return old.Finished() && p.GetDemand().GetJob() != nil && p.GetContent() == old.Content && p.GetDesired() == string(DesiredRunning)
}

// finishJobs stores the results of jobs and tells their nodes to remove the instances. A job has no
// local data (bounds.PutFault), so removal loses nothing.
func (t *Tx) finishJobs(b *commandv1.FinishJobs) (res Result) {
	for _, e := range b.GetEnds() {
		old, why := t.planned(e.GetWorkload(), e.GetIfGeneration())
		switch {
		case why != "":
		case old.Demand.Job == nil || old.IsTemplate():
			why = fmt.Sprintf("workload %q is not a job", old.ID)
		case old.Finished():
			why = fmt.Sprintf("job %q has finished already", old.ID)
		case old.Desired != DesiredRunning:
			why = fmt.Sprintf("job %q has the desired state %s", old.ID, old.Desired)
		}
		if why != "" {
			res.skip(why)
			continue
		}
		w := t.endJob(old, &JobResult{Succeeded: e.GetSucceeded(), Code: strings.Clone(e.GetCode()), Message: clipTo(e.GetMessage(), maxJobMessage)})
		res.Items = append(res.Items, itemOf(w))
	}
	return res
}

// endJob ends a job with result r, in which it sets the time, the exit and the node. It returns the new record.
func (t *Tx) endJob(old *Workload, r *JobResult) *Workload {
	w := *old
	r.At, r.Exit, r.Node = t.r.info.Clock, old.Actual.Exit, old.Node
	w.Result = r
	if old.Node != "" {
		t.release(&w, false, CodeCompleted)
	}
	w.Retry = Retry{MaxAttempts: old.Retry.MaxAttempts, Attempts: old.Retry.Attempts}
	w.Reason = t.reason(&w, t.nodeOf(&w))
	t.putWorkload(old, &w)
	ended := Event{Type: EventJobSucceeded, Workload: w.ID, Node: old.Node, Reason: w.Reason.Code, Message: w.Reason.Message}
	if !w.Result.Succeeded {
		ended.Type = EventJobFailed
	}
	t.event(ended)
	if w.Owner != "" {
		t.runEnded(&w)
	}
	return &w
}

// exited adds to the result of a finished job how its last instance ended: exit code, times and output.
func (t *Tx) exited(old *Workload, x *Exit) {
	w, r := *old, *old.Result
	r.Exit = x
	w.Result = &r
	t.putWorkload(old, &w)
}

const maxJobMessage = 1024 // bytes

// expireJobs deletes the records of finished jobs whose TTL has passed, and of runs beyond the number that their template
// keeps.
func (t *Tx) expireJobs(b *commandv1.ExpireJobs) (res Result) {
	for _, e := range b.GetJobs() {
		old, why := t.planned(e.GetWorkload(), e.GetIfGeneration())
		switch {
		case why != "":
		case SurplusRun(t.state(), old):
		case old.ExpiresAt() == 0:
			why = fmt.Sprintf("workload %q is not a finished job with a ttl", old.ID)
		case old.ExpiresAt() > t.r.info.Clock:
			why = fmt.Sprintf("the ttl of job %q has not passed", old.ID)
		}
		if why != "" {
			res.skip(why)
			continue
		}
		res.Items = append(res.Items, t.deleteOne(old, false, false))
	}
	return res
}

// readmits reports whether the quota of the namespace has room for a finished job that is to run again. The check is
// needed because a finished job reserves nothing.
func (t *Tx) readmits(w *Workload) (Result, bool) {
	if !w.Finished() {
		return Result{}, true
	}
	put := workloadPB(w).GetPut()
	put.Content = "again" // a put with other content counts as a job that is to run; with the same content it would count as finished
	again := &commandv1.PutWorkloads{Workloads: []*commandv1.WorkloadPut{put}}
	return t.admits(again, []*Workload{w}, nil)
}

// statusOfJob returns the workload status that a finished job with this result has.
func statusOfJob(r *JobResult) Status {
	if r.Succeeded {
		return StatusStopped
	}
	return StatusFailed
}

// reasonOfJob returns the reason in the status of a finished job with this result.
func reasonOfJob(r *JobResult) Reason {
	if r.Succeeded {
		return Reason{Code: CodeCompleted, Message: r.Message, At: r.At}
	}
	return Reason{Code: r.Code, Message: r.Message, At: r.At}
}

func (x *Exit) equal(o *Exit) bool { return x == o || x != nil && o != nil && *x == *o }

func (a *Job) equal(b *Job) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Parallelism == b.Parallelism && a.Deadline == b.Deadline && a.TTL == b.TTL && slices.Equal(a.SuccessCodes, b.SuccessCodes)
}

func jobOf(m *commandv1.Job) *Job {
	if m == nil {
		return nil
	}
	return &Job{m.GetParallelism(), m.GetDeadline(), convert(m.GetSuccessCodes(), func(c int32) int32 { return c }), m.GetTtl()}
}

func jobPB(j *Job) *commandv1.Job {
	if j == nil {
		return nil
	}
	return &commandv1.Job{Parallelism: j.Parallelism, Deadline: j.Deadline, SuccessCodes: j.SuccessCodes, Ttl: j.TTL}
}

func exitOf(m *commandv1.Exit) *Exit {
	if m == nil {
		return nil
	}
	return &Exit{m.GetCode(), m.GetStartedAt(), m.GetEndedAt(), clipTo(m.GetOutput(), MaxExitOutput)}
}

func exitPB(x *Exit) *commandv1.Exit {
	if x == nil {
		return nil
	}
	return &commandv1.Exit{Code: x.Code, StartedAt: x.StartedAt, EndedAt: x.EndedAt, Output: x.Output}
}

func resultOfJob(m *commandv1.JobResult) *JobResult {
	if m == nil {
		return nil
	}
	return &JobResult{m.GetSucceeded(), m.GetAt(), exitOf(m.GetExit()), m.GetNode(), m.GetCode(), m.GetMessage()}
}

func jobResultPB(r *JobResult) *commandv1.JobResult {
	if r == nil {
		return nil
	}
	return &commandv1.JobResult{Succeeded: r.Succeeded, At: r.At, Exit: exitPB(r.Exit), Node: r.Node, Code: r.Code, Message: r.Message}
}

func (e *encoder) job(j *Job) {
	e.str("job")
	e.u64(uint64(j.Parallelism))
	e.i64(j.Deadline)
	e.u64(uint64(len(j.SuccessCodes)))
	for _, c := range j.SuccessCodes {
		e.i64(int64(c))
	}
	e.i64(j.TTL)
}

func (e *encoder) exit(x *Exit) {
	e.str("exit")
	e.i64(int64(x.Code))
	e.i64(x.StartedAt)
	e.i64(x.EndedAt)
	e.str(x.Output)
}

func (e *encoder) jobResult(r *JobResult) {
	e.str("job result")
	e.bool(r.Succeeded)
	e.i64(r.At)
	if r.Exit != nil {
		e.exit(r.Exit)
	}
	e.str(r.Node)
	e.str(r.Code)
	e.str(r.Message)
}
