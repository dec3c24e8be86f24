package mirror

import (
	"errors"
	"slices"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// sameRecords requires that the mirror would write equal records for two states, except events and drifts.
func sameRecords(t *testing.T, got, want fsm.State, p *Projection) {
	t.Helper()
	records := func(s fsm.State) map[string]string {
		m := map[string]string{}
		for kv := range p.All(s) {
			if !strings.HasPrefix(kv.Key, dirEvents) && !strings.HasPrefix(kv.Key, dirDrifts) {
				m[kv.Key] = string(kv.Value)
			}
		}
		return m
	}
	g, w := records(got), records(want)
	for k, v := range w {
		if g[k] != v {
			t.Errorf("the mirror would write record %s for the imported state as\n     %s\nwant %s", k, g[k], v)
		}
	}
	for k := range g {
		if _, ok := w[k]; !ok {
			t.Errorf("the mirror would write the additional record %s for the imported state", k)
		}
	}
}

// here is the fsm.Info of the cluster into which these tests import.
var here = fsm.Info{ClusterID: "c2", Shard: "default", FeatureLevel: fsm.FeatureLevel, Clock: noon}

// plain is a Translate for tests that converts every workload except "whole".
func plain(w *Workload) (*commandv1.WorkloadPut, error) {
	if w.ID == "whole" {
		return nil, errors.New("vm: is missing")
	}
	return &commandv1.WorkloadPut{Id: w.ID, Content: "c1:" + w.Image, CallerRevision: w.RevisionID, Demand: &commandv1.Demand{Type: "container"}}, nil
}

// The import of an etcd that legacy v1 schedulers wrote must give a state in which every workload
// has the node on which it runs.
func TestImportLegacyEtcd(t *testing.T) {
	e := startEtcd(t, currentEtcd(t))
	for k, v := range existing {
		e.put(k, v)
	}
	e.put("/workloads-spec/going", `{"id":"going","name":"going","type":"container","image":"nginx:1","resources":{"cpu_usage":0.25},"desiredState":"Deleted","createdAt":"0001-01-01T00:00:00Z"}`)
	e.put("/workloads-status/going", `{"id":"going","assignedNode":"n1","nodeId":"n1","status":"Deleting","retry":{"attempts":0,"maxAttempts":5,"nextRetryAt":"0001-01-01T00:00:00Z"},"statusInfo":{"lastUpdated":"0001-01-01T00:00:00Z"}}`)
	e.put("/workloads-spec/late", `{"id":"late","name":"late","type":"container","image":"nginx:1","resources":{},"desiredState":"Running","createdAt":"0001-01-01T00:00:00Z"}`)
	e.put("/workloads-status/late", `{"id":"late","assignedNode":"n1","nodeId":"n1","status":"Scheduled","retry":{"attempts":0,"maxAttempts":5,"nextRetryAt":"0001-01-01T00:00:00Z"},"statusInfo":{"actualState":"Failed","lastUpdated":"0001-01-01T00:00:00Z"}}`)
	e.put("/volumes/local:data", `{"id":"local:data","name":"data","driver":"local","sizeGb":3,"accessMode":"","fsType":"","retainPolicy":"Delete","phase":"Attached"}`)
	e.put("/attachments/n1/late/local:data", `{"id":"x","volumeId":"local:data","workloadId":"late","nodeId":"n1","driver":"local","mountPath":"/data","readOnly":true,"phase":"Attached"}`)
	e.put("/attachments/n1/late/local:old", `{"id":"y","volumeId":"local:data","workloadId":"late","nodeId":"n1","driver":"local","mountPath":"/old","phase":"Detached"}`)
	e.put("/workloads-spec/vanished", `{"id":"vanished","name":"vanished","type":"container","resources":{},"desiredState":"deleted","createdAt":"0001-01-01T00:00:00Z"}`)
	read, err := Read(t.Context(), e.client, "")
	if err != nil {
		t.Fatal(err)
	}
	s, problems, err := read.State(here, plain)
	if err != nil {
		t.Fatal(err)
	}
	if len(problems) != 1 || problems[0].Key != "/workloads/whole" || !strings.Contains(problems[0].Reason, "vm: is missing") {
		t.Errorf("the import has problems %v, want one about the record of workload whole", problems)
	}
	n, _ := s.Node("n1")
	if n == nil || !n.Up || n.Facts.CPU != 4000 || n.Facts.Memory != 8192 || n.Facts.Endpoint != "10.0.0.1:50051" || !slices.Equal(n.Facts.Types, []string{"container"}) || len(n.Facts.Labels) != 0 {
		t.Errorf("the imported node is %+v, want the facts in the record of n1", n)
	}
	w, _ := s.Workload("split")
	if w == nil || w.Node != "n1" || w.Status != fsm.StatusRunning || !w.Acknowledged || w.Content != "c1:nginx:1" || w.CallerRevision != "abc" || w.Retry.Attempts != 2 {
		t.Errorf("the workload with split records was imported as %+v; want it running on n1 with its content, revision and retry", w)
	}
	if w != nil && (w.Adopted != "abc" || w.Revision() != "abc") {
		t.Errorf("the imported workload split has revision %q and adopted revision %q, want abc for both", w.Revision(), w.Adopted)
	}
	// The records of workload late say Scheduled and Failed, and name no revision. So the import stores an
	// unknown state until the node reports.
	late, _ := s.Workload("late")
	if late == nil || !late.Acknowledged || late.Actual.State != fsm.ActualUnknown || late.Adopted != unnamedRevision || late.AcknowledgedAt != noon {
		t.Errorf("the workload late was imported as %+v; want an accepted order, an unknown state and an unnamed revision", late)
	}
	for _, w := range read.Workloads {
		if want := (ManagedVolume{Name: "data", Driver: "local", SizeGB: 3, MountPath: "/data", ReadOnly: true, RetainPolicy: "Delete"}); w.ID == "late" && (len(w.ManagedVolumes) != 1 || w.ManagedVolumes[0] != want) {
			t.Errorf("the volumes of workload late are %+v, want the one from the records of volumes and attachments", w.ManagedVolumes)
		}
	}
	if w, _ := s.Workload("unplaced"); w == nil || w.Status != fsm.StatusPending {
		t.Errorf("the unplaced workload was imported as %+v, want it pending", w)
	}
	if w, _ := s.Workload("going"); w == nil || w.Desired != fsm.DesiredDeleted {
		t.Errorf("the workload that is being deleted was imported as %+v, want desired state Deleted", w)
	}
	if r, ok := s.Residual("n1", "going"); !ok || r.Demand.CPU != 250 {
		t.Errorf("the resources that the deleted workload still uses on its node are %+v, want 250 millicores", r)
	}
	if _, ok := s.Workload("vanished"); ok {
		t.Error("a deleted workload without an instance must not be imported, but was")
	}
	// The imported state is consistent: fsm.Restored accepts it.
	c := newCluster(t, "c2")
	back, err := fsm.Restored(s, c.st.State(), fsm.RestoreInfo{At: noon, By: "tester", Source: "etcd"})
	if err != nil {
		t.Fatal(err)
	}
	if w, _ := back.Workload("split"); w == nil || w.Node != "n1" || w.Status != fsm.StatusRunning {
		t.Errorf("after the import the workload split is %+v, want it running on n1", w)
	}
	if back.Info().ClusterID != "c2" || back.Info().Incarnation <= c.st.View().Info().Incarnation {
		t.Errorf("after the import the state is %+v, want cluster c2 with a higher incarnation", back.Info())
	}
}

// An import reports the key and the field of every record that it cannot use.
func TestImportReportsUnusableRecords(t *testing.T) {
	good := Node{NodeID: "n1", AgentEndpoint: "10.0.0.1:50051", TotalCPU: 4, TotalMemory: 1024, Status: "Ready"}
	with := func(change func(*Node)) Imported { n := good; change(&n); return Imported{Nodes: []Node{n}} }
	for _, tt := range []struct {
		name string
		in   Imported
		want string
	}{
		{"a record of a node without an id", with(func(n *Node) { n.NodeID = "" }), "id"},
		{"a record of a node without an address", with(func(n *Node) { n.AgentEndpoint = "" }), "endpoint"},
		{"a record of a node without memory", with(func(n *Node) { n.TotalMemory = 0 }), "memory_mib"},
		{"a record of a node with too many cores", with(func(n *Node) { n.TotalCPU = 1e300 }), "cpu_millicores"},
		{"a record of a workload whose id has a slash", Imported{Workloads: []Workload{{ID: "a/b"}}}, "does not match"},
		{"two records of workloads with the same id", Imported{Workloads: []Workload{{ID: "a"}, {ID: "a"}}}, "twice"},
		{"a record of a workload with a negative resource", Imported{Workloads: []Workload{{ID: "a", Extension: &WorkloadExtension{Content: "c1:x", Demand: Demand{MemoryMiB: -1}}, Type: "container"}}}, "memory_mib"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, problems, err := tt.in.State(here, plain)
			if err != nil || len(problems) != 1 || !strings.Contains(problems[0].Reason, tt.want) {
				t.Fatalf("the import returned the problems %v and error %v; want one problem about the field of the case", problems, err)
			}
			if err := s.Check(); err != nil {
				t.Error(err)
			}
		})
	}
	// A workload whose record says that it runs, and also that it was given up after failures, is
	// imported as running.
	up := Imported{Nodes: []Node{good}, Workloads: []Workload{{ID: "a", AssignedNode: "n1", Status: "Running", Retry: Retry{Attempts: 5, MaxAttempts: 5},
		Metadata: map[string]any{"terminal_failure_reason": "crash"}, Extension: &WorkloadExtension{Content: "c1:x"}, Type: "container", StatusInfo: StatusInfo{ActualState: "Running"}}}}
	if s, problems, err := up.State(here, plain); err != nil || len(problems) > 0 {
		t.Error(err, problems)
	} else if w, _ := s.Workload("a"); w.Status != fsm.StatusRunning || w.Retry.Attempts != 5 {
		t.Errorf("the imported workload is %+v, want it running with 5 attempts", w)
	}
	// A workload whose node has no record is imported as pending, without a node.
	s, problems, err := (&Imported{Workloads: []Workload{{ID: "a", AssignedNode: "lost", Status: "Running"}}}).State(here, plain)
	if w, _ := s.Workload("a"); err != nil || len(problems) > 0 || w == nil || w.Node != "" || w.PreviousNode != "lost" || w.Status != fsm.StatusPending {
		t.Errorf("the import returned error %v, problems %v, workload %+v; want a pending workload whose previous node is lost", err, problems, w)
	}
}
