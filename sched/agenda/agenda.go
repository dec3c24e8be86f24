// Package agenda keeps what is still to be looked at: ids, in order, and ids at a time. It is
// pure, as package sched is, and for one goroutine.
package agenda

import (
	"container/heap"
	"slices"
)

// IDs is a set of ids that is read in order. The zero value is empty.
type IDs struct {
	ids []string
	has map[string]struct{}
}

// Expect makes room for n ids in an empty set.
func (s *IDs) Expect(n int) { s.has = make(map[string]struct{}, n) }

// Add puts an id into the set.
func (s *IDs) Add(id string) {
	if s.Has(id) {
		return
	}
	if s.has == nil {
		s.has = map[string]struct{}{}
	}
	s.has[id] = struct{}{}
	s.ids = append(s.ids, id)
}

// Has reports whether an id is in the set.
func (s *IDs) Has(id string) bool {
	_, ok := s.has[id]
	return ok
}

// Take empties the set and returns its ids in order.
func (s *IDs) Take() []string {
	ids := s.ids
	s.ids = nil
	clear(s.has)
	slices.Sort(ids)
	return ids
}

// Sorted returns the ids in order; the caller must not keep them.
func (s *IDs) Sorted() []string {
	slices.Sort(s.ids)
	return s.ids
}

// Keep drops the ids for which ok is false.
func (s *IDs) Keep(ok func(string) bool) {
	s.ids = slices.DeleteFunc(s.ids, func(id string) bool {
		if ok(id) {
			return false
		}
		delete(s.has, id)
		return true
	})
}

// Deadlines keeps one time per id, Unix nanoseconds, and finds the earliest. The zero value has none.
// What is replaced or taken back stays in the heap until it gets to its top.
type Deadlines struct {
	at   map[string]int64
	heap entries
}

type entry struct {
	at int64
	id string
}

// Set notes the time of an id; 0 takes it back.
func (d *Deadlines) Set(id string, at int64) {
	switch {
	case at == 0:
		delete(d.at, id)
		return
	case d.at[id] == at:
		return
	case d.at == nil:
		d.at = map[string]int64{}
	}
	d.at[id] = at
	d.heap = append(d.heap, entry{at, id})
	heap.Fix(&d.heap, len(d.heap)-1) // as Push, which would allocate
}

// Next returns the earliest time and its id, 0 if there is none.
func (d *Deadlines) Next() (at int64, id string) {
	for len(d.heap) > 0 {
		if top := d.heap[0]; d.at[top.id] == top.at {
			return top.at, top.id
		}
		heap.Pop(&d.heap)
	}
	return 0, ""
}

// entries is a heap by time.
type entries []entry

func (h entries) Len() int           { return len(h) }
func (h entries) Less(i, j int) bool { return h[i].at < h[j].at }
func (h entries) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *entries) Push(x any)        { *h = append(*h, x.(entry)) }

func (h *entries) Pop() any {
	old := *h
	e := old[len(old)-1]
	*h = old[:len(old)-1]
	return e
}
