package fsm

import (
	"fmt"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// Limits of what a command may carry. The edge refuses earlier and with a better
// place to point at; these keep sums from overflowing and keys unambiguous.
const (
	MaxCPU     = 1_000_000_000     // millicores
	MaxMemory  = 1_000_000_000_000 // MiB
	MaxDisk    = 1_000_000_000_000 // GB
	maxSpec    = 1 << 20           // bytes; RULES allow the edge 512 KiB before sealing
	maxContent = 256               // bytes
)

// validID is the rule for ids of workloads and nodes (RULES, "Ids"):
// [A-Za-z0-9][A-Za-z0-9_.-]{0,127}.
func validID(id string) bool {
	if len(id) == 0 || len(id) > 128 {
		return false
	}
	for i := 0; i < len(id); i++ {
		c := id[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case i > 0 && (c == '_' || c == '.' || c == '-'):
		default:
			return false
		}
	}
	return true
}

const idRule = "[A-Za-z0-9][A-Za-z0-9_.-]{0,127}"

// checkPuts judges the fields of PutWorkloads before anything is changed.
func checkPuts(puts []*commandv1.WorkloadPut, group string) (Result, bool) {
	if len(puts) == 0 && group == "" {
		return refuse(Invalid, "workloads: at least one is needed"), false
	}
	if group != "" && !validID(group) {
		return refuse(Invalid, "group_of: %q does not match %s", group, idRule), false
	}
	for i, p := range puts {
		id := p.GetId()
		if !validID(id) {
			return refuse(Invalid, "workloads[%d].id: %q does not match %s", i, id, idRule), false
		}
		for j := range i {
			if puts[j].GetId() == id {
				return refuse(Invalid, "workloads[%d].id: %q is there twice", i, id), false
			}
		}
		if res, ok := checkPut(p, group); !ok {
			res.Reason = "workload " + id + ": " + res.Reason
			return res, false
		}
	}
	return Result{}, true
}

func checkPut(p *commandv1.WorkloadPut, group string) (Result, bool) {
	d := p.GetDemand()
	switch desired := Desired(p.GetDesired()); {
	case desired != DesiredRunning && desired != DesiredStopped:
		return refuse(Invalid, "desired: %q is none of Running, Stopped", p.GetDesired()), false
	case p.GetContent() == "" || len(p.GetContent()) > maxContent:
		return refuse(Invalid, "content: has %d bytes, must have 1 to %d", len(p.GetContent()), maxContent), false
	case len(p.GetSpec()) > maxSpec:
		return refuse(Invalid, "spec: has %d bytes, at most %d", len(p.GetSpec()), maxSpec), false
	case p.GetMaxAttempts() < 0:
		return refuse(Invalid, "max_attempts: %d is negative", p.GetMaxAttempts()), false
	case !validID(d.GetType()):
		return refuse(Invalid, "demand.type: %q is not a workload type", d.GetType()), false
	case d.GetGroup() != "" && !validID(d.GetGroup()):
		return refuse(Invalid, "demand.group: %q does not match %s", d.GetGroup(), idRule), false
	case group != "" && d.GetGroup() != group:
		return refuse(Invalid, "demand.group: %q, the command is for group %q", d.GetGroup(), group), false
	}
	for _, q := range [...]struct {
		field string
		value int64
		limit int64
	}{
		{"cpu_millicores", d.GetCpuMillicores(), MaxCPU},
		{"memory_mib", d.GetMemoryMib(), MaxMemory},
		{"disk_gb", d.GetDiskGb(), MaxDisk},
	} {
		if q.value < 0 || q.value > q.limit {
			return refuse(Invalid, "demand.%s: %d is not in 0..%d", q.field, q.value, q.limit), false
		}
	}
	switch d.GetOnLostLease() {
	case "", OnLostLeaseKeep, OnLostLeaseStop:
	default:
		return refuse(Invalid, "demand.on_lost_lease: %q is none of keep, stop", d.GetOnLostLease()), false
	}
	ports := d.GetHostPorts()
	for i, p := range ports {
		if p.GetPort() < 1 || p.GetPort() > 65535 {
			return refuse(Invalid, "demand.host_ports[%d].port: %d is not in 1..65535", i, p.GetPort()), false
		}
		if p.GetProtocol() != "tcp" && p.GetProtocol() != "udp" {
			return refuse(Invalid, "demand.host_ports[%d].protocol: %q is none of tcp, udp", i, p.GetProtocol()), false
		}
		for j := range i {
			if ports[j].GetPort() == p.GetPort() && ports[j].GetProtocol() == p.GetProtocol() {
				return refuse(Invalid, "demand.host_ports[%d]: %d/%s is there twice", i, p.GetPort(), p.GetProtocol()), false
			}
		}
	}
	for i, c := range d.GetConstraints() {
		switch c.GetOp() {
		case "=", "!=", "in", "not-in", "exists", "not-exists":
		default:
			return refuse(Invalid, "demand.constraints[%d].op: %q is none of =, !=, in, not-in, exists, not-exists", i, c.GetOp()), false
		}
	}
	return Result{}, true
}

// maxPortNames bounds the named ports of one workload.
const maxPortNames = 512

// checkPortNames judges what is kept from feature level 6 on.
func (t *Tx) checkPortNames(puts []*commandv1.WorkloadPut) (Result, bool) {
	if t.r.info.FeatureLevel < 6 {
		return Result{}, true
	}
	for _, put := range puts {
		names := put.GetDemand().GetPortNames()
		if len(names) > maxPortNames {
			return refuse(Invalid, "workload %s: demand.port_names: %d entries, at most %d", put.GetId(), len(names), maxPortNames), false
		}
		for i, p := range names {
			if !ValidServiceName(p.GetName()) || p.GetContainerPort() < 1 || p.GetContainerPort() > 65535 || p.GetHostPort() > 65535 ||
				p.GetProtocol() != "tcp" && p.GetProtocol() != "udp" {
				return refuse(Invalid, "workload %s: demand.port_names[%d]: %q %d/%q is no service name (%s) of a port", put.GetId(), i,
					clip(p.GetName()), p.GetContainerPort(), clip(p.GetProtocol()), ServiceNameRule), false
			}
		}
	}
	return Result{}, true
}

// ServiceNameRule is what ValidServiceName holds names to (RFC 6335, 5.1; lower case,
// because DNS does not tell it from upper case).
const ServiceNameRule = "1 to 15 of a-z, 0-9 and single hyphens between them, at least one of them a letter"

// ValidServiceName reports whether a port may have that name.
func ValidServiceName(s string) bool {
	if s == "" || len(s) > 15 || s[0] == '-' || s[len(s)-1] == '-' || strings.Contains(s, "--") {
		return false
	}
	letter := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z':
			letter = true
		case c >= '0' && c <= '9', c == '-':
		default:
			return false
		}
	}
	return letter
}

// Limits of what a node may say of itself.
const (
	maxFacts    = 256  // entries of each list
	maxFactText = 1024 // bytes of each string
)

// OversizedNode names what a registration has too much of, "" for nothing. Commands are
// judged by it from feature level 6 on; the edge asks before it writes one.
func OversizedNode(b *commandv1.RegisterNode) string {
	for _, l := range [...]struct {
		field   string
		entries int
	}{
		{"pools", len(b.GetPools())}, {"types", len(b.GetTypes())}, {"storage_drivers", len(b.GetStorageDrivers())},
		{"labels", len(b.GetLabels())}, {"taints", len(b.GetTaints())},
	} {
		if l.entries > maxFacts {
			return fmt.Sprintf("%s: has %d entries, at most %d", l.field, l.entries, maxFacts)
		}
	}
	long := ""
	text := func(field string, values ...string) {
		for _, v := range values {
			if len(v) > maxFactText && long == "" {
				long = fmt.Sprintf("%s: %q has %d bytes, at most %d", field, clip(v), len(v), maxFactText)
			}
		}
	}
	text("endpoint", b.GetEndpoint())
	text("engine_id", b.GetEngineId())
	text("agent_version", b.GetAgentVersion())
	text("instance_id", b.GetInstanceId())
	text("timestamp", b.GetTimestamp())
	text("types", b.GetTypes()...)
	text("storage_drivers", b.GetStorageDrivers()...)
	for _, p := range b.GetPools() {
		text("pools", p.GetName(), p.GetType())
	}
	for _, l := range b.GetLabels() {
		text("labels", l.GetKey(), l.GetValue())
	}
	for _, t := range b.GetTaints() {
		text("taints", t.GetKey(), t.GetValue(), t.GetEffect())
	}
	return long
}

// checkNode judges the fields of RegisterNode.
func checkNode(b *commandv1.RegisterNode) (Result, bool) {
	switch {
	case !validID(b.GetId()):
		return refuse(Invalid, "id: %q does not match %s", b.GetId(), idRule), false
	case b.GetEndpoint() == "":
		return refuse(Invalid, "endpoint: is empty, must be host:port"), false
	case b.GetCpuMillicores() <= 0 || b.GetCpuMillicores() > MaxCPU:
		return refuse(Invalid, "cpu_millicores: %d is not in 1..%d", b.GetCpuMillicores(), MaxCPU), false
	case b.GetMemoryMib() <= 0 || b.GetMemoryMib() > MaxMemory:
		return refuse(Invalid, "memory_mib: %d is not in 1..%d", b.GetMemoryMib(), MaxMemory), false
	case strings.IndexByte(b.GetEngineId(), 0) >= 0:
		return refuse(Invalid, "engine_id: %q holds a zero byte", b.GetEngineId()), false
	case b.GetLeaseSeconds() < 0:
		return refuse(Invalid, "lease_seconds: %d is negative", b.GetLeaseSeconds()), false
	}
	pools := b.GetPools()
	for i, p := range pools {
		if p.GetName() == "" {
			return refuse(Invalid, "pools[%d].name: is empty", i), false
		}
		if p.GetTotalGb() < 0 || p.GetTotalGb() > MaxDisk {
			return refuse(Invalid, "pools[%d].total_gb: %d is not in 0..%d", i, p.GetTotalGb(), MaxDisk), false
		}
		for j := range i {
			if pools[j].GetName() == p.GetName() {
				return refuse(Invalid, "pools[%d].name: %q is there twice", i, p.GetName()), false
			}
		}
	}
	return Result{}, true
}
