package fsm

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/quota"
	"github.com/persys/compute/policy"
)

// stream draws random commands. Most are valid in the present state, some are not. The sets of ids are small,
// so that commands often affect the same records.
type stream struct {
	rt   *rapid.T
	now  int64
	sent [][]byte // request ids of earlier commands
}

func (g *stream) pick(what string, from ...string) string {
	return rapid.SampledFrom(from).Draw(g.rt, what)
}

func (g *stream) n(what string, lo, hi int) int { return rapid.IntRange(lo, hi).Draw(g.rt, what) }
func (g *stream) bool(what string) bool         { return rapid.Bool().Draw(g.rt, what) }

// odd returns a random value of from, a list of valid values, and rarely the invalid value odd.
// what names the draw.
func (g *stream) odd(what, odd string, from ...string) string {
	if g.n(what+" odd", 0, 29) == 0 {
		return odd
	}
	return g.pick(what, from...)
}

func (g *stream) workload() string {
	return g.pick("workload", "w0", "w1", "w2", "w3", "g-0", "g-1", "w0-a")
}
func (g *stream) node() string { return g.pick("node", "a", "b", "c") }

// generation returns a generation for workload id: usually the present one, sometimes that of its tombstone,
// a random one, or none.
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
		p.Demand.HostPorts = append(p.Demand.HostPorts, &commandv1.Port{Port: uint32(g.n("port", 80, 81)), Protocol: [...]string{"tcp", "udp"}[i], Address: g.pick("address", "", "", "127.0.0.1", "10.0.0.1")})
	}
	if g.n("named", 0, 3) == 0 {
		p.Demand.PortNames = []*commandv1.PortName{{Name: g.odd("name", "Http", "http"), ContainerPort: uint32(g.n("named port", 1, 2)), Protocol: "tcp"}}
	}
	if g.n("guest", 0, 3) == 0 {
		p.Demand.MacAddresses = []string{g.odd("mac", "52:54:00:00:00:0A", macOf(1), macOf(2)), macOf(3 + g.n("second mac", 0, 1))}
	}
	if g.n("objects", 0, 3) == 0 {
		p.Objects = []*commandv1.ObjectUse{{Kind: KindSecret, Name: g.odd("used object", "none", "o1", "o2"), Keep: g.bool("keeps")}}
		if p.Objects[0].Keep {
			p.Objects[0].Signal = g.odd("signal", "hup", "", "SIGHUP")
		}
	}
	if g.n("data", 0, 3) == 0 {
		p.Demand.LocalData = []*commandv1.LocalData{{Name: g.pick("data name", "volume v1", "disk b"), Pool: g.pick("data pool", "", "fast")}}
		p.DiscardData = g.bool("discards")
	}
	p.Bundle = g.odd("bundle", "odd", "", "", "", strings.Repeat("a", 64), strings.Repeat("b", 64))
	if g.n("plain", 0, 3) == 0 {
		p.Demand = &commandv1.Demand{Type: "container", CpuMillicores: 700}
		p.Content, p.Desired = "c1:aaaaaaaaaaaaaaaaaaaa", "Running"
	}
	if g.n("job", 0, 3) == 0 && len(p.Demand.LocalData) == 0 {
		p.Demand.Job = &commandv1.Job{Parallelism: uint32(g.n("parallelism", 0, 2)), Deadline: int64(g.n("deadline", -1, 1)) * minute, Ttl: int64(g.n("ttl", 0, 1)) * minute}
	}
	if p.Demand.Job != nil && g.n("template", 0, 1) == 0 {
		p.Demand.Template = &commandv1.Template{Kind: g.odd("template kind", "other", TemplateCron, TemplateCron, TemplateDispatch)}
		if p.Demand.Template.Kind == TemplateCron {
			p.Demand.Template.Cron = &commandv1.Cron{Schedule: g.pick("schedule", "@daily", "@hourly"), TimeZone: "UTC", KeepSucceeded: uint32(g.n("keep", 0, 1)),
				Concurrency: g.odd("concurrency", "odd", ConcurrencyAllow, ConcurrencyForbid, ConcurrencyReplace)}
		}
	}
	if g.n("system", 0, 5) == 0 {
		p.Demand.Template = &commandv1.Template{Kind: TemplateSystem}
	}
	if g.n("asks", 0, 3) == 0 {
		p.Demand.Asks = []*commandv1.Ask{{Rule: g.odd("rule", "", "privileged", "users", "max_pids", "later"), Value: g.pick("ask", "1", "0"), Field: "f"}}
	}
	if g.n("placement", 0, 3) == 0 {
		p.Demand.Placement = &commandv1.Placement{
			Policy: g.odd("policy", "random", "", "binpack"),
			Spread: []*commandv1.Spread{{By: "zone", MaxSkew: uint32(g.n("skew", 0, 2)), Must: g.bool("must")}},
			Affinities: []*commandv1.Affinity{{Anti: g.bool("anti"), Group: "g", By: g.odd("by", "", "host"), Must: true},
				{Node: &commandv1.Constraint{Key: "zone", Op: "=", Values: []string{"x"}}, Weight: 10}},
		}
	}
	if g.n("reschedule", 0, 5) == 0 {
		p.Demand.Reschedule = &commandv1.Reschedule{Attempts: int32(g.n("moves", 0, 3)), Interval: int64(g.n("within", 1, 30)) * minute}
	}
	if g.n("joins", 0, 3) == 0 {
		p.Demand.Networks = [][]string{{"n1"}, {"n2", "n1"}, {"n1", "n1"}}[g.n("networks", 0, 2)]
		p.Demand.ServiceAddress = g.bool("service address")
		if g.bool("ingress") {
			p.Demand.Ingress = []*commandv1.IngressPort{{Port: uint32(g.n("ingress port", 79, 81)), Protocol: g.odd("ingress protocol", "sctp", "tcp", "udp"), Target: 80}}
		}
	}
	if g.n("volumes", 0, 2) == 0 {
		u := &commandv1.VolumeUse{Name: g.odd("volume", "-", "v1", "v2"), Driver: g.odd("volume driver", "tape", "local", "local", "nfs"), SizeGb: int64(g.n("volume size", 0, 2)), Retain: g.bool("retain")}
		p.Demand.Volumes = append(p.Demand.Volumes, u)
		if u.Name == "v1" && g.bool("two volumes") {
			p.Demand.Volumes = append(p.Demand.Volumes, &commandv1.VolumeUse{Name: "v2", Driver: DriverLocal})
		}
	}
	if g.n("tags", 0, 3) == 0 {
		p.Demand.Tags = []*commandv1.Label{{Key: "tier", Value: g.pick("tag", "a", "b")}}
	}
	if g.n("labels", 0, 3) == 0 {
		p.Demand.Labels = []*commandv1.Label{{Key: "z", Value: "1"}, {Key: "a", Value: g.pick("zone", "1", "2")}}
		p.Demand.Constraints = []*commandv1.Constraint{{Key: "zone", Op: g.odd("op", "~", "in", "exists"), Values: []string{"x"}}}
		p.Demand.Tolerations = []*commandv1.Taint{{Key: "k"}}
	}
	return p
}

// cronStep draws a command by which the leader starts a run of the cron workload id. Usually it
// names the next start time in the record.
func (g *stream) cronStep(s State, id string) Command {
	e := &commandv1.CronStep{Template: id, IfGeneration: g.generation(s, id)}
	if w, ok := s.Workload(id); ok && w.Template != nil && g.n("fits", 0, 4) > 0 {
		e.IfNext = w.Template.Next
	}
	e.Next = e.IfNext + int64(g.n("later", 0, 3))*minute
	if g.bool("fires") {
		e.Run = id + "-" + g.pick("run", "1", "2", "3")
	} else {
		e.Code, e.Message, e.Times = CodeCronMissed, "late", uint32(g.n("times", 1, 2))
	}
	return createRuns(e)
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
		Code: g.pick("code", "", "RUNTIME_ERROR", CodeWorking), Message: g.pick("message", "", "boom"), ObservedAt: g.now,
		Health: g.pick("health", "", Healthy, Unhealthy), TryElsewhere: g.n("try elsewhere", 0, 3) == 0,
	}
	if r.State == "Stopped" || r.State == "Failed" {
		r.Exit = &commandv1.Exit{Code: int32(g.n("exit", 0, 2)), EndedAt: g.now, Output: g.pick("output", "", "done")}
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

// brings adds bundles (files of Compose stacks) to a command: those to which its workloads refer,
// or random ones.
func (g *stream) brings(c Command) Command {
	for _, text := range []string{"a", "b"} {
		if g.n("brings", 0, 3) > 0 {
			with(c, text)
		}
	}
	return c
}

// surges gives the update of a group the order start-first, with up to two surge members (extra
// members that start before old ones stop).
func (g *stream) surges(b *commandv1.PutWorkloads) {
	b.Update.StartFirst = true
	for i := range g.n("surge members", 0, 2) {
		p := b.Workloads[0].CloneVT()
		p.Id, p.Demand.Surge, p.Desired = fmt.Sprintf("g-%d", 2+i), true, "Running"
		p.Demand.Exclusive, p.Demand.LocalData, p.Demand.MacAddresses, p.Demand.Job, p.Demand.Template = false, nil, nil, nil, nil
		b.Surge = append(b.Surge, p)
	}
}

// advance returns a random AdvanceRollout for a group: either a command that the leader would propose now or later, or
// a command with arbitrary content.
func (g *stream) advance(s State) Command {
	b := &commandv1.AdvanceRollout{Group: "g"}
	if r, ok := s.Rollout("g"); ok {
		d := r.Next(s.Seen, g.now+int64(g.n("later", 0, 20))*second)
		b.IfRollout, b.Settled, b.Take, b.Complete = GenerationPB(RolloutID(r)), d.Settled, d.Take, d.Complete
		b.Failure, b.Revert, b.AwaitPromotion = d.Failure, g.bool("revert"), d.Await
	}
	if g.n("other", 0, 3) == 0 {
		b.Take = []string{g.workload(), g.workload()}
		b.Failure = g.pick("failure", "", "boom")
		b.Complete, b.AwaitPromotion = g.bool("complete"), g.bool("await")
	}
	return &commandv1.Command{Body: &commandv1.Command_AdvanceRollout{AdvanceRollout: b}}
}

// command draws a command. Commands that place and move workloads are drawn more often.
func (g *stream) command(s State) Command {
	c := &commandv1.Command{}
	id := g.workload()
	switch g.n("command", 0, 94) {
	case 89, 90:
		c = moveVolume(g.pick("moved volume", "v1", "v2"), g.node(), g.node(), g.odd("end", "later", "", "", "", MoveCancel, MoveSettle))
	case 91, 92, 93, 94:
		s.Moves(func(m *Move) bool {
			id = m.Workload
			c = &commandv1.Command{Body: &commandv1.Command_AdvanceMoves{AdvanceMoves: &commandv1.AdvanceMoves{Steps: []*commandv1.MoveStep{{
				Workload: m.Workload, Move: GenerationPB(m.ID),
				Phase: g.pick("phase", "", string(MoveStopping), string(MoveFinal), string(MovePlaced), string(MoveKept), string(MoveDone), string(MoveUndone), string(MoveDropping)),
			}}}}}
			switch x, ok := s.Workload(id); {
			case ok && m.Phase == MoveStopping && g.bool("stops"):
				c = report(&commandv1.WorkloadReport{Workload: id, Node: m.From, Generation: GenerationPB(x.Generation), State: "Stopped", Acknowledged: true})
			}
			return g.bool("another move")
		})
		if c.Body == nil {
			c = moveVolume("v1", "a", "b", "")
		}
	case 77:
		c = putNetwork(g.odd("network", "-", "n1", "n2"), g.odd("subnet", "10.1.0.0/30", "", "10.50.0.0/26", "10.50.0.0/25"))
		c.GetPutNetwork().Namespace = g.pick("network in", "", "", "n1")
	case 78:
		c = deleteNetwork(g.pick("delete network", "n1", "n2"), g.pick("network in", "", "n1"))
	case 79:
		g.now += int64(g.n("idle", 0, 1)) * SliceIdle
		c = releaseSlices(&commandv1.IdleSlice{Network: uint32(g.n("idle network", 1, 3)), Node: g.node(), Give: g.bool("give")})
	case 80, 81:
		kind, name := g.pick("kind", KindSecret, KindConfig), g.odd("object", "o1", "o2")
		c = putObject(kind, name, g.pick("value", "a", "b", "c"), g.pick("object in", "", "n1", "none"))
		if o, ok := s.Object(DefaultNamespace, kind, name); ok && g.bool("rolls back") {
			c.GetPutObject().From = o.Versions[0].Number
		}
	case 82:
		c = deleteObject(g.pick("kind", KindSecret, KindConfig), g.pick("deleted object", "o1", "o2"), g.pick("object in", "", "n1"))
	case 83:
		c = putVolume(g.odd("made volume", "-", "v1", "v2"), g.pick("volume node", "", "a", "b"))
		c.GetPutVolume().Namespace, c.GetPutVolume().Driver = g.pick("volume in", "", "", "n1"), g.pick("driver", "", "nfs")
	case 84:
		c = deleteVolume(g.pick("deleted volume", "v1", "v2"), g.pick("volume node", "", "a", "b"))
		c.GetDeleteVolume().Namespace, c.GetDeleteVolume().Driver = g.pick("volume in", "", "n1"), g.pick("driver", DriverLocal, "nfs")
	case 85, 86, 87:
		c = reportVolumes(g.node(), g.bool("all volumes"))
		for _, name := range []string{"v1", "v2"} {
			if g.bool("holds") {
				c.GetReportVolumes().Volumes = append(c.GetReportVolumes().Volumes, &commandv1.HeldVolume{
					Name: name, Namespace: g.pick("volume in", "", "n1", "none"), Driver: g.odd("held driver", "tape", DriverLocal, "nfs"), SizeGb: int64(g.n("volume size", 0, 2)), Owner: g.workload(), Retain: g.bool("retain"),
				})
			}
		}
	case 88:
		id := g.pick("session", "s1", "s2")
		switch g.n("session change", 0, 3) {
		case 0:
			c = endConsole(id, "")
		case 1:
			c = endConsole("", "ada")
		case 2:
			c = openConsole(id, byte(g.n("code", 1, 2)))
		default:
			c = linkConsole(id, g.odd("user", "a b", "ada", adminName), g.now+int64(g.n("code life", 0, 2))*second, g.now+3600*second)
		}
	case 60:
		c = putRole(g.odd("role", "admin", "r1", "r2"), g.pick("role permission", "read", "trust", "deploy"))
	case 61:
		c = deleteRole(g.pick("delete role", "r1", "r2", "viewer"))
	case 62, 63:
		role, subject := g.pick("bind role", "r1", "r2", "viewer", "admin"), g.pick("subject", "user/ada", "group/g", "account/a1")
		b := roleBinding(role, subject, g.pick("bind in", "n1", "n2", "default", "*"))
		if r, ok := s.Role(role); ok {
			b.RoleVersion = r.ModifyIndex
		}
		b.Remove = g.n("unbind", 0, 3) == 0
		c = &commandv1.Command{Body: &commandv1.Command_BindRole{BindRole: b}}
	case 64:
		if c = deleteAccount("a1"); g.bool("put account") {
			c = putAccount("a1", g.now+3600*second, func(b *commandv1.PutAccount) {
				if b.Rotate = g.bool("rotate"); !b.Rotate && g.bool("with a role") {
					b.Binding = roleBinding("viewer", "account/a1", "n1")
				}
			})
		}
	case 54:
		c = putPolicy(g.odd("policy", "baseline", "p1", "p1", "p2"), func(m *commandv1.Policy) {
			m.Privileged, m.MaxPids, m.MaxWorkloads = g.bool("allows privileged"), int64(g.n("pids", -1, 2))*1000, int64(g.n("most workloads", 0, 2))
		})
	case 65, 66:
		c = finishJob(g.generation(s, id), id, g.bool("succeeds"))
	case 71, 72:
		m := g.put()
		m.Id, m.Demand.Group = g.pick("new member", "g-0", "g-1", "g-2"), "g"
		b := &commandv1.ScaleGroup{Group: "g", Count: uint32(g.n("count", 0, 3)), Members: []*commandv1.WorkloadPut{m}, Suggested: g.n("suggested", 0, 3) == 0}
		b.Autoscaled = g.n("autoscaled", 0, 3) == 0
		if have := Members(s, "g"); len(have) > 0 {
			b.Content = have[0].Content
		}
		c = &commandv1.Command{Body: &commandv1.Command_ScaleGroup{ScaleGroup: b}}
	case 67:
		c = expireJob(g.generation(s, id), id)
	case 68, 69:
		c = g.cronStep(s, id)
	case 73, 74:
		c = placeMembers(&commandv1.MemberChange{Template: id, IfGeneration: g.generation(s, id), Node: g.node(), Delete: g.bool("deletes a member")})
	case 70:
		c = startRun(id, g.odd("run", "other", id+"-k1", id+"-k2"), g.pick("key", "k1", "k2"))
		if g.bool("other generation") {
			c.GetStartRun().IfGeneration = g.generation(s, id)
		}
	case 58:
		c = labelNode(g.node(), g.odd("set label", "a b", "zone=1", "zone=2", "zone-", "disk-"))
	case 59:
		c = taintNode(g.node(), Taint{Key: g.pick("set taint", "k", "spot"), Value: g.pick("taint value", "", "v"),
			Effect: g.odd("effect", "Never", "", TaintNoSchedule, TaintNoExecute), Seconds: uint32(g.n("taint seconds", 0, 1)) * 30})
	case 55:
		c = dropPolicy(g.pick("drop policy", "p1", "p2", "restricted", "none"))
	case 56:
		c = bind(g.pick("bind", "", "p1", "p2", "baseline", "privileged", "none"), g.pick("bind to", "n1", "n2", "default", "none"))
	case 57:
		c = bindNodes(g.pick("bind", "", "p1", "restricted"), g.odd("label", "", "zone"), g.pick("label value", "1", "2"))
	case 49:
		c = &commandv1.Command{Body: &commandv1.Command_SetRollout{SetRollout: &commandv1.SetRollout{Group: "g", Action: g.odd("action", "stop", "pause", "resume", "promote", "abort", "undo")}}}
	case 50, 51, 52, 53:
		c = g.advance(s)
	case 45, 46, 47:
		c = putNamespace(g.odd("name", "-", "n1", "n1", "n2", "default"), func(b *commandv1.PutNamespace) {
			b.Quota = &commandv1.Quota{CpuMillicores: int64(g.n("quota cpu", 0, 4)) * 1000, MemoryMib: int64(g.n("quota memory", 0, 3)) * 700, Workloads: int64(g.n("quota workloads", -1, 3))}
			b.Users = [][]string{nil, {"ada"}, {"bob", "ada"}}[g.n("users", 0, 2)]
			b.MaxPriority = int32(g.n("max priority", -1, 2))
			b.AllowScaling = g.bool("allow scaling")
			b.NodeLabels = [][]*commandv1.Label{nil, {{Key: "zone", Value: "x"}}, {{Key: "zone"}, {Key: "disk", Value: "ssd"}}, {{Key: "-"}}}[g.n("node labels", 0, 3)]
			b.Release = [][]string{nil, {"ada"}, {"bob", "ada"}}[g.n("release", 0, 2)]
		})
	case 48:
		c = dropNamespace(g.pick("drop", "n1", "n2", "default", "none"))
	case 42:
		c = setDrifts([]*commandv1.Drift{drifted(g.node(), id, g.pick("kind", DriftOrphan, DriftOrphan, DriftState, DriftRevision, "odd"))},
			drifted(g.node(), g.workload(), DriftOrphan))
		c.GetSetDrifts().Repairs = []*commandv1.DriftRepair{{Workload: id, Node: g.node(), IfGeneration: g.generation(s, id)}}
		c.GetSetDrifts().Adoptions = []*commandv1.DriftAdoption{{Workload: id, Node: g.node(), IfGeneration: g.generation(s, id), Revision: "rev-7"}}
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
		c = g.brings(puts("", g.put()))
	case 6:
		list := []*commandv1.WorkloadPut{g.put(), g.put()}
		c = puts(g.pick("group_of", "", "g"), list...)
		c.GetPutWorkloads().Each = g.bool("each")
		if g.bool("rolling") {
			for i, p := range list {
				p.Id, p.Demand.Group = fmt.Sprintf("g-%d", i), "g"
				if g.bool("autoscales") {
					p.Demand.Autoscale = &commandv1.Autoscale{Min: uint32(g.n("autoscale min", 0, 1)), Max: uint32(g.n("autoscale max", 1, 3)), Cpu: 70}
				}
			}
			c = puts("g", list...)
			if g.n("conditional", 0, 3) == 0 {
				c.GetPutWorkloads().IfCount = new(uint32(g.n("if count", 0, 2)))
			}
			if g.n("with members", 0, 3) == 0 {
				c.GetPutWorkloads().IfMembers = new(uint32(g.n("if members", 0, 2)))
			}
			c.GetPutWorkloads().Update = updates(g.n("parallel", 0, 2), g.bool("reverts"))
			if c.GetPutWorkloads().Update.Canary = int32(g.n("canary", 0, 1)); g.bool("start first") {
				g.surges(c.GetPutWorkloads())
			}
		}
		g.brings(c)
	case 7, 8:
		c = setDesired(id, g.pick("to", "Running", "Stopped", "Deleted", "Odd"))
	case 9, 10:
		c = remove(id, g.n("force", 0, 3) == 0)
		c.GetDeleteWorkload().KeepVolumes = g.n("keep", 0, 1) == 0
	case 11:
		if c = userRetry(id); g.bool("if needed") {
			c = retryIfNeeded(id)
		}
	case 12, 13, 14:
		c = register(g.node(), func(n *commandv1.RegisterNode) {
			n.VolumeMoves = g.n("old agent", 0, 3) > 0
			n.InstanceId = g.pick("instance", "", "", "i1", "i2")
			n.EngineId = g.pick("engine", "", "e1", "e2")
			n.Types = [][]string{nil, {"Container", "docker-container"}, {"vm"}}[g.n("types", 0, 2)]
			n.SelfFencing, n.FenceBoundSeconds = g.bool("self fencing"), uint32(g.n("fence bound", 0, 20))
			n.CpuMillicores = int64(g.n("cores", 0, 8)) * 1000
			if g.bool("networks") {
				n.Networking = &commandv1.NodeNetworking{Address: g.odd("network address", "0.0.0.0", "10.0.0.1", "10.0.0.2"), Mtu: uint32(g.n("mtu", 1449, 1451)), Ingress: g.bool("answers"), HeldPorts: g.pick("held", "", "80/tcp"), ForbiddenPorts: g.pick("forbidden", "", "", "80/tcp")}
			}
			if g.bool("reports keys") {
				n.Labels = []*commandv1.Label{{Key: "zone", Value: g.pick("reported zone", "1", "3")}}
				n.Taints = []*commandv1.Taint{{Key: "spot", Effect: g.pick("reported effect", TaintNoExecute, TaintPreferNoSchedule)}}
			}
			if g.bool("swap pools") {
				n.Pools = []*commandv1.Pool{{Name: "fast", TotalGb: 40}, {Name: "main", TotalGb: 100}}
			}
		})
	case 15:
		c = cordon(g.node(), g.bool("on"))
	case 16:
		c = drain(g.node(), g.bool("on"))
		c.GetDrainNode().DiscardData = g.bool("discards")
		if g.bool("with deadline") {
			c.GetDrainNode().DeadlineSeconds = new(uint32(g.n("seconds", 0, 20)))
		}
	case 17:
		c = fence(g.node())
		c.GetFenceNode().DiscardData = g.bool("discards")
	case 18:
		c = removeNode(g.node(), g.bool("force"))
		c.GetRemoveNode().DiscardData = g.bool("discards")
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
		c = evict(&commandv1.Eviction{
			Workload: id, IfGeneration: g.generation(s, id), Code: g.pick("cause", "Draining", "Preempted", CodeFailedOnNode), Gone: g.n("gone", 0, 3) == 0,
			PreemptedBy: g.workload(), PreemptedAt: int64(g.n("preempted at", -1, 2)) * g.now,
		})
	case 75, 76:
		x, ok := s.Workload(id)
		if !ok {
			x = Bare(id)
		}
		to := g.node()
		a, b := s.Alloc(x.Node), s.Alloc(to)
		if g.n("stale", 0, 4) == 0 {
			b.CPU++
		}
		c = moves(&commandv1.WorkloadMove{
			Workload: id, IfGeneration: g.generation(s, id), From: g.odd("from", x.Node, "n9"), To: to, Gain: int64(g.n("gain", 0, 3)),
			FromReserved: a.Reserved().PB(), ToReserved: b.Reserved().PB(),
		})
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
		switch g.n("membership", 0, 8) {
		case 8:
			c = setBalance(uint32(g.n("per hour", 0, 2)), uint32(g.n("at once", 0, 2)), uint32(g.n("gain", 0, 10)))
		case 7:
			c = repaired(g.pick("replica", "r1", "r2"), g.pick("before", "r0", ""), g.bool("done"))
		case 6:
			c = attachMirror(uint64(g.n("etcd", 0, 2)), g.pick("endpoint", "e:1", "e:2", ""))
		case 5:
			c = detachMirror()
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
	c.Head.Unprivileged = g.n("unprivileged", 0, 9) == 0
	if armOf(c).planned() && g.n("epoch", 0, 19) > 0 {
		c.Head.Epoch = &commandv1.Epoch{Incarnation: info.Incarnation, Term: 1}
	}
	if !armOf(c).planned() && g.bool("request") {
		c.Head.Request = requestAt(g.now, uint32(g.n("request id", 0, 1<<20)))
		if len(g.sent) > 0 && g.n("repeat", 0, 4) == 0 {
			c.Head.Request = rapid.SampledFrom(g.sent).Draw(g.rt, "earlier")
		}
		g.sent = append(g.sent, c.Head.Request)
		c.Head.RequestHash = uint64(g.n("request hash", 0, 2))
	}
	if g.n("conditional", 0, 5) == 0 {
		ifRevision(g.odd("condition", "two", "", "0", "1", "2", "1-c1-bb-running"), c)
	}
	if b := c.GetPutWorkloads(); b != nil {
		b.ListDeleted = g.bool("list deleted")
	}
	return c
}

// start returns the state of a newly formed cluster with two nodes.
func start(t testing.TB) State { return formed(t, "a", "b").s }

// TestRandomStreams: after every random command all invariants of the state hold, and a refused
// command changes no records.
func TestRandomStreams(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := New()
		if rapid.Bool().Draw(rt, "formed") {
			s = start(t)
		}
		if rapid.IntRange(0, 3).Draw(rt, "with a move of volumes") == 0 {
			phase := rapid.SampledFrom([]MovePhase{MoveCopying, MoveStopping, MoveFinal, MovePlaced, MoveKept, MoveDone}).Draw(rt, "phase")
			s = moveOfIn(t, "w0", [2]string{"v1", "v2"}, phase).s
		}
		g := &stream{rt: rt, now: epoch0 + minute}
		for i := range rapid.IntRange(1, 60).Draw(rt, "steps") {
			c := g.command(s)
			was := snapshotBytes(t, s)
			next, res, changes := s.Apply(Meta{uint64(100 + i), 1}, c)
			if !bytes.Equal(was, snapshotBytes(t, s)) {
				rt.Fatalf("command %v must not change the published state that it was applied to, but did", c)
			}
			if err := next.Check(); err != nil {
				rt.Fatalf("after command %v\nwith result %+v\nthe invariants must hold, but Check returned %v", c, res, err)
			}
			if err := s.Check(); err != nil {
				rt.Fatalf("command %v broke the published state that it was applied to: %v", c, err)
			}
			if kept := slices.DeleteFunc(slices.Clone(changes), func(c Change) bool { return c.Table == TableEvent }); res.Err() != nil && len(kept) > 0 {
				rt.Fatalf("command %v was refused (%s), so it must change no record, but it made %d changes", c, res.Reason, len(changes))
			}
			if res.Err() != nil && res.Reason == "" {
				rt.Fatalf("command %v was refused as %s without a reason, want a text", c, res.Kind)
			}
			checkChanges(rt, s, next, changes)
			checkNamespaces(rt, s, next, c)
			checkPolicies(rt, s, next, c)
			s = next
		}
	})
}

// checkNamespaces checks that:
//   - the use of a namespace does not grow beyond its quota;
//   - no workload changes its namespace;
//   - a caller who may act only in certain namespaces changes no workload of another one.
func checkNamespaces(rt *rapid.T, before, after State, c Command) {
	after.Namespaces(func(n *Namespace) bool {
		was, now := before.UseOf(n.Name).Amounts, after.UseOf(n.Name).Amounts
		if grown := now.Minus(was); quota.Excess(was, grown, n.Quota) != "" {
			rt.Fatalf("command %v took namespace %s over its quota, which must be impossible: %s", c, n.Name, quota.Excess(was, grown, n.Quota))
		}
		return true
	})
	for _, pair := range [][2]State{{before, after}, {after, before}} {
		pair[0].Workloads("", func(w *Workload) bool {
			other, there := pair[1].Workload(w.ID)
			if there && other.In() != w.In() {
				rt.Fatalf("command %v must not change the namespace of workload %s, but changed it from %s to %s", c, w.ID, w.In(), other.In())
			}
			if in := c.GetHead().GetNamespaces(); len(in) > 0 && other != w && !slices.Contains(in, w.In()) {
				rt.Fatalf("command %v of a caller confined to namespaces %v must not change workload %s of namespace %s", c, in, w.ID, w.In())
			}
			return true
		})
	}
}

// checkPolicies checks two properties: if a caller is not an admin, or may act only in certain namespaces, every
// workload that the caller stored conforms to the policy of its namespace, and its record names the policy.
func checkPolicies(rt *rapid.T, before, after State, c Command) {
	if !c.GetHead().GetUnprivileged() && len(c.GetHead().GetNamespaces()) == 0 || c.GetPutWorkloads() == nil {
		return
	}
	after.Workloads("", func(w *Workload) bool {
		was, there := before.Workload(w.ID)
		if there && was.Demand == w.Demand && was.Content == w.Content || w.Desired == DesiredDeleted {
			return true
		}
		by, under := PolicyFor(before, w.In(), true)
		if bad := policy.Judge(by, w.Demand.Judged()); len(bad) > 0 || w.Policy != under {
			rt.Fatalf("command %v stored workload %s under policy %q, want %q, and no violation of it: %s", c, w.ID, w.Policy, under, policy.Text(bad))
		}
		return true
	})
}

// checkChanges checks that the list of changes is complete: if the changes are made in a copy of the state
// before, the result must equal the state after.
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
				rt.Fatalf("the Change of drift %s must have the former record as its old record", c.Key)
			}
			if drifts[c.Key] = c.NewDrift(); c.NewDrift() == nil {
				delete(drifts, c.Key)
			}
		case TableWorkload:
			if workloads[c.Key] != c.OldWorkload() {
				rt.Fatalf("the Change of workload %s must have the former record as its old record", c.Key)
			}
			if workloads[c.Key] = c.NewWorkload(); c.NewWorkload() == nil {
				delete(workloads, c.Key)
			}
		case TableNode:
			if nodes[c.Key] != c.OldNode() {
				rt.Fatalf("the Change of node %s must have the former record as its old record", c.Key)
			}
			if nodes[c.Key] = c.NewNode(); c.NewNode() == nil {
				delete(nodes, c.Key)
			}
		case TableResidual:
			if residuals[c.Key] != c.OldResidual() {
				rt.Fatalf("the Change of residual %s must have the former record as its old record", c.Key)
			}
			if residuals[c.Key] = c.NewResidual(); c.NewResidual() == nil {
				delete(residuals, c.Key)
			}
		}
	}
	if len(workloads) != after.WorkloadCount() || len(nodes) != after.NodeCount() || len(residuals) != after.ResidualCount() {
		rt.Fatalf("after the reported changes there are %d workloads, %d nodes and %d residuals, want %d, %d and %d as in the state",
			len(workloads), len(nodes), len(residuals), after.WorkloadCount(), after.NodeCount(), after.ResidualCount())
	}
	after.Drifts("", func(d *Drift) bool {
		if drifts[d.key()] != d {
			rt.Fatalf("drift %s changed, but no Change reports it", d.key())
		}
		return true
	})
	if len(drifts) != after.DriftCount() {
		rt.Fatalf("after the reported changes there are %d drifts, want %d as in the state", len(drifts), after.DriftCount())
	}
	after.Workloads("", func(w *Workload) bool {
		if workloads[w.ID] != w {
			rt.Fatalf("workload %s changed, but no Change reports it", w.ID)
		}
		return true
	})
	after.Nodes("", func(n *Node) bool {
		if nodes[n.ID] != n {
			rt.Fatalf("node %s changed, but no Change reports it", n.ID)
		}
		return true
	})
	after.Residuals("", func(r *Residual) bool {
		if residuals[pair(r.Node, r.Workload)] != r {
			rt.Fatalf("residual %s/%s changed, but no Change reports it", r.Node, r.Workload)
		}
		return true
	})
}

// TestReplayFromAnyPrefix: after any prefix of a log, a state that was read from a snapshot equals
// the written state, and the remaining log entries lead both to the same state, however many
// commands a decoded Batch has.
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
			rt.Fatalf("ReadSnapshot returned %v", err)
		}
		mustEqualStates(t, "restored", states[at], restored)

		for i := at; i < len(log); i++ {
			frame, err := AppendCommand(nil, log[i])
			if err != nil {
				rt.Fatalf("command %v must be encodable, got error %v", log[i], err)
			}
			decoded, err := DecodeBatch(frame)
			if err != nil || len(decoded) != 1 || !proto.Equal(decoded[0], log[i]) {
				rt.Fatalf("command %v was encoded and decoded as %v with error %v, want the same command", log[i], decoded, err)
			}
			restored, _, _ = restored.Apply(Meta{uint64(100 + i), 1}, decoded[0])
		}
		mustEqualStates(t, "replayed", s, restored)
	})
}

// TestOneTransactionEqualsMany: commands give the same results whether one transaction applies all of them or
// each has its own transaction.
func TestOneTransactionEqualsMany(t *testing.T) {
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
				rt.Fatalf("command %v returned %+v in a transaction with others, want %+v as in its own transaction", c, got, want)
			}
			many = next
		}
		mustEqualStates(t, "in one transaction", tx.Commit(), many)
	})
}
