package spec

import (
	"bytes"
	"cmp"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	composego "github.com/compose-spec/compose-go/v2/types"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "github.com/persys/compute/api/agent/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/policy"
	"github.com/persys/compute/stack/service"
)

// firstOption is the protobuf number of the first container field that was taken over from Compose services.
const firstOption = 1340

// TestFieldsTakeTheFormsOfCompose: the different forms that Compose allows for the value of a field give the same
// specification of a container.
func TestFieldsTakeTheFormsOfCompose(t *testing.T) {
	for _, c := range []struct{ name, a, b string }{
		{"an entry point", "entrypoint: /bin/sh -c 'a b'", "entrypoint: [/bin/sh, -c, a b]"},
		{"an empty entry point", "entrypoint: []", "entrypoint: \"\""},
		{"one tmpfs", "tmpfs: /run", "tmpfs: [/run]"},
		{"a limit", "ulimits: {nofile: 5}", "ulimits: {nofile: {soft: 5, hard: 5}}"},
		{"sysctls", "sysctls: [net.core.somaxconn=1]", "sysctls: {net.core.somaxconn: 1}"},
		{"a size", "shm_size: 1m", "shm_size: 1048576"},
		{"a device", "devices: [/dev/fuse]", "devices: [{source: /dev/fuse, target: /dev/fuse, permissions: rwm}]"},
		{"GPUs", "gpus: all", "gpus: [{count: all}]"},
		{"all GPUs of one driver", "gpus: [{driver: nvidia}]", "gpus: [{driver: nvidia, count: -1}]"},
		{"hosts", "extra_hosts: ['b:10.0.0.2', 'a=::1']", "extra_hosts: {a: '[::1]', b: [10.0.0.2]}"},
		{"a DNS server", "dns: 10.0.0.1", "dns: [10.0.0.1]"},
		{"a health check", "healthcheck: {test: exit 0, interval: 90s}", "healthcheck: {test: [CMD-SHELL, exit 0], interval: 1m30s}"},
		{"a disabled health check", "healthcheck: {disable: true}", "healthcheck: {test: [NONE]}"},
		{"a range of ports", "ports: ['8000-8001:80-81']", "ports: ['8000:80', '8001:81']"},
		{"a port that is published at one address", "ports: ['127.0.0.1:1:2/udp']", "ports: [{published: 1, target: 2, host_ip: 127.0.0.1, protocol: udp}]"},
		{"a port that is published at an IPv6 address", "ports: ['[::1]:1:2']", "ports: [{host: 1, container: 2, address: '::1'}]"},
		{"a port that is published at every address", "ports: ['0.0.0.0:1:2']", "ports: ['1:2']"},
		{"networks", "networks: [back, front]", "networks: {back: , front: {}}"},
		{"networks with aliases", "networks: {back: {aliases: [b, a]}}", "networks: [{name: back, aliases: [a, b]}]"},
		{"a CPU quota", "cpu_quota: 50000", "cpus: 0.5"},
		{"a CPU quota with a period", "cpu_quota: 20000\n  cpu_period: 10000", "cpus: 2\n  cpu_period: 10000"},
		{"a pull policy", "pull_policy: if_not_present", "pull_policy: missing"},
		{"a rate", "blkio_config: {device_read_bps: [{path: /dev/sda, rate: 1m}]}", "blkio_config: {device_read_bps: [{path: /dev/sda, rate: 1048576}]}"},
		{"a hook", "pre_stop: [{command: drain -t 5, environment: {A: 1}}]", "pre_stop: [{command: [drain, -t, '5'], environment: [A=1]}]"},
		{"a CPU limit", "cpus: 0.5\n  mem_limit: 64m", "cpus: 500m\n  mem_limit: 67108864"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got [2]*controlv1.WorkloadSpec
			for i, words := range []string{c.a, c.b} {
				got[i] = specOf(t, "id: a\ncontainer:\n  image: x\n  "+words+"\n")
				Normalise(got[i])
			}
			if !proto.Equal(got[0], got[1]) {
				t.Errorf("two forms of the same value are parsed differently:\n%s as %v\n%s as %v", c.a, got[0], c.b, got[1])
			}
			if proto.Equal(got[0], specOf(t, "id: a\ncontainer: {image: x}\n")) {
				t.Errorf("the field %s has no effect on the specification", c.a)
			}
		})
	}
}

// TestConflictsOfAContainer: settings that an engine would drop or refuse are refused at apply, with the line.
func TestConflictsOfAContainer(t *testing.T) {
	for _, c := range []struct{ words, want string }{
		{"network_mode: host\n  ports: ['80:80']", "f:5:10: container.ports: has no effect with network_mode: host"},
		{"dns: 10.0.0.1\n  network_mode: none", "f:4:8: container.dns: has no effect with network_mode: none"},
		{"network_mode: container:db", "f:4:17: container.network_mode: must be one of bridge, host, none"},
		{"pid: service:a", "f:4:8: container.pid: must be one of host"},
		{"ipc: host\n  shm_size: 1m", "f:5:13: container.shm_size: has no effect with ipc: host"},
		{"uts: host\n  hostname: a", "f:5:13: container.hostname: cannot be set with uts: host"},
		{"network_mode: host\n  sysctls: {net.core.somaxconn: 1}", "f:5:13: container.sysctls.net.core.somaxconn: must not be set with network_mode: host"},
		{"sysctls: {vm.swappiness: 1}", "container.sysctls.vm.swappiness: is not a kernel parameter that a container can have"},
		{"ulimits: {nofiles: 1}", "f:4:22: container.ulimits.nofiles: is not the name of a limit"},
		{"ulimits: {nofile: {soft: 2, hard: 1}}", "container.ulimits.nofile: soft must be at most hard"},
		{"devices: [fuse]", "f:4:13: container.devices[0]: must begin with an absolute path"},
		{"devices: ['/dev/a:/dev/b:rx']", "container.devices[0]: must have permissions of r, w and m"},
		{"device_cgroup_rules: [all]", "container.device_cgroup_rules[0]: must be like"},
		{"tmpfs: [/run:big=1]", "f:4:11: container.tmpfs[0]: has no option"},
		{"gpus: some", "f:4:9: container.gpus: must be all"},
		{"gpus: [{count: 1, device_ids: [a]}]", "container.gpus[0].device_ids: cannot be set with count"},
		{"extra_hosts: [db]", "container.extra_hosts[0]: must be like"},
		{"extra_hosts: ['db=ten']", "must be like name=10.0.0.5"},
		{"dns: [one]", "container.dns[0]: must be an IP address"},
		{"shm_size: big", "f:4:13: container.shm_size: must be bytes"},
		{"memswap_limit: 64m", "container.memswap_limit: needs mem_limit"},
		{"mem_limit: 64m\n  memswap_limit: 32m", "container.memswap_limit: must be at least mem_limit"},
		{"oom_score_adj: 2000", "container.oom_score_adj: must be -1000 to 1000"},
		{"pids_limit: -2", "container.pids_limit: must be"},
		{"working_dir: srv", "container.working_dir: must be an absolute path"},
		{"hostname: a_b/c", "container.hostname: must be letters"},
		{"logging: {driver: json-file, options: {max-sise: 1m}}", "container.logging.options.max-sise: is not an option of the driver json-file"},
		{"labels: {persys.workload: x}", "container.labels.persys.workload: begins with persys."},
		{"labels: {com.docker.compose.project: x}", "container.labels.com.docker.compose.project: begins with com.docker.compose."},
		{"healthcheck: {test: [curl]}", "container.healthcheck.test: must begin with CMD"},
		{"healthcheck: {interval: 10}", "container.healthcheck.interval: must be a duration"},
		{"healthcheck: {test: a, start_interval: 1s}", "container.healthcheck.start_interval: needs start_period"},
		{"ports: ['10.0.0.1:80:80', '80:81']", "container.ports[1].host_port: is already published by ports[0]"},
		{"networks: [back]\n  network_mode: host", "f:5:17: container.network_mode: cannot be set with networks"},
		{"networks: [back, back]", "f:4:20: container.networks[1]: is listed twice"},
		{"networks: [-a]", "container.networks[0]: must be the name of a network"},
		{"networks: {back: {aliases: [a_/b]}}", "aliases[0]: must be letters"},
		{"cpus: 1\n  cpu_quota: 50000", "container.cpu_quota: is set twice, first as \"container.cpus\""},
		{"cpu_quota: 500", "f:4:14: container.cpu_quota: must be at least 1000"},
		{"cpu_period: 50000", "f:4:15: container.cpu_period: needs a CPU limit"},
		{"cpus: 1\n  cpu_period: 5", "f:5:15: container.cpu_period: must be 1000 to 1000000"},
		{"cpus: 0.01\n  cpu_period: 1000", "f:5:15: container.cpu_period: must be at least 100000 with a limit of 10 millicores"},
		{"blkio_config: {weight: -5}", "container.blkio_config.weight: must be 0 to 1000"},
		{"cpu_shares: -1", "f:4:15: container.cpu_shares: must not be negative"},
		{"mem_swappiness: 101", "container.mem_swappiness: must be -1 to 100"},
		{"mac_address: 02-42", "f:4:16: container.mac_address: must be"},
		{"mac_address: '02:42:ac:11:00:07'\n  network_mode: host", "container.mac_address: has no effect with network_mode: host"},
		{"mac_address: '02:42:ac:11:00:07'\n  networks: [back]", "container.mac_address: cannot be set with networks"},
		{"mac_address: '02:42:ac:11:00:07'\ncount: 2", "container.mac_address: is for one container"},
		{"platform: windows/amd64", "container.platform: must be the platform of a Linux image"},
		{"pull_policy: daily", "container.pull_policy: must be one of always, missing, never"},
		{"post_start: [{user: web}]", "container.post_start[0].command: must not be empty"},
		{"pre_stop: [{command: x, working_dir: y}]", "container.pre_stop[0].working_dir: must be an absolute path"},
		{"pre_stop: [{command: x, image: y}]", "image"},
		{"blkio_config: {weight: 5}", "container.blkio_config.weight: must be 10 to 1000"},
		{"blkio_config: {device_write_bps: [{path: sda, rate: 1}]}", "container.blkio_config.device_write_bps[0].path: must be an absolute path"},
		{"blkio_config: {device_write_bps: [{path: /dev/sda}]}", "container.blkio_config.device_write_bps[0].rate: must be at least 1"},
		{"links: [db]", "f:4:3: container.links: links to other containers do not exist: join a network"},
		{"isolation: process", "container.isolation: is for Windows"},
		{"cpus: 1\nresources: {cpu: 2}", "resources.cpu: is set twice, first as \"container.cpus\""},
	} {
		_, err := Parse("f", []byte("id: a\ncontainer:\n  image: x\n  "+c.words+"\n"), Options{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("a container with %q returned error %v, want an error that contains %s", c.words, err, c.want)
		}
	}
	if _, err := Parse("f", []byte("id: a\ncontainer: {image: x, ports: ['127.0.0.1:80:80', '127.0.0.2:80:81']}\n"), Options{}); err != nil {
		t.Errorf("a container that publishes the same port at two addresses must be accepted, but was refused: %v", err)
	}
}

// every returns a container in which field f is set.
func every(t *testing.T, f protoreflect.FieldDescriptor) *controlv1.WorkloadSpec {
	t.Helper()
	c := &controlv1.ContainerSpec{Image: "x"}
	m := c.ProtoReflect()
	switch {
	case f.IsMap() && f.MapValue().Message() != nil:
		m.Mutable(f).Map().Set(protoreflect.ValueOfString("nofile").MapKey(), protoreflect.ValueOfMessage((&controlv1.Ulimit{Soft: 1}).ProtoReflect()))
	case f.IsMap():
		m.Mutable(f).Map().Set(protoreflect.ValueOfString("k").MapKey(), protoreflect.ValueOfString("v"))
	case f.IsList() && f.Message() != nil:
		m.Mutable(f).List().AppendMutable()
	case f.IsList():
		m.Mutable(f).List().Append(protoreflect.ValueOfString("w"))
	case f.Message() != nil:
		m.Mutable(f)
	case f.Name() == "on_change":
		m.Set(f, protoreflect.ValueOfString("nothing"))
	case f.Kind() == protoreflect.BoolKind:
		m.Set(f, protoreflect.ValueOfBool(true))
	case f.Kind() == protoreflect.Int64Kind:
		m.Set(f, protoreflect.ValueOfInt64(7))
	case f.Kind() == protoreflect.Int32Kind:
		m.Set(f, protoreflect.ValueOfInt32(7))
	default:
		m.Set(f, protoreflect.ValueOfString("w"))
	}
	return &controlv1.WorkloadSpec{Type: TypeContainer, Workload: &controlv1.WorkloadSpec_Container{Container: c}}
}

// TestEveryFieldIsInTheContentAndInTheOrder: setting any field that was taken over from Compose changes the
// content hash of a container, and the order to the agent contains the field.
func TestEveryFieldIsInTheContentAndInTheOrder(t *testing.T) {
	plain := &controlv1.WorkloadSpec{Type: TypeContainer, Workload: &controlv1.WorkloadSpec_Container{Container: &controlv1.ContainerSpec{Image: "x"}}}
	before, order := contentOf(t, plain), agentContainer(plain)
	fields := plain.GetContainer().ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.Number() < firstOption {
			continue
		}
		s := every(t, f)
		out := agentContainer(s)
		with := &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Container{Container: out}}
		if err := AddObjects(with, s, func(string, string) (ObjectValue, error) { return ObjectValue{Data: []byte("value")}, nil }); err != nil {
			t.Error(err)
		}
		if proto.Equal(out, order) && f.Name() != "on_change" && f.Name() != "endpoint_mode" { // agents do not get these two
			t.Errorf("the field %s of a container is missing in the order for the agent", f.Name())
		}
		if f.Name() == "logging" {
			s.GetContainer().Logging.Driver = "local"
		}
		if contentOf(t, s) == before {
			t.Errorf("a change of the field %s must change the content hash of the container, but does not", f.Name())
		}
	}
	check := func(d time.Duration) *controlv1.WorkloadSpec {
		s := proto.CloneOf(plain)
		s.GetContainer().Healthcheck = &controlv1.EngineHealthCheck{Interval: durationpb.New(d)}
		return s
	}
	if contentOf(t, check(time.Second)) == contentOf(t, check(2*time.Second)) {
		t.Error("a change of a health check's interval must change the content hash, but does not")
	}
}

// TestEveryKeyOfAServiceIsKnown: every key of a Compose service, as the library has it, is a field of a container or is
// refused with a reason that says what to write instead.
func TestEveryKeyOfAServiceIsKnown(t *testing.T) {
	elsewhere := map[string]string{ // key in Compose: field of the specification
		"name": "spec.container", "restart": "spec.container.restart_policy", "environment": "spec.container.env", "stop_grace_period": "spec.container.stop_grace_period_seconds",
		"cpus": "spec.resources.cpu_millicores", "cpu_quota": "spec.resources.cpu_millicores", "mem_limit": "spec.resources.memory_mb",
	}
	fields, _ := SchemaFields()
	refused := service.NotOfAContainer()
	of := reflect.TypeFor[composego.ServiceConfig]()
	for i := range of.NumField() {
		key, _, _ := strings.Cut(of.Field(i).Tag.Get("yaml"), ",")
		if key == "-" || strings.HasPrefix(key, "#") {
			continue
		}
		field := cmp.Or(elsewhere[key], "spec.container."+key)
		switch known, why := slices.Contains(fields, field), refused[key]; {
		case known && why != "":
			t.Errorf("the Compose key %s is both a field of a container and in the list of refused keys", key)
		case !known && why == "":
			t.Errorf("the key %s of Compose is neither a field of a container nor in service.NotOfAContainer", key)
		}
		delete(refused, key)
	}
	delete(refused, "pull_refresh_after") // in the schema of Compose, but not in the library's type
	for key := range refused {
		t.Errorf("the list of refused keys has %s, but Compose has no such key", key)
	}
}

// TestOptionsOfALogDriverAreSealed: the options of a log driver, which often hold a token, are sealed in the
// stored specification and hidden in answers to users.
func TestOptionsOfALogDriverAreSealed(t *testing.T) {
	s := specOf(t, "id: a\ncontainer: {image: x, logging: {driver: splunk, options: {splunk-token: hunter2}}}\n")
	Normalise(s)
	stored, err := Seal("a", s, fixedKey{})
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(stored, []byte("hunter2")) {
		t.Error("the stored specification has the token of the log driver in plain text")
	}
	if v := Redact(s).GetContainer().GetLogging().GetOptions()["splunk-token"]; v != "***" {
		t.Errorf("a view shows the value %q of the log option, want ***", v)
	}
}

// TestFieldsThatGiveRightsAreAsks: for every field by which a container gets access to its node, the specification must
// have an ask (a right that policies allow or refuse).
func TestFieldsThatGiveRightsAreAsks(t *testing.T) {
	for words, want := range map[string]policy.Ask{
		"network_mode: host":                         {Rule: policy.RuleHostNS, Value: "network", Field: "container.network_mode"},
		"pid: host":                                  {Rule: policy.RuleHostNS, Value: "pid", Field: "container.pid"},
		"ipc: host":                                  {Rule: policy.RuleHostNS, Value: "ipc", Field: "container.ipc"},
		"uts: host":                                  {Rule: policy.RuleHostNS, Value: "uts", Field: "container.uts"},
		"userns_mode: host":                          {Rule: policy.RuleHostNS, Value: "user", Field: "container.userns_mode"},
		"cgroup: host":                               {Rule: policy.RuleHostNS, Value: "cgroup", Field: "container.cgroup"},
		"devices: [/dev/fuse]":                       {Rule: policy.RuleDevice, Value: "/dev/fuse", Field: "container.devices[0]"},
		"device_cgroup_rules: [a *:* rwm]":           {Rule: policy.RuleDevice, Value: "rule a *:* rwm", Field: "container.device_cgroup_rules[0]"},
		"gpus: all":                                  {Rule: policy.RuleDevice, Value: "gpu", Field: "container.gpus[0]"},
		"sysctls: {net.core.somaxconn: 1}":           {Rule: policy.RuleSecurity, Value: "sysctl=net.core.somaxconn", Field: "container.sysctls.net.core.somaxconn"},
		"annotations: {a: b}":                        {Rule: policy.RuleSecurity, Value: "annotation=a", Field: "container.annotations.a"},
		"runtime: runsc":                             {Rule: policy.RuleSecurity, Value: "runtime=runsc", Field: "container.runtime"},
		"cgroup_parent: /x":                          {Rule: policy.RuleSecurity, Value: "cgroup-parent=/x", Field: "container.cgroup_parent"},
		"logging: {driver: syslog}":                  {Rule: policy.RuleSecurity, Value: "log-driver=syslog", Field: "container.logging.driver"},
		"oom_score_adj: -5":                          {Rule: policy.RuleSecurity, Value: "oom-score-adj=-5", Field: "container.oom_score_adj"},
		"cpu_shares: 4096":                           {Rule: policy.RuleSecurity, Value: "cpu-shares=4096", Field: "container.cpu_shares"},
		"pre_stop: [{command: x, privileged: true}]": {Rule: policy.RulePrivileged, Value: "true", Field: "container.pre_stop[0].privileged"},
		"post_start: [{command: x, user: root}]":     {Rule: policy.RuleUser, Value: "root", Field: "container.post_start[0].user"},
		"blkio_config: {weight: 900}":                {Rule: policy.RuleSecurity, Value: "blkio-weight=900", Field: "container.blkio_config"},
		"mac_address: 02:42:ac:11:00:07":             {Rule: policy.RuleSecurity, Value: "mac-address=02:42:ac:11:00:07", Field: "container.mac_address"},
		"oom_kill_disable: true":                     {Rule: policy.RuleSecurity, Value: "oom-kill-disable=true", Field: "container.oom_kill_disable"},
		"group_add: [docker]":                        {Rule: policy.RuleUser, Value: "docker", Field: "container.group_add[0]"},
		"ports: ['127.0.0.1:80:80']":                 {Rule: policy.RulePort, Value: "127.0.0.1|80/tcp", Field: "container.ports[0]"},
	} {
		s := specOf(t, "id: a\ncontainer:\n  image: x\n  "+words+"\n")
		Normalise(s)
		if got := asksOf("a", s); !slices.Contains(got, want) {
			t.Errorf("a container with %s has the asks %v, want also %v", words, got, want)
		}
	}
}

// TestEnvFile: the variables of env_file are read when the specification is parsed, on the author's machine.
func TestEnvFile(t *testing.T) {
	read := func(string) ([]byte, error) { return []byte("A=one\nB=two # comment\n"), nil }
	docs, err := Parse("f", []byte("id: a\ncontainer: {image: x, env_file: web.env, env: {A: own}}\n"), Options{ReadFile: read})
	if err != nil {
		t.Fatal(err)
	}
	if env := docs[0].Spec.GetContainer().GetEnv(); env["A"] != "own" || env["B"] != "two" {
		t.Errorf("the container has the environment %v, want the variables of env_file and env", env)
	}
}
