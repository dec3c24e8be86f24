package spec

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"os"
	"slices"
	"sort"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	agentv1 "github.com/persys/compute/api/agent/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/engine"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
)

var _ Sealer = (*pki.Key)(nil)

func testKey(t *testing.T) *pki.Key {
	t.Helper()
	k, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// fixedKey is a key with constant content hashes, so that golden files can contain the hashes.
type fixedKey struct{}

var fuzzKey fixedKey

func (fixedKey) Seal(plain, context []byte) (string, error) {
	return "sealed:1:0123456789abcdef:" + hex.EncodeToString(plain) + "_" + hex.EncodeToString(context), nil
}

func (fixedKey) Open(sealed string, context []byte) ([]byte, error) {
	body, of, ok := strings.Cut(strings.TrimPrefix(sealed, "sealed:1:0123456789abcdef:"), "_")
	if !ok || of != hex.EncodeToString(context) {
		return nil, pki.ErrTampered
	}
	return hex.DecodeString(body)
}

func (fixedKey) ContentHash() hash.Hash { return hmac.New(sha256.New, []byte("fixed")) }

func specOf(t *testing.T, text string) *controlv1.WorkloadSpec {
	t.Helper()
	return parseOne(t, text).Spec
}

func contentOf(t *testing.T, s *controlv1.WorkloadSpec) string {
	t.Helper()
	s = proto.CloneOf(s)
	Normalise(s)
	c, err := Content(s, fixedKey{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

const (
	web   = "id: web\nresources: {cpu: 250m, memory: 64Mi}\ncontainer:\n  image: nginx\n  env: {A: one, B: two}\n  ports: ['80:8080', '53:53/udp']\n  volumes: ['/h:/c:ro']\nmetadata: {app: web}\n"
	stack = "id: s\ncompose:\n  inline: 'services: {a: {image: x, ports: [\"127.0.0.1:8080:80\", \"9000-9001:1-2/udp\", \"70\", {published: 443, target: 1}]}}'\n  env: {T: secret}\n"
	gitS  = "id: g\ncompose: {git: 'https://user:hunter2@example.com/a.git#main'}\n"
	vm    = "id: v\nvm:\n  cpus: 2\n  memory: 1Gi\n  disks: [{}, {size: 5Gi}]\n  networks: [default]\n  cloud_init: {user_data: '#cloud-config'}\n  managed_volumes: [{name: d, size: 3Gi, path: /d}]\n"
)

// vmB64 returns the same VM as the function vm, in the form of the agent API as base64.
func vmB64() string {
	return base64.StdEncoding.EncodeToString([]byte(`{"vcpus":2,"memory_mb":1024,"disks":[{"device":"vda","size_gb":20},{"device":"vdb","size_gb":5,"format":"qcow2"}],
	"networks":[{"network":"default"}],"cloud_init":"#cloud-config","managed_volumes":[{"name":"d","size_gb":3,"mount_path":"/d"}],"unheard_of":1}`))
}

func withB64() *controlv1.WorkloadSpec {
	return &controlv1.WorkloadSpec{Type: TypeVM, Metadata: map[string]string{MetadataVMSpec: vmB64()}}
}

// TestContentGolden: the content hashes in the golden file must not change, because agents compare them
// with the hashes of workloads that they started long ago. New lines may be added.
func TestContentGolden(t *testing.T) {
	got := map[string]string{
		"web": contentOf(t, specOf(t, web)), "stack": contentOf(t, specOf(t, stack)), "git": contentOf(t, specOf(t, gitS)),
		"vm": contentOf(t, specOf(t, vm)), "every field": contentOf(t, specOf(t, everyField)),
	}
	var lines []string
	for name, c := range got {
		lines = append(lines, name+"\t"+c)
	}
	sort.Strings(lines)
	text := strings.Join(lines, "\n") + "\n"
	if *update {
		if err := os.WriteFile("testdata/content.golden", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/content.golden")
	if err != nil {
		t.Fatal(err)
	}
	if text != string(want) {
		t.Errorf("the contents are\n%swant\n%s", text, want)
	}
}

func TestContentHashCoversTheseFields(t *testing.T) {
	base := contentOf(t, specOf(t, web))
	cases := []struct {
		name, from, to string
		changes        bool
	}{
		{"image", "image: nginx", "image: nginx:1", true},
		{"an image without and with the default registry and tag", "image: nginx", "image: docker.io/library/nginx:latest", false},
		{"another environment value", "A: one", "A: uno", true},
		{"another order of environment entries", "{A: one, B: two}", "{B: two, A: one}", false},
		{"another environment key", "A: one", "AA: one", true},
		{"port", "80:8080", "81:8080", true},
		{"another order of ports, and the default protocol", "['80:8080', '53:53/udp']", "['53:53/UDP', '80:8080/tcp']", false},
		{"volume", ":/c:ro", ":/c", true},
		{"another spelling of a mount path", "/h:/c:ro", "/h/:/c/.:ro", false},
		{"metadata", "app: web", "app: shop", true},
		{"an added metadata entry with a blank value", "{app: web}", "{app: web, x: ''}", false},
		{"an added metadata entry with the reserved prefix persys.", "{app: web}", "{app: web, persys.node_id: n}", false},
		{"another CPU limit", "cpu: 250m", "cpu: 251m", true},
		{"another spelling of the CPU limit", "cpu: 250m", "cpu: 0.25", false},
		{"another memory limit", "memory: 64Mi", "memory: 65Mi", true},
		{"an added disk size, which only placement reads", "cpu: 250m", "disk: 5Gi, cpu: 250m", false},
		{"a command", "image: nginx", "image: nginx\n  command: [a]", true},
		{"an added restart policy", "image: nginx", "image: nginx\n  restart: always", true},
		{"the added restart policy no", "image: nginx", "image: nginx\n  restart: 'no'", true},
		{"the added flag privileged", "image: nginx", "image: nginx\n  privileged: true", true},
		{"an added stop grace period", "image: nginx", "image: nginx\n  stop_grace_period: 90s", true},
		{"an added stop signal", "image: nginx", "image: nginx\n  stop_signal: SIGQUIT", true},
		{"an added managed volume", "image: nginx", "image: nginx\n  managed_volumes: [{name: a, path: /a}]", true},
		{"id", "id: web", "id: other", false},
		{"another desired state", "id: web", "id: web\ndesired: stopped", false},
		{"an added revision name", "id: web", "id: web\nrevision: r2", false},
		{"the group", "id: web", "id: web\ngroup: g", false},
		{"the count", "id: web", "id: web\ncount: 3", false},
		{"the priority", "id: web", "id: web\npriority: 3", false},
		{"an added required node label", "id: web", "id: web\nlabels: {a: b}", false},
		{"the constraints", "id: web", "id: web\nconstraints: [a = b]", false},
		{"the tolerations", "id: web", "id: web\ntolerations: [a]", false},
		{"the added flag exclusive", "id: web", "id: web\nexclusive: true\non_lost_lease: stop", false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			text := strings.Replace(web, c.from, c.to, 1)
			if text == web {
				t.Fatal("the replacement of this case must change the document, but does not")
			}
			if got := contentOf(t, specOf(t, text)) != base; got != c.changes {
				t.Errorf("whether this change of the document changes the content hash: %v, want %v", got, c.changes)
			}
		})
	}
	t.Run("both forms of a VM have the same content", func(t *testing.T) {
		if contentOf(t, withB64()) != contentOf(t, specOf(t, vm)) {
			t.Error("the two forms of a VM must have the same content hash, but have different ones")
		}
		quota := specOf(t, vm+"resources: {cpu: 1500m, memory: 4Gi}\n")
		inKey := withB64()
		inKey.Resources = quota.Resources
		if contentOf(t, quota) == contentOf(t, specOf(t, vm)) || contentOf(t, quota) != contentOf(t, inKey) {
			t.Error("a CPU quota must change the content hash of both forms of a VM to the same new hash, but does not")
		}
		if contentOf(t, specOf(t, vm+"resources: {cpu: 2, memory: 4Gi}\n")) != contentOf(t, specOf(t, vm)) {
			t.Error("resources that need no CPU quota must not change the content hash of a VM, but do")
		}
	})
	t.Run("a Compose file as text and in base64 has the same content", func(t *testing.T) {
		a := specOf(t, stack)
		b := proto.CloneOf(a)
		b.GetCompose().InlineYaml = base64.StdEncoding.EncodeToString([]byte(a.GetCompose().InlineYaml))
		if contentOf(t, a) != contentOf(t, b) {
			t.Error("a Compose file as text and as base64 must have the same content hash, but have different ones")
		}
	})
	t.Run("the content depends on the sealing key", func(t *testing.T) {
		s := specOf(t, web)
		Normalise(s)
		a, _ := Content(s, testKey(t))
		b, _ := Content(s, testKey(t))
		if a == b {
			t.Error("the hash of a secret must depend on the key, but does not")
		}
		if _, err := Content(s, nil); !errors.Is(err, ErrNoKey) {
			t.Errorf("Content of a specification with secrets, called without a key, returned %v, want ErrNoKey", err)
		}
	})
}

func put(t *testing.T, p Prepared) *commandv1.PutWorkloads {
	t.Helper()
	b, ok := p.Command.GetBody().(*commandv1.Command_PutWorkloads)
	if !ok {
		t.Fatalf("the command has type %T, want PutWorkloads", p.Command.GetBody())
	}
	return b.PutWorkloads
}

func TestPrepareCount(t *testing.T) {
	key := testKey(t)
	p, err := Prepare(parseOne(t, strings.Replace(web, "id: web", "id: web\ncount: 3\nrevision: r1\ndesired: stop", 1)), key)
	if err != nil {
		t.Fatal(err)
	}
	w := put(t, p)
	if fmt.Sprint(p.IDs) != "[web-0 web-1 web-2]" || w.GroupOf != "web" || len(w.Workloads) != 3 {
		t.Fatalf("the members have ids %v in group %v, want web-0 to web-2 in group web", p.IDs, w.GroupOf)
	}
	for i, one := range w.Workloads {
		if one.Id != p.IDs[i] || one.Content != p.Content || one.Demand.Group != "web" || one.Desired != "Stopped" || one.CallerRevision != "r1" {
			t.Errorf("a member is stored as %v, want the group, the content and the desired state of the request", one)
		}
		s, err := Unseal(one.Id, one.Spec, key)
		if err != nil || s.Count != nil || s.Group != "web" || s.GetContainer().Env["A"] != "one" {
			t.Errorf("the specification of a member is %v, error %v, want group web without a count", s, err)
		}
	}
}

func TestPrepareOtherCommands(t *testing.T) {
	cases := []struct{ state, want string }{
		{"STOP", `set_desired:{id:"w" desired:"Stopped"}`}, {"stopped", `set_desired:{id:"w" desired:"Stopped"}`},
		{"", `set_desired:{id:"w" desired:"Running"}`}, {"whatever", `set_desired:{id:"w" desired:"Running"}`},
		{"Delete", `delete_workload:{id:"w"}`}, {"deleted", `delete_workload:{id:"w"}`},
	}
	for _, c := range cases {
		t.Run(c.state, func(t *testing.T) {
			p, err := Prepare(&controlv1.ApplyWorkloadRequest{WorkloadId: " w ", DesiredState: c.state}, nil)
			if got := strings.ReplaceAll(p.Command.String(), "  ", " "); err != nil || got != c.want {
				t.Errorf("Prepare returned the command %s and error %v; want %s", got, err, c.want)
			}
		})
	}
}

func TestPrepareDeletesAGroup(t *testing.T) {
	p, err := Prepare(parseOne(t, strings.Replace(web, "id: web", "id: web\ncount: 2\ndesired: deleted", 1)), fixedKey{})
	if err != nil {
		t.Fatal(err)
	}
	if w := put(t, p); w.GroupOf != "web" || len(w.Workloads) != 0 || fmt.Sprint(p.IDs) != "[web-0 web-1]" {
		t.Errorf("the delete of a group has the workloads %v and the ids %v, want no workloads, and ids web-0 and web-1", w, p.IDs)
	}
}

func TestPrepareRefuses(t *testing.T) {
	over := func(change func(*controlv1.ApplyWorkloadRequest)) *controlv1.ApplyWorkloadRequest {
		req := parseOne(t, web)
		change(req)
		return req
	}
	container := func(change func(*controlv1.ContainerSpec)) *controlv1.ApplyWorkloadRequest {
		return over(func(r *controlv1.ApplyWorkloadRequest) { change(r.Spec.GetContainer()) })
	}
	cases := []struct {
		name string
		req  *controlv1.ApplyWorkloadRequest
		want string
	}{
		{"an id with a slash", over(func(r *controlv1.ApplyWorkloadRequest) { r.WorkloadId = "a/b" }), `workload_id: must be a letter`},
		{"an empty specification", &controlv1.ApplyWorkloadRequest{WorkloadId: "w", Spec: &controlv1.WorkloadSpec{}}, "spec: is empty"},
		{"a type without its alternative", &controlv1.ApplyWorkloadRequest{WorkloadId: "w", Spec: &controlv1.WorkloadSpec{Type: "vm"}}, "type is vm, but no vm is given"},
		{"a container without a type", over(func(r *controlv1.ApplyWorkloadRequest) { r.Spec.Type = "" }), "spec.type: must be container"},
		{"an alias of a type", over(func(r *controlv1.ApplyWorkloadRequest) { r.Spec.Type = "docker-container" }), "spec.type: must be container"},
		{"a negative amount of memory", over(func(r *controlv1.ApplyWorkloadRequest) { r.Spec.Resources.MemoryMb = -1 }), `spec.resources.memory_mb: must be 0 to 67108864 MiB, got "-1"`},
		{"a disk above the limit", over(func(r *controlv1.ApplyWorkloadRequest) { r.Spec.Resources.DiskGb = 1 << 40 }), "spec.resources.disk_gb: must be"},
		{"a container without an image", container(func(c *controlv1.ContainerSpec) { c.Image = " " }), "spec.container.image: must not be empty"},
		{"a port of the container that is 0", container(func(c *controlv1.ContainerSpec) { c.Ports[0].ContainerPort = 0 }), "spec.container.ports[0].container_port: must be 1 to 65535"},
		{"two equal container ports without a host port", container(func(c *controlv1.ContainerSpec) { c.Ports = []*controlv1.Port{{ContainerPort: 1}, {ContainerPort: 1}} }), "already given an ephemeral host port"},
		{"a redacted environment value", container(func(c *controlv1.ContainerSpec) { c.Env["A"] = "***" }), "spec.container.env.A: is the marker ***"},
		{"a sealed environment value", container(func(c *controlv1.ContainerSpec) { c.Env["A"] = "sealed:1:0123456789abcdef:xx" }), "spec.container.env.A: is a sealed value"},
		{"an environment name with =", container(func(c *controlv1.ContainerSpec) { c.Env["A=B"] = "" }), "spec.container.env: names must be"},
		{"a mount at the root of the container", container(func(c *controlv1.ContainerSpec) { c.Volumes[0].ContainerPath = "/." }), "must not be the root"},
		{"label", over(func(r *controlv1.ApplyWorkloadRequest) { r.Spec.Labels = map[string]string{"a b": "c"} }), "spec.labels: keys"},
		{"a count with the group of another workload", over(func(r *controlv1.ApplyWorkloadRequest) { r.Spec.Count, r.Spec.Group = new(int32(2)), "x" }), `spec.group: must be empty or "web"`},
		{"an id that is too long for a count", over(func(r *controlv1.ApplyWorkloadRequest) {
			r.Spec.Count, r.WorkloadId = new(int32(11)), strings.Repeat("a", 126)
		}), "is too long to make the ids <id>-<n>"},
		{"an unknown effect of a toleration", over(func(r *controlv1.ApplyWorkloadRequest) {
			r.Spec.Tolerations = []*controlv1.Toleration{{Key: "a", Effect: "Never"}}
		}), "spec.tolerations[0].effect: must be one of"},
		{"a command that is too large because of its count", over(func(r *controlv1.ApplyWorkloadRequest) {
			r.Spec.Count = new(int32(1000))
			r.Spec.GetContainer().Env["BIG"] = strings.Repeat("x", 2000)
		}), "spec.count: makes a command of"},
		{"memory below the engine's minimum", over(func(r *controlv1.ApplyWorkloadRequest) {
			r.Spec.Resources = &controlv1.ResourceRequirements{MemoryMb: 4}
		}), "must be 0 or at least 6 MiB"},
		{"an environment variable longer than Linux allows", over(func(r *controlv1.ApplyWorkloadRequest) {
			r.Spec.GetContainer().Env["BIG"] = strings.Repeat("x", engine.MaxArg)
		}), "spec.container.env.BIG: is 131075 bytes with its name, and Linux takes at most 131071"},
		{"an unknown capability of the kernel", over(func(r *controlv1.ApplyWorkloadRequest) { r.Spec.GetContainer().CapAdd = []string{"NET_ADMN"} }), "did you mean NET_ADMIN?"},
		{"a UID that is too large", over(func(r *controlv1.ApplyWorkloadRequest) { r.Spec.GetContainer().User = "2147483648" }), "must have a UID or GID of 0 to 2147483647"},
		{"an invalid security option", over(func(r *controlv1.ApplyWorkloadRequest) {
			r.Spec.GetContainer().SecurityOpt = []string{"no-new-privileges=maybe"}
		}), "must be no-new-privileges=true or no-new-privileges=false"},
		{"a seccomp profile in a file of the node", over(func(r *controlv1.ApplyWorkloadRequest) {
			r.Spec.GetContainer().SecurityOpt = []string{"seccomp=/etc/profile.json"}
		}), "must be an option of the engine"},
		{"a number of restarts with the restart policy always", over(func(r *controlv1.ApplyWorkloadRequest) { r.Spec.GetContainer().RestartPolicy = "always:3" }), "must not have a number, which is for on-failure only: write always"},
		{"a restart policy with a text in place of the number of restarts", over(func(r *controlv1.ApplyWorkloadRequest) { r.Spec.GetContainer().RestartPolicy = "on-failure:x" }), "such as on-failure:3"},
		{"a restart policy with too many restarts", over(func(r *controlv1.ApplyWorkloadRequest) { r.Spec.GetContainer().RestartPolicy = "on-failure:2147483648" }), "must have at most 2147483647 restarts"},
		{"a restart policy with a number in an exclusive workload", over(func(r *controlv1.ApplyWorkloadRequest) {
			r.Spec.GetContainer().RestartPolicy, r.Spec.Exclusive = "on-failure:3", true
		}), "must not have a number in an exclusive workload"},
		{"an image in upper case", over(func(r *controlv1.ApplyWorkloadRequest) { r.Spec.GetContainer().Image = "Team/Web:1" }), `did you mean "team/web:1"?`},
		{"an argument of the command longer than Linux allows", over(func(r *controlv1.ApplyWorkloadRequest) {
			r.Spec.GetContainer().Command = []string{strings.Repeat("x", engine.MaxArg+1)}
		}), "spec.container.command[0]: is 131072 bytes"},
		{"the marker *** in place of a VM in the metadata", &controlv1.ApplyWorkloadRequest{WorkloadId: "w", Spec: &controlv1.WorkloadSpec{Type: TypeVM, Metadata: map[string]string{MetadataVMSpec: "***"}}}, "is the marker"},
		{"a VM in the metadata that cannot be decoded", &controlv1.ApplyWorkloadRequest{WorkloadId: "w", Spec: &controlv1.WorkloadSpec{Type: TypeVM, Metadata: map[string]string{MetadataVMSpec: "!"}}}, "is not base64, and no vm is given"},
		{"cloud-init data above the limit", &controlv1.ApplyWorkloadRequest{WorkloadId: "w", Spec: &controlv1.WorkloadSpec{Type: TypeVM,
			Workload: &controlv1.WorkloadSpec_Vm{Vm: &controlv1.VMSpec{Vcpus: 1, MemoryMb: 1, CloudInit: &controlv1.CloudInitConfig{UserData: strings.Repeat("a", maxCloudInit+1)}}}}}, "spec.vm.cloud_init.user_data: cloud-init-invalid"},
		{"a redacted token in a Git URL", &controlv1.ApplyWorkloadRequest{WorkloadId: "w", Spec: &controlv1.WorkloadSpec{Type: TypeCompose,
			Workload: &controlv1.WorkloadSpec_Compose{Compose: &controlv1.ComposeSpec{SourceType: "GIT", GitRepo: "https://***@h/x"}}}}, "is the marker"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := Prepare(c.req, fixedKey{})
			var all Errors
			if !errors.As(err, &all) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Prepare returned the error\n     %v\nwant one that contains %s", err, c.want)
			}
		})
	}
	if _, err := Prepare(&controlv1.ApplyWorkloadRequest{WorkloadId: "\t"}, nil); !errors.Is(err, ErrBlankID) {
		t.Errorf("Prepare of a blank id returned %v, want ErrBlankID", err)
	}
	if _, err := Prepare(parseOne(t, web), nil); !errors.Is(err, ErrNoKey) {
		t.Errorf("Prepare of a specification with secrets, called without a key, returned %v, want ErrNoKey", err)
	}
}

func TestPrepareLeavesTheRequestAlone(t *testing.T) {
	req := parseOne(t, everyField)
	before := proto.CloneOf(req)
	if _, err := Prepare(req, fixedKey{}); err != nil {
		t.Fatal(err)
	}
	same(t, req, before)
}

func TestSecretsAtRest(t *testing.T) {
	key := testKey(t)
	for name, s := range map[string]*controlv1.WorkloadSpec{
		"container": specOf(t, strings.Replace(web, "A: one", "A: hunter2", 1)),
		"hook":      specOf(t, "id: w\nresources: {cpu: 1}\ncontainer: {image: x, pre_stop: [{command: y, environment: {A: hunter2}}]}\n"),
		"compose":   specOf(t, strings.Replace(stack, "T: secret", "T: hunter2", 1)),
		"inline":    specOf(t, strings.Replace(stack, "image: x", "image: hunter2", 1)),
		"git":       specOf(t, gitS),
		"vm":        specOf(t, strings.Replace(vm, "#cloud-config", "#!hunter2", 1)),
		"vm login":  specOf(t, "id: v\nvm: {cpus: 1, memory: 1Gi, login: {user: ops, password: hunter2}}\n"),
		"vm key": {Type: TypeVM, Metadata: map[string]string{MetadataVMSpec: base64.StdEncoding.EncodeToString(
			[]byte(`{"vcpus":1,"memory_mb":64,"cloud_init_config":{"user_data":"#!hunter2"}}`))}},
	} {
		t.Run(name, func(t *testing.T) {
			Normalise(s)
			stored, err := Seal("w", s, key)
			if err != nil {
				t.Fatal(err)
			}
			back, err := Unseal("w", stored, key)
			if err != nil {
				t.Fatal(err)
			}
			same(t, back, s)
			if strings.Contains(string(stored), "hunter2") || strings.Contains(string(stored), base64.StdEncoding.EncodeToString([]byte("hunter2"))[:8]) {
				t.Errorf("the stored specification has a secret in plain text: %q", stored)
			}
			if _, err := Unseal("other", stored, key); !errors.Is(err, pki.ErrTampered) {
				t.Errorf("Unseal of a value that was sealed for another workload returned %v, want pki.ErrTampered", err)
			}
			if _, err := Unseal("w", stored, testKey(t)); !errors.Is(err, pki.ErrWrongKey) {
				t.Errorf("Unseal of a value that was sealed with another key returned %v, want pki.ErrWrongKey", err)
			}
			sealed := &controlv1.WorkloadSpec{}
			if err := proto.Unmarshal(stored, sealed); err != nil {
				t.Fatal(err)
			}
			shown := Redact(sealed)
			if text := shown.String(); strings.Contains(text, "hunter2") || strings.Contains(text, "sealed:") || !strings.Contains(text, "***") {
				t.Errorf("the redacted specification must show *** for every secret, but is: %s", text)
			}
			_, err = Prepare(&controlv1.ApplyWorkloadRequest{WorkloadId: "w", Spec: shown}, key)
			if err == nil || !strings.Contains(err.Error(), "is the marker ***") {
				t.Errorf("Prepare of a redacted specification returned %v, want an error about the marker ***", err)
			}
			for _, detail := range []Detail{Brief, Full} {
				if v := WorkloadView(&fsm.Workload{ID: "w", Spec: stored, Demand: &fsm.Demand{}, Actual: &fsm.Observation{}}, detail).String(); strings.Contains(v, "hunter2") || strings.Contains(v, "sealed:") {
					t.Errorf("the workload view must not hold a secret, but does: %s", v)
				}
			}
		})
	}
}

func demand(t *testing.T, s *controlv1.WorkloadSpec) *commandv1.Demand {
	t.Helper()
	s = proto.CloneOf(s)
	Normalise(s)
	d := DemandOf("w", s)
	d.Asks = nil // leave the asks out: TestAsksOfSpecifications checks them
	return d
}

func TestDemandOfSpecifications(t *testing.T) {
	same(t, demand(t, specOf(t, everyField)), &commandv1.Demand{
		Type: "container", CpuMillicores: 250, MemoryMib: 1024, DiskGb: 2, StoragePool: "fast", StorageDrivers: []string{"nfs"},
		HostPorts: []*commandv1.Port{{Port: 53, Protocol: "udp"}, {Port: 443, Protocol: "tcp"}, {Port: 8080, Protocol: "tcp"}},
		Labels:    []*commandv1.Label{{Key: "zone", Value: "a"}},
		Constraints: []*commandv1.Constraint{{Key: "arch", Op: "!=", Values: []string{"arm"}}, {Key: "disk", Op: "in", Values: []string{"nvme", "ssd"}},
			{Key: "gpu", Op: "exists"}, {Key: "region", Op: "=", Values: []string{"eu"}}},
		Tolerations: []*commandv1.Taint{{Key: "dedicated"}, {Key: "team", Value: "a", Effect: "NoSchedule"}},
		Group:       "front", Exclusive: true, OnLostLease: "stop", Priority: -5,
		Volumes: []*commandv1.VolumeUse{{Name: "data", Driver: "nfs", SizeGb: 10, Retain: true}},
	})
	addresses := strings.Replace(stack, `"70"`, `"70", "[::1]:8080:80", "0.0.0.0:8081:80"`, 1)
	same(t, demand(t, specOf(t, addresses)), &commandv1.Demand{Type: "compose", OnLostLease: "keep",
		HostPorts: []*commandv1.Port{{Port: 443, Protocol: "tcp"}, {Port: 8080, Protocol: "tcp", Address: "127.0.0.1"}, {Port: 8080, Protocol: "tcp", Address: "::1"}, {Port: 8081, Protocol: "tcp"}, {Port: 9000, Protocol: "udp"}, {Port: 9001, Protocol: "udp"}}})
	want := &commandv1.Demand{Type: "vm", CpuMillicores: 2000, MemoryMib: 1024, DiskGb: 28, Exclusive: true, OnLostLease: "keep",
		LocalData: []*commandv1.LocalData{{Name: "disk vda"}, {Name: "disk vdb"}, {Name: "volume d"}},
		Volumes:   []*commandv1.VolumeUse{{Name: "d", Driver: "local", SizeGb: 3}}}
	same(t, demand(t, specOf(t, vm)), want)
	same(t, demand(t, withB64()), want)
	for _, c := range []struct {
		resources   string
		cpu, memory int64
	}{
		{"{cpu: 500m}", 500, 1024}, {"{cpu: 3, memory: 2Gi}", 3000, 2048},
		{"{memory: 512Mi}", 2000, 1024}, // the guest's memory, because it is more than the specification reserves
	} {
		want.CpuMillicores, want.MemoryMib = c.cpu, c.memory
		same(t, demand(t, specOf(t, vm+"resources: "+c.resources+"\n")), want)
	}
}

func toAgent(t *testing.T, id string, s *controlv1.WorkloadSpec) *agentv1.ApplyWorkloadRequest {
	t.Helper()
	s = proto.CloneOf(s)
	Normalise(s)
	w := &fsm.Workload{ID: id, Demand: &fsm.Demand{}, Content: "c1:" + strings.Repeat("ab", 32), Desired: fsm.DesiredStopped, Restarts: 2, Generation: fsm.Generation{Incarnation: 3, Sequence: 4}}
	return ToAgent(w, s)
}

func TestToAgentContainer(t *testing.T) {
	same(t, toAgent(t, "web", specOf(t, everyField)), &agentv1.ApplyWorkloadRequest{
		Id: "web", Type: agentv1.WorkloadType_WORKLOAD_TYPE_CONTAINER, RevisionId: "c1-abababababababab-r2",
		DesiredState: agentv1.DesiredState_DESIRED_STATE_STOPPED, Generation: &agentv1.Generation{Incarnation: 3, Sequence: 4},
		Content: "c1:" + strings.Repeat("ab", 32), Exclusive: true, OnLostLease: "stop", Labels: map[string]string{"zone": "a"},
		Spec: &agentv1.WorkloadSpec{Namespace: "default", Spec: &agentv1.WorkloadSpec_Container{Container: &agentv1.ContainerSpec{
			Image: "nginx:1.27", Command: []string{"sh", "-c", `echo "a b"`}, Env: map[string]string{"A": "1", "B": "true", "C": "x y", "D": ""},
			Volumes: []*agentv1.VolumeMount{{HostPath: "/h", ContainerPath: "/c", ReadOnly: true}, {HostPath: "/s", ContainerPath: "/t"}},
			Ports: []*agentv1.PortMapping{{ContainerPort: 9000, Protocol: "tcp"}, {HostPort: 53, ContainerPort: 53, Protocol: "udp"},
				{HostPort: 443, ContainerPort: 8443, Protocol: "tcp"}, {HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}},
			Resources:      &agentv1.ResourceLimits{CpuShares: 250, CpuMillicores: 250, MemoryBytes: 1 << 30},
			RestartPolicy:  &agentv1.RestartPolicy{Policy: "always"},
			Labels:         map[string]string{"app": "web"},
			ManagedVolumes: []*agentv1.ManagedVolumeSpec{{Name: "data", Driver: "nfs", SizeGb: 10, MountPath: "/data", RetainPolicy: "Retain"}},
			Privileged:     true, DiskGb: 2,
		}}},
	})
}

func TestToAgentTranslatesStopSettings(t *testing.T) {
	c := toAgent(t, "web", specOf(t, "id: web\ncontainer: {image: a, stop_grace_period: 1m30s, stop_signal: sigquit}\n")).GetSpec().GetContainer()
	if c.GetStopGracePeriodSeconds() != 90 || c.GetStopSignal() != "SIGQUIT" {
		t.Errorf("the order for the agent has a grace period of %d s and the signal %q, want 90 s and SIGQUIT", c.GetStopGracePeriodSeconds(), c.GetStopSignal())
	}
}

func TestToAgentNamesTheNamespace(t *testing.T) {
	for in, want := range map[string]string{"": "default", "shop": "shop"} {
		for _, arm := range []*controlv1.WorkloadSpec{
			{Type: TypeContainer, Workload: &controlv1.WorkloadSpec_Container{Container: &controlv1.ContainerSpec{Image: "i"}}},
			{Type: TypeCompose, Workload: &controlv1.WorkloadSpec_Compose{Compose: &controlv1.ComposeSpec{InlineYaml: "services: {a: {image: i}}"}}},
			{Type: TypeVM, Workload: &controlv1.WorkloadSpec_Vm{Vm: &controlv1.VMSpec{}}},
		} {
			if got := ToAgent(&fsm.Workload{ID: "web", Namespace: in, Demand: &fsm.Demand{}}, arm).GetSpec().GetNamespace(); got != want {
				t.Errorf("for a %s in namespace %q the agent gets the namespace %q, want the name of the workload's namespace", arm.GetType(), in, got)
			}
		}
	}
}

func TestToAgentCompose(t *testing.T) {
	got := toAgent(t, "My.Shop", specOf(t, stack)).Spec.GetCompose()
	text, err := base64.StdEncoding.DecodeString(got.ComposeYaml)
	if err != nil || !strings.HasPrefix(string(text), "services:") || got.ProjectName != "my-shop" || got.Env["T"] != "secret" || got.SourceType != "inline" {
		t.Errorf("the agent gets the stack %v with error %v, want the decoded Compose file in project my-shop", got, err)
	}
	same(t, toAgent(t, "g", specOf(t, gitS)).Spec.GetCompose(), &agentv1.ComposeSpec{ProjectName: "g", SourceType: "git",
		GitRepo: "https://user:hunter2@example.com/a.git", GitRef: "main"})
	for id, want := range map[string]string{"...": "workload", "_a": "a", "9": "9", "A_b": "a_b"} {
		if got := projectName(id); got != want {
			t.Errorf("the Compose project of workload %q is named %q, want %q", id, got, want)
		}
	}
}

const stackWithVolume = `
id: shop
compose:
  inline: |
    services: {db: {image: "db:1", volumes: ["data:/var/lib/db"]}}
    volumes: {data: {external: true}}
  managed_volumes: [{name: data, size: 2Gi, retain: Retain}]
resources: {storage_pool: fast}
`

func TestVolumesOfAStack(t *testing.T) {
	s := specOf(t, stackWithVolume)
	same(t, toAgent(t, "shop", s).Spec.GetCompose().ManagedVolumes[0],
		&agentv1.ManagedVolumeSpec{Name: "data", Driver: "local", SizeGb: 2, RetainPolicy: "Retain", Pool: "fast"})
	Normalise(s)
	if d := DemandOf("w", s); d.DiskGb != 2 || d.StoragePool != "fast" {
		t.Errorf("the demand of the stack is %v, want its external volumes", d)
	}
	with, err := Content(s, fixedKey{})
	if err != nil {
		t.Fatal(err)
	}
	s.GetCompose().ManagedVolumes = nil
	if without, err := Content(s, fixedKey{}); err != nil || without == with {
		t.Errorf("without the managed volume the content hash of the stack is %q with error %v, want another hash than with the volume", without, err)
	}
	bad := specOf(t, stackWithVolume)
	bad.GetCompose().ManagedVolumes[0].MountPath = "/data"
	if err := Validate(&controlv1.ApplyWorkloadRequest{WorkloadId: "shop", Spec: bad}); len(err) == 0 || !strings.Contains(err.Error(), "spec.compose.managed_volumes[0].mount_path: must be empty") {
		t.Errorf("Validate of a stack whose managed volume has a mount_path returned %v, want that mount_path must be empty", err)
	}
}

func TestToAgentVM(t *testing.T) {
	want := &agentv1.VMSpec{Name: "v", Vcpus: 2, MemoryMb: 1024,
		Disks: []*agentv1.DiskConfig{{Path: "/var/lib/libvirt/images/v-vda.qcow2", Device: "vda", Format: "qcow2", SizeGb: 20, Type: "disk"},
			{Path: "/var/lib/libvirt/images/v-vdb.qcow2", Device: "vdb", Format: "qcow2", SizeGb: 5, Type: "disk"}},
		Networks:        []*agentv1.NetworkConfig{{Network: "default"}},
		CloudInitConfig: &agentv1.CloudInitConfig{UserData: "#cloud-config"},
		ManagedVolumes:  []*agentv1.ManagedVolumeSpec{{Name: "d", Driver: "local", SizeGb: 3, MountPath: "/d", RetainPolicy: "Delete"}},
	}
	same(t, toAgent(t, "v", specOf(t, vm)).Spec.GetVm(), want)
	same(t, toAgent(t, "v", withB64()).Spec.GetVm(), want)
	raw := &controlv1.WorkloadSpec{Type: TypeVM, Metadata: map[string]string{MetadataVMSpec: "not base64!"},
		Workload: &controlv1.WorkloadSpec_Vm{Vm: specOf(t, vm).GetVm()}}
	got := toAgent(t, "v", raw)
	same(t, got.Spec.GetVm(), want)
	want.CpuMillicores = 1500
	same(t, toAgent(t, "v", specOf(t, vm+"resources: {cpu: 1500m}\n")).Spec.GetVm(), want)
	want.CpuMillicores = 0 // no quota is needed: the VM has 2 processors and reserves 2 cores
	same(t, toAgent(t, "v", specOf(t, vm+"resources: {cpu: 2}\n")).Spec.GetVm(), want)
}

func TestViewsHideSecrets(t *testing.T) {
	s := specOf(t, everyField)
	Normalise(s)
	stored, err := Seal("web", s, fixedKey{})
	if err != nil {
		t.Fatal(err)
	}
	w := &fsm.Workload{ID: "web", Spec: stored, Content: "c1:" + strings.Repeat("0", 64), CallerRevision: "r7", Desired: fsm.DesiredRunning,
		Status: fsm.StatusFailed, Node: "n", Demand: &fsm.Demand{Type: "container", Group: "front", Labels: []fsm.Label{{Key: "zone", Value: "a"}}},
		Reason: fsm.Reason{Code: "IMAGE", Message: "no image", At: 1}, Actual: &fsm.Observation{Addresses: []string{"10.0.0.1"}}, UpdatedAt: 2}
	v := WorkloadView(w, Brief)
	if v.Spec != nil || v.Status != "Failed" || v.ImageOrSource != "nginx:1.27" || v.FailureReason != "no image" || len(v.Ports) != 4 || v.RevisionId != "c1-0000000000000000" || v.Labels["zone"] != "a" {
		t.Errorf("the brief view is %v, want the failed workload without its specification", v)
	}
	if v := WorkloadView(w, Full); v.Spec.GetContainer().Env["A"] != "***" {
		t.Errorf("the specification in the full view is %v, want the secret redacted", v.Spec)
	}
	if v := WorkloadView(&fsm.Workload{ID: "x", Spec: []byte{0xff}, Demand: &fsm.Demand{}, Actual: &fsm.Observation{}}, Full); v.WorkloadId != "x" {
		t.Errorf("the view of an unreadable record is %v, want a view with the id only", v)
	}

	n := &fsm.Node{ID: "n", Up: true, Draining: true, Facts: fsm.NodeFacts{CPU: 4000, Memory: 100, Pools: []fsm.Pool{{Name: "a", Total: 10}, {Name: "b", Total: 20}}}}
	got := NodeView(n, fsm.Alloc{CPU: 1500, Memory: 200, Workloads: 2, Disk: []fsm.PoolUse{{Pool: "", GB: 1}, {Pool: "a", GB: 2}, {Pool: "b", GB: 4}}})
	same(t, got, &controlv1.NodeView{NodeId: "n", Status: "Draining", TotalCpuCores: 4, AvailableCpuCores: 2.5, TotalMemoryMb: 100,
		ReservedCpuMillicores: 1500, ReservedMemoryMb: 200, Workloads: 2,
		StoragePools: []*controlv1.StoragePoolView{{Name: "a", TotalGb: 10, ReservedGb: 3}, {Name: "b", TotalGb: 20, ReservedGb: 4}}})
}

// drawSpec returns a valid specification with random spellings.
func drawSpec(t *rapid.T) *controlv1.WorkloadSpec {
	word := rapid.StringMatching(`[a-z][a-z0-9]{0,8}`)
	pairs := rapid.MapOfN(word, rapid.StringMatching(`[a-zA-Z0-9 .]{0,12}`), 0, 4)
	s := &controlv1.WorkloadSpec{
		Resources: &controlv1.ResourceRequirements{CpuMillicores: rapid.Int64Range(0, MaxCPU).Draw(t, "cpu"), MemoryMb: rapid.SampledFrom([]int64{0, minMemory, 512, 1 << 20}).Draw(t, "memory")},
		Metadata:  pairs.Draw(t, "metadata"), Labels: pairs.Draw(t, "labels"),
		Priority: rapid.Int32Range(-1000, 1000).Draw(t, "priority"), Exclusive: rapid.Bool().Draw(t, "exclusive"),
	}
	for range rapid.IntRange(0, 3).Draw(t, "constraints") {
		s.Constraints = append(s.Constraints, &controlv1.Constraint{Key: word.Draw(t, "key"), Operator: rapid.SampledFrom([]string{"in", " IN", "notin"}).Draw(t, "op"),
			Values: rapid.SliceOfN(word, 1, 3).Draw(t, "values")})
	}
	switch rapid.IntRange(0, 2).Draw(t, "type") {
	case 0:
		c := &controlv1.ContainerSpec{Image: word.Draw(t, "image"), Env: pairs.Draw(t, "env"),
			Command:       rapid.SliceOfN(rapid.String().Filter(func(s string) bool { return !strings.Contains(s, "\x00") }), 0, 3).Draw(t, "command"),
			RestartPolicy: rapid.SampledFrom([]string{"", "no", "ALWAYS", "on-failure "}).Draw(t, "restart")}
		for i := range rapid.IntRange(0, 4).Draw(t, "ports") {
			c.Ports = append(c.Ports, &controlv1.Port{HostPort: int32(1000 + i), ContainerPort: rapid.Int32Range(1, 65535).Draw(t, "port"), Protocol: rapid.SampledFrom([]string{"", "TCP", "udp"}).Draw(t, "protocol")})
		}
		s.Type, s.Workload = TypeContainer, &controlv1.WorkloadSpec_Container{Container: c}
	case 1:
		c := &controlv1.ComposeSpec{SourceType: rapid.SampledFrom([]string{"", "inline", "x"}).Draw(t, "source"), InlineYaml: "services: {" + word.Draw(t, "service") + ": {}}", Env: pairs.Draw(t, "env")}
		if rapid.Bool().Draw(t, "base64") {
			c.InlineYaml = base64.StdEncoding.EncodeToString([]byte(c.InlineYaml))
		}
		s.Type, s.Workload = TypeCompose, &controlv1.WorkloadSpec_Compose{Compose: c}
	default:
		v := &controlv1.VMSpec{Vcpus: 1, MemoryMb: 64, CloudInit: &controlv1.CloudInitConfig{UserData: "#!" + word.Draw(t, "user data")}}
		for range rapid.IntRange(0, 3).Draw(t, "disks") {
			v.Disks = append(v.Disks, &controlv1.DiskConfig{SizeGb: rapid.Int64Range(0, 9).Draw(t, "size")})
		}
		v.Networks = []*controlv1.NetworkConfig{{Bridge: rapid.SampledFrom([]string{"", "br0"}).Draw(t, "bridge")}}
		s.Type, s.Workload = TypeVM, &controlv1.WorkloadSpec_Vm{Vm: v}
		if rapid.Bool().Draw(t, "agent form") {
			b64, err := encodeVM(translateVM(v))
			if err != nil {
				t.Fatal(err)
			}
			s.Metadata[MetadataVMSpec] = b64
		}
	}
	return s
}

func TestNormaliseProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSpec(t)
		req := &controlv1.ApplyWorkloadRequest{WorkloadId: "w", Spec: s}
		if e := Validate(req); len(e) > 0 {
			t.Fatalf("the drawn specification must be valid, but is not: %v", e)
		}
		once := proto.CloneOf(s)
		Normalise(once)
		twice := proto.CloneOf(once)
		Normalise(twice)
		if !proto.Equal(once, twice) {
			t.Fatalf("Normalise must be idempotent, but changed its own result:\n%v\n%v", once, twice)
		}
		if e := Validate(&controlv1.ApplyWorkloadRequest{WorkloadId: "w", Spec: once}); len(e) > 0 {
			t.Fatalf("the normalised specification must be valid, but is not: %v", e)
		}
		a, err := Content(once, fixedKey{})
		if err != nil {
			t.Fatal(err)
		}
		// The protobuf library encodes maps in random order. So normalise a decoded copy, to check that the result
		// does not depend on the order.
		raw, err := proto.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		again := &controlv1.WorkloadSpec{}
		if err := proto.Unmarshal(raw, again); err != nil {
			t.Fatal(err)
		}
		Normalise(again)
		b, err := Content(again, fixedKey{})
		if err != nil || a != b {
			t.Fatalf("the normalised specification and its normalised decoded copy have the content hashes %s and %s (error %v), want the same hash", a, b, err)
		}
		if !proto.Equal(DemandOf("w", once), DemandOf("w", again)) {
			t.Fatal("the normalised specification and its normalised decoded copy have different demands, want the same")
		}
		stored, err := Seal("w", once, fixedKey{})
		if err != nil {
			t.Fatal(err)
		}
		back, err := Unseal("w", stored, fixedKey{})
		if err != nil || !proto.Equal(back, once) {
			t.Fatalf("Unseal after Seal must return the same specification, but returned error %v:\n%v\n%v", err, back, once)
		}
	})
}

func FuzzPrepare(f *testing.F) {
	for _, text := range []string{web, stack, gitS, vm, everyField} {
		reqs, err := Parse("f", []byte(text), Options{})
		if err != nil {
			f.Fatal(err)
		}
		raw, err := proto.Marshal(reqs[0])
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		req := &controlv1.ApplyWorkloadRequest{}
		if req.UnmarshalVT(raw) != nil { // decode as a server does, which drops the fields of other workload types
			return
		}
		p, err := Prepare(req, fuzzKey)
		if err != nil {
			_ = err.Error()
			return
		}
		for _, w := range p.Command.GetPutWorkloads().GetWorkloads() {
			s, err := Unseal(w.Id, w.Spec, fuzzKey)
			if err != nil {
				t.Fatal(err)
			}
			ToAgent(&fsm.Workload{ID: w.Id, Content: w.Content, Demand: &fsm.Demand{}}, s)
			WorkloadView(&fsm.Workload{ID: w.Id, Spec: w.Spec, Demand: &fsm.Demand{}, Actual: &fsm.Observation{}}, Full)
		}
	})
}

func BenchmarkPrepare(b *testing.B) {
	reqs, err := Parse("f", []byte(web), Options{})
	if err != nil {
		b.Fatal(err)
	}
	key, err := pki.NewKey()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Prepare(reqs[0], key); err != nil {
			b.Fatal(err)
		}
	}
}

// TestAsksOfSpecifications checks for which rights on the node, such as host paths, each specification asks.
func TestAsksOfSpecifications(t *testing.T) {
	machine := func(d *agentv1.DiskConfig) *controlv1.WorkloadSpec {
		text, err := encodeVM(&agentv1.VMSpec{OsImage: "debian.qcow2", Disks: []*agentv1.DiskConfig{d}})
		if err != nil {
			t.Fatal(err)
		}
		return &controlv1.WorkloadSpec{Type: TypeVM, Metadata: map[string]string{MetadataVMSpec: text}}
	}
	one := func(c *controlv1.ContainerSpec) *controlv1.WorkloadSpec {
		return &controlv1.WorkloadSpec{Type: "container", Workload: &controlv1.WorkloadSpec_Container{Container: c}}
	}
	for _, tt := range []struct {
		name string
		spec *controlv1.WorkloadSpec
		want []string
	}{
		{"a container that asks only for its image", one(&controlv1.ContainerSpec{Image: "nginx"}),
			[]string{"container.image images docker.io/library/nginx:latest", "container requires user,user_unset,cap_drop,cpu,memory"}},
		{"a container with added rights and mounts", one(&controlv1.ContainerSpec{
			Image: "nginx", Privileged: true, User: "0", CapAdd: []string{"cap_sys_admin"}, CapDrop: []string{"all"}, SecurityOpt: []string{"seccomp:unconfined"}, PidsLimit: -1,
			Volumes: []*controlv1.VolumeMount{{HostPath: "/etc/../etc", ContainerPath: "/x", ReadOnly: true}, {HostPath: "/", ContainerPath: "/y"}},
			Ports:   []*controlv1.Port{{HostPort: 22, ContainerPort: 22}, {ContainerPort: 80}},
		}), []string{
			"container.image images docker.io/library/nginx:latest", "container.privileged privileged true",
			"container.volumes[0].host_path host_paths_read /etc", "container.volumes[1].host_path host_paths /",
			"container.cap_add[0] capabilities SYS_ADMIN", "container.security_opt[0] security_options seccomp=unconfined",
			"container.user users 0", "container.pids_limit max_pids -1", "container.ports[0] ports |0/tcp", "container.ports[1] ports |22/tcp",
			"container requires user,cpu,memory",
		}},
		{"a virtual machine with a disk without a path asks for nothing", machine(&agentv1.DiskConfig{SizeGb: 1}), nil},
		{"a virtual machine with its disk at the default path asks for nothing", machine(&agentv1.DiskConfig{Device: "vda", Path: "/var/lib/libvirt/images/w-vda.qcow2"}), nil},
		{"a virtual machine with the disk of another virtual machine asks for that disk", machine(&agentv1.DiskConfig{Device: "vda", Path: "/var/lib/libvirt/images/x-vda.qcow2"}), []string{"vm.disks[0].path disks /var/lib/libvirt/images/x-vda.qcow2"}},
		{"a virtual machine with a disk device of the host asks for that device", machine(&agentv1.DiskConfig{Path: "/dev/sda"}), []string{"vm.disks[0].path disks /dev/sda"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := proto.CloneOf(tt.spec)
			Normalise(s)
			var got []string
			for _, a := range DemandOf("w", s).GetAsks() {
				got = append(got, a.GetField()+" "+a.GetRule()+" "+a.GetValue())
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("the specification has the asks\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
			}
		})
	}
}
