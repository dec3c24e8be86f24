package fsm

import (
	"cmp"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
)

// People may set or remove labels and taints of a node. The record of the node keeps what they set
// for each key. A value that a person set takes precedence over the value that the agent reports
// for the same key.

// NodeKeys holds the labels and taints that people set or removed on a node, sorted by key.
type NodeKeys struct {
	Labels []NodeLabel
	Taints []NodeTaint
}

// NodeLabel is a label that a person has set or removed. If Removed is set, the node has no label with this
// key, even if its agent reports one.
type NodeLabel struct {
	Label
	Removed bool
}

// NodeTaint is a taint that a person has set or removed. If Removed is set, the node has no taint with this
// key, even if its agent reports one.
type NodeTaint struct {
	Taint
	Removed bool
}

// Labels returns the labels of a node, sorted by key. The caller must not change the list.
func (n *Node) Labels() []Label {
	if len(n.Set.Labels) == 0 {
		return n.Facts.Labels
	}
	return n.merged.labels
}

// Taints returns the taints of a node. The caller must not change the list.
func (n *Node) Taints() []Taint {
	if len(n.Set.Taints) == 0 {
		return n.Facts.Taints
	}
	return n.merged.taints
}

// mergedKeys holds the lists that Labels and Taints return if people have set or removed keys.
type mergedKeys struct {
	labels []Label
	taints []Taint
}

// merge computes n.merged from the facts that the agent reported and the labels and taints that people set.
func (n *Node) merge() {
	n.merged = nil
	if len(n.Set.Labels)+len(n.Set.Taints) > 0 {
		n.merged = &mergedKeys{
			labels: overlay(n.Facts.Labels, n.Set.Labels, labelKey, func(l NodeLabel) (Label, bool) { return l.Label, l.Removed }),
			taints: overlay(n.Facts.Taints, n.Set.Taints, taintKey, func(t NodeTaint) (Taint, bool) { return t.Taint, t.Removed }),
		}
	}
}

func labelKey(l Label) string { return l.Key }
func taintKey(t Taint) string { return t.Key }

// overlay merges the labels (or taints) that an agent reports with those in set, which people set
// or removed. The result, sorted by key, has the values that people set, and the reported values of
// all keys that people neither set nor removed. It is nil if people set and removed nothing.
func overlay[V, S any](reported []V, set []S, key func(V) string, said func(S) (V, bool)) (out []V) {
	if len(set) == 0 {
		return nil
	}
	for _, v := range reported {
		if !slices.ContainsFunc(set, func(s S) bool { is, _ := said(s); return key(is) == key(v) }) {
			out = append(out, v)
		}
	}
	for _, s := range set {
		if v, removed := said(s); !removed {
			out = append(out, v)
		}
	}
	slices.SortStableFunc(out, func(a, b V) int { return cmp.Compare(key(a), key(b)) })
	return out
}

// KeysHash returns a hash of the labels and taints of a node, which is never 0. A move to even out
// the load is dropped if the hash has changed since the move was planned.
func (n *Node) KeysHash() uint64 {
	h := fnv.New64a()
	text := func(list ...string) {
		for _, s := range list {
			h.Write(append([]byte(s), 0))
		}
	}
	for _, l := range n.Labels() {
		text(l.Key, l.Value)
	}
	text("", "")
	for _, t := range n.Taints() {
		text(t.Key, t.Value, t.Effect, strconv.FormatUint(uint64(t.Seconds), 10))
	}
	return max(1, h.Sum64())
}

// labelNode sets or removes labels of a node at the request of a person. A removal is stored only
// if the agent reports a label with this key, which must be hidden then.
func (t *Tx) labelNode(b *commandv1.LabelNode) Result {
	if fault := bounds.LabelNodeFault(b); fault != "" {
		return refuse(Invalid, "%s", fault)
	}
	return t.setKeys(b.GetId(), func(n *Node) (said []string) {
		for _, l := range b.GetLabels() {
			next := NodeLabel{Label{l.GetKey(), l.GetValue()}, l.GetRemoved()}
			if next.Removed {
				next.Value = ""
			}
			reported := slices.ContainsFunc(n.Facts.Labels, func(f Label) bool { return f.Key == next.Key })
			set, changed := setKey(n.Set.Labels, next, next.Removed && !reported, func(l NodeLabel) string { return l.Key })
			if changed {
				n.Set.Labels = set
				said = append(said, keyText(next.Removed, next.Key, prefixValue(next.Value)))
			}
		}
		return said
	}, EventNodeLabelsChanged)
}

// taintNode sets or removes taints of a node. If the node has a taint already, setting the
// taint again does not change its Since, the time at which the node got it.
func (t *Tx) taintNode(b *commandv1.TaintNode) Result {
	if fault := bounds.TaintNodeFault(b); fault != "" {
		return refuse(Invalid, "%s", fault)
	}
	return t.setKeys(b.GetId(), func(n *Node) (said []string) {
		for _, m := range b.GetTaints() {
			next := NodeTaint{Taint: Taint{Key: m.GetTaint().GetKey()}, Removed: m.GetRemoved()}
			if !next.Removed {
				next.Taint = dated(taintOf(m.GetTaint()), n.Taints(), t.r.info.Clock)
			}
			reported := slices.ContainsFunc(n.Facts.Taints, func(f Taint) bool { return f.Key == next.Key })
			set, changed := setKey(n.Set.Taints, next, next.Removed && !reported, func(t NodeTaint) string { return t.Key })
			if changed {
				n.Set.Taints = set
				said = append(said, keyText(next.Removed, next.Key, strings.TrimPrefix(next.String(), next.Key)))
			}
		}
		return said
	}, EventNodeTaintsChanged)
}

// setKeys calls the function set on a copy of a node, then stores the copy and an event. set
// returns the changed keys for the event.
func (t *Tx) setKeys(id string, set func(*Node) []string, kind string) Result {
	old, ok := t.r.nodes.Get(id)
	if !ok {
		return noNode(id)
	}
	n := *old
	said := set(&n)
	switch {
	case len(said) == 0:
		return Result{Kind: AlreadyDone}
	case len(n.Set.Labels) > bounds.MaxNodeKeys, len(n.Set.Taints) > bounds.MaxNodeKeys:
		return refuse(Conflict, "with this, people would have set more than %d labels or taints of node %q: remove some first", bounds.MaxNodeKeys, id)
	}
	n.UpdatedAt = t.r.info.Clock
	t.putNode(old, &n)
	t.event(Event{Type: kind, Node: id, Message: strings.Join(said, ", ")})
	return Result{}
}

// setKey returns a copy of a list that is sorted by key, in which next replaces the entry with the
// same key or is inserted. If drop is set, the entry with the key of next is removed instead.
// changed reports whether the copy differs from the list.
func setKey[S comparable](list []S, next S, drop bool, key func(S) string) (out []S, changed bool) {
	i, ok := slices.BinarySearchFunc(list, key(next), func(s S, k string) int { return cmp.Compare(key(s), k) })
	switch {
	case drop && !ok, !drop && ok && list[i] == next:
		return list, false
	case drop:
		if out = slices.Delete(slices.Clone(list), i, i+1); len(out) == 0 {
			return nil, true
		}
		return out, true
	case ok:
		out = slices.Clone(list)
		out[i] = next
		return out, true
	}
	return slices.Insert(slices.Clone(list), i, next), true
}

// dated returns t with the time since which the node has it, if t is a NoExecute taint. If the node
// already has the taint (in the list present), that time stays; otherwise it is clock.
func dated(t Taint, present []Taint, clock int64) Taint {
	t.Since = 0
	if t.Effect != TaintNoExecute {
		t.Seconds = 0
		return t
	}
	t.Since = clock
	for _, p := range present {
		if p.Key == t.Key && p.Value == t.Value && p.Effect == t.Effect {
			t.Since = p.Since
		}
	}
	return t
}

// dateTaints sets, for each NoExecute taint of a registration, the time since which the node has
// it; see dated.
func (f *NodeFacts) dateTaints(present []Taint, clock int64) {
	for i := range f.Taints {
		f.Taints[i] = dated(f.Taints[i], present, clock)
	}
}

// String formats a taint as key=value:effect[:seconds].
func (t Taint) String() string {
	s := t.Key + prefixValue(t.Value) + ":" + t.Effect
	if t.Seconds > 0 {
		s += ":" + strconv.FormatUint(uint64(t.Seconds), 10)
	}
	return s
}

func prefixValue(v string) string { return suffix("=", v) }

// keyText formats a changed key as the arguments of persysctl: key=value, or key- for a removal.
func keyText(removed bool, key, value string) string {
	if removed {
		return key + "-"
	}
	return key + value
}

// rejoin merges, in a restore, two lists of labels and taints that people set on a node: that of the backup (was) and
// that of the present state (k). For each key, the present value takes precedence.
func (k NodeKeys) rejoin(was NodeKeys) NodeKeys {
	return NodeKeys{
		Labels: rejoined(k.Labels, was.Labels, func(l NodeLabel) string { return l.Key }),
		Taints: rejoined(k.Taints, was.Taints, func(t NodeTaint) string { return t.Key }),
	}
}

func rejoined[S comparable](now, was []S, key func(S) string) []S {
	for _, s := range was {
		if !slices.ContainsFunc(now, func(n S) bool { return key(n) == key(s) }) {
			now, _ = setKey(now, s, false, key)
		}
	}
	return now
}

func nodeLabelOf(m *commandv1.NodeLabel) NodeLabel {
	return NodeLabel{Label{m.GetKey(), m.GetValue()}, m.GetRemoved()}
}

func nodeLabelPB(l NodeLabel) *commandv1.NodeLabel {
	return &commandv1.NodeLabel{Key: l.Key, Value: l.Value, Removed: l.Removed}
}

func nodeTaintOf(m *commandv1.NodeTaint) NodeTaint {
	return NodeTaint{taintOf(m.GetTaint()), m.GetRemoved()}
}

func nodeTaintPB(t NodeTaint) *commandv1.NodeTaint {
	return &commandv1.NodeTaint{Taint: taintPB(t.Taint), Removed: t.Removed}
}

// nodeKeys encodes the labels and taints that people set. It adds no bytes for a node without any,
// so the digest of such a node is the same as in versions that did not have this feature.
func (e *encoder) nodeKeys(k *NodeKeys) {
	if len(k.Labels)+len(k.Taints) == 0 {
		return
	}
	e.str("set by people")
	e.u64(uint64(len(k.Labels)))
	for _, l := range k.Labels {
		e.str(l.Key)
		e.str(l.Value)
		e.bool(l.Removed)
	}
	e.u64(uint64(len(k.Taints)))
	for _, t := range k.Taints {
		e.taints([]Taint{t.Taint})
		e.bool(t.Removed)
	}
}
