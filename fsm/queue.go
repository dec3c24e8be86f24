package fsm

import "slices"

// queue holds records of one state, such as the events, first in, first out. It is cheap to copy: records are in blocks of
// fixed queueBlockSize, which the copies of a queue share. The zero value is an empty queue. Append and Drop change a queue, but
// no copy of it. A queue that other goroutines read must be copied before it is changed. Only one goroutine
// at a time may change the queues of one lineage: a queue, its copies, and their copies.
type queue[V any] struct {
	blocks []*queueBlock[V] // all blocks but the last are full; the slice is never changed in place
	skip   int              // number of records in the first block that were dropped
	tail   int              // number of records in the last block that belong to this queue
}

// queueBlock holds consecutive records of a queue. The first `filled` records never change. Only a
// queue whose tail equals filled may append to the block.
type queueBlock[V any] struct {
	records [queueBlockSize]V
	filled  int
}

// queueBlockSize is the number of records per block. One live record keeps its whole block in memory.
const queueBlockSize = 64

// Copy returns a copy of the same lineage (see queue). The copy may be changed. It shares the
// blocks, so the cost of Copy does not depend on the length of the queue.
func (q *queue[V]) Copy() *queue[V] {
	c := *q
	return &c
}

// Clone returns a copy that begins a new lineage (see queue). It copies the last block.
func (q *queue[V]) Clone() *queue[V] {
	c := q.Copy()
	c.part()
	return c
}

// part gives the queue its own copy of the last block, to which no other queue appends.
func (q *queue[V]) part() {
	if n := len(q.blocks); n > 0 {
		mine := &queueBlock[V]{filled: q.tail}
		copy(mine.records[:q.tail], q.blocks[n-1].records[:q.tail])
		q.blocks = append(slices.Clone(q.blocks[:n-1]), mine)
	}
}

// Len returns the number of records in the queue.
func (q *queue[V]) Len() int {
	if len(q.blocks) == 0 {
		return 0
	}
	return (len(q.blocks)-1)*queueBlockSize + q.tail - q.skip
}

// At returns record i, 0 <= i < Len; 0 is the oldest. The record must not be changed.
func (q *queue[V]) At(i int) *V {
	i += q.skip
	return &q.blocks[i/queueBlockSize].records[i%queueBlockSize]
}

// Append adds v at the end and returns a pointer to the stored record.
func (q *queue[V]) Append(v V) *V {
	if n := len(q.blocks); n == 0 || q.tail == queueBlockSize {
		q.blocks, q.tail = append(slices.Clip(q.blocks), &queueBlock[V]{}), 0
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
func (q *queue[V]) Drop(n int) {
	gone := q.Len() - n
	if gone <= 0 {
		return
	}
	q.skip += gone
	q.blocks = q.blocks[q.skip/queueBlockSize:]
	if q.skip %= queueBlockSize; n == 0 {
		*q = queue[V]{}
	}
}
