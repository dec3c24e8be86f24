package rpc

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/rpc/dial"
)

// withImage returns a request that applies the workload of web with another image.
func withImage(id, image string) *controlv1.ApplyWorkloadRequest {
	req := web(id)
	req.Spec.GetContainer().Image = image
	return req
}

func on(condition string, req *controlv1.ApplyWorkloadRequest) *controlv1.ApplyWorkloadRequest {
	req.IfRevision = condition
	return req
}

// TestConditions: a call with the condition if_revision is refused if the workload has another revision. The state
// machine must check this when it applies the command, even if the call was made through a follower.
func TestConditions(t *testing.T) {
	g := newGroup(t, 2)
	ctx := ctxFor(t)
	apply := func(req *controlv1.ApplyWorkloadRequest) (*controlv1.ApplyWorkloadResponse, error) {
		t.Helper()
		return g.control(1).ApplyWorkload(ctx, req)
	}
	otherRevision := func(err error, words ...string) {
		t.Helper()
		code(t, err, codes.FailedPrecondition)
		is(t, "reason", dial.Reason(err), dial.ReasonOtherRevision)
		for _, word := range words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("a call with a condition on another revision returned error %q, want an error that contains %q", err, word)
			}
		}
	}
	first, err := apply(on("0", withImage("web", "web:1")))
	ok(t, err)
	_, err = apply(on("0", withImage("web", "web:1")))
	otherRevision(err, "exists already", "revision 1")
	second, err := apply(on(first.GetEtag(), withImage("web", "web:2")))
	ok(t, err)
	got, err := g.control(0).GetWorkload(ctx, &controlv1.GetWorkloadRequest{WorkloadId: "web"})
	ok(t, err)
	is(t, "etag", got.GetWorkload().GetEtag(), second.GetEtag())
	is(t, "number of the present revision", got.GetWorkload().GetRevisionNumber(), 2)
	_, err = apply(on(first.GetEtag(), withImage("web", "web:3")))
	otherRevision(err, `"web" is at revision 2`, "persysctl history web")
	_, err = apply(on("1", &controlv1.ApplyWorkloadRequest{WorkloadId: "web", DesiredState: "stopped"}))
	otherRevision(err)
	_, err = g.control(1).DeleteWorkload(ctx, &controlv1.DeleteWorkloadRequest{WorkloadId: "web", IfRevision: "1"})
	otherRevision(err)
	_, err = g.control(1).RetryWorkload(ctx, &controlv1.RetryWorkloadRequest{WorkloadId: "web", Restart: true, IfRevision: "1"})
	otherRevision(err)
	_, err = g.cluster(1).RollBack(ctx, &clusterv1.RollBackRequest{WorkloadId: "web", IfRevision: "1"})
	otherRevision(err)
	for _, condition := range []string{"two", "01", "2-c1-", "-1", strings.Repeat("1", 40)} {
		_, err = apply(on(condition, withImage("web", "web:3")))
		code(t, err, codes.InvalidArgument)
	}
	members := on("1", web("grp"))
	members.Spec.Count = new(int32(2))
	_, err = apply(members)
	code(t, err, codes.InvalidArgument)
	several, err := g.cluster(1).ApplyWorkloads(ctx, &clusterv1.ApplyWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{on("1", withImage("web", "web:3")), on("0", web("api"))}})
	ok(t, err)
	is(t, "success of the request whose condition names another revision", several.GetResults()[0].GetSuccess(), false)
	is(t, "success of the request on condition that the workload does not exist", several.GetResults()[1].GetSuccess(), true)
	plan, err := g.cluster(1).PlanWorkloads(ctx, &clusterv1.PlanWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{on("1", withImage("web", "web:3"))}})
	ok(t, err)
	is(t, "planned action of a request whose condition names another revision", plan.GetWorkloads()[0].GetAction(), "refused")
	w, _ := g.view().Workload("web")
	is(t, "etag of the workload after all refused calls", w.ETag(), second.GetEtag())
}

// TestRequestIDOfAnotherRequest: if a request id is used again with another message or method, the second request is
// refused and changes nothing.
func TestRequestIDOfAnotherRequest(t *testing.T) {
	large := func(id string) *controlv1.ApplyWorkloadRequest { // a request that is too large to share a command with others
		req := web(id)
		req.Spec.Metadata = map[string]string{"a": strings.Repeat("x", joinLimit)}
		return req
	}
	list := func(all ...*controlv1.ApplyWorkloadRequest) *clusterv1.ApplyWorkloadsRequest {
		return &clusterv1.ApplyWorkloadsRequest{Workloads: all}
	}
	members := web("grp")
	members.Spec.Count = new(int32(2))
	type send func(ctx context.Context, g *group) error
	apply := func(req *controlv1.ApplyWorkloadRequest) send {
		return func(ctx context.Context, g *group) error {
			_, err := g.control(1).ApplyWorkload(ctx, proto.CloneOf(req))
			return err
		}
	}
	several := func(req *clusterv1.ApplyWorkloadsRequest) send {
		return func(ctx context.Context, g *group) error {
			_, err := g.cluster(1).ApplyWorkloads(ctx, proto.CloneOf(req))
			return err
		}
	}
	remove := func(id string) send {
		return func(ctx context.Context, g *group) error {
			_, err := g.control(1).DeleteWorkload(ctx, &controlv1.DeleteWorkloadRequest{WorkloadId: id})
			return err
		}
	}
	for _, c := range []struct {
		name          string
		first, second send
	}{
		{"another specification", apply(withImage("new", "web:1")), apply(withImage("new", "web:2"))},
		{"another workload", apply(web("new")), apply(web("other"))},
		{"another method", apply(web("web")), remove("web")},
		{"a call with one more workload in the same command", several(list(web("new"))), several(list(web("new"), web("other")))},
		{"a call with one more workload, which gets a command of its own", several(list(large("new"))), several(list(large("new"), large("other")))},
		{"a delete of a group in place of a delete of a workload", remove("web"), remove("grp")},
		{"a delete of a workload in place of a delete of a group", remove("grp"), remove("web")},
		{"an apply of two workloads in place of an apply of one workload", apply(web("new")), several(list(large("new"), large("other")))},
		{"ApplyWorkloads with one workload in place of ApplyWorkload", apply(web("new")), several(list(withImage("new", "web:2")))},
		{"ApplyWorkload in place of ApplyWorkloads with the same workload", several(list(web("new"))), apply(withImage("new", "web:2"))},
		{"a delete in place of ApplyWorkloads", several(list(web("new"))), remove("new")},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGroup(t, 2)
			_, err := g.control(0).ApplyWorkload(ctxFor(t), web("web"))
			ok(t, err)
			_, err = g.control(0).ApplyWorkload(ctxFor(t), proto.CloneOf(members))
			ok(t, err)
			ctx := with(t, dial.KeyRequestID, requestID(t))
			ok(t, c.first(ctx, g))
			ok(t, c.first(ctx, g))
			was := g.now().Info().Sequence
			err = c.second(ctx, g)
			if status.Code(err) != codes.InvalidArgument || dial.Reason(err) != dial.ReasonOtherRequest || !strings.Contains(err.Error(), "id of its own") {
				t.Errorf("a second, different request with the same request id returned %v, want InvalidArgument with the advice to use another id", err)
			}
			is(t, "state's sequence number after the refused second request", g.now().Info().Sequence, was)
		})
	}
}

// TestRequestIDsBelongToTheirCallers: a caller repeats the request of another caller, under its id. The repeat must not
// get the answer to the first request. The first caller gets it from every replica.
func TestRequestIDsBelongToTheirCallers(t *testing.T) {
	_, as := spaces(t)
	for i := range 2 {
		apply := webIn("shared", "a")
		apply.RequestId = requestID(t)
		secret := &clusterv1.PutObjectRequest{Kind: fsm.KindSecret, Name: fmt.Sprint("password-", i), Namespace: "a", Data: []byte("hunter2"), RequestId: requestID(t)}
		for name, call := range map[string]func(replica int, who string) error{
			"apply": func(replica int, who string) error {
				return inBand(controlv1.NewAgentControlClient(as(replica, who)).ApplyWorkload(ctxFor(t), proto.CloneOf(apply)))
			},
			"put a secret": func(replica int, who string) error {
				return second(clusterv1.NewClusterClient(as(replica, who)).PutObject(ctxFor(t), proto.CloneOf(secret)))
			},
		} {
			ok(t, call(i, "user/ada"))
			if err := call(i, "user/admin"); dial.Reason(err) != dial.ReasonOtherRequest {
				t.Errorf("call %q: another caller who used the same request id got %v, want a refusal", name, err)
			}
			ok(t, call(1-i, "user/ada"))
		}
	}
}

// TestTakesBack: a user applies an old file, which would set fields back to the values of an earlier revision. The
// answers to an apply and to a plan must name these fields, and the revision that set their present values.
func TestTakesBack(t *testing.T) {
	g := newGroup(t, 1)
	ctx := ctxFor(t)
	spec := func(image, a, b string) *controlv1.ApplyWorkloadRequest {
		req := withImage("web", image)
		req.Spec.Metadata = map[string]string{"A": a, "B": b}
		return req
	}
	secret := func(value string) *controlv1.ApplyWorkloadRequest {
		req := spec("web:3", "1", "3")
		req.Spec.GetContainer().Env = map[string]string{"PASSWORD": value}
		return req
	}
	said := func(list []*controlv1.TakenBack) string {
		var out []string
		for _, b := range list {
			if b.GetRevision() > 0 && b.GetAppliedAt() == nil {
				t.Errorf("the field that is set back, %v, must have the time of its revision, but has none", b)
			}
			out = append(out, strings.TrimSpace(strings.Join([]string{b.GetField(), b.GetBefore(), ">", b.GetAfter(), string(rune('0' + b.GetRevision()))}, " ")))
		}
		return strings.Join(out, ", ")
	}
	for _, c := range []struct {
		name string
		req  *controlv1.ApplyWorkloadRequest
		want string
	}{
		{"the workload is created with web:1, A=1 and B=1", spec("web:1", "1", "1"), ""},
		{"only the image changes, to web:2", spec("web:2", "1", "1"), ""},
		{"the same file is applied again", spec("web:2", "1", "1"), ""},
		{"only A changes, to 2", spec("web:2", "2", "1"), ""},
		{"the first file is applied again with a new B, which sets image and A back", spec("web:1", "1", "3"), "container.image web:2 > web:1 2, metadata.A 2 > 1 3"},
		{"only the image changes, to web:3", spec("web:3", "1", "3"), ""},
		{"stopped", &controlv1.ApplyWorkloadRequest{WorkloadId: "web", DesiredState: "stopped"}, ""},
		{"a secret", secret("one"), "desired_state Stopped > Running 0"},
		{"another secret", secret("two"), ""},
		{"the secret is set back to its earlier value", secret("one"), "a secret value  >  7"},
		{"the secret is removed, as in the file before it was added", spec("web:3", "1", "3"), "container.env.PASSWORD *** >  6"},
		{"stopped again", &controlv1.ApplyWorkloadRequest{WorkloadId: "web", DesiredState: "stopped"}, ""},
		{"the present file is applied, which starts the workload", spec("web:3", "1", "3"), "desired_state Stopped > Running 0"},
	} {
		var plan string
		if c.req.GetSpec() != nil {
			p, err := g.cluster(0).PlanWorkloads(ctx, &clusterv1.PlanWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{proto.CloneOf(c.req)}})
			ok(t, err)
			plan = said(p.GetWorkloads()[0].GetTakesBack())
		}
		r, err := g.control(0).ApplyWorkload(ctx, c.req)
		ok(t, err)
		is(t, c.name, said(r.GetTakesBack()), c.want)
		is(t, c.name+": plan", plan, c.want)
	}
}

// TestCounts: the answer to an apply of a group shows whether members were deleted. A count of 0 keeps the first
// member, stopped.
func TestCounts(t *testing.T) {
	g := newGroup(t, 1)
	apply := func(n int32) *controlv1.ApplyWorkloadResponse {
		t.Helper()
		req := web("grp")
		req.Spec.Count = &n
		r, err := g.control(0).ApplyWorkload(ctxFor(t), req)
		ok(t, err)
		is(t, "error text of the apply", r.GetErrorMessage(), "")
		return r
	}
	for _, c := range []struct {
		count     int32
		unchanged bool
		ids       string
	}{{3, false, "grp-0 grp-1 grp-2"}, {3, true, "grp-0 grp-1 grp-2"}, {2, false, "grp-0 grp-1"}, {0, false, "grp-0"}, {0, true, "grp-0"}, {2, false, "grp-0 grp-1"}} {
		r := apply(c.count)
		is(t, "unchanged", r.GetUnchanged(), c.unchanged)
		is(t, "ids", strings.Join(r.GetWorkloadIds(), " "), c.ids)
		first, _ := g.view().Workload("grp-0")
		is(t, "whether the first member is stopped", first.Desired == "Stopped", c.count == 0)
	}
	r, err := g.control(0).ApplyWorkload(ctxFor(t), &controlv1.ApplyWorkloadRequest{WorkloadId: "grp", DesiredState: "deleted", Spec: web("grp").Spec})
	ok(t, err)
	is(t, "whether the apply of a deleted group counts as unchanged", r.GetUnchanged(), false)
}
