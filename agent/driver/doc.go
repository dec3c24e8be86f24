// Package driver is the interface between the agent and the engines that run workloads: Docker, Compose,
// libvirt and a simulated engine.
//
// The agent decides which actions are needed, and a driver carries them out. A driver has no queue, does not
// retry and keeps no list of desired workloads. It reads all state from the engine, so a restarted agent finds
// its workloads again with one List. The contract, which drivertest.Run checks on every driver:
//
//   - Ensure brings one workload to its spec and does nothing else. It compares Spec.Content only. Equal
//     content never recreates an instance, even if the revision or generation differs, because engines cannot
//     change the labels of an existing instance. The labels keep the revision and generation that
//     created the instance, and List returns them in Observed. If a newer revision has the same content, only the
//     agent's store records it.
//   - New content is prepared as far as possible (image pulled, configuration accepted) before
//     the old instance is touched, so a bad image leaves the old instance running.
//   - After every step of an interrupted change, a later Ensure can finish or undo the change. Drivers do
//     not roll back: the caller calls Ensure again.
//   - List is complete. If the engine does not answer, List returns an error, never an empty list.
//   - A driver lists and touches only instances that carry the labels of the agent's cluster and node, and
//     unlabelled instances that the agent's store claims (Options.Owns of a driver).
//   - Methods are safe for concurrent use. The caller must not make two calls for one ID at a time; the agent
//     serialises them.
package driver
