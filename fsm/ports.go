package fsm

import (
	"slices"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// A host port is promised to one workload at a time, but the running instance binds it. When an
// order changes the ports of a workload, its former ports stay claimed (Workload.FormerPorts)
// until the agent has carried out the order, and claims of former ports precede all others. If
// the workload leaves its node meanwhile, they become part of the residual. No workload is
// therefore told to bind a port that is still bound.

// holdPorts makes w, the changed copy of a placed record, keep its claims on ports that an
// instance of it may have bound.
func (t *Tx) holdPorts(w *Workload, bound []HostPort) {
	w.FormerPorts = united(w.FormerPorts, bound)
}

// portsAfter releases former ports after a report about the present order. All of them are free
// once the order is carried out or the workload is gone. After a failure, the ports that the
// report names still belong to the former instance.
func (w *Workload) portsAfter(state Actual, refused bool) {
	switch {
	case len(w.FormerPorts) == 0:
	case state == ActualRunning, state == ActualStopped, state == ActualMissing:
		w.FormerPorts = nil
	case state == ActualFailed && !refused:
		var still []HostPort
		for _, p := range w.FormerPorts {
			if slices.ContainsFunc(w.Actual.Ports, func(b PortBinding) bool { return b.HostPort == p.Port && b.Protocol == p.Protocol }) {
				still = append(still, p)
			}
		}
		w.FormerPorts = still
	}
}

// united returns the union of two lists. The result may be one of them.
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

// Wants reports whether the demand of w includes a host port. Otherwise w only holds the port
// until its former instance is gone.
func (w *Workload) Wants(p HostPort) bool { return slices.Contains(w.Demand.Ports, p) }

func hostPortOf(p *commandv1.Port) HostPort { return HostPort{uint16(p.GetPort()), p.GetProtocol()} }

func hostPortPB(p HostPort) *commandv1.Port {
	return &commandv1.Port{Port: uint32(p.Port), Protocol: p.Protocol}
}
