package mirror

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/store"
	"github.com/persys/compute/testbed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster is a state machine that applies the commands of a test. It also implements Attachment.
type cluster struct {
	t  testing.TB
	id string

	mu    sync.Mutex
	st    *store.Store
	index uint64
	term  uint64
	now   int64

	attached   uint64
	isAttached bool
	extra      Extra
}

func newCluster(t testing.TB, id string) *cluster {
	c := &cluster{t: t, id: id, st: store.New(fsm.New()), term: 1, now: time.Date(2026, 1, 2, 3, 4, 5, 6789, time.UTC).UnixNano()}
	c.do(&commandv1.Command{Body: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{ClusterId: id, Incarnation: 1000}}})
	c.do(&commandv1.Command{Body: &commandv1.Command_PutReplica{PutReplica: &commandv1.PutReplica{Id: "r1", Name: "s1", FeatureLevel: fsm.FeatureLevel}}})
	return c
}

// fork returns a second replica with a copy of the present state. Its change feed begins after the index
// of that state.
func (c *cluster) fork() *cluster {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &cluster{
		t: c.t, id: c.id, st: store.New(c.st.State()), index: c.index, term: c.term, now: c.now,
		attached: c.attached, isAttached: c.isAttached,
	}
}

func (c *cluster) do(list ...fsm.Command) {
	c.t.Helper()
	for _, res := range c.try(list...) {
		if err := res.Err(); err != nil {
			c.t.Fatal(err)
		}
	}
}

// try applies commands as one log entry and returns their results.
func (c *cluster) try(list ...fsm.Command) (out []fsm.Result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.index++
	tx := c.st.State().Begin()
	var changes []fsm.Change
	for _, cmd := range list {
		c.now += int64(time.Second) + 1
		cmd.Head = &commandv1.Head{At: c.now, By: "tester", Epoch: &commandv1.Epoch{Incarnation: 1000, Term: c.term}}
		res, ch := tx.Apply(fsm.Meta{Index: c.index, Term: c.term}, cmd)
		out = append(out, res)
		changes = append(changes, ch...)
	}
	c.st.Publish(tx.Commit(), changes)
	return out
}

func (c *cluster) epoch() fsm.Epoch {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fsm.Epoch{Incarnation: 1000, Term: c.term}
}

// Attached and MarkAttached implement Attachment: they keep the id in memory instead of the
// replicated state.
func (c *cluster) Attached() (uint64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.attached, c.isAttached
}

func (c *cluster) MarkAttached(_ context.Context, id uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.attached, c.isAttached = id, true
	return nil
}

// run is a running mirror.
type run struct {
	*Mirror
	t      testing.TB
	c      *cluster
	cancel context.CancelFunc
	done   chan error

	mu     sync.Mutex
	states []State
	lead   bool
}

var quick = Options{ProbeEvery: 50 * time.Millisecond, CallLimit: 500 * time.Millisecond, WriteBound: 2 * time.Second}

// start runs a mirror of the cluster for one leadership term.
func (c *cluster) start(kv Etcd, o Options) *run {
	c.t.Helper()
	return c.startAs(kv, o, true)
}

// startAs runs a mirror for one leadership term. Its leadership is confirmed only if lead is set.
func (c *cluster) startAs(kv Etcd, o Options, lead bool) *run {
	c.t.Helper()
	ctx, cancel := context.WithCancel(c.t.Context())
	r := &run{t: c.t, c: c, cancel: cancel, done: make(chan error, 1), lead: lead}
	m, err := New(o, Deps{
		Store: c.st, Etcd: kv, Attachment: c, Describe: describe, Extra: c.extra, Log: slog.New(slog.NewTextHandler(testLog{c.t}, nil)),
		Confirm: func(context.Context) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			if !r.lead {
				return errors.New("another replica leads")
			}
			return nil
		},
		OnHealth: func(_ context.Context, h Health) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.states = append(r.states, h.State)
		},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	r.Mirror = m
	epoch := c.epoch()
	go func() { r.done <- m.Run(ctx, epoch) }()
	c.t.Cleanup(func() { r.stop() })
	return r
}

// testLog writes to the test's log.
type testLog struct{ t testing.TB }

func (l testLog) Write(b []byte) (int, error) {
	l.t.Log(strings.TrimSuffix(string(b), "\n"))
	return len(b), nil
}

// stop ends the leadership term and returns the error of Run.
func (r *run) stop() error {
	r.cancel()
	err, ok := <-r.done
	if ok {
		r.done <- err // put the error back, so that the next call of stop receives it too
	}
	return err
}

func (r *run) deposed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lead = false
}

// told returns the states of the mirror that OnHealth received so far, in order.
func (r *run) told() []State {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]State(nil), r.states...)
}

func (r *run) awaitState(s State) { r.t.Helper(); r.awaitReason(s, "") }

// awaitReason waits for a state with a reason that contains a text. On a busy machine a call may reach its time
// limit first, which is another reason for the same state.
func (r *run) awaitReason(s State, text string) {
	r.t.Helper()
	testbed.Within(r.t, testbed.Patience, "the mirror is "+string(s)+" "+text, func() error {
		if h := r.Stats().Health; h.State != s || !strings.Contains(h.Reason, text) {
			return fmt.Errorf("the mirror is %s: %s", h.State, h.Reason)
		}
		return nil
	})
}

// awaitEqual waits until etcd holds exactly the current state, key by key, with a complete
// cursor.
func (r *run) awaitEqual(e *etcd) {
	r.t.Helper()
	prefix := string(r.proj.keys)
	testbed.Within(r.t, testbed.Patience, "the mirror equals the state", func() error {
		v := r.c.st.View()
		want := map[string]string{}
		for kv := range r.proj.All(v) {
			want[kv.Key] = string(kv.Value)
		}
		got, err := e.contents(prefix + "/")
		if err != nil {
			return err
		}
		cursorKey, ownerKey := r.proj.keys.cursor(r.c.id), r.proj.keys.owner()
		cur, err := parseCursor(got[cursorKey])
		if err != nil {
			return err
		}
		if got[ownerKey] != ownerOf(r.c.id).raw {
			return fmt.Errorf("the owner key in etcd has the value %q", got[ownerKey])
		}
		delete(got, cursorKey)
		delete(got, ownerKey)
		for k := range got {
			if !owned(strings.TrimPrefix(k, prefix)) {
				delete(got, k)
			}
		}
		if d := differ(want, got); d != "" {
			return errors.New(d)
		}
		if !cur.Complete || cur.Upto != 0 {
			return fmt.Errorf("the cursor in etcd is %s, want a complete cursor at the state's index", cur.raw)
		}
		return nil
	})
}

func owned(key string) bool {
	for _, dir := range [...]string{dirNodes, dirWorkloads, dirSpecs, dirStatuses, dirAssignments, dirRetries, dirEvents, dirDrifts, dirNamespaces, dirBundles} {
		if strings.HasPrefix(key, dir) {
			return true
		}
	}
	return false
}

// describe is a Describe for tests.
func describe(w *fsm.Workload) Fields {
	return Fields{
		Image: "registry.example/" + w.ID + ":1", Command: []string{"serve", "--port", "80"},
		EnvVars: map[string]string{"TOKEN": "sealed:abc"}, Ports: []string{"8080:80/tcp"}, RestartPolicy: "always",
	}
}

func put(id string) fsm.Command { return putSpec(id, []byte("spec of "+id), "c1:0123456789abcdef0123") }

func putSpec(id string, spec []byte, content string) fsm.Command {
	return &commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{
		Workloads: []*commandv1.WorkloadPut{{
			Id: id, Spec: spec, Content: content, CallerRevision: "r1", Desired: "Running",
			Demand: &commandv1.Demand{Type: "container", CpuMillicores: 10, MemoryMib: 5},
		}},
	}}}
}

func register(id string) fsm.Command {
	return &commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: &commandv1.RegisterNode{
		Id: id, Endpoint: "10.0.0.7:50051", CpuMillicores: 64_000, MemoryMib: 65_536,
		Pools: []*commandv1.Pool{{Name: "main", Type: "local", TotalGb: 100}}, Types: []string{"container"},
		Labels: []*commandv1.Label{{Key: "zone", Value: "a"}}, InstanceId: "i-" + id, Protocol: 1, LeaseSeconds: 10,
		Timestamp: "2026-01-02T03:04:05Z",
	}}}
}

func nodeState(id string, up bool) fsm.Command {
	return &commandv1.Command{Body: &commandv1.Command_SetNodeStates{SetNodeStates: &commandv1.SetNodeStates{
		Nodes: []*commandv1.NodeState{{Id: id, Up: up, Reason: "lease ended", UpdatedBy: "monitor"}},
	}}}
}

func removeNode(id string) fsm.Command {
	return &commandv1.Command{Body: &commandv1.Command_RemoveNode{RemoveNode: &commandv1.RemoveNode{Id: id, Force: true}}}
}

func (c *cluster) generation(id string) *commandv1.Generation {
	w, ok := c.st.View().Workload(id)
	if !ok {
		return nil
	}
	return fsm.GenerationPB(w.Generation)
}

func (c *cluster) assign(id, node string) fsm.Command {
	return &commandv1.Command{Body: &commandv1.Command_Assign{Assign: &commandv1.Assign{
		Assignments: []*commandv1.Assignment{{Workload: id, Node: node, IfGeneration: c.generation(id)}},
	}}}
}

func (c *cluster) says(id, state, message string) fsm.Command {
	w, ok := c.st.View().Workload(id)
	node := ""
	if ok {
		node = w.Node
	}
	return &commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{
		Reports: []*commandv1.WorkloadReport{{
			Workload: id, Node: node, Generation: c.generation(id), State: state, Message: message, ObservedAt: c.now,
		}},
	}}}
}

func (c *cluster) retry(id string, attempts int32, after time.Duration, terminal bool) fsm.Command {
	r := &commandv1.Retry{Workload: id, IfGeneration: c.generation(id), Attempts: attempts, Terminal: terminal, Code: "BackoffWait", Message: "later"}
	if !terminal {
		r.NextAt = c.now + int64(after)
	}
	return &commandv1.Command{Body: &commandv1.Command_ScheduleRetries{ScheduleRetries: &commandv1.ScheduleRetries{Retries: []*commandv1.Retry{r}}}}
}

func (c *cluster) evict(id string) fsm.Command {
	return &commandv1.Command{Body: &commandv1.Command_Evict{Evict: &commandv1.Evict{
		Evictions: []*commandv1.Eviction{{Workload: id, IfGeneration: c.generation(id), Code: "Draining", Gone: true}},
	}}}
}

func remove(id string, force bool) fsm.Command {
	return &commandv1.Command{Body: &commandv1.Command_DeleteWorkload{DeleteWorkload: &commandv1.DeleteWorkload{Id: id, Force: force}}}
}

func drain(id string, on bool) fsm.Command {
	return &commandv1.Command{Body: &commandv1.Command_DrainNode{DrainNode: &commandv1.DrainNode{Id: id, On: on}}}
}

// random applies n random log entries of one to five commands.
func (c *cluster) random(rnd *rand.Rand, n int) {
	for range n {
		var list []fsm.Command
		for range 1 + rnd.IntN(5) {
			list = append(list, c.randomCommand(rnd))
		}
		c.try(list...) // the state machine may refuse random commands
	}
}

func (c *cluster) randomCommand(rnd *rand.Rand) fsm.Command {
	id := [...]string{"w0", "w1", "w1-a", "w1.b", "w2", "w3", "w4", "w5"}[rnd.IntN(8)]
	node := [...]string{"a", "a-b", "a.c", "b"}[rnd.IntN(4)]
	switch rnd.IntN(22) {
	case 21:
		return withFiles(putSpec(id, []byte("spec"), fmt.Sprintf("c1:%020d", rnd.IntN(3))), [...]string{"a", "b"}[rnd.IntN(2)])
	case 18:
		c := putSpec(id, []byte("spec"), "c1:00000000000000000009")
		c.GetPutWorkloads().Workloads[0].Namespace = [...]string{"n1", "n2"}[rnd.IntN(2)]
		return c
	case 19:
		return putNamespace([...]string{"n1", "n2", "default"}[rnd.IntN(3)], int64(rnd.IntN(3))*100)
	case 20:
		return &commandv1.Command{Body: &commandv1.Command_DeleteNamespace{DeleteNamespace: &commandv1.DeleteNamespace{Name: "n2"}}}
	case 16:
		return setDriftAs(node, id, [...]string{fsm.DriftOrphan, fsm.DriftState}[rnd.IntN(2)], [...]string{"Running", "Failed"}[rnd.IntN(2)], true)
	case 17:
		return setDrift(node, id, [...]string{fsm.DriftOrphan, fsm.DriftState}[rnd.IntN(2)], false)
	case 0, 1:
		return register(node)
	case 2, 3:
		return putSpec(id, []byte("spec"), fmt.Sprintf("c1:%020d", rnd.IntN(3)))
	case 4, 5, 6:
		return c.assign(id, node)
	case 7, 8, 9:
		return c.says(id, [...]string{"Running", "Failed", "Stopped"}[rnd.IntN(3)], "said <so>")
	case 10:
		return c.retry(id, int32(rnd.IntN(4)), time.Minute, rnd.IntN(3) == 0)
	case 11:
		return c.evict(id)
	case 12:
		return remove(id, rnd.IntN(2) == 0)
	case 13:
		return nodeState(node, rnd.IntN(2) == 0)
	case 14:
		return drain(node, rnd.IntN(2) == 0)
	}
	return removeNode(node)
}

// withFiles adds a bundle (the files of a Compose stack) to a command that stores a workload, and makes the workload
// refer to the bundle.
func withFiles(c fsm.Command, digit string) fsm.Command {
	b := &commandv1.Bundle{Digest: strings.Repeat(digit, 64), Data: []byte("sealed files " + digit)}
	c.GetPutWorkloads().Bundles = []*commandv1.Bundle{b}
	c.GetPutWorkloads().Workloads[0].Bundle = b.Digest
	return c
}

func putNamespace(name string, cpu int64) fsm.Command {
	return &commandv1.Command{Body: &commandv1.Command_PutNamespace{PutNamespace: &commandv1.PutNamespace{
		Name: name, Description: "of " + name, Quota: &commandv1.Quota{CpuMillicores: cpu}, Users: []string{"ada"},
		NodeLabels: []*commandv1.Label{{Key: "pool", Value: name}},
	}}}
}

// setDrift opens or closes a drift.
func setDrift(node, workload, kind string, open bool) fsm.Command {
	return setDriftAs(node, workload, kind, "Running", open)
}

// setDriftAs opens or closes a drift for which the agent reports the given status.
func setDriftAs(node, workload, kind, status string, open bool) fsm.Command {
	set, list := &commandv1.SetDrifts{}, []*commandv1.Drift{{Node: node, Workload: workload, Type: kind, AgentStatus: status, Action: fsm.ActionInvestigate}}
	if set.Closed = list; open {
		set.Open, set.Closed = list, nil
	}
	return &commandv1.Command{Body: &commandv1.Command_SetDrifts{SetDrifts: set}}
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
