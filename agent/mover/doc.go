// Package mover copies volumes that move to this node, serves the copies of volumes that move away, and deletes the copies
// that are not needed any more (ADR 72).
//
// The schedulers list the moves of a node in each answer to a heartbeat. The mover compares the list with its own work, so
// a list that is lost or repeated does no harm. What it has done is in the node's heartbeats. The records of the volumes
// (agent/volume) hold everything that must survive a restart.
//
//   - phase copying: the node To copies the volumes while the workload runs;
//   - phase stopping: nothing;
//   - phase final: the node To copies what has changed. The node From sets its copy aside before it answers;
//   - phases placed and kept: the node From reports that it keeps its copy, in phase kept the node To that its copy is complete;
//   - phase done: the node From deletes the copy that it set aside;
//   - phase undone: the node From takes its copy back into use and reports that it has it. If the workload has used the copy
//     of the node To, that node sets it aside;
//   - phase dropping: the node To deletes the incoming copy, unless it was used.
//
// A node copies and sends few volumes at the same time. The others wait.
package mover
