package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// ctlAt runs persysctl with the option --server, as its only way to find the schedulers, and fails the test
// if the exit code is not 0.
func ctlAt(t *testing.T, c *harness.Cluster, server string, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	code, err := c.RunCtl(t.Context(), c.CtlEnv(server), &out, &errs, args...)
	must(t, err)
	if code != 0 {
		t.Fatalf("persysctl %s with the server address %s ended with exit %d, want 0\n%s%s", strings.Join(args, " "), server, code, out.String(), errs.String())
	}
	return out.String()
}

// TestGatewayAndCtlFindSchedulersBySRV: the gateway and persysctl are given only an SRV name and the DNS
// servers. They keep working while the leader dies, and while all schedulers move to other addresses, one by
// one.
func TestGatewayAndCtlFindSchedulersBySRV(t *testing.T) {
	c := start(t, harness.Options{Binaries: raced(t), SchedulerEnv: fast(nil)})
	got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true}))
	var servers []string
	for _, s := range c.Schedulers {
		servers = append(servers, s.DNS)
	}
	name := "persys.local?dns=" + strings.Join(servers, ",")
	addr := gatewayWith(t, c, map[string]string{"PERSYS_INSECURE": "true", "PERSYS_SCHEDULER_ADDR": "", "PERSYS_SCHEDULER_DISCOVERY": "srv://" + name})
	tr := new(http.Transport)
	t.Cleanup(tr.CloseIdleConnections)
	web := rest{t, "http://" + addr, &http.Client{Transport: tr, Timeout: settle}}

	// found waits until the gateway has found by DNS exactly the running schedulers, at their present addresses.
	// Then it checks that one call through the gateway and two calls with persysctl succeed.
	found := func(when string) {
		t.Helper()
		want := map[string]bool{}
		for _, s := range c.Schedulers {
			if s.Running() {
				want[s.GRPC] = true
			}
		}
		must(t, testbed.Poll(t.Context(), settle, "the gateway finding the schedulers "+when, func(context.Context) error {
			code, body := web.do("GET", "/clusters/default", "")
			cluster, _ := body["cluster"].(map[string]any)
			members, _ := cluster["schedulers"].([]any)
			if code != http.StatusOK || len(members) != len(want) || cluster["healthy_schedulers"] != float64(len(want)) {
				return fmt.Errorf("the gateway answered %d %v, want 200 with the healthy schedulers %v", code, body, want)
			}
			for _, m := range members {
				if m, _ := m.(map[string]any); !want[fmt.Sprint(m["address"])] {
					return fmt.Errorf("the gateway lists scheduler %v, want %v", m, want)
				}
			}
			return nil
		}))
		if code, body := web.do("GET", "/v1/nodes/"+c.Agents[0].NodeID, ""); code != http.StatusOK {
			t.Errorf("%s, a call through the gateway was answered with status %d: %v", when, code, body)
		}
		for _, server := range []string{"srv://" + name, "persys:///" + name} {
			if text := ctlAt(t, c, server, "nodes"); !strings.Contains(text, c.Agents[0].NodeID) {
				t.Errorf("%s, persysctl at %s says\n%s", when, server, text)
			}
		}
	}
	found("at first")

	// Kill the leader, and with it one of the DNS servers that the gateway and persysctl ask.
	leader := c.Schedulers[got[int](t)(c.WaitLeader(t.Context(), electionLimit))]
	must(t, leader.Kill())
	got[int](t)(c.WaitLeader(t.Context(), electionLimit))
	found("without " + leader.Name)
	must(t, leader.Start())
	must(t, c.WaitReady(t.Context(), settle))

	for _, s := range c.Schedulers {
		must(t, s.Terminate(endsWithin))
		dns := s.DNS
		must(t, c.Readdress(s))
		s.DNS = dns // the address that the programs are configured with
		c.JoinAll(s)
		must(t, s.Start())
		must(t, c.WaitReady(t.Context(), settle))
		got[int](t)(c.WaitLeader(t.Context(), electionLimit))
		found("after the move of " + s.Name)
	}
}
