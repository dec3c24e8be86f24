package receipts

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func request(n uint64) (id [16]byte) {
	binary.BigEndian.PutUint64(id[:], n>>3) // in each group of 8 request ids, the ids have the same first half
	binary.BigEndian.PutUint64(id[8:], n)
	return id
}

func receipt(seq, n uint64, size int) Receipt {
	answer := make([]byte, size)
	for i := range answer {
		answer[i] = byte(seq + uint64(i))
	}
	return Receipt{Seq: seq, Request: request(n), At: int64(n) * 7, Answer: answer}
}

// holds fails the test unless the queue contains exactly the receipts in want.
func holds(t interface{ Fatalf(string, ...any) }, q *Queue, want []Receipt) {
	if q.Len() != len(want) {
		t.Fatalf("the queue has %d receipts, want %d", q.Len(), len(want))
	}
	same := func(what string, a, b Receipt) {
		if a.Seq != b.Seq || a.Request != b.Request || a.At != b.At || !slices.Equal(a.Answer, b.Answer) {
			t.Fatalf("%s: got receipt %d of request %x, applied at %d ns, with answer %x\nwant receipt %d of request %x, applied at %d ns, with answer %x", what, a.Seq, a.Request, a.At, a.Answer, b.Seq, b.Request, b.At, b.Answer)
		}
	}
	oldest, ok := q.Oldest()
	if ok != (len(want) > 0) {
		t.Fatalf("Oldest returned ok = %t, want it true only if the queue has receipts; it has %d", ok, len(want))
	}
	if ok {
		same("Oldest", oldest, want[0])
	}
	i, size := 0, 0
	for _, r := range want {
		size += len(r.Request) + 8 + len(binary.AppendUvarint(nil, uint64(len(r.Answer)))) + len(r.Answer)
	}
	if q.Bytes() != size {
		t.Fatalf("the receipts have %d bytes, want %d", q.Bytes(), size)
	}
	q.Scan(func(r Receipt) bool {
		same("the next receipt of Scan", r, want[i])
		i++
		return true
	})
	if i != len(want) {
		t.Fatalf("Scan visited %d receipts, want %d", i, len(want))
	}
	for _, r := range want {
		got, ok := q.Get(r.Request)
		if !ok {
			t.Fatalf("Get must find receipt %d by its request id, but did not", r.Seq)
		}
		same("Get", got, r)
	}
}

// TestReceiptQueueMatchesSlice: after random steps, queues, their copies and their clones have the same
// receipts as slices.
func TestReceiptQueueMatchesSlice(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		type pair struct {
			q    *Queue
			want []Receipt
		}
		all := []pair{{New(), nil}}
		seq := uint64(rapid.IntRange(1, 1000).Draw(rt, "first"))
		steps := rapid.IntRange(1, 120).Draw(rt, "steps")
		for range steps {
			i := rapid.IntRange(0, len(all)-1).Draw(rt, "which")
			p := &all[i]
			switch rapid.IntRange(0, 9).Draw(rt, "step") {
			case 0: // a change of a queue must not change its copy; later steps use both
				if len(all) < 5 {
					all = append(all, pair{p.q.Copy(), slices.Clone(p.want)})
				}
			case 1:
				if len(all) < 5 {
					all = append(all, pair{p.q.Clone(), slices.Clone(p.want)})
				}
			case 2, 3:
				p.q.Drop()
				p.want = p.want[min(1, len(p.want)):]
			case 4:
				if len(p.want) > 0 {
					known := rapid.SampledFrom(p.want).Draw(rt, "known")
					known.Seq = p.want[len(p.want)-1].Seq + 1
					if p.q.Append(known) {
						rt.Fatalf("Append must refuse a second receipt for the same request")
					}
					if p.q.Append(receipt(known.Seq+1, 1<<40, 1)) {
						rt.Fatalf("Append must refuse a sequence number that does not follow the last one")
					}
				}
			default:
				for range rapid.IntRange(1, 20).Draw(rt, "many") {
					next := seq
					if len(p.want) > 0 {
						next = p.want[len(p.want)-1].Seq + 1
					}
					seq++
					size := rapid.SampledFrom([]int{0, 1, 80, 200, 3000, blockSize}).Draw(rt, "size")
					r := receipt(next, seq*2654435761%(1<<32), size)
					if !p.q.Append(r) {
						rt.Fatalf("Append must accept receipt %d, but refused it", next)
					}
					p.want = append(slices.Clip(p.want), r)
				}
			}
		}
		for _, p := range all {
			holds(rt, p.q, p.want)
		}
	})
}

func TestScanStopsWhenTold(t *testing.T) {
	q := New()
	for i := range uint64(1000) {
		q.Append(receipt(i+1, i, 100))
	}
	for _, stop := range []int{1, 2, 150, 1000} {
		n := 0
		q.Scan(func(Receipt) bool { n++; return n < stop })
		if n != stop {
			t.Errorf("Scan visited %d receipts, want a stop after %d", n, stop)
		}
	}
}

// TestReadersBesideAWriter reads a copy while the next copy is written. It is for the race detector.
func TestReadersBesideAWriter(t *testing.T) {
	q := New()
	done := make(chan error, 64)
	readers := 0
	for i := range uint64(2000) {
		q = q.Copy()
		q.Append(receipt(i+1, i, 50))
		if q.Len() > 500 {
			q.Drop()
		}
		if i%100 == 99 {
			seen := q
			q = q.Copy()
			readers++
			go func() {
				n := 0
				seen.Scan(func(r Receipt) bool {
					if got, ok := seen.Get(r.Request); ok && slices.Equal(got.Answer, r.Answer) {
						n++
					}
					return true
				})
				var err error
				if n != seen.Len() {
					err = fmt.Errorf("Scan visited %d receipts, but Len returned %d", n, seen.Len())
				}
				done <- err
			}()
		}
	}
	for range readers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// BenchmarkAppend appends to a queue of 200,000 receipts, with a copy every 64 receipts as for a
// log entry.
func BenchmarkAppend(b *testing.B) {
	q := New()
	answer := make([]byte, 60)
	b.ReportAllocs()
	for i := range b.N {
		if i%64 == 0 {
			q = q.Copy()
		}
		q.Append(Receipt{Seq: uint64(i + 1), Request: request(uint64(i)), Answer: answer})
		if q.Len() > 200_000 {
			q.Drop()
		}
	}
}

// TestTrimByBytes: Trim drops the oldest receipts until the queue has at most MaxBytes bytes. A
// copy of the queue that was made before is not affected.
func TestTrimByBytes(t *testing.T) {
	keep := Retention{MinAge: time.Hour, MaxAge: time.Hour, Max: 1000, MaxBytes: 10 * (headSize + 2 + 1000)}
	q := New()
	for i := range uint64(10) {
		q.Append(receipt(i+1, 8*i, 1000))
		if q.Trim(1, keep); q.Len() != int(i)+1 {
			t.Fatalf("Trim left %d receipts, want all %d", q.Len(), i+1)
		}
	}
	before := q.Copy()
	q.Append(receipt(11, 88, 2000))
	q.Trim(1, keep)
	if oldest, _ := q.Oldest(); oldest.Seq != 3 || q.Len() != 9 {
		t.Errorf("after Trim the queue has %d receipts, the oldest with Seq %d; want 9 receipts, the oldest with Seq 3", q.Len(), oldest.Seq)
	}
	if before.Len() != 10 || before.Bytes() != keep.MaxBytes {
		t.Errorf("Trim of the queue changed its copy: the copy has %d receipts of %d bytes, want 10 receipts of MaxBytes bytes", before.Len(), before.Bytes())
	}
	keep.MaxBytes = 0
	for i := range uint64(100) {
		q.Append(receipt(i+12, 8*(i+20), 1000))
		q.Trim(1, keep)
	}
	if q.Len() != 109 {
		t.Errorf("without MaxBytes Trim left %d receipts, want 109", q.Len())
	}
}
