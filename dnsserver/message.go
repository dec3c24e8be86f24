package dnsserver

import (
	"encoding/binary"

	"github.com/miekg/dns"
)

// Bits of the header's second word (RFC 1035, 4.1.1; RFC 4035, 3.1.6).
const (
	bitQR = 1 << 15
	bitAA = 1 << 10
	bitTC = 1 << 9
	bitRD = 1 << 8
	bitRA = 1 << 7
	bitCD = 1 << 4

	opcodeShift = 11
	opcodeMask  = 15
)

// Sizes of answers in bytes. A UDP answer of 1232 bytes passes every path without fragmentation.
const (
	minUDP  = 512
	maxUDP  = 1232
	maxTCP  = 65535
	optSize = 11
	bitDO   = 1 << 15
)

// query is a parsed query. It keeps no reference to the message.
type query struct {
	id, flags uint16
	end       int // offset in the message of the end of the question; 0 if the question could not be read
	qtype     uint16
	class     uint16

	name   [maxName]byte // queried name in lower case
	size   int           // length of name in bytes
	labels [128]uint8    // offset in name of each label, except the root label
	depth  int           // number of labels in name

	edns    bool
	version uint8
	udp     uint16 // size of UDP answers that the client accepts
	do      bool
}

// opcode returns the opcode of the query.
func (q *query) opcode() int { return int(q.flags>>opcodeShift) & opcodeMask }

// read parses a DNS message into q. ok is false if the message needs no reply: it is a response, or too short
// for a header. Otherwise rcode is Success, FormatError or NotImplemented.
func (q *query) read(msg []byte) (rcode int, ok bool) {
	q.end, q.size, q.depth, q.edns, q.version, q.udp, q.do, q.qtype, q.class = 0, 0, 0, false, 0, 0, false, 0, 0
	if len(msg) < headerLen {
		return 0, false
	}
	q.id, q.flags = binary.BigEndian.Uint16(msg), binary.BigEndian.Uint16(msg[2:])
	if q.flags&bitQR != 0 {
		return 0, false
	}
	if q.opcode() != dns.OpcodeQuery {
		return dns.RcodeNotImplemented, true
	}
	// A query has exactly one question (RFC 9619).
	if binary.BigEndian.Uint16(msg[4:]) != 1 || !q.readQuestion(msg) {
		return dns.RcodeFormatError, true
	}
	if q.qtype == dns.TypeAXFR || q.qtype == dns.TypeIXFR {
		return dns.RcodeSuccess, true // zone transfers will be refused in any form, so the SOA record of an IXFR is not checked
	}
	records := int(binary.BigEndian.Uint16(msg[6:])) + int(binary.BigEndian.Uint16(msg[8:]))
	if records != 0 || !q.readAdditional(msg, int(binary.BigEndian.Uint16(msg[10:]))) {
		return dns.RcodeFormatError, true
	}
	return dns.RcodeSuccess, true
}

func (q *query) readQuestion(msg []byte) bool {
	at := headerLen
	for {
		if at >= len(msg) {
			return false
		}
		n := int(msg[at])
		if n > maxLabel || at+1+n > len(msg) || q.size+1+n > maxName {
			return false // in the first name of a message a compression pointer is invalid
		}
		if n == 0 {
			break
		}
		q.labels[q.depth] = uint8(q.size)
		q.depth++
		q.name[q.size] = byte(n)
		for i, c := range msg[at+1 : at+1+n] {
			if c >= 'A' && c <= 'Z' {
				c += 'a' - 'A'
			}
			q.name[q.size+1+i] = c
		}
		q.size += 1 + n
		at += 1 + n
	}
	q.name[q.size] = 0
	q.size++
	at++
	if at+4 > len(msg) {
		return false
	}
	q.qtype, q.class = binary.BigEndian.Uint16(msg[at:]), binary.BigEndian.Uint16(msg[at+2:])
	q.end = at + 4
	return true
}

// readAdditional reads the EDNS record (RFC 6891) from the count records of the additional section, and
// checks that no bytes follow the additional section.
func (q *query) readAdditional(msg []byte, count int) bool {
	at := q.end
	for ; count > 0; count-- {
		root := at < len(msg) && msg[at] == 0
		if at = skipName(msg, at); at < 0 || at+10 > len(msg) {
			return false
		}
		typ, class := binary.BigEndian.Uint16(msg[at:]), binary.BigEndian.Uint16(msg[at+2:])
		ttl := binary.BigEndian.Uint32(msg[at+4:])
		end := at + 10 + int(binary.BigEndian.Uint16(msg[at+8:]))
		if end > len(msg) {
			return false
		}
		if typ == dns.TypeOPT {
			if q.edns || !root || !wellFormedOptions(msg[at+10:end]) {
				return false
			}
			q.edns, q.udp, q.version, q.do = true, class, uint8(ttl>>16), ttl&bitDO != 0
		}
		at = end
	}
	return at == len(msg)
}

// wellFormedOptions checks the lengths of EDNS options. Their contents are ignored.
func wellFormedOptions(b []byte) bool {
	for len(b) > 0 {
		if len(b) < 4 {
			return false
		}
		n := 4 + int(binary.BigEndian.Uint16(b[2:]))
		if n > len(b) {
			return false
		}
		b = b[n:]
	}
	return true
}

// skipName returns the offset after a name, or -1 if the name is malformed.
func skipName(msg []byte, at int) int {
	for at < len(msg) {
		switch n := int(msg[at]); {
		case n == 0:
			return at + 1
		case n&0xc0 == 0xc0:
			if at+2 > len(msg) {
				return -1
			}
			return at + 2
		case n > maxLabel:
			return -1
		default:
			at += 1 + n
		}
	}
	return -1
}

// limit returns the maximum size of the answer in bytes.
func (q *query) limit(tcp bool) int {
	switch {
	case tcp:
		return maxTCP
	case !q.edns:
		return minUDP
	}
	return min(max(int(q.udp), minUDP), maxUDP)
}

// begin appends the header and the question of the reply to dst. The question is copied as it was sent.
// finish later fills in the counts and the rcode of the header.
func (q *query) begin(dst, msg []byte) []byte {
	var questions byte
	if q.end > 0 {
		questions = 1
	}
	dst = append(dst, msg[0], msg[1], 0, 0, 0, questions, 0, 0, 0, 0, 0, 0)
	if q.end > 0 {
		dst = append(dst, msg[headerLen:q.end]...)
	}
	return dst
}

// finish adds an EDNS record to the reply if the query had one, and fills in the reply's header, which begins
// at offset start.
func (q *query) finish(dst []byte, start int, flags uint16, rcode, answers, authority, extras int) []byte {
	h := dst[start:]
	flags |= bitQR | q.flags&(bitRD|bitCD|opcodeMask<<opcodeShift) | uint16(rcode&15)
	binary.BigEndian.PutUint16(h[2:], flags)
	binary.BigEndian.PutUint16(h[6:], uint16(answers))
	binary.BigEndian.PutUint16(h[8:], uint16(authority))
	if q.edns {
		extras++
		var do byte
		if q.do {
			do = bitDO >> 8
		}
		dst = append(dst, 0, 0, byte(dns.TypeOPT), maxUDP>>8, maxUDP&0xff, byte(rcode>>4), 0, do, 0, 0, 0)
		h = dst[start:]
	}
	binary.BigEndian.PutUint16(h[10:], uint16(extras))
	return dst
}
