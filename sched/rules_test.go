package sched

import (
	"fmt"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"pgregory.net/rapid"
)

func rulesPB(f func(*commandv1.Placement)) func(*commandv1.WorkloadPut) {
	return demand(func(d *commandv1.Demand) {
		if d.Placement == nil {
			d.Placement = &commandv1.Placement{}
		}
		f(d.Placement)
	})
}

func inGroup(group string) func(*commandv1.WorkloadPut) {
	return demand(func(d *commandv1.Demand) { d.Group = group })
}

func affine(a *commandv1.Affinity) func(*commandv1.WorkloadPut) {
	return rulesPB(func(p *commandv1.Placement) { p.Affinities = append(p.Affinities, a) })
}

func spreadBy(by string, skew uint32, must bool) func(*commandv1.WorkloadPut) {
	return rulesPB(func(p *commandv1.Placement) {
		p.Spread = append(p.Spread, &commandv1.Spread{By: by, MaxSkew: skew, Must: must})
	})
}

func nodeInZone(zone string) func(*commandv1.RegisterNode) {
	return func(n *commandv1.RegisterNode) { n.Labels = []*commandv1.Label{{Key: "zone", Value: zone}} }
}

// broken returns which required rule the placement of w on a node would break; "" if none. To check
// the planner, it uses only the records and the definition of the rules.
func broken(v fsm.View, w *fsm.Workload, node string, ready func(*fsm.Node) bool) string {
	here, _ := v.Node(node)
	same := func(n *fsm.Node, by string) bool {
		if by == fsm.ByHost {
			return n.ID == here.ID
		}
		a, ok := labelOf(n, by)
		b, has := labelOf(here, by)
		return ok && has && a == b
	}
	matches := func(a *fsm.Affinity, namespace string, o *fsm.Workload) bool {
		switch {
		case o.In() != namespace:
			return false
		case a.Workload != "":
			return o.ID == a.Workload
		case a.Group != "":
			return o.Demand.Group == a.Group
		}
		for _, t := range o.Demand.Tags {
			if t == a.Tag {
				return true
			}
		}
		return false
	}
	var others []*fsm.Workload
	v.Workloads("", func(o *fsm.Workload) bool {
		if o.Node != "" && o.ID != w.ID {
			others = append(others, o)
		}
		return true
	})
	on := func(o *fsm.Workload) *fsm.Node { n, _ := v.Node(o.Node); return n }
	for _, o := range others {
		if o.Demand.Placement == nil {
			continue
		}
		for i := range o.Demand.Placement.Affinities {
			if a := &o.Demand.Placement.Affinities[i]; a.Anti && a.Must && a.By != "" && matches(a, o.In(), w) && same(on(o), a.By) {
				return "workload " + o.ID + " there must be apart from it"
			}
		}
	}
	p := w.Demand.Placement
	if p == nil {
		return ""
	}
	for i := range p.Affinities {
		a := &p.Affinities[i]
		switch {
		case !a.Must:
			continue
		case a.Node.Key != "":
			if satisfies(&a.Node, here) == a.Anti {
				return fmt.Sprintf("affinity %d to nodes", i)
			}
			continue
		}
		near, any := false, false
		for _, o := range others {
			if matches(a, w.In(), o) {
				any = true
				near = near || same(on(o), a.By)
			}
		}
		_, labelled := labelOf(here, a.By)
		first := !any && matches(a, w.In(), w) && a.Workload == "" && (labelled || a.By == fsm.ByHost)
		if a.Anti && near || !a.Anti && !near && !first {
			return fmt.Sprintf("affinity %d: %+v", i, *a)
		}
	}
	for _, s := range p.Spread {
		if !s.Must {
			continue
		}
		place := func(n *fsm.Node) string {
			if s.By == fsm.ByHost {
				return "=" + n.ID
			}
			if v, ok := labelOf(n, s.By); ok {
				return "=" + v
			}
			return ""
		}
		counts := map[string]int32{}
		v.Nodes("", func(n *fsm.Node) bool {
			_, repelled := repels(w.Demand, n)
			if ready(n) && fits(pooledNamespaces(v)[w.In()], w.Demand, n).filter == passes && !repelled && (!stopsOnLostLease(w.Demand) || n.Facts.SelfFencing) && place(n) != "" {
				counts[place(n)] += 0
			}
			return true
		})
		all := map[string]int32{}
		for _, o := range others {
			if w.Demand.Group != "" && o.Demand.Group == w.Demand.Group && o.In() == w.In() {
				all[place(on(o))]++
			}
		}
		low := int32(1 << 30)
		for at := range counts {
			low = min(low, all[at])
		}
		if place(here) == "" || all[place(here)]+1-low > s.MaxSkew {
			return fmt.Sprintf("spread by %s: %d and 1 more at %s, the lowest is %d", s.By, all[place(here)], place(here), low)
		}
	}
	return ""
}

// randomRules draws random placement rules: spread rules and affinities.
func randomRules(r *rapid.T) *commandv1.Placement {
	p := &commandv1.Placement{Policy: rapid.SampledFrom([]string{"", "", "spread", "binpack"}).Draw(r, "policy")}
	by := rapid.SampledFrom([]string{"host", "zone", "rack"})
	for range rapid.IntRange(0, 2).Draw(r, "spreads") {
		p.Spread = append(p.Spread, &commandv1.Spread{By: by.Draw(r, "spread by"), MaxSkew: rapid.Uint32Range(1, 2).Draw(r, "skew"), Must: rapid.Bool().Draw(r, "must")})
	}
	for range rapid.IntRange(0, 3).Draw(r, "affinities") {
		a := &commandv1.Affinity{Anti: rapid.Bool().Draw(r, "anti"), Must: rapid.Bool().Draw(r, "must")}
		if !a.Must {
			a.Weight = rapid.Uint32Range(1, 100).Draw(r, "weight")
		}
		if a.By = by.Draw(r, "by"); rapid.Bool().Draw(r, "by group") {
			a.Group = rapid.SampledFrom([]string{"g", "h", "none"}).Draw(r, "target group")
		} else {
			switch rapid.IntRange(0, 2).Draw(r, "target") {
			case 0:
				a.Workload = rapid.SampledFrom([]string{"w1", "w2", "w3"}).Draw(r, "target id")
			case 1:
				a.Tag = &commandv1.Label{Key: "tier", Value: rapid.SampledFrom([]string{"a", "b"}).Draw(r, "target tag")}
			case 2:
				a.By, a.Node = "", &commandv1.Constraint{Key: "zone", Op: "=", Values: []string{rapid.SampledFrom(zones).Draw(r, "near zone")}}
			}
		}
		p.Affinities = append(p.Affinities, a)
	}
	return p
}

// TestPlacementKeepsEveryRequiredRule places random demands one after the other. No placement may break a
// required rule, and the search finds the same node as a scan.
func TestPlacementKeepsEveryRequiredRule(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := newWorld(r)
		for i := range rapid.IntRange(1, 9).Draw(r, "nodes") {
			facts, rack := randomNode(r), rapid.IntRange(0, 3).Draw(r, "rack")
			w.node(fmt.Sprint("n", i), facts, func(n *commandv1.RegisterNode) {
				if n.EngineId = ""; rack > 0 {
					n.Labels = append([]*commandv1.Label{{Key: "rack", Value: fmt.Sprint(rack)}}, n.Labels...)
				}
			})
		}
		for i := range 12 {
			id := fmt.Sprint("w", i)
			p := randomRules(r)
			w.apply(id, randomDemand(r), demand(func(d *commandv1.Demand) {
				d.Placement, d.LocalData, d.Job = p, nil, nil
				if tag := rapid.SampledFrom([]string{"", "a", "b"}).Draw(r, "tag"); tag != "" {
					d.Tags = []*commandv1.Label{{Key: "tier", Value: tag}}
				}
			}), func(p *commandv1.WorkloadPut) { p.Desired = "Running" })
			x := w.get(id)
			got, e := Place(*x.Demand, NodesOf(w.state, w.tuning).For(id))
			if want, score := scan(NodesOf(w.state, w.tuning), id, x.Demand); got != want || got != "" && e.Score.Total != score {
				r.Fatalf("for workload %s the search with the index finds node %q (score %+v), and the scan finds node %q (total %d), want the same node", id, got, e.Score, want, score)
			}
			ready := func(n *fsm.Node) bool { return n.Schedulable() }
			if got == "" {
				// The planner found no node. For each node that it rejects because of a rule, the function
				// broken must find that the rule would be broken there.
				v := Explain(w.state, x, w.tuning)
				for _, n := range v.Nodes {
					if f := n.Filter; (f == "spread" || f == "affinity" || f == "anti-affinity") && broken(w.state, x, n.Node, ready) == "" {
						r.Fatalf("the planner keeps workload %s from node %s with reason %s, but no rule would be broken there", id, n.Node, n.Reason)
					}
				}
				continue
			}
			if why := broken(w.state, x, got, ready); why != "" {
				r.Fatalf("workload %s must not be placed on node %s, because that breaks a required rule: %s", id, got, why)
			}
			w.do(&commandv1.Command{Body: &commandv1.Command_Assign{Assign: &commandv1.Assign{Assignments: []*commandv1.Assignment{
				{Workload: id, Node: got, IfGeneration: fsm.GenerationPB(x.Generation)}}}}})
		}
	})
}

// TestRulesOverManyNodes compares the sorted search with a scan where the index has many nodes.
func TestRulesOverManyNodes(t *testing.T) {
	for _, policy := range []Policy{Spread, BinPack} {
		t.Run(string(policy), func(t *testing.T) {
			nodes := NodesOf(zonedWorld(t, 600, 20).state, Tuning{Policy: policy})
			placed := 0
			for i := range 1500 {
				d, id := ruledDemand(i), fmt.Sprint("w", i)
				if i%3 == 0 {
					d.Placement.Spread = append(d.Placement.Spread, fsm.Spread{By: "disk", MaxSkew: 2})
					d.Placement.Affinities = append(d.Placement.Affinities, fsm.Affinity{Group: fmt.Sprint("g", i%7), By: "zone", Weight: 10},
						fsm.Affinity{Node: fsm.Constraint{Key: "zone", Op: "in", Values: []string{"z1", "z2"}}, Weight: 20})
				}
				got, e := Place(d, nodes.For(id))
				want, score := scan(nodes, id, &d)
				if got != want || got != "" && e.Score.Total != score {
					t.Fatalf("for demand %d the search with the index finds node %q (score %+v), and the scan finds node %q (total %d), want the same node", i, got, e.Score, want, score)
				}
				if got != "" {
					placed++
					nodes.For(id).Take(d, got)
				}
			}
			if placed < 1000 {
				t.Fatalf("only %d of 1500 demands find a node, so the test compares too few searches", placed)
			}
		})
	}
}

func TestRules(t *testing.T) {
	must := func(a *commandv1.Affinity) *commandv1.Affinity { a.Must = true; return a }
	type puts map[string][]func(*commandv1.WorkloadPut)
	for _, c := range []struct {
		name  string
		order []string
		puts  puts
		want  map[string]string // expected zone of each workload: "" = unplaced, "*" = any zone, "@X" = the zone of workload X
		why   string            // part of the message of the unplaced workload
	}{
		{"a required spread alternates between zones", []string{"a-0", "a-1", "a-2"},
			puts{"": {inGroup("a"), spreadBy("zone", 1, true)}}, map[string]string{"a-0": "*", "a-1": "*", "a-2": "*"}, ""},
		{"an anti-affinity by zone to its own group leaves the fourth member without a node in three zones", []string{"a-0", "a-1", "a-2", "a-3"},
			puts{"": {inGroup("a"), affine(must(&commandv1.Affinity{Anti: true, Group: "a", By: "zone"}))}}, map[string]string{"a-3": ""},
			"0/6 nodes fit: 6 anti_affinity[0] by zone"},
		{"an affinity by zone places a workload in the zone of the workload that it names", []string{"db", "web"},
			puts{"web": {affine(must(&commandv1.Affinity{Workload: "db", By: "zone"}))}}, map[string]string{"web": "@db"}, ""},
		{"an affinity to a missing workload rejects every node", []string{"web"},
			puts{"web": {affine(must(&commandv1.Affinity{Workload: "db", By: "host"}))}}, map[string]string{"web": ""}, "6 affinity[0] by host"},
		{"the first member of a group with an affinity to itself may go anywhere", []string{"a-0", "a-1"},
			puts{"": {inGroup("a"), affine(must(&commandv1.Affinity{Group: "a", By: "host"}))}}, map[string]string{"a-0": "*", "a-1": "@a-0"}, ""},
		{"a required anti-affinity also keeps away workloads that come later", []string{"db", "batch-0", "batch-1", "batch-2", "batch-3", "batch-4", "batch-5"},
			puts{"db": {affine(must(&commandv1.Affinity{Anti: true, Tag: &commandv1.Label{Key: "tier", Value: "batch"}, By: "zone"}))},
				"": {demand(func(d *commandv1.Demand) {
					d.CpuMillicores, d.Tags = 3000, []*commandv1.Label{{Key: "tier", Value: "batch"}}
				})}},
			map[string]string{"batch-3": "*", "batch-4": "", "batch-5": ""}, "2 anti_affinity of another workload by zone"},
		{"a required affinity to nodes rejects every node without the label", []string{"web"},
			puts{"web": {affine(must(&commandv1.Affinity{Node: &commandv1.Constraint{Key: "zone", Op: "=", Values: []string{"z9"}}}))}},
			map[string]string{"web": ""}, "6 affinity[0] (zone=z9)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			for i := range 6 {
				w.node(fmt.Sprint("n", i), nodeInZone(fmt.Sprint("z", i%3)))
			}
			zoneOf := func(id string) string {
				n, ok := w.state.Node(w.get(id).Node)
				if !ok {
					return ""
				}
				z, _ := labelOf(n, "zone")
				return z
			}
			for _, id := range c.order {
				set, own := c.puts[id]
				if !own {
					set = c.puts[""]
				}
				w.apply(id, set...)
				w.settle()
			}
			for id, want := range c.want {
				got := zoneOf(id)
				other, at := strings.CutPrefix(want, "@")
				switch {
				case at && got != zoneOf(other), want == "" && got != "", want == "*" && got == "":
					t.Errorf("workload %s is in zone %q, want %q (\"\": no zone, \"*\": any zone, \"@X\": the zone of workload X); its reason is %s", id, got, want, w.get(id).Reason.Message)
				case want == "" && !strings.Contains(w.get(id).Reason.Message, c.why):
					t.Errorf("workload %s has the reason %q, want one that contains %q", id, w.get(id).Reason.Message, c.why)
				}
			}
		})
	}
}

// TestRulesStayInTheirNamespace: a rule ignores workloads of other namespaces.
func TestRulesStayInTheirNamespace(t *testing.T) {
	w := newWorld(t)
	w.node("n1", nodeInZone("z1"))
	w.do(&commandv1.Command{Body: &commandv1.Command_PutNamespace{PutNamespace: &commandv1.PutNamespace{Name: "shop"}}})
	w.apply("db", func(p *commandv1.WorkloadPut) { p.Namespace = "shop" })
	w.apply("web", affine(&commandv1.Affinity{Anti: true, Workload: "db", By: "host", Must: true}))
	w.settle()
	if got := w.get("web").Node; got != "n1" {
		t.Errorf("workload web is on node %q, want node \"n1\"; its reason is %s", got, w.get("web").Reason.Message)
	}
}

// TestSpreadIgnoresZonesWithoutReadyNodes: a spread rule limits how far the numbers of members in the zones
// may differ. A zone whose nodes are all down must not count as a zone with 0 members; new members go to the
// other zones.
func TestSpreadIgnoresZonesWithoutReadyNodes(t *testing.T) {
	w := newWorld(t)
	w.node("n1", nodeInZone("z1"))
	w.node("n2", nodeInZone("z2"))
	w.cordon("n2", true)
	for i := range 3 {
		w.apply(fmt.Sprint("a-", i), inGroup("a"), spreadBy("zone", 1, true))
	}
	w.settle()
	if n := w.state.PendingCount(); n > 0 {
		t.Fatalf("%d members are unplaced while zone \"z2\" has no ready node, want all placed in zone \"z1\"", n)
	}
	w.cordon("n2", false)
	w.apply("a-3", inGroup("a"), spreadBy("zone", 1, true))
	w.settle()
	if got := w.get("a-3").Node; got != "n2" {
		t.Errorf("the new member a-3 is on node %q, want node \"n2\"", got)
	}
}

// TestEqualRulesOfTwoWorkloadsBothApply: web and db have the same required anti-affinity to group
// web, of which only web is a member. The rule of db keeps web out of the zone of db, although web
// has an equal rule.
func TestEqualRulesOfTwoWorkloadsBothApply(t *testing.T) {
	w := newWorld(t)
	w.node("n1", nodeInZone("z"))
	apart := affine(&commandv1.Affinity{Anti: true, Group: "web", By: "zone", Must: true})
	w.apply("db", apart)
	w.settle()
	w.apply("web", inGroup("web"), apart)
	w.settle()
	if got := w.get("web").Node; got != "" {
		t.Errorf("workload web is on node %q, want none, because workload db on the only node must be apart from it", got)
	}
}

// TestTheTargetOfAnAffinityIsNotPreempted: a workload that must run near another one (required affinity) must
// not preempt that workload.
func TestTheTargetOfAnAffinityIsNotPreempted(t *testing.T) {
	w := newWorld(t)
	w.node("n1")
	w.apply("db", inGroup("db"), demand(func(d *commandv1.Demand) { d.CpuMillicores = 3000 }))
	w.settle()
	w.apply("web", affine(&commandv1.Affinity{Group: "db", By: "host", Must: true}), demand(func(d *commandv1.Demand) { d.CpuMillicores, d.Priority = 3000, 2 }))
	w.settle()
	if got := w.get("db").Node; got != "n1" {
		t.Errorf("workload db is on node %q, want node \"n1\"", got)
	}
	w.apply("other", demand(func(d *commandv1.Demand) { d.CpuMillicores = 1000 }))
	w.settle()
	w.apply("web", affine(&commandv1.Affinity{Group: "db", By: "host", Must: true}), demand(func(d *commandv1.Demand) { d.CpuMillicores, d.Priority = 1000, 2 }))
	w.settle()
	if got := w.get("web").Node; got != "n1" || w.get("other").Node != "" {
		t.Errorf("workload web is on node %q, want node \"n1\" in place of workload other; its reason is %s", got, w.get("web").Reason.Message)
	}
}

// TestRulesDoNotCountTheWorkloadItself: when a workload that leaves its node is placed, its rules must not count
// the workload itself. This must hold whether or not an earlier search has already cached the numbers of the
// workloads that the rules name.
func TestRulesDoNotCountTheWorkloadItself(t *testing.T) {
	for name, rules := range map[string][]func(*commandv1.WorkloadPut){
		"affinity":      {affine(&commandv1.Affinity{Group: "g", By: "host", Must: true}), affine(&commandv1.Affinity{Group: "h", By: "host", Weight: 7})},
		"anti-affinity": {affine(&commandv1.Affinity{Anti: true, Group: "g", By: "zone", Must: true})},
		"spread":        {spreadBy("zone", 1, true), spreadBy("rack", 1, false)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.node("n1", nodeInZone("z"))
			w.node("n2", nodeInZone("z"))
			w.cordon("n2", true)
			w.apply("w1", append(rules, inGroup("g"))...)
			w.settle()
			w.cordon("n2", false)
			w.drain("n1", true)
			plain := w.plain()
			if diff := sameStep(plain, w.plan()); diff != "" {
				t.Fatalf("a step with a cache must equal one without, but: %s", diff)
			}
			if e := Explain(w.state, w.get("w1"), w.tuning); e.Fit != 1 {
				t.Errorf("%d nodes fit the workload, want only node \"n2\"; verdicts: %+v", e.Fit, e.Nodes)
			}
			w.settle()
			if got := w.get("w1"); got.Node != "n2" {
				t.Errorf("the workload is on node %q, want node \"n2\"; its reason is %s", got.Node, got.Reason.Message)
			}
		})
	}
}

func TestWhyNamesTheRules(t *testing.T) {
	w := newWorld(t)
	w.node("n1", nodeInZone("z1"))
	w.node("n2", nodeInZone("z2"))
	w.apply("db")
	w.settle()
	w.apply("web", affine(&commandv1.Affinity{Anti: true, Workload: "db", By: "zone", Weight: 30}),
		affine(&commandv1.Affinity{Node: &commandv1.Constraint{Key: "zone", Op: "=", Values: []string{"z3"}}, Weight: 5}))
	e := Explain(w.state, w.get("web"), w.tuning)
	if e.Fit != 2 {
		t.Fatalf("%d nodes fit workload web, want 2", e.Fit)
	}
	var got []string
	for _, c := range e.Nodes[1].Rules {
		got = append(got, fmt.Sprint(c.Parts, " ", c.Text))
	}
	zone := map[string]string{"n1": "z1", "n2": "z2"}[w.get("db").Node]
	want := "300000 anti_affinity[0]: workload db is at zone=" + zone + "; 50000 affinity[0]: nodes with zone=z3, the node has zone=" + zone
	if s := strings.Join(got, "; "); s != want {
		t.Errorf("persysctl why gives the worse node the rule costs %q, want %q", s, want)
	}
	if got := e.Nodes[1].Score.Rules; got != 350000 {
		t.Errorf("the preferred rules add %d to the score of the worse node, want 350000", got)
	}
}

// zonedWorld registers n nodes in a number of zones.
func zonedWorld(t testing.TB, n, zones int) *world {
	w := newWorld(t)
	sizes := []int64{8, 16, 32, 64}
	for i := range n {
		w.node(fmt.Sprintf("node-%05d", i), func(r *commandv1.RegisterNode) {
			size := sizes[i%4]
			r.CpuMillicores, r.MemoryMib = size*1000, size*4096
			r.Pools = []*commandv1.Pool{{Name: "fast", Type: "local", TotalGb: 500 * size}}
			r.Labels = []*commandv1.Label{{Key: "disk", Value: []string{"hdd", "nvme", "ssd"}[i%3]}, {Key: "zone", Value: fmt.Sprint("z", i%zones)}}
		})
	}
	return w
}

// ruledDemand returns a demand with a required spread over zones, an anti-affinity by host to its own group and
// a constraint.
func ruledDemand(i int) fsm.Demand {
	group := fmt.Sprint("g", i%300)
	return fsm.Demand{
		Type: "container", CPU: int64(100 + i%7*50), Memory: int64(128 + i%5*64), Disk: int64(1 + i%3), Pool: "fast",
		Constraints: []fsm.Constraint{{Key: "disk", Op: "in", Values: []string{"nvme", "ssd"}}},
		Group:       group,
		Placement: &fsm.Placement{
			Spread:     []fsm.Spread{{By: "zone", MaxSkew: 1, Must: true}},
			Affinities: []fsm.Affinity{{Anti: true, Group: group, By: fsm.ByHost, Must: true}},
		},
	}
}

// If a rule of another workload rejects a node, `persysctl why` names that workload. If a taint makes the
// score of a node worse, it names the taint.
func TestWhyNamesTheOtherWorkloadAndTheTaint(t *testing.T) {
	w := newWorld(t)
	w.node("n1", nodeInZone("z1"))
	tainted := &commandv1.Taint{Key: "old", Value: "yes", Effect: fsm.TaintPreferNoSchedule}
	w.node("n2", nodeInZone("z2"), func(n *commandv1.RegisterNode) { n.Taints = []*commandv1.Taint{tainted} })
	w.apply("db", affine(&commandv1.Affinity{Anti: true, Must: true, Tag: &commandv1.Label{Key: "tier", Value: "batch"}, By: "zone"}))
	w.settle()
	if got := w.get("db").Node; got != "n1" {
		t.Fatalf("workload db is on node %q, want node \"n1\"", got)
	}
	w.apply("batch", demand(func(d *commandv1.Demand) { d.Tags = []*commandv1.Label{{Key: "tier", Value: "batch"}} }))
	for _, n := range Explain(w.state, w.get("batch"), w.tuning).Nodes {
		switch {
		case n.Node == "n1" && !strings.HasPrefix(n.Reason, "anti_affinity (by zone) of workload db keeps this workload away from zone=z1;"):
			t.Errorf("node \"n1\" is rejected with reason %q, want one that names the anti_affinity of workload db", n.Reason)
		case n.Node == "n2" && (len(n.Rules) != 1 || n.Rules[0].Text != "tolerations: the taint old=yes:PreferNoSchedule is not tolerated" || n.Rules[0].Parts != n.Score.Taint):
			t.Errorf("node \"n2\" has the rule costs %v, want only the cost of its taint", n.Rules)
		}
	}
}
