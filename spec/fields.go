package spec

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	composego "github.com/compose-spec/compose-go/v2/types"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/engine"
	"github.com/persys/compute/spec/quantity"
	"github.com/persys/compute/stack/service"
)

// arms holds the alternatives container, compose and vm of a document. The alternative that the document sets
// becomes the oneof of the request.
type arms struct {
	container *controlv1.ContainerSpec
	compose   *controlv1.ComposeSpec
	vm        *controlv1.VMSpec
}

var desiredWords = []string{"running", "stopped", "stop", "deleted", "delete"}

// document decodes one request. The document may have the flat form, the nested form of the wire, or a mix of
// both that sets no field twice.
func (d *decoder) document(n *node) *controlv1.ApplyWorkloadRequest {
	d.places[""] = place{line: n.line, col: n.col}
	req, s, a := &controlv1.ApplyWorkloadRequest{}, &controlv1.WorkloadSpec{}, &arms{}
	hasSpec := false
	body := d.specFields(s, a)
	for i := range body {
		set := body[i].set
		body[i].set = func(name string, n *node, at where) { hasSpec = true; set(name, n, at) }
	}
	top := append([]field{
		{"id workload_id", "workload_id", func(_ string, n *node, at where) { req.WorkloadId = d.str(n, at) }},
		{"desired desired_state", "desired_state", func(_ string, n *node, at where) { req.DesiredState = d.desired(n, at) }},
		{"revision revision_id", "revision_id", func(_ string, n *node, at where) { req.RevisionId = d.str(n, at) }},
		{"request_id", "request_id", func(_ string, n *node, at where) { req.RequestId = d.str(n, at) }},
		{"spec", "spec", func(_ string, n *node, at where) { hasSpec = true; d.object(n, at, body) }},
	}, body...)
	d.object(n, where{}, top)

	present := 0
	for _, arm := range []struct {
		name string
		set  bool
		put  func()
	}{
		{"container", a.container != nil, func() { s.Workload = &controlv1.WorkloadSpec_Container{Container: a.container} }},
		{"compose", a.compose != nil, func() { s.Workload = &controlv1.WorkloadSpec_Compose{Compose: a.compose} }},
		{"vm", a.vm != nil, func() { s.Workload = &controlv1.WorkloadSpec_Vm{Vm: a.vm} }},
	} {
		if !arm.set {
			continue
		}
		if present++; present > 1 {
			p := d.place("spec." + arm.name)
			d.fail(&node{line: p.line, col: p.col}, where{"spec." + arm.name, p.shown}, "only one of container, compose and vm may be given", "")
			continue
		}
		arm.put()
		if s.Type == "" {
			s.Type = arm.name
		}
	}
	if hasSpec {
		req.Spec = s
	}
	return req
}

// desired reads a desired state. It accepts only the words of the contract. A file with any other word is refused. (In
// an API request, any other word means Running.)
func (d *decoder) desired(n *node, here where) string {
	word := strings.ToLower(strings.TrimSpace(d.str(n, here)))
	for _, w := range desiredWords {
		if w == word {
			return word
		}
	}
	if n.kind == scalar {
		d.errs = append(d.errs, FieldError{Line: n.line, Column: n.col, Field: here.shown, path: here.wire,
			Rule: "must be running, stopped or deleted", Value: n.text, Suggestion: engine.Nearest(word, desiredWords)})
	}
	return ""
}

func (d *decoder) specFields(s *controlv1.WorkloadSpec, a *arms) []field {
	return []field{
		{"type", "spec.type", func(_ string, n *node, at where) { s.Type = d.str(n, at) }},
		{"resources", "spec.resources", func(_ string, n *node, at where) { d.resources(resourcesOf(s), n, at) }},
		{"container", "spec.container", func(_ string, n *node, at where) { a.container = d.container(s, n, at) }},
		{"compose", "spec.compose", func(_ string, n *node, at where) { a.compose = d.compose(n, at) }},
		{"vm", "spec.vm", func(_ string, n *node, at where) { a.vm = d.vm(n, at) }},
		{"metadata", "spec.metadata", func(_ string, n *node, at where) { s.Metadata = d.pairs(n, at, false) }},
		{"labels", "spec.labels", func(_ string, n *node, at where) { s.Labels = d.pairs(n, at, false) }},
		{"group", "spec.group", func(_ string, n *node, at where) { s.Group = d.str(n, at) }},
		{"namespace", "spec.namespace", func(_ string, n *node, at where) { s.Namespace = d.str(n, at) }},
		{"count replicas", "spec.count", func(_ string, n *node, at where) { s.Count = new(int32(d.integer(n, at, 32))) }},
		{"kind", "spec.kind", func(_ string, n *node, at where) { s.Kind = d.str(n, at) }},
		{"job", "spec.job", func(_ string, n *node, at where) { s.Job = d.job(n, at) }},
		{"cron", "spec.cron", func(_ string, n *node, at where) { s.Cron = d.cron(n, at) }},
		{"autoscale", "spec.autoscale", func(_ string, n *node, at where) { s.Autoscale = d.autoscale(n, at) }},
		{"update", "spec.update", func(_ string, n *node, at where) { s.Update = d.update(n, at) }},
		{"constraints", "spec.constraints", func(_ string, n *node, at where) { s.Constraints = d.constraints(n, at) }},
		{"tolerations", "spec.tolerations", func(_ string, n *node, at where) { s.Tolerations = d.tolerations(n, at) }},
		{"spread", "spec.spread", func(_ string, n *node, at where) { s.Spread = d.spread(n, at) }},
		{"affinity", "spec.affinity", func(_ string, n *node, at where) { s.Affinity = d.affinity(n, at) }},
		{"anti_affinity", "spec.anti_affinity", func(_ string, n *node, at where) { s.AntiAffinity = d.affinity(n, at) }},
		{"tags", "spec.tags", func(_ string, n *node, at where) { s.Tags = d.pairs(n, at, false) }},
		{"placement_policy policy", "spec.placement_policy", func(_ string, n *node, at where) { s.PlacementPolicy = d.str(n, at) }},
		{"exclusive", "spec.exclusive", func(_ string, n *node, at where) { s.Exclusive = d.boolean(n, at) }},
		{"on_lost_lease", "spec.on_lost_lease", func(_ string, n *node, at where) { s.OnLostLease = d.str(n, at) }},
		{"health_check healthcheck", "spec.health_check", func(_ string, n *node, at where) { s.HealthCheck = d.healthCheck(n, at) }},
		{"on_unhealthy", "spec.on_unhealthy", func(_ string, n *node, at where) { s.OnUnhealthy = d.str(n, at) }},
		{"reschedule", "spec.reschedule", func(_ string, n *node, at where) { s.Reschedule = d.reschedule(n, at) }},
		{"priority", "spec.priority", func(_ string, n *node, at where) { s.Priority = int32(d.integer(n, at, 32)) }},
	}
}

const (
	mib = 20 // shift that converts bytes to MiB
	gib = 30
)

// size reads a quantity with a unit. Under the API's name of the field, it also accepts a number without a
// unit.
func (d *decoder) size(name string, n *node, here where, shift uint, example string) int64 {
	if strings.HasSuffix(name, "_mb") || strings.HasSuffix(name, "_gb") {
		return d.integer(n, here, 64)
	}
	v, err := quantity.Size(d.str(n, here), shift, example)
	if err != nil {
		d.fail(n, here, err.Error(), n.text)
	}
	return v
}

func (d *decoder) resources(r *controlv1.ResourceRequirements, n *node, here where) {
	d.object(n, here, []field{
		{"cpu cpu_millicores cpus", here.wire + ".cpu_millicores", func(name string, n *node, at where) {
			if name == "cpu_millicores" {
				r.CpuMillicores = d.integer(n, at, 64)
				return
			}
			r.CpuMillicores = d.cores(n, at)
		}},
		{"memory memory_mb", here.wire + ".memory_mb", func(name string, n *node, at where) { r.MemoryMb = d.size(name, n, at, mib, "128Mi") }},
		{"disk disk_gb", here.wire + ".disk_gb", func(name string, n *node, at where) { r.DiskGb = d.size(name, n, at, gib, "1Gi") }},
		{"storage_pool", here.wire + ".storage_pool", func(_ string, n *node, at where) { r.StoragePool = d.str(n, at) }},
		{"devices", here.wire + ".devices", func(_ string, n *node, at where) { r.Devices = d.counts(n, at) }},
	})
}

// counts reads a mapping of names to whole numbers.
func (d *decoder) counts(n *node, here where) map[string]int64 {
	if n.probe != nil {
		n.probe.takes(true, func() object { return object{"type": "object", "additionalProperties": object{"type": "integer"}} })
		return nil
	}
	if n.kind != mapping {
		d.fail(n, here, "must be a mapping of names to whole numbers", n.text)
		return nil
	}
	out := map[string]int64{}
	for _, e := range n.own() {
		sub := here.key(e.key)
		d.places[sub.wire] = place{e.line, e.col, sub.shown}
		out[e.key] = d.integer(e.value, sub, 64)
	}
	return out
}

// cores reads a number of CPU cores, such as 0.25 or 250m, and returns millicores.
func (d *decoder) cores(n *node, here where) int64 {
	v, err := quantity.CPU(d.str(n, here))
	if err != nil {
		d.fail(n, here, err.Error(), n.text)
	}
	return v
}

func (d *decoder) container(s *controlv1.WorkloadSpec, n *node, here where) *controlv1.ContainerSpec {
	c := &controlv1.ContainerSpec{}
	w := here.wire
	d.envFile, d.labelFile, d.cpuQuota = nil, nil, 0
	d.refused = service.NotOfAContainer()
	defer func() { d.refused = nil }()
	d.object(n, here, slices.Concat(d.composeWords(s, c, w), d.objectFields(c, w), []field{
		{"image", w + ".image", func(_ string, n *node, at where) { c.Image = d.str(n, at) }},
		{"command", w + ".command", func(_ string, n *node, at where) { c.Command = d.command(n, at) }},
		{"env environment", w + ".env", func(_ string, n *node, at where) { c.Env = d.pairs(n, at, true) }},
		{"ports", w + ".ports", func(_ string, n *node, at where) {
			d.list(n, at, func(n *node, at where) { c.Ports = append(c.Ports, d.port(n, at)...) })
		}},
		{"volumes", w + ".volumes", func(_ string, n *node, at where) {
			d.list(n, at, func(n *node, at where) { c.Volumes = append(c.Volumes, d.volume(n, at)) })
		}},
		{"restart restart_policy", w + ".restart_policy", func(_ string, n *node, at where) { c.RestartPolicy = d.str(n, at) }},
		{"privileged", w + ".privileged", func(_ string, n *node, at where) { c.Privileged = d.boolean(n, at) }},
		{"user", w + ".user", func(_ string, n *node, at where) { c.User = d.str(n, at) }},
		{"cap_add", w + ".cap_add", func(_ string, n *node, at where) { c.CapAdd = d.words(n, at) }},
		{"cap_drop", w + ".cap_drop", func(_ string, n *node, at where) { c.CapDrop = d.words(n, at) }},
		{"security_opt", w + ".security_opt", func(_ string, n *node, at where) { c.SecurityOpt = d.words(n, at) }},
		{"pids_limit", w + ".pids_limit", func(_ string, n *node, at where) { c.PidsLimit = d.integer(n, at, 64) }},
		{"stop_grace_period stop_grace_period_seconds", w + ".stop_grace_period_seconds", d.grace(&c.StopGracePeriodSeconds)},
		{"stop_signal", w + ".stop_signal", func(_ string, n *node, at where) { c.StopSignal = d.str(n, at) }},
		{"managed_volumes", w + ".managed_volumes", func(_ string, n *node, at where) { c.ManagedVolumes = d.managed(n, at) }},
	}))
	c.Env, c.Labels = with(d.envFile, c.Env), with(d.labelFile, c.Labels)
	if d.cpuQuota > 0 { // the same limit as cpus, which placement reserves
		period := cmp.Or(max(c.CpuPeriod, 0), engine.CPUPeriod)
		resourcesOf(s).CpuMillicores = (min(d.cpuQuota, 1<<50)*1000 + period - 1) / period
	}
	return c
}

// grace reads a stop grace period. An explicit 0 is refused, because in an API request 0 means the default.
func (d *decoder) grace(into *int32) func(string, *node, where) {
	read := d.seconds(into)
	return func(name string, n *node, at where) {
		faults := len(d.errs)
		if read(name, n, at); *into == 0 && len(d.errs) == faults {
			d.fail(n, at, "must be at least 1s; to kill the container at once: stop_signal: SIGKILL", n.text)
		}
	}
}

// command reads a list of words, or one string, which it splits at blanks outside of quotes, as Compose does.
func (d *decoder) command(n *node, here where) []string {
	if n.kind != scalar {
		return d.words(n, here)
	}
	out, err := splitWords(n.text)
	if err != nil {
		d.fail(n, here, err.Error(), n.text)
	}
	return out
}

func splitWords(s string) ([]string, error) {
	var out []string
	var word strings.Builder
	started, quote, escaped := false, rune(0), false
	for _, r := range s {
		switch {
		case escaped:
			word.WriteRune(r)
			escaped = false
		case r == '\\' && quote != '\'':
			started, escaped = true, true
		case quote != 0:
			if r == quote {
				quote = 0
			} else {
				word.WriteRune(r)
			}
		case r == '\'' || r == '"':
			started, quote = true, r
		case strings.ContainsRune(" \t\r\n", r):
			if started {
				out = append(out, word.String())
				word.Reset()
				started = false
			}
		default:
			started = true
			word.WriteRune(r)
		}
	}
	if quote != 0 || escaped {
		return nil, fmt.Errorf("has an open quote or a trailing backslash; a list of words needs no quotes")
	}
	if started {
		out = append(out, word.String())
	}
	return out, nil
}

// highPort returns the first number above 65535 among the ports of a text such as "127.0.0.1:8000-8010:80";
// "" if there is none. Numbers in an IP address are ignored: an IPv4 address has dots, and a group of an IPv6
// address has at most four digits.
func highPort(text string) string {
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(":-[]", r) }) {
		if strings.Trim(word, "0123456789") == "" {
			if _, err := strconv.ParseUint(word, 10, 16); err != nil {
				return word
			}
		}
	}
	return ""
}

// port reads a port: "8080:80", "53:53/udp", "127.0.0.1:8080:80", "[::1]:8080:80", "80" (the engine chooses the
// host port), a range such as "8000-8010:8000-8010", or a mapping. Compose-go reads addresses and ranges. Numbers
// alone are read here, so that a number out of bounds is reported as such, together with the other problems of the
// file.
func (d *decoder) port(n *node, here where) []*controlv1.Port {
	if n.kind == mapping {
		p := &controlv1.Port{}
		d.object(n, here, []field{
			{"host host_port published", here.wire + ".host_port", func(_ string, n *node, at where) { p.HostPort = int32(d.integer(n, at, 32)) }},
			{"container container_port target", here.wire + ".container_port", func(_ string, n *node, at where) { p.ContainerPort = int32(d.integer(n, at, 32)) }},
			{"protocol", here.wire + ".protocol", func(_ string, n *node, at where) { p.Protocol = d.str(n, at) }},
			{"name", here.wire + ".name", func(_ string, n *node, at where) { p.Name = d.str(n, at) }},
			{"mode", here.wire + ".mode", func(_ string, n *node, at where) { p.Mode = d.str(n, at) }},
			{"address host_ip", here.wire + ".address", func(_ string, n *node, at where) { p.Address = d.str(n, at) }},
		})
		return []*controlv1.Port{p}
	}
	text := strings.TrimSpace(d.str(n, here))
	if n.probe != nil {
		return nil
	}
	unread := []*controlv1.Port{{ContainerPort: 1}}
	ports, protocol, _ := strings.Cut(text, "/")
	if p := plainPort(ports); p != nil {
		p.Protocol = protocol
		return []*controlv1.Port{p}
	}
	parsed, err := composego.ParsePortConfig(ports)
	if high := highPort(ports); err != nil && high != "" {
		d.fail(n, here, "port "+high+" must be at most 65535", text)
		return unread
	}
	if err != nil || len(parsed) > maxEntriesOf {
		d.fail(n, here, `must be "host:container" or "container", with "/tcp" or "/udp", ranges of ports of the same length, and "ADDRESS:" before the host port; or a mapping with host, container, protocol, mode, address and name`, text)
		return unread
	}
	var out []*controlv1.Port
	for _, c := range parsed {
		p := &controlv1.Port{ContainerPort: int32(c.Target), Protocol: protocol, Address: c.HostIP}
		if c.Published != "" {
			host, err := strconv.ParseUint(c.Published, 10, 16)
			if err != nil {
				d.fail(n, here, "must not have several host ports for one port of the container: write one of them, or none, so that the engine chooses", text)
				return unread
			}
			p.HostPort = int32(host)
		}
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *controlv1.Port) int { return cmp.Compare(a.ContainerPort, b.ContainerPort) })
	return out
}

// plainPort reads "80" and "8080:80". It returns nil if text is anything else than one or two numbers.
func plainPort(text string) *controlv1.Port {
	host, container, two := strings.Cut(text, ":")
	if !two {
		host, container = "0", host
	}
	h, err := strconv.ParseInt(strings.TrimSpace(host), 10, 32)
	if err != nil {
		return nil
	}
	c, err := strconv.ParseInt(strings.TrimSpace(container), 10, 32)
	if err != nil {
		return nil
	}
	return &controlv1.Port{HostPort: int32(h), ContainerPort: int32(c)}
}

// volume reads a bind mount: "/host:/container", the same with ":ro" or ":rw", or a mapping.
func (d *decoder) volume(n *node, here where) *controlv1.VolumeMount {
	v := &controlv1.VolumeMount{}
	if n.kind == mapping {
		d.object(n, here, []field{
			{"host host_path source", here.wire + ".host_path", func(_ string, n *node, at where) { v.HostPath = d.str(n, at) }},
			{"container container_path target", here.wire + ".container_path", func(_ string, n *node, at where) { v.ContainerPath = d.str(n, at) }},
			{"read_only ro", here.wire + ".read_only", func(_ string, n *node, at where) { v.ReadOnly = d.boolean(n, at) }},
		})
		return v
	}
	text := d.str(n, here)
	parts := strings.Split(text, ":")
	switch {
	case len(parts) == 3 && (parts[2] == "ro" || parts[2] == "rw"):
		v.ReadOnly = parts[2] == "ro"
	case len(parts) != 2:
		d.fail(n, here, `must be "/host/path:/container/path", with ":ro" for read-only, or a mapping; volumes by name are managed_volumes`, text)
		parts = []string{"/", "/invalid"}
	}
	v.HostPath, v.ContainerPath = parts[0], parts[1]
	return v
}

func (d *decoder) managed(n *node, here where) []*controlv1.ManagedVolumeSpec {
	var out []*controlv1.ManagedVolumeSpec
	d.list(n, here, func(n *node, here where) {
		v, w := &controlv1.ManagedVolumeSpec{}, here.wire
		d.object(n, here, []field{
			{"name", w + ".name", func(_ string, n *node, at where) { v.Name = d.str(n, at) }},
			{"driver", w + ".driver", func(_ string, n *node, at where) { v.Driver = d.str(n, at) }},
			{"size size_gb", w + ".size_gb", func(name string, n *node, at where) { v.SizeGb = d.size(name, n, at, gib, "1Gi") }},
			{"access_mode", w + ".access_mode", func(_ string, n *node, at where) { v.AccessMode = d.str(n, at) }},
			{"fs_type", w + ".fs_type", func(_ string, n *node, at where) { v.FsType = d.str(n, at) }},
			{"path mount_path", w + ".mount_path", func(_ string, n *node, at where) { v.MountPath = d.str(n, at) }},
			{"read_only ro", w + ".read_only", func(_ string, n *node, at where) { v.ReadOnly = d.boolean(n, at) }},
			{"retain retain_policy", w + ".retain_policy", func(_ string, n *node, at where) { v.RetainPolicy = d.str(n, at) }},
		})
		out = append(out, v)
	})
	return out
}

func (d *decoder) readFile(n *node, here where) string {
	path := d.str(n, here)
	if d.options.ReadFile == nil {
		d.fail(n, here, "only persysctl reads files: give the text itself", path)
		return ""
	}
	data, err := d.options.ReadFile(path)
	if err == nil && len(data) > MaxSpec {
		err = fmt.Errorf("is %d bytes, at most %d", len(data), MaxSpec)
	}
	if err != nil {
		d.fail(n, here, "cannot be read: "+err.Error(), path)
		return ""
	}
	if line, column, rule := engine.NotText(data); rule != "" {
		d.fail(n, here, fmt.Sprintf("line %d:%d of the file: %s", line, column, rule), path)
		return ""
	}
	return string(data)
}

func (d *decoder) compose(n *node, here where) *controlv1.ComposeSpec {
	c, w := &controlv1.ComposeSpec{}, here.wire
	if n.kind == mapping && n.probe == nil { // `persysctl get -o yaml` shows bind mounts as mappings
		entries := n.own()
		own := *n
		own.entries = nil
		for _, e := range entries {
			switch snake(e.key) {
			case "files", "bundle":
				d.fail(&node{line: e.line, col: e.col}, here.key(e.key), filesRule, "")
			case "main_file":
			default:
				own.entries = append(own.entries, e)
			}
		}
		n = &own
	}
	d.object(n, here, []field{
		{"inline inline_yaml", w + ".inline_yaml", func(_ string, n *node, at where) {
			c.InlineYaml, d.inline = d.str(n, at), -1
			if n.block {
				d.inline = n.line
			}
		}},
		{"file", w + ".inline_yaml", func(_ string, n *node, at where) {
			d.beside, d.inline, c.InlineYaml = d.str(n, at), 0, d.readFile(n, at)
		}},
		{"git", w + ".git_repo", func(_ string, n *node, at where) {
			c.SourceType = sourceGit
			if n.kind == scalar {
				c.GitRepo, c.GitRef, _ = strings.Cut(n.text, "#")
				return
			}
			d.object(n, at, []field{
				{"repo url git_repo", w + ".git.repo", func(_ string, n *node, at where) { c.GitRepo = d.str(n, at) }},
				{"ref branch git_ref", w + ".git_ref", func(_ string, n *node, at where) { c.GitRef = d.str(n, at) }},
				{"credentials git_credentials", w + ".git_credentials", func(_ string, n *node, at where) { c.GitCredentials = d.str(n, at) }},
			})
		}},
		{"git_repo", w + ".git_repo", func(_ string, n *node, at where) {
			c.GitRepo = d.str(n, at)
			if c.SourceType == "" {
				c.SourceType = sourceGit
			}
		}},
		{"git_ref", w + ".git_ref", func(_ string, n *node, at where) { c.GitRef = d.str(n, at) }},
		{"git_credentials", w + ".git_credentials", func(_ string, n *node, at where) { c.GitCredentials = d.str(n, at) }},
		{"source_type", w + ".source_type", func(_ string, n *node, at where) { c.SourceType = d.str(n, at) }},
		{"env environment", w + ".env", func(_ string, n *node, at where) { c.Env = d.pairs(n, at, true) }},
		{"managed_volumes", w + ".managed_volumes", func(_ string, n *node, at where) { c.ManagedVolumes = d.managed(n, at) }},
	})
	return c
}

func (d *decoder) vm(n *node, here where) *controlv1.VMSpec {
	v, w := &controlv1.VMSpec{}, here.wire
	d.object(n, here, []field{
		{"cpus vcpus", w + ".vcpus", func(_ string, n *node, at where) { v.Vcpus = int32(d.integer(n, at, 32)) }},
		{"memory memory_mb", w + ".memory_mb", func(name string, n *node, at where) { v.MemoryMb = d.size(name, n, at, mib, "1Gi") }},
		{"image os_image", w + ".os_image", func(_ string, n *node, at where) { v.OsImage = d.str(n, at) }},
		{"disks", w + ".disks", func(_ string, n *node, at where) {
			d.list(n, at, func(n *node, here where) {
				disk, w := &controlv1.DiskConfig{}, here.wire
				d.object(n, here, []field{
					{"pool pool_name", w + ".pool_name", func(_ string, n *node, at where) { disk.PoolName = d.str(n, at) }},
					{"size size_gb", w + ".size_gb", func(name string, n *node, at where) { disk.SizeGb = d.size(name, n, at, gib, "20Gi") }},
					{"device mount_point", w + ".mount_point", func(_ string, n *node, at where) { disk.MountPoint = d.str(n, at) }},
				})
				v.Disks = append(v.Disks, disk)
			})
		}},
		{"networks", w + ".networks", func(_ string, n *node, at where) {
			d.list(n, at, func(n *node, here where) {
				nic, w := &controlv1.NetworkConfig{}, here.wire
				if n.kind == scalar {
					nic.Bridge, nic.Dhcp = n.text, true
				} else {
					d.object(n, here, []field{
						{"network bridge", w + ".bridge", func(_ string, n *node, at where) { nic.Bridge = d.str(n, at) }},
						{"dhcp", w + ".dhcp", func(_ string, n *node, at where) { nic.Dhcp = d.boolean(n, at) }},
						{"ip static_ip", w + ".static_ip", func(_ string, n *node, at where) { nic.StaticIp = d.str(n, at) }},
						{"mac mac_address", w + ".mac_address", func(_ string, n *node, at where) { nic.MacAddress = d.str(n, at) }},
					})
				}
				v.Networks = append(v.Networks, nic)
			})
		}},
		{"cloud_init", w + ".cloud_init", func(_ string, n *node, at where) {
			v.CloudInit = &controlv1.CloudInitConfig{}
			if n.kind == scalar {
				v.CloudInit.UserData = n.text
				return
			}
			d.cloudInit(n, at, v.CloudInit)
		}},
		{"login", w + ".login", func(_ string, n *node, at where) {
			v.Login = &controlv1.VMLogin{}
			d.object(n, at, []field{
				{"user", at.wire + ".user", func(_ string, n *node, at where) { v.Login.User = d.str(n, at) }},
				{"password", at.wire + ".password", func(_ string, n *node, at where) { v.Login.Password = d.str(n, at) }},
				{"password_file", at.wire + ".password", func(_ string, n *node, at where) {
					v.Login.Password = strings.TrimRight(d.readFile(n, at), "\r\n")
				}},
				{"ssh_authorized_keys ssh_keys", at.wire + ".ssh_authorized_keys", func(_ string, n *node, at where) {
					v.Login.SshAuthorizedKeys = d.words(n, at)
				}},
			})
		}},
		{"managed_volumes", w + ".managed_volumes", func(_ string, n *node, at where) { v.ManagedVolumes = d.managed(n, at) }},
	})
	return v
}

func (d *decoder) cloudInit(n *node, here where, c *controlv1.CloudInitConfig) {
	var fields []field
	for name, to := range map[string]*string{
		"user_data": &c.UserData, "meta_data": &c.MetaData, "network_config": &c.NetworkConfig, "vendor_data": &c.VendorData,
	} {
		fields = append(fields,
			field{name, here.wire + "." + name, func(_ string, n *node, at where) { *to = d.str(n, at) }},
			field{name + "_file", here.wire + "." + name, func(_ string, n *node, at where) { *to = d.readFile(n, at) }})
	}
	d.object(n, here, fields)
}

func (d *decoder) constraints(n *node, here where) []*controlv1.Constraint {
	var out []*controlv1.Constraint
	d.list(n, here, func(n *node, here where) {
		if c := d.constraint(n, here); c != nil {
			out = append(out, c)
		}
	})
	return out
}

// constraint reads one condition on the labels of a node. It returns nil if the condition cannot be read.
func (d *decoder) constraint(n *node, here where) *controlv1.Constraint {
	c, w := &controlv1.Constraint{}, here.wire
	if n.kind == mapping {
		d.object(n, here, []field{
			{"key label", w + ".key", func(_ string, n *node, at where) { c.Key = d.str(n, at) }},
			{"operator op", w + ".operator", func(_ string, n *node, at where) { c.Operator = d.str(n, at) }},
			{"values value", w + ".values", func(_ string, n *node, at where) {
				if n.kind == scalar {
					c.Values = []string{n.text}
					return
				}
				c.Values = d.words(n, at)
			}},
		})
	} else if err := parseConstraint(d.str(n, here), c); err != nil {
		d.fail(n, here, err.Error(), n.text)
		return nil
	}
	return c
}

// parseConstraint reads a constraint such as "region = eu", "disk in ssd,nvme" or "gpu exists" into c.
func parseConstraint(s string, c *controlv1.Constraint) error {
	s = strings.TrimSpace(s)
	for _, op := range []string{"!=", "==", "="} {
		if key, value, ok := strings.Cut(s, op); ok {
			c.Key, c.Operator, c.Values = strings.TrimSpace(key), strings.Replace(op, "==", "=", 1), []string{strings.TrimSpace(value)}
			return nil
		}
	}
	words := strings.Fields(s)
	if len(words) < 2 {
		return fmt.Errorf(`must be like "region = eu", "disk in ssd,nvme" or "gpu exists"`)
	}
	c.Key, c.Operator = words[0], words[1]
	rest := words[2:]
	if c.Operator == "not" && len(rest) > 0 {
		c.Operator, rest = "not-"+rest[0], rest[1:]
	}
	list := strings.TrimSpace(strings.Join(rest, " "))
	list = strings.TrimSuffix(strings.TrimPrefix(list, "("), ")")
	if list == "" {
		return nil
	}
	for _, v := range strings.Split(list, ",") {
		c.Values = append(c.Values, strings.TrimSpace(v))
	}
	return nil
}

// tolerations reads a list of tolerations: "key" or "key=value", both optionally with ":NoSchedule", or
// mappings.
func (d *decoder) tolerations(n *node, here where) []*controlv1.Toleration {
	var out []*controlv1.Toleration
	d.list(n, here, func(n *node, here where) {
		t, w := &controlv1.Toleration{}, here.wire
		if n.kind == mapping {
			d.object(n, here, []field{
				{"key", w + ".key", func(_ string, n *node, at where) { t.Key = d.str(n, at) }},
				{"value", w + ".value", func(_ string, n *node, at where) { t.Value = d.str(n, at) }},
				{"effect", w + ".effect", func(_ string, n *node, at where) { t.Effect = d.str(n, at) }},
			})
		} else {
			rest, effect, _ := strings.Cut(strings.TrimSpace(d.str(n, here)), ":")
			t.Key, t.Value, _ = strings.Cut(rest, "=")
			t.Effect = effect
		}
		out = append(out, t)
	})
	return out
}
