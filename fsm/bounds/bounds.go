// Package bounds checks the fields of commands: ids, sizes of resources, ports and lengths of texts. It does
// not read the state. Package fsm checks a command against the present state.
package bounds

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// Limits of the fields of a command. Within them no sum of resources overflows, and no two
// different records have the same key. The API checks requests earlier and can name the field of
// the request.
const (
	MaxCPU     = 1_000_000_000     // millicores
	MaxMemory  = 1_000_000_000_000 // MiB
	MaxDisk    = 1_000_000_000_000 // GB
	MaxSpec    = 1 << 20           // bytes; docs/RULES.md limits the specification in a request to 512 KiB before it is sealed
	maxContent = 256               // bytes

	MaxLocalData = 64  // maximum number of local data entries in a demand
	MaxDataName  = 160 // bytes
)

// IDRule is the pattern that ValidID checks (docs/RULES.md, "Ids").
const IDRule = "[A-Za-z0-9][A-Za-z0-9_.-]{0,127}"

// MaxDrainDeadline is the longest time for which running jobs may stay on a draining node, in seconds.
const MaxDrainDeadline = 30 * 86400

// MaxPriority is the highest priority of a workload; the lowest is -MaxPriority.
const MaxPriority = 1000

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

// PutsFault describes the first invalid field of a PutWorkloads command; "" if every field is valid.
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

// SurgeFault checks the surge members of a PutWorkloads: extra members that run during an update which starts new
// members first. It describes the first invalid surge member, or the first other workload that is marked as one; ""
// if there is neither.
func SurgeFault(b *commandv1.PutWorkloads) string {
	for _, p := range b.GetWorkloads() {
		if p.GetDemand().GetSurge() {
			return "workload " + p.GetId() + ": demand.surge: must be set only in the list surge"
		}
	}
	puts := b.GetSurge()
	switch {
	case len(puts) == 0:
		return ""
	case b.GetGroupOf() == "" || !b.GetUpdate().GetStartFirst() || len(b.GetWorkloads()) == 0:
		return "surge: is only for the update of a group with start_first"
	case len(puts) > MaxCount:
		return fmt.Sprintf("surge: has %d members, at most %d", len(puts), MaxCount)
	}
	if fault := PutsFault(puts, b.GetGroupOf()); fault != "" {
		return "surge: " + fault
	}
	for _, p := range puts {
		d := p.GetDemand()
		switch {
		case !d.GetSurge() || p.GetDesired() != "Running":
			return "surge: workload " + p.GetId() + ": demand.surge must be set, and desired must be Running"
		case d.GetExclusive() || len(d.GetLocalData()) > 0 || len(d.GetMacAddresses()) > 0 || d.GetJob() != nil || d.GetTemplate() != nil:
			return "surge: workload " + p.GetId() + ": start_first is not for workloads that are exclusive, have local data or fixed addresses, or are jobs or templates"
		}
		for _, own := range b.GetWorkloads() {
			if own.GetId() == p.GetId() {
				return "surge: workload " + p.GetId() + ": is there twice"
			}
		}
	}
	return ""
}

// MaxBundle is the maximum size of a sealed bundle in bytes. An archive of 512 KiB, which sealing
// makes larger, is below this size. A bundle of this size fits into a command and into a record of
// the mirror.
const MaxBundle = 768 << 10

// BundleFault describes why a bundle cannot be stored; "" if it can.
func BundleFault(digest string, data []byte) string {
	switch {
	case len(digest) != 64 || strings.Trim(digest, "0123456789abcdef") != "":
		return fmt.Sprintf("bundles: %.64q is not a digest of 64 hex digits", digest)
	case len(data) == 0 || len(data) > MaxBundle:
		return fmt.Sprintf("bundles: %s has %d bytes, must have 1 to %d", digest, len(data), MaxBundle)
	}
	return ""
}

// PutFault describes the first invalid field of one workload in a PutWorkloads; "" if every field
// is valid. It does not check the workload's id.
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
	case group != "" && p.GetIfRevision() != "":
		return fmt.Sprintf("if_revision: %.64q must be empty for the members of a group, because each member has its own revision number", p.GetIfRevision())
	case group == "" && d.GetSurge():
		return "demand.surge: is only for the update of a group"
	case group != "" && d.GetGroup() != group:
		return fmt.Sprintf("demand.group: is %q, but the command is for group %q", d.GetGroup(), group)
	}
	if fault := objectsFault(p); fault != "" {
		return fault
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
	if fault := devicesFault("demand.devices", d.GetDevices(), MaxDevices, 0); fault != "" {
		return fault
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
		if a := p.GetAddress(); a != "" {
			if ip, err := netip.ParseAddr(a); err != nil || ip.IsUnspecified() || ip.String() != a {
				return fmt.Sprintf("demand.host_ports[%d].address: %q is not the address of one host", i, a)
			}
		}
		for j := range i {
			if ports[j].GetPort() == p.GetPort() && ports[j].GetProtocol() == p.GetProtocol() && ports[j].GetAddress() == p.GetAddress() {
				return fmt.Sprintf("demand.host_ports[%d]: %d/%s is there twice", i, p.GetPort(), p.GetProtocol())
			}
		}
	}
	if fault := asksFault(d.GetAsks()); fault != "" {
		return fault
	}
	if n := len(d.GetLocalData()); n > MaxLocalData {
		return fmt.Sprintf("demand.local_data: has %d entries, at most %d", n, MaxLocalData)
	}
	for i, l := range d.GetLocalData() {
		if n := len(l.GetName()); n == 0 || n > MaxDataName {
			return fmt.Sprintf("demand.local_data[%d].name: has %d bytes, must have 1 to %d", i, n, MaxDataName)
		}
		if p := l.GetPool(); p != "" && !ValidID(p) {
			return fmt.Sprintf("demand.local_data[%d].pool: %.64q does not match %s", i, p, IDRule)
		}
	}
	if fault := macsFault(d.GetMacAddresses()); fault != "" {
		return fault
	}
	if fault := ingressFault(d); fault != "" {
		return fault
	}
	if d.GetJob() != nil && len(d.GetLocalData()) > 0 {
		return "demand.local_data: must be empty for a job, because a job leaves its node when it ends"
	}
	if fault := jobFault(d.GetJob()); fault != "" {
		return fault
	}
	if fault := templateFault(p, group); fault != "" {
		return fault
	}
	for i, c := range d.GetConstraints() {
		if !validOp(c.GetOp()) {
			return fmt.Sprintf("demand.constraints[%d].op: %q is none of =, !=, in, not-in, exists, not-exists", i, c.GetOp())
		}
	}
	if fault := autoscaleFault(d); fault != "" {
		return fault
	}
	if why := rescheduleFault(d.GetReschedule()); why != "" {
		return why
	}
	if len(d.GetNetworks()) > MaxNetworksOf {
		return fmt.Sprintf("demand.networks: has %d entries, at most %d", len(d.GetNetworks()), MaxNetworksOf)
	}
	for i, n := range d.GetNetworks() {
		if !ValidID(n) || slices.Contains(d.GetNetworks()[:i], n) {
			return fmt.Sprintf("demand.networks[%d]: %.64q must be listed once and match %s", i, n, IDRule)
		}
	}
	if fault := volumesFault(d.GetVolumes()); fault != "" {
		return fault
	}
	return placementFault(d)
}

// VolumeDrivers lists the drivers of managed volumes.
var VolumeDrivers = [...]string{"local", "nfs", "ceph-rbd"}

// MaxVolumesOf is the maximum number of managed volumes of a workload.
const MaxVolumesOf = 1000

// volumesFault describes the first invalid volume of a demand; "" if all are valid.
func volumesFault(list []*commandv1.VolumeUse) string {
	if len(list) > MaxVolumesOf {
		return fmt.Sprintf("demand.volumes: has %d entries, at most %d", len(list), MaxVolumesOf)
	}
	for i, v := range list {
		switch {
		case !ValidID(v.GetName()) || i > 0 && v.GetName() <= list[i-1].GetName():
			return fmt.Sprintf("demand.volumes[%d].name: %.64q must match %s and follow the name before it", i, v.GetName(), IDRule)
		case !slices.Contains(VolumeDrivers[:], v.GetDriver()):
			return fmt.Sprintf("demand.volumes[%d].driver: %.64q is none of %s", i, v.GetDriver(), strings.Join(VolumeDrivers[:], ", "))
		case v.GetSizeGb() < 0 || v.GetSizeGb() > MaxDisk:
			return fmt.Sprintf("demand.volumes[%d].size_gb: %d is not in 0..%d", i, v.GetSizeGb(), int64(MaxDisk))
		case v.GetPool() != "" && (!ValidID(v.GetPool()) || v.GetDriver() != "local"):
			return fmt.Sprintf("demand.volumes[%d].pool: %.64q must match %s, and the driver must be local", i, v.GetPool(), IDRule)
		}
	}
	return ""
}

// MaxNetworksOf is the maximum number of networks of a workload.
const MaxNetworksOf = 8

// MaxCount is the maximum number of members of a group (the field count of a specification).
const MaxCount = 1000

// MaxScaleCPU is the largest CPU target of an autoscaler in percent of the request. A container
// engine caps the CPU use of a workload at its request (100%). If the target were close to that
// cap, the measured use could never be clearly above the target, and the group would not grow.
const MaxScaleCPU = 80

// autoscaleFault describes the first invalid setting of the autoscaler; "" if all are valid.
func autoscaleFault(d *commandv1.Demand) string {
	switch a := d.GetAutoscale(); {
	case a == nil:
	case a.GetMin() < 1 || a.GetMin() > MaxCount:
		return fmt.Sprintf("demand.autoscale.min: %d is not in 1..%d", a.GetMin(), MaxCount)
	case a.GetMax() < a.GetMin() || a.GetMax() > MaxCount:
		return fmt.Sprintf("demand.autoscale.max: %d is not in min, %d, to %d", a.GetMax(), a.GetMin(), MaxCount)
	case a.GetCpu() < 1 || a.GetCpu() > MaxScaleCPU:
		return fmt.Sprintf("demand.autoscale.cpu: %d is not in 1..%d percent of cpu_millicores, which caps the CPU use", a.GetCpu(), MaxScaleCPU)
	case d.GetCpuMillicores() == 0:
		return "demand.autoscale: needs cpu_millicores, because autoscale.cpu is a percentage of it"
	case d.GetGroup() == "" || d.GetJob() != nil || d.GetTemplate() != nil || d.GetType() != "container":
		return "demand.autoscale: is only for the members of a group of containers that are services"
	case len(d.GetLocalData()) > 0:
		return "demand.autoscale: a workload with local data is not autoscaled, because a member that is removed loses its data"
	}
	return ""
}

func validOp(op string) bool {
	switch op {
	case "=", "!=", "in", "not-in", "exists", "not-exists":
		return true
	}
	return false
}

// MaxIngress is the maximum number of ports in ingress mode of one workload.
const MaxIngress = 64

func ingressFault(d *commandv1.Demand) string {
	list := d.GetIngress()
	switch {
	case len(list) == 0:
		return ""
	case len(list) > MaxIngress:
		return fmt.Sprintf("demand.ingress: has %d entries, at most %d", len(list), MaxIngress)
	case len(d.GetNetworks()) == 0:
		return "demand.ingress: ports in ingress mode need a network"
	case d.GetJob() != nil:
		return "demand.ingress: a job has no ports in ingress mode"
	}
	for i, p := range list {
		if p.GetPort() < 1 || p.GetPort() > 65535 || p.GetTarget() < 1 || p.GetTarget() > 65535 || p.GetProtocol() != "tcp" && p.GetProtocol() != "udp" {
			return fmt.Sprintf("demand.ingress[%d]: %d/%.64q to %d is not a port", i, p.GetPort(), p.GetProtocol(), p.GetTarget())
		}
		if i > 0 && (list[i-1].GetPort() > p.GetPort() || list[i-1].GetPort() == p.GetPort() && list[i-1].GetProtocol() >= p.GetProtocol()) {
			return fmt.Sprintf("demand.ingress[%d]: %d/%s must be after %d/%s", i, p.GetPort(), p.GetProtocol(), list[i-1].GetPort(), list[i-1].GetProtocol())
		}
	}
	return ""
}

// MaxMACs is the maximum number of Ethernet addresses that one workload may have.
const MaxMACs = 64

var macPattern = regexp.MustCompile(`^[0-9a-f]{2}(:[0-9a-f]{2}){5}$`)

func macsFault(macs []string) string {
	if len(macs) > MaxMACs {
		return fmt.Sprintf("demand.mac_addresses: has %d entries, at most %d", len(macs), MaxMACs)
	}
	for i, s := range macs {
		switch {
		case !macPattern.MatchString(s):
			return fmt.Sprintf("demand.mac_addresses[%d]: %.64q is not like 52:54:00:12:34:56", i, s)
		case strings.ContainsRune("13579bdf", rune(s[1])) || s == "00:00:00:00:00:00": // exclude multicast addresses: their second digit is odd
			return fmt.Sprintf("demand.mac_addresses[%d]: %s is not the address of one machine", i, s)
		case i > 0 && macs[i-1] >= s:
			return fmt.Sprintf("demand.mac_addresses[%d]: %s must be after %s", i, s, macs[i-1])
		}
	}
	return ""
}

// Limits of the settings of a job.
const (
	MaxSuccessCodes = 32
	MaxJobSeconds   = 366 * 24 * 3600 // maximum of deadline and of ttl, in seconds
	MaxParallelism  = 1_000_000
)

// jobFault describes the first invalid setting of a job; "" if every setting is valid.
func jobFault(j *commandv1.Job) string {
	const most = MaxJobSeconds * int64(1e9)
	switch {
	case j.GetDeadline() < 0 || j.GetDeadline() > most:
		return fmt.Sprintf("demand.job.deadline: %d ns is not in 0..%d", j.GetDeadline(), most)
	case j.GetTtl() < 0 || j.GetTtl() > most:
		return fmt.Sprintf("demand.job.ttl: %d ns is not in 0..%d", j.GetTtl(), most)
	case j.GetParallelism() > MaxParallelism:
		return fmt.Sprintf("demand.job.parallelism: %d is more than %d", j.GetParallelism(), MaxParallelism)
	case len(j.GetSuccessCodes()) > MaxSuccessCodes:
		return fmt.Sprintf("demand.job.success_codes: has %d entries, at most %d", len(j.GetSuccessCodes()), MaxSuccessCodes)
	case !slices.IsSorted(j.GetSuccessCodes()):
		return fmt.Sprintf("demand.job.success_codes: %v is not sorted", j.GetSuccessCodes())
	}
	return ""
}

// Limits of templates and of their runs.
const (
	MaxRunKey     = 128  // bytes
	MaxKeptRuns   = 1000 // maximum of keep_succeeded and of keep_failed: numbers of finished runs that a template keeps
	MaxSchedule   = 256  // bytes
	maxZone       = 64   // bytes
	MaxTemplateID = 112  // bytes; the ids of runs add at most 16
)

// templateFault describes the first invalid setting of a template, from which the planner makes workloads (a cron
// job, a parameterized job or a system workload); "" if all are valid.
func templateFault(p *commandv1.WorkloadPut, group string) string {
	m := p.GetDemand().GetTemplate()
	if m == nil {
		return ""
	}
	c := m.GetCron()
	switch {
	case m.GetKind() != "cron" && m.GetKind() != "dispatch" && m.GetKind() != "system":
		return fmt.Sprintf("demand.template.kind: %.64q is none of cron, dispatch, system", m.GetKind())
	case (m.GetKind() == "cron") != (c != nil):
		return fmt.Sprintf("demand.template.cron: must be set with the kind cron and with no other kind, but the kind is %s", m.GetKind())
	case p.GetDemand().GetJob() == nil && m.GetKind() != "system":
		return "demand.template: must have the settings of a job"
	case group != "":
		return "demand.template: is not for members of a group"
	case len(p.GetId()) > MaxTemplateID:
		return fmt.Sprintf("id: %q may have at most %d characters, because the ids of its runs are longer", p.GetId(), MaxTemplateID)
	case c == nil:
		return ""
	case c.GetSchedule() == "" || len(c.GetSchedule()) > MaxSchedule:
		return fmt.Sprintf("demand.template.cron.schedule: has %d bytes, must have 1 to %d", len(c.GetSchedule()), MaxSchedule)
	case len(c.GetTimeZone()) > maxZone:
		return fmt.Sprintf("demand.template.cron.time_zone: has %d bytes, at most %d", len(c.GetTimeZone()), maxZone)
	case c.GetConcurrency() != "allow" && c.GetConcurrency() != "forbid" && c.GetConcurrency() != "replace":
		return fmt.Sprintf("demand.template.cron.concurrency: %.64q is none of allow, forbid, replace", c.GetConcurrency())
	case c.GetStartingDeadline() < 0 || c.GetStartingDeadline() > MaxJobSeconds*int64(1e9):
		return fmt.Sprintf("demand.template.cron.starting_deadline: %d ns is not in 0..%d", c.GetStartingDeadline(), MaxJobSeconds*int64(1e9))
	case c.GetKeepSucceeded() > MaxKeptRuns || c.GetKeepFailed() > MaxKeptRuns:
		return fmt.Sprintf("demand.template.cron: keeps %d and %d runs, at most %d each", c.GetKeepSucceeded(), c.GetKeepFailed(), MaxKeptRuns)
	}
	return ""
}

// Limits of the asks of one workload: the privileges that its specification asks for.
const (
	maxAsks    = 4096
	maxAskText = 4096 // maximum length of each text of an ask, in bytes
)

func asksFault(asks []*commandv1.Ask) string {
	if len(asks) > maxAsks {
		return fmt.Sprintf("demand.asks: %d entries, at most %d", len(asks), maxAsks)
	}
	for i, a := range asks {
		if a.GetRule() == "" || len(a.GetRule()) > 64 || len(a.GetValue()) > maxAskText || len(a.GetField()) > maxAskText {
			return fmt.Sprintf("demand.asks[%d]: rule %.64q must have 1 to 64 bytes; value and field must have at most %d bytes", i, a.GetRule(), maxAskText)
		}
	}
	return ""
}

// maxPortNames is the largest number of named ports of one workload.
const maxPortNames = 512

// PortNamesFault describes the first invalid named port in puts; "" if every one is valid.
func PortNamesFault(puts []*commandv1.WorkloadPut) string {
	for _, put := range puts {
		names := put.GetDemand().GetPortNames()
		if len(names) > maxPortNames {
			return fmt.Sprintf("workload %s: demand.port_names: %d entries, at most %d", put.GetId(), len(names), maxPortNames)
		}
		for i, p := range names {
			if !ValidServiceName(p.GetName()) || p.GetContainerPort() < 1 || p.GetContainerPort() > 65535 || p.GetHostPort() > 65535 ||
				p.GetProtocol() != "tcp" && p.GetProtocol() != "udp" {
				return fmt.Sprintf("workload %s: demand.port_names[%d]: name %.64q, container port %d, protocol %.64q: the name must be %s; the ports at most 65535; the protocol tcp or udp", put.GetId(), i,
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

// Limits of the facts that an agent sends when it registers its node.
const (
	maxFacts    = 256  // maximum number of entries in each list of a registration
	maxFactText = 1024 // maximum length of each string of a registration, in bytes
)

// OversizedNode describes the first list or text in a node's registration that exceeds its
// limit; "" if none does.
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
	text("networking", b.GetNetworking().GetAddress(), b.GetNetworking().GetProblem(), b.GetNetworking().GetHeldPorts(), b.GetNetworking().GetForbiddenPorts())
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

// hostAddress reports whether s is the address of one host, in its shortest form and without a zone.
func hostAddress(s string) bool {
	a, err := netip.ParseAddr(s)
	return err == nil && a.Zone() == "" && !a.IsUnspecified() && !a.IsMulticast() && a.String() == s
}

// NodeFault describes the first invalid field of a RegisterNode command; "" if every field is valid.
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
	case b.GetNetworking().GetAddress() != "" && !hostAddress(b.GetNetworking().GetAddress()):
		return fmt.Sprintf("networking.address: %.64q is not the address of one host", b.GetNetworking().GetAddress())
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
	return devicesFault("devices", b.GetDevices(), maxFacts, 1)
}

// DevicesOfOne is the maximum number of devices of one kind, on a node or of a workload.
const DevicesOfOne = 4096

// MaxDevices is the maximum number of kinds of devices that a workload reserves.
const MaxDevices = 16

// DeviceRule describes the names of devices.
const DeviceRule = "NAME or VENDOR/CLASS of at most 63 letters, digits, '.', '_' and '-' each, such as nvidia.com/gpu"

// ValidDevice reports whether the name of a kind of devices follows DeviceRule.
func ValidDevice(name string) bool {
	vendor, class, two := strings.Cut(name, "/")
	return ValidID(vendor) && len(vendor) <= 63 && (!two || ValidID(class) && len(class) <= 63)
}

func devicesFault(field string, list []*commandv1.DeviceCount, most int, least int64) string {
	if n := len(list); n > most {
		return fmt.Sprintf("%s: has %d entries, at most %d", field, n, most)
	}
	for i, d := range list {
		switch {
		case !ValidDevice(d.GetName()):
			return fmt.Sprintf("%s[%d].name: %.64q is not %s", field, i, d.GetName(), DeviceRule)
		case d.GetCount() < least || d.GetCount() > DevicesOfOne:
			return fmt.Sprintf("%s[%d].count: %d is not in %d..%d", field, i, d.GetCount(), least, DevicesOfOne)
		case slices.ContainsFunc(list[:i], func(o *commandv1.DeviceCount) bool { return o.GetName() == d.GetName() }):
			return fmt.Sprintf("%s[%d].name: %s is there twice", field, i, d.GetName())
		}
	}
	return ""
}

// maxObjects is the maximum number of secrets and configs that a workload uses.
const maxObjects = 64

// Limits of the length and the characters of a signal, which is given by its name or number.
const (
	maxSignal   = 16
	signalBytes = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-"
)

// objectsFault describes the first invalid reference of a workload to secrets and configs; "" if there is
// none.
func objectsFault(p *commandv1.WorkloadPut) string {
	list := p.GetObjects()
	if len(list) > maxObjects {
		return fmt.Sprintf("objects: has %d entries, at most %d", len(list), maxObjects)
	}
	for i, u := range list {
		switch {
		case u.GetKind() != "secret" && u.GetKind() != "config":
			return fmt.Sprintf("objects[%d].kind: %.64q is not secret or config", i, u.GetKind())
		case !ValidID(u.GetName()):
			return fmt.Sprintf("objects[%d].name: %.64q does not match %s", i, u.GetName(), IDRule)
		case u.GetKeep() && u.GetVersion() != 0:
			return fmt.Sprintf("objects[%d].version: is %d, but must be 0 with keep", i, u.GetVersion())
		case u.GetSignal() != "" && (!u.GetKeep() || len(u.GetSignal()) > maxSignal || strings.Trim(u.GetSignal(), signalBytes) != ""):
			return fmt.Sprintf("objects[%d].signal: %.64q must be a signal such as SIGHUP, and needs keep", i, u.GetSignal())
		case i > 0 && (list[i-1].GetKind() > u.GetKind() || list[i-1].GetKind() == u.GetKind() && list[i-1].GetName() >= u.GetName()):
			return fmt.Sprintf("objects[%d]: the list must be sorted by kind and name, without duplicates", i)
		}
	}
	if len(list) == 0 && p.GetSpecContent() != "" {
		return "spec_content: is only for a workload with objects"
	}
	if len(p.GetSpecContent()) > maxContent {
		return fmt.Sprintf("spec_content: has %d bytes, at most %d", len(p.GetSpecContent()), maxContent)
	}
	return ""
}
