// Package receipts keeps the answers to requests in a queue, oldest first, with an index by
// request id.
//
// The queue may hold a million receipts. They are stored as bytes in large blocks, and the index
// consists of numbers, so that the garbage collector has no pointers to follow.
package receipts

import (
	"encoding/binary"

	"github.com/tidwall/btree"
	"google.golang.org/protobuf/encoding/protowire"
)

// Receipt is the answer to one request.
type Receipt struct {
	Seq     uint64   // position in the queue
	Request [16]byte // request id, a UUIDv7
	At      int64    // when the request was applied, Unix nanoseconds
	Answer  []byte   // the encoded answer; must not be changed
}

// Queue holds the receipts of one state. Use New. Append and Drop change a queue, but no copy of it. A queue
// that other goroutines read must be copied before it is changed. Only one goroutine at a time may change the
// queues of one lineage: a queue, its copies, and their copies.
type Queue struct {
	blocks *btree.Map[uint64, *block] // blocks, keyed by the sequence number of their first receipt
	index  *btree.BTreeG[place]
	// The next seven fields are meaningful only if the queue is not empty.
	oldest Receipt
	first  *block
	second uint64 // sequence number of the first receipt in the second block; 0 = there is no second block
	skip   int    // offset in the first block of the end of the oldest receipt
	last   *block
	tail   int // number of bytes of the last block that belong to this queue
	bytes  int // size of all receipts in bytes

	next uint64 // sequence number of the next receipt; 0 if no receipt was ever added
}

// block holds consecutive receipts. Written bytes never change. Only a queue whose tail equals
// filled may append to the block.
type block struct {
	data   []byte
	filled int
}

// blockSize is the size of a block in bytes. It holds about a hundred answers about one workload.
const blockSize = 16 << 10

// place is an entry of the index: a request id and the sequence number of its receipt.
type place struct {
	high, low uint64 // the request id
	seq       uint64
}

func placeOf(request [16]byte) place {
	return place{high: binary.BigEndian.Uint64(request[:8]), low: binary.BigEndian.Uint64(request[8:])}
}

func less(a, b place) bool {
	if a.high != b.high {
		return a.high < b.high
	}
	return a.low < b.low
}

// New returns an empty queue.
func New() *Queue {
	return &Queue{
		blocks: btree.NewMap[uint64, *block](0),
		index:  btree.NewBTreeGOptions(less, btree.Options{NoLocks: true, Degree: 16}),
	}
}

// Copy returns a copy of the same lineage (see Queue). The copy may be changed. Copy is cheap,
// because the copy shares the blocks.
func (q *Queue) Copy() *Queue {
	c := *q
	c.blocks, c.index = q.blocks.Copy(), q.index.Copy()
	return &c
}

// Clone returns a copy that begins a new lineage (see Queue). It copies every receipt.
func (q *Queue) Clone() *Queue {
	c := New()
	q.Scan(c.Append)
	return c
}

// Len returns the number of receipts.
func (q *Queue) Len() int { return q.index.Len() }

// Bytes returns the size of all receipts in bytes.
func (q *Queue) Bytes() int { return q.bytes }

// Last returns the Seq of the newest receipt.
func (q *Queue) Last() uint64 { return q.next - 1 }

// Oldest returns the oldest receipt; ok is false if the queue is empty.
func (q *Queue) Oldest() (r Receipt, ok bool) { return q.oldest, q.Len() > 0 }

// Append adds a receipt at the end of the queue and copies its Answer. It returns false and adds
// nothing if the queue has a receipt for the request, or if Seq does not follow the last one.
func (q *Queue) Append(r Receipt) bool {
	if q.Len() > 0 && r.Seq != q.next {
		return false
	}
	p := placeOf(r.Request)
	p.seq = r.Seq
	if was, known := q.index.Set(p); known {
		q.index.Set(was)
		return false
	}
	size := headSize + binary.MaxVarintLen64 + len(r.Answer)
	if q.last == nil || q.tail != q.last.filled || q.tail+size > len(q.last.data) {
		q.last, q.tail = &block{data: make([]byte, max(blockSize, size))}, 0
		q.blocks.Set(r.Seq, q.last)
		if q.first == nil {
			q.first = q.last
		} else if q.second == 0 {
			q.second = r.Seq
		}
	}
	b := append(q.last.data[q.tail:q.tail], r.Request[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.At))
	b = binary.AppendUvarint(b, uint64(len(r.Answer)))
	b = append(b, r.Answer...)
	q.tail += len(b)
	q.bytes += len(b)
	q.last.filled = q.tail
	if q.Len() == 1 {
		q.oldest, q.skip = read(b, r.Seq)
	}
	q.next = r.Seq + 1
	return true
}

// Drop removes the oldest receipt, if there is one.
func (q *Queue) Drop() {
	if q.Len() < 2 {
		next := q.next
		*q = *New()
		q.next = next
		return
	}
	q.index.Delete(placeOf(q.oldest.Request))
	q.bytes -= q.oldest.size()
	seq := q.oldest.Seq + 1
	if seq == q.second {
		q.blocks.PopMin()
		q.skip = 0
		q.begin()
	}
	var size int
	q.oldest, size = read(q.first.data[q.skip:], seq)
	q.skip += size
}

// begin is called after the oldest block was removed. It sets first to the block that is the oldest now, and
// second to the sequence number of the block after that (0 if there is none).
func (q *Queue) begin() {
	q.first, q.second = nil, 0
	q.blocks.Scan(func(seq uint64, b *block) bool {
		if q.first == nil {
			q.first = b
			return true
		}
		q.second = seq
		return false
	})
}

// headSize is the size of the fields before the length of the answer: request id and time.
const headSize = 16 + 8

// size returns the number of bytes that receipt r needs in a block.
func (r *Receipt) size() int {
	return headSize + protowire.SizeBytes(len(r.Answer))
}

// read decodes the receipt at the beginning of b. It also returns the encoded size in bytes.
func read(b []byte, seq uint64) (r Receipt, size int) {
	r.Seq, r.Request, r.At = seq, [16]byte(b), int64(binary.LittleEndian.Uint64(b[16:]))
	length, n := binary.Uvarint(b[headSize:])
	begin := headSize + n
	size = begin + int(length)
	r.Answer = b[begin:size:size]
	return r, size
}

// Get returns the receipt of a request.
func (q *Queue) Get(request [16]byte) (r Receipt, ok bool) {
	p, ok := q.index.Get(placeOf(request))
	if !ok {
		return Receipt{}, false
	}
	q.blocks.Descend(p.seq, func(first uint64, b *block) bool {
		for at, seq := 0, first; seq <= p.seq; seq++ {
			var size int
			r, size = read(b.data[at:], seq)
			at += size
		}
		return false
	})
	return r, true
}

// Scan calls fn for each receipt, oldest first, until fn returns false.
func (q *Queue) Scan(fn func(Receipt) bool) {
	if q.Len() == 0 || !fn(q.oldest) {
		return
	}
	var (
		open *block
		at   = q.skip
		seq  = q.oldest.Seq + 1
	)
	visit := func(end uint64) bool {
		for ; seq < end; seq++ {
			r, size := read(open.data[at:], seq)
			if at += size; !fn(r) {
				return false
			}
		}
		return true
	}
	goOn := true
	q.blocks.Scan(func(first uint64, b *block) bool {
		if open != nil {
			if goOn = visit(first); !goOn {
				return false
			}
			if seq == first {
				at = 0
			}
		}
		open = b
		return true
	})
	if goOn {
		visit(q.next)
	}
}
