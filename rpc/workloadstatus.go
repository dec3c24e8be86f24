package rpc

import (
	"strings"

	agentv1 "github.com/persys/compute/api/agent/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
	"github.com/persys/compute/spec"
)

// reported reads one status of a heartbeat, of our agents or of legacy v1 agents.
func reported(st *controlv1.WorkloadStatus) sched.Reported {
	r := sched.Reported{
		Workload: st.GetWorkloadId(),
		Revision: st.GetRevisionId(),
		Gone:     st.GetAbsent(),
		Observation: fsm.Observation{
			State:        actual(st.GetState()),
			Generation:   fsm.GenerationOf(st.GetGeneration()),
			Code:         st.GetReason().GetCode(),
			Message:      st.GetMessage(),
			Failure:      int32(st.GetFailureReason()),
			Retryable:    st.GetReason().GetRetryable(),
			RestartCount: st.GetRestartCount(),
			Addresses:    st.GetAddresses(),
			Ports:        portsOf(st.GetPorts()),
			Health:       healthOf(st.GetHealth()),
		},
	}
	if r.Observation.Message == "" {
		r.Observation.Message = st.GetReason().GetMessage()
	}
	if why := st.GetFailureReason(); why != 0 && r.Observation.Code == "" && r.Observation.State == fsm.ActualFailed {
		r.Observation.Code = codeOf(why)
	}
	bounded(&r.Observation)
	if ts := st.GetObservedAt(); ts != nil {
		r.Observation.At = ts.AsTime().UnixNano()
	} else if ts := st.GetLastTransition(); ts != nil {
		r.Observation.At = ts.AsTime().UnixNano()
	}
	return r
}

// codeOf returns the failure class for the enum value, for agents that send no class.
func codeOf(r controlv1.FailureReason) string {
	switch r {
	case controlv1.FailureReason_IMAGE_NOT_FOUND:
		return "INVALID_IMAGE"
	case controlv1.FailureReason_INVALID_SPEC:
		return "INVALID_SPECIFICATION"
	}
	return r.String() // other values do not affect retries, so their name will do
}

// healthOf reads the result of health checks. An unknown word counts as unhealthy.
func healthOf(v string) string {
	switch v {
	case "", fsm.Healthy, fsm.Unhealthy, fsm.HealthStarting:
		return v
	}
	return fsm.Unhealthy
}

// portsOf converts published ports and leaves out those with a number outside of 1 to 65535.
func portsOf[P interface {
	GetHostPort() int32
	GetContainerPort() int32
	GetProtocol() string
}](ports []P) (out []fsm.PortBinding) {
	valid := func(n int32) bool { return n >= 1 && n <= 65535 }
	for _, p := range ports {
		if valid(p.GetHostPort()) && valid(p.GetContainerPort()) {
			out = append(out, fsm.PortBinding{
				HostPort: uint16(p.GetHostPort()), ContainerPort: uint16(p.GetContainerPort()), Protocol: p.GetProtocol(),
			})
		}
	}
	return out
}

// actual reads the name of a state, as our agents and legacy v1 agents send it.
func actual(v string) fsm.Actual {
	for _, a := range []fsm.Actual{fsm.ActualRunning, fsm.ActualStopped, fsm.ActualFailed, fsm.ActualPending, fsm.ActualMissing} {
		if strings.EqualFold(v, string(a)) {
			return a
		}
	}
	return fsm.ActualUnknown
}

// Bounds of a workload's status. They keep statuses small enough for the log, where one command
// carries the reports of many nodes.
const (
	maxReportCode    = 128
	maxReportMessage = 4 << 10 // bytes; our agents apply the same bound
	maxReportList    = 256     // number of addresses or ports
	maxReportAddress = 64
)

// bounded cuts a status to these bounds. It must run before the status is compared with the state,
// or a status that was cut would count as changed with every heartbeat.
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

// listed reads one status from an agent's answer to ListWorkloads or GetWorkloadStatus.
func listed(st *agentv1.WorkloadStatus) sched.Reported {
	meta := st.GetMetadata()
	r := sched.Reported{
		Workload: st.GetId(),
		Revision: st.GetRevisionId(),
		Gone:     deletedMeanwhile(st),
		Observation: fsm.Observation{
			State:        spec.ActualOf(st.GetActualState()),
			Generation:   fsm.GenerationOf(st.GetGeneration()),
			Message:      st.GetMessage(),
			RestartCount: st.GetRestartCount(),
			Addresses:    st.GetAddresses(),
			Ports:        portsOf(st.GetPorts()),
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
	bounded(&r.Observation)
	return r
}

// deletedMeanwhile reports whether a status is the failed second delete of a legacy v1 agent, which
// means that the workload is gone (contract/wire-agent.md).
func deletedMeanwhile(st *agentv1.WorkloadStatus) bool {
	return st.GetActualState() == agentv1.ActualState_ACTUAL_STATE_FAILED &&
		strings.HasPrefix(st.GetMetadata()["task_id"], "delete-") &&
		strings.Contains(strings.ToLower(st.GetMessage()), "not found")
}
