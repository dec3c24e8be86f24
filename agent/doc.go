// Package agent runs the workloads of one machine for the schedulers of one cluster.
//
// It is level-triggered: orders say what should run, engines say what runs, and the core decides the next
// step from both. Orders, engine events and timers only ask for another look. So a crash of the agent
// loses nothing: the next process reads its file, lists its engines and goes on, and adopts what ran
// meanwhile.
//
// Promises:
//
//   - An order is on disk before it is acknowledged, together with the epoch of its sender. Lower epochs,
//     lower generations, other clusters and other nodes are refused, also after a restart.
//   - The agent touches only what it was ordered to run and what carries its labels. It does not forget a
//     workload because its engine does not answer.
//   - Losing the schedulers stops nothing, but for workloads with on_lost_lease: stop.
//
// The parts, which this package connects:
//
//   - core decides; it is a pure step that the simulator drives as well.
//   - store keeps the file. spec reads orders and specifications.
//   - runner holds the core's state and carries out its effects on drivers.
//   - session talks to the schedulers, server answers them, fencer stops workloads without the agent.
//   - garbage, health, usage, host, volume, credentials and metrics have one subject each.
package agent
