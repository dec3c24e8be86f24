// Package plan computes the operations that connect a machine to the networks of its cluster. Its input is
// the view that the schedulers sent, and the observed state of the kernel and the container engine. In the
// view, each node has a slice of a network's subnet: the addresses that this node gives to its containers.
//
// The package is pure: package overlay observes the machine and carries out the operations. Plan has no
// memory, so it can be called again after any failure or change by another program. After its operations
// were carried out a few times, Plan returns none.
//
// A machine has one bridge of the engine for each network (ps<id>), one VXLAN device for all networks
// (pvx0) with static entries for each peer, one nftables table (inet persys), and a rule for each bridge in
// the chain DOCKER-USER, if that chain exists.
package plan
