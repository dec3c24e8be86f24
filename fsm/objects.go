package fsm

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"slices"
	"strconv"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/fsm/rollout"
)

// An object is a secret or a config: a named value of a namespace with numbered versions. Values of secrets are
// sealed before they reach the log, so the state machine cannot read them. A workload uses a version of an
// object; a new version changes the workloads that use the object, like an apply of another specification
// (ADR 63).

// Kinds of objects.
const (
	KindSecret = "secret"
	KindConfig = "config"
)

// Limits of objects.
const (
	// MaxObjectBytes is the maximum size in bytes of a value.
	MaxObjectBytes = 512 << 10
	// MaxObjects is the maximum number of objects in one namespace.
	MaxObjects = 1000
	// MaxObjectVersions is the number of versions of an object that are kept, besides older ones in use.
	MaxObjectVersions = 10
	// MaxObjectUses is the maximum number of objects that one workload uses.
	MaxObjectUses = 64

	maxSealedObject = MaxObjectBytes/3*4 + 512 // bytes of a sealed value of MaxObjectBytes bytes
	maxObjectKept   = 4 << 20                  // bytes of all kept versions of one object; fewer versions are kept if they are larger
	maxObjectRecord = 7 << 20                  // bytes of all versions with those in use; the object is one record of a snapshot
	sealedPrefix    = "sealed:1:"              // prefix of sealed values
)

// Object is a secret or a config. A record in the state is never modified; a change stores a new record.
type Object struct {
	Kind      string
	Name      string
	Namespace string // "" = the default namespace
	CreatedAt int64  // Unix nanoseconds
	CreatedBy string
	Counter   uint64 // highest number that a version of the object has ever had
	// Versions are the versions that the state still has, oldest first. There is at least one.
	Versions    []ObjectVersion
	ModifyIndex uint64
}

// ObjectVersion is one value of an object.
type ObjectVersion struct {
	Number uint64
	Data   []byte // sealed for a secret, plain for a config
	Size   int64  // size of the plain value in bytes
	From   uint64 // number of the version whose value this is; 0 = the value was new
	At     int64  // Unix nanoseconds
	By     string
}

// ObjectUse is the reference of a workload to an object of its namespace.
type ObjectUse struct {
	Kind, Name string
	Version    uint64
	// Keep means that a new version does not change the workload. Version is then 0, and the node gets the
	// present version with each order.
	Keep bool
	// Signal is set with Keep if a new version is a new order to the node: the node replaces the value in the running
	// workload and sends this signal.
	Signal string
}

// In returns the name of the object's namespace.
func (o *Object) In() string { return cmp.Or(o.Namespace, DefaultNamespace) }

// Present returns the newest version.
func (o *Object) Present() *ObjectVersion { return &o.Versions[len(o.Versions)-1] }

// Version returns a kept version; number 0 means the newest one.
func (o *Object) Version(number uint64) (*ObjectVersion, bool) {
	if number == 0 {
		return o.Present(), true
	}
	i := slices.IndexFunc(o.Versions, func(v ObjectVersion) bool { return v.Number == number })
	if i < 0 {
		return nil, false
	}
	return &o.Versions[i], true
}

func (o *Object) key() string { return objectKey(o.In(), o.Kind, o.Name) }

// bytes returns the size in bytes of all kept versions as they are stored.
func (o *Object) bytes() (n int64) {
	if o != nil {
		for i := range o.Versions {
			n += int64(len(o.Versions[i].Data))
		}
	}
	return n
}

// objectKey returns the key of an object in its table. Names contain no slash.
func objectKey(namespace, kind, name string) string { return namespace + "/" + kind + "/" + name }

// Object returns a secret or a config.
func (s State) Object(namespace, kind, name string) (*Object, bool) {
	return s.r.objects.Get(objectKey(namespace, kind, name))
}

// Objects scans all secrets and configs, by namespace, kind and name.
func (s State) Objects(fn func(*Object) bool) {
	s.r.objects.Scan(func(_ string, o *Object) bool { return fn(o) })
}

// ObjectView is the part of View that PinObjects needs.
type ObjectView interface {
	Workload(id string) (*Workload, bool)
	Object(namespace, kind, name string) (*Object, bool)
}

// PinObjects returns a copy of b in which each workload names the versions of the secrets and configs that it
// uses. The content of such a workload (the hash that decides whether a change is a new revision) then depends
// on these versions. It returns b itself if no workload uses an object, and a refusal if an object or a
// version does not exist. Versions that b names already stay.
func PinObjects(v ObjectView, b *commandv1.PutWorkloads) (*commandv1.PutWorkloads, Result) {
	uses := func(p *commandv1.WorkloadPut) bool { return len(p.GetObjects()) > 0 }
	if !slices.ContainsFunc(b.GetWorkloads(), uses) && !slices.ContainsFunc(b.GetSurge(), uses) {
		return b, Result{}
	}
	pinned := b.CloneVT()
	for _, list := range [][]*commandv1.WorkloadPut{pinned.GetWorkloads(), pinned.GetSurge()} {
		for _, p := range list {
			if res := pinPut(v, p); res.Kind != OK {
				return b, res
			}
		}
	}
	return pinned, Result{}
}

// pinPut is PinObjects for one workload; it changes p.
func pinPut(v ObjectView, p *commandv1.WorkloadPut) Result {
	if len(p.GetObjects()) == 0 {
		return Result{}
	}
	old, _ := v.Workload(p.GetId())
	in, versions := namespaceOf(p, old), make([]uint64, len(p.GetObjects()))
	for i, u := range p.GetObjects() {
		o, ok := v.Object(in, u.GetKind(), u.GetName())
		if !ok {
			return refuse(NotFound, "workload %s: %s", clip(p.GetId()), NoObject(in, u.GetKind(), u.GetName()))
		}
		if _, ok := o.Version(u.GetVersion()); !ok {
			return refuse(Conflict, "workload %s: version %d of %s %q is no longer stored: apply the specification again to use the present version",
				clip(p.GetId()), u.GetVersion(), o.Kind, o.Name)
		}
		if versions[i] = u.GetVersion(); versions[i] == 0 && !u.GetKeep() {
			versions[i] = o.Present().Number
		}
	}
	setVersions(p, versions)
	return Result{}
}

// setVersions makes p use these versions of its objects.
func setVersions(p *commandv1.WorkloadPut, versions []uint64) {
	if p.SpecContent == "" {
		p.SpecContent = p.GetContent()
	}
	for i, u := range p.GetObjects() {
		u.Version = versions[i]
	}
	p.Content = contentWithObjects(p.GetSpecContent(), p.GetObjects())
}

// contentWithObjects returns the content (hash) of a workload that uses secrets or configs. It is a hash over the
// content of the specification, which the parameter `of` holds, and over the versions that the workload uses.
func contentWithObjects(of string, uses []*commandv1.ObjectUse) string {
	h := sha256.New()
	part := func(s string) {
		_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(s)))) // writing to a hash never fails
		_, _ = h.Write([]byte(s))
	}
	part("persys objects 1")
	part(of)
	for _, u := range uses {
		part(u.GetKind())
		part(u.GetName())
		part(strconv.FormatUint(u.GetVersion(), 10))
	}
	return "c1:" + hex.EncodeToString(h.Sum(nil))
}

// NoObject is the error text for an object that does not exist. It names the next command.
func NoObject(namespace, kind, name string) string {
	return kind + " " + quoted(name) + " does not exist in namespace " + quoted(namespace) + ": persysctl " + kind + " put " + clip(name) + suffix(" --namespace ", stored(namespace))
}

// NoVersion is the error text for a version of the object that is not stored. It names the next command.
func (o *Object) NoVersion(number uint64) string {
	return "version " + strconv.FormatUint(number, 10) + " of " + o.Kind + " " + quoted(o.Name) + " is not stored: persysctl " + o.Kind + " history " + o.Name
}

// UsersOf scans the workloads that use an object and are not being deleted, by id. version is the
// version that the workload uses; 0 = the version that is present at each start.
func (s State) UsersOf(o *Object, fn func(w *Workload, version uint64) bool) {
	s.Workloads("", func(w *Workload) bool {
		if len(w.Objects) == 0 || w.Desired == DesiredDeleted || w.In() != o.In() {
			return true
		}
		i := slices.IndexFunc(w.Objects, func(u ObjectUse) bool { return u.Kind == o.Kind && u.Name == o.Name })
		return i < 0 || fn(w, w.Objects[i].Version)
	})
}

// waitingUses calls fn for each member of a group that uses the object in a new specification,
// which it gets only when a rolling update in progress reaches it.
func (t *Tx) waitingUses(o *Object, fn func(id string, version uint64)) {
	t.r.rollouts.Scan(func(_ string, r *rollout.Rollout) bool {
		for i := range r.Members {
			p := r.Members[i].Put
			for _, u := range p.GetObjects() {
				if u.GetKind() == o.Kind && u.GetName() == o.Name && cmp.Or(p.GetNamespace(), DefaultNamespace) == o.In() {
					fn(p.GetId(), u.GetVersion())
				}
			}
		}
		return true
	})
}

// objectFault describes the first invalid field of a command about an object; "" if there is none.
func objectFault(kind, name string) string {
	switch {
	case kind != KindSecret && kind != KindConfig:
		return "kind: " + quoted(kind) + " is not secret or config"
	case !bounds.ValidID(name):
		return "name: " + quoted(name) + " does not match " + bounds.IDRule
	}
	return ""
}

// dataFault describes why the value of a secret or config cannot be stored; "" if it can. The text
// never contains the value.
func dataFault(kind string, data []byte, size int64) string {
	switch {
	case size < 0 || size > MaxObjectBytes:
		return "data: has " + strconv.FormatInt(size, 10) + " bytes, at most " + decimal(MaxObjectBytes)
	case kind == KindConfig && int64(len(data)) != size:
		return "size: " + strconv.FormatInt(size, 10) + " is not the size of data, which has " + decimal(len(data)) + " bytes"
	case kind == KindSecret && !bytes.HasPrefix(data, []byte(sealedPrefix)):
		return "data: the value of a secret must be sealed"
	case len(data) > maxSealedObject:
		return "data: has " + decimal(len(data)) + " bytes, at most " + decimal(maxSealedObject)
	}
	return ""
}

// mayObject reports whether the caller may act on objects of a namespace. If not, the Result is the refusal.
func (t *Tx) mayObject(kind, name, in string) (Result, bool) {
	if fault := objectFault(kind, name); fault != "" {
		return refuse(Invalid, "%s", fault), false
	}
	return t.mayUse(kind, name, in)
}

// putObject adds a version to an object, and changes the workloads that use the object. The first item of the
// result stands for the object: its Revision is the number of the version. The other items are workloads; an
// item that is not OK says why the workload keeps the former version.
func (t *Tx) putObject(b *commandv1.PutObject) Result {
	in := cmp.Or(b.GetNamespace(), DefaultNamespace)
	if res, ok := t.mayObject(b.GetKind(), b.GetName(), in); !ok {
		return res
	}
	n, ok := t.state().Namespace(in)
	if !ok {
		return refuse(NotFound, "namespace %q does not exist: persysctl namespace list shows them", clip(in))
	}
	old, known := t.state().Object(in, b.GetKind(), b.GetName())
	v := ObjectVersion{Data: bytes.Clone(b.GetData()), Size: b.GetSize(), From: b.GetFrom(), At: t.r.info.Clock, By: t.by}
	if v.From != 0 {
		if !known {
			return refuse(NotFound, "%s", NoObject(in, b.GetKind(), b.GetName()))
		}
		of, ok := old.Version(v.From)
		if !ok {
			return refuse(NotFound, "%s", old.NoVersion(v.From))
		}
		if of.Number == old.Present().Number {
			return Result{Kind: AlreadyDone, Reason: "version " + strconv.FormatUint(of.Number, 10) + " is the present one", Items: []Item{objectItem(old, true)}}
		}
		v.Data, v.Size = of.Data, of.Size
	}
	if fault := dataFault(b.GetKind(), v.Data, v.Size); fault != "" {
		return refuse(Invalid, "%s", fault)
	}
	if known && b.GetKind() == KindConfig && v.From == 0 && bytes.Equal(old.Present().Data, v.Data) {
		return Result{Kind: AlreadyDone, Items: []Item{objectItem(old, true)}}
	}
	o := &Object{Kind: b.GetKind(), Name: strings.Clone(b.GetName()), Namespace: strings.Clone(stored(in)), CreatedAt: t.r.info.Clock, CreatedBy: t.by, Counter: t.r.info.ObjectFloor}
	if known {
		o.CreatedAt, o.CreatedBy, o.Counter, o.Versions = old.CreatedAt, old.CreatedBy, old.Counter, old.Versions
	} else if countUnder(t.r.objects, in+"/") >= MaxObjects {
		return refuse(Conflict, "namespace %q has %d secrets and configs, at most %d: delete some", in, MaxObjects, MaxObjects)
	}
	o.Counter++
	v.Number = o.Counter
	o.Versions = append(slices.Clone(o.Versions), v)
	t.pruneVersions(o)
	if size := o.bytes(); size > maxObjectRecord {
		return refuse(Conflict, "%s %q: its versions in use have %d bytes together, at most %d: wait until the workloads that use it are updated", o.Kind, o.Name, size, maxObjectRecord)
	}
	if res, ok := t.roomFor(n, o.bytes()-old.bytes()); !ok {
		return res
	}
	t.storeObject(old, o)
	from := ""
	if v.From != 0 {
		from = strconv.FormatUint(v.From, 10)
	}
	t.event(Event{
		Type: o.changedEvent(), Namespace: o.Namespace, Message: o.Name + " version " + strconv.FormatUint(v.Number, 10) + suffix(", the value of version ", from),
		Details: details(Label{"from_version", from}, Label{"name", o.Name}, Label{"version", strconv.FormatUint(v.Number, 10)}),
	})
	return Result{Items: append([]Item{objectItem(o, false)}, t.renewUsers(o, b.GetSurge())...)}
}

// changedEvent returns the type of the event about a new value of o, which differs between secrets
// and configs.
func (o *Object) changedEvent() string {
	if o.Kind == KindConfig {
		return EventConfigChanged
	}
	return EventSecretChanged
}

// objectItem returns the item that tells the caller, in a Result, the new version of a secret or
// config.
func objectItem(o *Object, unchanged bool) Item {
	return Item{ID: o.Name, Revision: strconv.FormatUint(o.Present().Number, 10), Unchanged: unchanged}
}

// pruneVersions drops the oldest versions of o that exceed the limits and that no workload uses.
func (t *Tx) pruneVersions(o *Object) {
	var pinned []uint64
	t.state().UsersOf(o, func(w *Workload, version uint64) bool {
		if !w.Finished() {
			pinned = append(pinned, version)
		}
		return true
	})
	t.waitingUses(o, func(_ string, version uint64) { pinned = append(pinned, version) })
	over := len(o.Versions) - MaxObjectVersions
	size := o.bytes()
	o.Versions = slices.DeleteFunc(o.Versions, func(v ObjectVersion) bool {
		if over <= 0 && size <= maxObjectKept || v.Number == o.Counter || slices.Contains(pinned, v.Number) {
			return false
		}
		over--
		size -= int64(len(v.Data))
		return true
	})
}

// roomFor refuses a change that adds this many bytes to a namespace, if that would exceed the size
// limit of the state or a limit in the policy of the namespace.
func (t *Tx) roomFor(n *Namespace, by int64) (Result, bool) {
	s := t.state()
	room, use, sum, p := s.Room(), s.UseOf(n.Name), quotaSum{of: n, bytes: by}, s.PolicyIn(n.Name)
	err := room.over(s.Total(), Total{Bytes: by}, t.shares.Reserve)
	if err == nil {
		err = p.excess(use, sum)
	}
	if err == nil {
		err = room.overShare(t.shares.Namespace, use, sum, p)
	}
	if err == nil {
		return Result{}, true
	}
	var r *Refusal
	errors.As(err, &r)
	return Result{Kind: r.Kind, Reason: r.Reason}, false
}

func (t *Tx) storeObject(old, o *Object) {
	o.ModifyIndex = t.meta.Index
	own(t, &t.r.objects, ownObjects).Set(o.key(), o)
	t.countBytes(o.In(), o.bytes()-old.bytes(), 0)
	t.changes = append(t.changes, Change{Table: TableObject, Key: o.key(), Old: old, New: o})
}

func (t *Tx) deleteObject(b *commandv1.DeleteObject) Result {
	in := cmp.Or(b.GetNamespace(), DefaultNamespace)
	if res, ok := t.mayObject(b.GetKind(), b.GetName(), in); !ok {
		return res
	}
	o, ok := t.state().Object(in, b.GetKind(), b.GetName())
	if !ok {
		return refuse(NotFound, "%s %q does not exist in namespace %q: persysctl %s list shows them", b.GetKind(), clip(b.GetName()), clip(in), b.GetKind())
	}
	var users []string
	t.state().UsersOf(o, func(w *Workload, _ uint64) bool {
		users = append(users, w.ID)
		return true
	})
	t.waitingUses(o, func(id string, _ uint64) { users = append(users, id) })
	slices.Sort(users)
	if users = slices.Compact(users); len(users) > 0 {
		more := ""
		if n := len(users) - 5; n > 0 {
			users, more = users[:5], " and "+decimal(n)+" more"
		}
		return refuse(Conflict, "%s %q is used by %s%s: apply them without it, or delete them, first", o.Kind, o.Name, strings.Join(users, ", "), more)
	}
	t.r.info.ObjectFloor = max(t.r.info.ObjectFloor, o.Counter)
	own(t, &t.r.objects, ownObjects).Delete(o.key())
	t.countBytes(o.In(), -o.bytes(), 0)
	t.changes = append(t.changes, Change{Table: TableObject, Key: o.key(), Old: o})
	kind := EventSecretDeleted
	if o.Kind == KindConfig {
		kind = EventConfigDeleted
	}
	t.event(Event{Type: kind, Namespace: o.Namespace, Message: o.Name, Details: []Label{{"name", o.Name}}})
	return Result{}
}

// renewUsers gives the newest version of o to the workloads that use it: to the members of a group as an
// update of the group by its update policy, to other workloads at once. Jobs and runs keep their version.
// Workloads that asked for a signal get a new order, all at the same time.
func (t *Tx) renewUsers(o *Object, surge []*commandv1.WorkloadPut) (items []Item) {
	var alone, signalled []*Workload
	var groups []string
	t.state().UsersOf(o, func(w *Workload, version uint64) bool {
		switch {
		case w.signalFor(o) != "" && w.Node != "" && w.Desired == DesiredRunning && w.Demand.Job == nil:
			if w.ended() {
				break // the instance has ended: the order that starts the next one carries the newest version
			}
			signalled = append(signalled, w)
		case version == 0 || version == o.Counter || w.Owner != "" || w.Demand.Job != nil && !w.IsTemplate() || w.Demand.Surge:
		case w.Demand.Group != "" && MadeByCount(w.Demand.Group, w.ID):
			groups = append(groups, w.Demand.Group)
		default:
			alone = append(alone, w)
		}
		return true
	})
	t.waitingUses(o, func(id string, version uint64) { // the specification that a member has may not use the object yet
		if w, ok := t.r.workloads.Get(id); ok && version != 0 && version != o.Counter && w.Owner == "" && w.In() == o.In() {
			groups = append(groups, w.Demand.Group)
		}
	})
	slices.Sort(groups)
	for _, group := range slices.Compact(groups) {
		items = append(items, t.renewed(group, t.renewGroup(o, group, surge))...)
	}
	for _, w := range alone {
		b := &commandv1.PutWorkloads{Workloads: []*commandv1.WorkloadPut{renew(t.asPut(w), o)}}
		if w.IsSystem() {
			b.Update = updatePB(w.Update)
		}
		items = append(items, t.renewed(w.ID, t.putWorkloads(b, true, false))...)
	}
	for _, w := range signalled {
		items = append(items, t.orderAgain(w.ID, o))
	}
	return items
}

// ended reports whether the instance that the present order asked for has ended.
func (w *Workload) ended() bool {
	return w.Acknowledged && (w.Actual.State == ActualStopped || w.Actual.State == ActualFailed)
}

// SameInstance reports whether the present order asks for the instance that runs: see SameSince. The node then keeps the
// instance, and sends it a signal if a secret or config has a new version.
func (w *Workload) SameInstance() bool { return w.Actual.State == ActualRunning && w.reportedSame() }

// reportedSame reports whether the last report of the node is about an order that asks for the same instance as the
// present one.
func (w *Workload) reportedSame() bool {
	return w.SameSince != (Generation{}) && !w.Actual.Generation.Less(w.SameSince)
}

// sameSince returns the value of the field SameSince for the next order of w, if that order keeps the instance of the
// present order.
func (w *Workload) sameSince() Generation { return cmp.Or(w.SameSince, w.Generation) }

// orderAgain gives a workload that gets a signal for new versions of o a new order. Its content stays the same, so its
// node keeps the instance.
func (t *Tx) orderAgain(id string, o *Object) Item {
	old, ok := t.r.workloads.Get(id)
	if !ok {
		return Item{ID: strings.Clone(id)}
	}
	w := *old
	t.newOrder(&w)
	w.SameSince = old.sameSince()
	t.putWorkload(old, &w)
	t.eventOf(&w, Event{Type: EventWorkloadUpdated, Node: w.Node, Message: w.signalFor(o) + " for version " + strconv.FormatUint(o.Counter, 10) + " of " + o.Kind + " " + o.Name})
	return itemOf(&w)
}

// signalFor returns the signal that w gets for a new version of o; "" if it gets none.
func (w *Workload) signalFor(o *Object) string {
	i := slices.IndexFunc(w.Objects, func(u ObjectUse) bool { return u.Kind == o.Kind && u.Name == o.Name })
	if i < 0 {
		return ""
	}
	return w.Objects[i].Signal
}

// renewed returns the items of res, the result of putWorkloads. If putWorkloads has refused, it returns one
// item with the reason; the parameter `of` is then the id of the workload or the name of the group.
func (t *Tx) renewed(of string, res Result) []Item {
	if res.Kind == OK {
		return res.Items
	}
	t.event(Event{Type: EventMutation, Workload: "", Reason: res.Kind.String(), Message: clipTo(of+" keeps the former version: "+res.Reason, 512), Details: []Label{{"command", "put_object"}}})
	return []Item{{ID: strings.Clone(of), Kind: res.Kind, Reason: res.Reason}}
}

// renewGroup updates the members of a group to the newest version of o. If an update of the group is in
// progress, it is replaced by an update with the same specifications and the new version of o; if it was
// paused, the new update is paused too.
func (t *Tx) renewGroup(o *Object, group string, surge []*commandv1.WorkloadPut) Result {
	b := &commandv1.PutWorkloads{GroupOf: group}
	was, updating := t.r.rollouts.Get(group)
	updating = updating && was.Phase != rollout.Completed
	for _, w := range Members(t.state(), group) {
		p := t.asPut(w)
		if put := was.Waiting(w.ID); put != nil {
			p = put.CloneVT()
			p.Desired = string(t.wanted(w))
		}
		if p.GetUpdate() != nil {
			b.Update = p.GetUpdate()
		}
		b.Workloads = append(b.Workloads, renew(p, o))
	}
	if len(b.GetWorkloads()) == 0 {
		return Result{}
	}
	for _, p := range surge {
		if p.GetDemand().GetGroup() != group || !b.GetUpdate().GetStartFirst() {
			continue
		}
		if p.GetSpecContent() != b.GetWorkloads()[0].GetSpecContent() {
			return refuse(Conflict, "the specification of %s has changed meanwhile: put the %s again", group, o.Kind)
		}
		b.Surge = append(b.Surge, renew(p, o))
	}
	t.renews = true
	res := t.putWorkloads(b, true, false)
	t.renews = false
	if now, ok := t.r.rollouts.Get(group); ok && res.Kind == OK && updating && now.Phase == rollout.Running {
		switch {
		case was.Phase == rollout.Paused:
			t.pause(now, was.Reason)
		case was.Reverting:
			now = now.Clone()
			now.Reverting, now.Reason = true, was.Reason
			t.storeRollout(now)
		}
	}
	return res
}

// renew returns a copy of p that uses the newest version of o; it returns p itself if p does not
// use o.
func renew(p *commandv1.WorkloadPut, o *Object) *commandv1.WorkloadPut {
	var versions []uint64
	found := false
	for _, u := range p.GetObjects() {
		v := u.GetVersion()
		if u.GetKind() == o.Kind && u.GetName() == o.Name && v != 0 {
			v, found = o.Counter, true
		}
		versions = append(versions, v)
	}
	if !found {
		return p
	}
	p = p.CloneVT()
	setVersions(p, versions)
	return p
}

// updateOf returns the policy for rolling updates that is stored with p; zero if p has none.
func updateOf(p *commandv1.WorkloadPut) rollout.Policy {
	if p.GetUpdate() == nil {
		return rollout.Policy{}
	}
	return rollout.PolicyOf(p.GetUpdate())
}

func updatePB(p rollout.Policy) *commandv1.UpdatePolicy {
	if p == (rollout.Policy{}) {
		return nil
	}
	return p.PB()
}

func usesOf(list []*commandv1.ObjectUse) []ObjectUse {
	return convert(list, func(u *commandv1.ObjectUse) ObjectUse {
		return ObjectUse{Kind: strings.Clone(u.GetKind()), Name: strings.Clone(u.GetName()), Version: u.GetVersion(), Keep: u.GetKeep(), Signal: strings.Clone(u.GetSignal())}
	})
}

func usesPB(list []ObjectUse) []*commandv1.ObjectUse {
	return convert(list, func(u ObjectUse) *commandv1.ObjectUse {
		return &commandv1.ObjectUse{Kind: u.Kind, Name: u.Name, Version: u.Version, Keep: u.Keep, Signal: u.Signal}
	})
}

// ObjectPB returns the record of o in a snapshot.
func ObjectPB(o *Object) *commandv1.ObjectRecord {
	return &commandv1.ObjectRecord{
		Kind: o.Kind, Name: o.Name, Namespace: o.Namespace, CreatedAt: o.CreatedAt, CreatedBy: o.CreatedBy, Counter: o.Counter, ModifyIndex: o.ModifyIndex,
		Versions: convert(o.Versions, func(v ObjectVersion) *commandv1.ObjectVersion {
			return &commandv1.ObjectVersion{Number: v.Number, Data: v.Data, Size: v.Size, From: v.From, At: v.At, By: v.By}
		}),
	}
}

// ObjectOf is the inverse of ObjectPB.
func ObjectOf(m *commandv1.ObjectRecord) *Object {
	return &Object{
		Kind: m.GetKind(), Name: m.GetName(), Namespace: stored(m.GetNamespace()), CreatedAt: m.GetCreatedAt(), CreatedBy: m.GetCreatedBy(), Counter: m.GetCounter(), ModifyIndex: m.GetModifyIndex(),
		Versions: convert(m.GetVersions(), func(v *commandv1.ObjectVersion) ObjectVersion {
			return ObjectVersion{Number: v.GetNumber(), Data: bytes.Clone(v.GetData()), Size: v.GetSize(), From: v.GetFrom(), At: v.GetAt(), By: v.GetBy()}
		}),
	}
}

func (e *encoder) object(o *Object) {
	for _, s := range [...]string{o.Kind, o.Name, o.Namespace, o.CreatedBy} {
		e.str(s)
	}
	e.i64(o.CreatedAt)
	e.u64(o.Counter)
	e.u64(o.ModifyIndex)
	e.u64(uint64(len(o.Versions)))
	for i := range o.Versions {
		v := &o.Versions[i]
		e.u64(v.Number)
		e.u64(v.From)
		e.i64(v.Size)
		e.i64(v.At)
		e.str(v.By)
		sum := sha256.Sum256(v.Data)
		e.bytes(sum[:])
	}
}

// objects encodes the references of a workload to objects, and its update strategy, if it has any.
func (e *encoder) objects(w *Workload) {
	if len(w.Objects) > 0 {
		e.str("objects")
		e.str(w.SpecContent)
		e.u64(uint64(len(w.Objects)))
	}
	for _, u := range w.Objects {
		e.str(u.Kind)
		e.str(u.Name)
		e.u64(u.Version)
		e.bool(u.Keep)
		if u.Signal != "" {
			e.str(u.Signal)
		}
	}
	if p := w.Update; p != (rollout.Policy{}) {
		e.str("update")
		for _, n := range [...]int64{int64(p.MaxParallel), p.MinHealthy, p.Deadline, int64(p.Canary)} {
			e.i64(n)
		}
		e.bool(p.AutoRevert)
		e.bool(p.StartFirst)
	}
}

// mergeObjects merges the objects of the backup and of the present state in a restore. If both have
// an object, the present value stays the newest, and older versions of the backup are added, so
// that restored workloads find the versions that they use.
func (t *Tx) mergeObjects(backup, present State) {
	t.r.objects = duplicate(present.r.objects)
	t.r.info.ObjectFloor = max(backup.Info().ObjectFloor, present.Info().ObjectFloor)
	backup.Objects(func(o *Object) bool {
		if !t.state().HasNamespace(o.In()) {
			return true
		}
		now, known := t.r.objects.Get(o.key())
		merged := *o
		merged.ModifyIndex = t.meta.Index
		if known {
			merged = *now
			merged.Counter = max(now.Counter, o.Counter)
			merged.Versions = slices.Clone(now.Versions)
			first := now.Versions[0].Number
			var older []ObjectVersion
			for _, v := range o.Versions {
				if _, have := now.Version(v.Number); !have && v.Number < first {
					older = append(older, v)
				}
			}
			merged.Versions = append(older, merged.Versions...)
			for merged.bytes() > maxObjectRecord {
				merged.Versions = merged.Versions[1:]
			}
		} else {
			merged.Counter = max(o.Counter, t.r.info.ObjectFloor)
		}
		t.r.objects.Set(o.key(), &merged)
		return true
	})
}

// returnedObjects writes an event for each object that a restore has brought back.
func (t *Tx) returnedObjects(present State) {
	t.state().Objects(func(o *Object) bool {
		if _, known := present.r.objects.Get(o.key()); known {
			return true
		}
		n := strconv.FormatUint(o.Present().Number, 10)
		t.event(Event{Type: o.changedEvent(), Namespace: o.Namespace, Message: o.Name + " version " + n + " is back from the backup", Details: []Label{{"name", o.Name}, {"version", n}}})
		return true
	})
}

func (c *checker) objects() {
	c.s.Objects(func(o *Object) bool {
		key := o.key()
		_, stored := c.s.r.objects.Get(key)
		c.must(stored && objectFault(o.Kind, o.Name) == "", "%s %q is not stored under its key: %s", clip(o.Kind), clip(o.Name), objectFault(o.Kind, o.Name))
		c.must(c.s.HasNamespace(o.In()) && o.Namespace != DefaultNamespace, "%s %q is stored in namespace %q", o.Kind, clip(o.Name), clip(o.Namespace))
		c.must(len(o.Versions) > 0 && o.bytes() <= maxObjectRecord, "%s %q has %d versions of %d bytes", o.Kind, clip(o.Name), len(o.Versions), o.bytes())
		for i, v := range o.Versions {
			c.must(dataFault(o.Kind, v.Data, v.Size) == "", "version %d of %s %q: %s", v.Number, o.Kind, clip(o.Name), dataFault(o.Kind, v.Data, v.Size))
			c.must(v.Number > 0 && v.Number <= o.Counter && (i == 0 || o.Versions[i-1].Number < v.Number), "version %d of %s %q is out of order", v.Number, o.Kind, clip(o.Name))
		}
		return true
	})
	c.s.Workloads("", func(w *Workload) bool {
		c.must((len(w.Objects) > 0) == (w.SpecContent != ""), "workload %s uses %d objects, and the content of its specification is %q", w.ID, len(w.Objects), clip(w.SpecContent))
		if len(w.Objects) > 0 {
			c.must(w.Content == contentWithObjects(w.SpecContent, usesPB(w.Objects)), "the content of workload %s does not follow from its objects", w.ID)
			sorted := slices.IsSortedFunc(w.Objects, func(a, b ObjectUse) int {
				return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name))
			})
			c.must(sorted && len(w.Objects) <= MaxObjectUses, "workload %s has invalid references to %d objects", w.ID, len(w.Objects))
		}
		return true
	})
}
