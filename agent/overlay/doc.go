// Package overlay connects the containers of this machine to containers of the same network on other
// machines.
//
// The schedulers send each node a view of its networks: their subnets, and the other nodes in them. Run
// compares the machine with the newest view and carries out the operations that package plan computes. It
// does so at each new view, when the kernel announces a change by another program, and once a minute. All
// packets are forwarded by the kernel alone. So traffic continues while no agent runs, and a restarted
// agent changes nothing if the machine is already set up.
package overlay
