// Package overlay connects the containers of this machine to those of the same network on other machines.
//
// It is level-triggered: Run compares the machine with the newest view of the schedulers, at each new view, when the
// kernel announces a foreign change, and once a minute, and carries out the operations of package plan. The kernel
// holds everything that moves packets. So traffic goes on while no agent runs, and an agent that starts finds the
// machine as it should be and changes nothing.
package overlay
