package fsm

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/quota"
)

// stream draws random commands. Most are valid in the present state, some are not. Names come
// from small sets so that commands affect the same records.
type stream struct {
	rt   *rapid.T
	now  int64
	sent [][]byte // request ids used before
}

func (g *stream) pick(what string, from ...string) string {
	return rapid.SampledFrom(from).Draw(g.rt, what)
}

func (g *stream) n(what string, lo, hi int) int { return rapid.IntRange(lo, hi).Draw(g.rt, what) }
func (g *stream) bool(what string) bool         { return rapid.Bool().Draw(g.rt, what) }

// odd returns the invalid value odd rarely, else one of the valid values.
func (g *stream) odd(what, odd string, from ...string) string {
	if g.n(what+" odd", 0, 29) == 0 {
		return odd
	}
	return g.pick(what, from...)
}

func (g *stream) workload() string { return g.pick("workload", "w0", "w1", "w2", "w3", "g-0", "g-1") }
func (g *stream) node() string     { return g.pick("node", "a", "b", "c") }

// generation returns the present generation of a workload, sometimes that of its tombstone, a random one
// or none.
func (g *stream) generation(s State, id string) *commandv1.Generation {
	w, ok := s.Workload(id)
	if tombstone, dead := s.Tombstone(id); dead && g.bool("of the dead") {
		return GenerationPB(tombstone.Generation)
	}
	switch k := g.n("generation", 0, 9); {
	case !ok || k == 0:
		return &commandv1.Generation{Incarnation: s.Info().Incarnation, Sequence: uint64(g.n("sequence", 0, 20))}
	case k == 1:
		return nil
	default:
		return GenerationPB(w.Generation)
	}
}

func (g *stream) put() *commandv1.WorkloadPut {
	id := g.workload()
	p := &commandv1.WorkloadPut{
		Id: id, Spec: []byte(g.pick("spec", "x", "y", "")), Content: g.odd("content", "", "c1:aaaaaaaaaaaaaaaaaaaa", "c1:bb"),
		CallerRevision: g.pick("revision", "r1", "r2"), Desired: g.odd("desired", "Paused", "Running", "Running", "Running", "Stopped"),
		MaxAttempts: int32(g.n("max", 0, 3)), Namespace: g.pick("namespace", "", "", "default", "n1", "n1", "n2"),
		Demand: &commandv1.Demand{
			Type: g.pick("type", "container", "container", "vm"), CpuMillicores: int64(g.n("cpu", 0, 3)) * 700,
			MemoryMib: int64(g.n("memory", 0, 3)) * 600, DiskGb: int64(g.n("disk", 0, 2)) * 30,
			StoragePool: g.pick("pool", "", "main", "fast"), Exclusive: g.bool("exclusive"),
			OnLostLease: g.pick("lost", "", "keep", "stop"), Priority: int32(g.n("priority", -2, 2)),
			Group: g.pick("group", "", "", "g"),
		},
	}
	for i := range g.n("ports", 0, 2) {
		p.Demand.HostPorts = append(p.Demand.HostPorts, &commandv1.Port{Port: uint32(g.n("port", 80, 81)), Protocol: [...]string{"tcp", "udp"}[i]})
	}
	if g.n("named", 0, 3) == 0 {
		p.Demand.PortNames = []*commandv1.PortName{{Name: g.odd("name", "Http", "http"), ContainerPort: uint32(g.n("named port", 1, 2)), Protocol: "tcp"}}
	}
	if g.n("plain", 0, 3) == 0 {
		p.Demand = &commandv1.Demand{Type: "container", CpuMillicores: 700}
		p.Content, p.Desired = "c1:aaaaaaaaaaaaaaaaaaaa", "Running"
	}
	if g.n("labels", 0, 3) == 0 {
		p.Demand.Labels = []*commandv1.Label{{Key: "z", Value: "1"}, {Key: "a", Value: g.pick("zone", "1", "2")}}
		p.Demand.Constraints = []*commandv1.Constraint{{Key: "zone", Op: g.odd("op", "~", "in", "exists"), Values: []string{"x"}}}
		p.Demand.Tolerations = []*commandv1.Taint{{Key: "k"}}
	}
	return p
}

func (g *stream) report(s State) *commandv1.WorkloadReport {
	id := g.workload()
	node := g.node()
	if w, ok := s.Workload(id); ok && w.Node != "" && g.n("elsewhere", 0, 4) > 0 {
		node = w.Node
	}
	r := &commandv1.WorkloadReport{
		Workload: id, Node: node, Generation: g.generation(s, id),
		State:        g.pick("state", "Running", "Running", "Stopped", "Failed", "Pending", "Unknown", "Missing", "", "Odd"),
		Gone:         g.n("gone", 0, 3) == 0,
		Acknowledged: g.bool("acknowledged"), Refused: g.n("refused", 0, 9) == 0,
		Code: g.pick("code", "", "RUNTIME_ERROR"), Message: g.pick("message", "", "boom"), ObservedAt: g.now,
		Health: g.pick("health", "", Healthy, Unhealthy),
	}
	if r.Gone {
		if res, ok := s.Residual(node, id); ok && g.bool("of the residual") {
			r.Generation = GenerationPB(res.Generation)
		}
	}
	if r.State == "Running" || r.State == "Failed" && g.bool("former instance runs") {
		r.Addresses = []string{"10.0.0.1"}
		r.Ports = []*commandv1.PortBinding{{HostPort: 80, ContainerPort: 8080, Protocol: "tcp"}}
	}
	return r
}

// advance draws the command that the leader would propose for the rollout of group g now or
// later, or an arbitrary one.
func (g *stream) advance(s State) Command {
	b := &commandv1.AdvanceRollout{Group: "g"}
	if r, ok := s.Rollout("g"); ok {
		d := r.Next(s.Seen, g.now+int64(g.n("later", 0, 20))*second)
		b.IfRollout, b.Settled, b.Take, b.Complete = GenerationPB(RolloutID(r)), d.Settled, d.Take, d.Complete
		b.Failure, b.Revert = d.Failure, g.bool("revert")
	}
	if g.n("other", 0, 3) == 0 {
		b.Take = []string{g.workload(), g.workload()}
		b.Failure = g.pick("failure", "", "boom")
		b.Complete = g.bool("complete")
	}
	return &commandv1.Command{Body: &commandv1.Command_AdvanceRollout{AdvanceRollout: b}}
}

// command draws a command. Types that place and move workloads are drawn more often.
func (g *stream) command(s State) Command {
	c := &commandv1.Command{}
	id := g.workload()
	switch g.n("command", 0, 53) {
	case 49:
		c = &commandv1.Command{Body: &commandv1.Command_SetRollout{SetRollout: &commandv1.SetRollout{Group: "g", Action: g.odd("action", "stop", "pause", "resume", "undo")}}}
	case 50, 51, 52, 53:
		c = g.advance(s)
	case 45, 46, 47:
		c = putNamespace(g.odd("name", "-", "n1", "n1", "n2", "default"), func(b *commandv1.PutNamespace) {
			b.Quota = &commandv1.Quota{CpuMillicores: int64(g.n("quota cpu", 0, 4)) * 1000, MemoryMib: int64(g.n("quota memory", 0, 3)) * 700, Workloads: int64(g.n("quota workloads", -1, 3))}
			b.Users = [][]string{nil, {"ada"}, {"bob", "ada"}}[g.n("users", 0, 2)]
			b.Release = [][]string{nil, {"ada"}, {"bob", "ada"}}[g.n("release", 0, 2)]
		})
	case 48:
		c = dropNamespace(g.pick("drop", "n1", "n2", "default", "none"))
	case 42:
		c = setDrifts([]*commandv1.Drift{drifted(g.node(), id, g.pick("kind", DriftOrphan, DriftOrphan, DriftState, DriftRevision, "odd"))},
			drifted(g.node(), g.workload(), DriftOrphan))
		c.GetSetDrifts().Repairs = []*commandv1.DriftRepair{{Workload: id, Node: g.node(), IfGeneration: g.generation(s, id)}}
	case 43:
		c = adopt(g.node(), id)
		if g.bool("with specification") {
			p := g.put()
			p.Id = g.odd("of another", p.Id, id)
			c.GetAdoptDrift().Put = p
		}
	case 44:
		c = dropOrphan(g.node(), id)
	case 39, 40:
		c = &commandv1.Command{Body: &commandv1.Command_ForgiveFailures{ForgiveFailures: &commandv1.ForgiveFailures{
			Workloads: []*commandv1.Forgiveness{{Workload: id, IfGeneration: g.generation(s, id)}},
		}}}
	case 41:
		c = actions(g.node(), g.pick("attached", "", id), &commandv1.AgentAction{
			TaskId: g.pick("task", "t1", "t2"), Workload: id, ActionType: "apply_workload", Status: g.pick("status", "completed", "failed"),
			EndedAt: int64(g.n("ended", 0, 3)),
		})
	case 34, 35, 36, 37, 38:
		c = g.trust()
	case 0:
		c = initCluster(g.pick("cluster", "c1", "c1", "c2"))
	case 1, 2, 3, 4, 5:
		c = puts("", g.put())
	case 6:
		list := []*commandv1.WorkloadPut{g.put(), g.put()}
		c = puts(g.pick("group_of", "", "g"), list...)
		c.GetPutWorkloads().Each = g.bool("each")
		if g.bool("rolling") {
			for i, p := range list {
				p.Id, p.Demand.Group = fmt.Sprintf("g-%d", i), "g"
			}
			c = puts("g", list...)
			c.GetPutWorkloads().Update = policy(g.n("parallel", 0, 2), g.bool("reverts"))
		}
	case 7, 8:
		c = setDesired(id, g.pick("to", "Running", "Stopped", "Deleted", "Odd"))
	case 9, 10:
		c = remove(id, g.n("force", 0, 3) == 0)
	case 11:
		c = userRetry(id)
	case 12, 13, 14:
		c = register(g.node(), func(n *commandv1.RegisterNode) {
			n.InstanceId = g.pick("instance", "", "", "i1", "i2")
			n.EngineId = g.pick("engine", "", "e1", "e2")
			n.Types = [][]string{nil, {"Container", "docker-container"}, {"vm"}}[g.n("types", 0, 2)]
			n.SelfFencing, n.FenceBoundSeconds = g.bool("self fencing"), uint32(g.n("fence bound", 0, 20))
			n.CpuMillicores = int64(g.n("cores", 0, 8)) * 1000
			if g.bool("swap pools") {
				n.Pools = []*commandv1.Pool{{Name: "fast", TotalGb: 40}, {Name: "main", TotalGb: 100}}
			}
		})
	case 15:
		c = cordon(g.node(), g.bool("on"))
	case 16:
		c = drain(g.node(), g.bool("on"))
	case 17:
		c = fence(g.node())
	case 18:
		c = removeNode(g.node(), g.bool("force"))
	case 19, 20:
		c = nodeState(g.node(), g.bool("up"))
	case 21, 22, 23, 24:
		var list []*commandv1.Assignment
		s.Pending(func(w *Workload) bool {
			list = append(list, &commandv1.Assignment{Workload: w.ID, Node: g.node(), IfGeneration: g.generation(s, w.ID)})
			return len(list) < 3
		})
		c = assign(list...)
	case 25, 26:
		c = evict(&commandv1.Eviction{Workload: id, IfGeneration: g.generation(s, id), Code: "Draining", Gone: g.n("gone", 0, 3) == 0})
	case 27:
		c = &commandv1.Command{Body: &commandv1.Command_ScheduleRetries{ScheduleRetries: &commandv1.ScheduleRetries{Retries: []*commandv1.Retry{{
			Workload: id, IfGeneration: g.generation(s, id), Attempts: int32(g.n("attempts", 0, 5)),
			NextAt: int64(g.n("next", 0, 2)) * g.now, Terminal: g.n("terminal", 0, 3) == 0,
		}}}}}
	case 28:
		c = explain(id, "Unplaced", g.pick("why", "no cpu", "no node"), g.generation(s, id))
	case 29, 30, 31:
		c = report(g.report(s), g.report(s))
	case 32:
		c = setMode(g.pick("mode", "normal", "normal", "degraded", "recovery", "odd"), "because")
		c.GetSetMode().Pinned, c.GetSetMode().Unpin = g.n("pinned", 0, 3) == 0, g.bool("unpin")
	case 33:
		switch g.n("membership", 0, 4) {
		case 4:
			c = attached(uint64(g.n("etcd", 0, 2)))
		case 0:
			c = putReplica(g.pick("replica", "r1", "r2"), uint32(g.n("knows", 1, FeatureLevel)))
		case 1:
			c = removeReplica(g.pick("replica", "r1", "r2"))
		case 2:
			c = setLevel(uint32(g.n("level", 0, FeatureLevel)))
		case 3:
			c = barrier()
		}
	}
	g.now += int64(g.n("ms", -100, 90_000)) * 1e6
	info := s.Info()
	c.Head = &commandv1.Head{At: g.now, By: "rapid", From: g.pick("from", "", "", "10.0.0.1:2")}
	c.Head.Via = g.pick("via", "", "", "gateway")
	if g.n("confined", 0, 9) == 0 {
		c.Head.Namespaces = [][]string{{"n1"}, {"default", "n2"}}[g.n("to", 0, 1)]
	}
	if armOf(c).planned() && g.n("epoch", 0, 19) > 0 {
		c.Head.Epoch = &commandv1.Epoch{Incarnation: info.Incarnation, Term: 1}
	}
	if !armOf(c).planned() && g.bool("request") {
		c.Head.Request = requestAt(g.now, uint32(g.n("request id", 0, 1<<20)))
		if len(g.sent) > 0 && g.n("repeat", 0, 4) == 0 {
			c.Head.Request = rapid.SampledFrom(g.sent).Draw(g.rt, "earlier")
		}
		g.sent = append(g.sent, c.Head.Request)
	}
	return c
}

// start returns the state of a formed cluster with two nodes.
func start(t testing.TB) State { return formed(t, "a", "b").s }

// TestRandomStreams: after every random command all invariants hold, and a refused command
// has changed no records.
func TestRandomStreams(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := New()
		if rapid.Bool().Draw(rt, "formed") {
			s = start(t)
		}
		g := &stream{rt: rt, now: epoch0 + minute}
		for i := range rapid.IntRange(1, 60).Draw(rt, "steps") {
			c := g.command(s)
			was := snapshotBytes(t, s)
			next, res, changes := s.Apply(Meta{uint64(100 + i), 1}, c)
			if !bytes.Equal(was, snapshotBytes(t, s)) {
				rt.Fatalf("%v changed a record of the state before it", c)
			}
			if err := next.Check(); err != nil {
				rt.Fatalf("after %v\n= %+v\n%v", c, res, err)
			}
			if err := s.Check(); err != nil {
				rt.Fatalf("%v broke the state before it: %v", c, err)
			}
			if kept := slices.DeleteFunc(slices.Clone(changes), func(c Change) bool { return c.Table == TableEvent }); res.Err() != nil && len(kept) > 0 {
				rt.Fatalf("%v was refused (%s) and changed %d records", c, res.Reason, len(changes))
			}
			if res.Err() != nil && res.Reason == "" {
				rt.Fatalf("%v was refused as %s without a reason", c, res.Kind)
			}
			checkChanges(rt, s, next, changes)
			checkNamespaces(rt, s, next, c)
			s = next
		}
	})
}

// checkNamespaces checks that:
//   - the use of a namespace does not grow beyond its quota;
//   - no workload changes its namespace;
//   - a confined caller changes no workload of another namespace.
func checkNamespaces(rt *rapid.T, before, after State, c Command) {
	after.Namespaces(func(n *Namespace) bool {
		was, now := before.UseOf(n.Name).Amounts, after.UseOf(n.Name).Amounts
		if grown := now.Minus(was); quota.Excess(was, grown, n.Quota) != "" {
			rt.Fatalf("%v led namespace %s over its quota: %s", c, n.Name, quota.Excess(was, grown, n.Quota))
		}
		return true
	})
	for _, pair := range [][2]State{{before, after}, {after, before}} {
		pair[0].Workloads("", func(w *Workload) bool {
			other, there := pair[1].Workload(w.ID)
			if there && other.In() != w.In() {
				rt.Fatalf("%v moved %s from %s to %s", c, w.ID, w.In(), other.In())
			}
			if in := c.GetHead().GetNamespaces(); len(in) > 0 && other != w && !slices.Contains(in, w.In()) {
				rt.Fatalf("%v, of somebody confined to %v, changed %s of %s", c, in, w.ID, w.In())
			}
			return true
		})
	}
}

// checkChanges checks that the changes are complete: applied to the state before, they give the
// state after.
func checkChanges(rt *rapid.T, before, after State, changes []Change) {
	workloads := map[string]*Workload{}
	before.Workloads("", func(w *Workload) bool { workloads[w.ID] = w; return true })
	nodes := map[string]*Node{}
	before.Nodes("", func(n *Node) bool { nodes[n.ID] = n; return true })
	residuals := map[string]*Residual{}
	before.Residuals("", func(r *Residual) bool { residuals[pair(r.Node, r.Workload)] = r; return true })
	drifts := map[string]*Drift{}
	before.Drifts("", func(d *Drift) bool { drifts[d.key()] = d; return true })
	for _, c := range changes {
		switch c.Table {
		case TableDrift:
			if drifts[c.Key] != c.OldDrift() {
				rt.Fatalf("change of drift %s does not start at the record that was there", c.Key)
			}
			if drifts[c.Key] = c.NewDrift(); c.NewDrift() == nil {
				delete(drifts, c.Key)
			}
		case TableWorkload:
			if workloads[c.Key] != c.OldWorkload() {
				rt.Fatalf("change of workload %s does not start at the record that was there", c.Key)
			}
			if workloads[c.Key] = c.NewWorkload(); c.NewWorkload() == nil {
				delete(workloads, c.Key)
			}
		case TableNode:
			if nodes[c.Key] != c.OldNode() {
				rt.Fatalf("change of node %s does not start at the record that was there", c.Key)
			}
			if nodes[c.Key] = c.NewNode(); c.NewNode() == nil {
				delete(nodes, c.Key)
			}
		case TableResidual:
			if residuals[c.Key] != c.OldResidual() {
				rt.Fatalf("change of residual %s does not start at the record that was there", c.Key)
			}
			if residuals[c.Key] = c.NewResidual(); c.NewResidual() == nil {
				delete(residuals, c.Key)
			}
		}
	}
	if len(workloads) != after.WorkloadCount() || len(nodes) != after.NodeCount() || len(residuals) != after.ResidualCount() {
		rt.Fatalf("the changes lead to %d workloads, %d nodes, %d residuals, there are %d, %d, %d",
			len(workloads), len(nodes), len(residuals), after.WorkloadCount(), after.NodeCount(), after.ResidualCount())
	}
	after.Drifts("", func(d *Drift) bool {
		if drifts[d.key()] != d {
			rt.Fatalf("drift %s changed without a Change", d.key())
		}
		return true
	})
	if len(drifts) != after.DriftCount() {
		rt.Fatalf("the changes lead to %d drifts, there are %d", len(drifts), after.DriftCount())
	}
	after.Workloads("", func(w *Workload) bool {
		if workloads[w.ID] != w {
			rt.Fatalf("workload %s changed without a Change", w.ID)
		}
		return true
	})
	after.Nodes("", func(n *Node) bool {
		if nodes[n.ID] != n {
			rt.Fatalf("node %s changed without a Change", n.ID)
		}
		return true
	})
	after.Residuals("", func(r *Residual) bool {
		if residuals[pair(r.Node, r.Workload)] != r {
			rt.Fatalf("residual %s/%s changed without a Change", r.Node, r.Workload)
		}
		return true
	})
}

// TestReplayFromAnyPrefix: a state that was read from a snapshot equals the written state, and
// the remaining log leads both to the same state. Batches of any size that are decoded from
// their bytes give the same state.
func TestReplayFromAnyPrefix(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := start(t)
		g := &stream{rt: rt, now: epoch0 + minute}
		states := []State{s}
		var log []Command
		for i := range rapid.IntRange(1, 40).Draw(rt, "steps") {
			c := g.command(s)
			s, _, _ = s.Apply(Meta{uint64(100 + i), 1}, c)
			log = append(log, c)
			states = append(states, s)
		}
		at := rapid.IntRange(0, len(log)).Draw(rt, "snapshot after")
		restored, err := ReadSnapshot(bytes.NewReader(snapshotBytes(t, states[at])))
		if err != nil {
			rt.Fatalf("restore: %v", err)
		}
		mustEqualStates(t, "restored", states[at], restored)

		for i := at; i < len(log); i++ {
			frame, err := AppendCommand(nil, log[i])
			if err != nil {
				rt.Fatalf("%v: %v", log[i], err)
			}
			decoded, err := DecodeBatch(frame)
			if err != nil || len(decoded) != 1 || !proto.Equal(decoded[0], log[i]) {
				rt.Fatalf("%v came back as %v, %v", log[i], decoded, err)
			}
			restored, _, _ = restored.Apply(Meta{uint64(100 + i), 1}, decoded[0])
		}
		mustEqualStates(t, "replayed", s, restored)
	})
}

// TestOneTxOrMany: commands give the same results in one transaction as in one transaction each.
func TestOneTxOrMany(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		one := start(t)
		tx := one.Begin()
		many := one
		g := &stream{rt: rt, now: epoch0 + minute}
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			c := g.command(many)
			next, want, _ := many.Apply(Meta{7, 1}, c)
			got, _ := tx.Apply(Meta{7, 1}, c)
			if fmt.Sprint(got) != fmt.Sprint(want) {
				rt.Fatalf("%v: %+v in a batch, %+v alone", c, got, want)
			}
			many = next
		}
		mustEqualStates(t, "in one transaction", tx.Commit(), many)
	})
}
