package sched

import (
	"fmt"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/policy"
	"pgregory.net/rapid"
)

var balanceLimits = BalanceLimits{Moves: MaxBalanceMoves, MinGain: whole / 10}

// lines returns moves as text, such as "w1 a b".
func lines(moves []BalanceMove) string {
	var out []string
	for _, m := range moves {
		out = append(out, m.Workload+" "+m.From+" "+m.To)
	}
	return strings.Join(out, ", ")
}

// relocate carries out one move completely: the workload leaves its node, is placed on the new node
// and runs there.
func (w *world) relocate(m BalanceMove) {
	w.t.Helper()
	x := w.get(m.Workload)
	w.do(&commandv1.Command{Body: &commandv1.Command_Evict{Evict: &commandv1.Evict{Evictions: []*commandv1.Eviction{
		{Workload: x.ID, IfGeneration: fsm.GenerationPB(x.Generation), Code: "Moved", Gone: true}}}}})
	x = w.get(m.Workload)
	w.do(&commandv1.Command{Body: &commandv1.Command_Assign{Assign: &commandv1.Assign{Assignments: []*commandv1.Assignment{
		{Workload: x.ID, Node: m.To, IfGeneration: fsm.GenerationPB(x.Generation)}}}}})
	if x = w.get(m.Workload); x.Node != m.To {
		w.t.Fatalf("the state machine must place workload %s on node %s, but did not", x.ID, m.To)
	}
	w.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: []*commandv1.WorkloadReport{
		{Workload: x.ID, Node: m.To, Generation: fsm.GenerationPB(x.Generation), Acknowledged: true, State: "Running", ObservedAt: w.now}}}}})
}

func zoned(zone string) func(*commandv1.RegisterNode) {
	return func(n *commandv1.RegisterNode) { n.Labels = []*commandv1.Label{{Key: "zone", Value: zone}} }
}

func grouped(group string) func(*commandv1.WorkloadPut) {
	return demand(func(d *commandv1.Demand) { d.Group = group })
}

// asks returns an option by which a workload requests a privilege on its host, such as a host path
// (an entry of Demand.Asks).
func asks(rule, value string) func(*commandv1.WorkloadPut) {
	return func(p *commandv1.WorkloadPut) {
		p.Demand.Asks = append(p.Demand.Asks, &commandv1.Ask{Rule: rule, Value: value, Field: "container"})
	}
}

func placed(p *commandv1.Placement) func(*commandv1.WorkloadPut) {
	return demand(func(d *commandv1.Demand) { d.Placement = p })
}

// many applies workloads w1, w2 and so on.
func (w *world) many(n int, set ...func(*commandv1.WorkloadPut)) {
	for i := range n {
		w.apply(fmt.Sprintf("w%d", i+1), set...)
	}
}

func TestRebalance(t *testing.T) {
	tests := []struct {
		name  string
		setup func(w *world)
		then  func(w *world) // after the workloads run
		moves int            // expected number of moves
		onto  string         // the node to which all moves lead; "" = any
	}{
		{"a node that joins gets work", func(w *world) { w.node("a"); w.node("b"); w.many(12) }, func(w *world) { w.node("c") }, 3, "c"},
		{"a balanced cluster has no moves", func(w *world) { w.node("a"); w.node("b"); w.many(12) }, nil, 0, ""},
		{"a gain below the threshold causes no move", func(w *world) { w.node("a"); w.node("b"); w.many(2) }, func(w *world) { w.node("c") }, 0, ""},
		{"members of a group leave a node that has two of them",
			func(w *world) { w.node("a"); w.many(2, grouped("g")) }, func(w *world) { w.node("b") }, 1, "b"},
		{"members with a preferred spread move to a zone that joins",
			func(w *world) {
				w.node("a", zoned("x"))
				w.node("b", zoned("y"))
				w.many(6, grouped("g"), placed(&commandv1.Placement{Spread: []*commandv1.Spread{{By: "zone", MaxSkew: 1}}}))
			}, func(w *world) { w.node("c", zoned("z")) }, 2, "c"},
		{"members with a required spread move to a zone that joins",
			func(w *world) {
				w.node("a", zoned("x"))
				w.node("b", zoned("y"))
				w.many(6, grouped("g"), placed(&commandv1.Placement{Spread: []*commandv1.Spread{{By: "zone", MaxSkew: 1, Must: true}}}))
			}, func(w *world) { w.node("c", zoned("z")) }, 2, "c"},
		{"a workload moves to a preferred node that joins",
			func(w *world) {
				w.node("a")
				w.many(1, placed(&commandv1.Placement{Affinities: []*commandv1.Affinity{
					{Node: &commandv1.Constraint{Key: "zone", Op: "=", Values: []string{"z"}}, Weight: 50}}}))
			}, func(w *world) { w.node("b"); w.node("c", zoned("z")) }, 1, "c"},
		{"with the policy binpack workloads leave the emptier node",
			func(w *world) {
				w.node("a")
				w.many(4, placed(&commandv1.Placement{Policy: "binpack"}))
				w.settle()
				w.cordon("a", true)
				w.node("b")
				w.apply("x", placed(&commandv1.Placement{Policy: "binpack"}))
			}, func(w *world) { w.cordon("a", false) }, 1, "a"},
		{"nothing moves to a node that is cordoned", func(w *world) { w.node("a"); w.many(6) }, func(w *world) { w.node("b"); w.cordon("b", true) }, 0, ""},
		{"nothing leaves a node that is cordoned", func(w *world) { w.node("a"); w.many(6) }, func(w *world) { w.cordon("a", true); w.node("b") }, 0, ""},
		{"exclusive workloads stay",
			func(w *world) { w.node("a"); w.many(6, demand(func(d *commandv1.Demand) { d.Exclusive = true })) }, func(w *world) { w.node("b") }, 0, ""},
		{"workloads with local data stay",
			func(w *world) {
				w.node("a")
				w.many(6, demand(func(d *commandv1.Demand) { d.LocalData = []*commandv1.LocalData{{Name: "volume data"}} }))
			}, func(w *world) { w.node("b") }, 0, ""},
		{"workloads that can write to folders of their host stay",
			func(w *world) { w.node("a"); w.many(6, writesToHost) }, func(w *world) { w.node("b") }, 0, ""},
		{"workloads that can write to folders of their host stay, although reschedule lets them leave a node that fails",
			func(w *world) { w.node("a"); w.many(6, writesToHost, moves(3, 60*minute)) }, func(w *world) { w.node("b") }, 0, ""},
		{"workloads with a device of their host stay",
			func(w *world) { w.node("a"); w.many(6, asks(policy.RuleDevice, "/dev/ttyUSB0")) }, func(w *world) { w.node("b") }, 0, ""},
		{"workloads in the network of another container stay",
			func(w *world) { w.node("a"); w.many(6, asks(policy.RuleHostNS, "network of container:vpn")) }, func(w *world) { w.node("b") }, 0, ""},
		{"workloads in a network that somebody made in the engine stay",
			func(w *world) { w.node("a"); w.many(6, asks(policy.RuleNetwork, "proxy")) }, func(w *world) { w.node("b") }, 0, ""},
		{"workloads that publish a port and read a folder of the host move",
			func(w *world) {
				w.node("a")
				w.many(6, asks(policy.RulePort, "80/tcp"), asks(policy.RuleHostPathRead, "/etc/ssl"))
			},
			func(w *world) { w.node("b") }, 2, "b"},
		{"workloads with reschedule.attempts 0 stay",
			func(w *world) { w.node("a"); w.many(6, moves(0, 60*minute)) }, func(w *world) { w.node("b") }, 0, ""},
		{"jobs stay",
			func(w *world) { w.node("a"); w.many(6, demand(func(d *commandv1.Demand) { d.Job = &commandv1.Job{} })) }, func(w *world) { w.node("b") }, 0, ""},
		{"a workload bound to its node by a constraint stays",
			func(w *world) {
				w.node("a")
				w.many(6, demand(func(d *commandv1.Demand) {
					d.Constraints = []*commandv1.Constraint{{Key: "node.id", Op: "=", Values: []string{"a"}}}
				}))
			}, func(w *world) { w.node("b") }, 0, ""},
		{"workloads that do not tolerate the taint of the new node stay",
			func(w *world) { w.node("a"); w.many(6) },
			func(w *world) {
				w.node("b", func(n *commandv1.RegisterNode) {
					n.Taints = []*commandv1.Taint{{Key: "dedicated", Effect: "NoSchedule"}}
				})
			}, 0, ""},
		{"no member of a group moves while another one is not available",
			func(w *world) { w.node("a"); w.many(6, grouped("g")) }, func(w *world) { w.node("b"); w.say("w6", "Pending") }, 0, ""},
		{"a workload that fails stays", func(w *world) { w.node("a"); w.many(1); w.many(2, grouped("g")) }, func(w *world) { w.node("b"); w.say("w2", "Failed") }, 0, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			tt.setup(w)
			w.settle()
			if tt.then != nil {
				tt.then(w)
			}
			got := Rebalance(w.state, balanceLimits, w.tuning)
			if len(got.Moves) != tt.moves {
				t.Fatalf("Rebalance returns the moves %q (workload, from, to), want %d moves", lines(got.Moves), tt.moves)
			}
			for _, m := range got.Moves {
				if tt.onto != "" && m.To != tt.onto {
					t.Errorf("workload %q is moved to node %q, want node %q", m.Workload, m.To, tt.onto)
				}
				if m.Gain < balanceLimits.MinGain || !strings.HasPrefix(m.Reason, "load ") {
					t.Errorf("move %+v must have a gain of at least %d millionths of a node, and a reason that begins with the loads", m, balanceLimits.MinGain)
				}
				w.relocate(m)
			}
			if again := Rebalance(w.state, balanceLimits, w.tuning); len(again.Moves) > 0 {
				t.Errorf("after all moves were made, Rebalance returns the moves %q, want none", lines(again.Moves))
			} else if again.Before != got.After {
				t.Errorf("after the moves the imbalance is %+v, want %+v as Rebalance predicted", again.Before, got.After)
			}
		})
	}
}

func TestRebalanceHeedsItsLimits(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	w.many(4)
	for i := range 2 {
		w.apply(fmt.Sprintf("g%d", i+1), grouped("g"))
	}
	w.settle()
	w.node("b")
	tests := []struct {
		name string
		l    BalanceLimits
		want int
	}{
		{"with limits that allow all moves", balanceLimits, 2},
		{"with a limit of one move", BalanceLimits{Moves: 1, MinGain: whole / 10}, 1},
		{"with a high minimum gain", BalanceLimits{Moves: 10, MinGain: whole / 2}, 1},
		{"with a limit of one search", BalanceLimits{Moves: 10, MinGain: whole / 10, Evaluations: 1}, 1},
		{"if Stop returns true", BalanceLimits{Moves: 10, MinGain: whole / 10, Stop: func() bool { return true }}, 0},
		{"with a minimum time since the placement", BalanceLimits{Moves: 10, MinGain: whole / 10, MinAge: 600 * second}, 0},
	}
	for _, tt := range tests {
		if got := Rebalance(w.state, tt.l, w.tuning); len(got.Moves) != tt.want {
			t.Errorf("%s Rebalance returns the moves %q, want %d moves", tt.name, lines(got.Moves), tt.want)
		}
	}
}

// TestRebalanceCountsItsMovesInRules: the cache counts the workloads that a rule names when the rule is
// evaluated for the first time. If rebalancing has already chosen a move of such a workload, the count must
// include this move. In the test, a workload must be near one of two other workloads on its node, so only one
// of these two may leave the node.
func TestRebalanceCountsItsMovesInRules(t *testing.T) {
	near := func(value string, weight uint32) func(*commandv1.WorkloadPut) {
		return demand(func(d *commandv1.Demand) {
			d.CpuMillicores = 0
			d.Placement = &commandv1.Placement{Affinities: []*commandv1.Affinity{
				{Tag: &commandv1.Label{Key: "tier", Value: value}, By: fsm.ByHost, Must: weight == 0, Weight: weight}}}
		})
	}
	tagged := demand(func(d *commandv1.Demand) { d.Tags = []*commandv1.Label{{Key: "tier", Value: "a"}} })
	w := newWorld(t)
	w.node("a")
	w.apply("near1", tagged)
	w.apply("near2", tagged)
	w.settle()
	w.apply("needs", near("a", 0), moves(0, 60*minute))
	w.settle()
	w.node("z", func(n *commandv1.RegisterNode) { n.CpuMillicores = 100_000 })
	w.cordon("a", true)
	w.apply("other", near("b", 1))
	w.settle()
	w.cordon("a", false)
	w.node("b")
	var left []string
	found := Rebalance(w.state, BalanceLimits{Moves: 10, MinGain: 1}, w.tuning).Moves
	for _, m := range found {
		if strings.HasPrefix(m.Workload, "near") {
			left = append(left, m.Workload)
		}
	}
	if len(left) != 1 {
		t.Errorf("the workloads %q leave the node of a workload that must be near one of them, want that only one leaves; moves: %s", left, lines(found))
	}
}

// clusterCost returns the cost of the cluster, which each move of a rebalancing must lower. It
// computes the cost from the whole state, by the definition at the function cost in rebalance.go.
func clusterCost(v fsm.View, t Tuning) (sum int64) {
	x := newNodeIndex(v, t.withDefaults())
	b := &balancing{p: &planner{c: &Cache{nodes: x}}, weight: x.weights()}
	packed := make([]int64, len(x.recs))
	members := map[string]map[string]int64{} // by group and node
	byValue := map[string]map[string]int64{} // by group, rule and value
	first := map[string]*fsm.Placement{}
	v.Workloads("", func(w *fsm.Workload) bool {
		s, ok := x.slotOf[w.Node]
		if !ok {
			return true
		}
		n := x.recs[s]
		if x.packs(w.Demand) {
			packed[s] += x.share(w.Demand, s)
		}
		if _, ok := avoids(w.Demand, n); ok {
			sum += perAvoid
		}
		if g := w.Demand.Group; g != "" {
			if members[g] == nil {
				members[g], first[g] = map[string]int64{}, nil
				v.Group(g, func(m *fsm.Workload) bool { first[g] = m.Demand.Placement; return false })
			}
			sum += members[g][n.ID] * perMember
			members[g][n.ID]++
			if p := first[g]; p != nil {
				for i, r := range p.Spread {
					value, labelled := n.ID, true
					if r.By != fsm.ByHost {
						value, labelled = labelOf(n, r.By)
					}
					if !labelled {
						sum += maxSpread
						continue
					}
					key := fmt.Sprint(g, "/", i)
					if byValue[key] == nil {
						byValue[key] = map[string]int64{}
					}
					sum += byValue[key][value] * perExcess
					byValue[key][value]++
				}
			}
		}
		if w.Demand.Placement == nil {
			return true
		}
		for i := range w.Demand.Placement.Affinities {
			a := &w.Demand.Placement.Affinities[i]
			if a.By == "" {
				sum += softCost(a, n)
				continue
			}
			near, others := false, false
			v.Workloads("", func(o *fsm.Workload) bool {
				on, ok := v.Node(o.Node)
				target := a.Workload != "" && o.ID == a.Workload || a.Group != "" && o.Demand.Group == a.Group || a.Tag.Key != "" && names(&fsm.Affinity{Tag: a.Tag}, o.Demand)
				if !ok || o.ID == w.ID || o.In() != w.In() || !target {
					return true
				}
				others = true
				here, ok1 := labelOf(n, a.By)
				there, ok2 := labelOf(on, a.By)
				near = near || a.By == fsm.ByHost && on.ID == n.ID || a.By != fsm.ByHost && ok1 && ok2 && here == there
				return true
			})
			_, labelled := labelOf(n, a.By)
			alone := !a.Anti && names(a, w.Demand) && !others && (labelled || a.By == fsm.ByHost)
			if near == a.Anti && !alone {
				if sum += int64(a.Weight) * perWeight; a.Must {
					sum += whole - int64(a.Weight)*perWeight
				}
			}
		}
		return true
	})
	for s := range x.recs {
		sum += b.loadTerm(int64(x.hot[s].load), packed[s], int32(s))
	}
	return sum
}

// TestRebalanceEnds proves for random worlds that rebalancing ends: each move lowers the cost of the cluster and
// concerns a workload that may move, and after a bounded number of moves no further move is found.
func TestRebalanceEnds(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := newWorld(r)
		nodes := rapid.IntRange(2, 5).Draw(r, "nodes")
		for i := range nodes {
			w.node(fmt.Sprintf("n%d", i), randomNode(r))
		}
		n := rapid.IntRange(1, 16).Draw(r, "workloads")
		for i := range n {
			f := randomDemand(r)
			w.apply(fmt.Sprintf("w%d", i), f, demand(func(d *commandv1.Demand) {
				if rapid.Bool().Draw(r, "plain") {
					d.Exclusive, d.OnLostLease, d.LocalData, d.Job = false, "", nil, nil
				}
				if d.Placement != nil {
					d.Placement.Policy = rapid.SampledFrom([]string{"", "binpack", "spread"}).Draw(r, "policy")
				}
			}))
			if i == n/2 {
				w.settle()
			}
		}
		w.settle()
		for i := range rapid.IntRange(1, 3).Draw(r, "joining") {
			w.node(fmt.Sprintf("m%d", i), randomNode(r))
		}
		w.settle()
		limits := BalanceLimits{Moves: rapid.IntRange(1, 20).Draw(r, "moves"), MinGain: rapid.SampledFrom([]int64{1, whole / 50, whole / 10}).Draw(r, "gain")}
		moved, cost := 0, clusterCost(w.state, w.tuning)
		for {
			b := Rebalance(w.state, limits, w.tuning)
			if len(b.Moves) > limits.Moves {
				r.Fatalf("Rebalance returns %d moves, want at most the limit of %d", len(b.Moves), limits.Moves)
			}
			for _, m := range b.Moves {
				x := w.get(m.Workload)
				if why := fsm.Immovable(w.state, x, w.now); why != "" || x.Node != m.From || m.To == m.From {
					r.Fatalf("move %+v of workload %s on node %s must not be made: %s", m, x.ID, x.Node, why)
				}
				w.relocate(m)
				now := clusterCost(w.state, w.tuning)
				if now >= cost {
					r.Fatalf("move %+v must lower the cost of the cluster, but changes it from %d to %d", m, cost, now)
				}
				cost = now
			}
			if moved += len(b.Moves); moved > 20*n {
				r.Fatalf("rebalancing must end, but has made %d moves of %d workloads and finds more", moved, n)
			}
			if len(b.Moves) == 0 {
				return
			}
		}
	})
}

// TestRebalanceEvensOutEqualNodes proves for workloads without rules on equal nodes that no move makes the loads less
// even, and that in the end the nodes differ by less than the threshold and one workload.
func TestRebalanceEvensOutEqualNodes(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := newWorld(r)
		w.node("a")
		n := rapid.IntRange(1, 12).Draw(r, "workloads")
		largest := int64(0)
		for i := range n {
			cpu := rapid.Int64Range(0, 6).Draw(r, "cpu") * 100
			w.apply(fmt.Sprintf("w%d", i), demand(func(d *commandv1.Demand) { d.CpuMillicores = cpu }))
		}
		w.settle()
		w.state.Workloads("", func(x *fsm.Workload) bool {
			largest = max(largest, newNodeIndex(w.state, w.tuning).share(x.Demand, 0))
			return true
		})
		for i := range rapid.IntRange(1, 3).Draw(r, "joining") {
			w.node(fmt.Sprintf("m%d", i))
		}
		w.settle()
		for range 20 * n {
			b := Rebalance(w.state, BalanceLimits{Moves: 1, MinGain: whole / 10}, w.tuning)
			if len(b.Moves) == 0 {
				if rest := b.Before.High - b.Before.Low; rest > whole/10+largest+2*perWorkload {
					r.Fatalf("the loads of two nodes differ by %d millionths of a node, so Rebalance must find a move, but finds none", rest)
				}
				return
			}
			w.relocate(b.Moves[0])
			after := newNodeIndex(w.state, w.tuning).imbalance()
			if after != b.After || after.High-after.Low > b.Before.High-b.Before.Low || after.Deviation > b.Before.Deviation {
				r.Fatalf("move %+v changes the imbalance from %+v to %+v, want a smaller one, equal to the predicted %+v", b.Moves[0], b.Before, after, b.After)
			}
		}
		r.Fatalf("rebalancing must end, but still finds moves after 20 moves per workload")
	})
}
