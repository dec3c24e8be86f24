package fsm

import "slices"

// nowhere is an empty workload record, which reindex uses in place of a missing record: no index
// has an entry for it. nowhere never changes.
var nowhere = Bare("")

// reindex updates all indexes when record w of a workload replaces record old. Either may be nil.
// Keys are built only for entries that change.
func (t *Tx) reindex(old, w *Workload) {
	before, after := old, w
	if before == nil {
		before = nowhere
	}
	if after == nil {
		after = nowhere
	}
	t.count(old, w)
	t.useOf(old, w)
	if before.Node != after.Node {
		move(t, &t.r.byNode, ownByNode, keyIf(before.Node != "", before, byNodeKey), keyIf(after.Node != "", after, byNodeKey))
	}
	if before.Demand.Group != after.Demand.Group {
		move(t, &t.r.byGroup, ownByGroup, keyIf(before.Demand.Group != "", before, byGroupKey), keyIf(after.Demand.Group != "", after, byGroupKey))
	}
	if before.Owner != after.Owner {
		move(t, &t.r.byOwner, ownByOwner, keyIf(before.Owner != "", before, byOwnerKey), keyIf(after.Owner != "", after, byOwnerKey))
	}
	if before.ID != after.ID || before.Demand.Group != after.Demand.Group {
		fromID, fromGroup := labelKeys(before)
		toID, toGroup := labelKeys(after)
		if fromID != toID {
			move(t, &t.r.byLabel, ownByLabel, fromID, toID)
		}
		if fromGroup != toGroup {
			move(t, &t.r.byLabel, ownByLabel, fromGroup, toGroup)
		}
	}
	if is, was := ruled(after), ruled(before); is != was {
		move(t, &t.r.byRule, ownByRule, keyIf(was, before, workloadID), keyIf(is, after, workloadID))
	}
	if !slices.Equal(before.Demand.Volumes, after.Demand.Volumes) || before.ID != after.ID {
		t.indexVolumes(before, after)
	}
	if !slices.Equal(before.Demand.MACs, after.Demand.MACs) || before.ID != after.ID {
		t.indexMACs(before, after)
	}
	if !slices.Equal(before.Demand.Ingress, after.Demand.Ingress) || before.ID != after.ID {
		t.indexIngress(before, after)
	}
	if is, was := isUnacked(after), isUnacked(before); is != was {
		move(t, &t.r.unacked, ownUnacked, keyIf(was, before, workloadID), keyIf(is, after, workloadID))
	}
	if is, was := after.WantsPlace(), before.WantsPlace(); is != was || is && before.Demand.Priority != after.Demand.Priority {
		move(t, &t.r.pending, ownPending, keyIf(was, before, pendingKey), keyIf(is, after, pendingKey))
	}
	if before.Retry.NextAt != after.Retry.NextAt {
		move(t, &t.r.retryDue, ownRetryDue, keyIf(before.Retry.NextAt > 0, before, retryKey), keyIf(after.Retry.NextAt > 0, after, retryKey))
	}
	if before.PreemptedAt != after.PreemptedAt {
		move(t, &t.r.byPreemption, ownByPreemption, keyIf(before.PreemptedAt > 0, before, preemptionKey), keyIf(after.PreemptedAt > 0, after, preemptionKey))
	}
	if sameClaims(before, after) {
		return
	}
	if before.Node != "" {
		n, _ := t.r.nodes.Get(before.Node)
		t.claimWorkload(before, n, -1)
	}
	if after.Node != "" {
		n, _ := t.r.nodes.Get(after.Node)
		t.claimWorkload(after, n, +1)
	}
}

func move(t *Tx, ix **set, bit uint64, from, to string) {
	m := own(t, ix, bit)
	if from != "" {
		m.Delete(from)
	}
	if to != "" {
		m.Set(to, struct{}{})
	}
}

func keyIf(ok bool, w *Workload, key func(*Workload) string) string {
	if !ok {
		return ""
	}
	return key(w)
}

func byNodeKey(w *Workload) string  { return pair(w.Node, w.ID) }
func byGroupKey(w *Workload) string { return pair(w.Demand.Group, w.ID) }
func byOwnerKey(w *Workload) string { return pair(w.Owner, w.ID) }
func workloadID(w *Workload) string { return w.ID }

func isUnacked(w *Workload) bool { return w.Node != "" && !w.Acknowledged }

// WantsPlace reports whether w has no node and should be placed.
func (w *Workload) WantsPlace() bool {
	return w.Node == "" && w.Active() && !w.IsTemplate()
}

func (t *Tx) count(old, w *Workload) {
	if old != nil {
		if i := statusIndex(old.Status); i >= 0 {
			t.r.statuses[i]--
		}
	}
	if w != nil {
		if i := statusIndex(w.Status); i >= 0 {
			t.r.statuses[i]++
		}
	}
}

// sameClaims reports whether two versions of a workload claim the same node, resources and ports. If two
// workloads claim one port, the older generation has it, so a claim contains the generation, and a workload
// with ports has different claims after its generation changed.
func sameClaims(a, b *Workload) bool {
	if a.Node != b.Node {
		return false
	}
	if a.Node == "" {
		return true
	}
	x, y := a.Demand, b.Demand
	if x.CPU != y.CPU || x.Memory != y.Memory || x.Disk != y.Disk || x.Pool != y.Pool || len(x.Ports) != len(y.Ports) || !slices.Equal(x.Devices, y.Devices) {
		return false
	}
	if !slices.Equal(a.FormerPorts, b.FormerPorts) {
		return false
	}
	if len(x.Ports)+len(a.FormerPorts) == 0 {
		return true
	}
	if a.Generation != b.Generation {
		return false
	}
	for i := range x.Ports {
		if x.Ports[i] != y.Ports[i] {
			return false
		}
	}
	return true
}

// claimWorkload adds (sign +1) or removes (-1) the resources and ports that an assigned workload reserves on
// its node.
func (t *Tx) claimWorkload(w *Workload, n *Node, sign int) {
	t.claimPorts(n.Engine(), w.Demand.Ports, claimWanted, w.Generation, n.ID, w.ID, sign)
	t.claimPorts(n.Engine(), w.FormerPorts, claimFormer, w.Generation, n.ID, w.ID, sign)
	t.claimAmounts(n, w.Demand, sign, sign, 0, 0)
}

// claimResidual adds (sign +1) or removes (-1) the resources and ports that a residual, an instance which its node must
// still remove, reserves on the node.
func (t *Tx) claimResidual(r *Residual, n *Node, sign int) {
	t.claimPorts(r.Engine, r.Demand.Ports, claimLeft, r.Generation, r.Node, r.Workload, sign)
	t.claimAmounts(n, &r.Demand, sign, 0, sign, 0)
}

// claimsOf adds (sign +1) or removes (-1) what all workloads on a node reserve, and also its
// residuals (instances that the node must still remove) and moves of volumes.
func (t *Tx) claimsOf(n *Node, sign int) {
	for _, w := range t.workloadsOn(n.ID) {
		t.claimWorkload(w, n, sign)
	}
	for _, r := range t.residualsOn(n.ID) {
		t.claimResidual(r, n, sign)
	}
	for _, m := range t.movesReserving(n.ID) {
		t.claimMove(m, n, sign)
	}
}

// claimPorts adds (sign +1) or removes (-1) the reservations (claims) of host ports for a workload.
// g decides which claim to a port comes first.
func (t *Tx) claimPorts(engine string, list []HostPort, kind claimKind, g Generation, node, workload string, sign int) {
	if len(list) == 0 {
		return
	}
	ports := own(t, &t.r.ports, ownPorts)
	for _, p := range list {
		key := claimKey(engine, p, kind, g, node, workload)
		if sign > 0 {
			ports.Set(key, portClaim{workload, node, p.Address})
		} else {
			ports.Delete(key)
		}
	}
}

func (t *Tx) claimAmounts(n *Node, d *Demand, sign, workloads, residuals, moves int) {
	m := own(t, &t.r.alloc, ownAlloc)
	var a Alloc
	if old, ok := m.Get(n.ID); ok {
		a = *old
	}
	a.CPU += int64(sign) * d.CPU
	a.Memory += int64(sign) * d.Memory
	a.Workloads += workloads
	a.Residuals += residuals
	a.Moves += moves
	if d.Disk != 0 {
		a.Disk = addPool(a.Disk, n.pool(d.Pool), int64(sign)*d.Disk)
	}
	if len(d.Devices) > 0 {
		a.Devices = addDevices(a.Devices, d.Devices, sign)
	}
	if a.Workloads == 0 && a.Residuals == 0 && a.Moves == 0 {
		m.Delete(n.ID)
		return
	}
	m.Set(n.ID, &a)
}

// addPool returns a copy of the list old, in which gb is added to the reserved storage of one pool. It
// leaves out pools of which nothing is reserved.
func addPool(old []PoolUse, pool string, gb int64) []PoolUse {
	out := make([]PoolUse, 0, len(old)+1)
	done := false
	add := func(u PoolUse) {
		if u.GB != 0 {
			out = append(out, u)
		}
	}
	for _, u := range old {
		if !done && u.Pool >= pool {
			done = true
			if u.Pool == pool {
				add(PoolUse{pool, u.GB + gb})
				continue
			}
			add(PoolUse{pool, gb})
		}
		add(u)
	}
	if !done {
		add(PoolUse{pool, gb})
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// pool returns the name of a storage pool of the node; for "" it returns the name of the first pool.
func (n *Node) pool(name string) string {
	if name == "" && len(n.Facts.Pools) > 0 {
		return n.Facts.Pools[0].Name
	}
	return name
}
