// Package queue keeps records in the order in which they came, the newest at the end, the
// oldest going first. What it holds stands in blocks, one record after another: to append
// costs no search and next to no memory, and a copy for the next state shares the blocks.
package queue

import "slices"

// Queue is the records at one moment. The zero value is empty. Append and Drop change it,
// and what Copy returned before stays as it was: a state that others read is copied before it
// is changed, by one goroutine at a time per lineage of copies.
type Queue[V any] struct {
	blocks []*block[V] // all full but the last; never changed in place
	skip   int         // records of the first block that are gone
	tail   int         // records of the last block that are of this queue
}

// block holds records in a row. What has been put there stays; what follows is free for the
// one queue whose tail is at filled.
type block[V any] struct {
	records [size]V
	filled  int
}

// size is how many records stand in a block, and so how many one that is kept for long keeps.
const size = 64

// Copy is for changing, and costs next to nothing.
func (q *Queue[V]) Copy() *Queue[V] {
	c := *q
	return &c
}

// Clone is a copy in a lineage of its own.
func (q *Queue[V]) Clone() *Queue[V] {
	c := q.Copy()
	c.part()
	return c
}

// part puts a copy of the last block in its place.
func (q *Queue[V]) part() {
	if n := len(q.blocks); n > 0 {
		mine := &block[V]{filled: q.tail}
		copy(mine.records[:q.tail], q.blocks[n-1].records[:q.tail])
		q.blocks = append(slices.Clone(q.blocks[:n-1]), mine)
	}
}

// Len is the number of records.
func (q *Queue[V]) Len() int {
	if len(q.blocks) == 0 {
		return 0
	}
	return (len(q.blocks)-1)*size + q.tail - q.skip
}

// At is the record that i came before, 0 <= i < Len. It must not be changed.
func (q *Queue[V]) At(i int) *V {
	i += q.skip
	return &q.blocks[i/size].records[i%size]
}

// Append puts v at the end and returns it as it is kept.
func (q *Queue[V]) Append(v V) *V {
	if n := len(q.blocks); n == 0 || q.tail == size {
		q.blocks, q.tail = append(slices.Clip(q.blocks), &block[V]{}), 0
	} else if q.blocks[n-1].filled != q.tail {
		q.part() // another copy went on from here
	}
	last := q.blocks[len(q.blocks)-1]
	kept := &last.records[q.tail]
	*kept = v
	q.tail++
	last.filled = q.tail
	return kept
}

// Drop removes the oldest records but n.
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
