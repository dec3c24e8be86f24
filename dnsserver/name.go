package dnsserver

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/miekg/dns"
)

// name is a domain name in lower case and wire form, with its final zero byte. It is the key of the zone's
// table.
type name string

const maxName = 255 // longest name in wire form, in bytes (RFC 1035, 2.3.4)

// parseName parses a name in presentation form.
func parseName(s string) (name, error) {
	if s == "" || s == "." {
		return "", fmt.Errorf("%q is not a domain name below the root", s)
	}
	if _, ok := dns.IsDomainName(s); !ok {
		return "", fmt.Errorf("%q is no domain name", s)
	}
	var buf [maxName + 1]byte
	n, err := dns.PackDomainName(dns.Fqdn(strings.ToLower(s)), buf[:], 0, nil, false)
	if err != nil {
		return "", fmt.Errorf("%q is no domain name: %w", s, err)
	}
	return name(buf[:n]), nil
}

// under prepends labels to n: under(n, "a", "b") is a.b.n. Labels must not exceed 63 bytes.
func under(n name, labels ...string) name {
	size := len(n)
	for _, l := range labels {
		size += 1 + len(l)
	}
	b := make([]byte, 0, size)
	for _, l := range labels {
		b = append(b, byte(len(l)))
		b = append(b, l...)
	}
	return name(append(b, n...))
}

// parent returns n without its first label. The parent of the root is "".
func (n name) parent() name {
	if len(n) <= 1 {
		return ""
	}
	return n[1+int(n[0]):]
}

// within reports whether n is equal to apex or below it.
func (n name) within(apex name) bool {
	if !strings.HasSuffix(string(n), string(apex)) {
		return false
	}
	// The bytes of apex may also occur from the middle of a label on, so compare only at label boundaries.
	for len(n) > len(apex) {
		n = n.parent()
	}
	return len(n) == len(apex)
}

// String returns the name in presentation form.
func (n name) String() string {
	s, _, err := dns.UnpackDomainName([]byte(n), 0)
	if err != nil {
		return fmt.Sprintf("%q", string(n))
	}
	return s
}

// reverseName returns the name for reverse lookups of the address a, in in-addr.arpa or ip6.arpa.
func reverseName(a netip.Addr) name {
	const hexdigits = "0123456789abcdef"
	if a.Is4() {
		b := a.As4()
		out := make([]byte, 0, 30)
		for i := 3; i >= 0; i-- {
			d := fmt.Sprint(b[i])
			out = append(append(out, byte(len(d))), d...)
		}
		return name(append(out, "\x07in-addr\x04arpa\x00"...))
	}
	b := a.As16()
	out := make([]byte, 0, 74)
	for i := 15; i >= 0; i-- {
		out = append(out, 1, hexdigits[b[i]&15], 1, hexdigits[b[i]>>4])
	}
	return name(append(out, "\x03ip6\x04arpa\x00"...))
}
