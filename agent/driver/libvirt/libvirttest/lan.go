package libvirttest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/persys/compute/testbed"
)

// lanScript makes a bridge, and a router in its own network namespace. A veth pair connects them. One end of
// the pair is in the router's namespace, so the pair disappears when the router ends.
const lanScript = `set -e
bridge=$1 router=$2 first=$3 last=$4 files=$5
ip link add "$bridge" type bridge
ip link set "$bridge" up
unshare --net sh -ec '
ip link set lo up
ip link add lan type veth peer name "$1-lan" netns "$6"
ip addr add "$2" dev lan
ip link set lan up
exec dnsmasq --conf-file= --keep-in-foreground --user=root --pid-file="$5.pid" --port=0 --interface=lan \
	--dhcp-range="$3,$4,1h" --dhcp-authoritative --no-ping --dhcp-leasefile="$5.leases" --log-dhcp --log-facility=-
' sh "$@" "$$" </dev/null >"$files.log" 2>&1 &
tries=0
until ip link set "$bridge-lan" master "$bridge" up 2>/dev/null; do
	tries=$((tries + 1))
	if [ $tries -gt 600 ] || ! kill -0 $! 2>/dev/null; then
		cat "$files.log"
		exit 1
	fi
	sleep 0.05
done
echo $!
`

// LAN is a network that libvirt does not manage: a plain bridge in the daemon's namespaces, and a router that
// gives addresses by DHCP. The machine has no address on the bridge, so guests never send a packet to it.
type LAN struct {
	Bridge string

	d     *Daemon
	files string
	pid   string // process id of the router, in the daemon's namespaces
}

// LAN starts a LAN. router is the router's address with its prefix length. The DHCP server leases the
// addresses from first to last. The bridge's name has at most 11 characters, because the veth's name is
// longer.
func (d *Daemon) LAN(ctx context.Context, bridge string, router netip.Prefix, first, last netip.Addr) (*LAN, error) {
	l := &LAN{Bridge: bridge, d: d, files: filepath.Join(d.Dir, "lan-"+bridge)}
	out, err := d.Inside(ctx, "sh", "-c", lanScript, "sh", bridge, router.String(), first.String(), last.String(), l.files)
	if err != nil {
		return nil, errors.Join(err, l.Close(context.WithoutCancel(ctx)))
	}
	l.pid = strings.TrimSpace(out)
	err = testbed.Poll(ctx, time.Minute, "a DHCP server on "+bridge, func(ctx context.Context) error {
		if _, err := os.Stat(l.files + ".pid"); err == nil { // the DHCP server writes its .pid file once it listens
			return nil
		}
		if _, err := d.Inside(ctx, "kill", "-0", l.pid); err != nil {
			return testbed.Final(errors.New("the DHCP server has ended"))
		}
		return errors.New("the DHCP server does not listen yet")
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w\n%s", err, l.Log()), l.Close(context.WithoutCancel(ctx)))
	}
	return l, nil
}

// Log returns the output of the DHCP server.
func (l *LAN) Log() string {
	text, _ := os.ReadFile(l.files + ".log")
	return string(text)
}

// AtRouter returns the words of a command that runs a program in the router's network namespace. The command
// can be started outside of the daemon's namespaces.
func (l *LAN) AtRouter(args ...string) ([]string, error) {
	first, err := l.d.first()
	if err != nil {
		return nil, err
	}
	return append([]string{"nsenter", "-t", first, "-m", "-n", "-p", "nsenter", "-t", l.pid, "-n"}, args...), nil
}

// Close removes the LAN. The error names interfaces that are still on the bridge.
func (l *LAN) Close(ctx context.Context) error {
	var errs error
	if l.pid != "" { // the veth pair disappears with the router's network namespace
		if _, err := l.d.Inside(ctx, "kill", "-KILL", l.pid); err != nil {
			errs = err
		}
	}
	ports, err := l.d.Inside(ctx, "ip", "-o", "link", "show", "master", l.Bridge)
	for line := range strings.Lines(ports) {
		if !strings.Contains(line, l.Bridge+"-lan") {
			errs = errors.Join(errs, fmt.Errorf("on bridge %s there is still %s", l.Bridge, strings.TrimSpace(line)))
		}
	}
	_, gone := l.d.Inside(ctx, "ip", "link", "del", l.Bridge)
	return errors.Join(errs, err, gone)
}

// Here returns the words of a command that runs a program in the daemon's network namespace, but with the
// caller's mounts and processes. A real agent and its libvirt share a network namespace too.
func (d *Daemon) Here(args ...string) ([]string, error) {
	first, err := d.first()
	if err != nil {
		return nil, err
	}
	// A mounted /sys shows the network devices of the namespace in which it was mounted, so the command mounts
	// /sys again in its new namespace.
	const enter = `mount -t sysfs sysfs /sys && exec "$@"`
	return append([]string{"nsenter", "-t", first, "-n", "unshare", "--mount", "sh", "-c", enter, "sh"}, args...), nil
}
