// Package message converts values of the agent's core to messages of the control API and the agent API, and the
// answers of schedulers to values of package heartbeat. It is pure: the agent and the simulator call the same
// functions, and only the transport of the messages differs.
//
//   - report.go: the reports of workloads in heartbeats.
//   - status.go: the statuses and answers of the agent API.
//   - registration.go: registrations, and the answers to registrations and heartbeats.
package message
