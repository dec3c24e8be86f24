package sched

import (
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

func job(set ...func(*commandv1.WorkloadPut)) func(*commandv1.WorkloadPut) {
	return func(p *commandv1.WorkloadPut) {
		p.MaxAttempts, p.Demand.Job = 3, &commandv1.Job{}
		for _, f := range set {
			f(p)
		}
	}
}

// exits reports that the instance of a workload has ended with an exit code.
func (w *world) exits(id string, code int32) {
	w.t.Helper()
	x := w.get(id)
	r := &commandv1.WorkloadReport{
		Workload: id, Node: x.Node, Generation: fsm.GenerationPB(x.Generation), State: "Stopped", Code: fsm.CodeCompleted, ObservedAt: w.now,
		Exit: &commandv1.Exit{Code: code, StartedAt: w.now - second, EndedAt: w.now},
	}
	if code != 0 {
		r.State, r.Code, r.Message = "Failed", "RUNTIME_ERROR", "exited"
	}
	w.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: []*commandv1.WorkloadReport{r}}}})
}

// TestAnOutageOfTheEngineIsNoFailedAttempt: while the engine of a node does not answer its agent, no attempt of a workload
// counts as failed, whenever the order was accepted. A job without retries that goes on meanwhile completes. Legacy v1
// agents report Unknown if they find no instance.
func TestAnOutageOfTheEngineIsNoFailedAttempt(t *testing.T) {
	for _, c := range []struct {
		what   string
		code   string
		set    []func(*commandv1.WorkloadPut)
		node   func(*commandv1.RegisterNode)
		counts bool // an attempt counts as failed
	}{
		{"job", "RUNTIME_UNHEALTHY", []func(*commandv1.WorkloadPut){job(func(p *commandv1.WorkloadPut) { p.MaxAttempts = 1 })}, nil, false},
		{"service", "RUNTIME_UNHEALTHY", nil, nil, false},
		{"a service in an unknown state of its engine has a failed attempt", "", nil, nil, true},
		{"a service of a legacy v1 agent has a failed attempt", "RUNTIME_UNHEALTHY", nil, func(n *commandv1.RegisterNode) { n.Protocol, n.InstanceId = 0, "" }, true},
	} {
		t.Run(c.what, func(t *testing.T) {
			w := newWorld(t)
			if c.node == nil {
				w.node("a")
			} else {
				w.node("a", c.node)
			}
			w.apply("pack", c.set...)
			w.settle()
			w.now += 2 * w.tuning.ApplyTimeout
			before := w.get("pack")
			w.report(&commandv1.WorkloadReport{Workload: "pack", State: "Unknown", Code: c.code, Message: "runtime: no answer", Retryable: true})
			for end := w.now + 600*second; w.now < end; w.now += 5 * second {
				if w.step(); c.counts && w.get("pack").Retry.Attempts > 0 {
					return
				}
			}
			if got := w.get("pack"); c.counts || got.Retry != before.Retry || got.Generation != before.Generation || got.Finished() || got.Status != fsm.StatusUnknown {
				t.Fatalf("during the outage the workload is %s at generation %s with retry %+v and reason %+v, want no new order; an attempt must count as failed: %t", got.Status, got.Generation, got.Retry, got.Reason, c.counts)
			}
			if before.Demand.Job == nil {
				return
			}
			w.exits("pack", 0)
			w.settle()
			if got := w.get("pack"); !got.Finished() || !got.Result.Succeeded {
				t.Errorf("after the outage the result of the job is %+v, want success", got.Result)
			}
		})
	}
}

// TestATurnIsFreeWhenAMemberLeavesTheGroup: a job that waits because its group already runs as many members as its
// parallelism allows is placed as soon as a member leaves the group, even if that member stays on its node.
func TestATurnIsFreeWhenAMemberLeavesTheGroup(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	member := job(func(p *commandv1.WorkloadPut) { p.Demand.Job.Parallelism, p.Demand.Group = 1, "pack" })
	w.apply("pack-1", member)
	w.apply("pack-2", member)
	w.settle()
	if got := w.get("pack-2").Reason.Code; got != fsm.CodeAwaitTurn {
		t.Fatalf("the second job has the reason code %q, want %q", got, fsm.CodeAwaitTurn)
	}
	w.apply("pack-1", job())
	w.settle()
	if got := w.get("pack-2"); got.Node != "a" {
		t.Errorf("the second job is on node %q, want node \"a\"; its reason is %+v", got.Node, got.Reason)
	}
}

// TestALostNodeKeepsNoTurnOfAJobOnEveryNode: a job that runs once on every node, one node at a time, goes on when the node
// of the member that runs is lost. That member stays bound to its node.
func TestALostNodeKeepsNoTurnOfAJobOnEveryNode(t *testing.T) {
	w := newWorld(t)
	for _, n := range []string{"a", "b", "c"} {
		w.node(n)
	}
	w.apply("clean", job(func(p *commandv1.WorkloadPut) { p.Demand.Job.Parallelism = 1 }), system)
	w.has("clean", "clean-a@a clean-b@ clean-c@")
	w.heard["a"] = false
	w.has("clean", "clean-a@a clean-b@b clean-c@")
	w.exits("clean-b", 0)
	w.settle()
	if m := w.get("clean-c"); m.Node != "c" {
		t.Fatalf("the member for node \"c\" is on node %q, want node \"c\"; its reason is %+v", m.Node, m.Reason)
	}
	w.heard["a"] = true
	w.settle()
	w.exits("clean-a", 0)
	w.exits("clean-c", 0)
	w.settle()
	for _, id := range []string{"clean-a", "clean-b", "clean-c"} {
		if m := w.get(id); !m.Finished() || !m.Result.Succeeded {
			t.Errorf("the result of member %s is %+v, want success", id, m.Result)
		}
	}
}

// TestJobsRunToCompletion: the planner ends jobs by exit code, retries, deadline and TTL. It starts
// at most as many members of a job group at a time as its parallelism says.
func TestJobsRunToCompletion(t *testing.T) {
	const ttl, deadline = 60 * second, 100 * second
	for _, c := range []struct {
		fact string
		fn   func(*testing.T, *world)
	}{
		{"exit code 0 ends a job, and it never starts again", func(t *testing.T, w *world) {
			w.apply("pack", job())
			w.settle()
			w.exits("pack", 0)
			w.settle()
			w.now += 3600 * second
			w.settle()
			p := w.get("pack")
			if !p.Finished() || !p.Result.Succeeded || p.Node != "" || w.state.Alloc("a").CPU != 0 {
				t.Fatalf("the job is %s on node %q with result %+v, and node \"a\" reserves %+v; want a result with success, no node, and no reserved CPU", p.Status, p.Node, p.Result, w.state.Alloc("a"))
			}
		}},
		{"an exit code that the job names as success ends it", func(t *testing.T, w *world) {
			w.apply("pack", job(func(p *commandv1.WorkloadPut) { p.Demand.Job.SuccessCodes = []int32{3} }))
			w.settle()
			w.exits("pack", 3)
			w.settle()
			if p := w.get("pack"); !p.Finished() || !p.Result.Succeeded {
				t.Fatalf("the job is %s, result %+v, want it finished with success", p.Status, p.Result)
			}
		}},
		{"an exit code that the job does not name as success is retried", func(t *testing.T, w *world) {
			w.apply("pack", job(func(p *commandv1.WorkloadPut) { p.Demand.Job.SuccessCodes = []int32{3} }))
			w.settle()
			w.exits("pack", 0)
			w.step()
			if p := w.get("pack"); p.Finished() || p.Retry.Attempts != 1 {
				t.Fatalf("the job is %s, attempts %d, want it unfinished after 1 attempt", p.Status, p.Retry.Attempts)
			}
		}},
		{"a job fails after its last attempt, however long each ran", func(t *testing.T, w *world) {
			w.apply("pack", job())
			for attempt := range 3 {
				w.settle()
				if p := w.get("pack"); p.Status != fsm.StatusRunning {
					t.Fatalf("before attempt %d ends, the job is %s: %+v, want it running", attempt+1, p.Status, p.Reason)
				}
				w.now += 1000 * second
				w.settle()
				w.exits("pack", 1)
			}
			w.settle()
			if p := w.get("pack"); !p.Finished() || p.Result.Succeeded || p.Status != fsm.StatusFailed || p.Node != "" || !strings.Contains(p.Reason.Message, "3 of 3 attempts") {
				t.Fatalf("the job is %s on %q: %+v, want it failed and unplaced after 3 of 3 attempts", p.Status, p.Node, p.Reason)
			}
		}},
		{"a job that runs past its deadline is stopped and has failed", func(t *testing.T, w *world) {
			w.apply("pack", job(func(p *commandv1.WorkloadPut) { p.Demand.Job.Deadline = deadline }))
			w.settle()
			w.now += deadline
			w.settle()
			p := w.get("pack")
			if !p.Finished() || p.Result.Succeeded || p.Reason.Code != fsm.CodeDeadlineExceeded || p.Node != "" {
				t.Fatalf("the job is %s on %q: %+v, want it finished without success because of its deadline", p.Status, p.Node, p.Reason)
			}
			if len(w.sent) != 0 {
				t.Fatalf("the agents have not answered the orders %v, want none left", w.sent)
			}
		}},
		{"the deadline counts from the first placement, also when the node is lost", func(t *testing.T, w *world) {
			w.apply("pack", job(func(p *commandv1.WorkloadPut) { p.Demand.Job.Deadline = deadline }))
			w.settle()
			w.now += deadline / 2
			w.heard["a"] = false
			w.settle()
			w.now += deadline
			w.settle()
			if p := w.get("pack"); p.Reason.Code != fsm.CodeDeadlineExceeded {
				t.Fatalf("the job is %s on %q: %+v, want the reason DeadlineExceeded", p.Status, p.Node, p.Reason)
			}
		}},
		{"a job whose node is lost runs again on another node", func(t *testing.T, w *world) {
			w.node("b")
			w.apply("pack", job())
			w.settle()
			first := w.get("pack").Node
			w.heard[first] = false
			w.settle()
			if p := w.get("pack"); p.Node == first || p.Status != fsm.StatusRunning {
				t.Fatalf("the job is %s on %q: %+v, want it running on another node", p.Status, p.Node, p.Reason)
			}
		}},
		{"a finished job is deleted after its ttl", func(t *testing.T, w *world) {
			w.apply("pack", job(func(p *commandv1.WorkloadPut) { p.Demand.Job.Ttl = ttl }))
			w.settle()
			w.exits("pack", 0)
			w.step()
			w.answer()
			w.step()
			w.answer()
			w.now += ttl - 10*second
			w.step()
			w.get("pack")
			w.cache = NewCache() // another leader
			w.now += 10 * second
			w.settle()
			if _, ok := w.state.Workload("pack"); ok {
				t.Fatal("the record of job pack must be deleted after its TTL, but still exists")
			}
		}},
		{"no more members run at once than the parallelism of the job", func(t *testing.T, w *world) {
			members := []string{"pack-0", "pack-1", "pack-2", "pack-3", "pack-4"}
			for _, id := range members {
				w.apply(id, job(func(p *commandv1.WorkloadPut) {
					p.Demand.Job.Parallelism, p.Demand.Group, p.Demand.CpuMillicores = 2, "pack", 10
				}))
			}
			for finished := 0; finished < len(members); {
				w.settle()
				var running []string
				for _, id := range members {
					p := w.get(id)
					switch {
					case p.Node != "":
						running = append(running, id)
					case !p.Finished() && p.Reason.Code != fsm.CodeAwaitTurn:
						t.Fatalf("member %s is %s: %+v, want the reason AwaitTurn", id, p.Status, p.Reason)
					}
				}
				if want := min(2, len(members)-finished); len(running) != want {
					t.Fatalf("%d of %d members have finished, and %v run, want %d", finished, len(members), running, want)
				}
				w.exits(running[0], 0)
				finished++
			}
			w.settle()
		}},
	} {
		t.Run(c.fact, func(t *testing.T) {
			w := newWorld(t)
			w.node("a")
			c.fn(t, w)
		})
	}
}
