package dnsserver

import "hash/maphash"

// table is a persistent hash table from names to entries, with one writing goroutine. A copy of a
// sealed root is an immutable version. A writer copies each branch once per version, before it
// changes the branch. A version therefore costs memory in proportion to its changes, and a lookup
// costs one hash and three loads.
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

// entry is an existing name: it has records, has names below it, or is the apex of a zone. Entries
// are immutable; a change stores a new entry.
type entry struct {
	name name
	sets []rrset
	sub  int32 // names directly below
	zone uint8 // offset in name of the apex of its zone
	apex bool  // name is a zone apex, with SOA and NS
}

func newTable() *table { return &table{seed: maphash.MakeSeed(), version: 1} }

func (e *entry) empty() bool { return len(e.sets) == 0 && e.sub == 0 && !e.apex }

// find looks up key in a version of the table.
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

// put stores e under its name. An empty e removes the name.
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

// seal ends a version: copies of root made before are not changed by later writes.
func (t *table) seal() { t.version++ }
