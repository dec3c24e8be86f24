package mirror

import (
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

func placementRecord(p *fsm.Placement) *Placement {
	if p == nil {
		return nil
	}
	out := &Placement{Policy: p.Policy}
	for _, s := range p.Spread {
		out.Spread = append(out.Spread, Spread{s.By, s.MaxSkew, s.Must})
	}
	for _, a := range p.Affinities {
		o := Affinity{Anti: a.Anti, Workload: a.Workload, Group: a.Group, By: a.By, Must: a.Must, Weight: a.Weight}
		if a.Node.Key != "" {
			o.Node = &Constraint{a.Node.Key, a.Node.Op, a.Node.Values}
		}
		if a.Tag.Key != "" {
			o.Tag = &Tag{a.Tag.Key, a.Tag.Value}
		}
		out.Affinities = append(out.Affinities, o)
	}
	return out
}

func placementOf(p *Placement) *commandv1.Placement {
	if p == nil {
		return nil
	}
	out := &commandv1.Placement{Policy: p.Policy}
	for _, s := range p.Spread {
		out.Spread = append(out.Spread, &commandv1.Spread{By: s.By, MaxSkew: uint32(s.MaxSkew), Must: s.Must})
	}
	for _, a := range p.Affinities {
		o := &commandv1.Affinity{Anti: a.Anti, Workload: a.Workload, Group: a.Group, By: a.By, Must: a.Must, Weight: uint32(a.Weight)}
		if a.Node != nil {
			o.Node = &commandv1.Constraint{Key: a.Node.Key, Op: a.Node.Op, Values: a.Node.Values}
		}
		if a.Tag != nil {
			o.Tag = &commandv1.Label{Key: a.Tag.Key, Value: a.Tag.Value}
		}
		out.Affinities = append(out.Affinities, o)
	}
	return out
}
