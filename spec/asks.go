package spec

import (
	"fmt"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/policy"
	"github.com/persys/compute/policy/asks"
)

// asksOf returns the asks of a plain, normalised specification: the rights and resources of the node that it asks for,
// such as host paths. Policies allow or refuse them. For a Compose stack it returns none: package rpc adds them,
// because they need the loaded project.
func asksOf(id string, s *controlv1.WorkloadSpec) []policy.Ask {
	switch s.GetType() {
	case TypeContainer:
		out := asks.Container(agentContainer(s), fullImage(s.GetContainer().GetImage()))
		for i, p := range s.GetContainer().GetPorts() {
			if portMode(p) == portIngress {
				out = append(out, asks.IngressPort(p.GetHostPort(), p.GetProtocol(), fmt.Sprintf("container.ports[%d]", i))...)
			}
		}
		return out
	case TypeVM:
		v, _ := vmOf(s)
		return asks.VM(v, asks.Machine{Names: []string{id}})
	}
	return nil
}
