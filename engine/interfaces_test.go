package engine

import (
	"testing"
)

func TestInsideInterface(t *testing.T) {
	for name, inside := range map[string]bool{
		"docker0": true, "br-0123456789ab": true, "docker_gwbridge": true, "veth1234567": true, "virbr0": true, "podman0": true, "ps7": true, "pvx1": true,
		"eth0": false, "enp3s0": false, "br0": false, "vmbr0": false, "br-lan": false, "bond0": false, "wg0": false, "veth0": false,
	} {
		if got := InsideInterface(name); got != inside {
			t.Errorf("InsideInterface(%q) = %t, want %t", name, got, inside)
		}
	}
}
