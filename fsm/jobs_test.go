package fsm

import (
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

func job(set ...func(*commandv1.Job)) func(*commandv1.WorkloadPut) {
	return func(p *commandv1.WorkloadPut) {
		p.Demand.Job = &commandv1.Job{}
		for _, s := range set {
			s(p.Demand.Job)
		}
	}
}

func ttl(n int64) func(*commandv1.Job) { return func(j *commandv1.Job) { j.Ttl = n } }

// ended returns a report that says that the instance of a workload has ended.
func (w *world) ended(id string, code int32) Command {
	r := &commandv1.WorkloadReport{
		Workload: id, Node: w.workload(id).Node, Generation: w.generation(id), State: "Stopped", Code: CodeCompleted, Acknowledged: true,
		Exit: &commandv1.Exit{Code: code, StartedAt: w.now, EndedAt: w.now + second, Output: "12 rows"}, ObservedAt: w.now,
	}
	if code != 0 {
		r.State, r.Code = "Failed", "RUNTIME_ERROR"
	}
	return report(r)
}

func finishJob(g *commandv1.Generation, id string, succeeded bool) Command {
	e := &commandv1.JobEnd{Workload: id, IfGeneration: g, Succeeded: succeeded, Message: "ended with exit code 0"}
	if !succeeded {
		e.Code, e.Message = CodeExhausted, "4 of 4 attempts used"
	}
	return &commandv1.Command{Body: &commandv1.Command_FinishJobs{FinishJobs: &commandv1.FinishJobs{Ends: []*commandv1.JobEnd{e}}}}
}

func expireJob(g *commandv1.Generation, id string) Command {
	return &commandv1.Command{Body: &commandv1.Command_ExpireJobs{ExpireJobs: &commandv1.ExpireJobs{Jobs: []*commandv1.JobExpiry{{Workload: id, IfGeneration: g}}}}}
}

func jobsScenario(w *world) {
	w.do(register("a"))
	w.do(register("b"))
	w.do(put("pack", job(ttl(minute), func(j *commandv1.Job) {
		j.Parallelism, j.Deadline, j.SuccessCodes = 2, 10*minute, []int32{0, 3}
	})))
	w.do(w.assign("pack", "a"))
	w.run("pack")
	w.do(w.ended("pack", 3))
	w.do(expireJob(w.generation("pack"), "pack"))
	w.do(finishJob(w.generation("pack"), "pack", true))
	w.do(finishJob(w.generation("pack"), "pack", true))
	w.do(put("pack", job(ttl(second))))
	w.do(gone("pack", "a", nil))
	w.do(setDesired("pack", "Stopped"))
	w.do(userRetry("pack"))
	w.do(w.assign("pack", "b"))
	w.do(w.ended("pack", 1))
	w.do(w.retry("pack", 4, 0, true))
	w.do(finishJob(w.generation("pack"), "pack", false))
	w.do(gone("pack", "b", nil))
	w.do(expireJob(w.generation("pack"), "pack"))
	w.do(put("data", job(), keeps("volume data")))
	w.do(put("web"))
	w.do(finishJob(w.generation("web"), "web", true))
}

// exits returns the report of a node that removed the instance of a finished job, and how the instance ended.
func exits(id, node string, g *commandv1.Generation, x *commandv1.Exit) Command {
	return report(&commandv1.WorkloadReport{Workload: id, Node: node, Generation: g, Gone: true, Exit: x})
}

func killed() *commandv1.Exit {
	return &commandv1.Exit{Code: 137, StartedAt: 5, EndedAt: 9, Output: "row 7"}
}

func jobExitsScenario(w *world) {
	w.do(register("a"))
	w.do(register("b"))
	w.do(put("pack", job()))
	w.do(w.assign("pack", "a"))
	w.do(w.says("pack", "Running"))
	before := w.generation("pack")
	w.do(finishJob(before, "pack", false))
	w.do(exits("pack", "b", w.generation("pack"), killed()))
	w.do(exits("pack", "a", before, killed()))
	w.do(exits("pack", "a", w.generation("pack"), nil))
	w.do(exits("pack", "a", w.generation("pack"), killed()))
	w.do(exits("pack", "a", w.generation("pack"), &commandv1.Exit{Code: 1}))
	w.do(userRetry("pack"))
}

// TestJobs: a job that the planner ends leaves its node, keeps its result in the record, and runs again only
// when a person asks for it or its content changes.
func TestJobs(t *testing.T) {
	done := func(t *testing.T, opts ...func(*commandv1.WorkloadPut)) *world {
		w := formed(t, "a", "b")
		w.place("pack", "a", append([]func(*commandv1.WorkloadPut){job()}, opts...)...)
		w.run("pack")
		w.ok(w.ended("pack", 0))
		w.ok(finishJob(w.generation("pack"), "pack", true))
		return w
	}
	inN1 := func(p *commandv1.WorkloadPut) { p.Namespace = "n1" }
	// full returns a state in which job pack has finished and workload web uses up the quota of their namespace.
	full := func(t *testing.T) *world {
		w := formed(t, "a")
		w.ok(putNamespace("n1", func(b *commandv1.PutNamespace) { b.Quota = &commandv1.Quota{CpuMillicores: 1000} }))
		w.place("pack", "a", job(), inN1)
		w.ok(w.ended("pack", 0))
		w.ok(finishJob(w.generation("pack"), "pack", true))
		w.ok(put("web", inN1))
		return w
	}
	t.Run("the record of a finished job holds the result, and its node removes the instance", func(t *testing.T) {
		w := done(t)
		p := w.workload("pack")
		is(t, `status of workload "pack"`, p.Status, StatusStopped)
		is(t, `reason code of workload "pack"`, p.Reason.Code, CodeCompleted)
		is(t, `node of workload "pack"`, p.Node, "")
		is(t, "node of the finished job", p.Result.Exit.Code, 0)
		is(t, `output of workload "pack"`, p.Result.Exit.Output, "12 rows")
		is(t, "node of the result", p.Result.Node, "a")
		w.eventOf(EventJobSucceeded)
		if _, ok := w.s.Residual("a", "pack"); !ok {
			t.Error("node a must be told to remove the instance of the finished job, but has no residual for it")
		}
		waiting := 0
		w.s.Pending(func(*Workload) bool { waiting++; return true })
		is(t, "number of workloads that wait for a node", waiting, 0)
		use := w.s.UseOf(DefaultNamespace)
		is(t, "CPU that namespace default reserves after the job has finished", use.CPU, 0)
		is(t, "number of workload records in namespace default", use.Records, 1)
	})
	t.Run("a job that is ended while it runs gets its exit when its node has stopped it", func(t *testing.T) {
		w := formed(t, "a", "b")
		w.place("pack", "a", job())
		w.run("pack")
		before := w.generation("pack")
		w.ok(finishJob(before, "pack", false))
		is(t, "the job has no exit when the planner ends it", w.workload("pack").Result.Exit == nil, true)
		w.do(exits("pack", "b", w.generation("pack"), killed()))
		w.do(exits("pack", "a", before, killed()))
		is(t, "the job has no exit after reports of another node and of an earlier order", w.workload("pack").Result.Exit == nil, true)
		w.ok(exits("pack", "a", w.generation("pack"), killed()))
		w.do(exits("pack", "a", w.generation("pack"), &commandv1.Exit{Code: 1}))
		is(t, `exit of workload "pack"`, *w.workload("pack").Result.Exit, Exit{Code: 137, StartedAt: 5, EndedAt: 9, Output: "row 7"})
		is(t, "reason code of the job's failure", w.workload("pack").Result.Code, CodeExhausted)
		if _, ok := w.s.Residual("a", "pack"); ok {
			t.Error("node a has removed the instance, but still has a residual for it")
		}
	})
	t.Run("an apply of the same specification, even with another priority, does not run a finished job again", func(t *testing.T) {
		w := done(t)
		is(t, "item 0 of the result is Unchanged", w.ok(put("pack", job())).Items[0].Unchanged, true)
		w.ok(put("pack", job(), demand(func(d *commandv1.Demand) { d.Priority = 3; d.Job = &commandv1.Job{} })))
		is(t, `status of workload "pack"`, w.workload("pack").Status, StatusStopped)
		is(t, `workload "pack" is a finished job`, w.workload("pack").Finished(), true)
	})
	t.Run("an apply of other content, and a restart, run a finished job again", func(t *testing.T) {
		for name, c := range map[string]Command{"content": put("pack", job(), content("c1:other")), "restart": userRetry("pack")} {
			w := done(t)
			w.ok(c)
			is(t, name, w.workload("pack").Status, StatusPending)
			is(t, name+": finished", w.workload("pack").Finished(), false)
		}
	})
	t.Run("a stop of a finished job changes nothing", func(t *testing.T) {
		w := done(t)
		is(t, "verdict on the command", w.do(setDesired("pack", "Stopped")).Kind, AlreadyDone)
		is(t, `workload "pack" is a finished job`, w.workload("pack").Finished(), true)
	})
	t.Run("a restart is refused if the quota has no room", func(t *testing.T) {
		w := full(t)
		refused(t, w.do(userRetry("pack")), OverQuota, "cpu")
	})
	t.Run("a failed job keeps the cause", func(t *testing.T) {
		w := formed(t, "a")
		w.place("pack", "a", job())
		w.ok(w.ended("pack", 7))
		w.ok(w.retry("pack", 4, 0, true))
		w.ok(finishJob(w.generation("pack"), "pack", false))
		p := w.workload("pack")
		is(t, `status of workload "pack"`, p.Status, StatusFailed)
		is(t, `reason code of workload "pack"`, p.Reason.Code, CodeExhausted)
		is(t, `exit code of workload "pack"`, p.Result.Exit.Code, 7)
		is(t, `number of counted failures of workload "pack"`, p.Retry.Attempts, 4)
		w.eventOf(EventJobFailed)
	})
	t.Run("the loss of the node keeps the number of attempts", func(t *testing.T) {
		w := formed(t, "a", "b")
		w.place("pack", "a", job())
		w.ok(w.ended("pack", 7))
		w.ok(w.retry("pack", 1, 0, false))
		w.ok(nodeState("a", false))
		w.ok(w.evict("pack", CodeNodeLost, false))
		is(t, `number of counted failures of workload "pack"`, w.workload("pack").Retry.Attempts, 1)
	})
	t.Run("a job with local data is refused", func(t *testing.T) {
		refused(t, formed(t, "a").do(put("pack", job(), keeps("volume data"))), Invalid, "demand.local_data", "job")
	})
	t.Run("the same specification fits into a full quota", func(t *testing.T) {
		w := full(t)
		is(t, "item 0 of the result is Unchanged", w.ok(put("pack", job(), inN1)).Items[0].Unchanged, true)
	})
	t.Run("another priority does not extend the limits of a running job", func(t *testing.T) {
		w := formed(t, "a")
		w.place("pack", "a", job())
		since := w.workload("pack").JobSince
		w.ok(w.ended("pack", 1))
		w.ok(w.retry("pack", 2, 0, false))
		w.ok(put("pack", job(), demand(func(d *commandv1.Demand) { d.Priority = 3; d.Job = &commandv1.Job{} })))
		is(t, `JobSince of workload "pack"`, w.workload("pack").JobSince, since)
		is(t, `number of counted failures of workload "pack"`, w.workload("pack").Retry.Attempts, 2)
	})
	t.Run("a retry after an exit code 0 that is no success restarts the container", func(t *testing.T) {
		w := formed(t, "a")
		w.place("pack", "a", job(func(j *commandv1.Job) { j.SuccessCodes = []int32{3} }))
		w.ok(w.ended("pack", 0))
		w.ok(w.retry("pack", 1, 0, false))
		is(t, `number of forced restarts of workload "pack"`, w.workload("pack").Restarts, 1)
	})
	t.Run("the record of a job is deleted when its ttl has passed, not before", func(t *testing.T) {
		w := done(t, job(ttl(minute)))
		w.ok(gone("pack", "a", nil))
		skipped(t, w.do(expireJob(w.generation("pack"), "pack")), "has not passed")
		w.now += minute
		w.ok(expireJob(w.generation("pack"), "pack"))
		if _, ok := w.s.Workload("pack"); ok {
			t.Error("the record of job pack must be deleted, but still exists")
		}
	})
	t.Run("only an unfinished job can be finished", func(t *testing.T) {
		w := done(t)
		skipped(t, w.do(finishJob(w.generation("pack"), "pack", true)), "finished already")
		w.place("web", "b")
		skipped(t, w.do(finishJob(w.generation("web"), "web", true)), "not a job")
	})
	t.Run("a job with an invalid setting is refused", func(t *testing.T) {
		w := formed(t, "a")
		for field, set := range map[string]func(*commandv1.Job){
			"deadline": func(j *commandv1.Job) { j.Deadline = -1 }, "ttl": ttl(-1),
			"success_codes": func(j *commandv1.Job) { j.SuccessCodes = []int32{2, 1} },
			"parallelism":   func(j *commandv1.Job) { j.Parallelism = 1 << 30 },
		} {
			refused(t, w.do(put("pack", job(set))), Invalid, "demand.job."+field)
		}
	})
}
