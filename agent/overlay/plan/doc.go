// Package plan computes the changes that connect a machine to the networks of its cluster: from the view that
// the schedulers sent and the observed state of the kernel and the container engine to a list of operations.
//
// It is pure. Plan has no memory, so a repeated call after any failure or foreign change leads to the same end:
// when the operations of Plan are carried out a few times, Plan returns none. Package overlay observes and
// carries out.
//
// A machine has one bridge of the engine for each network (ps<id>), one VXLAN device for all networks (pvx0) with
// static entries for each peer, one nftables table (inet persys), and a rule for each bridge in the chain
// DOCKER-USER, if that chain exists.
package plan
