package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// The rules. Each Ask (a thing that a workload requests from its machine) is judged by one rule. A rule
// has the name of the field of Policy that decides it, except where a comment names another field.
const (
	RulePrivileged   = "privileged"
	RuleHostPath     = "host_paths"
	RuleHostPathRead = "host_paths_read" // a read-only mount of a path of the host; the field host_paths decides
	RuleEngineSocket = "engine_socket"
	RuleCapability   = "capabilities"
	RuleDevice       = "devices"
	RuleHostNS       = "host_namespaces"
	RuleSecurity     = "security_options"
	RuleUser         = "users"
	RulePort         = "ports" // value "address|port/protocol"; the fields ports and addresses decide
	RuleAddress      = "addresses"
	RuleImage        = "images"
	RuleDigest       = "image_digest"
	RuleSigned       = "image_keys" // an image without a digest, or without a signature by one of the keys
	RuleVolume       = "volumes"
	RuleNetwork      = "networks"
	RuleDisk         = "disks"
	RuleLacks        = "requires" // value: the entries of Policy.Requires that the container does not have, separated by commas
	RulePids         = "max_pids"
	RuleLimits       = "limits" // the limits of a service of a stack, see LimitsValue; the fields max_cpu_millicores and max_memory_mib decide
	RuleKind         = "kinds"
	RuleProtected    = "protected_paths" // used only in violations that package agent/driver reports: the ask reaches files of the agent or of a scheduler
	RuleUnreadStack  = "unread_stack"    // a stack that schedulers cannot read, because it is in a Git repository; the field privileged decides
)

// LacksUser is an entry in the value of an Ask with the rule "requires", which lists the
// protections that a container lacks. It means that the specification names no user, so the
// container runs as the user in its image.
const LacksUser = "user_unset"

// NonRoot is an entry of Policy.Users that allows every user except root.
const NonRoot = "non-root"

// Unlimited is the value of an Ask with the rule "max_pids" (limit of processes) if the
// specification sets no limit.
const Unlimited = "-1"

// Ask is one thing that a workload requests from the machine that runs it, such as a host path, a
// port or a capability.
type Ask struct {
	Rule  string
	Value string
	Field string // field of the specification that makes the ask, for instance container.volumes[0].host_path
}

// Workload holds the properties of a workload that a policy judges.
type Workload struct {
	Kind string
	// The CPU in millicores, the memory in MiB and the disk in GB that the workload reserves.
	CPU, Memory, Disk int64
	Asks              []Ask
}

// Violation is one thing that a workload requests from its machine and that a policy does not
// allow.
type Violation struct {
	Policy string // name of the violated policy; "" = a rule that the agent applies by itself
	Rule   string
	Field  string
	Value  string
	Allows string // text that lists the values that the policy allows
}

// String returns one line with the field, the value, the policy and the rule.
func (v Violation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: ", v.Field)
	if v.Value != "" {
		fmt.Fprintf(&b, "%q ", clip(v.Value))
	}
	by := "on this node"
	if v.Policy != "" {
		by = "by policy " + strconv.Quote(v.Policy)
	}
	fmt.Fprintf(&b, "is not allowed %s (rule %s): %s", by, v.Rule, v.Allows)
	return b.String()
}

// Text joins violations to a text with one violation per line.
func Text(list []Violation) string {
	lines := make([]string, len(list))
	for i, v := range list {
		lines[i] = v.String()
	}
	return strings.Join(lines, "\n")
}

// Next returns the advice for a user whose workload was refused in this namespace.
func Next(namespace string) string {
	return "change the workload, or ask an admin for another policy: persysctl policy bind POLICY --namespace " + namespace
}

// MaxViolations is the largest number of violations that Judge returns.
const MaxViolations = 20

// Judge returns how workload w violates policy p, in the order of w.Asks (the things that w
// requests).
func Judge(p *Policy, w Workload) []Violation {
	j := judge{p: p}
	if !matches(p.Kinds, w.Kind) {
		j.add(RuleKind, "type", w.Kind, listed(p.Kinds))
	}
	for _, a := range w.Asks {
		if len(j.out) >= MaxViolations {
			return j.out
		}
		j.ask(a)
	}
	for _, l := range j.limited() {
		if l.most > 0 && *l.sum > l.most && len(j.out) < MaxViolations && !slices.ContainsFunc(j.out, func(v Violation) bool { return v.Rule == l.rule }) {
			j.add(l.rule, "services", strconv.FormatInt(*l.sum, 10), "all containers of the stack together may have at most "+strconv.FormatInt(l.most, 10))
		}
	}
	for _, l := range [...]struct {
		rule, field string
		most, asked int64
	}{
		{"max_cpu_millicores", "resources.cpu", p.MaxCPU, w.CPU},
		{"max_memory_mib", "resources.memory", p.MaxMemory, w.Memory},
		{"max_disk_gb", "resources.disk", p.MaxDisk, w.Disk},
	} {
		switch {
		case l.most == 0 || len(j.out) >= MaxViolations:
		case l.asked > l.most:
			j.add(l.rule, l.field, strconv.FormatInt(l.asked, 10), "at most "+strconv.FormatInt(l.most, 10))
		case l.asked == 0 && l.rule != "max_disk_gb":
			j.add(l.rule, l.field, "", "it must be given, at most "+strconv.FormatInt(l.most, 10))
		}
	}
	return j.out
}

type judge struct {
	p           *Policy
	out         []Violation
	cpu, memory int64 // sums of the limits of a stack's containers, in millicores and MiB
}

// limited returns the maxima of a policy that apply to the limits of a stack's services, with the sums of these limits.
func (j *judge) limited() [2]struct {
	rule, keys string
	most       int64
	sum        *int64
} {
	return [...]struct {
		rule, keys string
		most       int64
		sum        *int64
	}{
		{"max_cpu_millicores", "a CPU limit (cpus)", j.p.MaxCPU, &j.cpu},
		{"max_memory_mib", "a memory limit (mem_limit)", j.p.MaxMemory, &j.memory},
	}
}

// LimitsValue returns the value of an Ask for the limits of a service: the CPU limit of one container in
// millicores, its memory limit in MiB (0 = no limit), and the number of containers of the service.
func LimitsValue(cpu, memory int64, containers int) string {
	return fmt.Sprintf("%d|%d|%d", cpu, memory, containers)
}

// isPreStart reports whether a field is a pre_start hook of a service. Compose runs the hook in a container of its own,
// which has neither limits nor dropped capabilities. A specification cannot change that.
func isPreStart(field string) bool { return strings.Contains(field, ".pre_start[") }

// preStartLacks returns the text that a pre_start hook lacks a limit or a protection which the policy requires.
func preStartLacks(what string) string {
	return "the policy requires " + what + ", which a pre_start hook cannot have: write a service with the command of the hook instead, " +
		"and start the other services after it (depends_on with condition: service_completed_successfully)"
}

// limits checks the limits of a service. It ignores the reservation of the service, because the node gives
// the containers the limits.
func (j *judge) limits(a Ask) {
	var n [3]int64
	for i, text := range strings.SplitN(a.Value, "|", len(n)) {
		n[i], _ = strconv.ParseInt(text, 10, 64) // an invalid number is 0, which is no limit
	}
	containers := n[2]
	for i, l := range j.limited() {
		switch all := n[i] * containers; {
		case l.most == 0:
		case n[i] <= 0 && isPreStart(a.Field):
			j.add(l.rule, a.Field, "", preStartLacks(l.keys))
		case n[i] <= 0:
			j.add(l.rule, a.Field, "", "it must have "+l.keys+", and all containers of the stack together at most "+strconv.FormatInt(l.most, 10))
		case all > l.most:
			j.add(l.rule, a.Field, strconv.FormatInt(all, 10), "all containers of the stack together may have at most "+strconv.FormatInt(l.most, 10))
		default:
			*l.sum += all
		}
	}
}

func (j *judge) add(rule, field, value, allows string) {
	j.out = append(j.out, Violation{Policy: j.p.Name, Rule: rule, Field: field, Value: value, Allows: allows})
}

// listed returns the entries of a list as text for a message.
func listed(list []string) string {
	if len(list) == 0 {
		return "nothing is allowed"
	}
	text := strings.Join(list[:min(len(list), 16)], ", ")
	if len(list) > 16 {
		text += ", …"
	}
	return "allowed are " + text
}

func (j *judge) ask(a Ask) {
	p := j.p
	switch a.Rule {
	case RulePrivileged:
		if !p.Privileged {
			j.add(a.Rule, a.Field, a.Value, "privileged containers are not allowed")
		}
	case RuleHostPath, RuleHostPathRead:
		j.hostPath(a)
	case RuleEngineSocket:
		if !p.EngineSocket {
			j.add(a.Rule, a.Field, a.Value, "the engine's socket gives root's rights on the host")
		}
	case RuleCapability:
		j.listed(a, p.Capabilities)
	case RuleDevice:
		j.listed(a, p.Devices)
	case RuleHostNS:
		j.listed(a, p.HostNamespaces)
	case RuleSecurity:
		j.listed(a, p.SecurityOptions)
	case RuleUser:
		j.user(a)
	case RulePort:
		j.port(a)
	case RuleImage:
		j.image(a)
	case RuleVolume:
		j.listed(a, p.Volumes)
	case RuleNetwork:
		if !allowsSubnet(p.Networks, a.Value) {
			j.listed(a, p.Networks)
		}
	case RuleDisk:
		j.listed(a, p.Disks)
	case RuleLacks:
		for word := range strings.SplitSeq(a.Value, ",") {
			switch {
			case slices.Contains(p.Requires, word) && word != "user" && isPreStart(a.Field):
				j.add(a.Rule, a.Field, "", preStartLacks(needs(word)))
			case slices.Contains(p.Requires, word):
				j.add(a.Rule, userOf(a.Field, word), "", "it must have "+needs(word))
			case word == LacksUser && !matches(p.Users, ""):
				j.add(RuleUser, userOf(a.Field, "user"), "the user of the image", listed(p.Users))
			}
		}
	case RulePids:
		n, err := strconv.ParseInt(a.Value, 10, 64)
		switch most := "at most " + strconv.FormatInt(p.MaxPids, 10) + " processes"; {
		case p.MaxPids == 0 || err == nil && 0 < n && n <= p.MaxPids:
		case isPreStart(a.Field):
			j.add(a.Rule, a.Field, "", preStartLacks("a limit of "+most))
		default:
			j.add(a.Rule, a.Field, a.Value, most)
		}
	case RuleLimits:
		j.limits(a)
	case RuleUnreadStack:
		if !p.Privileged {
			j.add(a.Rule, a.Field, a.Value, "schedulers cannot read this stack before it runs; send the Compose file inline")
		}
	default:
		// The Ask comes from a newer version and has a rule that this version does not know. Only a policy that
		// allows everything allows it.
		if !p.Privileged {
			j.add(a.Rule, a.Field, a.Value, "this version does not know the rule")
		}
	}
}

// userOf returns the field of the user, if word is user and field is a pre_start hook, and otherwise field.
func userOf(field, word string) string {
	if word == "user" && isPreStart(field) {
		return field + ".user"
	}
	return field
}

func needs(word string) string {
	switch word {
	case "user":
		return "a user with a number other than 0 (user: 1000)"
	case "cap_drop":
		return "all capabilities dropped (cap_drop: [ALL])"
	case "cpu":
		return "a CPU limit (resources.cpu)"
	}
	return "a memory limit (resources.memory)"
}

func (j *judge) listed(a Ask, list []string) {
	if !matches(list, a.Value) {
		j.add(a.Rule, a.Field, a.Value, listed(list))
	}
}

// SubnetValue is the prefix of the value of an Ask for a network with an explicit subnet: subnet=172.30.0.0/24.
const SubnetValue = "subnet="

// allowsSubnet reports whether value is a subnet within a subnet of list. The value and the entries of list that are
// subnets start with SubnetValue; other entries allow no subnet.
func allowsSubnet(list []string, value string) bool {
	subnet := func(s string) (p netip.Prefix, ok bool) {
		text, is := strings.CutPrefix(s, SubnetValue)
		p, err := netip.ParsePrefix(text)
		return p.Masked(), is && err == nil
	}
	want, ok := subnet(value)
	return ok && slices.ContainsFunc(list, func(entry string) bool {
		have, ok := subnet(entry)
		return ok && have.Bits() <= want.Bits() && have.Contains(want.Addr())
	})
}

func (j *judge) hostPath(a Ask) {
	at := Clean(a.Value)
	if s := ReachesEngine(at); s != "" && !j.p.EngineSocket {
		j.add(RuleEngineSocket, a.Field, a.Value, RootBy(s))
		return
	}
	readOnly := false
	for _, h := range j.p.HostPaths {
		if !Below(at, h.Path) {
			continue
		}
		if !h.ReadOnly || a.Rule == RuleHostPathRead {
			return
		}
		readOnly = true
	}
	if readOnly {
		j.add(RuleHostPath, a.Field, a.Value, "only a read-only mount is allowed")
		return
	}
	paths := make([]string, len(j.p.HostPaths))
	for i, h := range j.p.HostPaths {
		paths[i] = h.Path
	}
	j.add(RuleHostPath, a.Field, a.Value, listed(paths))
}

// enginePaths are the sockets and folders of container engines and of libvirt. A process that can connect to such a
// socket, or write to such a folder, has root access to the host.
var enginePaths = [...]string{
	"/run/docker.sock", "/var/run/docker.sock", "/run/containerd", "/var/run/containerd", "/run/podman", "/var/run/podman",
	"/run/crio", "/var/run/crio", "/run/libvirt", "/var/run/libvirt", "/run/systemd/private", "/run/dbus/system_bus_socket",
	"/var/lib/docker", "/var/lib/containerd", "/var/lib/containers",
}

// ReachesEngine returns the socket or folder of an engine that a container could access if path were mounted;
// "" if there is none. path must be clean.
func ReachesEngine(path string) string { return Reaches(path, enginePaths[:]) }

// Reaches returns the first path of a list that a container could access if path were mounted: path itself, a
// path above it or a path below it. It returns "" if there is none. path and the paths of the list must be
// clean.
func Reaches(path string, list []string) string {
	for _, p := range list {
		if Below(p, path) || Below(path, p) {
			return p
		}
	}
	return ""
}

// RootBy returns the text that explains why a mount of path is not allowed: through it a container
// reaches the socket or the folder of an engine, which gives root access.
func RootBy(path string) string {
	return "it reaches " + path + ", which gives root's rights on the host"
}

func (j *judge) user(a Ask) {
	named := slices.DeleteFunc(slices.Clone(j.p.Users), func(u string) bool { return u == NonRoot })
	if !matches(named, a.Value) && (Root(a.Value) || len(named) == len(j.p.Users)) {
		j.add(a.Rule, a.Field, a.Value, listed(j.p.Users))
	}
}

// Root reports whether a user named for a container may be root. Only a number other than 0 is certainly not
// root, because an image may give any user name the number 0.
func Root(user string) bool {
	number, _, _ := strings.Cut(user, ":")
	n, err := strconv.Atoi(number)
	return err != nil || n == 0
}

// PortValue returns the value of an Ask for a published port. address is "" for all addresses. port is a
// number or a range such as 8000-8010, or "0" if the engine chooses the port.
func PortValue(address, port, protocol string) string {
	return address + "|" + port + "/" + protocol
}

// Shows reports whether a violation of ask a has this value. Violation.String prints the value.
func (a Ask) Shows(value string) bool {
	address, rest, isPort := strings.Cut(a.Value, "|")
	if isPort && a.Rule == RulePort {
		return value == rest || value == shownAddress(address)
	}
	return value == clip(a.Value)
}

func shownAddress(address string) string { return cmp.Or(address, "all addresses") }

func (j *judge) port(a Ask) {
	address, rest, _ := strings.Cut(a.Value, "|")
	number, _, _ := strings.Cut(rest, "/")
	if number != "0" {
		from, to, valid := portRange(number)
		ok := slices.Contains(j.p.Ports, "*") || valid && slices.ContainsFunc(j.p.Ports, func(e string) bool {
			low, high, _ := portRange(e)
			return low <= from && to <= high
		})
		if !ok {
			j.add(RulePort, a.Field, rest, listed(j.p.Ports))
		}
	}
	if !matches(j.p.Addresses, address) {
		j.add(RuleAddress, a.Field, shownAddress(address), listed(j.p.Addresses))
	}
}

func (j *judge) image(a Ask) {
	name, digest, _ := strings.Cut(a.Value, "@")
	if colon := strings.LastIndexByte(name, ':'); colon > strings.LastIndexByte(name, '/') {
		name = name[:colon]
	}
	if !matches(j.p.Images, name) {
		j.add(RuleImage, a.Field, a.Value, listed(j.p.Images))
	}
	if len(j.p.ImageKeys) > 0 && digest == "" {
		j.add(RuleSigned, a.Field, a.Value, "a signed image needs a digest: NAME@sha256:…")
	}
	if j.p.ImageDigest && digest == "" {
		j.add(RuleDigest, a.Field, a.Value, "an image needs a digest: NAME@sha256:…")
	}
}
