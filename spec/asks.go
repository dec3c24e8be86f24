package spec

import (
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/policy"
	"github.com/persys/compute/policy/asks"
)

// asksOf returns the asks of a plain, normalised specification: the privileges that policies judge. For a
// Compose stack it returns none: package rpc adds them, because they need the loaded project.
func asksOf(id string, s *controlv1.WorkloadSpec) []policy.Ask {
	switch s.GetType() {
	case TypeContainer:
		return asks.Container(agentContainer(s), fullImage(s.GetContainer().GetImage()))
	case TypeVM:
		v, _ := vmOf(s)
		return asks.VM(v, asks.Machine{Names: []string{id}})
	}
	return nil
}
