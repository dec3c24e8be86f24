package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/persys/compute/agent/driver"
	agentv1 "github.com/persys/compute/api/agent/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/testbed"
)

// missingGrace is the grace period before a missing workload is ordered again. It must be longer than the
// time in which drift detection records the drift: a round of drift detection runs every second, and a second
// inspection confirms the drift two seconds later.
const missingGrace = 8 * time.Second

// driftText is a record under the etcd key /drifts, in the format of the legacy contract.
type driftText struct {
	NodeID          string    `json:"nodeId"`
	WorkloadID      string    `json:"workloadId"`
	DriftType       string    `json:"driftType"`
	DetectedAt      time.Time `json:"detectedAt"`
	SchedulerStatus string    `json:"schedulerStatus"`
	AgentStatus     string    `json:"agentStatus"`
	Action          string    `json:"action"`
	Resolved        bool      `json:"resolved"`
}

// driftBook watches the drifts of a cluster in the events, in etcd and in the metrics. It keeps all
// records, because a drift may be closed before the test reads it.
type driftBook struct {
	t *testing.T
	c *harness.Cluster

	mu      sync.Mutex
	records map[string][]driftText // drift records by etcd key, oldest first
	most    map[string]float64     // highest value of persys_scheduler_drifts_open seen for each kind
	last    map[string]float64     // value of persys_scheduler_drifts_open that the leader reported last, for each kind
}

// drifting starts three schedulers with a round of drift detection every second, and an etcd.
func drifting(t *testing.T) (*driftBook, *clientv3.Client) {
	t.Helper()
	etcd := etcdPart(t)
	kv := etcdClient(t, etcd)
	c := start(t, harness.Options{Binaries: raced(t), SchedulerEnv: mirrored(etcd, map[string]string{
		"SCHEDULER_DRIFT_DETECT_INTERVAL": "1s", "SCHEDULER_MISSING_GRACE_PERIOD": missingGrace.String(),
	})})
	b := &driftBook{t: t, c: c, records: map[string][]driftText{}, most: map[string]float64{}, last: map[string]float64{}}
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	t.Cleanup(func() { stop(); all.Wait() })
	all.Go(func() { b.watch(kv.Watch(ctx, "/drifts/", clientv3.WithPrefix())) })
	all.Go(func() { b.scrape(ctx) })
	return b, kv
}

func (b *driftBook) watch(changes clientv3.WatchChan) {
	for r := range changes {
		for _, e := range r.Events {
			var d driftText
			if err := json.Unmarshal(e.Kv.Value, &d); e.Type == clientv3.EventTypePut && err != nil {
				b.t.Errorf("record %s is %q: %v", e.Kv.Key, e.Kv.Value, err)
			}
			b.mu.Lock()
			b.records[string(e.Kv.Key)] = append(b.records[string(e.Kv.Key)], d)
			b.mu.Unlock()
		}
	}
}

// scrape reads the gauge of open drifts from the leader until ctx ends.
func (b *driftBook) scrape(ctx context.Context) {
	for {
		if i, err := b.c.Leader(ctx); err == nil {
			if text, err := harness.Metrics(ctx, b.c.Schedulers[i].HTTP); err == nil {
				b.read(text)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (b *driftBook) read(metrics string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for line := range strings.Lines(metrics) {
		var n float64
		rest, ok := strings.CutPrefix(line, `persys_scheduler_drifts_open{type="`)
		kind, value, _ := strings.Cut(rest, `"} `)
		if _, err := fmt.Sscan(value, &n); ok && err == nil {
			b.most[kind], b.last[kind] = max(b.most[kind], n), n
		}
	}
}

// state returns the replicated state of the leader.
func (b *driftBook) state(ctx context.Context) (fsm.State, error) {
	admin, err := b.c.LeaderAdmin(ctx)
	if err != nil {
		return fsm.State{}, err
	}
	return stateOf(ctx, admin)
}

func (b *driftBook) now() fsm.State { return got[fsm.State](b.t)(b.state(b.t.Context())) }

// driftEvent returns the first event with this type, node, workload and kind of drift after the event number since.
func driftEvent(s fsm.State, since uint64, event, node, workload, kind string) *fsm.Event {
	var found *fsm.Event
	s.Events(since, func(e *fsm.Event) bool {
		if e.Type == event && e.Node == node && e.Workload == workload && e.Reason == kind {
			found = e
		}
		return found == nil
	})
	return found
}

// opened waits until an event says that a drift was found, etcd has a key for it and, while the drift is
// open, the metric counts it. It returns the event.
func (b *driftBook) opened(since uint64, node, workload, kind, action string) *fsm.Event {
	b.t.Helper()
	var event *fsm.Event
	key := "/drifts/" + node + "/" + workload + "/" + kind
	must(b.t, testbed.Poll(b.t.Context(), settle, kind+" of "+workload+" on record", func(ctx context.Context) error {
		s, err := b.state(ctx)
		if err != nil {
			return err
		}
		if event = driftEvent(s, since, fsm.EventDriftDetected, node, workload, kind); event == nil {
			return fmt.Errorf("no event was recorded")
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if !slices.ContainsFunc(b.records[key], func(d driftText) bool {
			return !d.Resolved && d.NodeID == node && d.WorkloadID == workload && d.DriftType == kind && d.Action == action && !d.DetectedAt.IsZero()
		}) {
			return fmt.Errorf("etcd had only the records %+v under %s", b.records[key], key)
		}
		// If a drift is repaired at once, it may be closed before the test reads the metric again. So the metric
		// must show the drift only if it is still open.
		if _, open := s.Drift(node, workload, kind); open && b.most[kind] == 0 {
			return fmt.Errorf("the metric of open drifts never showed the drift: %v", b.most)
		}
		return nil
	}))
	return event
}

// closed waits until a drift is repaired or has ended: the state has no record of it, an event says so, its
// key in etcd is resolved, and the metric no longer counts it.
func (b *driftBook) closed(since uint64, node, workload, kind string) {
	b.t.Helper()
	key := "/drifts/" + node + "/" + workload + "/" + kind
	must(b.t, testbed.Poll(b.t.Context(), settle, "the end of "+kind+" of "+workload, func(ctx context.Context) error {
		s, err := b.state(ctx)
		if err != nil {
			return err
		}
		if d, open := s.Drift(node, workload, kind); open {
			return fmt.Errorf("the drift is still open: %+v", d)
		}
		if driftEvent(s, since, fsm.EventDriftResolved, node, workload, kind) == nil {
			return fmt.Errorf("no event was recorded")
		}
		left := 0.0
		s.Drifts("", func(d *fsm.Drift) bool {
			if d.Type == kind {
				left++
			}
			return true
		})
		b.mu.Lock()
		defer b.mu.Unlock()
		all := b.records[key]
		if len(all) == 0 || !all[len(all)-1].Resolved {
			return fmt.Errorf("etcd had only the records %+v under %s", all, key)
		}
		if b.last[kind] != left {
			return fmt.Errorf("the metric is %v, but the state has %v open drifts", b.last[kind], left)
		}
		return nil
	}))
}

// moves returns the events after the sequence number since that say that a workload was ordered again or
// moved.
func moves(s fsm.State, since uint64, workload string) (out []string) {
	s.Events(since, func(e *fsm.Event) bool {
		switch e.Type {
		case fsm.EventRetryTriggered, fsm.EventWorkloadEvicted, fsm.EventWorkloadScheduled, fsm.EventWorkloadFailed:
			if e.Workload == workload {
				out = append(out, e.Type+" "+e.Reason)
			}
		}
		return true
	})
	return out
}

// TestDriftOnDocker: a real engine is made to differ from the desired state in every possible way. Each drift
// must be recorded, repaired and closed. Only orphans (containers without a workload) are not repaired, but
// left to operators.
func TestDriftOnDocker(t *testing.T) {
	e, image := theEngine(t)
	b, kv := drifting(t)
	c := b.c
	cluster := onDocker(t, e, c)
	a := got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{}))
	apply(t, c, "web", container(image))
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "web", settle, running))
	one := func(workload string) (id string, labels map[string]string) {
		t.Helper()
		must(t, testbed.Poll(t.Context(), settle, "one container of "+workload, func(ctx context.Context) error {
			all, err := e.Workload(ctx, cluster, workload)
			if err == nil && (len(all) != 1 || string(all[0].State) != "running") {
				err = fmt.Errorf("the engine has %d containers of the workload, want one", len(all))
			}
			if err == nil {
				id, labels = all[0].ID, all[0].Labels
			}
			return err
		}))
		return id, labels
	}

	// Start two orphans (containers without a workload). They stay until the end of the test, where the operator
	// adopts one of them and deletes the other one.
	orphans := map[string]string{}
	since := b.now().Info().EventSeq
	for _, name := range []string{"ghost", "spook"} {
		orphans[name] = got[string](t)(e.Run(t.Context(), name, image, map[string]string{
			driver.LabelManaged: "true", driver.LabelWorkload: name, driver.LabelRevision: "by-hand", driver.LabelCluster: cluster,
			driver.LabelNode: a.NodeID, driver.LabelKind: "container",
		}))
	}
	for name := range orphans {
		b.opened(since, a.NodeID, name, fsm.DriftOrphan, fsm.ActionInvestigate)
	}
	if out := ctl(t, c, "drift", "list"); !strings.Contains(out, "ghost") || !strings.Contains(out, fsm.DriftOrphan) || !strings.Contains(out, "2 orphans left alone") {
		t.Errorf("persysctl drift list does not show both orphans:\n%s", out)
	}

	t.Run("containers killed or removed without their agent: the agent repairs them, nothing moves", func(t *testing.T) {
		// Each case uses another workload: if the container of one workload ended several times in a short time,
		// the agent would wait longer before each start, as in a crash loop.
		apply(t, c, "api", container(image))
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "api", settle, running))
		for _, x := range []struct {
			workload, what string
			harm           func(context.Context, string) error
		}{{"api", "killed", e.Kill}, {"web", "removed", e.Remove}} {
			before := b.now()
			w, _ := before.Workload(x.workload)
			id, _ := one(x.workload)
			was := got[string](t)(e.Started(t.Context(), id))
			must(t, x.harm(t.Context(), id))
			must(t, testbed.Poll(t.Context(), settle, "a new run of the container that was "+x.what, func(ctx context.Context) error {
				all, err := e.Workload(ctx, cluster, x.workload)
				if err != nil || len(all) != 1 || string(all[0].State) != "running" {
					return fmt.Errorf("the engine has %d containers of the workload, want one that runs: %w", len(all), err)
				}
				if now, err := e.Started(ctx, all[0].ID); err != nil || now == was {
					return fmt.Errorf("the container still runs since %s, want a restart: %w", now, err)
				}
				return nil
			}))
			got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), x.workload, settle, runningOn(a.NodeID)))
			after := b.now()
			now, _ := after.Workload(x.workload)
			if m := moves(after, before.Info().EventSeq, x.workload); len(m) > 0 || now.Generation != w.Generation {
				t.Errorf("the cluster moved or ordered again a workload that was %s: events %v, generation %s, before %s", x.what, m, now.Generation, w.Generation)
			}
		}
	})

	t.Run("an agent that lost its state file runs its orders again", func(t *testing.T) {
		for what, change := range map[string]func(id string, labels map[string]string){
			"nothing": func(id string, _ map[string]string) { must(t, e.Remove(t.Context(), id)) },
			"another revision": func(id string, labels map[string]string) {
				must(t, e.Remove(t.Context(), id))
				labels = maps.Clone(labels)
				labels[driver.LabelRevision], labels[driver.LabelContent] = "c1-by-hand", "c1:by-hand"
				got[string](t)(e.Run(t.Context(), "web", image, labels))
			},
		} {
			id, labels := one("web")
			must(t, a.Kill())
			must(t, os.Remove(a.StatePath))
			change(id, labels)
			must(t, a.Start())
			must(t, testbed.Poll(t.Context(), settle, "the ordered container, in place of "+what, func(ctx context.Context) error {
				all, err := e.Workload(ctx, cluster, "web")
				if err != nil || len(all) != 1 || string(all[0].State) != "running" || all[0].ID == id || all[0].Labels[driver.LabelContent] != labels[driver.LabelContent] {
					return fmt.Errorf("the engine has the containers %v, want a new one that runs: %w", all, err)
				}
				return nil
			}))
			got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "web", settle, runningOn(a.NodeID)))
		}
	})

	// Change the leader and restart the agent. The schedulers must still list the two orphans.
	must(t, c.Schedulers[got[int](t)(c.WaitLeader(t.Context(), electionLimit))].Restart())
	must(t, c.WaitReady(t.Context(), settle))
	for name, id := range orphans {
		if now, _ := one(name); now != id {
			t.Errorf("%s was replaced without an order: container %s, before %s", name, now, id)
		}
	}
	must(t, testbed.Poll(t.Context(), settle, "both orphans recorded, under the new leader and by the new agent", func(ctx context.Context) error {
		s, err := b.state(ctx)
		if err != nil {
			return err
		}
		for name := range orphans {
			if _, open := s.Drift(a.NodeID, name, fsm.DriftOrphan); !open {
				return fmt.Errorf("orphan %s is not recorded", name)
			}
		}
		return nil
	}))
	seq := b.now().Info().EventSeq
	file := filepath.Join(t.TempDir(), "ghost.yaml")
	must(t, os.WriteFile(file, fmt.Appendf(nil, "id: ghost\nresources: {cpu: 50m, memory: 32Mi}\ncontainer: {image: %q}\n", image), 0o600))
	ctl(t, c, "drift", "adopt", a.NodeID, "ghost", "-f", file)
	ctl(t, c, "drift", "delete", a.NodeID, "spook", "--yes")
	b.closed(seq, a.NodeID, "ghost", fsm.DriftOrphan)
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "ghost", settle, runningOn(a.NodeID)))
	one("ghost")
	b.closed(seq, a.NodeID, "spook", fsm.DriftOrphan)
	if all := got1(e.Workload(t.Context(), cluster, "spook")); len(all) != 0 {
		t.Errorf("the deleted orphan still has %d containers", len(all))
	}
	if out := ctl(t, c, "drift", "list"); strings.Contains(out, "ghost") || strings.Contains(out, "spook") {
		t.Errorf("persysctl drift list at the end prints:\n%s", out)
	}
	equals(t, c, kv, "after all drifts")
}

// got1 returns the first of two values.
func got1[T, U any](v T, _ U) T { return v }

// legacyAgent is a legacy v1 agent. The orders to it have neither epoch nor generation, and it reports the
// status of a workload only when asked. The test changes its workloads.
type legacyAgent struct {
	agentv1.UnimplementedAgentServiceServer

	mu    sync.Mutex
	has   map[string]*agentv1.WorkloadStatus
	tasks []*agentv1.AgentAction
	polls int
	// ordered counts the orders for each workload. recreated counts those orders that replaced an instance
	// of another revision.
	ordered, recreated map[string]int
}

func (x *legacyAgent) task(kind, id string) {
	now := time.Now()
	x.tasks = append(x.tasks, &agentv1.AgentAction{
		TaskId: fmt.Sprintf("%s-%s-%d", kind, id, now.UnixNano()), WorkloadId: id, ActionType: kind + "_workload", Status: "completed",
		CreatedAt: now.Unix(), StartedAt: now.Unix(), EndedAt: now.Unix(),
	})
}

func (x *legacyAgent) ApplyWorkload(_ context.Context, r *agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ordered[r.GetId()]++
	if now := x.has[r.GetId()]; now != nil && now.GetRevisionId() != r.GetRevisionId() {
		x.recreated[r.GetId()]++
	}
	x.has[r.GetId()] = &agentv1.WorkloadStatus{
		Id: r.GetId(), RevisionId: r.GetRevisionId(), DesiredState: r.GetDesiredState(), ActualState: agentv1.ActualState_ACTUAL_STATE_RUNNING, UpdatedAt: time.Now().Unix(),
	}
	x.task("apply", r.GetId())
	return &agentv1.ApplyWorkloadResponse{Applied: true, Status: &agentv1.WorkloadStatus{Id: r.GetId(), ActualState: agentv1.ActualState_ACTUAL_STATE_PENDING}}, nil
}

func (x *legacyAgent) DeleteWorkload(_ context.Context, r *agentv1.DeleteWorkloadRequest) (*agentv1.DeleteWorkloadResponse, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.has, r.GetId())
	x.task("delete", r.GetId())
	return &agentv1.DeleteWorkloadResponse{Success: true}, nil
}

func (x *legacyAgent) GetWorkloadStatus(_ context.Context, r *agentv1.GetWorkloadStatusRequest) (*agentv1.GetWorkloadStatusResponse, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.polls++
	if st := x.has[r.GetId()]; st != nil {
		return &agentv1.GetWorkloadStatusResponse{Status: st}, nil
	}
	return nil, status.Errorf(codes.Unknown, "workload status not found")
}

func (x *legacyAgent) ListWorkloads(context.Context, *agentv1.ListWorkloadsRequest) (*agentv1.ListWorkloadsResponse, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return &agentv1.ListWorkloadsResponse{Workloads: slices.Collect(maps.Values(x.has))}, nil
}

func (x *legacyAgent) ListActions(context.Context, *agentv1.ListActionsRequest) (*agentv1.ListActionsResponse, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return &agentv1.ListActionsResponse{Actions: slices.Clone(x.tasks)}, nil
}

// set changes the status of a workload of the agent without an order of a scheduler, as when somebody changes
// the container by hand. If change returns nil, the workload is removed.
func (x *legacyAgent) set(id string, change func(*agentv1.WorkloadStatus) *agentv1.WorkloadStatus) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if st := change(x.has[id]); st != nil {
		x.has[id] = st
	} else {
		delete(x.has, id)
	}
}

// startLegacyAgent serves a legacy agent and registers it with a cluster again and again, as such
// agents do.
func startLegacyAgent(t *testing.T, c *harness.Cluster, node string) *legacyAgent {
	t.Helper()
	x := &legacyAgent{has: map[string]*agentv1.WorkloadStatus{}, ordered: map[string]int{}, recreated: map[string]int{}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	srv := grpc.NewServer()
	agentv1.RegisterAgentServiceServer(srv, x)
	control := got[controlv1.AgentControlClient](t)(c.Any(t.Context()))
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { _ = srv.Serve(l) }) // Serve returns after Stop
	all.Go(func() {
		for ctx.Err() == nil {
			_, _ = control.RegisterNode(ctx, &controlv1.RegisterNodeRequest{ // register again, because an election may have lost the registration
				NodeId: node, GrpcEndpoint: l.Addr().String(),
				Capabilities: &controlv1.NodeCapabilities{CpuTotalMillicores: 4000, MemoryTotalMb: 4096, SupportedWorkloadTypes: []string{"container"}},
			})
			pause(ctx, time.Second)
		}
	})
	t.Cleanup(func() { stop(); srv.Stop(); all.Wait() })
	must(t, c.WaitNode(t.Context(), node, "Ready", settle))
	return x
}

// TestDriftOfLegacyAgent: a legacy v1 agent works with the schedulers of this version. The schedulers poll
// the status of the agent's workloads until it is the desired one, record the agent's actions, and find
// drifts on its node.
func TestDriftOfLegacyAgent(t *testing.T) {
	b, kv := drifting(t)
	c := b.c
	x := startLegacyAgent(t, c, "older")
	began := time.Now()
	apply(t, c, "web", container("nginx:1.27"))
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "web", settle, running))
	x.mu.Lock()
	polls := x.polls
	x.mu.Unlock()
	t.Logf("the agent was polled %d times; the schedulers knew that the workload runs %s after its apply", polls, time.Since(began).Round(time.Millisecond))
	if polls == 0 {
		t.Error("the workload is known to be running, although its status was never polled")
	}
	must(t, testbed.Poll(t.Context(), settle, "the agent's task in the history", func(ctx context.Context) error {
		s, err := b.state(ctx)
		if err != nil {
			return err
		}
		found := false
		s.Events(0, func(e *fsm.Event) bool {
			found = found || e.Type == fsm.EventAgentAction && e.Node == "older" && e.Workload == "web" && strings.Contains(fmt.Sprint(e.Details), "apply_workload")
			return !found
		})
		if !found {
			return fmt.Errorf("the history has no event of the agent's task")
		}
		return nil
	}))

	for _, d := range []struct {
		kind, action string
		change       func(*agentv1.WorkloadStatus) *agentv1.WorkloadStatus
	}{
		{fsm.DriftState, fsm.ActionAlign, func(st *agentv1.WorkloadStatus) *agentv1.WorkloadStatus {
			return &agentv1.WorkloadStatus{Id: st.Id, RevisionId: st.RevisionId, ActualState: agentv1.ActualState_ACTUAL_STATE_STOPPED, UpdatedAt: time.Now().Unix()}
		}},
		{fsm.DriftRevision, fsm.ActionReapply, func(st *agentv1.WorkloadStatus) *agentv1.WorkloadStatus {
			return &agentv1.WorkloadStatus{Id: st.Id, RevisionId: "of-another-time", ActualState: agentv1.ActualState_ACTUAL_STATE_RUNNING, UpdatedAt: time.Now().Unix()}
		}},
		{fsm.DriftMissing, fsm.ActionReconcile, func(*agentv1.WorkloadStatus) *agentv1.WorkloadStatus { return nil }},
	} {
		since := b.now().Info().EventSeq
		revision := got1(b.now().Workload("web")).Revision()
		changed := time.Now()
		x.set("web", d.change)
		b.opened(since, "older", "web", d.kind, d.action)
		b.closed(since, "older", "web", d.kind)
		if after := time.Since(changed); d.kind == fsm.DriftMissing && after < missingGrace {
			t.Errorf("the missing workload was ordered again after %s, within the grace period of %s", after, missingGrace)
		}
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "web", settle, runningOn("older")))
		x.mu.Lock()
		st := x.has["web"]
		x.mu.Unlock()
		if st.GetActualState() != agentv1.ActualState_ACTUAL_STATE_RUNNING || st.GetRevisionId() != revision {
			t.Errorf("after the drift %s the agent reports %v, want revision %s to run", d.kind, st, revision)
		}
	}

	since := b.now().Info().EventSeq
	x.set("ghost", func(*agentv1.WorkloadStatus) *agentv1.WorkloadStatus {
		return &agentv1.WorkloadStatus{Id: "ghost", RevisionId: "r", ActualState: agentv1.ActualState_ACTUAL_STATE_RUNNING}
	})
	b.opened(since, "older", "ghost", fsm.DriftOrphan, fsm.ActionInvestigate)
	ctl(t, c, "drift", "delete", "older", "ghost", "--yes")
	b.closed(since, "older", "ghost", fsm.DriftOrphan)

	// Adopt the orphan. Its order must carry the revision that the orphan has, so that the legacy agent does not
	// recreate it.
	since = b.now().Info().EventSeq
	x.set("found", func(*agentv1.WorkloadStatus) *agentv1.WorkloadStatus {
		return &agentv1.WorkloadStatus{Id: "found", RevisionId: "rev-7", ActualState: agentv1.ActualState_ACTUAL_STATE_RUNNING}
	})
	b.opened(since, "older", "found", fsm.DriftOrphan, fsm.ActionInvestigate)
	file := filepath.Join(t.TempDir(), "found.yaml")
	must(t, os.WriteFile(file, []byte("id: found\ncontainer: {image: \"nginx:1.27\"}\n"), 0o644))
	ctl(t, c, "drift", "adopt", "older", "found", "-f", file)
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "found", settle, runningOn("older")))
	x.mu.Lock()
	ordered, recreated := x.ordered["found"], x.recreated["found"]
	x.mu.Unlock()
	if ordered == 0 || recreated != 0 {
		t.Errorf("the adopted workload was ordered %d times, want at least once, and recreated %d times, want never", ordered, recreated)
	}
	control := got[controlv1.AgentControlClient](t)(c.Any(t.Context()))
	got[*controlv1.DeleteWorkloadResponse](t)(control.DeleteWorkload(t.Context(), &controlv1.DeleteWorkloadRequest{WorkloadId: "found"}))

	began = time.Now()
	if r := got[*controlv1.DeleteWorkloadResponse](t)(control.DeleteWorkload(t.Context(), &controlv1.DeleteWorkloadRequest{WorkloadId: "web"})); !r.GetSuccess() {
		t.Fatalf("the delete was refused: %s", r.GetErrorMessage())
	}
	must(t, testbed.Poll(t.Context(), settle, "the end of web", func(ctx context.Context) error {
		s, err := b.state(ctx)
		if err != nil {
			return err
		}
		if w, ok := s.Workload("web"); ok {
			return fmt.Errorf("the workload still has the state %s", w.Status)
		}
		return nil
	}))
	t.Logf("the workload was deleted within %s", time.Since(began).Round(time.Millisecond))
	equals(t, c, kv, "after all drifts")
}
