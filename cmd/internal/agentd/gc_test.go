package agentd

import (
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/persys/compute/agent"
	"github.com/persys/compute/agent/driver"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

// make puts a container on the engine that the agent did not order.
func (m *machine) make(called string, labels map[string]string) string {
	m.Helper()
	res, err := m.cli.ContainerCreate(m.Context(), client.ContainerCreateOptions{
		Name: called, Config: &container.Config{Image: m.image, Labels: labels},
	})
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() { m.remove(res.ID) })
	return res.ID
}

func (m *machine) ours(name, cluster, node string) map[string]string {
	return map[string]string{
		driver.LabelManaged: "true", driver.LabelWorkload: m.id(name), driver.LabelCluster: cluster, driver.LabelNode: node,
		driver.LabelKind: string(driver.Container), driver.LabelContent: "c1:old", driver.LabelRevision: "r0",
	}
}

func (m *machine) there(id string) bool {
	_, err := m.cli.ContainerInspect(m.Context(), id, client.ContainerInspectOptions{})
	return err == nil
}

func (m *machine) collect(dry, orphans bool) map[string]*agentv1.Garbage {
	m.Helper()
	res, err := m.api.CollectGarbage(m.Context(), &agentv1.CollectGarbageRequest{DryRun: dry, Orphans: orphans})
	if err != nil || len(res.Skipped) > 0 {
		m.Fatalf("%v %v", res, err)
	}
	out := map[string]*agentv1.Garbage{}
	for _, g := range res.Items {
		out[g.Kind+" "+g.Name] = g
	}
	return out
}

// On the real engine: what is garbage is found dry, removed, and nothing else is touched.
func TestGarbageOnTheEngine(t *testing.T) {
	m := newMachine(t)
	m.start()
	m.apply("web", m.container())
	m.running("web")
	web := m.containers("web")[0]
	left := m.make(m.id("left"), m.ours("web", agent.Unbound, m.node))
	ghost := m.make(m.id("ghost"), m.ours("ghost", agent.Unbound, m.node))
	spared := []string{
		m.make(m.id("plain"), nil),
		m.make(m.id("unlabelled"), map[string]string{driver.LabelManaged: "true", driver.LabelWorkload: m.id("x")}),
		m.make(m.id("sibling"), m.ours("web", agent.Unbound, "another-node")),
		m.make(m.id("cluster"), m.ours("ghost", "another-cluster", m.node)),
	}
	folder := func(project, record string) string {
		dir := filepath.Join(m.cfg.ComposeDir, project)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if record != "" {
			if err := os.WriteFile(filepath.Join(dir, "stack.json"), []byte(record), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	old := folder(m.id("old"), `{"workload":"`+m.id("old")+`","cluster_id":"unbound","node_id":"`+m.node+`"}`)
	theirs := folder(m.id("theirs"), `{"workload":"x","cluster_id":"unbound","node_id":"another-node"}`)
	bare := folder(m.id("bare"), "")

	found := m.collect(true, true)
	if len(found) != 3 || found["leftover "+m.id("left")] == nil || found["orphan "+m.id("ghost")] == nil || found["project "+m.id("old")] == nil {
		t.Fatalf("found %v", found)
	}
	for _, id := range append(spared, left, ghost, web) {
		if !m.there(id) {
			t.Fatalf("a dry run removed %s", id)
		}
	}
	m.collect(false, false)
	if m.there(left) || !gone(old) {
		t.Error("garbage is left")
	}
	for _, id := range append(spared, ghost, web) {
		if !m.there(id) {
			t.Errorf("removed %s", id)
		}
	}
	if gone(theirs) || gone(bare) {
		t.Error("a folder that is not ours was removed")
	}
	if m.collect(false, true); m.there(ghost) {
		t.Error("the orphan is left, though a person asked for it")
	}
	m.delete("web")
}

func gone(path string) bool {
	_, err := os.Lstat(path)
	return os.IsNotExist(err)
}

func (m *machine) remove(id string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, _ = m.cli.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true})
}

// privateRegistry wants a password.
func (m *machine) privateRegistry(password *string) (host string) {
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, given, _ := r.BasicAuth(); *password != "" && given != *password {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`))
			return
		}
		inner.ServeHTTP(w, r)
	}))
	m.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

// An image that the agent pulled, with credentials of the machine's own file, goes when it is unused and
// past the budget; one that was there before stays. The password is nowhere to be seen.
func TestImagesPastTheBudgetAndCredentials(t *testing.T) {
	const canary = "c4nary-registry-password"
	password := ""
	m := newMachine(t)
	m.gc.ImageBudget = 1
	host := m.privateRegistry(&password)
	push := func(ref string) string {
		tag, err := name.NewTag(host + "/" + ref)
		if err != nil {
			t.Fatal(err)
		}
		layer, err := random.Layer(1024, types.DockerLayer) // each an image of its own
		if err != nil {
			t.Fatal(err)
		}
		img, err := mutate.AppendLayers(m.probe, layer)
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.Write(tag, img); err != nil {
			t.Fatal(err)
		}
		return tag.Name()
	}
	pulled, before := push("app:v1"), push("theirs:v1")
	password = canary
	if err := os.WriteFile(m.cfg.CredsFile, []byte("registries:\n  \""+host+"\": {username: robot, password: wrong-"+canary+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.start()
	spec := m.container()
	spec.GetContainer().Image = pulled
	m.apply("app", spec)
	m.until("a refused pull", func() bool { return m.status("app").GetMetadata()["failure_reason"] == "IMAGE_PULL_AUTH_FAILED" })
	refused := m.status("app").String()
	if err := os.WriteFile(m.cfg.CredsFile, []byte("registries:\n  \""+host+"\": {username: robot, password: "+canary+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.apply("app", spec) // the credentials are mended on the machine, and the order is given again
	m.until("the container", func() bool { return len(m.containers("app")) == 1 })

	// The other one is pulled by a person, then used by a workload.
	auth := client.ImagePullOptions{RegistryAuth: "eyJ1c2VybmFtZSI6InJvYm90IiwicGFzc3dvcmQiOiJjNG5hcnktcmVnaXN0cnktcGFzc3dvcmQifQ=="}
	res, err := m.cli.ImagePull(t.Context(), before, auth)
	if err != nil {
		t.Fatal(err)
	}
	if err := res.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, ref := range []string{pulled, before} {
			_, _ = m.cli.ImageRemove(ctx, ref, client.ImageRemoveOptions{Force: true})
		}
	})
	if found := m.collect(true, false); len(found) != 0 {
		t.Errorf("found %v while it is in use", found)
	}
	m.delete("app")
	if found := m.collect(false, false); len(found) != 1 || !found["image "+pulled].GetRemoved() {
		t.Fatalf("found %v", found)
	}
	for ref, want := range map[string]bool{pulled: false, before: true} {
		if _, err := m.cli.ImageInspect(t.Context(), ref); (err == nil) != want {
			t.Errorf("%s is there: %v, want %v", ref, err == nil, want)
		}
	}
	m.stop()
	state, err := os.ReadFile(m.cfg.StatePath)
	if err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	said := m.log.String()
	m.mu.Unlock()
	for where, text := range map[string]string{"the state file": string(state), "the log": said, "the status": refused} {
		if strings.Contains(text, canary) || strings.Contains(text, auth.RegistryAuth[:24]) {
			t.Errorf("%s holds the password", where)
		}
	}
}
