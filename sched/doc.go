// Package sched is the planner. From the replicated state, the liveness of the nodes and
// the time it computes the next commands and orders. It promises:
//
//   - Purity. [Next] is a function of its [World]. It reads no clock, draws no
//     random number, starts nothing and waits for nothing, so the leader, the
//     simulator, a benchmark and `persysctl why` run the very same code.
//   - Level-triggered. Each step compares the present state with the desired one and
//     proposes what is missing. If the commands of a step are lost, refused or partly
//     applied, the next step proposes what is still missing.
//   - Proposals only. The state machine judges every command again. A planner
//     that is late or wrong costs a refused command, never a broken rule.
//   - Cost follows change. A [Cache] keeps the nodes in compact arrays and a queue of
//     records to look at. A step costs the records that changed since the last one, plus
//     the pending and unacknowledged ones. Next with an empty cache returns the same step
//     as Next with a full one.
//   - Explanations. Each filter that rejects a node can say why, with figures. An
//     unplaced workload carries a summary that counts the reasons.
//
// The passes of a step, in order:
//
//   - expire.go: ended leases mark nodes down, resumed ones mark them up;
//   - evict.go: workloads leave nodes that cannot or may not run them;
//   - retry.go: failures are counted and due retries start;
//   - rollouts.go: rolling updates take their next step;
//   - place.go: pending workloads are placed, highest priority first; each placement
//     sees the earlier ones of the step;
//   - orders.go: nodes are given the orders that they have not acknowledged.
//
// In a frozen mode only the first pass runs.
//
// The passes use: filters.go (which nodes may take a demand), score.go (which of them is
// best), nodes.go (the arrays of nodes), order.go (nodes sorted by load, so that a search
// ends early), cache.go (the change feed), queue.go (work queues), explain.go
// (`persysctl why`).
package sched
