package agentd

import (
	"strings"
	"testing"
)

// Without TLS nobody else on the network is let in, unless somebody says so.
func TestInsecureBindsToLoopback(t *testing.T) {
	for _, tt := range []struct {
		insecure   bool
		told, want string
	}{{true, "", "127.0.0.1"}, {true, "192.0.2.7", "192.0.2.7"}, {false, "", "0.0.0.0"}} {
		c := Config{NodeID: "n", StatePath: "x", Insecure: tt.insecure, GRPCAddr: tt.told}
		if err := c.complete(); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(c.GRPCAddr, tt.want) {
			t.Errorf("insecure %t, told %q: it binds to %q, want %q", tt.insecure, tt.told, c.GRPCAddr, tt.want)
		}
	}
}
