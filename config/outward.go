package config

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/persys/compute/engine"
)

// Outward returns the IP address at which other machines reach this machine. dialled are the addresses
// (host:port) to which this program connects. Outward chooses the local address of the first of these
// connections that leaves this machine. If all dialled addresses are loopback addresses, it chooses loopback.
// Otherwise it chooses the address of the default route. Without a default route it chooses the address of the
// only interface that leads to other machines. If there are several such interfaces, or none, the error names
// the setting in which the user must give the address, and the form of the address.
func Outward(setting, form string, dialled []string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second) // names may have to be looked up
	defer cancel()
	var loopback net.IP
	for _, addr := range dialled {
		switch ip := routed(ctx, addr); {
		case ip == nil:
		case !ip.IsLoopback():
			return ip.String(), nil
		case namesLoopback(addr):
			loopback = ip // used only if no address in dialled leads to another machine: then the whole cluster is on this machine
		}
	}
	if loopback != nil && !slices.ContainsFunc(dialled, func(addr string) bool { return !namesLoopback(addr) }) {
		return loopback.String(), nil
	}
	for _, anywhere := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} { // documentation addresses (RFC 5737, RFC 3849), which belong to no machine
		if ip := routed(context.Background(), anywhere); ip != nil && ip.IsGlobalUnicast() {
			return ip.String(), nil
		}
	}
	ip, err := onlyWay(interfaces())
	if err != nil {
		return "", fmt.Errorf("the address at which other machines reach this machine is unknown: %w; set %s=%s", err, setting, form)
	}
	return ip.String(), nil
}

// routed returns the local address of a connection to addr; nil if there is no route, or no such name. Connecting a UDP
// socket sends nothing to addr.
func routed(ctx context.Context, addr string) net.IP {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "udp", addr)
	if err != nil {
		return nil
	}
	defer conn.Close()
	if from, ok := conn.LocalAddr().(*net.UDPAddr); ok {
		return from.IP
	}
	return nil
}

// namesLoopback reports whether addr is a loopback address or localhost. For another name that resolves to a loopback
// address it returns false: on many machines /etc/hosts maps the machine's own name to 127.0.1.1, although the name is
// meant for other machines too.
func namesLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err == nil && (host == "localhost" || net.ParseIP(host).IsLoopback())
}

// link is a network interface.
type link struct {
	name   string
	up     bool
	inside bool // connects only containers and virtual machines of this machine
	ips    []net.IP
}

// onlyWay returns the address of the only interface that other machines can reach, with IPv4 before IPv6. If
// several interfaces or none can be reached, it returns an error.
func onlyWay(links []link) (net.IP, error) {
	var found net.IP
	var ways, left []string
	for _, l := range links {
		global := slices.DeleteFunc(slices.Clone(l.ips), func(ip net.IP) bool { return !ip.IsGlobalUnicast() })
		if len(global) == 0 {
			continue
		}
		ip := global[0]
		if i := slices.IndexFunc(global, func(ip net.IP) bool { return ip.To4() != nil }); i >= 0 {
			ip = global[i]
		}
		switch text := fmt.Sprintf("%s (%s)", l.name, ip); {
		case !l.up:
			left = append(left, text+" is down")
		case l.inside:
			left = append(left, text+" leads only to containers or virtual machines")
		default:
			found, ways = ip, append(ways, text)
		}
	}
	switch {
	case len(ways) > 1:
		return nil, fmt.Errorf("there is no default route, and several interfaces are up: %s", strings.Join(ways, ", "))
	case len(ways) == 0 && len(left) > 0:
		return nil, fmt.Errorf("there is no default route, and no interface leads to other machines: %s", strings.Join(left, ", "))
	case len(ways) == 0:
		return nil, errors.New("there is no default route, and no interface has an address")
	}
	return found, nil
}

func interfaces() (out []link) {
	all, err := net.Interfaces()
	if err != nil {
		return nil
	}
	for _, i := range all {
		l := link{name: i.Name, up: i.Flags&net.FlagUp != 0 && i.Flags&net.FlagRunning != 0, inside: engine.InsideInterface(i.Name) || switchOfNothing("/sys/class/net", i.Name)}
		addrs, err := i.Addrs()
		if err != nil {
			continue // the interface was removed in the meantime
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok {
				l.ips = append(l.ips, n.IP)
			}
		}
		out = append(out, l)
	}
	return out
}

// switchOfNothing reports whether an interface is a bridge that connects no hardware device, such as the bridges
// of container engines. sys is the folder of the interfaces in sysfs.
func switchOfNothing(sys, name string) bool {
	if _, err := os.Stat(filepath.Join(sys, name, "bridge")); err != nil {
		return false
	}
	ports, err := os.ReadDir(filepath.Join(sys, name, "brif"))
	if err != nil {
		return false
	}
	return !slices.ContainsFunc(ports, func(p os.DirEntry) bool {
		if _, err := os.Stat(filepath.Join(sys, p.Name(), "device")); err == nil {
			return true
		}
		// A bond or a VLAN interface is no hardware device itself, but has one below it.
		below, _ := filepath.Glob(filepath.Join(sys, p.Name(), "lower_*"))
		return len(below) > 0
	})
}
