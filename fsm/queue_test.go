package fsm

import (
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

func queueHolds(t interface{ Fatalf(string, ...any) }, q *queue[int], want []int) {
	got := make([]int, q.Len())
	for i := range got {
		got[i] = *q.At(i)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("the queue has the records %v\nwant %v", got, want)
	}
}

// TestQueueMatchesSlice: after random steps, queues, their copies and their clones have the same records as
// slices.
func TestQueueMatchesSlice(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		type pair struct {
			q    *queue[int]
			want []int
		}
		all := []pair{{&queue[int]{}, nil}}
		next := 0
		for range rapid.IntRange(1, 100).Draw(rt, "steps") {
			p := &all[rapid.IntRange(0, len(all)-1).Draw(rt, "which")]
			switch rapid.IntRange(0, 5).Draw(rt, "step") {
			case 0: // a change of a queue must not change its copy
				if len(all) < 6 {
					all = append(all, pair{p.q.Copy(), slices.Clone(p.want)})
				}
			case 1:
				if len(all) < 6 {
					all = append(all, pair{p.q.Clone(), slices.Clone(p.want)})
				}
			case 2:
				keep := rapid.IntRange(0, 3*queueBlockSize).Draw(rt, "keep")
				p.q.Drop(keep)
				p.want = p.want[max(0, len(p.want)-keep):]
			default:
				for range rapid.IntRange(1, 2*queueBlockSize).Draw(rt, "many") {
					next++
					if kept := p.q.Append(next); *kept != next {
						rt.Fatalf("Append of %d stored %d", next, *kept)
					}
					p.want = append(slices.Clip(p.want), next)
				}
			}
		}
		for _, p := range all {
			queueHolds(rt, p.q, p.want)
		}
	})
}

// TestReadersOfCopiesSeeNoWrites reads copies while later copies and clones are written. It is for the race detector.
func TestReadersOfCopiesSeeNoWrites(t *testing.T) {
	q := &queue[int]{}
	var wg sync.WaitGroup
	defer wg.Wait()
	for i := range 3 * queueBlockSize {
		q = q.Copy()
		q.Append(i)
		q.Drop(2 * queueBlockSize)
		if i%10 == 0 {
			published := q
			wg.Go(func() {
				if n := published.Len(); *published.At(n - 1) != i {
					t.Errorf("the newest of %d records in the copy of the queue is %d, want %d", n, *published.At(n - 1), i)
				}
			})
			other := q.Clone()
			wg.Go(func() { other.Append(-1) })
		}
	}
}
