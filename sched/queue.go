package sched

import (
	"container/heap"
	"slices"
)

// workQueue is a set of ids that must still be evaluated. It is read in the order of the ids. The zero
// value is empty.
type workQueue struct {
	ids []string
	has map[string]struct{}
}

// expect allocates memory for n ids if the queue is empty.
func (q *workQueue) expect(n int) { q.has = make(map[string]struct{}, n) }

// add puts an id into the queue, once.
func (q *workQueue) add(id string) {
	if q.contains(id) {
		return
	}
	if q.has == nil {
		q.has = map[string]struct{}{}
	}
	q.has[id] = struct{}{}
	q.ids = append(q.ids, id)
}

func (q *workQueue) contains(id string) bool {
	_, ok := q.has[id]
	return ok
}

// take empties the queue and returns its ids in ascending order.
func (q *workQueue) take() []string {
	ids := q.ids
	q.ids = nil
	clear(q.has)
	slices.Sort(ids)
	return ids
}

// sorted returns the ids in ascending order. The caller must not keep the slice.
func (q *workQueue) sorted() []string {
	slices.Sort(q.ids)
	return q.ids
}

// keep removes the ids for which the function ok returns false.
func (q *workQueue) keep(ok func(string) bool) {
	q.ids = slices.DeleteFunc(q.ids, func(id string) bool {
		if ok(id) {
			return false
		}
		delete(q.has, id)
		return true
	})
}

// deadlines keeps one time per id, in Unix nanoseconds, and finds the earliest. The zero value is empty. A
// time that was replaced or cleared stays in the heap until it is the earliest one there.
type deadlines struct {
	at   map[string]int64
	heap deadlineHeap
}

type deadline struct {
	at int64
	id string
}

// set sets the time of an id; the time 0 removes the id.
func (d *deadlines) set(id string, at int64) {
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
	d.heap = append(d.heap, deadline{at, id})
	heap.Fix(&d.heap, len(d.heap)-1) // heap.Push without its allocation
}

// next returns the earliest time and its id; 0 if there is none.
func (d *deadlines) next() (at int64, id string) {
	for len(d.heap) > 0 {
		if top := d.heap[0]; d.at[top.id] == top.at {
			return top.at, top.id
		}
		heap.Pop(&d.heap)
	}
	return 0, ""
}

// deadlineHeap is a heap of deadlines ordered by time.
type deadlineHeap []deadline

func (h deadlineHeap) Len() int           { return len(h) }
func (h deadlineHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h deadlineHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *deadlineHeap) Push(x any)        { *h = append(*h, x.(deadline)) }

func (h *deadlineHeap) Pop() any {
	old := *h
	d := old[len(old)-1]
	*h = old[:len(old)-1]
	return d
}
