package spec

import "testing"

func TestDemandOfAStack(t *testing.T) {
	for _, c := range []struct {
		name, text  string
		cpu, memory int64
	}{
		{"limits of every copy", "id: s\ncompose:\n  inline: |\n    services:\n      a: {image: x, deploy: {replicas: 3, resources: {limits: {cpus: '0.5', memory: 64M}}}}\n      b: {image: x, cpus: 0.25, mem_limit: 1g}\n", 1750, 192 + 1024},
		{"bytes without unit are rounded up", "id: s\ncompose:\n  inline: |\n    services: {a: {image: x, mem_limit: 1048577}}\n", 0, 2},
		{"a profile that is off reserves nothing", "id: s\ncompose:\n  inline: |\n    services: {a: {image: x, cpus: 1, profiles: [p]}, b: {image: x, cpus: 2}}\n", 2000, 0},
		{"a profile that is on", "id: s\ncompose:\n  env: {COMPOSE_PROFILES: 'q, p'}\n  inline: |\n    services: {a: {image: x, cpus: 1, profiles: [p]}, b: {image: x, cpus: 2}}\n", 3000, 0},
		{"resources of the workload win", "id: s\nresources: {cpu: 100m}\ncompose:\n  inline: |\n    services: {a: {image: x, cpus: 1, mem_limit: 5m}}\n", 100, 5},
		{"a variable is left to the node", "id: s\ncompose:\n  inline: |\n    services: {a: {image: x, cpus: '${CPUS}'}}\n", 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := parseOne(t, c.text).Spec
			s.Type = TypeCompose // as after normalising
			d := DemandOf(s)
			if d.CpuMillicores != c.cpu || d.MemoryMib != c.memory {
				t.Errorf("%d millicores, %d MiB; want %d, %d", d.CpuMillicores, d.MemoryMib, c.cpu, c.memory)
			}
		})
	}
}
