package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// TestServices: three machines have an engine each, and each runs an instance of a service. During the whole
// test a client sends requests to the address of the service. No request may fail while an instance is
// stopped by an order, or while no scheduler and no agent runs. After the kill of an instance, and after a
// machine is cut off, requests may fail for at most the length of a lease plus one second.
func TestServices(t *testing.T) {
	c, machines, image := onMachines(t, 3)
	const lease = 3 * time.Second // fast
	ctl(t, c, "network", "create", "back")
	control := got[controlv1.AgentControlClient](t)(c.Any(t.Context()))
	join := func(id, mode string) {
		spec := container(image)
		spec.Kind = "system"
		spec.GetContainer().Ports, spec.GetContainer().EndpointMode = nil, mode
		spec.GetContainer().Networks = []*controlv1.ContainerNetwork{{Name: "back"}}
		resp, err := control.ApplyWorkload(t.Context(), &controlv1.ApplyWorkloadRequest{WorkloadId: id, Spec: spec})
		must(t, err)
		if !resp.GetSuccess() {
			t.Fatalf("apply of %s was refused: %s", id, resp.GetErrorMessage())
		}
	}
	join("web", "")
	join("client", "dnsrr")
	webs, clients := membersOn(t, c, "web", machines), membersOn(t, c, "client", machines)
	client := clients[0]

	var service netip.Addr
	must(t, testbed.Poll(t.Context(), settle, "one address for web", func(context.Context) error {
		found, _, err := client.resolve("web")
		if err == nil && (len(found) != 1 || slices.Contains(addressesOf(webs), found[0])) {
			err = fmt.Errorf("the name leads to %v", found)
		}
		if err == nil {
			service = found[0]
		}
		return err
	}))
	for name, want := range map[string][]netip.Addr{"tasks.web": addressesOf(webs), "client": addressesOf(clients)} {
		must(t, testbed.Poll(t.Context(), settle, name, func(context.Context) error {
			found, _, err := client.resolve(name)
			if err == nil && !slices.Equal(found, want) {
				err = fmt.Errorf("the name leads to %v, want %v", found, want)
			}
			return err
		}))
	}
	if out := ctl(t, c, "network", "inspect", "back"); !strings.Contains(out, service.String()) || !strings.Contains(out, "3 of 3") {
		t.Errorf("persysctl network inspect does not show the service at %s with its instances:\n%s", service, out)
	}
	for _, from := range []member{client, webs[0]} {
		answered := map[string]bool{}
		must(t, testbed.Poll(t.Context(), settle, "all instances answer "+from.id, func(context.Context) error {
			host, err := from.get(service)
			if answered[host] = true; err == nil && len(answered) < len(webs) {
				err = fmt.Errorf("%d of %d instances have answered", len(answered), len(webs))
			}
			return err
		}))
	}

	found := []string{"service web.default, network back, 3 ready", webs[0].id, webs[2].id, c.Agents[2].NodeID, service.String()}
	traces(t, c, []string{"web:8080"}, "", found...)
	traces(t, c, []string{"web.default:8080", "--from", c.Agents[1].NodeID}, "", found...)
	traces(t, c, []string{"web:8080", "--from", client.id}, "", append(found, "container on node "+c.Agents[0].NodeID)...)
	traces(t, c, []string{service.String() + ":8080", "--from", client.id}, "", found...)
	traces(t, c, []string{"tasks.web:8080", "--from", webs[1].id}, "", webs[0].id, webs[1].id, webs[2].id)
	traces(t, c, []string{"web:81", "--from", client.id}, "stops at address "+service.String(), "refused: nothing listens at port 81")
	traces(t, c, []string{"nobody:80", "--from", client.id}, "stops at name nobody", "the name does not exist")

	asking := client.keepAsking(t, service)
	ctl(t, c, "stop", webs[2].id)
	must(t, testbed.Poll(t.Context(), settle, webs[2].id+" stops", func(ctx context.Context) error {
		if _, err := memberOn(ctx, c, "web", 2, machines[2]); err == nil {
			return errors.New("it runs")
		}
		return nil
	}))
	asking.upTo(t, "an instance stops by order", time.Now(), 2*time.Second, 0)
	traces(t, c, []string{"web:8080", "--from", client.id}, "", "2 ready", webs[2].id+" not used", "because it is about to stop")
	ctl(t, c, "start", webs[2].id)
	webs = membersOn(t, c, "web", machines)

	asking.throughFaults(t, c, machines, "web", webs[1], lease)
	asking.stop()
	if found, _, err := client.resolve("web"); err != nil || !slices.Equal(found, []netip.Addr{service}) {
		t.Errorf("in the end web leads to %v (%v), want %s", found, err, service)
	}
	for _, id := range []string{"web", "client"} {
		ctl(t, c, "delete", id, "--wait")
	}
}

// traces runs persysctl trace with args and checks that its output contains all of texts. stops is the name
// of the step at which the traced connection must stop, or "" if the connection must reach a container.
func traces(t *testing.T, c *harness.Cluster, args []string, stops string, texts ...string) {
	t.Helper()
	res, err := c.Ctl(t.Context(), append([]string{"trace"}, args...)...)
	must(t, err)
	if (res.Code == 0) != (stops == "") || !strings.Contains(res.Stderr, stops) {
		t.Errorf("persysctl trace %s ends with %d, want an end %q:\n%s%s", strings.Join(args, " "), res.Code, stops, res.Stdout, res.Stderr)
		return
	}
	words := strings.Join(strings.Fields(res.Stdout), " ")
	for _, text := range texts {
		if !strings.Contains(words, text) {
			t.Errorf("persysctl trace %s does not show %q:\n%s", strings.Join(args, " "), text, res.Stdout)
		}
	}
}

// get sends an HTTP request from the container of m to the address at, over a new connection. It returns the
// name of the instance that answered.
func (m member) get(at netip.Addr) (instance string, err error) {
	return m.getAt(netip.AddrPortFrom(at, 8080))
}

func (m member) getAt(at netip.AddrPort) (instance string, err error) {
	const limit = 500 * time.Millisecond
	var conn net.Conn
	err = harness.InNetNS(m.netns, func() (err error) {
		conn, err = net.DialTimeout("tcp4", at.String(), limit)
		return err
	})
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		return "", err
	}
	raw, err := io.ReadAll(conn)
	if err != nil {
		return "", err
	}
	_, after, found := bytes.Cut(raw, []byte("Answered by <code>"))
	if !found {
		return "", fmt.Errorf("the answer is %.80q", raw)
	}
	name, _, _ := bytes.Cut(after, []byte("<"))
	return string(name), nil
}

// asker asks an address all the time.
type asker struct {
	end  context.CancelFunc
	done sync.WaitGroup
	mu   sync.Mutex
	asks []ask
}

type ask struct {
	at  time.Time
	err error
}

// keepAsking sends a request from the container of m to the address at every 20 ms, until the end of the
// test. The returned asker records which requests fail.
func (m member) keepAsking(t *testing.T, at netip.Addr) *asker {
	ctx, cancel := context.WithCancel(t.Context())
	a := &asker{end: cancel}
	a.done.Go(func() {
		ticker := time.NewTicker(20 * time.Millisecond)
		defer ticker.Stop()
		for {
			began := time.Now()
			_, err := m.get(at)
			a.mu.Lock()
			a.asks = append(a.asks, ask{began, err})
			a.mu.Unlock()
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	})
	t.Cleanup(a.stop)
	return a
}

func (a *asker) stop() {
	a.end()
	a.done.Wait()
}

// throughFaults causes three faults: it kills an instance of the system workload whose id is id, then kills
// and restarts all agents and schedulers, and then disconnects the second machine. After the first and after
// the third fault, requests may fail for at most the length of a lease plus one second. During the second
// fault none may fail.
func (a *asker) throughFaults(t *testing.T, c *harness.Cluster, machines []*harness.Machine, id string, victim member, lease time.Duration) {
	t.Helper()
	var pid int
	_, err := fmt.Sscanf(victim.netns, "/proc/%d/", &pid)
	must(t, err)
	killed := time.Now()
	must(t, syscall.Kill(pid, syscall.SIGKILL))
	a.upTo(t, "an instance is killed", killed, lease+3*time.Second, lease+time.Second)
	membersOn(t, c, id, machines)

	for _, p := range c.Processes() {
		must(t, p.Kill())
	}
	a.upTo(t, "no agent, no scheduler", time.Now(), 3*time.Second, 0)
	for _, p := range c.Processes() {
		must(t, p.Start())
	}
	must(t, c.WaitReady(t.Context(), settle))
	for _, n := range c.Agents {
		must(t, c.WaitNode(t.Context(), n.NodeID, "Ready", settle))
	}
	a.upTo(t, "agents and schedulers are back", time.Now(), 2*time.Second, 0)

	cut := time.Now()
	link := func(set func(netlink.Link) error) {
		must(t, harness.InNetNS(machines[1].NetNS(), func() error {
			l, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return set(l)
		}))
	}
	link(netlink.LinkSetDown)
	a.upTo(t, "a machine is cut off", cut, 2*lease+2*time.Second, lease+time.Second)
	link(netlink.LinkSetUp)
	must(t, c.WaitNode(t.Context(), c.Agents[1].NodeID, "Ready", settle))
}

// upTo waits until the duration wait has passed since the time event. Then it checks that no request failed later
// than limit after event. The text what names the event in messages.
func (a *asker) upTo(t *testing.T, what string, event time.Time, wait, limit time.Duration) {
	t.Helper()
	timer := time.NewTimer(time.Until(event.Add(wait)))
	defer timer.Stop()
	<-timer.C
	a.mu.Lock()
	asks := a.asks
	a.asks = nil
	a.mu.Unlock()
	failed, last := 0, time.Duration(0)
	var why error
	for _, x := range asks {
		if x.err != nil {
			failed, last, why = failed+1, x.at.Sub(event), x.err
		}
	}
	t.Logf("%s: %d of %d requests failed, the last one %s after the fault (%v)", what, failed, len(asks), last.Round(time.Millisecond), why)
	if len(asks) < 5 || failed > 0 && (limit == 0 || last > limit) {
		t.Errorf("%s: %d of %d requests failed, the last one %s after the fault, at most %s: %v", what, failed, len(asks), last, limit, why)
	}
}
