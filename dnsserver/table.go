package dnsserver

import "hash/maphash"

// table is a hash table from names to entries, of which older versions stay readable (a persistent data structure).
// Only one goroutine may write. After seal, a copy of root is a version that never changes. The writer copies a branch
// of the table before it changes the branch for the first time in a version, and then changes the copy. So a version
// costs memory in proportion to its changes. A lookup costs one hash and three loads.
type table struct {
	seed    maphash.Seed
	root    [fan]*branch
	version uint64
	len     int
}

const fan = 256

type branch struct {
	version uint64 // table version in which this branch was copied and may be written
	slots   [fan][]*entry
}

// entry is a name in the zone. It exists because it has records, has names below it, or is the apex of a
// zone. Entries are immutable; a change stores a new entry.
type entry struct {
	name name
	sets []rrset
	sub  int32 // number of existing names directly below this one
	zone uint8 // offset in name at which the apex of its zone starts
	apex bool  // whether the name is the apex of a zone, with SOA and NS records
}

func newTable() *table { return &table{seed: maphash.MakeSeed(), version: 1} }

func (e *entry) empty() bool { return len(e.sets) == 0 && e.sub == 0 && !e.apex }

// find returns the entry of the name key in a version of the table, nil if there is none.
func find(seed maphash.Seed, root *[fan]*branch, key []byte) *entry {
	h := maphash.Bytes(seed, key)
	b := root[h%fan]
	if b == nil {
		return nil
	}
	for _, e := range b.slots[h/fan%fan] {
		if string(e.name) == string(key) {
			return e
		}
	}
	return nil
}

func (t *table) get(n name) *entry {
	h := maphash.String(t.seed, string(n))
	b := t.root[h%fan]
	if b == nil {
		return nil
	}
	for _, e := range b.slots[h/fan%fan] {
		if e.name == n {
			return e
		}
	}
	return nil
}

// put stores e under its name. If e is empty (see entry.empty), the name is removed.
func (t *table) put(e *entry) {
	h := maphash.String(t.seed, string(e.name))
	b := t.root[h%fan]
	switch {
	case b == nil:
		b = &branch{version: t.version}
		t.root[h%fan] = b
	case b.version != t.version:
		c := *b
		c.version = t.version
		b = &c
		t.root[h%fan] = b
	}
	old := b.slots[h/fan%fan]
	fresh := make([]*entry, 0, len(old)+1)
	for _, o := range old {
		if o.name != e.name {
			fresh = append(fresh, o)
		} else {
			t.len--
		}
	}
	if !e.empty() {
		fresh = append(fresh, e)
		t.len++
	}
	if len(fresh) == 0 {
		fresh = nil
	}
	b.slots[h/fan%fan] = fresh
}

// seal ends a version of the table: later writes do not change copies of root that were made before.
func (t *table) seal() { t.version++ }
