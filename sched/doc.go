// Package sched plans: given what the state holds, what the leader has heard
// and what time it is, it says what ought to happen next. It promises:
//
//   - Purity. [Next] is a function of its [World]. It reads no clock, draws no
//     random number, starts nothing and waits for nothing, so the leader, the
//     simulator, a benchmark and `persysctl why` run the very same code.
//   - Level, not edge. Each step looks at how things stand and proposes what is
//     missing. A step whose commands were lost, refused or half applied is
//     repaired by the next one; nothing is remembered that cannot be forgotten.
//   - Proposals only. The state machine judges every command again. A planner
//     that is late or wrong costs a refused command, never a broken rule.
//   - Cost follows change. A [Cache] keeps the nodes in compact arrays and the
//     records that still need a look; a step costs what changed since the one
//     before, plus what is pending or unacknowledged. Next with an empty cache
//     gives the same step as Next with a full one.
//   - An answer to "why". Whatever rejects a node can say so in words and
//     figures; what is unplaced carries the counted summary.
//
// The passes of a step, in order: expire.go turns ended and resumed leases into
// node states; evict.go takes workloads off nodes that cannot or may not run
// them; retry.go judges failures and starts due retries; place.go places what
// is pending, highest priority first, each placement seeing those before it;
// orders.go tells nodes what they have not acknowledged. In a frozen mode only
// the first pass runs.
//
// Below them: filters.go says which nodes may take a demand, score.go which of
// those is best, nodes.go holds the arrays, order.go keeps nodes sorted by load
// so that the best one is found without looking at all, cache.go follows the
// change feed, explain.go answers people.
package sched
