// Package message converts the messages of agents (registrations, heartbeats, statuses and answers to orders) to the
// values of the planner and the state machine, and the answers of the leader to messages. It is pure: schedulers and
// the simulator call the same functions, and only the transport of the messages differs.
package message
