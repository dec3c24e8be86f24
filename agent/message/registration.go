package message

import (
	"maps"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/session/heartbeat"
	"github.com/persys/compute/agent/spec"
	controlv1 "github.com/persys/compute/api/control/v1"
)

// protocol is the version of the agent's protocol with the schedulers. Version 1 has epochs,
// generations and lease lengths.
const protocol = 1

// Registration returns the fields of a registration that follow from the state of the core: the agent's identity, its
// engines and its fencer. The caller adds the address, the resources and the settings of the machine.
func Registration(s core.State) *controlv1.RegisterNodeRequest {
	fencing, bound := s.SelfFencing()
	var types, all []string
	for _, e := range s.Engines() {
		all = append(all, string(e.Kind))
		if e.Healthy {
			types = append(types, string(e.Kind))
		}
	}
	// Schedulers take an empty list of kinds as that of an old agent, which runs every kind except VMs. So the
	// list is never empty. If no engine is healthy now, the list has all kinds, and the status says why the
	// engines fail. If there is no engine at all, the list has "none", which matches no workload.
	switch {
	case len(all) == 0:
		types = []string{"none"}
	case len(types) == 0:
		types = all
	}
	devices := map[string]int64{}
	maps.Copy(devices, s.Devices())
	return &controlv1.RegisterNodeRequest{
		NodeId: s.Node,
		Capabilities: &controlv1.NodeCapabilities{
			SupportedWorkloadTypes: types, EngineId: s.EngineID(), Protocol: protocol, Devices: devices,
			SelfFencing: fencing, FenceBoundSeconds: uint32(math.Ceil(bound.Seconds())),
		},
		ClusterId: s.Meta.Epoch.ClusterID, Shard: s.Meta.Epoch.Shard, InstanceId: s.Meta.InstanceID,
	}
}

// RegistrationAnswer converts a scheduler's answer to a registration that was sent at the time sent.
func RegistrationAnswer(sent time.Time, m *controlv1.RegisterNodeResponse) heartbeat.Answer {
	return answer(sent, m)
}

// HeartbeatAnswer converts a scheduler's answer to a heartbeat that was sent at the time sent.
func HeartbeatAnswer(sent time.Time, m *controlv1.HeartbeatResponse) heartbeat.Answer {
	a := answer(sent, m)
	a.SendFull = m.GetSendFull()
	return a
}

// answer converts the fields that both answers have. Our schedulers send the length of a lease; a legacy v1 scheduler
// sends its end.
func answer(sent time.Time, m interface {
	GetEpoch() *controlv1.Epoch
	GetLeaseSeconds() int32
	GetLeaseExpiresAt() *timestamppb.Timestamp
	GetHeartbeatIntervalSeconds() int32
}) heartbeat.Answer {
	a := heartbeat.Answer{
		Sent: sent, Lease: time.Duration(m.GetLeaseSeconds()) * time.Second,
		Interval: time.Duration(m.GetHeartbeatIntervalSeconds()) * time.Second,
	}
	if e := spec.Epoch(m.GetEpoch()); e != nil {
		a.Epoch = *e
	}
	if end := m.GetLeaseExpiresAt(); end.IsValid() {
		a.LeaseEnd = end.AsTime()
	}
	return a
}
