package e2e

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/testbed"
)

// refusedWithin is the time limit for a revocation to take effect: agents ask for revoked
// identities every five seconds.
const refusedWithin = 10 * time.Second

// TestRevokedScheduler: within seconds after a scheduler's identity is revoked, all its connections are closed, even
// those that are open. The other schedulers stop replicating to it, agents end its streams and refuse its calls, and
// the cluster works without it.
func TestRevokedScheduler(t *testing.T) {
	c := start(t, harness.Options{Binaries: raced(t), OwnCA: true, SchedulerEnv: fast(nil)})
	agent := got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true}))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	apply(t, c, "first", contentSpec("x"))
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(ctx, "first", settle, running))

	out := follower(t, c)
	// Call the agent directly with the private key and the certificate of the revoked scheduler, as an attacker
	// who has stolen them. The agent must refuse the call.
	dir := filepath.Join(c.Schedulers[out].DataDir, "tls")
	p := pki.IdentityStore{Dir: dir}.Paths()
	files := got[*pki.Files](t)(pki.LoadFiles(pki.FilesConfig{CA: p.CA, Cert: p.Cert, Key: p.Key, Mapping: pki.Mapping{}}))
	cc := got[*grpc.ClientConn](t)(grpc.NewClient("passthrough:///"+agent.Addr, grpc.WithNoProxy(),
		grpc.WithTransportCredentials(credentials.NewTLS(files.ClientConfig(pki.Peer{Hosts: []string{"127.0.0.1"}, Role: pki.RoleAgent})))))
	defer cc.Close()
	drive := agentv1.NewAgentServiceClient(cc)
	_, err := drive.ListWorkloads(ctx, &agentv1.ListWorkloadsRequest{})
	must(t, err)
	logs := got[agentv1.AgentService_LogsClient](t)(drive.Logs(ctx, &agentv1.LogsRequest{Id: "first", Follow: true}))
	session := got[agentv1.AgentService_ExecClient](t)(drive.Exec(ctx))
	must(t, session.Send(&agentv1.ExecRequest{Message: &agentv1.ExecRequest_Open{Open: &agentv1.ExecOpen{
		WorkloadId: "first", NodeId: agent.NodeID, Command: []string{"cat"}, Input: true,
	}}}))
	opened := got[*agentv1.ExecResponse](t)(session.Recv())
	if opened.GetOpened() == nil {
		t.Fatalf("the session begins with %v, want that it is open", opened)
	}
	// Send calls to the revoked scheduler, which forwards them to the leader. The leader must refuse them.
	through := got[clusterv1.ClusterClient](t)(c.Admin(out))
	person := got[clusterv1.Cluster_ExecClient](t)(through.Exec(ctx))
	must(t, person.Send(&clusterv1.ExecRequest{Message: &clusterv1.ExecRequest_Open{Open: &clusterv1.ExecOpen{WorkloadId: "first", Command: []string{"cat"}, Input: true}}}))
	if m := got[*clusterv1.ExecResponse](t)(person.Recv()); m.GetOpened() == nil {
		t.Fatalf("the first message of the exec session is %v, want that the session is open", m)
	}
	type end struct {
		what string
		err  error
	}
	ended := make(chan end, 3)
	for what, next := range map[string]func() error{
		"logs":    func() error { return errorOf(logs.Recv()) },
		"exec":    func() error { return errorOf(session.Recv()) },
		"through": func() error { return errorOf(person.Recv()) },
	} {
		go func() {
			for {
				if err := next(); err != nil {
					ended <- end{what, err}
					return
				}
			}
		}()
	}
	key := func(i int) (string, error) {
		st, err := c.Status(ctx, i)
		return strings.Join(st.GetGossipKeys(), " "), err
	}
	oldKey := got[string](t)(key(out))
	before := c.Schedulers[out].Name
	id := files.Identity().ID
	at := time.Now()
	res, err := c.Ctl(ctx, "identity", "revoke", "scheduler/"+id, "--reason", "stolen", "--yes")
	must(t, err)
	if res.Code != 0 {
		t.Fatalf("persysctl identity revoke of %s failed: %s%s", before, res.Stdout, res.Stderr)
	}

	for range 3 {
		select {
		case e := <-ended:
			t.Logf("%s ended after %s: %v", e.what, time.Since(at).Round(time.Millisecond), e.err)
		case <-time.After(refusedWithin):
			t.Fatal("the agent still has a stream open with a revoked scheduler")
		}
	}
	if time.Since(at) > refusedWithin {
		t.Errorf("ending all streams took %s", time.Since(at))
	}
	_, err = drive.ListWorkloads(ctx, &agentv1.ListWorkloadsRequest{})
	if code := status.Code(err); code != codes.Unauthenticated && code != codes.Unavailable {
		t.Errorf("the agent answers a call of a revoked scheduler with %v, want Unauthenticated or Unavailable", err)
	}

	// Write while the revoked replica runs. The writes must succeed, and the revoked replica must receive none
	// of them: its log must not grow.
	keeps := -1
	for i := range c.Schedulers {
		if i != out {
			keeps = i
		}
	}
	must(t, testbed.Poll(ctx, refusedWithin, "the revoked replica to have no contact with any other", func(ctx context.Context) error {
		st, err := c.Status(ctx, out)
		if err == nil && st.GetLeaderId() != "" && st.GetLeaderId() != st.GetSelfId() {
			return fmt.Errorf("the revoked replica still follows the leader %s", st.GetLeaderId())
		}
		return err
	}))
	stands := got[uint64](t)(applied(ctx, c, out))
	for i := range 5 {
		apply(t, c, fmt.Sprintf("after-%d", i), contentSpec("y"))
	}
	must(t, testbed.Poll(ctx, settle, "the writes at the others", func(ctx context.Context) error {
		has, err := applied(ctx, c, keeps)
		if err == nil && has < stands+5 {
			err = errors.New("the other replicas do not have all five writes yet")
		}
		return err
	}))
	if has := got[uint64](t)(applied(ctx, c, out)); has > stands {
		t.Errorf("the revoked replica received the log entries %d to %d after its revocation", stands+1, has)
	}
	must(t, c.WaitNode(ctx, agent.NodeID, "Ready", settle))

	// Gossip messages carry no identities. The other schedulers must therefore have changed the gossip key.
	must(t, testbed.Poll(ctx, settle, "a new gossip key at the other schedulers", func(ctx context.Context) error {
		for i := range c.Schedulers {
			if has, err := key(i); i != out && (err != nil || has == oldKey || strings.Contains(has, " ")) {
				return fmt.Errorf("scheduler %s has gossip key %q (%v), want only the new key", c.Schedulers[i].Name, has, err)
			}
		}
		return nil
	}))
	if has := got[string](t)(key(out)); has != oldKey {
		t.Errorf("the revoked scheduler has gossip key %s, want the old key %s", has, oldKey)
	}
}

func applied(ctx context.Context, c *harness.Cluster, i int) (uint64, error) {
	st, err := c.Status(ctx, i)
	return st.GetAppliedIndex(), err
}
