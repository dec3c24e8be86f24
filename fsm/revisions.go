package fsm

import (
	"slices"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// Revisions. A workload's former specifications are kept for a while, so that
// people can see what changed, and go back. They decide nothing: no command is
// judged by them, and the digest does not fold them, because they follow from
// records that it does fold. Feature level 6; before it, nothing is kept.

// What is kept of one workload, beside its present specification.
const (
	MaxRevisions     = 5
	MaxRevisionBytes = 256 << 10 // of their specifications, secrets sealed
)

// Revision is one specification that a workload had, or has.
type Revision struct {
	Number         uint64 // 1 for the first that is known; 1 more with each change
	Spec           []byte // as in Workload; nil for the present one, which the Workload has
	Content        string
	CallerRevision string
	At             int64  // Unix nanoseconds, when it was applied
	By             string // who applied it; "" where nobody noted it
}

// ID is the revision as agents and people name it, without forced restarts.
func (r *Revision) ID() string { return (&Workload{Content: r.Content}).Revision() }

// history is the specifications that a workload had, oldest first; the last is the
// present one. It is never changed: records of one workload share it. A workload that
// never changed has none.
type history struct{ list []Revision }

// Revisions returns the specifications of a workload that are known, oldest first,
// the present one last and with its Spec.
func (s State) Revisions(workload string) []Revision {
	w, ok := s.r.workloads.Get(workload)
	if !ok {
		return nil
	}
	if w.history == nil {
		return []Revision{{Number: 1, Spec: w.Spec, Content: w.Content, CallerRevision: w.CallerRevision, At: w.CreatedAt}}
	}
	list := slices.Clone(w.history.list)
	list[len(list)-1].Spec = w.Spec
	return list
}

// revise keeps the specification of old, which that of its copy w replaces.
func (t *Tx) revise(old, w *Workload) {
	if t.r.info.FeatureLevel < 6 || old.Content == w.Content {
		return
	}
	var list []Revision
	if h := old.history; h != nil {
		kept := h.list[max(0, len(h.list)-MaxRevisions):]
		list = append(make([]Revision, 0, len(kept)+1), kept...)
	} else {
		list = append(make([]Revision, 0, 2), Revision{Number: 1, Content: old.Content, CallerRevision: old.CallerRevision, At: old.CreatedAt})
	}
	last := &list[len(list)-1]
	last.Spec, last.CallerRevision = old.Spec, old.CallerRevision
	list = append(list, Revision{Number: last.Number + 1, Content: w.Content, CallerRevision: w.CallerRevision, At: t.r.info.Clock, By: t.by})
	size := 0
	for i := range list {
		size += len(list[i].Spec)
	}
	for size > MaxRevisionBytes {
		size -= len(list[0].Spec)
		list = slices.Delete(list, 0, 1)
	}
	w.history = &history{list}
}

func (c *checker) revisions() {
	c.s.Workloads("", func(w *Workload) bool {
		if w.history == nil {
			return true
		}
		size, list := 0, w.history.list
		for i, r := range list {
			size += len(r.Spec)
			c.must(r.Number > 0 && (i == 0 || r.Number == list[i-1].Number+1), "revision %d of %s is number %d", i, w.ID, r.Number)
		}
		n, level := len(list), c.s.r.info.FeatureLevel
		c.must(level >= 6, "revisions of %s at feature level %d", w.ID, level)
		c.must(n > 0 && n <= MaxRevisions+1 && size <= MaxRevisionBytes, "workload %s has %d revisions of %d bytes", w.ID, n, size)
		c.must(n == 0 || list[n-1].Spec == nil && list[n-1].Content == w.Content, "the last revision of %s is not the present one", w.ID)
		return true
	})
}

func historyPB(w *Workload) *commandv1.RevisionsRecord {
	return &commandv1.RevisionsRecord{Workload: w.ID, Revisions: convert(w.history.list, func(r Revision) *commandv1.Revision {
		return &commandv1.Revision{Number: r.Number, Spec: r.Spec, Content: r.Content, CallerRevision: r.CallerRevision, At: r.At, By: r.By}
	})}
}

func historyOf(m *commandv1.RevisionsRecord) *history {
	return &history{convert(m.GetRevisions(), func(r *commandv1.Revision) Revision {
		return Revision{
			Number: r.GetNumber(), Spec: nonEmpty(r.GetSpec()), Content: r.GetContent(), CallerRevision: r.GetCallerRevision(),
			At: r.GetAt(), By: r.GetBy(),
		}
	})}
}
