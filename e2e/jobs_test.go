package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	engine "github.com/moby/moby/api/types/container"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/sim"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/testbed"
)

// TestJobs: jobs on a real engine run to completion. Their records keep exit code, times and output after the
// container is gone, also when the leader dies and the agent restarts meanwhile. persysctl run shows the output
// and ends with the exit code.
func TestJobs(t *testing.T) {
	e, _ := theEngine(t)
	image := got[string](t)(e.BuildForRun(t.Context(), "persys/probe:e2e", "./agent/driver/moby/mobytest/probe"))
	t.Cleanup(func() { _ = e.RemoveImage(context.WithoutCancel(t.Context()), image) })
	programs := raced(t)
	c := start(t, harness.Options{Binaries: programs, SchedulerEnv: fast(nil)})
	cluster := onDocker(t, e, c)
	agent := got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{}))
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "job.yaml")
		must(t, os.WriteFile(path, []byte(strings.ReplaceAll(text, "IMAGE", image)), 0o600))
		return path
	}
	gone := func(t *testing.T, id string) {
		t.Helper()
		must(t, testbed.Poll(t.Context(), settle, "the end of the container of "+id, func(ctx context.Context) error {
			list, err := e.Workload(ctx, cluster, id)
			if err == nil && len(list) > 0 {
				err = fmt.Errorf("%d containers are left", len(list))
			}
			return err
		}))
	}
	finished := func(w *controlv1.WorkloadView) bool { return w.GetJobResult() != nil }

	t.Run("apply --wait ends with the success of a job, and its result stays when the container is gone", func(t *testing.T) {
		ctl(t, c, "apply", "-f", file("id: pack\nkind: job\ncontainer: {image: IMAGE, command: [say, 12 rows, a warning, '0']}\n"), "--wait", "--timeout", "2m")
		gone(t, "pack")
		text := ctl(t, c, "get", "pack")
		for _, want := range []string{"container job", "succeeded", "exit code 0", "12 rows", "a warning"} {
			if !strings.Contains(text, want) {
				t.Errorf("persysctl get does not show %q:\n%s", want, text)
			}
		}
		if again := ctl(t, c, "apply", "-f", file("id: pack\nkind: job\ncontainer: {image: IMAGE, command: [say, 12 rows, a warning, '0']}\n")); !strings.Contains(again, "unchanged") {
			t.Errorf("applying the same job again must print unchanged, but prints %s", again)
		}
	})
	t.Run("a job fails after its retries, and apply --wait says so", func(t *testing.T) {
		res := got[harness.CtlResult](t)(c.Ctl(t.Context(), "apply", "-f", file("id: broken\nkind: job\njob: {retries: 1}\ncontainer: {image: IMAGE, command: [exit, '7']}\n"), "--wait", "--timeout", "2m"))
		if res.Code != 1 || !strings.Contains(res.Stderr, "2 of 2 attempts") {
			t.Fatalf("persysctl apply --wait of a job that fails ended with exit %d, want 1 and the number of attempts\n%s", res.Code, res.Stderr)
		}
		gone(t, "broken")
		w := got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "broken", settle, finished))
		if r := w.GetJobResult(); r.GetSucceeded() || r.GetExit().GetCode() != 7 || !strings.Contains(r.GetExit().GetOutput(), "exiting with code 7") {
			t.Errorf("the result of the job is %v, want exit code 7", r)
		}
	})
	t.Run("an exit code that is named as success is success", func(t *testing.T) {
		ctl(t, c, "apply", "-f", file("id: diff\nkind: job\njob: {success_codes: [0, 3]}\ncontainer: {image: IMAGE, command: [exit, '3']}\n"), "--wait", "--timeout", "2m")
	})
	t.Run("a job that exceeds its deadline is stopped, and its record has exit code, times and output", func(t *testing.T) {
		ctl(t, c, "apply", "-f", file("id: endless\nkind: job\njob: {deadline: 5s}\ncontainer: {image: IMAGE, command: [quits, '9']}\n"))
		w := got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "endless", settle, func(w *controlv1.WorkloadView) bool {
			return w.GetJobResult().GetExit() != nil
		}))
		if w.GetStatus() != "Failed" || w.GetReason().GetCode() != "DeadlineExceeded" {
			t.Errorf("the job is %s: %v", w.GetStatus(), w.GetReason())
		}
		x := w.GetJobResult().GetExit()
		if ran := x.GetEndedAt().AsTime().Sub(x.GetStartedAt().AsTime()); x.GetCode() != 9 || !strings.Contains(x.GetOutput(), "probe: ready") ||
			x.GetStartedAt() == nil || ran < time.Second {
			t.Errorf("the record says %v (ran for %s), want exit code 9, the output, and times at least a second apart", x, ran)
		}
		gone(t, "endless")
	})
	t.Run("completions run as the parallelism allows, and expire", func(t *testing.T) {
		ctl(t, c, "apply", "-f", file("id: shard\nkind: job\njob: {completions: 3, parallelism: 1, ttl_after_finished: 1s}\ncontainer: {image: IMAGE, command: [exit, '0']}\n"))
		must(t, testbed.Poll(t.Context(), settle, "the expiry of the finished jobs", func(context.Context) error {
			if text := ctl(t, c, "list", "--group", "shard", "-o", "json"); strings.Contains(text, "shard-") {
				return fmt.Errorf("finished jobs are still listed: %s", text)
			}
			return nil
		}))
	})
	t.Run("a job that ends while the agent is down and the leader dies has one result", func(t *testing.T) {
		ctl(t, c, "apply", "-f", file("id: away\nkind: job\ncontainer: {image: IMAGE, command: [serve]}\n"))
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "away", settle, running))
		must(t, agent.Kill())
		list := got[[]engine.Summary](t)(e.Workload(t.Context(), cluster, "away"))
		must(t, e.Kill(t.Context(), list[0].ID))
		leader := c.Schedulers[got[int](t)(c.WaitLeader(t.Context(), settle))]
		must(t, leader.Kill())
		must(t, agent.Start())
		must(t, leader.Start())
		w := got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "away", settle, func(w *controlv1.WorkloadView) bool {
			return w.GetRetryAttempts() > 0 || finished(w)
		}))
		if w.GetRetryAttempts() != 1 {
			t.Errorf("the failed run of the job was counted %d times, want once", w.GetRetryAttempts())
		}
		ctl(t, c, "delete", "away", "--wait")
	})
	t.Run("a stack is a job: it ends when its services have ended, and the first failure fails the attempt", func(t *testing.T) {
		stack := func(id, services string) string {
			return file("id: " + id + "\nkind: job\njob: {retries: 0}\ncompose:\n  inline: |\n    services:\n" + services)
		}
		ctl(t, c, "apply", "-f", stack("batch", "      a: {image: IMAGE, command: [exit, '0']}\n      b: {image: IMAGE, command: [exit, '0'], depends_on: {a: {condition: service_completed_successfully}}}\n"), "--wait", "--timeout", "2m")
		gone(t, "batch")
		runs := e.Watch(t.Context(), cluster)
		defer runs.Close()
		for id, services := range map[string]string{
			"bad":    "      a: {image: IMAGE, command: [exit, '3']}\n",
			"before": "      a: {image: IMAGE, command: [exit, '3']}\n      b: {image: IMAGE, command: [exit, '0'], depends_on: {a: {condition: service_completed_successfully}}}\n",
		} {
			if res := got[harness.CtlResult](t)(c.Ctl(t.Context(), "apply", "-f", stack(id, services), "--wait", "--timeout", "2m")); res.Code != 1 {
				t.Fatalf("persysctl apply --wait of a stack whose service ends with code 3 ended with exit %d, want 1\n%s", res.Code, res.Stderr)
			}
			gone(t, id)
			w := got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, finished))
			if r := w.GetJobResult(); r.GetExit().GetCode() != 3 || w.GetRetryAttempts() > 1 {
				t.Errorf("the result of %s after %d attempts is %v, want one attempt with exit code 3", id, w.GetRetryAttempts(), r)
			}
			if list := got[[]harness.Run](t)(runs.Of(id)); len(list) != 1 {
				t.Errorf("containers of %s were started %d times, want once: %v", id, len(list), list)
			}
		}
		res := got[harness.CtlResult](t)(c.Ctl(t.Context(), "apply", "-f", stack("endless", "      a: {image: IMAGE, restart: always}\n")))
		if res.Code == 0 || !strings.Contains(res.Stderr, "job.yaml:7:1: services.a.restart: must be no or absent in a job") {
			t.Errorf("a service of a job with restart: always: exit %d\n%s", res.Code, res.Stderr)
		}
	})
	t.Run("run shows the output, and ends with the exit code", func(t *testing.T) {
		began := time.Now()
		res := got[harness.CtlResult](t)(c.Ctl(t.Context(), "run", image, "--name", "once", "--", "say", "to stdout", "to stderr", "5"))
		if res.Code != 5 || !strings.Contains(res.Stdout, "to stdout") || !strings.Contains(res.Stdout+res.Stderr, "to stderr") {
			t.Fatalf("persysctl run of a job ended with exit %d after %s, want 5 and the job's output\n%s\n%s", res.Code, time.Since(began), res.Stdout, res.Stderr)
		}
		gone(t, "once")
	})
	t.Run("Ctrl-C of run stops the container, and deletes the record unless --keep is given", func(t *testing.T) {
		for id, keep := range map[string]bool{"cut": false, "kept": true} {
			var out bytes.Buffer
			cmd := exec.CommandContext(t.Context(), programs.Ctl, "run", image, "--name", id, fmt.Sprintf("--keep=%t", keep), "--", "serve")
			cmd.Env, cmd.Stdout, cmd.Stderr = c.CtlEnv(), &out, &out
			must(t, cmd.Start())
			got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, running))
			must(t, cmd.Process.Signal(os.Interrupt))
			err := cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != 130 {
				t.Errorf("persysctl run ended with exit %d after Ctrl-C (%v), want 130\n%s", code, err, &out)
			}
			if keep {
				got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, func(w *controlv1.WorkloadView) bool { return w.GetStatus() == "Stopped" }))
				continue
			}
			gone(t, id)
			must(t, testbed.Poll(t.Context(), settle, "the delete of the record of "+id, func(context.Context) error {
				if text := ctl(t, c, "list", "-o", "json"); strings.Contains(text, `"`+id+`"`) {
					return fmt.Errorf("the job is still listed: %s", text)
				}
				return nil
			}))
		}
	})
}

// TestJobsOfALostNode: a node loses its power in the middle of two jobs. Both run again on the other node
// although they have no retries, the exclusive one only after its node was fenced. When the first node
// returns, the jobs stay where they are. Then their containers end while the agent of the second node is
// down. After its restart each job must have exactly one result.
func TestJobsOfALostNode(t *testing.T) {
	// The lease is longer than in other tests: the restarted second agent must be back before its lease
	// ends, also on a slow machine.
	c := start(t, harness.Options{Binaries: raced(t), SchedulerEnv: fast(map[string]string{"SCHEDULER_NODE_LEASE": "12s"})})
	for range 2 {
		got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true}))
	}
	holder, other := c.Agents[0], c.Agents[1]
	ctl(t, c, "cordon", other.NodeID)
	spec := func(exclusive bool) *controlv1.WorkloadSpec {
		return &controlv1.WorkloadSpec{
			Type: "container", Kind: "job", Exclusive: exclusive,
			Resources: &controlv1.ResourceRequirements{CpuMillicores: 50, MemoryMb: 32},
			Workload:  &controlv1.WorkloadSpec_Container{Container: &controlv1.ContainerSpec{Image: "persys/any:1"}},
		}
	}
	ids := []string{"pack", "single"}
	for i, id := range ids {
		apply(t, c, id, spec(i == 1))
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, runningOn(holder.NodeID)))
	}
	ctl(t, c, "uncordon", other.NodeID)
	must(t, holder.Kill())
	must(t, got[*sim.Engine](t)(sim.NewEngine(sim.Options{Dir: holder.SimDir})).PowerOff())
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "pack", settle, runningOn(other.NodeID)))
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "single", settle, func(w *controlv1.WorkloadView) bool {
		return w.GetReason().GetCode() == fsm.CodeAwaitFailover
	}))
	if runs := runsOf(t, c, "single"); len(runs) != 1 {
		t.Errorf("the exclusive job ran %+v, want only the run on %s until that node is fenced", runs, holder.NodeID)
	}
	ctl(t, c, "node", "fence", holder.NodeID, "--yes")
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "single", settle, runningOn(other.NodeID)))

	must(t, holder.Start())
	must(t, c.WaitNode(t.Context(), holder.NodeID, "Ready", settle))
	// Both jobs end while their agent is down.
	must(t, other.Kill())
	engine := got[*sim.Engine](t)(sim.NewEngine(sim.Options{Dir: other.SimDir}))
	for _, id := range ids {
		must(t, engine.Kill(driver.ID(id), 0))
	}
	must(t, other.Start())
	for _, id := range ids {
		w, runs := finished(t, c, id), runsOf(t, c, id)
		r := w.GetJobResult()
		if !r.GetSucceeded() || r.GetNodeId() != other.NodeID || w.GetRetryAttempts() != 0 {
			t.Errorf("job %s has the result %v after %d failures, want success on %s without a failure", id, r, w.GetRetryAttempts(), other.NodeID)
		}
		if len(runs) != 2 || runs[0].NodeID != holder.NodeID || runs[1].NodeID != other.NodeID || len(sim.Overlaps(runs)) > 0 {
			t.Errorf("job %s ran %+v, want one run on each node, one after the other", id, runs)
		}
	}
	ends := jobEnds(t, c)
	for _, id := range ids {
		if ends[id] != 1 {
			t.Errorf("job %s ended %d times, want once", id, ends[id])
		}
	}
}

// TestDrainDeadline: a node that runs a service and two jobs is drained. The service moves at once. One job ends on the
// node. The other one stays there although it gets another priority. A shorter deadline passes, and then it is stopped and
// runs on the other node, which uses up no retry.
func TestDrainDeadline(t *testing.T) {
	c := sharedCluster(t)
	for range 2 {
		got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true}))
	}
	holder, other := c.Agents[len(c.Agents)-2], c.Agents[len(c.Agents)-1]
	ctl(t, c, "cordon", other.NodeID)
	job := func(priority int32) *controlv1.WorkloadSpec {
		spec := container("persys/any:1")
		spec.Kind, spec.Priority, spec.GetContainer().Ports, spec.GetContainer().RestartPolicy = "job", priority, nil, ""
		return spec
	}
	apply(t, c, "web", container("persys/any:1"))
	apply(t, c, "short", job(0))
	apply(t, c, "long", job(0))
	for _, id := range []string{"web", "short", "long"} {
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, runningOn(holder.NodeID)))
	}
	ctl(t, c, "uncordon", other.NodeID)

	out := ctl(t, c, "drain", holder.NodeID)
	if strings.Count(out, "may end here") != 2 || !strings.Contains(out, other.NodeID) {
		t.Errorf("drain does not say that two jobs may end on %s and that web moves to %s:\n%s", holder.NodeID, other.NodeID, out)
	}
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "web", settle, runningOn(other.NodeID)))
	before := got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "long", settle, func(w *controlv1.WorkloadView) bool {
		return w.GetReason().GetCode() == fsm.CodeAwaitEnd
	}))
	apply(t, c, "long", job(10))
	after := got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "long", settle, func(w *controlv1.WorkloadView) bool {
		return w.GetReason().GetCode() == fsm.CodeAwaitEnd && w.GetIndex() > before.GetIndex()
	}))
	if after.GetAssignedNodeId() != holder.NodeID {
		t.Errorf("the job with another priority is on %s, want on %s", after.GetAssignedNodeId(), holder.NodeID)
	}
	must(t, got[*sim.Engine](t)(sim.NewEngine(sim.Options{Dir: holder.SimDir})).Kill("short", 0))
	if r := finished(t, c, "short").GetJobResult(); !r.GetSucceeded() || r.GetNodeId() != holder.NodeID {
		t.Errorf("the job that ended on the draining node has the result %v, want success on %s", r, holder.NodeID)
	}
	if runs := runsOf(t, c, "long"); len(runs) != 1 {
		t.Errorf("the other job ran %+v before the deadline, want one run", runs)
	}

	ctl(t, c, "drain", holder.NodeID, "--deadline", "5s")
	node := got[*controlv1.GetNodeResponse](t)(got[controlv1.AgentControlClient](t)(c.Any(t.Context())).GetNode(t.Context(), &controlv1.GetNodeRequest{NodeId: holder.NodeID}))
	moved := got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "long", settle, runningOn(other.NodeID)))
	if until := node.GetNode().GetJobsUntil().AsTime(); time.Now().Before(until) {
		t.Errorf("the job runs on %s before the deadline %s of the drain", other.NodeID, until)
	}
	if runs := runsOf(t, c, "long"); len(runs) != 2 || len(sim.Overlaps(runs)) > 0 || moved.GetRetryAttempts() != 0 {
		t.Errorf("after the deadline the job ran %+v with %d failed attempts, want one run on each node and no failure", runs, moved.GetRetryAttempts())
	}
}
