// Package dial connects agents, gateways and CLIs to the schedulers. It has one resolver (a list of addresses
// or an SRV name), one rule for the choice of a replica (the leader if it is known, otherwise the first replica that
// answers), one retry rule and one set of TLS credentials. Programs of this project use Dial, which takes its addresses
// from Resolver. Resolver implements the scheme persys:/// and can be used by other gRPC clients too.
//
// Any replica answers any call, so the choice of the replica affects only the speed: if the client takes a
// follower for the leader, the follower forwards the call.
package dial
