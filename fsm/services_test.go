package fsm

import (
	"fmt"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// serving returns an option by which a workload belongs to a service: to group, or, if group is
// empty, to the service with the name of the workload.
func serving(group string, networks ...string) func(*commandv1.WorkloadPut) {
	return demand(func(d *commandv1.Demand) { d.Networks, d.ServiceAddress, d.Group = networks, true, group })
}

// service returns the address that a service has in a network, as text; "" if it has none.
func (w *world) service(network, name string) string {
	w.t.Helper()
	n, ok := w.s.Network("", network)
	if !ok {
		w.t.Fatalf("the state must have network %s, but does not", network)
	}
	a, ok := n.Service(name)
	if !ok {
		return ""
	}
	return a.String()
}

// servicesScenario has services that get addresses, lose them and get them back. The members of a
// group share one address.
func servicesScenario(w *world) {
	w.do(register("a", networked("10.0.0.1")))
	w.do(putNetwork("back", ""))
	w.do(putNetwork("small", "192.168.7.0/25"))
	w.do(put("web-0", serving("web", "back", "small")))
	w.do(put("web-1", serving("web", "back")))
	w.do(put("db", serving("", "back")))
	w.do(put("plain", inNetworks("back")))
	w.do(w.assign("db", "a"))
	w.do(put("db", inNetworks("back")))
	w.do(remove("web-0", true))
	w.do(remove("web-1", true))
	w.do(put("api", serving("", "back", "small")))
	w.do(put("web-2", serving("web", "back")))
	w.now += 2 * ServiceRest
	w.do(put("late", serving("", "back", "small")))
}

func TestServiceAddresses(t *testing.T) {
	start := func(w *world) {
		w.ok(register("a", networked("10.0.0.1")))
		w.ok(putNetwork("back", "10.216.0.0/20"))
	}
	prove(t, []fact{
		{"the first member gives the group an address of the highest slice, and further members share the address", func(t *testing.T, w *world) {
			start(w)
			w.ok(put("web-0", serving("web", "back")))
			is(t, "address of service web in network back", w.service("back", "web"), "10.216.15.193")
			w.ok(put("web-1", serving("web", "back")))
			w.ok(put("db", serving("", "back")))
			is(t, `address of service "web" with two members`, w.service("back", "web"), "10.216.15.193")
			is(t, `address of service "db", a workload without a group`, w.service("back", "db"), "10.216.15.194")
		}},
		{"a workload that does not ask for a service address has none", func(t *testing.T, w *world) {
			start(w)
			w.ok(put("web", inNetworks("back")))
			is(t, "address of service web in network back", w.service("back", "web"), "")
		}},
		{"a service keeps its address while it has a member, on whatever node", func(t *testing.T, w *world) {
			start(w)
			w.ok(put("web-0", serving("web", "back")))
			w.ok(put("web-1", serving("web", "back")))
			w.ok(w.assign("web-1", "a"))
			w.ok(w.evict("web-1", CodeDraining, false))
			w.ok(remove("web-0", true))
			is(t, "address of service web in network back", w.service("back", "web"), "10.216.15.193")
		}},
		{"a former address is given to no other service for an hour, and its own service can get it back", func(t *testing.T, w *world) {
			start(w)
			w.ok(put("web", serving("", "back")))
			w.ok(put("web", inNetworks("back")))
			is(t, `address of service "web" while no workload asks for it`, w.service("back", "web"), "")
			w.ok(put("db", serving("", "back")))
			is(t, `address of service "db" while the address of "web" rests`, w.service("back", "db"), "10.216.15.194")
			w.ok(put("web", serving("", "back")))
			is(t, `address of service "web" after its workload asks for it again`, w.service("back", "web"), "10.216.15.193")
			w.ok(put("web", inNetworks("back")))
			w.now += ServiceRest + second
			w.ok(put("api", serving("", "back")))
			is(t, `address of service "api" after the address of "web" has rested for ServiceRest`, w.service("back", "api"), "10.216.15.193")
		}},
		{"a slice without services is taken back, rests, and may go to a node", func(t *testing.T, w *world) {
			w.ok(register("a", networked("10.0.0.1")))
			w.ok(register("b", networked("10.0.0.2")))
			w.ok(putNetwork("small", "192.168.7.0/25"))
			w.ok(put("web", serving("", "small")))
			is(t, "address of service web in network small", w.service("small", "web"), "192.168.7.65")
			w.ok(put("x", inNetworks("small")))
			w.ok(put("y", inNetworks("small")))
			w.ok(w.assign("x", "a"))
			refused(t, w.do(w.assign("y", "b")), OK, "no slice left")
			w.ok(put("web"))
			w.now += ServiceRest + second
			w.ok(put("other", serving("", "small"))) // from now on the slice of the former service is free
			is(t, `address of service "other" in a network without free slices`, w.service("small", "other"), "")
			w.now += SliceRest + second
			w.ok(w.assign("y", "b"))
			is(t, `slice of node "b" in network small`, w.slice("small", "b"), "192.168.7.64/26")
		}},
		{"a network of one slice has no addresses for services", func(t *testing.T, w *world) {
			w.ok(putNetwork("tiny", "192.168.7.0/26"))
			w.ok(put("web", serving("", "tiny")))
			is(t, "address of service web in network tiny", w.service("tiny", "web"), "")
		}},
		{"services take at most half of the slices", func(t *testing.T, w *world) {
			w.ok(putNetwork("quarter", "192.168.7.0/24"))
			for i := range 2*62 + 1 {
				w.ok(put(fmt.Sprint("s", i), serving("", "quarter")))
			}
			is(t, "address of the last service that gets one", w.service("quarter", "s123"), "192.168.7.190")
			is(t, "address of the service after that", w.service("quarter", "s124"), "")
		}},
		{"a system workload keeps the address of its members", func(t *testing.T, w *world) {
			start(w)
			w.ok(put("agent", serving("", "back"), demand(func(d *commandv1.Demand) { d.Template = &commandv1.Template{Kind: TemplateSystem} })))
			is(t, "address of service agent in network back", w.service("back", "agent"), "10.216.15.193")
		}},
	})
}
