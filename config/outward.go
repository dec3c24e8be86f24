package config

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Outward returns the IP address under which other machines reach this machine. dialled are addresses, as host:port,
// that this program connects to: the address of the interface on the way to one of them is chosen. Without a way to any of
// them it is the address of the default route, and without a default route that of the only interface to other machines.
// If several interfaces are left, or none, the error names the setting that has to give the address, and its form.
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
			loopback = ip // right only if nothing else is dialled: then the whole cluster is on this machine
		}
	}
	if loopback != nil && !slices.ContainsFunc(dialled, func(addr string) bool { return !namesLoopback(addr) }) {
		return loopback.String(), nil
	}
	for _, anywhere := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} { // addresses of no machine, RFC 5737 and RFC 3849
		if ip := routed(context.Background(), anywhere); ip != nil && ip.IsGlobalUnicast() {
			return ip.String(), nil
		}
	}
	ip, err := onlyWay(interfaces())
	if err != nil {
		return "", fmt.Errorf("the address under which other machines reach this one cannot be known: %w; set %s=%s", err, setting, form)
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

// namesLoopback reports whether addr says that it is on this machine. A name that leads to a loopback address does not:
// many machines have their own name in /etc/hosts with 127.0.1.1, under which no other machine reaches them.
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

// onlyWay returns the address of the only interface over which other machines can reach this one, IPv4 before IPv6.
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

// insideNames matches the names of interfaces of container engines, libvirt, CNI plugins and networks between nodes
// (agent/overlay).
var insideNames = regexp.MustCompile(`^(docker[0-9]+|docker_gwbridge|podman[0-9]+|br-[0-9a-f]{12}|veth[0-9a-f]{7,}|virbr[0-9]+|vnet[0-9]+|lxcbr[0-9]+|lxdbr[0-9]+|cni[0-9]+|cni-.*|flannel.*|ps[0-9]+|pvx[0-9]+)$`)

func interfaces() (out []link) {
	all, err := net.Interfaces()
	if err != nil {
		return nil
	}
	for _, i := range all {
		l := link{name: i.Name, up: i.Flags&net.FlagUp != 0 && i.Flags&net.FlagRunning != 0, inside: insideNames.MatchString(i.Name) || switchOfNothing("/sys/class/net", i.Name)}
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

// switchOfNothing reports whether an interface is a bridge without a port that is a device: a bridge of an engine under
// any name. sys is the folder of the interfaces in sysfs.
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
		// A bond or VLAN has devices below it.
		below, _ := filepath.Glob(filepath.Join(sys, p.Name(), "lower_*"))
		return len(below) > 0
	})
}
