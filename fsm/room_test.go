package fsm

import (
	"bytes"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

func replicaWith(id string, memory int64) Command {
	return &commandv1.Command{Body: &commandv1.Command_PutReplica{PutReplica: &commandv1.PutReplica{Id: id, Name: "name-" + id, FeatureLevel: 1, MemoryMib: memory}}}
}

func specOf(n int) func(*commandv1.WorkloadPut) {
	return func(p *commandv1.WorkloadPut) { p.Spec, p.Content = bytes.Repeat([]byte("x"), n), "c1:"+decimal(n) }
}

// TestRoomBoundsTheState: the memory of the smallest scheduler bounds the bytes of specifications and the number of
// workloads. The refusal names the scheduler and what to do. A change that shrinks the state is never
// refused.
func TestRoomBoundsTheState(t *testing.T) {
	w := formed(t)
	w.ok(put("first", specOf(512<<10)))
	is(t, "if no scheduler has reported its memory, there is no bound", w.s.Room().Bytes, int64(0))
	w.ok(replicaWith("r1", 64))
	w.ok(replicaWith("r2", 8)) // the limits of 8 MiB of memory: 1 MiB of specifications and 256 workloads
	w.ok(replicaWith("r3", 0)) // the memory of r3 is not known
	is(t, "the bound", w.s.Room(), Room{Workloads: 256, Bytes: 1 << 20, Of: "name-r2", Memory: 8})
	is(t, "a warning at half", w.s.Room().Nearly(w.s.Total()), "")
	w.ok(put("second", specOf(400<<10)))
	if got := w.s.Room().Nearly(w.s.Total()); !strings.Contains(got, "name-r2") {
		t.Errorf("the warning at 89 %% of the limit is %q, want it to name scheduler name-r2", got)
	}
	refused := func(c Command, words ...string) {
		t.Helper()
		r := w.do(c)
		is(t, "the answer", r.Kind, OverQuota)
		for _, word := range append(words, "the cluster is full", "name-r2", "8 MiB of memory", "delete workloads") {
			if !strings.Contains(r.Reason, word) {
				t.Errorf("the text of the refusal must contain %q, but is: %s", word, r.Reason)
			}
		}
	}
	refused(put("third", specOf(200<<10)), "200 KiB more")
	refused(put("second", specOf(600<<10)), "200 KiB more")
	w.ok(put("second", specOf(100)))
	w.ok(put("third", specOf(200<<10)))
	w.ok(put("first", specOf(100)))
	w.ok(put("second", specOf(200)))
	for i := range 253 {
		w.ok(put("small-"+decimal(i), specOf(1)))
	}
	refused(put("one-more", specOf(1)), "256 workloads", "1 more")
	w.ok(put("small-1", specOf(2)))
	if err := w.s.Check(); err != nil {
		t.Error(err)
	}
	var b bytes.Buffer
	if err := w.s.WriteSnapshot(&b); err != nil {
		t.Fatal(err)
	}
	again, err := ReadSnapshot(&b)
	if err != nil {
		t.Fatal(err)
	}
	is(t, "the total after a restore", again.Total(), w.s.Total())
	is(t, "the bound after a restore", again.Room(), w.s.Room())
	w.ok(replicaWith("r2", 16))
	w.ok(put("one-more", specOf(1)))
}
