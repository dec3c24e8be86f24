package rpc

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/rpc/dial"
)

// everyCall returns one valid call for each unary method of AgentControl and for each mutation of Cluster.
func everyCall(t testing.TB) map[string]func(context.Context, controlv1.AgentControlClient, clusterv1.ClusterClient, ...grpc.CallOption) (proto.Message, error) {
	return map[string]func(context.Context, controlv1.AgentControlClient, clusterv1.ClusterClient, ...grpc.CallOption) (proto.Message, error){
		"RegisterNode": func(ctx context.Context, c controlv1.AgentControlClient, _ clusterv1.ClusterClient, o ...grpc.CallOption) (proto.Message, error) {
			return c.RegisterNode(ctx, registration("n"), o...)
		},
		"Heartbeat": func(ctx context.Context, c controlv1.AgentControlClient, _ clusterv1.ClusterClient, o ...grpc.CallOption) (proto.Message, error) {
			return c.Heartbeat(ctx, &controlv1.HeartbeatRequest{NodeId: "a"}, o...)
		},
		"ApplyWorkload": func(ctx context.Context, c controlv1.AgentControlClient, _ clusterv1.ClusterClient, o ...grpc.CallOption) (proto.Message, error) {
			return c.ApplyWorkload(ctx, web("w"), o...)
		},
		"DeleteWorkload": func(ctx context.Context, c controlv1.AgentControlClient, _ clusterv1.ClusterClient, o ...grpc.CallOption) (proto.Message, error) {
			return c.DeleteWorkload(ctx, &controlv1.DeleteWorkloadRequest{WorkloadId: "web"}, o...)
		},
		"RetryWorkload": func(ctx context.Context, c controlv1.AgentControlClient, _ clusterv1.ClusterClient, o ...grpc.CallOption) (proto.Message, error) {
			return c.RetryWorkload(ctx, &controlv1.RetryWorkloadRequest{WorkloadId: "web"}, o...)
		},
		"SubmitAutomationSuggestion": func(ctx context.Context, c controlv1.AgentControlClient, _ clusterv1.ClusterClient, o ...grpc.CallOption) (proto.Message, error) {
			return c.SubmitAutomationSuggestion(ctx, &controlv1.SubmitAutomationSuggestionRequest{Suggestion: &controlv1.AutomationSuggestion{TargetWorkload: "web", ActionType: controlv1.AutomationActionType_AUTOMATION_ACTION_RETRY_WORKLOAD}}, o...)
		},
		"ListNodes": func(ctx context.Context, c controlv1.AgentControlClient, _ clusterv1.ClusterClient, o ...grpc.CallOption) (proto.Message, error) {
			return c.ListNodes(ctx, &controlv1.ListNodesRequest{}, o...)
		},
		"GetNode": func(ctx context.Context, c controlv1.AgentControlClient, _ clusterv1.ClusterClient, o ...grpc.CallOption) (proto.Message, error) {
			return c.GetNode(ctx, &controlv1.GetNodeRequest{NodeId: "a"}, o...)
		},
		"ListWorkloads": func(ctx context.Context, c controlv1.AgentControlClient, _ clusterv1.ClusterClient, o ...grpc.CallOption) (proto.Message, error) {
			return c.ListWorkloads(ctx, &controlv1.ListWorkloadsRequest{}, o...)
		},
		"GetWorkload": func(ctx context.Context, c controlv1.AgentControlClient, _ clusterv1.ClusterClient, o ...grpc.CallOption) (proto.Message, error) {
			return c.GetWorkload(ctx, &controlv1.GetWorkloadRequest{WorkloadId: "web"}, o...)
		},
		"GetClusterSummary": func(ctx context.Context, c controlv1.AgentControlClient, _ clusterv1.ClusterClient, o ...grpc.CallOption) (proto.Message, error) {
			return c.GetClusterSummary(ctx, &controlv1.GetClusterSummaryRequest{}, o...)
		},
		"ApplyWorkloads": func(ctx context.Context, _ controlv1.AgentControlClient, c clusterv1.ClusterClient, o ...grpc.CallOption) (proto.Message, error) {
			return c.ApplyWorkloads(ctx, &clusterv1.ApplyWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{web("w")}}, o...)
		},
		"PlanWorkloads": func(ctx context.Context, _ controlv1.AgentControlClient, c clusterv1.ClusterClient, o ...grpc.CallOption) (proto.Message, error) {
			return c.PlanWorkloads(ctx, &clusterv1.PlanWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{web("w")}}, o...)
		},
		"CordonNode": func(ctx context.Context, _ controlv1.AgentControlClient, c clusterv1.ClusterClient, o ...grpc.CallOption) (proto.Message, error) {
			return c.CordonNode(ctx, &clusterv1.CordonNodeRequest{NodeId: "a", On: true}, o...)
		},
		"DrainNode": func(ctx context.Context, _ controlv1.AgentControlClient, c clusterv1.ClusterClient, o ...grpc.CallOption) (proto.Message, error) {
			return c.DrainNode(ctx, &clusterv1.DrainNodeRequest{NodeId: "a", On: true}, o...)
		},
		"RemoveNode": func(ctx context.Context, _ controlv1.AgentControlClient, c clusterv1.ClusterClient, o ...grpc.CallOption) (proto.Message, error) {
			return c.RemoveNode(ctx, &clusterv1.RemoveNodeRequest{NodeId: "b"}, o...)
		},
		"SetMode": func(ctx context.Context, _ controlv1.AgentControlClient, c clusterv1.ClusterClient, o ...grpc.CallOption) (proto.Message, error) {
			return c.SetMode(ctx, &clusterv1.SetModeRequest{Mode: "degraded"}, o...)
		},
	}
}

func TestEveryReplicaAnswersEveryCall(t *testing.T) {
	for name, do := range everyCall(t) {
		for i, where := range []string{"leader", "follower"} {
			t.Run(name+" at the "+where, func(t *testing.T) {
				g := newGroup(t, 2)
				g.place("web", "a")
				var trailer metadata.MD
				resp, err := do(ctxFor(t), g.control(i), g.cluster(i), grpc.Trailer(&trailer))
				ok(t, err)
				switch r := resp.(type) {
				case interface{ GetSuccess() bool }:
					is(t, "success", r.GetSuccess(), true)
				case interface{ GetAccepted() bool }:
					is(t, "accepted", r.GetAccepted(), true)
				}
				leader := [...]string{"", g.replicas[0].addr}[i] // the leader itself sends no leader address
				is(t, "leader's address in the trailer", strings.Join(trailer.Get(dial.KeyLeader), " "), leader)
				is(t, "number of stale marks in the trailer", len(trailer.Get(dial.KeyStale)), 0)
			})
		}
		t.Run(name+" is never forwarded twice", func(t *testing.T) {
			g := newGroup(t, 2)
			_, err := do(with(t, dial.KeyHop, "1"), g.control(1), g.cluster(1))
			code(t, err, codes.Unavailable)
			is(t, "reason", dial.Reason(err), dial.ReasonNotLeader)
		})
	}
}

func TestCallsWaitForALeader(t *testing.T) {
	apply := func(t *testing.T, g *group, i int) (*controlv1.ApplyWorkloadResponse, error) {
		return g.control(i).ApplyWorkload(ctxFor(t), web("w"))
	}
	for _, c := range []struct {
		fact string
		fn   func(*testing.T, *group)
	}{
		{"without a leader, a mutation waits and then fails with NO_LEADER", func(t *testing.T, g *group) {
			g.elect(-1)
			began := time.Now()
			_, err := apply(t, g, 1)
			code(t, err, codes.Unavailable)
			is(t, "reason", dial.Reason(err), dial.ReasonNoLeader)
			if took := time.Since(began); took < holdWrites {
				t.Errorf("the mutation waited for a leader for %s, want %s", took, holdWrites)
			}
		}},
		{"a call that waits is answered by a leader that is elected meanwhile", func(t *testing.T, g *group) {
			g.elect(-1)
			time.AfterFunc(50*time.Millisecond, func() { g.elect(0) })
			r, err := apply(t, g, 1)
			ok(t, err)
			is(t, "success", r.GetSuccess(), true)
		}},
		{"a call that waits is answered if the called replica becomes the leader", func(t *testing.T, g *group) {
			g.elect(-1)
			time.AfterFunc(50*time.Millisecond, func() { g.elect(1) })
			_, err := apply(t, g, 1)
			ok(t, err)
		}},
		{"a heartbeat waits until the leadership term of the leader has begun", func(t *testing.T, g *group) {
			for i := range g.replicas {
				g.replicas[0].set(func(r *replica) { r.idle = true })
				time.AfterFunc(60*time.Millisecond, func() { g.replicas[0].set(func(r *replica) { r.idle = false }) })
				_, err := g.control(i).Heartbeat(ctxFor(t), &controlv1.HeartbeatRequest{NodeId: "a"})
				ok(t, err)
			}
		}},
		{"before its leadership term has begun, a new leader answers Unavailable and not NotFound for a node that its state lacks", func(t *testing.T, g *group) {
			for i := range g.replicas {
				g.replicas[0].set(func(r *replica) { r.idle = true })
				_, err := g.control(i).Heartbeat(ctxFor(t), &controlv1.HeartbeatRequest{NodeId: "late"})
				code(t, err, codes.Unavailable)
				g.replicas[0].set(func(r *replica) { r.idle = false })
				_, err = g.control(i).Heartbeat(ctxFor(t), &controlv1.HeartbeatRequest{NodeId: "late"})
				code(t, err, codes.NotFound)
			}
		}},
		{"a replica whose leadership term does not begin answers that it does not lead", func(t *testing.T, g *group) {
			g.replicas[0].set(func(r *replica) { r.idle = true })
			for i := range g.replicas {
				_, err := g.control(i).Heartbeat(ctxFor(t), &controlv1.HeartbeatRequest{NodeId: "a"})
				code(t, err, codes.Unavailable)
			}
		}},
		{"a call to a leader that has just been deposed is forwarded to the next leader", func(t *testing.T, g *group) {
			g.replicas[0].set(func(r *replica) {
				r.before = func(context.Context) error {
					g.elect(1)
					return fmt.Errorf("%w: deposed", ErrNotLeader)
				}
			})
			_, err := apply(t, g, 0)
			ok(t, err)
			is(t, "commits", g.puts(), 1)
		}},
		{"a follower does not wait for a leader that hangs", func(t *testing.T, g *group) {
			release := make(chan struct{})
			defer close(release)
			g.replicas[0].set(func(r *replica) {
				r.before = func(context.Context) error { <-release; return ErrNotLeader }
			})
			time.AfterFunc(50*time.Millisecond, func() { g.elect(1) })
			began := time.Now()
			_, err := apply(t, g, 1)
			ok(t, err)
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("the call to a hanging leader took %s, want an error at once", took)
			}
		}},
		{"a leader that cannot be reached causes NO_LEADER and not an unknown outcome", func(t *testing.T, g *group) {
			g.replicas[0].stopServer()
			_, err := apply(t, g, 1)
			code(t, err, codes.Unavailable)
			is(t, "reason", dial.Reason(err), dial.ReasonNoLeader)
		}},
		{"a call with an unknown outcome is repeated under the same request id", func(t *testing.T, g *group) {
			g.replicas[0].set(func(r *replica) { r.after = ErrUnknownOutcome })
			time.AfterFunc(60*time.Millisecond, func() { g.replicas[0].set(func(r *replica) { r.after = nil }) })
			for i := range g.replicas {
				r, err := apply(t, g, i)
				ok(t, err)
				is(t, "success", r.GetSuccess(), true)
			}
			if n := g.view().ReceiptCount(); n != 2 {
				t.Errorf("the state has %d receipts, want one for each call", n)
			}
			is(t, "repeated", g.puts() > 2, true)
		}},
		{"an outcome that stays unknown is returned", func(t *testing.T, g *group) {
			g.replicas[0].set(func(r *replica) { r.after = ErrUnknownOutcome })
			for i := range g.replicas {
				_, err := apply(t, g, i)
				is(t, "unknown outcome", dial.IsUnknownOutcome(err), true)
			}
		}},
		{"after an unknown outcome, a busy log does not settle the outcome", func(t *testing.T, g *group) {
			for i := range g.replicas {
				g.replicas[0].loseFirstAnswer(func() error { return ErrBusy })
				before := g.puts()
				_, err := apply(t, g, i)
				is(t, "unknown outcome", dial.IsUnknownOutcome(err), true)
				is(t, "number of commands that were committed after the outcome became unknown", g.puts()-before, 1)
			}
		}},
		{"after an unknown outcome, the receipt is found even in a mode that refuses changes", func(t *testing.T, g *group) {
			for i := range g.replicas {
				g.mode(fsm.ModeNormal)
				g.replicas[0].loseFirstAnswer(func() error { g.mode(fsm.ModeDegraded); return nil })
				r, err := apply(t, g, i)
				ok(t, err)
				is(t, "success", r.GetSuccess(), true)
			}
		}},
		{"after an unknown outcome, a replica that alone refuses writes does not settle the outcome", func(t *testing.T, g *group) {
			for i := range g.replicas {
				g.replicas[0].set(func(r *replica) {
					r.local, r.after = "", ErrUnknownOutcome
					r.before = func(context.Context) error {
						r.set(func(r *replica) { r.local = "its disk is full" })
						return nil
					}
				})
				_, err := apply(t, g, i)
				is(t, "unknown outcome", dial.IsUnknownOutcome(err), true)
			}
		}},
		{"after an unknown outcome, a refusal in the receipt is returned", func(t *testing.T, g *group) {
			for i := range g.replicas {
				g.replicas[0].set(func(r *replica) { r.after = ErrUnknownOutcome })
				time.AfterFunc(60*time.Millisecond, func() { g.replicas[0].set(func(r *replica) { r.after = nil }) })
				_, err := g.cluster(i).CordonNode(ctxFor(t), &clusterv1.CordonNodeRequest{NodeId: "nobody", On: true})
				code(t, err, codes.NotFound)
			}
		}},
		{"a call waits while the cluster is being formed", func(t *testing.T, g *group) {
			for i := range g.replicas {
				formed := g.now()
				for _, r := range g.replicas {
					r.store.Restore(fsm.New())
				}
				time.AfterFunc(60*time.Millisecond, func() {
					for _, r := range g.replicas {
						r.store.Restore(formed)
					}
				})
				r, err := apply(t, g, i)
				ok(t, err)
				is(t, "success", r.GetSuccess(), true)
				is(t, "message", r.GetErrorMessage(), "")
			}
		}},
		{"a transfer is made once, although it makes the leader step down", func(t *testing.T, g *group) {
			_, err := g.cluster(1).TransferLeadership(ctxFor(t), &clusterv1.TransferLeadershipRequest{Replica: "s1"})
			ok(t, err)
			is(t, "transfers", len(g.replicas[0].transfers)+len(g.replicas[1].transfers), 1)
		}},
		{"a replica is removed by its name, by the leader", func(t *testing.T, g *group) {
			_, err := g.cluster(1).RemoveReplica(ctxFor(t), &clusterv1.RemoveReplicaRequest{Replica: "s1"})
			ok(t, err)
			is(t, "removed", strings.Join(g.replicas[0].removals, " "), "id-s1")
			_, err = g.cluster(1).RemoveReplica(ctxFor(t), &clusterv1.RemoveReplicaRequest{Replica: "s1", Leave: true})
			ok(t, err)
			is(t, "replicas that the leader removed, and then asked to leave", strings.Join(g.replicas[0].removals, " "), "id-s1 leave id-s1")
			_, err = g.cluster(1).RemoveReplica(ctxFor(t), &clusterv1.RemoveReplicaRequest{Replica: "s1", Leave: true, Force: true})
			code(t, err, codes.InvalidArgument)
			_, err = g.cluster(1).RemoveReplica(ctxFor(t), &clusterv1.RemoveReplicaRequest{Replica: "s9"})
			code(t, err, codes.NotFound)
		}},
		{"a call fails at once if the log is busy", func(t *testing.T, g *group) {
			g.replicas[0].set(func(r *replica) { r.before = func(context.Context) error { return ErrBusy } })
			_, err := apply(t, g, 1)
			code(t, err, codes.ResourceExhausted)
		}},
		{"the deadline of the caller ends the wait for a leader", func(t *testing.T, g *group) {
			g.elect(-1)
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			began := time.Now()
			_, err := g.control(1).ApplyWorkload(ctx, web("w"))
			is(t, "failed", err != nil, true)
			if took := time.Since(began); took > holdWrites {
				t.Errorf("the call without a leader took %s, want the wait to end at the caller's deadline", took)
			}
		}},
	} {
		t.Run(c.fact, func(t *testing.T) { c.fn(t, newGroup(t, 2)) })
	}
}

func TestReadsFollowTheirLevel(t *testing.T) {
	get := func(t *testing.T, g *group, i int, req *controlv1.GetWorkloadRequest, pairs ...string) (*controlv1.GetWorkloadResponse, metadata.MD, error) {
		var md metadata.MD
		req.WorkloadId = "web"
		r, err := g.control(i).GetWorkload(with(t, pairs...), req, grpc.Trailer(&md))
		return r, md, err
	}
	for _, c := range []struct {
		fact string
		fn   func(*testing.T, *group)
	}{
		{"a follower that is behind forwards a read without a level to the leader", func(t *testing.T, g *group) {
			g.replicas[1].set(func(r *replica) { r.lagging = true })
			g.place("web", "a")
			r, _, err := get(t, g, 1, &controlv1.GetWorkloadRequest{})
			ok(t, err)
			is(t, "index", r.GetIndex(), g.view().Info().Index)
		}},
		{"a stale read is answered by the called replica, and marked", func(t *testing.T, g *group) {
			g.place("web", "a")
			g.elect(-1)
			g.replicas[1].set(func(r *replica) { r.contact = time.Now().Add(-5 * time.Second) })
			for name, req := range map[string]*controlv1.GetWorkloadRequest{
				"a level in the field": {Level: controlv1.ReadLevel_READ_LEVEL_STALE}, "a level in the metadata": {},
			} {
				var pairs []string
				if name == "a level in the metadata" {
					pairs = []string{dial.KeyRead, dial.ReadStale}
				}
				r, md, err := get(t, g, 1, req, pairs...)
				ok(t, err)
				is(t, name+": whether the response is marked stale", r.GetStale(), true)
				is(t, name+": whether the response has an age of at least 5 s", r.GetAgeMs() >= 5000, true)
				is(t, name+": trailer", strings.Join(md.Get(dial.KeyStale), ""), "true")
				is(t, name+": age in the trailer", len(md.Get(dial.KeyAgeMS)), 1)
			}
		}},
		{"a session read waits until its index is applied", func(t *testing.T, g *group) {
			g.replicas[1].set(func(r *replica) { r.lagging = true })
			g.place("web", "a")
			want := g.view().Info().Index
			time.AfterFunc(60*time.Millisecond, func() {
				g.replicas[1].set(func(r *replica) { r.lagging = false; r.store.Restore(g.now()) })
			})
			r, _, err := get(t, g, 1, &controlv1.GetWorkloadRequest{Level: controlv1.ReadLevel_READ_LEVEL_SESSION, MinIndex: want})
			ok(t, err)
			is(t, "index", r.GetIndex(), want)
			is(t, "stale", r.GetStale(), false)
		}},
		{"a session read for an index that is never reached ends with the caller's deadline", func(t *testing.T, g *group) {
			ctx, cancel := context.WithTimeout(context.Background(), 80*time.Millisecond)
			defer cancel()
			_, err := g.control(1).GetWorkload(metadata.AppendToOutgoingContext(ctx, dial.KeyRead, dial.ReadSession, dial.KeyIndex, "99999"), &controlv1.GetWorkloadRequest{WorkloadId: "web"})
			code(t, err, codes.DeadlineExceeded)
		}},
		{"after a while without a leader, a read without a level gets a stale answer", func(t *testing.T, g *group) {
			g.place("web", "a")
			g.elect(-1)
			began := time.Now()
			r, md, err := get(t, g, 1, &controlv1.GetWorkloadRequest{})
			ok(t, err)
			is(t, "stale", r.GetStale(), true)
			is(t, "trailer", strings.Join(md.Get(dial.KeyStale), ""), "true")
			if took := time.Since(began); took > 2*holdReads {
				t.Errorf("the read waited for a leader for %s, want at most %s", took, 2*holdReads)
			}
		}},
		{"without a leader, a linearizable read fails", func(t *testing.T, g *group) {
			g.place("web", "a")
			g.elect(-1)
			_, _, err := get(t, g, 1, &controlv1.GetWorkloadRequest{}, dial.KeyRead, dial.ReadLinearizable)
			code(t, err, codes.Unavailable)
			is(t, "reason", dial.Reason(err), dial.ReasonNoLeader)
		}},
		{"if there has been no leader for long, calls do not wait", func(t *testing.T, g *group) {
			g.place("web", "a")
			g.elect(-1)
			g.replicas[1].set(func(r *replica) { r.contact = time.Now().Add(-time.Minute) })
			began := time.Now()
			_, _, err := get(t, g, 1, &controlv1.GetWorkloadRequest{})
			ok(t, err)
			if took := time.Since(began); took > holdReads/2 {
				t.Errorf("the read waited for a leader for %s, want an answer at once", took)
			}
		}},
		{"a read has no unknown outcome if the leader dies", func(t *testing.T, g *group) {
			g.place("web", "a")
			g.replicas[0].stopServer()
			r, _, err := get(t, g, 1, &controlv1.GetWorkloadRequest{})
			ok(t, err)
			is(t, "stale", r.GetStale(), true)
		}},
		{"an unknown consistency level is refused", func(t *testing.T, g *group) {
			_, _, err := get(t, g, 0, &controlv1.GetWorkloadRequest{}, dial.KeyRead, "fresh")
			code(t, err, codes.InvalidArgument)
			_, _, err = get(t, g, 0, &controlv1.GetWorkloadRequest{}, dial.KeyRead, dial.ReadSession, dial.KeyIndex, "soon")
			code(t, err, codes.InvalidArgument)
		}},
		{"an unknown id is NotFound on every replica", func(t *testing.T, g *group) {
			for i := range g.replicas {
				_, _, err := get(t, g, i, &controlv1.GetWorkloadRequest{})
				code(t, err, codes.NotFound)
				_, err = g.control(i).GetNode(ctxFor(t), &controlv1.GetNodeRequest{NodeId: "x"})
				code(t, err, codes.NotFound)
				_, err = g.control(i).GetNode(ctxFor(t), &controlv1.GetNodeRequest{NodeId: " "})
				code(t, err, codes.InvalidArgument)
				_, err = g.control(i).GetWorkload(ctxFor(t), &controlv1.GetWorkloadRequest{})
				code(t, err, codes.InvalidArgument)
			}
		}},
		{"lists can be filtered and read page by page", func(t *testing.T, g *group) {
			for i := range 5 {
				g.place(fmt.Sprintf("w%d", i), []string{"a", "b"}[i%2])
			}
			page, err := g.control(0).ListWorkloads(ctxFor(t), &controlv1.ListWorkloadsRequest{PageSize: 2})
			ok(t, err)
			is(t, "page", len(page.GetWorkloads()), 2)
			page, err = g.control(0).ListWorkloads(ctxFor(t), &controlv1.ListWorkloadsRequest{PageSize: 3, PageToken: page.GetNextPageToken()})
			ok(t, err)
			is(t, "first workload of the next page", page.GetWorkloads()[0].GetWorkloadId(), "w2")
			is(t, "token of the last page", page.GetNextPageToken(), "")
			g.put(t, func() *controlv1.ApplyWorkloadRequest { r := web("findme"); r.Spec.Group = "Front"; return r }(), "a")
			for word, want := range map[string]int{"FIND": 1, "front": 1, "nginx:": 1, "nowhere": 0} {
				found, err := g.control(0).ListWorkloads(ctxFor(t), &controlv1.ListWorkloadsRequest{Search: word, PageSize: 10})
				ok(t, err)
				is(t, "number of workloads found by the word "+word, len(found.GetWorkloads()), want)
			}
			on, err := g.control(0).ListWorkloads(ctxFor(t), &controlv1.ListWorkloadsRequest{NodeId: "b", Status: "scheduled"})
			ok(t, err)
			is(t, "number of workloads on node b", len(on.GetWorkloads()), 2)
			g.put(t, func() *controlv1.ApplyWorkloadRequest { r := web("once"); r.Spec.Kind = "job"; return r }(), "")
			for kind, want := range map[string]int{"Job": 1, "service": 6, "": 7} {
				of, err := g.control(0).ListWorkloads(ctxFor(t), &controlv1.ListWorkloadsRequest{Kind: kind})
				ok(t, err)
				is(t, "workloads of kind "+kind, len(of.GetWorkloads()), want)
			}
			for _, bad := range []struct {
				req  *controlv1.ListWorkloadsRequest
				want string
			}{
				{&controlv1.ListWorkloadsRequest{PageSize: -1}, "page_size -1"},
				{&controlv1.ListWorkloadsRequest{PageToken: "a/b"}, `page_token "a/b" must be the next_page_token`},
				{&controlv1.ListWorkloadsRequest{Kind: "jobs"}, `kind "jobs" must be one of service, job, cron, system`},
				{&controlv1.ListWorkloadsRequest{Status: "Runing"}, `status "Runing" must be one of Pending, Scheduled, Updating, Running,`},
			} {
				_, err = g.control(0).ListWorkloads(ctxFor(t), bad.req)
				says(t, err, codes.InvalidArgument, bad.want)
			}
			for _, legacy := range []string{"Active", "unknown"} {
				_, err = g.control(0).ListNodes(ctxFor(t), &controlv1.ListNodesRequest{Status: legacy})
				ok(t, err)
			}
			_, err = g.control(0).ListNodes(ctxFor(t), &controlv1.ListNodesRequest{Status: "Running"})
			says(t, err, codes.InvalidArgument, "must be one of Ready, NotReady, Draining")
			nodes, err := g.control(0).ListNodes(ctxFor(t), &controlv1.ListNodesRequest{Status: "notready"})
			ok(t, err)
			is(t, "number of nodes that are not ready", len(nodes.GetNodes()), 0)
		}},
		{"the summary has the numbers of nodes and workloads", func(t *testing.T, g *group) {
			g.place("web", "a")
			g.place("api", "")
			s, err := g.control(1).GetClusterSummary(ctxFor(t), &controlv1.GetClusterSummaryRequest{})
			ok(t, err)
			is(t, "nodes", s.GetTotalNodes(), 2)
			is(t, "ready", s.GetReadyNodes(), 2)
			is(t, "workloads", s.GetTotalWorkloads(), 2)
			is(t, "scheduled", s.GetScheduledWorkloads(), 1)
			is(t, "pending", s.GetPendingWorkloads(), 1)
			is(t, "leader", s.GetLeaderId(), "s0")
			is(t, "CPU", s.GetTotalCpuMillicores(), 16000)
			is(t, "reserved CPU", s.GetReservedCpuMillicores(), 1)
			is(t, "memory", s.GetTotalMemoryMb(), 16384)
			is(t, "mode", s.GetMode(), "normal")
		}},
	} {
		t.Run(c.fact, func(t *testing.T) { c.fn(t, newGroup(t, 2)) })
	}
}

// TestAnUnreachableAgentDoesNotCauseARepetition: a follower forwards a call to the leader, and the leader cannot reach
// the agent. The follower must return this error and must not send the call to the leader again.
func TestAnUnreachableAgentDoesNotCauseARepetition(t *testing.T) {
	for i, where := range []string{"leader", "follower"} {
		t.Run(where, func(t *testing.T) {
			g := newGroup(t, 2)
			before := len(kept(g))
			_, err := g.cluster(i).CollectGarbage(ctxFor(t), &clusterv1.CollectGarbageRequest{NodeId: "a"})
			is(t, "reason", dial.Reason(err), dial.ReasonNoAgent)
			is(t, "whether this error text names a leader: "+status.Convert(err).Message(), strings.Contains(status.Convert(err).Message(), "leader"), false)
			is(t, "number of audit events: one for the request and one for its failure", len(kept(g))-before, 2)
		})
	}
}
