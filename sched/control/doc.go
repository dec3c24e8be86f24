// Package control is the leader's control loop as a pure value: a [Term] takes an
// [Input] and the time, and returns the [Effect]s to carry out. It reads no clock,
// starts no goroutine, takes no lock and waits for nothing, so the scheduler
// (sched/leader, in real time) and the simulator (sim, in virtual time) run the same
// code.
//
// A Term is one leadership term of one replica. It holds state of the leader that is not replicated:
//
//   - the liveness table: when each node sent its last heartbeat, and when its lease ends (liveness.go,
//     lease.go);
//   - the dispatcher: which orders wait, are in flight, or wait for another try (orders.go);
//   - the workload reports that wait to be committed (reports.go);
//   - the planning cycle: observe, plan, propose, confirm, deliver (plan.go);
//   - the reads of agents: polls, drift detection, and the record of their finished tasks (inspect.go,
//     drift.go);
//   - the groups whose number of members the leader chooses, with the numbers that its decisions of
//     the last minutes wanted (autoscale.go);
//   - moves of workloads that even out the load of the nodes (balance.go);
//   - the pause detector and the planner's clock offset (clock.go).
//
// An effect that needs an answer carries an ID. The caller answers it with exactly one input of the same
// ID: Propose with Proposed, Confirm with Confirmed, Deliver with Delivered, and so on.
//
// Promises:
//
//   - A heartbeat costs no log entry. Only changes of workload status are committed,
//     the latest report of a workload wins, and reports are flushed every FlushEvery
//     or as soon as FlushItems wait.
//   - A lease is extended only after a Confirm that began after the heartbeat arrived.
//     One Confirm per ConfirmEvery serves all heartbeats of that window. Without a Confirm
//     the answer repeats the old end of the lease, so a deposed leader extends nothing.
//   - A new term, and the end of a frozen mode, grant every node one full lease. A pause of this
//     process moves every deadline by its length. So the leader may treat a lease as ended too
//     late, but never too early.
//   - Orders are sent after a Confirm that began after they were planned. Each node has a
//     bounded queue, one order per workload is in flight to it, and each delivery has a
//     deadline. A dead node delays no other node.
//   - An agent of protocol 0 sends no status by itself: it is polled every PollEvery until the accepted order
//     has an outcome. Any agent that misses a deadline is asked for its recent tasks. These reads are bounded
//     in number and time.
//   - Every node is compared with the state once in DriftInterval. A new difference is
//     recorded after a second comparison has confirmed it. It is repaired by a report, by
//     a new order, or by a person.
package control
