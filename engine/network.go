package engine

import (
	"crypto/sha256"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Protocol checks the protocol of a port.
func Protocol(s string) string { return oneOf(s, "tcp", "udp", "sctp") }

// Expose checks a port or a range in the form PORT[-PORT][/PROTOCOL].
func Expose(s string) string {
	ports, protocol, has := strings.Cut(s, "/")
	m := rangePattern.FindStringSubmatch(ports)
	if m == nil {
		return "must be a port of the container or a range of them, such as 8080 or 53/udp"
	}
	first, _ := strconv.Atoi(m[1]) // Atoi cannot overflow: the text has at most five digits
	last := first
	if m[2] != "" {
		last, _ = strconv.Atoi(m[2])
	}
	switch {
	case first < 1 || last > 65535:
		return "must be 1 to 65535"
	case last < first:
		return fmt.Sprintf("is a range that is backwards: write %d-%d", last, first)
	case has:
		return Protocol(protocol)
	}
	return ""
}

// MAC checks the address of a network card.
func MAC(s string) string {
	hw, err := net.ParseMAC(s)
	switch {
	case err != nil || len(hw) != 6:
		return "must be like 52:54:00:12:34:56"
	case hw[0]&1 != 0:
		return "is a multicast address: the second digit must be even"
	case slices.Max(hw) == 0:
		return "must not be zero"
	}
	return ""
}

// GuestMAC returns the Ethernet address of a guest's network card without a configured one. It depends only on
// the cluster, the workload and the number of the card. So a guest that is replaced or moved keeps its address,
// and schedulers know the address before the guest starts.
func GuestMAC(cluster, workload string, card int) string {
	sum := sha256.Sum256([]byte("persys interface\x00" + cluster + "\x00" + workload + "\x00" + strconv.Itoa(card)))
	return fmt.Sprintf("52:54:00:%02x:%02x:%02x", sum[0], sum[1], sum[2])
}

// Address checks an IP address.
func Address(s string) string {
	if _, err := netip.ParseAddr(s); err != nil {
		return "must be an IP address"
	}
	return ""
}

// IPv4 checks an IP address of version 4.
func IPv4(s string) string {
	if a, err := netip.ParseAddr(s); err != nil || !a.Is4() {
		return "must be an IPv4 address"
	}
	return ""
}

// IPv6 checks an IP address of version 6.
func IPv6(s string) string {
	if a, err := netip.ParseAddr(s); err != nil || !a.Is6() || a.Zone() != "" {
		return "must be an IPv6 address"
	}
	return ""
}

// NetworkDriver checks the driver of a network that a stack creates. It also accepts unknown names, because
// such a name may be that of a plugin.
func NetworkDriver(s string) string {
	switch s {
	case "host", "none", "null":
		return "is the driver of a network that every engine has already: write network_mode in the services instead"
	case "overlay":
		return "needs Swarm, which nodes do not run: a stack is on one node, where bridge does the same"
	}
	return ""
}

// Subnet checks a network in CIDR form.
func Subnet(s string) string {
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		return "must be a network such as 10.9.0.0/24"
	case p != p.Masked():
		return fmt.Sprintf("is an address in a network: write the network, %s", p.Masked())
	}
	return ""
}

// HostAddress checks the address in an entry of extra_hosts (a line that Docker adds to /etc/hosts).
func HostAddress(s string) string {
	if s == "host-gateway" || Address(strings.Trim(s, "[]")) == "" {
		return ""
	}
	return "must be like name=10.0.0.5, or name=host-gateway for the node"
}

// Word checks a text that must not contain a blank, because the program that reads the text ignores everything
// after the blank. Examples are a network alias and an option in resolv.conf.
func Word(s string) string {
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
		return "must not be empty and must not contain blanks"
	}
	return ""
}

// PIDMode checks a container's PID namespace mode, which decides whose processes the container sees.
func PIDMode(s string) string { return sharing(s, "host") }

// IPCMode checks a container's IPC namespace mode, which decides whose shared memory the container uses.
func IPCMode(s string) string { return sharing(s, "none", "private", "shareable", "host") }

// sharing checks a namespace mode: one of the given words, or the mode of another container or service.
func sharing(s string, words ...string) string {
	kind, name, has := strings.Cut(s, ":")
	if has && name != "" && (kind == "container" || kind == "service") {
		return ""
	}
	if oneOf(s, words...) == "" {
		return ""
	}
	return "must be " + strings.Join(append(words, "service:NAME or container:NAME"), ", ")
}

// UTSMode checks a container's UTS namespace mode, which decides whose host name the container has.
func UTSMode(s string) string { return oneOf(s, "host", "private") }

// UsernsMode checks a container's user namespace mode, which decides whose user ids the container has.
func UsernsMode(s string) string { return oneOf(s, "host", "private") }

// Shared returns the name in a network mode service:NAME or container:NAME, with which a container uses the
// network of another service or container. It returns "" for other modes.
func Shared(mode string) string {
	kind, name, _ := strings.Cut(mode, ":")
	if name != "" && (kind == "service" || kind == "container") {
		return kind
	}
	return ""
}
