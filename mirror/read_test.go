package mirror

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/persys/compute/fsm"
)

// existing is the content of an etcd of legacy v1 peers: split records, one workload that has only a whole
// record, and random event ids.
var existing = map[string]string{
	"/nodes/n1": `{"nodeId":"n1","ipAddress":"10.0.0.1","username":"agent","hostname":"n1","osName":"linux","kernelVersion":"unknown","status":"Active",` +
		`"timestamp":"2026-01-02T03:04:05Z","resources":{},"totalCpu":4,"totalMemory":8192,"availableCpu":3.5,"availableMemory":8000,"hypervisor":{"type":"","status":""},` +
		`"containerEngine":{"type":"","status":""},"dockerSwarm":{"active":false,"nodeId":"","role":"","status":""},"lastHeartbeat":"2026-01-02T03:04:05.123456789+01:00",` +
		`"statusUpdatedAt":"0001-01-01T00:00:00Z","labels":{"scheduler_shard":"genesis"},"agentPort":50051,"agentEndpoint":"10.0.0.1:50051","supportedWorkloadTypes":["docker-container"]}`,
	"/nodes/n1/status":          "Active",
	"/workloads-spec/split":     `{"id":"split","name":"split","type":"docker-container","revisionId":"abc","image":"nginx:1","commandList":["a","b"],"envVars":{"K":"v"},"resources":{"cpu_usage":0.5,"memory_usage":256},"desiredState":"Running","createdAt":"0001-01-01T00:00:00Z","ports":["80:80/tcp"]}`,
	"/workloads-status/split":   `{"id":"split","assignedNode":"n0","nodeId":"n0","status":"Running","logs":"much","metadata":{"created_at":"2026-01-02T03:04:05Z","n":1},"retry":{"attempts":1,"maxAttempts":5,"nextRetryAt":"0001-01-01T00:00:00Z"},"statusInfo":{"lastUpdated":"2026-01-02 03:04:05"}}`,
	"/workloads/split":          `{"name":"split","type":"docker-container","image":"nginx:0","resources":{},"status":"Pending","createdAt":"2025-01-01T00:00:00Z","managedVolumes":[{"name":"data","sizeGb":3}],"retry":{"attempts":0,"maxAttempts":0,"nextRetryAt":"0001-01-01T00:00:00Z"},"statusInfo":{"lastUpdated":"0001-01-01T00:00:00Z"}}`,
	"/workloads/whole":          `{"id":"whole","name":"whole","type":"vm","resources":{},"status":"Stopped","createdAt":"2025-01-01T00:00:00","retry":{"attempts":0,"maxAttempts":5,"nextRetryAt":null},"statusInfo":{"lastUpdated":""}}`,
	"/workloads/broken":         `{"id":`,
	"/workloads-status/orphan":  `{"id":"orphan","status":"Deleted","retry":{"attempts":0,"maxAttempts":5,"nextRetryAt":"0001-01-01T00:00:00Z"},"statusInfo":{"lastUpdated":"0001-01-01T00:00:00Z"}}`,
	"/workloads-spec/unplaced":  `{"id":"unplaced","name":"unplaced","resources":{},"createdAt":"0001-01-01T00:00:00Z"}`,
	"/assignments/split":        `{"workloadId":"split","nodeId":"n1","reason":"failover","createdAt":"2026-01-02T03:04:05Z"}`,
	"/assignments/gone":         `{"workloadId":"gone","nodeId":"n1","reason":"","createdAt":"2026-01-02T03:04:05Z"}`,
	"/retries/split":            `{"attempts":2,"maxAttempts":5,"nextRetryAt":"2026-01-02T03:05:05Z"}`,
	"/events/4f6ab0":            `{"id":"4f6ab0","type":"NodeLost","nodeId":"n1","timestamp":"2026-01-02T03:04:05Z"}`,
	"/drifts/n1/split/orphan":   `{}`,
	"/skydns/local/persys/x":    `{"host":"10.0.0.1"}`,
	"/elsewhere/workloads/none": `{}`,
}

func TestReadLegacyEtcd(t *testing.T) {
	for _, prefix := range []string{"", "/under/a/prefix"} {
		t.Run("prefix "+prefix, func(t *testing.T) {
			e := startEtcd(t, currentEtcd(t))
			for k, v := range existing {
				e.put(prefix+k, v)
			}
			got, err := Read(t.Context(), e.client, prefix)
			if err != nil {
				t.Fatal(err)
			}
			if got.Cluster != "" || got.Complete || got.Index != 0 {
				t.Errorf("Read of records of legacy v1 peers returned cluster %q and complete %v, want no cluster and false", got.Cluster, got.Complete)
			}
			if len(got.Nodes) != 1 || got.Nodes[0].Status != "Ready" || got.Nodes[0].LastHeartbeat.Nanosecond() != 123456789 {
				t.Errorf("Read returned the nodes %+v, want one that is Ready, with its last heartbeat", got.Nodes)
			}
			var ids []string
			for _, w := range got.Workloads {
				ids = append(ids, w.ID)
			}
			if want := []string{"split", "unplaced", "whole"}; !slices.Equal(ids, want) {
				t.Fatalf("Read returned workloads %v, want %v", ids, want)
			}
			split, whole := got.Workloads[0], got.Workloads[2]
			if split.Image != "nginx:1" || split.Status != "Running" || len(split.ManagedVolumes) != 1 {
				t.Errorf("in the workload that Read returned, fields of the split record must replace those of the whole record, but it is %+v", split)
			}
			if split.AssignedNode != "n1" || split.Retry.Attempts != 2 {
				t.Errorf("the workload that Read returned lacks its assignment or retry: %+v", split)
			}
			if want := time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC); !split.CreatedAt.Equal(want) || !whole.CreatedAt.Equal(want) {
				t.Errorf("Read returned %v and %v as the times of creation, want 2025-01-01 for both", split.CreatedAt, whole.CreatedAt)
			}
			if len(got.Assignments) != 1 || got.Assignments[0].Reason != "failover" {
				t.Errorf("Read returned the assignments %+v, want one with the reason failover", got.Assignments)
			}
			if got.Events != 1 || got.Drifts != 1 {
				t.Errorf("Read counted %d events and %d drifts, want one of each", got.Events, got.Drifts)
			}
			if len(got.Problems) != 2 || got.Problems[0].Key != prefix+"/workloads-status/orphan" || got.Problems[1].Key != prefix+"/workloads/broken" {
				t.Errorf("Read returned problems %+v, want those of workloads orphan and broken", got.Problems)
			}
		})
	}
}

// If the records that a mirror wrote are read back and imported, the new state has the same
// records.
func TestReadOwnMirror(t *testing.T) {
	for _, layout := range []Layout{LayoutWhole, LayoutBoth} {
		t.Run(string(layout), func(t *testing.T) {
			e := startEtcd(t, currentEtcd(t))
			c := newCluster(t, "c1")
			c.do(register("a"), register("b"), put("web"), withFiles(put("db"), "a"))
			c.do(c.assign("web", "a"))
			placed := put("placed")
			placed.GetPutWorkloads().Workloads[0].Namespace = "n1"
			c.do(putNamespace("n1", 100), putNamespace("n2", 0), putNamespace("default", 500), placed)
			c.do(c.says("web", "Failed", "boom"))
			c.do(c.retry("web", 2, time.Minute, false))
			o := quick
			o.Layout = layout
			r := c.start(e.client, o)
			r.awaitEqual(e)
			got, err := Read(t.Context(), e.client, "")
			if err != nil {
				t.Fatal(err)
			}
			v := c.st.View()
			if got.Cluster != "c1" || !got.Complete || got.Index != v.Info().Index || len(got.Problems) > 0 {
				t.Errorf("Read returned cluster %q, want c1; complete %v, want true; index %d, want %d; and the problems %v, want none", got.Cluster, got.Complete, got.Index, v.Info().Index, got.Problems)
			}
			back, problems, err := got.State(here, nil)
			if err != nil || len(problems) > 0 {
				t.Fatal(err, problems)
			}
			sameRecords(t, back, c.st.State(), r.Projection())
			if len(back.NamespacesOf("ada")) != 3 || back.UseOf("n1").Workloads != 1 {
				t.Errorf("after the import user ada may act in %v, want three namespaces; the use of node n1 is %+v, want one workload", back.NamespacesOf("ada"), back.UseOf("n1"))
			}
			w, _ := v.Workload("web")
			if i := slices.IndexFunc(got.Workloads, func(w Workload) bool { return w.ID == "web" }); i < 0 ||
				string(got.Workloads[i].Extension.Spec) != string(w.Spec) || got.Workloads[i].Extension.Content != w.Content {
				t.Errorf("after the import the workload has another specification than was stored")
			}
		})
	}
}

// A drift record is written from the newest event with its key, and is removed with that event.
func TestDriftRecordComesFromTheNewestEvent(t *testing.T) {
	p := projection(LayoutWhole)
	event := func(seq uint64, workload, status string) *fsm.Event {
		return &fsm.Event{
			Seq: seq, At: noon + int64(seq), Type: fsm.EventDriftDetected, Node: "a", Workload: workload, Reason: "state_mismatch",
			Details: []fsm.Label{{Key: "agent_status", Value: status}},
		}
	}
	v := history{list: []*fsm.Event{event(1, "old", "x"), event(2, "web", "first"), event(3, "web", "second")}, now: noon}
	for _, tt := range []struct {
		keep uint64
		want string
	}{
		{3, "/drifts/a/old/state_mismatch /drifts/a/web/state_mismatch"},
		{2, "/drifts/a/web/state_mismatch"},
	} {
		p.maxEvents = tt.keep
		var keys []string
		for _, kv := range p.drifts(v) {
			keys = append(keys, kv.Key)
			if strings.Contains(kv.Key, "web") && !strings.Contains(string(kv.Value), "second") {
				t.Errorf("the drift record must come from the newest event with its key, but is %s", kv.Value)
			}
		}
		if got := strings.Join(keys, " "); got != tt.want {
			t.Errorf("if %d events are kept, the drift records are %s, want %s", tt.keep, got, tt.want)
		}
	}
}

// The record of an open drift shows its current values, even without an event. The record of a resolved drift
// stays until its event expires.
func TestOpenDriftsStay(t *testing.T) {
	p := projection(LayoutWhole)
	ended := &fsm.Event{
		Seq: 9, At: noon + 9, Type: fsm.EventDriftResolved, Node: "a", Workload: "web", Reason: fsm.DriftMissing,
		Details: []fsm.Label{{Key: "action", Value: fsm.ActionReconcile}, {Key: "detected_at", Value: strconv.FormatInt(noon, 10)}, {Key: "resolved", Value: "true"}},
	}
	begun := &fsm.Event{
		Seq: 10, At: noon, Type: fsm.EventDriftDetected, Node: "a", Workload: "left", Reason: fsm.DriftOrphan,
		Details: []fsm.Label{{Key: "action", Value: fsm.ActionInvestigate}, {Key: "agent_status", Value: "Running"}},
	}
	v := history{list: []*fsm.Event{ended, begun}, now: noon, open: []*fsm.Drift{
		{Node: "a", Workload: "ghost", Type: fsm.DriftOrphan, AgentStatus: "Running", Action: fsm.ActionInvestigate, DetectedAt: noon},
		{Node: "a", Workload: "left", Type: fsm.DriftOrphan, AgentStatus: "Failed", Action: fsm.ActionDeleteOrphan, DetectedAt: noon},
	}}
	var got []string
	for _, kv := range p.drifts(v) {
		got = append(got, kv.Key+" "+string(kv.Value))
	}
	at := time.Unix(0, noon).UTC().Format(time.RFC3339Nano)
	want := []string{
		`/drifts/a/ghost/orphan_on_agent {"nodeId":"a","workloadId":"ghost","driftType":"orphan_on_agent","detectedAt":"` + at + `","agentStatus":"Running","action":"operator_investigation","resolved":false}`,
		`/drifts/a/left/orphan_on_agent {"nodeId":"a","workloadId":"left","driftType":"orphan_on_agent","detectedAt":"` + at + `","agentStatus":"Failed","action":"delete_orphan_on_agent","resolved":false}`,
		`/drifts/a/web/missing_on_agent {"nodeId":"a","workloadId":"web","driftType":"missing_on_agent","detectedAt":"` + at + `","action":"retry_and_reconcile","resolved":true}`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("the drift records are\n     %s\nwant %s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// history is a View for tests that has only events and drifts.
type history struct {
	fsm.View
	list []*fsm.Event
	now  int64
	open []*fsm.Drift
}

func (h history) Info() fsm.Info { return fsm.Info{EventSeq: uint64(len(h.list)), Clock: h.now} }

func (h history) Events(after uint64, fn func(*fsm.Event) bool) {
	for _, e := range h.list {
		if e.Seq > after && !fn(e) {
			return
		}
	}
}

func (h history) Drifts(_ string, fn func(*fsm.Drift) bool) {
	for _, d := range h.open {
		if !fn(d) {
			return
		}
	}
}
