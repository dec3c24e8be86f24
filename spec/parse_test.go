package spec

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/spec/quantity"
)

var update = flag.Bool("update", false, "rewrite golden files")

func parseOne(t *testing.T, text string) *controlv1.ApplyWorkloadRequest {
	t.Helper()
	got, err := Parse("t.yaml", []byte(text), Options{})
	if err != nil {
		t.Fatalf("Parse must accept this file, but returned %v:\n%s", err, text)
	}
	if len(got) != 1 {
		t.Fatalf("Parse returned %d requests, want 1", len(got))
	}
	return got[0]
}

const everyField = `
id: web
type: container
desired: stopped
revision: r7
resources: {cpu: 0.25, memory: 1Gi, disk: 2GB, storage_pool: fast}
container:
  image: nginx:1.27
  command: sh -c 'echo "a b"'
  env: {A: 1, B: true, C: "x y", D: }
  ports:
    - 8080:80
    - "53:53/udp"
    - "9000"
    - {host: 443, container: 8443, protocol: tcp}
  volumes:
    - /h:/c:ro
    - {source: /s, target: /t}
  restart: always
  privileged: true
  managed_volumes:
    - {name: data, driver: nfs, size: 10Gi, path: /data, retain: Retain}
metadata: {app: web}
labels: {zone: a}
group: front
constraints:
  - region = eu
  - disk in (ssd, nvme)
  - gpu exists
  - {key: arch, op: "!=", value: arm}
tolerations: [dedicated, "team=a:NoSchedule"]
exclusive: true
on_lost_lease: stop
priority: -5
`

const everyFieldWire = `{"workload_id":"web","revision_id":"r7","desired_state":"stopped","spec":{"type":"container",
"resources":{"cpu_millicores":"250","memory_mb":"1024","disk_gb":"2","storage_pool":"fast"},
"container":{"image":"nginx:1.27","command":["sh","-c","echo \"a b\""],
"env":{"A":"1","B":"true","C":"x y","D":""},
"ports":[{"host_port":8080,"container_port":80},{"host_port":53,"container_port":53,"protocol":"udp"},{"container_port":9000},{"host_port":443,"container_port":8443,"protocol":"tcp"}],
"volumes":[{"host_path":"/h","container_path":"/c","read_only":true},{"host_path":"/s","container_path":"/t"}],
"restart_policy":"always","privileged":true,
"managed_volumes":[{"name":"data","driver":"nfs","size_gb":"10","mount_path":"/data","retain_policy":"Retain"}]},
"metadata":{"app":"web"},"labels":{"zone":"a"},"group":"front",
"constraints":[{"key":"region","operator":"=","values":["eu"]},{"key":"disk","operator":"in","values":["ssd","nvme"]},{"key":"gpu","operator":"exists"},{"key":"arch","operator":"!=","values":["arm"]}],
"tolerations":[{"key":"dedicated"},{"key":"team","value":"a","effect":"NoSchedule"}],
"exclusive":true,"on_lost_lease":"stop","priority":-5}}`

func requestOf(t *testing.T, text string) *controlv1.ApplyWorkloadRequest {
	t.Helper()
	req := &controlv1.ApplyWorkloadRequest{}
	if err := protojson.Unmarshal([]byte(text), req); err != nil {
		t.Fatal(err)
	}
	return req
}

func same(t *testing.T, got, want proto.Message) {
	t.Helper()
	if !proto.Equal(got, want) {
		t.Errorf("Parse returned\n     %v\nwant %v", protojson.Format(got), protojson.Format(want))
	}
}

func TestFlatAndWireFormsAgree(t *testing.T) {
	want := requestOf(t, everyFieldWire)
	t.Run("YAML with flat fields", func(t *testing.T) { same(t, parseOne(t, everyField), want) })
	t.Run("JSON in snake case", func(t *testing.T) { same(t, parseOne(t, everyFieldWire), want) })
	t.Run("JSON as protobuf writes it", func(t *testing.T) {
		same(t, parseOne(t, "\t"+protojson.MarshalOptions{Multiline: true, Indent: "\t"}.Format(want)), want)
	})
	t.Run("an environment as a list", func(t *testing.T) {
		text := strings.Replace(everyField, `{A: 1, B: true, C: "x y", D: }`, `[A=1, B=true, "C=x y", D=]`, 1)
		same(t, parseOne(t, text), want)
	})
}

func TestEveryFieldOfTheWireHasAName(t *testing.T) {
	// known holds the names of the fields that the decoder of files reads. It must contain every field of a
	// specification in the API.
	known := map[string]bool{}
	d := &decoder{places: map[string]place{}, seen: map[string]string{}}
	for _, f := range d.specFields(&controlv1.WorkloadSpec{}, &arms{}) {
		for _, n := range strings.Fields(f.names) {
			known[n] = true
		}
	}
	fields := (&controlv1.WorkloadSpec{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		if name := string(fields.Get(i).Name()); !known[name] {
			t.Errorf("the field WorkloadSpec.%s must be settable in a file, but is not", name)
		}
	}
}

func TestOtherFormsOfADocument(t *testing.T) {
	t.Run("a document contains a Compose file", func(t *testing.T) {
		req := parseOne(t, "id: s\ncompose:\n  git: https://example.com/a.git#main\n  env: [A=b]\n")
		same(t, req.Spec.GetCompose(), &controlv1.ComposeSpec{SourceType: "git", GitRepo: "https://example.com/a.git", GitRef: "main", Env: map[string]string{"A": "b"}})
		req = parseOne(t, "id: s\ncompose:\n  git: {repo: 'git@example.com:a/b.git', ref: v1}\n")
		same(t, req.Spec.GetCompose(), &controlv1.ComposeSpec{SourceType: "git", GitRepo: "git@example.com:a/b.git", GitRef: "v1"})
	})
	t.Run("a document names a Compose file in a Git repository on the node", func(t *testing.T) {
		req := parseOne(t, "id: s\ncompose:\n  git: {repo: 'file:///srv/s.git', credentials: team}\n")
		same(t, req.Spec.GetCompose(), &controlv1.ComposeSpec{SourceType: "git", GitRepo: "file:///srv/s.git", GitCredentials: "team"})
	})
	t.Run("a document describes a virtual machine", func(t *testing.T) {
		req := parseOne(t, "id: v\nvm:\n  cpus: 2\n  memory: 2Gi\n  image: /i.qcow2\n  disks: [{size: 10Gi}, {device: vdc}]\n  networks: [br0, {network: lan, ip: 10.0.0.5}]\n  cloud_init: |\n    #cloud-config\n    a: b\n")
		same(t, req.Spec.GetVm(), &controlv1.VMSpec{Vcpus: 2, MemoryMb: 2048, OsImage: "/i.qcow2",
			Disks:     []*controlv1.DiskConfig{{SizeGb: 10}, {MountPoint: "vdc"}},
			Networks:  []*controlv1.NetworkConfig{{Bridge: "br0", Dhcp: true}, {Bridge: "lan", StaticIp: "10.0.0.5"}},
			CloudInit: &controlv1.CloudInitConfig{UserData: "#cloud-config\na: b\n"}})
	})
	t.Run("a document describes a virtual machine with a login and a storage pool", func(t *testing.T) {
		req := parseOne(t, "id: v\nvm:\n  cpus: 1\n  memory: 1Gi\n  disks: [{size: 1Gi, pool: fast}]\n  login: {user: ops, ssh_keys: ['ssh-ed25519 AAAA me']}\n")
		same(t, req.Spec.GetVm(), &controlv1.VMSpec{Vcpus: 1, MemoryMb: 1024, Disks: []*controlv1.DiskConfig{{SizeGb: 1, PoolName: "fast"}},
			Login: &controlv1.VMLogin{User: "ops", SshAuthorizedKeys: []string{"ssh-ed25519 AAAA me"}}})
		sent := agentVM("v", req.Spec)
		if d := sent.GetDisks()[0]; d.GetPool() != "fast" || d.GetPath() != "" {
			t.Errorf("the agent gets the disk %v, want a disk in the storage pool and without a path", d)
		}
		if sent.GetLogin().GetUser() != "ops" {
			t.Errorf("the agent gets the login %v, want user ops", sent.GetLogin())
		}
	})
	t.Run("a document has only a desired state", func(t *testing.T) {
		req := parseOne(t, "id: web\ndesired: stop\n")
		if req.Spec != nil || req.DesiredState != "stop" {
			t.Errorf("Parse returned the request %v, want no specification and the desired state stop", req)
		}
	})
	t.Run("a document has anchors and merge keys", func(t *testing.T) {
		text := "id: a\ncontainer: &c\n  image: x\n  env: &e {A: one, B: two}\n---\nid: b\ncontainer:\n  image: y\n  env:\n    <<: &d {A: base, C: three}\n    A: own\n"
		got, err := Parse("t", []byte(text), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if env := got[1].Spec.GetContainer().Env; len(env) != 2 || env["A"] != "own" || env["C"] != "three" {
			t.Errorf("the merged environment is %v, want A=own and C=three only", env)
		}
		env := parseOne(t, "id: a\ncontainer:\n  image: x\n  env:\n    <<: {A: base, <<: {A: below, B: two}}\n    C: own\n").Spec.GetContainer().Env
		if len(env) != 3 || env["A"] != "base" || env["B"] != "two" || env["C"] != "own" {
			t.Errorf("the environment from a mapping that itself has merge keys is %v, want the merged variables", env)
		}
	})
	t.Run("a document names a Compose file beside it", func(t *testing.T) {
		read := func(p string) ([]byte, error) {
			if p == "stack.yml" {
				return []byte("services: {a: {image: x}}"), nil
			}
			return nil, os.ErrNotExist
		}
		got, err := Parse("t", []byte("id: s\ncompose: {file: stack.yml}\n"), Options{ReadFile: read})
		if err != nil || got[0].Spec.GetCompose().InlineYaml != "services: {a: {image: x}}" {
			t.Errorf("Parse of a document that names stack.yml returned the requests %v and error %v, want the text of stack.yml as the Compose file", got, err)
		}
		_, err = Parse("t", []byte("id: s\ncompose: {file: no.yml}\n"), Options{ReadFile: read})
		if err == nil || !strings.Contains(err.Error(), "cannot be read") {
			t.Errorf("Parse with a missing file returned %v, want that the file cannot be read", err)
		}
	})
	t.Run("a file has several documents, a byte order mark, comments and end marks", func(t *testing.T) {
		got, err := Parse("t", []byte("\ufeff# c\n---\n- {id: a, desired: stop}\n- {id: b, desired: stop}\n...\n--- {id: c, desired: stop}\n---\n"), Options{})
		if err != nil || len(got) != 3 || got[2].WorkloadId != "c" {
			t.Errorf("Parse returned the requests %v and error %v; want 3 requests, the last for workload c", got, err)
		}
	})
}

func TestParseErrors(t *testing.T) {
	container := func(line string) string { return "id: web\ncontainer:\n  image: nginx\n  " + line + "\n" }
	vm := func(line string) string { return "id: vm\nvm:\n  cpus: 1\n  memory: 1Gi\n  " + line + "\n" }
	cases := []struct{ name, text, want string }{
		{"an unknown field", "id: web\ncontainer:\n  imge: nginx\n", `t.yaml:3:3: container: unknown field "imge", did you mean "image"?`},
		{"an unknown field at the top level", "id: web\ncontaner: {}\n", `t.yaml:2:1: unknown field "contaner", did you mean "container"?`},
		{"an unknown field without a similar name", "id: web\nqqqqqq: 1\n", `t.yaml:2:1: unknown field "qqqqqq"`},
		{"an unknown field in wire form", `{"workload_id":"w","spec":{"containr":{}}}`, `t.yaml:1:28: spec: unknown field "containr", did you mean "container"?`},
		{"syntax", "id: web\ncontainer: [\n", `t.yaml:2:12: not valid YAML or JSON`},
		{"Latin-1", "id: web\ncontainer: {env: {N: caf\xe9}}\n", `t.yaml:2:25: is not UTF-8: byte 0xe9; convert the file, for example: iconv -f ISO-8859-1 -t UTF-8`},
		{"UTF-16", "\xff\xfei\x00d\x00", `t.yaml:1:1: is UTF-16`},
		{"UTF-16 without a byte order mark", "i\x00d\x00", `t.yaml:1:2: contains a NUL byte`},
		{"two merge keys in one mapping", container("env:\n    <<: {A: b}\n    <<: {C: d}"), `t.yaml:6:5: << is set twice, first on line 5; merge several mappings as a list`},
		{"a range of host ports for one container port", container(`ports: ["9000-9002:80"]`), `t.yaml:4:11: container.ports[0]: must not have several host ports for one port of the container`},
		{"a health check whose command names no program", container("user: a\nhealth_check: {command: [\"\"]}"), `t.yaml:5:25: health_check.command: must begin with a program`},
		{"a negative UID", container(`user: "-1"`), `t.yaml:4:9: container.user: must have a UID or GID of 0 to 2147483647`},
		{"a volume with an unsupported file system", container("managed_volumes: [{name: d, size: 1Gi, path: /d, fs_type: fat}]"), `container.managed_volumes[0].fs_type: must be one of ext4, xfs`},
		{"a volume of ceph without a size", container("managed_volumes: [{name: d, driver: ceph-rbd, path: /d}]"), `must be set: a volume of a virtual machine or of ceph-rbd`},
		{"a disk whose device name is no name of a disk", vm("disks: [{size: 1Gi, device: data1}]"), `t.yaml:5:31: vm.disks[0].device: must be a device name such as vda`},
		{"a virtual machine with a multicast IP address", vm("networks: [{network: lan, ip: 224.0.0.1}]"), `t.yaml:5:33: vm.networks[0].ip: must be the address of one machine`},
		{"two network cards with the same IP address", vm("networks: [{network: lan, ip: 10.0.0.5}, {network: lan, ip: 10.0.0.5/24}]"), `vm.networks[1].ip: is already the address of`},
		{"several virtual machines with the same IP address", vm("networks: [{network: lan, ip: 10.0.0.5}]\ncount: 2"), `is for one machine, and count makes 2`},
		{"two network cards with the same Ethernet address", vm("networks:\n    - {network: lan, mac: 52:54:00:00:00:01}\n    - {network: lan, mac: 52-54-00-00-00-01}"), `t.yaml:7:27: vm.networks[1].mac: is already the address of`},
		{"several virtual machines with the same Ethernet address", vm("networks: [{network: lan, mac: 52:54:00:00:00:01}]\ncount: 2"), `t.yaml:5:34: vm.networks[0].mac: is for one machine, and count makes 2`},
		{"a multicast Ethernet address", vm("networks: [{network: lan, mac: 01:00:5e:00:00:01}]"), `t.yaml:5:34: vm.networks[0].mac: is a multicast address`},
		{"an Ethernet address of zero", vm("networks: [{network: lan, mac: 00:00:00:00:00:00}]"), `t.yaml:5:34: vm.networks[0].mac: must not be zero`},
		{"a text that is no Ethernet address", vm("networks: [{network: lan, mac: 52:54}]"), `t.yaml:5:34: vm.networks[0].mac: must be like 52:54:00:12:34:56, got "52:54"`},
		{"a volume of a virtual machine without a size", vm("managed_volumes: [{name: d, path: /d}]"), `vm.managed_volumes[0].size_gb: must be set`},
		{"a private SSH key in place of a public key", vm("login: {user: ops, ssh_keys: [\"-----BEGIN OPENSSH PRIVATE KEY-----\"]}"), `this is a private key: never send it`},
		{"an invalid name of an environment variable", "id: web\ncontainer:\n  image: x\n  env:\n    A: b\n    \"C D\": e\n", `t.yaml:6:5: container.env.C D: names must be`},
		{"a document that is a scalar", "hello\n", `t.yaml:1:1: must be a mapping, not a value, got "hello"`},
		{"a file with only a comment", "# only a comment\n", `t.yaml: contains no workload`},
		{"an empty specification", "id: web\nspec: {}\n", `t.yaml:2:7: spec: is empty`},
		{"a document without an id", "container: {image: x}\n", `t.yaml:1:1: workload_id: must not be empty`},
		{"an invalid id", "id: -web\ncontainer: {image: x}\n", `t.yaml:1:5: id: must be a letter or digit`},
		{"a misspelt desired state", "id: web\ndesired: runing\n", `t.yaml:2:10: desired: must be running, stopped or deleted, got "runing", did you mean "running"?`},
		{"an id set under two names", "id: web\nworkload_id: x\ndesired: stop\n", `t.yaml:2:1: workload_id: is set twice, first as "id"`},
		{"the same key twice", "id: web\nid: x\ndesired: stop\n", `t.yaml:2:1: id: is set twice`},
		{"both container and vm", "id: w\ncontainer: {image: x}\nvm: {cpus: 1, memory: 1Gi}\n", `t.yaml:3:6: vm: only one of container, compose and vm`},
		{"a type vm in a document with a container", "id: w\ntype: vm\ncontainer: {image: x}\n", `t.yaml:2:7: type: does not match the given alternative, which is container, got "vm"`},
		{"a misspelt type", "id: w\ntype: containr\ncontainer: {image: x}\n", `type: must be container, compose or vm, got "containr", did you mean "container"?`},
		{"a CPU amount that is no number", "id: w\nresources: {cpu: lots}\ncontainer: {image: x}\n", `t.yaml:2:18: resources.cpu: must be cores such as`},
		{"a fraction of a millicore", "id: w\nresources: {cpu: 0.0001}\ncontainer: {image: x}\n", `whole millicores`},
		{"a negative CPU amount", "id: w\nresources: {cpu: -1}\ncontainer: {image: x}\n", `t.yaml:2:18: resources.cpu: must be 0 to 1024000 millicores, got "-1000"`},
		{"memory without a unit", "id: w\nresources: {memory: 128}\ncontainer: {image: x}\n", `t.yaml:2:21: resources.memory: needs a unit, such as "128Mi", got "128"`},
		{"memory above the limit", "id: w\nresources: {memory: 100Pi}\ncontainer: {image: x}\n", `resources.memory: must be 0 to 67108864 MiB`},
		{"an invalid image in the second document", container("") + "# x\n---\nid: b\ncontainer: {image: 'UPPER case'}\n", `t.yaml:8:20: container.image: is no image reference`},
		{"a port above 65535", container("ports: ['70000:80']"), `t.yaml:4:11: container.ports[0].host_port: must be 0 to 65535`},
		{"a port above 65535 that is published at one address", container("ports: ['127.0.0.1:70000:80']"), `t.yaml:4:11: container.ports[0]: port 70000 must be at most 65535`},
		{"a port above 65535 in a range", container("ports: ['[::1]:8000-70001:80']"), `t.yaml:4:11: container.ports[0]: port 70001 must be at most 65535`},
		{"a port range without an end", container("ports: ['127.0.0.1:8000-:80']"), `t.yaml:4:11: container.ports[0]: must be "host:container"`},
		{"a port above 65535 in a document with another fault", "id: a b\ncontainer: {image: x, ports: ['70000:80/udp']}\n", `t.yaml:1:5: id: must be`},
		{"a port that is no number", container("ports: [http]"), `t.yaml:4:11: container.ports[0]: must be "host:container"`},
		{"a port with an invalid address", container(`ports: [{host: 80, container: 80, address: web}]`), `container.ports[0].address: must be an IP address of the node`},
		{"the same host port twice", container("ports: ['80:80', '80:81']"), `container.ports[1]`},
		{"a misspelt protocol", container("ports: ['80:80/tpc']"), `must be one of tcp, udp, got "tpc", did you mean "tcp"?`},
		{"a restart policy always with a number of restarts", container("restart: always:3"), `t.yaml:4:12: container.restart: must not have a number, which is for on-failure only: write always, got "always:3"`},
		{"a misspelt restart policy", container("restart: allways"), `t.yaml:4:12: container.restart: must be one of no, always, on-failure, unless-stopped, got "allways", did you mean "always"?`},
		{"a stop grace period above the maximum", container("stop_grace_period: 11m"), `container.stop_grace_period: must be 0 to 600, the maximum in any cluster`},
		{"a stop grace period without a unit", container("stop_grace_period: 90"), `t.yaml:4:22: container.stop_grace_period: must be whole seconds such as 10s or 1m`},
		{"an unknown mode of a port", container("ports: [{published: 80, target: 80, mode: vip}]"), `container.ports[0].mode: must be one of host, ingress, got "vip"`},
		{"a port in ingress mode without a host port", container("ports: [{target: 80, mode: ingress}]"), `container.ports[0]`},
		{"a port in ingress mode at one address", container("ports: [{published: 80, target: 80, mode: ingress, host_ip: 10.0.0.1}]"), `is only for mode host: in mode ingress, all addresses of all nodes answer, got "10.0.0.1"`},
		{"a port in ingress mode with the network of the node", container("ports: [{published: 80, target: 80, mode: ingress}]\n  network_mode: host"), `container.network_mode: cannot be set with ports of mode ingress`},
		{"a job with a port in ingress mode", "id: a\nkind: job\ncontainer: {image: x, ports: [{published: 80, target: 80, mode: ingress}]}\n", `must not have mode ingress in a job`},
		{"an unknown endpoint mode", container("networks: [back]\n  endpoint_mode: dns"), `container.endpoint_mode: must be one of vip, dnsrr, got "dns"`},
		{"an endpoint mode without networks", container("endpoint_mode: dnsrr"), `t.yaml:4:18: container.endpoint_mode: is only for containers with networks`},
		{"a stop grace period of zero", container("stop_grace_period: 0s"), `must be at least 1s; to kill the container at once: stop_signal: SIGKILL`},
		{"an unknown stop signal", container("stop_signal: SIGTREM"), `container.stop_signal: must be a signal of Linux, such as SIGTERM, SIGQUIT or 15, got "SIGTREM"`},
		{"a bind mount without a path in the container", container("volumes: [data]"), `t.yaml:4:13: container.volumes[0]: must be "/host/path:/container/path"`},
		{"a bind mount with a relative path on the host", container("volumes: ['data:/c']"), `must be an absolute path, got "data"`},
		{"two bind mounts at one path of the container", container("volumes: ['/a:/c', '/b:/c/']"), `is already mounted by`},
		{"a boolean field with the value yes", container("privileged: yes"), `t.yaml:4:15: container.privileged: must be true or false, got "yes"`},
		{"an environment entry without a value", container("env: [SECRET]"), `t.yaml:4:9: container.env[0]: must be KEY=VALUE`},
		{"a constraint without an operator", "id: w\nconstraints: [region]\ncontainer: {image: x}\n", `t.yaml:2:15: constraints[0]: must be like "region = eu"`},
		{"an unknown operator of a constraint", "id: w\nconstraints: [a within b]\ncontainer: {image: x}\n", `must be one of =, !=, in`},
		{"a constraint with the operator exists and a value", "id: w\nconstraints: [gpu exists 2]\ncontainer: {image: x}\n", `exists takes no value`},
		{"a count above the maximum", "id: w\ncount: 1001\ncontainer: {image: x}\n", `t.yaml:2:8: count: must be 0 to 1000, got "1001"`},
		{"a count that overflows", "id: w\ncount: 99999999999\ncontainer: {image: x}\n", `count: is out of range`},
		{"a priority above the maximum", "id: w\npriority: 1001\ncontainer: {image: x}\n", `priority: must be -1000 to 1000`},
		{"on_lost_lease of a workload that is not exclusive", "id: w\non_lost_lease: stop\ncontainer: {image: x}\n", `on_lost_lease: is for exclusive workloads only`},
		{"a Compose file without services", "id: w\ncompose: {inline: 'a: b'}\n", `compose.inline: must be a Compose file: it has no services`},
		{"a Compose file with a syntax error", "id: w\ncompose:\n  inline: |\n    services: [\n", `compose.inline: line 1`},
		{"a Git URL of an unsupported scheme", "id: w\ncompose: {git: 'ftp://host/etc'}\n", `must be an https, http, file, ssh or git URL`},
		{"a Git URL of the scheme file that names another host", "id: w\ncompose: {git: 'file://host/etc'}\n", `must name an absolute path on the nodes`},
		{"a user and a password in place of the name of Git credentials", "id: w\ncompose: {git: {repo: 'https://h/x.git', credentials: 'user:hunter2'}}\n", `must name an entry of the agents' credentials file`},
		{"a Compose file that a server would have to read", "id: w\ncompose: {file: x}\n", `only persysctl reads files`},
		{"a virtual machine without memory", "id: w\nvm: {cpus: 1}\n", `vm.memory_mb: must be 1 to`},
		{"a virtual machine with the same disk device twice", "id: w\nvm: {cpus: 1, memory: 1Gi, disks: [{device: vda}, {device: vda}]}\n", `t.yaml:2:60: vm.disks[1].device: is already the device of disks[0], got "vda"`},
		{"a YAML alias without an anchor", "id: *x\n", `no anchor &x`},
		{"YAML aliases that stand for very many values", "id: a\nx0: &x0 [" + strings.Repeat("a,", 100) + "]\nx1: &x1 [" + strings.Repeat("*x0,", 100) + "]\nx2: [" + strings.Repeat("*x1,", 20) + "]\n", `more than 200000 values, including those that aliases stand for`},
		{"merges", "id: a\nx: &x {" + strings.Repeat("a: b, ", 100) + "}\ny: {<<: [" + strings.Repeat("*x,", 1000) + "]}\n", `more than 200000 values, including those that aliases stand for`},
		{"services that share a large YAML anchor", "id: a\ncompose:\n  inline: |\n    x: &x [" + strings.Repeat("a,", 4000) + "]\n    services:\n" + strings.Repeat("      s: {image: x, profiles: *x}\n", 400), `more than 200000 values, including those that aliases stand for`},
		{"two documents with the same id in a file", "id: w\ndesired: stop\n---\nid: w\ndesired: stop\n", `t.yaml:4:5: id: is used twice in this file, first on line 1, got "w"`},
		{"deep", strings.Repeat("[", 100000), `nested deeper than`},
		{"deeply nested lists", strings.Repeat("- ", 100000), `nested deeper than`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := Parse("t.yaml", []byte(c.text), Options{})
			var all Errors
			if !errors.As(err, &all) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Parse returned the error\n     %v\nwant one that contains %s", err, c.want)
			}
			if got != nil {
				t.Error("after an error Parse must return no requests, but did")
			}
		})
	}
}

func TestAllErrorsOfAllDocuments(t *testing.T) {
	text := "id: a\nimge: x\ncontainer:\n  image: x\n  ports: [a]\n  restrat: no\n---\nid: [\n---\nid: c\ncpu: 1\n"
	_, err := Parse("f.yaml", []byte(text), Options{})
	var all Errors
	if !errors.As(err, &all) {
		t.Fatal(err)
	}
	var lines []string
	for _, e := range all {
		lines = append(lines, fmt.Sprint(e.Line))
	}
	if got := strings.Join(lines, " "); got != "2 5 6 8 11" {
		t.Errorf("the faults are on lines %s, want 2 5 6 8 11, in\n%v", got, err)
	}
}

func TestParseRefusesLargeFiles(t *testing.T) {
	big := "id: w\ncontainer:\n  image: x\n  env:\n    A: " + strings.Repeat("a", MaxSpec) + "\n"
	_, err := Parse("f", []byte(big), Options{})
	if err == nil || !strings.Contains(err.Error(), "spec: is 5243") || !strings.Contains(err.Error(), "at most 524288") {
		t.Errorf("Parse of a specification above the limit returned %.200v, want that it is too large", err)
	}
	if _, err := Parse("f", make([]byte, MaxFile+1), Options{}); err == nil || !strings.Contains(err.Error(), "at most 4194304") {
		t.Errorf("Parse of a file above the limit returned %.200v, want that it is too large", err)
	}
}

func TestSecretsAreNotInErrors(t *testing.T) {
	text := "id: w\ncontainer:\n  image: x\n  env: ['hunter2-without-name']\n  bogus: 1\n---\nid: v\ncontainer: {image: x, env: {A: \"hunter2\\u0000\"}}\n---\nid: g\ncompose: {git: 'ftp://user:hunter2@host/x'}\n"
	_, err := Parse("f", []byte(text), Options{})
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("the error must not contain a secret, but does: %v", err)
	}
}

func TestExamplesAreValid(t *testing.T) {
	files, err := filepath.Glob("../examples/*")
	if err != nil || len(files) < 5 {
		t.Fatalf("the example workload files are %v (error %v), want at least 5 files and no error", files, err)
	}
	for _, f := range files {
		if ext := filepath.Ext(f); ext != ".yaml" && ext != ".json" {
			continue
		}
		t.Run(filepath.Base(f), func(t *testing.T) {
			data, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			reqs, err := Parse(f, data, Options{})
			if err != nil {
				t.Fatal(err)
			}
			for _, req := range reqs {
				if _, err := Prepare(req, testKey(t)); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestQuantitiesAreParsed(t *testing.T) {
	cpus := map[string]int64{"250m": 250, "0.25": 250, "1": 1000, " 2 ": 2000, "1.5": 1500, "0": 0}
	for text, want := range cpus {
		if got, err := quantity.CPU(text); err != nil || got != want {
			t.Errorf("the CPU quantity %q is read as %d, error %v; want %d", text, got, err, want)
		}
	}
	sizes := map[string]int64{"128Mi": 128, "128m": 128, "128MB": 128, "1Gi": 1024, "1G": 1024, "1gb": 1024, "1.5GiB": 1536, "1Ti": 1 << 20, "512Ki": 1, "1": -1, "0": 0, "1b": 1, "0b": 0, "x": -1, "1e9": -1, "1e9Mi": -1, "Mi": -1, ".": -1, "99999999999999999999Pi": -1}
	for text, want := range sizes {
		got, err := quantity.Size(text, mib, "128Mi")
		if (err != nil) != (want < 0) || err == nil && got != want {
			t.Errorf("the size %q is read as %d, error %v; want %d", text, got, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(everyField))
	f.Add([]byte(everyFieldWire))
	f.Add([]byte("a: &a [*a]\n<<: *a\n--- - ? : !x |\n"))
	f.Add([]byte("id: x\ncontainer: {ports: [{host: 1}], volumes: [':'], env: [=]}\nconstraints: [' = ', not]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		reqs, err := Parse("f", data, Options{})
		if err != nil {
			var all Errors
			if !errors.As(err, &all) || len(all) == 0 {
				t.Fatalf("the error of Parse must be of type Errors, but is: %v", err)
			}
			_ = err.Error()
		}
		for _, r := range reqs {
			if _, err := Prepare(r, fuzzKey); err != nil {
				t.Fatalf("Prepare must accept every request that Parse accepted, but refused one: %v", err)
			}
		}
	})
}
