package fsm

import (
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// publishing returns an option by which a workload publishes TCP ports in ingress mode through
// network back.
func publishing(group string, ports ...uint32) func(*commandv1.WorkloadPut) {
	return demand(func(d *commandv1.Demand) {
		d.Networks, d.Group = []string{"back"}, group
		for _, p := range ports {
			d.Ingress = append(d.Ingress, &commandv1.IngressPort{Port: p, Protocol: "tcp", Target: 80})
		}
	})
}

// answering returns an option by which a node registers as able to answer at ports in ingress mode.
func answering(address, held string) func(*commandv1.RegisterNode) {
	return func(n *commandv1.RegisterNode) {
		n.Networking = &commandv1.NodeNetworking{Address: address, Mtu: 1450, Ingress: true, HeldPorts: held}
	}
}

// ingressScenario has services that publish ports in ingress mode, commands that are refused
// because a port is taken, nodes that register later, and ports that other programs of a node use.
func ingressScenario(w *world) {
	w.do(register("a", answering("10.0.0.1", "")))
	w.do(register("old", networked("10.0.0.2")))
	w.do(putNetwork("back", ""))
	w.do(put("web-0", publishing("web", 80, 443)))
	w.do(put("web-1", publishing("web", 80)))
	w.do(put("other", publishing("", 80)))
	w.do(put("host", hostPort(443)))
	w.do(register("b", answering("10.0.0.3", "80/tcp")))
	w.do(register("b", answering("10.0.0.3", "")))
	w.do(w.assign("web-0", "a"))
	w.do(remove("web-0", true))
	w.do(put("web-1", publishing("web")))
	w.do(put("other", publishing("", 80)))
}

// ingressSlicesScenario takes a slice back from a node. After the slice has rested for SliceRest, a node that
// answers at ports in ingress mode gets it.
func ingressSlicesScenario(w *world) {
	w.do(register("a", answering("10.0.0.1", "")))
	w.do(register("b", answering("10.0.0.2", "")))
	w.do(putNetwork("back", "10.50.0.0/26"))
	w.do(put("web", publishing("", 80)))
	w.do(removeNode("a", true))
	w.do(releaseSlices(&commandv1.IdleSlice{Network: 1, Node: "b", Give: true}))
	w.now += SliceRest
	w.do(releaseSlices(&commandv1.IdleSlice{Network: 1, Node: "b"}, &commandv1.IdleSlice{Network: 1, Node: "b", Give: true}))
}

// withPool returns a command that puts workloads with ports in ingress mode and no network of their own, and that may
// create their network.
func withPool(pool string, all ...Command) Command {
	out := &commandv1.PutWorkloads{NetworkPool: pool, Each: len(all) > 1}
	for _, c := range all {
		for _, p := range c.GetPutWorkloads().GetWorkloads() {
			if p.GetDemand().Networks != nil {
				p.Demand.Networks = []string{IngressNetwork}
			}
			out.Workloads = append(out.Workloads, p)
		}
	}
	return &commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: out}}
}

// ingressNetworkScenario has commands that create the network of ports in ingress mode. Some of them are
// refused and create no network.
func ingressNetworkScenario(w *world) {
	w.do(putNamespace("shop"))
	w.do(register("a", answering("10.0.0.1", "")))
	w.do(withPool("", put("web", publishing("", 80))))
	w.do(withPool("10.216.0.0/99", put("web", publishing("", 80))))
	w.do(withPool("10.216.0.0/14", put("web", publishing("", 80), content(""))))
	w.do(withPool("10.216.0.0/14", put("web", publishing("", 80))))
	w.do(withPool("10.216.0.0/14", put("other", publishing("", 80), inNamespace("shop")), put("third", publishing("", 81), inNamespace("shop"))))
	w.do(withPool("10.216.0.0/14", put("plain")))
}

// forbidding returns a registration of node a: other programs use the ports in held, or the PERSYS_POLICY of
// the node forbids them; the ports in forbidden are the latter.
func forbidding(held, forbidden string) Command {
	c := register("a", answering("10.0.0.1", held))
	c.GetRegisterNode().Networking.ForbiddenPorts = forbidden
	return c
}

func forbiddenPortsScenario(w *world) {
	w.do(forbidding("22/tcp, 80/tcp", "80/tcp"))
	w.do(forbidding("80/tcp", "80/tcp"))
	w.do(forbidding("", ""))
}

func TestIngress(t *testing.T) {
	start := func(w *world) {
		w.ok(register("a", answering("10.0.0.1", "")))
		w.ok(register("old", networked("10.0.0.2")))
		w.ok(putNetwork("back", "10.216.0.0/20"))
	}
	answers := func(t *testing.T, w *world, node string, want bool) {
		t.Helper()
		n, _ := w.s.Network("", "back")
		of, ok := w.s.Node(node)
		is(t, node+" answers", ok && n.Answers(of), want)
	}
	prove(t, []fact{
		{"an accepted command creates the network ingress, and a refused one does not", func(t *testing.T, w *world) {
			w.ok(register("a", answering("10.0.0.1", "")))
			w.ok(putNamespace("shop", limits(500, 0, 0, 0)))
			without := func(in string) {
				t.Helper()
				_, found := w.s.Network(in, IngressNetwork)
				is(t, `the namespace has a network "ingress"`, found, false)
			}
			const pool = "10.216.0.0/14"
			web := put("web", publishing("", 80))
			refused(t, w.do(withPool("", web)), NotFound, `network "ingress" does not exist`)
			refused(t, w.do(withPool("10.216.0.0", web)), Invalid, "pool")
			refused(t, w.do(withPool(pool, put("big", publishing("", 82), inNamespace("shop")))), OverQuota, "shop")
			without("default")
			without("shop")
			w.ok(withPool(pool, web))
			n, _ := w.s.Network("default", IngressNetwork)
			is(t, `subnet of network "ingress" in namespace default`, n.CIDR.String(), "10.216.0.0/20")
			is(t, `network "ingress" has ports in ingress mode`, n.Ingress, true)
			is(t, "message of the event NetworkCreated", w.eventOf(EventNetworkCreated).Message, IngressNetwork)
			refused(t, w.do(withPool(pool, put("other", publishing("", 80), cpu(100), inNamespace("shop")))), Conflict, "80/tcp")
			without("shop")
			res := w.do(withPool(pool, put("other", publishing("", 80), cpu(100), inNamespace("shop")), put("third", publishing("", 81), cpu(100), inNamespace("shop"))))
			is(t, "verdict on the first of two workloads, whose port is taken", res.Items[0].Kind, Conflict)
			is(t, "verdict on the second of two workloads", res.Items[1].Kind, OK)
			n, _ = w.s.Network("shop", IngressNetwork)
			is(t, "subnet of the network that the command creates for the second workload", n.CIDR.String(), "10.216.16.0/20")
		}},
		{"every node whose agent supports ports in ingress mode answers at a published port, including nodes that register later", func(t *testing.T, w *world) {
			start(w)
			answers(t, w, "a", false)
			w.ok(put("web", publishing("", 80)))
			answers(t, w, "a", true)
			answers(t, w, "old", false)
			is(t, "slice of a node whose agent does not support ports in ingress mode", w.slice("back", "old"), "")
			w.ok(register("b", answering("10.0.0.3", "")))
			answers(t, w, "b", true)
			w.ok(register("old", answering("10.0.0.2", "")))
			answers(t, w, "old", true)
		}},
		{"nodes keep their slices while a port is published, and for a day after that", func(t *testing.T, w *world) {
			start(w)
			w.ok(put("web", publishing("", 80)))
			w.now += 2 * SliceIdle
			w.ok(register("b", answering("10.0.0.3", "")))
			n, _ := w.s.Network("", "back")
			s, _ := n.SliceOf("a")
			is(t, `the slice of node "a" is idle while a port is published`, n.Idle(s, w.now), false)
			w.ok(put("web", inNetworks("back")))
			n, _ = w.s.Network("", "back")
			s, _ = n.SliceOf("a")
			answers(t, w, "a", false)
			is(t, `the slice of node "a" is idle right after the last port was removed`, n.Idle(s, w.now), false)
			is(t, `the slice of node "a" is idle a day after the last port was removed`, n.Idle(s, w.now+SliceIdle), true)
		}},
		{"a node without a slice gets one that has become free", func(t *testing.T, w *world) {
			w.ok(register("a", answering("10.0.0.1", "")))
			w.ok(register("b", answering("10.0.0.2", "")))
			w.ok(register("old", networked("10.0.0.3")))
			w.ok(putNetwork("back", "10.50.0.0/26"))
			w.ok(put("web", publishing("", 80)))
			answers(t, w, "a", true)
			give := func(node string) Result {
				return w.do(releaseSlices(&commandv1.IdleSlice{Network: 1, Node: node, Give: true}))
			}
			is(t, "number of skipped items while no slice is free", give("b").Skipped, 1)
			w.ok(removeNode("a", true))
			is(t, "number of skipped items while the freed slice rests", give("b").Skipped, 1)
			w.now += SliceRest
			is(t, "number of skipped items for a node whose agent is too old", give("old").Skipped, 1)
			is(t, "number of skipped items for a node that does not exist", give("none").Skipped, 1)
			is(t, "number of skipped items of the command", give("b").Skipped, 0)
			answers(t, w, "b", true)
			is(t, "number of skipped items for a node that already has a slice", give("b").Skipped, 1)
		}},
		{"a port belongs to one service of the cluster", func(t *testing.T, w *world) {
			start(w)
			w.ok(put("web-0", publishing("web", 80)))
			w.ok(put("web-1", publishing("web", 80)))
			refused(t, w.do(put("db", publishing("", 80, 443))), Conflict, `"db"`, "80/tcp", `service "web"`, "publish another port")
			w.ok(put("db", publishing("", 443)))
			refused(t, w.do(put("db", publishing("", 80, 443))), Conflict, "80/tcp")
			w.ok(remove("web-0", true))
			refused(t, w.do(put("db", publishing("", 80, 443))), Conflict, "80/tcp")
			w.ok(remove("web-1", true))
			w.ok(put("db", publishing("", 80, 443)))
		}},
		{"a port in ingress mode is no host port of another workload", func(t *testing.T, w *world) {
			start(w)
			w.ok(put("host", hostPort(443)))
			refused(t, w.do(put("web", publishing("", 443))), Conflict, "443/tcp", `workload "host"`)
			w.ok(put("web", publishing("", 80)))
			refused(t, w.do(put("late", hostPort(80))), Conflict, "80/tcp", `service "web"`)
			w.ok(put("host", hostPort(443))) // it had the port before
			w.ok(put("web", demand(func(d *commandv1.Demand) {
				publishing("", 81)(&commandv1.WorkloadPut{Demand: d})
				d.HostPorts = []*commandv1.Port{{Port: 80, Protocol: "tcp"}}
			})))
		}},
		{"a refusal does not name services of namespaces that the caller may not see", func(t *testing.T, w *world) {
			start(w)
			w.ok(put("web", publishing("", 80)))
			why := w.s.ingressFault([]*commandv1.WorkloadPut{{Id: "x", Namespace: "shop", Demand: &commandv1.Demand{
				Networks: []string{"back"}, Ingress: []*commandv1.IngressPort{{Port: 80, Protocol: "tcp", Target: 80}}}}}, []*Workload{nil}, nil,
				func(namespace string) bool { return namespace == "shop" })
			is(t, "text of the refusal", why, `workload "x": container.ports: 80/tcp in mode ingress is already the port of a service of another namespace: publish another port, or delete that service first`)
		}},
		{"a node says which ports programs of its machine use", func(t *testing.T, w *world) {
			start(w)
			w.ok(register("a", answering("10.0.0.1", "22/tcp, 80/tcp")))
			n, _ := w.s.Node("a")
			is(t, "the node says that a program uses port 80/tcp", n.Facts.Networking.Holds("80/tcp"), true)
			is(t, "the node says that a program uses port 2/tcp", n.Facts.Networking.Holds("2/tcp"), false)
			said := func() (texts []string) {
				w.s.Events(0, func(e *Event) bool {
					if e.Type == EventPortsHeld && e.Node == "a" {
						texts = append(texts, e.Message)
					}
					return true
				})
				return texts
			}
			is(t, "messages of the events about used ports", strings.Join(said(), "\n"), "programs of the machine use 22/tcp, 80/tcp, so it does not answer at these ports in ingress mode")
			w.ok(forbidding("22/tcp, 80/tcp", "80/tcp"))
			w.ok(forbidding("80/tcp", "80/tcp"))
			w.ok(forbidding("", ""))
			is(t, "messages of the events about forbidden ports", strings.Join(said()[1:], "\n"), strings.Join([]string{
				"programs of the machine use 22/tcp and its PERSYS_POLICY forbids 80/tcp, so it does not answer at these ports in ingress mode",
				"its PERSYS_POLICY forbids 80/tcp, so it does not answer at these ports in ingress mode",
				"it answers at all ports in ingress mode again",
			}, "\n"))
		}},
	})
}
