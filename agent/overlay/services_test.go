package overlay

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/persys/compute/agent/overlay/plan"
	"github.com/persys/compute/agent/workload"
	"github.com/persys/compute/testbed"
)

// block returns the last 64 addresses of a network, from which services get their addresses.
func block(network uint32) netip.Prefix {
	b := slice(network, 0).Addr().As4()
	b[2] += 15
	b[3] = 192
	return netip.PrefixFrom(netip.AddrFrom4(b), 26)
}

// withServices adds to each network of a view the block of its addresses that is reserved for services.
func withServices(v workload.NetworkView) workload.NetworkView {
	for i := range v.Networks {
		v.Networks[i].Services = []netip.Prefix{block(v.Networks[i].ID)}
	}
	return v
}

// serving gives the overlay of node n a view with one service and the addresses of its instances.
func (n *node) serving(service netip.Addr, endpoints ...netip.Addr) {
	n.overlay.SetServices(workload.ServiceView{Services: []workload.NetworkService{{Address: service, Endpoints: endpoints}}})
}

// echo answers each datagram in a container with the address of the container.
func (c *container) echo(t *testing.T) {
	t.Helper()
	var l *net.UDPConn
	c.do(t, func() (err error) {
		l, err = net.ListenUDP("udp4", &net.UDPAddr{Port: datagrams})
		return err
	})
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		buf := make([]byte, 16)
		for {
			_, from, err := l.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = l.WriteToUDPAddrPort([]byte(c.address.String()), from)
		}
	}()
}

// dial opens a connection from the network namespace s.
func (s *space) dial(network string, to netip.Addr, port uint16) (c net.Conn, err error) {
	err = s.Do(func() error {
		c, err = net.DialTimeout(network, netip.AddrPortFrom(to, port).String(), 2*time.Second)
		return err
	})
	return c, err
}

// TestServices: containers and their machine reach the instances of a service on all machines at its address.
// An instance sees the address of its client, even if both are on the same machine. Other networks do not reach
// the service. Connections to a service without instances are refused at once. When an instance leaves the
// service, datagrams go to another instance, but TCP connections to it stay until its machine is lost.
func TestServices(t *testing.T) {
	namespaces(t)
	net := fabric(t)
	a, b := newNode(t, net, "a", 11), newNode(t, net, "b", 12)
	nodes := []*node{a, b}
	networks := map[uint32][]*node{1: {a, b}, 2: {a}}
	for _, n := range nodes {
		n.Start(t, withServices(viewOf(n, nodes, networks)))
	}
	client, a1, b1 := newContainer(t, a, "client", 1), newContainer(t, a, "a1", 1), newContainer(t, b, "b1", 1)
	alien := newContainer(t, a, "alien", 2)
	for _, c := range []*container{a1, b1} {
		c.echo(t)
	}
	service := block(1).Addr().Next()
	use := func(endpoints ...netip.Addr) {
		t.Helper()
		for _, n := range nodes {
			n.serving(service, endpoints...)
		}
	}
	seen := func(from *space, want string) {
		t.Helper()
		testbed.Within(t, 10*time.Second, "the instance sees the client's address  "+want, func() error {
			got, err := from.ask(service)
			if err == nil && got != want {
				err = fmt.Errorf("the instance sees the client %s", got) // this may be the instance of the previous case, until the machine has the new view
			}
			return err
		})
	}
	for _, x := range []struct { // each case differs from the previous case in the instance or in the client address that it sees, so an old view fails the test
		name     string
		instance *container
		from     *space
		want     netip.Addr
	}{
		{"a client reaches an instance on its own machine", a1, client.space, client.address},
		{"a client reaches an instance on another machine", b1, client.space, client.address},
		{"a machine reaches an instance on itself", a1, a.space, plan.Gateway(slice(1, 0))},
		{"a machine reaches an instance on another machine", b1, a.space, plan.Gateway(slice(1, 0))},
		{"an instance calls its own service and reaches itself", a1, a1.space, plan.Gateway(slice(1, 0))},
		{"a client without an instance on its machine reaches one on another machine", a1, b1.space, b1.address},
	} {
		t.Run(x.name, func(t *testing.T) {
			use(x.instance.address)
			seen(x.from, x.want.String())
		})
	}
	use(a1.address, b1.address)
	hit := map[string]bool{}
	testbed.Within(t, 10*time.Second, "both instances answer", func() error {
		c, err := client.dial("udp4", service, datagrams)
		if err != nil {
			return testbed.Final(err)
		}
		defer c.Close()
		hit[ask(t, c)] = true
		if !hit[a1.address.String()] || !hit[b1.address.String()] {
			return fmt.Errorf("answers came only from %v, want them from both instances", hit)
		}
		return nil
	})
	if got, err := alien.ask(service); err == nil {
		t.Errorf("a container of another network reached the service, with the source address %s", got)
	}

	use(a1.address)
	udp, err := client.dial("udp4", service, datagrams)
	must(t, err)
	defer udp.Close()
	testbed.Within(t, 10*time.Second, "datagrams go to the one instance that is left", func() error {
		if got := ask(t, udp); got != a1.address.String() {
			return fmt.Errorf("%q answers", got)
		}
		return nil
	})
	if _, err := client.dial("tcp4", service, 90); err == nil {
		t.Fatal("nobody listens there")
	}
	a1.hold(t)
	held, err := client.dial("tcp4", service, 90)
	must(t, err)
	defer held.Close()
	use(b1.address)
	testbed.Within(t, 10*time.Second, "datagrams of the same socket go to the other instance", func() error {
		if got := ask(t, udp); got != b1.address.String() {
			return fmt.Errorf("%q answers", got)
		}
		return nil
	})
	must(t, ping(held))
	lost := workload.ServiceView{Services: []workload.NetworkService{{Address: service, Endpoints: []netip.Addr{b1.address}}}, Lost: []netip.Prefix{slice(1, 0)}}
	a.overlay.SetServices(lost)
	testbed.Within(t, 10*time.Second, "the connection to the lost machine ends", func() error {
		if ping(held) == nil {
			return errors.New("the connection is still open")
		}
		return nil
	})

	use()
	testbed.Within(t, 10*time.Second, "a service without instances refuses", func() error {
		began := time.Now()
		_, err := client.dial("tcp4", service, 80)
		if err == nil || time.Since(began) > 500*time.Millisecond {
			return fmt.Errorf("after %s: %v", time.Since(began), err)
		}
		return nil
	})
	if _, err := a.space.ask(service); err == nil {
		t.Error("a connection from the machine to a service without instances succeeded, want it refused")
	}

	nft, err := exec.LookPath("nft")
	testbed.Need(t, "nft", err)
	use(b1.address)
	seen(client.space, client.address.String())
	a.do(t, func() error { return exec.CommandContext(t.Context(), nft, "flush", "ruleset").Run() })
	seen(client.space, client.address.String())
	before := a.handle(t)
	a.stop()
	seen(client.space, client.address.String())
	a.Start(t, withServices(viewOf(a, nodes, networks)))
	a.serving(service, b1.address)
	testbed.Within(t, 10*time.Second, "the restarted agent reports that containers can reach the service", func() error {
		if !a.overlay.Serves(service) {
			return errors.New("not yet")
		}
		return nil
	})
	if after := a.handle(t); after != before {
		t.Errorf("the restart of the agent replaced the nftables table %s of services by %s, want no change", before, after)
	}
}

// handle returns the nftables handle of the table of services, by which a test recognises that the table was
// replaced.
func (n *node) handle(t *testing.T) (handle string) {
	t.Helper()
	n.do(t, func() error {
		out, err := exec.CommandContext(t.Context(), "nft", "-a", "list", "tables", "ip").CombinedOutput()
		handle = string(out)
		return err
	})
	return handle
}

// ask sends a datagram and returns the answer; "" if there is none.
func ask(t *testing.T, c net.Conn) string {
	t.Helper()
	_, _ = c.Write([]byte("x"))
	_ = c.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
	buf := make([]byte, 32)
	n, _ := c.Read(buf)
	return string(buf[:n])
}

// hold accepts connections to port 90 in the container and sends back each byte that it receives.
func (c *container) hold(t *testing.T) {
	t.Helper()
	var l net.Listener
	c.do(t, func() (err error) {
		l, err = net.Listen("tcp4", ":90")
		return err
	})
	var running sync.WaitGroup
	var held []net.Conn // only the accepting goroutine uses held until that goroutine has ended
	accepting := make(chan struct{})
	t.Cleanup(func() {
		_ = l.Close()
		<-accepting
		for _, conn := range held {
			_ = conn.Close()
		}
		running.Wait()
	})
	go func() {
		defer close(accepting)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			held = append(held, conn)
			running.Go(func() { _, _ = io.Copy(conn, conn) })
		}
	}()
}

// ping sends a byte and waits for its return.
func ping(c net.Conn) error {
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	return err
}

// TestWithdraw: before a workload is stopped, Withdraw waits until no service contains the instance any more,
// and for the time spread after that, but at most a second in total. For a workload that is in no service it
// does not wait.
func TestWithdraw(t *testing.T) {
	service, instance := block(1).Addr().Next(), slice(1, 0).Addr().Next()
	served := workload.ServiceView{Services: []workload.NetworkService{{Address: service, Endpoints: []netip.Addr{instance}}}}
	left := workload.ServiceView{Services: []workload.NetworkService{{Address: service}}}
	for _, c := range []struct {
		name  string
		id    workload.ID
		views []time.Duration // times at which views come; the last view lacks the instance
		want  time.Duration
	}{
		{"a view without the instance comes after 100 ms", "web", []time.Duration{100 * time.Millisecond}, 300 * time.Millisecond},
		{"a view with the instance comes after 100 ms, one without it after 200 ms", "web", []time.Duration{100 * time.Millisecond, 200 * time.Millisecond}, 400 * time.Millisecond},
		{"no view comes", "web", nil, time.Second},
		{"the workload is in no service", "other", nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o, err := New(Config{Store: &memory{all: []workload.NetworkAddress{{Network: 1, Address: instance, Workload: "web"}}}, Logger: slog.New(slog.DiscardHandler)})
				must(t, err)
				o.SetServices(served)
				for i, at := range c.views {
					v := served
					if i == len(c.views)-1 {
						v = left
					}
					time.AfterFunc(at, func() { o.SetServices(v) })
				}
				began := time.Now()
				o.Withdraw(t.Context(), c.id)
				if took := time.Since(began); took != c.want {
					t.Errorf("Withdraw waited %s, want %s", took, c.want)
				}
			})
		})
	}
}
