package spec

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/policy"
)

// Words that placement rules and their errors use.
const (
	whenMust   = "must"
	whenPrefer = "prefer"
)

var (
	whens             = []string{whenMust, whenPrefer}
	placementPolicies = []string{"spread", "binpack"}
)

const defaultWeight = 50

// spread reads a list of spread rules: "zone", or {by: zone, max_skew: 1, when: must}.
func (d *decoder) spread(n *node, here where) []*controlv1.SpreadRule {
	var out []*controlv1.SpreadRule
	d.list(n, here, func(n *node, here where) {
		s, w := &controlv1.SpreadRule{}, here.wire
		if n.kind == mapping {
			d.object(n, here, []field{
				{"by", w + ".by", func(_ string, n *node, at where) { s.By = d.str(n, at) }},
				{"max_skew", w + ".max_skew", func(_ string, n *node, at where) {
					if s.MaxSkew = int32(d.integer(n, at, 32)); n.probe == nil && n.text == "0" {
						d.fail(n, at, "must be at least 1", n.text)
					}
				}},
				{"when", w + ".when", func(_ string, n *node, at where) { s.When = d.str(n, at) }},
			})
		} else {
			s.By = d.str(n, here)
		}
		out = append(out, s)
	})
	return out
}

// affinity reads a list of affinity rules: {node: "disk = ssd", weight: 80} or {group: db, by: zone, when: must}.
func (d *decoder) affinity(n *node, here where) []*controlv1.AffinityRule {
	var out []*controlv1.AffinityRule
	d.list(n, here, func(n *node, here where) {
		a, w := &controlv1.AffinityRule{}, here.wire
		d.object(n, here, []field{
			{"node", w + ".node", func(_ string, n *node, at where) { a.Node = d.constraint(n, at) }},
			{"workload", w + ".workload", func(_ string, n *node, at where) { a.Workload = d.str(n, at) }},
			{"group", w + ".group", func(_ string, n *node, at where) { a.Group = d.str(n, at) }},
			{"tag", w + ".tag", func(_ string, n *node, at where) { a.Tag = d.str(n, at) }},
			{"by", w + ".by", func(_ string, n *node, at where) { a.By = d.str(n, at) }},
			{"when", w + ".when", func(_ string, n *node, at where) { a.When = d.str(n, at) }},
			{"weight", w + ".weight", func(_ string, n *node, at where) {
				if a.Weight = int32(d.integer(n, at, 32)); n.probe == nil && n.text == "0" {
					d.fail(n, at, "must be 1 to 100", n.text)
				}
			}},
		})
		out = append(out, a)
	})
	return out
}

// rules validates the spread rules, the affinities and the tags of a specification.
func (e *Errors) rules(id string, s *controlv1.WorkloadSpec) {
	e.word("spec.placement_policy", s.GetPlacementPolicy(), placementPolicies)
	if n := len(s.GetTags()); n > bounds.MaxTags {
		e.addf("spec.tags", "", "has %d entries, at most %d", n, bounds.MaxTags)
	} else {
		for _, k := range sortedKeys(s.GetTags()) {
			if !labelPattern.MatchString(k) {
				e.add("spec.tags", "keys: "+labelRule, k)
				continue
			}
			e.labelValue("spec.tags."+k, s.GetTags()[k])
		}
	}
	_, many := membersOf(s)
	if n := len(s.GetSpread()); n > bounds.MaxSpread {
		e.addf("spec.spread", "", "has %d entries, at most %d", n, bounds.MaxSpread)
	} else if n > 0 && !many && s.GetGroup() == "" {
		e.add("spec.spread", "needs count, completions or group: it distributes the members of a group, and this workload is in none", "")
	}
	for i, r := range s.GetSpread() {
		at := fmt.Sprintf("spec.spread[%d]", i)
		e.by(at+".by", r.GetBy())
		if r.GetMaxSkew() != 0 {
			e.between(at+".max_skew", int64(r.GetMaxSkew()), 1, bounds.MaxSkew, "")
		}
		e.word(at+".when", r.GetWhen(), whens)
		for j, o := range s.GetSpread()[:i] {
			if strings.TrimSpace(o.GetBy()) == strings.TrimSpace(r.GetBy()) {
				e.addf(at+".by", r.GetBy(), "is already used by spread[%d]", j)
			}
		}
	}
	if n := len(s.GetAffinity()) + len(s.GetAntiAffinity()); n > bounds.MaxAffinities {
		e.addf("spec.affinity", "", "has %d rules together with anti_affinity, at most %d", n, bounds.MaxAffinities)
		return
	}
	for i, a := range s.GetAffinity() {
		at := fmt.Sprintf("spec.affinity[%d]", i)
		e.affinity(at, id, s, a)
		if w := strings.TrimSpace(a.GetWorkload()); normalRule(a).When == whenMust && isMember(id, s, w) {
			e.add(at+".workload", "is a member of this group: the rule would hold for that member too, which can never be beside itself. Write group: "+id, w)
		}
	}
	for i, a := range s.GetAntiAffinity() {
		at := fmt.Sprintf("spec.anti_affinity[%d]", i)
		e.affinity(at, id, s, a)
		for j, o := range s.GetAffinity() {
			switch x, y := normalRule(a), normalRule(o); {
			case x.When != whenMust || y.When != whenMust:
			case sameTarget(x, y) && x.By == y.By:
				e.addf(at, "", "can never hold together with affinity[%d], which must hold for the same target", j)
			case several(s) && ofOwnMembers(id, s, x) && ofOwnMembers(id, s, y) && (y.By == fsm.ByHost || y.By == x.By):
				e.addf(at, "", "can never hold together with affinity[%d], which keeps all members of this group on one %s", j, y.By)
			}
		}
	}
}

// several reports whether a specification has two members or more.
func several(s *controlv1.WorkloadSpec) bool {
	n, ok := membersOf(s)
	return ok && n > 1
}

// isMember reports whether w is the id of a member of the group that the specification s with this id
// creates.
func isMember(id string, s *controlv1.WorkloadSpec, w string) bool {
	n, many := membersOf(s)
	number, ok := strings.CutPrefix(w, id+"-")
	i, err := strconv.Atoi(number)
	return many && ok && err == nil && strconv.Itoa(i) == number && i >= 0 && (i < n || s.GetAutoscale() != nil && i < int(s.GetAutoscale().GetMax()))
}

// ofOwnMembers reports whether a rule in its normal form names all members of the group that the
// specification s with this id creates: by the name of the group, or by one of the tags that all members
// have.
func ofOwnMembers(id string, s *controlv1.WorkloadSpec, a *controlv1.AffinityRule) bool {
	k, v, ok := strings.Cut(a.GetTag(), "=")
	have, tagged := s.GetTags()[k]
	return a.GetGroup() == id || ok && tagged && have == v
}

// by checks the field by of a placement rule: the key of a node label, or the word host.
func (e *Errors) by(at, key string) {
	if key = strings.TrimSpace(key); key == "" {
		e.add(at, "must be the key of a node label, such as zone, or host", "")
	} else if !labelPattern.MatchString(key) {
		e.add(at, "must be host or the key of a node label: "+labelRule, key)
	}
}

func (e *Errors) affinity(at, id string, s *controlv1.WorkloadSpec, a *controlv1.AffinityRule) {
	targets := 0
	for _, set := range []bool{a.GetNode() != nil, a.GetWorkload() != "", a.GetGroup() != "", a.GetTag() != ""} {
		if set {
			targets++
		}
	}
	if targets != 1 {
		e.addf(at, "", "must have exactly one of node, workload, group and tag, not %d", targets)
		return
	}
	e.word(at+".when", a.GetWhen(), whens)
	must := strings.EqualFold(strings.TrimSpace(a.GetWhen()), whenMust)
	if w := a.GetWeight(); w != 0 && must {
		e.add(at+".weight", "is for preferred rules: a rule that must hold has no weight", strconv.Itoa(int(w)))
	} else if w != 0 {
		e.between(at+".weight", int64(w), 1, bounds.MaxWeight, "")
	}
	switch {
	case a.GetNode() != nil:
		e.constraint(at+".node", a.GetNode())
		if a.GetBy() != "" {
			e.add(at+".by", "is for workload, group and tag: a rule about nodes compares the labels of each node", a.GetBy())
		}
		return
	case a.GetBy() != "":
		e.by(at+".by", a.GetBy())
	}
	_, many := membersOf(s)
	switch {
	case a.GetWorkload() != "":
		w := strings.TrimSpace(a.GetWorkload())
		if !bounds.ValidID(w) {
			e.add(at+".workload", idRule, w)
		} else if w == id && !many {
			e.add(at+".workload", "is the workload itself: a rule is about other workloads", w)
		} else if w == id {
			e.add(at+".workload", "is the id of a group, whose members have other ids: write group instead of workload", w)
		}
	case a.GetGroup() != "":
		g := strings.TrimSpace(a.GetGroup())
		if !bounds.ValidID(g) {
			e.add(at+".group", idRule, g)
		}
	default:
		if k, v, ok := strings.Cut(strings.TrimSpace(a.GetTag()), "="); !ok || !labelPattern.MatchString(strings.TrimSpace(k)) {
			e.add(at+".tag", "must be key=value, where the key is a letter or digit, then up to 127 letters, digits, '_', '.', '/' or '-'", a.GetTag())
		} else {
			e.labelValue(at+".tag", v)
		}
	}
}

func sameTarget(a, b *controlv1.AffinityRule) bool {
	if a.GetNode() != nil || b.GetNode() != nil {
		return a.GetNode() != nil && b.GetNode() != nil && compareConstraints(normalConstraint(a.GetNode()), normalConstraint(b.GetNode())) == 0
	}
	return a.GetWorkload() == b.GetWorkload() && a.GetGroup() == b.GetGroup() && a.GetTag() == b.GetTag()
}

// normaliseRules rewrites the placement rules of a workload to the stored form. It changes s.
func normaliseRules(s *controlv1.WorkloadSpec) {
	s.PlacementPolicy = canonicalWord(s.PlacementPolicy, placementPolicies)
	for _, r := range s.Spread {
		r.By = strings.TrimSpace(r.By)
		r.MaxSkew = cmp.Or(r.MaxSkew, 1)
		r.When = cmp.Or(canonicalWord(r.When, whens), whenPrefer)
	}
	for _, list := range [][]*controlv1.AffinityRule{s.Affinity, s.AntiAffinity} {
		for i, a := range list {
			list[i] = normalRule(a)
		}
	}
	if len(s.Tags) == 0 {
		s.Tags = nil
	}
}

// normalRule returns an affinity rule in the form in which it is stored, with the defaults filled in.
func normalRule(a *controlv1.AffinityRule) *controlv1.AffinityRule {
	out := &controlv1.AffinityRule{
		Node: normalConstraint(a.GetNode()), Workload: strings.TrimSpace(a.GetWorkload()), Group: strings.TrimSpace(a.GetGroup()),
		By: strings.TrimSpace(a.GetBy()), When: cmp.Or(canonicalWord(a.GetWhen(), whens), whenPrefer), Weight: a.GetWeight(),
	}
	if k, v, ok := strings.Cut(a.GetTag(), "="); ok {
		out.Tag = strings.TrimSpace(k) + "=" + strings.TrimSpace(v)
	}
	if out.Node == nil {
		out.By = cmp.Or(out.By, fsm.ByHost)
	}
	if out.When == whenPrefer {
		out.Weight = cmp.Or(out.Weight, defaultWeight)
	}
	return out
}

// placementDemand returns the placement rules of a workload for the planner; nil if it has none.
func placementDemand(s *controlv1.WorkloadSpec) *commandv1.Placement {
	if len(s.GetSpread())+len(s.GetAffinity())+len(s.GetAntiAffinity()) == 0 && s.GetPlacementPolicy() == "" {
		return nil
	}
	p := &commandv1.Placement{Policy: s.GetPlacementPolicy()}
	for _, r := range s.GetSpread() {
		p.Spread = append(p.Spread, &commandv1.Spread{By: r.GetBy(), MaxSkew: uint32(r.GetMaxSkew()), Must: r.GetWhen() == whenMust})
	}
	add := func(anti bool, a *controlv1.AffinityRule) {
		out := &commandv1.Affinity{
			Anti: anti, Workload: a.GetWorkload(), Group: a.GetGroup(), By: a.GetBy(), Must: a.GetWhen() == whenMust, Weight: uint32(a.GetWeight()),
		}
		if c := a.GetNode(); c != nil {
			out.Node = &commandv1.Constraint{Key: c.GetKey(), Op: c.GetOperator(), Values: slices.Clone(c.GetValues())}
		}
		if k, v, ok := strings.Cut(a.GetTag(), "="); ok {
			out.Tag = &commandv1.Label{Key: k, Value: v}
		}
		p.Affinities = append(p.Affinities, out)
	}
	for _, a := range s.GetAffinity() {
		add(false, a)
	}
	for _, a := range s.GetAntiAffinity() {
		add(true, a)
	}
	return p
}

// UnknownDevices returns an error for each device that a specification reserves or names, by its CDI name or as a GPU,
// and that no node offers. asks are what the workload asks of its machine. offered are the names of the devices that
// nodes offer, sorted. A path such as /dev/fuse is not checked, because nodes do not report their device files.
func UnknownDevices(s *controlv1.WorkloadSpec, asks []policy.Ask, offered []string) error {
	var e Errors
	have := "none"
	if len(offered) > 0 {
		have = strings.Join(offered[:min(len(offered), 10)], ", ")
	}
	const shown = "=NUMBER, and persysctl node NODE shows them"
	for _, name := range slices.Sorted(maps.Keys(s.GetResources().GetDevices())) {
		if !slices.Contains(offered, name) {
			e.add("spec.resources.devices."+name, "no node offers such devices; offered are: "+have+". An agent offers them with PERSYS_NODE_DEVICES="+name+shown,
				strconv.FormatInt(s.GetResources().GetDevices()[name], 10))
		}
	}
	for _, a := range asks {
		if a.Rule != policy.RuleDevice || strings.HasPrefix(a.Field, "resources.") {
			continue
		}
		field := a.Field
		if strings.HasPrefix(field, "container") {
			field = "spec." + field
		}
		if a.Value == fsm.AnyGPU {
			if !slices.ContainsFunc(offered, fsm.IsGPU) {
				e.add(field, "no node offers GPUs; offered devices are: "+have+". An agent offers them with PERSYS_NODE_DEVICES=nvidia.com/gpu"+shown, "")
			}
			continue
		}
		for name := range strings.FieldsFuncSeq(strings.TrimPrefix(a.Value, "cdi:"), func(r rune) bool { return r == ',' }) {
			kind, _, cdi := strings.Cut(name, "=")
			if cdi && strings.Contains(kind, "/") && !strings.HasPrefix(kind, "/") && !slices.Contains(offered, kind) {
				e.add(field, "no node offers devices of this kind; offered are: "+have+". An agent offers them with PERSYS_NODE_DEVICES="+kind+shown, name)
			}
		}
	}
	return e.asError()
}

// UnknownLabels returns an error for each required placement rule that names a label which no node has, because then
// no node satisfies the rule. A preferred rule with such a label is accepted. known reports whether a node has a label
// with this key.
func UnknownLabels(s *controlv1.WorkloadSpec, known func(key string) bool) error {
	var e Errors
	check := func(at, by, when string) {
		if by = strings.TrimSpace(by); strings.EqualFold(strings.TrimSpace(when), whenMust) && by != "" && by != fsm.ByHost && !known(by) {
			e.add(at, "no node has this label, so the rule could never hold: persysctl node label NODE "+by+"=VALUE, or when: prefer", by)
		}
	}
	for i, r := range s.GetSpread() {
		check(fmt.Sprintf("spec.spread[%d].by", i), r.GetBy(), r.GetWhen())
	}
	for i, a := range s.GetAffinity() {
		check(fmt.Sprintf("spec.affinity[%d].by", i), a.GetBy(), a.GetWhen())
	}
	for i, a := range s.GetAntiAffinity() {
		check(fmt.Sprintf("spec.anti_affinity[%d].by", i), a.GetBy(), a.GetWhen())
	}
	if len(e) == 0 {
		return nil
	}
	return e
}
