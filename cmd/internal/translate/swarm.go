package translate

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// SwarmInput holds the services, networks and configs of a Docker Swarm, as the API of the engine encodes
// them.
type SwarmInput struct {
	Services []json.RawMessage // of GET /services
	Networks map[string]string // names of networks, by id
	Configs  map[string][]byte // data of configs, by name
}

// Swarm translates the services of a Docker Swarm. It returns an error if a service is not a JSON object.
func Swarm(in SwarmInput) (*Result, error) {
	t := newTranslation()
	for i, data := range in.Services {
		s, err := parse(data)
		if err != nil {
			return nil, fmt.Errorf("service %d: %w", i, err)
		}
		t.swarmService(s.object("Spec"), in)
	}
	slices.SortStableFunc(t.workloads, func(a, b *workload) int { return strings.Compare(a.ID, b.ID) })
	return t.result()
}

func (t *translation) swarmService(s *source, in SwarmInput) {
	task := s.object("TaskTemplate")
	spec := task.object("ContainerSpec")
	w := &workload{ID: s.text("Name"), Container: &container{}}
	t.workloads = append(t.workloads, w)
	t.swarmMode(w, s.object("Mode"))
	t.swarmContainer(w, spec, in)
	t.swarmPlacement(w, task.object("Placement"))
	t.swarmResources(w, task.object("Resources"))
	t.swarmRestart(w, task.object("RestartPolicy"))
	t.swarmUpdate(w, s.object("UpdateConfig"))
	s.skip("RollbackConfig") // a rollback follows update
	if log := task.object("LogDriver"); log.has("Name") {
		w.Container.Logging = &logging{Driver: log.text("Name"), Options: log.pairs("Options")}
	}
	for key, value := range s.pairs("Labels") {
		// Labels of docker stack deploy are not needed: the names of the services already contain the name
		// of the stack.
		if !strings.HasPrefix(key, "com.docker.stack.") {
			w.Container.Labels = with(w.Container.Labels, key, value)
		}
	}
	networks := task.objects("Networks")
	if len(networks) == 0 {
		networks = s.objects("Networks") // where older engines have them
	} else {
		s.skip("Networks")
	}
	for _, n := range networks {
		name := in.Networks[n.text("Target")]
		if name == "" {
			t.note(w.ID, n.at("Target"), "the network %s is not known", n.text("Target"))
			continue
		}
		if w.Container.Networks == nil {
			w.Container.Networks = map[string]network{}
		}
		w.Container.Networks[name] = network{Aliases: n.texts("Aliases")}
		t.networks[name] = true
	}
	endpoint := s.object("EndpointSpec")
	if endpoint.text("Mode") == "dnsrr" {
		w.Container.EndpointMode = "dnsrr"
	}
	for _, p := range endpoint.objects("Ports") {
		to := port{Host: p.number("PublishedPort"), Container: p.number("TargetPort"), Name: p.text("Name")}
		if protocol := p.text("Protocol"); protocol != "tcp" {
			to.Protocol = protocol
		}
		if p.text("PublishMode") != "host" {
			if to.Mode = "ingress"; to.Host == 0 {
				t.note(w.ID, p.at("PublishedPort"), "the Swarm chose the published port for container port %d: write a published port", to.Container)
			}
		}
		w.Container.Ports = append(w.Container.Ports, to)
	}
	task.skip("ForceUpdate", "Runtime")
	t.leftOver(w.ID, s)
}

func (t *translation) swarmMode(w *workload, mode *source) {
	switch {
	case mode.fields["Global"] != nil:
		mode.skip("Global")
		w.Kind = "system"
	case mode.fields["GlobalJob"] != nil:
		mode.skip("GlobalJob")
		w.Kind, w.Job = "job", &job{EveryNode: true}
	case mode.fields["ReplicatedJob"] != nil:
		j := mode.object("ReplicatedJob")
		w.Kind, w.Job = "job", &job{Completions: j.number("TotalCompletions"), Parallelism: j.number("MaxConcurrent")}
	default:
		count := int64(1)
		if r := mode.object("Replicated"); r.fields["Replicas"] != nil {
			count = r.number("Replicas")
		}
		w.Count = &count
	}
}

func (t *translation) swarmContainer(w *workload, s *source, in SwarmInput) {
	c := w.Container
	c.Image, c.Entrypoint, c.Command = s.text("Image"), s.texts("Command"), s.texts("Args")
	for _, e := range s.texts("Env") {
		key, value, _ := strings.Cut(e, "=")
		c.Environment = with(c.Environment, key, value)
		if strings.Contains(value, "{{") {
			t.note(w.ID, s.at("Env"), "%s has a template of Swarm, which is not replaced here: %s", key, clip(value))
		}
	}
	c.User, c.GroupAdd, c.WorkingDir, c.Hostname = s.text("User"), s.texts("Groups"), s.text("Dir"), s.text("Hostname")
	if strings.Contains(c.Hostname, "{{") {
		t.note(w.ID, s.at("Hostname"), "the template is not replaced here, so the host name is that of the engine: %s", c.Hostname)
		c.Hostname = ""
	}
	c.TTY, c.StdinOpen, c.ReadOnly, c.Init = s.truth("TTY"), s.truth("OpenStdin"), s.truth("ReadOnly"), s.flag("Init")
	c.StopSignal, c.StopGrace, c.OOMScoreAdj = s.text("StopSignal"), s.seconds("StopGracePeriod"), s.number("OomScoreAdj")
	c.CapAdd, c.CapDrop = capabilities(s.texts("CapabilityAdd")), capabilities(s.texts("CapabilityDrop"))
	c.Sysctls, c.Labels = s.pairs("Sysctls"), s.pairs("Labels")
	for key := range c.Labels {
		if strings.HasPrefix(key, "com.docker.stack.") {
			delete(c.Labels, key)
		}
	}
	for _, u := range s.objects("Ulimits") {
		if c.Ulimits == nil {
			c.Ulimits = map[string]ulimit{}
		}
		c.Ulimits[u.text("Name")] = ulimit{Soft: u.number("Soft"), Hard: u.number("Hard")}
	}
	for _, h := range s.texts("Hosts") {
		if address, names, ok := strings.Cut(h, " "); ok {
			for name := range strings.FieldsSeq(names) {
				c.ExtraHosts = append(c.ExtraHosts, name+"="+address)
			}
		}
	}
	dns := s.object("DNSConfig")
	c.DNS, c.DNSSearch, c.DNSOpt = dns.texts("Nameservers"), dns.texts("Search"), dns.texts("Options")
	if h := s.object("Healthcheck"); len(h.fields) > 0 {
		c.HealthCheck = &engineCheck{
			Test: h.texts("Test"), Interval: h.seconds("Interval"), Timeout: h.seconds("Timeout"), Retries: h.number("Retries"), StartPeriod: h.seconds("StartPeriod"),
		}
		if slices.Equal(c.HealthCheck.Test, []string{"NONE"}) {
			c.HealthCheck = &engineCheck{Disable: true}
		}
	}
	for _, m := range s.objects("Mounts") {
		t.swarmMount(w, m)
	}
	for _, x := range s.objects("Secrets") {
		name := x.text("SecretName")
		x.skip("SecretID")
		t.secrets[name] = true
		c.Secrets = append(c.Secrets, swarmFile(name, x.object("File"), "/run/secrets/"))
	}
	for _, x := range s.objects("Configs") {
		name := x.text("ConfigName")
		x.skip("ConfigID")
		t.configs[name] = in.Configs[name]
		c.Configs = append(c.Configs, swarmFile(name, x.object("File"), "/"))
	}
	if s.text("Isolation") == "default" {
		s.skip("Isolation")
	}
}

// swarmFile translates the use of a secret or a config as a file. A relative target is below the folder.
func swarmFile(name string, s *source, folder string) file {
	f := file{Source: name, Target: s.text("Name"), UID: s.text("UID"), GID: s.text("GID"), Mode: octal(s.number("Mode"))}
	if !strings.HasPrefix(f.Target, "/") {
		f.Target = folder + f.Target
	}
	if f.Target == folder+name || f.Target == folder {
		f.Target = ""
	}
	if f.UID == "0" {
		f.UID = ""
	}
	if f.GID == "0" {
		f.GID = ""
	}
	return f
}

func (t *translation) swarmMount(w *workload, m *source) {
	c, from, to, readOnly := w.Container, m.text("Source"), m.text("Target"), m.truth("ReadOnly")
	switch kind := m.text("Type"); kind {
	case "bind":
		v := from + ":" + to
		if readOnly {
			v += ":ro"
		}
		c.Volumes = append(c.Volumes, v)
	case "tmpfs":
		var options []string
		o := m.object("TmpfsOptions")
		if size := o.number("SizeBytes"); size > 0 {
			options = append(options, fmt.Sprintf("size=%d", size))
		}
		if mode := o.number("Mode"); mode > 0 {
			options = append(options, fmt.Sprintf("mode=%04o", mode))
		}
		if len(options) > 0 {
			to += ":" + strings.Join(options, ",")
		}
		c.Tmpfs = append(c.Tmpfs, to)
	case "volume":
		if from == "" {
			t.note(w.ID, m.path, "the volume at %s has no name, so each container had a new one: it is left out", to)
			return
		}
		c.Managed = append(c.Managed, volume{Name: from, Path: to, ReadOnly: readOnly, Retain: "Retain"})
		o := m.object("VolumeOptions")
		o.skip("Labels")
		if d := o.object("DriverConfig"); d.text("Name") == "local" && !d.has("Options") {
			d.skip("Name")
		} else if d.has("Name") {
			t.note(w.ID, d.path, "the volume %s had the driver %s; here it is a local volume of the node", from, d.text("Name"))
		}
		t.note(w.ID, m.path, "the data of volume %s is not copied: copy it from the former node into the new volume before the workload uses it", from)
	default:
		t.note(w.ID, m.path, "a mount of type %s has no equivalent: %s", kind, to)
	}
}

func (t *translation) swarmPlacement(w *workload, s *source) {
	s.skip("Platforms") // the engine sets it from the image
	for _, c := range s.texts("Constraints") {
		key, value, op := "", "", ""
		for _, o := range []string{"!=", "=="} {
			if a, b, ok := strings.Cut(c, o); ok && op == "" {
				key, value, op = strings.TrimSpace(a), strings.TrimSpace(b), map[string]string{"!=": "!=", "==": "="}[o]
			}
		}
		label, isLabel := strings.CutPrefix(key, "node.labels.")
		switch {
		case isLabel:
			w.Constraints = append(w.Constraints, label+" "+op+" "+value)
		case key == "node.platform.os" && op == "=" && value == "linux":
		default:
			t.note(w.ID, s.at("Constraints"), "%q has no equivalent: set a label (persysctl node label) and write a constraint for it", c)
		}
	}
	for _, p := range s.objects("Preferences") {
		by := p.object("Spread").text("SpreadDescriptor")
		if label, ok := strings.CutPrefix(by, "node.labels."); ok {
			w.Spread = append(w.Spread, spread{By: label, When: "prefer"})
			continue
		}
		t.note(w.ID, p.path, "a spread over %q has no equivalent: set a label (persysctl node label) and spread over it", by)
	}
	switch most := s.number("MaxReplicas"); most {
	case 0:
	case 1:
		w.AntiAffin = append(w.AntiAffin, affinity{Group: w.ID, By: "host", When: "must"})
	default:
		t.note(w.ID, s.at("MaxReplicas"), "a limit of %d replicas per node has no equivalent; a limit of one has (anti_affinity); copies are spread over the nodes anyway", most)
	}
}

func (t *translation) swarmResources(w *workload, s *source) {
	limits, reserved := s.object("Limits"), s.object("Reservations")
	r := &resources{}
	amount := func(key string, form func(int64) string) string {
		limit, asked := limits.number(key), reserved.number(key)
		if limit != 0 && asked != 0 && limit != asked {
			t.note(w.ID, s.at("Reservations."+key), "a workload reserves its limit, so the limit of %s replaces the reservation of %s", form(limit), form(asked))
		}
		if limit == 0 {
			limit = asked
		}
		return form(limit)
	}
	r.CPU = amount("NanoCPUs", func(n int64) string { return millicores((n + 999_999) / 1_000_000) })
	r.Memory = amount("MemoryBytes", mebibytes)
	w.Container.PidsLimit = limits.number("Pids")
	for _, g := range reserved.objects("GenericResources") {
		d := g.object("DiscreteResourceSpec")
		if kind := d.text("Kind"); kind != "" {
			if r.Devices == nil {
				r.Devices = map[string]int64{}
			}
			r.Devices[kind] = d.number("Value")
			t.note(w.ID, g.path, "nodes must offer the devices %s: PERSYS_NODE_DEVICES, or CDI devices of the engine", kind)
		}
	}
	if r.CPU != "" || r.Memory != "" || len(r.Devices) > 0 {
		w.Resources = r
	}
}

func (t *translation) swarmRestart(w *workload, s *source) {
	attempts := s.number("MaxAttempts")
	s.skip("Delay", "Window") // the agent waits longer after each failure
	switch condition := s.text("Condition"); {
	case w.Kind == "job":
		if attempts > 0 {
			w.Job.Retries = &attempts
		}
		return
	case condition == "none":
		w.Container.Restart = "no"
	case condition == "on-failure" && attempts > 0:
		w.Container.Restart = fmt.Sprintf("on-failure:%d", attempts)
		return
	case condition == "on-failure":
		w.Container.Restart = "on-failure"
	default:
		w.Container.Restart = "always"
	}
	if attempts > 0 {
		t.note(w.ID, s.at("MaxAttempts"), "a workload is restarted without a maximum of %d attempts, with growing delays", attempts)
	}
}

func (t *translation) swarmUpdate(w *workload, s *source) {
	if w.Kind == "job" {
		s.skip("Parallelism", "Order", "FailureAction", "Monitor", "Delay", "MaxFailureRatio")
		return
	}
	u := &update{MaxParallel: 1, MinHealthyTime: s.seconds("Monitor")}
	if n, given := s.number("Parallelism"), s.fields["Parallelism"] != nil; given {
		u.MaxParallel = n
	}
	if u.MaxParallel == 0 { // all at once
		u = nil
		s.skip("Order", "FailureAction")
	} else {
		if s.text("Order") == "start-first" {
			if u.Order = "start-first"; len(w.Container.Managed)+len(w.Container.Volumes) > 0 {
				t.note(w.ID, s.at("Order"), "a copy with data on its node stops before the next one starts")
				u.Order = ""
			}
		}
		switch action := s.text("FailureAction"); action {
		case "rollback":
			u.AutoRevert = true
		case "continue":
			t.note(w.ID, s.at("FailureAction"), "an update that fails pauses instead of going on")
		}
	}
	w.Update = u
	if s.has("Delay") {
		t.note(w.ID, s.at("Delay"), "a pause of %s between two copies has no equivalent: the next copy waits until the last one was healthy for min_healthy_time", s.seconds("Delay"))
	}
	s.skip("Delay", "MaxFailureRatio")
}

// capabilities drops the prefix that Linux gives to the names of capabilities.
func capabilities(names []string) (out []string) {
	for _, n := range names {
		out = append(out, strings.TrimPrefix(n, "CAP_"))
	}
	return out
}

func with(m map[string]string, key, value string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	m[key] = value
	return m
}
