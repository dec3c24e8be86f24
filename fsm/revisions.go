package fsm

import (
	"fmt"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// Earlier specifications of a workload are kept for a while, so that users can compare and restore them. No
// command depends on them. The digest over the state leaves them out, because they follow from records that it
// covers.

// Limits of the number and the size of the earlier specifications that are kept of one workload.
const (
	MaxRevisions     = 5
	MaxRevisionBytes = 256 << 10 // size in bytes of the earlier specifications, secrets included in sealed form
)

// Revision is the present specification of a workload or an earlier one.
type Revision struct {
	Number         uint64 // revision number: 1 for the first recorded revision, then one more with each change
	Spec           []byte // encoded specification; nil for the present revision, because the Workload has it
	Content        string
	Bundle         string // digest of the files beside the Compose file; "" = none
	CallerRevision string
	At             int64  // Unix nanoseconds, when the revision was applied
	By             string // user who applied the revision; "" if not recorded
}

// ID returns the revision that agents and users see, without the counter of forced restarts.
func (r *Revision) ID() string { return (&Workload{Content: r.Content}).Revision() }

// history holds the earlier specifications of a workload. A history and its Revisions never change, so that
// later histories of the workload can share the Revisions. A workload gets a history when its specification
// changes for the first time, or when it continues the revision numbers of a deleted workload.
type history struct {
	// The next fields describe the present specification, which itself is stored in Workload.Spec.
	number uint64
	at     int64
	by     string

	former [MaxRevisions]*Revision // earlier revisions, oldest first; unused elements are nil
	sizes  [MaxRevisions]uint32    // sizes in bytes of the specifications in former, so that adding them up does not read the revisions
}

// kept returns the earlier specifications that a history still has, oldest first.
func (h *history) kept() []*Revision {
	if h == nil {
		return nil
	}
	n := len(h.former)
	for n > 0 && h.former[n-1] == nil {
		n--
	}
	return h.former[:n]
}

// present returns the present specification of w as a Revision, with the field Spec set.
func (w *Workload) present() Revision {
	r := Revision{Number: 1, Spec: w.Spec, Content: w.Content, Bundle: w.Bundle, CallerRevision: w.CallerRevision, At: w.CreatedAt}
	if h := w.history; h != nil {
		r.Number, r.At, r.By = h.number, h.at, h.by
	}
	return r
}

// Revisions returns the recorded specifications of a workload, oldest first. The present one is
// last and has its Spec.
func (s State) Revisions(workload string) []Revision {
	w, ok := s.r.workloads.Get(workload)
	if !ok {
		return nil
	}
	return w.revisions()
}

func (w *Workload) revisions() (out []Revision) {
	for _, r := range w.history.kept() {
		out = append(out, *r)
	}
	return append(out, w.present())
}

// revise adds the specification of old to the history of w. old is the stored record and w the changed copy that
// replaces it. revise then drops the oldest revisions until the history is within the limits of one workload, and
// within the bytes that the state and the namespace have left.
func (t *Tx) revise(old, w *Workload) {
	if old.Content == w.Content {
		return
	}
	last := old.present()
	var all [MaxRevisions + 1]*Revision
	n := copy(all[:], old.history.kept())
	all[n] = &last
	var sizes [MaxRevisions + 1]uint32
	if old.history != nil {
		copy(sizes[:], old.history.sizes[:n])
	}
	sizes[n] = uint32(len(last.Spec))
	var total uint32
	for _, size := range sizes[:n+1] {
		total += size
	}
	from := 0
	specs, files := old.countedBytes(t.state())
	spare := t.spare(w.In()) + specs + files - int64(len(w.Spec)) - w.Demand.bytes() - filesBytes(t.state(), t.offered, w.Bundle)
	short := func() bool {
		files := filesOf(t.state(), all[from:n+1], w.Bundle)
		return n+1-from > MaxRevisions || total > MaxRevisionBytes || files > MaxRevisionFiles || int64(total)+files > spare
	}
	for from <= n && short() {
		total -= sizes[from]
		from++
	}
	w.history = &history{number: last.Number + 1, at: t.r.info.Clock, by: t.by}
	copy(w.history.former[:], all[from:n+1])
	copy(w.history.sizes[:], sizes[from:n+1])
}

// renumber continues the revision numbers of a deleted workload with the same id, if that workload has a
// tombstone. So an apply under the condition "if the revision is N", meant for the deleted workload, is refused
// for w.
func (t *Tx) renumber(w *Workload) {
	if g, ok := t.r.tombstones.Get(w.ID); ok && g.Revision > 0 {
		w.history = &history{number: g.Revision + 1, at: t.r.info.Clock, by: t.by}
	}
}

func (c *checker) revisions() {
	c.s.Workloads("", func(w *Workload) bool {
		if w.history == nil {
			return true
		}
		size, list := 0, w.history.kept()
		for i, r := range list {
			if r == nil {
				c.must(false, "former revision %d of %s is missing", i, w.ID)
				return true
			}
			size += len(r.Spec)
			c.must(len(r.Spec) == int(w.history.sizes[i]), "revision %d of %s has %d bytes, but its recorded size is %d", i, w.ID, len(r.Spec), w.history.sizes[i])
			c.must(r.Number > 0 && r.Number+uint64(len(list)-i) == w.history.number, "revision %d of %s has number %d, and the present one has %d", i, w.ID, r.Number, w.history.number)
		}
		c.must(size <= MaxRevisionBytes, "workload %s has %d bytes of former revisions", w.ID, size)
		return true
	})
}

// historyPB encodes the earlier specifications of w, followed by its present revision. The Spec of the present
// revision is left out, because the record of w has it.
func historyPB(w *Workload) *commandv1.RevisionsRecord {
	list := convert(w.revisions(), func(r Revision) *commandv1.Revision {
		return &commandv1.Revision{Number: r.Number, Spec: r.Spec, Content: r.Content, Bundle: r.Bundle, CallerRevision: r.CallerRevision, At: r.At, By: r.By}
	})
	list[len(list)-1].Spec, list[len(list)-1].Bundle = nil, ""
	return &commandv1.RevisionsRecord{Workload: w.ID, Revisions: list}
}

// historyOf decodes the earlier revisions of workload w from a snapshot.
func historyOf(w *Workload, m *commandv1.RevisionsRecord) (*history, error) {
	former := m.GetRevisions()
	if len(former) == 0 || len(former) > MaxRevisions+1 {
		return nil, fmt.Errorf("workload %q has %d revisions in the snapshot, must have 1 to %d", w.ID, len(former), MaxRevisions+1)
	}
	now, former := former[len(former)-1], former[:len(former)-1]
	if now.GetContent() != w.Content {
		return nil, fmt.Errorf("workload %q: its last revision, %d, is not its present specification", w.ID, now.GetNumber())
	}
	h := &history{number: now.GetNumber(), at: now.GetAt(), by: now.GetBy()}
	for i, r := range former {
		h.former[i] = &Revision{
			Number: r.GetNumber(), Spec: nonEmpty(r.GetSpec()), Content: r.GetContent(), CallerRevision: r.GetCallerRevision(),
			Bundle: r.GetBundle(),
			At:     r.GetAt(), By: r.GetBy(),
		}
		h.sizes[i] = uint32(len(r.GetSpec()))
	}
	return h, nil
}
