package fsm

import "encoding/binary"

// The digest is a running hash. Apply adds the log index of each command, the number of the command's type,
// the verdict, and every record that the command created or changed. Replicas compare their digests at the
// same index and the same feature level. If two digests differ, one of the replicas has diverged.
//
// The encoding is written by hand because the bytes of protobuf are not stable across versions.
// A new field is added at the end of its record and needs a new feature level.

// fold adds one applied command to the digest.
func (t *Tx) fold(c Command, res Result) {
	e := encoder(t.scratch[:0])
	info := &t.r.info
	t.hash.Reset()
	e.u64(info.Digest)
	e.u64(t.meta.Index)
	e.u64(uint64(armOf(c).rule().number))
	e.u64(uint64(res.Kind))
	e.u64(info.Sequence)
	for i := t.from; i < len(t.changes); i++ {
		e.change(&t.changes[i])
		if len(e) >= foldPiece {
			_, _ = t.hash.Write(e) // writing to a hash never fails
			e = e[:0]
		}
	}
	for i := range res.Items {
		if k := res.Items[i].Kind; k != OK {
			e.u64(uint64(i))
			e.u64(uint64(k))
		}
	}
	e = append(e, t.sideFold...)
	_, _ = t.hash.Write(e)
	info.Digest = t.hash.Sum64()
	t.scratch = e
	if cap(t.scratch) > 1<<20 {
		t.scratch = nil // free a buffer that one huge specification has grown
	}
}

// foldPiece is the number of bytes that the encoder collects before they are hashed. The number is
// so small that the bytes are still in the CPU cache when they are hashed.
const foldPiece = 8 << 10

// encoder appends fields. An integer takes 8 bytes, and strings and lists follow their length,
// so that two different sequences of fields never have the same bytes.
type encoder []byte

// append64, appendStr and appendBool do the same as the methods of encoder. They return the slice,
// so that a sequence of calls need not write the slice header to memory after each field.
func append64(b []byte, row ...uint64) []byte {
	for _, v := range row {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

func appendStr(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

func (e *encoder) u64(v uint64) { *e = append64(*e, v) }
func (e *encoder) i64(v int64)  { e.u64(uint64(v)) }
func (e *encoder) bool(v bool)  { *e = appendBool(*e, v) }
func (e *encoder) str(s string) { *e = appendStr(*e, s) }

func (e *encoder) bytes(b []byte) {
	e.u64(uint64(len(b)))
	*e = append(*e, b...)
}

func (e *encoder) strs(list []string) {
	e.u64(uint64(len(list)))
	for _, s := range list {
		e.str(s)
	}
}

func (e *encoder) generation(g Generation) {
	e.u64(g.Incarnation)
	e.u64(g.Sequence)
}

func (e *encoder) labels(list []Label) {
	e.u64(uint64(len(list)))
	for _, l := range list {
		e.str(l.Key)
		e.str(l.Value)
	}
}

func (e *encoder) taints(list []Taint) {
	e.u64(uint64(len(list)))
	for _, t := range list {
		e.str(t.Key)
		e.str(t.Value)
		e.str(t.Effect)
		if t.Seconds != 0 || t.Since != 0 {
			e.str("no execute")
			e.u64(uint64(t.Seconds))
			e.i64(t.Since)
		}
	}
}

// change encodes the new record of a change. The former record is not encoded, because it was added to the digest
// when it was written.
func (e *encoder) change(c *Change) {
	e.u64(uint64(c.Table))
	e.str(c.Key)
	switch r := c.New.(type) {
	case *Workload:
		e.workload(r)
	case *Node:
		e.node(r)
	case *Residual:
		e.residual(r)
	case *Replica:
		e.replica(r)
	case *Event:
		e.event(r)
	case *Info:
		e.info(r)
	case *Namespace:
		e.namespace(r)
	case *Policy:
		e.policy(r)
	case *Bundle:
		e.bundle(r)
	case *Network:
		if r != nil {
			e.network(r)
		}
	case *Object:
		e.object(r)
	case *Volume:
		if r != nil {
			e.volume(r)
		}
	case *Move:
		if r != nil {
			e.move(r)
		}
	}
}

func (e *encoder) ports(list []HostPort) {
	e.u64(uint64(len(list)))
	for _, p := range list {
		e.u64(uint64(p.Port))
		e.str(p.Protocol)
		e.address(p.Address)
	}
}

// address encodes the host address of a port, if the port has one. The word "address" before it marks this optional
// field. It cannot be confused with a protocol name, which may come at the same position, because every protocol name
// is shorter.
func (e *encoder) address(a string) {
	if a != "" {
		e.str("address")
		e.str(a)
	}
}

func (e *encoder) demand(d *Demand) {
	b := appendStr(*e, d.Type)
	b = append64(b, uint64(d.CPU), uint64(d.Memory), uint64(d.Disk))
	*e = appendStr(b, d.Pool)
	e.strs(d.StorageDrivers)
	e.ports(d.Ports)
	e.labels(d.Labels)
	e.u64(uint64(len(d.Constraints)))
	for _, c := range d.Constraints {
		e.str(c.Key)
		e.str(c.Op)
		e.strs(c.Values)
	}
	e.taints(d.Tolerations)
	b = appendBool(appendStr(*e, d.Group), d.Exclusive)
	b = appendStr(b, d.OnLostLease)
	*e = append64(b, uint64(int64(d.Priority)))
	e.u64(uint64(len(d.PortNames)))
	for _, p := range d.PortNames {
		e.str(p.Name)
		e.u64(uint64(p.ContainerPort))
		e.str(p.Protocol)
		e.u64(uint64(p.HostPort))
	}
	// The word "asks" marks the optional list of asks (requested privileges). No other field that
	// can follow a demand has the length of this word, so the encoding stays unambiguous.
	if len(d.Asks) > 0 {
		e.str("asks")
		e.u64(uint64(len(d.Asks)))
		for _, a := range d.Asks {
			e.str(a.Rule)
			e.str(a.Value)
			e.str(a.Field)
		}
	}
	e.localData(d.LocalData)
	if len(d.MACs) > 0 {
		e.str("mac addresses")
		e.strs(d.MACs)
	}
	if d.Job != nil {
		e.job(d.Job)
	}
	if d.Template != nil {
		e.template(d.Template)
	}
	e.placement(d.Placement, d.Tags)
	e.autoscale(d.Autoscale)
	e.reschedule(d.Reschedule)
	if d.Surge {
		e.str("surge")
	}
	if len(d.Networks) > 0 {
		e.str("networks")
		e.strs(d.Networks)
	}
	if d.ServiceAddress {
		e.str("service address")
	}
	e.ingress(d.Ingress)
	e.devices(d.Devices)
	if d.MemoryFiles {
		e.str("memory files")
	}
	e.volumeUses(d.Volumes)
}

func (e *encoder) reason(r *Reason) {
	b := appendStr(appendStr(*e, r.Code), r.Message)
	*e = appendBool(append64(b, uint64(r.At)), r.Retryable)
}

func (e *encoder) observation(o *Observation) {
	b := appendStr(*e, string(o.State))
	b = append64(b, o.Generation.Incarnation, o.Generation.Sequence)
	b = appendStr(appendStr(b, o.Code), o.Message)
	b = appendBool(append64(b, uint64(int64(o.Failure))), o.Retryable)
	*e = append64(b, uint64(int64(o.RestartCount)))
	e.strs(o.Addresses)
	e.u64(uint64(len(o.Ports)))
	for _, p := range o.Ports {
		e.u64(uint64(p.HostPort))
		e.u64(uint64(p.ContainerPort))
		e.str(p.Protocol)
		e.address(p.Address)
	}
	e.i64(o.At)
	e.str(o.Health)
	if o.Terminal {
		e.str("terminal")
	}
	if o.TryElsewhere {
		e.str("try elsewhere")
	}
	if o.Exit != nil {
		e.exit(o.Exit)
	}
}

func (e *encoder) workload(w *Workload) {
	b := appendStr(*e, w.ID)
	b = append(append64(b, uint64(len(w.Spec))), w.Spec...)
	*e = appendStr(appendStr(b, w.Content), w.CallerRevision)
	e.demand(w.Demand)
	*e = appendStr(appendStr(*e, string(w.Desired)), string(w.Status))
	e.reason(&w.Reason)
	b = appendStr(appendStr(*e, w.Node), w.PreviousNode)
	b = append64(b, w.Generation.Incarnation, w.Generation.Sequence)
	*e = append64(appendBool(b, w.Acknowledged), uint64(w.Restarts))
	e.observation(w.Actual)
	b = append64(*e, uint64(int64(w.Retry.Attempts)), uint64(int64(w.Retry.MaxAttempts)), uint64(w.Retry.NextAt), uint64(w.Retry.FirstFailureAt))
	b = appendBool(b, w.Retry.Terminal)
	*e = append64(b, uint64(w.CreatedAt), uint64(w.UpdatedAt), uint64(w.AssignedAt), w.CreateIndex, w.ModifyIndex)
	b = append64(appendBool(*e, w.MayOutliveLease), uint64(w.AcknowledgedAt), uint64(w.Retry.StableSince))
	b = appendStr(appendStr(b, w.Retry.Verdict.Code), w.Retry.Verdict.Message)
	*e = append64(b, uint64(len(w.Actions)))
	for i := range w.Actions {
		e.action(&w.Actions[i])
	}
	e.ports(w.FormerPorts)
	if w.SameSince != (Generation{}) {
		e.str("same since")
		e.generation(w.SameSince)
	}
	e.str(w.Namespace)
	if w.Policy != "" {
		e.str(w.Policy)
	}
	e.localData(w.Data)
	if w.DiscardData {
		e.str("discard data")
	}
	if w.KeepVolumes {
		e.str("keep volumes")
	}
	if w.PreemptedBy != "" {
		e.str("preempted by")
		e.str(w.PreemptedBy)
	}
	if w.PreemptedAt != 0 {
		e.str("preempted at")
		e.i64(w.PreemptedAt)
	}
	e.moved(w.Moved)
	if w.Bundle != "" {
		e.str("bundle")
		e.str(w.Bundle)
	}
	if w.Adopted != "" {
		e.str("adopted")
		e.str(w.Adopted)
	}
	if w.JobSince != 0 {
		e.str("job since")
		e.i64(w.JobSince)
	}
	if w.Result != nil {
		e.jobResult(w.Result)
	}
	e.failedOn(w.FailedOn)
	e.owned(w)
	e.objects(w)
}

func (e *encoder) action(a *AgentAction) {
	for _, s := range [...]string{a.TaskID, a.Workload, a.Type, a.Status, a.Error} {
		e.str(s)
	}
	e.i64(a.CreatedAt)
	e.i64(a.StartedAt)
	e.i64(a.EndedAt)
}

func (e *encoder) node(n *Node) {
	f := &n.Facts
	e.str(n.ID)
	e.str(f.Endpoint)
	e.i64(f.CPU)
	e.i64(f.Memory)
	e.u64(uint64(len(f.Pools)))
	for _, p := range f.Pools {
		e.str(p.Name)
		e.str(p.Type)
		e.i64(p.Total)
	}
	e.strs(f.Types)
	e.strs(f.StorageDrivers)
	e.labels(f.Labels)
	e.taints(f.Taints)
	e.str(f.EngineID)
	e.str(f.AgentVersion)
	e.str(f.InstanceID)
	e.u64(uint64(f.Protocol))
	e.bool(f.SelfFencing)
	e.str(f.Timestamp)
	e.i64(f.LeaseSeconds)
	e.u64(uint64(f.FenceBound))
	e.bool(n.Up)
	e.bool(n.Draining)
	e.bool(n.Cordoned)
	e.bool(n.Fenced)
	e.str(n.Reason)
	e.str(n.UpdatedBy)
	e.i64(n.UpdatedAt)
	e.i64(n.LastHeartbeat)
	e.i64(n.RegisteredAt)
	e.u64(n.CreateIndex)
	e.u64(n.ModifyIndex)
	e.strs(n.Lacks)
	e.nodeKeys(&n.Set)
	if n.JobsUntil != 0 {
		e.str("jobs until")
		e.i64(n.JobsUntil)
	}
	if w := &f.Networking; *w != (Networking{}) {
		e.str("networking")
		e.str(w.Address)
		e.u64(uint64(w.MTU))
		e.str(w.Problem)
		if w.Ingress || w.Held != "" {
			e.str("ingress")
			e.bool(w.Ingress)
			e.str(w.Held)
		}
		if w.Forbidden != "" {
			e.str("forbidden")
			e.str(w.Forbidden)
		}
	}
	if f.MetricsPort != 0 {
		e.str("metrics port")
		e.u64(uint64(f.MetricsPort))
	}
	if f.MemoryFiles {
		e.str("memory files")
	}
	if f.VolumeMoves {
		e.str("volume moves")
	}
	e.devices(f.Devices)
}

func (e *encoder) residual(r *Residual) {
	e.str(r.Node)
	e.str(r.Workload)
	e.generation(r.Generation)
	e.str(r.Engine)
	e.demand(&r.Demand)
	e.i64(r.Since)
	e.str(r.Reason)
	if r.KeepVolumes {
		e.str("keep volumes")
	}
}

func (e *encoder) tombstone(g *Tombstone) {
	e.str(g.Workload)
	e.generation(g.Generation)
	e.str(g.Node)
	e.demand(&g.Claims)
	e.i64(g.At)
	e.u64(g.Index)
	if g.KeepVolumes {
		e.str("keep volumes")
	}
}

func (e *encoder) replica(r *Replica) {
	for _, s := range [...]string{r.ID, r.Name, r.GRPCAddr, r.HTTPAddr, r.RaftAddr, r.GossipAddr, r.DNSAddr, r.Version} {
		e.str(s)
	}
	e.u64(uint64(r.FeatureLevel))
	if r.Memory > 0 {
		e.i64(r.Memory)
	}
	if p := &r.Repair; *p != (ReplicaRepair{}) {
		for _, s := range [...]string{p.Of, p.Damage, p.Aside} {
			e.str(s)
		}
		e.i64(p.At)
		e.bool(p.Done)
	}
}

func (e *encoder) event(v *Event) {
	b := append64(*e, v.Seq, v.Index, uint64(v.At))
	b = appendStr(appendStr(appendStr(b, v.Type), v.Workload), v.Node)
	*e = appendStr(appendStr(appendStr(b, v.Reason), v.Message), v.By)
	e.labels(v.Details)
	e.str(v.Namespace)
}

// info encodes all fields of Info except Digest. The method fold hashes Digest first.
func (e *encoder) info(m *Info) {
	e.str(m.ClusterID)
	e.u64(m.Incarnation)
	e.str(m.Shard)
	e.u64(m.Sequence)
	e.i64(m.Clock)
	e.str(string(m.Mode))
	e.str(m.ModeReason)
	e.i64(m.ModeChangedAt)
	e.u64(uint64(m.FeatureLevel))
	e.u64(m.EventSeq)
	e.u64(m.ReceiptSeq)
	e.i64(m.ReceiptsDroppedUntil)
	e.u64(m.Index)
	e.u64(m.Term)
	e.u64(m.MirrorEtcd)
	e.bool(m.ModePinned)
	e.str(m.ClusterKeyID)
	e.u64(m.TrustVersion)
	e.str(m.GossipRing)
	e.u64(m.GossipVersion)
	if m.MirrorPin != 0 || m.MirrorEndpoints != "" {
		e.u64(m.MirrorPin)
		e.str(m.MirrorEndpoints)
	}
	if m.NetworkID != 0 || m.NetworkIndex != 0 {
		e.u64(uint64(m.NetworkID))
		e.u64(m.NetworkIndex)
	}
	if m.ObjectFloor != 0 {
		e.str("object floor")
		e.u64(m.ObjectFloor)
	}
	if k := &m.KeyRotation; k.NextKeyID != "" || k.FormerKeyID != "" || k.CleanIndex != 0 || len(k.RetiredKeyIDs) > 0 || k.ContentKey != "" || k.KeyChangedAt != 0 {
		e.str("cluster key")
		e.str(m.NextKeyID)
		e.str(m.FormerKeyID)
		e.u64(m.CleanIndex)
		e.strs(m.RetiredKeyIDs)
		e.str(m.ContentKey)
		e.i64(m.KeyChangedAt)
	}
	if p := m.Rebalance; p != (RebalancePolicy{}) {
		e.str("rebalance")
		e.u64(uint64(p.PerHour))
		e.u64(uint64(p.AtOnce))
		e.u64(uint64(p.MinGainPercent))
	}
}

func (e *encoder) authority(a *Authority) {
	e.str(a.ID)
	e.str(a.RootID)
	e.bytes(a.Cert)
	e.bytes(a.Root)
	e.str(a.SealedKey)
	e.i64(a.ActiveAt)
	e.i64(a.NotAfter)
}

func (e *encoder) token(t *Token) {
	e.str(t.ID)
	e.bytes(t.SecretHash)
	for _, s := range [...]string{t.Role, t.Name, t.Access, t.CreatedBy} {
		e.str(s)
	}
	e.u64(uint64(t.Uses))
	e.i64(t.ExpiresAt)
	e.i64(t.CreatedAt)
	e.hosts(t.Hosts)
}

// hosts encodes a list of hosts. It adds no bytes for an empty list, because former versions had no such
// field and their digests must stay the same.
func (e *encoder) hosts(list []string) {
	if len(list) > 0 {
		e.strs(list)
	}
}

func (e *encoder) admission(a *Admission) {
	for _, s := range [...]string{a.Role, a.Name, a.Access, a.Token, a.Fingerprint} {
		e.str(s)
	}
	e.bytes(a.KeyHash)
	e.i64(a.IssuedAt)
	e.i64(a.NotAfter)
	e.hosts(a.Hosts)
}

func (e *encoder) revocation(r *Revocation) {
	for _, s := range [...]string{r.Role, r.Name, r.Fingerprint, r.Reason, r.By} {
		e.str(s)
	}
	e.i64(r.At)
}
