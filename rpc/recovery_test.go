package rpc

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// etcd is a fake Mirror whose content a test sets.
type etcd struct {
	state    string
	content  *clusterv1.MirrorContent
	found    fsm.State
	err      error
	restored int
	detached bool // true if no etcd is attached
	settings bool // the endpoints come from the setting ETCD_ENDPOINTS
	id       uint64
	asked    []string // endpoints that were passed to the last Read
}

func (e *etcd) Endpoints() ([]string, bool) {
	if e.detached {
		return nil, false
	}
	return []string{"etcd:2379"}, e.settings
}

func (e *etcd) Check(endpoints []string) error {
	if slices.Contains(endpoints, "plain:2379") {
		return errors.New("no TLS")
	}
	return nil
}

func (e *etcd) Probe(context.Context, []string) (uint64, error) { return e.id, e.err }

func (e *etcd) Health() (state, reason string, index uint64) { return e.state, "why", 7 }

func (e *etcd) Read(_ context.Context, endpoints []string, _ string, _ fsm.Info) (*clusterv1.MirrorContent, fsm.State, error) {
	e.asked = endpoints
	return e.content, e.found, e.err
}

func (e *etcd) Preview(context.Context) (*clusterv1.RestoreMirrorResponse, error) {
	return &clusterv1.RestoreMirrorResponse{Created: 2}, e.err
}

func (e *etcd) Restore(context.Context) error {
	e.restored++
	return e.err
}

// held returns the state of a cluster with this id and with one workload that is assigned to a node.
func held(t *testing.T, id string) fsm.State {
	t.Helper()
	a := fsm.Assemble(fsm.Origin{ClusterID: id, Shard: "default", Incarnation: 3})
	err := a.Node(&commandv1.NodeRecord{Facts: &commandv1.RegisterNode{Id: "old", Endpoint: "127.0.0.1:1", CpuMillicores: 1000, MemoryMib: 1000}, Up: true})
	if err == nil {
		err = a.Workload(&commandv1.WorkloadRecord{
			Put:  &commandv1.WorkloadPut{Id: "web", Content: "c1:0", Desired: "Running", Demand: &commandv1.Demand{Type: "container"}},
			Node: "old", Acknowledged: true, Actual: &commandv1.WorkloadReport{State: "Running"},
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	s, err := a.State()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func withMirror(e *etcd) func(int, *Config) { return func(_ int, c *Config) { c.Mirror = e } }

func setMode(g *group, mode string) {
	g.do(&commandv1.Command{Body: &commandv1.Command_SetMode{SetMode: &commandv1.SetMode{Mode: mode, Reason: "for a test"}}})
}

func TestImportMirrorTakesTheRecordsOver(t *testing.T) {
	e := &etcd{state: "foreign", content: &clusterv1.MirrorContent{Workloads: 1, Nodes: 1}, found: held(t, "c1")}
	g := newGroup(t, 2, withMirror(e))
	follower := clusterv1.NewClusterClient(g.replicas[1].client(t))
	show, err := follower.Recovery(t.Context(), &clusterv1.RecoveryRequest{})
	if err != nil || show.GetAdvice() != adviseImport || show.GetMirror() != "foreign" || show.GetContent().GetWorkloads() != 1 {
		t.Errorf("Recovery returned %v and error %v, want the mirror state \"foreign\" and the advice to import its one workload", show, err)
	}
	before := g.now().Info()
	got, err := follower.ImportMirror(t.Context(), &clusterv1.ImportMirrorRequest{Preview: true})
	if err != nil || got.GetImported() || !slices.Equal(got.GetChange().GetAdded(), []string{"web"}) || got.GetChange().GetNodesAdded() != 1 {
		t.Fatalf("the preview of the import returned %v and error %v, want workload web and one node added, and nothing imported", got, err)
	}
	if !reflect.DeepEqual(g.now().Info(), before) || e.restored > 0 {
		t.Error("a preview must change neither the state nor etcd, but did")
	}
	if got, err = follower.ImportMirror(t.Context(), &clusterv1.ImportMirrorRequest{}); err != nil {
		t.Fatal(err)
	}
	if !got.GetImported() || !got.GetMirrored() || e.restored != 1 || got.GetMode() != "normal" {
		t.Errorf("the import returned %v and etcd was written %d times, want an import in mode normal and one write", got, e.restored)
	}
	now := g.now()
	if w, ok := now.Workload("web"); !ok || w.Node != "old" || w.Status != fsm.StatusRunning {
		t.Errorf("workload web after the import is %+v, want it running on node old", w)
	}
	for _, id := range []string{"a", "b", "old"} {
		if _, ok := now.Node(id); !ok {
			t.Errorf("node %s must be known after the import, but is not", id)
		}
	}
	if now.Info().Incarnation <= before.Incarnation {
		t.Errorf("incarnation %d after the import must be higher than %d", now.Info().Incarnation, before.Incarnation)
	}
	if _, err := follower.ImportMirror(t.Context(), &clusterv1.ImportMirrorRequest{}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "web") {
		t.Errorf("an import into a cluster that has workload web returned %v, want FailedPrecondition that names web", err)
	}
}

func TestInvalidImportsAreRefused(t *testing.T) {
	one := &clusterv1.MirrorContent{Workloads: 1}
	for _, tt := range []struct {
		name string
		e    *etcd
		req  *clusterv1.ImportMirrorRequest
		code codes.Code
		want []string
	}{
		{"an import from endpoints without TLS", &etcd{detached: true}, &clusterv1.ImportMirrorRequest{Endpoints: []string{"plain:2379"}}, codes.InvalidArgument, []string{"no TLS"}},
		{"an import from endpoints other than those of the attached etcd", &etcd{}, &clusterv1.ImportMirrorRequest{Endpoints: []string{"other:2379"}}, codes.InvalidArgument, []string{"etcd:2379", "persysctl mirror detach"}},
		{"an import into a cluster that can have no mirror", nil, nil, codes.FailedPrecondition, []string{"ETCD_ENDPOINTS", "persysctl recovery import FILE"}},
		{"an import from an etcd that does not answer", &etcd{err: errors.New("connection refused")}, nil, codes.FailedPrecondition, []string{"connection refused", "persysctl recovery show"}},
		{"an import from an etcd without records", &etcd{content: &clusterv1.MirrorContent{}, found: held(t, "c1")}, nil, codes.FailedPrecondition, []string{"nothing to import", "--prefix"}},
		{"an import of the records of another cluster", &etcd{content: one, found: held(t, "c9")}, nil, codes.FailedPrecondition, []string{"c9", "--force-new-cluster"}},
		{"an import of records of which two are invalid", &etcd{content: &clusterv1.MirrorContent{Workloads: 1, ProblemCount: 2, Problems: []*clusterv1.MirrorProblem{{Key: "/workloads/x", Reason: "image: missing"}}}, found: held(t, "c1")},
			nil, codes.FailedPrecondition, []string{"2 keys", "/workloads/x: image: missing", "--skip-unreadable"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tune := func(int, *Config) {}
			if tt.e != nil {
				tune = withMirror(tt.e)
			}
			g := newGroup(t, 1, tune)
			before := g.now().Info()
			req := tt.req
			if req == nil {
				req = &clusterv1.ImportMirrorRequest{}
			}
			_, err := clusterv1.NewClusterClient(g.replicas[0].client(t)).ImportMirror(t.Context(), req)
			if status.Code(err) != tt.code {
				t.Errorf("the import returned %v, want code %s", err, tt.code)
			}
			for _, w := range tt.want {
				if err != nil && !strings.Contains(err.Error(), w) {
					t.Errorf("the import returned error %v, want an error that contains %q", err, w)
				}
			}
			if !reflect.DeepEqual(g.now().Info(), before) || tt.e != nil && tt.e.restored > 0 {
				t.Error("a refused import must change neither the state nor etcd, but did")
			}
		})
	}
	t.Run("an import with skip_unreadable and force_new_cluster takes the readable records of another cluster", func(t *testing.T) {
		e := &etcd{content: &clusterv1.MirrorContent{Workloads: 1, ProblemCount: 1, Problems: []*clusterv1.MirrorProblem{{}}}, found: held(t, "c9")}
		g := newGroup(t, 1, withMirror(e))
		got, err := clusterv1.NewClusterClient(g.replicas[0].client(t)).ImportMirror(t.Context(), &clusterv1.ImportMirrorRequest{SkipUnreadable: true, ForceNewCluster: true})
		if w, ok := g.now().Workload("web"); err != nil || !got.GetImported() || !ok || w.Node != "" {
			// The records come from another cluster, so the workload must have no node.
			t.Errorf("the import returned %v and error %v, and workload web is %+v; want it imported without a node", got, err, w)
		}
	})
	t.Run("a restore that requires an empty cluster is refused by a cluster with workloads", func(t *testing.T) {
		g := newGroup(t, 1)
		g.place("db", "a")
		_, data := backupOf(t, g.replicas[0])
		_, err := restoreInto(t.Context(), t, g.replicas[0], data, &clusterv1.RestoreBackupRequest{RequireEmpty: true})
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "db") {
			t.Errorf("the restore that requires an empty cluster, into a cluster with workload db, returned %v, want FailedPrecondition that names db", err)
		}
	})
}

func TestRestoreMirrorWritesTheState(t *testing.T) {
	e := &etcd{state: "emptied", content: &clusterv1.MirrorContent{}, found: held(t, "c1")}
	g := newGroup(t, 2, withMirror(e))
	g.place("db", "a")
	setMode(g, "recovery")
	c := clusterv1.NewClusterClient(g.replicas[1].client(t))
	if show, err := c.Recovery(t.Context(), &clusterv1.RecoveryRequest{}); err != nil || show.GetAdvice() != adviseRestore || show.GetMode() != "recovery" {
		t.Errorf("Recovery returned %v and error %v, want the advice to restore the mirror, in mode recovery", show, err)
	}
	got, err := c.RestoreMirror(t.Context(), &clusterv1.RestoreMirrorRequest{Preview: true})
	if err != nil || got.GetRestored() || got.GetCreated() != 2 || got.GetMode() != "recovery" || e.restored > 0 {
		t.Errorf("the preview of RestoreMirror returned %v and error %v, want 2 records to create, and no write to etcd", got, err)
	}
	// The call RestoreMirror waits until the leader has changed the mode. Play the leader here, and change the mode.
	went := make(chan struct{})
	go func() {
		defer close(went)
		setMode(g, "normal")
	}()
	if got, err = c.RestoreMirror(t.Context(), &clusterv1.RestoreMirrorRequest{}); err != nil || !got.GetRestored() || got.GetMode() != "normal" || e.restored != 1 {
		t.Errorf("RestoreMirror returned %v and error %v, want one write to etcd, and the mode normal", got, err)
	}
	<-went
	var told *fsm.Event
	g.replicas[0].store.View().EventsBack(func(e *fsm.Event) bool {
		if e.Type == fsm.EventMirrorRestored {
			told = e
		}
		return told == nil
	})
	if told == nil || !strings.Contains(told.By, "user/") || !slices.Contains(told.Details, fsm.Label{Key: "created", Value: "2"}) {
		t.Errorf("the event of the restore is %+v, want the user, and 2 created records", told)
	}
	e.err = errors.New("no space")
	if _, err := c.RestoreMirror(t.Context(), &clusterv1.RestoreMirrorRequest{}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "no space") {
		t.Errorf("RestoreMirror to an etcd that cannot be written returned %v, want FailedPrecondition with the cause", err)
	}
}

func TestRecoveryAdviceFollowsTheMirror(t *testing.T) {
	for _, tt := range []struct {
		mirror    string
		held      int32
		untouched bool
		want      string
	}{
		{"healthy", 3, false, adviseNothing},
		{"off", 0, true, adviseNothing},
		{"unreachable", 0, false, adviseEtcd},
		{"failing", 3, true, adviseEtcd},
		{"emptied", 0, false, adviseRestore},
		{"foreign", 3, true, adviseImport},
		{"foreign", 3, false, adviseRestore},
		{"foreign", 0, true, adviseRestore},
	} {
		r := &clusterv1.RecoveryResponse{Mirror: tt.mirror, Content: &clusterv1.MirrorContent{Workloads: tt.held}}
		if got := advice(r, tt.untouched); got != tt.want {
			t.Errorf("with the mirror %s, %d workloads in etcd, and an unused cluster %v, the advice is %s, want %s", tt.mirror, tt.held, tt.untouched, got, tt.want)
		}
	}
}
