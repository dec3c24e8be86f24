package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/dynamicpb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/testbed"
)

// TestRightsOnALaggingReplica: users whose rights have been taken away call a replica that has not received
// this change yet. The replica must refuse them. First a follower is stopped for ten seconds. Meanwhile an
// operator becomes a viewer and then tries every call that a viewer may not make. Then the follower runs
// again, but is cut off from the other schedulers while a user is revoked.
func TestRightsOnALaggingReplica(t *testing.T) {
	c := start(t, harness.Options{Binaries: raced(t), OwnCA: true, SchedulerEnv: fast(nil)})
	agent := got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true}))
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	apply(t, c, "web", container("sim/run"))
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(ctx, "web", settle, running))
	const stopped = 10 * time.Second
	at := follower(t, c)
	lagging := c.Schedulers[at]
	connect := func(t *testing.T, who string) *grpc.ClientConn {
		t.Helper()
		cc := got[*grpc.ClientConn](t)(c.Dial(lagging.GRPC, who))
		t.Cleanup(func() { _ = cc.Close() })
		return cc
	}
	exec := func(cc *grpc.ClientConn) error {
		s, err := clusterv1.NewClusterClient(cc).Exec(ctx)
		if err == nil {
			err = s.Send(&clusterv1.ExecRequest{Message: &clusterv1.ExecRequest_Open{Open: &clusterv1.ExecOpen{WorkloadId: "web", Command: []string{"true"}}}})
		}
		if err == nil || errors.Is(err, io.EOF) { // after io.EOF of Send, Recv returns why the server ended the stream
			_, err = s.Recv()
		}
		return err
	}
	list := func(cc *grpc.ClientConn) error {
		_, err := controlv1.NewAgentControlClient(cc).ListWorkloads(ctx, &controlv1.ListWorkloadsRequest{Level: controlv1.ReadLevel_READ_LEVEL_STALE})
		return err
	}

	t.Run("a viewer who was an operator before the follower was stopped", func(t *testing.T) {
		cc := connect(t, person(t, c, "vic", "operator"))
		must(t, exec(cc))
		methods := served(t, ctx, cc)
		allowed := allowedTo(t, "viewer")
		must(t, lagging.Pause())
		asleep := time.Now()
		person(t, c, "vic", "viewer")
		time.Sleep(stopped - time.Since(asleep)) // keep the follower stopped for the whole time, so that it misses the changes
		answers := map[string]error{}
		var mu sync.Mutex
		var calls sync.WaitGroup
		for _, m := range methods {
			full := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
			if allowed[full] {
				continue
			}
			calls.Go(func() {
				stale := metadata.AppendToOutgoingContext(ctx, dial.KeyRead, dial.ReadStale)
				err := invoke(stale, cc, full, m, dynamicpb.NewMessage(m.Input()))
				mu.Lock()
				defer mu.Unlock()
				answers[full] = err
			})
		}
		var session error
		calls.Go(func() { session = exec(cc) })
		must(t, lagging.Continue())
		calls.Wait()
		answers["a session in web"] = session
		denied := 0
		for full, err := range answers {
			switch code := status.Code(err); {
			case code == codes.PermissionDenied:
				denied++
			case code == codes.Aborted && strings.Contains(err.Error(), "PermissionDenied"):
				denied++ // the first answer of the leader was lost, and the leader denied the repeated call
			case code == codes.Unavailable, code == codes.DeadlineExceeded: // the follower could not ask the leader in time, so it refused the call
			default:
				t.Errorf("%s: %v", full, err)
			}
		}
		t.Logf("%d calls of %d were denied", denied, len(answers))
		if len(answers) < 40 {
			t.Errorf("only %d methods were tried", len(answers))
		}
		must(t, testbed.Poll(ctx, settle, "the follower to deny a session", func(context.Context) error {
			if err := exec(cc); status.Code(err) != codes.PermissionDenied {
				return fmt.Errorf("the follower answers the session with %w", err)
			}
			return nil
		}))
	})

	t.Run("a revoked user at a replica that is cut off", func(t *testing.T) {
		eve, admin := connect(t, person(t, c, "eve", "operator")), connect(t, "user/admin")
		must(t, list(eve))
		watch := got[clusterv1.Cluster_EventsClient](t)(clusterv1.NewClusterClient(eve).Events(ctx, &clusterv1.EventsRequest{Follow: true, Tail: 1}))
		_, err := watch.Recv()
		must(t, err)
		must(t, lagging.Pause())
		asleep := time.Now()
		ctl(t, c, "identity", "revoke", "user/eve", "--yes")
		for i, s := range c.Schedulers {
			if i != at {
				must(t, s.Pause())
			}
		}
		time.Sleep(stopped - time.Since(asleep))
		must(t, lagging.Continue())
		cutOff := func(err error) bool {
			return status.Code(err) == codes.Unavailable && dial.Reason(err) == dial.ReasonNoLeader && strings.Contains(err.Error(), "cut off")
		}
		if err := list(eve); !cutOff(err) {
			t.Errorf("a stale list of the revoked user returned %v, want a refusal because the replica is cut off", err)
		}
		if err := exec(eve); !cutOff(err) {
			t.Errorf("a session of the revoked user returned %v, want a refusal because the replica is cut off", err)
		}
		woken := time.Now()
		for err = nil; err == nil; {
			_, err = watch.Recv()
		}
		if took := time.Since(woken); !cutOff(err) || took > 10*time.Second {
			t.Errorf("the open stream of a revoked user ended after %s with %v, want an end within 10 s because of the revocation", took, err)
		}
		// Although it serves no user, the follower must still answer calls for its status, and DNS queries.
		_, err = clusterv1.NewClusterClient(admin).Status(ctx, &clusterv1.StatusRequest{})
		must(t, err)
		if found, err := schedulersAt(ctx, lagging.DNS); err != nil || len(found) == 0 {
			t.Errorf("the follower's DNS server answers %v, %v", found, err)
		}
		for i, s := range c.Schedulers {
			if i != at {
				must(t, s.Continue())
			}
		}
		must(t, testbed.Poll(ctx, settle, "the follower to know of the revocation", func(context.Context) error {
			switch err := list(eve); status.Code(err) {
			case codes.OK:
				return testbed.Final(errors.New("a revoked user was served"))
			case codes.Unauthenticated:
				return nil
			default:
				return err
			}
		}))
		must(t, testbed.Poll(ctx, settle, "the admin to be served again", func(context.Context) error { return list(admin) }))
		must(t, c.WaitNode(ctx, agent.NodeID, "Ready", settle))
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(ctx, "web", settle, running))
	})
}
