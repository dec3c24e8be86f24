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

// shapes describes commands: "each 3" is a command with three workloads that are judged one by one.
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

// TestSmallWorkloadsShareACommand: consecutive small workloads of one call share a command, others
// do not.
func TestSmallWorkloadsShareACommand(t *testing.T) {
	many := func(n int) (out []*controlv1.ApplyWorkloadRequest) {
		for i := range n {
			out = append(out, web(fmt.Sprint("w", i)))
		}
		return out
	}
	small := func(id string) *controlv1.ApplyWorkloadRequest {
		r := web(id)
		r.Spec.Namespace = "small" // which has room for one
		return r
	}
	own := web("own")
	own.RequestId = requestID(t)
	large := web("large")
	large.Spec.GetContainer().Env = map[string]string{"TEXT": strings.Repeat("x", joinLimit)}
	three := web("three")
	three.Spec.Count = 3
	bad := &controlv1.ApplyWorkloadRequest{WorkloadId: "bad", Spec: &controlv1.WorkloadSpec{Type: "zeppelin"}}
	for _, c := range []struct {
		fact string
		reqs []*controlv1.ApplyWorkloadRequest
		want string
		says string // success of each request, one letter each
	}{
		{"all that are small", many(3), "each 3", "yyy"},
		{"one alone, as a row of one", many(1), "each 1", "y"},
		{"so many that a row is full", many(fsm.MaxEach + 2), "each 64, each 2", strings.Repeat("y", fsm.MaxEach+2)},
		{"one workload twice", []*controlv1.ApplyWorkloadRequest{web("a"), web("b"), web("a"), web("c")}, "each 2, each 2", "yyyy"},
		{"what was refused leaves the others where they are", []*controlv1.ApplyWorkloadRequest{bad, web("a"), {WorkloadId: "bad2", Spec: bad.Spec}, web("b")}, "each 2", "nyny"},
		{"a large one, a group, another order and one with an id of its own stand alone",
			[]*controlv1.ApplyWorkloadRequest{web("a"), large, web("b"), three, web("c"), own, web("d"), {WorkloadId: "a", DesiredState: "stopped"}, web("e")},
			"each 1, put_workloads, each 1, put_workloads, each 1, put_workloads, each 1, set_desired, each 1", "yyyyyyyyy"},
		{"what the state machine refuses leaves the others, too", []*controlv1.ApplyWorkloadRequest{web("a"), small("in"), small("over"), web("b")}, "each 4", "yyny"},
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
					is(t, "whose answer it is", strings.Join(one.GetWorkloadIds(), " "), c.reqs[i].GetWorkloadId())
				}
			}
			is(t, "success", said, c.says)

			receipts := g.view().ReceiptCount()
			again, err := g.cluster(0).ApplyWorkloads(ctxFor(t), req)
			ok(t, err)
			is(t, "receipts after a repetition", g.view().ReceiptCount(), receipts)
			for i, one := range again.GetResults() {
				is(t, "the same answer", one.String(), r.GetResults()[i].String())
			}
		})
	}
}

// TestARowIsAskedAgain: after an unknown outcome a scheduler repeats the call with the ids that it
// minted, and finds the row's receipt.
func TestARowIsAskedAgain(t *testing.T) {
	for i, where := range []string{"leader", "follower"} {
		t.Run("at the "+where, func(t *testing.T) {
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
			is(t, "commands", shapes(g, before), "each 2, each 2")
			is(t, "receipts", g.view().ReceiptCount(), 1)
			for _, one := range r.GetResults() {
				is(t, "unchanged, as the second try would find it", one.GetUnchanged(), false)
			}
		})
	}
}

// TestARepetitionThatHasMore: a request that was refused before the log at the first attempt has no
// receipt. A repetition of the call does not apply it.
func TestARepetitionThatHasMore(t *testing.T) {
	g := newGroup(t, 1)
	bad := &controlv1.ApplyWorkloadRequest{WorkloadId: "later", Spec: &controlv1.WorkloadSpec{Type: "zeppelin"}}
	req := &clusterv1.ApplyWorkloadsRequest{RequestId: requestID(t), Workloads: []*controlv1.ApplyWorkloadRequest{web("a"), bad, web("b")}}
	first, err := g.cluster(0).ApplyWorkloads(ctxFor(t), req)
	ok(t, err)
	req.Workloads[1] = web("later")
	again, err := g.cluster(0).ApplyWorkloads(ctxFor(t), req)
	ok(t, err)
	for _, i := range []int{0, 2} {
		is(t, "the others' answers", again.GetResults()[i].String(), first.GetResults()[i].String())
	}
	is(t, "success", again.GetResults()[1].GetSuccess(), false)
	if said := again.GetResults()[1].GetErrorMessage(); !strings.Contains(said, "later") || !strings.Contains(said, "new request id") {
		t.Errorf("it says %q", said)
	}
	_, there := g.view().Workload("later")
	is(t, "stored", there, false)

	// The same number of requests, but different ones.
	req.Workloads[2] = &controlv1.ApplyWorkloadRequest{WorkloadId: "b", Spec: bad.Spec}
	again, err = g.cluster(0).ApplyWorkloads(ctxFor(t), req)
	ok(t, err)
	is(t, "success of one that is not stored", again.GetResults()[1].GetSuccess(), false)
	is(t, "the answer of one that is", again.GetResults()[0].String(), first.GetResults()[0].String())
}
