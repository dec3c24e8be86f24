package rpc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
)

func backupOf(t *testing.T, r *replica) (*clusterv1.CreateBackupResponse, []byte) {
	t.Helper()
	in, err := clusterv1.NewClusterClient(r.client(t)).CreateBackup(t.Context(), &clusterv1.CreateBackupRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var head *clusterv1.CreateBackupResponse
	var data []byte
	for {
		m, err := in.Recv()
		if errors.Is(err, io.EOF) {
			return head, data
		}
		if err != nil {
			t.Fatal(err)
		}
		if head == nil {
			head = m
		}
		data = append(data, m.GetData()...)
	}
}

// restoreInto restores a backup, data, through replica r. It sends data in small pieces.
func restoreInto(ctx context.Context, t *testing.T, r *replica, data []byte, head *clusterv1.RestoreBackupRequest) (*clusterv1.RestoreBackupResponse, error) {
	t.Helper()
	out, err := clusterv1.NewClusterClient(r.client(t)).RestoreBackup(ctx)
	if err != nil {
		return nil, err
	}
	m := head
	for _, piece := range slices.Collect(slices.Chunk(data, 100)) {
		m.Data = piece
		if err := out.Send(m); err != nil {
			break
		}
		m = &clusterv1.RestoreBackupRequest{}
	}
	return out.CloseAndRecv()
}

// TestARestoreFirstSharesItsKey: the key of a backup is stored on a majority of the schedulers before the restore. If it
// cannot be stored, nothing is restored.
func TestARestoreFirstSharesItsKey(t *testing.T) {
	var shared []string
	full := false
	g := newGroup(t, 1, func(_ int, cfg *Config) {
		cfg.ShareKey = func(_ context.Context, key *pki.Key) error {
			shared = append(shared, key.ID())
			if full {
				return errors.New("scheduler s2: disk full")
			}
			return nil
		}
	})
	g.place("web", "a")
	_, data := backupOf(t, g.replicas[0])
	key, err := pki.NewKey()
	ok(t, err)
	full = true
	_, err = restoreInto(t.Context(), t, g.replicas[0], data, &clusterv1.RestoreBackupRequest{ClusterKey: key.Export()})
	code(t, err, codes.FailedPrecondition)
	if before := g.now().Info().Incarnation; !strings.Contains(err.Error(), "disk full") || before != 1 {
		t.Errorf("after a restore whose key could not be shared, the state has incarnation %d, want 1; the error is %v, want \"disk full\"", before, err)
	}
	full = false
	_, err = restoreInto(t.Context(), t, g.replicas[0], data, &clusterv1.RestoreBackupRequest{ClusterKey: key.Export()})
	ok(t, err)
	if len(shared) != 2 || shared[1] != key.ID() {
		t.Errorf("the restores shared the keys %v, want key %s twice", shared, key.ID())
	}
}

func TestBackupAndRestoreThroughAnyReplica(t *testing.T) {
	g := newGroup(t, 3)
	g.place("web", "a")
	g.place("db", "b")
	head, data := backupOf(t, g.replicas[2])
	if i := head.GetInfo(); i.GetClusterId() != "c1" || i.GetWorkloads() != 2 || i.GetNodes() != 2 || head.GetReplica() != "s2" {
		t.Errorf("the description of the backup is %v, want cluster c1 with 2 workloads and 2 nodes, from replica s2", head)
	}
	var same bytes.Buffer
	if err := g.now().WriteSnapshot(&same); err != nil || !bytes.Equal(same.Bytes(), data) {
		t.Errorf("the backup must have the same bytes as a snapshot of the state (error %v)", err)
	}
	g.do(&commandv1.Command{Body: &commandv1.Command_DeleteWorkload{DeleteWorkload: &commandv1.DeleteWorkload{Id: "db", Force: true}}})
	g.place("younger", "")
	before := g.now().Info()

	got, err := restoreInto(t.Context(), t, g.replicas[1], data, &clusterv1.RestoreBackupRequest{Preview: true})
	if err != nil {
		t.Fatal(err)
	}
	if got.GetRestored() || got.GetForgottenCount() != 1 || got.GetForgotten()[0] != "younger" || got.GetUnchangedCount() != 1 || got.GetAddedCount()+got.GetChangedCount() != 1 {
		t.Errorf("the preview is %v, want workload younger forgotten, one workload unchanged, and one added or changed", got)
	}
	if !reflect.DeepEqual(g.now().Info(), before) {
		t.Error("a preview of a restore must not change the state, but did")
	}
	if got, err = restoreInto(t.Context(), t, g.replicas[1], data, &clusterv1.RestoreBackupRequest{}); err != nil {
		t.Fatal(err)
	}
	now := g.now()
	if !got.GetRestored() || got.GetIncarnation() <= before.Incarnation || now.Info().Incarnation != got.GetIncarnation() || got.GetIndex() != now.Info().Index {
		t.Errorf("the restore returned %v, the state is at %+v, want the state restored in a new incarnation", got, now.Info())
	}
	if w, ok := now.Workload("db"); !ok || w.Desired != fsm.DesiredRunning {
		t.Errorf("workload db after the restore is %+v, want desired state Running", w)
	}
	if _, ok := now.Workload("younger"); ok {
		t.Error("a workload that is not in the backup must be gone after the restore, but is still there")
	}
}

func TestInvalidRestoresAreRefused(t *testing.T) {
	g := newGroup(t, 2)
	for _, r := range g.replicas {
		r.client(t) // open the connection here, so that it outlives the subtests
	}
	_, data := backupOf(t, g.replicas[0])
	other := fsm.New().Begin()
	for i, c := range []*commandv1.Command{
		{Head: &commandv1.Head{At: 1}, Body: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{ClusterId: "c9", Incarnation: 1}}},
		{Head: &commandv1.Head{At: 1}, Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: []*commandv1.WorkloadPut{{
			Id: "web", Content: "c1:0", Desired: "Running", Demand: &commandv1.Demand{Type: "container"}}}}}},
	} {
		if r, _ := other.Apply(fsm.Meta{Index: uint64(i + 1), Term: 1}, c); r.Err() != nil {
			t.Fatal(r.Err())
		}
	}
	var strange bytes.Buffer
	if err := other.Commit().WriteSnapshot(&strange); err != nil {
		t.Fatal(err)
	}
	damaged := slices.Clone(data)
	damaged[len(damaged)/2] ^= 1
	before := g.now().Info()
	for _, c := range []struct {
		name string
		data []byte
		code codes.Code
		says string
	}{
		{"a backup with one flipped bit", damaged, codes.InvalidArgument, "not a backup that can be restored"},
		{"a file that was cut off", data[:len(data)-3], codes.InvalidArgument, "it ends within"},
		{"a file that is no backup", []byte("hello, this is not a backup"), codes.InvalidArgument, "not a backup"},
		{"a backup of another cluster", strange.Bytes(), codes.FailedPrecondition, "SCHEDULER_CLUSTER_ID=c9"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for i, r := range g.replicas {
				_, err := restoreInto(t.Context(), t, r, c.data, &clusterv1.RestoreBackupRequest{})
				if status.Code(err) != c.code || !strings.Contains(err.Error(), c.says) {
					t.Errorf("the restore through replica %d returned %v, want code %s and the text %q", i, err, c.code, c.says)
				}
			}
		})
	}
	if !reflect.DeepEqual(g.now().Info(), before) {
		t.Error("a refused restore must not change the state, but did")
	}
	got, err := restoreInto(t.Context(), t, g.replicas[1], strange.Bytes(), &clusterv1.RestoreBackupRequest{ForceNewCluster: true})
	if err != nil || g.now().Info().ClusterID != "c1" || got.GetAddedCount() != 1 {
		t.Errorf("the restore with force returned %v and error %v, want one added workload", got, err)
	}
	g.elect(-1)
	if _, err := restoreInto(t.Context(), t, g.replicas[0], data, &clusterv1.RestoreBackupRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("the restore without a leader returned %v, want Unavailable", err)
	}
}
