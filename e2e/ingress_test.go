package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// TestIngress: on three machines, each with its own engine, a service publishes a port in ingress mode: every
// machine must answer at the port. The specification names no network. A client outside of the cluster sends
// requests to one machine during the whole test. After the kill of an instance, and after a machine is cut
// off, requests may fail for at most the length of a lease plus one second. While no scheduler and no agent
// runs, no request fails. On one machine another program uses the second published port; the service answers
// at this port on the other two machines.
func TestIngress(t *testing.T) {
	c, machines, image := onMachines(t, 3)
	const lease = 3 * time.Second // fast
	control := got[controlv1.AgentControlClient](t)(c.Any(t.Context()))
	publish := func(id, kind string, port int32) *controlv1.ApplyWorkloadResponse {
		t.Helper()
		spec := container(image)
		spec.Kind = kind
		spec.GetContainer().Ports = []*controlv1.Port{{HostPort: port, ContainerPort: 8080, Mode: "ingress"}}
		resp, err := control.ApplyWorkload(t.Context(), &controlv1.ApplyWorkloadRequest{WorkloadId: id, Spec: spec})
		must(t, err)
		return resp
	}
	if resp := publish("web", "system", 8080); !resp.GetSuccess() {
		t.Fatalf("apply was refused: %s", resp.GetErrorMessage())
	}
	webs := membersOn(t, c, "web", machines)
	outside := member{netns: "/proc/thread-self/ns/net"}
	for _, m := range machines {
		for _, from := range []member{outside, {netns: machines[0].NetNS()}, webs[1]} {
			answered := map[string]bool{}
			must(t, testbed.Poll(t.Context(), settle, "all instances answer on "+m.Name, func(context.Context) error {
				host, err := from.get(m.Address)
				if err == nil {
					answered[host] = true
				}
				if err == nil && len(answered) < len(webs) {
					err = fmt.Errorf("only %d did", len(answered))
				}
				return err
			}))
		}
	}

	if resp := publish("other", "", 8080); resp.GetSuccess() || !strings.Contains(resp.GetErrorMessage(), `8080/tcp in mode ingress is already the port of service "web"`) {
		t.Errorf("a second service with the port: success %t, %q", resp.GetSuccess(), resp.GetErrorMessage())
	}
	var program net.Listener
	must(t, harness.InNetNS(machines[2].NetNS(), func() (err error) {
		program, err = net.Listen("tcp4", ":8081")
		return err
	}))
	defer program.Close()
	if resp := publish("single", "", 8081); !resp.GetSuccess() {
		t.Fatalf("apply was refused: %s", resp.GetErrorMessage())
	}
	for _, m := range machines[:2] {
		must(t, testbed.Poll(t.Context(), settle, "the only instance answers on "+m.Name, func(context.Context) error {
			_, err := outside.getAt(netip.AddrPortFrom(m.Address, 8081))
			return err
		}))
	}
	held := c.Agents[2].NodeID
	must(t, testbed.Poll(t.Context(), settle, "why names the machine", func(context.Context) error {
		if out := ctl(t, c, "why", "single"); !strings.Contains(out, "port 8081/tcp does not answer on node "+held) {
			return errors.New(out)
		}
		return nil
	}))
	if out := ctl(t, c, "events"); !strings.Contains(out, "PortsHeld") {
		t.Errorf("no event names the port:\n%s", out)
	}
	if out := ctl(t, c, "network", "inspect", "ingress"); !strings.Contains(out, "8081/tcp") || !strings.Contains(out, "3 of 3") || !strings.Contains(out, "2 of 3") {
		t.Errorf("persysctl network inspect does not show where the ports answer:\n%s", out)
	}

	for _, m := range machines {
		traces(t, c, []string{m.Address.String() + ":8080"}, "", "service web.default by network ingress", webs[0].id, webs[1].id, webs[2].id)
	}
	traces(t, c, []string{held + ":8081"}, "stops at port 8081/tcp", "a program of the machine uses the port")
	traces(t, c, []string{held + ":8082", "--from", webs[0].id}, "stops at port 8082/tcp", "no workload publishes it on node "+held)
	asking := outside.keepAsking(t, machines[0].Address)
	asking.throughFaults(t, c, machines, "web", webs[1], lease)
	asking.stop()
	for _, id := range []string{"single", "web"} {
		ctl(t, c, "delete", id, "--wait")
	}
}
