package message

import (
	"cmp"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/persys/compute/api/agent/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/order"
	"github.com/persys/compute/sched"
	"github.com/persys/compute/spec"
)

// Report converts the status of one workload in a heartbeat. legacy is set for legacy v1 agents, which report the
// cause of an earlier failure even while a workload runs.
func Report(st *controlv1.WorkloadStatus, legacy bool) sched.Reported {
	r := sched.Reported{
		Workload: st.GetWorkloadId(),
		Revision: st.GetRevisionId(),
		Gone:     st.GetAbsent(),
		Observation: fsm.Observation{
			State:        actual(st.GetState()),
			Generation:   order.GenerationOf(st.GetGeneration()),
			Code:         st.GetReason().GetCode(),
			Message:      st.GetMessage(),
			Failure:      int32(st.GetFailureReason()),
			Retryable:    st.GetReason().GetRetryable(),
			RestartCount: st.GetRestartCount(),
			Addresses:    st.GetAddresses(),
			Ports:        portsOf(st.GetPorts()),
			Health:       healthOf(st.GetHealth()),
			TryElsewhere: st.GetTryElsewhere(),
			Terminal:     st.GetTerminal(),
		},
	}
	if x := st.GetExit(); x != nil {
		r.Observation.Exit = &fsm.Exit{Code: x.GetCode(), StartedAt: nanos(x.GetStartedAt()), EndedAt: nanos(x.GetEndedAt()), Output: x.GetOutput()}
	}
	if r.Observation.Message == "" {
		r.Observation.Message = st.GetReason().GetMessage()
	}
	if why := st.GetFailureReason(); why != 0 && r.Observation.Code == "" && r.Observation.State == fsm.ActualFailed {
		r.Observation.Code = codeOf(why)
	}
	if legacy && r.Observation.State == fsm.ActualRunning {
		r.Observation.Code = ""
	}
	bounded(&r.Observation)
	r.Observation.At = cmp.Or(nanos(st.GetObservedAt()), nanos(st.GetLastTransition()))
	return r
}

// nanos converts a time to Unix nanoseconds; 0 if there is none.
func nanos(ts *timestamppb.Timestamp) int64 {
	if ts == nil {
		return 0
	}
	return ts.AsTime().UnixNano()
}

// codeOf returns the failure class for an enum value, for agents that do not send the class.
func codeOf(r controlv1.FailureReason) string {
	switch r {
	case controlv1.FailureReason_IMAGE_NOT_FOUND:
		return "INVALID_IMAGE"
	case controlv1.FailureReason_INVALID_SPEC:
		return "INVALID_SPECIFICATION"
	}
	return r.String() // no other value affects retries, so the name of the value serves as the class
}

// healthOf converts the result of a health check. An unknown word is treated as unhealthy.
func healthOf(v string) string {
	switch v {
	case "", fsm.Healthy, fsm.Unhealthy, fsm.HealthStarting:
		return v
	}
	return fsm.Unhealthy
}

// portsOf converts the published ports of a workload and leaves out ports with a number outside of 1 to 65535.
func portsOf[P interface {
	GetHostPort() int32
	GetContainerPort() int32
	GetProtocol() string
	GetAddress() string
}](ports []P) (out []fsm.PortBinding) {
	valid := func(n int32) bool { return n >= 1 && n <= 65535 }
	for _, p := range ports {
		if valid(p.GetHostPort()) && valid(p.GetContainerPort()) {
			out = append(out, fsm.PortBinding{
				HostPort: uint16(p.GetHostPort()), ContainerPort: uint16(p.GetContainerPort()), Protocol: p.GetProtocol(), Address: bounds.Clip(p.GetAddress(), MaxAddress),
			})
		}
	}
	return out
}

// actual converts the name of an actual state, from agents of this project and from legacy v1 agents.
func actual(v string) fsm.Actual {
	for _, a := range []fsm.Actual{fsm.ActualRunning, fsm.ActualStopped, fsm.ActualFailed, fsm.ActualPending, fsm.ActualMissing} {
		if strings.EqualFold(v, string(a)) {
			return a
		}
	}
	return fsm.ActualUnknown
}

// Limits of a workload's status. They keep a status small, because one log command contains the reports of
// many nodes.
const (
	MaxCode    = 128
	MaxMessage = 4 << 10 // maximum length in bytes; agents of this version apply the same limit
	MaxList    = 256     // maximum number of addresses, and of ports
	MaxAddress = 64
)

// bounded shortens a status to the limits above. It must be called before the status is compared with the stored one,
// which is already shortened. Otherwise a long status would seem to change with every heartbeat.
func bounded(o *fsm.Observation) {
	o.Code, o.Message = bounds.Clip(o.Code, MaxCode), bounds.Clip(o.Message, MaxMessage)
	o.Addresses = slices.Clone(o.Addresses[:min(len(o.Addresses), MaxList)]) // the list belongs to the message
	for i, a := range o.Addresses {
		o.Addresses[i] = bounds.Clip(a, MaxAddress)
	}
	o.Ports = o.Ports[:min(len(o.Ports), MaxList)]
	if x := o.Exit; x != nil {
		x.Output = strings.ToValidUTF8(bounds.Clip(x.Output, fsm.MaxExitOutput), "")
	}
	for i := range o.Ports {
		if p := &o.Ports[i]; p.Protocol != "tcp" && p.Protocol != "udp" {
			p.Protocol = bounds.Clip(p.Protocol, 8)
		}
	}
}

// Listed converts one status in an agent's answer to ListWorkloads or GetWorkloadStatus. legacy is set for
// legacy v1 agents, which put the cause of a failure into the metadata in every state.
func Listed(st *agentv1.WorkloadStatus, legacy bool) sched.Reported {
	meta := st.GetMetadata()
	r := sched.Reported{
		Workload: st.GetId(),
		Revision: st.GetRevisionId(),
		Gone:     DeletedMeanwhile(st),
		Nothing:  legacy && NothingLeft(st),
		Observation: fsm.Observation{
			State:        spec.ActualOf(st.GetActualState()),
			Generation:   order.GenerationOf(st.GetGeneration()),
			Message:      st.GetMessage(),
			RestartCount: st.GetRestartCount(),
			Addresses:    st.GetAddresses(),
			Ports:        portsOf(st.GetPorts()),
			Health:       healthOf(st.GetHealth()),
			At:           st.GetUpdatedAt() * 1e9,
		},
	}
	if x := st.GetExit(); x != nil {
		r.Observation.Exit = &fsm.Exit{Code: x.GetCode(), StartedAt: x.GetStartedAt(), EndedAt: x.GetEndedAt(), Output: x.GetOutput()}
	}
	switch failed := r.Observation.State == fsm.ActualFailed; {
	case legacy && r.Observation.State != fsm.ActualRunning:
		r.Observation.Code = meta["failure_reason"]
		r.Observation.Terminal = meta["retry_terminal"] == "true"
		r.Observation.Retryable = (failed || r.Observation.Code != "") && !r.Observation.Terminal
		if cause := causeIn(meta); cause != "" && (r.Observation.Message == "" || !failed) {
			r.Observation.Message = cause
		}
	case failed:
		r.Observation.Code = meta["failure_reason"]
		r.Observation.Terminal = meta["retry_terminal"] == "true"
		r.Observation.Retryable = !r.Observation.Terminal
		if r.Observation.Message == "" {
			r.Observation.Message = meta["failure_message"]
		}
	}
	bounded(&r.Observation)
	return r
}

// causeIn returns the cause of a failure from the metadata of a status that a legacy v1 agent has sent; "" if there is
// none (contract/semantics.md, section 7).
func causeIn(meta map[string]string) string {
	for _, key := range []string{"failure_message", "retry_terminal_reason", "terminal_failure_reason", "container.stderr",
		"last_runtime_error", "container.runtime_error", "last_error"} {
		if text := strings.TrimSpace(meta[key]); text != "" {
			return text
		}
	}
	return ""
}

// DeletedMeanwhile reports whether a status of a legacy v1 agent says that a second delete has failed, because the
// first delete has already removed the workload (contract/wire-agent.md).
func DeletedMeanwhile(st *agentv1.WorkloadStatus) bool {
	return st.GetActualState() == agentv1.ActualState_ACTUAL_STATE_FAILED &&
		strings.HasPrefix(st.GetMetadata()["task_id"], "delete-") &&
		strings.Contains(strings.ToLower(st.GetMessage()), "not found")
}

// NothingLeft reports whether, according to a legacy v1 agent, its engine has no instance of the workload.
func NothingLeft(st *agentv1.WorkloadStatus) bool {
	switch st.GetActualState() {
	case agentv1.ActualState_ACTUAL_STATE_STOPPED, agentv1.ActualState_ACTUAL_STATE_UNKNOWN:
		return SaysGone(st.GetMessage())
	}
	return false
}

// SaysGone reports whether a message of a legacy v1 agent means that the workload to delete does not exist.
func SaysGone(text string) bool {
	text = strings.ToLower(text)
	return strings.Contains(text, "not found") || strings.Contains(text, "no containers")
}
