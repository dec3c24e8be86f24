// Package sim is a seeded simulator of a whole cluster. It runs the real state machine (fsm), the real
// planner (sched.Next, with and without its cache), the real control loop of the leader (sched/control) and
// the real decisions of the agent against each other in virtual time. It injects faults into all of them, and
// checks the promises of docs/DESIGN.md at every event. A run is a pure function of its Config: the same seed
// gives the same events, so a seed that breaks a promise can be committed (testdata/seeds.txt).
//
// # What is real and what is modelled
//
//   - Raft is modelled as a linearizable log with terms. A leader may be paused, cut off or deposed
//     without knowing it. At an election a prefix of the old leader's pending proposals survives and the
//     others are lost; the old leader learns neither. Every replica applies the same entries with the real
//     fsm and must reach the same digest and the same results. A restart restores a real snapshot. Confirm
//     appends no entry here. The disk of a replica may hang (DiskStalls, disk.go), with the same
//     consequences as in cluster/stall.go.
//   - The leader's loop is the scheduler's own control.Term: leases, dispatcher, reports, Confirms,
//     planning and drift detection. Only time, the log and the network around it are modelled. In some
//     runs the bounds of its queues are small.
//   - An agent is the real core (agent/core): its checks of epochs and generations, its work, its reports and
//     its side of the exchange with the fencer. So is the decision when it registers and sends heartbeats
//     (agent/session/heartbeat). Engine, disk and the transport of messages are modelled. With the fault
//     AgentCrash the process may end between any two effects of a step, also after it has answered an order.
//     So the simulator would find an agent that answers an order before it stores it.
//   - Registrations, heartbeats, orders and their answers are the messages of the real API. The agent's side of their
//     conversion is agent/message, the schedulers' side rpc/message. Messages are passed on without their encoding.
//   - Clocks: every replica has an offset, every machine an offset and a drift. The clock of a paused
//     leader runs on. With Crons the clocks of replicas are set forward and back.
//   - Fencers (with the fault Fencers) are the processes that stop exclusive workloads when the lease ends.
//     They run the real decisions of agent/fencer/lease on the clock of their machine. Which of the two
//     fencers acts, and whether a supervisor had to start one first, is modelled as a random delay. That a
//     fencer is killed is not modelled: the fencers' own tests and e2e cover it.
//
// # What is checked
//
// At every event the simulator checks the promises of the oracle (oracle.go), the invariants of the state
// (State.Check) and of the leader (Term.Check), that all replicas have the same digest, and that the
// planner makes the same plan with and without the cache. For every order that is sent (leader.go) it
// checks that a Confirm is recent, that one order per workload is in flight, and that the limits of orders
// in flight hold. After the faults the cluster must come to rest: every workload is as desired, no node
// has an instance left to remove (residual), and no entries are added to the log.
//
// Some kinds of faults are not in AllFaults, so that they do not change the random choices of committed
// seeds: Drift (drift.go), StopTrouble, Fencers, Rollouts (rollouts.go), DiskStalls (disk.go), Crons (crons.go),
// Placement (placement.go), Jobs (jobs.go), Hiccups (hiccups.go), Drains (drains.go), NodeTrouble and Rebalancing (balance.go). Each has a test of its own.
//
// # Running it
//
// go test ./sim runs some hundred seeds. SIM_SEEDS=5000 runs more, SIM_FROM is the first seed, and the run
// stops after SIM_LIMIT violations. SIM_RAW=1 skips shrinking. A violation prints its seed, a smaller set
// of faults that breaks the same promise, and the last lines of the trace about the workload and node.
// testdata/seeds.txt holds the seeds that once failed, with the reason.
//
// Not modelled: autoscaling (control.Scaled), looks of a leader at single workloads of legacy v1 agents
// (control.Looked), legacy v1 peers of protocol 0, engines shared by two agents, changes of a workload's type.
package sim
