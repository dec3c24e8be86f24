package sim

import (
	"slices"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// drainWithDeadline returns a drain that lets running jobs end on the node for up to 100 s, or moves them at once. It
// derives the deadline from the virtual clock: a further random number would change the runs of all recorded seeds.
func (w *world) drainWithDeadline(node string, on bool) func(*commandv1.Command) {
	seconds := uint32(w.now/ms) % 101
	if !on || seconds%4 == 0 {
		return drain(node, on)
	}
	return drainFor(node, seconds)
}

// drainFor returns a drain that lets running jobs end on the node for a number of seconds.
func drainFor(node string, seconds uint32) func(*commandv1.Command) {
	return func(c *commandv1.Command) {
		drain(node, true)(c)
		c.GetDrainNode().DeadlineSeconds = &seconds
	}
}

// drains makes an operator drain the node of a job and take it back after some time, again and again until faults are no
// longer injected. Users change the priority of the job meanwhile.
func (w *world) drains() {
	if w.calm {
		return
	}
	w.after(w.between(5, 20)*sec, nil, w.drains)
	id := pick(&w.clock, jobIDs)
	x, ok := w.truth.Workload(id)
	if !ok || x.Node == "" || x.Finished() {
		w.ask("apply "+id, w.putOf(id), nil)
		return
	}
	node := x.Node
	w.ask("drain "+node, drainFor(node, uint32(w.between(1, 60))), nil)
	w.after(w.between(500, 3000)*ms, nil, func() { w.raise(id) })
	w.after(w.between(5, 80)*sec, nil, func() {
		if !w.calm {
			w.ask("undrain "+node, drain(node, false), nil)
		}
	})
}

// raise makes a user apply a job again with another priority.
func (w *world) raise(id string) {
	have, ok := w.oracle.puts[id]
	if !ok || w.calm || w.chance(500) {
		return
	}
	p := have.CloneVT()
	p.Demand.Priority++
	w.ask("raise "+id, func(c *commandv1.Command) {
		c.Body = &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: []*commandv1.WorkloadPut{p.CloneVT()}}}
	}, nil)
}

// lastDrains drains the node of a job in a cluster that is at rest, checks after the deadline what is left on the node,
// and ends the drain.
func (w *world) lastDrains() {
	for _, id := range jobIDs {
		w.ask("apply "+id, w.putOf(id), nil)
	}
	w.after(4*sec, nil, func() {
		node := w.machines[0].id
		for _, id := range jobIDs {
			if x, ok := w.truth.Workload(id); ok && x.Node != "" && !x.Finished() {
				node = x.Node
			}
		}
		seconds := w.between(1, 20)
		w.ask("drain "+node, drainFor(node, uint32(seconds)), func(fsm.Result) {
			w.after((seconds+15)*sec, nil, func() { w.emptied(node) })
		})
	})
}

// emptied checks, some seconds after the deadline of a drain and without faults, that no workload is left on the node that
// another node could take. Then it ends the drain.
func (w *world) emptied(node string) {
	w.report.Emptied++
	w.truth.WorkloadsOn(node, func(x *fsm.Workload) bool {
		if x.Desired != fsm.DesiredRunning || x.Finished() || x.EndedForGood() {
			return true
		}
		if at, _ := sched.Place(*x.Demand, sched.NodesOf(w.truth, w.users.settings.Tuning).For(x.ID)); at != "" {
			w.violate("drain", x.ID, node, "the deadline of the drain is over, but the workload is still %s there (%s), and node %s could take it", x.Status, x.Reason.Code, at)
		}
		return true
	})
	w.ask("undrain "+node, drain(node, false), nil)
}

// drained checks the promise of a drain: before its deadline it takes no running job off the node, unless the attempt
// was counted as failed or the node has not run the present revision of the job.
func (w *world) drained(before fsm.State, c fsm.Command, res fsm.Result) {
	at := max(before.Info().Clock, c.GetHead().GetAt())
	if b := c.GetDrainNode(); b != nil && res.Err() == nil {
		n, _ := before.Node(b.GetId())
		switch {
		case b.GetOn() && b.GetDeadlineSeconds() > 0:
			w.oracle.jobsUntil[b.GetId()] = at + int64(b.GetDeadlineSeconds())*sec
		case !b.GetOn() || !n.Draining || b.DeadlineSeconds != nil:
			delete(w.oracle.jobsUntil, b.GetId())
		}
	}
	for _, e := range c.GetEvict().GetEvictions() {
		x, ok := before.Workload(e.GetWorkload())
		if !ok || x.Demand.Job == nil || e.GetCode() != fsm.CodeDraining || !slices.ContainsFunc(res.Items, func(i fsm.Item) bool { return i.ID == x.ID }) {
			continue
		}
		until, runs := w.oracle.jobsUntil[x.Node], x.Actual.State == fsm.ActualRunning
		switch {
		case at >= until:
			if runs && until > 0 {
				w.report.Overdue++
			}
		case runs && (x.Acknowledged || w.oracle.ran[x.ID] == x.Node):
			w.violate("drain", x.ID, x.Node, "a drain moves the running job %d ms before its deadline", (until-at)/ms)
		case x.Actual.State == fsm.ActualFailed && x.Actual.Generation == x.Generation && x.Retry.NextAt == 0 && !x.Retry.Terminal:
			w.violate("drain", x.ID, x.Node, "a drain moves the job before its failed attempt is counted")
		}
	}
}

// deadlineKept checks that the record of a node has the deadline of its drain, which only a drain changes.
func (w *world) deadlineKept(n *fsm.Node) {
	if want := w.oracle.jobsUntil[n.ID]; n.JobsUntil != want && w.cfg.Sabotage != DeadlinesDropped {
		w.violate("deadline", "", n.ID, "running jobs may end there until %d, but the drain said %d", n.JobsUntil, want)
	}
}

// noteRuns notes which node has reported that the present revision of a job runs, and which jobs ended on a draining node.
func (w *world) noteRuns(c fsm.Command, old, x *fsm.Workload) {
	if x.Demand.Job == nil || old == nil {
		return
	}
	if old.Node != x.Node || old.Revision() != x.Revision() || old.Desired != x.Desired {
		delete(w.oracle.ran, x.ID)
	}
	if c.GetReport() != nil && x.Acknowledged && x.Actual.State == fsm.ActualRunning && x.Actual.Generation == x.Generation {
		w.oracle.ran[x.ID] = x.Node
	}
	if x.Finished() && !old.Finished() && x.Result.Succeeded && w.oracle.jobsUntil[x.Result.Node] > x.Result.At {
		w.report.Spared++
	}
}

// keepsJobs removes the moves of jobs off draining nodes from a planning step.
func keepsJobs(step *sched.Step) {
	step.Commands = slices.DeleteFunc(step.Commands, func(c fsm.Command) bool {
		b := c.GetEvict()
		if b == nil {
			return false
		}
		b.Evictions = slices.DeleteFunc(b.Evictions, func(e *commandv1.Eviction) bool {
			return e.GetCode() == fsm.CodeDraining && isJobID(e.GetWorkload())
		})
		return len(b.Evictions) == 0
	})
}
