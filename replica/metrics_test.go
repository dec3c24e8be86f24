package replica

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/fsm"
)

// figures returns the values of the declared counters, and the counts of the histograms, by name and label
// values.
func figures(t *testing.T, m *metrics) map[string]float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(m.Set)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, one := range f.GetMetric() {
			name := strings.TrimPrefix(f.GetName(), "persys_scheduler_")
			for _, l := range one.GetLabel() {
				name += " " + l.GetValue()
			}
			out[name] = one.GetCounter().GetValue() + float64(one.GetHistogram().GetSampleCount())
		}
	}
	return out
}

func TestWritesByCategory(t *testing.T) {
	base := fsm.Workload{ID: "w", Demand: &fsm.Demand{}, Actual: &fsm.Observation{}, Content: "c1:aa", Desired: fsm.DesiredRunning, Status: fsm.StatusPending}
	changed := func(change func(*fsm.Workload)) fsm.Change {
		w := base
		change(&w)
		return fsm.Change{Table: fsm.TableWorkload, Old: &base, New: &w}
	}
	for _, c := range []struct {
		name   string
		change fsm.Change
		want   []string
	}{
		{"a new workload", fsm.Change{Table: fsm.TableWorkload, New: &base}, []string{"spec"}},
		{"a deleted workload", fsm.Change{Table: fsm.TableWorkload, Old: &base}, []string{"spec"}},
		{"changed content", changed(func(w *fsm.Workload) { w.Content = "c1:bb" }), []string{"spec"}},
		{"a changed desired state", changed(func(w *fsm.Workload) { w.Desired = fsm.DesiredStopped }), []string{"spec"}},
		{"an assignment", changed(func(w *fsm.Workload) { w.Node = "a"; w.Status = fsm.StatusScheduled }), []string{"assignment", "status"}},
		{"an acknowledgement", changed(func(w *fsm.Workload) { w.Acknowledged = true }), []string{"assignment"}},
		{"a retry", changed(func(w *fsm.Workload) { w.Retry.Attempts = 1 }), []string{"retry"}},
		{"a workload that has begun to run", changed(func(w *fsm.Workload) { w.Actual = &fsm.Observation{State: fsm.ActualRunning} }), []string{"status"}},
		{"a changed reason", changed(func(w *fsm.Workload) { w.Reason.Code = "NoFit" }), []string{"reconciliation"}},
		{"an event", fsm.Change{Table: fsm.TableEvent, New: &fsm.Event{}}, []string{"event"}},
		{"a node's record", fsm.Change{Table: fsm.TableNode, New: &fsm.Node{}}, []string{"status"}},
		{"a residual", fsm.Change{Table: fsm.TableResidual, New: &fsm.Residual{}}, []string{"assignment"}},
		{"a mode", fsm.Change{Table: fsm.TableInfo, Old: &fsm.Info{}, New: &fsm.Info{}}, []string{"reconciliation"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMetrics()
			m.Apply([]fsm.Change{c.change}, time.Millisecond)
			want := map[string]float64{}
			for _, category := range c.want {
				want[category] = 1
			}
			have := figures(t, m)
			for _, category := range []string{"spec", "status", "retry", "assignment", "reconciliation", "event"} {
				if got := have["state_store_writes_total "+category]; got != want[category] {
					t.Errorf("case %s: the writes by category are %v, want %v", category, got, want[category])
				}
			}
		})
	}
}

func TestEndedJobsAreCountedOnce(t *testing.T) {
	m := newMetrics()
	running := &fsm.Workload{ID: "w", Demand: &fsm.Demand{Job: &fsm.Job{}}, Actual: &fsm.Observation{}}
	ended := func(succeeded bool, at int64) *fsm.Workload {
		w := *running
		w.Result = &fsm.JobResult{Succeeded: succeeded, At: at}
		return &w
	}
	good, bad, before := ended(true, m.since+1), ended(false, m.since+2), ended(false, m.since-1)
	explained := *good
	explained.Reason.Message = "changed"
	for _, c := range []struct{ old, now *fsm.Workload }{
		{nil, running}, {running, good}, {good, &explained}, {&explained, running}, {running, bad}, {bad, nil}, {running, before},
	} {
		ch := fsm.Change{Table: fsm.TableWorkload}
		if c.old != nil {
			ch.Old = c.old
		}
		if c.now != nil {
			ch.New = c.now
		}
		m.Apply([]fsm.Change{ch}, 0)
	}
	have := figures(t, m)
	for result, want := range map[string]float64{jobSuccess: 1, jobFailure: 1} {
		if got := have["jobs_total "+result]; got != want {
			t.Errorf("jobs_total counts %v with result %s, want %v", got, result, want)
		}
	}
}

// TestRareMetricsAreCounted: the metrics of rare events, which the end-to-end tests cannot cause, are
// counted.
func TestRareMetricsAreCounted(t *testing.T) {
	m := newMetrics()
	m.Paused(2 * time.Second)
	m.Trouble()
	m.Snapshot("write", time.Second, nil)
	m.Snapshot("restore", time.Second, errors.New("broken"))
	m.Commit(3, 100, time.Second, errors.New("lost"))
	m.Result("assign", false)
	have := figures(t, m)
	for name, want := range map[string]float64{
		"paused_seconds_total":                      2,
		"reconciliation_cycles_total error":         1,
		"reconciliation_results_total assign false": 1,
		"raft_snapshots_total write success":        1,
		"raft_snapshots_total restore error":        1,
		"raft_snapshot_duration_seconds write":      1,
		"raft_proposed_entries_total error":         1,
		"raft_proposed_commands_total error":        3,
		"raft_commit_duration_seconds":              0,
	} {
		if have[name] != want {
			t.Errorf("metric %s is %v, want %v", name, have[name], want)
		}
	}
}

// An agent may answer with any error code, and no time series is created for an unknown code.
func TestAgentsMakeNoLabels(t *testing.T) {
	m := newMetrics()
	for code := range codes.Code(100) {
		_ = m.agentUnary(t.Context(), agentv1.AgentService_ListWorkloads_FullMethodName, nil, nil, nil,
			func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
				return status.Error(code, "x")
			})
	}
	have, known, series := figures(t, m), int(codes.Unauthenticated)+1, 0
	for name := range have {
		if strings.HasPrefix(name, "agent_rpc_requests_total ") && strings.HasSuffix(name, " ListWorkloads") {
			series++
		}
	}
	if got := have["agent_rpc_requests_total Unknown ListWorkloads"]; series != known || got != float64(100-known+1) {
		t.Errorf("%d series exist for %d codes; %v calls are counted as Unknown", series, known, got)
	}
}
