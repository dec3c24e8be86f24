package overlay

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/testbed"
)

// TestProbePeers: a node reports which other nodes its packets reach, the largest packet size, and what is wrong with
// a path: a closed UDP port, a path MTU that is too small, or a machine that does not answer.
func TestProbePeers(t *testing.T) {
	namespaces(t)
	nft, err := exec.LookPath("nft")
	testbed.Need(t, "nft", err)
	fab := fabric(t)
	a, b, c, d := newNode(t, fab, "a", 11), newNode(t, fab, "b", 12), newNode(t, fab, "c", 13), newNode(t, fab, "d", 14)
	nodes := []*node{a, b, c, d}
	for _, n := range nodes {
		n.Start(t, viewOf(n, nodes, map[uint32][]*node{1: nodes}))
	}
	probe := func() (out map[string]*agentv1.NetworkProbe, err error) {
		out = map[string]*agentv1.NetworkProbe{}
		err = a.Do(func() error {
			list, err := a.overlay.ProbePeers(t.Context(), 1, []string{"b", "c", "d", "none"})
			for _, p := range list {
				out[p.GetNode()] = p
			}
			return err
		})
		return out, err
	}
	testbed.Within(t, 20*time.Second, "the probe reaches the nodes b, c and d", func() error {
		got, err := probe()
		if err != nil {
			return err
		}
		for _, name := range []string{"b", "c", "d"} {
			if p := got[name]; !p.GetReached() || p.GetMtu() != 1450 || p.GetProblem() != "" || p.GetLatencyMicroseconds() == 0 {
				return fmt.Errorf("%s: %v", name, p)
			}
		}
		if got["none"].GetProblem() == "" {
			return errors.New("an unknown node has no problem")
		}
		return nil
	})
	b.do(t, func() error {
		return exec.CommandContext(t.Context(), nft, "add table inet filtered; add chain inet filtered in { type filter hook input priority -400; }; add rule inet filtered in udp dport 4790 drop").Run()
	})
	c.do(t, func() error { // its machine takes no large packets
		return exec.CommandContext(t.Context(), nft, "add table inet filtered; add chain inet filtered in { type filter hook input priority -400; }; add rule inet filtered in udp dport 4790 udp length > 1200 drop").Run()
	})
	d.do(t, func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.LinkSetDown(l)
	})
	got, err := probe()
	must(t, err)
	for name, want := range map[string]string{
		"b": "10.99.0.12 answers, but no packet of the network comes back: open UDP port 4790 between 10.99.0.11 and 10.99.0.12",
		"c": "bytes are lost, and the MTU of the network is 1450",
		"d": "neither the network nor 10.99.0.14 itself answers",
	} {
		if p := got[name]; !strings.Contains(p.GetProblem(), want) || p.GetReached() != (name == "c") {
			t.Errorf("the probe of node %q returned %v, want the problem %q", name, p, want)
		}
	}
	// A UDP packet of 1,200 bytes contains headers of 8 bytes (UDP), 8 bytes (VXLAN) and 14 bytes
	// (Ethernet).
	if mtu := got["c"].GetMtu(); mtu > 1170 || mtu < 1170-pathStep {
		t.Errorf("the probe found %d bytes as the largest packet to node \"c\", want 1170 or up to pathStep less", mtu)
	}
}
