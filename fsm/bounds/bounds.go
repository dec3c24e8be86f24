// Package bounds checks the fields of commands: ids, amounts, ports and lengths. It does not read
// the state. Package fsm checks a command against the present state.
package bounds

import (
	"fmt"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// Limits of the fields of a command. They keep sums from overflowing and keys unambiguous. The API
// checks requests earlier and can name the field of the request.
const (
	MaxCPU     = 1_000_000_000     // millicores
	MaxMemory  = 1_000_000_000_000 // MiB
	MaxDisk    = 1_000_000_000_000 // GB
	MaxSpec    = 1 << 20           // bytes; RULES limits the spec in a request to 512 KiB before sealing
	maxContent = 256               // bytes
)

// IDRule is the pattern that ValidID checks (RULES, "Ids").
const IDRule = "[A-Za-z0-9][A-Za-z0-9_.-]{0,127}"

// ValidID reports whether id is a valid id of a workload, node or group.
func ValidID(id string) bool {
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

// PutsFault describes the first invalid field of a PutWorkloads command; "" if all are valid.
func PutsFault(puts []*commandv1.WorkloadPut, group string) string {
	if len(puts) == 0 && group == "" {
		return "workloads: at least one is needed"
	}
	if group != "" && !ValidID(group) {
		return fmt.Sprintf("group_of: %q does not match %s", group, IDRule)
	}
	for i, p := range puts {
		id := p.GetId()
		if !ValidID(id) {
			return fmt.Sprintf("workloads[%d].id: %q does not match %s", i, id, IDRule)
		}
		for j := range i {
			if puts[j].GetId() == id {
				return fmt.Sprintf("workloads[%d].id: %q is there twice", i, id)
			}
		}
		if fault := PutFault(p, group); fault != "" {
			return "workload " + id + ": " + fault
		}
	}
	return ""
}

// PutFault describes the first invalid field of one workload; "" if all are valid. It does not
// check the id.
func PutFault(p *commandv1.WorkloadPut, group string) string {
	d := p.GetDemand()
	switch {
	case p.GetDesired() != "Running" && p.GetDesired() != "Stopped":
		return fmt.Sprintf("desired: %q is none of Running, Stopped", p.GetDesired())
	case p.GetContent() == "" || len(p.GetContent()) > maxContent:
		return fmt.Sprintf("content: has %d bytes, must have 1 to %d", len(p.GetContent()), maxContent)
	case len(p.GetSpec()) > MaxSpec:
		return fmt.Sprintf("spec: has %d bytes, at most %d", len(p.GetSpec()), MaxSpec)
	case p.GetMaxAttempts() < 0:
		return fmt.Sprintf("max_attempts: %d is negative", p.GetMaxAttempts())
	case !ValidID(d.GetType()):
		return fmt.Sprintf("demand.type: %q is not a workload type", d.GetType())
	case d.GetGroup() != "" && !ValidID(d.GetGroup()):
		return fmt.Sprintf("demand.group: %q does not match %s", d.GetGroup(), IDRule)
	case group != "" && d.GetGroup() != group:
		return fmt.Sprintf("demand.group: %q, the command is for group %q", d.GetGroup(), group)
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
			return fmt.Sprintf("demand.%s: %d is not in 0..%d", q.field, q.value, q.limit)
		}
	}
	switch d.GetOnLostLease() {
	case "", "keep", "stop":
	default:
		return fmt.Sprintf("demand.on_lost_lease: %q is none of keep, stop", d.GetOnLostLease())
	}
	ports := d.GetHostPorts()
	for i, p := range ports {
		if p.GetPort() < 1 || p.GetPort() > 65535 {
			return fmt.Sprintf("demand.host_ports[%d].port: %d is not in 1..65535", i, p.GetPort())
		}
		if p.GetProtocol() != "tcp" && p.GetProtocol() != "udp" {
			return fmt.Sprintf("demand.host_ports[%d].protocol: %q is none of tcp, udp", i, p.GetProtocol())
		}
		for j := range i {
			if ports[j].GetPort() == p.GetPort() && ports[j].GetProtocol() == p.GetProtocol() {
				return fmt.Sprintf("demand.host_ports[%d]: %d/%s is there twice", i, p.GetPort(), p.GetProtocol())
			}
		}
	}
	for i, c := range d.GetConstraints() {
		switch c.GetOp() {
		case "=", "!=", "in", "not-in", "exists", "not-exists":
		default:
			return fmt.Sprintf("demand.constraints[%d].op: %q is none of =, !=, in, not-in, exists, not-exists", i, c.GetOp())
		}
	}
	return ""
}

// maxPortNames is the largest number of named ports of one workload.
const maxPortNames = 512

// PortNamesFault describes the first invalid named port in puts; "" if all are valid.
func PortNamesFault(puts []*commandv1.WorkloadPut) string {
	for _, put := range puts {
		names := put.GetDemand().GetPortNames()
		if len(names) > maxPortNames {
			return fmt.Sprintf("workload %s: demand.port_names: %d entries, at most %d", put.GetId(), len(names), maxPortNames)
		}
		for i, p := range names {
			if !ValidServiceName(p.GetName()) || p.GetContainerPort() < 1 || p.GetContainerPort() > 65535 || p.GetHostPort() > 65535 ||
				p.GetProtocol() != "tcp" && p.GetProtocol() != "udp" {
				return fmt.Sprintf("workload %s: demand.port_names[%d]: %.64q %d/%.64q is no service name (%s) of a port", put.GetId(), i,
					p.GetName(), p.GetContainerPort(), p.GetProtocol(), ServiceNameRule)
			}
		}
	}
	return ""
}

// ServiceNameRule describes the names that ValidServiceName accepts: those of RFC 6335, 5.1, in
// lower case, because DNS ignores case.
const ServiceNameRule = "1 to 15 of a-z, 0-9 and single hyphens between them, at least one of them a letter"

// ValidServiceName reports whether s is a valid name of a port.
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

// Limits of the facts in a registration.
const (
	maxFacts    = 256  // entries of each list
	maxFactText = 1024 // bytes of each string
)

// OversizedNode describes the first list or text of a registration that exceeds its limit; "" if
// none does.
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
				long = fmt.Sprintf("%s: %.64q has %d bytes, at most %d", field, v, len(v), maxFactText)
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

// NodeFault describes the first invalid field of a RegisterNode command; "" if all are valid.
func NodeFault(b *commandv1.RegisterNode) string {
	switch {
	case !ValidID(b.GetId()):
		return fmt.Sprintf("id: %q does not match %s", b.GetId(), IDRule)
	case b.GetEndpoint() == "":
		return "endpoint: is empty, must be host:port"
	case b.GetCpuMillicores() <= 0 || b.GetCpuMillicores() > MaxCPU:
		return fmt.Sprintf("cpu_millicores: %d is not in 1..%d", b.GetCpuMillicores(), MaxCPU)
	case b.GetMemoryMib() <= 0 || b.GetMemoryMib() > MaxMemory:
		return fmt.Sprintf("memory_mib: %d is not in 1..%d", b.GetMemoryMib(), MaxMemory)
	case strings.IndexByte(b.GetEngineId(), 0) >= 0:
		return fmt.Sprintf("engine_id: %q holds a zero byte", b.GetEngineId())
	case b.GetLeaseSeconds() < 0:
		return fmt.Sprintf("lease_seconds: %d is negative", b.GetLeaseSeconds())
	}
	pools := b.GetPools()
	for i, p := range pools {
		if p.GetName() == "" {
			return fmt.Sprintf("pools[%d].name: is empty", i)
		}
		if p.GetTotalGb() < 0 || p.GetTotalGb() > MaxDisk {
			return fmt.Sprintf("pools[%d].total_gb: %d is not in 0..%d", i, p.GetTotalGb(), MaxDisk)
		}
		for j := range i {
			if pools[j].GetName() == p.GetName() {
				return fmt.Sprintf("pools[%d].name: %q is there twice", i, p.GetName())
			}
		}
	}
	return ""
}
