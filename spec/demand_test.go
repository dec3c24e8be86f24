package spec

import (
	"fmt"
	"strings"
	"testing"
)

func TestDemandOfAStack(t *testing.T) {
	for _, c := range []struct {
		name, text  string
		cpu, memory int64
		ports       int
	}{
		{"the limits of a service count once per replica", "id: s\ncompose:\n  inline: |\n    services:\n      a: {image: x, deploy: {replicas: 3, resources: {limits: {cpus: '0.5', memory: 64M}}}}\n      b: {image: x, cpus: 0.25, mem_limit: 1g}\n", 1750, 192 + 1024, 0},
		{"a memory limit in bytes is rounded up to MiB", "id: s\ncompose:\n  inline: |\n    services: {a: {image: x, mem_limit: 1048577}}\n", 0, 2, 0},
		{"a service of an inactive profile reserves nothing", "id: s\ncompose:\n  inline: |\n    services: {a: {image: x, cpus: 1, profiles: [p], ports: ['9229:9229']}, b: {image: x, cpus: 2, ports: ['80:80']}}\n", 2000, 0, 1},
		{"a service of an active profile reserves its limits and ports", "id: s\ncompose:\n  env: {COMPOSE_PROFILES: 'q, p'}\n  inline: |\n    services: {a: {image: x, cpus: 1, profiles: [p], ports: ['9229:9229']}, b: {image: x, cpus: 2, ports: ['80:80']}}\n", 3000, 0, 2},
		{"with COMPOSE_PROFILES=* every service reserves its limits", "id: s\ncompose:\n  env: {COMPOSE_PROFILES: 'q, *'}\n  inline: |\n    services: {a: {image: x, cpus: 1, profiles: [p]}, b: {image: x, cpus: 2}}\n", 3000, 0, 0},
		{"a service of the profile * reserves its limits", "id: s\ncompose:\n  inline: |\n    services: {a: {image: x, cpus: 1, profiles: ['*']}, b: {image: x, cpus: 2}}\n", 3000, 0, 0},
		{"the CPU in the workload's resources takes precedence over the limits of services", "id: s\nresources: {cpu: 100m}\ncompose:\n  inline: |\n    services: {a: {image: x, cpus: 1, mem_limit: 5m}}\n", 100, 5, 0},
		{"a limit with a variable is ignored", "id: s\ncompose:\n  inline: |\n    services: {a: {image: x, cpus: '${CPUS}'}}\n", 0, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := parseOne(t, c.text).Spec
			s.Type = TypeCompose // set the type here, as Normalise would
			d := DemandOf("w", s)
			if len(d.HostPorts) != c.ports {
				t.Errorf("the demand of the stack has the host ports %v, want %d ports", d.HostPorts, c.ports)
			}
			if d.CpuMillicores != c.cpu || d.MemoryMib != c.memory {
				t.Errorf("the demand of the stack is %d millicores and %d MiB, want %d and %d", d.CpuMillicores, d.MemoryMib, c.cpu, c.memory)
			}
		})
	}
}

// TestServiceAddresses: for each specification, whether its workload gets a service address (one address in a network,
// behind which all instances of the service are).
func TestServiceAddresses(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       bool
	}{
		{"a container on a network", "container: {image: a, networks: [back]}", true},
		{"a container without networks", "container: {image: a}", false},
		{"vip in capital letters", "container: {image: a, networks: [back], endpoint_mode: VIP}", true},
		{"dnsrr", "container: {image: a, networks: [back], endpoint_mode: dnsrr}", false},
		{"a job", "kind: job\ncontainer: {image: a, networks: [back]}", false},
		{"a system workload", "kind: system\ncontainer: {image: a, networks: [back]}", true},
	} {
		s := specOf(t, "id: w\n"+c.text+"\n")
		Normalise(s)
		if got := DemandOf("w", s).GetServiceAddress(); got != c.want {
			t.Errorf("%s: whether the workload gets a service address is %v, want %v", c.name, got, c.want)
		}
	}
}

// TestIngressPorts: the planner must not reserve a port in mode ingress as a host port of the workload's node, because
// every node publishes it, and the agent must not publish it with the container. A container with such a port and
// without networks joins the network "ingress".
func TestIngressPorts(t *testing.T) {
	for _, c := range []struct{ ports, networks, want, host string }{
		{"['80:8080']", "", "[]", "[80]"},
		{"[{published: 80, target: 8080, mode: HOST}]", "", "[]", "[80]"},
		{"[{published: 80, target: 8080, mode: ingress}, {published: 22, target: 22, protocol: udp, mode: Ingress}, '81:81']", "", "[22/udp>22 80/tcp>8080] [ingress]", "[81]"},
		{"[{published: 80, target: 8080, mode: ingress}]", ", networks: [back, side]", "[80/tcp>8080] [back side]", "[]"},
	} {
		s := specOf(t, "id: w\ncontainer: {image: a, ports: "+c.ports+c.networks+"}\n")
		Normalise(s)
		d := DemandOf("w", s)
		var ports, host []string
		for _, p := range d.GetIngress() {
			ports = append(ports, fmt.Sprintf("%d/%s>%d", p.GetPort(), p.GetProtocol(), p.GetTarget()))
		}
		for _, p := range agentContainer(s).GetPorts() {
			host = append(host, fmt.Sprint(p.GetHostPort()))
		}
		got := fmt.Sprint(ports)
		if len(ports) > 0 {
			got += fmt.Sprint(" ", d.GetNetworks())
		}
		if got != c.want || fmt.Sprint(host) != c.host || len(d.GetHostPorts()) != len(host) {
			t.Errorf("ports %s: the demand has the ingress ports and networks %s, the agent publishes %v, and the demand has the host ports %v; want the ingress ports and networks %s and the host ports %s", c.ports, got, host, d.GetHostPorts(), c.want, c.host)
		}
	}
}

// Port names can be set in the mapping form of a container's ports and in the long form of a port in an
// inline Compose file. In other forms of a Compose file, names are ignored.
func TestPortNames(t *testing.T) {
	names := func(text string) string {
		s := parseOne(t, text).Spec
		s.Type = TypeContainer
		if s.GetCompose() != nil {
			s.Type = TypeCompose
		}
		var out []string
		for _, p := range DemandOf("w", s).PortNames {
			out = append(out, fmt.Sprintf("%s=%d:%d/%s", p.Name, p.HostPort, p.ContainerPort, p.Protocol))
		}
		return strings.Join(out, " ")
	}
	for text, want := range map[string]string{
		"id: w\ncontainer:\n  image: x\n  ports: [{container: 80, name: http}, {host: 53, container: 5353, protocol: udp, name: dns}, '9000']\n": "dns=53:5353/udp http=0:80/tcp",
		"id: s\ncompose:\n  inline: 'services: {a: {image: x, ports: [{target: 80, published: \"8080\", name: http}, {target: 53, protocol: udp, name: dns}]}, " +
			"b: {image: x, ports: [{target: 80, published: \"8081\", name: http}, {target: 9090, name: Metrics Of B}]}}'\n": "dns=0:53/udp http=8080:80/tcp http=8081:80/tcp",
	} {
		if got := names(text); got != want {
			t.Errorf("file %s: the demand has the port names %s, want %s", text, got, want)
		}
	}
	for _, name := range []string{"Http", "80", "a--b", "-a", "a-", "sixteen-letters-", "a_b"} {
		_, err := Parse("t.yaml", []byte("id: w\ncontainer: {image: x, ports: [{container: 80, name: '"+name+"'}]}\n"), Options{})
		if err == nil || !strings.Contains(err.Error(), "ports[0].name") || !strings.Contains(err.Error(), name) {
			t.Errorf("with port name %q Parse returned %v, want an error that names ports[0].name and the name", name, err)
		}
	}
	// If only the name of a port changes, the container must not be made anew, so the hash of the container's settings
	// must stay the same.
	content := func(name string) string {
		c, err := Content(parseOne(t, "id: w\ncontainer: {image: x, ports: [{container: 80, name: "+name+"}]}\n").Spec, nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if content("http") != content("web") {
		t.Error("a new port name must not change the content hash, but did")
	}
}
