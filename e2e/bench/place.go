package main

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// place5k measures placement alone, in this process. Each decision reserves its resources before the next
// one. The peer is a simple scheduler that checks every node for each decision and keeps the best node.
func place5k(ctx context.Context, _ *env) (result, error) {
	view, err := fleet(5000)
	if err != nil {
		return result{}, err
	}
	small, err := fleet(1000)
	if err != nil {
		return result{}, err
	}
	demands := demandMix()
	ours := placements(ctx, view, demands, 4*time.Second)
	at1k := placements(ctx, small, demands, 2*time.Second)
	began, n := time.Now(), 0
	for time.Since(began) < 3*time.Second && ctx.Err() == nil {
		scanAll(view, &demands[n%len(demands)])
		n++
	}
	peer := float64(n) / time.Since(began).Seconds()
	return result{ours: ours, peer: peer, unit: "decisions/s", goal: 50_000,
		note: fmt.Sprintf("1,000 nodes: %.0f decisions/s; five times the nodes cost %.1f times the time", at1k, at1k/ours)}, ctx.Err()
}

// placements measures the planner: for the time d it chooses a node of the view v for one demand after another, and
// begins again with the first demand after the last. It returns the number of choices per second.
func placements(ctx context.Context, v fsm.View, demands []fsm.Demand, d time.Duration) float64 {
	cand := sched.NodesOf(v, sched.Tuning{})
	began, n := time.Now(), 0
	for time.Since(began) < d && ctx.Err() == nil {
		for range 64 {
			dem := demands[n%len(demands)]
			dem.Group = fmt.Sprintf("g%d", n/12) // workloads form groups of twelve
			if p := dem.Placement; p != nil {
				dem.Placement = &fsm.Placement{Spread: p.Spread, Affinities: []fsm.Affinity{{Anti: true, Group: dem.Group, By: fsm.ByHost, Must: true}}}
			}
			c := cand.For(fmt.Sprintf("w-%d", n))
			if node, _ := sched.Place(dem, c); node != "" {
				c.Take(dem, node)
			}
			n++
		}
	}
	return float64(n) / time.Since(began).Seconds()
}

// placeConstraints measures placement over 5,000 nodes in 50 zones with constraints and two required rules:
// each group is spread over the zones, and no node has two members of one group (see placements). The peer
// figure is half the rate of the same placements without the two rules, so a ratio of 1 means that the rules
// halve the rate; a lower ratio misses the goal.
func placeConstraints(ctx context.Context, _ *env) (result, error) {
	view, err := fleetIn(5000, 50)
	if err != nil {
		return result{}, err
	}
	plain, ruled := demandMix(), demandMix()
	for i := range ruled {
		ruled[i].Placement = &fsm.Placement{Spread: []fsm.Spread{{By: "zone", MaxSkew: 1, Must: true}}}
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // the goal is for one core
	ours := placements(ctx, view, ruled, 4*time.Second)
	without := placements(ctx, view, plain, 4*time.Second)
	return result{ours: ours, peer: without / 2, unit: "decisions/s", goal: 50_000, missed: ours < without/2,
		note: fmt.Sprintf("without rules: %.0f decisions/s; rules cost %.1f times the time", without, without/ours)}, ctx.Err()
}

// fleet returns a state with n nodes that differ in size, zone, taints and workload types.
func fleet(n int) (fsm.View, error) { return fleetIn(n, 9) }

// fleetIn returns a state with n nodes that differ in size, taints and workload types, in the given number of
// zones.
func fleetIn(n, zones int) (fsm.View, error) {
	w, err := newWorld()
	for i := 0; i < n && err == nil; i++ {
		reg := &commandv1.RegisterNode{
			Id: fmt.Sprintf("node-%05d", i), Endpoint: fmt.Sprintf("10.0.%d.%d:50051", i/250, i%250),
			CpuMillicores: int64(16000 + 16000*(i%4)), MemoryMib: int64(65536 + 65536*(i%3)),
			Pools:    []*commandv1.Pool{{Name: "root", Type: "local", TotalGb: 2000}, {Name: "ssd", Type: "local", TotalGb: 1000}},
			Types:    []string{"container", "compose"},
			EngineId: fmt.Sprintf("engine-%05d", i), Protocol: 1,
			Labels: []*commandv1.Label{{Key: "disk", Value: []string{"ssd", "hdd"}[i%2]}, {Key: "region", Value: []string{"eu", "us", "ap"}[i%3]}, {Key: "zone", Value: fmt.Sprintf("z%d", i%zones)}},
		}
		if i%10 == 0 {
			reg.Taints = []*commandv1.Taint{{Key: "dedicated", Value: "gpu", Effect: "NoSchedule"}}
		}
		if i%5 == 0 {
			reg.Types = append(reg.Types, "vm")
		}
		err = w.register(reg)
	}
	return w.view(), err
}

// demandMix returns demands that together use all of these filters: type, storage, labels, constraints,
// taints, CPU, memory, and disk space by pool.
func demandMix() []fsm.Demand {
	var out []fsm.Demand
	for i := range 48 {
		d := fsm.Demand{
			Type: "container", CPU: int64(50 + 50*(i%4)), Memory: int64(64 + 64*(i%3)), Disk: 1, Pool: []string{"root", "ssd"}[i%2],
			StorageDrivers: []string{"local"},
			Labels:         []fsm.Label{{Key: "region", Value: []string{"eu", "us", "ap"}[i%3]}},
			Constraints:    []fsm.Constraint{{Key: "disk", Op: "in", Values: []string{"ssd", "hdd"}}, {Key: "zone", Op: "!=", Values: []string{"z8"}}},
			Priority:       int32(i % 3),
		}
		if i%6 == 0 {
			d.Tolerations = []fsm.Taint{{Key: "dedicated", Value: "gpu"}}
		}
		out = append(out, d)
	}
	return out
}

// scanAll is the placement with which place-5k is compared: it applies every filter to the record of every node and
// returns the node with the lowest load that passes.
func scanAll(v fsm.View, d *fsm.Demand) string {
	best, bestLoad := "", int64(1)<<62
	v.Nodes("", func(n *fsm.Node) bool {
		a := v.Alloc(n.ID)
		if !n.Schedulable() || !n.Runs(d.Type) || n.Facts.CPU-a.CPU < d.CPU || n.Facts.Memory-a.Memory < d.Memory {
			return true
		}
		labels := map[string]string{}
		for _, l := range n.Labels() {
			labels[l.Key] = l.Value
		}
		for _, l := range d.Labels {
			if labels[l.Key] != l.Value {
				return true
			}
		}
		for _, c := range d.Constraints {
			in := strings.Contains(strings.Join(c.Values, ","), labels[c.Key])
			if in == (c.Op == "!=") {
				return true
			}
		}
		for _, t := range n.Taints() {
			ok := false
			for _, tol := range d.Tolerations {
				ok = ok || tol.Key == t.Key && (tol.Value == "" || tol.Value == t.Value)
			}
			if !ok && t.Effect == "NoSchedule" {
				return true
			}
		}
		if load := a.CPU*1000/n.Facts.CPU + a.Memory*1000/n.Facts.Memory; load < bestLoad {
			best, bestLoad = n.ID, load
		}
		return true
	})
	return best
}
