package rpc

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/testbed"
)

// tryAll calls every method of replica i with an empty message and returns the error of each.
func (w *ownCA) tryAll(ctx context.Context, i int, cc *grpc.ClientConn) map[string]error {
	w.t.Helper()
	out := map[string]error{}
	for service, info := range w.replicas[i].server.GRPC().GetServiceInfo() {
		for _, m := range info.Methods {
			full := "/" + service + "/" + m.Name
			s, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, full)
			ok(w.t, err)
			_ = s.SendMsg(&emptypb.Empty{})
			_ = s.CloseSend()
			out[full] = s.RecvMsg(&anyMessage{})
		}
	}
	return out
}

// TestACertificateAloneGivesNothing: somebody has a certificate of the cluster's CA but was never admitted.
// Every call of such a caller must be refused, in any role, at any replica, directly or through a gateway or scheduler.
func TestACertificateAloneGivesNothing(t *testing.T) {
	w := newOwnCA(t)
	for _, r := range w.replicas {
		r.server.unadmitted = rate.NewLimiter(rate.Inf, 0)
	}
	gateway := w.holds(pki.Identity{Role: pki.RoleGateway, ID: "g"})
	for name, x := range map[string]struct {
		files *pki.Files
		md    []string
	}{
		"an agent":                         {w.signed(pki.Identity{Role: pki.RoleAgent, ID: "forged"}), nil},
		"a gateway":                        {w.signed(pki.Identity{Role: pki.RoleGateway, ID: "forged"}), nil},
		"a scheduler":                      {w.signed(pki.Identity{Role: pki.RoleScheduler, ID: "forged"}), nil},
		"a user":                           {w.signed(pki.Identity{Role: pki.RoleUser, ID: "forged"}), nil},
		"a user with the admin's name":     {w.signed(pki.Identity{Role: pki.RoleUser, ID: "admin"}), nil},
		"a user behind a gateway":          {gateway, []string{dial.KeyOnBehalf, "persys://home/user/forged"}},
		"a scheduler that forwards a call": {w.signed(pki.Identity{Role: pki.RoleScheduler, ID: "forged"}), []string{dial.KeyHop, "1", dial.KeyForwardedIdentity, "persys://home/scheduler/s0"}},
		"a user relayed by an admitted scheduler": {w.files[1], []string{dial.KeyHop, "1", dial.KeyForwardedIdentity, "persys://home/user/forged"}},
	} {
		for i, where := range []string{"leader", "follower"} {
			t.Run(name+", asked at the "+where, func(t *testing.T) {
				all := w.tryAll(metadata.AppendToOutgoingContext(ctxFor(t), x.md...), i, w.as(i, x.files))
				if len(all) < 60 {
					t.Errorf("only %d API methods were called, want at least 60", len(all))
				}
				for full, err := range all {
					if status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), errNotAdmitted.Error()) {
						t.Errorf("call %s by a caller whom the cluster has not admitted returned %v, want Unauthenticated", full, err)
					}
				}
			})
		}
	}
}

// TestQuestionsAboutTheUnadmittedAreBounded: before a replica refuses a caller that its state does not list as
// admitted, it asks the leader for newer log entries. The replica must limit the number of these requests, because
// each costs a log entry.
func TestQuestionsAboutTheUnadmittedAreBounded(t *testing.T) {
	w := newOwnCA(t)
	c := clusterv1.NewClusterClient(w.as(0, w.signed(pki.Identity{Role: pki.RoleUser, ID: "forged"})))
	seen := map[codes.Code]int{}
	for range 3 * unadmittedBurst {
		_, err := c.Status(ctxFor(t), &clusterv1.StatusRequest{})
		seen[status.Code(err)]++
	}
	if len(seen) != 2 || seen[codes.Unauthenticated] < unadmittedBurst || seen[codes.ResourceExhausted] == 0 {
		t.Errorf("the calls of a caller that is not admitted got these numbers of answers by gRPC code: %v; want at least %d Unauthenticated, and some ResourceExhausted", seen, unadmittedBurst)
	}
}

// TestTheFirstCallAfterAJoin: a caller calls a follower right after it was admitted, and the follower has not applied
// the admission yet. The follower must catch up with the leader before it refuses the caller. If the leader does not
// answer, the error must say so.
func TestTheFirstCallAfterAJoin(t *testing.T) {
	w := newOwnCA(t)
	follower := w.replicas[1]
	catchUp := func() {
		follower.set(func(r *replica) { r.lagging = false; r.store.Restore(w.group.now()) })
	}
	follower.set(func(r *replica) { r.lagging = true })
	f, _, err := w.enrol(0, w.token(&clusterv1.CreateTokenRequest{Role: "agent"}), "n1")
	ok(t, err)
	cc := w.as(1, f)
	answer := make(chan error, 1)
	go func() {
		_, err := clusterv1.NewClusterClient(cc).Status(ctxFor(t), &clusterv1.StatusRequest{})
		answer <- err
	}()
	testbed.Within(t, testbed.Patience, "the follower asks the leader for its log index", func() error {
		follower.server.recency.mu.Lock()
		defer follower.server.recency.mu.Unlock()
		if follower.server.recency.asking == nil {
			return errors.New("the follower does not ask the leader for its log index")
		}
		return nil
	})
	catchUp()
	ok(t, <-answer)

	follower.set(func(r *replica) { r.lagging = true })
	w.elect(-1)
	late := w.holds(pki.Identity{Role: pki.RoleAgent, ID: "n2"})
	_, err = clusterv1.NewClusterClient(w.as(1, late)).Status(ctxFor(t), &clusterv1.StatusRequest{})
	code(t, err, codes.Unavailable)
	is(t, "reason", dial.Reason(err), dial.ReasonNoLeader)
	catchUp()
	_, err = clusterv1.NewClusterClient(w.as(1, late)).Status(ctxFor(t), &clusterv1.StatusRequest{})
	ok(t, err)
}

// old makes a replica believe that its state was last confirmed to be up to date before the duration age.
func (r *replica) old(age time.Duration) {
	c := &r.server.recency
	c.at.Store(int64(time.Since(c.since) - age))
}

// TestALaggingReplicaGivesNothingMore: a follower may not have applied yet that a person lost access, so it must
// bring its state up to date with the leader's before it answers the person's call itself.
func TestALaggingReplicaGivesNothingMore(t *testing.T) {
	w := newOwnCA(t)
	vic := w.holds(pki.Identity{Role: pki.RoleUser, ID: "vic"})
	gateway := w.holds(pki.Identity{Role: pki.RoleGateway, ID: "g"})
	follower := w.replicas[1]
	access := func(level string) {
		t.Helper()
		_, _, err := w.enrol(0, w.token(&clusterv1.CreateTokenRequest{Role: "user", Name: "vic", Access: level}), "vic")
		ok(t, err)
	}
	asks := func() error {
		follower.server.recency.mu.Lock()
		defer follower.server.recency.mu.Unlock()
		if follower.server.recency.asking == nil {
			return errors.New("the follower does not ask the leader for its log index")
		}
		return nil
	}
	may := func(id pki.Identity, full string) bool {
		_, err := w.replicas[0].server.authorize(caller{id: id}, full)
		return err == nil
	}
	viewer, operator := w.signed(pki.Identity{Role: pki.RoleUser, ID: "viewer"}), w.holds(pki.Identity{Role: pki.RoleUser, ID: "operator"})
	w.admit(viewer, "viewer")
	tried := 0
	for full, m := range methods {
		if m.class == leader || !may(operator.Identity(), full) || may(viewer.Identity(), full) {
			continue
		}
		tried++
		for name, x := range map[string]struct {
			files *pki.Files
			md    []string
		}{"directly": {vic, nil}, "through a gateway": {gateway, []string{dial.KeyOnBehalf, "persys://home/user/vic"}}} {
			t.Run(m.op+", "+name, func(t *testing.T) {
				access("operator")
				follower.set(func(r *replica) { r.lagging = true })
				access("viewer")
				follower.old(5 * time.Second)
				ctx := metadata.AppendToOutgoingContext(ctxFor(t), append(x.md, dial.KeyRead, dial.ReadStale)...)
				s, err := w.as(1, x.files).NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, full)
				ok(t, err)
				_ = s.SendMsg(&emptypb.Empty{})
				_ = s.CloseSend()
				testbed.Within(t, testbed.Patience, "the follower asks the leader for its log index", asks)
				follower.set(func(r *replica) { r.lagging = false; r.store.Restore(w.group.now()) })
				code(t, s.RecvMsg(&anyMessage{}), codes.PermissionDenied)
			})
		}
	}
	if tried < 4 {
		t.Errorf("only %d API methods were called, want at least 4", tried)
	}
}

// TestACutOffReplicaServesNoPeople: a replica that had no leader for longer than rightsBound (10 s) may have missed
// revocations. It must end the streams of people and refuse their reads, but it must still answer calls for its own
// status and calls of agents.
func TestACutOffReplicaServesNoPeople(t *testing.T) {
	w := newOwnCA(t)
	ops := w.as(1, w.holds(pki.Identity{Role: pki.RoleUser, ID: "ops"}))
	gateway := w.as(1, w.holds(pki.Identity{Role: pki.RoleGateway, ID: "g"}))
	agent := w.as(1, w.holds(pki.Identity{Role: pki.RoleAgent, ID: "a"}))
	stale := controlv1.ReadLevel_READ_LEVEL_STALE
	behind := metadata.AppendToOutgoingContext(ctxFor(t), dial.KeyOnBehalf, "persys://home/user/ops")
	reads := map[string]func() error{
		"a user's list of workloads at the read level stale": func() error {
			return second(controlv1.NewAgentControlClient(ops).ListWorkloads(ctxFor(t), &controlv1.ListWorkloadsRequest{Level: stale}))
		},
		"a user's list of nodes without a read level, which gets a stale answer without a leader": func() error {
			return second(controlv1.NewAgentControlClient(ops).ListNodes(ctxFor(t), &controlv1.ListNodesRequest{}))
		},
		"a user's list of workloads through a gateway, at the read level stale": func() error {
			return second(controlv1.NewAgentControlClient(gateway).ListWorkloads(behind, &controlv1.ListWorkloadsRequest{Level: stale}))
		},
		"a gateway's own list of workloads, at the read level stale": func() error {
			return second(controlv1.NewAgentControlClient(gateway).ListWorkloads(ctxFor(t), &controlv1.ListWorkloadsRequest{Level: stale}))
		},
		"events": func() error {
			s, err := clusterv1.NewClusterClient(ops).Events(ctxFor(t), &clusterv1.EventsRequest{Tail: 1})
			ok(t, err)
			return second(s.Recv())
		},
		"a backup": func() error {
			s, err := clusterv1.NewClusterClient(w.as(1, w.holds(pki.Identity{Role: pki.RoleUser, ID: "admin"}))).CreateBackup(ctxFor(t), &clusterv1.CreateBackupRequest{})
			ok(t, err)
			return second(s.Recv())
		},
	}
	open, err := clusterv1.NewClusterClient(ops).Events(ctxFor(t), &clusterv1.EventsRequest{Tail: 1, Follow: true})
	ok(t, err)
	_, err = open.Recv()
	ok(t, err)
	session, err := controlv1.NewAgentControlClient(agent).ControlStream(ctxFor(t))
	ok(t, err)
	w.elect(-1)
	w.replicas[1].old(rightsBound / 2)
	for name, do := range reads {
		if err := do(); err != nil {
			t.Errorf("call %s soon after the loss of the leader must succeed, but returned %v", name, err)
		}
	}
	w.replicas[1].old(rightsBound)
	for name, do := range reads {
		if err := do(); status.Code(err) != codes.Unavailable || dial.Reason(err) != dial.ReasonNoLeader || !strings.Contains(err.Error(), "cut off") {
			t.Errorf("call %s at the cut-off replica returned %v, want Unavailable because it is cut off", name, err)
		}
	}
	for err = nil; err == nil; {
		_, err = open.Recv()
	}
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "cut off") {
		t.Errorf("the open stream ended with %v, want Unavailable because the replica is cut off", err)
	}
	_, err = clusterv1.NewClusterClient(ops).Status(ctxFor(t), &clusterv1.StatusRequest{})
	ok(t, err)
	_, err = healthpb.NewHealthClient(ops).Check(ctxFor(t), &healthpb.HealthCheckRequest{})
	ok(t, err)
	_, err = clusterv1.NewTrustClient(agent).Bundle(ctxFor(t), &clusterv1.BundleRequest{})
	ok(t, err)
	_, err = controlv1.NewAgentControlClient(agent).GetNode(ctxFor(t), &controlv1.GetNodeRequest{NodeId: "a", Level: stale})
	ok(t, err)
	w.elect(0)
	ok(t, session.Send(&controlv1.ControlMessage{Message: &controlv1.ControlMessage_Heartbeat{Heartbeat: &controlv1.HeartbeatRequest{NodeId: "a"}}}))
	m, err := session.Recv()
	ok(t, err)
	is(t, "heartbeat on the old session", m.GetHeartbeatResult().GetAcknowledged(), true)
	for name, do := range reads {
		if err := do(); err != nil {
			t.Errorf("call %s after a new leader was elected must succeed, but returned %v", name, err)
		}
	}
}

// TestARevokedUserOnACutOffReplica: a user is revoked while a replica is cut off from the leader. The replica must
// refuse the user at the latest when the last confirmation of its state by the leader is too old.
func TestARevokedUserOnACutOffReplica(t *testing.T) {
	w := newOwnCA(t)
	eve := w.holds(pki.Identity{Role: pki.RoleUser, ID: "eve"})
	cc := w.as(1, eve)
	list := func() error {
		return second(controlv1.NewAgentControlClient(cc).ListWorkloads(ctxFor(t), &controlv1.ListWorkloadsRequest{Level: controlv1.ReadLevel_READ_LEVEL_STALE}))
	}
	ok(t, list())
	w.replicas[1].set(func(r *replica) { r.lagging = true })
	_, err := w.admin(0).Revoke(ctxFor(t), &clusterv1.RevokeRequest{Role: "user", Name: "eve"})
	ok(t, err)
	w.elect(-1) // without a leader this replica is cut off from now on
	w.replicas[1].old(rightsBound)
	code(t, list(), codes.Unavailable)
	// The replica is connected again. It must learn of the revocation before it answers the user's next call.
	w.elect(0)
	w.replicas[1].set(func(r *replica) { r.lagging = false; r.store.Restore(w.group.now()) })
	code(t, list(), codes.Unauthenticated)
}
