package rpc

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
)

// mirrorGroup returns a group of two replicas, each with a replica record in the state and with a fake mirror, and a
// client of the last replica.
func mirrorGroup(t *testing.T, mirrors ...*etcd) (*group, clusterv1.ClusterClient) {
	t.Helper()
	g := newGroup(t, len(mirrors), func(i int, c *Config) { c.Mirror = mirrors[i] })
	for _, r := range g.replicas {
		g.do(&commandv1.Command{Body: &commandv1.Command_PutReplica{PutReplica: &commandv1.PutReplica{
			Id: r.server.replica.Self().ID, Name: r.server.replica.Self().Name, GrpcAddr: r.server.replica.Self().GRPCAddr, FeatureLevel: 1,
		}}})
	}
	return g, clusterv1.NewClusterClient(g.replicas[len(mirrors)-1].client(t))
}

func TestAttachMirrorChecksEveryScheduler(t *testing.T) {
	for _, tt := range []struct {
		name string
		a, b *etcd
		req  *clusterv1.AttachMirrorRequest
		code codes.Code
		want []string
	}{
		{"every scheduler reaches the etcd", &etcd{id: 7}, &etcd{id: 7}, nil, codes.OK, nil},
		{"one scheduler does not reach the etcd", &etcd{id: 7}, &etcd{err: errors.New("connection refused")}, nil, codes.FailedPrecondition, []string{"every scheduler must reach the same etcd", "connection refused"}},
		{"each scheduler reaches another etcd", &etcd{id: 7}, &etcd{id: 8}, nil, codes.FailedPrecondition, []string{"etcd cluster 7", "another one, 8"}},
		{"the etcd has records that other programs have written", &etcd{id: 7, err: errors.New("data of others")}, &etcd{id: 7}, nil, codes.FailedPrecondition, []string{"data of others", "--overwrite"}},
		{"the endpoint of another machine has no TLS", &etcd{id: 7}, &etcd{id: 7}, &clusterv1.AttachMirrorRequest{Endpoints: []string{"plain:2379"}}, codes.InvalidArgument, []string{"no TLS"}},
		{"ETCD_ENDPOINTS is set", &etcd{id: 7, settings: true}, &etcd{id: 7}, nil, codes.FailedPrecondition, []string{"ETCD_ENDPOINTS", "etcd:2379", "persysctl mirror detach"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if !tt.a.settings {
				tt.a.detached, tt.b.detached = true, true
			}
			g, client := mirrorGroup(t, tt.a, tt.b)
			req := tt.req
			if req == nil {
				req = &clusterv1.AttachMirrorRequest{}
			}
			r, err := client.AttachMirror(t.Context(), req)
			if status.Code(err) != tt.code {
				t.Fatalf("AttachMirror returned %v and error %v, want code %s", r, err, tt.code)
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("the error of AttachMirror does not contain %q: %v", w, err)
				}
			}
			info := g.now().Info()
			if tt.code != codes.OK {
				if info.AttachedEtcd() != 0 {
					t.Error("after the error of AttachMirror, an etcd is attached, want none")
				}
				return
			}
			if info.MirrorPin != 7 || info.MirrorEndpoints != "localhost:2379" || info.MirrorEtcd != 0 || r.GetEtcd() != "7" {
				t.Errorf("after the attach the state has %+v and the answer is %v, want etcd 7 in both", info, r)
			}
		})
	}
}

func TestDetachMirrorNeedsAnAttachedEtcd(t *testing.T) {
	e := &etcd{id: 7, detached: true}
	g, client := mirrorGroup(t, e)
	if _, err := client.DetachMirror(t.Context(), &clusterv1.DetachMirrorRequest{}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("DetachMirror of a cluster that has no etcd attached returned %v, want FailedPrecondition", err)
	}
	if _, err := client.AttachMirror(t.Context(), &clusterv1.AttachMirrorRequest{Endpoints: []string{"e:1"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.DetachMirror(t.Context(), &clusterv1.DetachMirrorRequest{}); err != nil || g.now().Info().AttachedEtcd() != 0 {
		t.Errorf("DetachMirror returned %v, want success and no attached etcd", err)
	}
}

func TestMirrorStatusReportsTheEtcd(t *testing.T) {
	off := &etcd{id: 7, detached: true}
	_, client := mirrorGroup(t, off)
	if r, err := client.MirrorStatus(t.Context(), &clusterv1.MirrorStatusRequest{}); err != nil || r.GetMirror() != "off" || !strings.Contains(r.GetReason(), "persysctl mirror attach") {
		t.Errorf("the status without an etcd is %v (error %v), want off with the command persysctl mirror attach", r, err)
	}
	_, client = mirrorGroup(t, &etcd{id: 7, state: "healthy"}, &etcd{err: errors.New("no route")})
	r, err := client.MirrorStatus(t.Context(), &clusterv1.MirrorStatusRequest{})
	if err != nil || r.GetMirror() != "healthy" || len(r.GetReplicas()) != 2 || r.GetReplicas()[0].GetEtcdClusterId() != 7 || r.GetReplicas()[1].GetError() != "no route" {
		t.Errorf("the status with an etcd is %v (error %v), want healthy, with the result of each replica", r, err)
	}
}

// TestImportWithoutAMirror: if no etcd is attached, an import must read from the etcd endpoints that the caller names,
// and must write nothing there.
func TestImportWithoutAMirror(t *testing.T) {
	for name, tt := range map[string]struct{ asked, want []string }{
		"the default":  {nil, []string{"localhost:2379"}},
		"the caller's": {[]string{"old:2379"}, []string{"old:2379"}},
	} {
		t.Run(name, func(t *testing.T) {
			e := &etcd{detached: true, content: &clusterv1.MirrorContent{Workloads: 1}, found: held(t, "c1")}
			_, client := mirrorGroup(t, e)
			r, err := client.ImportMirror(t.Context(), &clusterv1.ImportMirrorRequest{Endpoints: tt.asked})
			if err != nil || !r.GetImported() || !r.GetDetached() || r.GetMirrored() || e.restored > 0 || !slices.Equal(e.asked, tt.want) {
				t.Errorf("the import returned %v (error %v), read from %v and wrote %d times; want an import from the named endpoints without a write", r, err, e.asked, e.restored)
			}
		})
	}
}
