// Package receipts keeps the answers to requests: a queue, oldest first, in which an
// answer is also found by its request.
//
// There may be a million of them, so they are kept small and without pointers, which a
// collection of garbage would follow: the bytes of many stand in one block, one after
// another, and the index has nothing but numbers.
package receipts

import (
	"encoding/binary"

	"github.com/tidwall/btree"
	"google.golang.org/protobuf/encoding/protowire"
)

// Receipt is the answer to one request.
type Receipt struct {
	Seq     uint64   // its place in the queue
	Request [16]byte // a UUIDv7
	At      int64    // when it was judged, Unix nanoseconds
	Answer  []byte   // must not be changed
}

// Queue is the receipts at one moment. Use New. Append and Drop change it, and what Copy
// returned before stays as it was: a state that others read is copied before it is
// changed, by one goroutine at a time per lineage of copies.
type Queue struct {
	blocks *btree.Map[uint64, *block] // by the sequence number of their first receipt
	index  *btree.BTreeG[place]
	// Of a queue that is not empty:
	oldest Receipt
	first  *block
	second uint64 // Seq that the block after first begins with; 0 = there is none
	skip   int    // bytes in first before what follows oldest
	last   *block
	tail   int // bytes in last that are of this queue
	bytes  int // of all receipts

	next uint64 // Seq of the next one; 0 before the first
}

// block holds receipts in a row. What has been written stays; what follows is free for
// the one queue whose tail is at filled.
type block struct {
	data   []byte
	filled int
}

// blockSize has room for some hundred answers about one workload.
const blockSize = 16 << 10

// place is where the receipt of a request stands.
type place struct {
	high, low uint64 // the request
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

// New is an empty queue.
func New() *Queue {
	return &Queue{
		blocks: btree.NewMap[uint64, *block](0),
		index:  btree.NewBTreeGOptions(less, btree.Options{NoLocks: true, Degree: 16}),
	}
}

// Copy is for changing, and costs little.
func (q *Queue) Copy() *Queue {
	c := *q
	c.blocks, c.index = q.blocks.Copy(), q.index.Copy()
	return &c
}

// Clone is a copy in a lineage of its own.
func (q *Queue) Clone() *Queue {
	c := New()
	q.Scan(c.Append)
	return c
}

// Len is the number of receipts.
func (q *Queue) Len() int { return q.index.Len() }

// Bytes is what the receipts take.
func (q *Queue) Bytes() int { return q.bytes }

// Last is the Seq of the newest receipt.
func (q *Queue) Last() uint64 { return q.next - 1 }

// Oldest is the receipt that has been in the queue for longest.
func (q *Queue) Oldest() (r Receipt, ok bool) { return q.oldest, q.Len() > 0 }

// Append puts a receipt at the end of the queue, and copies its Answer. It does nothing
// and returns false for a request that is in the queue, and for a Seq that does not follow
// the last one.
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

// begin looks up the first blocks.
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

// headSize is what stands before the length of an answer.
const headSize = 16 + 8

// size is the bytes that r takes in a block.
func (r *Receipt) size() int {
	return headSize + protowire.SizeBytes(len(r.Answer))
}

// read takes the receipt that b begins with, and says how many bytes it has.
func read(b []byte, seq uint64) (r Receipt, size int) {
	r.Seq, r.Request, r.At = seq, [16]byte(b), int64(binary.LittleEndian.Uint64(b[16:]))
	length, n := binary.Uvarint(b[headSize:])
	begin := headSize + n
	size = begin + int(length)
	r.Answer = b[begin:size:size]
	return r, size
}

// Get finds the receipt of a request.
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

// Scan visits the receipts, oldest first, until fn says false.
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
