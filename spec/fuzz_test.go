package spec

import (
	"testing"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/spec/composefile"
	"github.com/persys/compute/spec/quantity"
)

// FuzzCompose: whatever text a user sends as a Compose file, the number of its keys is limited, and the ports
// and limits that are derived from it are valid.
func FuzzCompose(f *testing.F) {
	f.Add("services:\n  web:\n    image: x\n    ports: ['8080:80', {target: 1, published: '2-3'}]\n    deploy: {resources: {limits: {cpus: '0.5', memory: 1G}}, replicas: 2}\n")
	f.Add("x: &a {<<: *a}\nservices: {<<: [*a, *a]}\n")
	f.Add("a: &a [x, x]\nb: &b [*a, *a]\nservices: {s: {image: [*b, *b]}}\n")
	f.Add("services: {a: {profiles: [b], ports: ['[::1]:80:80/udp', 99999999999999999999]}}\n")
	f.Add("c2VydmljZXM6IHt9Cg==")
	f.Add("services: {a: {scale: 2147483647, deploy: {resources: {limits: {cpus: '9000000000000', memory: 8000p}}}}, b: {mem_limit: 8000p}}\n")
	f.Fuzz(func(t *testing.T, text string) {
		keys, err := composefile.Keys(text)
		if err == nil && len(keys) >= 50_000 {
			t.Fatalf("Keys returned %d keys, want fewer than 50,000", len(keys))
		}
		plain := plainCompose(text)
		_, _ = composeServices(plain)
		c := &controlv1.ComposeSpec{InlineYaml: plain, Env: map[string]string{"COMPOSE_PROFILES": "b"}}
		for _, p := range composePorts(c) {
			if p.GetHostPort() < 0 || p.GetHostPort() > 65535 || p.GetContainerPort() < 0 || p.GetContainerPort() > 65535 {
				t.Fatalf("a port that was derived from the Compose file is out of range: %v", p)
			}
		}
		if cpu, memory := composeLimits(c); cpu < 0 || memory < 0 {
			t.Fatalf("the sums of the services' limits must not be negative, but are %d millicores and %d MiB", cpu, memory)
		}
	})
}

// FuzzQuantity: a quantity is either refused, or it becomes a valid whole number of units.
func FuzzQuantity(f *testing.F) {
	for _, s := range []string{"250m", "0.25", "1.5GiB", "1e9", "-1", ".", "-.5Gi", "999999999999999999999999p", "0", " 1 k "} {
		f.Add(s, uint8(20))
	}
	f.Fuzz(func(t *testing.T, s string, shift uint8) {
		if n, err := quantity.CPU(s); err == nil && n < 0 && s[0] != '-' && s[0] != ' ' {
			t.Fatalf("the CPU quantity %q has no minus sign, but was parsed as %d millicores", s, n)
		}
		low, err := quantity.Size(s, uint(shift%40), "1Gi")
		if err != nil {
			return
		}
		if bytes, err := quantity.Size(s, 0, "1Gi"); err == nil && low >= 0 && bytes > 0 && low == 0 {
			t.Fatalf("the size %q was rounded down to 0 units, want it rounded up", s)
		}
	})
}
