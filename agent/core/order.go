package core

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/persys/compute/agent/workload"
)

func (x *step) answer(a Answer) { x.do(a) }

func (x *step) refuse(no *Refusal) { x.answer(Answer{Refusal: no}) }

// admit checks the node that the sender names, and the sender's epoch. It stores the epoch even if a later
// check refuses the order, because the epoch proves that the leadership term exists.
func (x *step) admit(from Sender) *Refusal {
	if no := JudgeNode(x.Node, from.Node); no != nil {
		return no
	}
	if no := judgeInstance(x.Meta.InstanceID, from.Instance); no != nil {
		return no
	}
	next, no := judgeEpoch(x.Meta.Epoch, x.Standalone, from.Epoch)
	if no == nil && next != x.Meta.Epoch {
		x.setEpoch(next)
	}
	return no
}

func (x *step) setEpoch(e Epoch) {
	x.Meta.Epoch = e
	x.writeMeta()
	x.rebind()
}

func (x *step) writeMeta() {
	meta := x.Meta
	x.write(true).Meta = &meta
}

// rebind requests new drivers, which label instances with the id of the cluster that the agent has joined. It
// does nothing while the agent has workloads whose instances carry another cluster label, because the labels of
// an instance cannot be changed.
func (x *step) rebind() {
	cluster := x.Meta.Epoch.ClusterID
	if x.Bound == "" || cluster == "" || cluster == x.Bound || cluster == x.rebinding || x.Meta.Engine != "" && x.ordered() {
		return
	}
	x.rebinding = cluster
	x.do(Rebind{cluster})
}

// call checks the sender of an API call that is not an order. A call without the epoch of a leader is accepted
// if it changes nothing.
func (x *step) call(c Call) {
	if no := JudgeNode(x.Node, c.Sender.Node); no != nil {
		x.refuse(no)
		return
	}
	if c.Epoch == nil {
		if c.Changes && !x.Standalone && x.Meta.Epoch.Owned() {
			x.refuse(fencedf("epoch: missing, but the schedulers of this node's cluster send their epoch with each call"))
			return
		}
		x.answer(Answer{})
		return
	}
	x.answer(Answer{Refusal: x.admit(Sender{Epoch: c.Epoch})})
}

// heard checks the response of a scheduler. It refuses responses of another cluster, of another shard, or of a
// replica that was leader in an earlier term.
func (x *step) heard(h Heard) {
	got := Epoch{ClusterID: h.ClusterID}
	if h.Epoch != nil && h.Epoch.Owned() {
		got = *h.Epoch
		got.ClusterID = cmp.Or(got.ClusterID, h.ClusterID)
	}
	known := x.Meta.Epoch
	switch {
	case got.ClusterID == "": // the answer comes from a legacy v1 scheduler
	case known.ClusterID != "" && known.ClusterID != got.ClusterID:
		x.refuse(fencedf("this node belongs to cluster %q, the scheduler that answered belongs to cluster %q", known.ClusterID, got.ClusterID))
		return
	case otherShard(known, got):
		x.refuse(fencedf("this node belongs to shard %q, the scheduler that answered belongs to shard %q of cluster %q", known.Shard, got.Shard, got.ClusterID))
		return
	case got.Owned() && got.Less(known):
		x.refuse(fencedf("the scheduler answered with epoch %s, which is older than the epoch %s that this node has seen", got, known))
		return
	default:
		got.Shard = cmp.Or(got.Shard, known.Shard)
		if known.ClusterID != got.ClusterID || known.Shard != got.Shard || known.Less(got) {
			x.setEpoch(got)
		} else {
			x.rebind()
		}
	}
	x.answer(Answer{})
}

// apply checks an order to run or stop a workload, stores it, and schedules the actions that it needs.
func (x *step) apply(o Order) {
	if o.OnLostLease == "stop" {
		if !x.Settings.Fencer {
			x.refuse(Refusedf("on_lost_lease: stop needs a node with fencers, which stop the workload when the lease ends, and this node has none: PERSYS_FENCER is off"))
			return
		}
		if o.Running && slices.Contains(x.fencer.lacks, o.Kind) {
			x.refuse(Refusedf("on_lost_lease: stop: the settings of this node's fencer leave out a kind of workload that it would have to stop: %s", o.Kind))
			return
		}
	}
	if no := x.admit(o.Sender); no != nil {
		x.refuse(no)
		return
	}
	w, tomb := x.Get(o.ID), x.Tombstone(o.ID)
	var old *Intent
	var held, deleted workload.Generation
	if w != nil && w.Intent != nil {
		old, held = w.Intent, w.Intent.Generation
	}
	if tomb != nil {
		deleted = tomb.Generation
	}
	if no := judgeApply(o.ID, held, deleted, o.Generation, x.Standalone); no != nil {
		x.refuse(no)
		return
	}
	if x.Draining && old == nil {
		x.refuse(Refusedf("node %q is draining: it takes no new workloads", x.Node))
		return
	}
	if _, ok := x.Engine(o.Kind); !ok {
		x.refuse(Refusedf("runtime not available: %s", o.Kind))
		return
	}
	if w.stopped() {
		o.SameSince = workload.Generation{} // the run was stopped because the lease ended, so it has no exit: a newer order runs the job again
	}
	next := follow(old, o, x.now)
	if no := x.room(next, old, o.Room); no != nil {
		x.refuse(no)
		return
	}
	if tomb.open() && old == nil {
		next.Recreate = true // a new instance is needed, because the delete has not been carried out yet
		next.KeepVolumes, next.KeepShared, next.Retain = tomb.KeepVolumes, tomb.KeepShared, tomb.Retain
	}
	if old == nil && w != nil && w.Kind != o.Kind {
		next.PreviousTypes = []workload.Kind{w.Kind}
		next.KeepVolumes = next.KeepVolumes || !tomb.open() // the delete was for an instance without order, so its volumes were not deleted
	}
	newer := old == nil || old.Generation.Less(next.Generation)
	if !x.coverOrder(w, next, newer) {
		return
	}
	x.accept(o, w, old, next, newer)
}

// accept stores an order that was checked, and schedules the actions that it needs.
func (x *step) accept(o Order, w *Workload, old, next *Intent, newer bool) {
	// A lapsed workload may still run although it is being stopped, so a newer order for it must start it again.
	settled := old != nil && w.settled() && !(newer && w.memory.lapsed)
	again := newer && (old == nil || next.run() != old.run()) // the order asks for another run
	skip := old != nil && next.sameOrder(old) && !w.Task.Open() && (settled || w.completed() || !again && w.hasRun())
	if !skip || !next.sameRecord(old) || x.writes {
		x.write(true).Intents = append(x.store.Intents, next)
		if t := x.Tombstone(o.ID); t.open() {
			x.setTombstone(*t.closed())
		}
	} else {
		next = old
	}
	if w == nil {
		w = x.add(o.ID, o.Kind)
	}
	w = x.edit(w)
	if w.Kind != o.Kind {
		w.Kind, w.Observed = o.Kind, nil
	}
	w.Intent = next
	if j, _ := x.jobs.Get(o.ID); j.act != nil && old != nil && !next.sameEffect(old) {
		x.do(Cancel{Act: j.act, Starting: true})
	}
	// A leased workload (one with on_lost_lease: stop) is held back after a restart of the agent or the end of
	// the lease. It starts only on a newer order: an order of the same generation may have been sent before
	// the workload was stopped.
	if w.Waiting() && (newer || !next.Leased()) {
		w.memory.waits, w.memory.lapsed, w.memory.lapsedAt = false, false, time.Time{}
		x.due(o.ID, x.now)
	}
	if skip {
		x.publish(w)
		x.answer(Answer{Skipped: true, Message: "unchanged", Intent: next, Status: w.Status})
		return
	}
	// If the agent is carrying this order out already, an order for the same run starts nothing.
	// Otherwise a job could run a second time if it has just ended and the agent has not observed its end
	// yet.
	t := w.Task
	if repeated := t.Open() && !again && w.follows(old); !repeated {
		t = NewTask(ActionApply, o.ID, x.now)
		x.supersede(w.Task, t)
		w.Task, w.memory.asked, w.memory.fresh, w.memory.exit, w.Failure = t, true, true, nil, Failure{}
	}
	x.publish(w)
	x.due(o.ID, x.now)
	x.answer(Answer{Message: "queued", Intent: next, Task: t})
}

// room refuses an order if all orders together would reserve more than this node offers. Actual usage is
// ignored. An order that reserves no more than the previous order of its workload is accepted, so a workload
// keeps running if the node's limits are lowered. Current schedulers never place more on a node than it offers.
// This check is for legacy v1 schedulers and for a standalone agent.
func (x *step) room(next, old *Intent, offers *[3]Room) *Refusal {
	if offers == nil {
		return nil
	}
	wants, had, held := next.promises(), [3]int64{}, [3]int64{}
	if old != nil {
		had = old.promises()
	}
	for w := range x.State.Workloads() {
		if w.Intent != nil && w.ID != next.ID {
			for i, n := range w.Intent.promises() {
				held[i] += n
			}
		}
	}
	for i, l := range offers {
		if wants[i] <= had[i] || held[i]+wants[i] <= l.Offer {
			continue
		}
		return &Refusal{Class: workload.InsufficientResources, Message: fmt.Sprintf(
			"%s: %s: needs %d %s, but %d of the %d that node %q offers are already reserved (the node has %d, keeps %d for itself, and offers %d %% of the difference to workloads: PERSYS_RESOURCE_THRESHOLD)",
			workload.InsufficientResources, l.Resource, wants[i], l.Unit, held[i], l.Offer, x.Node, l.Total, l.Reserved, x.Threshold)}
	}
	return nil
}

// delete checks a delete, stores it, and schedules its work. It stores the tombstone (the record of the delete)
// even if the workload is not on this node, because an apply that was sent before the delete may still arrive.
func (x *step) delete(d Delete) {
	if no := x.admit(d.Sender); no != nil {
		x.refuse(no)
		return
	}
	w, tomb := x.Get(d.ID), x.Tombstone(d.ID)
	var old *Intent
	var open *Task
	if w != nil {
		old, open = w.Intent, w.Task
	}
	if open == nil {
		open = x.openTask(d.ID)
	}
	if old != nil {
		if no := judgeDelete(d.ID, old.Generation, d.Generation, x.Standalone); no != nil {
			x.refuse(no)
			return
		}
	}
	fresh := Tombstone{ID: d.ID, Generation: d.Generation, DeletedAt: x.now, KeepVolumes: d.KeepVolumes, Retain: d.Retain}
	// A legacy v1 scheduler sends the same delete when it deletes the workload and when it has moved the
	// workload to another node. So keep volumes that other nodes can reach.
	fresh.KeepShared = d.Epoch == nil && !x.Standalone
	if old != nil && fresh.Generation.Less(old.Generation) {
		fresh.Generation = old.Generation // a delete for a standalone agent has no generation
	}
	if tomb != nil && fresh.Generation.Less(tomb.Generation) {
		fresh.Generation = tomb.Generation
	}
	if tomb != nil && fresh.Generation == tomb.Generation {
		fresh.Exit = tomb.Exit
	}
	known := len(x.engines) > 0
	for _, e := range x.engines {
		known = known && e.Listed
	}
	gone := Answer{Absent: true, Message: "the workload is not on this node"}
	if w == nil && known && !tomb.open() {
		if x.writes || tomb == nil || fresh.Generation != tomb.Generation {
			fresh.Done = true
			x.setTombstone(x.reportGone(fresh))
		}
		x.answer(gone)
		return
	}
	queued := Answer{Message: "queued"}
	again := old != nil && old.Deleting || old == nil && tomb.open()
	if again && !x.writes && tomb != nil && fresh.Generation == tomb.Generation && (old == nil || !d.Purge || old.Purge) &&
		fresh.KeepVolumes == tomb.KeepVolumes && fresh.KeepShared == tomb.KeepShared && fresh.Retain == tomb.Retain {
		x.answer(queued)
		return
	}
	t := NewTask(ActionDelete, d.ID, x.now)
	if again && open.Open() && open.Action == ActionDelete {
		t = open // continue the open task of the workload
	}
	x.supersede(open, t)
	x.setTombstone(fresh)
	if w != nil {
		w = x.edit(w)
		w.Task = t
		if old != nil {
			next := *old
			next.Deleting, next.Purge, next.UpdatedAt = true, old.Purge || d.Purge, x.now
			next.KeepVolumes, next.KeepShared, next.Retain = fresh.KeepVolumes, fresh.KeepShared, fresh.Retain
			if next.Generation.Less(d.Generation) {
				next.Generation = d.Generation
			}
			w.Intent, w.Failure = &next, Failure{Ended: w.Failure.Ended}
			x.write(true).Intents = append(x.store.Intents, &next)
			if j, _ := x.jobs.Get(d.ID); j.act != nil {
				x.do(Cancel{Act: j.act, Starting: true})
			}
		}
		x.publish(w)
	}
	x.due(d.ID, x.now)
	x.answer(queued)
}
