package gatewayd

import (
	"strings"
	"testing"
)

// Without TLS a gateway listens on the loopback address unless a setting names another address.
func TestInsecureBindsToLoopback(t *testing.T) {
	for _, tt := range []struct {
		insecure   bool
		told, want string
	}{{true, "", "127.0.0.1"}, {true, "192.0.2.7:8551", "192.0.2.7"}, {false, "", ":"}} {
		c := Config{Insecure: tt.insecure, HTTPAddr: tt.told, PublicAddr: tt.told}
		if err := c.complete(); err != nil {
			t.Fatal(err)
		}
		for _, addr := range []string{c.HTTPAddr, c.PublicAddr} {
			if !strings.HasPrefix(addr, tt.want) {
				t.Errorf("insecure %t, address %q: the gateway binds to %q, want %q", tt.insecure, tt.told, addr, tt.want)
			}
		}
	}
}
