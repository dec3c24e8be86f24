package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// TestNetworkNames: containers on three machines, each with its own Docker engine, find each other by name
// across the machines. They cannot resolve the names of another namespace. After an instance has moved,
// answers no longer contain its former address. Names are resolved even while no scheduler runs, also after
// the restart of an agent during that time.
func TestNetworkNames(t *testing.T) {
	c, machines, image := onMachines(t, 3)
	ctl(t, c, "namespace", "set", "team")
	ctl(t, c, "network", "create", "back")
	ctl(t, c, "network", "create", "back", "-n", "team")
	control := got[controlv1.AgentControlClient](t)(c.Any(t.Context()))
	join := func(id, kind, namespace string) {
		spec := container(image)
		spec.Kind, spec.Namespace = kind, namespace
		spec.GetContainer().Ports, spec.GetContainer().EndpointMode = nil, "dnsrr"
		spec.GetContainer().Networks = []*controlv1.ContainerNetwork{{Name: "back"}}
		resp, err := control.ApplyWorkload(t.Context(), &controlv1.ApplyWorkloadRequest{WorkloadId: id, Spec: spec})
		must(t, err)
		if !resp.GetSuccess() {
			t.Fatalf("apply of %s was refused: %s", id, resp.GetErrorMessage())
		}
	}
	join("web", "system", "")
	join("alien", "system", "team")
	join("db", "", "")
	webs, aliens := membersOn(t, c, "web", machines), membersOn(t, c, "alien", machines)
	var all []netip.Addr
	for _, m := range webs {
		all = append(all, m.addresses...)
	}
	slices.SortFunc(all, netip.Addr.Compare)

	// place returns the index of the machine on which db runs, and the address of db.
	place := func(ctx context.Context) (at int, address netip.Addr, err error) {
		r, err := control.GetWorkload(ctx, &controlv1.GetWorkloadRequest{WorkloadId: "db"})
		if err != nil {
			return 0, address, err
		}
		w := r.GetWorkload()
		at = slices.IndexFunc(c.Agents, func(a *harness.Agent) bool { return a.NodeID == w.GetAssignedNodeId() })
		if at < 0 || w.GetStatus() != "Running" || len(w.GetAddresses()) != 1 {
			return at, address, fmt.Errorf("db is %s on %q with addresses %q", w.GetStatus(), w.GetAssignedNodeId(), w.GetAddresses())
		}
		address, err = netip.ParseAddr(w.GetAddresses()[0])
		return at, address, err
	}
	answers := func(what string, limit time.Duration, from member, name string, want ...netip.Addr) {
		t.Helper()
		must(t, testbed.Poll(t.Context(), limit, fmt.Sprintf("%s: %s asks for %s", what, from.id, name), func(context.Context) error {
			found, rcode, err := from.resolve(name)
			if err == nil && (rcode != dns.RcodeSuccess || !slices.Equal(found, want)) {
				err = fmt.Errorf("the DNS answer is %v, code %s, want %v", found, dns.RcodeToString[rcode], want)
			}
			return err
		}))
	}
	var home int
	var address netip.Addr
	must(t, testbed.Poll(t.Context(), 2*settle, "db", func(ctx context.Context) (err error) {
		home, address, err = place(ctx)
		return err
	}))
	everywhere := func(what string, limit time.Duration) {
		t.Helper()
		for i, from := range webs {
			for _, name := range []string{"web", "web.default", "tasks.web"} {
				answers(what, limit, from, name, all...)
			}
			answers(what, limit, from, webs[(i+1)%len(webs)].id, webs[(i+1)%len(webs)].addresses...)
			answers(what, limit, from, "db", address)
			for _, name := range []string{"alien", "alien.team"} {
				if found, rcode, err := from.resolve(name); err != nil || rcode != dns.RcodeNameError {
					t.Errorf("%s: %s asks for %s of another namespace: %v, code %s, error %v; want NXDOMAIN", what, from.id, name, found, dns.RcodeToString[rcode], err)
				}
			}
		}
		answers(what, limit, aliens[0], "alien.team", addressesOf(aliens)...)
		if found, rcode, err := aliens[0].resolve("db.default"); err != nil || rcode != dns.RcodeNameError {
			t.Errorf("%s: a container of team asks for db.default: %v, code %s, error %v; want NXDOMAIN", what, found, dns.RcodeToString[rcode], err)
		}
	}
	everywhere("new networks", settle)
	if out := ctl(t, c, "network", "inspect", "back"); !strings.Contains(out, "db.default") || !strings.Contains(out, address.String()) {
		t.Errorf("persysctl network inspect shows no name with its address:\n%s", out)
	}

	was := address
	ctl(t, c, "drain", c.Agents[home].NodeID)
	must(t, testbed.Poll(t.Context(), 2*settle, "db on another machine", func(ctx context.Context) error {
		at, now, err := place(ctx)
		if err == nil && at == home {
			err = errors.New("db has not moved yet")
		}
		address = now
		return err
	}))
	moved := time.Now()
	for i, from := range webs {
		if i != home {
			answers("db has moved from "+was.String(), 3*time.Second, from, "db", address)
		}
	}
	t.Logf("all other machines resolved the new address %s after the move", time.Since(moved).Round(time.Millisecond))
	ctl(t, c, "drain", c.Agents[home].NodeID, "--undo")
	webs, aliens = membersOn(t, c, "web", machines), membersOn(t, c, "alien", machines)
	all = addressesOf(webs)
	everywhere("the drained node is back", settle)

	for _, s := range c.Schedulers {
		must(t, s.Kill())
	}
	everywhere("no scheduler", 5*time.Second)
	must(t, c.Agents[0].Kill())
	must(t, c.Agents[0].Start())
	everywhere("no scheduler, and an agent was restarted", settle)
	for _, s := range c.Schedulers {
		must(t, s.Start())
	}
	must(t, c.WaitReady(t.Context(), settle))
	for _, id := range []string{"web", "db"} {
		ctl(t, c, "delete", id, "--wait")
	}
	ctl(t, c, "delete", "alien", "-n", "team", "--wait")
}

func addressesOf(list []member) (out []netip.Addr) {
	for _, m := range list {
		out = append(out, m.addresses...)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// resolve looks up the IPv4 addresses of a name from inside the container of m, as a program there does: by
// the DNS server that the engine provides.
func (m member) resolve(name string) (found []netip.Addr, rcode int, err error) {
	err = harness.InNetNS(m.netns, func() error {
		client := &dns.Client{Timeout: 4 * time.Second}
		reply, _, err := client.Exchange(new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeA), "127.0.0.11:53")
		if err != nil {
			return err
		}
		rcode = reply.Rcode
		for _, rr := range reply.Answer {
			if a, ok := rr.(*dns.A); ok {
				if at, ok := netip.AddrFromSlice(a.A); ok {
					found = append(found, at.Unmap())
				}
			}
		}
		return nil
	})
	slices.SortFunc(found, netip.Addr.Compare)
	return found, rcode, err
}
