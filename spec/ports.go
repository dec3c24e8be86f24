package spec

import (
	"fmt"
	"strconv"

	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/policy"
)

// UsedPorts returns an error for each host port of a workload that programs of the cluster (agents,
// schedulers) use. A port in ingress mode is an error if a program uses it on any node, because every node
// answers at such a port. Another port is an error if programs use it on every node, because then no node has
// it free. s is the specification as its author wrote it, and w the put that was made from it. The function
// on returns a program that uses a port, and a node where it does so. If every is true, on returns "" unless
// programs use the port on every node.
func UsedPorts(s *controlv1.WorkloadSpec, w *commandv1.WorkloadPut, on func(p fsm.HostPort, every bool) (program, node string)) error {
	var e Errors
	check := func(p fsm.HostPort, every bool) {
		program, node := on(p, every)
		if program == "" {
			return
		}
		text := fmt.Sprintf("%d/%s", p.Port, p.Protocol)
		rule := fmt.Sprintf("no node can publish %s: %s uses it, for example on node %s; publish another port", text, program, node)
		if !every {
			rule = fmt.Sprintf("%s in mode ingress would be on every node, and %s uses it on node %s: publish another port", text, program, node)
		}
		e.add(fieldOfPort(s, w.GetDemand().GetAsks(), p), rule, "")
	}
	for _, p := range w.GetDemand().GetHostPorts() {
		check(fsm.HostPort{Port: uint16(p.GetPort()), Protocol: p.GetProtocol(), Address: p.GetAddress()}, true)
	}
	for _, p := range w.GetDemand().GetIngress() {
		check(fsm.HostPort{Port: uint16(p.GetPort()), Protocol: p.GetProtocol()}, false)
	}
	return e.asError()
}

// fieldOfPort returns the field that publishes a host port: in the specification of a container, or in a loaded stack,
// whose asks are given.
func fieldOfPort(s *controlv1.WorkloadSpec, asks []*commandv1.Ask, p fsm.HostPort) string {
	for i, x := range s.GetContainer().GetPorts() {
		if x.GetHostPort() == int32(p.Port) && protocolOf(x.GetProtocol()) == p.Protocol {
			return fmt.Sprintf("spec.container.ports[%d]", i)
		}
	}
	value := policy.PortValue(p.Address, strconv.Itoa(int(p.Port)), p.Protocol)
	for _, a := range asks {
		if a.GetRule() == policy.RulePort && a.GetValue() == value {
			return a.GetField()
		}
	}
	return "ports"
}
