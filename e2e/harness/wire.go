package harness

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// Wire cuts the loopback network of a network namespace between two programs, for
// single ports. Every program runs under a group id of its own, by which the packet
// filter of the kernel recognizes the sender. Packets of other senders, such as the
// test itself, always pass.
//
// The rules exist in the namespace only and end with it; the packet filter of the
// machine is not changed. The caller creates the namespace (CLONE_NEWNET) before it
// opens a Wire.
type Wire struct{ groups uint32 }

// firstGroup is above all group ids that Debian assigns.
const firstGroup = 60500

// How says what the sender notices of a cut.
type How string

const (
	// Silence drops packets, as when the other machine is cut off.
	Silence How = "DROP"
	// Refusal resets connections and refuses new ones, as when no program of the
	// other machine listens.
	Refusal How = "REJECT --reject-with tcp-reset"
)

// OpenWire brings up the loopback device of this namespace and checks that the packet filter can match
// groups.
func OpenWire(ctx context.Context) (*Wire, error) {
	if err := RaiseLoopback(); err != nil {
		return nil, err
	}
	w := &Wire{}
	if err := w.add(ctx, Silence, firstGroup-1, "127.0.0.1:9"); err != nil {
		return nil, err
	}
	return w, w.Heal(ctx)
}

// RaiseLoopback brings up the loopback device of this network namespace, which is down in a new one.
func RaiseLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("a socket to bring up lo: %w", err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("bringing up lo: %w", err)
	}
	return nil
}

// Own gives each program a group id. The programs must not run yet.
func (w *Wire) Own(programs ...*Process) {
	for _, p := range programs {
		if p.GID == 0 {
			p.GID = firstGroup + w.groups
			w.groups++
		}
	}
}

// Cut blocks the packets of a program to addresses (host:port) over TCP and UDP; over
// UDP always in silence. Connections that others have opened to the program stay.
func (w *Wire) Cut(ctx context.Context, how How, from *Process, to ...string) error {
	if from.GID == 0 {
		return fmt.Errorf("%s has no group id: call Own first", from.Name)
	}
	return w.add(ctx, how, from.GID, to...)
}

func (w *Wire) add(ctx context.Context, how How, gid uint32, to ...string) error {
	rules := "*filter\n"
	for _, addr := range to {
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			return err
		}
		for _, protocol := range []string{"tcp", "udp"} {
			verdict := how
			if protocol == "udp" {
				verdict = Silence
			}
			rules += fmt.Sprintf("-A OUTPUT -o lo -d %s -p %s --dport %s -m owner --gid-owner %d -j %s\n", host, protocol, port, gid, verdict)
		}
	}
	return filter(ctx, rules+"COMMIT\n", "iptables-restore", "--noflush", "--wait", "5")
}

// Block drops all packets to an address (host:port), over TCP and UDP, as a firewall
// in front of a running server does.
func (w *Wire) Block(ctx context.Context, addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	rules := "*filter\n"
	for _, protocol := range []string{"tcp", "udp"} {
		rules += fmt.Sprintf("-A OUTPUT -o lo -d %s -p %s --dport %s -j %s\n", host, protocol, port, Silence)
	}
	return filter(ctx, rules+"COMMIT\n", "iptables-restore", "--noflush", "--wait", "5")
}

// Heal removes all cuts and blocks.
func (w *Wire) Heal(ctx context.Context) error {
	return filter(ctx, "", "iptables", "--wait", "5", "-F", "OUTPUT")
}

// filter runs a command of the packet filter.
func filter(ctx context.Context, input, name string, args ...string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		path = "/usr/sbin/" + name // often not in PATH
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(out))
	}
	return nil
}
