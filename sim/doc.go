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
//   - An agent is the real core (agent/core): its fences, its work, its reports and its side of the
//     conversation with the fencer. Its session, its engine and its disk are modelled. With AgentCrash
//     the process may die between any two effects of a step after an answer, so an order that is
//     answered before it is stored is found.
//   - Clocks: every replica has an offset, every machine an offset and a drift. A
//     pause of a leader lets the clock run on, so leaving out its shift breaks
//     nothing here.
//
// A world at rest is made to differ from the state (drift.go): an orphan, a disappearance
// and another revision must each come on record and be closed once repaired. Drift, StopTrouble (stops
// that are refused, forgotten or not carried out) and Rollouts (groups that are updated a few members at
// a time) are not part of AllFaults, because the committed seeds were drawn without them.
//
// # Running it
//
// go test ./sim runs some hundred seeds. SIM_SEEDS=5000 runs more, SIM_FROM says
// where to begin, SIM_LIMIT after how many violations to stop; SIM_RAW=1 leaves
// out shrinking. A violation prints its seed, a smaller set of faults that breaks
// the same promise, and the last lines of the trace about the workload and node.
// testdata/seeds.txt holds the seeds that once failed, and what is known.
//
// Fencers (Guards) are the real lease.Step on the clock of their machine. One State stands for both
// fencers of a node; which of the two acts, or whether a supervisor starts another one first, is a delay
// that is drawn. Deaths of fencers are not modelled: tests of agent/fencer and e2e show that one of them
// acts in time.
//
// Not modelled: legacy v1 peers of protocol 0, engines shared by two agents,
// changes of a workload's type.
package sim
