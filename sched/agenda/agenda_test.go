package agenda

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestIDs(t *testing.T) {
	var s IDs
	for _, id := range []string{"b", "a", "b", "c"} {
		s.Add(id)
	}
	if got := s.Sorted(); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Fatalf("holds %v", got)
	}
	s.Keep(func(id string) bool { return id != "b" })
	if s.Has("b") || !s.Has("c") {
		t.Error("what was dropped is there, or what was kept is not")
	}
	s.Add("b")
	if got := s.Take(); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("took %v", got)
	}
	if got := s.Take(); len(got) != 0 || s.Has("a") {
		t.Errorf("still holds %v", got)
	}
}

// TestDeadlines holds them to a map.
func TestDeadlines(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var d Deadlines
		want := map[string]int64{}
		for range rapid.IntRange(0, 80).Draw(t, "steps") {
			id := rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(t, "id")
			at := rapid.Int64Range(0, 20).Draw(t, "at")
			if d.Set(id, at); at == 0 {
				delete(want, id)
			} else {
				want[id] = at
			}
			got, of := d.Next()
			if len(want) == 0 {
				if got != 0 || of != "" {
					t.Fatalf("%s at %d is left of nothing", of, got)
				}
				continue
			}
			if first := slices.Min(slices.Collect(maps.Values(want))); got != first || want[of] != first {
				t.Fatalf("next is %s at %d, of %v", of, got, want)
			}
		}
	})
}
