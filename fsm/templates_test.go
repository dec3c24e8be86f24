package fsm

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

func cron(set ...func(*commandv1.Cron)) func(*commandv1.WorkloadPut) {
	return func(p *commandv1.WorkloadPut) {
		c := &commandv1.Cron{Schedule: "* * * * *", Concurrency: ConcurrencyAllow, KeepSucceeded: 3, KeepFailed: 1}
		for _, s := range set {
			s(c)
		}
		p.Demand.Job = &commandv1.Job{}
		p.Demand.Template = &commandv1.Template{Kind: TemplateCron, Cron: c}
	}
}

func concurrency(word string) func(*commandv1.Cron) {
	return func(c *commandv1.Cron) { c.Concurrency = word }
}

func parameterized(p *commandv1.WorkloadPut) {
	p.Demand.Job = &commandv1.Job{}
	p.Demand.Template = &commandv1.Template{Kind: TemplateDispatch}
}

func createRuns(steps ...*commandv1.CronStep) Command {
	return &commandv1.Command{Body: &commandv1.Command_CreateRuns{CreateRuns: &commandv1.CreateRuns{Steps: steps}}}
}

func startRun(template, run, key string) Command {
	return &commandv1.Command{Body: &commandv1.Command_StartRun{StartRun: &commandv1.StartRun{Template: template, Run: run, Key: key}}}
}

// cronStep returns the step that creates the named run at the next time in the record of cron id,
// and sets the next time to next. If run is "", the step creates no run.
func (w *world) cronStep(id, run string, next int64) *commandv1.CronStep {
	e := &commandv1.CronStep{Template: id, IfGeneration: w.generation(id), Next: next, Run: run}
	if of, ok := w.s.Workload(id); ok && of.Template != nil {
		e.IfNext = of.Template.Next
	}
	return e
}

// fired returns a world in which the cron nightly has the given runs, one per minute.
func fired(t *testing.T, runs int, opts ...func(*commandv1.Cron)) *world {
	w := formed(t, "a", "b")
	w.ok(put("nightly", cron(opts...)))
	w.ok(createRuns(w.cronStep("nightly", "", minute)))
	for i := range runs {
		w.ok(createRuns(w.cronStep("nightly", fmt.Sprintf("nightly-%d", i+1), int64(i+2)*minute)))
	}
	return w
}

func (w *world) finish(id string, succeeded bool) {
	w.ok(w.assign(id, "a"))
	w.run(id)
	w.ok(finishJob(w.generation(id), id, succeeded))
}

func templatesScenario(w *world) {
	w.do(register("a"))
	w.do(put("nightly", cron()))
	w.do(createRuns(w.cronStep("nightly", "nightly-0", minute)))
	w.do(createRuns(w.cronStep("nightly", "", minute)))
	w.do(createRuns(w.cronStep("nightly", "nightly-1", 2*minute)))
	w.do(createRuns(w.cronStep("nightly", "nightly-1", 2*minute)))
	w.do(w.assign("nightly", "a"))
	w.do(w.assign("nightly-1", "a"))
	w.run("nightly-1")
	w.do(w.ended("nightly-1", 0))
	w.do(finishJob(w.generation("nightly-1"), "nightly-1", true))
	w.do(expireJob(w.generation("nightly-1"), "nightly-1"))
	w.do(put("nightly", cron(func(c *commandv1.Cron) { c.KeepSucceeded = 0 })))
	w.do(expireJob(w.generation("nightly-1"), "nightly-1"))
	late := w.cronStep("nightly", "", 9*minute)
	late.Code, late.Message, late.Times = CodeCronMissed, "7 times were missed", 7
	w.do(createRuns(late))
	w.do(put("nightly", cron(concurrency(ConcurrencyReplace))))
	w.do(createRuns(w.cronStep("nightly", "nightly-9", 10*minute)))
	w.do(createRuns(w.cronStep("nightly", "nightly-10", 11*minute)))
	w.do(put("nightly", cron(concurrency(ConcurrencyForbid))))
	w.do(createRuns(w.cronStep("nightly", "nightly-11", 12*minute)))
	skipped := w.cronStep("nightly", "", 12*minute)
	skipped.Code, skipped.Message, skipped.Times = CodeCronSkipped, "run nightly-10 has not ended", 1
	w.do(createRuns(skipped))
	w.do(startRun("nightly", "nightly-k", "k"))
	w.do(setDesired("nightly", "Stopped"))
	w.do(createRuns(w.cronStep("nightly", "nightly-12", 13*minute)))
	w.do(setDesired("nightly", "Running"))
	w.do(userRetry("nightly"))
	w.do(put("nightly-10"))
	w.do(put("encode", parameterized))
	w.do(startRun("encode", "encode-1", "1"))
	w.do(startRun("encode", "encode-1", "1"))
	own := startRun("encode", "encode-2", "2")
	own.GetStartRun().Put = put("encode-2", job()).GetPutWorkloads().GetWorkloads()[0]
	w.do(own)
	w.do(remove("encode-1", false))
	w.do(startRun("encode", "encode-1", "1"))
	w.do(put("encode"))
	w.do(remove("encode", false))
	w.do(remove("nightly", false))
}

// TestCronCreatesEachRunOnce: a cron step is skipped if it is repeated, or if it was planned for
// another next time than the record has.
func TestCronCreatesEachRunOnce(t *testing.T) {
	w := fired(t, 0)
	one := w.cronStep("nightly", "nightly-1", 2*minute)
	w.ok(createRuns(one))
	res := w.do(createRuns(one))
	is(t, "number of skipped items of a repeated cron step", res.Skipped, 1)
	run := w.workload("nightly-1")
	is(t, "owner of the run", run.Owner, "nightly")
	is(t, "time of the schedule in the record of the run", run.Run.ScheduledAt, minute)
	is(t, "id for which the secrets of the run are sealed", run.SpecID(), "nightly")
	is(t, "the run waits for a node", run.WantsPlace(), true)
	of := w.workload("nightly")
	is(t, "the template waits for a node", of.WantsPlace(), false)
	is(t, `status of workload "nightly"`, of.Status, StatusRunning)
	is(t, "next start time of cron nightly", of.Template.Next, 2*minute)
	is(t, "newest run of cron nightly", of.Template.LastRun, "nightly-1")
	back := w.cronStep("nightly", "nightly-2", minute)
	is(t, "number of skipped items of a cron step that goes back in time", w.do(createRuns(back)).Skipped, 1)
	foreign := w.cronStep("nightly", "other-2", 3*minute)
	is(t, "number of skipped items of a cron step whose run has the id of another workload", w.do(createRuns(foreign)).Skipped, 1)
	is(t, "number of skipped items of an assignment of the template", w.do(w.assign("nightly", "a")).Skipped, 1)
}

// TestCronConcurrency: a cron lets runs overlap, starts none while one is active, or replaces the active one.
func TestCronConcurrency(t *testing.T) {
	t.Run("concurrency allow lets runs overlap", func(t *testing.T) {
		w := fired(t, 2)
		is(t, "the first run is active", w.workload("nightly-1").Active(), true)
		is(t, "the second run is active", w.workload("nightly-2").Active(), true)
	})
	t.Run("concurrency forbid starts no run while another is active", func(t *testing.T) {
		w := fired(t, 1, concurrency(ConcurrencyForbid))
		is(t, "number of skipped items of the command", w.do(createRuns(w.cronStep("nightly", "nightly-2", 3*minute))).Skipped, 1)
		refused(t, w.do(startRun("nightly", "nightly-k", "k")), Conflict, "nightly-1", "forbid")
		w.finish("nightly-1", true)
		w.ok(createRuns(w.cronStep("nightly", "nightly-2", 3*minute)))
		is(t, "the next run is active after the first has ended", w.workload("nightly-2").Active(), true)
	})
	t.Run("concurrency replace ends the active run", func(t *testing.T) {
		w := fired(t, 1, concurrency(ConcurrencyReplace))
		w.ok(w.assign("nightly-1", "a"))
		w.run("nightly-1")
		w.ok(createRuns(w.cronStep("nightly", "nightly-2", 3*minute)))
		is(t, "reason code of the replaced run", w.workload("nightly-1").Reason.Code, CodeReplaced)
		_, left := w.s.Residual("a", "nightly-1")
		is(t, `node "a" has a residual of the replaced run`, left, true)
		is(t, "the new run is active", w.workload("nightly-2").Active(), true)
	})
}

// TestCronKeepsHistory: with KeepSucceeded 1 and KeepFailed 0, ExpireJobs deletes old successful runs and all
// failed ones, but not the newest successful run.
func TestCronKeepsHistory(t *testing.T) {
	w := fired(t, 3, func(c *commandv1.Cron) { c.KeepSucceeded, c.KeepFailed = 1, 0 })
	w.finish("nightly-1", true)
	w.finish("nightly-2", true)
	w.finish("nightly-3", false)
	is(t, "number of skipped deletions of the newest successful run", w.do(expireJob(w.generation("nightly-2"), "nightly-2")).Skipped, 1)
	w.ok(expireJob(w.generation("nightly-1"), "nightly-1"))
	w.ok(expireJob(w.generation("nightly-3"), "nightly-3"))
	is(t, "the cron has a time of its last success", w.workload("nightly").Template.LastSuccess > 0, true)
	is(t, "the cron has a time of its last failure", w.workload("nightly").Template.LastFailure > 0, true)
}

// TestTemplateChanges: a change of the image keeps the next time of a template; a change of its schedule, or
// suspending it, clears that time. A command that would turn the template, or a workload made from it, into
// another kind of workload is refused.
func TestTemplateChanges(t *testing.T) {
	w := fired(t, 1)
	w.ok(put("nightly", cron(), content("c1:bbbbbbbbbbbbbbbbbbbb")))
	is(t, "next start time of cron nightly after a change of its image", w.workload("nightly").Template.Next, 2*minute)
	is(t, "the active run has another content than the changed cron", w.workload("nightly-1").Content != w.workload("nightly").Content, true)
	w.ok(createRuns(w.cronStep("nightly", "nightly-2", 3*minute)))
	is(t, "content of the next run", w.workload("nightly-2").Content, "c1:bbbbbbbbbbbbbbbbbbbb")
	w.ok(put("nightly", cron(func(c *commandv1.Cron) { c.Schedule = "@daily" })))
	is(t, "next start time of cron nightly after a change of its schedule", w.workload("nightly").Template.Next, int64(0))
	w.ok(createRuns(w.cronStep("nightly", "", 5*minute)))
	w.ok(setDesired("nightly", "Stopped"))
	is(t, `status of workload "nightly"`, w.workload("nightly").Status, StatusStopped)
	is(t, "next start time of cron nightly while it is suspended", w.workload("nightly").Template.Next, int64(0))
	is(t, "number of skipped steps of a suspended cron", w.do(createRuns(w.cronStep("nightly", "", 6*minute))).Skipped, 1)
	refused(t, w.do(put("nightly")), Conflict, "delete it first")
	refused(t, w.do(put("nightly", parameterized)), Conflict, "cannot become a parameterized job")
	refused(t, w.do(put("nightly-1", job())), Conflict, `apply "nightly" instead`)
	refused(t, w.do(userRetry("nightly")), Conflict, "start a run")
	w.ok(put("web"))
	refused(t, w.do(put("web", cron())), Conflict, "cannot become a cron")
}

// TestDeletedTemplate: deleting a cron deletes its runs too. A run that may still be active keeps its record until
// its node has removed the container.
func TestDeletedTemplate(t *testing.T) {
	w := fired(t, 2)
	w.ok(w.assign("nightly-1", "a"))
	w.run("nightly-1")
	w.ok(remove("nightly", false))
	_, there := w.s.Workload("nightly")
	is(t, "the deleted cron has a record", there, false)
	_, there = w.s.Workload("nightly-2")
	is(t, "the run without a node has a record", there, false)
	is(t, `status of the run on node "a"`, w.workload("nightly-1").Status, StatusDeleting)
}

// TestStartRun: a start with a key that was used before starts no second run, even after the first run was
// deleted.
func TestStartRun(t *testing.T) {
	w := formed(t, "a")
	w.ok(put("encode", parameterized))
	w.ok(startRun("encode", "encode-1", "k"))
	is(t, "verdict on a second start with the same key", w.do(startRun("encode", "encode-1", "k")).Kind, AlreadyDone)
	refused(t, w.do(startRun("encode", "encode-1", "other")), Conflict, "taken")
	w.ok(remove("encode-1", false))
	is(t, "verdict on a start with the same key after its run was deleted", w.do(startRun("encode", "encode-1", "k")).Kind, AlreadyDone)
	old := w.generation("encode")
	w.ok(put("encode", parameterized, content("c1:bbbbbbbbbbbbbbbbbbbb")))
	c := startRun("encode", "encode-2", "k2")
	c.GetStartRun().IfGeneration = old
	refused(t, w.do(c), Conflict, "changed")
	refused(t, w.do(startRun("none", "none-1", "k")), NotFound, "none")
	refused(t, w.do(startRun("encode", "encode-2", "")), Invalid, "key")
	w.ok(setDesired("encode", "Stopped"))
	refused(t, w.do(startRun("encode", "encode-2", "k2")), Conflict, "persysctl start encode")
}

// TestCronWithoutQuota: if the quota has no room for a run, the cron creates none for this start
// time and goes on with the next start time.
func TestCronWithoutQuota(t *testing.T) {
	w := formed(t, "a")
	w.ok(putNamespace("n1", func(b *commandv1.PutNamespace) { b.Quota = &commandv1.Quota{Workloads: 1} }))
	w.ok(put("nightly", cron(), func(p *commandv1.WorkloadPut) { p.Namespace = "n1" }))
	w.ok(createRuns(w.cronStep("nightly", "", minute)))
	w.ok(createRuns(w.cronStep("nightly", "nightly-1", 2*minute)))
	is(t, "next start time of cron nightly", w.workload("nightly").Template.Next, 2*minute)
	_, there := w.s.Workload("nightly-1")
	is(t, `run "nightly-1" has a record`, there, false)
	last := Event{}
	w.s.EventsBack(func(e *Event) bool { last = *e; return false })
	is(t, "type of the last event", last.Type, EventCronMissed)
	is(t, "the message of the event names the quota", strings.Contains(last.Message, "quota"), true)
}

// TestActiveRunsAreBounded: with 1,000 runs that have not ended, a template gets no further one until a run ends.
func TestActiveRunsAreBounded(t *testing.T) {
	w := formed(t, "a")
	w.ok(put("encode", parameterized))
	for i := range MaxActiveRuns {
		id := fmt.Sprintf("encode-%d", i)
		w.ok(startRun("encode", id, id))
	}
	refused(t, w.do(startRun("encode", "encode-more", "more")), OverQuota, "1000 runs that have not ended")
	w.ok(remove("encode-7", true))
	w.ok(startRun("encode", "encode-more", "more"))
}

// TestTemplatesInSnapshots: a snapshot keeps templates and their children.
func TestTemplatesInSnapshots(t *testing.T) {
	w := fired(t, 2)
	var buf bytes.Buffer
	if err := w.s.WriteSnapshot(&buf); err != nil {
		t.Fatal(err)
	}
	s, err := ReadSnapshot(&buf)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	s.Children("nightly", func(c *Workload) bool { n++; return c.Run.ScheduledAt > 0 })
	is(t, "number of children of the template", n, 2)
	is(t, "Digest in the state", s.Info().Digest, w.s.Info().Digest)
}
