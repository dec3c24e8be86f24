package replica

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/telemetry"
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
		{"a new workload counts as a write of a spec", fsm.Change{Table: fsm.TableWorkload, New: &base}, []string{"spec"}},
		{"a deleted workload counts as a write of a spec", fsm.Change{Table: fsm.TableWorkload, Old: &base}, []string{"spec"}},
		{"changed content", changed(func(w *fsm.Workload) { w.Content = "c1:bb" }), []string{"spec"}},
		{"a changed desired state counts as a write of a spec", changed(func(w *fsm.Workload) { w.Desired = fsm.DesiredStopped }), []string{"spec"}},
		{"an assignment", changed(func(w *fsm.Workload) { w.Node = "a"; w.Status = fsm.StatusScheduled }), []string{"assignment", "status"}},
		{"an acknowledgement", changed(func(w *fsm.Workload) { w.Acknowledged = true }), []string{"assignment"}},
		{"a retry", changed(func(w *fsm.Workload) { w.Retry.Attempts = 1 }), []string{"retry"}},
		{"the first report that a workload runs counts as a write of a status", changed(func(w *fsm.Workload) { w.Actual = &fsm.Observation{State: fsm.ActualRunning} }), []string{"status"}},
		{"a changed reason counts as a reconciliation", changed(func(w *fsm.Workload) { w.Reason.Code = "NoFit" }), []string{"reconciliation"}},
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
					t.Errorf("state_store_writes_total of category %s is %v, want %v", category, got, want[category])
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
			t.Errorf("jobs_total counts %v jobs with result %s, want %v", got, result, want)
		}
	}
}

// TestCronsHaveABoundedNumberOfSeries: the time of the last success is exported for a limited number of crons only, and
// failing crons are counted by namespace.
func TestCronsHaveABoundedNumberOfSeries(t *testing.T) {
	m := newMetrics()
	success, failing := m.ReadGauge("good", "-", "namespace", "cron"), m.ReadGauge("bad", "-", "namespace")
	cron := func(id string, desired fsm.Desired, good, bad int64) *fsm.Workload {
		return &fsm.Workload{
			ID: id, Namespace: "shop", Desired: desired, Demand: &fsm.Demand{Template: &fsm.Template{Kind: fsm.TemplateCron, Cron: &fsm.Cron{}}},
			Template: &fsm.TemplateState{LastSuccess: good * 1e9, LastFailure: bad * 1e9},
		}
	}
	exported := func(list ...*fsm.Workload) (series int, values map[string]float64) {
		values = map[string]float64{}
		crons(func(fn func(*fsm.Workload) bool) {
			for _, w := range list {
				if !fn(w) {
					return
				}
			}
		}, func(v telemetry.Value, n float64, labels ...string) {
			if v == success {
				series++
			}
			values[word(v == failing, "failing ", "success ")+strings.Join(labels, "/")] = n
		}, success, failing)
		return series, values
	}
	if n, got := exported(); n != 1 || got["success /"] != 0 || got["failing "] != 0 {
		t.Errorf("without crons the metrics of crons are %v, want both with the value 0", got)
	}
	many := []*fsm.Workload{
		{ID: "a-service", Demand: &fsm.Demand{}}, cron("b", fsm.DesiredRunning, 8, 7), cron("c", fsm.DesiredRunning, 8, 9), cron("d", fsm.DesiredRunning, 0, 9),
		cron("e", fsm.DesiredStopped, 8, 9), cron("f", fsm.DesiredDeleted, 8, 9),
	}
	n, got := exported(many...)
	if n != 4 || got["success shop/b"] != 8 || got["success shop/c"] != 8 || got["success shop/d"] != 0 || got["failing shop"] != 2 {
		t.Errorf("the metrics of crons have %d series for the last success, and the values %v; want the last success of crons b, c, d and e, and two failing crons", n, got)
	}
	for i := range 2 * maxCronSeries {
		many = append(many, cron(fmt.Sprintf("x-%04d", i), fsm.DesiredRunning, 8, 9))
	}
	if n, got := exported(many...); n != maxCronSeries || got["failing shop"] != 2*maxCronSeries+2 {
		t.Errorf("the metrics of crons have %d series for the last success and %v failing crons, want %d series and %d failing crons", n, got["failing shop"], maxCronSeries, 2*maxCronSeries+2)
	}
}

// TestRareMetricsAreCounted: the metrics of rare events, which the end-to-end tests cannot cause, are
// counted.
func TestRareMetricsAreCounted(t *testing.T) {
	m := newMetrics()
	m.Paused(2 * time.Second)
	m.Paused(-11 * time.Millisecond) // the wall clock was set back
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

// An agent may answer with any number as error code. For a code that gRPC does not define, no time series must be
// created.
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
		t.Errorf("there are %d time series for %d codes that gRPC defines, and %v calls are counted as Unknown; want one series for each defined code", series, known, got)
	}
}
