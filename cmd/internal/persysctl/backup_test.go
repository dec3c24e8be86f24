package persysctl

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// backupBytes returns a complete backup with one workload.
func backupBytes(t *testing.T) []byte {
	t.Helper()
	tx := fsm.New().Begin()
	for i, c := range []*commandv1.Command{
		{Head: &commandv1.Head{At: epoch.UnixNano()}, Body: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{ClusterId: "c1", Incarnation: 7}}},
		{Head: &commandv1.Head{At: epoch.UnixNano()}, Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: []*commandv1.WorkloadPut{{
			Id: "web", Content: "c1:0", Desired: "Running", Demand: &commandv1.Demand{Type: "container"}}}}}},
	} {
		if r, _ := tx.Apply(fsm.Meta{Index: uint64(i + 1), Term: 1}, c); r.Err() != nil {
			t.Fatal(r.Err())
		}
	}
	var b bytes.Buffer
	if err := tx.Commit().WriteSnapshot(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func backupFacts() *clusterv1.BackupInfo {
	return &clusterv1.BackupInfo{ClusterId: "c1", Incarnation: 7, Index: 2, At: timestamppb.New(epoch), Mode: "normal", Workloads: 1}
}

func (f *fake) CreateBackup(_ *clusterv1.CreateBackupRequest, out clusterv1.Cluster_CreateBackupServer) error {
	if err := out.Send(&clusterv1.CreateBackupResponse{Info: backupFacts(), Replica: "scheduler-2", AgeMs: 40}); err != nil {
		return err
	}
	for _, half := range [][]byte{f.backup[:len(f.backup)/2], f.backup[len(f.backup)/2:]} {
		if err := out.Send(&clusterv1.CreateBackupResponse{Data: half}); err != nil {
			return err
		}
	}
	return nil
}

func (f *fake) RestoreBackup(in clusterv1.Cluster_RestoreBackupServer) error {
	var all []byte
	var first *clusterv1.RestoreBackupRequest
	for {
		m, err := in.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if first == nil {
			first = m
		}
		all = append(all, m.GetData()...)
	}
	f.mu.Lock()
	f.restores, f.taken = append(f.restores, first), all
	f.mu.Unlock()
	return in.SendAndClose(&clusterv1.RestoreBackupResponse{
		Backup: backupFacts(), Present: &clusterv1.BackupInfo{ClusterId: "c1", Index: 40},
		Added: []string{"web"}, AddedCount: 1, Forgotten: []string{"a", "b"}, ForgottenCount: 12, UnchangedCount: 3,
		Restored: !first.GetPreview(), Index: 41, Incarnation: 9,
	})
}

func TestBackupsAreWrittenAndRestored(t *testing.T) {
	f := start(t, nil)
	f.backup = backupBytes(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "state.backup")

	s := newSession(t)
	if code := s.run(f, "backup", "create", path); code != exitOK {
		t.Fatalf("backup create ended with exit code %d\n%s", code, s.stderr.String())
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, f.backup) {
		t.Errorf("the created backup file has %d bytes, want the %d bytes of the backup (%v)", len(got), len(f.backup), err)
	}
	if out := s.stdout.String(); !strings.Contains(out, "cluster c1 at index 2, from scheduler-2: 1 workload, 0 nodes") {
		t.Errorf("backup create prints:\n%s", out)
	}

	s = newSession(t)
	if code := s.run(nil, "backup", "inspect", path); code != exitOK {
		t.Fatalf("backup inspect ended with exit code %d\n%s", code, s.stderr.String())
	}
	for _, want := range []string{"c1", "2026-11-20 12:00:00", "2 (incarnation 7)", "1, 0 running", "right"} {
		if !strings.Contains(s.stdout.String(), want) {
			t.Errorf("backup inspect does not print %q:\n%s", want, s.stdout.String())
		}
	}

	s = newSession(t)
	if code := s.run(f, "backup", "restore", path, "--dry-run"); code != exitOK || len(f.restores) != 1 || !f.restores[0].GetPreview() {
		t.Errorf("backup restore --dry-run ended with exit code %d after the calls %v\n%s", code, f.restores, s.stderr.String())
	}
	if out := s.stdout.String(); !strings.Contains(out, "1 workload would be brought back: web") || !strings.Contains(out, "12 workloads would be forgotten: a, b and 10 more") {
		t.Errorf("backup restore --dry-run prints:\n%s", out)
	}

	s = newSession(t)
	if code := s.run(f, "backup", "restore", path); code != exitUsage || !strings.Contains(s.stderr.String(), "--yes") || len(f.restores) != 2 {
		t.Errorf("a restore without a terminal ended with exit %d after %d calls, want a usage error that names --yes and one more preview call\n%s", code, len(f.restores), s.stderr.String())
	}
	s = newSession(t)
	s.inTerm, s.errTerm, s.in = true, true, strings.NewReader("n\n")
	if code := s.run(f, "backup", "restore", path); code != exitFailed || len(f.restores) != 3 || !strings.Contains(s.stderr.String(), "nothing was done") {
		t.Errorf("a restore that the user refused ended with exit %d after %d calls\n%s", code, len(f.restores), s.stderr.String())
	}
	s = newSession(t)
	if code := s.run(f, "backup", "restore", path, "--yes", "--force-new-cluster"); code != exitOK || len(f.restores) != 5 {
		t.Fatalf("backup restore ended with exit code %d after %d calls\n%s", code, len(f.restores), s.stderr.String())
	}
	if last := f.restores[4]; last.GetPreview() || !last.GetForceNewCluster() || !bytes.Equal(f.taken, f.backup) {
		t.Errorf("the restore sent %d bytes with the options %v", len(f.taken), last)
	}
	if out := s.stdout.String(); !strings.Contains(out, "restored at index 41, incarnation 9") || !strings.Contains(out, "1 workload was brought back") {
		t.Errorf("backup restore prints:\n%s", out)
	}
}

func TestADamagedBackupIsNeverKeptNorSent(t *testing.T) {
	f := start(t, nil)
	f.backup = backupBytes(t)
	f.backup = f.backup[:len(f.backup)-1]
	path := filepath.Join(t.TempDir(), "state.backup")
	s := newSession(t)
	if code := s.run(f, "backup", "create", path); code != exitFailed || !strings.Contains(s.stderr.String(), "is incomplete or damaged") {
		t.Errorf("backup create ended with exit code %d\n%s", code, s.stderr.String())
	}
	if left, _ := filepath.Glob(path + "*"); len(left) != 0 {
		t.Errorf("a failed backup create left the files %v", left)
	}
	if err := os.WriteFile(path, f.backup, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"backup", "inspect", path}, {"backup", "restore", path, "--yes"}} {
		s = newSession(t)
		if code := s.run(f, args...); code != exitFailed || !strings.Contains(s.stderr.String(), "is an incomplete or damaged backup") {
			t.Errorf("%v: exit code %d\n%s", args, code, s.stderr.String())
		}
	}
	if len(f.restores) != 0 {
		t.Error("a damaged backup was sent")
	}
}
