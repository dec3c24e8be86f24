package fsm

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/fsm/quota"
	"github.com/persys/compute/fsm/rollout"
)

// Namespaces divide the workloads of a cluster among teams. The record of a namespace holds a
// quota for its workloads and the users who act in it. Namespaces do not divide ids: an id stays
// unique in the whole cluster, as legacy v1 peers, etcd keys and DNS names require.

// DefaultNamespace holds every workload that names no namespace. It always exists. Like any other namespace
// it may have a record with a quota and users.
const DefaultNamespace = "default"

// Namespace is the record of one namespace. A record in the state is never modified; a change stores a new record.
type Namespace struct {
	Name        string
	Description string
	Quota       quota.Amounts
	// Users lists, sorted, the users who may act in this namespace. A user who is listed in any namespace
	// may act only in those namespaces. A user who is listed in none may act everywhere. Package rpc never
	// confines admins.
	Users []string
	// MaxPriority has two uses. Callers who may act only in certain namespaces cannot set a higher priority in this
	// namespace. And a workload of this namespace that has a higher priority preempts workloads of other namespaces
	// only as if its priority were MaxPriority (preempt.go).
	MaxPriority int32
	// AllowScaling lets the suggestions of an automation service (SubmitAutomationSuggestion) scale the groups
	// of this namespace.
	AllowScaling bool
	// NodeLabels are the labels, sorted by key, that a node must carry to run workloads of this namespace. Empty =
	// any node. See pools.go.
	NodeLabels  []Label
	CreatedAt   int64 // Unix nanoseconds, as is UpdatedAt
	UpdatedAt   int64
	UpdatedBy   string
	CreateIndex uint64
	ModifyIndex uint64
}

// Use is what the workloads of a namespace reserve together. It is compared with quotas and policies.
type Use struct {
	// Amounts is the sum of the resources that the workloads with the desired state Running or Stopped reserve. Stopped
	// workloads are included, because they may be started at any time; workloads that are being deleted are not.
	quota.Amounts
	Records int   // number of workload records, including workloads that are being deleted
	Bytes   int64 // what all records of the namespace take, in bytes (sizes.go)
}

// Limits of the fields of a namespace.
const (
	MaxNamespaces       = 1000
	MaxNamespaceUsers   = 1000
	maxNamespaceComment = 1024 // largest comment in bytes
)

// In returns the name of the workload's namespace.
func (w *Workload) In() string {
	if w.Namespace == "" {
		return DefaultNamespace
	}
	return w.Namespace
}

// In returns the namespace of the event, or "" for an event about the cluster or a node.
func (e *Event) In() string {
	if e.Namespace == "" && (e.Workload != "" || belongsToNamespace(e.Type)) {
		return DefaultNamespace
	}
	return e.Namespace
}

// stored returns the name of a namespace as records store it: "" for the default namespace.
func stored(name string) string {
	if name == DefaultNamespace {
		return ""
	}
	return name
}

// HasNamespace reports whether a namespace exists.
func (s State) HasNamespace(name string) bool {
	_, ok := s.r.namespaces.Get(name)
	return ok || name == DefaultNamespace
}

// Namespace returns a namespace. The default namespace exists even without a record.
func (s State) Namespace(name string) (*Namespace, bool) {
	n, ok := s.r.namespaces.Get(name)
	if !ok && name == DefaultNamespace {
		return unlimited, true
	}
	return n, ok
}

// unlimited is the record that is used for the default namespace if the state has none. It has no quota. It never
// changes.
var unlimited = &Namespace{Name: DefaultNamespace}

// Namespaces scans all namespaces by name, including the default namespace.
func (s State) Namespaces(fn func(*Namespace) bool) {
	if _, own := s.r.namespaces.Get(DefaultNamespace); own {
		s.r.namespaces.Scan(func(_ string, n *Namespace) bool { return fn(n) })
		return
	}
	passed, on := false, true
	s.r.namespaces.Scan(func(name string, n *Namespace) bool {
		if !passed && name > DefaultNamespace {
			passed = true
			if on = fn(unlimited); !on {
				return false
			}
		}
		on = fn(n)
		return on
	})
	if on && !passed {
		fn(unlimited)
	}
}

// UseOf returns the sum of the resources that the workloads of a namespace use.
func (s State) UseOf(namespace string) Use {
	if u, ok := s.r.uses.Get(namespace); ok {
		return *u
	}
	return Use{}
}

// NamespacesOf returns the namespaces that list a user, sorted. A user whom no namespace lists may
// act everywhere.
func (s State) NamespacesOf(user string) (out []string) {
	prefix := user + "/"
	eachUnder(s.r.byUser, prefix, func(k string, _ struct{}) bool {
		out = append(out, k[len(prefix):])
		return true
	})
	return out
}

// counted returns the resources of w that use up the quota of its namespace. A finished job or a
// template uses up one workload and nothing else, and a workload that is being deleted uses up
// nothing.
func (w *Workload) counted() quota.Amounts {
	if w.Desired == "" || w.Desired == DesiredDeleted {
		return quota.Amounts{}
	}
	if w.Finished() || w.IsTemplate() {
		return quota.Amounts{Workloads: 1}
	}
	return w.Demand.amounts()
}

func (d *Demand) amounts() quota.Amounts {
	a := quota.Amounts{CPU: d.CPU, Memory: d.Memory, Disk: d.Disk, Workloads: 1}
	for i := range d.Devices {
		a.Devices += d.Devices[i].Count
	}
	return a
}

// useOf updates the recorded quota use of the namespace when record w replaces record old. Either may be nil.
func (t *Tx) useOf(old, w *Workload) {
	if old != nil && w != nil && old.Namespace == w.Namespace && old.counted() == w.counted() &&
		len(old.Spec) == len(w.Spec) && old.Bundle == w.Bundle && old.Demand == w.Demand && old.history == w.history {
		return
	}
	m := own(t, &t.r.uses, ownUses)
	add := func(w *Workload, a quota.Amounts, records int) {
		var u Use
		if have, ok := m.Get(w.In()); ok {
			u = *have
		}
		spec, files := w.countedBytes(t.state())
		u.Amounts, u.Records, u.Bytes = u.Plus(a), u.Records+records, u.Bytes+int64(records)*(spec+files)
		t.r.total.Workloads, t.r.total.Bytes = t.r.total.Workloads+int64(records), t.r.total.Bytes+int64(records)*spec
		if u == (Use{}) {
			m.Delete(w.In())
			return
		}
		m.Set(w.In(), &u)
	}
	if old != nil {
		add(old, quota.Amounts{}.Minus(old.counted()), -1)
	}
	if w != nil {
		add(w, w.counted(), +1)
	}
}

// namespaceOf returns the namespace of the workload that p stores in place of record old: the
// namespace that p names, or else that of old. old may be nil.
func namespaceOf(p *commandv1.WorkloadPut, old *Workload) string {
	switch {
	case p.GetNamespace() != "":
		return p.GetNamespace()
	case old != nil:
		return old.In()
	}
	return DefaultNamespace
}

// NamespaceOf returns the namespace that a workload has after p has been applied: the namespace
// that p names, or else that of the present record.
func NamespaceOf(v namespaced, p *commandv1.WorkloadPut) string {
	old, _ := v.Workload(p.GetId())
	return namespaceOf(p, old)
}

type namespaced interface {
	Workload(id string) (*Workload, bool)
}

// NamespaceView is the part of a View that Fits needs.
type NamespaceView interface {
	namespaced
	Namespace(name string) (*Namespace, bool)
	UseOf(namespace string) Use
	Room() Room
	Total() Total
	PolicyView
	bundleView
	VolumeView
	Rollout(group string) (*rollout.Rollout, bool)
}

// Fits checks a PutWorkloads, together with the workloads that it deletes (leaving), against
// namespaces and quotas. The namespace of each workload must exist, and a workload cannot change
// its namespace. The quota must suffice at two times: now, while members still wait for their turn
// in a rolling update, and after all members have changed. The shares are those of the caller.
// The error is a *Refusal.
func Fits(v NamespaceView, b *commandv1.PutWorkloads, leaving []*Workload, shares RoomShares) error {
	olds := make([]*Workload, len(b.GetWorkloads()))
	for i, p := range b.GetWorkloads() {
		olds[i], _ = v.Workload(p.GetId())
	}
	return fitsNowAndLater(v, b, olds, leaving, shares)
}

// fitsNowAndLater is Fits for a caller that has looked up the present records. An element of olds
// is nil if its workload does not exist.
func fitsNowAndLater(v NamespaceView, b *commandv1.PutWorkloads, olds, leaving []*Workload, shares RoomShares) error {
	var replaced sizes // specifications that waited for their turn in an update which this command replaces
	if old, ok := v.Rollout(b.GetGroupOf()); ok && b.GetGroupOf() != "" {
		replaced = rolloutSizes(v, &rollout.Rollout{Members: old.Members}).times(-1)
	}
	err := fits(v, b.GetWorkloads(), olds, leaving, b.GetBundles(), replaced, shares)
	if err != nil || b.GetUpdate() == nil || b.GetGroupOf() == "" {
		return err
	}
	var now []*commandv1.WorkloadPut
	var before []*Workload
	var waiting sizes
	for i, p := range b.GetWorkloads() {
		if olds[i] == nil || !olds[i].TakesTurn(Intended(p)) {
			now, before = append(now, p), append(before, olds[i])
		} else {
			waiting = waiting.add(v, b.GetBundles(), namespaceOf(p, olds[i]), p)
		}
	}
	if err = fits(v, now, before, leaving, b.GetBundles(), append(waiting, replaced...), shares); err != nil {
		return &Refusal{Kind: OverQuota, Reason: err.Error() + "; members that wait for their turn in the update keep their present resources until then"}
	}
	return nil
}

// MembersWithin returns the number of members that a group of count members, of which w is one, can have within the
// quota of its namespace; limited is false if the quota limits none of the resources of w.
func MembersWithin(v View, w *Workload, count int) (n int, limited bool) {
	of, ok := v.Namespace(w.In())
	if !ok {
		return 0, false
	}
	more, limited := quota.Times(v.UseOf(of.Name).Amounts, w.Demand.amounts().Plus(w.Demand.ownVolumes()), of.Quota)
	return count + int(more), limited
}

// fits checks the stored workloads (puts) and the deleted ones (leaving) as if all changes happened
// at once. offered are the bundles that the command carries. kept are the sizes of the specifications that
// the command adds to rollout records. Every replica calls fits for every PutWorkloads, so to save time fits
// computes no sums for namespaces without a quota or share.
func fits(v NamespaceView, puts []*commandv1.WorkloadPut, olds, leaving []*Workload, offered []*commandv1.Bundle, kept sizes, shares RoomShares) error {
	var sums []quotaSum
	var shared []string // keys of volumes that several puts create together
	by := Total{Bytes: bytesOfNew(v, offered)}
	counts := func(n *Namespace) bool {
		return shares.Namespace > 0 || n.Quota != (quota.Amounts{}) || v.PolicyIn(n.Name).counts()
	}
	for i, p := range puts {
		old := olds[i]
		name := namespaceOf(p, old)
		n, ok := v.Namespace(name)
		if !ok {
			return &Refusal{Kind: NotFound, Reason: "workload " + p.GetId() + ": namespace " + quoted(name) +
				" does not exist: persysctl namespace list shows them"}
		}
		if old != nil && old.In() != name {
			return &Refusal{Kind: Conflict, Reason: "workload " + p.GetId() + " is in namespace " + quoted(old.In()) + " and cannot be moved to " +
				quoted(name) + ": ids are unique over the whole cluster, and a namespace is for good; delete it first, or take another id"}
		}
		specs, files := putBytes(v, offered, p)
		records := int64(0)
		if old == nil {
			records = 1
		} else {
			s, f := old.replacedBytes(v, p.GetContent())
			specs, files = specs-s, files-f
		}
		by.Bytes, by.Workloads = by.Bytes+specs, by.Workloads+records
		if !counts(n) {
			continue
		}
		d := p.GetDemand()
		by := (&Demand{CPU: d.GetCpuMillicores(), Memory: d.GetMemoryMib(), Disk: d.GetDiskGb(), Devices: devicesOf(d.GetDevices())}).amounts()
		if d.GetTemplate() != nil {
			by = quota.Amounts{Workloads: 1} // a template is not placed; its children count
		}
		if old != nil {
			by = by.Minus(old.counted())
			if keepsResult(p, old) {
				by = quota.Amounts{} // this job stays finished, so it reserves nothing
			}
		}
		by = by.Plus(volumesBy(v, name, p, old, &shared))
		sums = addTo(sums, n, by, specs+files, records)
	}
	for _, w := range leaving { // their bytes stay until their nodes have removed them
		if n, ok := v.Namespace(w.In()); ok && counts(n) {
			sums = addTo(sums, n, quota.Amounts{}.Minus(w.counted()), 0, 0)
		}
	}
	for _, k := range kept {
		by.Bytes += k.specs
		if n, ok := v.Namespace(k.namespace); ok && counts(n) {
			sums = addTo(sums, n, quota.Amounts{}, k.specs+k.files, 0)
		}
	}
	room := v.Room()
	if err := room.over(v.Total(), by, shares.Reserve); err != nil {
		return err
	}
	for _, s := range sums {
		use := v.UseOf(s.of.Name)
		if over := quota.Excess(use.Amounts, s.by, s.of.Quota); over != "" {
			return &Refusal{Kind: OverQuota, Reason: "over the quota of namespace " + quoted(s.of.Name) + ": " + over}
		}
		p := v.PolicyIn(s.of.Name)
		if err := p.excess(use, s); err != nil {
			return err
		}
		if err := room.overShare(shares.Namespace, use, s, p); err != nil {
			return err
		}
	}
	return nil
}

// quotaSum is the change that a command makes to the use of one namespace.
type quotaSum struct {
	of      *Namespace
	by      quota.Amounts
	bytes   int64 // bytes of specifications and files
	records int64 // workloads that do not exist yet
}

func addTo(sums []quotaSum, n *Namespace, by quota.Amounts, bytes, records int64) []quotaSum {
	i := slices.IndexFunc(sums, func(s quotaSum) bool { return s.of == n })
	if i < 0 {
		return append(sums, quotaSum{n, by, bytes, records})
	}
	sums[i].by, sums[i].bytes, sums[i].records = sums[i].by.Plus(by), sums[i].bytes+bytes, sums[i].records+records
	return sums
}

func quoted(s string) string { return `"` + clipTo(s, clipped) + `"` }

// admits checks a PutWorkloads, with the workloads that it deletes, against the namespaces: the caller must
// be allowed to act in each namespace, and Fits must accept the command.
func (t *Tx) admits(b *commandv1.PutWorkloads, olds, leaving []*Workload) (Result, bool) {
	puts := b.GetWorkloads()
	for i, p := range puts {
		old := olds[i]
		if res, ok := t.may(p.GetId(), namespaceOf(p, old)); !ok {
			return res, false
		}
		if old != nil {
			if res, ok := t.may(old.ID, old.In()); !ok {
				return res, false
			}
		}
		if why := ConditionFault(p.GetIfRevision(), p.GetId(), old); why != "" {
			return refuse(OtherRevision, "%s", why), false
		}
	}
	if len(t.confined) > 0 { // the namespace of an orphan is unknown, so the caller must not take it over
		if d := t.orphanAmong(puts, olds); d != nil {
			return refuse(Denied, "an instance %q that the cluster does not know is on node %q, and %s acts only in %s: use another id, or ask an admin (persysctl drift)",
				clip(d.Workload), d.Node, t.by, strings.Join(t.confined, ", ")), false
		}
	}
	for _, w := range leaving {
		if res, ok := t.may(w.ID, w.In()); !ok {
			return res, false
		}
	}
	if why := t.state().identityFault(puts, olds, leaving, t.sees); why != "" {
		return refuse(Conflict, "%s", why), false
	}
	if res, ok := t.networksMissing(puts, olds); !ok {
		return res, false
	}
	if err := fitsNowAndLater(t.state(), b, olds, leaving, t.shares); err != nil {
		var r *Refusal
		errors.As(err, &r)
		return Result{Kind: r.Kind, Reason: r.Reason}, false
	}
	return Result{}, true
}

// orphanAmong returns an orphan (an instance without a record) whose id is that of a workload which
// the command would create; nil if there is none.
func (t *Tx) orphanAmong(puts []*commandv1.WorkloadPut, olds []*Workload) (found *Drift) {
	if t.r.drifts.Len() == 0 {
		return nil
	}
	var made []string
	for i, p := range puts {
		if olds[i] == nil {
			made = append(made, p.GetId())
		}
	}
	slices.Sort(made)
	t.r.drifts.Scan(func(_ string, d *Drift) bool {
		if d.Type == DriftOrphan {
			if _, ok := slices.BinarySearch(made, d.Workload); ok {
				found = d
			}
		}
		return found == nil
	})
	return found
}

// sees reports whether the caller of the command may act in a namespace.
func (t *Tx) sees(namespace string) bool {
	return len(t.confined) == 0 || slices.Contains(t.confined, namespace)
}

// may reports whether the caller may act on a workload of a namespace. If the caller may not, the
// Result is the refusal.
func (t *Tx) may(id, namespace string) (Result, bool) {
	return t.mayUse("workload", id, namespace)
}

// mayUse reports whether the caller may act on the records of a namespace. If not, the Result is the refusal, which
// names the record that the command is about.
func (t *Tx) mayUse(kind, name, namespace string) (Result, bool) {
	if t.sees(namespace) {
		return Result{}, true
	}
	return refuse(Denied, "%s %q is in namespace %q, and %s acts only in %s", kind, clip(name), clip(namespace), t.by, strings.Join(t.confined, ", ")), false
}

// within lists the commands that a caller may use who may act only in certain namespaces. Commands about workloads
// are also checked against the namespace of the workload. The remaining commands (barrier, audit, admit) change no
// records of other callers.
var within = [...]arm{
	"put_workloads", "set_desired", "delete_workload", "retry_workload", "adopt_drift", "drop_orphan",
	"set_rollout", "start_run", "scale_group", "barrier", "audit", "admit", "put_network", "delete_network", "put_object", "delete_object",
	"put_volume", "delete_volume", "move_volume",
}

func (t *Tx) putNamespace(b *commandv1.PutNamespace) Result {
	n := &Namespace{
		Name: strings.Clone(b.GetName()), Description: strings.Clone(b.GetDescription()), Quota: amountsOf(b.GetQuota()),
		Users: convert(b.GetUsers(), strings.Clone), MaxPriority: b.GetMaxPriority(), AllowScaling: b.GetAllowScaling(), NodeLabels: sortedLabels(b.GetNodeLabels()), CreatedAt: t.r.info.Clock, CreateIndex: t.meta.Index,
	}
	slices.Sort(n.Users)
	n.Users = slices.Compact(n.Users)
	old, known := t.r.namespaces.Get(n.Name)
	if fault := n.fault(); fault != "" {
		return refuse(Invalid, "%s", fault)
	}
	if res := unmoved(b, old); res.Kind != OK {
		return res
	}
	switch {
	case !known && t.r.namespaces.Len() >= MaxNamespaces:
		return refuse(Conflict, "there are %d namespaces, at most %d: delete some", t.r.namespaces.Len(), MaxNamespaces)
	case known && old.Description == n.Description && old.Quota == n.Quota && old.MaxPriority == n.MaxPriority && old.AllowScaling == n.AllowScaling && slices.Equal(old.NodeLabels, n.NodeLabels) && slices.Equal(old.Users, n.Users):
		return Result{Kind: AlreadyDone}
	}
	if known {
		n.CreatedAt, n.CreateIndex = old.CreatedAt, old.CreateIndex
		for _, u := range old.Users {
			if !slices.Contains(n.Users, u) && len(t.state().NamespacesOf(u)) == 1 && !slices.Contains(b.GetRelease(), u) {
				return refuse(Conflict, "users: %q is named by no other namespace and would act everywhere: say so (persysctl namespace set %s --release %s), "+
					"name it elsewhere first, or revoke it (persysctl identity revoke)", clip(u), n.Name, clip(u))
			}
		}
	}
	freed := t.freed(old, n)
	t.storeNamespace(old, n)
	kind := EventNamespaceChanged
	if !known {
		kind = EventNamespaceCreated
	}
	t.event(Event{Type: kind, Namespace: n.Name, Message: n.Name, Details: n.labels()})
	t.dropTokensOf(freed...)
	return Result{}
}

// freed returns the users who may act in more namespaces once record n has replaced record old: users removed from the
// only namespace that listed them, and users whom n lists in addition to other namespaces. old may be nil.
func (t *Tx) freed(old, n *Namespace) (users []string) {
	if old != nil {
		for _, u := range old.Users {
			if !slices.Contains(n.Users, u) && len(t.state().NamespacesOf(u)) == 1 {
				users = append(users, u)
			}
		}
	}
	for _, u := range n.Users {
		if in := t.state().NamespacesOf(u); len(in) > 0 && !slices.Contains(in, n.Name) {
			users = append(users, u)
		}
	}
	return users
}

// unmoved refuses a PutNamespace that its caller derived from an earlier version of the record. A PutNamespace
// replaces the whole record, so it would undo a change that another caller made meanwhile. old is the present record;
// it may be nil.
func unmoved(b *commandv1.PutNamespace, old *Namespace) Result {
	if b.IfVersion == nil {
		return Result{}
	}
	var have uint64
	if old != nil {
		have = old.ModifyIndex
	}
	switch want := b.GetIfVersion(); {
	case want == have:
		return Result{}
	case have == 0:
		return refuse(StaleGeneration, "namespace %q, version %d, is not there any more", clip(b.GetName()), want)
	case want == 0:
		return refuse(StaleGeneration, "namespace %q is there already, made by %s", clip(b.GetName()), old.UpdatedBy)
	default:
		return refuse(StaleGeneration, "namespace %q has changed from version %d to %d, by %s: look at it again", clip(b.GetName()), want, have, old.UpdatedBy)
	}
}

// fault returns an error text for the first invalid field of a namespace; "" if every field is valid.
func (n *Namespace) fault() string {
	switch {
	case !bounds.ValidID(n.Name):
		return "name: " + quoted(n.Name) + " does not match " + bounds.IDRule
	case len(n.Description) > maxNamespaceComment:
		return "description: " + decimal(len(n.Description)) + " bytes, limit " + decimal(maxNamespaceComment)
	case n.Quota.Fault() != "":
		return n.Quota.Fault()
	case n.maxPriorityFault() != "":
		return n.maxPriorityFault()
	case n.nodeLabelsFault() != "":
		return n.nodeLabelsFault()
	case len(n.Users) > MaxNamespaceUsers:
		return "users: " + decimal(len(n.Users)) + " entries, at most " + decimal(MaxNamespaceUsers)
	}
	for _, u := range n.Users {
		if res := checkPrincipal("user", u, "", false); res.Kind != OK {
			return "users: " + res.Reason
		}
		if u == "admin" {
			return `users: "admin" acts everywhere`
		}
	}
	return ""
}

// labels returns the fields of a namespace as details of an event.
func (n *Namespace) labels() []Label {
	limit := func(v int64) string {
		if v == 0 {
			return ""
		}
		return decimal(int(v))
	}
	scaling := ""
	if n.AllowScaling {
		scaling = "true"
	}
	out := details(
		Label{"allow_scaling", scaling},
		Label{"cpu_millicores", limit(n.Quota.CPU)}, Label{"devices", limit(n.Quota.Devices)}, Label{"disk_gb", limit(n.Quota.Disk)}, Label{"max_priority", limit(int64(n.MaxPriority))},
		Label{"memory_mib", limit(n.Quota.Memory)}, Label{"node_labels", clipTo(labelsText(n.NodeLabels), 512)},
		Label{"users", clipTo(strings.Join(n.Users, ","), 512)}, Label{"volume_gb", limit(n.Quota.VolumeGB)}, Label{"volumes", limit(n.Quota.Volumes)}, Label{"workloads", limit(n.Quota.Workloads)},
	)
	if len(out) == 0 {
		return nil // nil, as a snapshot returns an empty list
	}
	return out
}

func (t *Tx) deleteNamespace(b *commandv1.DeleteNamespace) Result {
	n, ok := t.r.namespaces.Get(b.GetName())
	switch {
	case b.GetName() == DefaultNamespace:
		return refuse(Conflict, "namespace %q is always there; put it without a quota and users to have it as it was", DefaultNamespace)
	case !ok:
		return refuse(NotFound, "namespace %q does not exist", clip(b.GetName()))
	}
	if u := t.state().UseOf(n.Name); u.Records > 0 {
		return refuse(Conflict, "namespace %q has %d workloads: delete them first, and wait until they are gone", n.Name, u.Records)
	}
	if name := t.state().networkIn(n.Name); name != "" {
		return refuse(Conflict, "namespace %q has network %q: remove its networks first (persysctl network rm)", n.Name, name)
	}
	if have := countUnder(t.r.objects, n.Name+"/"); have > 0 {
		return refuse(Conflict, "namespace %q has %d secrets and configs: delete them first: persysctl secret list, persysctl config list", n.Name, have)
	}
	if have := countUnder(t.r.volumes, n.Name+"/"); have > 0 {
		return refuse(Conflict, "namespace %q has %d volumes: delete them first: persysctl volume list -n %s", n.Name, have, n.Name)
	}
	if m := t.moveIn(n.Name); m != nil {
		return refuse(Conflict, "namespace %q: %s", n.Name, m.inProgress())
	}
	if len(n.Users) > 0 {
		return refuse(Conflict, "namespace %q names users: %s: take them out first, or they would act everywhere", n.Name, clipTo(strings.Join(n.Users, ", "), 256))
	}
	if p := t.state().PolicyIn(n.Name); p != nil {
		t.unbindNamespace(p, n.Name) // a later namespace of this name must not get the policy
	}
	t.unbindNamespaceRoles(n.Name)
	own(t, &t.r.namespaces, ownNamespaces).Delete(n.Name)
	t.changes = append(t.changes, Change{Table: TableNamespace, Key: n.Name, Old: n})
	t.event(Event{Type: EventNamespaceDeleted, Namespace: n.Name, Message: n.Name})
	return Result{}
}

func (t *Tx) storeNamespace(old, n *Namespace) {
	n.UpdatedAt, n.UpdatedBy, n.ModifyIndex = t.r.info.Clock, t.by, t.meta.Index
	own(t, &t.r.namespaces, ownNamespaces).Set(n.Name, n)
	if old != nil {
		t.indexUsers(old, false)
	}
	t.indexUsers(n, true)
	t.changes = append(t.changes, Change{Table: TableNamespace, Key: n.Name, Old: old, New: n})
}

// indexUsers adds (on) or removes the index entries for the users of a namespace.
func (t *Tx) indexUsers(n *Namespace, on bool) {
	if len(n.Users) == 0 {
		return
	}
	m := own(t, &t.r.byUser, ownByUser)
	for _, u := range n.Users {
		if on {
			m.Set(pair(u, n.Name), struct{}{})
		} else {
			m.Delete(pair(u, n.Name))
		}
	}
}

func amountsOf(q *commandv1.Quota) quota.Amounts {
	return quota.Amounts{CPU: q.GetCpuMillicores(), Memory: q.GetMemoryMib(), Disk: q.GetDiskGb(), Workloads: q.GetWorkloads(), Devices: q.GetDevices(), Volumes: q.GetVolumes(), VolumeGB: q.GetVolumeGb()}
}

func amountsPB(a quota.Amounts) *commandv1.Quota {
	if a == (quota.Amounts{}) {
		return nil
	}
	return &commandv1.Quota{CpuMillicores: a.CPU, MemoryMib: a.Memory, DiskGb: a.Disk, Workloads: a.Workloads, Devices: a.Devices, Volumes: a.Volumes, VolumeGb: a.VolumeGB}
}

func namespacePB(n *Namespace) *commandv1.NamespaceRecord {
	return &commandv1.NamespaceRecord{
		Put:       &commandv1.PutNamespace{Name: n.Name, Description: n.Description, Quota: amountsPB(n.Quota), Users: n.Users, MaxPriority: n.MaxPriority, AllowScaling: n.AllowScaling, NodeLabels: convert(n.NodeLabels, labelPB)},
		CreatedAt: n.CreatedAt, UpdatedAt: n.UpdatedAt, UpdatedBy: n.UpdatedBy, CreateIndex: n.CreateIndex, ModifyIndex: n.ModifyIndex,
	}
}

func namespaceRecordOf(m *commandv1.NamespaceRecord) *Namespace {
	p := m.GetPut()
	return &Namespace{
		Name: p.GetName(), Description: p.GetDescription(), Quota: amountsOf(p.GetQuota()), Users: convert(p.GetUsers(), strings.Clone),
		MaxPriority: p.GetMaxPriority(), AllowScaling: p.GetAllowScaling(), NodeLabels: convert(p.GetNodeLabels(), labelOf), CreatedAt: m.GetCreatedAt(), UpdatedAt: m.GetUpdatedAt(), UpdatedBy: m.GetUpdatedBy(),
		CreateIndex: m.GetCreateIndex(), ModifyIndex: m.GetModifyIndex(),
	}
}

func (e *encoder) namespace(n *Namespace) {
	e.str(n.Name)
	e.str(n.Description)
	e.i64(n.Quota.CPU)
	e.i64(n.Quota.Memory)
	e.i64(n.Quota.Disk)
	e.i64(n.Quota.Workloads)
	e.strs(n.Users)
	e.i64(n.CreatedAt)
	e.i64(n.UpdatedAt)
	e.str(n.UpdatedBy)
	e.u64(n.CreateIndex)
	e.u64(n.ModifyIndex)
	if n.MaxPriority != 0 {
		e.str("max priority")
		e.i64(int64(n.MaxPriority))
	}
	if n.AllowScaling {
		e.str("allow scaling")
	}
	if len(n.NodeLabels) > 0 {
		e.str("node labels")
		e.labels(n.NodeLabels)
	}
	if n.Quota.Devices != 0 {
		e.str("device quota")
		e.i64(n.Quota.Devices)
	}
	if n.Quota.Volumes != 0 || n.Quota.VolumeGB != 0 {
		e.str("volume quota")
		e.i64(n.Quota.Volumes)
		e.i64(n.Quota.VolumeGB)
	}
}

// namespaces merges the namespaces of the backup and of the present state in a restore. If both have a
// namespace, the present record is kept: a restore of workloads must not restore former users and quotas.
func (t *Tx) namespaces(backup, present State) {
	t.r.namespaces = duplicate(backup.r.namespaces)
	present.r.namespaces.Scan(func(name string, n *Namespace) bool {
		t.r.namespaces.Set(name, n)
		return true
	})
}

func (c *checker) namespaces() {
	r := c.s.r
	r.namespaces.Scan(func(name string, n *Namespace) bool {
		c.must(n.Name == name && n.fault() == "", "the record of namespace %q, stored under %q, is invalid: %s", clip(n.Name), clip(name), n.fault())
		c.must(slices.IsSorted(n.Users) && len(slices.Compact(slices.Clone(n.Users))) == len(n.Users), "the users of namespace %s are not sorted or not valid: %v", clip(name), n.Users)
		c.must(slices.IsSortedFunc(n.NodeLabels, func(a, b Label) int { return strings.Compare(a.Key, b.Key) }), "the node labels of namespace %s are not sorted: %v", clip(name), n.NodeLabels)
		return true
	})
}

func decimal(n int) string { return strconv.Itoa(n) }
