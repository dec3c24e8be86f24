package agentd

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// TestNetworkingKeepsTheAddress: a node's endpoint is a host name whose look-up fails. The function networking must
// return the address that the node uses already. If it reports a problem, it must return no address.
func TestNetworkingKeepsTheAddress(t *testing.T) {
	present := netip.MustParseAddr("10.0.0.7")
	for _, c := range []struct {
		name, advertise string
		present         netip.Addr
		found           []string // result of the DNS look-up; nil if it fails
		probe           string   // problem of the probe
		address         string
		problem         string // words of the problem
	}{
		{"an address", "10.0.0.9:50051", present, nil, "", "10.0.0.9", ""},
		{"an IPv4 address in IPv6 form", "[::ffff:10.0.0.9]:50051", present, nil, "", "10.0.0.9", ""},
		{"a name", "a.example:50051", present, []string{"10.0.0.9"}, "", "10.0.0.9", ""},
		{"a name with several addresses", "a.example:50051", present, []string{"10.0.0.9", "10.0.0.7"}, "", "10.0.0.7", ""},
		{"a name that is not found", "a.example:50051", present, nil, "", "10.0.0.7", ""},
		{"a name that is not found, and no networks", "a.example:50051", netip.Addr{}, nil, "", "", "the name a.example has no address"},
		{"no VXLAN", "10.0.0.9:50051", present, nil, "the kernel has no VXLAN", "", "the kernel has no VXLAN"},
	} {
		lookup := func(context.Context, string, string) (out []netip.Addr, err error) {
			if c.found == nil {
				return nil, errors.New("no such host")
			}
			for _, a := range c.found {
				out = append(out, netip.MustParseAddr(a))
			}
			return slices.Clip(out), nil
		}
		probe := func(context.Context, netip.Addr) (int, string) { return 1450, c.probe }
		got := networking(t.Context(), c.advertise, c.present, lookup, probe)
		if got.GetAddress() != c.address || (got.GetProblem() == "") != (c.problem == "") || !strings.Contains(got.GetProblem(), c.problem) {
			t.Errorf("%s: the address is %q and the problem %q; want %q and %q", c.name, got.GetAddress(), got.GetProblem(), c.address, c.problem)
		}
	}
}
