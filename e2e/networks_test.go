package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// TestNetworks: three machines with a Docker engine each. Containers that join two networks reach each other
// across the machines in both networks, and each sees the other's own address as the source. Containers in a
// network of another namespace cannot reach them. All this holds while no agent and no scheduler runs, after
// the packet filter rules of one machine were flushed, and after its engine was restarted.
func TestNetworks(t *testing.T) {
	c, machines, image := onMachines(t, 3)
	ctl(t, c, "namespace", "set", "team")
	ctl(t, c, "network", "create", "back")
	ctl(t, c, "network", "create", "side")
	ctl(t, c, "network", "create", "back", "-n", "team")
	join := func(id, namespace string, networks ...string) {
		spec := container(image)
		spec.Kind, spec.Namespace = "system", namespace
		spec.GetContainer().Ports = nil
		for _, n := range networks {
			spec.GetContainer().Networks = append(spec.GetContainer().Networks, &controlv1.ContainerNetwork{Name: n})
		}
		control := got[controlv1.AgentControlClient](t)(c.Any(t.Context()))
		resp, err := control.ApplyWorkload(t.Context(), &controlv1.ApplyWorkloadRequest{WorkloadId: id, Spec: spec})
		must(t, err)
		if !resp.GetSuccess() {
			t.Fatalf("apply of %s was refused: %s", id, resp.GetErrorMessage())
		}
	}
	join("web", "", "back", "side")
	join("alien", "team", "back")
	webs, aliens := membersOn(t, c, "web", machines), membersOn(t, c, "alien", machines)

	if out := ctl(t, c, "network", "check", "back"); strings.Count(out, "yes") != 6 || strings.Count(out, "1450") < 6 {
		t.Errorf("persysctl network check finds problems between three machines:\n%s", out)
	}
	filter := func(rule ...string) {
		must(t, harness.InNetNS(machines[2].NetNS(), func() error { return exec.Command("nft", rule...).Run() }))
	}
	filter("add table inet filtered; add chain inet filtered in { type filter hook input priority -400; }; add rule inet filtered in ip saddr " + machines[0].Address.String() + " udp dport 4790 drop")
	res, err := c.Ctl(t.Context(), "network", "check", "back")
	must(t, err)
	pair := c.Agents[0].NodeID + " to " + c.Agents[2].NodeID + ":\n  " + machines[2].Address.String() + " answers, but no packet of the network comes back"
	if res.Code == 0 || !strings.Contains(res.Stdout, pair) || strings.Count(res.Stdout, "yes") != 4 {
		t.Errorf("with a filtered port, persysctl network check ends with %d and does not name the pair:\n%s%s", res.Code, res.Stdout, res.Stderr)
	}
	at := webs[2].addresses[0].String() + ":8080"
	traces(t, c, []string{at, "--from", webs[0].id}, "stops at instance "+webs[2].id, "no answer within 1s", "open UDP port 4790")
	traces(t, c, []string{at, "--from", webs[1].id}, "", webs[2].id, c.Agents[2].NodeID)
	traces(t, c, []string{aliens[1].addresses[0].String() + ":8080", "--from", webs[0].id}, "stops at address "+aliens[1].addresses[0].String(), "the container does not join the network")
	bridge := bridgeOf(t, machines[2], webs[2].addresses[0])
	traces(t, c, []string{bridge.String() + ":22", "--from", c.Agents[0].NodeID}, "stops at address "+bridge.String(), "no workload and no service of the network has the address")
	filter("delete table inet filtered")

	reachAll := func(what string, limit time.Duration) {
		t.Helper()
		began := time.Now()
		for i, from := range webs {
			for j, to := range webs {
				if i == j {
					continue
				}
				for n, at := range to.addresses {
					must(t, testbed.Poll(t.Context(), limit, fmt.Sprintf("%s: %s reaches %s at %s", what, from.id, to.id, at), func(context.Context) error {
						seen, err := from.ask(to, at)
						if err == nil && seen != from.addresses[n] {
							err = fmt.Errorf("%s saw the source %s instead of %s", to.id, seen, from.addresses[n])
						}
						return err
					}))
				}
			}
		}
		t.Logf("%s: %s", what, time.Since(began).Round(time.Millisecond))
	}
	apart := func(what string) {
		t.Helper()
		for _, to := range webs[:2] {
			for _, at := range to.addresses {
				if seen, err := aliens[0].ask(to, at); err == nil {
					t.Errorf("%s: %s of another namespace reached %s at %s, seen as %s", what, aliens[0].id, to.id, at, seen)
				}
			}
		}
	}
	reachAll("new networks", settle)
	apart("new networks")

	for _, p := range c.Processes() {
		must(t, p.Kill())
	}
	reachAll("no agent, no scheduler", 5*time.Second)
	for _, p := range c.Processes() {
		must(t, p.Start())
	}
	must(t, c.WaitReady(t.Context(), settle))
	for _, a := range c.Agents {
		must(t, c.WaitNode(t.Context(), a.NodeID, "Ready", settle))
	}
	reachAll("agents back", settle)

	nft := testbed.Program(t, "nft")
	onB := func(args ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), "nsenter", append([]string{"--net=" + machines[1].NetNS(), nft}, args...)...).CombinedOutput()
		return string(out), err
	}
	out, err := onB("flush", "ruleset")
	if err != nil {
		t.Fatalf("flushing the rules failed: %v\n%s", err, out)
	}
	flushed := time.Now()
	must(t, testbed.Poll(t.Context(), settle, "the packet filter rules on the machine where they were flushed", func(context.Context) error {
		out, err := onB("list", "table", "inet", "persys")
		if err == nil && !strings.Contains(out, "nobody else reaches containers") {
			err = errors.New("the agent's rules are missing:  " + out)
		}
		return err
	}))
	t.Logf("the agent restored the rules after %s", time.Since(flushed).Round(time.Millisecond))
	reachAll("rules flushed", settle)
	apart("rules flushed")

	must(t, machines[2].StopEngine())
	must(t, machines[2].StartEngine(t.Context()))
	must(t, testbed.Poll(t.Context(), 2*settle, "web on the machine whose engine was restarted", func(ctx context.Context) error {
		now, err := memberOn(ctx, c, "web", 2, machines[2])
		if err == nil && !slices.Equal(now.addresses, webs[2].addresses) {
			err = testbed.Final(fmt.Errorf("the addresses of the instance of web were %s and are %s", webs[2].addresses, now.addresses))
		}
		if err == nil {
			webs[2] = now
		}
		return err
	}))
	reachAll("engine restarted", settle)

	ctl(t, c, "delete", "web", "--wait")
	ctl(t, c, "delete", "alien", "-n", "team", "--wait")
}

// needMachines skips the test if this process cannot make machines (network namespaces with an engine each),
// or fails it with CI=true.
func needMachines(t *testing.T) {
	t.Helper()
	testbed.Need(t, "machines in network namespaces", harness.LacksMachines())
	if !testbed.HasOwnNetwork() {
		t.Fatal("this test needs a network namespace of its own: run it with e2e/lanes")
	}
}

// onMachines starts schedulers and n agents, each on a machine with an engine of its own. image is on each engine.
func onMachines(t *testing.T, n int) (c *harness.Cluster, machines []*harness.Machine, image string) {
	t.Helper()
	needMachines(t)
	machines, cluster := openMachines(t, n)
	image = startEngines(t, machines)
	c = onCluster(t, machines, cluster)
	return c, machines, image
}

// onCluster starts schedulers, and one agent on each of the machines. The engines of the machines must run
// already. It stores the id of the cluster in *cluster.
func onCluster(t *testing.T, machines []*harness.Machine, cluster *string) *harness.Cluster {
	t.Helper()
	c := start(t, harness.Options{Binaries: raced(t), Host: harness.MachineHost.String(), SchedulerEnv: fast(nil)})
	*cluster = got[string](t)(clusterID(t, c))
	for _, m := range machines {
		got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Machine: m}))
	}
	return c
}

// openMachines makes machines that are closed at the end of the test. Set the cluster id as soon as it is known: the
// containers of that cluster are removed first.
func openMachines(t *testing.T, n int) (machines []*harness.Machine, cluster *string) {
	t.Helper()
	cluster = new(string)
	machines, err := harness.OpenMachines(t.Context(), t.TempDir(), n)
	t.Cleanup(func() {
		var wait sync.WaitGroup
		for _, m := range machines {
			wait.Go(func() {
				if err := m.Close(*cluster); err != nil {
					t.Errorf("closing machine %s failed: %v; the log of its engine ends with\n%s", m.Name, err, m.Engine.Tail(5))
				}
			})
		}
		wait.Wait()
	})
	must(t, err)
	return machines, cluster
}

// startEngines starts the engines and builds the image of the tests on each.
func startEngines(t *testing.T, machines []*harness.Machine) (image string) {
	t.Helper()
	image = "persys/hello:machines"
	errs := make([]error, len(machines))
	var wait sync.WaitGroup
	for i, m := range machines {
		wait.Go(func() {
			if errs[i] = m.StartEngine(t.Context()); errs[i] == nil {
				errs[i] = m.Docker.BuildGo(t.Context(), image, "./examples/hello", nil)
			}
		})
	}
	wait.Wait()
	must(t, errors.Join(errs...))
	return image
}

func clusterID(t *testing.T, c *harness.Cluster) (string, error) {
	st, err := c.Status(t.Context(), 0)
	return st.GetClusterId(), err
}

// bridgeOf returns the address of the bridge on m to which the container with an address is connected.
func bridgeOf(t *testing.T, m *harness.Machine, container netip.Addr) (out netip.Addr) {
	t.Helper()
	must(t, harness.InNetNS(m.NetNS(), func() error {
		list, err := net.InterfaceAddrs()
		for _, a := range list {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Contains(container) {
				out = p.Addr()
			}
		}
		return err
	}))
	if !out.IsValid() {
		t.Fatalf("no bridge holds the address %s", container)
	}
	return out
}

// member is a container that has joined one or more networks. It has one address for each, ordered by the network's
// number.
type member struct {
	id        string
	addresses []netip.Addr
	netns     string
}

// membersOn waits for the members of a system workload, one on each machine.
func membersOn(t *testing.T, c *harness.Cluster, id string, machines []*harness.Machine) (out []member) {
	t.Helper()
	for i, m := range machines {
		must(t, testbed.Poll(t.Context(), 2*settle, fmt.Sprintf("%s on %s", id, m.Name), func(ctx context.Context) error {
			found, err := memberOn(ctx, c, id, i, m)
			if err == nil {
				out = append(out, found)
			}
			return err
		}))
	}
	return out
}

// memberOn returns the member of a system workload on the machine of the ith agent.
func memberOn(ctx context.Context, c *harness.Cluster, id string, i int, m *harness.Machine) (out member, err error) {
	out.id = id + "-" + c.Agents[i].NodeID
	st, err := c.Status(ctx, 0)
	if err != nil {
		return out, err
	}
	list, err := m.Docker.Workload(ctx, st.GetClusterId(), out.id)
	if err != nil || len(list) != 1 {
		return out, fmt.Errorf("the workload has %d containers (%v), want one", len(list), err)
	}
	pid, err := m.Docker.PID(ctx, list[0].ID)
	if err != nil || pid == 0 {
		return out, fmt.Errorf("the container does not run (%v)", err)
	}
	out.netns = fmt.Sprintf("/proc/%d/ns/net", pid)
	// List the containers again: the container may have been started after the first list, and before its start
	// it has no addresses.
	if list, err = m.Docker.Workload(ctx, st.GetClusterId(), out.id); err != nil || len(list) != 1 {
		return out, fmt.Errorf("the workload has %d containers (%v), want one", len(list), err)
	}
	on := list[0].NetworkSettings.Networks
	if len(on) == 0 {
		return out, errors.New("the container is on no network")
	}
	for _, name := range slices.Sorted(maps.Keys(on)) {
		if !on[name].IPAddress.IsValid() {
			return out, fmt.Errorf("the container has no address on network %s", name)
		}
		out.addresses = append(out.addresses, on[name].IPAddress)
	}
	return out, nil
}

// ask opens a TCP connection from the container of m to the address at of the container to. It returns the
// source address that to sees.
func (m member) ask(to member, at netip.Addr) (seen netip.Addr, err error) {
	const port = 7000
	var l net.Listener
	err = harness.InNetNS(to.netns, func() (err error) {
		l, err = net.Listen("tcp4", netip.AddrPortFrom(at, port).String())
		return err
	})
	if err != nil {
		return seen, fmt.Errorf("in %s: %w", to.id, err)
	}
	var answered sync.WaitGroup
	answered.Go(func() {
		if conn, err := l.Accept(); err == nil {
			_, _ = io.WriteString(conn, conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().String())
			_ = conn.Close()
		}
	})
	defer answered.Wait()
	defer l.Close()
	err = harness.InNetNS(m.netns, func() error {
		conn, err := net.DialTimeout("tcp4", netip.AddrPortFrom(at, port).String(), time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
			return err
		}
		raw, err := io.ReadAll(conn)
		if err == nil {
			seen, err = netip.ParseAddr(string(raw))
		}
		return err
	})
	return seen, err
}
