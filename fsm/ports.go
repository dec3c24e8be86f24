package fsm

import (
	"slices"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// A host port is reserved for one workload at a time, but only the running instance binds the port. When an
// order changes the ports of a workload, its former ports stay reserved (Workload.FormerPorts) until the agent
// has carried out the order. Claims to former ports have priority over all other claims. If the workload leaves
// its node meanwhile, its former ports become part of the residual, the record that the node may still run the
// instance. So no workload is ordered to bind a port that is still bound.

// CodePortConflict is the failure class that agents report for a host port which another program uses.
const CodePortConflict = "PORT_BIND_CONFLICT"

// holdPorts keeps the host ports in bound reserved, which a running instance of w may use. w is the
// changed copy of the record of a placed workload.
func (t *Tx) holdPorts(w *Workload, bound []HostPort) {
	w.FormerPorts = united(w.FormerPorts, bound)
}

// portsAfter releases ports that a workload had before its last change, after a report about the present order.
// If the order is carried out or the instance is gone, all former ports become free. If the order failed, the
// former ports that the report lists stay reserved, because the former instance still binds them. A start that
// failed because a port was taken is treated in the same way, although its agent tries again.
func (w *Workload) portsAfter(state Actual, refused bool) {
	switch {
	case len(w.FormerPorts) == 0:
	case state == ActualRunning, state == ActualStopped, state == ActualMissing:
		w.FormerPorts = nil
	case state == ActualFailed && !refused, state == ActualPending && w.Actual.Code == CodePortConflict:
		var still []HostPort
		for _, p := range w.FormerPorts {
			if slices.ContainsFunc(w.Actual.Ports, func(b PortBinding) bool { return p.Collides(HostPort{b.HostPort, b.Protocol, b.Address}) }) {
				still = append(still, p)
			}
		}
		w.FormerPorts = still
	}
}

// united returns the union of two lists of ports. The result may share memory with either list.
func united(a, b []HostPort) []HostPort {
	if len(a) == 0 {
		return b
	}
	if len(b) == 0 {
		return a
	}
	out := slices.Clone(a)
	for _, p := range b {
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// Wants reports whether the demand of w includes a host port. If not, w reserves the port only until its
// former instance is gone.
func (w *Workload) Wants(p HostPort) bool { return slices.ContainsFunc(w.Demand.Ports, p.Collides) }

// NetworkPort is the UDP port at which nodes receive the VXLAN packets of networks. Some hypervisors treat packets to
// the usual ports, 4789 and 8472, as their own.
const NetworkPort = 4790

// PortUser returns the program of the cluster that listens at a host port of node n: "the agent", a scheduler on the same
// machine, or "networks" for VXLAN; "" if none is known. It knows only the addresses that agents and schedulers report.
// They do not report whether they listen at all addresses of their machine, so it ignores the address of p. A scheduler
// is on the machine of a node if the addresses of both have the same host.
func PortUser(v interface {
	Replicas(fn func(*Replica) bool)
}, n *Node, p HostPort) string {
	port, host := ":"+decimal(int(p.Port)), n.Facts.Endpoint[:max(0, strings.LastIndexByte(n.Facts.Endpoint, ':'))]
	switch {
	case p.Protocol == "tcp" && (strings.HasSuffix(n.Facts.Endpoint, port) || n.Facts.MetricsPort == p.Port):
		return "the agent"
	case p.Protocol == "udp" && p.Port == NetworkPort && n.Facts.Networking.Address != "":
		return "networks"
	case host == "":
		return ""
	}
	user := ""
	v.Replicas(func(r *Replica) bool {
		both := [...]string{r.GossipAddr, r.DNSAddr} // over TCP and UDP
		for _, addr := range [...]string{r.GRPCAddr, r.HTTPAddr, r.RaftAddr, both[0], both[1]} {
			if addr == host+port && (p.Protocol == "tcp" || slices.Contains(both[:], addr)) {
				user = "scheduler " + r.Name
			}
		}
		return user == ""
	})
	return user
}

// SameListeners reports whether the programs of a node listen at the same ports with facts f as with facts o.
func (f *NodeFacts) SameListeners(o *NodeFacts) bool {
	return f.Endpoint == o.Endpoint && f.MetricsPort == o.MetricsPort && (f.Networking.Address == "") == (o.Networking.Address == "")
}

func hostPortOf(p *commandv1.Port) HostPort {
	return HostPort{uint16(p.GetPort()), p.GetProtocol(), p.GetAddress()}
}

func hostPortPB(p HostPort) *commandv1.Port {
	return &commandv1.Port{Port: uint32(p.Port), Protocol: p.Protocol, Address: p.Address}
}
