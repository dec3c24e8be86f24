package fsm

import (
	"slices"

	commandv1 "github.com/persys/compute/api/command/v1"
)

func constraintOf(c *commandv1.Constraint) Constraint {
	return Constraint{c.GetKey(), c.GetOp(), convert(c.GetValues(), func(s string) string { return s })}
}

func constraintPB(c Constraint) *commandv1.Constraint {
	return &commandv1.Constraint{Key: c.Key, Op: c.Op, Values: c.Values}
}

func (c Constraint) equal(o Constraint) bool {
	return c.Key == o.Key && c.Op == o.Op && slices.Equal(c.Values, o.Values)
}

func placementOf(p *commandv1.Placement) *Placement {
	if p == nil {
		return nil
	}
	return &Placement{
		Spread: convert(p.GetSpread(), func(s *commandv1.Spread) Spread {
			return Spread{By: s.GetBy(), MaxSkew: int32(s.GetMaxSkew()), Must: s.GetMust()}
		}),
		Affinities: convert(p.GetAffinities(), func(a *commandv1.Affinity) Affinity {
			out := Affinity{
				Anti: a.GetAnti(), Workload: a.GetWorkload(), Group: a.GetGroup(), By: a.GetBy(),
				Must: a.GetMust(), Weight: int32(a.GetWeight()),
			}
			if a.GetNode() != nil {
				out.Node = constraintOf(a.GetNode())
			}
			if a.GetTag() != nil {
				out.Tag = labelOf(a.GetTag())
			}
			return out
		}),
		Policy: p.GetPolicy(),
	}
}

func placementPB(p *Placement) *commandv1.Placement {
	if p == nil {
		return nil
	}
	return &commandv1.Placement{
		Spread: convert(p.Spread, func(s Spread) *commandv1.Spread {
			return &commandv1.Spread{By: s.By, MaxSkew: uint32(s.MaxSkew), Must: s.Must}
		}),
		Affinities: convert(p.Affinities, func(a Affinity) *commandv1.Affinity {
			out := &commandv1.Affinity{
				Anti: a.Anti, Workload: a.Workload, Group: a.Group, By: a.By, Must: a.Must, Weight: uint32(a.Weight),
			}
			if a.Node.Key != "" {
				out.Node = constraintPB(a.Node)
			}
			if a.Tag.Key != "" {
				out.Tag = labelPB(a.Tag)
			}
			return out
		}),
		Policy: p.Policy,
	}
}

func (p *Placement) equal(o *Placement) bool {
	if p == nil || o == nil {
		return p == o
	}
	return p.Policy == o.Policy && slices.Equal(p.Spread, o.Spread) && slices.EqualFunc(p.Affinities, o.Affinities, Affinity.equal)
}

func (a Affinity) equal(o Affinity) bool {
	return a.Anti == o.Anti && a.Node.equal(o.Node) && a.Workload == o.Workload && a.Group == o.Group && a.Tag == o.Tag &&
		a.By == o.By && a.Must == o.Must && a.Weight == o.Weight
}

// placement encodes the rules of a demand, if it has any. The words "placement rules" and "placement tags" mark
// the optional fields.
func (e *encoder) placement(p *Placement, tags []Label) {
	if p != nil {
		e.str("placement rules")
		e.str(p.Policy)
		e.u64(uint64(len(p.Spread)))
		for _, s := range p.Spread {
			e.str(s.By)
			e.u64(uint64(s.MaxSkew))
			e.bool(s.Must)
		}
		e.u64(uint64(len(p.Affinities)))
		for _, a := range p.Affinities {
			e.bool(a.Anti)
			e.str(a.Node.Key)
			e.str(a.Node.Op)
			e.strs(a.Node.Values)
			e.str(a.Workload)
			e.str(a.Group)
			e.str(a.Tag.Key)
			e.str(a.Tag.Value)
			e.str(a.By)
			e.bool(a.Must)
			e.u64(uint64(a.Weight))
		}
	}
	if len(tags) > 0 {
		e.str("placement tags")
		e.labels(tags)
	}
}

// ruled reports whether the placement of other workloads depends on w: w has tags, or a required anti-affinity. Such
// workloads are in the index byRule.
func ruled(w *Workload) bool { return len(w.Demand.Tags) > 0 || w.Demand.Placement.Repels() }

// Ruled scans, by id, the workloads on which the placement of others depends: those with tags or a required
// anti-affinity.
func (s State) Ruled(fn func(*Workload) bool) { s.scan(s.r.byRule, "", fn) }
