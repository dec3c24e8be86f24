package mirror

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/quota"
)

var update = flag.Bool("update", false, "write the golden files")

var noon = time.Date(2026, 1, 2, 12, 0, 0, 120_000_000, time.UTC).UnixNano()

func projection(layout Layout) *Projection {
	return &Projection{
		layout: layout, domain: "persys.local", maxEvents: 100, maxAge: time.Hour,
		describe: func(w *fsm.Workload) Fields {
			switch w.Demand.Type {
			case "vm":
				return Fields{
					Metadata: map[string]string{"app": "db"},
					VM: &VM{
						Name: w.ID, VCPUs: 2, MemoryMB: 2048, Disks: []VMDisk{{Path: "/d.qcow2", Device: "vda", Format: "qcow2", SizeGB: 20, Type: "disk", Boot: true}},
						Networks:        []VMNetwork{{Network: "default", MACAddress: "52:54:00:00:00:01", IPAddress: "10.0.0.5"}},
						CloudInitConfig: &CloudInit{UserData: "sealed:v1:AAAA"},
					},
					ManagedVolumes: []ManagedVolume{{Name: "data", Driver: "local", SizeGB: 10, MountPath: "/data", RetainPolicy: "Retain"}},
				}
			case "compose":
				return Fields{ComposeYAML: "sealed:v1:BBBB", ProjectName: w.ID, GitRepo: "https://git.example/x", GitBranch: "main", GitToken: "sealed:v1:CCCC"}
			}
			return Fields{
				Image: "registry.example/web:1", Command: []string{"serve", "--greeting", "<hi & welcome>"}, EnvVars: map[string]string{"B": "sealed:v1:DDDD", "A": "plain"},
				Ports: []string{"8080:80/tcp"}, Volumes: []string{"/srv:/data:ro"}, Network: "bridge", RestartPolicy: "always", LocalPath: "/srv",
			}
		},
	}
}

// Each record that the mirror writes, and that the contract documents, equals its golden file byte
// by byte.
func TestRecordsEqualTheirGoldenFiles(t *testing.T) {
	running := &fsm.Workload{
		ID: "web-1", Spec: []byte("sealed bytes"), Content: "c1:" + strings.Repeat("0123456789abcdef", 4), CallerRevision: "r42", Restarts: 2,
		Demand: &fsm.Demand{
			Type: "container", CPU: 250, Memory: 128, Disk: 1, Pool: "fast", StorageDrivers: []string{"local"}, Ports: []fsm.HostPort{{Port: 8080, Protocol: "tcp"}},
			Labels: []fsm.Label{{Key: "zone", Value: "a"}}, Constraints: []fsm.Constraint{{Key: "disk", Op: "in", Values: []string{"ssd", "nvme"}}},
			Tolerations: []fsm.Taint{{Key: "dedicated", Value: "web", Effect: "NoSchedule"}}, Group: "front", Exclusive: true, OnLostLease: "keep", Priority: 7,
		},
		Desired: fsm.DesiredRunning, Status: fsm.StatusRunning, Node: "node-a", PreviousNode: "node-b",
		Actual: &fsm.Observation{State: fsm.ActualRunning}, Retry: fsm.Retry{MaxAttempts: 5},
		CreatedAt: noon, UpdatedAt: noon + 1, AssignedAt: noon + 2,
	}
	pending := &fsm.Workload{
		ID: "new", Content: "c1:aa", Demand: &fsm.Demand{Type: "compose"}, Actual: &fsm.Observation{}, Desired: fsm.DesiredRunning, Status: fsm.StatusPending,
		Reason: fsm.Reason{Code: "Unplaced", Message: "3 nodes: no cpu", At: noon}, Retry: fsm.Retry{MaxAttempts: 5}, CreatedAt: noon, UpdatedAt: noon,
	}
	failed := &fsm.Workload{
		ID: "db", Content: "c1:bb", Demand: &fsm.Demand{Type: "vm", CPU: 2000, Memory: 2048, Disk: 20}, Desired: fsm.DesiredRunning, Status: fsm.StatusRetryPending, Node: "node-a",
		Reason: fsm.Reason{Code: "BackoffWait", Message: "attempt 2 of 5", At: noon, Retryable: true},
		Actual: &fsm.Observation{State: fsm.ActualFailed, Code: "STORAGE_FULL", Message: "no space left"},
		Retry:  fsm.Retry{Attempts: 2, MaxAttempts: 5, NextAt: noon + int64(time.Minute), FirstFailureAt: noon - 5}, CreatedAt: noon, UpdatedAt: noon, AssignedAt: noon,
	}
	node := &fsm.Node{
		ID: "node-a", Up: true, Cordoned: true, UpdatedBy: "register", UpdatedAt: noon, LastHeartbeat: noon,
		Facts: fsm.NodeFacts{
			Endpoint: "10.0.0.7:50051", CPU: 4000, Memory: 8192, Pools: []fsm.Pool{{Name: "main", Type: "local", Total: 100}}, Types: []string{"container", "vm"},
			StorageDrivers: []string{"local", "nfs"}, Labels: []fsm.Label{{Key: "zone", Value: "a"}}, Taints: []fsm.Taint{{Key: "gpu", Effect: "PreferNoSchedule"}},
			EngineID: "e1", AgentVersion: "1.2.3", InstanceID: "i1", Protocol: 1, SelfFencing: true, Timestamp: "2026-01-02T12:00:00Z", LeaseSeconds: 10,
		},
	}
	lost := &fsm.Node{
		ID: "node-b", Reason: "lease ended", UpdatedBy: "monitor", UpdatedAt: noon, Facts: fsm.NodeFacts{Endpoint: "[fd00::1]:50051", CPU: 1500, LeaseSeconds: 60},
	}
	whole, both := projection(LayoutWhole), projection(LayoutBoth)
	for _, tt := range []struct {
		name string
		kvs  []KV
	}{
		{"workload-running", both.Workload(running)},
		{"workload-pending", whole.Workload(pending)},
		{"workload-retrying", whole.Workload(failed)},
		{"workload-gone", both.Gone("web-1")},
		{"node-ready", whole.Node(node, fsm.Alloc{CPU: 500, Memory: 192}, "default")},
		{"node-lost", whole.Node(lost, fsm.Alloc{CPU: 2000}, "")},
		{"namespace", []KV{
			whole.Namespace("shop", &fsm.Namespace{
				Name: "shop", Description: "a team", Quota: quota.Amounts{CPU: 4000, Memory: 8192, Workloads: 20}, Users: []string{"ada", "bob"},
				CreatedAt: noon, UpdatedAt: noon + 1, UpdatedBy: "persys://c1/user/admin", ModifyIndex: 7,
			}),
			whole.Namespace("gone", nil),
			whole.Namespace("default", &fsm.Namespace{Name: "default"}),
		}},
		{"node-gone", whole.NodeGone("node-a")},
		{"event", []KV{
			whole.Event(&fsm.Event{
				Seq: 12, At: noon, Type: fsm.EventRescheduled, Workload: "web-1", Node: "node-a", Message: "node-a fits", By: "leader",
				Details: []fsm.Label{{Key: "previous_node", Value: "node-b"}},
			}),
			whole.Event(&fsm.Event{Seq: 13, At: noon, Type: fsm.EventNodeLost, Node: "node-b", Reason: "lease ended"}),
		}},
		{"drift", []KV{
			whole.Drift(&fsm.Event{Seq: 14, At: noon, Type: fsm.EventDriftDetected, Workload: "web-1", Node: "node-a", Reason: "revision_mismatch", Details: []fsm.Label{
				{Key: "action", Value: "reapply_scheduler_revision"}, {Key: "agent_status", Value: "c1-11"}, {Key: "resolved", Value: "true"}, {Key: "scheduler_status", Value: "c1-22"},
			}}),
			whole.Drift(&fsm.Event{Seq: 15, At: noon, Node: "rack/7", Reason: "orphan_on_agent", Details: []fsm.Label{{Key: "last_error", Value: "timeout"}}}),
		}},
		{"cursor", []KV{{keyspace("/east").cursor("c1"), encode(&cursor{
			Incarnation: 1000, Term: 3, Index: 120, Digest: digestText(255), Upto: 130, Complete: true, Format: format, Layout: LayoutWhole, Writer: "0011223344556677", Seq: 9,
		})}, {keyspace("/east").owner(), []byte(ownerOf("c1").raw)}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var b bytes.Buffer
			for _, kv := range tt.kvs {
				b.WriteString(kv.Key + "\n")
				switch {
				case kv.Value == nil:
					b.WriteString("  (absent)\n")
				case json.Valid(kv.Value) && kv.Value[0] == '{':
					var pretty bytes.Buffer
					if err := json.Indent(&pretty, kv.Value, "", "  "); err != nil {
						t.Fatal(err)
					}
					b.WriteString(pretty.String() + "\n")
				default:
					b.WriteString(string(kv.Value) + "\n")
				}
			}
			path := filepath.Join("testdata", tt.name+".golden")
			if *update {
				if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(b.Bytes(), want) {
				t.Errorf("the records differ from the golden file %s; they are\n%s", path, b.String())
			}
		})
	}
}

// The JSON of a record has exactly the keys of the contract, in the order of the contract, and the
// key "persys".
func TestOnlyDocumentedKeys(t *testing.T) {
	for _, tt := range []struct {
		shape any
		want  string
	}{
		{Retry{}, "attempts maxAttempts nextRetryAt"},
		{Assignment{}, "workloadId nodeId reason createdAt"},
		{Event{}, "id type timestamp"},
		{Drift{}, "nodeId workloadId driftType detectedAt resolved"},
		{Workload{}, "name type resources status createdAt retry statusInfo"},
		{WorkloadSpec{}, "resources createdAt"},
		{WorkloadStatus{}, "retry statusInfo"},
		{Node{}, "nodeId ipAddress username hostname osName kernelVersion status timestamp resources totalCpu totalMemory availableCpu availableMemory " +
			"hypervisor containerEngine dockerSwarm lastHeartbeat statusUpdatedAt agentPort"},
	} {
		t.Run(fmt.Sprintf("%T", tt.shape), func(t *testing.T) {
			dec := json.NewDecoder(bytes.NewReader(encode(tt.shape)))
			var keys []string
			for depth := 0; ; {
				tok, err := dec.Token()
				if err != nil {
					break
				}
				switch d, ok := tok.(json.Delim); {
				case ok && (d == '{' || d == '['):
					depth++
				case ok:
					depth--
				case depth == 1:
					keys = append(keys, tok.(string))
					var skip json.RawMessage
					if err := dec.Decode(&skip); err != nil {
						t.Fatal(err)
					}
				}
			}
			if got := strings.Join(keys, " "); got != tt.want {
				t.Errorf("the JSON of an empty record has the keys %s,\nwant %s", got, tt.want)
			}
		})
	}
}

func TestTimesOfRecords(t *testing.T) {
	want := time.Date(2026, 1, 2, 3, 4, 5, 600_000_000, time.UTC)
	for _, tt := range []struct {
		text string
		want time.Time
	}{
		{`"2026-01-02T03:04:05.6Z"`, want},
		{`"2026-01-02T03:04:05.600000000Z"`, want},
		{`"2026-01-02T05:04:05.6+02:00"`, want},
		{`"2026-01-02T03:04:05.6"`, want},
		{`"2026-01-02 03:04:05.6"`, want},
		{`"2026-01-02 03:04:05.6+00:00"`, want},
		{`"2026-01-02 03:04:05.6 +0000 UTC"`, want},
		{`"0001-01-01T00:00:00Z"`, time.Time{}},
		{`""`, time.Time{}},
		{`null`, time.Time{}},
	} {
		t.Run(tt.text, func(t *testing.T) {
			var got Time
			if err := json.Unmarshal([]byte(tt.text), &got); err != nil || !got.Equal(tt.want) {
				t.Errorf("the text of a time was read as %v with error %v; want %v", got, err, tt.want)
			}
		})
	}
	for _, bad := range []string{`"yesterday"`, `5`, `"2026-13-01T00:00:00Z"`} {
		var got Time
		if err := json.Unmarshal([]byte(bad), &got); err == nil {
			t.Errorf("the invalid text of a time %s must be refused, but was read as %v", bad, got)
		}
	}
}

// The keys of every directory of the mirror are sorted; the comparison with etcd requires it.
func TestSectionsAreSorted(t *testing.T) {
	c := newCluster(t, "c1")
	for _, id := range []string{"a", "a-b", "a.c", "a0", "B", "z"} {
		c.do(register(id), put(id))
		c.do(c.assign(id, id))
	}
	for _, layout := range []Layout{LayoutWhole, LayoutBoth} {
		for _, s := range projection(layout).sections(c.st.View()) {
			var keys []string
			for kv := range s.all {
				keys = append(keys, kv.Key)
				if !strings.HasPrefix(kv.Key, s.dir) {
					t.Errorf("the key %s must not be in the section of directory %s", kv.Key, s.dir)
				}
			}
			if !slices.IsSorted(keys) {
				t.Errorf("the keys of %s are not sorted: %v", s.dir, keys)
			}
		}
	}
}

// The mirror keeps only the newest events, limited by number and by age.
func TestRetentionFloor(t *testing.T) {
	c := newCluster(t, "c1") // there is one event, then one per node; the clock advances 1 s per event
	for i := range 9 {
		c.do(register(fmt.Sprintf("n%d", i)))
	}
	last := c.st.View().Info().EventSeq
	for _, tt := range []struct {
		name string
		max  uint64
		age  time.Duration
		want uint64
	}{
		{"all events are kept if none exceeds a limit", 100, time.Hour, 1},
		{"all events are kept if the limit equals their number", last, time.Hour, 1},
		{"the oldest event is dropped if the limit is one below their number", last - 1, time.Hour, 2},
		{"only the newest event is kept with a limit of one event", 1, time.Hour, last},
		{"only events of the last five seconds are kept with this maximum age", 100, 5 * time.Second, last - 4},
		{"the stricter of the limits of number and age applies", 3, 5 * time.Second, last - 2},
		{"only the newest event is kept with a maximum age of zero", 100, 0, last},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := projection(LayoutWhole)
			p.maxEvents, p.maxAge = tt.max, tt.age
			seq, key := p.floor(c.st.View())
			if seq != tt.want || !strings.HasSuffix(key, fmt.Sprintf("-%020d", tt.want)) {
				t.Errorf("the oldest event that must be kept has the number %d (key %s), want %d", seq, key, tt.want)
			}
		})
	}
}

// The workload record lists the tasks of the agent that were read when an order timed out.
func TestLastActionsAreInTheRecord(t *testing.T) {
	w := fsm.Bare("web")
	w.Actions = []fsm.AgentAction{{TaskID: "t1", Workload: "web", Type: "apply_workload", Status: "failed", Error: "boom", CreatedAt: 1_700_000_000}}
	want := `"last_actions":[{"taskId":"t1","actionType":"apply_workload","status":"failed","error":"boom","createdAt":"2023-11-14T22:13:20Z"}]`
	if got := string(encode(metadata(w, nil))); !strings.Contains(got, want) {
		t.Errorf("the workload record is %s, want the tasks %s in it", got, want)
	}
}

// The workload record names the node that accepted the order, or the error with which the order could not be
// delivered.
func TestRecordShowsTheResultOfTheOrder(t *testing.T) {
	for _, c := range []struct {
		fact string
		w    fsm.Workload
		want map[string]any
	}{
		{"the node has not accepted the order yet", fsm.Workload{Node: "node-a"}, nil},
		{"the node has accepted the order", fsm.Workload{Node: "node-a", Acknowledged: true}, map[string]any{"admitted_on_node": "node-a"}},
		{"the order could not be dispatched", fsm.Workload{Node: "node-a", Reason: fsm.Reason{Code: fsm.CodeDispatchFailed, Message: "connection refused"}},
			map[string]any{"dispatch_failed": "connection refused"}},
	} {
		c.w.Demand, c.w.Actual = &fsm.Demand{}, &fsm.Observation{}
		m := metadata(&c.w, nil)
		for _, key := range []string{"admitted_on_node", "dispatch_failed"} {
			if got := m[key]; got != c.want[key] {
				t.Errorf("if %s, the metadata key %s of the workload record is %v, want %v", c.fact, key, got, c.want[key])
			}
		}
	}
}
