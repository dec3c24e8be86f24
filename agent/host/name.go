package host

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"time"
)

// Suffix returns a suffix that distinguishes machines with the same host name. It is the first 12 digits of
// the machine id, or of a hash of the first hardware address; "" if the machine has neither.
func Suffix() string {
	if raw, err := os.ReadFile("/etc/machine-id"); err == nil {
		if text := strings.TrimSpace(string(raw)); len(text) >= 12 {
			return text[:12]
		}
	}
	links, err := net.Interfaces()
	if err != nil {
		return ""
	}
	for _, link := range links {
		if len(link.HardwareAddr) > 0 && link.Flags&net.FlagLoopback == 0 {
			sum := sha256.Sum256([]byte(link.HardwareAddr.String()))
			return hex.EncodeToString(sum[:6])
		}
	}
	return ""
}

// Advertised returns the address at which schedulers reach a listener (contract/semantics.md, section 11). It
// is the address of the listener. If that is a wildcard, the host is the local address of a connection to a
// scheduler, else the first global address of an interface to other machines, else 127.0.0.1. A loopback address is kept; legacy v1 agents
// replaced it.
func Advertised(addr net.Addr, scheduler string) (string, error) {
	host, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return "", fmt.Errorf("address %q: %w", addr, err)
	}
	ip := net.ParseIP(host)
	if ip != nil && !ip.IsUnspecified() {
		return addr.String(), nil // the listener is not a wildcard: the agent listens only at this address
	}
	if scheduler != "" {
		// Connecting a UDP socket sends nothing; it only asks for the route.
		if conn, err := net.DialTimeout("udp", scheduler, time.Second); err == nil {
			from, _, err := net.SplitHostPort(conn.LocalAddr().String())
			conn.Close()
			if err == nil {
				return net.JoinHostPort(from, port), nil
			}
		}
	}
	if ip := firstGlobal(machineLinks()); ip != nil {
		return net.JoinHostPort(ip.String(), port), nil
	}
	return net.JoinHostPort("127.0.0.1", port), nil
}

// link is an interface with its addresses.
type link struct {
	name  string
	addrs []net.IP
}

func machineLinks() (out []link) {
	links, err := net.Interfaces()
	if err != nil {
		return nil
	}
	for _, l := range links {
		addrs, err := l.Addrs()
		if err != nil {
			continue // the interface was removed in the meantime
		}
		one := link{name: l.Name}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok {
				one.addrs = append(one.addrs, n.IP)
			}
		}
		out = append(out, one)
	}
	return out
}

// firstGlobal returns the first address that other machines may reach; nil if there is none. Interfaces inside the
// machine are skipped.
func firstGlobal(links []link) net.IP {
	for _, l := range links {
		if Inside(l.name) {
			continue
		}
		for _, ip := range l.addrs {
			if ip.IsGlobalUnicast() {
				return ip
			}
		}
	}
	return nil
}

// inside matches the names of interfaces that connect only containers and virtual machines of one machine: those of
// networks between nodes (agent/overlay), of the container engine, of libvirt, and of CNI plugins.
var inside = regexp.MustCompile(`^(ps[0-9]+|pvx[0-9]+|docker[0-9]+|docker_gwbridge|br-[0-9a-f]{12}|veth.*|virbr[0-9]+|vnet[0-9]+|cni[0-9]+)$`)

// Inside reports whether an interface with a name connects only containers and virtual machines of this machine. Other
// machines do not reach its addresses.
func Inside(name string) bool { return inside.MatchString(name) }
