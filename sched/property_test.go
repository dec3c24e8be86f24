package sched

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"pgregory.net/rapid"
)

var zones = []string{"x", "y", "z"}

// randomNode and randomDemand draw from small ranges, so that every filter accepts some nodes and rejects
// others.
func randomNode(r *rapid.T) func(*commandv1.RegisterNode) {
	zone := rapid.SampledFrom(zones).Draw(r, "zone")
	taint := rapid.SampledFrom([]string{"", "", "NoSchedule", "PreferNoSchedule", "NoExecute"}).Draw(r, "taint")
	types := rapid.SampledFrom([][]string{nil, {"container"}, {"container", "vm"}}).Draw(r, "types")
	cpu := rapid.SampledFrom([]int64{500, 2000, 4000}).Draw(r, "cpu")
	engine := rapid.SampledFrom([]string{"", "", "shared"}).Draw(r, "engine")
	return func(n *commandv1.RegisterNode) {
		n.Labels = []*commandv1.Label{{Key: "zone", Value: zone}}
		n.Types, n.CpuMillicores, n.EngineId = types, cpu, engine
		n.StorageDrivers = []string{"local"}
		n.SelfFencing = zone == "y"
		if zone == "x" && cpu > 500 {
			n.Devices = []*commandv1.DeviceCount{{Name: "gpu", Count: cpu / 2000}}
		}
		if taint != "" {
			n.Taints = []*commandv1.Taint{{Key: "dedicated", Value: "gpu", Effect: taint}}
		}
	}
}

func randomDemand(r *rapid.T) func(*commandv1.WorkloadPut) {
	d := &commandv1.Demand{
		Type:          rapid.SampledFrom([]string{"container", "container", "vm"}).Draw(r, "type"),
		CpuMillicores: rapid.Int64Range(0, 5).Draw(r, "cpu") * 300,
		MemoryMib:     rapid.Int64Range(0, 4).Draw(r, "memory") * 512,
		DiskGb:        rapid.Int64Range(0, 3).Draw(r, "disk") * 10,
		Group:         rapid.SampledFrom([]string{"", "g", "h"}).Draw(r, "group"),
		Exclusive:     rapid.IntRange(0, 4).Draw(r, "exclusive") == 0,
		Priority:      rapid.Int32Range(0, 2).Draw(r, "priority"),
	}
	if rapid.IntRange(0, 3).Draw(r, "port") == 0 {
		d.HostPorts = []*commandv1.Port{{Port: rapid.SampledFrom([]uint32{80, 81}).Draw(r, "host port"), Protocol: "tcp"}}
	}
	switch rapid.IntRange(0, 5).Draw(r, "rule") {
	case 0:
		d.Labels = []*commandv1.Label{{Key: "zone", Value: rapid.SampledFrom(zones).Draw(r, "zone")}}
	case 1:
		d.Constraints = []*commandv1.Constraint{{Key: "zone", Op: "!=", Values: []string{"x"}}}
	case 2:
		d.Tolerations = []*commandv1.Taint{{Key: "dedicated"}}
	case 3:
		d.Constraints = []*commandv1.Constraint{{Key: "node.id", Op: "in", Values: []string{"n1", "n2"}}}
	}
	if d.Exclusive && d.Priority == 2 {
		d.OnLostLease = fsm.OnLostLeaseStop
	}
	if rapid.IntRange(0, 3).Draw(r, "data") == 0 {
		d.LocalData = []*commandv1.LocalData{{Name: "volume data"}}
	}
	if rapid.IntRange(0, 2).Draw(r, "job") == 0 && len(d.LocalData) == 0 {
		d.Job = &commandv1.Job{
			Parallelism: rapid.Uint32Range(0, 2).Draw(r, "parallelism"), Deadline: rapid.Int64Range(0, 2).Draw(r, "deadline") * 30 * second,
			Ttl: rapid.Int64Range(0, 2).Draw(r, "ttl") * 20 * second,
		}
	}
	if rapid.IntRange(0, 3).Draw(r, "ruled") == 0 {
		d.Placement = randomRules(r)
	}
	if rapid.IntRange(0, 3).Draw(r, "tagged") == 0 {
		d.Tags = []*commandv1.Label{{Key: "tier", Value: "a"}}
	}
	if rapid.IntRange(0, 2).Draw(r, "reschedule") == 0 {
		d.Reschedule = &commandv1.Reschedule{Attempts: rapid.Int32Range(0, 2).Draw(r, "moves"), Interval: 60 * second}
	}
	if rapid.IntRange(0, 5).Draw(r, "devices") == 0 {
		d.Devices = []*commandv1.DeviceCount{{Name: "gpu", Count: rapid.Int64Range(1, 2).Draw(r, "gpus")}}
	}
	discard := rapid.IntRange(0, 3).Draw(r, "discard") == 0
	desired := rapid.SampledFrom([]string{"Running", "Running", "Running", "Stopped"}).Draw(r, "desired")
	return func(p *commandv1.WorkloadPut) { p.Demand, p.Desired, p.DiscardData = d, desired, discard }
}

// disturb makes one random change to the test world, such as a lost node or a new workload.
func disturb(r *rapid.T, w *world) {
	node := "n" + rapid.SampledFrom([]string{"1", "2", "3", "4"}).Draw(r, "node")
	load := "w" + rapid.SampledFrom([]string{"1", "2", "3", "4", "5", "6", "7", "8"}).Draw(r, "workload")
	cmd := func(c *commandv1.Command) { w.try(c) }
	switch rapid.IntRange(0, 22).Draw(r, "event") {
	case 0, 1:
		f := randomNode(r)
		if n, ok := w.state.Node(node); (!ok || n.Up || w.heard[node]) && w.state.Info().Mode == fsm.ModeNormal {
			w.node(node, f)
		}
	case 2, 3, 4, 5:
		if f := randomDemand(r); w.state.Info().Mode == fsm.ModeNormal {
			w.apply(load, f)
		}
	case 6:
		cmd(&commandv1.Command{Body: &commandv1.Command_DeleteWorkload{DeleteWorkload: &commandv1.DeleteWorkload{Id: load}}})
	case 7:
		w.heard[node] = false
	case 8:
		w.heard[node] = true
	case 9:
		on := rapid.Bool().Draw(r, "drain")
		cmd(&commandv1.Command{Body: &commandv1.Command_DrainNode{DrainNode: &commandv1.DrainNode{Id: node, On: on, DiscardData: rapid.Bool().Draw(r, "discard")}}})
	case 10:
		on := rapid.Bool().Draw(r, "cordon")
		cmd(&commandv1.Command{Body: &commandv1.Command_CordonNode{CordonNode: &commandv1.CordonNode{Id: node, On: on}}})
	case 11:
		cmd(&commandv1.Command{Body: &commandv1.Command_FenceNode{FenceNode: &commandv1.FenceNode{Id: node, DiscardData: rapid.Bool().Draw(r, "discard")}}})
	case 12:
		force := rapid.Bool().Draw(r, "force")
		cmd(&commandv1.Command{Body: &commandv1.Command_RemoveNode{RemoveNode: &commandv1.RemoveNode{Id: node, Force: force, DiscardData: rapid.Bool().Draw(r, "discard")}}})
	case 16:
		l := &commandv1.NodeLabel{Key: "zone", Value: rapid.SampledFrom(zones).Draw(r, "set zone"), Removed: rapid.Bool().Draw(r, "removed")}
		cmd(&commandv1.Command{Body: &commandv1.Command_LabelNode{LabelNode: &commandv1.LabelNode{Id: node, Labels: []*commandv1.NodeLabel{l}}}})
	case 17:
		x := &commandv1.NodeTaint{Taint: &commandv1.Taint{Key: "dedicated", Effect: rapid.SampledFrom([]string{"NoSchedule", "NoExecute"}).Draw(r, "set taint")}}
		if x.Removed = rapid.Bool().Draw(r, "removed"); !x.Removed && x.Taint.Effect == fsm.TaintNoExecute {
			x.Taint.Seconds = rapid.SampledFrom([]uint32{0, 1, 20}).Draw(r, "seconds")
		}
		cmd(&commandv1.Command{Body: &commandv1.Command_TaintNode{TaintNode: &commandv1.TaintNode{Id: node, Taints: []*commandv1.NodeTaint{x}}}})
	case 22:
		pool := rapid.SampledFrom([][]string{nil, nil, {"zone=x"}, {"zone=y"}}).Draw(r, "pool")
		if w.state.Info().Mode == fsm.ModeNormal {
			w.pool(fsm.DefaultNamespace, pool...)
		}
	case 18:
		set := func(c *commandv1.Cron) {
			c.Concurrency = rapid.SampledFrom([]string{fsm.ConcurrencyAllow, fsm.ConcurrencyForbid, fsm.ConcurrencyReplace}).Draw(r, "concurrency")
			c.KeepSucceeded, c.KeepFailed = rapid.Uint32Range(0, 2).Draw(r, "keep"), rapid.Uint32Range(0, 1).Draw(r, "keep failed")
			c.StartingDeadline = rapid.Int64Range(0, 2).Draw(r, "starting deadline") * 30 * second
			c.Schedule = rapid.SampledFrom([]string{"* * * * *", "*/2 * * * *"}).Draw(r, "schedule")
		}
		if w.state.Info().Mode == fsm.ModeNormal {
			w.apply(rapid.SampledFrom([]string{"c1", "c2"}).Draw(r, "cron"), cron(set))
		}
	case 19:
		var runs []string
		for _, id := range []string{"c1", "c2"} {
			w.state.Children(id, func(x *fsm.Workload) bool {
				if x.Node != "" && x.Acknowledged {
					runs = append(runs, x.ID)
				}
				return true
			})
		}
		if len(runs) > 0 {
			w.exits(rapid.SampledFrom(runs).Draw(r, "run"), rapid.Int32Range(0, 1).Draw(r, "code"))
		}
	case 20, 21:
		w.broken(node, rapid.SampledFrom([]string{"", "STORAGE_FULL"}).Draw(r, "breaks"))
	case 13:
		w.fails[load] = rapid.SampledFrom([]string{"", "RUNTIME_ERROR", "INVALID_IMAGE"}).Draw(r, "failure")
	case 14:
		mode := rapid.SampledFrom([]string{"normal", "normal", "degraded"}).Draw(r, "mode")
		cmd(&commandv1.Command{Body: &commandv1.Command_SetMode{SetMode: &commandv1.SetMode{Mode: mode}}})
	case 15:
		if x, ok := w.state.Workload(load); ok && x.Node != "" && x.Acknowledged {
			state := rapid.SampledFrom([]string{"Missing", "Stopped", "Failed", "Running"}).Draw(r, "state")
			if exit := rapid.IntRange(-1, 1).Draw(r, "exit code"); exit >= 0 && x.Demand.Job != nil {
				w.exits(load, int32(exit))
				return
			}
			cmd(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: []*commandv1.WorkloadReport{
				{Workload: load, Node: x.Node, State: state, Generation: fsm.GenerationPB(x.Generation), Code: "RUNTIME_ERROR"}}}}})
		}
	}
}

func sameStep(a, b Step) string {
	switch {
	case len(a.Commands) != len(b.Commands):
		return fmt.Sprintf("commands\n%v\n%v", a.Commands, b.Commands)
	case !reflect.DeepEqual(a.Orders, b.Orders):
		return fmt.Sprintf("orders\n%v\n%v", a.Orders, b.Orders)
	case a.WakeAt != b.WakeAt:
		return fmt.Sprintf("wake at %d, %d", a.WakeAt, b.WakeAt)
	case !reflect.DeepEqual(a.Why, b.Why):
		return fmt.Sprintf("why\n%v\n%v", a.Why, b.Why)
	}
	for i := range a.Commands {
		if a.Commands[i].String() != b.Commands[i].String() {
			return fmt.Sprintf("commands\n%v\n%v", a.Commands, b.Commands)
		}
	}
	return ""
}

// TestRandomWorlds disturbs a world and checks the promises of the package at every step. After the
// disturbances end, the planner must soon propose nothing more.
func TestRandomWorlds(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := newWorld(r)
		w.shift = 1
		if rapid.Bool().Draw(r, "bin pack") {
			w.tuning.Policy = BinPack
		}
		w.tuning.MaxCommands = rapid.SampledFrom([]int{1, 3, 4096}).Draw(r, "bound")
		for range rapid.IntRange(1, 60).Draw(r, "length") {
			for range rapid.IntRange(0, 2).Draw(r, "events") {
				disturb(r, w)
			}
			w.now += rapid.SampledFrom([]int64{0, millisecond, second, 20 * second}).Draw(r, "pause")
			plain := w.plain()
			cached := Next(World{State: w.state, Changes: w.changes, Live: w, Now: w.now, Epoch: fsm.Epoch{Incarnation: 1, Term: 1}, Tuning: w.tuning}, w.cache)
			w.changes = nil
			if diff := sameStep(plain, cached); diff != "" {
				r.Fatalf("a step with a cache must equal one without, but: %s", diff)
			}
			checkStep(r, w, cached)
			if rapid.IntRange(0, 5).Draw(r, "lost") == 0 {
				continue // the commands of this step are lost
			}
			for _, c := range cached.Commands {
				if res := w.try(c); res.Err() != nil || res.Skipped > 0 {
					r.Fatalf("the planner's command %v must be applied completely, but gave %+v", c, res)
				}
			}
			for _, o := range cached.Orders {
				w.sent[o] = true
			}
			if rapid.Bool().Draw(r, "answers") {
				w.answer()
			}
		}
		clear(w.fails)
		clear(w.ailing)
		w.do(&commandv1.Command{Body: &commandv1.Command_SetMode{SetMode: &commandv1.SetMode{Mode: "normal", Reason: "calm"}}})
		w.settle()
		w.now += 60 * second
		w.settle()
		w.state.Workloads("", func(x *fsm.Workload) bool {
			if x.WantsPlace() {
				if wrong := badReason(w, x); wrong != "" {
					r.Fatalf("unplaced workload %s must have a reason that agrees with the nodes, but %s; the reason is %+v", x.ID, wrong, x.Reason)
				}
			}
			return true
		})
		w.state.Workloads("", func(x *fsm.Workload) bool {
			if n, ok := w.state.Node(x.Node); ok && n.Up && x.FailsOnNode() && !roomIsPromised(w) {
				p := planning(w.state, w.tuning)
				p.Now = w.now
				if code, _, _ := p.mustLeave(x, n); code == "" && p.elsewhere(x, n).to >= 0 {
					r.Fatalf("workload %s stays on node %s, which cannot run it, although another node could take it", x.ID, x.Node)
				}
			}
			return true
		})
		if err := w.state.Check(); err != nil {
			r.Fatal(err)
		}
	})
}

// badReason describes what is wrong with the reason of an unplaced workload; "" if the reason is
// right. The reason must have one of three codes, and its message must agree with the present
// nodes.
func badReason(w *world, x *fsm.Workload) string {
	said, _, _ := strings.Cut(x.Reason.Message, "; it left node ")
	switch x.Reason.Code {
	case fsm.CodeAwaitStop:
		for _, id := range strings.Fields(said) {
			if _, left := w.state.Residual(id, x.ID); left {
				return ""
			}
		}
		return "it waits for a node that has no residual of it"
	case fsm.CodeAwaitFailover:
		id, ok := strings.CutPrefix(said[strings.LastIndex(said, ": ")+1:], " persysctl node fence ")
		if n, known := w.state.Node(id); !ok || !known || n.Up || n.Fenced {
			return "it waits for the fence of a node that is not lost"
		}
		if _, left := w.state.Residual(id, x.ID); !left {
			return "it waits for a node that has no residual of it"
		}
		return ""
	case fsm.CodeAwaitTurn:
		others := 0
		w.state.Group(x.Demand.Group, func(m *fsm.Workload) bool {
			if m.Node != "" {
				others++
			}
			return true
		})
		if x.Demand.Job == nil || others < int(x.Demand.Job.Parallelism) {
			return fmt.Sprintf("it waits for its turn, but %d members have a node", others)
		}
		return ""
	case fsm.CodeUnplaced:
	default:
		return "the reason code is none of the three"
	}
	said, room, waits := strings.Cut(said, "; waits for room on node ")
	if _, ok := w.state.Node(room); waits && !ok {
		return "it waits for room on a node that does not exist"
	}
	// The message in the record is older than reservations of room for x, so its counts may differ from
	// those of Explain. Besides, a step reserves room for workloads that wait to move, and Explain does not.
	e := Explain(w.state, x, w.tuning)
	now, _, _ := strings.Cut(e.Message, "; it left node ")
	now, _, _ = strings.Cut(now, "; waits for room on node ")
	now, _, _ = strings.Cut(now, "; takes the place of ")
	said, _, _ = strings.Cut(said, "; takes the place of ")
	if !waits && now != said && !roomIsKept(w, x) {
		return "Explain gives the reason " + e.Message
	}
	head, counts, ok := strings.Cut(said, " nodes fit: ")
	if w.state.NodeCount() == 0 {
		return ""
	}
	if !ok || head != fmt.Sprintf("0/%d", w.state.NodeCount()) {
		return "its message does not count the nodes"
	}
	sum := 0
	for _, part := range strings.Split(counts, ", ") {
		var n int
		if _, err := fmt.Sscanf(part, "%d ", &n); err == nil {
			sum += n
		}
	}
	if sum != w.state.NodeCount() {
		return fmt.Sprintf("the counts in its message add up to %d", sum)
	}
	return ""
}

// roomIsKept reports whether a workload other than x waits for room on a node. A step reserves that room before it
// evaluates x, and Explain does not, so the counts for x may differ.
func roomIsKept(w *world, x *fsm.Workload) (kept bool) {
	w.state.Workloads("", func(o *fsm.Workload) bool {
		kept = o.ID != x.ID && (strings.Contains(o.Reason.Message, "; waits for room on node ") || strings.Contains(o.Reason.Message, "; takes the place of "))
		return !kept
	})
	return kept
}

// roomIsPromised reports whether any workload waits for room on a node. A step of the planner may then reserve room for
// that workload.
func roomIsPromised(w *world) (promised bool) {
	w.state.Workloads("", func(o *fsm.Workload) bool {
		promised = o.WantsPlace() || o.Reason.Code == fsm.CodeCannotMove
		return !promised
	})
	return promised
}

// checkStep checks that a planning step breaks no rule of the planner.
func checkStep(r *rapid.T, w *world, s Step) {
	for _, c := range s.Commands {
		for _, a := range c.GetAssign().GetAssignments() {
			n, ok := w.state.Node(a.GetNode())
			if !ok || !n.Schedulable() || !w.heard[n.ID] {
				r.Fatalf("workload %s must not be placed on node %s, which takes no new workloads", a.GetWorkload(), a.GetNode())
			}
			x, _ := w.state.Workload(a.GetWorkload())
			w.state.ResidualsOf(x.ID, func(res *fsm.Residual) bool {
				o, _ := w.state.Node(res.Node)
				if res.Node != a.GetNode() && (o.Up || x.Demand.Exclusive) {
					r.Fatalf("workload %s must not be placed on node %s while node %s may still run it", x.ID, a.GetNode(), res.Node)
				}
				return true
			})
		}
		for _, e := range c.GetEvict().GetEvictions() {
			x, _ := w.state.Workload(e.GetWorkload())
			if limit := x.Demand.MoveLimit(); e.GetCode() == fsm.CodeFailedOnNode && len(x.LeftSince(w.now-limit.Interval)) >= int(limit.Attempts) {
				r.Fatalf("workload %s must not be moved more than %d times within %d s: %+v", x.ID, limit.Attempts, limit.Interval/second, x.FailedOn)
			}
			if n, _ := w.state.Node(x.Node); !n.Up && x.Demand.Exclusive && !n.Fenced {
				r.Fatalf("exclusive workload %s must not be evicted from node %s, which is down and not fenced", x.ID, n.ID)
			}
		}
	}
	for _, o := range s.Orders {
		if n, ok := w.state.Node(o.Node); !ok || !n.Up || !w.heard[o.Node] {
			r.Fatalf("the planner must give no order for node %s, which cannot be reached", o.Node)
		}
	}
}

// TestChoiceIgnoresTheOrderOfRegistration: the planner chooses the same node when the nodes have registered
// in another order.
func TestChoiceIgnoresTheOrderOfRegistration(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(r, "nodes")
		facts := make([]func(*commandv1.RegisterNode), n)
		for i := range facts {
			facts[i] = randomNode(r)
		}
		order := rapid.Permutation(indexes(n)).Draw(r, "order")
		a, b := newWorld(r), newWorld(r)
		for i := range n {
			a.node(fmt.Sprint("n", i), facts[i])
			b.node(fmt.Sprint("n", order[i]), facts[order[i]])
		}
		for i := range 20 {
			f := randomDemand(r)
			a.apply(fmt.Sprint("w", i), f)
			b.apply(fmt.Sprint("w", i), f)
		}
		a.settle()
		b.settle()
		for i := range 20 {
			id := fmt.Sprint("w", i)
			if x, y := a.get(id), b.get(id); x.Node != y.Node || x.Reason.Message != y.Reason.Message {
				r.Fatalf("the choice of a node must not depend on the order of registration: workload %s is on %q (%s), and with another order on %q (%s)", id, x.Node, x.Reason.Message, y.Node, y.Reason.Message)
			}
		}
	})
}

func indexes(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// TestIndexFindsTheSameNodeAsAScan: the sorted search finds the same node as a plain search over all nodes.
// There are enough nodes for the sorted search to be used.
func TestIndexFindsTheSameNodeAsAScan(t *testing.T) {
	for _, policy := range []Policy{Spread, BinPack} {
		t.Run(string(policy), func(t *testing.T) {
			tuning := Tuning{Policy: policy}
			nodes := NodesOf(bigWorld(t, 700).state, tuning)
			x := nodes.c.nodes
			for i := range 4000 {
				d := benchDemand(i)
				id := fmt.Sprint("w", i)
				got, e := Place(d, nodes.For(id))
				want, score := scan(nodes, id, &d)
				if got != want || got != "" && e.Score.Total != score {
					t.Fatalf("demand %d: the index finds %q (%+v), the scan %q (%d), want the same node", i, got, e.Score, want, score)
				}
				if got != "" {
					nodes.For(id).Take(d, got)
				} else if !strings.HasPrefix(e.Message, "0/700 nodes fit: ") {
					t.Fatalf("the explanation has message %q, want that none of 700 nodes fits", e.Message)
				}
			}
			_ = x
		})
	}
}

// scan finds the best node without an index: it scores every node that passes the filters.
func scan(n Candidates, id string, d *fsm.Demand) (NodeID, int64) {
	x := n.c.nodes
	q := n.c.prepare(n.view, n.For(id).who, d)
	defer n.c.release()
	for i := range x.recs {
		if s := int32(i); x.reject(d, s).filter == passes {
			q.offer(s, x.scoreOf(d, s).Total)
		}
	}
	if q.best < 0 {
		return "", 0
	}
	return x.recs[q.best].ID, q.score
}
