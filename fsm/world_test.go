package fsm

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/receipts"
	"github.com/persys/compute/fsm/rollout"
)

// epoch0 is the start time of every test world.
var epoch0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).UnixNano()

const (
	second = int64(time.Second)
	minute = int64(time.Minute)
)

// world is a state under test. Its methods call State.Check after every command.
type world struct {
	t     testing.TB
	s     State
	index uint64
	term  uint64
	now   int64
	last  []Change
	log   []Command // all applied commands, for the golden corpus
}

func uninitialised(t testing.TB) *world {
	return &world{t: t, s: New(), term: 1, now: epoch0}
}

// formed returns a world with cluster c1 and the named nodes, each with 4 cores, 4 GiB and 100 GB.
func formed(t testing.TB, nodes ...string) *world {
	w := uninitialised(t)
	w.ok(initCluster("c1"))
	for _, id := range nodes {
		w.ok(register(id))
	}
	return w
}

func (w *world) do(c Command) Result {
	w.t.Helper()
	return w.as(nil, c)
}

// as applies command c as if a user had sent it through the API with a request id.
func (w *world) as(request []byte, c Command) Result {
	w.t.Helper()
	w.index++
	w.now += second
	info := w.s.Info()
	head := &commandv1.Head{Request: request, At: w.now, By: "tester"}
	if armOf(c).planned() {
		head.Epoch = &commandv1.Epoch{Incarnation: info.Incarnation, Term: w.term}
	}
	if c.Head == nil {
		c.Head = head
	}
	w.log = append(w.log, c)
	s, res, changes := w.s.Apply(Meta{w.index, w.term}, c)
	w.s, w.last = s, changes
	if err := s.Check(); err != nil {
		w.t.Fatalf("after command %s the invariants must hold, but Check returned: %v", c, err)
	}
	return res
}

func (w *world) ok(c Command) Result {
	w.t.Helper()
	res := w.do(c)
	if res.Kind != OK || res.Skipped > 0 {
		w.t.Fatalf("command %s must succeed, but returned %s, skipped %d items: %s", c, res.Kind, res.Skipped, res.Reason)
	}
	return res
}

func (w *world) workload(id string) *Workload {
	w.t.Helper()
	wl, ok := w.s.Workload(id)
	if !ok {
		w.t.Fatalf("the state must have workload %s, but does not", id)
	}
	return wl
}

func (w *world) node(id string) *Node {
	w.t.Helper()
	n, ok := w.s.Node(id)
	if !ok {
		w.t.Fatalf("the state must have node %s, but does not", id)
	}
	return n
}

func (w *world) generation(id string) *commandv1.Generation {
	w.t.Helper()
	return GenerationPB(w.workload(id).Generation)
}

// events returns the types of the events that the last command added.
func (w *world) events() (out []string) {
	for _, c := range w.last {
		if c.Table == TableEvent {
			out = append(out, c.NewEvent().Type)
		}
	}
	return out
}

func (w *world) eventOf(kind string) *Event {
	w.t.Helper()
	for _, c := range w.last {
		if c.Table == TableEvent && c.NewEvent().Type == kind {
			return c.NewEvent()
		}
	}
	w.t.Fatalf("the last command must add the event %s, but added only %v", kind, w.events())
	return nil
}

// place stores a workload and assigns it to a node.
func (w *world) place(id, node string, opts ...func(*commandv1.WorkloadPut)) {
	w.t.Helper()
	w.ok(put(id, opts...))
	w.bind(id, node)
}

func (w *world) bind(id, node string) {
	w.t.Helper()
	w.ok(w.assign(id, node))
}

// run applies a report that the workload runs at its present generation.
func (w *world) run(id string) {
	w.t.Helper()
	w.ok(w.says(id, "Running"))
}

func (w *world) assign(id, node string) Command {
	w.t.Helper()
	return assign(&commandv1.Assignment{Workload: id, Node: node, IfGeneration: w.generation(id)})
}

func (w *world) evict(id, code string, gone bool) Command {
	w.t.Helper()
	return evict(&commandv1.Eviction{Workload: id, IfGeneration: w.generation(id), Code: code, Gone: gone})
}

func (w *world) says(id, state string) Command {
	w.t.Helper()
	return report(&commandv1.WorkloadReport{
		Workload: id, Node: w.workload(id).Node, Generation: w.generation(id), State: state, ObservedAt: w.now,
	})
}

func (w *world) retry(id string, attempts int32, nextAt int64, terminal bool) Command {
	w.t.Helper()
	return &commandv1.Command{Body: &commandv1.Command_ScheduleRetries{ScheduleRetries: &commandv1.ScheduleRetries{
		Retries: []*commandv1.Retry{{Workload: id, IfGeneration: w.generation(id), Attempts: attempts, NextAt: nextAt, Terminal: terminal}},
	}}}
}

func initCluster(id string) Command {
	return &commandv1.Command{Body: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{ClusterId: id, Incarnation: 1000}}}
}

func put(id string, opts ...func(*commandv1.WorkloadPut)) Command {
	p := &commandv1.WorkloadPut{
		Id: id, Spec: []byte("spec of " + id), Content: "c1:0123456789abcdef0123", CallerRevision: "rev-1", Desired: "Running",
		Demand: &commandv1.Demand{Type: "container", CpuMillicores: 1000, MemoryMib: 512},
	}
	for _, o := range opts {
		o(p)
	}
	return puts("", p)
}

func puts(group string, list ...*commandv1.WorkloadPut) Command {
	return &commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: list, GroupOf: group}}}
}

// filed makes a workload refer to the bundle that bundleOf makes from a text.
func filed(text string) func(*commandv1.WorkloadPut) {
	return func(p *commandv1.WorkloadPut) { p.Bundle, p.Content = bundleOf(text).GetDigest(), "c1:"+text }
}

// bundleOf returns a bundle with the given text. Its digest consists of the first byte of the text.
func bundleOf(text string) *commandv1.Bundle {
	return &commandv1.Bundle{Digest: strings.Repeat(text[:1], 64), Data: []byte(text)}
}

// with adds bundles with the given texts to a PutWorkloads command.
func with(c Command, texts ...string) Command {
	for _, text := range texts {
		c.GetPutWorkloads().Bundles = append(c.GetPutWorkloads().Bundles, bundleOf(text))
	}
	return c
}

// each returns a PutWorkloads command with the field `each`: every workload is accepted or refused
// separately.
func each(list ...*commandv1.WorkloadPut) Command {
	c := puts("", list...)
	c.GetPutWorkloads().Each = true
	return c
}

func content(c string) func(*commandv1.WorkloadPut) {
	return func(p *commandv1.WorkloadPut) { p.Content = c }
}

func desired(d string) func(*commandv1.WorkloadPut) {
	return func(p *commandv1.WorkloadPut) { p.Desired = d }
}

func demand(fn func(*commandv1.Demand)) func(*commandv1.WorkloadPut) {
	return func(p *commandv1.WorkloadPut) { fn(p.Demand) }
}

func exclusive(p *commandv1.WorkloadPut) { p.Demand.Exclusive = true }

func stops(p *commandv1.WorkloadPut) {
	p.Demand.Exclusive, p.Demand.OnLostLease = true, OnLostLeaseStop
}

func hostPort(n uint32) func(*commandv1.WorkloadPut) {
	return func(p *commandv1.WorkloadPut) {
		p.Demand.HostPorts = append(p.Demand.HostPorts, &commandv1.Port{Port: n, Protocol: "tcp"})
	}
}

func portOf(n uint32, address string) func(*commandv1.WorkloadPut) {
	return func(p *commandv1.WorkloadPut) {
		p.Demand.HostPorts = append(p.Demand.HostPorts, &commandv1.Port{Port: n, Protocol: "tcp", Address: address})
	}
}

func register(id string, opts ...func(*commandv1.RegisterNode)) Command {
	n := &commandv1.RegisterNode{
		Id: id, Endpoint: id + ":50051", CpuMillicores: 4000, MemoryMib: 4096,
		Pools: []*commandv1.Pool{{Name: "main", Type: "local", TotalGb: 100}}, Types: []string{"container"},
		InstanceId: "instance-" + id, Protocol: 1, LeaseSeconds: 10,
	}
	for _, o := range opts {
		o(n)
	}
	return &commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: n}}
}

func engine(id string) func(*commandv1.RegisterNode) {
	return func(n *commandv1.RegisterNode) { n.EngineId = id }
}

func fencing(n *commandv1.RegisterNode) { n.SelfFencing, n.FenceBoundSeconds = true, 9 }

func setDesired(id, to string) Command {
	return &commandv1.Command{Body: &commandv1.Command_SetDesired{SetDesired: &commandv1.SetDesired{Id: id, Desired: to}}}
}

func remove(id string, force bool) Command {
	return &commandv1.Command{Body: &commandv1.Command_DeleteWorkload{DeleteWorkload: &commandv1.DeleteWorkload{Id: id, Force: force}}}
}

// retryIfNeeded returns a RetryWorkload command that changes nothing if the workload is healthy.
func retryIfNeeded(id string) Command {
	return &commandv1.Command{Body: &commandv1.Command_RetryWorkload{RetryWorkload: &commandv1.RetryWorkload{Id: id, IfNeeded: true}}}
}

func userRetry(id string) Command {
	return &commandv1.Command{Body: &commandv1.Command_RetryWorkload{RetryWorkload: &commandv1.RetryWorkload{Id: id}}}
}

func nodeState(id string, up bool) Command {
	return &commandv1.Command{Body: &commandv1.Command_SetNodeStates{SetNodeStates: &commandv1.SetNodeStates{
		Nodes: []*commandv1.NodeState{{Id: id, Up: up, Reason: "lease ended", UpdatedBy: "monitor", LastHeartbeat: epoch0}},
	}}}
}

func cordon(id string, on bool) Command {
	return &commandv1.Command{Body: &commandv1.Command_CordonNode{CordonNode: &commandv1.CordonNode{Id: id, On: on}}}
}

func drain(id string, on bool) Command {
	return &commandv1.Command{Body: &commandv1.Command_DrainNode{DrainNode: &commandv1.DrainNode{Id: id, On: on}}}
}

func fence(id string) Command {
	return &commandv1.Command{Body: &commandv1.Command_FenceNode{FenceNode: &commandv1.FenceNode{Id: id}}}
}

func removeNode(id string, force bool) Command {
	return &commandv1.Command{Body: &commandv1.Command_RemoveNode{RemoveNode: &commandv1.RemoveNode{Id: id, Force: force}}}
}

func assign(list ...*commandv1.Assignment) Command {
	return &commandv1.Command{Body: &commandv1.Command_Assign{Assign: &commandv1.Assign{Assignments: list}}}
}

func evict(list ...*commandv1.Eviction) Command {
	return &commandv1.Command{Body: &commandv1.Command_Evict{Evict: &commandv1.Evict{Evictions: list}}}
}

func explain(id, code, message string, g *commandv1.Generation) Command {
	return &commandv1.Command{Body: &commandv1.Command_ExplainUnplaced{ExplainUnplaced: &commandv1.ExplainUnplaced{
		Workloads: []*commandv1.Unplaced{{Workload: id, IfGeneration: g, Code: code, Message: message}},
	}}}
}

func report(list ...*commandv1.WorkloadReport) Command {
	return &commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: list}}}
}

func gone(id, node string, g *commandv1.Generation) Command {
	return report(&commandv1.WorkloadReport{Workload: id, Node: node, Generation: g, Gone: true})
}

func setMode(m, reason string) Command {
	return &commandv1.Command{Body: &commandv1.Command_SetMode{SetMode: &commandv1.SetMode{Mode: m, Reason: reason}}}
}

func putReplica(id string, level uint32) Command {
	return &commandv1.Command{Body: &commandv1.Command_PutReplica{PutReplica: &commandv1.PutReplica{Id: id, Name: "name-" + id, GrpcAddr: id + ":8085", FeatureLevel: level}}}
}

// repaired returns the announcement of a replica that replaced damaged data. of is the old Raft id of that
// replica.
func repaired(id, of string, done bool) Command {
	c := putReplica(id, 1)
	c.GetPutReplica().Repair = &commandv1.ReplicaRepair{Of: of, Damage: "entry 3 fails its checksum", Aside: "raft.damaged-x", At: minute, Done: done}
	return c
}

func removeReplica(id string) Command {
	return &commandv1.Command{Body: &commandv1.Command_RemoveReplica{RemoveReplica: &commandv1.RemoveReplica{Id: id}}}
}

func setLevel(n uint32) Command {
	return &commandv1.Command{Body: &commandv1.Command_SetFeatureLevel{SetFeatureLevel: &commandv1.SetFeatureLevel{Level: n}}}
}

func pinMode(m, reason string) Command {
	c := setMode(m, reason)
	c.GetSetMode().Pinned = true
	return c
}

func unpinMode(m, reason string) Command {
	c := setMode(m, reason)
	c.GetSetMode().Unpin = true
	return c
}

func attachMirror(etcd uint64, endpoints ...string) Command {
	return &commandv1.Command{Body: &commandv1.Command_AttachMirror{AttachMirror: &commandv1.AttachMirror{EtcdClusterId: etcd, Endpoints: endpoints}}}
}

func detachMirror() Command {
	return &commandv1.Command{Body: &commandv1.Command_DetachMirror{DetachMirror: &commandv1.DetachMirror{}}}
}

func attached(etcd uint64) Command {
	return &commandv1.Command{Body: &commandv1.Command_MirrorAttached{MirrorAttached: &commandv1.MirrorAttached{EtcdClusterId: etcd}}}
}

func barrier() Command {
	return &commandv1.Command{Body: &commandv1.Command_Barrier{Barrier: &commandv1.Barrier{}}}
}

// requestAt returns a request id, a UUIDv7, for a time in nanoseconds. n makes the id unique.
func requestAt(ns int64, n uint32) []byte {
	id := make([]byte, 16)
	binary.BigEndian.PutUint64(id, uint64(ns/1e6)<<16|0x7000)
	id[8] = 0x80
	binary.BigEndian.PutUint32(id[12:], n)
	return id
}

// snapshotBytes returns the snapshot of a state. Equal states have equal snapshots.
func snapshotBytes(t testing.TB, s State) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := s.WriteSnapshot(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// mustEqualStates fails the test if two states differ in a record of any table or index.
func mustEqualStates(t testing.TB, what string, a, b State) {
	t.Helper()
	root := reflect.TypeFor[root]()
	for i := range root.NumField() {
		name := root.Field(i).Name
		f, g := contents(a, name), contents(b, name)
		if !reflect.DeepEqual(f, g) {
			t.Fatalf("%s: %s differs:\n%+v\n%+v", what, name, f, g)
		}
	}
}

// contents returns the table or index with this field name in the state's root, in a form that can
// be compared with that of another state.
func contents(s State, name string) any {
	type pairOf struct{ k, v any }
	var out []pairOf
	r := s.r
	sets := map[string]*set{
		"byNode": r.byNode, "byGroup": r.byGroup, "byOwner": r.byOwner, "pending": r.pending, "unacked": r.unacked,
		"retryDue": r.retryDue, "byPreemption": r.byPreemption, "residualsOf": r.residualsOf, "tombstonesByAge": r.tombstonesByAge,
		"byUser": r.byUser, "byLabel": r.byLabel, "byMAC": r.byMAC, "byIngress": r.byIngress, "byVolume": r.byVolume, "byRule": r.byRule, "rolling": r.rolling,
	}
	if m, ok := sets[name]; ok {
		m.Scan(func(k string, _ struct{}) bool { out = append(out, pairOf{k, nil}); return true })
		return out
	}
	switch name {
	case "info":
		return r.info
	case "statuses":
		return r.statuses
	case "workloads":
		r.workloads.Scan(func(k string, v *Workload) bool { out = append(out, pairOf{k, *v}); return true })
	case "nodes":
		r.nodes.Scan(func(k string, v *Node) bool { out = append(out, pairOf{k, *v}); return true })
	case "residuals":
		r.residuals.Scan(func(k string, v *Residual) bool { out = append(out, pairOf{k, *v}); return true })
	case "replicas":
		r.replicas.Scan(func(k string, v *Replica) bool { out = append(out, pairOf{k, *v}); return true })
	case "events":
		s.Events(0, func(v *Event) bool { out = append(out, pairOf{v.Seq, *v}); return true })
	case "audit":
		for _, l := range AuditLogs() {
			a := r.audit.of(l)
			out = append(out, pairOf{l, [4]any{a.last, a.bytes, a.base, a.head}})
			s.Audit(l, 0, func(_ AuditHash, v *AuditRecord) bool { out = append(out, pairOf{v.Number, *v}); return true })
		}
	case "receipts":
		r.receipts.Scan(func(v receipts.Receipt) bool { out = append(out, pairOf{v, answerOf(v, 0)}); return true })
	case "authorities":
		r.authorities.Scan(func(k string, v *Authority) bool { out = append(out, pairOf{k, *v}); return true })
	case "tokens":
		r.tokens.Scan(func(k string, v *Token) bool { out = append(out, pairOf{k, *v}); return true })
	case "admissions":
		r.admissions.Scan(func(k string, v *Admission) bool { out = append(out, pairOf{k, *v}); return true })
	case "revocations":
		r.revocations.Scan(func(k string, v *Revocation) bool { out = append(out, pairOf{k, *v}); return true })
	case "tombstones":
		r.tombstones.Scan(func(k string, v *Tombstone) bool { out = append(out, pairOf{k, *v}); return true })
	case "revisions":
		r.workloads.Scan(func(k string, v *Workload) bool {
			if v.history != nil {
				out = append(out, pairOf{k, v.revisions()})
			}
			return true
		})
	case "rollouts":
		r.rollouts.Scan(func(k string, v *rollout.Rollout) bool {
			b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(v.PB())
			out = append(out, pairOf{k, string(b)})
			return true
		})
	case "audits":
		r.audits.Scan(func(k string, v *NodeAudit) bool { out = append(out, pairOf{k, *v}); return true })
	case "drifts":
		r.drifts.Scan(func(k string, v *Drift) bool { out = append(out, pairOf{k, *v}); return true })
	case "namespaces":
		r.namespaces.Scan(func(k string, v *Namespace) bool { out = append(out, pairOf{k, *v}); return true })
	case "policies":
		r.policies.Scan(func(k string, v *Policy) bool { out = append(out, pairOf{k, *v}); return true })
	case "bundles":
		r.bundles.Scan(func(k string, v *Bundle) bool { out = append(out, pairOf{k, *v}); return true })
	case "roles":
		r.roles.Scan(func(k string, v *Role) bool { out = append(out, pairOf{k, *v}); return true })
	case "bindings":
		r.bindings.Scan(func(k string, v *Binding) bool { out = append(out, pairOf{k, *v}); return true })
	case "accounts":
		r.accounts.Scan(func(k string, v *Account) bool { out = append(out, pairOf{k, *v}); return true })
	case "consoles":
		r.consoles.Scan(func(k string, v *Console) bool { out = append(out, pairOf{k, *v}); return true })
	case "networks":
		r.networks.Scan(func(k string, v *Network) bool { out = append(out, pairOf{k, *v}); return true })
	case "objects":
		r.objects.Scan(func(k string, v *Object) bool { out = append(out, pairOf{k, *v}); return true })
	case "volumes":
		r.volumes.Scan(func(k string, v *Volume) bool { out = append(out, pairOf{k, *v}); return true })
	case "moves":
		r.moves.Scan(func(k string, v *Move) bool { out = append(out, pairOf{k, *v}); return true })
	case "policyIn":
		r.policyIn.Scan(func(k string, v string) bool { out = append(out, pairOf{k, v}); return true })
	case "total":
		out = append(out, pairOf{"total", r.total})
	case "uses":
		r.uses.Scan(func(k string, v *Use) bool { out = append(out, pairOf{k, *v}); return true })
	case "ports":
		r.ports.Scan(func(k string, v portClaim) bool { out = append(out, pairOf{k, v}); return true })
	case "alloc":
		r.alloc.Scan(func(k string, v *Alloc) bool { out = append(out, pairOf{k, *v}); return true })
	default:
		panic("a field of root that no test looks at: " + name)
	}
	return out
}
