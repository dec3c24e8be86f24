package sched

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestWorkQueueIsSorted(t *testing.T) {
	var q workQueue
	for _, id := range []string{"b", "a", "b", "c"} {
		q.add(id)
	}
	if got := q.sorted(); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Fatalf("after adding the ids b, a, b and c, the queue has %v, want a, b and c", got)
	}
	q.keep(func(id string) bool { return id != "b" })
	if q.contains("b") || !q.contains("c") {
		t.Errorf("after dropping the id b, the queue has %v, want it without b", q.sorted())
	}
	q.add("b")
	if got := q.take(); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("take returns %v", got)
	}
	if got := q.take(); len(got) != 0 || q.contains("a") {
		t.Errorf("after take the queue has the ids %v, want none", got)
	}
}

// TestQueueOfDeadlines compares the type deadlines with a map after random changes.
func TestQueueOfDeadlines(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var d deadlines
		want := map[string]int64{}
		for range rapid.IntRange(0, 80).Draw(t, "steps") {
			id := rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(t, "id")
			at := rapid.Int64Range(0, 20).Draw(t, "at")
			if d.set(id, at); at == 0 {
				delete(want, id)
			} else {
				want[id] = at
			}
			got, of := d.next()
			if len(want) == 0 {
				if got != 0 || of != "" {
					t.Fatalf("without deadlines next returned id %q at %d ns, want none", of, got)
				}
				continue
			}
			if first := slices.Min(slices.Collect(maps.Values(want))); got != first || want[of] != first {
				t.Fatalf("next returned id %q at %d ns, want the earliest of %v", of, got, want)
			}
		}
	})
}
