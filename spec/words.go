package spec

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/compose-spec/compose-go/v2/dotenv"
	composego "github.com/compose-spec/compose-go/v2/types"
	"google.golang.org/protobuf/types/known/durationpb"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/engine"
)

// composeWords returns the fields of a container that have the name and the forms of a field of a Compose service.
// compose-go parses their sizes, durations, hosts and counts. Values that belong to the resources of the workload,
// such as the memory limit, are stored in s and not in c.
func (d *decoder) composeWords(s *controlv1.WorkloadSpec, c *controlv1.ContainerSpec, w string) []field {
	text := func(name string, into *string) field {
		return field{name, w + "." + name, func(_ string, n *node, at where) { *into = d.str(n, at) }}
	}
	flag := func(name string, into *bool) field {
		return field{name, w + "." + name, func(_ string, n *node, at where) { *into = d.boolean(n, at) }}
	}
	list := func(name string, into *[]string) field {
		return field{name, w + "." + name, func(_ string, n *node, at where) { *into = d.wordOrWords(n, at) }}
	}
	table := func(name string, into *map[string]string) field {
		return field{name, w + "." + name, func(_ string, n *node, at where) { *into = d.pairs(n, at, false) }}
	}
	size := func(name string, into *int64) field {
		return field{name, w + "." + name, func(_ string, n *node, at where) { *into = d.bytes(n, at) }}
	}
	number := func(name string, into *int64) field {
		return field{name, w + "." + name, func(_ string, n *node, at where) { *into = d.integer(n, at, 64) }}
	}
	return []field{
		{"entrypoint", w + ".entrypoint", func(_ string, n *node, at where) {
			if c.Entrypoint = d.command(n, at); len(c.Entrypoint) == 0 {
				c.Entrypoint = []string{""}
			}
		}},
		{"env_file", w + ".env_file", func(_ string, n *node, at where) { d.envFile = d.envFiles(n, at) }},
		text("working_dir", &c.WorkingDir),
		text("hostname", &c.Hostname),
		text("domainname", &c.Domainname),
		flag("read_only", &c.ReadOnly),
		{"init", w + ".init", func(_ string, n *node, at where) { c.Init = new(d.boolean(n, at)) }},
		flag("tty", &c.Tty),
		flag("stdin_open", &c.StdinOpen),
		list("tmpfs", &c.Tmpfs),
		{"ulimits", w + ".ulimits", func(_ string, n *node, at where) { c.Ulimits = d.ulimits(n, at) }},
		table("sysctls", &c.Sysctls),
		size("shm_size", &c.ShmSize),
		{"devices", w + ".devices", func(_ string, n *node, at where) {
			d.list(n, at, func(n *node, at where) { c.Devices = append(c.Devices, d.device(n, at)) })
		}},
		list("device_cgroup_rules", &c.DeviceCgroupRules),
		{"gpus", w + ".gpus", func(_ string, n *node, at where) { c.Gpus = d.gpus(n, at) }},
		list("group_add", &c.GroupAdd),
		{"extra_hosts", w + ".extra_hosts", func(_ string, n *node, at where) { c.ExtraHosts = d.hosts(n, at) }},
		list("dns", &c.Dns),
		list("dns_search", &c.DnsSearch),
		list("dns_opt", &c.DnsOpt),
		text("network_mode", &c.NetworkMode),
		text("pid", &c.Pid),
		text("ipc", &c.Ipc),
		text("uts", &c.Uts),
		text("userns_mode", &c.UsernsMode),
		text("cgroup", &c.Cgroup),
		text("cgroup_parent", &c.CgroupParent),
		text("runtime", &c.Runtime),
		text("cpuset", &c.Cpuset),
		{"cpus", "spec.resources.cpu_millicores", func(_ string, n *node, at where) { resourcesOf(s).CpuMillicores = d.cores(n, at) }},
		{"mem_limit", "spec.resources.memory_mb", func(_ string, n *node, at where) {
			resourcesOf(s).MemoryMb = (d.bytes(n, at) + 1<<mib - 1) >> mib
		}},
		{"cpu_quota", "spec.resources.cpu_millicores", func(_ string, n *node, at where) {
			d.cpuQuota = d.integer(n, at, 64)
			if _, rule := engine.CPUTime(0, d.cpuQuota); rule != "" {
				d.fail(n, at, rule, n.text)
			}
		}},
		number("cpu_period", &c.CpuPeriod),
		number("cpu_shares", &c.CpuShares),
		number("mem_swappiness", &c.MemSwappiness),
		flag("oom_kill_disable", &c.OomKillDisable),
		{"blkio_config", w + ".blkio_config", func(_ string, n *node, at where) { c.BlkioConfig = d.blkio(n, at) }},
		text("mac_address", &c.MacAddress),
		text("platform", &c.Platform),
		{"pull_policy", w + ".pull_policy", func(_ string, n *node, at where) {
			if c.PullPolicy = d.str(n, at); c.PullPolicy == "if_not_present" { // Compose's former name of missing
				c.PullPolicy = "missing"
			}
		}},
		{"label_file", w + ".label_file", func(_ string, n *node, at where) { d.labelFile = d.envFiles(n, at) }},
		size("mem_reservation", &c.MemReservation),
		size("memswap_limit", &c.MemswapLimit),
		{"logging", w + ".logging", func(_ string, n *node, at where) { c.Logging = d.logging(n, at) }},
		table("labels", &c.Labels),
		table("annotations", &c.Annotations),
		{"oom_score_adj", w + ".oom_score_adj", func(_ string, n *node, at where) { c.OomScoreAdj = int32(d.integer(n, at, 32)) }},
		{"healthcheck", w + ".healthcheck", func(_ string, n *node, at where) { c.Healthcheck = d.engineCheck(n, at) }},
		list("expose", &c.Expose),
		{"post_start", w + ".post_start", func(_ string, n *node, at where) { c.PostStart = d.hooks(n, at) }},
		{"pre_stop", w + ".pre_stop", func(_ string, n *node, at where) { c.PreStop = d.hooks(n, at) }},
		text("endpoint_mode", &c.EndpointMode),
		{"networks", w + ".networks", func(_ string, n *node, at where) { c.Networks = d.networks(n, at) }},
	}
}

func resourcesOf(s *controlv1.WorkloadSpec) *controlv1.ResourceRequirements {
	if s.Resources == nil {
		s.Resources = &controlv1.ResourceRequirements{}
	}
	return s.Resources
}

// wordOrWords reads a list of strings, or a single string as a list with one entry.
func (d *decoder) wordOrWords(n *node, here where) []string {
	if n.kind == scalar {
		return []string{d.str(n, here)}
	}
	return d.words(n, here)
}

// table reads a mapping whose keys the author chooses, and calls item for each entry.
func (d *decoder) table(n *node, here where, item func(key string, n *node, at where)) {
	if n.probe != nil {
		n.probe.takes(n.kind == mapping, func() object {
			return object{"type": "object", "additionalProperties": d.describe(here.wire+"[]", func(n *node) { item("", n, where{here.wire + "[]", ""}) })}
		})
		return
	}
	if n.kind != mapping {
		d.fail(n, here, "must be a mapping, not "+n.kind.String(), n.text)
		return
	}
	for _, e := range n.own() {
		sub := here.key(e.key)
		d.places[sub.wire] = place{e.value.line, e.value.col, sub.shown}
		item(e.key, e.value, sub)
	}
}

// bytes reads a size as Compose does: a number of bytes, or a number with a unit, such as 64m.
func (d *decoder) bytes(n *node, here where) int64 {
	var v composego.UnitBytes
	text := strings.TrimSpace(d.str(n, here))
	if text == "-1" {
		return -1
	}
	if n.probe == nil && v.DecodeMapstructure(text) != nil {
		d.fail(n, here, "must be bytes, or a number with a unit such as 64m or 1g", n.text)
	}
	return int64(v)
}

// duration reads a duration as Compose does, such as 1m30s.
func (d *decoder) duration(n *node, here where) *durationpb.Duration {
	var v composego.Duration
	text := strings.TrimSpace(d.str(n, here))
	if n.probe == nil && v.DecodeMapstructure(text) != nil {
		d.fail(n, here, "must be a duration with its unit, such as 30s or 1m30s", n.text)
	}
	return durationpb.New(time.Duration(v))
}

func (d *decoder) ulimits(n *node, here where) map[string]*controlv1.Ulimit {
	out := map[string]*controlv1.Ulimit{}
	d.table(n, here, func(name string, n *node, at where) {
		u := &controlv1.Ulimit{}
		if out[name] = u; n.kind == scalar {
			u.Soft = d.integer(n, at, 64)
			u.Hard = u.Soft
			return
		}
		d.object(n, at, []field{
			{"soft", at.wire + ".soft", func(_ string, n *node, at where) { u.Soft = d.integer(n, at, 64) }},
			{"hard", at.wire + ".hard", func(_ string, n *node, at where) { u.Hard = d.integer(n, at, 64) }},
		})
	})
	return out
}

// device reads a device: "/dev/fuse", "/dev/sda:/dev/xvda:rwm", the CDI name of a device, or a mapping.
func (d *decoder) device(n *node, here where) *controlv1.Device {
	out, w := &controlv1.Device{}, here.wire
	if n.kind == mapping {
		d.object(n, here, []field{
			{"source", w + ".source", func(_ string, n *node, at where) { out.Source = d.str(n, at) }},
			{"target", w + ".target", func(_ string, n *node, at where) { out.Target = d.str(n, at) }},
			{"permissions", w + ".permissions", func(_ string, n *node, at where) { out.Permissions = d.str(n, at) }},
		})
		return out
	}
	parts := strings.Split(d.str(n, here), ":")
	if len(parts) > 3 {
		d.fail(n, here, "must be SOURCE[:TARGET[:PERMISSIONS]] or a mapping with source, target and permissions", n.text)
		return out
	}
	for i, into := range []*string{&out.Source, &out.Target, &out.Permissions}[:len(parts)] {
		*into = parts[i]
	}
	return out
}

// gpus reads the field gpus, as in Compose: the word all, or a list of requests for GPUs.
func (d *decoder) gpus(n *node, here where) []*controlv1.DeviceRequest {
	if n.kind == scalar {
		if n.probe == nil && n.text != "all" {
			d.fail(n, here, "must be all, or a list of mappings such as {driver: nvidia, count: 1}", n.text)
		}
		return []*controlv1.DeviceRequest{{Count: -1}}
	}
	var out []*controlv1.DeviceRequest
	d.list(n, here, func(n *node, here where) {
		r, w, counted := &controlv1.DeviceRequest{}, here.wire, false
		d.object(n, here, []field{
			{"driver", w + ".driver", func(_ string, n *node, at where) { r.Driver = d.str(n, at) }},
			{"count", w + ".count", func(_ string, n *node, at where) {
				var v composego.DeviceCount
				text := strings.TrimSpace(d.str(n, at))
				if n.probe == nil && v.DecodeMapstructure(text) != nil {
					d.fail(n, at, "must be a number of devices, or all", n.text)
				}
				r.Count, counted = int64(v), true
			}},
			{"device_ids", w + ".device_ids", func(_ string, n *node, at where) { r.DeviceIds = d.words(n, at) }},
			{"capabilities", w + ".capabilities", func(_ string, n *node, at where) { r.Capabilities = d.words(n, at) }},
			{"options", w + ".options", func(_ string, n *node, at where) { r.Options = d.pairs(n, at, false) }},
		})
		if !counted && len(r.DeviceIds) == 0 {
			r.Count = -1 // the default of Compose
		}
		out = append(out, r)
	})
	return out
}

// hosts reads entries for /etc/hosts: a list of NAME=ADDRESS or NAME:ADDRESS, or a mapping of names to one
// address or several.
func (d *decoder) hosts(n *node, here where) []string {
	var out []string
	add := func(n *node, at where, entry string) {
		hosts, err := composego.NewHostsList([]string{entry})
		if n.probe == nil && err != nil {
			d.fail(n, at, "must be like NAME=10.0.0.5, or NAME=host-gateway for the node", entry)
		}
		out = append(out, hosts.AsList("=")...)
	}
	if n.kind == mapping {
		d.table(n, here, func(name string, n *node, at where) {
			for _, address := range d.wordOrWords(n, at) {
				add(n, at, name+"="+address)
			}
		})
	} else {
		d.list(n, here, func(n *node, at where) { add(n, at, d.str(n, at)) })
	}
	slices.Sort(out)
	return out
}

func (d *decoder) logging(n *node, here where) *controlv1.Logging {
	l := &controlv1.Logging{}
	d.object(n, here, []field{
		{"driver", here.wire + ".driver", func(_ string, n *node, at where) { l.Driver = d.str(n, at) }},
		{"options", here.wire + ".options", func(_ string, n *node, at where) { l.Options = d.pairs(n, at, true) }},
	})
	return l
}

// blkio reads the limits on disk I/O of a service in a Compose file.
func (d *decoder) blkio(n *node, here where) *controlv1.BlkioConfig {
	out, w := &controlv1.BlkioConfig{}, here.wire
	limits := func(name string, into *[]*controlv1.ThrottleDevice) field {
		return field{name, w + "." + name, func(_ string, n *node, at where) {
			d.list(n, at, func(n *node, at where) {
				l := &controlv1.ThrottleDevice{}
				d.object(n, at, []field{
					{"path", at.wire + ".path", func(_ string, n *node, at where) { l.Path = d.str(n, at) }},
					{"rate", at.wire + ".rate", func(_ string, n *node, at where) { l.Rate = d.bytes(n, at) }},
				})
				*into = append(*into, l)
			})
		}}
	}
	d.object(n, here, []field{
		{"weight", w + ".weight", func(_ string, n *node, at where) { out.Weight = int32(d.integer(n, at, 32)) }},
		{"weight_device", w + ".weight_device", func(_ string, n *node, at where) {
			d.list(n, at, func(n *node, at where) {
				l := &controlv1.WeightDevice{}
				d.object(n, at, []field{
					{"path", at.wire + ".path", func(_ string, n *node, at where) { l.Path = d.str(n, at) }},
					{"weight", at.wire + ".weight", func(_ string, n *node, at where) { l.Weight = int32(d.integer(n, at, 32)) }},
				})
				out.WeightDevice = append(out.WeightDevice, l)
			})
		}},
		limits("device_read_bps", &out.DeviceReadBps),
		limits("device_read_iops", &out.DeviceReadIops),
		limits("device_write_bps", &out.DeviceWriteBps),
		limits("device_write_iops", &out.DeviceWriteIops),
	})
	return out
}

// hooks reads commands that run after the start or before the stop of a service in a Compose file.
func (d *decoder) hooks(n *node, here where) (out []*controlv1.Hook) {
	d.list(n, here, func(n *node, at where) {
		h, w := &controlv1.Hook{}, at.wire
		d.object(n, at, []field{
			{"command", w + ".command", func(_ string, n *node, at where) { h.Command = d.command(n, at) }},
			{"user", w + ".user", func(_ string, n *node, at where) { h.User = d.str(n, at) }},
			{"privileged", w + ".privileged", func(_ string, n *node, at where) { h.Privileged = d.boolean(n, at) }},
			{"working_dir", w + ".working_dir", func(_ string, n *node, at where) { h.WorkingDir = d.str(n, at) }},
			{"environment", w + ".environment", func(_ string, n *node, at where) { h.Environment = d.pairs(n, at, true) }},
		})
		out = append(out, h)
	})
	return out
}

// engineCheck reads the health check of a service in a Compose file.
func (d *decoder) engineCheck(n *node, here where) *controlv1.EngineHealthCheck {
	c, w := &controlv1.EngineHealthCheck{}, here.wire
	disable := false
	time := func(name string, into **durationpb.Duration) field {
		return field{name, w + "." + name, func(_ string, n *node, at where) { *into = d.duration(n, at) }}
	}
	d.object(n, here, []field{
		{"test", w + ".test", func(_ string, n *node, at where) {
			if n.kind == scalar {
				c.Test = []string{"CMD-SHELL", d.str(n, at)}
				return
			}
			c.Test = d.words(n, at)
		}},
		time("interval", &c.Interval),
		time("timeout", &c.Timeout),
		time("start_period", &c.StartPeriod),
		time("start_interval", &c.StartInterval),
		{"retries", w + ".retries", func(_ string, n *node, at where) { c.Retries = int32(d.integer(n, at, 32)) }},
		{"disable", w + ".disable", func(_ string, n *node, at where) { disable = d.boolean(n, at) }},
	})
	if disable {
		c.Test = []string{"NONE"}
	}
	return c
}

// envFiles reads the variables (or labels) of files in the form of a .env file. Those in the specification take
// precedence.
func (d *decoder) envFiles(n *node, here where) map[string]string {
	out := map[string]string{}
	read := func(n *node, at where) {
		if n.probe != nil {
			d.str(n, at)
			return
		}
		text := d.readFile(n, at)
		env, err := dotenv.ParseWithLookup(bytes.NewReader([]byte(text)), nil)
		if err != nil {
			d.fail(n, at, "must consist of NAME=value lines", n.text)
		}
		maps.Copy(out, env)
	}
	if n.kind == scalar {
		read(n, here)
	} else {
		d.list(n, here, read)
	}
	return out
}
