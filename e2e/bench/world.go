package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/store"
)

// worldEpoch is the epoch (incarnation and leadership term) of every command in a world.
var worldEpoch = fsm.Epoch{Incarnation: 1000, Term: 1}

// world is a replicated state in this process. It applies commands as a replica applies its log, but
// without Raft: nothing is sent or written to disk. Its methods are safe for concurrent use.
type world struct {
	store *store.Store

	mu    sync.Mutex
	index uint64
	now   int64 // time of the last command, Unix nanoseconds; every log entry adds one millisecond

	keepChanges bool
	fresh       []fsm.Change // changes since the last call of takeChanges, kept if keepChanges is set
}

// newWorld returns the state of a newly formed cluster with one replica.
func newWorld() (*world, error) {
	w := &world{store: store.New(fsm.New()), now: time.Now().UnixNano()}
	return w, w.do(
		&commandv1.Command{Body: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{ClusterId: "bench", Incarnation: worldEpoch.Incarnation}}},
		&commandv1.Command{Body: &commandv1.Command_PutReplica{PutReplica: &commandv1.PutReplica{
			Id: "r1", Name: "s1", GrpcAddr: "10.0.0.1:8085", DnsAddr: "10.0.0.1:8053"}}},
	)
}

func (w *world) view() fsm.View { return w.store.View() }

// do applies commands in one log entry. It returns an error if one of them is refused or skips items.
func (w *world) do(cmds ...fsm.Command) error {
	results, err := w.Propose(context.Background(), cmds...)
	for _, r := range results {
		if err == nil {
			err = r.Err()
		}
		if err == nil && r.Skipped > 0 {
			err = fmt.Errorf("%d items of a command were skipped: %s", r.Skipped, r.Reason)
		}
	}
	return err
}

// Propose implements leader.Proposer.
func (w *world) Propose(_ context.Context, cmds ...fsm.Command) ([]fsm.Result, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.index++
	w.now += int64(time.Millisecond)
	tx := w.store.State().Begin()
	tx.Expect(len(cmds))
	results := make([]fsm.Result, 0, len(cmds))
	for _, c := range cmds {
		if c.Head == nil {
			c.Head = &commandv1.Head{At: w.now, By: "bench", Epoch: &commandv1.Epoch{Incarnation: worldEpoch.Incarnation, Term: worldEpoch.Term}}
		}
		r, _ := tx.Apply(fsm.Meta{Index: w.index, Term: worldEpoch.Term}, c)
		results = append(results, r)
	}
	changes := tx.Changes()
	w.store.Publish(tx.Commit(), changes)
	if w.keepChanges {
		w.fresh = append(w.fresh, changes...)
	}
	return results, nil
}

// Confirm implements leader.Proposer.
func (w *world) Confirm(context.Context) (uint64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.index, nil
}

// takeChanges returns the changes of the state since its last call, as the change feed of a replica does.
func (w *world) takeChanges() []fsm.Change {
	w.mu.Lock()
	defer w.mu.Unlock()
	changes := w.fresh
	w.fresh = nil
	return changes
}

func (w *world) register(n *commandv1.RegisterNode) error {
	return w.do(&commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: n}})
}

// workloads puts workloads into the state, all with the same specification and resources.
func (w *world) workloads(spec []byte, cpuMillicores, memoryMiB int64, ids ...string) error {
	puts := make([]*commandv1.WorkloadPut, len(ids))
	for i, id := range ids {
		puts[i] = &commandv1.WorkloadPut{Id: id, Spec: spec, Content: fmt.Sprintf("c1:%064x", i), Desired: "Running",
			Demand: &commandv1.Demand{Type: "container", CpuMillicores: cpuMillicores, MemoryMib: memoryMiB}}
	}
	return w.do(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: puts}}})
}

// assign assigns workloads to nodes. The function node returns the node for ids[i].
func (w *world) assign(ids []string, node func(i int) string) error {
	to := make([]*commandv1.Assignment, len(ids))
	for i, id := range ids {
		to[i] = &commandv1.Assignment{Workload: id, Node: node(i), IfGeneration: w.generation(id)}
	}
	return w.do(&commandv1.Command{Body: &commandv1.Command_Assign{Assign: &commandv1.Assign{Assignments: to}}})
}

// running returns a report, as from the workload's node, that says that the workload runs.
func (w *world) running(id string) *commandv1.WorkloadReport {
	wl, _ := w.view().Workload(id)
	return &commandv1.WorkloadReport{Workload: id, Node: wl.Node, Generation: w.generation(id), Acknowledged: true, State: string(fsm.ActualRunning), ObservedAt: w.now}
}

func (w *world) report(reports ...*commandv1.WorkloadReport) error {
	return w.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: reports}}})
}

func (w *world) generation(id string) *commandv1.Generation {
	wl, _ := w.view().Workload(id)
	return fsm.GenerationPB(wl.Generation)
}

// numbered returns n names made from a format, with numbers from first on.
func numbered(format string, first, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf(format, first+i)
	}
	return out
}
