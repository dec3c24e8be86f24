package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
)

// TestRecoveryFromAndIntoEtcd: all schedulers are lost with their disks, but etcd is not. A new scheduler
// shows the state that is in etcd and imports it, and running workloads are not touched. Then etcd is
// wiped: the scheduler shows the difference between its state and etcd, and writes its state to etcd.
func TestRecoveryFromAndIntoEtcd(t *testing.T) {
	etcd := etcdPart(t)
	kv := etcdClient(t, etcd)
	c := start(t, harness.Options{Binaries: raced(t), Schedulers: 1, SchedulerEnv: mirrored(etcd, nil)})
	ids := startAndKeep(t, c)
	ctl(t, c, "stop", ids[0], "--wait")
	equals(t, c, kv, "at first")
	st := got[*clusterv1.StatusResponse](t)(c.Status(t.Context(), 0))
	old := st.GetIncarnation()
	if show := ctl(t, c, "recovery", "show"); !strings.Contains(show, "healthy") || !strings.Contains(show, "4 workloads, 2 nodes") {
		t.Errorf("in a healthy cluster persysctl recovery show must print the state of etcd, but prints:\n%s", show)
	}
	if res := got[harness.CtlResult](t)(c.Ctl(t.Context(), "recovery", "import", "--yes")); res.Code == 0 || !strings.Contains(res.Stderr, "without workloads") {
		t.Errorf("persysctl recovery import into a cluster with workloads ended with exit code %d, want a refusal\n%s", res.Code, res.Stderr)
	}

	s := c.Schedulers[0]
	must(t, s.Kill())
	must(t, s.Wipe())
	s.Env = append(s.Env, "SCHEDULER_CLUSTER_ID="+st.GetClusterId())
	must(t, s.Start())
	must(t, c.WaitReady(t.Context(), settle))
	waitMode(t, c, "recovery")
	if show := ctl(t, c, "recovery", "show"); !strings.Contains(show, "foreign") || !strings.Contains(show, "0 workloads") {
		t.Errorf("in a cluster without workloads persysctl recovery show must call etcd foreign, but prints:\n%s", show)
	}
	resp := got[*controlv1.ApplyWorkloadResponse](t)(got[controlv1.AgentControlClient](t)(c.Control(0)).ApplyWorkload(t.Context(),
		&controlv1.ApplyWorkloadRequest{WorkloadId: "frozen", Spec: container("persys/any:1")}))
	if resp.GetSuccess() || !strings.Contains(resp.GetErrorMessage(), "recovery") {
		t.Errorf("an apply in mode recovery returned %v, want a refusal that names the mode", resp)
	}
	before := got[map[string]string](t)(allKeys(t.Context(), kv))
	preview := ctl(t, c, "recovery", "import", "--dry-run")
	if !strings.Contains(preview, "4 workloads and ") || !strings.Contains(preview, "would be imported: kept-0, kept-1") {
		t.Errorf("the preview:\n%s", preview)
	}
	if after := got[map[string]string](t)(allKeys(t.Context(), kv)); len(after) != len(before) {
		t.Errorf("a preview must not change etcd, but it had %d keys and has %d", len(before), len(after))
	}
	if out := ctl(t, c, "recovery", "import", "--yes"); !strings.Contains(out, "mode is normal") {
		t.Errorf("persysctl recovery import prints:\n%s", out)
	}
	for _, a := range c.Agents {
		must(t, c.WaitNode(t.Context(), a.NodeID, "Ready", settle))
	}
	for _, id := range ids[1:] {
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, running))
	}
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), ids[0], settle, func(w *controlv1.WorkloadView) bool { return w.GetStatus() == "Stopped" }))
	apply(t, c, "new", container("persys/any:1"))
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "new", settle, running))
	refusesEarlierEpoch(t, agentWith(t, c, "new"), st.GetClusterId(), old)
	equals(t, c, kv, "after the import")

	must(t, etcd.Kill())
	waitMode(t, c, "degraded")
	must(t, os.RemoveAll(filepath.Join(filepath.Dir(etcd.Log), "etcd")))
	must(t, etcd.Start())
	waitMode(t, c, "recovery")
	if show := ctl(t, c, "recovery", "show"); !strings.Contains(show, "emptied") || !strings.Contains(show, "5 workloads") {
		t.Errorf("after etcd was emptied persysctl recovery show must say so, but prints:\n%s", show)
	}
	if out := ctl(t, c, "recovery", "restore", "--dry-run"); !strings.Contains(out, "0 changed, 0 removed; 0 equal") || !strings.Contains(out, "create /workloads/new") {
		t.Errorf("the preview:\n%s", out)
	}
	if left := got[map[string]string](t)(allKeys(t.Context(), kv)); len(left) > 0 {
		t.Errorf("a preview wrote %d keys", len(left))
	}
	if out := ctl(t, c, "recovery", "restore", "--yes"); !strings.Contains(out, "mode is normal") {
		t.Errorf("persysctl recovery restore prints:\n%s", out)
	}
	equals(t, c, kv, "after the restore")
	untouched(t, c, append(ids[1:], "new")...)
}

// legacyEtcd writes the records of the legacy v1 implementation into an etcd, as
// contract/state-etcd.md lists them, in both layouts.
func legacyEtcd(ctx context.Context, kv *clientv3.Client, endpoint string) error {
	const unset = `"0001-01-01T00:00:00Z"`
	for k, v := range map[string]string{
		"/nodes/node-a": `{"nodeId":"node-a","ipAddress":"127.0.0.1","username":"agent","hostname":"node-a","osName":"linux","kernelVersion":"unknown","status":"Active",
			"timestamp":"2026-01-02T03:04:05Z","resources":{},"totalCpu":16,"totalMemory":65536,"availableCpu":16,"availableMemory":65536,"hypervisor":{"type":"","status":""},
			"containerEngine":{"type":"","status":""},"dockerSwarm":{"active":false,"nodeId":"","role":"","status":""},"lastHeartbeat":"2026-01-02T03:04:05.123456789Z",
			"statusUpdatedBy":"register","statusUpdatedAt":"2026-01-02T03:04:05Z","labels":{"scheduler_shard":"genesis","zone":"x"},"agentPort":50051,"agentEndpoint":"` + endpoint + `","supportedWorkloadTypes":["container","compose"]}`,
		"/nodes/node-a/status": "Active",
		"/workloads/former": `{"id":"former","name":"former","type":"container","revisionId":"1","assignedNode":"node-a","nodeId":"node-a","image":"persys/any:1","commandList":["sleep","1"],
			"envVars":{"PASSWORD":"hunter2"},"resources":{"cpu_usage":0.1,"memory_usage":64},"status":"Running","desiredState":"Running","createdAt":"2026-01-02T03:04:05Z","ports":["18080:80/tcp"],
			"restartPolicy":"always","retry":{"attempts":0,"maxAttempts":5,"nextRetryAt":` + unset + `},"statusInfo":{"actualState":"Running","lastUpdated":"2026-01-02T03:04:05Z"}}`,
		"/workloads-spec/later":                        `{"id":"later","name":"later","type":"container","revisionId":"2","image":"persys/any:2","resources":{"memory_usage":64},"desiredState":"Stopped","createdAt":` + unset + `}`,
		"/workloads-status/later":                      `{"id":"later","status":"Stopped","metadata":{"created_at":"2026-01-02T03:04:05Z","last_action":"Created","team":"blue"},"retry":{"attempts":0,"maxAttempts":5,"nextRetryAt":` + unset + `},"statusInfo":{"lastUpdated":` + unset + `}}`,
		"/workloads-spec/odd":                          `{"id":"odd","name":"odd","type":"wasm","resources":{},"desiredState":"Running","createdAt":` + unset + `}`,
		"/assignments/former":                          `{"workloadId":"former","nodeId":"node-a","reason":"scheduled","createdAt":"2026-01-02T03:04:05Z"}`,
		"/retries/former":                              `{"attempts":0,"maxAttempts":5,"nextRetryAt":` + unset + `}`,
		"/events/5b0e0f0e-0000-4000-8000-000000000000": `{"id":"5b0e0f0e-0000-4000-8000-000000000000","type":"WorkloadScheduled","workloadId":"former","timestamp":"2026-01-02T03:04:05Z"}`,
		"/drifts/node-a/former/state_mismatch":         `{"nodeId":"node-a","workloadId":"former","driftType":"state_mismatch","detectedAt":"2026-01-02T03:04:05Z","resolved":true}`,
		"/somewhere/else":                              "stays",
	} {
		if _, err := kv.Put(ctx, k, v); err != nil {
			return err
		}
	}
	return nil
}

// TestImportFromLegacyEtcd: a new cluster imports the state of the legacy v1 implementation from etcd. It
// writes nothing to this etcd until an operator asks for the import. Records that cannot be imported stop the
// import. Secrets are sealed, and afterwards etcd is a mirror.
func TestImportFromLegacyEtcd(t *testing.T) {
	etcd := etcdPart(t)
	kv := etcdClient(t, etcd)
	must(t, legacyEtcd(t.Context(), kv, "127.0.0.1:1"))
	before := got[map[string]string](t)(allKeys(t.Context(), kv))
	c := start(t, harness.Options{Binaries: raced(t), Schedulers: 1, TLS: true, SchedulerEnv: mirrored(etcd, nil)})
	waitMode(t, c, "recovery")
	if show := ctl(t, c, "recovery", "show"); !strings.Contains(show, "3 workloads, 1 node, 1 event, 1 drift") || !strings.Contains(show, "wasm") {
		t.Errorf("persysctl recovery show prints:\n%s", show)
	}
	res := got[harness.CtlResult](t)(c.Ctl(t.Context(), "recovery", "import", "--yes"))
	if res.Code == 0 || !strings.Contains(res.Stderr, "/workloads/odd") || !strings.Contains(res.Stderr, "--skip-unreadable") {
		t.Errorf("persysctl recovery import with an unreadable record ended with exit %d, want an error that names the record and --skip-unreadable\n%s", res.Code, res.Stderr)
	}
	after := got[map[string]string](t)(allKeys(t.Context(), kv))
	for k, v := range before {
		if after[k] != v {
			t.Errorf("etcd key %s was changed before the import: %q", k, after[k])
		}
	}
	if len(after) != len(before) {
		t.Errorf("etcd had %d keys before the import was refused, and has %d", len(before), len(after))
	}
	if out := ctl(t, c, "recovery", "import", "--yes", "--skip-unreadable"); !strings.Contains(out, "2 workloads and 1 node were imported: former, later") || !strings.Contains(out, "mode is normal") {
		t.Errorf("persysctl recovery import prints:\n%s", out)
	}
	control := got[controlv1.AgentControlClient](t)(c.Control(0))
	w := got[*controlv1.GetWorkloadResponse](t)(control.GetWorkload(t.Context(), &controlv1.GetWorkloadRequest{WorkloadId: "former"})).GetWorkload()
	if w.GetAssignedNodeId() != "node-a" || w.GetDesiredState() != "Running" {
		t.Errorf("the imported workload former is %v", w)
	}
	equals(t, c, kv, "after the import")
	for k, v := range got[map[string]string](t)(allKeys(t.Context(), kv)) {
		if strings.Contains(v, "hunter2") {
			t.Errorf("the mirror has a secret in plain text in key %s", k)
		}
	}
	if v := got[map[string]string](t)(allKeys(t.Context(), kv))["/somewhere/else"]; v != "stays" {
		t.Errorf("the key of another program has changed to %q", v)
	}
}
