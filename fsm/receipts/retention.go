package receipts

import (
	"encoding/binary"
	"time"
)

// Retention says for how long receipts are kept (fsm/DESIGN.md). The oldest is
// dropped once it is older than MaxAge, or more than Max or MaxBytes are kept, or it is older
// than MinAge while more than Min are kept. What answers many workloads at once is as large
// as many answers.
type Retention struct {
	MinAge, MaxAge time.Duration
	Min, Max       int
	MaxBytes       int // 0: whatever they take
}

// Default is the retention of every cluster.
func Default() Retention {
	return Retention{MinAge: 2 * time.Minute, MaxAge: time.Hour, Min: 200_000, Max: 1_000_000, MaxBytes: 128 << 20}
}

// MintedAt is the Unix milliseconds inside a UUIDv7.
func MintedAt(request [16]byte) int64 {
	return int64(binary.BigEndian.Uint64(request[:8]) >> 16)
}

// requeueMax bounds the work of one Trim.
const requeueMax = 8

// Trim drops what keep lets go at a moment, Unix nanoseconds, and returns the latest
// minting time among that, Unix milliseconds; 0 for none. Requests that were minted up to
// then can no longer be told from new ones.
func (q *Queue) Trim(now int64, keep Retention) (droppedUntil int64) {
	for moves := 0; q.Len() > 0 && moves < requeueMax; {
		oldest := q.oldest
		// An id from a clock that is ahead counts as young until its own time has
		// passed, so that dropping it never outruns the present.
		minted := MintedAt(oldest.Request)
		age := time.Duration(now - max(oldest.At, minted*1e6))
		if n := q.Len(); n <= keep.Max && (keep.MaxBytes == 0 || q.bytes <= keep.MaxBytes) && age <= keep.MaxAge && (age <= keep.MinAge || n <= keep.Min) {
			break
		}
		q.Drop()
		if minted*1e6 > now {
			// There are too many. Dropping this one would make everybody's present
			// ids look too old, so it queues again and another goes. Only when none
			// is found soon are there more than Max, for as long as clocks may differ.
			oldest.Seq = q.next
			q.Append(oldest)
			moves++
			continue
		}
		droppedUntil = max(droppedUntil, minted)
	}
	return droppedUntil
}
