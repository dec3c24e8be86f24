package nodenet

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/persys/compute/agent/workload"
	"github.com/persys/compute/policy"
)

// TestNetworkingKeepsTheAddress checks which address the function networking returns for a node's endpoint.
// If the look-up of the endpoint's host name fails, it must return the address that the node uses already. If
// it reports a problem, it must return no address.
func TestNetworkingKeepsTheAddress(t *testing.T) {
	present := netip.MustParseAddr("10.0.0.7")
	for _, c := range []struct {
		name, advertise string
		present         netip.Addr
		found           []string // result of the DNS look-up; nil if it fails
		probe           string   // problem of the probe
		address         string
		problem         string // text that the problem contains; empty if there is none
	}{
		{"an address", "10.0.0.9:50051", present, nil, "", "10.0.0.9", ""},
		{"an endpoint with an IPv4 address in IPv6 form gives the IPv4 address", "[::ffff:10.0.0.9]:50051", present, nil, "", "10.0.0.9", ""},
		{"a name", "a.example:50051", present, []string{"10.0.0.9"}, "", "10.0.0.9", ""},
		{"of several addresses of a host name, the present address is kept", "a.example:50051", present, []string{"10.0.0.9", "10.0.0.7"}, "", "10.0.0.7", ""},
		{"a host name that is not found leaves the present address", "a.example:50051", present, nil, "", "10.0.0.7", ""},
		{"a host name that is not found is a problem if there is no present address", "a.example:50051", netip.Addr{}, nil, "", "", "the name a.example has no address"},
		{"a kernel without VXLAN is a problem", "10.0.0.9:50051", present, nil, "the kernel has no VXLAN", "", "the kernel has no VXLAN"},
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
			t.Errorf("%s: networking returned the address %q and the problem %q; want %q and %q", c.name, got.GetAddress(), got.GetProblem(), c.address, c.problem)
		}
	}
}

// TestThePolicyOfAMachineForbidsIngressPorts: PERSYS_POLICY decides at which ports in ingress mode the machine answers.
func TestThePolicyOfAMachineForbidsIngressPorts(t *testing.T) {
	if forbids(nil) != nil {
		t.Error("without PERSYS_POLICY, a function judges the ports")
	}
	open, _ := policy.Builtin(policy.Privileged)
	strict, _ := policy.Builtin(policy.Restricted)
	own, _ := policy.Builtin(policy.Baseline)
	narrow := *own
	narrow.Addresses = []string{"10.0.0.1"}
	for _, tt := range []struct {
		name   string
		policy *policy.Policy
		port   workload.IngressPort
		want   bool
	}{
		{"the policy privileged allows a low port", open, workload.IngressPort{Port: 22}, false},
		{"the policy restricted forbids a low TCP port", strict, workload.IngressPort{Port: 80}, true},
		{"the policy restricted forbids a low UDP port", strict, workload.IngressPort{Port: 53, UDP: true}, true},
		{"the policy restricted allows a high port", strict, workload.IngressPort{Port: 8080}, false},
		{"a policy that allows only one address of the machine forbids all ports", &narrow, workload.IngressPort{Port: 8080}, true},
	} {
		if got := forbids(tt.policy)(tt.port); got != tt.want {
			t.Errorf("%s: ingress port %s is forbidden: %v, want %v", tt.name, tt.port, got, tt.want)
		}
	}
}
