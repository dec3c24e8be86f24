package spec

import (
	"fmt"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/engine"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/policy"
)

// Upper limits of a specification. No machine has more than these amounts of resources, so a larger value is
// a mistake.
const (
	MaxCPU        = 1_024_000 // maximum number of millicores that one workload may reserve
	MaxMemory     = 64 << 20  // maximum memory in MiB that one workload may reserve, 64 TiB
	MaxDisk       = 1 << 20   // maximum disk space in GB that one workload may reserve, 1 PiB
	MaxCount      = bounds.MaxCount
	MaxPriority   = bounds.MaxPriority
	maxRevision   = 256 // maximum length of the caller's revision name, in bytes
	maxEntriesOf  = 512 // maximum number of entries in a list, such as ports, volumes or environment variables
	maxLabels     = 64
	maxValues     = 128 // maximum number of values in one constraint
	maxLabelValue = 255 // bytes of a label's value
	maxMetadata   = 4 << 10
	maxPids       = 4 << 20
	minMemory     = engine.MinMemory >> 20 // MiB
	maxCloudInit  = 256 << 10              // maximum size in bytes of each cloud-init document, and of all together (contract/semantics.md section 12)
)

// The types of workloads.
const (
	TypeContainer = "container"
	TypeCompose   = "compose"
	TypeVM        = "vm"
)

const (
	sourceGit    = "git"
	sourceInline = "inline"
)

var (
	labelPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_./-]{0,127}$`)
	// securityPattern matches the allowed security options. It excludes the path of a seccomp profile: the
	// command-line client of the engine would read that file, but agents do not use that client.
	securityPattern = regexp.MustCompile(`^[a-z-]+([=:][A-Za-z0-9_.:,-]{1,128})?$`)
	devicePattern   = regexp.MustCompile(`^(vd|sd|hd|xvd)[a-z]{1,2}$`)
)

const (
	idRule    = "must be a letter or digit, then up to 127 letters, digits, '_', '.' or '-'"
	labelRule = "must be a letter or digit, then up to 127 letters, digits, '_', '.', '/' or '-'"
)

var (
	restartPolicies = []string{"no", "always", "on-failure", "unless-stopped"}
	protocols       = []string{"tcp", "udp"}
	operators       = []string{"=", "!=", "in", "not-in", "exists", "not-exists"}
	effects         = bounds.TaintEffects[:]
	volumeDrivers   = []string{"local", "nfs", "ceph-rbd"}
	types           = []string{TypeContainer, TypeCompose, TypeVM}
)

// Validate checks a request as it came over the wire, before it is normalised. It returns every rule that the
// request breaks, with the names of the fields in the API. Words such as protocols and policies may be in any
// case. A request without a specification only changes the desired state.
func Validate(req *controlv1.ApplyWorkloadRequest) Errors {
	e, _ := validate(req)
	return e
}

// validate does the work of Validate. It also returns the full image reference, so that it is parsed only
// once.
func validate(req *controlv1.ApplyWorkloadRequest) (e Errors, image string) {
	id := strings.TrimSpace(req.GetWorkloadId())
	switch {
	case id == "":
		e.add("workload_id", "must not be empty", "")
	case !bounds.ValidID(id):
		e.add("workload_id", idRule, id)
	}
	if n := len(req.GetRevisionId()); n > maxRevision {
		e.addf("revision_id", "", "is %d bytes, at most %d", n, maxRevision)
	} else if !printable(req.GetRevisionId()) {
		e.add("revision_id", "must be printable text", req.GetRevisionId())
	}
	if req.Spec != nil {
		image = e.spec(id, req.Spec)
	}
	e.files(req)
	return e, image
}

func (e *Errors) spec(id string, s *controlv1.WorkloadSpec) (image string) {
	if n := s.SizeVT(); n > MaxSpec {
		// A specification that is too large is not checked further.
		e.addf("spec", "", "is %d bytes encoded, at most %d", n, MaxSpec)
		return ""
	}
	_, hidden := s.Metadata[MetadataVMSpec]
	arm := armOf(s)
	switch {
	case s.Type == "" && arm == "":
		e.add("spec", "is empty: one of container, compose and vm must be given", "")
	case s.Type == "":
		e.add("spec.type", "must be container, compose or vm", "")
	case !slices.Contains(types, s.Type):
		*e = append(*e, FieldError{Field: "spec.type", path: "spec.type", Rule: "must be container, compose or vm",
			Value: s.Type, Suggestion: engine.Nearest(s.Type, types)})
	case arm == "" && !(s.Type == TypeVM && hidden):
		e.addf("spec", "", "type is %s, but no %s is given", s.Type, s.Type)
	case arm != "" && arm != s.Type:
		e.addf("spec.type", s.Type, "does not match the given alternative, which is %s", arm)
	}
	e.resources(s.Resources)
	switch w := s.Workload.(type) {
	case *controlv1.WorkloadSpec_Container:
		image = e.container(w.Container)
		e.options(s)
		e.restart("spec.container.restart_policy", s)
		if len(s.GetResources().GetDevices()) <= bounds.MaxDevices {
			e.kindsOfDevices("spec.container.devices", devicesDemand(s.GetResources(), containerDevices(w.Container)))
		}
		if m := s.GetResources().GetMemoryMb(); m > 0 && m < minMemory {
			e.addf("spec.resources.memory_mb", strconv.FormatInt(m, 10), "must be 0 or at least %d MiB: engines take no smaller limit", minMemory)
		}
	case *controlv1.WorkloadSpec_Compose:
		e.compose(w.Compose)
	}
	if s.Type == TypeVM {
		e.vmSpec(s)
	}
	e.placement(id, s)
	if len(s.Metadata) > maxEntriesOf {
		e.addf("spec.metadata", "", "has %d entries, at most %d", len(s.Metadata), maxEntriesOf)
	}
	for _, k := range sortedKeys(s.Metadata) {
		v, at := s.Metadata[k], "spec.metadata."+k
		switch {
		case k == MetadataVMSpec:
		case k == "" || len(k) > 256 || !printable(k):
			e.add("spec.metadata", "keys must be printable, not empty and at most 256 bytes", k)
		case len(v) > maxMetadata:
			e.addf(at, "", "is %d bytes, at most %d", len(v), maxMetadata)
		case !isText(v):
			e.add(at, "must be text without NUL", "")
		}
	}
	return image
}

func armOf(s *controlv1.WorkloadSpec) string {
	switch w := s.Workload.(type) {
	case *controlv1.WorkloadSpec_Container:
		if w.Container != nil {
			return TypeContainer
		}
	case *controlv1.WorkloadSpec_Compose:
		if w.Compose != nil {
			return TypeCompose
		}
	case *controlv1.WorkloadSpec_Vm:
		if w.Vm != nil {
			return TypeVM
		}
	}
	return ""
}

func (e *Errors) between(at string, v, low, high int64, unit string) {
	if v < low || v > high {
		e.addf(at, strconv.FormatInt(v, 10), "must be %d to %d%s", low, high, unit)
	}
}

func (e *Errors) resources(r *controlv1.ResourceRequirements) {
	e.between("spec.resources.cpu_millicores", r.GetCpuMillicores(), 0, MaxCPU, " millicores")
	e.between("spec.resources.memory_mb", r.GetMemoryMb(), 0, MaxMemory, " MiB")
	e.between("spec.resources.disk_gb", r.GetDiskGb(), 0, MaxDisk, " GB")
	if p := r.GetStoragePool(); p != "" && !bounds.ValidID(p) {
		e.add("spec.resources.storage_pool", idRule, p)
	}
	if n := len(r.GetDevices()); n > bounds.MaxDevices {
		e.addf("spec.resources.devices", strconv.Itoa(n), "must have at most %d names", bounds.MaxDevices)
		return
	}
	for _, name := range slices.Sorted(maps.Keys(r.GetDevices())) {
		at := "spec.resources.devices." + name
		if !bounds.ValidDevice(name) {
			e.add("spec.resources.devices", "names must be "+bounds.DeviceRule, name)
			continue
		}
		e.between(at, r.GetDevices()[name], 1, bounds.DevicesOfOne, " devices")
	}
}

func (e *Errors) word(at, value string, known []string) {
	if value == "" {
		return
	}
	for _, k := range known {
		if strings.EqualFold(k, strings.TrimSpace(value)) {
			return
		}
	}
	if len(*e) < maxErrors {
		*e = append(*e, FieldError{Field: at, path: at, Rule: "must be one of " + strings.Join(known, ", "),
			Value: value, Suggestion: engine.Nearest(value, known)})
	}
}

func (e *Errors) container(c *controlv1.ContainerSpec) (full string) {
	const at = "spec.container"
	if image := strings.TrimSpace(c.GetImage()); image == "" {
		e.add(at+".image", "must not be empty", "")
	} else if named, err := readImage(image); err != nil {
		e.add(at+".image", engine.Image(image), image)
	} else {
		full = named
	}
	if n := len(c.GetCommand()); n > maxEntriesOf {
		e.addf(at+".command", "", "has %d words, at most %d", n, maxEntriesOf)
	}
	for i, word := range c.GetCommand() {
		if !isText(word) {
			e.add(fmt.Sprintf("%s.command[%d]", at, i), "must be text without NUL", "")
		} else if rule := engine.Arg(len(word)); rule != "" {
			e.add(fmt.Sprintf("%s.command[%d]", at, i), rule, "")
		}
	}
	e.env(at+".env", c.GetEnv())
	e.ports(at+".ports", c.GetPorts())
	e.hardening(at, c)
	e.stopping(at, c)
	if n := len(c.GetVolumes()); n > maxEntriesOf {
		e.addf(at+".volumes", "", "has %d entries, at most %d", n, maxEntriesOf)
		return full
	}
	mounts := map[string]string{}
	for i, v := range c.GetVolumes() {
		w := fmt.Sprintf("%s.volumes[%d]", at, i)
		e.absolute(w+".host_path", v.GetHostPath())
		if e.absolute(w+".container_path", v.GetContainerPath()) {
			e.mount(w+".container_path", v.GetContainerPath(), mounts)
		}
	}
	e.managed(at+".managed_volumes", TypeContainer, fromControlVolumes(c.GetManagedVolumes()), mounts)
	e.objects(c, mounts)
	return full
}

// hardening checks the fields of a container that extend or restrict its rights.
func (e *Errors) hardening(at string, c *controlv1.ContainerSpec) {
	if rule := engine.User(c.GetUser()); rule != "" {
		e.add(at+".user", rule, c.GetUser())
	}
	for _, l := range []struct {
		field string
		list  []string
		rule  func(string) string
	}{{"cap_add", c.GetCapAdd(), engine.Capability}, {"cap_drop", c.GetCapDrop(), engine.Capability}, {"security_opt", c.GetSecurityOpt(), securityOption}} {
		if len(l.list) > maxLabels {
			e.addf(at+"."+l.field, "", "has %d entries, at most %d", len(l.list), maxLabels)
			continue
		}
		for i, w := range l.list {
			if rule := l.rule(strings.TrimSpace(w)); rule != "" {
				e.add(fmt.Sprintf("%s.%s[%d]", at, l.field, i), rule, w)
			}
		}
	}
	e.between(at+".pids_limit", c.GetPidsLimit(), -1, maxPids, "; 0 is the agents' default, -1 no limit")
}

func securityOption(s string) string {
	if !securityPattern.MatchString(s) {
		return "must be an option of the engine, such as no-new-privileges=false or seccomp=unconfined"
	}
	return engine.SecurityOption(s)
}

// stopping checks the stop grace period and the stop signal of a container.
func (e *Errors) stopping(at string, c *controlv1.ContainerSpec) {
	e.between(at+".stop_grace_period_seconds", int64(c.GetStopGracePeriodSeconds()), 0, int64(policy.MaxStopGrace/time.Second),
		", the maximum in any cluster; 0 is the agents' default, 30 s")
	if s := strings.TrimSpace(c.GetStopSignal()); s != "" && !policy.Signal(s) {
		e.add(at+".stop_signal", "must be a signal of Linux, such as SIGTERM, SIGQUIT or 15", s)
	}
}

// isText reports whether s can be passed to a process: it is valid UTF-8 without a NUL byte.
func isText(s string) bool { return strings.IndexByte(s, 0) < 0 && utf8.ValidString(s) }

// absolute checks the path of a bind mount, which must be absolute. A colon is refused, because an engine
// that takes mounts as text would read it as a separator.
func (e *Errors) absolute(at, p string) bool {
	switch {
	case p == "":
		e.add(at, "must not be empty", "")
	case !path.IsAbs(p):
		e.add(at, "must be an absolute path", p)
	case strings.Contains(p, ":") || !printable(p):
		e.add(at, "must be printable and hold no ':'", p)
	case len(p) > 4096:
		e.addf(at, "", "is %d bytes, at most 4096", len(p))
	default:
		return true
	}
	return false
}

func (e *Errors) mount(at, target string, mounts map[string]string) {
	target = path.Clean(target)
	if target == "/" {
		e.add(at, "must not be the root of the container", "/")
		return
	}
	if other, taken := mounts[target]; taken {
		e.add(at, "is already mounted by "+other, target)
		return
	}
	mounts[target] = at
}

func (e *Errors) env(at string, env map[string]string) {
	if len(env) > maxEntriesOf {
		e.addf(at, "", "has %d entries, at most %d", len(env), maxEntriesOf)
		return
	}
	for _, k := range sortedKeys(env) {
		v := env[k]
		bad := strings.IndexFunc(k, func(r rune) bool { return r == '=' || r > unicode.MaxASCII || !unicode.IsGraphic(r) || r == ' ' })
		switch {
		case k == "" || len(k) > 256 || bad >= 0:
			if len(*e) < maxErrors {
				*e = append(*e, FieldError{Field: at, path: at + "." + k, Rule: "names must be 1 to 256 printable ASCII characters without '=' or blanks", Value: k})
			}
		case !isText(v):
			e.add(at+"."+k, "must be text without NUL", "")
		case e.secret(at+"."+k, v): // a sealed value, which secret has refused, or the redaction marker, which keeps the stored value
		default:
			if rule := engine.Arg(len(k) + len("=") + len(v)); rule != "" {
				e.add(at+"."+k, rule, "")
			}
		}
	}
}

// secret reports whether a value can only have been copied from an answer that shows a specification: it is the
// redaction marker or a sealed value. It refuses a sealed value. The redaction marker is accepted: it keeps the stored
// value (see Keep).
func (e *Errors) secret(at, value string) (copied bool) {
	_, sealed := pki.SealedUnder(value)
	if sealed {
		e.add(at, "is a sealed value from the store or a backup: give the real value", "")
	}
	return sealed || pki.IsRedacted(value)
}

func (e *Errors) ports(at string, ports []*controlv1.Port) {
	if len(ports) > maxEntriesOf {
		e.addf(at, "", "has %d entries, at most %d", len(ports), maxEntriesOf)
		return
	}
	type key struct {
		port     int32
		protocol string
	}
	type claim struct {
		address string
		entry   int
	}
	host, same := map[key][]claim{}, map[key]int{}
	for i, p := range ports {
		w := func(field string) string { return fmt.Sprintf("%s[%d].%s", at, i, field) }
		if h := p.GetHostPort(); h < 0 || h > 65535 {
			e.between(w("host_port"), int64(h), 0, 65535, "; 0 lets the engine choose")
		}
		if c := p.GetContainerPort(); c < 1 || c > 65535 {
			e.between(w("container_port"), int64(c), 1, 65535, "")
		}
		if a := strings.TrimSpace(p.GetAddress()); a != "" {
			if rule := listenAddress(a); rule != "" {
				e.add(w("address"), rule, a)
			}
		}
		switch mode := portMode(p); {
		case mode == "":
		case mode != portIngress:
			e.word(w("mode"), p.GetMode(), portModes)
		case p.GetHostPort() < 1:
			e.add(w("host_port"), "must be set for mode ingress: it is the port at which every node answers", "")
		case strings.TrimSpace(p.GetAddress()) != "":
			e.add(w("address"), "is only for mode host: in mode ingress, all addresses of all nodes answer", p.GetAddress())
		}
		protocol := protocolOf(p.GetProtocol())
		if protocol != "tcp" && protocol != "udp" {
			e.word(w("protocol"), p.GetProtocol(), protocols)
		}
		if n := p.GetName(); n != "" && !bounds.ValidServiceName(n) {
			e.add(w("name"), "must be a service name: "+bounds.ServiceNameRule, n)
		}
		if h := p.GetHostPort(); h > 0 {
			k, address := key{h, protocol}, hostAddress(p.GetAddress())
			taken := func(c claim) bool { return c.address == "" || address == "" || c.address == address }
			if at := slices.IndexFunc(host[k], taken); at >= 0 {
				e.addf(w("host_port"), fmt.Sprintf("%d/%s", h, protocol), "is already published by ports[%d]", host[k][at].entry)
				continue
			}
			host[k] = append(host[k], claim{address, i})
			continue
		}
		c := p.GetContainerPort()
		if first, twice := same[key{c, protocol}]; twice {
			e.addf(w("container_port"), fmt.Sprintf("%d/%s", c, protocol), "is already given an ephemeral host port by ports[%d]", first)
			continue
		}
		same[key{c, protocol}] = i
	}
}

// Modes of ports, as Compose files name them. The mode host is stored as "".
const (
	portHost    = "host"
	portIngress = "ingress"
)

var portModes = []string{portHost, portIngress}

// portMode returns the mode of a port; "" for the mode host.
func portMode(p *controlv1.Port) string {
	mode := strings.ToLower(strings.TrimSpace(p.GetMode()))
	if mode == portHost {
		return ""
	}
	return mode
}

func protocolOf(p string) string {
	if p = strings.ToLower(strings.TrimSpace(p)); p != "" {
		return p
	}
	return "tcp"
}

func (e *Errors) compose(c *controlv1.ComposeSpec) {
	const at = "spec.compose"
	e.env(at+".env", c.GetEnv())
	e.managed(at+".managed_volumes", TypeCompose, fromControlVolumes(c.GetManagedVolumes()), nil)
	if isGit(c) {
		e.gitRepo(at+".git_repo", c.GetGitRepo())
		if ref := c.GetGitRef(); len(ref) > 256 || strings.HasPrefix(ref, "-") || strings.ContainsAny(ref, " \t\r\n") || !printable(ref) {
			e.add(at+".git_ref", "must be a branch, tag or commit", ref)
		}
		if name := c.GetGitCredentials(); name != "" && !bounds.ValidID(name) {
			e.add(at+".git_credentials", "must name an entry of the agents' credentials file: "+idRule, "")
		}
		return
	}
	text := strings.TrimSpace(c.GetInlineYaml())
	if text == "" {
		rule := "must not be empty"
		if c.GetGitRepo() != "" {
			rule += `; for git_repo set source_type to "git"`
		}
		e.add(at+".inline_yaml", rule, "")
		return
	}
	before := len(*e)
	e.secret(at+".inline_yaml", text)
	if len(*e) > before || pki.IsRedacted(text) {
		return
	}
	if _, err := composeServices(plainCompose(c.GetInlineYaml())); err != nil {
		e.add(at+".inline_yaml", err.Error(), "")
	}
}

func (e *Errors) gitRepo(at, repo string) {
	const rule = "must be an https, http, file, ssh or git URL, or user@host:path"
	repo = strings.TrimSpace(repo)
	switch {
	case repo == "":
		e.add(at, "must not be empty", "")
		return
	case strings.HasPrefix(repo, "-") || !printable(repo) || len(repo) > 2048:
		e.add(at, rule, "")
		return
	}
	u, err := url.Parse(repo)
	if err == nil && u.Scheme == "file" {
		// A URL with the scheme file names a Git repository on the node's own disk.
		if u.Host != "" || !path.IsAbs(u.Path) || u.User != nil {
			e.add(at, "must name an absolute path on the nodes: file:///srv/stack.git", "")
		}
		return
	}
	if err != nil || u.Host == "" {
		// A Git URL like that of scp (user@host:path) cannot contain a password.
		user, rest, ok := strings.Cut(repo, "@")
		host, p, colon := strings.Cut(rest, ":")
		if !ok || !colon || user == "" || host == "" || p == "" || strings.ContainsAny(user, ":/") {
			e.add(at, rule, "")
		}
		return
	}
	if !slices.Contains([]string{"https", "http", "ssh", "git"}, u.Scheme) {
		e.add(at, rule, u.Scheme+"://…")
		return
	}
	if u.User != nil {
		password, _ := u.User.Password()
		e.secret(at, password)
		e.secret(at, u.User.Username())
		e.secret(at, u.User.Username()+":"+password)
	}
}

// placement checks the fields of a specification that only the planner uses.
func (e *Errors) placement(id string, s *controlv1.WorkloadSpec) {
	e.job(id, s)
	e.healing(s)
	e.autoscale(id, s)
	e.reschedule(s)
	e.between("spec.count", int64(s.GetCount()), 0, MaxCount, "")
	if s.Count != nil {
		e.members("count", id, s, int(s.GetCount()))
	}
	if s.Group != "" && !bounds.ValidID(s.Group) {
		e.add("spec.group", idRule, s.Group)
	}
	if ns := strings.TrimSpace(s.Namespace); ns != "" && !bounds.ValidID(ns) {
		e.add("spec.namespace", idRule, ns)
	}
	e.between("spec.priority", int64(s.Priority), -MaxPriority, MaxPriority, "")
	e.word("spec.on_lost_lease", s.OnLostLease, []string{"keep", "stop"})
	if strings.EqualFold(strings.TrimSpace(s.OnLostLease), "stop") && !s.Exclusive && s.Type != TypeVM {
		e.add("spec.on_lost_lease", "is for exclusive workloads only: set exclusive: true as well", s.OnLostLease)
	}
	e.healthCheck(s)
	e.update(s)
	e.rules(id, s)
	if len(s.Labels) > maxLabels {
		e.addf("spec.labels", "", "has %d entries, at most %d", len(s.Labels), maxLabels)
	} else {
		for _, k := range sortedKeys(s.Labels) {
			if !labelPattern.MatchString(k) {
				e.add("spec.labels", "keys: "+labelRule, k)
				continue
			}
			e.labelValue("spec.labels."+k, s.Labels[k])
		}
	}
	if len(s.Constraints) > maxLabels {
		e.addf("spec.constraints", "", "has %d entries, at most %d", len(s.Constraints), maxLabels)
	} else {
		for i, c := range s.Constraints {
			e.constraint(fmt.Sprintf("spec.constraints[%d]", i), c)
		}
	}
	if len(s.Tolerations) > maxLabels {
		e.addf("spec.tolerations", "", "has %d entries, at most %d", len(s.Tolerations), maxLabels)
		return
	}
	for i, t := range s.Tolerations {
		at := fmt.Sprintf("spec.tolerations[%d]", i)
		switch key := strings.TrimSpace(t.GetKey()); {
		case key == fsm.AnyTaint && t.GetValue() != "":
			e.add(at+".value", "must be empty with the key *, which matches every taint", t.GetValue())
		case key != fsm.AnyTaint && !labelPattern.MatchString(key):
			e.add(at+".key", labelRule+"; or * for every taint", t.GetKey())
		}
		e.labelValue(at+".value", t.GetValue())
		e.word(at+".effect", t.GetEffect(), effects)
	}
}

func (e *Errors) labelValue(at, v string) {
	if len(v) > maxLabelValue {
		e.addf(at, "", "is %d bytes, at most %d", len(v), maxLabelValue)
	} else if !printable(v) {
		e.add(at, "must be printable text", v)
	}
}

func (e *Errors) constraint(at string, c *controlv1.Constraint) {
	if !labelPattern.MatchString(strings.TrimSpace(c.GetKey())) {
		e.add(at+".key", labelRule, c.GetKey())
	}
	op := operatorOf(c.GetOperator())
	if op == "" {
		e.add(at+".operator", "must be one of "+strings.Join(operators, ", "), "")
		return
	}
	e.word(at+".operator", op, operators)
	n := len(c.GetValues())
	switch op {
	case "=", "!=":
		if n != 1 {
			e.addf(at+".values", "", "%s takes exactly one value, not %d", op, n)
		}
	case "in", "not-in":
		if n == 0 || n > maxValues {
			e.addf(at+".values", "", "%s takes 1 to %d values, not %d", op, maxValues, n)
			return
		}
	case "exists", "not-exists":
		if n != 0 {
			e.addf(at+".values", strings.Join(c.GetValues(), ","), "%s takes no value", op)
		}
	}
	for i, v := range c.GetValues() {
		w := fmt.Sprintf("%s.values[%d]", at, i)
		if strings.TrimSpace(v) == "" {
			e.add(w, "must not be empty", "")
			continue
		}
		e.labelValue(w, v)
	}
}

func operatorOf(op string) string {
	op = strings.ToLower(strings.TrimSpace(op))
	switch op {
	case "==":
		return "="
	case "notin", "not_in":
		return "not-in"
	case "not_exists":
		return "not-exists"
	}
	return op
}

func printable(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, unicode.IsControl) < 0
}
