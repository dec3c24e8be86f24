package fsm

import (
	"reflect"
	"testing"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/receipts"
)

func TestRepeatedRequestsGetTheFirstAnswer(t *testing.T) {
	prove(t, []fact{
		{"a repeated request gets the first answer and changes nothing", func(t *testing.T, w *world) {
			id := requestAt(w.now, 1)
			first := w.as(id, put("web"))
			w.ok(put("web", content("c1:ffff")))
			g := w.workload("web").Generation
			again := w.as(id, put("web"))
			is(t, "the answer comes from a receipt", again.Duplicate, true)
			is(t, "number of records that the last command changed", len(w.last), 0)
			is(t, `generation of workload "web"`, w.workload("web").Generation, g)
			again.Duplicate = false
			if !reflect.DeepEqual(first, again) {
				t.Errorf("the first answer is %+v, but the repeated request got %+v; want equal answers", first, again)
			}
		}},
		{"a repeated request that was refused gets the same refusal", func(t *testing.T, w *world) {
			id := requestAt(w.now, 1)
			refused(t, w.as(id, setDesired("web", "Stopped")), NotFound, "web")
			w.ok(put("web"))
			res := w.as(id, setDesired("web", "Stopped"))
			is(t, "verdict on the command", res.Kind, NotFound)
			is(t, "the answer comes from a receipt", res.Duplicate, true)
		}},
		{"a request that was refused in a frozen mode may be repeated with the same id", func(t *testing.T, w *world) {
			id := requestAt(w.now, 1)
			w.ok(setMode("degraded", "etcd is away"))
			refused(t, w.as(id, put("web")), Frozen, "degraded", "etcd is away")
			is(t, "number of receipts in the state", w.s.ReceiptCount(), 0)
			w.ok(setMode("normal", ""))
			is(t, "verdict on the repeated request after the frozen mode", w.as(id, put("web")).Kind, OK)
		}},
		{"a repeated request is answered in a frozen mode", func(t *testing.T, w *world) {
			id := requestAt(w.now, 1)
			w.as(id, put("web"))
			w.ok(setMode("degraded", "etcd is away"))
			is(t, "verdict on the repeated request in a frozen mode", w.as(id, put("web")).Kind, OK)
		}},
		{"commands without a request keep no receipt", func(t *testing.T, w *world) {
			w.ok(put("web"))
			is(t, "number of receipts in the state", w.s.ReceiptCount(), 0)
		}},
		{"View.Receipt returns the answer", func(t *testing.T, w *world) {
			id := requestAt(w.now, 1)
			w.as(id, put("web"))
			res, ok := w.s.Receipt([16]byte(id), 0)
			is(t, "the state has a receipt of the request", ok, true)
			is(t, "the answer comes from a receipt", res.Duplicate, true)
			is(t, "log index in the answer", res.Index, w.index)
			_, ok = w.s.Receipt([16]byte(requestAt(w.now, 2)), 0)
			is(t, "the state has a receipt of another request", ok, false)
		}},
		{"a request id that is not 16 bytes long is refused", func(t *testing.T, w *world) {
			refused(t, w.as([]byte("short"), put("web")), Invalid, "request", "UUIDv7")
		}},
		{"a request id that is no UUIDv7 is refused", func(t *testing.T, w *world) {
			id := requestAt(w.now, 1)
			id[6] = 0x40
			refused(t, w.as(id, put("web")), Invalid, "request", "UUIDv7")
		}},
		{"a request id from the far future is refused", func(t *testing.T, w *world) {
			refused(t, w.as(requestAt(w.now+int64(RequestSkew)+2*second, 1), put("web")), Invalid, "request", "clock")
			is(t, "verdict on a request id one minute ahead of the clock", w.as(requestAt(w.now+minute, 1), put("web")).Kind, OK)
		}},
	})
}

// TestReceiptRetention uses a small retention: receipts are kept for at least 10 s and at most 100 s,
// and the queue holds at least 4 and at most 8 receipts. The cases differ in gap, the time between two
// requests.
func TestReceiptRetention(t *testing.T) {
	small := receipts.Retention{MinAge: 10 * time.Second, MaxAge: 100 * time.Second, Min: 4, Max: 8}
	for _, c := range []struct {
		name string
		gap  int64 // time between two requests in nanoseconds
		sent int
		kept int
	}{
		{"receipts younger than the minimum age are kept beyond the minimum number", second, 8, 8},
		{"receipts younger than the minimum age are dropped beyond the maximum number", second, 20, 8},
		{"receipts older than the minimum age are kept up to the minimum number", 11 * second, 4, 4},
		{"receipts older than the minimum age are dropped beyond the minimum number", 11 * second, 7, 4},
		{"receipts older than the maximum age are dropped below the minimum number", 60 * second, 6, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			tx := formed(t).s.Begin()
			tx.retention = small
			now := epoch0 + minute
			var ids [][]byte
			send := func(id []byte) Result {
				cmd := barrier()
				cmd.Head = &commandv1.Head{Request: id, At: now}
				res, _ := tx.Apply(Meta{9, 1}, cmd)
				return res
			}
			for i := range c.sent {
				now += c.gap
				ids = append(ids, requestAt(now, uint32(i)))
				is(t, "verdict on the request", send(ids[i]).Kind, OK)
			}
			s := tx.Commit()
			is(t, "number of kept receipts", s.ReceiptCount(), c.kept)
			if err := s.Check(); err != nil {
				t.Error(err)
			}
			for i, id := range ids {
				res := send(id)
				if i < c.sent-c.kept {
					is(t, "verdict on a repeat whose receipt was dropped", res.Kind, TooOld)
				} else {
					is(t, "the answer comes from a receipt", res.Duplicate, true)
				}
			}
			is(t, "number of receipts after refusals as too old", tx.Commit().ReceiptCount(), c.kept)
		})
	}
	t.Run("the oldest receipts are dropped when the total size is over the limit", func(t *testing.T) {
		w := formed(t)
		tx := w.s.Begin()
		tx.retention = small
		tx.retention.MaxBytes = 100
		for i := range 8 {
			cmd := barrier()
			cmd.Head = &commandv1.Head{Request: requestAt(w.now, uint32(i)), At: w.now}
			tx.Apply(Meta{9, 1}, cmd)
		}
		is(t, "number of kept receipts", tx.Commit().ReceiptCount(), 3)
	})
	t.Run("an id from a clock that is ahead does not make present ids too old", func(t *testing.T) {
		tx := formed(t).s.Begin()
		tx.retention = small
		now := epoch0 + minute
		send := func(id []byte) Result {
			cmd := barrier()
			cmd.Head = &commandv1.Head{Request: id, At: now}
			res, _ := tx.Apply(Meta{9, 1}, cmd)
			return res
		}
		send(requestAt(now+int64(RequestSkew), 0))
		for i := range 7 {
			now += 40 * second
			is(t, "verdict on a request of a client with the right clock", send(requestAt(now, uint32(i+1))).Kind, OK)
		}
	})
	t.Run("the refusal of an id from a clock that is behind names the clock", func(t *testing.T) {
		w := formed(t)
		for i := range 2 {
			w.wait(2 * 60 * minute)
			w.as(requestAt(w.now, uint32(i)), barrier())
		}
		refused(t, w.as(requestAt(w.now-3*60*minute, 9), barrier()), TooOld, "or set the client's clock")
	})
	t.Run("the default retention bounds age, number and bytes", func(t *testing.T) {
		is(t, "default retention of receipts", formed(t).s.Begin().retention, receipts.Retention{MinAge: 2 * time.Minute, MaxAge: 60 * time.Minute, Min: 200_000, Max: 1_000_000, MaxBytes: 128 << 20})
	})
}

// TestReceiptsFromAClockAhead: a client whose clock is ahead sends more requests than receipts are kept.
// Requests of other clients are still answered.
func TestReceiptsFromAClockAhead(t *testing.T) {
	tx := formed(t).s.Begin()
	tx.retention = receipts.Retention{MinAge: 10 * time.Second, MaxAge: 1000 * time.Second, Min: 4, Max: 8}
	now := epoch0 + minute
	send := func(id []byte) Result {
		cmd := barrier()
		cmd.Head = &commandv1.Head{Request: id, At: now}
		res, _ := tx.Apply(Meta{9, 1}, cmd)
		return res
	}
	var ahead [][]byte
	for i := range 40 {
		now += second / 10
		id := requestAt(now+4*minute, uint32(i))
		is(t, "verdict on a request of the client whose clock is ahead", send(id).Kind, OK)
		ahead = append(ahead, id)
		is(t, "verdict on a request of a client with the right clock", send(requestAt(now, uint32(1000+i))).Kind, OK)
	}
	s := tx.Commit()
	if err := s.Check(); err != nil {
		t.Error(err)
	}
	if until := s.Info().ReceiptsDroppedUntil; until > now/1e6 {
		t.Errorf("request ids up to %d ms count as too old, want none later than the clock at %d ms", until, now/1e6)
	}
	for i, id := range ahead {
		if res := send(id); !res.Duplicate {
			t.Fatalf("repeated request %d of a client whose clock is ahead must get its stored answer, but was applied again: %+v", i, res)
		}
	}
	// Once the clock of the state has passed the times in the ids of the client whose clock is
	// ahead, the receipts above the limit are dropped.
	now += 5 * minute
	for i := range 20 {
		send(requestAt(now, uint32(2000+i)))
	}
	is(t, "number of kept receipts after the clock has passed", tx.Commit().ReceiptCount(), 8)
}
