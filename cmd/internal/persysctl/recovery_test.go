package persysctl

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
)

func (f *fake) Recovery(context.Context, *clusterv1.RecoveryRequest) (*clusterv1.RecoveryResponse, error) {
	return &clusterv1.RecoveryResponse{
		Mode: "recovery", ModeReason: "etcd holds data that is not this cluster's", ModeChangedAt: timestamppb.New(epoch), Mirror: "foreign",
		Content: &clusterv1.MirrorContent{Workloads: 3, Nodes: 2, ProblemCount: 1, Problems: []*clusterv1.MirrorProblem{{Key: "/workloads/odd", Reason: "image: is missing"}}},
		Present: &clusterv1.BackupInfo{Index: 9}, Advice: "import",
	}, nil
}

func (f *fake) RestoreMirror(_ context.Context, req *clusterv1.RestoreMirrorRequest) (*clusterv1.RestoreMirrorResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mirrored = append(f.mirrored, req.GetPreview())
	mode := "normal"
	if req.GetPreview() {
		mode = "recovery"
	}
	return &clusterv1.RestoreMirrorResponse{
		Restored: !req.GetPreview(), Equal: 4, Created: 2, Removed: 600, Mode: mode,
		Differences: []*clusterv1.KeyDifference{{Kind: "create", Key: "/workloads/web"}, {Kind: "remove", Key: "/nodes/x"}},
	}, nil
}

func (f *fake) ImportMirror(_ context.Context, req *clusterv1.ImportMirrorRequest) (*clusterv1.ImportMirrorResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.imports = append(f.imports, req)
	return &clusterv1.ImportMirrorResponse{
		Content:  &clusterv1.MirrorContent{ClusterId: "c9", Index: 8, Complete: true, Workloads: 9, Nodes: 1},
		Change:   &clusterv1.RestoreBackupResponse{Added: []string{"a", "b"}, AddedCount: 9, NodesAdded: 1},
		Imported: !req.GetPreview(), Mirrored: false, MirrorError: "etcd is away", Mode: "degraded",
	}, nil
}

func (f *fake) AttachMirror(_ context.Context, req *clusterv1.AttachMirrorRequest) (*clusterv1.AttachMirrorResponse, error) {
	if slices.Contains(req.GetEndpoints(), "b:1") != (len(req.GetEndpoints()) == 2) {
		return nil, status.Error(codes.InvalidArgument, "endpoints")
	}
	return &clusterv1.AttachMirrorResponse{Etcd: "cafe", Endpoints: append(req.GetEndpoints(), "localhost:2379")}, nil
}

func (f *fake) DetachMirror(context.Context, *clusterv1.DetachMirrorRequest) (*clusterv1.DetachMirrorResponse, error) {
	return &clusterv1.DetachMirrorResponse{Endpoints: []string{"e:2379"}}, nil
}

func (f *fake) MirrorStatus(context.Context, *clusterv1.MirrorStatusRequest) (*clusterv1.MirrorStatusResponse, error) {
	return &clusterv1.MirrorStatusResponse{
		Mirror: "unreachable", Reason: "refused", Endpoints: []string{"e:2379"}, AttachedEtcd: "cafe",
		Replicas: []*clusterv1.MirrorProbe{{Replica: "s1", EtcdClusterId: 0xcafe}, {Replica: "s2", Error: "no route"}},
	}, nil
}

func TestMirrorCommandsReportTheMirror(t *testing.T) {
	f := start(t, nil)
	for _, tt := range []struct {
		name, args string
		code       int
		want       []string // texts expected on stdout or stderr
	}{
		{"attach names the etcd", "mirror attach", exitOK, []string{"etcd cluster cafe at localhost:2379 is attached"}},
		{"attach takes several endpoints", "mirror attach a:1,b:1", exitOK, []string{"a:1, b:1"}},
		{"overwriting needs a confirmation", "mirror attach --overwrite", exitUsage, []string{"--yes"}},
		{"detach says when ETCD_ENDPOINTS attaches again", "mirror detach", exitOK, []string{"detached", "ETCD_ENDPOINTS names e:2379"}},
		{"status shows which replicas reach etcd", "mirror status", exitOK, []string{"unreachable: refused", "e:2379 (attached by a person)", "reaches etcd cluster cafe", "no route"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSession(t)
			code := s.run(f, strings.Fields(tt.args)...)
			out := s.stdout.String() + s.stderr.String()
			if code != tt.code {
				t.Errorf("the exit code is %d, want %d: %s", code, tt.code, out)
			}
			for _, w := range tt.want {
				if !strings.Contains(out, w) {
					t.Errorf("the output does not contain %q:\n%s", w, out)
				}
			}
		})
	}
}

func TestRecoveryCommandsAskAndReport(t *testing.T) {
	f := start(t, nil)
	f.backup = backupBytes(t)
	file := filepath.Join(t.TempDir(), "state.backup")
	if err := os.WriteFile(file, f.backup, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		args string
		code int
		want []string // texts expected on stdout or stderr
	}{
		{"show names the fault and the next command", "recovery show", exitOK, []string{"recovery: etcd holds data", "foreign", "3 workloads, 2 nodes", "/workloads/odd: image: is missing", "persysctl recovery import --dry-run"}},
		{"a dry run of a restore lists the changes", "recovery restore --dry-run", exitOK, []string{"2 keys of etcd would be created, 0 changed, 600 removed; 4 equal", "create /workloads/web", "and 600 more"}},
		{"a restore asks for confirmation", "recovery restore", exitUsage, []string{"--yes"}},
		{"a restore prints the mode of the cluster", "recovery restore --yes", exitOK, []string{"were created", "etcd holds the cluster's state", "mode is normal"}},
		{"a dry run of an import lists workloads and nodes", "recovery import --dry-run --prefix /old", exitOK, []string{"9 workloads and 1 node would be imported: a, b", "not imported: policies", "roles", "secrets, configs and networks", "cluster c9, index 8"}},
		{"an import asks for confirmation", "recovery import", exitUsage, []string{"--yes"}},
		{"an import names the remaining steps", "recovery import --yes --skip-unreadable --force-new-cluster", exitOK, []string{"were imported", "not imported: policies", "etcd is away", "persysctl recovery restore", "mode is degraded"}},
		{"an import of a file", "recovery import " + file + " --yes", exitOK, []string{"restored at index 41"}},
		{"import takes one file", "recovery import a b", exitUsage, []string{`unexpected argument "b"`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSession(t)
			code := s.run(f, strings.Fields(tt.args)...)
			out := s.stdout.String() + s.stderr.String()
			if code != tt.code {
				t.Errorf("the exit code is %d, want %d", code, tt.code)
			}
			for _, w := range tt.want {
				if !strings.Contains(out, w) {
					t.Errorf("the output does not contain %q", w)
				}
			}
			if t.Failed() {
				t.Log(out)
			}
		})
	}
	if got := f.mirrored; len(got) != 4 || !got[0] || !got[1] || !got[2] || got[3] {
		t.Errorf("restores: %v", got)
	}
	if n := len(f.imports); n != 4 || f.imports[0].GetPrefix() != "/old" || !f.imports[2].GetPreview() || f.imports[3].GetPreview() || !f.imports[3].GetSkipUnreadable() || !f.imports[3].GetForceNewCluster() {
		t.Errorf("imports: %v", f.imports)
	}
	if n := len(f.restores); n != 2 || !f.restores[0].GetRequireEmpty() || !f.restores[1].GetRequireEmpty() {
		t.Errorf("files: %v", f.restores)
	}
}
