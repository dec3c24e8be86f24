package dnsserver

import "hash/maphash"

// table maps names to entries. A copy of a published root is a version that never
// changes: writers copy the branches that they touch, once per version, so a
// version costs what changed in it and a look-up costs one hash and three loads.
// One goroutine writes.
type table struct {
	seed    maphash.Seed
	root    [fan]*branch
	version uint64
	len     int
}

const fan = 256

type branch struct {
	version uint64 // of the table, when this branch was copied: writable in it
	slots   [fan][]*entry
}

// entry is a name that exists: it has records, or names below it have, or it is
// the apex of a zone. Entries never change; a change makes a new one.
type entry struct {
	name name
	sets []rrset
	sub  int32 // names directly below
	zone uint8 // offset in name at which its zone's apex begins
	apex bool  // it is a zone's apex: has SOA and NS
}

func newTable() *table { return &table{seed: maphash.MakeSeed(), version: 1} }

func (e *entry) empty() bool { return len(e.sets) == 0 && e.sub == 0 && !e.apex }

// find is get for whoever holds a version.
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

// put stores e under its name; an empty e removes the name.
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

// seal ends a version: what is copied from root now stays as it is.
func (t *table) seal() { t.version++ }
