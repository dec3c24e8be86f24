package rpc

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/order/wire"
	"github.com/persys/compute/rpc/message"
	"github.com/persys/compute/testbed"
)

func drop(id string) *commandv1.Command {
	return &commandv1.Command{Body: &commandv1.Command_DeleteWorkload{DeleteWorkload: &commandv1.DeleteWorkload{Id: id, Force: true}}}
}

func TestEventsAreReadAndFollowed(t *testing.T) {
	g := newGroup(t, 2)
	g.place("web", "a")
	read := func(req *clusterv1.EventsRequest) (out []string) {
		s, err := g.cluster(1).Events(ctxFor(t), req)
		ok(t, err)
		for {
			e, err := s.Recv()
			if err != nil {
				return out
			}
			out = append(out, e.GetType())
		}
	}
	all := read(&clusterv1.EventsRequest{})
	is(t, "last event of the whole list", all[len(all)-1], "WorkloadScheduled")
	is(t, "events with a tail of 1", strings.Join(read(&clusterv1.EventsRequest{Tail: 1}), " "), "WorkloadScheduled")
	is(t, "events of a workload", strings.Join(read(&clusterv1.EventsRequest{WorkloadId: "web"}), " "), "WorkloadCreated WorkloadScheduled")
	is(t, "events of a node", strings.Join(read(&clusterv1.EventsRequest{NodeId: "b"}), " "), "NodeRegistered")
	is(t, "number of events of a type", len(read(&clusterv1.EventsRequest{Types: []string{"NodeRegistered"}})), 2)
	is(t, "number of events after the last", len(read(&clusterv1.EventsRequest{AfterSeq: g.view().Info().EventSeq})), 0)
	for want, bad := range map[string]*clusterv1.EventsRequest{
		"tail -1": {Tail: -1},
		`there is no event "NodeLots"; there are WorkloadScheduled,`: {Types: []string{"NodeLost", "NodeLots"}},
	} {
		s, err := g.cluster(0).Events(ctxFor(t), bad)
		ok(t, err)
		_, err = s.Recv()
		says(t, err, codes.InvalidArgument, want)
	}
}

func TestEventsAreFollowed(t *testing.T) {
	g := newGroup(t, 1)
	ctx, cancel := context.WithCancel(ctxFor(t))
	s, err := g.cluster(0).Events(ctx, &clusterv1.EventsRequest{Follow: true, Types: []string{"WorkloadCreated"}})
	ok(t, err)
	g.place("w0", "")
	next := func() string {
		e, err := s.Recv()
		ok(t, err)
		return e.GetWorkloadId()
	}
	is(t, "first", next(), "w0")
	g.place("w1", "")
	is(t, "second", next(), "w1")
	// Let the replica lag, so that the next event does not go through its change feed. The reader must get this event
	// from the stored state.
	g.replicas[0].set(func(r *replica) { r.lagging = true })
	g.place("w2", "")
	g.replicas[0].set(func(r *replica) { r.lagging = false; r.store.Restore(g.now()) })
	is(t, "workload of the event that the change feed has lost", next(), "w2")
	g.place("w3", "")
	is(t, "workload of the event after the gap", next(), "w3")
	cancel()
	_, err = s.Recv()
	code(t, err, codes.Canceled)
}

// TestEventsAfterANumberOfAFormerCluster: a client may have the sequence number of an event of a lost cluster, which is
// higher than any number in the cluster that was restored from its backup. Such a client must get only new events.
func TestEventsAfterANumberOfAFormerCluster(t *testing.T) {
	g := newGroup(t, 1)
	g.place("w0", "")
	req := &clusterv1.EventsRequest{Follow: true, AfterSeq: 1 << 40, Types: []string{"WorkloadCreated"}}
	s, err := g.cluster(0).Events(ctxFor(t), req)
	ok(t, err)
	was := g.view().Info().EventSeq
	testbed.Until(t, "the stream is open", func() bool { return g.replicas[0].store.Stats().Cursors > 0 })
	g.place("w1", "")
	e, err := s.Recv()
	ok(t, err)
	is(t, "workload of the first event on the stream", e.GetWorkloadId(), "w1")
	is(t, "whether the event has a current sequence number", e.GetSeq() > was, true)
}

func TestWatchesReportChanges(t *testing.T) {
	g := newGroup(t, 1)
	g.place("w0", "a")
	group := func(id, name string) {
		g.do(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: []*commandv1.WorkloadPut{{
			Id: id, Content: fmt.Sprintf("c1:%064d", g.view().Info().Index), Desired: "Running", Demand: &commandv1.Demand{Type: "container", Group: name},
		}}}}})
	}
	group("g0", "grp")
	open := func(req *clusterv1.WatchWorkloadsRequest) (next func() string) {
		s, err := g.cluster(0).WatchWorkloads(ctxFor(t), req)
		ok(t, err)
		return func() string {
			c, err := s.Recv()
			ok(t, err)
			switch {
			case c.GetSynced():
				return "synced"
			case c.GetDeleted():
				return "-" + c.GetWorkload().GetWorkloadId()
			}
			return c.GetWorkload().GetWorkloadId()
		}
	}
	everything := open(&clusterv1.WatchWorkloadsRequest{})
	is(t, "present workloads on the watch of everything", everything()+" "+everything()+" "+everything(), "g0 w0 synced")
	named := open(&clusterv1.WatchWorkloadsRequest{WorkloadIds: []string{"w0", "w9"}})
	is(t, "present workloads on the watch by name", named()+" "+named(), "w0 synced")
	members := open(&clusterv1.WatchWorkloadsRequest{Group: "grp", MinIndex: g.view().Info().Index})
	is(t, "present workloads on the watch of group grp", members()+" "+members(), "g0 synced")

	g.place("w9", "")
	is(t, "new workload on the watch of everything", everything(), "w9")
	is(t, "new workload on the watch by name", named(), "w9")
	group("g1", "grp")
	is(t, "new member on the watch of group grp", members(), "g1")
	group("g1", "other")
	is(t, "member that moved to another group, on the watch of group grp", members(), "-g1")
	g.do(drop("g0"))
	is(t, "deleted member on the watch of group grp", members(), "-g0")

	// Let the replica lag, so that its change feed does not contain the deletion of workload w0. The watch must report
	// the deletion all the same.
	g.replicas[0].set(func(r *replica) { r.lagging = true })
	g.do(drop("w0"))
	g.replicas[0].set(func(r *replica) { r.lagging = false; r.store.Restore(g.now()) })
	is(t, "messages of the watch by name after the change feed lost the deletion of w0", named()+" "+named()+" "+named(), "w9 -w0 synced")
}

func TestWhyExplainsPlacement(t *testing.T) {
	g := newGroup(t, 2)
	g.do(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: []*commandv1.WorkloadPut{{
		Id: "big", Content: fmt.Sprintf("c1:%064d", 1), Desired: "Running", Demand: &commandv1.Demand{Type: "container", CpuMillicores: 1_000_000},
	}}}}})
	g.place("web", "a")
	why, err := g.cluster(1).Why(ctxFor(t), &clusterv1.WhyRequest{WorkloadId: "big", MinIndex: g.view().Info().Index})
	ok(t, err)
	is(t, "chosen", why.GetChosenNodeId(), "")
	is(t, "nodes", len(why.GetNodes()), 2)
	is(t, "feasible", why.GetNodes()[0].GetFeasible(), false)
	is(t, "whether the node has a reason", why.GetNodes()[0].GetReason() != "", true)
	is(t, "number of nodes with the first reason", why.GetCounts()[0].GetNodes(), 2)
	whyNot, err := g.cluster(1).Why(ctxFor(t), &clusterv1.WhyRequest{WorkloadId: "web", NodeId: "b"})
	ok(t, err)
	is(t, "assigned", whyNot.GetAssignedNodeId(), "a")
	is(t, "number of nodes in the answer", len(whyNot.GetNodes()), 1)
	is(t, "node in the answer", whyNot.GetNodes()[0].GetNodeId(), "b")
	_, err = g.cluster(1).Why(ctxFor(t), &clusterv1.WhyRequest{WorkloadId: "x"})
	code(t, err, codes.NotFound)
	_, err = g.cluster(1).Why(ctxFor(t), &clusterv1.WhyRequest{WorkloadId: "web", NodeId: "x"})
	code(t, err, codes.NotFound)
}

// A heartbeat reports that node a cannot run workload web. The answer to Why must say that web moves to another node.
func TestWhyTellsOfAMove(t *testing.T) {
	g := newGroup(t, 1)
	g.place("web", "a")
	w, _ := g.now().Workload("web")
	said := message.Report(&controlv1.WorkloadStatus{
		WorkloadId: "web", State: "Pending", Message: "no space left", Reason: &controlv1.ReasonDetail{Code: "STORAGE_FULL"}, TryElsewhere: true,
		Generation: wire.Control(w.Generation),
	}, false)
	g.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: []*commandv1.WorkloadReport{said.Observation.Report("web", "a")}}}})
	why, err := g.cluster(0).Why(ctxFor(t), &clusterv1.WhyRequest{WorkloadId: "web"})
	ok(t, err)
	is(t, "reason", why.GetReasonCode()+": "+why.GetReasonMessage(), "STORAGE_FULL: no space left; it moves to another node, because node a cannot run it")
}

// The view of a stopped workload must name the node on which the workload may still run.
func TestAStoppedWorkloadNamesTheNodeWhereItMayRun(t *testing.T) {
	g := newGroup(t, 1)
	g.place("web", "a")
	w, _ := g.now().Workload("web")
	down := func(up bool) {
		g.do(&commandv1.Command{Body: &commandv1.Command_SetNodeStates{SetNodeStates: &commandv1.SetNodeStates{Nodes: []*commandv1.NodeState{{Id: "a", Up: up}}}}})
	}
	reason := func() string {
		r, err := g.control(0).GetWorkload(ctxFor(t), &controlv1.GetWorkloadRequest{WorkloadId: "web"})
		ok(t, err)
		all, err := g.control(0).ListWorkloads(ctxFor(t), &controlv1.ListWorkloadsRequest{})
		ok(t, err)
		is(t, "status", r.GetWorkload().GetStatus(), "Stopped")
		is(t, "reason in the list", all.GetWorkloads()[0].GetReason().GetMessage(), r.GetWorkload().GetReason().GetMessage())
		return r.GetWorkload().GetReason().GetCode() + ": " + r.GetWorkload().GetReason().GetMessage()
	}
	down(false)
	g.do(&commandv1.Command{Body: &commandv1.Command_Evict{Evict: &commandv1.Evict{Evictions: []*commandv1.Eviction{{
		Workload: "web", IfGeneration: fsm.GenerationPB(w.Generation), Code: fsm.CodeNodeLost,
	}}}}})
	g.do(&commandv1.Command{Body: &commandv1.Command_SetDesired{SetDesired: &commandv1.SetDesired{Id: "web", Desired: "Stopped"}}})
	if got := reason(); !strings.HasPrefix(got, fsm.CodeAwaitStop) || !strings.Contains(got, "node a is lost and may still run") || !strings.HasSuffix(got, "persysctl node fence a") {
		t.Errorf("the reason while the node is lost is %s, want AwaitStop with the fence command", got)
	}
	down(true)
	if got := reason(); !strings.HasPrefix(got, fsm.CodeAwaitStop) || !strings.Contains(got, "node a has not removed it yet") {
		t.Errorf("the reason while the node gets the order is %s, want AwaitStop, because node a has not removed it yet", got)
	}
	down(false)
	g.do(&commandv1.Command{Body: &commandv1.Command_FenceNode{FenceNode: &commandv1.FenceNode{Id: "a"}}})
	is(t, "reason of the stopped workload", reason(), fsm.CodeUserStop+": stopped by request")
}
