package fsm

import (
	"slices"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
)

// MaxEach is the largest number of workloads in a command whose workloads are judged one by one.
const MaxEach = 64

// putEach judges each put as if it had come in a command of its own. The puts share the caller,
// the request id with its receipt, and the generation.
func (t *Tx) putEach(b *commandv1.PutWorkloads) Result {
	puts := b.GetWorkloads()
	switch {
	case b.GetGroupOf() != "" || b.GetNamespace() != "" || b.GetUpdate() != nil:
		return refuse(Invalid, "each: must not be with group_of, namespace or update")
	case len(puts) == 0 || len(puts) > MaxEach:
		return refuse(Invalid, "workloads: there are %d, must be 1 to %d to be judged each by itself", len(puts), MaxEach)
	}
	items := make([]Item, len(puts))
	t.changes = slices.Grow(t.changes, 2*len(puts))
	for i := range puts {
		before := len(t.changes)
		item, refusal, ok := t.putAlone(puts[i : i+1])
		if !ok {
			item = Item{ID: puts[i].GetId(), Kind: refusal.Kind, Reason: strings.ToValidUTF8(refusal.Reason, "")}
			if !bounds.ValidID(item.ID) { // the id may be of any length and hold any bytes
				item.ID = strings.ToValidUTF8(clip(item.ID), "")
			}
		}
		items[i] = item
		t.audited(before, "put_workloads", item.Kind, item.Reason)
	}
	return Result{Items: items}
}

// putAlone judges one put outside a group. ok is false if the put is refused.
func (t *Tx) putAlone(one []*commandv1.WorkloadPut) (item Item, refusal Result, ok bool) {
	if fault := t.putsFault(one, ""); fault != "" {
		return Item{}, refuse(Invalid, "%s", fault), false
	}
	old := t.replaced(one)
	t.alone.Workloads = one
	if res, ok := t.admits(&t.alone, old, nil); !ok {
		return Item{}, res, false
	}
	return t.putOne(one[0], old[0]), Result{}, true
}

// Of returns the verdict on one item of a command whose workloads are judged one by one.
func (r Result) Of(i Item) Result {
	return Result{Kind: i.Kind, Reason: i.Reason, Index: r.Index, Items: []Item{i}, Duplicate: r.Duplicate}
}
