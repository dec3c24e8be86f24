package fsm

import (
	"encoding/binary"
	"time"
)

// receipt is the stored answer to one API mutation.
type receipt struct {
	request [16]byte
	seq     uint64
	at      int64 // clock when it was judged, Unix nanoseconds
	result  Result
}

func (r *receipt) answer() Result {
	res := r.result
	res.Duplicate = true
	return res
}

// Retention of receipts (DESIGN, decision 8). The oldest receipt is dropped once
// it is older than ReceiptsMaxAge, or more than ReceiptsMax are kept, or it is
// older than ReceiptsMinAge while more than ReceiptsMin are kept.
const (
	ReceiptsMinAge = 2 * time.Minute
	ReceiptsMaxAge = time.Hour
	ReceiptsMin    = 200_000
	ReceiptsMax    = 1_000_000
)

// RequestSkew is how far ahead of the state's clock a request id may have been
// minted. Without a bound one wrong client clock would, once its receipt is
// dropped, make everybody else's ids look too old.
const RequestSkew = 5 * time.Minute

// retention is ReceiptsMin… in a form that a test can make small.
type retention struct {
	minAge, maxAge int64 // nanoseconds
	minLen, maxLen int
}

func defaultRetention() retention {
	return retention{int64(ReceiptsMinAge), int64(ReceiptsMaxAge), ReceiptsMin, ReceiptsMax}
}

// mintedAt is the Unix milliseconds inside a UUIDv7.
func mintedAt(id [16]byte) int64 {
	return int64(binary.BigEndian.Uint64(id[:8]) >> 16)
}

// once answers a repeated request from its receipt and judges a new one.
func (t *Tx) once(c Command) Result {
	raw := c.GetHead().GetRequest()
	if len(raw) == 0 {
		return t.stamp(t.judgeAudited(c))
	}
	if len(raw) != 16 || raw[6]>>4 != 7 || raw[8]>>6 != 2 {
		return t.stamp(refuse(Invalid, "request: %x is not a UUIDv7 of 16 bytes", raw))
	}
	id := [16]byte(raw)
	if rc, ok := t.r.byRequest.Get(string(raw)); ok {
		return rc.answer()
	}
	info := &t.r.info
	if ms := mintedAt(id); ms <= info.ReceiptsDroppedUntil {
		return t.stamp(refuse(TooOld, "request: minted at %s, answers are kept only since %s; send it again under a new id",
			clockText(ms*1e6), clockText(info.ReceiptsDroppedUntil*1e6)))
	} else if info.Clock > 0 && ms > (info.Clock+int64(RequestSkew))/1e6 {
		return t.stamp(refuse(Invalid, "request: minted at %s, more than %s ahead of the cluster's clock (%s); set the client's clock",
			clockText(ms*1e6), RequestSkew, clockText(info.Clock)))
	}
	res := t.stamp(t.judgeAudited(c))
	if res.Kind != Frozen {
		t.keep(&place(&t.slabs, &t.slabs.receipts, receipt{request: id, at: info.Clock, result: res})[0])
	}
	return res
}

// judgeAudited leaves a line of history for every mutation of the API.
func (t *Tx) judgeAudited(c Command) Result {
	res := t.judge(c)
	t.auditRefused(c, res)
	return res
}

func (t *Tx) stamp(r Result) Result {
	r.Index = t.meta.Index
	return r
}

// keep stores a receipt and drops those that retention lets go.
func (t *Tx) keep(rc *receipt) {
	info := &t.r.info
	bySeq, byRequest := own(t, &t.r.receipts, ownReceipts), own(t, &t.r.byRequest, ownByRequest)
	enqueue := func(rc *receipt) {
		info.ReceiptSeq++
		rc.seq = info.ReceiptSeq
		bySeq.Set(rc.seq, rc)
		byRequest.Set(string(rc.request[:]), rc)
	}
	enqueue(rc)
	moves := 0
	for keep := t.retention(); ; {
		_, oldest, ok := bySeq.Min()
		if !ok {
			return
		}
		// An id from a clock that is ahead counts as young until its own time has
		// passed, so that dropping it never outruns the present.
		minted := mintedAt(oldest.request)
		age := info.Clock - max(oldest.at, minted*1e6)
		if n := bySeq.Len(); n <= keep.maxLen && age <= keep.maxAge && (age <= keep.minAge || n <= keep.minLen) {
			return
		}
		bySeq.Delete(oldest.seq)
		if minted*1e6 > info.Clock {
			// There are too many. Dropping this one would make everybody's present
			// ids look too old, so it queues again and another goes. Only when none
			// is found soon are there more than maxLen, for RequestSkew at most.
			again := *oldest
			enqueue(&again)
			if moves++; moves == requeueMax {
				return
			}
			continue
		}
		byRequest.Delete(string(oldest.request[:]))
		info.ReceiptsDroppedUntil = max(info.ReceiptsDroppedUntil, minted)
	}
}

// requeueMax bounds the work of one command.
const requeueMax = 8

func (t *Tx) retention() retention {
	if t.keepFor != nil {
		return *t.keepFor
	}
	return defaultRetention()
}

func clockText(ns int64) string { return time.Unix(0, ns).UTC().Format(time.RFC3339) }
