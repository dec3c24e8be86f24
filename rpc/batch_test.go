package rpc

import (
	"context"
	"fmt"
	"strings"
	"testing"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
)

// shapes lists the kinds of the commands in the log, after a number of commands that it skips. "each 3" is a
// PutWorkloads command with three workloads, each of which the state machine accepts or refuses separately.
func shapes(g *group, after int) string {
	var out []string
	for _, c := range g.history[after:] {
		name := fsm.ArmName(c)
		if p := c.GetPutWorkloads(); p.GetEach() {
			name = fmt.Sprint("each ", len(p.GetWorkloads()))
		}
		out = append(out, name)
	}
	return strings.Join(out, ", ")
}

// TestSmallWorkloadsShareACommand: consecutive requests for small workloads in one call share a command, and
// other requests do not.
func TestSmallWorkloadsShareACommand(t *testing.T) {
	many := func(n int) (out []*controlv1.ApplyWorkloadRequest) {
		for i := range n {
			out = append(out, web(fmt.Sprint("w", i)))
		}
		return out
	}
	small := func(id string) *controlv1.ApplyWorkloadRequest {
		r := web(id)
		r.Spec.Namespace = "small" // the quota of namespace small allows one workload
		return r
	}
	own := web("own")
	own.RequestId = requestID(t)
	large := web("large")
	large.Spec.GetContainer().Env = map[string]string{"TEXT": strings.Repeat("x", joinLimit)}
	three := web("three")
	three.Spec.Count = new(int32(3))
	bad := &controlv1.ApplyWorkloadRequest{WorkloadId: "bad", Spec: &controlv1.WorkloadSpec{Type: "zeppelin"}}
	for _, c := range []struct {
		fact string
		reqs []*controlv1.ApplyWorkloadRequest
		want string
		says string // expected outcome of each request: y (accepted) or n (refused)
	}{
		{"small workloads", many(3), "each 3", "yyy"},
		{"one small workload gives a command of its own", many(1), "each 1", "y"},
		{"more small workloads than one command can hold are split into two commands", many(fsm.MaxEach + 2), "each 64, each 2", strings.Repeat("y", fsm.MaxEach+2)},
		{"a second request for the same workload begins another command", []*controlv1.ApplyWorkloadRequest{web("a"), web("b"), web("a"), web("c")}, "each 2, each 2", "yyyy"},
		{"a request that is refused before it is proposed does not change the order of the answers", []*controlv1.ApplyWorkloadRequest{bad, web("a"), {WorkloadId: "bad2", Spec: bad.Spec}, web("b")}, "each 2", "nyny"},
		{"a large workload, a group, a stop and a request with its own id get their own commands",
			[]*controlv1.ApplyWorkloadRequest{web("a"), large, web("b"), three, web("c"), own, web("d"), {WorkloadId: "a", DesiredState: "stopped"}, web("e")},
			"each 1, put_workloads, each 1, put_workloads, each 1, put_workloads, each 1, set_desired, each 1", "yyyyyyyyy"},
		{"a workload that the state machine refuses does not affect the others in its command", []*controlv1.ApplyWorkloadRequest{web("a"), small("in"), small("over"), web("b")}, "each 4", "yyny"},
	} {
		t.Run(c.fact, func(t *testing.T) {
			g := newGroup(t, 2)
			g.do(&commandv1.Command{Body: &commandv1.Command_PutNamespace{PutNamespace: &commandv1.PutNamespace{Name: "small", Quota: &commandv1.Quota{Workloads: 1}}}})
			before := len(g.history)
			req := &clusterv1.ApplyWorkloadsRequest{RequestId: requestID(t), Workloads: c.reqs}
			r, err := g.cluster(1).ApplyWorkloads(ctxFor(t), req)
			ok(t, err)
			is(t, "commands", shapes(g, before), c.want)
			said := ""
			for i, one := range r.GetResults() {
				said += map[bool]string{true: "y", false: "n"}[one.GetSuccess()]
				if one.GetSuccess() && c.reqs[i].GetSpec().GetCount() == 0 {
					is(t, "workload id in the answer to each request", strings.Join(one.GetWorkloadIds(), " "), c.reqs[i].GetWorkloadId())
				}
			}
			is(t, "success", said, c.says)

			receipts := g.view().ReceiptCount()
			again, err := g.cluster(0).ApplyWorkloads(ctxFor(t), req)
			ok(t, err)
			is(t, "number of receipts after the call was repeated", g.view().ReceiptCount(), receipts)
			for i, one := range again.GetResults() {
				is(t, "the same answer", one.String(), r.GetResults()[i].String())
			}
		})
	}
}

// TestARepeatedRowFindsItsReceipt: a row is the sequence of requests that share a command. If the outcome of a call is
// unknown, a scheduler repeats the call with the same derived ids. The repetition must find the receipt (stored
// answer) of the row and apply nothing twice.
func TestARepeatedRowFindsItsReceipt(t *testing.T) {
	for i, where := range []string{"leader", "follower"} {
		t.Run("request at the "+where, func(t *testing.T) {
			g := newGroup(t, 2)
			before, asked := len(g.history), 0
			g.replicas[0].set(func(r *replica) {
				r.after = ErrUnknownOutcome
				r.before = func(context.Context) error {
					if asked++; asked == 2 {
						r.set(func(r *replica) { r.after = nil })
					}
					return nil
				}
			})
			r, err := g.cluster(i).ApplyWorkloads(ctxFor(t), &clusterv1.ApplyWorkloadsRequest{
				RequestId: requestID(t), Workloads: []*controlv1.ApplyWorkloadRequest{web("a"), web("b")},
			})
			ok(t, err)
			is(t, "kinds of the commands that the call and its repetition made", shapes(g, before), "each 2, each 2")
			is(t, "receipts", g.view().ReceiptCount(), 1)
			for _, one := range r.GetResults() {
				is(t, "unchanged in the answer to a repeated call", one.GetUnchanged(), false)
			}
		})
	}
}

// TestARepetitionDoesNotApplyARowThatWasRefused: a request that was refused before it reached the log has no
// receipt. When the call is repeated, that request must not be applied.
func TestARepetitionDoesNotApplyARowThatWasRefused(t *testing.T) {
	g := newGroup(t, 1)
	bad := &controlv1.ApplyWorkloadRequest{WorkloadId: "later", Spec: &controlv1.WorkloadSpec{Type: "zeppelin"}}
	req := &clusterv1.ApplyWorkloadsRequest{RequestId: requestID(t), Workloads: []*controlv1.ApplyWorkloadRequest{web("a"), bad, web("b")}}
	first, err := g.cluster(0).ApplyWorkloads(ctxFor(t), req)
	ok(t, err)
	derived, err := deriveRequestIDs(req)
	ok(t, err)
	// The second request was refused at the first attempt. Make it valid now, as if the validation rules had changed
	// since then.
	req.Workloads[1] = web("later")
	req.Workloads[1].RequestId = bad.GetRequestId()
	repeat := func() *clusterv1.ApplyWorkloadsResponse {
		out := &clusterv1.ApplyWorkloadsResponse{}
		for _, o := range g.replicas[0].server.apply(t.Context(), req.GetWorkloads(), derived, nil) {
			ok(t, o.err)
			out.Results = append(out.Results, o.resp)
		}
		return out
	}
	again := repeat()
	for _, i := range []int{0, 2} {
		is(t, "answer of the repeated call to a request that was accepted before", again.GetResults()[i].String(), first.GetResults()[i].String())
	}
	is(t, "success", again.GetResults()[1].GetSuccess(), false)
	if said := again.GetResults()[1].GetErrorMessage(); !strings.Contains(said, "later") || !strings.Contains(said, "new request id") {
		t.Errorf("the refused request got %q, want the advice to send it again later with a new request id", said)
	}
	_, there := g.view().Workload("later")
	is(t, "stored", there, false)

	// Repeat the call with the same number of requests, but with another content in one of them.
	req.Workloads[2] = &controlv1.ApplyWorkloadRequest{WorkloadId: "b", Spec: bad.Spec, RequestId: req.Workloads[2].GetRequestId()}
	again = repeat()
	is(t, "success of a request that is not stored", again.GetResults()[1].GetSuccess(), false)
	is(t, "answer to a request that is stored", again.GetResults()[0].String(), first.GetResults()[0].String())
}
