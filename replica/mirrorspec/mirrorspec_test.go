package mirrorspec

import (
	"encoding/json"
	"strings"
	"testing"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/mirror"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/spec"
)

func recordOf(t *testing.T, text string) *mirror.Workload {
	t.Helper()
	w := &mirror.Workload{}
	if err := json.Unmarshal([]byte(text), w); err != nil {
		t.Fatal(err)
	}
	return w
}

// translated translates a record of a legacy v1 scheduler and reads the stored specification again.
func translated(t *testing.T, w *mirror.Workload) (*controlv1.WorkloadSpec, error) {
	t.Helper()
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	req, err := Specification(w)
	if err != nil {
		return nil, err
	}
	p, err := spec.Prepare(req, key)
	if err != nil {
		return nil, err
	}
	put := p.Command.GetPutWorkloads().GetWorkloads()[0]
	for _, secret := range []string{"hush", "t0ken", "#cloud-config"} {
		if strings.Contains(string(put.GetSpec()), secret) {
			t.Errorf("workload %s: the secret %q is stored in plain text", w.ID, secret)
		}
	}
	if put.GetCallerRevision() != w.RevisionID {
		t.Errorf("workload %s has the caller's revision %q, want %q", w.ID, put.GetCallerRevision(), w.RevisionID)
	}
	s, err := spec.Unseal(w.ID, put.GetSpec(), key)
	if err != nil {
		t.Fatal(err)
	}
	return s, nil
}

// This test translates a record as in contract/state-etcd.md, with every field set.
func TestSpecificationsOfLegacyRecords(t *testing.T) {
	s, err := translated(t, recordOf(t, `{"id":"web","name":"web","type":"docker-container","revisionId":"rev-7","image":"nginx:1","command":"a b","envVars":{"PASSWORD":"hush"},
		"resources":{"cpu_usage":0.5,"memory_usage":256,"disk_usage":3},"labels":{"zone":"x"},"ports":["8080:80/tcp","5353:53/udp","81"],"volumes":["/data:/srv:ro","/tmp:/tmp"],
		"managedVolumes":[{"name":"d","sizeGb":5,"mountPath":"/d"}],"restartPolicy":"always","metadata":{"team":"blue","last_action":"Created","reason_code":"X","n":1,"container.id":"abc"}}`))
	if err != nil {
		t.Fatal(err)
	}
	c := s.GetContainer()
	if s.GetType() != "container" || c.GetImage() != "nginx:1" || strings.Join(c.GetCommand(), ",") != "a,b" || c.GetEnv()["PASSWORD"] != "hush" || c.GetRestartPolicy() != "always" {
		t.Errorf("the specification is %v, want the container of the record", s)
	}
	if r := s.GetResources(); r.GetCpuMillicores() != 500 || r.GetMemoryMb() != 256 || r.GetDiskGb() != 3 || s.GetLabels()["zone"] != "x" {
		t.Errorf("the specification is %v, want the resources and labels of the record", s)
	}
	if len(s.GetMetadata()) != 1 || s.GetMetadata()["team"] != "blue" {
		t.Errorf("the metadata must have only the keys of the workload's owner, but is: %v", s.GetMetadata())
	}
	ports := map[int32]string{}
	for _, p := range c.GetPorts() {
		ports[p.GetContainerPort()] = portText(p)
	}
	if len(ports) != 3 || ports[80] != "8080:80/tcp" || ports[53] != "5353:53/udp" || ports[81] != "0:81/tcp" {
		t.Errorf("the ports are %v, want the three ports of the record", ports)
	}
	if v := c.GetVolumes(); len(v) != 2 || len(c.GetManagedVolumes()) != 1 || c.GetManagedVolumes()[0].GetSizeGb() != 5 {
		t.Errorf("the mounts are %v and the managed volumes %v, want 2 mounts and one volume of 5 GB", v, c.GetManagedVolumes())
	}

	s, err = translated(t, recordOf(t, `{"id":"stack","type":"compose","gitRepo":"https://git.example/x.git","gitBranch":"main","gitToken":"t0ken","envVars":{"A":"hush"},"resources":{}}`))
	if err != nil {
		t.Fatal(err)
	}
	if g := s.GetCompose(); g.GetSourceType() != "git" || g.GetGitRepo() != "https://t0ken@git.example/x.git" || g.GetGitRef() != "main" || g.GetEnv()["A"] != "hush" {
		t.Errorf("the specification is %v, want the Git stack of the record with its token in the URL", s)
	}
	s, err = translated(t, recordOf(t, `{"id":"inline","type":"","composeYaml":"services:\n  web:\n    image: nginx:1\n    environment: {P: hush}\n","resources":{}}`))
	if err != nil || s.GetType() != "compose" || !strings.Contains(s.GetCompose().GetInlineYaml(), "hush") {
		t.Errorf("the specification of a record with one Compose file: %v %v, want a stack with the secret in its file", s, err)
	}

	w := recordOf(t, `{"id":"vm1","type":"vm","revisionId":"1","resources":{},"vm":{"name":"vm1","vcpus":2,"memoryMb":2048,
		"disks":[{"path":"/var/lib/libvirt/images/vm1.qcow2","device":"vda","format":"qcow2","sizeGb":20,"type":"disk","boot":true}],
		"networks":[{"network":"default","macAddress":"52:54:00:00:00:01"}],"cloudInitConfig":{"userData":"#cloud-config\n"}}}`)
	if s, err = translated(t, w); err != nil {
		t.Fatal(err)
	}
	d := spec.DemandOf("w", s)
	if s.GetType() != "vm" || !s.GetExclusive() || d.GetCpuMillicores() != 2000 || d.GetMemoryMib() != 2048 || d.GetDiskGb() != 20 {
		t.Errorf("the specification is %v and the demand %v, want an exclusive virtual machine with 2 cores, 2048 MiB and 20 GB", s, d)
	}
	got := spec.ToAgent(&fsm.Workload{ID: "vm1", Demand: &fsm.Demand{Type: "vm"}, Actual: &fsm.Observation{}}, s).GetSpec().GetVm()
	if len(got.GetDisks()) != 1 || got.GetDisks()[0].GetPath() != "/var/lib/libvirt/images/vm1.qcow2" || got.GetNetworks()[0].GetMacAddress() != "52:54:00:00:00:01" {
		t.Errorf("the specification must keep the disks and addresses of a running virtual machine, but is %v", got)
	}
}

func TestRecordsThatCannotBeTaken(t *testing.T) {
	for _, tt := range []struct{ name, record, want string }{
		{"a record without a type, from whose fields no type follows", `{"id":"a"}`, "type"},
		{"a record with an unknown type", `{"id":"a","type":"wasm"}`, `"wasm"`},
		{"a record with an invalid port", `{"id":"a","type":"container","image":"x","ports":["http"]}`, "ports[0]"},
		{"a record of a volume without a target", `{"id":"a","type":"container","image":"x","volumes":["/data"]}`, "volumes[0]"},
		{"no image", `{"id":"a","type":"container"}`, "image"},
		{"a record with a Git token for an ssh URL", `{"id":"a","type":"compose","gitRepo":"git@h:x.git","gitToken":"t"}`, "gitToken"},
		{"a record of a virtual machine without a description", `{"id":"a","type":"vm"}`, "vm"},
		{"a record whose id has a slash", `{"id":"a/b","type":"container","image":"x"}`, "workload_id"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if s, err := translated(t, recordOf(t, tt.record)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Specification returned %v and error %v; want an error about %s", s, err, tt.want)
			}
		})
	}
}
