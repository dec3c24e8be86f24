// Package dial is how an agent, a gateway or a CLI reaches the schedulers: one
// resolver (a list of addresses or an SRV name), one rule for which replica to
// ask (the leader when it is known, else the first that answers), one retry
// rule and one set of TLS credentials. Resolver is the scheme persys:///: Dial,
// which our own programs use, takes its addresses from it, and other gRPC clients
// can.
//
// Any replica answers any call, so the order of the replicas is a matter of
// speed, never of correctness: a wrong leader hint costs one hop.
package dial
