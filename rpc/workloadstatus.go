package rpc

import (
	"strings"

	agentv1 "github.com/persys/compute/api/agent/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
	"github.com/persys/compute/spec"
)

// reported reads one status of a heartbeat, from our agents or existing ones.
func reported(st *controlv1.WorkloadStatus) sched.Reported {
	g := st.GetGeneration()
	r := sched.Reported{
		Workload: st.GetWorkloadId(),
		Revision: st.GetRevisionId(),
		Gone:     st.GetAbsent(),
		Observation: fsm.Observation{
			State:        actual(st.GetState()),
			Generation:   fsm.Generation{Incarnation: g.GetIncarnation(), Sequence: g.GetSequence()},
			Code:         st.GetReason().GetCode(),
			Message:      st.GetMessage(),
			Failure:      int32(st.GetFailureReason()),
			Retryable:    st.GetReason().GetRetryable(),
			RestartCount: st.GetRestartCount(),
			Addresses:    st.GetAddresses(),
			Health:       healthOf(st.GetHealth()),
		},
	}
	if r.Observation.Message == "" {
		r.Observation.Message = st.GetReason().GetMessage()
	}
	if why := st.GetFailureReason(); why != 0 && r.Observation.Code == "" && r.Observation.State == fsm.ActualFailed {
		r.Observation.Code = codeOf(why)
	}
	for _, p := range st.GetPorts() {
		if validPort(p.GetHostPort()) && validPort(p.GetContainerPort()) {
			r.Observation.Ports = append(r.Observation.Ports, fsm.PortBinding{
				HostPort: uint16(p.GetHostPort()), ContainerPort: uint16(p.GetContainerPort()), Protocol: p.GetProtocol(),
			})
		}
	}
	bounded(&r.Observation)
	if ts := st.GetObservedAt(); ts != nil {
		r.Observation.At = ts.AsTime().UnixNano()
	} else if ts := st.GetLastTransition(); ts != nil {
		r.Observation.At = ts.AsTime().UnixNano()
	}
	return r
}

// codeOf is the failure class that says as much as the enum, for agents that send no detail.
func codeOf(r controlv1.FailureReason) string {
	switch r {
	case controlv1.FailureReason_IMAGE_NOT_FOUND:
		return "INVALID_IMAGE"
	case controlv1.FailureReason_INVALID_SPEC:
		return "INVALID_SPECIFICATION"
	}
	return r.String() // the others stop no retries, and need no other name
}

// healthOf reads what an agent says of health checks; a word that is not known is
// no health.
func healthOf(v string) string {
	switch v {
	case "", fsm.Healthy, fsm.Unhealthy, fsm.HealthStarting:
		return v
	}
	return fsm.Unhealthy
}

func validPort(n int32) bool { return n >= 1 && n <= 65535 }

// actual reads a state name as existing and our own agents send it.
func actual(v string) fsm.Actual {
	for _, a := range []fsm.Actual{fsm.ActualRunning, fsm.ActualStopped, fsm.ActualFailed, fsm.ActualPending, fsm.ActualMissing} {
		if strings.EqualFold(v, string(a)) {
			return a
		}
	}
	return fsm.ActualUnknown
}

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

// listed reads one status as an agent gives it when asked.
func listed(st *agentv1.WorkloadStatus) sched.Reported {
	g, meta := st.GetGeneration(), st.GetMetadata()
	r := sched.Reported{
		Workload: st.GetId(),
		Revision: st.GetRevisionId(),
		Gone:     deletedMeanwhile(st),
		Observation: fsm.Observation{
			State:        spec.ActualOf(st.GetActualState()),
			Generation:   fsm.Generation{Incarnation: g.GetIncarnation(), Sequence: g.GetSequence()},
			Message:      st.GetMessage(),
			RestartCount: st.GetRestartCount(),
			Addresses:    st.GetAddresses(),
			Health:       healthOf(st.GetHealth()),
			At:           st.GetUpdatedAt() * 1e9,
		},
	}
	if r.Observation.State == fsm.ActualFailed {
		r.Observation.Code = meta["failure_reason"]
		r.Observation.Retryable = meta["retry_terminal"] != "true"
		if r.Observation.Message == "" {
			r.Observation.Message = meta["failure_message"]
		}
	}
	for _, p := range st.GetPorts() {
		if validPort(p.GetHostPort()) && validPort(p.GetContainerPort()) {
			r.Observation.Ports = append(r.Observation.Ports, fsm.PortBinding{
				HostPort: uint16(p.GetHostPort()), ContainerPort: uint16(p.GetContainerPort()), Protocol: p.GetProtocol(),
			})
		}
	}
	bounded(&r.Observation)
	return r
}

// deletedMeanwhile reads the failed second delete of legacy v1 agents, which
// means that nothing is left (contract/wire-agent.md).
func deletedMeanwhile(st *agentv1.WorkloadStatus) bool {
	return st.GetActualState() == agentv1.ActualState_ACTUAL_STATE_FAILED &&
		strings.HasPrefix(st.GetMetadata()["task_id"], "delete-") &&
		strings.Contains(strings.ToLower(st.GetMessage()), "not found")
}
