package harness

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os/exec"
	"strings"
)

// Wire cuts the loopback network of a network namespace between two programs, for single ports. Every
// program runs under a group id of its own, by which the kernel's packet filter recognizes the sender.
// Packets of other senders, such as the test itself, always pass.
//
// The rules exist only in the namespace and end with it; the packet filter of the machine is not changed.
// The caller must be in the namespace, with the loopback device up, before it opens a Wire.
type Wire struct{ groups uint32 }

// firstGroup is higher than all group ids that Debian assigns.
const firstGroup = 60500

// How says what happens to packets to a port that is cut: they are lost, or the sender gets a refusal.
type How string

const (
	// Silence drops packets, as if the other machine were cut off.
	Silence How = "DROP"
	// Refusal resets connections and refuses new ones, as if no program listened on the destination port.
	Refusal How = "REJECT --reject-with tcp-reset"
)

// OpenWire returns a Wire. It returns an error if the kernel's packet filter cannot match the group id of the
// sender.
func OpenWire(ctx context.Context) (*Wire, error) {
	w := &Wire{}
	if err := w.add(ctx, Silence, firstGroup-1, "127.0.0.1:9"); err != nil {
		return nil, err
	}
	return w, w.Heal(ctx)
}

// Own gives each program a group id of its own, by which the packet filter recognizes its packets. The
// programs must not run yet.
func (w *Wire) Own(programs ...*Process) {
	for _, p := range programs {
		if p.GID == 0 {
			p.GID = firstGroup + w.groups
			w.groups++
		}
	}
}

// Cut blocks the packets that a program sends to addresses (host:port) over TCP and UDP. Over UDP packets are
// always dropped silently. Connections that other programs have opened to this program stay open.
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

// Heal removes all packet filter rules that Cut and Block have added.
func (w *Wire) Heal(ctx context.Context) error {
	return filter(ctx, "", "iptables", "--wait", "5", "-F", "OUTPUT")
}

// filter runs a command that changes or reads the rules of the kernel's packet filter, such as iptables.
func filter(ctx context.Context, input, name string, args ...string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		path = "/usr/sbin/" + name // PATH often lacks /usr/sbin
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(out))
	}
	return nil
}
