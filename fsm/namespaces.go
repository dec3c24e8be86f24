package fsm

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/fsm/quota"
)

// Namespaces divide the workloads of a cluster among teams. The record of a namespace holds a
// quota for its workloads and the users who act in it. Namespaces do not divide ids: an id stays
// unique in the whole cluster, as legacy v1 peers, etcd keys and DNS names require.

// DefaultNamespace holds every workload that names no namespace. It always exists and may have a
// record with a quota or users like any other.
const DefaultNamespace = "default"

// Namespace is one record. A published record never changes.
type Namespace struct {
	Name        string
	Description string
	Quota       quota.Amounts
	// Users may act in this namespace, and in no namespace that does not name them; sorted. A user
	// that no namespace names acts everywhere. Package rpc never confines admins.
	Users       []string
	CreatedAt   int64 // Unix nanoseconds, as is the next
	UpdatedAt   int64
	UpdatedBy   string
	CreateIndex uint64
	ModifyIndex uint64
}

// Use is what the workloads of a namespace use of its quota.
type Use struct {
	// Sum over workloads whose desired state is running or stopped. A stopped workload may be
	// started at any time, so it counts. A workload that is being deleted does not count.
	quota.Amounts
	Records int // workloads, including those that are being deleted
}

// Bounds of namespaces.
const (
	MaxNamespaces       = 1000
	MaxNamespaceUsers   = 1000
	maxNamespaceComment = 1024 // bytes
)

// In returns the namespace of a workload.
func (w *Workload) In() string {
	if w.Namespace == "" {
		return DefaultNamespace
	}
	return w.Namespace
}

// In returns the namespace of the event, or "" for an event about the cluster or a node.
func (e *Event) In() string {
	if e.Namespace == "" && (e.Workload != "" || strings.HasPrefix(e.Type, "Rollout")) {
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

// unlimited is the default namespace without a record. It never changes.
var unlimited = &Namespace{Name: DefaultNamespace}

// Namespaces scans all namespaces by name, including the default one.
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

// UseOf returns what the workloads of a namespace use.
func (s State) UseOf(namespace string) Use {
	if u, ok := s.r.uses.Get(namespace); ok {
		return *u
	}
	return Use{}
}

// NamespacesOf returns the namespaces that name a user, sorted. A user without any acts
// everywhere.
func (s State) NamespacesOf(user string) (out []string) {
	prefix := user + "/"
	s.r.byUser.Ascend(prefix, func(k string, _ struct{}) bool {
		if !strings.HasPrefix(k, prefix) {
			return false
		}
		out = append(out, k[len(prefix):])
		return true
	})
	return out
}

// counted returns the amounts of w that count against the quota of its namespace.
func (w *Workload) counted() quota.Amounts {
	if w.Desired == "" || w.Desired == DesiredDeleted {
		return quota.Amounts{}
	}
	return w.Demand.amounts()
}

func (d *Demand) amounts() quota.Amounts {
	return quota.Amounts{CPU: d.CPU, Memory: d.Memory, Disk: d.Disk, Workloads: 1}
}

// useOf replaces the amounts of old by those of w. Either may be nil.
func (t *Tx) useOf(old, w *Workload) {
	if old != nil && w != nil && old.Namespace == w.Namespace && old.counted() == w.counted() {
		return
	}
	m := own(t, &t.r.uses, ownUses)
	add := func(w *Workload, a quota.Amounts, records int) {
		var u Use
		if have, ok := m.Get(w.In()); ok {
			u = *have
		}
		u.Amounts, u.Records = u.Plus(a), u.Records+records
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

// namespaceOf returns the namespace of a put that replaces old, which may be nil.
func namespaceOf(p *commandv1.WorkloadPut, old *Workload) string {
	switch {
	case p.GetNamespace() != "":
		return p.GetNamespace()
	case old != nil:
		return old.In()
	}
	return DefaultNamespace
}

// NamespaceOf returns the namespace of a put.
func NamespaceOf(v namespaced, p *commandv1.WorkloadPut) string {
	old, _ := v.Workload(p.GetId())
	return namespaceOf(p, old)
}

type namespaced interface {
	Workload(id string) (*Workload, bool)
}

// NamespaceView is the part of a View that Fits reads.
type NamespaceView interface {
	namespaced
	Namespace(name string) (*Namespace, bool)
	UseOf(namespace string) Use
}

// Fits checks a put, together with the workloads that it deletes, against namespaces: each
// namespace must exist, must be the present one of the workload, and must have the quota, both
// at once and after every member has had its turn. The error is a *Refusal.
func Fits(v NamespaceView, b *commandv1.PutWorkloads, leaving []*Workload) error {
	olds := make([]*Workload, len(b.GetWorkloads()))
	for i, p := range b.GetWorkloads() {
		olds[i], _ = v.Workload(p.GetId())
	}
	return fitsNowAndLater(v, b, olds, leaving)
}

// fitsNowAndLater does the work of Fits for a caller that has looked up the present records; nil
// means that there is none.
func fitsNowAndLater(v NamespaceView, b *commandv1.PutWorkloads, olds, leaving []*Workload) error {
	err := fits(v, b.GetWorkloads(), olds, leaving)
	if err != nil || b.GetUpdate() == nil || b.GetGroupOf() == "" {
		return err
	}
	var now []*commandv1.WorkloadPut
	var before []*Workload
	for i, p := range b.GetWorkloads() {
		if olds[i] == nil || !olds[i].TakesTurn(Intended(p)) {
			now, before = append(now, p), append(before, olds[i])
		}
	}
	if err = fits(v, now, before, leaving); err != nil {
		return &Refusal{Kind: OverQuota, Reason: err.Error() + "; members that wait for their turn hold what they have until then"}
	}
	return nil
}

// fits checks puts and deletions as if all of them happened at once. Every put passes here on
// every replica, so namespaces without a quota are not summed up.
func fits(v NamespaceView, puts []*commandv1.WorkloadPut, olds, leaving []*Workload) error {
	var sums []quotaSum
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
		if n.Quota == (quota.Amounts{}) {
			continue
		}
		d := p.GetDemand()
		by := (&Demand{CPU: d.GetCpuMillicores(), Memory: d.GetMemoryMib(), Disk: d.GetDiskGb()}).amounts()
		if old != nil {
			by = by.Minus(old.counted())
		}
		sums = addTo(sums, n, by)
	}
	for _, w := range leaving {
		if n, ok := v.Namespace(w.In()); ok && n.Quota != (quota.Amounts{}) {
			sums = addTo(sums, n, quota.Amounts{}.Minus(w.counted()))
		}
	}
	for _, s := range sums {
		if over := quota.Excess(v.UseOf(s.of.Name).Amounts, s.by, s.of.Quota); over != "" {
			return &Refusal{Kind: OverQuota, Reason: "over the quota of namespace " + quoted(s.of.Name) + ": " + over}
		}
	}
	return nil
}

// quotaSum is the change of what a namespace uses.
type quotaSum struct {
	of *Namespace
	by quota.Amounts
}

func addTo(sums []quotaSum, n *Namespace, by quota.Amounts) []quotaSum {
	i := slices.IndexFunc(sums, func(s quotaSum) bool { return s.of == n })
	if i < 0 {
		return append(sums, quotaSum{n, by})
	}
	sums[i].by = sums[i].by.Plus(by)
	return sums
}

func quoted(s string) string { return `"` + clipTo(s, clipped) + `"` }

// admits checks puts and the workloads that they delete against namespaces: the caller must be
// allowed to act in each, and Fits must accept them.
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
	}
	for _, w := range leaving {
		if res, ok := t.may(w.ID, w.In()); !ok {
			return res, false
		}
	}
	if err := fitsNowAndLater(t.state(), b, olds, leaving); err != nil {
		var r *Refusal
		errors.As(err, &r)
		return Result{Kind: r.Kind, Reason: r.Reason}, false
	}
	return Result{}, true
}

// may reports whether the caller may act on a workload of a namespace.
func (t *Tx) may(id, namespace string) (Result, bool) {
	if len(t.confined) == 0 || slices.Contains(t.confined, namespace) {
		return Result{}, true
	}
	return refuse(Denied, "workload %q is in namespace %q, and %s acts only in %s", clip(id), clip(namespace), t.by, strings.Join(t.confined, ", ")), false
}

// within lists the commands that a caller confined to namespaces may use. Commands about
// workloads are also checked against the namespace. The others do not affect other callers.
var within = [...]arm{
	"put_workloads", "set_desired", "delete_workload", "retry_workload", "adopt_drift", "drop_orphan",
	"set_rollout", "barrier", "audit", "admit",
}

func (t *Tx) putNamespace(b *commandv1.PutNamespace) Result {
	n := &Namespace{
		Name: strings.Clone(b.GetName()), Description: strings.Clone(b.GetDescription()), Quota: amountsOf(b.GetQuota()),
		Users: convert(b.GetUsers(), strings.Clone), CreatedAt: t.r.info.Clock, CreateIndex: t.meta.Index,
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
	case known && old.Description == n.Description && old.Quota == n.Quota && slices.Equal(old.Users, n.Users):
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
	t.storeNamespace(old, n)
	kind := EventNamespaceChanged
	if !known {
		kind = EventNamespaceCreated
	}
	t.event(Event{Type: kind, Namespace: n.Name, Message: n.Name, Details: n.labels()})
	return Result{}
}

// unmoved refuses a put that was made from another version of the record than old, the present
// one, which may be nil. A put replaces the whole record, so a change made in between would be
// lost.
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

// fault returns an error text for an invalid namespace, or "".
func (n *Namespace) fault() string {
	switch {
	case !bounds.ValidID(n.Name):
		return "name: " + quoted(n.Name) + " does not match " + bounds.IDRule
	case len(n.Description) > maxNamespaceComment:
		return "description: " + decimal(len(n.Description)) + " bytes, limit " + decimal(maxNamespaceComment)
	case n.Quota.Fault() != "":
		return n.Quota.Fault()
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

// labels returns the details of an event about a namespace.
func (n *Namespace) labels() []Label {
	limit := func(v int64) string {
		if v == 0 {
			return ""
		}
		return decimal(int(v))
	}
	out := details(
		Label{"cpu_millicores", limit(n.Quota.CPU)}, Label{"disk_gb", limit(n.Quota.Disk)}, Label{"memory_mib", limit(n.Quota.Memory)},
		Label{"users", clipTo(strings.Join(n.Users, ","), 512)}, Label{"workloads", limit(n.Quota.Workloads)},
	)
	if len(out) == 0 {
		return nil // a snapshot restores an empty list as nil
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
	if len(n.Users) > 0 {
		return refuse(Conflict, "namespace %q names users: %s: take them out first, or they would act everywhere", n.Name, clipTo(strings.Join(n.Users, ", "), 256))
	}
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

// indexUsers adds or removes the index entries for the users of a namespace.
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
	return quota.Amounts{CPU: q.GetCpuMillicores(), Memory: q.GetMemoryMib(), Disk: q.GetDiskGb(), Workloads: q.GetWorkloads()}
}

func amountsPB(a quota.Amounts) *commandv1.Quota {
	if a == (quota.Amounts{}) {
		return nil
	}
	return &commandv1.Quota{CpuMillicores: a.CPU, MemoryMib: a.Memory, DiskGb: a.Disk, Workloads: a.Workloads}
}

func namespacePB(n *Namespace) *commandv1.NamespaceRecord {
	return &commandv1.NamespaceRecord{
		Put:       &commandv1.PutNamespace{Name: n.Name, Description: n.Description, Quota: amountsPB(n.Quota), Users: n.Users},
		CreatedAt: n.CreatedAt, UpdatedAt: n.UpdatedAt, UpdatedBy: n.UpdatedBy, CreateIndex: n.CreateIndex, ModifyIndex: n.ModifyIndex,
	}
}

func namespaceRecordOf(m *commandv1.NamespaceRecord) *Namespace {
	p := m.GetPut()
	return &Namespace{
		Name: p.GetName(), Description: p.GetDescription(), Quota: amountsOf(p.GetQuota()), Users: convert(p.GetUsers(), strings.Clone),
		CreatedAt: m.GetCreatedAt(), UpdatedAt: m.GetUpdatedAt(), UpdatedBy: m.GetUpdatedBy(),
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
}

// namespaces keeps those of both states. Where both know one, the present record stands:
// who may act, and how much, does not go back with the workloads.
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
		c.must(n.Name == name && n.fault() == "", "namespace %q is stored under %q: %s", clip(n.Name), clip(name), n.fault())
		c.must(slices.IsSorted(n.Users) && len(slices.Compact(slices.Clone(n.Users))) == len(n.Users), "namespace %s names users %v", clip(name), n.Users)
		return true
	})
}

func decimal(n int) string { return strconv.Itoa(n) }
