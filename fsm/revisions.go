package fsm

import (
	"fmt"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// Former specifications of a workload are kept for a while, so that people can compare them and
// go back. No command is judged by them, and the digest does not fold them, because they follow
// from records that it does fold.

// What is kept of one workload, beside its present specification.
const (
	MaxRevisions     = 5
	MaxRevisionBytes = 256 << 10 // of their specifications, secrets sealed
)

// Revision is a present or former specification of a workload.
type Revision struct {
	Number         uint64 // 1 for the first recorded one, then one more with each change
	Spec           []byte // as in Workload; nil for the present revision, whose Spec is in the Workload
	Content        string
	CallerRevision string
	At             int64  // Unix nanoseconds, when it was applied
	By             string // who applied it; "" if not recorded
}

// ID returns the revision as agents and people see it, without the counter of forced restarts.
func (r *Revision) ID() string { return (&Workload{Content: r.Content}).Revision() }

// history holds the former specifications of a workload. It never changes, and neither does a
// Revision in it; the histories of one workload share their revisions. A workload that never
// changed has no history.
type history struct {
	// Of the present specification, which the Workload itself has:
	number uint64
	at     int64
	by     string

	former [MaxRevisions]*Revision // oldest first, then nil
	sizes  [MaxRevisions]uint32    // bytes of their specifications, to sum them without reading each record
}

// kept returns the former specifications, oldest first.
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

// present returns the present specification of w as a revision, with its Spec.
func (w *Workload) present() Revision {
	r := Revision{Number: 1, Spec: w.Spec, Content: w.Content, CallerRevision: w.CallerRevision, At: w.CreatedAt}
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

// revise adds the specification of old to the history of its changed copy w.
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
	for n+1-from > MaxRevisions || total > MaxRevisionBytes {
		total -= sizes[from]
		from++
	}
	w.history = &history{number: last.Number + 1, at: t.r.info.Clock, by: t.by}
	copy(w.history.former[:], all[from:n+1])
	copy(w.history.sizes[:], sizes[from:n+1])
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
			c.must(len(r.Spec) == int(w.history.sizes[i]), "revision %d of %s has %d bytes, noted are %d", i, w.ID, len(r.Spec), w.history.sizes[i])
			c.must(r.Number > 0 && r.Number+uint64(len(list)-i) == w.history.number, "revision %d of %s is number %d, the present one %d", i, w.ID, r.Number, w.history.number)
		}
		c.must(size <= MaxRevisionBytes, "workload %s has %d bytes of former revisions", w.ID, size)
		return true
	})
}

// historyPB puts the present revision last, without the Spec, which is in the record of w.
func historyPB(w *Workload) *commandv1.RevisionsRecord {
	list := convert(w.revisions(), func(r Revision) *commandv1.Revision {
		return &commandv1.Revision{Number: r.Number, Spec: r.Spec, Content: r.Content, CallerRevision: r.CallerRevision, At: r.At, By: r.By}
	})
	list[len(list)-1].Spec = nil
	return &commandv1.RevisionsRecord{Workload: w.ID, Revisions: list}
}

// historyOf decodes the history of w.
func historyOf(w *Workload, m *commandv1.RevisionsRecord) (*history, error) {
	former := m.GetRevisions()
	if len(former) == 0 || len(former) > MaxRevisions+1 {
		return nil, fmt.Errorf("workload %q has %d revisions, must have 1 to %d", w.ID, len(former), MaxRevisions+1)
	}
	now, former := former[len(former)-1], former[:len(former)-1]
	if now.GetContent() != w.Content {
		return nil, fmt.Errorf("workload %q: its last revision, %d, is not its specification", w.ID, now.GetNumber())
	}
	h := &history{number: now.GetNumber(), at: now.GetAt(), by: now.GetBy()}
	for i, r := range former {
		h.former[i] = &Revision{
			Number: r.GetNumber(), Spec: nonEmpty(r.GetSpec()), Content: r.GetContent(), CallerRevision: r.GetCallerRevision(),
			At: r.GetAt(), By: r.GetBy(),
		}
		h.sizes[i] = uint32(len(r.GetSpec()))
	}
	return h, nil
}
