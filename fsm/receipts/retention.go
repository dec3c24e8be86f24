package receipts

import (
	"encoding/binary"
	"time"
)

// Retention says how long receipts are kept (fsm/DESIGN.md). The oldest receipt is dropped if:
//   - it is older than MaxAge, or
//   - more than Max receipts or MaxBytes bytes are kept, or
//   - it is older than MinAge and more than Min receipts are kept.
type Retention struct {
	MinAge, MaxAge time.Duration
	Min, Max       int
	MaxBytes       int // largest size of all receipts in bytes; 0 = no limit
}

// Default returns the retention that every cluster uses.
func Default() Retention {
	return Retention{MinAge: 2 * time.Minute, MaxAge: time.Hour, Min: 200_000, Max: 1_000_000, MaxBytes: 128 << 20}
}

// MintedAt returns the time inside a UUIDv7, in Unix milliseconds.
func MintedAt(request [16]byte) int64 {
	return int64(binary.BigEndian.Uint64(request[:8]) >> 16)
}

// requeueMax is the largest number of receipts that one call of Trim moves to the end of the queue.
const requeueMax = 8

// Trim drops the receipts that need not be kept at the time now, in Unix nanoseconds. It returns
// the latest MintedAt of the dropped receipts, in Unix milliseconds; 0 if none was dropped. A
// repeated request with an id from that time or earlier can no longer be recognised.
func (q *Queue) Trim(now int64, keep Retention) (droppedUntil int64) {
	for moves := 0; q.Len() > 0 && moves < requeueMax; {
		oldest := q.oldest
		// If the client's clock was ahead, the time in the id is in the future. Keep the receipt until that time has
		// passed, so that droppedUntil is never in the future.
		minted := MintedAt(oldest.Request)
		age := time.Duration(now - max(oldest.At, minted*1e6))
		if n := q.Len(); n <= keep.Max && (keep.MaxBytes == 0 || q.bytes <= keep.MaxBytes) && age <= keep.MaxAge && (age <= keep.MinAge || n <= keep.Min) {
			break
		}
		q.Drop()
		if minted*1e6 > now {
			// A limit is exceeded, but if this receipt were dropped, request ids that are made now would
			// be refused as too old. Move the receipt to the end of the queue and try the next receipt.
			// After requeueMax moves, the queue stays above the limit until the next call.
			oldest.Seq = q.next
			q.Append(oldest)
			moves++
			continue
		}
		droppedUntil = max(droppedUntil, minted)
	}
	return droppedUntil
}
