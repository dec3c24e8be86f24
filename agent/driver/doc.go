// Package driver is the seam between the agent and whatever runs workloads: Docker, Compose,
// libvirt or a simulation.
//
// The agent decides, a driver obeys: it holds no queue, no retry, no fence and no memory of what
// should run. Everything it knows it reads back from the engine, so an agent that was killed finds
// its workloads again with one List. The contract, which drivertest.Run checks on every driver:
//
//   - Ensure makes one spec true and nothing else. It compares by Spec.Content only: equal content
//     never recreates, whatever the revision or generation says, because engines cannot change the
//     labels of a thing that exists. The labels therefore keep the revision and generation that
//     *created* it, and Observed repeats them as they are; the agent's store knows which newer
//     revision the same content belongs to.
//   - A new content is prepared as far as possible (image pulled, configuration accepted) before
//     the old instance is touched, so a bad image leaves what runs running.
//   - Every step leaves something a later Ensure can finish or undo. There is no rollback to get
//     wrong: the caller tries again.
//   - List is the truth, and an engine that does not answer is an error, never an empty list.
//   - Only what carries our cluster and our node is listed or touched, plus what an agent without
//     those labels made and our own store claims (Options.Owns of a driver).
//   - Methods are safe for concurrent use. Calls for one ID are expected one at a time; the agent
//     serialises them.
package driver
