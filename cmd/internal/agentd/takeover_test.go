package agentd

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	bolt "go.etcd.io/bbolt"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/compose"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

// existing is a machine on which a legacy v1 agent has run (contract/state-etcd.md, "Agent local store";
// contract/semantics.md, section 12): one container with a managed volume, one stack, one stopped container, and the
// agent's state file with its four buckets.
type existing struct {
	containers map[string]string // container names and their engine ids
	started    map[string]string
	data       string // folder with the data of the managed volume
	at         time.Time
}

func (m *machine) existing() existing {
	m.Helper()
	e := existing{containers: map[string]string{}, started: map[string]string{}, data: filepath.Join(m.cfg.LocalRoot, "data"), at: time.Date(2025, 3, 4, 5, 6, 7, 0, time.UTC)}
	if err := os.MkdirAll(e.data, 0o755); err != nil {
		m.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(e.data, "f"), []byte("theirs"), 0o644); err != nil {
		m.Fatal(err)
	}
	old := func(id string) map[string]string {
		return map[string]string{driver.LabelManaged: "true", driver.LabelWorkload: id, driver.LabelRevision: "rev-7"}
	}
	web, job, shop := m.id("web"), m.id("job"), m.id("shop")
	make := func(name, called string, labels map[string]string, binds []string, run bool) {
		res, err := m.cli.ContainerCreate(m.Context(), client.ContainerCreateOptions{
			Name:       called,
			Config:     &container.Config{Image: m.image, Labels: labels, ExposedPorts: network.PortSet{network.MustParsePort("8080/tcp"): {}}},
			HostConfig: &container.HostConfig{Binds: binds, PortBindings: network.PortMap{network.MustParsePort("8080/tcp"): {{}}}},
		})
		if err != nil {
			m.Fatal(err)
		}
		m.Cleanup(func() { m.remove(res.ID) })
		if run {
			if _, err := m.cli.ContainerStart(m.Context(), res.ID, client.ContainerStartOptions{}); err != nil {
				m.Fatal(err)
			}
		}
		e.containers[name] = res.ID
		e.started[name] = m.startedAt(res.ID)
	}
	make("web", web, old(web), []string{e.data + ":/data"}, true)
	make("job", job, old(job), nil, false)
	make("shop", shop+"-api-1", map[string]string{
		"com.docker.compose.project": shop, "com.docker.compose.service": "api", "com.docker.compose.container-number": "1", "com.docker.compose.oneoff": "False",
		"com.docker.compose.project.working_dir":  compose.LegacyDir + "/" + shop,
		"com.docker.compose.project.config_files": compose.LegacyDir + "/" + shop + "/docker-compose.yml", "com.docker.compose.config-hash": "0",
	}, nil, true)

	db, err := bolt.Open(m.cfg.StatePath, 0o600, nil)
	if err != nil {
		m.Fatal(err)
	}
	defer db.Close()
	record := func(bucket, key string, v map[string]any) {
		raw, err := json.Marshal(v)
		if err != nil {
			m.Fatal(err)
		}
		err = db.Update(func(tx *bolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte(bucket))
			if err != nil {
				return err
			}
			return b.Put([]byte(key), raw)
		})
		if err != nil {
			m.Fatal(err)
		}
	}
	workload := func(id, kind, desired, actual string, spec map[string]any) {
		record("workloads", id, map[string]any{"id": id, "type": kind, "revision_id": "rev-7", "desired_state": desired, "spec": spec, "created_at": e.at, "updated_at": e.at})
		record("status", id, map[string]any{"id": id, "type": kind, "revision_id": "rev-7", "desired_state": desired, "actual_state": actual, "message": "",
			"created_at": e.at, "updated_at": e.at, "metadata": map[string]string{"container.state": actual}})
	}
	workload(web, "container", "running", "running", map[string]any{
		"image": m.image, "env": map[string]string{"SECRET": "plain in their file"}, "ports": []any{map[string]any{"container_port": 8080}},
		"managed_volumes": []any{map[string]any{"name": "data", "driver": "local", "mount_path": "/data", "retain_policy": "Delete"}},
	})
	workload(job, "container", "stopped", "stopped", map[string]any{"image": m.image})
	workload(shop, "compose", "running", "running", map[string]any{"compose_yaml": m.stackText("")})
	record("volumes", "local:data", map[string]any{"id": "local:data", "name": "data", "driver": "local", "size_gb": 0, "device": "", "stage_path": e.data, "created_at": e.at, "updated_at": e.at})
	record("attachments", "local:data:"+web, map[string]any{"id": "local:data:" + web, "volume_id": "local:data", "workload_id": web, "mount_path": "/data",
		"read_only": false, "stage_path": e.data, "created_at": e.at, "updated_at": e.at})
	return e
}

func (m *machine) stackText(extra string) string {
	return "services: {api: {image: \"" + m.image + "\", ports: [\"8080\"]" + extra + "}}\n"
}

func (m *machine) startedAt(id string) string {
	m.Helper()
	res, err := m.cli.ContainerInspect(m.Context(), id, client.ContainerInspectOptions{})
	if err != nil {
		return "gone"
	}
	return res.Container.State.StartedAt
}

// The agent takes over a node from a legacy v1 agent. It must restart no workload: container ids, revisions and times
// must stay the same, and a stopped workload must stay stopped. Afterwards this agent manages the workloads and the
// volume.
func TestAnAgentTakesOverFromALegacyAgent(t *testing.T) {
	m := newMachine(t)
	e := m.existing()
	untouched := func(when string) {
		t.Helper()
		for name, id := range e.containers {
			if now := m.startedAt(id); now != e.started[name] {
				t.Fatalf("after %s, container %s was restarted: it was started at %s, now at %s", when, name, e.started[name], now)
			}
		}
	}
	for range 2 { // in the second round our agent has been restarted
		m.start()
		for _, name := range []string{"web", "shop"} {
			st := m.running(name)
			if st.RevisionId != "rev-7" || st.CreatedAt != e.at.Unix() {
				t.Fatalf("%s: %v", name, st)
			}
		}
		if st := m.status("job"); st.GetActualState() != agentv1.ActualState_ACTUAL_STATE_STOPPED {
			t.Fatalf("the workload that was stopped has the status %v", st)
		}
		m.collect(false, false)
		untouched("taken over")
		m.stop()
	}
	m.start()
	m.running("web")

	// Send an order with the same specification under another revision name. It must not restart the workload.
	same := &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Container{Container: &agentv1.ContainerSpec{
		Image: m.image, Env: map[string]string{"SECRET": "plain in their file"}, Ports: []*agentv1.PortMapping{{ContainerPort: 8080}},
		ManagedVolumes: []*agentv1.ManagedVolumeSpec{{Name: "data", Driver: "local", MountPath: "/data", RetainPolicy: "Delete"}},
	}}}
	out, err := m.api.ApplyWorkload(t.Context(), &agentv1.ApplyWorkloadRequest{Id: m.id("web"), RevisionId: "c1-0123456789abcdef", Content: "c1:0123", Spec: same})
	if err != nil || !out.Skipped {
		t.Fatalf("the repeated order was answered %v, %v; want that it is skipped", out, err)
	}
	untouched("an order with the same specification")

	// Send an order with another environment. It must replace the container and keep the content of the volume.
	same.GetContainer().Env["V"] = "2"
	m.apply("web", same)
	if got := m.ask("web", "/read", "/data/f"); got != "200 theirs" {
		t.Errorf("after an update of the container the volume holds %s, want the former content", got)
	}
	if now := m.containers("web"); len(now) != 1 || now[0] == e.containers["web"] {
		t.Errorf("after an update the containers are %v, want one new container", now)
	}
	for _, name := range []string{"web", "job", "shop"} {
		m.delete(name)
	}
	for name, id := range e.containers {
		if m.there(id) {
			t.Errorf("the container of %s was not removed with its workload", name)
		}
	}
	if !gone(e.data) {
		t.Error("the volume was not removed, but its retention policy is to delete it")
	}
}
