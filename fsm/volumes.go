package fsm

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/fsm/quota"
	"github.com/persys/compute/order"
)

// A volume is storage that an agent manages for workloads (managed_volumes). Its record exists from the first
// apply that names it, or from `persysctl volume create`, until its data is deleted. The agents stay the owners of
// the data: they report the volumes that they hold, and the records follow these reports (ADR 71).
//
// A local volume is the data of one node, so each node has a record of its own for volumes with the
// same name. While a workload has no node, the record of its local volume has no node either. When
// the workload is placed, the record gets the same node. All nodes reach the volumes of other
// drivers, whose records have no node.

// DriverLocal is the driver of volumes that are stored on one node.
const DriverLocal = "local"

// MaxVolumes limits the volumes of one namespace: once it has this many, users cannot create more,
// and reports of nodes add no more. Volumes that specifications name are created all the same,
// because the number of workloads limits them.
const MaxVolumes = 10_000

// VolumeUse is one volume in the demand of a workload. The volume belongs to the workload's
// namespace.
type VolumeUse struct {
	Name, Driver string
	SizeGB       int64  // 0 = no limit, or the size of the volume that exists
	Pool         string // storage pool of a local volume; "" = the first pool of the node
	Retain       bool   // the volume is kept when the workload is deleted
}

// Volume is the record of one volume. A record in the state is never modified; a change stores a new record.
type Volume struct {
	Name, Driver string
	Namespace    string // "" = the default namespace
	Node         string // node that has the data of a local volume; "" = no node yet, or a driver that all nodes reach
	Pool         string
	SizeGB       int64  // GB; 0 = no limit
	Retain       bool   // kept when its workload is deleted
	ByHand       bool   // created by a user; it is kept until a user deletes it
	Held         bool   // the volume may have data: a node accepted an order that makes the volume, or has reported the volume
	Owner        string // workload whose volume it is; "" = none: its workload was deleted, or none has used it yet
	CreatedAt    int64  // Unix nanoseconds
	CreatedBy    string
	UnusedSince  int64 // time since which no workload uses the volume, Unix nanoseconds; 0 = a workload uses it
	ModifyIndex  uint64
	// Copy is the id of the move that made the copy in use, and Former that of the copy that the node of that move's
	// source keeps. Undone is the last move that was undone. All are zero for a volume that never moved.
	Copy, Former, Undone Generation
}

// In returns the name of the volume's namespace.
func (v *Volume) In() string { return cmp.Or(v.Namespace, DefaultNamespace) }

// Local reports whether only one node can reach the data of the volume.
func (v *Volume) Local() bool { return v.Driver == DriverLocal }

// Unbound reports whether the volume is local and has no node yet.
func (v *Volume) Unbound() bool { return v.Local() && v.Node == "" }

// Free reports whether any workload of the namespace may take the volume over.
func (v *Volume) Free() bool { return v.Owner == "" && v.UnusedSince != 0 }

func (v *Volume) key() string {
	place := v.Node
	if v.Unbound() {
		place = unboundMark + v.Owner // ids do not begin with this character
	}
	return volumeKey(v.In(), v.Name, v.Driver, place)
}

const unboundMark = "~"

// volumeKey returns the key of a volume in its table. Names contain no slash.
func volumeKey(namespace, name, driver, place string) string {
	return namespace + "/" + name + "/" + driver + "/" + place
}

func (v *Volume) amounts() quota.Amounts {
	if v == nil {
		return quota.Amounts{}
	}
	return quota.Amounts{Volumes: 1, VolumeGB: v.SizeGB}
}

// uses reports whether the workload uses the volume, provided that the workload is on the volume's
// node.
func (w *Workload) uses(v *Volume) bool {
	return w.In() == v.In() && w.Demand.uses(v)
}

func (d *Demand) uses(v *Volume) bool {
	if len(d.Volumes) == 0 {
		// The demand was stored by a version in which demands had no list of volumes. Such a demand
		// lists local volumes in LocalData.
		return v.Local() && slices.ContainsFunc(d.LocalData, func(l LocalData) bool { return l.Name == "volume "+v.Name })
	}
	return slices.ContainsFunc(d.Volumes, func(u VolumeUse) bool { return u.Name == v.Name && u.Driver == v.Driver })
}

// VolumeView is the part of View with the volumes.
type VolumeView interface {
	// VolumesNamed scans the volumes of a name in a namespace, by driver and node.
	VolumesNamed(namespace, name string, fn func(*Volume) bool)
}

// VolumesNamed scans the volumes of a name in a namespace, by driver and node.
func (s State) VolumesNamed(namespace, name string, fn func(*Volume) bool) {
	eachUnder(s.r.volumes, namespace+"/"+name+"/", func(_ string, v *Volume) bool { return fn(v) })
}

// Volumes scans all volumes, by namespace, name, driver and node.
func (s State) Volumes(fn func(*Volume) bool) {
	s.r.volumes.Scan(func(_ string, v *Volume) bool { return fn(v) })
}

// Volume returns one volume. node is "" for a driver that all nodes reach.
func (s State) Volume(namespace, name, driver, node string) (*Volume, bool) {
	return s.r.volumes.Get(volumeKey(cmp.Or(namespace, DefaultNamespace), name, driver, node))
}

// UsersOfVolume returns the ids of the workloads that use a volume, sorted. Workloads of which the
// node of a local volume must still remove an instance are included.
func (s State) UsersOfVolume(v *Volume) (users []string) {
	switch {
	case v.Unbound():
		if w, ok := s.r.workloads.Get(v.Owner); ok && w.Node == "" && w.Desired != DesiredDeleted && w.uses(v) {
			users = append(users, w.ID)
		}
	case v.Local():
		s.WorkloadsOn(v.Node, func(w *Workload) bool {
			if w.uses(v) {
				users = append(users, w.ID)
			}
			return true
		})
		s.Residuals(v.Node, func(r *Residual) bool {
			// An instance that the node must still remove (residual) has no namespace in its record. If the record of
			// its workload is gone too, assume that it uses the volume.
			w, ok := s.r.workloads.Get(r.Workload)
			if r.Demand.uses(v) && (!ok || w.In() == v.In()) {
				users = append(users, r.Workload)
			}
			return true
		})
		slices.Sort(users)
		users = slices.Compact(users)
	default:
		prefix := volumeKey(v.In(), v.Name, v.Driver, "")
		eachUnder(s.r.byVolume, prefix, func(k string, _ struct{}) bool {
			users = append(users, k[len(prefix):])
			return true
		})
	}
	return users
}

// volumeFor returns the existing volume that a workload has, or would get on a node, for volume use
// u; nil if a new volume would be created. node is "" while the workload has none.
func volumeFor(v VolumeView, namespace, workload, node string, u VolumeUse) (found *Volume) {
	rank := func(x *Volume) int {
		switch {
		case x.Driver != u.Driver:
		case !x.Local():
			return 4
		case x.Unbound() && x.Owner == workload:
			return 3
		case node != "":
			if x.Node == node {
				return 4
			}
			if x.Unbound() && x.Owner == "" {
				return 1
			}
		case x.Node != "" && x.Owner == workload:
			return 4
		case x.Unbound() && x.Owner == "":
			return 2
		case x.Node != "" && x.Free():
			return 1
		}
		return 0
	}
	best := 0
	v.VolumesNamed(namespace, u.Name, func(x *Volume) bool {
		if r := rank(x); r > best {
			found, best = x, r
		}
		return best < 4
	})
	return found
}

// volumesBy returns by how much storing p increases the number and the size of the volumes of namespace in. counted
// has the keys of the volumes without a node (of network drivers) that earlier workloads of the same command create,
// so that none is counted twice.
func volumesBy(v VolumeView, in string, p *commandv1.WorkloadPut, old *Workload, counted *[]string) (by quota.Amounts) {
	if p.GetDemand().GetTemplate() != nil {
		return by // a template is not placed
	}
	node := ""
	if old != nil {
		node = old.Node
	}
	for _, m := range p.GetDemand().GetVolumes() {
		u := volumeUseOf(m)
		if have := volumeFor(v, in, p.GetId(), node, u); have != nil {
			by.VolumeGB += max(0, u.SizeGB-have.SizeGB)
			continue
		}
		if u.Driver != DriverLocal {
			key := volumeKey(in, u.Name, u.Driver, "")
			if slices.Contains(*counted, key) {
				continue
			}
			*counted = append(*counted, key)
		}
		by = by.Plus(quota.Amounts{Volumes: 1, VolumeGB: u.SizeGB})
	}
	return by
}

// ownVolumes returns the number and the size of the volumes that are created for each further
// member of a group with this demand.
func (d *Demand) ownVolumes() (a quota.Amounts) {
	for _, u := range d.Volumes {
		if u.Driver == DriverLocal {
			a.Volumes, a.VolumeGB = a.Volumes+1, a.VolumeGB+u.SizeGB
		}
	}
	return a
}

// indexVolumes updates the index of the users of volumes when record w of a workload replaces
// record old.
func (t *Tx) indexVolumes(old, w *Workload) {
	m := own(t, &t.r.byVolume, ownByVolume)
	if !old.IsTemplate() {
		for _, u := range old.Demand.Volumes {
			m.Delete(volumeKey(old.In(), u.Name, u.Driver, old.ID))
		}
	}
	if !w.IsTemplate() {
		for _, u := range w.Demand.Volumes {
			m.Set(volumeKey(w.In(), u.Name, u.Driver, w.ID), struct{}{})
		}
	}
}

// storeVolume stores v in place of old. Either may be nil. It updates the use of the namespace.
func (t *Tx) storeVolume(old, v *Volume) {
	m := own(t, &t.r.volumes, ownVolumes)
	c := Change{Table: TableVolume, Old: old, New: v}
	if old != nil {
		c.Key = old.key()
		m.Delete(c.Key)
		t.countVolume(old.In(), -1, quota.Amounts{}.Minus(old.amounts()))
	}
	if v != nil {
		v.ModifyIndex = t.meta.Index
		if key := v.key(); old != nil && key != c.Key {
			t.changes = append(t.changes, Change{Table: TableVolume, Key: c.Key, Old: old})
			c.Old, c.Key = (*Volume)(nil), key
		} else {
			c.Key = key
		}
		m.Set(c.Key, v)
		t.countVolume(v.In(), +1, v.amounts())
	}
	t.changes = append(t.changes, c)
}

// countVolume adds a number of volume records and the amounts by to the recorded use of a namespace. Both are
// negative when a volume is removed.
func (t *Tx) countVolume(namespace string, records int64, by quota.Amounts) {
	t.countBytes(namespace, records*volumeBytes, 0)
	m := own(t, &t.r.uses, ownUses)
	u := t.state().UseOf(namespace)
	u.Amounts = u.Plus(by)
	if u == (Use{}) {
		m.Delete(namespace)
		return
	}
	m.Set(namespace, &u)
}

// followVolumes keeps the records of volumes and their users in step with a workload: w replaces old. w is nil if the
// record was removed for good.
func (t *Tx) followVolumes(old, w *Workload) {
	before, after := old, w
	if before == nil {
		before = nowhere
	}
	if after == nil {
		after = nowhere
	}
	if len(before.Demand.Volumes)+len(after.Demand.Volumes) == 0 {
		return
	}
	if w != nil && old != nil && old.Node == w.Node && old.Demand == w.Demand && old.Desired == w.Desired {
		return
	}
	if w != nil && w.Desired != DesiredDeleted && !w.IsTemplate() {
		for _, u := range w.Demand.Volumes {
			if v := t.takeVolume(w, u); v != nil {
				t.event(v.event(EventVolumeCreated, w.ID, "for workload "+w.ID))
			}
		}
	}
	if old == nil || old.IsTemplate() {
		return
	}
	keep := old.KeepVolumes || w != nil && w.KeepVolumes
	for _, u := range old.Demand.Volumes {
		kept := w != nil && slices.ContainsFunc(w.Demand.Volumes, func(o VolumeUse) bool { return o.Name == u.Name && o.Driver == u.Driver })
		place, gone := "", w == nil
		if u.Driver == DriverLocal {
			gone = gone || w.Desired == DesiredDeleted
			kept = kept && !gone && old.Node == w.Node
			if place = old.Node; place == "" {
				place = unboundMark + old.ID
			}
		}
		if kept {
			continue
		}
		if v, ok := t.r.volumes.Get(volumeKey(old.In(), u.Name, u.Driver, place)); ok {
			t.leaveVolume(v, old.ID, gone, keep)
		}
	}
}

// takeVolume gives w the volume for use u: an existing volume, or a new one. It returns the record
// only if it is new.
func (t *Tx) takeVolume(w *Workload, u VolumeUse) *Volume {
	old := volumeFor(t.state(), w.In(), w.ID, w.Node, u)
	if old != nil && w.Node == "" && old.Local() && !(old.Unbound() && old.Owner == w.ID) {
		return nil // w gets this volume when it is placed on the volume's node
	}
	v := Volume{Name: strings.Clone(u.Name), Namespace: w.Namespace, Driver: u.Driver, CreatedAt: t.r.info.Clock, CreatedBy: t.by}
	if old != nil {
		v = *old
	}
	if v.Local() {
		v.Node = w.Node
		if v.Pool == "" {
			v.Pool = u.Pool
		}
		// If another workload has created the volume on this node already, w uses that volume. The
		// record without a node, which w had before it was placed, is dropped.
		if mine, ok := t.r.volumes.Get(volumeKey(w.In(), u.Name, u.Driver, unboundMark+w.ID)); ok && mine != old {
			t.storeVolume(mine, nil)
		}
	}
	// The last user of a volume decides whether the volume is kept. Agents follow the same rule.
	v.Owner, v.Retain = w.ID, u.Retain || v.ByHand
	v.SizeGB, v.UnusedSince = max(v.SizeGB, u.SizeGB), 0
	if old == nil {
		t.storeVolume(nil, &v)
		return &v
	}
	if v != *old {
		t.storeVolume(old, &v)
	}
	return nil
}

// leaveVolume ends the use of v by a workload. gone is true if the workload is deleted, and false if it moved to
// another node or no longer names the volume. With keep, the volume of a deleted workload is kept whatever its
// policy.
func (t *Tx) leaveVolume(v *Volume, workload string, gone, keep bool) {
	users := t.state().UsersOfVolume(v)
	if len(users) > 0 {
		if v.Owner == workload && !slices.Contains(users, workload) {
			next := *v
			next.Owner = users[0]
			t.storeVolume(v, &next)
		}
		return
	}
	switch {
	case v.ByHand:
	case v.Unbound(), !v.Held, gone && !v.Retain && !keep:
		t.storeVolume(v, nil)
		t.event(v.event(EventVolumeDeleted, "", "with workload "+workload))
		return
	}
	next := *v
	next.UnusedSince = t.r.info.Clock
	if gone {
		next.Owner, next.Retain = "", v.Retain || keep
	}
	if next == *v {
		return
	}
	t.storeVolume(v, &next)
	if gone {
		t.event(v.event(EventVolumeKept, "", "its workload "+workload+" was deleted"))
	}
}

// leaveResidual is called when a node has removed an instance that it had to remove (residual). It
// ends the instance's use of volumes.
func (t *Tx) leaveResidual(r *Residual) {
	if len(r.Demand.Volumes) == 0 {
		return
	}
	w, ok := t.r.workloads.Get(r.Workload)
	if !ok {
		return // a workload that was deleted by force; the next report of the node settles its volumes
	}
	for _, u := range r.Demand.Volumes {
		if v, ok := t.r.volumes.Get(volumeKey(w.In(), u.Name, u.Driver, r.Node)); ok && v.Local() {
			t.leaveVolume(v, w.ID, w.Desired == DesiredDeleted, r.KeepVolumes)
		}
	}
}

// keepVolumesOf says on each residual of a deleted workload whether its node keeps the volumes that have a name.
func (t *Tx) keepVolumesOf(workload string, keep bool) {
	var changed []*Residual
	t.state().ResidualsOf(workload, func(r *Residual) bool {
		if r.KeepVolumes != keep {
			changed = append(changed, r)
		}
		return true
	})
	for _, old := range changed {
		r := *old
		r.KeepVolumes = keep
		t.putResidual(&r)
	}
}

// holdVolumes records that the volumes of w may have data, because its node has accepted an order.
func (t *Tx) holdVolumes(w *Workload) {
	for _, u := range w.Demand.Volumes {
		node := ""
		if u.Driver == DriverLocal {
			node = w.Node
		}
		if v, ok := t.state().Volume(w.In(), u.Name, u.Driver, node); ok && !v.Held {
			next := *v
			next.Held = true
			t.storeVolume(v, &next)
		}
	}
}

// dropVolumesOf removes the records of the local volumes of a node that is removed. If the machine
// registers again, it reports its volumes, and they get records again.
func (t *Tx) dropVolumesOf(node string) {
	for _, v := range t.r.volumes.Values() {
		if v.Node == node {
			t.storeVolume(v, nil)
			t.event(v.event(EventVolumeDeleted, "", "its node was removed"))
		}
	}
}

// event returns an event about the volume.
func (v *Volume) event(kind, workload, message string) Event {
	size := ""
	if v.SizeGB > 0 {
		size = strconv.FormatInt(v.SizeGB, 10)
	}
	return Event{
		Type: kind, Workload: workload, Node: v.Node, Namespace: v.Namespace, Message: v.Driver + " volume " + v.Name + suffix(": ", message),
		Details: details(Label{"driver", v.Driver}, Label{"name", v.Name}, Label{"size_gb", size}),
	}
}

func volumeUseOf(m *commandv1.VolumeUse) VolumeUse {
	return VolumeUse{Name: strings.Clone(m.GetName()), Driver: volumeDriver(m.GetDriver()), SizeGB: m.GetSizeGb(), Pool: strings.Clone(m.GetPool()), Retain: m.GetRetain()}
}

// volumeDriver returns the constant that equals a driver's name, so that a record does not keep a command in memory.
func volumeDriver(s string) string {
	if i := slices.Index(bounds.VolumeDrivers[:], s); i >= 0 {
		return bounds.VolumeDrivers[i]
	}
	return strings.Clone(s)
}

func volumeUsePB(u VolumeUse) *commandv1.VolumeUse {
	return &commandv1.VolumeUse{Name: u.Name, Driver: u.Driver, SizeGb: u.SizeGB, Pool: u.Pool, Retain: u.Retain}
}

// VolumePB returns the record of v in a snapshot.
func VolumePB(v *Volume) *commandv1.VolumeRecord {
	return &commandv1.VolumeRecord{
		Name: v.Name, Namespace: v.Namespace, Driver: v.Driver, Node: v.Node, SizeGb: v.SizeGB, Pool: v.Pool, Retain: v.Retain, ByHand: v.ByHand, Held: v.Held,
		Owner: v.Owner, CreatedAt: v.CreatedAt, CreatedBy: v.CreatedBy, UnusedSince: v.UnusedSince, ModifyIndex: v.ModifyIndex,
		Copy: copyPB(v.Copy), Former: copyPB(v.Former), Undone: copyPB(v.Undone),
	}
}

// copyPB encodes the id of a copy; nil for a volume that never moved.
func copyPB(g Generation) *commandv1.Generation {
	if g.IsZero() {
		return nil
	}
	return GenerationPB(g)
}

// VolumeOf is the inverse of VolumePB.
func VolumeOf(m *commandv1.VolumeRecord) *Volume {
	return &Volume{
		Name: m.GetName(), Namespace: stored(m.GetNamespace()), Driver: volumeDriver(m.GetDriver()), Node: m.GetNode(), SizeGB: m.GetSizeGb(), Pool: m.GetPool(),
		Retain: m.GetRetain(), ByHand: m.GetByHand(), Held: m.GetHeld(), Owner: m.GetOwner(), CreatedAt: m.GetCreatedAt(), CreatedBy: m.GetCreatedBy(),
		UnusedSince: m.GetUnusedSince(), ModifyIndex: m.GetModifyIndex(),
		Copy: order.GenerationOf(m.GetCopy()), Former: order.GenerationOf(m.GetFormer()), Undone: order.GenerationOf(m.GetUndone()),
	}
}

func (e *encoder) volume(v *Volume) {
	for _, s := range [...]string{v.Name, v.Namespace, v.Driver, v.Node, v.Pool, v.Owner, v.CreatedBy} {
		e.str(s)
	}
	for _, n := range [...]int64{v.SizeGB, v.CreatedAt, v.UnusedSince} {
		e.i64(n)
	}
	for _, is := range [...]bool{v.Retain, v.ByHand, v.Held} {
		e.bool(is)
	}
	e.u64(v.ModifyIndex)
	if !v.Copy.IsZero() || !v.Former.IsZero() || !v.Undone.IsZero() {
		e.str("copy")
		e.generation(v.Copy)
		e.generation(v.Former)
		e.generation(v.Undone)
	}
}

// volumeUses encodes the volumes of a demand, if it has any.
func (e *encoder) volumeUses(list []VolumeUse) {
	if len(list) == 0 {
		return
	}
	e.str("volumes")
	e.u64(uint64(len(list)))
	for _, u := range list {
		e.str(u.Name)
		e.str(u.Driver)
		e.i64(u.SizeGB)
		e.str(u.Pool)
		e.bool(u.Retain)
	}
}
