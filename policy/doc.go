// Package policy decides which privileges a workload may have on the machine that runs it.
//
// A workload's asks are a flat list: one Ask for each privilege that goes beyond an ordinary container, such
// as a mounted path of the host, a published port or an added capability. Package asks derives the list from
// a container, a loaded Compose project or a virtual machine. Judge compares the list with a Policy and
// returns the violations. A policy allows only the things that it lists.
//
// The scheduler judges a workload when it is applied and when it is placed, in the state machine and in the
// planner. The agent judges it again. All use the same function, so the package is pure and imports nothing
// of this project.
package policy
