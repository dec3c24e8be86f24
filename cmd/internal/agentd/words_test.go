package agentd

import (
	"context"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/compose"
	"github.com/persys/compute/agent/driver/docker"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/spec"
	"github.com/persys/compute/stack"
)

// TestAContainerAndAServiceMeanTheSame runs the same fields of a specification once as a container and once
// as the only service of a Compose stack, and compares the two containers that the engine creates.
func TestAContainerAndAServiceMeanTheSame(t *testing.T) {
	m := newMachine(t)
	tables := map[string]string{
		"own namespaces": `
command: [serve]
environment: {A: one}
ports: ["127.0.0.1:18080:8080", "18081-18082:8081-8082", "[::1]:18083:8083/udp"]
volumes: ["/tmp:/host:ro"]
restart: always
user: "1000:1000"
cap_add: [NET_ADMIN]
cap_drop: [CHOWN]
security_opt: [no-new-privileges=false]
pids_limit: 100
stop_grace_period: 1m30s
stop_signal: SIGQUIT
entrypoint: [/probe]
working_dir: /srv
hostname: db
domainname: example.org
read_only: true
init: true
tty: true
stdin_open: true
tmpfs: ["/run:size=64m,mode=1777", /scratch]
ulimits: {nofile: {soft: 1024, hard: 2048}, nproc: 512}
sysctls: {net.core.somaxconn: "1024"}
shm_size: 128m
devices: ["/dev/null:/dev/nothing:r", /dev/zero]
device_cgroup_rules: ["c 1:3 rwm"]
gpus: [{driver: nvidia, count: 1, capabilities: [utility]}]
group_add: ["44", "45"]
extra_hosts: ["db=10.0.0.5", "six=::1"]
dns: [10.0.0.53, 10.0.0.54]
dns_search: [example.org]
dns_opt: ["ndots:2"]
cgroup: private
cpuset: "0"
cpus: 0.5
mem_limit: 64m
mem_reservation: 32m
memswap_limit: 128m
runtime: runc
logging: {driver: json-file, options: {max-size: 5m}}
labels: {team: web}
annotations: {com.example.owner: web}
oom_score_adj: 100
healthcheck: {test: [CMD, /probe, healthy], interval: 1m, timeout: 10s, start_period: 5s, start_interval: 2s, retries: 5}
expose: ["9000", "9001-9002/udp"]
post_start: [{command: [/probe, healthy], user: "1000"}]
pre_stop: [{command: /probe healthy, environment: {A: two}, working_dir: /srv, privileged: true}]
`,
		"weights and limits": `
cpu_quota: 25000
cpu_period: 50000
cpu_shares: 2048
mem_limit: 64m
mem_swappiness: 10
oom_kill_disable: true
blkio_config: {weight: 300, weight_device: [{path: /dev/null, weight: 200}], device_read_bps: [{path: /dev/null, rate: 1m}], device_read_iops: [{path: /dev/null, rate: 100}], device_write_bps: [{path: /dev/null, rate: 2m}], device_write_iops: [{path: /dev/null, rate: 200}]}
mac_address: 02:42:ac:11:00:77
pull_policy: never
platform: linux/amd64
`,
		"namespaces of the node": "network_mode: host\npid: host\nipc: host\nuts: host\nuserns_mode: host\ncgroup: host\nprivileged: true\nentrypoint: []\ncommand: [/probe, serve]\nhealthcheck: {disable: true}\n",
		"no network":             "network_mode: none\nipc: private\ncgroup_parent: /persystest\nhealthcheck: {test: exit 0}\ntmpfs: /run\n",
		"restart no":             "restart: \"no\"\n",
		"restart on failure":     "restart: on-failure\n",
		"restart three times":    "restart: on-failure:3\n",
		"restart unless stopped": "restart: unless-stopped\n",
		"nothing":                "{}",
	}
	set := map[string]bool{}
	for name, words := range tables {
		t.Run(name, func(t *testing.T) {
			for line := range strings.SplitSeq(words, "\n") {
				if word, _, ok := strings.Cut(line, ":"); ok {
					set[word] = true
				}
			}
			id := m.id(strings.ReplaceAll(name, " ", "-"))
			a := m.made(t, id+"-c", "container:\n  image: "+m.image+"\n"+indented(words, "  "))
			b := m.made(t, id+"-s", "compose:\n  inline: |\n    services:\n      app:\n        image: "+m.image+"\n"+indented(words, "        "))
			for _, part := range []struct {
				name string
				a, b any
			}{{"Config", *a.Config, *b.Config}, {"HostConfig", *a.HostConfig, *b.HostConfig}} {
				va, vb := reflect.ValueOf(part.a), reflect.ValueOf(part.b)
				for i := range va.NumField() {
					x, y := asJSON(t, va.Field(i).Interface()), asJSON(t, vb.Field(i).Interface())
					if x != y {
						t.Errorf("%s.%s is %s of the container, %s of the service", part.name, va.Type().Field(i).Name, x, y)
					}
				}
			}
		})
	}
	all, _ := spec.SchemaFields()
	for _, path := range all {
		word, ok := strings.CutPrefix(path, "spec.container.")
		if !ok || strings.ContainsAny(word, ".[") {
			continue
		}
		switch word { // fields that have another name in Compose, or do not exist there
		case "image", "env", "restart_policy", "stop_grace_period_seconds", "managed_volumes", "env_file", "label_file":
			continue
		case "networks", "endpoint_mode": // networks of a container span nodes, networks of a stack are on one node
			continue
		case "secrets", "configs", "env_secrets", "env_configs", "on_change": // in a container these fields name objects of its namespace, in a stack they do not
			continue
		}
		if !set[word] {
			t.Errorf("no case of the test has the field %s", word)
		}
	}
}

// shown is a driver.Sealer that does not encrypt, so that the test can compare the hooks of two workloads.
type shown struct{}

func (shown) SealSame(plaintext, _ []byte) string          { return string(plaintext) }
func (shown) Open(sealed string, _ []byte) ([]byte, error) { return []byte(sealed), nil }

func indented(text, by string) string {
	if text == "{}" {
		return ""
	}
	return by + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n"+by) + "\n"
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// made creates a workload from a specification file without starting it. It returns the engine's
// description of the container, in which it has removed names and ids.
func (m *machine) made(t *testing.T, id, body string) container.InspectResponse {
	t.Helper()
	docs, err := spec.Parse("t.yaml", []byte("id: "+id+"\n"+body), spec.Options{})
	if err != nil {
		t.Fatal(err)
	}
	spec.Normalise(docs[0].Spec)
	order := spec.ToAgent(&fsm.Workload{ID: id, Content: "c1:" + id}, docs[0].Spec)
	var d interface {
		driver.Driver
		Close() error
	}
	if order.Type == agentv1.WorkloadType_WORKLOAD_TYPE_CONTAINER {
		d, err = docker.New(docker.Options{ClusterID: "words", NodeID: m.node, DaemonConfig: "none", StopGrace: 10 * time.Second, Sealer: shown{}})
	} else {
		d, err = compose.New(compose.Options{ClusterID: "words", NodeID: m.node, DaemonConfig: "none", StopGrace: 10 * time.Second, Sealer: shown{}, Dir: t.TempDir(), Loader: stack.NewLoader(stack.Options{})})
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(func() {
		if err := d.Remove(ctx, driver.ID(id)); err != nil {
			t.Errorf("the removal of %s returned %v", id, err)
		}
		_ = d.Close()
		cancel()
	})
	if err := d.Ensure(ctx, driver.Spec{
		ID: driver.ID(id), Revision: "r", Content: "c1:" + id, ClusterID: "words", NodeID: m.node,
		Generation: driver.Generation{Incarnation: 1, Sequence: 1}, Body: order.Spec,
	}); err != nil {
		t.Fatal(err)
	}
	list, err := m.cli.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("label", driver.LabelWorkload+"="+id)})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("the containers of %s are %v, error %v", id, list.Items, err)
	}
	res, err := m.cli.ContainerInspect(ctx, list.Items[0].ID, client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	in := res.Container
	for k := range in.Config.Labels {
		if strings.HasPrefix(k, driver.LabelPrefix) && k != driver.LabelHooks || strings.HasPrefix(k, "com.docker.compose.") {
			delete(in.Config.Labels, k)
		}
	}
	if strings.HasPrefix(in.ID, in.Config.Hostname) {
		in.Config.Hostname = "" // the engine makes the host name from the container's id
	}
	if in.Config.StopTimeout == nil {
		in.Config.StopTimeout = new(10) // the drivers' default, which compose writes into the container
	}
	if in.HostConfig.RestartPolicy.Name == "" {
		in.HostConfig.RestartPolicy.Name = "no" // to the engine, an empty policy means no
	}
	if len(in.HostConfig.Binds) == 0 {
		in.HostConfig.Binds = nil
	}
	for _, n := range in.NetworkSettings.Networks {
		in.Config.Labels["mac_address"] = n.MacAddress.String() // compared with the labels
	}
	in.Config.Image, in.Config.AttachStdout, in.Config.AttachStderr = "", false, false
	if mode := string(in.HostConfig.NetworkMode); mode != "host" && mode != "none" {
		in.HostConfig.NetworkMode = "" // differs because a stack has a network of its own
	}
	slices.Sort(in.HostConfig.ExtraHosts)
	slices.SortFunc(in.HostConfig.Ulimits, func(a, b *container.Ulimit) int { return strings.Compare(a.Name, b.Name) })
	return in
}
