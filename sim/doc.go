// Package sim is a seeded simulator of a whole cluster. It runs the real state machine
// (fsm), the real planner (sched.Next, with and without its cache), the real control loop
// of the leader (sched/control) and the real decisions of the agent against each other in
// virtual time. It breaks what can break, and checks the promises of docs/DESIGN.md at
// every event. A run is a pure function of its Config: the same seed gives the same
// events, so a violation is a number that can be committed (testdata/seeds.txt).
//
// # What is real and what is modelled
//
//   - Raft is modelled as a linearizable log with terms. A leader may be paused,
//     cut off or deposed without knowing it; at an election a prefix of what
//     the old leader had proposed survives and the rest is lost, and it learns
//     neither. Every replica applies the same entries with the real fsm and must
//     reach the same digest and the same verdicts; a restart goes through a real
//     snapshot. Confirm appends no entry here.
//   - The leader's loop is the scheduler's own control.Term: leases, dispatcher,
//     reports, Confirms, planning and drift detection. Only time, the log and the
//     network around it are modelled. In some runs the bounds of its queues are small.
//   - An agent is the real core (agent/core): its fences, its work, its reports and its
//     side of the exchange with the fencer. Session, engine and disk are modelled. With
//     AgentCrash the process may die between any two effects of a step after an answer, so
//     an order that is answered before it is stored is found.
//   - Clocks: every replica has an offset, every machine an offset and a drift. A paused
//     leader's clock runs on.
//   - Fencers (the fault Fencers) run the real decisions of agent/fencer/lease on the clock
//     of their machine. Which of the two acts, or whether a supervisor had to start one
//     first, is a drawn delay. The death of fencers is not modelled: their own tests and
//     e2e cover it.
//
// # What is checked
//
// At every event: the promises of the oracle (oracle.go), the invariants of the state
// (State.Check) and of the leader (Term.Check), the same digest on all replicas, the same
// plan with and without the cache, and for every order that sets out (leader.go): a recent
// Confirm, one order in flight per workload, and the bounds of flights. After the faults
// the world must come to rest: every workload as desired, no residual, no new entries.
//
// Some kinds of faults are not in AllFaults, so that they do not change the draws of
// committed seeds: Drift (drift.go), StopTrouble, Fencers and Rollouts (rollouts.go). Each
// has a test of its own.
//
// # Running it
//
// go test ./sim runs some hundred seeds. SIM_SEEDS=5000 runs more, SIM_FROM is the first
// seed, and the run stops after SIM_LIMIT violations. SIM_RAW=1 skips shrinking. A
// violation prints its seed, a smaller set of faults that breaks the same promise, and the
// last lines of the trace about the workload and node. testdata/seeds.txt holds the seeds
// that once failed, and why.
//
// Not modelled: legacy v1 peers of protocol 0, engines shared by two agents, changes of a
// workload's type.
package sim
