package sched

import (
	"fmt"
	"syscall"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// bigWorld registers n nodes of four sizes in five zones. Some nodes are tainted, some lack a storage
// driver, and a tenth runs only VMs.
func bigWorld(t testing.TB, n int) *world {
	w := newWorld(t)
	sizes := []int64{8, 16, 32, 64}
	for i := range n {
		w.node(fmt.Sprintf("node-%05d", i), func(r *commandv1.RegisterNode) {
			size := sizes[i%4]
			r.CpuMillicores, r.MemoryMib = size*1000, size*4096
			r.Pools = []*commandv1.Pool{{Name: "fast", Type: "local", TotalGb: 500 * size}, {Name: "slow", Type: "nfs", TotalGb: 1000 * size}}
			r.StorageDrivers = []string{"local", "nfs"}
			r.Labels = []*commandv1.Label{{Key: "disk", Value: "ssd"}, {Key: "zone", Value: fmt.Sprint("z", i%5)}}
			switch i % 10 {
			case 3:
				r.Taints = []*commandv1.Taint{{Key: "dedicated", Value: "gpu", Effect: "NoSchedule"}}
			case 5:
				r.Taints = []*commandv1.Taint{{Key: "spot", Effect: "PreferNoSchedule"}}
			case 7:
				r.Types = []string{"vm"}
			case 9:
				r.StorageDrivers = []string{"local"}
			}
		})
	}
	return w
}

// benchDemand returns a demand that every filter of the planner has to check.
func benchDemand(i int) fsm.Demand {
	return fsm.Demand{
		Type: "container", CPU: int64(100 + i%7*50), Memory: int64(128 + i%5*64), Disk: int64(1 + i%3), Pool: "fast",
		StorageDrivers: []string{"nfs"},
		Ports:          []fsm.HostPort{{Port: uint16(8000 + i%40), Protocol: "tcp"}},
		Labels:         []fsm.Label{{Key: "disk", Value: "ssd"}},
		Constraints:    []fsm.Constraint{{Key: "zone", Op: "in", Values: []string{"z0", "z1", "z2", fmt.Sprint("z", 3+i%2)}}},
		Tolerations:    []fsm.Taint{{Key: "dedicated", Value: "gpu"}},
		Group:          fmt.Sprint("g", i%300),
	}
}

// benchPlace measures placements: it finds the best node for a demand and reserves the demand there. After a
// while each reservation is followed by the release of an earlier one, so that the cluster stays about half
// full.
func benchPlace(b *testing.B, w *world, n int, demandOf func(int) fsm.Demand) {
	nodes := NodesOf(w.state, DefaultTuning())
	c := nodes.c
	demands := make([]fsm.Demand, 4200)
	for i := range demands {
		demands[i] = demandOf(i)
	}
	window := n * 10
	ids := make([]string, window)
	for i := range ids {
		ids[i] = fmt.Sprint("w", i)
	}
	at := make([]int32, window)
	for i := range at {
		at[i] = -1
	}
	who := func(k int) subject { return subject{id: ids[k], namespace: fsm.DefaultNamespace} }
	one := func(i int) {
		k := i % window
		d := &demands[k%len(demands)]
		if at[k] >= 0 {
			c.nodes.take(d, at[k], -1)
			c.join(ids[k], membership{})
			c.enter(who(k), d, -1)
		}
		q := c.find(w.state, who(k), d)
		if at[k] = q.best; q.best >= 0 {
			c.promise(w.state, who(k), d, q.best)
		}
		if len(c.stale) > 1000 {
			c.stale, c.stalePort = c.stale[:0], c.stalePort[:0]
			c.promised, c.untracked, c.indexed = c.promised[:0], nil, 0
		}
	}
	for i := range window {
		one(i)
	}
	placed := 0
	for _, s := range at {
		if s >= 0 {
			placed++
		}
	}
	if placed < window*9/10 {
		b.Fatalf("only %d of %d demands find a node: the benchmark would measure failures, want at least 9 of 10", placed, window)
	}
	b.ReportAllocs()
	before := cpuSeconds(b)
	for i := 0; b.Loop(); i++ {
		one(i)
	}
	b.ReportMetric(float64(b.N)/(cpuSeconds(b)-before), "decisions/cpu-s")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
}

// cpuSeconds returns the processor time of this process. On a busy machine it is more exact than the wall
// clock.
func cpuSeconds(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

func BenchmarkPlace1k(b *testing.B)  { benchPlace(b, bigWorld(b, 1000), 1000, benchDemand) }
func BenchmarkPlace5k(b *testing.B)  { benchPlace(b, bigWorld(b, 5000), 5000, benchDemand) }
func BenchmarkPlace20k(b *testing.B) { benchPlace(b, bigWorld(b, 20000), 20000, benchDemand) }

// BenchmarkPlaceConstraints places demands with rules on 5,000 nodes in 50 zones.
func BenchmarkPlaceConstraints(b *testing.B) {
	benchPlace(b, zonedWorld(b, 5000, 50), 5000, ruledDemand)
}

// BenchmarkStepConverged100k measures one planning step over 100,000 running workloads of which one record
// has changed.
func BenchmarkStepConverged100k(b *testing.B) {
	w := bigWorld(b, 1000)
	for i := range 100 {
		var puts []*commandv1.WorkloadPut
		for j := range 1000 {
			puts = append(puts, put(fmt.Sprintf("w-%06d", i*1000+j), demand(func(d *commandv1.Demand) { d.CpuMillicores, d.MemoryMib = 100, 64 })))
		}
		w.do(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: puts}}})
	}
	w.settle()
	if n := w.state.PendingCount(); n > 0 {
		b.Fatalf("%d workloads are pending, want none", n)
	}
	x := w.get("w-050000")
	change := []fsm.Change{{Table: fsm.TableWorkload, Key: x.ID, Old: x, New: x}}
	b.ReportAllocs()
	for b.Loop() {
		s := Next(World{State: w.state, Changes: change, Live: quiet{}, Now: w.now, Epoch: w.state.Info().Epoch(), Tuning: w.tuning}, w.cache)
		if len(s.Commands)+len(s.Orders) > 0 {
			b.Fatal("the step must propose nothing in a converged world, but proposes something")
		}
	}
}

// quiet is a Liveness in which nothing happens: no lease has ended, no lost node has returned, and
// no order is on its way to a node.
type quiet struct{}

func (quiet) Expired(int64, func(NodeID, int64) bool)  {}
func (quiet) NextExpiry() int64                        { return 0 }
func (quiet) Returned(int64, func(NodeID, int64) bool) {}
func (quiet) DownSince(NodeID) int64                   { return 0 }
func (quiet) Outstanding(Order) bool                   { return false }

func (quiet) Heard(NodeID) int64                           { return 0 }
func (quiet) MoveReport(NodeID, string) (MoveReport, bool) { return MoveReport{}, false }
