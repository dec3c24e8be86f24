package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	scheme "github.com/prometheus/common/model"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// moved is the set of names of metrics that were not zero in at least one of the reads of /metrics.
type moved map[string]bool

// scrape reads /metrics of the program at addr, as Prometheus does, and adds the metrics that are not zero to
// m.
func (m moved) scrape(ctx context.Context, addr string) error {
	text, err := harness.Metrics(ctx, addr)
	if err != nil {
		return err
	}
	parser := expfmt.NewTextParser(scheme.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		return fmt.Errorf("%s: %w", addr, err)
	}
	for name, f := range families {
		if slices.ContainsFunc(f.GetMetric(), shows) {
			m[name] = true
		}
	}
	return nil
}

func shows(m *dto.Metric) bool {
	return m.GetCounter().GetValue() != 0 || m.GetGauge().GetValue() != 0 || m.GetHistogram().GetSampleCount() != 0
}

// declared returns the metrics of schedulers and agents from the reference page, which is generated
// from the programs.
func declared(t *testing.T) []string {
	t.Helper()
	page := got[[]byte](t)(os.ReadFile("../docs/reference/metrics.md"))
	var names []string
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		if name := strings.TrimSpace(cells[1]); strings.HasPrefix(name, "persys_scheduler_") || strings.HasPrefix(name, "persys_agent_") {
			names = append(names, name)
		}
	}
	if len(names) < 70 {
		t.Fatalf("only %d metrics were read from the reference page", len(names))
	}
	return names
}

// all scrapes every running program.
func (m moved) all(t *testing.T, c *harness.Cluster) {
	t.Helper()
	for _, s := range c.Schedulers {
		if s.Running() {
			must(t, m.scrape(t.Context(), s.HTTP))
		}
	}
	for _, a := range c.Agents {
		if a.Running() {
			must(t, m.scrape(t.Context(), a.HTTP))
		}
	}
}

// traced checks that an apply by persysctl through a follower gives one trace with every step from the
// command to the container: client, replica, forwarding, leader, Raft, order, agent, convergence.
func traced(t *testing.T, c *harness.Cluster, otlp *receiver) {
	t.Helper()
	at := c.Schedulers[follower(t, c)]
	file := filepath.Join(t.TempDir(), "traced.yaml")
	must(t, os.WriteFile(file, []byte("id: traced\nresources: {cpu: 50m, memory: 32Mi}\ncontainer: {image: sim/run}\n"), 0o600))
	var out bytes.Buffer
	env := append(c.CtlEnv(at.GRPC), "OTEL_EXPORTER_OTLP_ENDPOINT="+otlp.URL)
	if code := got[int](t)(c.RunCtl(t.Context(), env, &out, &out, "apply", "-f", file)); code != 0 {
		t.Fatalf("persysctl apply ended with exit code %d: %s", code, &out)
	}
	oneTrace(t, c, otlp, "traced", at, "persysctl apply", "persysctl: persysctl apply")
}

// tracedByREST makes the same checks as traced for a REST request, through a gateway that knows only one
// replica, a follower. The trace begins with the gateway's span of the request, because the request has no
// trace of its own.
func tracedByREST(t *testing.T, c *harness.Cluster, otlp *receiver) {
	t.Helper()
	at := c.Schedulers[follower(t, c)]
	// The gateway knows only the address of a follower: with other addresses it would call the leader directly.
	clusters := filepath.Join(t.TempDir(), "cluster.yaml")
	must(t, os.WriteFile(clusters, fmt.Appendf(nil, "scheduler:\n  clusters:\n  - {id: main, routing_strategy: sticky, schedulers: [{id: one, address: %q}]}\n", at.GRPC), 0o600))
	addr := gatewayWith(t, c, map[string]string{"PERSYS_INSECURE": "true", "PERSYS_GATEWAY_CLUSTER_CONFIG": clusters, "OTEL_EXPORTER_OTLP_ENDPOINT": otlp.URL})
	const spec = `{"workload_id":"traced-rest","spec":{"type":"container","container":{"image":"sim/run"},"resources":{"cpu_millicores":50,"memory_mb":32}}}`
	req := got[*http.Request](t)(http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+"/workloads/schedule", strings.NewReader(spec)))
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: settle}
	resp := got[*http.Response](t)(client.Do(req))
	body := got[[]byte](t)(io.ReadAll(resp.Body))
	must(t, resp.Body.Close())
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("scheduling a workload was answered %d %s", resp.StatusCode, body)
	}
	oneTrace(t, c, otlp, "traced-rest", at, "POST /workloads/schedule", "persys-gateway: POST /workloads/schedule")
}

// oneTrace waits for the trace of an apply through a follower, from the span with the name root to the start of the
// container.
func oneTrace(t *testing.T, c *harness.Cluster, otlp *receiver, id string, at *harness.Scheduler, root string, before ...string) {
	t.Helper()
	leader := c.Schedulers[got[int](t)(c.WaitLeader(t.Context(), electionLimit))]
	view := got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, running))
	want := append(before,
		at.Name+": persys.control.v1.AgentControl/ApplyWorkload",     // this span is from the replica that persysctl called
		leader.Name+": persys.control.v1.AgentControl/ApplyWorkload", // this span is from the leader, to which the call was forwarded
		leader.Name+": raft propose",
		leader.Name+": order apply",
		view.GetAssignedNodeId()+": persys.agent.v1.AgentService/ApplyWorkload",
		view.GetAssignedNodeId()+": converge ensure",
	)
	must(t, testbed.Poll(t.Context(), settle, "the trace of one apply", func(context.Context) error {
		steps, whole := otlp.path(root, "converge ensure")
		if !whole {
			return fmt.Errorf("the trace is not complete: %q", steps)
		}
		rest := steps
		for _, w := range want {
			i := slices.Index(rest, w)
			if i < 0 {
				return testbed.Final(fmt.Errorf("the trace lacks the span %q, or has it at the wrong place: %q", w, steps))
			}
			rest = rest[i+1:]
		}
		return nil
	}))
}

// TestEveryMetricIsSet: every metric that the programs declare has a value other than zero at some time in
// this test.
func TestEveryMetricIsSet(t *testing.T) {
	// elsewhere lists metrics that stay 0 in this test, each with another test in which it has a value.
	elsewhere := map[string]string{
		"persys_scheduler_ca_not_after_seconds":                      "replica TestTheEndOfTheCAIsReported; the cluster of this test has no CA",
		"persys_scheduler_coredns_up":                                "TestCoreDNS",
		"persys_scheduler_drifts_open":                               "TestDriftOnDocker",
		"persys_scheduler_audit_sink_failures_total":                 "replica/auditsink TestBatchesAreRepeatedUntilStored",
		"persys_scheduler_audit_sink_lost_records_total":             "replica/auditsink TestDroppedRecordsAreCounted",
		"persys_scheduler_audit_sink_waiting_records":                "replica/auditsink TestBatchesAreRepeatedUntilStored",
		"persys_scheduler_refused_by_limit_total":                    "TestHostilePeers, which floods a scheduler with connections",
		"persys_agent_refused_by_limit_total":                        "rpc/limits TestAFloodOfConnectionsIsClosed checks the counting",
		"persys_scheduler_paused_seconds_total":                      "replica TestRareMetricsAreCounted",
		"persys_scheduler_raft_copies":                               "TestACopiedScheduler",
		"persys_scheduler_raft_repaired_timestamp_seconds":           "replica TestDamagedDataIsRepaired",
		"persys_scheduler_raft_append_pending_seconds":               "TestTheLeadersDiskHangs; a disk in memory writes faster than a scrape",
		"persys_scheduler_raft_terms_refused_total":                  "cluster TestAnImplausibleTermIsNotAdopted",
		"persys_scheduler_repair_waiting":                            "replica TestDamagedDataIsRepaired",
		"persys_scheduler_raft_leader_stalls_total":                  "cluster TestALeaderWhoseDiskHangsIsReplaced",
		"persys_scheduler_raft_snapshots_total":                      "cluster TestMetricsAreTold",
		"persys_scheduler_raft_snapshot_duration_seconds":            "cluster TestMetricsAreTold",
		"persys_scheduler_raft_halted":                               "the tests of package cluster that halt a replica",
		"persys_scheduler_feed_dropped_entries_total":                "fsm/store TestStatsFollowTheFeed",
		"persys_scheduler_feed_compactions_total":                    "fsm/store TestStatsFollowTheFeed",
		"persys_scheduler_feed_waiters":                              "fsm/store TestStatsFollowTheFeed",
		"persys_scheduler_planner_orders_in_flight":                  "sched/leader TestStatsCountOrdersAndReports",
		"persys_scheduler_planner_reports_pending":                   "sched/leader TestStatsCountOrdersAndReports",
		"persys_scheduler_mirror_fenced_total":                       "mirror TestDeposedWriterWritesNothing",
		"persys_agent_network_repairs_total":                         "agent/overlay TestForeignChangesAreRepaired",
		"persys_agent_network_problems":                              "agent/overlay TestForeignChangesAreRepaired",
		"persys_agent_orders_fenced_total":                           "agent TestHealthAndMetrics",
		"persys_agent_garbage_collection_old_failed_workloads_found": "agent TestHealthAndMetrics",
		"persys_agent_garbage_collection_orphaned_resources_found":   "agent TestHealthAndMetrics",
		"persys_agent_garbage_collection_resources_deleted_total":    "agent TestHealthAndMetrics",
	}
	want := declared(t)
	for name := range elsewhere {
		if !slices.Contains(want, name) {
			t.Errorf("metric %s is not exported any more", name)
		}
	}
	dir := t.TempDir()
	etcd := got[*harness.Part](t)(harness.Etcd(t.Context(), dir))
	must(t, etcd.Start())
	t.Cleanup(func() { _ = etcd.Kill() })
	must(t, harness.WaitEtcd(t.Context(), etcd, settle))
	otlp := receive(t)
	c := start(t, harness.Options{
		Binaries:     shipped(t),
		SchedulerEnv: fast(map[string]string{"ETCD_ENDPOINTS": etcd.Addr, "ETCD_PROBE_INTERVAL": "500ms", "ETCD_TIMEOUT": "500ms", "LOG_FORMAT": "json", "LOG_LEVEL": "debug", "OTEL_EXPORTER_OTLP_ENDPOINT": otlp.URL, "SCHEDULER_AUDIT_SINK": "file://" + filepath.Join(dir, "audit.jsonl")}),
		AgentEnv:     map[string]string{"LOG_FORMAT": "json", "LOG_LEVEL": "debug", "PERSYS_RECONCILE_INTERVAL": "1s", "OTEL_EXPORTER_OTLP_ENDPOINT": otlp.URL},
	})
	for range 2 {
		got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true}))
	}
	traced(t, c, otlp)
	tracedByREST(t, c, otlp)
	seen := moved{}
	for i, image := range []string{"sim/run", "sim/run", "sim/slow:3s", "sim/missing", "sim/crash:3", "sim/fail:RUNTIME_ERROR"} {
		apply(t, c, fmt.Sprintf("story-%d", i), container(image))
		seen.all(t, c)
	}
	job := container("sim/exit")
	job.Kind, job.GetContainer().Ports, job.GetContainer().RestartPolicy = "job", nil, ""
	apply(t, c, "story-job", job)
	_ = got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "story-job", settle, func(w *controlv1.WorkloadView) bool {
		seen.all(t, c)
		return w.GetJobResult().GetSucceeded()
	}))
	for id, image := range map[string]string{"story-good": "sim/exit", "story-bad": "sim/crash:3"} {
		cron := container(image)
		cron.Kind, cron.GetContainer().Ports, cron.GetContainer().RestartPolicy = "cron", nil, ""
		cron.Cron, cron.Job = &controlv1.CronSpec{Schedule: "@yearly"}, &controlv1.JobSpec{Retries: new(int32)}
		apply(t, c, id, cron)
		if r := got[harness.CtlResult](t)(c.Ctl(t.Context(), "cron", "trigger", id)); r.Code != 0 {
			t.Fatalf("persysctl cron trigger %s printed %s%s", id, r.Stdout, r.Stderr)
		}
		_ = got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, func(w *controlv1.WorkloadView) bool {
			seen.all(t, c)
			return w.GetTemplate().GetLastSuccess() != nil || w.GetTemplate().GetLastFailure() != nil
		}))
	}
	seen.all(t, c)
	for _, id := range []string{"story-0", "story-1", "story-2"} {
		_ = got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, running))
	}
	_ = got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "story-3", settle, func(w *controlv1.WorkloadView) bool {
		seen.all(t, c)
		return w.GetStatus() == "Failed" || w.GetStatus() == "RetryPending"
	}))
	control := got[controlv1.AgentControlClient](t)(c.Any(t.Context()))
	_ = got[*controlv1.DeleteWorkloadResponse](t)(control.DeleteWorkload(t.Context(), &controlv1.DeleteWorkloadRequest{WorkloadId: "story-1"}))

	must(t, testbed.Poll(t.Context(), settle, "the delete counted", func(context.Context) error {
		if seen.all(t, c); !seen["persys_agent_workload_deleted_total"] {
			return errors.New("no agent's metric has counted the deleted workload yet")
		}
		return nil
	}))

	// Cause three faults, for the metrics that count them. Kill the leader, so that there is an election. Kill
	// an agent, so that the lease of its node expires. Kill etcd, so that the mirror fails and the mode changes
	// from normal to degraded.
	leader := got[int](t)(c.WaitLeader(t.Context(), electionLimit))
	must(t, c.Schedulers[leader].Kill())
	_ = got[int](t)(c.WaitLeader(t.Context(), electionLimit, leader))
	seen.all(t, c)
	must(t, c.Agents[1].Kill())
	must(t, c.WaitNode(t.Context(), c.Agents[1].NodeID, "NotReady", settle))
	must(t, etcd.Kill())
	must(t, testbed.Poll(t.Context(), 2*settle, "every metric moving", func(context.Context) error {
		seen.all(t, c)
		var still []string
		for _, name := range want {
			if !seen[name] && elsewhere[name] == "" {
				still = append(still, name)
			}
		}
		if len(still) > 0 {
			return fmt.Errorf("these metrics never changed: %v", still)
		}
		return nil
	}))
	logsHaveOneForm(t, c)
	exported := got[harness.CtlResult](t)(c.Ctl(t.Context(), "audit", "verify", "--file", filepath.Join(dir, "audit.jsonl")))
	if exported.Code != 0 || !strings.Contains(exported.Stdout, "changes") {
		t.Errorf("persysctl audit verify of the exported logs prints %s%s", exported.Stdout, exported.Stderr)
	}
}
