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

// This file has the commands about volumes, their restore, and their check; volumes.go has the records.

// volumeFault describes the first invalid field of a command about a volume; "" if there is none.
func volumeFault(name, driver, pool, node string, size int64) string {
	switch {
	case !bounds.ValidID(name):
		return "name: " + quoted(name) + " does not match " + bounds.IDRule
	case !slices.Contains(bounds.VolumeDrivers[:], driver):
		return "driver: " + quoted(driver) + " is none of " + strings.Join(bounds.VolumeDrivers[:], ", ")
	case size < 0 || size > bounds.MaxDisk:
		return "size_gb: " + strconv.FormatInt(size, 10) + " is not in 0.." + strconv.FormatInt(bounds.MaxDisk, 10)
	case driver != DriverLocal && pool != "":
		return "pool: only local volumes are in a pool of a node, and the driver is " + driver
	case driver != DriverLocal && node != "":
		return "node: only local volumes are on one node, and the driver is " + driver
	case pool != "" && !bounds.ValidID(pool):
		return "pool: " + quoted(pool) + " does not match " + bounds.IDRule
	}
	return ""
}

// createVolume creates the record of a volume at the request of a user. An agent creates the volume
// itself when a workload first uses it.
func (t *Tx) createVolume(b *commandv1.PutVolume) Result {
	v := &Volume{
		Name: strings.Clone(b.GetName()), Namespace: strings.Clone(stored(b.GetNamespace())), Driver: volumeDriver(cmp.Or(b.GetDriver(), DriverLocal)),
		Node: strings.Clone(b.GetNode()), Pool: strings.Clone(b.GetPool()), SizeGB: b.GetSizeGb(), Retain: true, ByHand: true,
		CreatedAt: t.r.info.Clock, CreatedBy: t.by, UnusedSince: t.r.info.Clock,
	}
	if res, ok := t.mayUse("volume", v.Name, v.In()); !ok {
		return res
	}
	if fault := volumeFault(v.Name, v.Driver, v.Pool, v.Node, v.SizeGB); fault != "" {
		return refuse(Invalid, "%s", fault)
	}
	n, ok := t.state().Namespace(v.In())
	if !ok {
		return refuse(NotFound, "namespace %q does not exist: persysctl namespace list shows them", clip(v.In()))
	}
	if v.Node != "" {
		on, ok := t.r.nodes.Get(v.Node)
		if !ok {
			return noNode(v.Node)
		}
		if v.Pool != "" && !slices.ContainsFunc(on.Facts.Pools, func(p Pool) bool { return p.Name == v.Pool }) {
			return refuse(Invalid, "pool: node %q has no storage pool %q: persysctl node %s shows its pools", on.ID, v.Pool, on.ID)
		}
		if why := t.barredFrom(n, on); why != "" {
			return refuse(Conflict, "node: %s", why)
		}
	} else if v.Pool != "" && !t.state().somePool(v.Pool) {
		return refuse(Invalid, "pool: no node has a storage pool %q: persysctl node NODE shows the pools of a node", v.Pool)
	}
	if old, known := t.r.volumes.Get(v.key()); known {
		return refuse(Conflict, "%s exists already in namespace %q: choose another name, or delete it first (persysctl volume rm %s)", old.text(), v.In(), v.Name)
	}
	if m := MoveOf(t.state(), v.In(), v.Name, v.Node); m != nil {
		return refuse(Conflict, "%s", m.inProgress())
	}
	if t.state().UseOf(v.In()).Volumes >= MaxVolumes {
		return refuse(Conflict, "namespace %q has %d volumes or more, so no further one can be created by hand: delete some (persysctl volume rm)", v.In(), MaxVolumes)
	}
	if over := quota.Excess(t.state().UseOf(n.Name).Amounts, v.amounts(), n.Quota); over != "" {
		return refuse(OverQuota, "over the quota of namespace %q: %s", n.Name, over)
	}
	t.storeVolume(nil, v)
	t.event(v.event(EventVolumeCreated, "", "by request"))
	return Result{}
}

// barredFrom returns why no workload of namespace in may run on node n; "" if workloads may.
func (t *Tx) barredFrom(in *Namespace, n *Node) string {
	if l, misses := n.MissesLabel(in.NodeLabels); misses {
		return "namespace " + quoted(in.Name) + " requires nodes with " + l.Key + "=" + l.Value + ", and node " + n.ID + " does not have that label"
	}
	return ""
}

// somePool reports whether any node has a storage pool with this name.
func (s State) somePool(name string) (found bool) {
	s.Nodes("", func(n *Node) bool {
		found = slices.ContainsFunc(n.Facts.Pools, func(p Pool) bool { return p.Name == name })
		return !found
	})
	return found
}

// text names the volume and its node in messages.
func (v *Volume) text() string {
	return v.Driver + " volume " + quoted(v.Name) + suffix(" of node ", v.Node)
}

// InUse is the text of the refusal to delete a volume that workloads use.
func (v *Volume) InUse(users []string) string {
	return v.text() + " is used by " + DataText(users) + ": apply them without it, or delete them, first"
}

// deleteVolume deletes the record of a volume, and refuses if a workload uses the volume.
func (t *Tx) deleteVolume(b *commandv1.DeleteVolume) Result {
	in := cmp.Or(b.GetNamespace(), DefaultNamespace)
	if res, ok := t.mayUse("volume", b.GetName(), in); !ok {
		return res
	}
	place := b.GetNode()
	if place == "" && b.GetDriver() == DriverLocal {
		place = unboundMark
	}
	if m := MoveOf(t.state(), in, b.GetName(), b.GetNode()); m != nil && b.GetDriver() == DriverLocal {
		return refuse(Conflict, "%s", m.inProgress())
	}
	v, ok := t.r.volumes.Get(volumeKey(in, b.GetName(), b.GetDriver(), place))
	if !ok {
		return refuse(NotFound, "volume %q does not exist in namespace %q: persysctl volume list shows them", clip(b.GetName()), clip(in))
	}
	if users := t.state().UsersOfVolume(v); len(users) > 0 {
		return refuse(Conflict, "%s", v.InUse(users))
	}
	t.storeVolume(v, nil)
	t.event(v.event(EventVolumeDeleted, "", "by request"))
	return Result{}
}

// reportView is the part of View that the functions need which compare a node's report of volumes
// with the state.
type reportView interface {
	Node(id string) (*Node, bool)
	Namespace(name string) (*Namespace, bool)
	Volume(namespace, name, driver, node string) (*Volume, bool)
	Workload(id string) (*Workload, bool)
	UsersOfVolume(v *Volume) []string
	Volumes(fn func(*Volume) bool)
	UseOf(namespace string) Use
	WorkloadsOn(node string, fn func(*Workload) bool)
	Residuals(node string, fn func(*Residual) bool)
}

// MaxStrayVolumes is the maximum number of strays of one node. A stray is the record of a volume that the node
// reported, and whose namespace has no workload on the node. A node that was removed and registers again reports such
// volumes. But a node could also invent volumes, to use up the quotas of other namespaces. So strays are local
// volumes only, and take at most half of a quota.
const MaxStrayVolumes = 64

// strays decides which new records of volumes a report of a node may make.
type strays struct {
	s     reportView
	node  string
	here  *set // namespaces with a workload on the node; nil until it is needed
	count int
	added quota.Amounts // sum of the strays that this report adds, in all namespaces
}

func (x *strays) admit(v *Volume) bool {
	if x.here == nil {
		x.look()
	}
	if _, ok := x.here.Get(v.In()); ok {
		return true
	}
	n, _ := x.s.Namespace(v.In())
	half := quota.Amounts{Volumes: (n.Quota.Volumes + 1) / 2, VolumeGB: (n.Quota.VolumeGB + 1) / 2}
	by := x.added.Plus(v.amounts())
	if !v.Local() || x.count >= MaxStrayVolumes || quota.Excess(x.s.UseOf(v.In()).Amounts, by, half) != "" {
		return false
	}
	x.count, x.added = x.count+1, by
	return true
}

func (x *strays) look() {
	x.here = tree[string, struct{}]()
	x.s.WorkloadsOn(x.node, func(w *Workload) bool {
		x.here.Set(w.In(), struct{}{})
		return true
	})
	x.s.Residuals(x.node, func(r *Residual) bool {
		if w, ok := x.s.Workload(r.Workload); ok {
			x.here.Set(w.In(), struct{}{})
		}
		return true
	})
	x.s.Volumes(func(v *Volume) bool {
		if _, ok := x.here.Get(v.In()); v.Node == x.node && !ok {
			x.count++
		}
		return true
	})
}

// ChangesVolumes reports whether a report of a node would change a record of a volume. The leader proposes only such
// reports.
func ChangesVolumes(s reportView, b *commandv1.ReportVolumes) bool {
	changes := false
	volumeChanges(s, b, 1, func(_, _ *Volume) bool {
		changes = true
		return false
	})
	return changes
}

// volumeChanges calls change for each record of a volume that a report changes, until change returns
// false. old is nil for a new record. next is nil for a record to delete: the node's report is
// complete and does not list the volume, no workload uses the volume, and no user created it.
// Records of another node never change. The state s must not change during the call.
func volumeChanges(s reportView, b *commandv1.ReportVolumes, at int64, change func(old, next *Volume) bool) {
	if _, ok := s.Node(b.GetNode()); !ok {
		return
	}
	added := tree[string, int64]() // new records of each namespace
	stray := strays{s: s, node: b.GetNode()}
	listed := tree[string, struct{}]()
	for _, h := range b.GetVolumes() {
		v := &Volume{
			Name: strings.Clone(h.GetName()), Namespace: strings.Clone(stored(h.GetNamespace())), Driver: volumeDriver(h.GetDriver()), Pool: strings.Clone(h.GetPool()),
			SizeGB: h.GetSizeGb(), Retain: h.GetRetain() || h.GetByHand(), ByHand: h.GetByHand(), Held: true, CreatedAt: at,
			Copy: order.GenerationOf(h.GetCopy()),
		}
		if v.Local() {
			v.Node = b.GetNode()
		}
		if _, ok := s.Namespace(v.In()); !ok || volumeFault(v.Name, v.Driver, v.Pool, v.Node, v.SizeGB) != "" {
			continue
		}
		if _, twice := listed.Set(v.key(), struct{}{}); twice {
			continue
		}
		old, known := s.Volume(v.In(), v.Name, v.Driver, v.Node)
		if known && !v.Local() {
			continue // other nodes report the volume too
		}
		if h.GetAside() {
			continue // a copy that is not in use: it keeps a record, but makes none
		}
		if w, ok := s.Workload(h.GetOwner()); ok && w.In() == v.In() {
			v.Owner = w.ID
		}
		if known {
			reported := v
			v = new(Volume)
			*v = *old
			v.SizeGB, v.Held = reported.SizeGB, true
			if v.Copy.Less(reported.Copy) { // the node was removed and has registered again, or a backup was restored
				v.Copy, v.Former = reported.Copy, Generation{}
			}
			v.Pool = cmp.Or(reported.Pool, v.Pool)
			v.ByHand, v.Retain = v.ByHand || reported.ByHand, v.Retain || reported.ByHand
			if w, ok := s.Workload(v.Owner); !ok || w.In() != v.In() {
				v.Owner = ""
			}
		} else {
			n, _ := added.Get(v.In())
			if s.UseOf(v.In()).Volumes+n >= MaxVolumes || !stray.admit(v) {
				continue
			}
			added.Set(v.In(), n+1)
		}
		if used := len(s.UsersOfVolume(v)) > 0; used == (v.UnusedSince != 0) {
			v.UnusedSince = 0
			if !used {
				v.UnusedSince = at
			}
		}
		if (!known || *v != *old) && !change(old, v) {
			return
		}
	}
	if b.GetComplete() {
		s.Volumes(func(v *Volume) bool {
			if v.Node != b.GetNode() {
				return true
			}
			if _, ok := listed.Get(v.key()); ok || len(s.UsersOfVolume(v)) > 0 {
				return true
			}
			switch next := *v; {
			case !v.ByHand:
				return change(v, nil)
			case v.Held || v.UnusedSince == 0:
				next.Held, next.UnusedSince = false, cmp.Or(v.UnusedSince, at)
				return change(v, &next)
			}
			return true
		})
	}
}

// reportVolumes updates the records of volumes with the report of a node.
func (t *Tx) reportVolumes(b *commandv1.ReportVolumes) Result {
	if _, ok := t.r.nodes.Get(b.GetNode()); !ok {
		return noNode(b.GetNode())
	}
	type pair struct{ old, next *Volume }
	var changes []pair
	volumeChanges(t.state(), b, t.r.info.Clock, func(old, next *Volume) bool {
		changes = append(changes, pair{old, next})
		return true
	})
	for _, c := range changes {
		t.storeVolume(c.old, c.next)
		switch {
		case c.old == nil:
			t.event(c.next.event(EventVolumeCreated, "", "reported by its node"))
		case c.next == nil:
			t.event(c.old.event(EventVolumeDeleted, "", "its node does not have it any more"))
		}
	}
	return Result{}
}

// restoreVolumes merges the volumes of a backup and of the present state. A present record is kept.
// If the record in the backup says that a user created the volume, or that the volume outlives its
// workload, the present record takes this over. So it does with the former copy and the undone moves of the
// same copy. Records of nodes that the state does not have are
// left out: such a node reports its volumes when it registers. settleVolumes then gives the
// restored workloads their volumes.
func (t *Tx) restoreVolumes(backup, present State, fresh bool) {
	t.r.volumes = tree[string, *Volume]()
	for _, from := range []State{present, backup} {
		from.Volumes(func(old *Volume) bool {
			have, known := t.r.volumes.Get(old.key())
			if known {
				v := *have
				if v.ByHand, v.Retain = v.ByHand || old.ByHand, v.Retain || old.Retain; old.ByHand && !have.ByHand {
					v.CreatedAt, v.CreatedBy = old.CreatedAt, old.CreatedBy
				}
				if v.Copy == old.Copy { // nodes report neither the former copy nor the moves that were undone
					if v.Undone.Less(old.Undone) {
						v.Undone = old.Undone
					}
					if v.Former.IsZero() {
						v.Former = old.Former
					}
				}
				if v != *have {
					v.ModifyIndex = t.meta.Index
					t.r.volumes.Set(v.key(), &v)
				}
			}
			_, node := t.r.nodes.Get(old.Node)
			if known || t.movedAway(old) && !(fresh && sourceOf(backup, old)) || !t.state().HasNamespace(old.In()) || old.Node != "" && !node || old.Unbound() && !old.ByHand {
				return true
			}
			v := *old
			v.ModifyIndex = t.meta.Index
			t.r.volumes.Set(v.key(), &v)
			return true
		})
	}
}

// sourceOf reports whether a volume is the copy of the node From of a move.
func sourceOf(v MoveView, old *Volume) bool {
	m := MoveOf(v, old.In(), old.Name, old.Node)
	return m != nil && m.From == old.Node
}

// movedAway reports whether a record of a backup is about a copy of a volume that was moved to another node since the
// backup was made.
func (t *Tx) movedAway(old *Volume) (moved bool) {
	t.state().VolumesNamed(old.In(), old.Name, func(v *Volume) bool {
		moved = v.Driver == old.Driver && v.Node != old.Node && old.Copy.Less(v.Copy)
		return !moved
	})
	return moved
}

// settleVolumes is called after a restore. It gives each workload its volumes, existing or new ones, and
// records which volumes are used.
func (t *Tx) settleVolumes() {
	for _, w := range t.r.workloads.Values() {
		if w.Desired == DesiredDeleted || w.IsTemplate() {
			continue
		}
		for _, u := range w.Demand.Volumes {
			t.takeVolume(w, u)
		}
		if w.Acknowledged {
			t.holdVolumes(w)
		}
	}
	for _, v := range t.r.volumes.Values() {
		next := *v
		if users := t.state().UsersOfVolume(v); len(users) > 0 {
			next.UnusedSince = 0
		} else {
			next.UnusedSince = cmp.Or(v.UnusedSince, t.r.info.Clock)
		}
		if next != *v {
			t.storeVolume(v, &next)
		}
	}
}

func (c *checker) volumes() {
	c.s.r.volumes.Scan(func(key string, v *Volume) bool {
		fault := volumeFault(v.Name, v.Driver, v.Pool, v.Node, v.SizeGB)
		c.must(v.key() == key && fault == "", "volume %q is stored under %q: %s", clip(v.key()), clip(key), fault)
		c.must(c.s.HasNamespace(v.In()) && v.Namespace != DefaultNamespace, "volume %q is stored in namespace %q", clip(key), clip(v.Namespace))
		_, ok := c.s.r.nodes.Get(v.Node)
		c.must(v.Node == "" || ok, "volume %s is on node %q, which does not exist", clip(key), clip(v.Node))
		c.must(!v.Unbound() || !v.Held && v.ByHand == (v.Owner == ""), "volume %s without a node has owner %q", clip(key), clip(v.Owner))
		return true
	})
	c.s.Workloads("", func(w *Workload) bool {
		for _, u := range w.Demand.Volumes {
			if w.Desired == DesiredDeleted || w.IsTemplate() {
				break
			}
			node := w.Node
			if u.Driver != DriverLocal {
				node = ""
			} else if node == "" {
				continue
			}
			v, ok := c.s.Volume(w.In(), u.Name, u.Driver, node)
			c.must(ok && v.UnusedSince == 0, "workload %s on node %q has no record of %s volume %q, or one that nothing uses", w.ID, w.Node, u.Driver, clip(u.Name))
		}
		return true
	})
}
