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

// lanScript makes a bridge and, behind a pair of virtual cables, a router in a network namespace of its
// own. The router makes the cables from its end: they are there only if it is.
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

// LAN is a network that is not libvirt's: a plain bridge in the daemon's namespaces, and a router on it
// that gives addresses by DHCP. The machine of the bridge has no address there, as one whose bridge is a
// mere switch, so that nothing is said to it.
type LAN struct {
	Bridge string

	d     *Daemon
	files string
	pid   string // of the router, in the daemon's namespaces
}

// LAN makes one. The router has the address of a prefix; leases are from first to last. The bridge's
// name has at most 11 characters: the cable's is longer.
func (d *Daemon) LAN(ctx context.Context, bridge string, router netip.Prefix, first, last netip.Addr) (*LAN, error) {
	l := &LAN{Bridge: bridge, d: d, files: filepath.Join(d.Dir, "lan-"+bridge)}
	out, err := d.Inside(ctx, "sh", "-c", lanScript, "sh", bridge, router.String(), first.String(), last.String(), l.files)
	if err != nil {
		return nil, errors.Join(err, l.Close(context.WithoutCancel(ctx)))
	}
	l.pid = strings.TrimSpace(out)
	err = testbed.Poll(ctx, time.Minute, "a DHCP server on "+bridge, func(ctx context.Context) error {
		if _, err := os.Stat(l.files + ".pid"); err == nil { // written once it listens
			return nil
		}
		if _, err := d.Inside(ctx, "kill", "-0", l.pid); err != nil {
			return testbed.Final(errors.New("it has ended"))
		}
		return errors.New("it does not listen yet")
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w\n%s", err, l.Log()), l.Close(context.WithoutCancel(ctx)))
	}
	return l, nil
}

// Log is what the DHCP server wrote.
func (l *LAN) Log() string {
	text, _ := os.ReadFile(l.files + ".log")
	return string(text)
}

// AtRouter is the command that runs a program on the router, from outside the daemon's namespaces.
func (l *LAN) AtRouter(args ...string) ([]string, error) {
	first, err := l.d.first()
	if err != nil {
		return nil, err
	}
	return append([]string{"nsenter", "-t", first, "-m", "-n", "-p", "nsenter", "-t", l.pid, "-n"}, args...), nil
}

// Close removes it. What is still plugged into the bridge is named in the error.
func (l *LAN) Close(ctx context.Context) error {
	var errs error
	if l.pid != "" { // the cables go with the router's namespace
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

// Here is the command that runs a program in the daemon's network, with the same files and processes as
// the caller's: as an agent sees the machine on which its libvirt runs.
func (d *Daemon) Here(args ...string) ([]string, error) {
	first, err := d.first()
	if err != nil {
		return nil, err
	}
	// What /sys tells of the network is what it was when it was mounted.
	const enter = `mount -t sysfs sysfs /sys && exec "$@"`
	return append([]string{"nsenter", "-t", first, "-n", "unshare", "--mount", "sh", "-c", enter, "sh"}, args...), nil
}
