package dnsserver

import (
	"encoding/binary"
	"net/netip"

	"github.com/miekg/dns"
)

// record is one resource record of class IN.
type record struct {
	owner name
	typ   uint16 // record type: A, AAAA, SRV, PTR or NS
	ttl   uint32
	addr  netip.Addr // address of A and AAAA records
	// target of SRV, PTR and NS records
	priority, weight, port uint16
	target                 name
}

// rrset is the answer to one question in wire form, without header and question. Its compression pointers
// refer only to the question, so the records may be sent in any order.
type rrset struct {
	typ     uint16
	rotate  bool
	answers uint16
	extras  uint16   // number of additional records, which follow the answers in body
	glue    uint32   // offset in body of the additional records
	ends    []uint32 // offset in body of the end of each answer; nil for a single answer
	body    []byte
}

const (
	headerLen    = 12
	maxPerAnswer = 512 // maximum number of records in a set: with their addresses they fit into a message of 64 KiB
	srvWeight    = 100
)

// end returns the offset in the packed records at which answer i ends.
func (s *rrset) end(i int) uint32 {
	if s.ends == nil {
		return s.glue
	}
	return s.ends[i]
}

// pack converts records to the wire form of the answer to a question for qname and typ. If rotate is set, the order of
// the answers changes with each reply. It keeps at most maxPerAnswer answers.
func pack(qname name, typ uint16, rotate bool, answers, extras []record) rrset {
	answers = answers[:min(len(answers), maxPerAnswer)]
	s := rrset{typ: typ, rotate: rotate && len(answers) > 1, answers: uint16(len(answers)), extras: uint16(len(extras))}
	size := 0
	for i := range answers {
		size += answers[i].size(qname)
	}
	for i := range extras {
		size += extras[i].size(qname)
	}
	b := make([]byte, 0, size)
	if len(answers) > 1 {
		s.ends = make([]uint32, len(answers))
	}
	for i := range answers {
		b = answers[i].append(b, qname)
		if s.ends != nil {
			s.ends[i] = uint32(len(b))
		}
	}
	s.glue = uint32(len(b))
	for i := range extras {
		b = extras[i].append(b, qname)
	}
	s.body = b
	return s
}

// size returns an upper bound of the bytes that append adds.
func (r *record) size(qname name) int {
	n := 2 + 10 // a compressed owner name, then type, class, TTL and length
	if r.owner != qname {
		n += len(r.owner)
	}
	switch r.typ {
	case dns.TypeA:
		return n + 4
	case dns.TypeAAAA:
		return n + 16
	}
	return n + 6 + len(r.target)
}

// append appends r to b in wire form. qname is the name in the question, to which names can point.
func (r *record) append(b []byte, qname name) []byte {
	b = appendOwner(b, r.owner, qname)
	b = binary.BigEndian.AppendUint16(b, r.typ)
	b = binary.BigEndian.AppendUint16(b, dns.ClassINET)
	b = binary.BigEndian.AppendUint32(b, r.ttl)
	switch r.typ {
	case dns.TypeA:
		a := r.addr.As4()
		b = append(b, 0, 4)
		return append(b, a[:]...)
	case dns.TypeAAAA:
		a := r.addr.As16()
		b = append(b, 0, 16)
		return append(b, a[:]...)
	case dns.TypeSRV: // the target of an SRV record is never compressed (RFC 2782)
		b = binary.BigEndian.AppendUint16(b, uint16(6+len(r.target)))
		b = binary.BigEndian.AppendUint16(b, r.priority)
		b = binary.BigEndian.AppendUint16(b, r.weight)
		b = binary.BigEndian.AppendUint16(b, r.port)
		return append(b, r.target...)
	}
	b = binary.BigEndian.AppendUint16(b, uint16(len(r.target)))
	return append(b, r.target...)
}

// appendOwner appends the name n to b. It replaces the longest suffix that n has in common with qname, the name in the
// question, by a compression pointer into the question.
func appendOwner(b []byte, n, qname name) []byte {
	for rest := qname; len(rest) > 1; rest = rest.parent() {
		if n.within(rest) {
			b = append(b, n[:len(n)-len(rest)]...)
			return binary.BigEndian.AppendUint16(b, 0xc000|uint16(headerLen+len(qname)-len(rest)))
		}
	}
	return append(b, n...)
}

// address returns the A or AAAA record of owner with address a.
func address(owner name, a netip.Addr, ttl uint32) record {
	r := record{owner: owner, typ: dns.TypeAAAA, ttl: ttl, addr: a}
	if a.Is4() {
		r.typ = dns.TypeA
	}
	return r
}

// appendAddressSets appends the set of A records and the set of AAAA records of owner to sets, unless they
// are empty.
func appendAddressSets(sets []rrset, owner name, ttl uint32, rotate bool, addrs []netip.Addr) []rrset {
	var v4, v6 []record
	for _, a := range addrs {
		if a.Is4() {
			v4 = append(v4, address(owner, a, ttl))
		} else {
			v6 = append(v6, address(owner, a, ttl))
		}
	}
	if len(v4) > 0 {
		sets = append(sets, pack(owner, dns.TypeA, rotate, v4, nil))
	}
	if len(v6) > 0 {
		sets = append(sets, pack(owner, dns.TypeAAAA, rotate, v6, nil))
	}
	return sets
}
