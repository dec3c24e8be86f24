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

// TestNetworks: three machines with an engine each. Containers on two networks reach each other over the machines on
// each of both, with their own addresses; those of another namespace's network do not. That stays so while no agent and no scheduler
// runs, and again after the rules of a machine were flushed and after its engine was restarted.
func TestNetworks(t *testing.T) {
	testbed.Need(t, "machines in network namespaces", harness.LacksMachines())
	if !testbed.HasOwnNetwork() {
		t.Fatal("this test needs a network namespace of its own: run it with e2e/lanes")
	}
	machines, cluster := openMachines(t, 3)
	image := onMachines(t, machines)
	c := start(t, harness.Options{Binaries: raced(t), Host: harness.MachineHost.String(), SchedulerEnv: fast(nil)})
	*cluster = got[string](t)(clusterID(t, c))
	for _, m := range machines {
		got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Machine: m}))
	}
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
		t.Fatalf("flushing: %v\n%s", err, out)
	}
	flushed := time.Now()
	must(t, testbed.Poll(t.Context(), settle, "the rules of the flushed machine", func(context.Context) error {
		out, err := onB("list", "table", "inet", "persys")
		if err == nil && !strings.Contains(out, "nobody else reaches containers") {
			err = errors.New("rules are missing: " + out)
		}
		return err
	}))
	t.Logf("rules back after %s", time.Since(flushed).Round(time.Millisecond))
	reachAll("rules flushed", settle)
	apart("rules flushed")

	must(t, machines[2].StopEngine())
	must(t, machines[2].StartEngine(t.Context()))
	must(t, testbed.Poll(t.Context(), 2*settle, "web on the machine whose engine was restarted", func(ctx context.Context) error {
		now, err := memberOn(ctx, c, "web", 2, machines[2])
		if err == nil && !slices.Equal(now.addresses, webs[2].addresses) {
			err = testbed.Final(fmt.Errorf("its addresses were %s and are %s", webs[2].addresses, now.addresses))
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
					t.Errorf("closing %s: %v\n%s", m.Name, err, m.Engine.Tail(5))
				}
			})
		}
		wait.Wait()
	})
	must(t, err)
	return machines, cluster
}

// onMachines starts the engines and builds the image of the tests on each.
func onMachines(t *testing.T, machines []*harness.Machine) (image string) {
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
		return out, fmt.Errorf("%d containers (%v)", len(list), err)
	}
	pid, err := m.Docker.PID(ctx, list[0].ID)
	if err != nil || pid == 0 {
		return out, fmt.Errorf("it does not run (%v)", err)
	}
	out.netns = fmt.Sprintf("/proc/%d/ns/net", pid)
	// List it again: it may have started after the first list, and before its start it has no addresses.
	if list, err = m.Docker.Workload(ctx, st.GetClusterId(), out.id); err != nil || len(list) != 1 {
		return out, fmt.Errorf("%d containers (%v)", len(list), err)
	}
	on := list[0].NetworkSettings.Networks
	if len(on) == 0 {
		return out, errors.New("it is on no network")
	}
	for _, name := range slices.Sorted(maps.Keys(on)) {
		if !on[name].IPAddress.IsValid() {
			return out, fmt.Errorf("it has no address on %s", name)
		}
		out.addresses = append(out.addresses, on[name].IPAddress)
	}
	return out, nil
}

// ask connects from m to an address of another container over TCP. It returns the source address that the other
// container sees.
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
