package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/store"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

func TestApplyIsQueuedThenRuns(t *testing.T) {
	r := newRig(t).start()
	out := r.apply("web", "sim/run", content("c1:a"))
	if !out.Applied || out.Skipped || out.Status.GetActualState() != pending {
		t.Errorf("the answer to an order is %v; want applied, not skipped, PENDING", out)
	}
	if id := out.Status.GetMetadata()["task_id"]; !strings.HasPrefix(id, "apply-web-") {
		t.Errorf("task_id %q, want apply-web-<nanos>", id)
	}
	if s := out.Status.GetMetadata()["task_status"]; s != "pending" {
		t.Errorf("task_status %q, want pending", s)
	}
	st := r.reaches("web", running)
	if st.Content != "c1:a" || st.RevisionId != "rev-1" || len(st.Addresses) == 0 {
		t.Errorf("the status lacks content, revision or addresses: %v", st)
	}
	// If a host port leads to the workload, its status does not list its IP addresses inside the engine.
	r.apply("forwarded", "sim/run", func(q *agentv1.ApplyWorkloadRequest) {
		q.Spec.GetContainer().Ports = []*agentv1.PortMapping{{HostPort: 18080, ContainerPort: 8080}}
	})
	if st := r.reaches("forwarded", running); len(st.Ports) != 1 || len(st.Addresses) != 0 {
		t.Errorf("the status of a workload with a forwarded port has ports %v and addresses %v; want one port and no address", st.Ports, st.Addresses)
	}
}

func TestApplySkipsAnUnchangedOrder(t *testing.T) {
	r := newRig(t).start()
	r.apply("web", "sim/run", content("c1:a"))
	r.reaches("web", running)
	if out := r.apply("web", "sim/run", content("c1:a")); !out.Skipped {
		t.Errorf("an order with the same id and content must be skipped, got %v", out)
	}
	if out := r.apply("web", "sim/run"); !out.Skipped {
		t.Errorf("an order with the same specification but without content hash must be skipped, got %v", out)
	}
	if out := r.apply("web", "sim/run", revision("rev-2")); !out.Skipped {
		t.Errorf("an order with the same specification but another revision must be skipped, got %v", out)
	}
	if st := r.status("web"); st.RevisionId != "rev-2" {
		t.Errorf("the status has revision %q, want \"rev-2\", the revision in the newest order", st.RevisionId)
	}
	if n := r.hooks.count("ensure web"); n != 1 {
		t.Errorf("the agent called the driver's Ensure %d times, want once: only the first order changes the instance", n)
	}
}

func TestNewContentReplacesUnderTheSameRevision(t *testing.T) {
	for _, c := range []struct {
		name     string
		old, new option
	}{
		{"orders with a content hash", content("c1:a"), content("c1:b")},
		{"orders without a content hash", content(""), content("")},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t).start()
			r.apply("web", "sim/run:1", c.old)
			r.reaches("web", running)
			before := r.observed("web").RuntimeID
			if out := r.apply("web", "sim/run:2", c.new); out.Skipped || !out.Applied {
				t.Fatalf("the answer to an order with changed content is %v, want applied and not skipped", out)
			}
			r.reaches("web", running)
			if after := r.observed("web").RuntimeID; after == before {
				t.Error("after an order with changed content the workload still has its old instance, want a new instance")
			}
		})
	}
}

func TestStopAndStartKeepTheInstance(t *testing.T) {
	r := newRig(t).start()
	r.apply("web", "sim/run", content("c1:a"))
	r.reaches("web", running)
	before := r.observed("web").RuntimeID
	if out := r.apply("web", "sim/run", content("c1:a"), stopped); out.Skipped {
		t.Error("the agent skipped an order that stops a running workload")
	}
	r.reaches("web", halted)
	r.apply("web", "sim/run", content("c1:a"))
	r.reaches("web", running)
	if after := r.observed("web").RuntimeID; after != before {
		t.Errorf("a stop and a start of a workload replaced its instance %s by %s, want the same instance", before, after)
	}
}

func TestGenerationAloneRecreatesNothing(t *testing.T) {
	r := newRig(t, under(leader())).start()
	r.apply("web", "sim/run", content("c1:a"), by(1), at(1))
	r.reaches("web", running)
	before := r.observed("web").RuntimeID
	if out := r.apply("web", "sim/run", content("c1:a"), by(1), at(2)); !out.Skipped {
		t.Errorf("an order that changes only the generation must be skipped, got %v", out)
	}
	r.restart()
	st := r.reaches("web", running)
	if st.Generation.GetSequence() != 2 {
		t.Errorf("after a restart of the agent the workload's status has generation %v, want 1.2, that of the skipped order", st.Generation)
	}
	if after := r.observed("web").RuntimeID; after != before {
		t.Error("the agent recreated the instance, although the order changed only the generation")
	}
}

func TestRestartCounterRestartsTheInstance(t *testing.T) {
	r := newRig(t).start()
	r.apply("web", "sim/run", content("c1:a"), revision("c1-0123456789abcdef"))
	r.reaches("web", running)
	before := r.observed("web")
	r.apply("web", "sim/run", content("c1:a"), revision("c1-0123456789abcdef-r1"))
	r.until(func() bool {
		st, o := r.status("web"), r.observed("web")
		return st.GetActualState() == running && o.StartedAt.After(before.StartedAt)
	}, func() string { return "the order with a higher restart counter did not restart the instance" })
	if r.observed("web").RuntimeID != before.RuntimeID {
		t.Error("the instance was recreated instead of restarted")
	}
	if out := r.apply("web", "sim/run", content("c1:a"), revision("c1-0123456789abcdef-r1")); !out.Skipped {
		t.Errorf("an order with the same restart counter must be skipped, got %v", out)
	}
}

func TestUnknownIDsAreRefused(t *testing.T) {
	r := newRig(t).start()
	_, err := r.api.GetWorkloadStatus(context.Background(), &agentv1.GetWorkloadStatusRequest{Id: "nope"})
	if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "status not found") {
		t.Errorf("the status of an unknown id must return NotFound with \"status not found\", got %v", err)
	}
	if out := r.delete("nope"); !out.Success || !out.Absent {
		t.Errorf("the delete of an unknown id must succeed with absent, got %v", out)
	}
}

func TestDeleteLeavesOnlyATombstone(t *testing.T) {
	r := newRig(t, under(leader())).start()
	r.apply("web", "sim/run", content("c1:a"), by(1), at(5))
	r.reaches("web", running)
	out := r.delete("web", func(d *agentv1.DeleteWorkloadRequest) { d.Epoch, d.Generation = epoch(1), gen(6) })
	if !out.Success || out.Absent {
		t.Errorf("the answer to a delete is %v, want success and queued", out)
	}
	r.gone("web")
	r.until(func() bool {
		return r.delete("web", func(d *agentv1.DeleteWorkloadRequest) { d.Epoch, d.Generation = epoch(1), gen(6) }).Absent
	}, func() string { return "the agent never answers a repeated delete of the removed workload with absent" })
	for _, c := range []struct {
		sequence uint64
		taken    bool
	}{{5, false}, {6, false}} {
		out := r.apply("web", "sim/run", content("c1:a"), by(1), at(c.sequence))
		if out.Applied || !out.Fenced {
			t.Errorf("an apply with sequence %d, older than the delete, was accepted: %v", c.sequence, out)
		}
	}
	r.restart()
	if out := r.apply("web", "sim/run", content("c1:a"), by(1), at(6)); out.Applied {
		t.Errorf("after a restart the agent accepted an apply that is older than the delete: %v", out)
	}
	if out := r.apply("web", "sim/run", content("c1:a"), by(1), at(7)); !out.Applied {
		t.Errorf("an apply that is newer than the delete was refused: %v", out)
	}
	r.reaches("web", running)
}

func TestFencesHoldAcrossARestart(t *testing.T) {
	r := newRig(t, under(leader())).start()
	r.apply("web", "sim/run", content("c1:a"), by(7), at(5))
	r.reaches("web", running)
	check := func(when string) {
		t.Helper()
		out := r.apply("web", "sim/run", content("c1:b"), by(6), at(9))
		if out.Applied || !out.Fenced || out.HighestEpoch.GetTerm() != 7 {
			t.Errorf("%s: an order of a lower epoch must be fenced with term 7, got %v", when, out)
		}
		if out := r.delete("web", func(d *agentv1.DeleteWorkloadRequest) { d.Epoch, d.Generation = epoch(6), gen(9) }); out.Success || !out.Fenced {
			t.Errorf("%s: a delete of a lower epoch must be fenced, got %v", when, out)
		}
		if out := r.apply("web", "sim/run", content("c1:b"), by(7), at(4)); out.Applied || !out.Fenced {
			t.Errorf("%s: an order of a lower generation must be fenced, got %v", when, out)
		}
		if out := r.apply("web", "sim/run", content("c1:b"), at(9)); out.Applied || !out.Fenced {
			t.Errorf("%s: an order without epoch must be fenced, got %v", when, out)
		}
		other := func(q *agentv1.ApplyWorkloadRequest) {
			q.Epoch = &agentv1.Epoch{ClusterId: "c2", Incarnation: 9, Term: 9}
		}
		if out := r.apply("web", "sim/run", other, at(9)); out.Applied || !strings.Contains(out.Message, `"c1"`) || !strings.Contains(out.Message, `"c2"`) {
			t.Errorf("%s: an order of another cluster must be refused with both cluster ids, got %v", when, out)
		}
		_, err := r.api.ListWorkloads(context.Background(), &agentv1.ListWorkloadsRequest{Epoch: epoch(6)})
		if status.Code(err) != codes.FailedPrecondition {
			t.Errorf("%s: a read by a deposed leader must return FailedPrecondition, got %v", when, err)
		}
	}
	check("running")
	r.restart()
	check("restarted")
	if o := r.observed("web"); o.Content != "c1:a" {
		t.Errorf("a refused order was carried out: content %s", o.Content)
	}
}

// An order is refused, but its epoch is stored, because the order proves that this leadership term exists.
func TestTheEpochOfARefusedOrderIsKept(t *testing.T) {
	r := newRig(t, under(leader())).start()
	r.apply("web", "sim/run", by(5), at(5))
	if out := r.apply("web", "sim/run", by(8), at(4)); !out.Fenced {
		t.Fatalf("an order of a later term but a lower generation must be fenced, got %v", out)
	}
	crashed := r.crash()
	if got := crashed.a.Epoch().Term; got != 8 {
		t.Errorf("the state file has term %d, want 8", got)
	}
}

// The agent crashes after it has answered an order and before it starts the workload. The next
// process of the agent starts the workload.
func TestIntentIsOnDiskBeforeTheAnswer(t *testing.T) {
	r := newRig(t, under(leader())).start()
	entered, release := make(chan struct{}, 1), make(chan struct{})
	r.hooks.set(func(h *hooks) {
		h.ensure = func(driver.Spec) error {
			entered <- struct{}{}
			<-release
			return errors.New("killed")
		}
	})
	out := r.apply("web", "sim/run", content("c1:a"), by(3), at(2))
	if !out.Applied {
		t.Fatal(out)
	}
	<-entered
	next := r.crash()
	close(release)
	r.halt()
	if e := next.a.Epoch(); e.Term != 3 {
		t.Errorf("after the crash the agent's epoch is %v, want term 3", e)
	}
	st := next.reaches("web", running)
	if st.Generation.GetSequence() != 2 || st.Content != "c1:a" {
		t.Errorf("after the crash of the agent the workload's status is %v, want the generation (sequence 2) and the content of the acknowledged order", st)
	}
	actions, err := next.api.ListActions(context.Background(), &agentv1.ListActionsRequest{WorkloadId: "web"})
	if err != nil || len(actions.Actions) != 1 || actions.Actions[0].Status != "completed" {
		t.Errorf("the restarted agent has no task for the order: %v, %v", actions, err)
	}
}

// A workload has ended, and an order starts it again. The exit does not count as a failure, even if the agent
// dies after it has answered the order and before it starts the workload.
func TestAnAcknowledgedStartHasNoBackoff(t *testing.T) {
	r := newRig(t).start()
	r.apply("web", "sim/run", content("c1:a"))
	r.reaches("web", running)
	r.apply("web", "sim/run", content("c1:a"), stopped)
	r.reaches("web", halted)
	entered, release := make(chan struct{}, 1), make(chan struct{})
	r.hooks.set(func(h *hooks) {
		h.ensure = func(driver.Spec) error {
			entered <- struct{}{}
			<-release
			return errors.New("killed")
		}
	})
	r.apply("web", "sim/run", content("c1:a"))
	<-entered
	begin := time.Now()
	next := r.crash()
	close(release)
	r.halt()
	next.reaches("web", running)
	if d := time.Since(begin); d > 4*time.Second {
		t.Errorf("the workload was started %s after the crash, want a start without the delay of a failure", d)
	}
}

func TestAFailedWorkloadIsNotRetriedAfterARestart(t *testing.T) {
	r := newRig(t).start()
	r.apply("web", "sim/missing")
	r.reaches("web", failing)
	r.restart()
	r.until(func() bool { return r.a.runner.State().Depth() == 0 }, func() string { return "the work queue of the agent never becomes empty" })
	if st := r.status("web"); st.ActualState != failing || st.Metadata["failure_reason"] != "INVALID_IMAGE" {
		t.Errorf("after a restart of the agent the workload's status is %v, want FAILED with the reason INVALID_IMAGE", st)
	}
	if n := r.hooks.count("ensure web"); n != 1 {
		t.Errorf("the agent tried to start a workload with an invalid image %d times, want once", n)
	}
}

// The agent scheduled the next attempt of a failed start while the machine's clock was a day ahead. After
// the clock was set back, the attempt is made soon and not a day later.
func TestAClockSetBackDoesNotDelayAnAttempt(t *testing.T) {
	r := newRig(t).start()
	r.hooks.set(func(h *hooks) {
		h.ensure = func(driver.Spec) error { return driver.Errorf(driver.RuntimeUnhealthy, "ensure", "away") }
	})
	r.apply("web", "sim/run")
	r.until(func() bool { return r.status("web").GetMetadata()["failure_reason"] != "" }, func() string { return "the workload does not fail" })
	r.halt()
	s, err := store.Open(r.cfg.StatePath, false)
	if err != nil {
		t.Fatal(err)
	}
	have, err := s.Load()
	if err != nil {
		t.Fatal(err)
	}
	st := have.Status["web"]
	st.Failure.Next = time.Now().Add(24 * time.Hour)
	if err := errors.Join(
		s.WriteStatuses([]*core.Workload{{ID: "web", Kind: driver.Container, Intent: have.Intents[0], Status: st.Status, Failure: st.Failure}}),
		s.Write(core.Store{DropTasks: have.Tasks}), s.Close(),
	); err != nil {
		t.Fatal(err)
	}
	r.hooks.set(func(h *hooks) { h.ensure = nil })
	r.cfg.RetryMax = 20 * time.Millisecond
	r.start()
	r.reaches("web", running)
}

func TestDeleteIsOnDiskBeforeTheAnswer(t *testing.T) {
	r := newRig(t).start()
	r.apply("web", "sim/run")
	r.reaches("web", running)
	entered, release := make(chan struct{}, 1), make(chan struct{})
	r.hooks.set(func(h *hooks) {
		h.remove = func(driver.ID) error {
			entered <- struct{}{}
			<-release
			return errors.New("killed")
		}
	})
	r.delete("web")
	<-entered
	next := r.crash()
	close(release)
	r.halt()
	next.gone("web")
}

func TestWorkloadsAreAdoptedAfterACrash(t *testing.T) {
	r := newRig(t).start()
	r.apply("web", "sim/run", content("c1:a"))
	r.reaches("web", running)
	before := r.observed("web")
	next := r.crash()
	r.halt()
	next.reaches("web", running)
	after := next.observed("web")
	if after.RuntimeID != before.RuntimeID || !after.StartedAt.Equal(before.StartedAt) {
		t.Errorf("the crash of the agent must not change the instance, but %+v became %+v", before, after)
	}
	if n := next.hooks.count("ensure web"); n != 0 {
		t.Errorf("the agent called Ensure %d times for a workload that it adopted, want none", n)
	}
}

func TestAnOutageOfTheEngineForgetsNothing(t *testing.T) {
	r := newRig(t, func(c *Config) { c.ReconcileInterval, c.RetryBase = 20*time.Millisecond, 20*time.Millisecond }).start()
	r.apply("web", "sim/run")
	r.reaches("web", running)
	before := r.observed("web").RuntimeID
	if err := r.engine.SetDown("told to"); err != nil {
		t.Fatal(err)
	}
	r.reaches("web", unknown)
	r.until(func() bool {
		h, err := r.api.HealthCheck(context.Background(), &agentv1.HealthCheckRequest{})
		return err == nil && !h.Healthy && strings.HasPrefix(h.RuntimeStatus["container"], "unhealthy: ")
	}, func() string { return "the agent's health check does not report that the engine is down" })
	if out := r.apply("api", "sim/run"); !out.Applied {
		t.Errorf("an order during the outage of the engine was refused: %v", out)
	}
	if out := r.delete("old"); !out.Success {
		t.Errorf("a delete during the outage of the engine failed: %v", out)
	}
	r.restart()
	if st := r.status("web"); st == nil {
		t.Fatal("after a restart during the outage of the engine the agent does not report the workload any more")
	}
	if err := r.engine.SetDown(""); err != nil {
		t.Fatal(err)
	}
	r.reaches("web", running)
	r.reaches("api", running)
	if r.observed("web").RuntimeID != before {
		t.Error("after the outage of the engine the instance was recreated")
	}
}

func TestOrphansAreReportedNotTouched(t *testing.T) {
	r := newRig(t)
	other := r.engine.Driver(driver.Identity{ClusterID: Unbound, NodeID: "node-a"})
	err := other.Ensure(context.Background(), driver.Spec{
		ID: "stray", Revision: "r", Content: "c1:s", Generation: driver.Generation{Incarnation: 1, Sequence: 4},
		ClusterID: Unbound, NodeID: "node-a", Running: true, Body: container("sim/run"),
	})
	if err != nil {
		t.Fatal(err)
	}
	r.start()
	st := r.reaches("stray", running)
	if st.Generation.GetSequence() != 4 || st.Content != "c1:s" {
		t.Errorf("the instance for which the agent has no order is reported as %v, want generation 4 and the content from its labels", st)
	}
	r.restart()
	r.reaches("stray", running)
	if n := r.hooks.count("remove stray"); n != 0 {
		t.Error("an instance without order was removed, although nobody ordered its delete")
	}
	if out := r.delete("stray"); !out.Success || out.Absent {
		t.Errorf("delete: %v", out)
	}
	r.gone("stray")
}

// waitsFor waits until a workload is Pending because of a temporary failure of the given class.
func (r *rig) waitsFor(id string, class driver.Class) *agentv1.WorkloadStatus {
	r.t.Helper()
	var st *agentv1.WorkloadStatus
	r.until(func() bool {
		st = r.status(id)
		return st != nil && st.ActualState == pending && st.Metadata["failure_reason"] == string(class) && st.Metadata["next_retry_time"] != ""
	}, func() string { return fmt.Sprintf("workload %s: want PENDING with %s, have %v", id, class, st) })
	return st
}

func TestForeignInstancesAreNotTouched(t *testing.T) {
	r := newRig(t)
	foreign := r.engine.Driver(driver.Identity{ClusterID: "c9", NodeID: "node-a"})
	err := foreign.Ensure(context.Background(), driver.Spec{
		ID: "web", Content: "c1:s", ClusterID: "c9", NodeID: "node-a", Running: true, Body: container("sim/run"),
	})
	if err != nil {
		t.Fatal(err)
	}
	r.start()
	r.apply("web", "sim/run")
	st := r.waitsFor("web", driver.NameConflict)
	if !strings.Contains(st.Message, "not ours") {
		t.Errorf("message %q", st.Message)
	}
	r.delete("web")
	r.until(func() bool { return r.status("web") == nil }, func() string { return "the agent still reports the deleted workload" })
	if list, err := foreign.List(context.Background()); err != nil || len(list) != 1 || list[0].State != driver.Running {
		t.Errorf("the agent changed or removed an instance of another cluster: %v, %v", list, err)
	}
}

func TestAMissingInstanceIsCreatedAgain(t *testing.T) {
	r := newRig(t).start()
	r.apply("web", "sim/run")
	r.reaches("web", running)
	before := r.observed("web").RuntimeID
	other := r.engine.Driver(driver.Identity{ClusterID: Unbound, NodeID: "node-a"})
	if err := other.Remove(context.Background(), "web"); err != nil {
		t.Fatal(err)
	}
	r.until(func() bool {
		o := r.observed("web")
		return o != nil && o.RuntimeID != before && o.State == driver.Running
	}, func() string { return "the agent did not make a new instance in place of the lost instance" })
	r.reaches("web", running)
}

// While the driver works on a workload, for example pulls its image, the status of the workload says so.
func TestProgressIsShown(t *testing.T) {
	r := newRig(t)
	proceed := make(chan struct{})
	finish := sync.OnceFunc(func() { close(proceed) })
	r.hooks.ensure = func(spec driver.Spec) error {
		r.progress(spec.ID, "pulling image: 1MiB of 2MiB")
		<-proceed
		r.progress(spec.ID, "")
		return nil
	}
	r.start()
	t.Cleanup(finish)
	r.apply("web", "sim/run")
	r.until(func() bool { return r.status("web").GetMessage() == "pulling image: 1MiB of 2MiB" },
		func() string { return r.status("web").GetMessage() })
	finish()
	if st := r.reaches("web", running); strings.Contains(st.Message, "pulling") {
		t.Errorf("the status of the workload that runs still has the progress message %q", st.Message)
	}
}

// If another order for a workload arrives while the driver waits for a registry, the driver is interrupted.
func TestANewOrderInterruptsTheDriver(t *testing.T) {
	r := newRig(t)
	begun := make(chan struct{}, 8)
	r.hooks.during = func(ctx context.Context, spec driver.Spec) {
		if strings.HasSuffix(spec.Body.GetContainer().GetImage(), "mistyped") {
			begun <- struct{}{}
			<-ctx.Done() // the simulated registry never answers
		}
	}
	r.start()
	r.apply("web", "sim/run:mistyped")
	<-begun
	r.apply("web", "sim/run")
	r.reaches("web", running)
	r.apply("web", "sim/run:mistyped")
	<-begun
	r.delete("web")
	r.gone("web")
}

// If a workload makes its driver panic, this workload fails, and the other workloads are not affected.
func TestAPanicOfADriverFailsOneWorkload(t *testing.T) {
	r := newRig(t)
	r.hooks.ensure = func(spec driver.Spec) error {
		if spec.ID == "poison" {
			panic("nobody thought of this")
		}
		return nil
	}
	r.start()
	r.apply("poison", "sim/run")
	r.until(func() bool {
		return strings.Contains(r.status("poison").GetMessage(), "the driver crashed (panicked) during this action")
	},
		func() string { return r.status("poison").GetMessage() })
	r.apply("web", "sim/run")
	r.reaches("web", running)
	r.hooks.set(func(h *hooks) { h.ensure = nil })
	r.reaches("poison", running)
}

func TestPermanentFailureIsReportedAtOnce(t *testing.T) {
	r := newRig(t).start()
	r.apply("web", "sim/missing")
	st := r.reaches("web", failing)
	if st.Metadata["failure_reason"] != "INVALID_IMAGE" || st.Metadata["retry_terminal"] != "true" {
		t.Errorf("the metadata of the failed workload are %v, want failure_reason INVALID_IMAGE and retry_terminal true", st.Metadata)
	}
	r.until(func() bool {
		out, err := r.api.ListActions(context.Background(), &agentv1.ListActionsRequest{Status: "failed"})
		return err == nil && len(out.Actions) == 1 && out.Actions[0].Error != ""
	}, func() string { return "the task history of the agent contains no failed action with an error text" })
	if n := r.hooks.count("ensure web"); n != 1 {
		t.Errorf("the agent tried to start a workload with an invalid image %d times, want once", n)
	}
	r.apply("web", "sim/run")
	r.reaches("web", running)
}

func TestAFailedReplacementKeepsTheInstance(t *testing.T) {
	r := newRig(t).start()
	r.apply("web", "sim/run", content("c1:a"))
	r.reaches("web", running)
	r.apply("web", "sim/missing", content("c1:b"))
	st := r.reaches("web", failing)
	if st.Content != "c1:a" || !strings.Contains(st.Message, "former revision still runs") {
		t.Errorf("after a failed replacement the workload's status must have content c1:a, that of the running instance, and say that the former revision still runs; got %v", st)
	}
}

func TestTemporaryFailuresAreRetriedForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, under(leader())).start()
		r.apply("web", "sim/fail:NETWORK_TIMEOUT", by(1), at(1))
		time.Sleep(time.Hour)
		st, n := r.status("web"), r.hooks.count("ensure web")
		if st.ActualState != pending || st.Metadata["failure_reason"] != "NETWORK_TIMEOUT" || st.Metadata["next_retry_time"] == "" || n < 25 || n > 40 {
			t.Errorf("after an hour of temporary failures the agent has made %d attempts and the workload's status is %v; want one attempt every 2 min and PENDING", n, st)
		}
		r.halt()
	})
}

func TestFailuresOfTheWorkloadAreRetriedThreeTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, under(leader())).start()
		begin := time.Now()
		r.apply("web", "sim/fail:RUNTIME_ERROR", by(1), at(1))
		time.Sleep(time.Second)
		if st := r.status("web"); st.ActualState != pending || st.Metadata["next_retry_time"] == "" {
			t.Errorf("after the first failure: want PENDING with the next retry, got %v", st)
		}
		time.Sleep(10 * time.Second)
		if n := r.hooks.count("ensure web"); n != 2 {
			t.Errorf("the agent made %d attempts in %s, want 2", n, time.Since(begin))
		}
		time.Sleep(10 * time.Second)
		st := r.status("web")
		if st.ActualState != failing || st.Metadata["failure_reason"] != "RUNTIME_ERROR" {
			t.Errorf("after three failed attempts the status must be FAILED, got %v", st)
		}
		time.Sleep(time.Hour)
		if n := r.hooks.count("ensure web"); n != 3 {
			t.Errorf("the agent made %d attempts without a new order, want 3", n)
		}
		r.apply("web", "sim/fail:RUNTIME_ERROR", by(1), at(1))
		time.Sleep(time.Second)
		if n := r.hooks.count("ensure web"); n != 4 {
			t.Errorf("after another order the agent has made %d attempts, want 4", n)
		}
		r.halt()
	})
}

func TestEndedWorkloadsAreRestarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, under(leader())).start()
		r.apply("web", "sim/run", by(1), at(1))
		time.Sleep(time.Minute)
		before := r.observed("web").RuntimeID
		if err := r.engine.Kill("web", 137); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		st := r.status("web")
		if st.ActualState != running {
			t.Fatalf("a workload that ended after a long run was not restarted within a second: %v", st)
		}
		if r.observed("web").RuntimeID != before {
			t.Error("the agent made a new instance for a workload that had ended, want a new start of the old instance")
		}
		r.apply("job", "sim/crash:3", by(1), at(2))
		time.Sleep(time.Minute)
		st = r.status("job")
		if st.ActualState != failing || !strings.Contains(st.Metadata["failure_reason"], "RUNTIME_ERROR") {
			t.Errorf("a workload that ends soon after each start must become FAILED, got %v", st)
		}
		no := func(q *agentv1.ApplyWorkloadRequest) {
			q.Spec.GetContainer().RestartPolicy = &agentv1.RestartPolicy{Policy: "no"}
		}
		r.apply("once", "sim/exit", no, by(1), at(3))
		time.Sleep(time.Minute)
		if st := r.status("once"); st.ActualState != halted || r.hooks.count("ensure once") != 1 {
			t.Errorf("a workload with restart policy \"no\" must be STOPPED after one start, got %d starts and status %v", r.hooks.count("ensure once"), st)
		}
		r.halt()
	})
}

func TestTaskHistorySurvivesARestart(t *testing.T) {
	r := newRig(t).start()
	ctx := context.Background()
	r.apply("a", "sim/run")
	r.reaches("a", running)
	r.apply("b", "sim/missing")
	r.reaches("b", failing)
	r.delete("a")
	r.gone("a")
	r.until(func() bool {
		out, err := r.api.ListActions(ctx, &agentv1.ListActionsRequest{Status: "running"})
		return err == nil && len(out.Actions) == 0
	}, func() string { return "the tasks of the three orders never end" })
	r.restart()
	for _, c := range []struct {
		name string
		req  *agentv1.ListActionsRequest
		want []string // prefixes of the expected task ids
	}{
		{"all actions, oldest first", &agentv1.ListActionsRequest{}, []string{"apply-a-", "apply-b-", "delete-a-"}},
		{"all actions, newest first", &agentv1.ListActionsRequest{NewestFirst: true}, []string{"delete-a-", "apply-b-", "apply-a-"}},
		{"the newest action only", &agentv1.ListActionsRequest{NewestFirst: true, Limit: 1}, []string{"delete-a-"}},
		{"the actions of one workload", &agentv1.ListActionsRequest{WorkloadId: "a"}, []string{"apply-a-", "delete-a-"}},
		{"the actions of one type", &agentv1.ListActionsRequest{ActionType: "delete_workload"}, []string{"delete-a-"}},
		{"the actions with one status", &agentv1.ListActionsRequest{Status: "failed"}, []string{"apply-b-"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := r.api.ListActions(ctx, c.req)
			if err != nil || len(out.Actions) != len(c.want) {
				t.Fatalf("want tasks with the id prefixes %v, got %v, error %v", c.want, out, err)
			}
			for i, p := range c.want {
				if !strings.HasPrefix(out.Actions[i].TaskId, p) {
					t.Errorf("action %d is %s, want %s…", i, out.Actions[i].TaskId, p)
				}
			}
		})
	}
}

func TestServerOverTheNetwork(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, func(c *Config) { c.Listener = listener }).start()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	client := agentv1.NewAgentServiceClient(conn)
	r.apply("web", "sim/run")
	r.reaches("web", running)
	list, err := client.ListWorkloads(ctx, &agentv1.ListWorkloadsRequest{Type: agentv1.WorkloadType_WORKLOAD_TYPE_CONTAINER})
	if err != nil || len(list.Workloads) != 1 {
		t.Errorf("ListWorkloads: %v, %v", list, err)
	}
	stream, err := client.Logs(ctx, &agentv1.LogsRequest{Id: "web"})
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	for {
		chunk, err := stream.Recv()
		if err != nil {
			break
		}
		text.Write(chunk.Data)
	}
	if text.Len() == 0 {
		t.Error("the agent returned no log lines of the running workload")
	}
	h, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: "persys.agent.v1.AgentService"})
	if err != nil || h.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health: %v, %v", h, err)
	}
	// gRPC reflection lists the services and messages that the contract with legacy v1 peers names.
	st, err := reflectpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(q *reflectpb.ServerReflectionRequest) *reflectpb.ServerReflectionResponse {
		t.Helper()
		if err := st.Send(q); err != nil {
			t.Fatal(err)
		}
		answer, err := st.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	var names []string
	for _, s := range ask(&reflectpb.ServerReflectionRequest{MessageRequest: &reflectpb.ServerReflectionRequest_ListServices{}}).GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	for _, want := range []string{"persys.agent.v1.AgentService", "grpc.health.v1.Health"} {
		if !slices.Contains(names, want) {
			t.Errorf("reflection does not show %s, only %v", want, names)
		}
	}
	files := ask(&reflectpb.ServerReflectionRequest{MessageRequest: &reflectpb.ServerReflectionRequest_FileContainingSymbol{
		FileContainingSymbol: "persys.agent.v1.ApplyWorkloadRequest",
	}}).GetFileDescriptorResponse().GetFileDescriptorProto()
	if len(files) == 0 {
		t.Error("gRPC reflection has no file for ApplyWorkloadRequest")
	}
	if err := st.CloseSend(); err != nil {
		t.Error(err)
	}
	follow, err := client.Logs(ctx, &agentv1.LogsRequest{Id: "web", Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	first, err := follow.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if at := time.Unix(0, first.AtUnixNanos); time.Since(at) > time.Hour || time.Until(at) > time.Minute {
		t.Errorf("the time of the log line is %s, want a time within the last hour", at)
	}
	begin := time.Now()
	r.halt()
	if d := time.Since(begin); d > 3*time.Second {
		t.Errorf("an open log stream delayed the stop of the agent by %s, want at most 3 s", d)
	}
	if r.observed("web").State != driver.Running {
		t.Error("the stop of the agent stopped a workload")
	}
}
