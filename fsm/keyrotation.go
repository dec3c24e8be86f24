package fsm

import (
	"bytes"
	"crypto/sha256"
	"slices"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/rollout"
)

// A rotation of the cluster key replaces the key under which the values of the state are sealed (ADR 75). The state
// machine knows only ids of keys. It goes through these steps:
//
//  1. begin: NextKeyID is the id of the new key. The schedulers get the key, and nothing is sealed under it.
//  2. switch: ClusterKeyID is the new key, FormerKeyID the former one. New values are sealed under the new key.
//     Reseal commands replace the values that are sealed under the former key.
//  3. resealed: no value in the state is sealed under the former key, and none is accepted any more. CleanIndex is the
//     log index of this step; each replica drops the log entries and snapshots before it.
//  4. finish: the former key is retired. Replicas delete retired keys from their disks.

// KeyRotation is the part of Info about rotations of the cluster key.
type KeyRotation struct {
	NextKeyID     string   // id of the new key while the replicas are getting it; "" = no rotation is in this step
	FormerKeyID   string   // id of the former key after the switch to the new one; "" = no rotation is in this step
	CleanIndex    uint64   // log index from which on no value is sealed under the former key; 0 = some may be
	RetiredKeyIDs []string // ids of keys that replicas delete, oldest first
	ContentKey    string   // the key of content hashes, sealed under the cluster key; "" = it is derived from the cluster key
	KeyChangedAt  int64    // when the last step of a rotation was committed, Unix nanoseconds
}

// Steps of a rotation, as the command RotateClusterKey names them.
const (
	KeyBegin    = "begin"
	KeySwitch   = "switch"
	KeyResealed = "resealed"
	KeyFinish   = "finish"
)

// Kinds of sealed values.
const (
	SealedWorkload  = "workload"
	SealedRollout   = "rollout"
	SealedObject    = "object"
	SealedBundle    = "bundle"
	SealedAuthority = "authority"
	SealedGossip    = "gossip"
)

// Limits of a rotation.
const (
	// MaxResealed is the maximum number of values in one Reseal command.
	MaxResealed = 1000
	// maxRetiredKeys is the number of retired keys that are remembered. Values that are sealed under them are refused.
	maxRetiredKeys = 16
	maxContentKey  = 512
)

// SealedValue is a value of the state that contains sealed text: a specification with sealed fields, or one sealed value.
type SealedValue struct {
	Kind string
	Key  string // key of the record (ResealedValue.key)
	// SpecID is the workload id with which the secrets of a specification were sealed; empty for other kinds.
	SpecID string
	Value  []byte
}

// String returns the kind and the name of the record, for messages to people.
func (v SealedValue) String() string {
	if v.Kind == SealedGossip {
		return "the gossip keys"
	}
	return v.Kind + " " + v.Key
}

// Sealed calls fn for every value of the state that contains sealed text, in a fixed order.
func (s State) Sealed(fn func(SealedValue) bool) {
	on := true
	emit := func(kind, key, id string, value []byte) {
		if on && bytes.Contains(value, []byte(sealedPrefix)) {
			on = fn(SealedValue{kind, key, id, value})
		}
	}
	s.r.workloads.Scan(func(id string, w *Workload) bool {
		emit(SealedWorkload, id, w.SpecID(), w.Spec)
		for _, r := range w.history.kept() {
			emit(SealedWorkload, id, w.SpecID(), r.Spec)
		}
		return on
	})
	s.r.rollouts.Scan(func(group string, r *rollout.Rollout) bool {
		for _, p := range rolloutPuts(r) {
			emit(SealedRollout, group, p.GetId(), p.GetSpec())
		}
		return on
	})
	s.r.objects.Scan(func(key string, o *Object) bool {
		for i := range o.Versions {
			if o.Kind == KindSecret {
				emit(SealedObject, key, "", o.Versions[i].Data)
			}
		}
		return on
	})
	s.r.bundles.Scan(func(digest string, b *Bundle) bool {
		emit(SealedBundle, digest, "", b.Data)
		return on
	})
	s.r.authorities.Scan(func(id string, a *Authority) bool {
		emit(SealedAuthority, id, "", []byte(a.SealedKey))
		return on
	})
	emit(SealedGossip, "", "", []byte(s.r.info.GossipRing))
}

func rolloutPuts(r *rollout.Rollout) []*commandv1.WorkloadPut {
	out := slices.Clone(r.Former)
	for i := range r.Members {
		if r.Members[i].Put != nil {
			out = append(out, r.Members[i].Put)
		}
	}
	return out
}

// KeysNamed returns the ids of the keys under which the sealed texts in value are sealed, sorted.
func KeysNamed(value []byte) (ids []string) {
	for {
		_, rest, ok := bytes.Cut(value, []byte(sealedPrefix))
		if !ok {
			slices.Sort(ids)
			return slices.Compact(ids)
		}
		if len(rest) > 16 && rest[16] == ':' && lowerHex(string(rest[:16])) {
			ids = append(ids, string(rest[:16]))
		}
		value = rest
	}
}

// SealedUnder reports whether value has a sealed text under the key with this id.
func SealedUnder(value []byte, id string) bool {
	return id != "" && bytes.Contains(value, []byte(sealedPrefix+id+":"))
}

// SealedKeys returns the ids of all keys under which values of the state are sealed, sorted.
func (s State) SealedKeys() (ids []string) {
	s.Sealed(func(v SealedValue) bool {
		for _, id := range KeysNamed(v.Value) {
			if !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
		return true
	})
	slices.Sort(ids)
	return ids
}

// Rotating reports whether a rotation of the cluster key is in progress.
func (m *Info) Rotating() bool { return m.NextKeyID != "" || m.FormerKeyID != "" }

// refusesKey reports whether values that are sealed under the key with this id are refused.
func (m *Info) refusesKey(id string) bool {
	return m.CleanIndex > 0 && id == m.FormerKeyID || slices.Contains(m.RetiredKeyIDs, id)
}

// retiredSeal returns a refusal if a command carries a value that is sealed under a retired key: the value was sealed
// before the rotation reached this step. OK otherwise.
func (t *Tx) retiredSeal(c Command) Result {
	info := &t.r.info
	if info.CleanIndex == 0 && len(info.RetiredKeyIDs) == 0 {
		return Result{}
	}
	found := ""
	look := func(values ...[]byte) {
		for _, v := range values {
			for _, id := range KeysNamed(v) {
				if info.refusesKey(id) {
					found = id
				}
			}
		}
	}
	puts := func(list ...*commandv1.WorkloadPut) {
		for _, p := range list {
			look(p.GetSpec())
		}
	}
	switch b := c.GetBody().(type) {
	case *commandv1.Command_PutWorkloads:
		puts(b.PutWorkloads.GetWorkloads()...)
		puts(b.PutWorkloads.GetSurge()...)
		for _, f := range b.PutWorkloads.GetBundles() {
			look(f.GetData())
		}
	case *commandv1.Command_ScaleGroup:
		puts(b.ScaleGroup.GetMembers()...)
	case *commandv1.Command_StartRun:
		puts(b.StartRun.GetPut())
	case *commandv1.Command_AdoptDrift:
		puts(b.AdoptDrift.GetPut())
	case *commandv1.Command_PutObject:
		if b.PutObject.GetKind() == KindSecret {
			look(b.PutObject.GetData())
		}
		puts(b.PutObject.GetSurge()...)
	case *commandv1.Command_PutAuthority:
		look([]byte(b.PutAuthority.GetSealedKey()))
	case *commandv1.Command_SetGossipRing:
		look([]byte(b.SetGossipRing.GetSealed()))
	case *commandv1.Command_Reseal:
		for _, v := range b.Reseal.GetValues() {
			look(v.GetValue())
		}
	}
	if found != "" {
		return refuse(Conflict, "a value was sealed under cluster key %s, which has been replaced since by %s: send the request again", found, info.ClusterKeyID)
	}
	return Result{}
}

func (t *Tx) rotateClusterKey(b *commandv1.RotateClusterKey) Result {
	info, id := &t.r.info, b.GetKeyId()
	if len(id) != 16 || !lowerHex(id) {
		return refuse(Invalid, "key_id: %q is not 16 digits of lower-case hex", clip(id))
	}
	before := *info
	var reason, message string
	switch b.GetStep() {
	case KeyBegin:
		switch {
		case info.ClusterKeyID == "":
			return refuse(Conflict, "this cluster has not agreed on a cluster key yet: try again in a moment")
		case info.FormerKeyID != "":
			return refuse(Conflict, "the rotation from key %s to key %s is in progress: `persysctl cluster-key status` shows it", info.FormerKeyID, info.ClusterKeyID)
		case id == info.NextKeyID:
			return Result{Kind: AlreadyDone}
		case b.GetReplaces() != info.NextKeyID:
			return refuse(Conflict, "the rotation to key %q is in progress: `persysctl cluster-key status` shows it", info.NextKeyID)
		case id == info.ClusterKeyID || slices.Contains(info.RetiredKeyIDs, id):
			return refuse(Invalid, "key_id: %s is not a new key", id)
		}
		if info.NextKeyID != "" {
			info.retire(info.NextKeyID) // nothing was ever sealed under it
		}
		info.NextKeyID = id
		reason = "Begun"
		message = "new key " + id + ", present key " + info.ClusterKeyID
	case KeySwitch:
		switch {
		case id == info.ClusterKeyID:
			return Result{Kind: AlreadyDone}
		case id != info.NextKeyID:
			return refuse(Conflict, "the cluster does not rotate to key %s", id)
		case len(b.GetContentKey()) > maxContentKey || !SealedUnder([]byte(b.GetContentKey()), id):
			return refuse(Invalid, "content_key: must be sealed under key %s, and have at most %d bytes", id, maxContentKey)
		}
		info.FormerKeyID, info.ClusterKeyID, info.NextKeyID, info.CleanIndex = info.ClusterKeyID, id, "", 0
		info.ContentKey = strings.Clone(b.GetContentKey())
		reason = "Switched"
		message = "values are sealed under key " + id
	case KeyResealed:
		switch {
		case id != info.FormerKeyID:
			return refuse(Conflict, "key %s is not the former key of a rotation", id)
		case info.CleanIndex > 0:
			return Result{Kind: AlreadyDone}
		}
		var left Result
		t.state().Sealed(func(v SealedValue) bool {
			if SealedUnder(v.Value, id) {
				left = refuse(Conflict, "%s is still sealed under key %s", v, id)
			}
			return left.Kind == OK
		})
		if left.Kind != OK {
			return left
		}
		info.CleanIndex = t.meta.Index
		reason = "Resealed"
		message = "no value is sealed under key " + id + " any more"
	case KeyFinish:
		switch {
		case slices.Contains(info.RetiredKeyIDs, id):
			return Result{Kind: AlreadyDone}
		case id != info.FormerKeyID || info.CleanIndex == 0:
			return refuse(Conflict, "key %s is still in use", id)
		}
		info.retire(id)
		info.FormerKeyID, info.CleanIndex = "", 0
		reason = "Finished"
		message = "key " + id + " was replaced by key " + info.ClusterKeyID
	default:
		return refuse(Invalid, "step: %q is none of begin, switch, resealed and finish", clip(b.GetStep()))
	}
	info.KeyChangedAt = info.Clock
	info.TrustVersion++
	t.infoChanged(before)
	t.event(Event{Type: EventClusterKeyRotation, Reason: reason, Message: message})
	return Result{}
}

// retire adds a key to the keys that replicas delete.
func (m *Info) retire(id string) {
	m.RetiredKeyIDs = append(slices.Clone(m.RetiredKeyIDs), id) // former states share the list
	if n := len(m.RetiredKeyIDs); n > maxRetiredKeys {
		m.RetiredKeyIDs = m.RetiredKeyIDs[n-maxRetiredKeys:]
	}
}

// reseal replaces values by the same values sealed under the present key. The command identifies a value by
// its hash. A value that no longer has this hash was changed or removed since the command was made, so it
// stays as it is. Generations and content hashes do not change, so no workload gets a new order.
func (t *Tx) reseal(b *commandv1.Reseal) Result {
	info := &t.r.info
	switch {
	case info.FormerKeyID == "" || info.CleanIndex > 0:
		return refuse(Conflict, "no value has to be sealed again now")
	case len(b.GetValues()) == 0 || len(b.GetValues()) > MaxResealed:
		return refuse(Invalid, "values: has %d entries, must have 1 to %d", len(b.GetValues()), MaxResealed)
	}
	for i, v := range b.GetValues() {
		if SealedUnder(v.GetValue(), info.FormerKeyID) || !SealedUnder(v.GetValue(), info.ClusterKeyID) || len(v.GetOldSha256()) != sha256.Size {
			return refuse(Invalid, "values[%d]: must be sealed under key %s, and name the hash of the former value", i, info.ClusterKeyID)
		}
	}
	for _, v := range b.GetValues() {
		t.resealOne(v)
	}
	return Result{}
}

func (t *Tx) resealOne(v *commandv1.ResealedValue) {
	// is reports whether value is the former value that v replaces.
	is := func(value []byte) bool {
		if !SealedUnder(value, t.r.info.FormerKeyID) {
			return false
		}
		sum := sha256.Sum256(value)
		return bytes.Equal(sum[:], v.GetOldSha256())
	}
	switch v.GetKind() {
	case SealedWorkload:
		t.resealWorkload(v, is)
	case SealedRollout:
		t.resealRollout(v, is)
	case SealedObject:
		old, ok := t.r.objects.Get(v.GetKey())
		if !ok {
			return
		}
		o := *old
		o.Versions = slices.Clone(old.Versions)
		changed := false
		for i := range o.Versions {
			if is(o.Versions[i].Data) {
				o.Versions[i].Data, changed = v.GetValue(), true
			}
		}
		if changed {
			t.storeObject(old, &o)
		}
	case SealedBundle:
		if old, ok := t.r.bundles.Get(v.GetKey()); ok && is(old.Data) && len(old.Data) == len(v.GetValue()) {
			b := *old
			b.Data = v.GetValue()
			own(t, &t.r.bundles, ownBundles).Set(b.Digest, &b)
			t.changes = append(t.changes, Change{Table: TableBundle, Key: b.Digest, Old: old, New: &b})
		}
	case SealedAuthority:
		if old, ok := t.r.authorities.Get(v.GetKey()); ok && is([]byte(old.SealedKey)) {
			a := *old
			a.SealedKey = string(v.GetValue())
			own(t, &t.r.authorities, ownAuthorities).Set(a.ID, &a)
			t.trustChanged(a.ID, func(e *encoder) { e.authority(&a) })
		}
	case SealedGossip:
		if info := &t.r.info; is([]byte(info.GossipRing)) && len(v.GetValue()) <= maxGossipRing {
			before := *info
			info.GossipRing = string(v.GetValue())
			info.GossipVersion++
			info.TrustVersion++
			t.infoChanged(before)
		}
	}
}

func (t *Tx) resealWorkload(v *commandv1.ResealedValue, is func([]byte) bool) {
	old, ok := t.r.workloads.Get(v.GetKey())
	if !ok {
		return
	}
	w, changed := *old, false
	if is(old.Spec) {
		w.Spec, changed = v.GetValue(), true
	}
	for i, r := range old.history.kept() {
		if !is(r.Spec) {
			continue
		}
		if w.history == old.history {
			h := *old.history
			w.history = &h
		}
		next := *r
		next.Spec, changed = v.GetValue(), true
		w.history.former[i], w.history.sizes[i] = &next, uint32(len(next.Spec))
	}
	if !changed {
		return
	}
	w.ModifyIndex = t.meta.Index
	own(t, &t.r.workloads, ownWorkloads).Set(w.ID, &w)
	t.referOf(old, &w)
	t.reindex(old, &w)
	t.changes = append(t.changes, Change{Table: TableWorkload, Key: w.ID, Old: old, New: &w})
}

func (t *Tx) resealRollout(v *commandv1.ResealedValue, is func([]byte) bool) {
	old, ok := t.r.rollouts.Get(v.GetKey())
	if !ok {
		return
	}
	r, changed := *old, false
	replace := func(p *commandv1.WorkloadPut) *commandv1.WorkloadPut {
		if p == nil || !is(p.GetSpec()) {
			return p
		}
		changed = true
		p = p.CloneVT()
		p.Spec = v.GetValue()
		return p
	}
	r.Former, r.Members = slices.Clone(old.Former), slices.Clone(old.Members)
	for i := range r.Former {
		r.Former[i] = replace(r.Former[i])
	}
	for i := range r.Members {
		r.Members[i].Put = replace(r.Members[i].Put)
	}
	if changed {
		t.storeRollout(&r)
	}
}
