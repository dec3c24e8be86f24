package rpc

import "github.com/persys/compute/fsm"

// Bounds of what is kept of one workload's status. An agent's word must not be too
// large for the log: reports of many nodes travel in one command.
const (
	maxReportCode    = 128
	maxReportMessage = 4 << 10 // as our agents bound it
	maxReportList    = 256     // addresses, ports
	maxReportAddress = 64
)

// bounded cuts what a node says of a workload to these bounds. It is done before
// anything is compared with it, so that what was cut is not told again.
func bounded(o *fsm.Observation) {
	o.Code, o.Message = clip(o.Code, maxReportCode), clip(o.Message, maxReportMessage)
	o.Addresses = o.Addresses[:min(len(o.Addresses), maxReportList)]
	for i, a := range o.Addresses {
		o.Addresses[i] = clip(a, maxReportAddress)
	}
	o.Ports = o.Ports[:min(len(o.Ports), maxReportList)]
	for i := range o.Ports {
		if p := &o.Ports[i]; p.Protocol != "tcp" && p.Protocol != "udp" {
			p.Protocol = clip(p.Protocol, 8)
		}
	}
}
