package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
)

func TestApplyWorkloadAcceptsAndRefuses(t *testing.T) {
	desired := func(id, state string) *controlv1.ApplyWorkloadRequest {
		return &controlv1.ApplyWorkloadRequest{WorkloadId: id, DesiredState: state}
	}
	for _, c := range []struct {
		fact    string
		frozen  bool
		req     *controlv1.ApplyWorkloadRequest
		code    codes.Code
		success bool
		reason  controlv1.FailureReason
		says    string
	}{
		{"a valid apply is committed", false, web("w"), codes.OK, true, 0, ""},
		{"an apply with a blank id is an invalid argument", false, web("  "), codes.InvalidArgument, false, 0, "workload_id"},
		{"an apply with an invalid specification is refused in the response", false, &controlv1.ApplyWorkloadRequest{WorkloadId: "w", Spec: &controlv1.WorkloadSpec{Type: "zeppelin"}}, codes.OK, false, controlv1.FailureReason_INVALID_SPEC, "zeppelin"},
		{"an apply with a malformed id is refused in the response", false, web("a/b"), codes.OK, false, controlv1.FailureReason_INVALID_SPEC, "a/b"},
		{"a stop of a known workload is committed", false, desired("web", "STOP"), codes.OK, true, 0, ""},
		{"a stop of an unknown workload is refused in the response", false, desired("x", "Stopped"), codes.OK, false, controlv1.FailureReason_RUNTIME_ERROR, "x"},
		{"a delete by desired state is committed", false, desired("web", "deleted"), codes.OK, true, 0, ""},
		{"in a mode that refuses changes, an apply is refused in the response", true, web("w"), codes.OK, false, controlv1.FailureReason_RUNTIME_ERROR, "degraded"},
		{"in a mode that refuses changes, an invalid apply is refused because of the mode", true, web(""), codes.OK, false, controlv1.FailureReason_RUNTIME_ERROR, "degraded"},
		{"a malformed request id is an invalid argument", false, func() *controlv1.ApplyWorkloadRequest { r := web("w"); r.RequestId = "42"; return r }(), codes.InvalidArgument, false, 0, "request_id"},
		{"a request id of another version is an invalid argument", false, func() *controlv1.ApplyWorkloadRequest { r := web("w"); r.RequestId = uuid.NewString(); return r }(), codes.InvalidArgument, false, 0, "version 7"},
	} {
		for i, where := range []string{"leader", "follower"} {
			t.Run(c.fact+" at the "+where, func(t *testing.T) {
				g := newGroup(t, 2)
				g.place("web", "a")
				if c.frozen {
					g.mode(fsm.ModeDegraded)
				}
				r, err := g.control(i).ApplyWorkload(ctxFor(t), proto.CloneOf(c.req))
				code(t, err, c.code)
				is(t, "success", r.GetSuccess(), c.success)
				is(t, "reason", r.GetFailureReason(), c.reason)
				said := r.GetErrorMessage()
				if err != nil {
					said = err.Error()
				}
				if !strings.Contains(said, c.says) {
					t.Errorf("the apply returned error %q, want an error that contains %q", said, c.says)
				}
			})
		}
	}
}

func TestOtherMutationsAcceptAndRefuse(t *testing.T) {
	type answer struct {
		done bool
		says string
	}
	del := func(id string) func(context.Context, *group) (answer, error) {
		return func(ctx context.Context, g *group) (answer, error) {
			r, err := g.control(1).DeleteWorkload(ctx, &controlv1.DeleteWorkloadRequest{WorkloadId: id})
			return answer{r.GetSuccess(), r.GetErrorMessage()}, err
		}
	}
	retry := func(id string) func(context.Context, *group) (answer, error) {
		return func(ctx context.Context, g *group) (answer, error) {
			r, err := g.control(1).RetryWorkload(ctx, &controlv1.RetryWorkloadRequest{WorkloadId: id})
			return answer{r.GetAccepted(), r.GetReason()}, err
		}
	}
	suggest := func(s *controlv1.AutomationSuggestion) func(context.Context, *group) (answer, error) {
		return func(ctx context.Context, g *group) (answer, error) {
			r, err := g.control(1).SubmitAutomationSuggestion(ctx, &controlv1.SubmitAutomationSuggestionRequest{Suggestion: s})
			if err == nil {
				want := map[bool]string{true: "accepted", false: "rejected"}[r.GetAccepted()]
				is(g.t, "decision", r.GetDecision(), want)
				is(g.t, "whether the answer has an action", r.GetAppliedAction() != "", r.GetAccepted())
				is(g.t, "whether the answer has a time", r.GetDecidedAt().IsValid(), true)
			}
			return answer{r.GetAccepted(), r.GetReason()}, err
		}
	}
	action := func(id string, a controlv1.AutomationActionType) *controlv1.AutomationSuggestion {
		return &controlv1.AutomationSuggestion{TargetWorkload: id, ActionType: a, Reason: "why not"}
	}
	const (
		set    = controlv1.AutomationActionType_AUTOMATION_ACTION_SET_DESIRED_STATE
		again  = controlv1.AutomationActionType_AUTOMATION_ACTION_RETRY_WORKLOAD
		remove = controlv1.AutomationActionType_AUTOMATION_ACTION_DELETE_WORKLOAD
		scale  = controlv1.AutomationActionType_AUTOMATION_ACTION_SCALE_REPLICAS
	)
	for _, c := range []struct {
		fact   string
		frozen bool
		do     func(context.Context, *group) (answer, error)
		code   codes.Code
		done   bool
		says   string
	}{
		{"a delete marks the workload for deletion", false, del("web"), codes.OK, true, ""},
		{"a delete of an unknown id is refused in the response", false, del("x"), codes.OK, false, "x"},
		{"a delete of a blank id is an invalid argument", false, del(" "), codes.InvalidArgument, false, ""},
		{"in a mode that refuses changes, an invalid delete is refused because of the mode", true, del(""), codes.OK, false, "degraded"},
		{"a retry is accepted", false, retry("web"), codes.OK, true, ""},
		{"a retry of an unknown id is refused in the response", false, retry("x"), codes.OK, false, "x"},
		{"a retry of a blank id is an invalid argument", false, retry(""), codes.InvalidArgument, false, ""},
		{"in a mode that refuses changes, an invalid retry is refused because of the mode", true, retry(""), codes.OK, false, "degraded"},
		{"a request without a suggestion is an invalid argument", false, suggest(nil), codes.InvalidArgument, false, ""},
		{"in a mode that refuses changes, an invalid suggestion is refused because of the mode", true, suggest(nil), codes.OK, false, "degraded"},
		{"a suggestion without a target is rejected", false, suggest(action(" ", set)), codes.OK, false, "target"},
		{"a suggestion to set a desired state is carried out", false, suggest(action("web", set)), codes.OK, true, "why not"},
		{"a suggestion to retry is carried out", false, suggest(action("web", again)), codes.OK, true, ""},
		{"a suggestion to delete is carried out", false, suggest(action("web", remove)), codes.OK, true, ""},
		{"a suggestion to scale without a number is rejected", false, suggest(action("web", scale)), codes.OK, false, "replica_delta"},
		{"a suggestion without an action is rejected", false, suggest(action("web", 0)), codes.OK, false, "action_type"},
		{"a suggestion about an unknown id is rejected", false, suggest(action("x", remove)), codes.OK, false, "x"},
	} {
		t.Run(c.fact, func(t *testing.T) {
			g := newGroup(t, 2)
			g.place("web", "a")
			if c.frozen {
				g.mode(fsm.ModeDegraded)
			}
			a, err := c.do(ctxFor(t), g)
			code(t, err, c.code)
			is(t, "done", a.done, c.done)
			if err == nil && !strings.Contains(a.says, c.says) {
				t.Errorf("the call returned the reason %q, want a reason that contains %q", a.says, c.says)
			}
		})
	}
}

func TestAReplicaThatIsFrozenByItselfRefuses(t *testing.T) {
	g := newGroup(t, 1)
	g.replicas[0].set(func(r *replica) { r.local = "its disk is full" })
	r, err := g.control(0).ApplyWorkload(ctxFor(t), web("w"))
	ok(t, err)
	is(t, "message", r.GetErrorMessage(), "its disk is full")
	_, err = g.cluster(0).CordonNode(ctxFor(t), &clusterv1.CordonNodeRequest{NodeId: "a", On: true})
	code(t, err, codes.FailedPrecondition)
}

func TestRequestIDsMakeCallsRepeatable(t *testing.T) {
	for _, c := range []struct {
		fact string
		fn   func(*testing.T, *group)
	}{
		{"a repeated request gets the first answer again", func(t *testing.T, g *group) {
			req := web("w")
			req.RequestId = requestID(t)
			first, err := g.control(1).ApplyWorkload(ctxFor(t), req)
			ok(t, err)
			g.place("x", "")
			again, err := g.control(0).ApplyWorkload(ctxFor(t), req)
			ok(t, err)
			is(t, "the same answer", proto.Equal(first, again), true)
		}},
		{"a request id in the metadata is used, also by a follower", func(t *testing.T, g *group) {
			id := requestID(t)
			for range 2 {
				_, err := g.control(1).ApplyWorkload(with(t, dial.KeyRequestID, id), web("w"))
				ok(t, err)
			}
			is(t, "receipts", g.view().ReceiptCount(), 1)
			_, found := g.view().Receipt([16]byte(uuid.MustParse(id)), 0)
			is(t, "under that id", found, true)
		}},
		{"each call of a peer that sends no request id gets a new id", func(t *testing.T, g *group) {
			for range 2 {
				_, err := g.control(1).DeleteWorkload(ctxFor(t), &controlv1.DeleteWorkloadRequest{WorkloadId: "web"})
				ok(t, err)
			}
			is(t, "receipts", g.view().ReceiptCount(), 2)
		}},
		{"a request id from a clock that is far ahead is refused", func(t *testing.T, g *group) {
			old := uuid.Must(uuid.NewV7())
			copy(old[:6], []byte{0x7f, 0, 0, 0, 0, 0}) // this sets the time in the request id far into the future
			req := web("w")
			req.RequestId = old.String()
			r, err := g.control(0).ApplyWorkload(ctxFor(t), req)
			ok(t, err)
			is(t, "success", r.GetSuccess(), false)
		}},
		{"members of a group keep their ids when other members are deleted", func(t *testing.T, g *group) {
			req := web("grp")
			req.Spec.Count = new(int32(3))
			r, err := g.control(0).ApplyWorkload(ctxFor(t), req)
			ok(t, err)
			is(t, "members", strings.Join(r.GetWorkloadIds(), " "), "grp-0 grp-1 grp-2")
			del := &controlv1.DeleteWorkloadRequest{WorkloadId: "grp", RequestId: requestID(t)}
			var ids [2][]string
			for i := range ids {
				s := g.replicas[0].server
				cmds, err := s.deleteCommands(context.Background(), "grp", false, false, "", del.RequestId)
				ok(t, err)
				is(t, "whether the last command is a barrier", cmds[len(cmds)-1].GetBarrier() != nil, true)
				for _, c := range cmds[:len(cmds)-1] {
					ids[i] = append(ids[i], c.GetDeleteWorkload().GetId()+fmt.Sprintf(" %x", c.GetHead().GetRequest()))
				}
				// The first member of the group is removed between the two attempts of the call.
				_, err = g.control(0).DeleteWorkload(ctxFor(t), &controlv1.DeleteWorkloadRequest{WorkloadId: "grp-0", Force: true})
				ok(t, err)
			}
			is(t, "first attempt", len(ids[0]), 3)
			requests := map[string]bool{}
			for _, id := range ids[0] {
				_, request, _ := strings.Cut(id, " ")
				requests[request] = true
			}
			is(t, "distinct ids", len(requests), 3)
			is(t, "the remaining members keep their ids", strings.Join(ids[1], ","), strings.Join(ids[0][1:], ","))
		}},
		{"a repeated delete of a group gets the first answer, although the group no longer exists", func(t *testing.T, g *group) {
			req := web("grp")
			req.Spec.Count = new(int32(2))
			_, err := g.control(0).ApplyWorkload(ctxFor(t), req)
			ok(t, err)
			del := &controlv1.DeleteWorkloadRequest{WorkloadId: "grp", RequestId: requestID(t)}
			for _, attempt := range []string{"first", "again"} {
				r, err := g.control(1).DeleteWorkload(ctxFor(t), del)
				ok(t, err)
				is(t, attempt+": success", r.GetSuccess(), true)
				is(t, attempt+": message", r.GetErrorMessage(), "")
				is(t, "number of workloads after the delete of the group", g.view().WorkloadCount(), 1)
			}
			r, err := g.control(1).DeleteWorkload(ctxFor(t), &controlv1.DeleteWorkloadRequest{WorkloadId: "grp"})
			ok(t, err)
			is(t, "another request: success", r.GetSuccess(), false)
		}},
		{"a deposed leader does not select the members of a group", func(t *testing.T, g *group) {
			g.replicas[0].before = func(context.Context) error { return ErrNotLeader }
			_, _, err := g.replicas[0].server.targets(context.Background(), "grp")
			is(t, "error", errors.Is(err, ErrNotLeader), true)
		}},
	} {
		t.Run(c.fact, func(t *testing.T) {
			g := newGroup(t, 2)
			g.place("web", "a")
			c.fn(t, g)
		})
	}
}

func TestApplyWorkloadsAnswersEachRequest(t *testing.T) {
	g := newGroup(t, 2)
	req := &clusterv1.ApplyWorkloadsRequest{RequestId: requestID(t), Workloads: []*controlv1.ApplyWorkloadRequest{
		web("w0"), {WorkloadId: "bad", Spec: &controlv1.WorkloadSpec{Type: "zeppelin"}}, web(""), web("w3"), {WorkloadId: "w0", DesiredState: "stopped"},
	}}
	r, err := g.cluster(1).ApplyWorkloads(ctxFor(t), req)
	ok(t, err)
	var got []string
	for _, one := range r.GetResults() {
		got = append(got, fmt.Sprint(one.GetSuccess()))
	}
	is(t, "verdicts", strings.Join(got, " "), "true false false true true")
	is(t, "index", r.GetIndex(), g.view().Info().Index)
	is(t, "receipts", g.view().ReceiptCount(), 3)

	again, err := g.cluster(0).ApplyWorkloads(ctxFor(t), req)
	ok(t, err)
	is(t, "number of receipts after the call was repeated", g.view().ReceiptCount(), 3)
	is(t, "generation of the first workload in the answer to the repeated call", again.GetResults()[0].GetGeneration().GetSequence(), r.GetResults()[0].GetGeneration().GetSequence())

	for _, n := range []int{0, maxBatch + 1} {
		_, err := g.cluster(0).ApplyWorkloads(ctxFor(t), &clusterv1.ApplyWorkloadsRequest{Workloads: make([]*controlv1.ApplyWorkloadRequest, n)})
		code(t, err, codes.InvalidArgument)
	}
}

func TestApplyStreamAnswersInOrder(t *testing.T) {
	for i, where := range []string{"leader", "follower"} {
		t.Run("answers come in the order of the requests at the "+where, func(t *testing.T) {
			g := newGroup(t, 2)
			s, err := g.cluster(i).ApplyStream(ctxFor(t))
			ok(t, err)
			const n = 700
			go func() {
				for i := range n {
					m := &clusterv1.ApplyStreamRequest{CorrelationId: fmt.Sprint(i), Apply: web(fmt.Sprintf("w%d", i))}
					if i%7 == 3 {
						m.Apply = nil
					}
					if s.Send(m) != nil {
						return
					}
				}
				_ = s.CloseSend()
			}()
			for i := range n {
				r, err := s.Recv()
				ok(t, err)
				if r.GetCorrelationId() != fmt.Sprint(i) || r.GetResult().GetSuccess() != (i%7 != 3) {
					t.Fatalf("answer number %d on the stream is %v, want the answer to request number %d", i, r, i)
				}
			}
			_, err = s.Recv()
			is(t, "end", errors.Is(err, io.EOF), true)
		})
	}
	t.Run("without a leader, every request of a stream fails with that reason", func(t *testing.T) {
		g := newGroup(t, 2)
		g.elect(-1)
		s, err := g.cluster(1).ApplyStream(ctxFor(t))
		ok(t, err)
		ok(t, s.Send(&clusterv1.ApplyStreamRequest{CorrelationId: "1", Apply: web("w")}))
		r, err := s.Recv()
		ok(t, err)
		is(t, "code", codes.Code(r.GetErrorCode()), codes.Unavailable)
		ok(t, s.CloseSend())
		_, err = s.Recv()
		is(t, "end", errors.Is(err, io.EOF), true)
	})
}

func TestControlStreamAnswersInOrder(t *testing.T) {
	of := func(change func(*controlv1.RegisterNodeRequest)) *controlv1.RegisterNodeRequest {
		r := registration("n")
		change(r)
		return r
	}
	for i, where := range []string{"leader", "follower"} {
		t.Run(where, func(t *testing.T) {
			g := newGroup(t, 2)
			s, err := g.control(i).ControlStream(ctxFor(t))
			ok(t, err)
			for _, c := range []struct {
				msg  *controlv1.ControlMessage
				want func(*controlv1.ControlMessage) bool
			}{
				{&controlv1.ControlMessage{Message: &controlv1.ControlMessage_Register{Register: registration("n")}}, func(m *controlv1.ControlMessage) bool { return m.GetRegisterResult().GetAccepted() }},
				{&controlv1.ControlMessage{Message: &controlv1.ControlMessage_Heartbeat{Heartbeat: &controlv1.HeartbeatRequest{NodeId: "n"}}}, func(m *controlv1.ControlMessage) bool { return m.GetHeartbeatResult().GetAcknowledged() }},
				{&controlv1.ControlMessage{Message: &controlv1.ControlMessage_Heartbeat{Heartbeat: &controlv1.HeartbeatRequest{NodeId: "x"}}}, func(m *controlv1.ControlMessage) bool {
					return codes.Code(m.GetError().GetCode()) == codes.NotFound
				}},
				{&controlv1.ControlMessage{Message: &controlv1.ControlMessage_Heartbeat{Heartbeat: &controlv1.HeartbeatRequest{NodeId: "n", ClusterId: "c2"}}}, func(m *controlv1.ControlMessage) bool {
					return codes.Code(m.GetError().GetCode()) == codes.FailedPrecondition && strings.Contains(m.GetError().GetMessage(), "belongs to cluster c2, this is cluster c1")
				}},
				{&controlv1.ControlMessage{Message: &controlv1.ControlMessage_Register{Register: of(func(r *controlv1.RegisterNodeRequest) { r.ClusterId = "c2" })}}, func(m *controlv1.ControlMessage) bool {
					return !m.GetRegisterResult().GetAccepted() && strings.Contains(m.GetRegisterResult().GetReason(), "belongs to cluster c2, this is cluster c1")
				}},
				{&controlv1.ControlMessage{Message: &controlv1.ControlMessage_Register{Register: of(func(r *controlv1.RegisterNodeRequest) { r.Shard = "west" })}}, func(m *controlv1.ControlMessage) bool {
					return !m.GetRegisterResult().GetAccepted() && strings.Contains(m.GetRegisterResult().GetReason(), "belongs to shard west, this is shard default of cluster c1")
				}},
				{&controlv1.ControlMessage{Message: &controlv1.ControlMessage_Apply{Apply: web("w")}}, func(m *controlv1.ControlMessage) bool { return m.GetApplyResult().GetSuccess() }},
				{&controlv1.ControlMessage{}, func(m *controlv1.ControlMessage) bool {
					return codes.Code(m.GetError().GetCode()) == codes.InvalidArgument
				}},
				{&controlv1.ControlMessage{Message: &controlv1.ControlMessage_Delete{Delete: &controlv1.DeleteWorkloadRequest{WorkloadId: "w"}}}, func(m *controlv1.ControlMessage) bool { return m.GetDeleteResult().GetSuccess() }},
				{&controlv1.ControlMessage{Message: &controlv1.ControlMessage_Delete{Delete: &controlv1.DeleteWorkloadRequest{}}}, func(m *controlv1.ControlMessage) bool {
					return codes.Code(m.GetError().GetCode()) == codes.InvalidArgument
				}},
			} {
				c.msg.CorrelationId = requestID(t)
				ok(t, s.Send(c.msg))
				m, err := s.Recv()
				ok(t, err)
				is(t, "correlation id", m.GetCorrelationId(), c.msg.CorrelationId)
				if !c.want(m) {
					t.Errorf("message %v on the control stream got an answer that the case does not expect: %v", c.msg, m)
				}
			}
			// The client sends all messages at once. The answers must arrive one by one, in the same order.
			for n := range 50 {
				ok(t, s.Send(&controlv1.ControlMessage{CorrelationId: fmt.Sprint(n), Message: &controlv1.ControlMessage_Apply{Apply: web(fmt.Sprintf("w%d", n))}}))
			}
			ok(t, s.CloseSend())
			for n := range 50 {
				m, err := s.Recv()
				ok(t, err)
				is(t, "correlation id", m.GetCorrelationId(), fmt.Sprint(n))
			}
			_, err = s.Recv()
			is(t, "end", errors.Is(err, io.EOF), true)
		})
	}
}

func TestNodeActionsChangeTheNode(t *testing.T) {
	g := newGroup(t, 2)
	g.place("web", "a")
	r, err := g.cluster(1).CordonNode(ctxFor(t), &clusterv1.CordonNodeRequest{NodeId: "a", On: true})
	ok(t, err)
	is(t, "cordoned", r.GetNode().GetCordoned(), true)
	is(t, "index", r.GetIndex(), g.view().Info().Index)

	before := g.view().Info().Index
	p, err := g.cluster(1).DrainNode(ctxFor(t), &clusterv1.DrainNodeRequest{NodeId: "a", On: true, Preview: true})
	ok(t, err)
	is(t, "moves", len(p.GetMoves()), 1)
	is(t, "where to", p.GetMoves()[0].GetToNodeId(), "b")
	is(t, "log entries of a preview", g.view().Info().Index-before, 0)
	d, err := g.cluster(0).DrainNode(ctxFor(t), &clusterv1.DrainNodeRequest{NodeId: "a", On: true})
	ok(t, err)
	is(t, "status", d.GetNode().GetStatus(), "Draining")
	jobsMayStay := func(want time.Duration, deadline *uint32) {
		t.Helper()
		n, err := g.cluster(0).DrainNode(ctxFor(t), &clusterv1.DrainNodeRequest{NodeId: "a", On: true, DeadlineSeconds: deadline})
		ok(t, err)
		left := time.Duration(0)
		if until := n.GetNode().GetJobsUntil(); until != nil {
			left = until.AsTime().Sub(time.Unix(0, g.view().Info().Clock))
		}
		if left > want || want-left > time.Minute {
			t.Errorf("running jobs may stay on the draining node for %s, want %s", left, want)
		}
	}
	jobsMayStay(time.Hour, nil)
	jobsMayStay(3*time.Hour, new(uint32(3*3600)))
	jobsMayStay(3*time.Hour, nil)
	jobsMayStay(0, new(uint32(0)))
	_, err = g.cluster(0).DrainNode(ctxFor(t), &clusterv1.DrainNodeRequest{NodeId: "a", DeadlineSeconds: new(uint32(60))})
	code(t, err, codes.InvalidArgument)
	_, err = g.cluster(0).DrainNode(ctxFor(t), &clusterv1.DrainNodeRequest{NodeId: "a", On: true, DeadlineSeconds: new(uint32(30*86400 + 1))})
	code(t, err, codes.InvalidArgument)

	_, err = g.cluster(0).RemoveNode(ctxFor(t), &clusterv1.RemoveNodeRequest{NodeId: "a"})
	code(t, err, codes.FailedPrecondition)
	_, err = g.cluster(0).FenceNode(ctxFor(t), &clusterv1.FenceNodeRequest{NodeId: "a"})
	code(t, err, codes.FailedPrecondition)
	_, err = g.cluster(0).CordonNode(ctxFor(t), &clusterv1.CordonNodeRequest{NodeId: "x"})
	code(t, err, codes.NotFound)
	for _, err := range []error{
		second(g.cluster(0).CordonNode(ctxFor(t), &clusterv1.CordonNodeRequest{})),
		second(g.cluster(0).DrainNode(ctxFor(t), &clusterv1.DrainNodeRequest{})),
		second(g.cluster(0).RemoveNode(ctxFor(t), &clusterv1.RemoveNodeRequest{})),
		second(g.cluster(0).FenceNode(ctxFor(t), &clusterv1.FenceNodeRequest{})),
		second(g.cluster(0).SetMode(ctxFor(t), &clusterv1.SetModeRequest{Mode: "party"})),
	} {
		code(t, err, codes.InvalidArgument)
	}
}

func second[T any](_ T, err error) error { return err }

func TestMessagesOverTheLimitAreRefused(t *testing.T) {
	g := newGroup(t, 1)
	req := web("w")
	req.Spec.Metadata = map[string]string{"k": strings.Repeat("x", maxMessage+1)}
	_, err := g.control(0).ApplyWorkload(ctxFor(t), req)
	code(t, err, codes.ResourceExhausted)
	req.Spec.Metadata["k"] = strings.Repeat("x", 600<<10)
	r, err := g.control(0).ApplyWorkload(ctxFor(t), req)
	ok(t, err)
	is(t, "reason", r.GetFailureReason(), controlv1.FailureReason_INVALID_SPEC)
}

func TestAPanicHurtsOnlyItsOwnCall(t *testing.T) {
	g := newGroup(t, 1)
	g.replicas[0].set(func(r *replica) { r.before = func(context.Context) error { panic("boom") } })
	_, err := g.control(0).ApplyWorkload(ctxFor(t), web("w"))
	code(t, err, codes.Internal)
	if strings.Contains(err.Error(), "boom") {
		t.Errorf("the caller was told the text of a panic, want only that an internal error happened: %v", err)
	}
	s, err := g.control(0).ControlStream(ctxFor(t))
	ok(t, err)
	ok(t, s.Send(&controlv1.ControlMessage{Message: &controlv1.ControlMessage_Apply{Apply: web("w")}}))
	_, err = s.Recv()
	code(t, err, codes.Internal)
	g.replicas[0].set(func(r *replica) { r.before = nil })
	_, err = g.control(0).ApplyWorkload(ctxFor(t), web("w"))
	ok(t, err)
}

func TestStatusIsTheReplicasOwn(t *testing.T) {
	g := newGroup(t, 2)
	g.place("web", "a")
	g.elect(-1)
	st, err := g.cluster(1).Status(ctxFor(t), &clusterv1.StatusRequest{})
	ok(t, err)
	is(t, "self", st.GetSelfId(), "id-s1")
	is(t, "cluster", st.GetClusterId(), "c1")
	is(t, "nodes", fmt.Sprint(st.GetNodesReady(), "/", st.GetNodes()), "2/2")
	is(t, "workloads", st.GetWorkloads(), 1)
	is(t, "mode", st.GetMode(), "normal")
	g.replicas[1].set(func(r *replica) { r.local = "no quorum" })
	st, err = g.cluster(1).Status(ctxFor(t), &clusterv1.StatusRequest{})
	ok(t, err)
	is(t, "mode", st.GetMode()+": "+st.GetModeReason(), "degraded: no quorum")
}

// TestRetryOfAHealthyWorkload: a user retries a workload that runs well, several times. The calls must succeed and
// change nothing. The same call with the flag restart must restart the workload.
func TestRetryOfAHealthyWorkload(t *testing.T) {
	g := newGroup(t, 1)
	g.place("web", "a")
	w, _ := g.view().Workload("web")
	g.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: []*commandv1.WorkloadReport{
		{Workload: "web", Node: "a", Generation: fsm.GenerationPB(w.Generation), State: "Running"},
	}}}})
	restarts := func() uint32 { w, _ := g.view().Workload("web"); return w.Restarts }
	was := restarts()
	for range 3 {
		r, err := g.control(0).RetryWorkload(ctxFor(t), &controlv1.RetryWorkloadRequest{WorkloadId: "web"})
		ok(t, err)
		is(t, "accepted", r.GetAccepted(), true)
		is(t, "unchanged", r.GetUnchanged(), true)
		is(t, "the answer to the retry names the command to restart", strings.Contains(r.GetReason(), "persysctl restart web"), true)
		s, err := g.control(0).SubmitAutomationSuggestion(ctxFor(t), &controlv1.SubmitAutomationSuggestionRequest{Suggestion: &controlv1.AutomationSuggestion{
			TargetWorkload: "web", ActionType: controlv1.AutomationActionType_AUTOMATION_ACTION_RETRY_WORKLOAD,
		}})
		ok(t, err)
		is(t, "suggestion", s.GetAccepted(), true)
	}
	is(t, "restarts after retries", restarts(), was)
	r, err := g.control(0).RetryWorkload(ctxFor(t), &controlv1.RetryWorkloadRequest{WorkloadId: "web", Restart: true})
	ok(t, err)
	is(t, "accepted", r.GetAccepted(), true)
	is(t, "unchanged", r.GetUnchanged(), false)
	is(t, "number of restarts after a restart", restarts(), was+1)
}

// lateKeys has the cluster key only after some calls, like a scheduler of a cluster that has just formed.
type lateKeys struct {
	keys
	calls atomic.Int32
}

func (k *lateKeys) Key() (*pki.Key, error) {
	if k.calls.Add(1) < 5 {
		return nil, errors.New("this replica has no cluster key")
	}
	return k.keys.Key()
}

// TestAWriteToAClusterThatHasJustFormedWaits: a user applies a workload with a secret before the schedulers have
// agreed on the cluster key. The call must wait for the key and then succeed.
func TestAWriteToAClusterThatHasJustFormedWaits(t *testing.T) {
	late := &lateKeys{}
	g := newGroup(t, 1, func(_ int, c *Config) {
		late.keys = c.Keys.(keys)
		c.Keys = late
	})
	req := web("web")
	req.Spec.GetContainer().Env = map[string]string{"PASSWORD": "hunter2"}
	r, err := g.control(0).ApplyWorkload(ctxFor(t), req)
	ok(t, err)
	is(t, "success", r.GetSuccess(), true)
	if n := late.calls.Load(); n < 5 {
		t.Errorf("the server looked for the cluster key %d times, want at least 5, because it must look until the replica has the key", n)
	}
}

// TestRunIDsAreKept: a cron creates runs with ids of the form ID-TIME. An apply of a new workload with such an id must
// be refused, because the run could then not be created. Ids that only resemble the id of a run, and existing
// workloads, are not affected.
func TestRunIDsAreKept(t *testing.T) {
	g := newGroup(t, 1)
	g.elect(0)
	cron := web("nightly")
	cron.Spec.Kind, cron.Spec.Cron = "cron", &controlv1.CronSpec{Schedule: "@daily"}
	cron.Spec.GetContainer().Ports = nil
	for _, c := range []struct {
		req  *controlv1.ApplyWorkloadRequest
		says string
	}{
		{web("nightly-20260101-0000"), ""},
		{cron, ""},
		{web("nightly-20260101-0000"), ""},
		{web("nightly-20270101-0000"), "workload_id: is the id of a run of cron nightly at that time: choose another id, or start a run with persysctl cron trigger nightly"},
		{web("nightly-20271301-0000"), ""},
		{web("other-20270101-0000"), ""},
	} {
		r, err := g.control(0).ApplyWorkload(ctxFor(t), c.req)
		ok(t, err)
		if r.GetSuccess() != (c.says == "") || !strings.Contains(r.GetErrorMessage(), c.says) {
			t.Errorf("the apply of workload %q returned %v, want the error %q", c.req.GetWorkloadId(), r, c.says)
		}
	}
}

// TestRestartOfASystemWorkload: a system workload itself cannot be restarted. The refusal must say how to find its
// members, because these can be restarted.
func TestRestartOfASystemWorkload(t *testing.T) {
	g := newGroup(t, 1)
	g.elect(0)
	logs := web("logs")
	logs.Spec.Kind = "system"
	logs.Spec.GetContainer().Ports = nil
	r, err := g.control(0).ApplyWorkload(ctxFor(t), logs)
	ok(t, err)
	is(t, "success", r.GetSuccess(), true)
	again, err := g.control(0).RetryWorkload(ctxFor(t), &controlv1.RetryWorkloadRequest{WorkloadId: "logs", Restart: true})
	ok(t, err)
	is(t, "accepted", again.GetAccepted(), false)
	is(t, "reason", again.GetReason(), "\"logs\" is a system workload and is not run itself: its members run, such as logs-NODE; `persysctl list --group logs` lists them")
}
