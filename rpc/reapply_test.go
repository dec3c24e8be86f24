package rpc

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/spec"
	stackfiles "github.com/persys/compute/stack/bundle"
)

// moreSpecs are workloads of kinds and with fields that no example has.
var moreSpecs = `
id: single
revision: mine
desired: stopped
resources: {cpu: 250m, memory: 64Mi}
container:
  image: nginx
  env: {A: one, TOKEN: hunter2}
  ports: ['80:8080', '53:53/udp']
  volumes: ['/h:/c:ro']
  logging: {driver: local, options: {max-size: 10m}}
metadata: {app: web}
---
id: rolled
count: 4
resources: {cpu: 100m}
update: {max_parallel: 2, min_healthy_time: 3s, healthy_deadline: 60s, auto_revert: true, canary: 1}
container: {image: nginx, env: {TOKEN: hunter2}}
---
id: none
count: 0
resources: {cpu: 100m}
container: {image: nginx, env: {TOKEN: hunter2}}
---
id: halted
count: 2
desired: stopped
resources: {cpu: 100m}
container: {image: nginx}
---
id: scaled
autoscale: {min: 2, max: 4, cpu: 50}
resources: {cpu: 100m}
container: {image: nginx}
---
id: work
kind: job
resources: {cpu: 100m}
job: {completions: 3, parallelism: 2}
container: {image: nginx, env: {TOKEN: hunter2}}
---
id: once
kind: job
resources: {cpu: 100m}
container: {image: nginx}
---
id: nightly
kind: cron
resources: {cpu: 100m}
cron: {schedule: '30 2 * * *', time_zone: Europe/Berlin, suspend: true}
job: {retries: 2}
container: {image: nginx, env: {TOKEN: hunter2}}
---
id: hourly
kind: cron
resources: {cpu: 100m}
cron: {schedule: '@hourly'}
container: {image: nginx}
---
id: everywhere
kind: system
resources: {cpu: 100m}
update: {max_parallel: 3}
container: {image: nginx, env: {TOKEN: hunter2}}
---
id: plainly
kind: system
resources: {cpu: 100m}
container: {image: nginx}
---
id: onall
kind: job
job: {every_node: true}
resources: {cpu: 100m}
container: {image: nginx}
---
id: stacked
resources: {cpu: 100m}
compose:
  inline: 'services: {a: {image: x, ports: ["127.0.0.1:8080:80"]}}'
  env: {T: hunter2}
---
id: repo
resources: {cpu: 100m}
compose: {git: 'https://user:hunter2@example.com/a.git#main'}
---
id: machine
vm:
  cpus: 2
  memory: 1Gi
  disks: [{}, {size: 5Gi}]
  networks: [default]
  cloud_init: {user_data: '#cloud-config'}
  login: {user: me, password: hunter2}
  managed_volumes: [{name: d, size: 3Gi, path: /d}]
---
id: published
resources: {cpu: 100m}
container: {image: nginx, ports: [{published: 8099, target: 80, mode: ingress}]}
`

// documentsOf reads workload files.
func documentsOf(t *testing.T, name, text string) (out []*controlv1.ApplyWorkloadRequest) {
	t.Helper()
	docs, err := spec.Documents(name, []byte(text), spec.Options{ReadFile: func(p string) ([]byte, error) { return os.ReadFile(filepath.Join(filepath.Dir(name), p)) }})
	ok(t, err)
	for _, d := range docs {
		out = append(out, d.Request)
	}
	return out
}

// applied gets the file with which a user can apply a workload or a group again, and returns the requests that this
// file contains.
func (g *group) applied(t *testing.T, id string) (out []*controlv1.ApplyWorkloadRequest) {
	t.Helper()
	r, err := g.control(0).GetWorkload(ctxFor(t), &controlv1.GetWorkloadRequest{WorkloadId: id, AsApplied: true})
	if err != nil {
		t.Fatalf("GetWorkload of %s with as_applied returned %v, want the file", id, err)
	}
	for _, a := range r.GetApplies() {
		text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(a)
		ok(t, err)
		if strings.Contains(string(text), "hunter2") {
			t.Errorf("GetWorkload of %s with as_applied shows a secret: %s", id, text)
		}
		out = append(out, documentsOf(t, id, string(text))...)
	}
	return out
}

// TestAppliedAgain: the file that a scheduler gives of a workload can be applied again, and changes nothing.
func TestAppliedAgain(t *testing.T) {
	files, err := filepath.Glob("../examples/*")
	ok(t, err)
	texts := map[string]string{"more.yaml": moreSpecs}
	for _, f := range files {
		if ext := filepath.Ext(f); ext == ".yaml" || ext == ".json" {
			raw, err := os.ReadFile(f)
			ok(t, err)
			texts[f] = string(raw)
		}
	}
	if len(texts) < 15 {
		t.Fatalf("the test found %d example workload files, want at least 15", len(texts))
	}
	for name, text := range texts {
		t.Run(filepath.Base(name), func(t *testing.T) {
			g := newGroup(t, 1)
			reqs := documentsOf(t, name, text)
			if name == "more.yaml" {
				b64 := base64.StdEncoding.EncodeToString([]byte(`{"vcpus":2,"memory_mb":1024,"disks":[{"device":"vda","size_gb":20}],"networks":[{"network":"default"}],"cloud_init":"#cloud-config","unheard_of":1}`))
				reqs = append(reqs, &controlv1.ApplyWorkloadRequest{WorkloadId: "older", Spec: &controlv1.WorkloadSpec{Type: "vm", Metadata: map[string]string{spec.MetadataVMSpec: b64}}})
			}
			for _, req := range reqs {
				resp, err := g.control(0).ApplyWorkload(ctxFor(t), req)
				ok(t, err)
				if !resp.GetSuccess() {
					t.Fatalf("the first apply of workload %s is refused: %s", req.GetWorkloadId(), resp.GetErrorMessage())
				}
				id := req.GetWorkloadId()
				again := g.applied(t, id)
				if len(again) != 1 || again[0].GetWorkloadId() != id {
					t.Fatalf("the file of workload %s contains %v, want one request for this workload", id, again)
				}
				resp, err = g.control(0).ApplyWorkload(ctxFor(t), again[0])
				ok(t, err)
				if !resp.GetSuccess() || !resp.GetUnchanged() {
					t.Errorf("an apply of the file of %s must change nothing, but returned success %t, error %q; the file has\n%v\nwant\n%v", id, resp.GetSuccess(), resp.GetErrorMessage(), again[0], req)
				}
				if a, b := req.GetSpec().GetUpdate(), again[0].GetSpec().GetUpdate(); (a == nil) != (b == nil) || a.GetMaxParallel() != b.GetMaxParallel() || a.GetCanary() != b.GetCanary() || a.GetAutoRevert() != b.GetAutoRevert() {
					t.Errorf("the update strategy of workload %s was %v and is %v after its file was applied again, want no change", id, a, b)
				}
			}
		})
	}
}

// TestKeptSecrets: an apply keeps the stored value of each secret that is the marker, and needs a stored value for it.
func TestKeptSecrets(t *testing.T) {
	var key spec.Sealer
	g := newGroup(t, 1, func(_ int, c *Config) { key = c.Keys.(keys).key })
	c := g.control(0)
	apply := func(id, text string) (*controlv1.ApplyWorkloadResponse, error) {
		req := documentsOf(t, "f.yaml", text)[0]
		req.WorkloadId = id
		return c.ApplyWorkload(ctxFor(t), req)
	}
	accepted := func(id, text string) {
		t.Helper()
		resp, err := apply(id, text)
		ok(t, err)
		if !resp.GetSuccess() {
			t.Fatalf("the apply of workload %s is refused: %s", id, resp.GetErrorMessage())
		}
	}
	refusedWith := func(id, text, want string) {
		t.Helper()
		resp, err := apply(id, text)
		if err == nil && resp.GetSuccess() || !strings.Contains(resp.GetErrorMessage()+errText(err), want) {
			t.Errorf("the apply of workload %s returned %v and error %v, want a refusal with %q", id, resp, err, want)
		}
	}
	stored := func(id string) *controlv1.WorkloadSpec {
		t.Helper()
		w, found := g.view().Workload(id)
		if !found {
			t.Fatalf("the state has no workload %s", id)
		}
		s, err := spec.Unseal(w.SpecID(), w.Spec, key)
		ok(t, err)
		return s
	}
	const container = "id: x\nresources: {cpu: 100m}\ncontainer: {image: nginx, env: {A: '%A', B: '%B'}}\n"
	with := func(a, b string) string { return strings.NewReplacer("%A", a, "%B", b).Replace(container) }
	refusedWith("web", with("***", "b"), "spec.container.env.A: is the marker ***, which keeps the stored value, and this workload has none there")
	accepted("web", with("one", "two"))
	accepted("web", with("***", "three"))
	is(t, "value of A, for which the apply sent the marker ***", stored("web").GetContainer().GetEnv()["A"], "one")
	is(t, "value of B, for which the apply sent a new value", stored("web").GetContainer().GetEnv()["B"], "three")
	accepted("web", "id: web\nresources: {cpu: 100m}\ncontainer: {image: nginx, env: {A: one}}\n")
	refusedWith("web", with("***", "***"), "spec.container.env.B")

	// A group keeps the values of its first member, also when it grows and while it is updated.
	accepted("many", with("one", "two")+"count: 2\n")
	accepted("many", with("***", "***")+"count: 3\nupdate: {max_parallel: 1}\n")
	is(t, "value of B in a new member of the group", stored("many-2").GetContainer().GetEnv()["B"], "two")
	accepted("many", with("***", "newer")+"count: 3\nupdate: {max_parallel: 1}\n")
	for _, again := range [][]*controlv1.ApplyWorkloadRequest{g.applied(t, "many"), g.applied(t, "many-2")} {
		is(t, "workload id in the file of a group or of its member", again[0].GetWorkloadId(), "many")
		is(t, "count in the file of a group or of its member", again[0].GetSpec().GetCount(), 3)
		resp, err := c.ApplyWorkload(ctxFor(t), again[0])
		ok(t, err)
		is(t, "whether an apply of the file during the update succeeds", resp.GetSuccess(), true)
	}
	r, _ := g.view().Rollout("many")
	waiting := 0
	for _, m := range r.Members {
		if m.Put != nil {
			s, err := spec.Unseal(m.ID, m.Put.GetSpec(), key)
			ok(t, err)
			is(t, "value of B that the update will give to a waiting member", s.GetContainer().GetEnv()["B"], "newer")
			waiting++
		}
	}
	if waiting == 0 {
		t.Error("no member of group many waits for the update, want at least one, because the test checks the values of waiting members")
	}

	// Credentials of a Git URL are kept for the same URL only.
	const git = "id: x\nresources: {cpu: 100m}\ncompose: {git: 'https://%A@%B/a.git'}\n"
	repo := func(secret, host string) string { return strings.NewReplacer("%A", secret, "%B", host).Replace(git) }
	accepted("repo", repo("me:hunter2", "example.com"))
	accepted("repo", repo("***", "example.com"))
	is(t, "stored Git URL after an apply with the marker *** in place of its credentials", stored("repo").GetCompose().GetGitRepo(), "https://me:hunter2@example.com/a.git")
	refusedWith("repo", repo("***", "evil.example"), "spec.compose.git_repo: has the marker *** in place of credentials, which are stored for another URL")

	// The files beside a Compose file are kept with it.
	archive, err := stackfiles.Pack([]stackfiles.File{{Path: "app.env", Data: []byte("A=1\n")}})
	ok(t, err)
	req := documentsOf(t, "f.yaml", "id: shop\nresources: {cpu: 100m}\ncompose: {inline: 'services: {a: {image: x, env_file: app.env}}'}\n")[0]
	req.Files = archive
	resp, err := c.ApplyWorkload(ctxFor(t), req)
	ok(t, err)
	is(t, "error text of the apply of the stack with a file", resp.GetErrorMessage(), "")
	resp, err = c.ApplyWorkload(ctxFor(t), g.applied(t, "shop")[0])
	ok(t, err)
	is(t, "whether an apply of the stack's own file changes nothing", resp.GetUnchanged(), true)

	// A plan accepts the marker *** and keeps the stored values, as an apply does.
	plan, err := g.cluster(0).PlanWorkloads(ctxFor(t), &clusterv1.PlanWorkloadsRequest{Workloads: g.applied(t, "many")})
	ok(t, err)
	is(t, "number of workloads in the plan of the group's file", len(plan.GetWorkloads()), 3)

	// The file of a group that was not made with count contains one request for each of its workloads. The
	// request for the file of a workload that does not exist gets NotFound.
	accepted("a", "id: a\ngroup: pair\nresources: {cpu: 100m}\ncontainer: {image: nginx}\n")
	accepted("b", "id: b\ngroup: pair\nresources: {cpu: 100m}\ncontainer: {image: nginx}\n")
	is(t, "number of requests in the file of a group without count", len(g.applied(t, "pair")), 2)
	_, err = c.GetWorkload(ctxFor(t), &controlv1.GetWorkloadRequest{WorkloadId: "nobody", AsApplied: true})
	says(t, err, codes.NotFound, "nobody")
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestAppliedAgainAfterAChangeOfTheStrategy: an apply that changes only how updates are carried out starts no
// update, and the file of the group has the new strategy. The same holds if the settings of the autoscaler
// change in the same apply.
func TestAppliedAgainAfterAChangeOfTheStrategy(t *testing.T) {
	for name, text := range map[string]string{
		"a group":                           "id: web\ncount: 3\nupdate: {max_parallel: %d}\ncontainer: {image: nginx}\n",
		"a group with an autoscaler":        "id: web\nautoscale: {min: 2, max: 1%d, cpu: 70}\nupdate: {max_parallel: %[1]d}\nresources: {cpu: 0.1, memory: 64Mi}\ncontainer: {image: nginx}\n",
		"one workload on each of the nodes": "id: web\nkind: system\nupdate: {max_parallel: %d}\ncontainer: {image: nginx}\n",
	} {
		t.Run(name, func(t *testing.T) {
			g := newGroup(t, 1)
			for _, most := range []int{2, 3} { // 1 is the default of a system workload, whose file leaves it out
				ok(t, inBand(g.control(0).ApplyWorkload(ctxFor(t), documentsOf(t, "f.yaml", fmt.Sprintf(text, most))[0])))
				again := g.applied(t, "web")
				if got := again[0].GetSpec().GetUpdate().GetMaxParallel(); got != int32(most) {
					t.Errorf("after an apply with max_parallel %d the file of the workload has max_parallel %d", most, got)
				}
			}
		})
	}
}
