package fsm

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/receipts"
)

// answerIndexTag is the protobuf tag of Outcome.index. An encoded Outcome of kind OK without a
// reason begins with this byte, because protobuf omits empty fields and the index is never 0.
const answerIndexTag = 3<<3 | byte(protowire.VarintType)

// outcomeOf decodes the stored answer to one API mutation.
func outcomeOf(r receipts.Receipt) *commandv1.Outcome {
	o := &commandv1.Outcome{}
	if err := o.UnmarshalVT(r.Answer); err != nil {
		panic(fmt.Sprintf("receipt %d holds no outcome: %v", r.Seq, err)) // cannot happen: this package encoded the outcome
	}
	return o
}

// answerOf returns the stored answer to a repeated request. If the hash of the request differs from the stored one,
// another request has the same id, and answerOf returns a refusal. A hash of 0 means that the hash is unknown; it is
// not compared.
func answerOf(r receipts.Receipt, hash uint64) Result {
	o := outcomeOf(r)
	if was := o.GetRequestHash(); was != 0 && hash != 0 && was != hash {
		return refuse(OtherRequest, "request: the id was used at %s for another call or with other fields, and nothing was done now; "+
			"send this request under an id of its own", clockText(r.At))
	}
	res := resultOf(o)
	res.Duplicate = true
	return res
}

// outcomes encodes the answers to requests for storage in receipts. It reuses its messages and its buffer.
type outcomes struct {
	outcome     commandv1.Outcome
	items       []commandv1.ItemOutcome
	generations []commandv1.Generation
	buf         []byte
}

// of encodes the answer r to a request with the given hash. The result is valid until the next call of the method.
func (w *outcomes) of(r *Result, hash uint64) []byte {
	n := len(r.Items)
	w.items = slices.Grow(w.items[:0], n)[:n]
	w.generations = slices.Grow(w.generations[:0], n)[:n]
	o := &w.outcome
	o.Kind, o.Reason, o.Index, o.Items = uint32(r.Kind), r.Reason, r.Index, slices.Grow(o.Items[:0], n)
	o.RequestHash = hash
	for i := range r.Items {
		from, to, g := &r.Items[i], &w.items[i], &w.generations[i]
		g.Incarnation, g.Sequence = from.Generation.Incarnation, from.Generation.Sequence
		to.Id, to.Generation, to.Revision, to.Unchanged = from.ID, g, from.Revision, from.Unchanged
		to.Kind, to.Reason, to.Deleted = uint32(from.Kind), from.Reason, from.Deleted
		o.Items = append(o.Items, to)
	}
	size := o.SizeVT()
	w.buf = slices.Grow(w.buf[:0], size)[:size]
	if _, err := o.MarshalToSizedBufferVT(w.buf); err != nil {
		panic(fmt.Sprintf("encode an outcome: %v", err)) // an Outcome has only plain fields, so its encoding cannot fail
	}
	return w.buf
}

// RequestSkew is how far the time in a request id may be ahead of the clock of the state. Without
// this bound, one client with a wrong clock would block all others: once its receipt is dropped,
// every id with an earlier time is refused as too old.
const RequestSkew = 5 * time.Minute

// once applies a command that has a request id, at most once: a repeated request gets the answer in
// its receipt.
func (t *Tx) once(c Command) Result {
	raw := c.GetHead().GetRequest()
	if len(raw) == 0 {
		return t.stamp(t.judgeAudited(c))
	}
	if len(raw) != 16 || raw[6]>>4 != 7 || raw[8]>>6 != 2 {
		return t.stamp(refuse(Invalid, "request: %x is not a UUIDv7 of 16 bytes", raw))
	}
	id := [16]byte(raw)
	if rc, ok := t.r.receipts.Get(id); ok {
		return answerOf(rc, c.GetHead().GetRequestHash())
	}
	info := &t.r.info
	if ms := receipts.MintedAt(id); ms <= info.ReceiptsDroppedUntil {
		// A client whose clock is behind gets this refusal for each of its new ids. The text has both
		// times, so that a person sees the cause.
		return t.stamp(refuse(TooOld, "request: minted at %s, answers are kept only since %s; send it again under a new id"+
			", or set the client's clock, if it was not sent at that time (the cluster's clock: %s)",
			clockText(ms*1e6), clockText(info.ReceiptsDroppedUntil*1e6), clockText(info.Clock)))
	} else if info.Clock > 0 && ms > (info.Clock+int64(RequestSkew))/1e6 {
		return t.stamp(refuse(Invalid, "request: minted at %s, more than %s ahead of the cluster's clock (%s); set the client's clock",
			clockText(ms*1e6), RequestSkew, clockText(info.Clock)))
	}
	res := t.stamp(t.judgeAudited(c))
	// Store exactly the bytes that a snapshot holds. The size of all receipts decides which ones
	// are dropped, and a replica that read a snapshot must drop the same ones.
	res.Reason = strings.ToValidUTF8(res.Reason, "")
	if res.Kind != Frozen {
		t.keep(receipts.Receipt{Request: id, At: info.Clock, Answer: t.outcomes.of(&res, c.GetHead().GetRequestHash())})
	}
	return res
}

// judgeAudited applies a command. If a command from the API writes no event of its own, judgeAudited writes one.
func (t *Tx) judgeAudited(c Command) Result {
	res := t.judge(c)
	t.auditRefused(c, res)
	return res
}

func (t *Tx) stamp(r Result) Result {
	r.Index = t.meta.Index
	return r
}

// ownReceipts returns a queue of receipts that the transaction may change: at its first call it copies the queue of the
// published state.
func (t *Tx) ownReceipts() *receipts.Queue {
	if t.owned&ownReceipts == 0 {
		t.r.receipts = t.r.receipts.Copy()
		t.owned |= ownReceipts
	}
	return t.r.receipts
}

// keep stores a receipt (the answer to a request id), and drops old receipts by the rules in
// receipts.Retention.
func (t *Tx) keep(rc receipts.Receipt) {
	info, queue := &t.r.info, t.ownReceipts()
	rc.Seq = info.ReceiptSeq + 1
	queue.Append(rc)
	info.ReceiptsDroppedUntil = max(info.ReceiptsDroppedUntil, queue.Trim(info.Clock, t.retention))
	info.ReceiptSeq = queue.Last()
}

func clockText(ns int64) string { return time.Unix(0, ns).UTC().Format(time.RFC3339) }
