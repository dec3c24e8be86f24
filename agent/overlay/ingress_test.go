package overlay

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/persys/compute/agent/overlay/plan"
	"github.com/persys/compute/agent/workload"
	"github.com/persys/compute/testbed"
)

// TestIngress: a port in ingress mode answers at the addresses of all machines, over TCP and UDP. Clients may
// be outside of the cluster, on its machines, or in containers of any network. If the instance runs on the
// machine to which the client connects, it sees the client's address; an instance on another machine sees the
// address of the first machine. Connections continue while no agent runs. When instances change, the datagrams
// of existing clients go to the new instances.
func TestIngress(t *testing.T) {
	namespaces(t)
	fab := fabric(t)
	a, b := newNode(t, fab, "a", 11), newNode(t, fab, "b", 12)
	nodes := []*node{a, b}
	networks := map[uint32][]*node{1: {a, b}, 2: {a}}
	view := func(n *node) workload.NetworkView {
		v := withServices(viewOf(n, nodes, networks))
		v.Networks[0].Ingress = true
		return v
	}
	for _, n := range nodes {
		n.Start(t, view(n))
	}
	a1, b1, alien := newContainer(t, a, "a1", 1), newContainer(t, b, "b1", 1), newContainer(t, a, "alien", 2)
	for _, c := range []*container{a1, b1} {
		c.echo(t)
	}
	tcp, udp := workload.IngressPort{Port: 8080}, workload.IngressPort{Port: 5353, UDP: true}
	use := func(instances ...*container) workload.ServiceView {
		t.Helper()
		var s workload.ServiceView
		for _, p := range []struct {
			at workload.IngressPort
			to uint16
		}{{udp, datagrams}, {tcp, 80}} {
			x := workload.NetworkIngress{IngressPort: p.at}
			for _, c := range instances {
				x.Endpoints = append(x.Endpoints, netip.AddrPortFrom(c.address, p.to))
			}
			slices.SortFunc(x.Endpoints, netip.AddrPort.Compare)
			s.Ingress = append(s.Ingress, x)
		}
		for _, n := range nodes {
			n.overlay.SetServices(s)
		}
		return s
	}
	seen := func(t *testing.T, from *space, at netip.Addr, want string) {
		t.Helper()
		testbed.Within(t, 10*time.Second, fmt.Sprintf("a request to %s comes from %s for the instance", at, want), func() error {
			got, err := from.askAt(netip.AddrPortFrom(at, tcp.Port))
			if err == nil && got != want {
				err = fmt.Errorf("it sees %s", got)
			}
			return err
		})
	}
	outside := "10.99.0.1"
	gatewayA, gatewayB := plan.Gateway(slice(1, 0)).String(), plan.Gateway(slice(1, 1)).String()
	for _, x := range []struct {
		name     string
		instance *container
		from     *space
		asked    *node
		want     string
	}{
		{"a client outside asks the machine that has the instance", a1, fab, a, outside},
		{"a client outside asks a machine, and the instance is on another machine", a1, fab, b, gatewayB},
		{"a machine asks itself, and has the instance", b1, b.space, b, b.address.String()},
		{"a machine asks itself, and the instance is on another machine", b1, a.space, a, gatewayA},
		{"a machine asks another machine, which has the instance", b1, a.space, b, a.address.String()},
		{"a machine that has the instance asks another machine", a1, a.space, b, gatewayB},
		{"a container of another network asks its own machine", b1, alien.space, a, gatewayA},
		{"a container of another network asks the machine that has the instance", b1, alien.space, b, a.address.String()},
		{"a container of the instance's network asks its own machine", b1, a1.space, a, a1.address.String()},
		{"an instance asks its own machine and reaches itself", a1, a1.space, a, gatewayA},
	} {
		t.Run(x.name, func(t *testing.T) {
			use(x.instance)
			seen(t, x.from, x.asked.address, x.want)
		})
	}

	use(a1, b1)
	for _, n := range nodes {
		hit := map[string]bool{}
		testbed.Within(t, 10*time.Second, "both instances answer on "+n.name, func() error {
			got, err := fab.askAt(netip.AddrPortFrom(n.address, tcp.Port))
			if err != nil {
				return err
			}
			if hit[got] = true; len(hit) < 2 {
				return fmt.Errorf("they see %v", hit)
			}
			return nil
		})
	}
	if _, err := alien.askAt(netip.AddrPortFrom(plan.Gateway(slice(2, 0)), tcp.Port)); err == nil {
		t.Error("the ingress port answers at the address of a network's bridge, want no answer there")
	}
	if got, err := fab.ask(a1.address); err == nil {
		t.Errorf("a client outside of the networks reached the container at its own address, with the source address %s", got)
	}

	use()
	conn, err := fab.dial("udp4", b.address, udp.Port)
	must(t, err)
	defer conn.Close()
	_ = ask(t, conn) // the port has no instance yet, so the kernel tracks the datagram as one to the machine itself
	for _, c := range []*container{a1, b1, a1} {
		use(c)
		testbed.Within(t, 10*time.Second, "datagrams of one socket reach "+c.address.String(), func() error {
			if got := ask(t, conn); got != c.address.String() {
				return fmt.Errorf("%q answers", got)
			}
			return nil
		})
	}

	a1.hold(t)
	x := workload.NetworkIngress{IngressPort: workload.IngressPort{Port: 90}, Endpoints: []netip.AddrPort{netip.AddrPortFrom(a1.address, 90)}}
	b.overlay.SetServices(workload.ServiceView{Ingress: []workload.NetworkIngress{x}})
	var held net.Conn
	testbed.Within(t, 10*time.Second, "a connection is open", func() (err error) {
		held, err = fab.dial("tcp4", b.address, 90)
		return err
	})
	defer held.Close()
	must(t, ping(held))
	b.overlay.SetServices(workload.ServiceView{})
	testbed.Within(t, 10*time.Second, "no new connections", func() error {
		c, err := fab.dial("tcp4", b.address, 90)
		if err == nil {
			_ = c.Close()
			return errors.New("there are")
		}
		return nil
	})
	must(t, ping(held))
	x.Endpoints = []netip.AddrPort{netip.AddrPortFrom(b1.address, 90)}
	b.overlay.SetServices(workload.ServiceView{Ingress: []workload.NetworkIngress{x}, Lost: []netip.Prefix{slice(1, 0)}})
	testbed.Within(t, 10*time.Second, "the connection to the lost machine ends", func() error {
		if ping(held) == nil {
			return errors.New("the connection is still open")
		}
		return nil
	})

	s := use(a1)
	seen(t, fab, b.address, gatewayB)
	before := b.handle(t)
	b.stop()
	seen(t, fab, b.address, gatewayB)
	b.Start(t, view(b))
	b.overlay.SetServices(s)
	seen(t, fab, b.address, gatewayB)
	if after := b.handle(t); after != before {
		t.Errorf("the restart of the agent replaced the nftables table %s of services by %s, want no change", before, after)
	}
	nft, err := exec.LookPath("nft")
	testbed.Need(t, "nft", err)
	b.do(t, func() error {
		return exec.CommandContext(t.Context(), nft, "delete", "table", "ip", plan.ServiceTable).Run()
	})
	seen(t, fab, b.address, gatewayB)
	b.overlay.Set(withServices(viewOf(b, nodes, networks)))
	b.overlay.SetServices(workload.ServiceView{})
	testbed.Within(t, 10*time.Second, "the rules in DOCKER-USER go with the last port", func() error {
		var out []byte
		b.do(t, func() (err error) {
			out, err = exec.CommandContext(t.Context(), nft, "list", "chain", "ip", "filter", plan.UserChain).CombinedOutput()
			return err
		})
		if text := string(out); strings.Contains(text, "ingress") || !strings.Contains(text, "VXLAN") {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
}

// ingressTo returns a view in which TCP ports in ingress mode lead to port 80 of a container.
func ingressTo(c *container, ports ...uint16) (s workload.ServiceView) {
	for _, p := range ports {
		s.Ingress = append(s.Ingress, workload.NetworkIngress{IngressPort: workload.IngressPort{Port: p}, Endpoints: []netip.AddrPort{netip.AddrPortFrom(c.address, 80)}})
	}
	return s
}

// TestForbiddenIngressPorts: a machine does not answer at a port that its policy forbids, and reports the port. It
// answers at other ports.
func TestForbiddenIngressPorts(t *testing.T) {
	namespaces(t)
	fab := fabric(t)
	a := newNode(t, fab, "a", 11)
	a.forbids = func(p workload.IngressPort) bool { return p.Port == 8080 && !p.UDP }
	var program net.Listener
	a.do(t, func() (err error) {
		program, err = net.Listen("tcp", ":8082")
		return err
	})
	defer program.Close()
	v := viewOf(a, []*node{a}, map[uint32][]*node{1: {a}})
	v.Networks[0].Ingress = true
	a.Start(t, v)
	c := newContainer(t, a, "web", 1)
	a.overlay.SetServices(ingressTo(c, 8080, 8081, 8082))
	testbed.Within(t, 10*time.Second, "the allowed port answers", func() error {
		_, err := fab.askAt(netip.AddrPortFrom(a.address, 8081))
		return err
	})
	if got, err := fab.askAt(netip.AddrPortFrom(a.address, 8080)); err == nil {
		t.Errorf("the machine answers at the port that its policy forbids, with the source address %q", got)
	}
	if held, forbidden := a.overlay.HeldPorts(); held != "8080/tcp, 8082/tcp" || forbidden != "8080/tcp" {
		t.Errorf("HeldPorts returned held ports %q and forbidden ports %q; want %q and %q", held, forbidden, "8080/tcp, 8082/tcp", "8080/tcp")
	}
}

// TestIngressPortsOfPrograms: if a program of the machine already listens at a port in ingress mode, the agent
// leaves the port to that program and reports this. When the program has ended, the port leads to the
// instances. A program that listens only at loopback addresses does not keep the agent from using the port.
func TestIngressPortsOfPrograms(t *testing.T) {
	namespaces(t)
	fab := fabric(t)
	a := newNode(t, fab, "a", 11)
	a.compare = 300 * time.Millisecond
	var inner, program net.Listener
	a.do(t, func() (err error) {
		if inner, err = net.Listen("tcp", "127.0.0.1:8081"); err != nil {
			return err
		}
		program, err = net.Listen("tcp", ":8080")
		return err
	})
	defer inner.Close()
	defer program.Close()
	networks := map[uint32][]*node{1: {a}}
	v := viewOf(a, []*node{a}, networks)
	v.Networks[0].Ingress = true
	a.Start(t, v)
	c := newContainer(t, a, "web", 1)
	a.overlay.SetServices(ingressTo(c, 8080, 8081))
	answers := func(port uint16) error {
		_, err := fab.askAt(netip.AddrPortFrom(a.address, port))
		return err
	}
	holds := func(want string) {
		t.Helper()
		testbed.Within(t, 10*time.Second, "the held ports are "+want, func() error {
			if got, forbidden := a.overlay.HeldPorts(); got != want || forbidden != "" {
				return fmt.Errorf("the held ports are %q, of which forbidden are %q", got, forbidden)
			}
			return nil
		})
	}
	testbed.Within(t, 10*time.Second, "the ingress port that no program holds answers", func() error { return answers(8081) })
	holds("8080/tcp")
	accepted := make(chan error, 1)
	go func() {
		conn, err := program.Accept()
		if err == nil {
			_ = conn.Close()
		}
		accepted <- err
	}()
	if got, err := fab.askAt(netip.AddrPortFrom(a.address, 8080)); err != nil || got != "" {
		t.Errorf("the port that a program holds was answered with %q (error %v), want the answer of the program", got, err)
	}
	must(t, <-accepted)
	must(t, program.Close())
	holds("")
	testbed.Within(t, 10*time.Second, "the ingress port answers after the program that held it has ended", func() error { return answers(8080) })
	var again net.Listener
	a.do(t, func() (err error) { again, err = net.Listen("tcp", ":8080"); return err })
	defer again.Close()
	holds("8080/tcp")
}
