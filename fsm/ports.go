package fsm

import (
	"slices"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// A host port is promised to one workload at a time, but bound by what runs. An
// order that changes a workload's ports frees the former ones only when the agent
// has carried it out: until then they stay claimed (Workload.FormerPorts), before
// all who want them, and go into the residual if the workload leaves its node
// meanwhile. So nobody is told to bind what is still bound.

// holdPorts has the copy w of a placed record go on to hold ports that an instance
// of it may have bound.
func (t *Tx) holdPorts(w *Workload, bound []HostPort) {
	w.FormerPorts = united(w.FormerPorts, bound)
}

// portsAfter lets go of former ports by what a node says of the present order: it
// is carried out and what it replaces is gone, or all of it is, or it has failed
// and the ports that are named are those of the former instance, which goes on.
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

// united is a list of what is in either; it may be one of them.
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

// Wants reports whether w is to have a host port, as opposed to holding it only
// until what it replaces is gone.
func (w *Workload) Wants(p HostPort) bool { return slices.Contains(w.Demand.Ports, p) }

func hostPortOf(p *commandv1.Port) HostPort { return HostPort{uint16(p.GetPort()), p.GetProtocol()} }

func hostPortPB(p HostPort) *commandv1.Port {
	return &commandv1.Port{Port: uint32(p.Port), Protocol: p.Protocol}
}
