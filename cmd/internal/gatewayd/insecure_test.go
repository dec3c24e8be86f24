package gatewayd

import (
	"strings"
	"testing"
)

// Without TLS a gateway binds to loopback unless the address is set.
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
				t.Errorf("insecure %t, told %q: it binds to %q, want %q", tt.insecure, tt.told, addr, tt.want)
			}
		}
	}
}
