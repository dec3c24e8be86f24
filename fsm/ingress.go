package fsm

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/rollout"
)

// A port in ingress mode answers on every node and leads to the instances of one service, wherever
// they run. So it belongs to one service of the cluster, and no other workload may publish it on
// its node. Each node that can answer at the port has a slice (a part of the address range) of the
// network through which it reaches the instances (docs/adr/0076-ingress-ports.md).

// IngressPort is a port at which the service of a workload answers on every node.
type IngressPort struct {
	Port     uint16
	Protocol string // tcp or udp
	Target   uint16 // port in the container
}

// Key returns the port as users write it, for example 8080/tcp.
func (p IngressPort) Key() string { return portText(p.Port, p.Protocol) }

func portText(port uint16, protocol string) string { return strconv.Itoa(int(port)) + "/" + protocol }

// IngressNetwork returns the name of the network through which nodes reach the workload's ports in
// ingress mode; "" if it has no such ports.
func (w *Workload) IngressNetwork() string {
	if len(w.Demand.Ingress) == 0 || len(w.Demand.Networks) == 0 {
		return ""
	}
	return w.Demand.Networks[0]
}

// indexIngress updates the index byIngress when the record after of a workload replaces the record
// before.
func (t *Tx) indexIngress(before, after *Workload) {
	m := own(t, &t.r.byIngress, ownByIngress)
	for _, p := range before.Demand.Ingress {
		m.Delete(pair(p.Key(), before.ID))
	}
	for _, p := range after.Demand.Ingress {
		m.Set(pair(p.Key(), after.ID), struct{}{})
	}
}

// publisher identifies the service that publishes a port: a group, or a workload outside of a group.
type publisher struct{ namespace, service string }

func publisherOf(w *Workload) publisher { return publisher{w.In(), w.ServiceName()} }

func putPublisher(p *commandv1.WorkloadPut, old *Workload) publisher {
	return publisher{namespaceOf(p, old), cmp.Or(p.GetDemand().GetGroup(), p.GetId())}
}

// ingressFault returns which port of the workloads in puts is not free: a port in ingress mode, or
// a host port that another service has in ingress mode; "" if all are free. The list leaving has
// the workloads that the same command deletes. A refusal does not name services of namespaces that
// the caller may not see.
func (s State) ingressFault(puts []*commandv1.WorkloadPut, olds, leaving []*Workload, sees func(namespace string) bool) string {
	c := ingressCheck{s: s, leaving: leaving, sees: sees}
	for i, p := range puts {
		old := olds[i] //nolint:gosec // olds is as long as puts
		for _, x := range p.GetDemand().GetIngress() {
			if why := c.ingress(p, old, ingressOf(x)); why != "" {
				return why
			}
		}
		if s.r.byIngress.Len() == 0 && c.asked == nil {
			continue
		}
		for _, x := range p.GetDemand().GetHostPorts() {
			if h := hostPortOf(x); old == nil || !slices.Contains(old.Demand.Ports, h) {
				if other := c.publishes(portText(h.Port, h.Protocol), putPublisher(p, old)); other != "" {
					return fmt.Sprintf("workload %s: container.ports: %s is taken on every node, because %s publishes it in mode ingress: publish another port", quoted(p.GetId()), portText(h.Port, h.Protocol), other)
				}
			}
		}
	}
	return ""
}

// ingressCheck checks that the services of one command publish no port in ingress mode that another
// service uses.
type ingressCheck struct {
	s       State
	leaving []*Workload
	sees    func(namespace string) bool
	asked   *table[publisher] // ports in ingress mode in this command
	updates *table[publisher] // ports in ingress mode that waiting updates will publish; nil until it is needed
}

// ingress checks one port in ingress mode.
func (c *ingressCheck) ingress(p *commandv1.WorkloadPut, old *Workload, x IngressPort) string {
	me, key := putPublisher(p, old), x.Key()
	text := fmt.Sprintf("workload %s: container.ports: %s in mode ingress", quoted(p.GetId()), key)
	if c.asked == nil {
		c.asked = tree[string, publisher]()
	}
	if other, twice := c.asked.Set(key, me); twice && other != me {
		return text + " is also a port of service " + quoted(other.service) + " in this request: publish another port"
	}
	if old != nil && publisherOf(old) == me && slices.ContainsFunc(old.Demand.Ingress, func(o IngressPort) bool { return o.Key() == key }) {
		return ""
	}
	if other := c.publishes(key, me); other != "" {
		return text + " is already the port of " + other + ": publish another port, or delete that service first"
	}
	if c.mine(key, me) {
		return "" // the first workload of the service was checked
	}
	why := ""
	c.s.Workloads("", func(w *Workload) bool {
		if w.Desired != DesiredDeleted && publisherOf(w) != me && !slices.Contains(c.leaving, w) &&
			slices.ContainsFunc(w.Demand.Ports, func(h HostPort) bool { return portText(h.Port, h.Protocol) == key }) {
			why = text + " would answer on every node, and " + c.name(w.In(), "workload", w.ID) + " publishes it on its node: publish another port, or delete that workload first"
		}
		return why == ""
	})
	return why
}

// publishes returns the service other than me that has a port in ingress mode, or will get it from a rolling update
// in progress; "" if there is none.
func (c *ingressCheck) publishes(key string, me publisher) (other string) {
	c.owners(key, func(w *Workload) bool {
		if publisherOf(w) != me {
			other = c.name(w.In(), "service", w.ServiceName())
		}
		return other == ""
	})
	if other != "" {
		return other
	}
	if c.updates == nil {
		c.wait()
	}
	if p, ok := c.updates.Get(key); ok && p != me {
		other = c.name(p.namespace, "service", p.service)
	}
	return other
}

// mine reports whether a workload of the service me has the port key in ingress mode already.
func (c *ingressCheck) mine(key string, me publisher) (found bool) {
	c.owners(key, func(w *Workload) bool {
		found = found || publisherOf(w) == me
		return !found
	})
	return found
}

// owners calls fn for each workload that has port key in ingress mode and that the command does not
// delete.
func (c *ingressCheck) owners(key string, fn func(*Workload) bool) {
	prefix := key + "/"
	c.s.r.byIngress.Ascend(prefix, func(entry string, _ struct{}) bool {
		id, ok := strings.CutPrefix(entry, prefix)
		if !ok {
			return false
		}
		w, ok := c.s.r.workloads.Get(id)
		return !ok || w.Desired == DesiredDeleted || slices.Contains(c.leaving, w) || fn(w)
	})
}

func (c *ingressCheck) name(namespace, kind, name string) string {
	if !c.sees(namespace) {
		return "a " + kind + " of another namespace"
	}
	return kind + " " + quoted(name) + " of namespace " + quoted(namespace)
}

// wait collects the ports that workloads do not publish yet, but will publish when a rolling update
// in progress changes them.
func (c *ingressCheck) wait() {
	c.updates = tree[string, publisher]()
	c.s.r.rollouts.Scan(func(_ string, r *rollout.Rollout) bool {
		if r.Phase == rollout.Completed {
			return true
		}
		for i := range r.Members {
			put := r.Members[i].Put
			if w, ok := c.s.r.workloads.Get(r.Members[i].ID); ok && put != nil {
				for _, x := range put.GetDemand().GetIngress() {
					c.updates.Set(ingressOf(x).Key(), putPublisher(put, w))
				}
			}
		}
		return true
	})
}

// IngressNetwork is the network of containers that publish ports in ingress mode and name no network. The command that
// stores such a container also creates the network, if the command carries the address pool for networks.
const IngressNetwork = "ingress"

// NeedsIngressNetwork reports whether a workload publishes ports in ingress mode through the network IngressNetwork alone.
func NeedsIngressNetwork(p *commandv1.WorkloadPut) bool {
	d := p.GetDemand()
	return len(d.GetIngress()) > 0 && len(d.GetNetworks()) == 1 && d.GetNetworks()[0] == IngressNetwork
}

// networksMissing returns the refusal of a command if a workload in puts names a network which does not exist
// in its namespace and which the command does not create. It sets t.newNetwork to the network that the command
// creates.
func (t *Tx) networksMissing(puts []*commandv1.WorkloadPut, olds []*Workload) (Result, bool) {
	t.newNetwork = nil
	for i, p := range puts {
		in := namespaceOf(p, olds[i])
		for j, name := range p.GetDemand().GetNetworks() {
			if _, ok := t.state().Network(in, name); ok || t.newNetwork != nil && t.newNetwork.In() == in && t.newNetwork.Name == name {
				continue
			}
			if t.pool != "" && t.newNetwork == nil && NeedsIngressNetwork(p) {
				put := &commandv1.PutNetwork{Name: IngressNetwork, Namespace: in, Pool: t.pool}
				n := t.networkOf(put)
				if res, ok := t.fitsNetwork(n, put); !ok {
					return res, false
				}
				t.newNetwork = n
				continue
			}
			return refuse(NotFound, "%s", UnknownNetwork(p.GetId(), j, name, in)), false
		}
	}
	return Result{}, true
}

// makeNetwork stores the network that the command creates, if there is one. It is called when the command is accepted.
func (t *Tx) makeNetwork() {
	if t.newNetwork != nil {
		t.addNetwork(t.newNetwork)
		t.newNetwork = nil
	}
}

// publish is called when record w of a workload replaces record old. It gives every node that can
// answer at ports in ingress mode a slice (a part of the addresses) of the network through which w
// publishes such ports. If no workload publishes through the network of old any more, the slices of
// nodes without a workload in it may be taken back after a day. Both old and w may be nil. The
// indexes must have w already.
func (t *Tx) publish(old, w *Workload) {
	if old != nil && w != nil && old.Demand == w.Demand && old.In() == w.In() {
		return
	}
	if w != nil {
		if n, ok := t.state().Network(w.In(), w.IngressNetwork()); ok && !n.Ingress {
			next := *n
			next.Ingress = true
			t.storeNetwork(n, t.spread(&next))
		}
	}
	if old == nil {
		return
	}
	if n, ok := t.state().Network(old.In(), old.IngressNetwork()); ok && n.Ingress && !t.state().publishedThrough(n) {
		next := *n
		next.Ingress, next.Slices = false, slices.Clone(n.Slices)
		for i := range next.Slices {
			if next.Slices[i].EmptySince != 0 {
				next.Slices[i].EmptySince = t.r.info.Clock // nodes keep their slices for a day from now on
			}
		}
		t.storeNetwork(n, &next)
	}
}

// publishedThrough reports whether a workload publishes a port in ingress mode through a network.
func (s State) publishedThrough(n *Network) (found bool) {
	s.r.byIngress.Scan(func(key string, _ struct{}) bool {
		if w, ok := s.r.workloads.Get(key[strings.LastIndexByte(key, '/')+1:]); ok {
			found = w.In() == n.In() && w.IngressNetwork() == n.Name
		}
		return !found
	})
	return found
}

// spread returns a copy of the network with a slice (a part of its addresses) for each node that
// can answer at ports in ingress mode, as long as slices are free.
func (t *Tx) spread(n *Network) *Network {
	t.r.nodes.Scan(func(_ string, node *Node) bool {
		n = t.spreadTo(n, node)
		return true
	})
	return n
}

// giveSlice gives a node a slice that has become free.
func (t *Tx) giveSlice(n *Network, id string, res *Result) {
	node, ok := t.r.nodes.Get(id)
	if ok && n.Ingress {
		if next := t.spreadTo(n, node); next != n {
			t.storeNetwork(n, next)
			return
		}
	}
	res.skip(fmt.Sprintf("node %q gets no slice of network %q", clip(id), n.Name))
}

// Wants reports whether a node without a slice of the network should get one when one is free, because it can answer at the
// ports in ingress mode that lead into the network.
func (n *Network) Wants(node *Node) bool {
	f := &node.Facts.Networking
	return n.Ingress && f.Ingress && f.Lacks() == "" && n.MTU <= f.MTU
}

// spreadTo returns the network with a slice for a node, if the node can answer at ports in ingress mode and a slice is
// free. The network itself is not changed.
func (t *Tx) spreadTo(n *Network, node *Node) *Network {
	if _, has := n.SliceOf(node.ID); has || !n.Wants(node) {
		return n
	}
	number, free := n.free(t.r.info.Clock)
	if !free {
		return n
	}
	return n.with(Slice{Number: number, Node: node.ID, EmptySince: max(1, t.r.info.Clock)})
}

// ingressChanged is called when node n registers with other networking facts. It gives n a slice (a
// part of the addresses) of each network that has ports in ingress mode, and writes an event if n
// does not answer at other ports than before.
func (t *Tx) ingressChanged(old, n *Node) {
	if old != nil && old.Facts.Networking == n.Facts.Networking {
		return
	}
	for _, w := range t.r.networks.Values() {
		if w.Ingress {
			t.storeIfOther(w, t.spreadTo(w, n))
		}
	}
	was := Networking{}
	if old != nil {
		was = old.Facts.Networking
	}
	if now := n.Facts.Networking; now.Held != was.Held || now.Forbidden != was.Forbidden {
		text := now.heldText()
		switch {
		case text == "" && was.Forbidden == "": // former versions wrote this text, and all replicas must store equal events
			text = "programs of the machine no longer use ports in ingress mode; it answers there"
		case text == "":
			text = "it answers at all ports in ingress mode again"
		}
		t.event(Event{Type: EventPortsHeld, Node: n.ID, Message: text})
	}
}

// heldText says at which ports in ingress mode a node does not answer, and why; "" if there are none.
func (n Networking) heldText() string {
	used, forbidden := n.Held, n.Forbidden
	if forbidden != "" {
		used = strings.Join(slices.DeleteFunc(strings.Split(used, ", "), n.Forbids), ", ")
	}
	causes := strings.TrimPrefix(suffix("programs of the machine use ", used)+suffix(" and its PERSYS_POLICY forbids ", forbidden), " and ")
	if causes == "" {
		return ""
	}
	return causes + ", so it does not answer at these ports in ingress mode"
}

// Answers reports whether a node answers at the ports in ingress mode that lead into the network.
func (n *Network) Answers(node *Node) bool {
	_, has := n.SliceOf(node.ID)
	return n.Ingress && has && node.Facts.Networking.Ingress
}

// Holds reports whether the node does not answer at a port, because another program of the machine uses it or the
// PERSYS_POLICY of the node forbids it.
func (n Networking) Holds(port string) bool { return listsPort(n.Held, port) }

// Forbids reports whether the PERSYS_POLICY of the node forbids a port that the node holds.
func (n Networking) Forbids(port string) bool { return listsPort(n.Forbidden, port) }

func listsPort(list, port string) bool { return slices.Contains(strings.Split(list, ", "), port) }

// settleIngress gives nodes, after a restore, the parts of networks that they need for ports in
// ingress mode of the restored workloads.
func (t *Tx) settleIngress() {
	for _, n := range t.r.networks.Values() {
		next := *n
		if next.Ingress = t.state().publishedThrough(n); next.Ingress {
			t.storeIfOther(n, t.spread(&next))
		} else if n.Ingress {
			t.storeNetwork(n, &next)
		}
	}
}

func ingressOf(p *commandv1.IngressPort) IngressPort {
	return IngressPort{Port: uint16(p.GetPort()), Protocol: p.GetProtocol(), Target: uint16(p.GetTarget())}
}

func ingressPB(p IngressPort) *commandv1.IngressPort {
	return &commandv1.IngressPort{Port: uint32(p.Port), Protocol: p.Protocol, Target: uint32(p.Target)}
}

// ingress appends the ports in ingress mode of a demand. A demand without such ports has the same
// encoding as before the field existed.
func (e *encoder) ingress(list []IngressPort) {
	if len(list) == 0 {
		return
	}
	e.str("ingress")
	e.u64(uint64(len(list)))
	for _, p := range list {
		e.u64(uint64(p.Port))
		e.str(p.Protocol)
		e.u64(uint64(p.Target))
	}
}
