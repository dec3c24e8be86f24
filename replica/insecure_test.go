package replica

import (
	"strings"
	"testing"
)

// With -insecure, and without a configured bind address, a scheduler binds to loopback.
func TestInsecureBindsToLoopback(t *testing.T) {
	for _, tt := range []struct {
		insecure   bool
		told, want string
	}{{true, "", "127.0.0.1"}, {true, "192.0.2.7", "192.0.2.7"}, {false, "", "0.0.0.0"}} {
		c := Config{Name: "s", DataDir: "x", Insecure: tt.insecure, BindAddr: tt.told}
		if err := c.complete(); err != nil {
			t.Fatal(err)
		}
		for _, addr := range []string{c.BindAddr, c.RaftAddr, c.GossipAddr, c.DNSAddr} {
			if !strings.HasPrefix(addr, tt.want) {
				t.Errorf("with insecure %t and the address setting %q the scheduler binds to %q, want %q", tt.insecure, tt.told, addr, tt.want)
			}
		}
	}
}
