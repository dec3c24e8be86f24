// Package sched is the planner. From the replicated state, the liveness of the nodes and
// the time it computes the next commands and orders. It promises:
//
//   - Purity. [Next] is a function of its [World]. It reads no clock, draws no
//     random number, starts nothing and waits for nothing, so the leader, the
//     simulator, a benchmark and `persysctl why` run the very same code.
//   - Level-triggered. Each step compares the present state with the desired one and
//     proposes what is missing. If the commands of a step are lost, refused or partly
//     applied, the next step proposes what is still missing.
//   - Proposals only. The state machine judges every command again. If a planner is late
//     or wrong, its command is refused and no rule is broken.
//   - Cost follows change. A [Cache] keeps the nodes in compact arrays, and queues of the
//     records to evaluate. The cost of a step grows with the records that changed since
//     the last step and with the pending and unacknowledged ones. Next returns the same
//     step with an empty cache as with a full one.
//   - Explanations. Each filter that rejects a node can tell why, with figures. The record of an
//     unplaced workload has a summary: how many nodes were rejected for each reason.
//
// The passes of a step, in order:
//
//   - expire.go: nodes whose lease ended are marked down, returned nodes are marked up;
//   - jobs.go: jobs that have ended get their result, finished jobs are deleted after their TTL;
//   - system.go: members of system workloads are created and deleted;
//   - moves.go: room is reserved for workloads that left a node and wait until that node
//     has stopped them;
//   - place.go: pending workloads are placed, highest priority first; each placement
//     sees the earlier ones of the step;
//   - evict.go: workloads leave nodes that cannot or may not run them. A workload is held
//     on its node (moves.go) if no other node has room for it. elsewhere.go decides about
//     workloads that have failed on their node;
//   - retry.go: failures are counted and due retries start;
//   - crons.go: crons get their next time, and runs whose time has come are created;
//   - rollouts.go: rolling updates take their next step;
//   - orders.go: nodes get the orders that they have not acknowledged.
//
// In a frozen mode only the first pass runs.
//
// The passes use: filters.go (which nodes may take a demand), score.go (which of them is best), rules.go and sets.go
// (spread and affinities), nodes.go (the arrays of nodes), order.go (nodes sorted by load, so that a search ends
// early), cache.go (the change feed), queue.go (work queues), explain.go (`persysctl why`). rebalance.go finds moves
// that even out the load of the nodes, and standing.go says which of them the leader makes without a request by a
// person.
package sched
