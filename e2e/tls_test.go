package e2e

import (
	"context"
	"crypto/tls"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/testbed"
)

// TestTLS checks, with mutual TLS on every connection, which calls the certificate of each role allows, and which
// clients the TLS handshake refuses.
func TestTLS(t *testing.T) {
	c := start(t, harness.Options{Binaries: raced(t), TLS: true, SchedulerEnv: fast(nil)})
	got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true}))
	via := follower(t, c)
	addr := c.Schedulers[via].GRPC
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	as := func(t *testing.T, who string) *grpc.ClientConn {
		t.Helper()
		cc := got[*grpc.ClientConn](t)(c.Dial(addr, who))
		t.Cleanup(func() { _ = cc.Close() })
		return cc
	}
	change := &controlv1.ApplyWorkloadRequest{WorkloadId: "sealed", Spec: contentSpec("x")}
	change.Spec.GetContainer().Env = map[string]string{"TOKEN": "a-secret-of-this-test"}

	t.Run("an agent runs a workload that an admin applied through a follower", func(t *testing.T) {
		resp, err := controlv1.NewAgentControlClient(as(t, "user/admin")).ApplyWorkload(ctx, change)
		if err != nil || !resp.GetSuccess() {
			t.Fatalf("the apply returned %v %s, want success", err, resp.GetErrorMessage())
		}
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(ctx, "sealed", settle, running))
	})
	t.Run("persysctl with certificates", func(t *testing.T) {
		res, err := c.Ctl(ctx, "list")
		must(t, err)
		if res.Code != 0 || !strings.Contains(res.Stdout, "sealed") {
			t.Errorf("persysctl ended with code %d, want 0 and the workload: %s%s", res.Code, res.Stdout, res.Stderr)
		}
	})
	t.Run("a secret is in no answer and in no file as plaintext", func(t *testing.T) {
		resp, err := controlv1.NewAgentControlClient(as(t, "user/admin")).GetWorkload(ctx, &controlv1.GetWorkloadRequest{WorkloadId: "sealed"})
		must(t, err)
		if v := resp.GetWorkload().GetSpec().GetContainer().GetEnv()["TOKEN"]; v != pki.Redacted {
			t.Errorf("TOKEN is shown as %q", v)
		}
		for _, s := range c.Schedulers {
			found, err := containsText(s.DataDir, "a-secret-of-this-test")
			must(t, err)
			if found != "" {
				t.Errorf("the file %s of a scheduler has the secret in plain text", found)
			}
		}
	})

	t.Run("an agent may not apply", func(t *testing.T) {
		_, err := controlv1.NewAgentControlClient(as(t, "agent/node-a")).ApplyWorkload(ctx, change)
		denied(t, err, codes.PermissionDenied, "node-a")
	})
	t.Run("an agent may not send heartbeats of another node", func(t *testing.T) {
		_, err := controlv1.NewAgentControlClient(as(t, "agent/node-b")).Heartbeat(ctx, &controlv1.HeartbeatRequest{NodeId: "node-a"})
		denied(t, err, codes.PermissionDenied, "node-b")
	})
	t.Run("a user may not forward the identity of another user", func(t *testing.T) {
		id := pki.Identity{Cluster: "e2e", Role: pki.RoleUser, ID: "somebody"}
		mctx := metadata.AppendToOutgoingContext(ctx, dial.KeyForwardedIdentity, id.String())
		_, err := controlv1.NewAgentControlClient(as(t, "user/admin")).ListWorkloads(mctx, &controlv1.ListWorkloadsRequest{})
		denied(t, err, codes.PermissionDenied, dial.KeyForwardedIdentity)
	})
	t.Run("an agent may not forward the identity of an admin", func(t *testing.T) {
		id := pki.Identity{Cluster: "e2e", Role: pki.RoleUser, ID: pki.AdminID}
		mctx := metadata.AppendToOutgoingContext(ctx, dial.KeyForwardedIdentity, id.String(), dial.KeyHop, "1")
		_, err := controlv1.NewAgentControlClient(as(t, "agent/node-a")).ApplyWorkload(mctx, change)
		denied(t, err, codes.PermissionDenied, "")
	})
	t.Run("the cluster key is for schedulers only", func(t *testing.T) {
		for _, who := range []string{"user/admin", "agent/node-a"} {
			_, err := clusterv1.NewClusterClient(as(t, who)).ClusterKey(ctx, &clusterv1.ClusterKeyRequest{})
			denied(t, err, codes.PermissionDenied, "")
		}
	})

	stranger := func(t *testing.T, creds credentials.TransportCredentials) error {
		t.Helper()
		cc, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(creds), grpc.WithNoProxy())
		must(t, err)
		defer cc.Close()
		sctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		_, err = clusterv1.NewClusterClient(cc).Status(sctx, &clusterv1.StatusRequest{})
		return err
	}
	t.Run("plaintext is refused", func(t *testing.T) {
		if err := stranger(t, insecure.NewCredentials()); err == nil {
			t.Error("a replica with TLS answered a client that speaks plain text")
		}
	})
	t.Run("no certificate is refused", func(t *testing.T) {
		// This client does not check the server's certificate, so the call can fail only because the client has no
		// certificate.
		if err := stranger(t, credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})); err == nil {
			t.Error("a replica answered a client without certificate")
		}
	})
	other, err := pki.DevCerts(filepath.Join(t.TempDir(), "other"), pki.DevOptions{Cluster: "e2e", Schedulers: []string{"scheduler-1"}, Agents: []string{"node-a"}, Users: []string{pki.AdminID}})
	must(t, err)
	t.Run("a certificate of another CA is refused", func(t *testing.T) {
		leaf := other.Leaf["user/admin"]
		pair, err := tls.LoadX509KeyPair(leaf.Cert, leaf.Key)
		must(t, err)
		if err := stranger(t, credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true})); err == nil {
			t.Error("a replica answered a client of another CA")
		}
	})
	t.Run("persysctl refuses a scheduler of another CA", func(t *testing.T) {
		leaf := other.Leaf["user/admin"]
		res, err := c.Ctl(ctx, "--tls-ca", leaf.CA, "--tls-cert", leaf.Cert, "--tls-key", leaf.Key, "--rpc-timeout-seconds", "3", "list")
		must(t, err)
		if res.Code == 0 || !strings.Contains(res.Stderr, "certificate") {
			t.Errorf("persysctl ended with code %d: %s%s", res.Code, res.Stdout, res.Stderr)
		}
	})
	t.Run("a scheduler of another CA cannot join", func(t *testing.T) {
		s := got[*harness.Scheduler](t)(c.NewScheduler())
		leaf := other.Leaf["scheduler/scheduler-1"]
		set(s.Process, map[string]string{"PERSYS_TLS_CA": leaf.CA, "PERSYS_TLS_CERT": leaf.Cert, "PERSYS_TLS_KEY": leaf.Key, "SCHEDULER_BOOTSTRAP_EXPECT": ""})
		must(t, s.Start())
		// Start a scheduler with a certificate of another CA and with the cluster key. The others can decrypt its
		// gossip messages and so accept them, but must refuse its Raft connections.
		must(t, testbed.Poll(ctx, settle, "the new scheduler to look for a cluster", func(context.Context) error {
			return saysOneOf(s.Process, "looking for a cluster")
		}))
		pause(ctx, 3*time.Second) // wait for several rounds of the leader's membership loop
		st, err := c.Status(ctx, via)
		must(t, err)
		if n := len(st.GetReplicas()); n != 3 {
			t.Errorf("the cluster has %d replicas, want no new one", n)
		}
		must(t, s.Kill())
	})
	t.Run("everything still works", func(t *testing.T) {
		change.Spec.Metadata["content"] = "y"
		resp, err := controlv1.NewAgentControlClient(as(t, "user/admin")).ApplyWorkload(ctx, change)
		if err != nil || !resp.GetSuccess() {
			t.Fatalf("the apply returned %v %s, want success", err, resp.GetErrorMessage())
		}
	})
}

func denied(t *testing.T, err error, code codes.Code, names string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), names) {
		t.Errorf("the call returned %v, want code %s and a message with %q", err, code, names)
	}
}
