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
	"github.com/persys/compute/testbed"
)

// make creates a container on the engine without an order to the agent.
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
		m.Fatalf("the garbage collection returned %v, error %v; want that no engine was skipped", res, err)
	}
	out := map[string]*agentv1.Garbage{}
	for _, g := range res.Items {
		out[g.Kind+" "+g.Name] = g
	}
	return out
}

// TestGarbageOnTheEngine: on a real Docker engine, a dry run must list the unused resources, and a run must remove
// exactly these.
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
		t.Error("garbage collection left garbage behind")
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
		t.Error("the orphan still exists, but a user asked for its removal")
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

// privateRegistry starts an image registry that requires the password.
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

// push creates an image that declares an anonymous volume, and pushes it to the registry host under the name
// ref.
func (m *machine) push(host, ref string) string {
	m.Helper()
	tag, err := name.NewTag(host + "/" + ref)
	if err != nil {
		m.Fatal(err)
	}
	layer, err := random.Layer(1024, types.DockerLayer)
	if err != nil {
		m.Fatal(err)
	}
	img, err := mutate.AppendLayers(m.probe, layer)
	if err != nil {
		m.Fatal(err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		m.Fatal(err)
	}
	conf := file.DeepCopy().Config
	conf.Volumes = map[string]struct{}{"/scratch": {}}
	if img, err = mutate.Config(img, conf); err != nil {
		m.Fatal(err)
	}
	if err := remote.Write(tag, img); err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_, _ = m.cli.ImageRemove(ctx, tag.Name(), client.ImageRemoveOptions{Force: true})
	})
	return tag.Name()
}

// inspect returns the image id of a workload's only container, and the names of its volumes.
func (m *machine) inspect(workload string) (image string, volumes []string) {
	m.Helper()
	all := m.containers(workload)
	if len(all) != 1 {
		m.Fatalf("workload %s has containers %v, want 1", workload, all)
	}
	res, err := m.cli.ContainerInspect(m.Context(), all[0], client.ContainerInspectOptions{})
	if err != nil {
		m.Fatal(err)
	}
	for _, p := range res.Container.Mounts {
		volumes = append(volumes, p.Name)
	}
	return res.Container.Image, volumes
}

// An image loses its tag when a newer image gets the same tag. If unused images exceed the disk budget,
// garbage collection removes images without a tag first. An image to which a user gave another tag stays.
// Anonymous volumes of images are removed together with their containers.
func TestImagesWithoutATagAreRemovedFirst(t *testing.T) {
	none := ""
	m := newMachine(t)
	host := m.privateRegistry(&none)
	of := func(ref, env string) *agentv1.WorkloadSpec {
		spec := m.container()
		spec.GetContainer().Image, spec.GetContainer().Env = ref, map[string]string{"V": env}
		return spec
	}
	ref, other := m.push(host, "app:latest"), m.push(host, "other:v1")
	m.start()
	m.apply("other", of(other, "")) // pull this image before the image that loses its tag
	m.running("other")
	m.delete("other")
	m.apply("app", of(ref, "1"))
	m.running("app")
	first, scratch := m.inspect("app")
	m.push(host, "app:latest")
	m.apply("app", of(ref, "2"))
	m.running("app")
	second, more := m.inspect("app")
	if first == second || len(scratch) != 1 || len(more) != 1 {
		t.Fatalf("after a push under the same tag: images %s and %s, want two; anonymous volumes %v and %v, want one each", first, second, scratch, more)
	}
	name := func(image string) { // name gives the image a further tag, as a person would
		t.Helper()
		if _, err := m.cli.ImageTag(t.Context(), client.ImageTagOptions{Source: image, Target: "persys-kept-" + m.run + ":1"}); err != nil {
			t.Fatal(err)
		}
	}
	name(first)
	t.Cleanup(func() {
		_, _ = m.cli.ImageRemove(context.Background(), "persys-kept-"+m.run+":1", client.ImageRemoveOptions{Force: true})
	})
	res, err := m.cli.ImageInspect(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	m.stop()
	m.gc.ImageBudget = res.Size + 4096 // the disk budget for unused images has room for only one of the two images
	m.start()
	if found := m.collect(true, false); len(found) != 0 {
		t.Errorf("Garbage found %v; want none: one image is in use, one has a user's tag, one is within the budget", found)
	}
	name(other)
	if found := m.collect(false, false); len(found) != 1 || !found["image "+first].GetRemoved() {
		t.Fatalf("garbage collection found %v; want only image %s, removed", found, first)
	}
	for what, want := range map[string]bool{first: false, second: true, other: true} {
		if _, err := m.cli.ImageInspect(t.Context(), what); (err == nil) != want {
			t.Errorf("after garbage collection, whether image %s exists is %v, want %v", what, err == nil, want)
		}
	}
	m.delete("app")
	for _, v := range append(scratch, more...) {
		if _, err := m.cli.VolumeInspect(t.Context(), v, client.VolumeInspectOptions{}); err == nil {
			t.Errorf("volume %s is left", v)
		}
	}
}

// An agent has lost its state file, so it does not know which workloads it ran: their instances are orphans. A stack
// with its network and volume, and an exited container, must stay until a user asks to remove orphans. Then the stack,
// the container and all of their resources must be removed.
func TestOrphansOnTheEngine(t *testing.T) {
	m := newMachine(t)
	m.start()
	m.apply("shop", &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Compose{Compose: &agentv1.ComposeSpec{
		ComposeYaml: "services: {web: {image: \"" + m.image + "\", volumes: [\"data:/data\"]}}\nvolumes: {data: {}}\n"}}})
	ended := m.container()
	ended.GetContainer().Command, ended.GetContainer().RestartPolicy = []string{"exit", "0"}, nil
	m.apply("ended", ended)
	m.running("shop")
	testbed.Until(t, "the container's end", func() bool {
		all := m.containers("ended")
		return len(all) == 1 && m.exited(all[0])
	})
	_, volumes := m.inspect("shop")
	label := make(client.Filters).Add("label", driver.LabelWorkload+"="+m.id("shop"))
	networks := func() int {
		res, err := m.cli.NetworkList(t.Context(), client.NetworkListOptions{Filters: label})
		if err != nil {
			t.Fatal(err)
		}
		return len(res.Items)
	}
	if networks() != 1 || len(volumes) != 1 {
		t.Fatalf("the stack has %d networks and the volumes %v, want one of each", networks(), volumes)
	}
	m.stop()
	if err := os.Remove(m.cfg.StatePath); err != nil {
		t.Fatal(err)
	}
	m.start()
	found := m.collect(false, false)
	if len(found) != 2 || found["orphan "+m.id("shop")].GetRemoved() || found["orphan "+m.id("ended")].GetRemoved() || len(m.containers("shop")) != 1 || networks() != 1 {
		t.Fatalf("a collection without a user's request found %v; want two orphans that were not removed", found)
	}
	m.collect(false, true)
	if left := append(m.containers("shop"), m.containers("ended")...); len(left) != 0 || networks() != 0 || !gone(filepath.Join(m.cfg.ComposeDir, m.id("shop"))) {
		t.Errorf("after the removal of the orphans these are left: containers %v, %d networks; want none", left, networks())
	}
	if _, err := m.cli.VolumeInspect(t.Context(), volumes[0], client.VolumeInspectOptions{}); err == nil {
		t.Errorf("volume %s of a removed stack was not deleted", volumes[0])
	}

	// A user has removed the containers of a stack by hand. The network of the stack must be removed as garbage, but a
	// network that an agent of another node made must stay.
	nets := map[string]bool{}
	for node, ours := range map[string]bool{m.node: true, "another-node": false} {
		labels := m.ours("net", agent.Unbound, node)
		labels[driver.LabelKind] = string(driver.Compose)
		n, err := m.cli.NetworkCreate(t.Context(), m.id("net-"+node), client.NetworkCreateOptions{Labels: labels})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = m.cli.NetworkRemove(context.Background(), n.ID, client.NetworkRemoveOptions{}) })
		nets[n.ID] = !ours
	}
	if found := m.collect(false, false); len(found) != 1 || !found["network "+m.id("net-"+m.node)].GetRemoved() {
		t.Errorf("found %v", found)
	}
	for id, want := range nets {
		if _, err := m.cli.NetworkInspect(t.Context(), id, client.NetworkInspectOptions{}); (err == nil) != want {
			t.Errorf("after garbage collection, whether network %s exists is %v, want %v", id, err == nil, want)
		}
	}
}

func (m *machine) exited(id string) bool {
	res, err := m.cli.ContainerInspect(m.Context(), id, client.ContainerInspectOptions{})
	return err == nil && res.Container.State.Status == container.StateExited
}

// The agent pulls an image with credentials from a file on the machine. When no workload uses the image and unused
// images exceed the disk budget, the image must be removed. An image that the engine had before the agent was started
// must stay. The password must not appear in a log or status.
func TestImagesPastTheBudgetAndCredentials(t *testing.T) {
	const canary = "c4nary-registry-password"
	password := ""
	m := newMachine(t)
	m.gc.ImageBudget = 1
	host := m.privateRegistry(&password)
	pulled, before := m.push(host, "app:v1"), m.push(host, "theirs:v1")
	password = canary
	if err := os.WriteFile(m.cfg.CredsFile, []byte("registries:\n  \""+host+"\": {username: robot, password: wrong-"+canary+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.start()
	spec := m.container()
	spec.GetContainer().Image = pulled
	m.apply("app", spec)
	testbed.Until(m, "a refused pull", func() bool { return m.status("app").GetMetadata()["failure_reason"] == "IMAGE_PULL_AUTH_FAILED" })
	refused := m.status("app").String()
	if err := os.WriteFile(m.cfg.CredsFile, []byte("registries:\n  \""+host+"\": {username: robot, password: "+canary+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.apply("app", spec) // order the workload again, now that the machine has the correct credentials
	testbed.Until(m, "the container", func() bool { return len(m.containers("app")) == 1 })

	// A user, not the agent, pulls the second image before a workload uses it.
	auth := client.ImagePullOptions{RegistryAuth: "eyJ1c2VybmFtZSI6InJvYm90IiwicGFzc3dvcmQiOiJjNG5hcnktcmVnaXN0cnktcGFzc3dvcmQifQ=="}
	res, err := m.cli.ImagePull(t.Context(), before, auth)
	if err != nil {
		t.Fatal(err)
	}
	if err := res.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if found := m.collect(true, false); len(found) != 0 {
		t.Errorf("garbage collection found %v, although a workload uses the image", found)
	}
	m.delete("app")
	if found := m.collect(false, false); len(found) != 1 || !found["image "+pulled].GetRemoved() {
		t.Fatalf("found %v", found)
	}
	for ref, want := range map[string]bool{pulled: false, before: true} {
		if _, err := m.cli.ImageInspect(t.Context(), ref); (err == nil) != want {
			t.Errorf("after garbage collection, whether image %s exists is %v, want %v", ref, err == nil, want)
		}
	}
	m.stop()
	state, err := os.ReadFile(m.cfg.StatePath)
	if err != nil {
		t.Fatal(err)
	}
	said := m.log.String()
	for where, text := range map[string]string{"the state file": string(state), "the log": said, "the status": refused} {
		if strings.Contains(text, canary) || strings.Contains(text, auth.RegistryAuth[:24]) {
			t.Errorf("%s contains the registry password", where)
		}
	}
}
