package replica

import (
	"net"
	"strings"
	"testing"
)

// A scheduler publishes its configured address, or, if none is configured, the address on which it listens.
func TestThePublishedAddressIsConfiguredOrBound(t *testing.T) {
	for _, c := range []struct {
		name      string
		ip        string
		port      int
		bound     string
		grpc      string // expected published gRPC address
		raft      string // expected published address of a listener at 10.0.0.1:8086; "" = the Raft node chooses the address
		wantError string
	}{
		{name: "without settings the bound gRPC address is published", bound: "10.0.0.1:8085", grpc: "10.0.0.1:8085"},
		{name: "the address auto has the same effect as no address", ip: "auto", bound: "10.0.0.1:8085", grpc: "10.0.0.1:8085"},
		{name: "the configured address is published", ip: "192.0.2.7", bound: "10.0.0.1:8085", grpc: "192.0.2.7:8085", raft: "192.0.2.7:8086"},
		{name: "the configured IPv6 address is published in brackets", ip: "2001:db8::7", bound: "0.0.0.0:8085", grpc: "[2001:db8::7]:8085", raft: "[2001:db8::7]:8086"},
		{name: "a configured port is published with the bound address", port: 443, bound: "10.0.0.1:8085", grpc: "10.0.0.1:443"},
		{name: "the configured port is published for gRPC and not for Raft", ip: "192.0.2.7", port: 443, bound: "[::]:8085", grpc: "192.0.2.7:443", raft: "192.0.2.7:8086"},
		{name: "a host name in place of an address is refused", ip: "s1.example.com", wantError: "SCHEDULER_ADVERTISE_IP"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := &Config{Name: "s1", DataDir: t.TempDir(), AdvertiseIP: c.ip, AdvertisePort: c.port}
			err := cfg.complete()
			if c.wantError != "" {
				if err == nil || !strings.Contains(err.Error(), c.wantError) || !strings.Contains(err.Error(), c.ip) {
					t.Errorf("the settings returned error %v, want an error that names %s and %s", err, c.wantError, c.ip)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			bound, err := net.ResolveTCPAddr("tcp", c.bound)
			if err != nil {
				t.Fatal(err)
			}
			if got := cfg.grpcAdvertise(bound); got != c.grpc {
				t.Errorf("the gRPC listener at %s is published as %s, want %s", c.bound, got, c.grpc)
			}
			if got := cfg.advertiseOf("10.0.0.1:8086"); got != c.raft {
				t.Errorf("the Raft listener at 10.0.0.1:8086 is published as %q, want %q", got, c.raft)
			}
		})
	}
}
