package rpc

import (
	"strings"
	"testing"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// placedMove returns a state in which the volume of db was moved from node a to node b.
func placedMove(t *testing.T) (fsm.State, *fsm.Move) {
	s, index := fsm.New(), uint64(0)
	do := func(c *commandv1.Command) {
		t.Helper()
		index++
		c.Head = &commandv1.Head{At: int64(index) * 1e9, By: "test", Epoch: &commandv1.Epoch{Incarnation: 1, Term: 1}}
		next, r, _ := s.Apply(fsm.Meta{Index: index, Term: 1}, c)
		ok(t, r.Err())
		s = next
	}
	step := func(phase fsm.MovePhase) {
		m, _ := s.Move("db")
		do(&commandv1.Command{Body: &commandv1.Command_AdvanceMoves{AdvanceMoves: &commandv1.AdvanceMoves{Steps: []*commandv1.MoveStep{{Workload: "db", Move: fsm.GenerationPB(m.ID), Phase: string(phase)}}}}})
	}
	report := func(state string) {
		w, _ := s.Workload("db")
		do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: []*commandv1.WorkloadReport{
			{Workload: "db", Node: w.Node, Generation: fsm.GenerationPB(w.Generation), Acknowledged: true, State: state}}}}})
	}
	do(&commandv1.Command{Body: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{ClusterId: "c1", Incarnation: 1}}})
	for _, id := range []string{"a", "b"} {
		do(&commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: &commandv1.RegisterNode{
			Id: id, Endpoint: id + ":1", CpuMillicores: 4000, MemoryMib: 4096, Protocol: 1, InstanceId: id, VolumeMoves: true,
			Types: []string{"container"}, StorageDrivers: []string{"local"}, Pools: []*commandv1.Pool{{Name: "root", Type: "local", TotalGb: 100}},
		}}})
	}
	do(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: []*commandv1.WorkloadPut{{
		Id: "db", Spec: []byte("spec"), Content: "c1:" + strings.Repeat("0", 64), Desired: "Running",
		Demand: &commandv1.Demand{Type: "container", CpuMillicores: 1000, MemoryMib: 256, StorageDrivers: []string{"local"},
			Volumes: []*commandv1.VolumeUse{{Name: "data", Driver: "local", Retain: true}}, LocalData: []*commandv1.LocalData{{Name: "volume data"}}},
	}}}}})
	w, _ := s.Workload("db")
	do(&commandv1.Command{Body: &commandv1.Command_Assign{Assign: &commandv1.Assign{Assignments: []*commandv1.Assignment{{Workload: "db", Node: "a", IfGeneration: fsm.GenerationPB(w.Generation)}}}}})
	report("Running")
	do(&commandv1.Command{Body: &commandv1.Command_MoveVolume{MoveVolume: &commandv1.MoveVolume{Name: "data", From: "a", To: "b"}}})
	step(fsm.MoveStopping)
	report("Stopped")
	step(fsm.MoveFinal)
	step(fsm.MovePlaced)
	m, _ := s.Move("db")
	return s, m
}

// TestAReturnNeedsTheFormerCopy: a person returns a volume only to a node that has reported its copy.
func TestAReturnNeedsTheFormerCopy(t *testing.T) {
	s, m := placedMove(t)
	older := m.ID
	older.Sequence--
	for _, c := range []struct {
		name, end string
		reports   map[string]sched.MoveReport
		refused   bool
	}{
		{"no report", fsm.MoveCancel, nil, true},
		{"the copy is reported", fsm.MoveCancel, map[string]sched.MoveReport{"a": {Move: m.ID, State: sched.MoveReportKept}}, false},
		{"the copy of another move is reported", fsm.MoveCancel, map[string]sched.MoveReport{"a": {Move: older, State: sched.MoveReportKept}}, true},
		{"the folder is missing", fsm.MoveCancel, map[string]sched.MoveReport{"a": {Move: m.ID, Message: "volume data is missing"}}, true},
		{"the other node reports", fsm.MoveCancel, map[string]sched.MoveReport{"b": {Move: m.ID, State: sched.MoveReportKept}}, true},
		{"a person gives the former copy up", fsm.MoveSettle, nil, false},
	} {
		server := &Server{leader: &replica{moves: c.reports}}
		why := server.unproved(s, "default", "data", &clusterv1.MoveVolumeRequest{NodeId: "b", End: c.end})
		if (why != "") != c.refused {
			t.Errorf("%s: the answer is %q", c.name, why)
		}
	}
}

// TestTheProblemOfAMove: a view of a move has the error of the node for which the move waits.
func TestTheProblemOfAMove(t *testing.T) {
	server := &Server{leader: &replica{moves: map[string]sched.MoveReport{
		"a": {State: sched.MoveReportKept, Message: "the folder is missing"}, "b": {State: sched.MoveReportCopying, Total: 7, Message: "the disk is full"},
	}}}
	quiet := &Server{leader: &replica{moves: map[string]sched.MoveReport{
		"a": {Message: "the folder is missing"}, "b": {Total: 7},
	}}}
	for _, c := range []struct {
		server *Server
		phase  fsm.MovePhase
		want   string
		total  int64
	}{
		{server, fsm.MoveCopying, "node b: the disk is full", 7},
		{quiet, fsm.MoveFinal, "node a: the folder is missing", 7},
		{server, fsm.MovePlaced, "node a: the folder is missing", 0},
		{server, fsm.MoveUndone, "node a: the folder is missing", 0},
		{server, fsm.MoveDone, "node a: the folder is missing", 0},
		{server, fsm.MoveDropping, "node b: the disk is full", 7},
		{quiet, fsm.MoveKept, "node a: the folder is missing", 7},
	} {
		m := &clusterv1.VolumeMove{WorkloadId: "db", From: "a", To: "b", Phase: string(c.phase)}
		c.server.addProgress(m)
		if m.GetProblem() != c.want || m.GetTotalBytes() != c.total {
			t.Errorf("phase %s: problem %q, %d bytes", c.phase, m.GetProblem(), m.GetTotalBytes())
		}
	}
}
