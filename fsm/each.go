package fsm

import (
	"slices"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
)

// MaxEach is the largest number of workloads in a PutWorkloads with the field `each`.
const MaxEach = 64

// putEach accepts or refuses each workload of the command as if it had come in a command of its
// own. The workloads share the caller, the generation, and the request id with its receipt (the
// stored answer for repeats).
func (t *Tx) putEach(b *commandv1.PutWorkloads) Result {
	puts := b.GetWorkloads()
	switch {
	case b.GetGroupOf() != "" || b.GetNamespace() != "" || b.GetUpdate() != nil:
		return refuse(Invalid, "each: must be false if group_of, namespace or update is set")
	case len(puts) == 0 || len(puts) > MaxEach:
		return refuse(Invalid, "workloads: %d are given, must be 1 to %d if each is true", len(puts), MaxEach)
	}
	items := make([]Item, len(puts))
	t.changes = slices.Grow(t.changes, 2*len(puts))
	for i := range puts {
		before := len(t.changes)
		item, refusal, ok := t.putAlone(puts[i : i+1])
		if !ok {
			item = Item{ID: puts[i].GetId(), Kind: refusal.Kind, Reason: strings.ToValidUTF8(refusal.Reason, "")}
			if !bounds.ValidID(item.ID) { // shorten the id: an invalid id may have any length and hold any bytes
				item.ID = strings.ToValidUTF8(clip(item.ID), "")
			}
		}
		items[i] = item
		t.audited(before, "put_workloads", item.Kind, item.Reason)
	}
	return Result{Items: items}
}

// putAlone stores one workload that is not in a group. ok is false if the workload is refused.
func (t *Tx) putAlone(one []*commandv1.WorkloadPut) (item Item, refusal Result, ok bool) {
	if fault := t.putsFault(one, ""); fault != "" {
		return Item{}, refuse(Invalid, "%s", fault), false
	}
	if len(one[0].GetObjects()) > 0 {
		p := one[0].CloneVT()
		if res := pinPut(t.state(), p); res.Kind != OK {
			return Item{}, res, false
		}
		one = []*commandv1.WorkloadPut{p}
	}
	if isSystemPut(one[0]) {
		return Item{}, refuse(Invalid, "each: must not be used for a system workload, because the command also changes its members"), false
	}
	old := t.replaced(one)
	t.alone.Workloads, t.alone.Bundles = one, t.offered
	if res, ok := t.admits(&t.alone, old, nil); !ok {
		return Item{}, res, false
	}
	if fault := templatesFault(one, old, ""); fault != "" {
		return Item{}, refuse(Conflict, "%s", fault), false
	}
	if res, ok := t.judged(one, old); !ok {
		return Item{}, res, false
	}
	t.makeNetwork()
	return t.putOne(one[0], old[0], t.approval(one[0], old[0])), Result{}, true
}

// Of returns the Result of workload i in a command that accepts or refuses each workload separately.
func (r Result) Of(i Item) Result {
	return Result{Kind: i.Kind, Reason: i.Reason, Index: r.Index, Items: []Item{i}, Duplicate: r.Duplicate}
}
