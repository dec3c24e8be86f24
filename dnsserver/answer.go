package dnsserver

import (
	"encoding/binary"

	"github.com/miekg/dns"
)

// Ask holds the further inputs of Zone.Answer: how the query arrived and how to order the answers.
type Ask struct {
	TCP       bool   // the query came over TCP: answers have up to 64 KiB; over UDP they have the size that the client accepts, at most 1232 bytes
	Turn      uint32 // the records of an answer are rotated by this many positions
	Recursive bool   // whether the server looks up names outside its zones for clients, so that answers have the RA bit
}

// Outcome describes an answer, for metrics and for the decision whether to forward the query.
type Outcome struct {
	Type      uint16 // type of the question; 0 if the question could not be read
	Rcode     int
	Truncated bool
	// Foreign means that the query should be forwarded: it was refused only because its name is in none of
	// the zones, and the client set the RD bit.
	Foreign bool
}

// Answer appends the reply to a query to dst. It appends nothing for a message that needs no reply:
// a response, or a message shorter than a header. query and dst must not overlap. Answer accepts any
// bytes and does not allocate if dst has enough capacity.
func (z *Zone) Answer(dst, query []byte, ask Ask) ([]byte, Outcome) {
	return z.answer(dst, query, ask, new(reader))
}

// reader holds the memory that a goroutine reuses for each query that it answers.
type reader struct{ q query }

func (z *Zone) answer(dst, msg []byte, ask Ask, r *reader) ([]byte, Outcome) {
	q := &r.q
	rcode, ok := q.read(msg)
	if !ok {
		return dst, Outcome{}
	}
	var flags uint16
	if ask.Recursive {
		flags = bitRA
	}
	start := len(dst)
	out := Outcome{Type: q.qtype, Rcode: rcode}
	dst = q.begin(dst, msg)
	if rcode == dns.RcodeSuccess {
		switch {
		case q.version != 0:
			out.Rcode = dns.RcodeBadVers
		case q.class != dns.ClassINET, q.qtype >= dns.TypeTKEY && q.qtype <= dns.TypeANY:
			out.Rcode = dns.RcodeRefused // transfers, ANY (RFC 8482) and other unsupported types are refused
		case q.qtype == dns.TypeOPT, q.qtype == dns.TypeNone:
			out.Rcode = dns.RcodeFormatError
		default:
			return z.resolve(dst, start, flags, ask, q, out)
		}
	}
	return q.finish(dst, start, flags, out.Rcode, 0, 0, 0), out
}

// resolve answers a well-formed question of class IN.
func (z *Zone) resolve(dst []byte, start int, flags uint16, ask Ask, q *query, out Outcome) ([]byte, Outcome) {
	limit := start + q.limit(ask.TCP)
	if q.edns {
		limit -= optSize
	}
	e := find(z.seed, &z.root, q.name[:q.size])
	var apex int
	switch {
	case e != nil:
		apex = int(e.zone)
		for i := range e.sets {
			if s := &e.sets[i]; s.typ == q.qtype {
				return z.positive(dst, start, flags, limit, ask.Turn, q, s, out)
			}
		}
		if e.apex {
			switch q.qtype {
			case dns.TypeSOA:
				dst = z.appendSOA(dst, q, 0, z.plan.ttl.zone)
				return q.finish(dst, start, flags|bitAA, out.Rcode, 1, 0, 0), out
			case dns.TypeNS:
				s := z.nameServers(name(q.name[:q.size]))
				return z.positive(dst, start, flags, limit, 0, q, &s, out)
			}
		}
	default:
		if apex = z.zoneOf(q); apex < 0 {
			out.Rcode = dns.RcodeRefused
			out.Foreign = q.flags&bitRD != 0
			return q.finish(dst, start, flags, out.Rcode, 0, 0, 0), out
		}
		out.Rcode = dns.RcodeNameError
	}
	// The TTL of a negative answer is the lesser of the SOA's TTL and its last field (RFC 2308, 3
	// and 5).
	dst = z.appendSOA(dst, q, apex, min(z.plan.ttl.zone, z.plan.ttl.negative))
	return q.finish(dst, start, flags|bitAA, out.Rcode, 0, 1, 0), out
}

// zoneOf returns the offset in the queried name at which the apex of its zone starts. It is called for names
// without an entry in the zone. It returns -1 if the name is in none of the zones.
func (z *Zone) zoneOf(q *query) int {
	full := q.name[:q.size]
	for _, apex := range z.plan.apexes {
		at := q.size - len(apex)
		if at < 0 || string(full[at:]) != string(apex) {
			continue
		}
		for _, begin := range q.labels[:q.depth] {
			if int(begin) == at {
				return at
			}
		}
	}
	// The name may be below the reverse name of an address, which is a zone: 4 labels and in-addr.arpa, or 32
	// labels and ip6.arpa.
	for _, depth := range [...]int{6, 34} {
		if q.depth <= depth {
			continue
		}
		at := int(q.labels[q.depth-depth])
		if e := find(z.seed, &z.root, full[at:]); e != nil && e.apex && e.zone == 0 && len(e.sets) > 0 {
			return at
		}
	}
	return -1
}

// positive appends the records of the set s to the answer dst. It begins with another record for each value of turn,
// so that the load is spread. If the set does not fit, additional records are dropped first. If answers must be
// dropped too, the TC bit is set (RFC 2181, 9).
func (z *Zone) positive(dst []byte, start int, flags uint16, limit int, turn uint32, q *query, s *rrset, out Outcome) ([]byte, Outcome) {
	records := len(dst)
	first, n := 0, int(s.answers)
	if s.rotate {
		first = int(turn % uint32(n))
	}
	var from uint32
	if first > 0 {
		from = s.end(first - 1)
	}
	extras := 0
	switch {
	case len(dst)+len(s.body) <= limit:
		dst = append(append(dst, s.body[from:s.glue]...), s.body[:from]...)
		dst = append(dst, s.body[s.glue:]...)
		extras = int(s.extras)
	case len(dst)+int(s.glue) <= limit:
		dst = append(append(dst, s.body[from:s.glue]...), s.body[:from]...)
	default:
		dst, n = s.fit(dst, limit, first)
		flags |= bitTC
		out.Truncated = true
	}
	if z.cap > 0 {
		capTTLs(dst, records, n+extras, z.cap)
	}
	return q.finish(dst, start, flags|bitAA, out.Rcode, n, 0, extras), out
}

// fit appends as many answers of the set to dst as fit into limit bytes, and returns their number.
func (s *rrset) fit(dst []byte, limit, first int) ([]byte, int) {
	n := int(s.answers)
	for i := range n {
		at := (first + i) % n
		var from uint32
		if at > 0 {
			from = s.end(at - 1)
		}
		one := s.body[from:s.end(at)]
		if len(dst)+len(one) > limit {
			return dst, i
		}
		dst = append(dst, one...)
	}
	return dst, n
}

// capTTLs lowers the TTLs of count well-formed records, which start at offset at in msg, to ttl at most.
func capTTLs(msg []byte, at, count int, ttl uint32) {
	for ; count > 0; count-- {
		at = skipName(msg, at)
		t := msg[at+4 : at+8]
		binary.BigEndian.PutUint32(t, min(binary.BigEndian.Uint32(t), ttl))
		at += 10 + int(binary.BigEndian.Uint16(msg[at+8:]))
	}
}

// appendSOA adds the SOA record of the zone to dst. The zone's name is the part of the queried name that begins at
// offset apex.
func (z *Zone) appendSOA(dst []byte, q *query, apex int, ttl uint32) []byte {
	const refresh, retry, expire = 60, 10, 600 // SOA timers in seconds; they have no effect, because there are no zone transfers
	p := z.plan
	negative := p.ttl.negative
	if z.cap > 0 {
		ttl, negative = min(ttl, z.cap), min(negative, z.cap)
	}
	dst = binary.BigEndian.AppendUint16(dst, 0xc000|uint16(headerLen+apex))
	dst = binary.BigEndian.AppendUint16(dst, dns.TypeSOA)
	dst = binary.BigEndian.AppendUint16(dst, dns.ClassINET)
	dst = binary.BigEndian.AppendUint32(dst, ttl)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(p.schedulers)+len(p.hostmaster)+20))
	dst = append(append(dst, p.schedulers...), p.hostmaster...)
	for _, v := range [...]uint32{z.Serial(), refresh, retry, expire, negative} {
		dst = binary.BigEndian.AppendUint32(dst, v)
	}
	return dst
}

// nameServers returns the NS records of the zone apex.
func (z *Zone) nameServers(apex name) rrset {
	var ns, glue []record
	for _, s := range z.servers {
		ns = append(ns, record{owner: apex, typ: dns.TypeNS, ttl: z.plan.ttl.zone, target: s.name})
		glue = append(glue, s.glue...)
	}
	return pack(apex, dns.TypeNS, false, ns, glue)
}
