package spec

import (
	"fmt"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/pki"
)

// Limits of a specification. A resource above its limit exceeds any machine and is a mistake.
const (
	MaxCPU        = 1_024_000 // millicores
	MaxMemory     = 64 << 20  // MiB, 64 TiB
	MaxDisk       = 1 << 20   // GB, 1 PiB
	MaxCount      = 1000
	MaxPriority   = 1000
	maxRevision   = 256 // bytes
	maxEntriesOf  = 512 // ports, volumes, environment entries, …
	maxLabels     = 64
	maxValues     = 128 // values of one constraint
	maxLabelValue = 255 // bytes
	maxMetadata   = 4 << 10
	maxCloudInit  = 256 << 10 // bytes, of each part and of all parts (contract/semantics.md section 12)
)

// Workload types.
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
	labelPattern  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_./-]{0,127}$`)
	devicePattern = regexp.MustCompile(`^[a-z][a-z0-9]{1,15}$`)
)

const (
	idRule    = "must be a letter or digit, then up to 127 letters, digits, '_', '.' or '-'"
	labelRule = "must be a letter or digit, then up to 127 letters, digits, '_', '.', '/' or '-'"
)

var (
	restartPolicies = []string{"no", "always", "on-failure", "unless-stopped"}
	protocols       = []string{"tcp", "udp"}
	operators       = []string{"=", "!=", "in", "not-in", "exists", "not-exists"}
	effects         = []string{"NoSchedule", "PreferNoSchedule"}
	volumeDrivers   = []string{"local", "nfs", "ceph-rbd"}
	types           = []string{TypeContainer, TypeCompose, TypeVM}
)

// Validate checks a request as it came over the wire, before normalisation, and returns every rule
// that it breaks, with the wire names of the fields. Words (protocol, policies) may be in any case.
// A request without a specification changes the desired state only.
func Validate(req *controlv1.ApplyWorkloadRequest) Errors {
	e, _ := validate(req)
	return e
}

// validate also returns the full image reference, so that it is parsed only once.
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
	return e, image
}

func (e *Errors) spec(id string, s *controlv1.WorkloadSpec) (image string) {
	if n := s.SizeVT(); n > MaxSpec {
		// Skip the other checks for an oversized specification.
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
			Value: s.Type, Suggestion: nearest(s.Type, types)})
	case arm == "" && !(s.Type == TypeVM && hidden):
		e.addf("spec", "", "type is %s, but no %s is given", s.Type, s.Type)
	case arm != "" && arm != s.Type:
		e.addf("spec.type", s.Type, "does not match what is given, which is %s", arm)
	}
	e.resources(s.Resources)
	switch w := s.Workload.(type) {
	case *controlv1.WorkloadSpec_Container:
		image = e.container(w.Container)
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
			Value: value, Suggestion: nearest(value, known)})
	}
}

func (e *Errors) container(c *controlv1.ContainerSpec) (full string) {
	const at = "spec.container"
	if image := strings.TrimSpace(c.GetImage()); image == "" {
		e.add(at+".image", "must not be empty", "")
	} else if named, err := readImage(image); err != nil {
		e.add(at+".image", "is no image reference ("+err.Error()+"); want name[:tag][@digest]", image)
	} else {
		full = named
	}
	if n := len(c.GetCommand()); n > maxEntriesOf {
		e.addf(at+".command", "", "has %d words, at most %d", n, maxEntriesOf)
	}
	for i, word := range c.GetCommand() {
		if !isText(word) {
			e.add(fmt.Sprintf("%s.command[%d]", at, i), "must be text without NUL", "")
		}
	}
	e.env(at+".env", c.GetEnv())
	e.ports(at+".ports", c.GetPorts())
	e.word(at+".restart_policy", c.GetRestartPolicy(), restartPolicies)
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
	e.managed(at+".managed_volumes", fromControlVolumes(c.GetManagedVolumes()), mounts)
	return full
}

// isText reports whether s can be passed to a process.
func isText(s string) bool { return strings.IndexByte(s, 0) < 0 && utf8.ValidString(s) }

// absolute checks the path of a bind mount. Engines that take mounts as text would read a colon as
// a separator.
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
			e.add(at, "names must be 1 to 256 printable ASCII characters without '=' or blanks", k)
		case !isText(v):
			e.add(at+"."+k, "must be text without NUL", "")
		case fromView(v):
			e.secret(at+"."+k, v)
		}
	}
}

// fromView reports whether a value is the redaction marker or a sealed value.
func fromView(value string) bool {
	_, sealed := pki.SealedUnder(value)
	return sealed || pki.IsRedacted(value)
}

// secret refuses the redaction marker and sealed values.
func (e *Errors) secret(at, value string) {
	if pki.IsRedacted(value) {
		e.add(at, "is the marker "+pki.Redacted+" that stands for a secret in every view: applying it would replace the secret by the marker; give the real value", "")
	} else if _, sealed := pki.SealedUnder(value); sealed {
		e.add(at, "is a sealed value from the store or a backup: give the real value", "")
	}
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
	host, same := map[key]int{}, map[key]int{}
	for i, p := range ports {
		w := func(field string) string { return fmt.Sprintf("%s[%d].%s", at, i, field) }
		if h := p.GetHostPort(); h < 0 || h > 65535 {
			e.between(w("host_port"), int64(h), 0, 65535, "; 0 lets the engine choose")
		}
		if c := p.GetContainerPort(); c < 1 || c > 65535 {
			e.between(w("container_port"), int64(c), 1, 65535, "")
		}
		protocol := protocolOf(p.GetProtocol())
		if protocol != "tcp" && protocol != "udp" {
			e.word(w("protocol"), p.GetProtocol(), protocols)
		}
		if n := p.GetName(); n != "" && !bounds.ValidServiceName(n) {
			e.add(w("name"), "must be a service name: "+bounds.ServiceNameRule, n)
		}
		if h := p.GetHostPort(); h > 0 {
			if first, taken := host[key{h, protocol}]; taken {
				e.addf(w("host_port"), fmt.Sprintf("%d/%s", h, protocol), "is already published by ports[%d]", first)
				continue
			}
			host[key{h, protocol}] = i
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

func protocolOf(p string) string {
	if p = strings.ToLower(strings.TrimSpace(p)); p != "" {
		return p
	}
	return "tcp"
}

func (e *Errors) compose(c *controlv1.ComposeSpec) {
	const at = "spec.compose"
	e.env(at+".env", c.GetEnv())
	e.managed(at+".managed_volumes", fromControlVolumes(c.GetManagedVolumes()), nil)
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
	if len(*e) > before {
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
		// A repository on the node.
		if u.Host != "" || !path.IsAbs(u.Path) || u.User != nil {
			e.add(at, "must name an absolute path on the nodes: file:///srv/stack.git", "")
		}
		return
	}
	if err != nil || u.Host == "" {
		// The scp-like form cannot hold a password.
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

// placement checks the fields that only the planner uses.
func (e *Errors) placement(id string, s *controlv1.WorkloadSpec) {
	e.between("spec.count", int64(s.Count), 0, MaxCount, "")
	if s.Count > 0 && s.Count <= MaxCount && id != "" && bounds.ValidID(id) {
		if last := memberID(id, int(s.Count)-1); !bounds.ValidID(last) {
			e.add("workload_id", "is too long to make <id>-<n> from it: at most 128 characters together", last)
		}
		if s.Group != "" && s.Group != id {
			e.addf("spec.group", s.Group, "must be empty or %q: the members that count makes form the group of that name", id)
		}
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
		if !labelPattern.MatchString(strings.TrimSpace(t.GetKey())) {
			e.add(at+".key", labelRule, t.GetKey())
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
