// Package queue implements a first-in, first-out queue of records that is cheap to copy. Records are stored
// in blocks of fixed size. Append needs no search and little memory. Copies of a queue share the blocks.
package queue

import "slices"

// Queue holds the records of one state. The zero value is an empty queue. Append and Drop change a queue, but
// no copy of it. A queue that other goroutines read must be copied before it is changed. Only one goroutine
// at a time may change the queues of one lineage: a queue, its copies, and their copies.
type Queue[V any] struct {
	blocks []*block[V] // all blocks but the last are full; the slice is never changed in place
	skip   int         // number of records in the first block that were dropped
	tail   int         // number of records in the last block that belong to this queue
}

// block holds consecutive records of a queue. The first `filled` records never change. Only a
// queue whose tail equals filled may append to the block.
type block[V any] struct {
	records [size]V
	filled  int
}

// size is the number of records per block. One live record keeps its whole block in memory.
const size = 64

// Copy returns a copy of the same lineage (see Queue). The copy may be changed. It shares the
// blocks, so the cost of Copy does not depend on the length of the queue.
func (q *Queue[V]) Copy() *Queue[V] {
	c := *q
	return &c
}

// Clone returns a copy that begins a new lineage (see Queue). It copies the last block.
func (q *Queue[V]) Clone() *Queue[V] {
	c := q.Copy()
	c.part()
	return c
}

// part gives the queue its own copy of the last block, to which no other queue appends.
func (q *Queue[V]) part() {
	if n := len(q.blocks); n > 0 {
		mine := &block[V]{filled: q.tail}
		copy(mine.records[:q.tail], q.blocks[n-1].records[:q.tail])
		q.blocks = append(slices.Clone(q.blocks[:n-1]), mine)
	}
}

// Len returns the number of records in the queue.
func (q *Queue[V]) Len() int {
	if len(q.blocks) == 0 {
		return 0
	}
	return (len(q.blocks)-1)*size + q.tail - q.skip
}

// At returns record i, 0 <= i < Len; 0 is the oldest. The record must not be changed.
func (q *Queue[V]) At(i int) *V {
	i += q.skip
	return &q.blocks[i/size].records[i%size]
}

// Append adds v at the end and returns a pointer to the stored record.
func (q *Queue[V]) Append(v V) *V {
	if n := len(q.blocks); n == 0 || q.tail == size {
		q.blocks, q.tail = append(slices.Clip(q.blocks), &block[V]{}), 0
	} else if q.blocks[n-1].filled != q.tail {
		q.part() // another copy of the queue has appended to this block
	}
	last := q.blocks[len(q.blocks)-1]
	kept := &last.records[q.tail]
	*kept = v
	q.tail++
	last.filled = q.tail
	return kept
}

// Drop removes the oldest records until at most n are left.
func (q *Queue[V]) Drop(n int) {
	gone := q.Len() - n
	if gone <= 0 {
		return
	}
	q.skip += gone
	q.blocks = q.blocks[q.skip/size:]
	if q.skip %= size; n == 0 {
		*q = Queue[V]{}
	}
}
