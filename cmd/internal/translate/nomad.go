package translate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Nomad translates a job in JSON: the output of `nomad job inspect`, or of `nomad job run -output`. It
// returns an error if the input is not such a job.
func Nomad(data []byte) (*Result, error) {
	s, err := parse(data)
	if err != nil {
		return nil, err
	}
	if s.fields["Job"] != nil {
		s = s.object("Job")
	}
	id := s.text("ID")
	if id == "" {
		return nil, fmt.Errorf("the input is no Nomad job, because it has no field ID: pass the output of `nomad job inspect NAME`")
	}
	t := newTranslation()
	s.path = ""
	groups := s.objects("TaskGroups")
	var last *workload
	for _, g := range groups {
		w := &workload{ID: id}
		if name := g.text("Name"); len(groups) > 1 {
			w.ID = id + "-" + name
		}
		t.workloads = append(t.workloads, w)
		t.nomadGroup(w, s, g)
		t.leftOver(w.ID, g)
		g.done()
		last = w
	}
	if last == nil {
		return nil, fmt.Errorf("TaskGroups: the job %q has none", id)
	}
	s.skip("Name", "Region", "Meta", "Type", "Update", "AllAtOnce", "Status", "StatusDescription", "Stable", "Version", "SubmitTime", "CreateIndex", "ModifyIndex",
		"JobModifyIndex", "Stop", "ParentID", "Dispatched", "DispatchIdempotencyToken", "ConsulToken", "VaultToken", "VaultNamespace", "NomadTokenID", "ConsulNamespace",
		"VersionTag", "UI", "TaskGroups")
	t.leftOver("", s)
	return t.result()
}

func (t *translation) nomadGroup(w *workload, j, g *source) {
	if in := j.text("Namespace"); in != "default" {
		w.Namespace = in
	}
	if p := j.number("Priority"); p != 0 && p != 50 {
		w.Priority = p - 50
	}
	if pool := j.text("NodePool"); pool != "" && pool != "default" {
		t.note(w.ID, "NodePool", "bind the namespace to the nodes of pool %s by a label: persysctl namespace set NAMESPACE --nodes pool=%s", pool, pool)
	}
	t.nomadKind(w, j, g)
	if dcs := j.texts("Datacenters"); len(dcs) > 0 && !slices.Contains(dcs, "*") {
		t.note(w.ID, "Datacenters", "%s: give the nodes a label, such as datacenter, and write a constraint for it", strings.Join(dcs, ", "))
	}
	for _, s := range []*source{j, g} {
		t.nomadPlacement(w, s)
	}
	u := g.object("Update")
	if !g.has("Update") && j.has("Update") {
		u = j.object("Update")
	}
	t.nomadUpdate(w, u)
	r := g.object("RestartPolicy")
	if w.Kind == "job" || w.Kind == "cron" {
		attempts := r.number("Attempts")
		w.Job.Retries = &attempts
	}
	r.skip("Attempts", "Interval", "Delay", "Mode", "RenderTemplates") // the agent restarts with growing delays
	if p := g.object("ReschedulePolicy"); p.has("Attempts") && !p.truth("Unlimited") {
		w.Reschedule = &reschedule{Attempts: p.number("Attempts"), Interval: p.seconds("Interval")}
	}
	g.skip("Name", "Count", "ReschedulePolicy", "Migrate", "EphemeralDisk", "Update", "MaxClientDisconnect", "PreventRescheduleOnLost", "Disconnect", "Meta",
		"Consul", "ShutdownDelay", "StopAfterClientDisconnect", "Scaling")
	if s := g.object("Scaling"); s.has("Max") {
		t.note(w.ID, s.path, "the equivalent of Nomad's autoscaler is autoscale: {min: %d, max: %d, cpu: 70}", s.number("Min"), s.number("Max"))
	}

	ports := t.nomadPorts(w, g)
	volumes := t.nomadVolumes(g)
	tasks := g.objects("Tasks")
	containers := make([]*container, len(tasks))
	names := make([]string, len(tasks))
	var sum needs
	for i, task := range tasks {
		names[i] = task.text("Name")
		containers[i] = t.nomadTask(w, task, ports, volumes, len(tasks) == 1, &sum)
	}
	w.Resources = &resources{CPU: millicores(sum.cpu), Memory: mebibytes(sum.memory), Devices: sum.devices}
	for _, s := range g.objects("Services") {
		t.nomadService(w, s, ports, len(tasks) == 1)
	}
	if len(tasks) == 1 {
		w.Container = containers[0]
		return
	}
	t.note(w.ID, g.at("Tasks"), "the %d tasks of group %s become a Compose stack; they reach each other by the names of the tasks, not at 127.0.0.1", len(tasks), g.text("Name"))
	t.stackOf(w, names, containers)
}

func (t *translation) nomadKind(w *workload, j, g *source) {
	count := int64(1)
	if g.fields["Count"] != nil {
		count = g.number("Count")
	}
	switch j.text("Type") {
	case "system":
		w.Kind = "system"
	case "sysbatch":
		w.Kind, w.Job = "job", &job{EveryNode: true}
	case "batch":
		w.Kind, w.Job = "job", &job{}
		if count > 1 {
			w.Job.Completions = count
		}
	default:
		w.Count = &count
	}
	if p := j.object("Periodic"); len(p.fields) > 0 {
		specs := p.texts("Specs")
		if one := p.text("Spec"); one != "" {
			specs = []string{one}
		}
		if len(specs) == 0 {
			specs = []string{""}
		}
		if len(specs) > 1 {
			t.note(w.ID, p.at("Specs"), "a cron has one schedule: write one more workload for each of %s", strings.Join(specs[1:], ", "))
		}
		w.Kind, w.Cron, w.Count = "cron", &cron{Schedule: specs[0], Suspend: p.text("Enabled") == "false"}, nil
		if w.Job == nil {
			w.Job = &job{}
		}
		if zone := p.text("TimeZone"); zone != "" && zone != "UTC" {
			w.Cron.TimeZone = zone
		}
		if p.truth("ProhibitOverlap") {
			w.Cron.Concurrency = "forbid"
		}
		p.skip("SpecType")
	}
	if p := j.object("ParameterizedJob"); len(p.fields) > 0 && w.Job != nil {
		w.Job.Parameterized = &parameterized{Input: p.text("Payload")}
		for _, name := range p.texts("MetaRequired") {
			w.Job.Parameterized.Parameters = append(w.Job.Parameterized.Parameters, parameter{Name: name, Required: true})
		}
		for _, name := range p.texts("MetaOptional") {
			w.Job.Parameterized.Parameters = append(w.Job.Parameterized.Parameters, parameter{Name: name})
		}
		t.note(w.ID, p.path, "parameters are in the variables PERSYS_PARAM_<NAME>, and the payload is in PERSYS_INPUT")
	}
	j.skip("Payload")
}

// nomadPlacement translates the placement rules (constraints, affinities and spreads) of a job or a group.
func (t *translation) nomadPlacement(w *workload, s *source) {
	for _, c := range s.objects("Constraints") {
		left, right, op := c.text("LTarget"), c.text("RTarget"), c.text("Operand")
		if op == "distinct_hosts" {
			w.AntiAffin = append(w.AntiAffin, affinity{Group: w.ID, By: "host", When: "must"})
			continue
		}
		if rule, ok := t.nomadRule(left, op, right); ok {
			w.Constraints = append(w.Constraints, rule)
		} else if left != "${attr.kernel.name}" || right != "linux" {
			t.note(w.ID, c.path, "%s %s %s has no equivalent: set a label (persysctl node label) and write a constraint for it", left, op, right)
		}
	}
	for _, a := range s.objects("Affinities") {
		weight := a.number("Weight")
		rule, ok := t.nomadRule(a.text("LTarget"), a.text("Operand"), a.text("RTarget"))
		switch {
		case !ok:
			t.note(w.ID, a.path, "%s has no equivalent: set a label (persysctl node label) and write an affinity for it", a.text("LTarget"))
		case weight < 0:
			w.AntiAffin = append(w.AntiAffin, affinity{Node: rule, Weight: -weight})
		default:
			w.Affinity = append(w.Affinity, affinity{Node: rule, Weight: weight})
		}
	}
	for _, x := range s.objects("Spreads") {
		if label, ok := nomadLabel(x.text("Attribute")); ok {
			w.Spread = append(w.Spread, spread{By: label, When: "prefer"})
		} else {
			t.note(w.ID, x.path, "a spread over %s has no equivalent: set a label (persysctl node label) and spread over it", x.text("Attribute"))
		}
		if x.has("SpreadTarget") {
			t.note(w.ID, x.at("SpreadTarget"), "members are spread evenly, without percentages")
		}
		x.skip("Weight", "SpreadTarget")
	}
}

// nomadRule translates a Nomad constraint (left op right) on metadata of a node into a rule on
// node labels.
func (t *translation) nomadRule(left, op, right string) (rule string, ok bool) {
	label, ok := nomadLabel(left)
	if !ok {
		return "", false
	}
	switch op {
	case "", "=", "==", "is":
		return label + " = " + right, true
	case "!=", "not":
		return label + " != " + right, true
	case "is_set":
		return label + " exists", true
	case "is_not_set":
		return label + " not-exists", true
	case "set_contains_any":
		return label + " in " + right, true
	}
	return "", false
}

func nomadLabel(target string) (string, bool) {
	name, ok := strings.CutPrefix(target, "${meta.")
	name, closed := strings.CutSuffix(name, "}")
	return name, ok && closed
}

func (t *translation) nomadUpdate(w *workload, s *source) {
	if w.Count != nil || w.Kind == "system" {
		u := &update{
			MaxParallel: s.number("MaxParallel"), MinHealthyTime: s.seconds("MinHealthyTime"), HealthyDeadline: s.seconds("HealthyDeadline"),
			Canary: s.number("Canary"), AutoRevert: s.truth("AutoRevert"),
		}
		if w.Kind == "system" || w.Count != nil && u.Canary >= *w.Count {
			if u.Canary > 0 {
				t.note(w.ID, s.at("Canary"), "the update has no canaries, because there must be fewer canaries than copies")
			}
			u.Canary = 0
		}
		if u.MaxParallel > 0 {
			w.Update = u
		}
		if s.truth("AutoPromote") {
			t.note(w.ID, s.at("AutoPromote"), "canaries wait for persysctl rollout promote")
		}
	}
	s.skip("Stagger", "MaxParallel", "HealthCheck", "MinHealthyTime", "HealthyDeadline", "ProgressDeadline", "AutoRevert", "AutoPromote", "Canary")
}

// nomadPorts returns the ports of a group, by label.
func (t *translation) nomadPorts(w *workload, g *source) map[string]port {
	ports := map[string]port{}
	for _, n := range g.objects("Networks") {
		n.skip("Device", "CIDR", "IP", "MBits", "Mode")
		for _, p := range n.objects("ReservedPorts") {
			to := port{Host: p.number("Value"), Container: p.number("To"), Name: p.text("Label")}
			if to.Container <= 0 {
				to.Container = to.Host
			}
			ports[to.Name] = to
			p.skip("HostNetwork")
		}
		for _, p := range n.objects("DynamicPorts") {
			to := port{Container: p.number("To"), Name: p.text("Label")}
			if to.Container <= 0 {
				t.note(w.ID, p.path, "port %s has no fixed number in the container, because Nomad chose the number and set NOMAD_PORT_%s: write the port on which the program listens", to.Name, to.Name)
				to.Container = 0
			}
			ports[to.Name] = to
			p.skip("Value", "HostNetwork")
		}
	}
	return ports
}

// nomadVolumes returns the names of the volumes of a group.
func (t *translation) nomadVolumes(g *source) map[string]string {
	out := map[string]string{}
	names, by := g.named("Volumes")
	for _, name := range names {
		v := by[name]
		out[name] = v.text("Source")
		if out[name] == "" {
			out[name] = name
		}
		v.skip("Name", "Type", "ReadOnly", "AccessMode", "AttachmentMode", "PerAlloc", "Sticky", "MountOptions")
	}
	return out
}

// nomadTask translates a task, and adds its resources to sum. single means that it is the only task of its
// group, so that it becomes a container workload and not a service of a stack.
func (t *translation) nomadTask(w *workload, s *source, ports map[string]port, volumes map[string]string, single bool, sum *needs) *container {
	c := &container{User: s.text("User"), Environment: s.pairs("Env"), StopSignal: s.text("KillSignal"), StopGrace: s.seconds("KillTimeout"), Labels: s.pairs("Meta")}
	for key, value := range c.Environment {
		if strings.Contains(value, "${") {
			t.note(w.ID, s.at("Env"), "%s has a variable of Nomad, which is not replaced here: %s", key, clip(value))
		}
	}
	if driver := s.text("Driver"); driver != "docker" && driver != "podman" {
		t.note(w.ID, s.at("Driver"), "only containers are translated, and this task has the driver %s", driver)
	}
	t.nomadConfig(w, c, s.object("Config"), ports)
	r := s.object("Resources")
	cpu, memory := r.number("CPU"), r.number("MemoryMB")<<20
	if cores := r.number("Cores"); cores > 0 {
		cpu = cores * 1000
	} else if cpu > 0 {
		t.note(w.ID, r.at("CPU"), "%d MHz are taken for %s of a core, as on a machine with 1 GHz: measure and correct it", cpu, millicores(cpu))
	}
	if most := r.number("MemoryMaxMB"); most > 0 {
		memory = most << 20
		t.note(w.ID, r.at("MemoryMaxMB"), "a workload reserves its memory limit: %s", mebibytes(memory))
	}
	sum.cpu, sum.memory = sum.cpu+cpu, sum.memory+memory
	for _, d := range r.objects("Devices") {
		if sum.devices == nil {
			sum.devices = map[string]int64{}
		}
		sum.devices[d.text("Name")] += max(1, d.number("Count"))
		t.note(w.ID, d.path, "nodes must offer the devices %s: PERSYS_NODE_DEVICES, or CDI devices of the engine", d.text("Name"))
	}
	r.skip("DiskMB", "IOPS", "SecretsMB", "NUMA")
	for _, m := range s.objects("VolumeMounts") {
		name := volumes[m.text("Volume")]
		if name == "" {
			name = m.text("Volume")
		}
		c.Managed = append(c.Managed, volume{Name: name, Path: m.text("Destination"), ReadOnly: m.truth("ReadOnly"), Retain: "Retain"})
		t.note(w.ID, m.path, "the data of volume %s is not copied: copy it into the new volume before the workload uses it", name)
		m.skip("PropagationMode", "SELinuxLabel")
	}
	for _, x := range s.objects("Templates") {
		t.nomadTemplate(w, c, x, single)
	}
	for _, x := range s.objects("Services") {
		t.nomadService(w, x, ports, single)
	}
	s.skip("Leader", "LogConfig", "RestartPolicy", "ShutdownDelay", "DispatchPayload", "KillSignal", "CSIPluginConfig", "Kind")
	if p := s.object("DispatchPayload"); p.has("File") {
		t.note(w.ID, p.path, "the payload was in the file %s; here it is in the variable PERSYS_INPUT", p.text("File"))
	}
	return c
}

// needs is the sum of the resources of several tasks: millicores, bytes, and devices by name.
type needs struct {
	cpu, memory int64
	devices     map[string]int64
}

// nomadConfig translates the configuration of the Docker driver.
func (t *translation) nomadConfig(w *workload, c *container, s *source, ports map[string]port) {
	c.Image, c.Entrypoint, c.Hostname, c.WorkingDir = s.text("image"), s.texts("entrypoint"), s.text("hostname"), s.text("work_dir")
	if command := s.text("command"); command != "" {
		c.Command = []string{command}
	}
	c.Command = append(c.Command, s.texts("args")...)
	for _, label := range s.texts("ports") {
		if p, ok := ports[label]; ok {
			c.Ports = append(c.Ports, p)
		} else {
			t.note(w.ID, s.at("ports"), "the group has no port %s", label)
		}
	}
	for _, v := range s.texts("volumes") {
		if from, _, _ := strings.Cut(v, ":"); strings.HasPrefix(from, "/") {
			c.Volumes = append(c.Volumes, v)
		} else {
			t.note(w.ID, s.at("volumes"), "%s is in the folder of the task; a workload has no such folder: use a secret, a config or a volume", v)
		}
	}
	for _, m := range append(s.objects("mount"), s.objects("mounts")...) {
		from, to := m.text("source"), m.text("target")
		suffix := ""
		if m.truth("readonly") {
			suffix = ":ro"
		}
		switch kind := m.text("type"); {
		case kind == "tmpfs":
			c.Tmpfs = append(c.Tmpfs, to)
		case kind == "bind" && strings.HasPrefix(from, "/"):
			c.Volumes = append(c.Volumes, from+":"+to+suffix)
		case kind == "volume" && from != "":
			c.Managed = append(c.Managed, volume{Name: from, Path: to, ReadOnly: suffix != "", Retain: "Retain"})
			t.note(w.ID, m.path, "the data of volume %s is not copied: copy it into the new volume before the workload uses it", from)
		default:
			t.note(w.ID, m.path, "a mount of type %s from %q has no equivalent: %s", kind, from, to)
		}
	}
	c.CapAdd, c.CapDrop = capabilities(s.texts("cap_add")), capabilities(s.texts("cap_drop"))
	c.Privileged, c.ReadOnly, c.TTY, c.StdinOpen = s.truth("privileged"), s.truth("readonly_rootfs"), s.truth("tty"), s.truth("interactive")
	c.SecurityOpt, c.ExtraHosts, c.GroupAdd = s.texts("security_opt"), s.texts("extra_hosts"), s.texts("group_add")
	c.DNS, c.DNSSearch, c.DNSOpt = s.texts("dns_servers"), s.texts("dns_search_domains"), s.texts("dns_options")
	c.Sysctls, c.PidsLimit, c.Runtime, c.Init = s.pairs("sysctl"), s.number("pids_limit"), s.text("runtime"), s.flag("init")
	if size := s.number("shm_size"); size > 0 {
		c.ShmSize = strconv.FormatInt(size, 10)
	}
	for key, value := range s.pairs("labels") {
		c.Labels = with(c.Labels, key, value)
	}
	for name, value := range s.pairs("ulimit") {
		soft, hard, two := strings.Cut(value, ":")
		if !two {
			hard = soft
		}
		a, errA := strconv.ParseInt(soft, 10, 64)
		b, errB := strconv.ParseInt(hard, 10, 64)
		if errA != nil || errB != nil {
			t.note(w.ID, s.at("ulimit"), "ulimit %s has the value %s, which is not a number: write the limit", name, value)
			continue
		}
		if c.Ulimits == nil {
			c.Ulimits = map[string]ulimit{}
		}
		c.Ulimits[name] = ulimit{a, b}
	}
	for _, d := range s.objects("devices") {
		text := d.text("host_path")
		if to := d.text("container_path"); to != "" {
			text += ":" + to
			if p := d.text("cgroup_permissions"); p != "" {
				text += ":" + p
			}
		}
		c.Devices = append(c.Devices, text)
	}
	if l := s.object("logging"); len(l.fields) > 0 {
		c.Logging = &logging{Driver: l.text("type"), Options: l.pairs("config")}
		if d := l.text("driver"); d != "" {
			c.Logging.Driver = d
		}
	}
	switch mode := s.text("network_mode"); mode {
	case "", "bridge", "default":
	case "host", "none":
		c.NetworkMode = mode
	default:
		t.note(w.ID, s.at("network_mode"), "%s has no equivalent", mode)
	}
	host := func(key string) string {
		if s.fields[key] == "host" {
			return s.text(key)
		}
		return ""
	}
	c.PID, c.IPC, c.UTS, c.Userns = host("pid_mode"), host("ipc_mode"), host("uts_mode"), host("userns_mode")
	if s.object("healthchecks").truth("disable") {
		c.HealthCheck = &engineCheck{Disable: true}
	}
	s.skip("force_pull", "image_pull_timeout", "auth_soft_fail", "network_aliases")
	if s.has("network_aliases") {
		t.note(w.ID, s.at("network_aliases"), "join a network (persysctl network create) and write the aliases there: networks: {NAME: {aliases: […]}}")
	}
	if s.has("auth") {
		s.skip("auth")
		t.note(w.ID, s.at("auth"), "the agents need the credentials of the registry")
	}
}

// nomadTemplate translates a template to a config if its text has no template actions ({{…}}), so that it
// is a plain file.
func (t *translation) nomadTemplate(w *workload, c *container, s *source, single bool) {
	text, to := s.text("EmbeddedTmpl"), s.text("DestPath")
	s.skip("ChangeMode", "ChangeSignal", "ChangeScript", "ErrMissingKey", "LeftDelim", "RightDelim", "Perms", "Splay", "Wait", "Once", "Envvars")
	switch {
	case !single:
		t.note(w.ID, s.path, "the template at %s: write a config into the Compose file", to)
	case s.truth("Envvars"):
		t.note(w.ID, s.path, "the template at %s sets variables: use env_secrets and env_configs", to)
	case text == "" || strings.Contains(text, "{{"):
		t.note(w.ID, s.path, "the template at %s has actions, which nothing replaces here: use secrets and configs", to)
	default:
		name := strings.ToLower(strings.NewReplacer("/", "-", "${", "", "}", "").Replace(w.ID + "-" + strings.TrimPrefix(to, "local/")))
		t.configs[name] = []byte(text)
		if !strings.HasPrefix(to, "/") {
			to = "/" + to // the folder of the task was mounted at the root
		}
		c.Configs = append(c.Configs, file{Source: name, Target: to})
	}
}

// nomadService translates the first check of a service.
func (t *translation) nomadService(w *workload, s *source, ports map[string]port, single bool) {
	if name := s.text("Name"); name != w.ID {
		t.note(w.ID, s.at("Name"), "the service %s is found under the name of the workload, %s, in DNS and in its networks", name, w.ID)
	}
	number := func(label string) int64 {
		if p, ok := ports[label]; ok {
			return p.Container
		}
		n, _ := strconv.ParseInt(label, 10, 64)
		return n
	}
	own := s.text("PortLabel")
	for _, c := range s.objects("Checks") {
		label := c.text("PortLabel")
		if label == "" {
			label = own
		}
		h := &healthCheck{Port: number(label), Interval: c.seconds("Interval"), Timeout: c.seconds("Timeout")}
		switch kind := c.text("Type"); kind {
		case "http":
			h.HTTP = c.text("Path")
		case "tcp":
			h.TCP = true
		case "script":
			h.Command, h.Port = append([]string{c.text("Command")}, c.texts("Args")...), 0
			if h.Service = c.text("TaskName"); single {
				h.Service = ""
			}
		default:
			t.note(w.ID, c.path, "a check of type %s has no equivalent", kind)
			continue
		}
		if w.HealthCheck != nil {
			t.note(w.ID, c.path, "a workload has one health check, which is the first one")
			continue
		}
		w.HealthCheck = h
		c.skip("Name", "Protocol", "Path", "Args", "Command", "TaskName", "Expose", "InitialStatus", "OnUpdate", "SuccessBeforePassing", "FailuresBeforeCritical",
			"FailuresBeforeWarning", "CheckRestart", "TLSSkipVerify", "Id", "AddressMode", "Notes")
	}
	s.skip("Name", "PortLabel", "AddressMode", "Provider", "Cluster", "Namespace", "OnUpdate", "EnableTagOverride", "TaskName", "CheckRestart", "Identity", "Id")
}

// stackOf makes w a Compose stack. Container i becomes the service names[i].
func (t *translation) stackOf(w *workload, names []string, containers []*container) {
	doc := composeFile{Services: map[string]*container{}}
	for i, c := range containers {
		for _, v := range c.Managed {
			mount := v.Name + ":" + v.Path
			if v.ReadOnly {
				mount += ":ro"
			}
			c.Volumes = append(c.Volumes, mount)
			if doc.Volumes == nil {
				doc.Volumes = map[string]*struct{}{}
			}
			doc.Volumes[v.Name] = nil
		}
		c.Managed = nil
		doc.Services[names[i]] = c
	}
	text, err := encode(doc)
	if err != nil {
		t.note(w.ID, "", "the Compose file cannot be written: %v", err)
	}
	w.Compose = &composeStack{Inline: string(text)}
}
