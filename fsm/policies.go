package fsm

import (
	"slices"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/policy"
)

// Policies define what workloads may ask for (package policy). A policy is bound to namespaces and to labels of
// nodes. A specification is checked against the policy of its namespace when it is stored, and against the policies
// of a node when the workload is assigned to it. If no policy is bound to the namespace, specifications of
// unprivileged callers are checked against policy.Baseline, and those of admins are not checked.

// MaxPolicies is the maximum number of policies, not counting the built-in ones.
const MaxPolicies = 100

// Policy is a policy with its bindings. A record in the state is never modified; a change stores a new record.
type Policy struct {
	policy.Policy
	Namespaces  []string // sorted; a namespace has at most one bound policy
	Nodes       []Label  // sorted; the policy applies on nodes that carry any of these labels
	CreatedAt   int64    // Unix nanoseconds, as is UpdatedAt
	UpdatedAt   int64
	UpdatedBy   string
	CreateIndex uint64
	ModifyIndex uint64 // log index of the last change; 0 = a built-in policy without bindings
}

// Builtin reports whether the policy is built in.
func (p *Policy) Builtin() bool { return builtin(p.Name) }

func builtin(name string) bool {
	_, ok := policy.Builtin(name)
	return ok
}

// Policy returns a policy. The built-in policies exist even without a record.
func (s State) Policy(name string) (*Policy, bool) {
	if p, ok := s.r.policies.Get(name); ok {
		return p, true
	}
	p, ok := policy.Builtin(name)
	if !ok {
		return nil, false
	}
	return &Policy{Policy: *p}, true
}

// Policies scans all policies: first the built-in policies, from the most permissive to the strictest, then the
// other policies by name.
func (s State) Policies(fn func(*Policy) bool) {
	for _, b := range policy.Builtins() {
		if p, _ := s.Policy(b.Name); !fn(p) {
			return
		}
	}
	s.r.policies.Scan(func(_ string, p *Policy) bool { return p.Builtin() || fn(p) })
}

// PolicyIn returns the policy that is bound to a namespace; nil if there is none.
func (s State) PolicyIn(namespace string) *Policy {
	name, ok := s.r.policyIn.Get(namespace)
	if !ok {
		return nil
	}
	p, _ := s.r.policies.Get(name)
	return p
}

// PolicyFor returns the policy against which a specification that a caller stores in a namespace is
// checked, and the name of this policy for the workload's record. Both are empty if nothing is checked.
// unprivileged is true for every caller who is not an admin (admins may act and bind policies in all
// namespaces). An admin's specification in a namespace without a policy, or under policy.Privileged (which
// allows everything), is not checked.
func PolicyFor(v PolicyView, namespace string, unprivileged bool) (p *policy.Policy, under string) {
	bound := v.PolicyIn(namespace)
	switch {
	case bound == nil && !unprivileged, bound != nil && bound.Name == policy.Privileged && !unprivileged:
		return nil, ""
	case bound == nil:
		p, _ = policy.Builtin(policy.Baseline)
		return p, p.Name
	}
	return &bound.Policy, bound.Name
}

// PolicyView is the part of a View that PolicyFor needs.
type PolicyView interface {
	PolicyIn(namespace string) *Policy
}

// Admitted returns the policy against which a workload was checked when it was stored, with the present rules of
// the policy; nil if it was checked against none. If that policy has been deleted, it returns policy.Baseline.
func (s State) Admitted(w *Workload) *policy.Policy {
	if w.Policy == "" {
		return nil
	}
	if p, ok := s.Policy(w.Policy); ok {
		return &p.Policy
	}
	p, _ := policy.Builtin(policy.Baseline)
	return p
}

// AdminsOnly reports whether only admins can have created or changed a workload: its namespace lists no users, no role
// is bound to that namespace, and the workload was admitted without a policy. For such a workload the ceiling of an
// agent does not apply (field admins_only in agent.proto).
func AdminsOnly(v interface {
	Namespace(name string) (*Namespace, bool)
	Bindings(fn func(*Binding) bool)
}, w *Workload) bool {
	n, ok := v.Namespace(w.In())
	if !ok || len(n.Users) > 0 || w.Policy != "" {
		return false
	}
	bound := false
	v.Bindings(func(b *Binding) bool {
		bound = slices.Contains(b.Namespaces, n.Name)
		return !bound
	})
	return !bound
}

// NodePolicies returns the policies that are bound to a label of n, by name.
func (s State) NodePolicies(n *Node) (out []*policy.Policy) {
	if s.r.policies.Len() == 0 {
		return nil
	}
	s.r.policies.Scan(func(_ string, p *Policy) bool {
		if slices.ContainsFunc(p.Nodes, func(l Label) bool { return slices.Contains(n.Labels(), l) }) {
			out = append(out, &p.Policy)
		}
		return true
	})
	return out
}

// Judged returns the part of a demand that policies restrict, as a policy.Workload.
func (d *Demand) Judged() policy.Workload {
	return policy.Workload{Kind: d.Type, CPU: d.CPU, Memory: d.Memory, Disk: d.Disk, Asks: d.Asks}
}

// Violations returns the rules of the policy of its namespace that the specification of one workload
// violates.
func Violations(v interface {
	namespaced
	PolicyView
}, p *commandv1.WorkloadPut, unprivileged bool) []policy.Violation {
	by, _ := PolicyFor(v, NamespaceOf(v, p), unprivileged)
	if by == nil {
		return nil
	}
	d := demandValue(p.GetDemand())
	return policy.Judge(by, d.Judged())
}

// judged checks the specifications in puts against the maximum priorities and the policies of their
// namespaces.
func (t *Tx) judged(puts []*commandv1.WorkloadPut, olds []*Workload) (Result, bool) {
	for i, p := range puts {
		if res, ok := t.judgedIn(namespaceOf(p, olds[i]), p); !ok {
			return res, false
		}
	}
	return Result{}, true
}

// judgedIn checks one specification against the maximum priority and the policy of the namespace in.
func (t *Tx) judgedIn(in string, p *commandv1.WorkloadPut) (Result, bool) {
	if why := priorityFault(t.state(), p, in, len(t.confined) > 0); why != "" {
		return refuse(NotAllowed, "workload %s: %s", p.GetId(), why), false
	}
	by, _ := PolicyFor(t.state(), in, t.unprivileged)
	return judgedBy(by, p, in)
}

// judgedAgain checks the stored specification of w against the present policy, because a person starts, restarts or
// runs w. It checks nothing if the namespace has no policy now and had none when the specification was stored: an
// admin stored it, and no policy has become stricter since. The priority is that of the record. Actions of the
// cluster itself, such as a move or a run of a cron, are not checked again.
func (t *Tx) judgedAgain(w *Workload) (Result, bool) {
	if w.Policy == "" && t.state().PolicyIn(w.In()) == nil {
		return Result{}, true
	}
	by, _ := PolicyFor(t.state(), w.In(), t.unprivileged)
	return judgedBy(by, w.AsPut(), w.In())
}

// judgedBy checks the specification p, of a workload in the namespace with the name in, against the
// policy by, which may be nil.
func judgedBy(by *policy.Policy, p *commandv1.WorkloadPut, in string) (Result, bool) {
	if by == nil {
		return Result{}, true
	}
	d := demandValue(p.GetDemand())
	if bad := policy.Judge(by, d.Judged()); len(bad) > 0 {
		return refuse(NotAllowed, "workload %s: %s; %s", p.GetId(), policy.Text(bad[:min(len(bad), 3)]), policy.Next(in)), false
	}
	return Result{}, true
}

// approval says how a specification was checked when it was stored; the record of the workload keeps it.
type approval struct {
	policy   string // name of the policy against which the specification was checked; "" = an admin stored it unchecked
	confined bool   // the rights of the caller were limited to namespaces
}

// approval returns the approval of the caller's specification p. Commands of former versions have no shares, and set
// confined in no record.
func (t *Tx) approval(p *commandv1.WorkloadPut, old *Workload) approval {
	_, name := PolicyFor(t.state(), namespaceOf(p, old), t.unprivileged)
	return approval{name, len(t.confined) > 0 && t.shares.Namespace > 0}
}

func (w *Workload) approval() approval { return approval{w.Policy, w.Confined} }

// approvalOf returns the approval in a put that the state machine has made or stored.
func approvalOf(p *commandv1.WorkloadPut) approval { return approval{p.GetPolicy(), p.GetConfined()} }

// sharesOf returns the shares of the present command for what the cluster itself creates from a specification. The
// share of the namespace applies only if a confined user stored the specification, as it applies only to the calls of
// confined users.
func (t *Tx) sharesOf(by approval) RoomShares {
	switch {
	case by.policy == "": // an admin stored it
		return RoomShares{}
	case !by.confined:
		return RoomShares{Reserve: t.shares.Reserve}
	}
	return t.shares
}

// barred returns an error text that names the policy of node n which forbids w, and why; "" if no
// policy forbids w.
func (t *Tx) barred(w *Workload, n *Node) string {
	for _, p := range t.state().NodePolicies(n) {
		if bad := policy.Judge(p, w.Demand.Judged()); len(bad) > 0 {
			return "node " + quoted(n.ID) + ": " + bad[0].String()
		}
	}
	return ""
}

// counts reports whether policy p limits the number of workloads in a namespace, or the bytes of
// their specifications. p may be nil.
func (p *Policy) counts() bool { return p != nil && (p.MaxWorkloads > 0 || p.MaxSpecBytes > 0) }

// excess refuses a change that takes a namespace above a limit of p, which may be nil. A change that lowers
// the use is allowed.
func (p *Policy) excess(use Use, s quotaSum) error {
	if !p.counts() {
		return nil
	}
	for _, l := range [...]struct {
		rule            string
		used, by, limit int64
	}{{"max_workloads", use.Workloads, s.by.Workloads, p.MaxWorkloads}, {"max_spec_bytes", use.Bytes, s.bytes, p.MaxSpecBytes}} {
		if l.limit > 0 && l.by > 0 && l.used+l.by > l.limit {
			return &Refusal{Kind: NotAllowed, Reason: "namespace " + quoted(s.of.Name) + ": policy " + quoted(p.Name) + " (rule " + l.rule + "): " +
				decimal(int(l.used)) + " used, " + decimal(int(l.by)) + " more asked for, limit " + decimal(int(l.limit)) + "; " + policy.Next(s.of.Name)}
		}
	}
	return nil
}

func (t *Tx) putPolicy(b *commandv1.PutPolicy) Result {
	p := &Policy{Policy: policyOf(b.GetPolicy()), CreatedAt: t.r.info.Clock, CreateIndex: t.meta.Index}
	old, known := t.r.policies.Get(p.Name)
	if fault := p.fault(); fault != "" {
		return refuse(Invalid, "%s", fault)
	}
	if b.IfVersion != nil {
		var have uint64
		if known {
			have = old.ModifyIndex
		}
		if want := b.GetIfVersion(); want != have {
			return refuse(StaleGeneration, "policy %q is at version %d, but the request is for version %d: persysctl policy show %s, then repeat the request", p.Name, have, want, p.Name)
		}
	}
	own := 0
	t.r.policies.Scan(func(_ string, p *Policy) bool {
		if !p.Builtin() {
			own++
		}
		return true
	})
	switch {
	case !known && own >= MaxPolicies:
		return refuse(Conflict, "there are %d policies, at most %d: delete some", own, MaxPolicies)
	case known && samePolicy(&old.Policy, &p.Policy):
		return Result{Kind: AlreadyDone}
	}
	kind := EventPolicyCreated
	if known {
		kind = EventPolicyChanged
		p.Namespaces, p.Nodes, p.CreatedAt, p.CreateIndex = old.Namespaces, old.Nodes, old.CreatedAt, old.CreateIndex
	}
	t.storePolicy(old, p)
	t.event(Event{Type: kind, Message: p.Name})
	return Result{}
}

// fault describes the first invalid field of a policy that is not built in; "" if every field is valid.
func (p *Policy) fault() string {
	switch {
	case !bounds.ValidID(p.Name):
		return "name: " + quoted(p.Name) + " does not match " + bounds.IDRule
	case p.Builtin():
		return "name: " + quoted(p.Name) + " is a built-in policy, which cannot be changed: take another name"
	}
	return p.Fault()
}

func (t *Tx) deletePolicy(b *commandv1.DeletePolicy) Result {
	p, ok := t.r.policies.Get(b.GetName())
	switch {
	case builtin(b.GetName()):
		return refuse(Conflict, "policy %q is built in and cannot be deleted", clip(b.GetName()))
	case !ok:
		return refuse(NotFound, "policy %q does not exist: persysctl policy list shows them", clip(b.GetName()))
	case len(p.Namespaces)+len(p.Nodes) > 0:
		return refuse(Conflict, "policy %q is bound to %s: persysctl policy bind --remove first", p.Name, p.boundTo())
	}
	t.dropPolicy(p)
	t.event(Event{Type: EventPolicyDeleted, Message: p.Name})
	return Result{}
}

// boundTo describes for users what a policy is bound to.
func (p *Policy) boundTo() string {
	var parts []string
	for _, n := range p.Namespaces {
		parts = append(parts, "namespace "+n)
	}
	for _, l := range p.Nodes {
		parts = append(parts, "nodes with "+l.Key+"="+l.Value)
	}
	return clipTo(strings.Join(parts, ", "), 256)
}

func (t *Tx) bindPolicy(b *commandv1.BindPolicy) Result {
	switch {
	case (b.GetNamespace() == "") == (b.GetNodeLabel() == nil):
		return refuse(Invalid, "one of namespace and node_label must be given")
	case b.GetNamespace() != "":
		return t.bindNamespace(b.GetPolicy(), b.GetNamespace())
	}
	return t.bindNodes(b.GetPolicy(), labelOf(b.GetNodeLabel()))
}

// target returns the policy with the name that a command wants to bind; nil if name is empty. It returns a refusal if
// there is no such policy.
func (t *Tx) target(name string) (*Policy, Result, bool) {
	if name == "" {
		return nil, Result{}, true
	}
	p, ok := t.state().Policy(name)
	if !ok {
		return nil, refuse(NotFound, "policy %q does not exist: persysctl policy list shows them", clip(name)), false
	}
	return p, Result{}, true
}

func (t *Tx) bindNamespace(name, namespace string) Result {
	to, res, ok := t.target(name)
	if !ok {
		return res
	}
	if !t.state().HasNamespace(namespace) {
		return refuse(NotFound, "namespace %q does not exist: persysctl namespace list shows them", clip(namespace))
	}
	had := t.state().PolicyIn(namespace)
	switch {
	case had == nil && to == nil, had != nil && to != nil && had.Name == to.Name:
		return Result{Kind: AlreadyDone}
	case had != nil:
		t.unbindNamespace(had, namespace)
	}
	if to != nil {
		next := *to
		next.Namespaces = slices.Sorted(slices.Values(append(slices.Clone(to.Namespaces), strings.Clone(namespace))))
		t.storePolicy(t.recordOf(to), &next)
	}
	t.boundEvent(name, Event{Namespace: stored(namespace), Details: []Label{{"namespace", namespace}}})
	return Result{}
}

func (t *Tx) unbindNamespace(p *Policy, namespace string) {
	next := *p
	next.Namespaces = slices.DeleteFunc(slices.Clone(p.Namespaces), func(n string) bool { return n == namespace })
	t.rebound(p, &next)
}

// rebound stores policy p in place of record old, after a binding to a namespace or a label was removed. For a
// built-in policy without bindings it removes the record.
func (t *Tx) rebound(old, p *Policy) {
	if len(p.Namespaces) == 0 {
		p.Namespaces = nil
	}
	if len(p.Nodes) == 0 {
		p.Nodes = nil
	}
	if p.Builtin() && len(p.Namespaces)+len(p.Nodes) == 0 {
		t.dropPolicy(old)
		return
	}
	t.storePolicy(old, p)
}

// maxPolicyNodes is the largest number of node labels to which one policy may be bound.
const maxPolicyNodes = 64

func (t *Tx) bindNodes(name string, label Label) Result {
	if label.Key == "" || len(label.Key) > 256 || len(label.Value) > 256 {
		return refuse(Invalid, "node_label: %q=%q must have a key, and at most 256 bytes each", clip(label.Key), clip(label.Value))
	}
	to, res, ok := t.target(name)
	if !ok {
		return res
	}
	var had *Policy
	t.r.policies.Scan(func(_ string, p *Policy) bool {
		if slices.Contains(p.Nodes, label) {
			had = p
		}
		return had == nil
	})
	switch {
	case had == nil && to == nil, had != nil && to != nil && had.Name == to.Name:
		return Result{Kind: AlreadyDone}
	case to != nil && len(to.Nodes) >= maxPolicyNodes:
		return refuse(Conflict, "policy %q is bound to %d labels, at most %d", to.Name, len(to.Nodes), maxPolicyNodes)
	case had != nil:
		next := *had
		next.Nodes = slices.DeleteFunc(slices.Clone(had.Nodes), func(l Label) bool { return l == label })
		t.rebound(had, &next)
	}
	if to != nil {
		next := *to
		next.Nodes = append(slices.Clone(to.Nodes), Label{strings.Clone(label.Key), strings.Clone(label.Value)})
		slices.SortFunc(next.Nodes, compareLabels)
		t.storePolicy(t.recordOf(to), &next)
	}
	t.boundEvent(name, Event{Details: []Label{{"node_label", label.Key + "=" + label.Value}}})
	return Result{}
}

func compareLabels(a, b Label) int {
	if c := strings.Compare(a.Key, b.Key); c != 0 {
		return c
	}
	return strings.Compare(a.Value, b.Value)
}

// recordOf returns the stored record of p; nil for a built-in policy without one.
func (t *Tx) recordOf(p *Policy) *Policy {
	old, _ := t.r.policies.Get(p.Name)
	return old
}

func (t *Tx) boundEvent(name string, e Event) {
	e.Type, e.Message = EventPolicyBound, name
	if name == "" {
		e.Type, e.Message = EventPolicyUnbound, e.Details[0].Value
	}
	t.event(e)
}

func (t *Tx) storePolicy(old, p *Policy) {
	if old == nil && p.CreateIndex == 0 { // a built-in policy gets a record with its first binding
		p.CreatedAt, p.CreateIndex = t.r.info.Clock, t.meta.Index
	}
	p.UpdatedAt, p.UpdatedBy, p.ModifyIndex = t.r.info.Clock, t.by, t.meta.Index
	own(t, &t.r.policies, ownPolicies).Set(p.Name, p)
	t.indexPolicy(old, p)
	t.changes = append(t.changes, Change{Table: TablePolicy, Key: p.Name, Old: old, New: p})
}

func (t *Tx) dropPolicy(p *Policy) {
	own(t, &t.r.policies, ownPolicies).Delete(p.Name)
	t.indexPolicy(p, nil)
	t.changes = append(t.changes, Change{Table: TablePolicy, Key: p.Name, Old: p})
}

// indexPolicy updates the indexes when record p of a policy replaces record old. Either may be nil.
func (t *Tx) indexPolicy(old, p *Policy) {
	var before, after []string
	if old != nil {
		before = old.Namespaces
	}
	if p != nil {
		after = p.Namespaces
	}
	if slices.Equal(before, after) {
		return
	}
	m := own(t, &t.r.policyIn, ownPolicyIn)
	for _, n := range before {
		m.Delete(n)
	}
	for _, n := range after {
		m.Set(n, p.Name)
	}
}

// policies merges the policies of the backup and of the present state in a restore. If both have a
// policy with the same name, the present one is kept. A namespace keeps its present policy.
func (t *Tx) policies(backup, present State) {
	t.r.policies = duplicate(present.r.policies)
	var taken []Label
	present.r.policies.Scan(func(_ string, p *Policy) bool {
		taken = append(taken, p.Nodes...)
		return true
	})
	backup.r.policies.Scan(func(name string, p *Policy) bool {
		if _, ok := t.r.policies.Get(name); ok {
			return true
		}
		next := *p
		next.Namespaces = slices.DeleteFunc(slices.Clone(p.Namespaces), func(n string) bool {
			return present.PolicyIn(n) != nil || !t.state().HasNamespace(n)
		})
		next.Nodes = slices.DeleteFunc(slices.Clone(p.Nodes), func(l Label) bool { return slices.Contains(taken, l) })
		if len(next.Namespaces) == 0 {
			next.Namespaces = nil
		}
		if len(next.Nodes) == 0 {
			next.Nodes = nil
		}
		if !next.Builtin() || len(next.Namespaces)+len(next.Nodes) > 0 {
			t.r.policies.Set(name, &next)
		}
		return true
	})
}

func (c *checker) policies() {
	c.s.r.policies.Scan(func(name string, p *Policy) bool {
		c.must(p.Name == name, "policy %q is stored under %q", clip(p.Name), clip(name))
		if p.Builtin() {
			c.must(len(p.Namespaces)+len(p.Nodes) > 0, "built-in policy %s has a record, but no bindings", name)
		} else {
			c.must(p.fault() == "", "policy %s: %s", clip(name), p.fault())
		}
		c.must(slices.IsSorted(p.Namespaces) && slices.IsSortedFunc(p.Nodes, compareLabels), "the bindings of policy %s are not sorted", clip(name))
		for _, n := range p.Namespaces {
			in := c.s.PolicyIn(n)
			c.must(in == p && c.s.HasNamespace(n), "policy %s is bound to namespace %q, which has another policy or does not exist", clip(name), clip(n))
		}
		return true
	})
}

// policyOf converts a policy message of the log.
func policyOf(m *commandv1.Policy) policy.Policy {
	text := func(list []string) []string { return convert(list, strings.Clone) }
	return policy.Policy{
		Name: strings.Clone(m.GetName()), Description: strings.Clone(m.GetDescription()), Kinds: text(m.GetKinds()),
		HostPaths: convert(m.GetHostPaths(), func(h *commandv1.PolicyHostPath) policy.HostPath {
			return policy.HostPath{Path: strings.Clone(h.GetPath()), ReadOnly: h.GetReadOnly()}
		}),
		EngineSocket: m.GetEngineSocket(), Privileged: m.GetPrivileged(), Capabilities: text(m.GetCapabilities()),
		Devices: text(m.GetDevices()), HostNamespaces: text(m.GetHostNamespaces()), SecurityOptions: text(m.GetSecurityOptions()),
		Users: text(m.GetUsers()), Ports: text(m.GetPorts()), Addresses: text(m.GetAddresses()),
		Images: text(m.GetImages()), ImageDigest: m.GetImageDigest(), Volumes: text(m.GetVolumes()), Networks: text(m.GetNetworks()),
		Disks: text(m.GetDisks()), Requires: text(m.GetRequires()),
		MaxCPU: m.GetMaxCpuMillicores(), MaxMemory: m.GetMaxMemoryMib(), MaxDisk: m.GetMaxDiskGb(), MaxPids: m.GetMaxPids(),
		DefaultCPU: m.GetDefaultCpuMillicores(), DefaultMemory: m.GetDefaultMemoryMib(),
		MaxWorkloads: m.GetMaxWorkloads(), MaxSpecBytes: m.GetMaxSpecBytes(), ImageKeys: text(m.GetImageKeys()),
	}
}

// PolicyPB converts a policy to its message for the log.
func PolicyPB(p *policy.Policy) *commandv1.Policy {
	return &commandv1.Policy{
		Name: p.Name, Description: p.Description, Kinds: p.Kinds,
		HostPaths: convert(p.HostPaths, func(h policy.HostPath) *commandv1.PolicyHostPath {
			return &commandv1.PolicyHostPath{Path: h.Path, ReadOnly: h.ReadOnly}
		}),
		EngineSocket: p.EngineSocket, Privileged: p.Privileged, Capabilities: p.Capabilities,
		Devices: p.Devices, HostNamespaces: p.HostNamespaces, SecurityOptions: p.SecurityOptions,
		Users: p.Users, Ports: p.Ports, Addresses: p.Addresses, Images: p.Images, ImageDigest: p.ImageDigest,
		Volumes: p.Volumes, Networks: p.Networks, Disks: p.Disks, Requires: p.Requires,
		MaxCpuMillicores: p.MaxCPU, MaxMemoryMib: p.MaxMemory, MaxDiskGb: p.MaxDisk, MaxPids: p.MaxPids,
		DefaultCpuMillicores: p.DefaultCPU, DefaultMemoryMib: p.DefaultMemory, MaxWorkloads: p.MaxWorkloads, MaxSpecBytes: p.MaxSpecBytes,
		ImageKeys: p.ImageKeys,
	}
}

func policyPB(p *Policy) *commandv1.PolicyRecord {
	m := &commandv1.PolicyRecord{
		Policy: PolicyPB(&p.Policy), Namespaces: p.Namespaces, NodeLabels: convert(p.Nodes, labelPB),
		CreatedAt: p.CreatedAt, UpdatedAt: p.UpdatedAt, UpdatedBy: p.UpdatedBy, CreateIndex: p.CreateIndex, ModifyIndex: p.ModifyIndex,
	}
	if p.Builtin() {
		m.Policy = &commandv1.Policy{Name: p.Name}
	}
	return m
}

func policyRecordOf(m *commandv1.PolicyRecord) *Policy {
	p := &Policy{
		Policy: policyOf(m.GetPolicy()), Namespaces: convert(m.GetNamespaces(), strings.Clone), Nodes: convert(m.GetNodeLabels(), labelOf),
		CreatedAt: m.GetCreatedAt(), UpdatedAt: m.GetUpdatedAt(), UpdatedBy: m.GetUpdatedBy(),
		CreateIndex: m.GetCreateIndex(), ModifyIndex: m.GetModifyIndex(),
	}
	if b, ok := policy.Builtin(p.Name); ok {
		p.Policy = *b
	}
	return p
}

func samePolicy(a, b *policy.Policy) bool {
	var x, y encoder
	x.policyFields(a)
	y.policyFields(b)
	return string(x) == string(y)
}

func (e *encoder) policyFields(p *policy.Policy) {
	e.str(p.Name)
	e.str(p.Description)
	for _, l := range p.Lists() {
		if l.Entries != &p.ImageKeys {
			e.strs(*l.Entries)
		}
	}
	e.u64(uint64(len(p.HostPaths)))
	for _, h := range p.HostPaths {
		e.str(h.Path)
		e.bool(h.ReadOnly)
	}
	e.bool(p.EngineSocket)
	e.bool(p.Privileged)
	e.bool(p.ImageDigest)
	for _, a := range p.Amounts() {
		e.i64(*a.Value)
	}
	if len(p.ImageKeys) > 0 { // a policy without image keys adds no bytes, so its digest is the same as in versions without this list
		e.str(policy.RuleSigned)
		e.strs(p.ImageKeys)
	}
}

// policy encodes a policy for the digest. Of a built-in policy it encodes the name but no rules, because a
// later version may change the rules.
func (e *encoder) policy(p *Policy) {
	e.str(p.Name)
	if !p.Builtin() {
		e.policyFields(&p.Policy)
	}
	e.strs(p.Namespaces)
	e.labels(p.Nodes)
	e.i64(p.CreatedAt)
	e.i64(p.UpdatedAt)
	e.str(p.UpdatedBy)
	e.u64(p.CreateIndex)
	e.u64(p.ModifyIndex)
}
