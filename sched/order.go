package sched

import (
	"slices"
	"sort"
)

// chunkSize is the maximum number of keys in a chunk. A chunk that would exceed it is split in two.
const chunkSize = 128

// order keeps the slots of nodes sorted by load, and by slot number where loads are equal. The slots are
// stored in chunks of bounded size, so the cost of moving one slot does not grow with the number of slots.
// Each chunk knows an upper bound of the free CPU and memory of its nodes, so that a search can skip a chunk
// in which no node has room.
type order struct {
	chunks    []chunk
	low, high int64 // lowest and highest load in the order
}

type chunk struct {
	keys             []uint64 // upper bounds of the free CPU and of the free memory that any node of the chunk has
	freeCPU, freeMem int64    // upper bounds of the free CPU and memory of one node of the chunk
}

func orderKey(load uint32, s int32) uint64 { return uint64(load)<<32 | uint64(uint32(s)) }
func slotIn(key uint64) int32              { return int32(uint32(key)) }
func loadIn(key uint64) int64              { return int64(key >> 32) }

// seek finds the first stored key that is not less than key. It returns the number of its chunk and
// the position in the chunk. If there is no such key, the chunk number is len(chunks).
func (o *order) seek(key uint64) (int, int) {
	c := sort.Search(len(o.chunks), func(i int) bool {
		k := o.chunks[i].keys
		return k[len(k)-1] >= key
	})
	if c == len(o.chunks) {
		return c, 0
	}
	i, _ := slices.BinarySearch(o.chunks[c].keys, key)
	return c, i
}

// ends updates the lowest and the highest key of each chunk (fields low and high) after a change.
func (o *order) ends() {
	if n := len(o.chunks); n > 0 {
		last := o.chunks[n-1].keys
		o.low, o.high = loadIn(o.chunks[0].keys[0]), loadIn(last[len(last)-1])
	}
}

func (o *order) insert(x *nodeIndex, s int32) {
	defer o.ends()
	key := orderKey(x.hot[s].load, s)
	if len(o.chunks) == 0 {
		o.chunks = append(o.chunks, chunk{keys: append(make([]uint64, 0, chunkSize+1), key),
			freeCPU: x.hot[s].freeCPU, freeMem: x.hot[s].freeMem})
		return
	}
	c, i := o.seek(key)
	if c == len(o.chunks) {
		c--
		i = len(o.chunks[c].keys)
	}
	ch := &o.chunks[c]
	ch.keys = slices.Insert(ch.keys, i, key)
	ch.freeCPU = max(ch.freeCPU, x.hot[s].freeCPU)
	ch.freeMem = max(ch.freeMem, x.hot[s].freeMem)
	if len(ch.keys) > chunkSize {
		o.split(x, c)
	}
}

func (o *order) split(x *nodeIndex, c int) {
	keys := o.chunks[c].keys
	half := len(keys) / 2
	right := chunk{keys: append(make([]uint64, 0, chunkSize+1), keys[half:]...)}
	o.chunks[c].keys = keys[:half]
	o.chunks = slices.Insert(o.chunks, c+1, right)
	o.chunks[c].tighten(x)
	o.chunks[c+1].tighten(x)
}

func (o *order) remove(x *nodeIndex, s int32) {
	defer o.ends()
	key := orderKey(x.hot[s].load, s)
	c, i := o.seek(key)
	if c == len(o.chunks) || i == len(o.chunks[c].keys) || o.chunks[c].keys[i] != key {
		return
	}
	ch := &o.chunks[c]
	ch.keys = slices.Delete(ch.keys, i, i+1)
	if len(ch.keys) >= chunkSize/4 {
		return
	}
	// Merge a chunk that has become small with a neighbour that has room.
	for _, left := range [...]int{c - 1, c} {
		if left >= 0 && left+1 < len(o.chunks) && len(o.chunks[left].keys)+len(o.chunks[left+1].keys) <= chunkSize/2 {
			a, b := &o.chunks[left], &o.chunks[left+1]
			a.keys = append(a.keys, b.keys...)
			a.freeCPU, a.freeMem = max(a.freeCPU, b.freeCPU), max(a.freeMem, b.freeMem)
			o.chunks = slices.Delete(o.chunks, left+1, left+2)
			return
		}
	}
	if len(ch.keys) == 0 {
		o.chunks = slices.Delete(o.chunks, c, c+1)
	}
}

// tighten computes the upper bounds of the free CPU and memory of a chunk again from its nodes.
func (c *chunk) tighten(x *nodeIndex) {
	c.freeCPU, c.freeMem = 0, 0
	for _, k := range c.keys {
		s := slotIn(k)
		c.freeCPU = max(c.freeCPU, x.hot[s].freeCPU)
		c.freeMem = max(c.freeMem, x.hot[s].freeMem)
	}
}
