// Package dial connects agents, gateways and CLIs to the schedulers: one resolver (a list of
// addresses or an SRV name), one rule for the choice of a replica (the known leader, else the first
// that answers), one retry rule and one set of TLS credentials. Resolver implements the scheme
// persys:///. Dial, which our own programs use, takes its addresses from it; other gRPC clients can
// use it too.
//
// Any replica answers any call, so the order of the replicas affects speed only: a wrong leader hint
// costs one hop.
package dial
