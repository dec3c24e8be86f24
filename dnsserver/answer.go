package dnsserver

import (
	"encoding/binary"

	"github.com/miekg/dns"
)

// Ask is what an answer depends on besides zone and query.
type Ask struct {
	TCP       bool   // up to 64 KiB; over UDP what the client takes, at most 1232 bytes
	Turn      uint32 // rotates records that stand for each other
	Recursive bool   // say that foreign names would be looked up
}

// Outcome is what an answer was about.
type Outcome struct {
	Type      uint16 // of the question; 0 if none could be read
	Rcode     int
	Truncated bool
	// Foreign: refused only because the name is in none of the zones, and the
	// client wants it looked up.
	Foreign bool
}

// Answer appends the reply to a query to dst. Nothing is appended for a message
// that nobody awaits an answer to: a reply, or less than a header. query and dst
// must not overlap. It takes any bytes and costs no allocation if dst has room.
func (z *Zone) Answer(dst, query []byte, ask Ask) ([]byte, Outcome) {
	return z.answer(dst, query, ask, new(reader))
}

// reader is the working memory of one goroutine that answers.
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
			out.Rcode = dns.RcodeRefused // transfers, ANY (RFC 8482) and the like
		case q.qtype == dns.TypeOPT, q.qtype == dns.TypeNone:
			out.Rcode = dns.RcodeFormatError
		default:
			return z.resolve(dst, start, flags, ask, q, out)
		}
	}
	return q.finish(dst, start, flags, out.Rcode, 0, 0, 0), out
}

// resolve answers a question that makes sense.
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
	// How long "no" may be kept is the lesser of the SOA's own TTL and its last
	// field (RFC 2308, 3 and 5).
	dst = z.appendSOA(dst, q, apex, min(z.plan.ttl.zone, z.plan.ttl.negative))
	return q.finish(dst, start, flags|bitAA, out.Rcode, 0, 1, 0), out
}

// zoneOf is where in the name of a query that does not exist the apex of its
// zone begins, -1 if it is in none of ours.
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
	// Below the reverse name of an address: 4 labels and in-addr.arpa, or 32 and
	// ip6.arpa.
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

// positive copies a set into the answer, from another record on each turn. What
// does not fit is left out: the additional records without a word, answers with
// the truncation bit (RFC 2181, 9).
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

// fit copies as many answers as there is room for, and says how many.
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

// capTTLs lowers the TTLs of count well-formed records from at on.
func capTTLs(msg []byte, at, count int, ttl uint32) {
	for ; count > 0; count-- {
		at = skipName(msg, at)
		t := msg[at+4 : at+8]
		binary.BigEndian.PutUint32(t, min(binary.BigEndian.Uint32(t), ttl))
		at += 10 + int(binary.BigEndian.Uint16(msg[at+8:]))
	}
}

// appendSOA adds the SOA of the zone whose apex begins at that offset of the
// name asked for.
func (z *Zone) appendSOA(dst []byte, q *query, apex int, ttl uint32) []byte {
	const refresh, retry, expire = 60, 10, 600 // s; of no use without transfers
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

// nameServers is the NS set of a zone of ours.
func (z *Zone) nameServers(apex name) rrset {
	var ns, glue []record
	for _, s := range z.servers {
		ns = append(ns, record{owner: apex, typ: dns.TypeNS, ttl: z.plan.ttl.zone, target: s.name})
		glue = append(glue, s.glue...)
	}
	return pack(apex, dns.TypeNS, false, ns, glue)
}
