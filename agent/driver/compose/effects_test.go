package compose_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/compose"
	"github.com/persys/compute/agent/driver/moby/mobytest"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/testbed"
)

// bench is the fixture of one test: a driver of node-a and its stacks.
type bench struct {
	*testing.T
	*engine
	d   *compose.Driver
	dir string
	ctx context.Context
}

func newBench(t *testing.T, change ...func(*compose.Options)) *bench {
	t.Helper()
	e, dir := theEngine(t), t.TempDir()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	return &bench{T: t, engine: e, d: e.driver(t, "node-a", dir, change...), dir: dir, ctx: ctx}
}

func (b *bench) spec(id string, what *agentv1.WorkloadSpec) driver.Spec {
	b.Helper()
	workload := driver.ID("t" + b.run + "-" + id)
	b.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := b.d.Remove(ctx, workload); err != nil {
			b.Errorf("cleaning up %s: %v", workload, err)
		}
	})
	return driver.Spec{
		ID: workload, Revision: "rev-1", Content: "c1:" + id, ClusterID: b.cluster, NodeID: "node-a",
		Generation: driver.Generation{Incarnation: 1, Sequence: 1}, Running: true, Body: what,
	}
}

// yaml returns text with IMAGE replaced by the test image.
func (b *bench) yaml(text string) *agentv1.WorkloadSpec {
	return inline(strings.ReplaceAll(text, "IMAGE", b.image))
}

func (b *bench) ensure(spec driver.Spec) {
	b.Helper()
	if err := b.d.Ensure(b.ctx, spec); err != nil {
		b.Fatalf("Ensure: %v", err)
	}
}

func (b *bench) observed(id driver.ID) driver.Observed {
	b.Helper()
	all, err := b.d.List(b.ctx)
	if err != nil {
		b.Fatalf("List: %v", err)
	}
	for _, o := range all {
		if o.ID == id {
			return o
		}
	}
	return driver.Observed{ID: id, State: driver.Absent}
}

func (b *bench) await(id driver.ID, want driver.State) driver.Observed {
	b.Helper()
	var o driver.Observed
	testbed.Within(b, time.Minute, string(want), func() error {
		if o = b.observed(id); o.State != want {
			return fmt.Errorf("%s (%s)", o.State, o.Message)
		}
		return nil
	})
	return o
}

// containerOf returns the first container of a service, "" if there is none.
func (b *bench) containerOf(id driver.ID, service string) string {
	b.Helper()
	res, err := b.cli.ContainerList(b.ctx, client.ContainerListOptions{All: true, Filters: make(client.Filters).
		Add("label", driver.LabelWorkload+"="+string(id), "com.docker.compose.service="+service)})
	if err != nil {
		b.Fatal(err)
	}
	if len(res.Items) == 0 {
		return ""
	}
	return res.Items[0].ID
}

func (b *bench) environment(id driver.ID, service string) map[string]string {
	b.Helper()
	res, err := b.cli.ContainerInspect(b.ctx, b.containerOf(id, service), client.ContainerInspectOptions{})
	if err != nil {
		b.Fatal(err)
	}
	out := map[string]string{}
	for _, kv := range res.Container.Config.Env {
		k, v, _ := strings.Cut(kv, "=")
		out[k] = v
	}
	return out
}

const twoServices = `
services:
  db:
    image: IMAGE
    command: [serve]
    volumes: [data:/data]
    healthcheck: {disable: true}
  web:
    image: IMAGE
    command: [serve]
    depends_on: [db]
    environment: {VERSION: "%d"}
    deploy: {replicas: %d}
volumes:
  data: {}
`

func TestUpdateReplacesOnlyChangedServices(t *testing.T) {
	eachWay(t, func(t *testing.T, way string, b *bench) {
		spec := b.spec("update-"+way, b.yaml(fmt.Sprintf(twoServices, 1, 2)))
		b.ensure(spec)
		o := b.await(spec.ID, driver.Running)
		for key, want := range map[string]string{
			"compose.services": "3 of 3 containers run", "compose.service.db": "running", "compose.service.web": "2× running",
			"compose.project": string(spec.ID),
		} {
			if o.Metadata[key] != want {
				t.Errorf("%s = %q, want %q", key, o.Metadata[key], want)
			}
		}
		if o.Message != "db: running; web: 2× running" {
			t.Errorf("message %q", o.Message)
		}
		db, web := b.containerOf(spec.ID, "db"), b.containerOf(spec.ID, "web")
		before := b.volumes(spec.ID)
		spec.Content, spec.Revision, spec.Body = "c1:update-2", "rev-2", b.yaml(fmt.Sprintf(twoServices, 2, 1))
		b.ensure(spec)
		o = b.await(spec.ID, driver.Running)
		if o.Content != spec.Content || o.Revision != "rev-2" || o.Metadata["compose.services"] != "2 of 2 containers run" {
			t.Errorf("content %q, revision %q, %s", o.Content, o.Revision, o.Metadata["compose.services"])
		}
		if again := b.containerOf(spec.ID, "db"); again != db {
			t.Errorf("db was replaced, though nothing of it changed")
		}
		if again := b.containerOf(spec.ID, "web"); again == web {
			t.Errorf("web was not replaced")
		}
		if v := b.environment(spec.ID, "web")["VERSION"]; v != "2" {
			t.Errorf("VERSION=%q", v)
		}
		if after := b.volumes(spec.ID); len(before) != 1 || strings.Join(before, " ") != strings.Join(after, " ") {
			t.Errorf("volumes %v became %v", before, after)
		}
		web = b.containerOf(spec.ID, "web")
		if err := b.d.Halt(b.ctx, spec.ID, time.Second); err != nil {
			t.Fatal(err)
		}
		if o = b.observed(spec.ID).Under(false); o.State != driver.Stopped {
			t.Errorf("after Halt: %s (%s)", o.State, o.Message)
		}
		b.ensure(spec)
		if o = b.await(spec.ID, driver.Running); b.containerOf(spec.ID, "web") != web || o.Labels[driver.LabelContent] == "" {
			t.Errorf("a stack that was stopped is made anew, or has no content label: %v", o.Labels)
		}
		if err := b.d.Remove(b.ctx, spec.ID); err != nil {
			t.Fatal(err)
		}
		if left := b.volumes(spec.ID); len(left) > 0 {
			t.Errorf("delete leaves volumes %v", left)
		}
	})
}

// useProgram selects docker-compose instead of the library.
func useProgram(t *testing.T) func(*compose.Options) {
	t.Helper()
	testbed.Program(t, "docker-compose")
	return func(o *compose.Options) { o.Binary = []string{"docker-compose"} }
}

// eachWay runs a test with the built-in library and with the program.
func eachWay(t *testing.T, test func(t *testing.T, way string, b *bench)) {
	t.Run("library", func(t *testing.T) { test(t, "library", newBench(t)) })
	t.Run("program", func(t *testing.T) { test(t, "program", newBench(t, useProgram(t))) })
}

// volumes returns the names and creation times of a stack's volumes.
func (b *bench) volumes(id driver.ID) []string {
	b.Helper()
	res, err := b.cli.VolumeList(b.ctx, client.VolumeListOptions{Filters: make(client.Filters).Add("label", driver.LabelWorkload+"="+string(id))})
	if err != nil {
		b.Fatal(err)
	}
	var out []string
	for _, v := range res.Items {
		out = append(out, v.Name+" "+v.CreatedAt)
	}
	return out
}

func TestEnvironmentIsInjected(t *testing.T) {
	b := newBench(t)
	odd := `a "quoted" $HOME 'it' \n #x` + "\nsecond"
	spec := b.spec("env", body(&agentv1.ComposeSpec{
		ComposeYaml: "services:\n  app:\n    image: " + b.image + "\n    command: [serve]\n    env_file: .env\n    environment:\n      GREETING: hello ${NAME}\n      PLAIN:\n",
		Env:         map[string]string{"NAME": "world", "PLAIN": "p", "ODD": odd},
	}))
	t.Setenv("PERSYS_TEST_SECRET", "of the agent")
	// An agent was killed while it loaded the stack with an earlier environment.
	files, mounted := filepath.Join(b.dir, compose.ProjectName(spec.ID), "read"), filepath.Join(b.dir, compose.ProjectName(spec.ID), "files")
	for _, dir := range []string{files, mounted} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	// A container has placed a symbolic link to a foreign file where it may write.
	host := filepath.Join(t.TempDir(), "host")
	if err := errors.Join(os.WriteFile(host, []byte("FORMER=host\n"), 0o600), os.Symlink(host, filepath.Join(mounted, ".env"))); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{".env": "FORMER=second\n", ".env.persys-none": ""} {
		if err := os.WriteFile(filepath.Join(files, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b.ensure(spec)
	b.await(spec.ID, driver.Running)
	got := b.environment(spec.ID, "app")
	for k, want := range map[string]string{"GREETING": "hello world", "PLAIN": "p", "ODD": odd, "NAME": "world", "PERSYS_TEST_SECRET": "", "FORMER": ""} {
		if got[k] != want {
			t.Errorf("%s = %q, want %q", k, got[k], want)
		}
	}
	if text, err := os.ReadFile(host); err != nil || string(text) != "FORMER=host\n" {
		t.Errorf("what the link leads to is %q now: %v", text, err)
	}
	err := filepath.WalkDir(b.dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), "second") || strings.Contains(string(text), "world") {
			t.Errorf("%s holds the environment", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A network can exist twice if the engine became unreachable during its creation.
func TestDuplicateNetworkIsRemoved(t *testing.T) {
	b := newBench(t)
	spec := b.spec("twin", b.one("serve", 1))
	b.ensure(spec)
	b.await(spec.ID, driver.Running)
	if err := b.d.Halt(b.ctx, spec.ID, 0); err != nil {
		t.Fatal(err)
	}
	filters := make(client.Filters).Add("label", driver.LabelWorkload+"="+string(spec.ID))
	list := func() []network.Summary {
		t.Helper()
		res, err := b.cli.NetworkList(b.ctx, client.NetworkListOptions{Filters: filters})
		if err != nil {
			t.Fatal(err)
		}
		return res.Items
	}
	first := list()[0]
	if _, err := b.cli.NetworkCreate(b.ctx, first.Name, client.NetworkCreateOptions{Driver: first.Driver, Labels: first.Labels}); err != nil {
		t.Fatal(err)
	}
	spec.Content, spec.Body = spec.Content+"-next", b.one("serve", 2)
	b.ensure(spec)
	b.await(spec.ID, driver.Running)
	if n := list(); len(n) != 1 {
		t.Errorf("%d networks are left", len(n))
	}
}

// An engine rolls back containers that it created for a caller that went away. A container that disappears
// between the list and its start is made again, whether Compose meets it in a create or in a start.
func TestRolledBackContainerIsMadeAgain(t *testing.T) {
	b := newBench(t)
	for _, c := range []struct {
		name   string
		before func(spec driver.Spec)
	}{
		{"created", func(driver.Spec) {}},
		{"stopped", func(spec driver.Spec) {
			b.ensure(spec)
			b.await(spec.ID, driver.Running)
			if err := b.d.Halt(b.ctx, spec.ID, 0); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := b.spec("taken-"+c.name, b.one("serve", 1))
			c.before(spec)
			host, taken := mobytest.TakeBackFirst(t, b.cli)
			d := b.driver(t, "node-a", b.dir, func(o *compose.Options) { o.Host = host })
			if err := d.Ensure(b.ctx, spec); err != nil {
				t.Fatal(err)
			}
			if o := b.await(spec.ID, driver.Running); o.Content != spec.Content {
				t.Errorf("content %q, want %q", o.Content, spec.Content)
			}
			if taken() == "" {
				t.Error("no start was seen")
			}
		})
	}
}

// A network or volume that two stacks name belongs to the first one. The first one's delete leaves resources
// that the other uses, and ends. Once the other is gone, the network is garbage; the volume never is, because
// it holds data.
func TestDeleteLeavesResourcesOfOtherStacks(t *testing.T) {
	eachWay(t, func(t *testing.T, way string, b *bench) {
		shared := "shared-" + way + "-" + b.run
		yaml := b.yaml(strings.ReplaceAll(`
services:
  app: {image: IMAGE, command: [serve], networks: [n], volumes: [data:/data]}
networks: {n: {name: SHARED}}
volumes: {data: {name: SHARED}}
`, "SHARED", shared))
		first := b.spec("first-"+way, yaml)
		b.ensure(first)
		remove := func(id driver.ID) {
			t.Helper()
			if err := b.d.Remove(b.ctx, id); err != nil {
				t.Fatal(err)
			}
		}
		no := func(driver.ID) bool { return false }
		garbage := func() (out []driver.Garbage) {
			t.Helper()
			found, err := b.d.Garbage(b.ctx, driver.GarbageQuery{Wanted: no, Busy: no})
			if err != nil {
				t.Fatal(err)
			}
			for _, g := range found {
				if g.Workload == first.ID {
					out = append(out, g)
				}
			}
			return out
		}
		second := b.spec("second-"+way, yaml)
		b.ensure(second)
		b.await(second.ID, driver.Running)
		remove(first.ID)
		if found := garbage(); len(found) > 0 || len(b.volumes(first.ID)) != 1 {
			t.Errorf("garbage %v, volumes %v; want none and the one that is used", found, b.volumes(first.ID))
		}
		b.await(second.ID, driver.Running)
		remove(second.ID)
		found := garbage()
		if len(found) != 1 || found[0].Kind != driver.Network || found[0].Name != shared || len(b.volumes(first.ID)) != 1 {
			t.Fatalf("garbage %v, volumes %v; want the network, and the volume kept", found, b.volumes(first.ID))
		}
		if err := b.d.Collect(b.ctx, found[0]); err != nil || len(garbage()) > 0 {
			t.Errorf("collected: %v; garbage %v", err, garbage())
		}
		remove(first.ID) // a second delete removes its volume too
		if left := b.volumes(first.ID); len(left) > 0 {
			t.Errorf("volumes %v are left", left)
		}
	})
}

// The volumes of a stack, and the files of an inline stack's relative paths, may be the only copy of its data.
// They stay when the stack moves away, and it finds them when it comes back. A delete removes them, also later,
// and so does a delete that cannot tell whether the stack runs elsewhere: no other node can reach them.
func TestAMoveLeavesTheVolumesOfAStack(t *testing.T) {
	eachWay(t, func(t *testing.T, way string, b *bench) {
		spec := b.spec("move-"+way, b.yaml(fmt.Sprintf(twoServices, 1, 1)))
		var before string
		for _, c := range []struct {
			name   string
			remove func() error
			left   bool
			late   bool // follows the former case without a new deployment
		}{
			{"a move", func() error { return b.d.Leave(b.ctx, spec.ID, true) }, true, false},
			{"a delete", func() error { return b.d.Remove(b.ctx, spec.ID) }, false, false},
			{"a delete that may be a move", func() error { return b.d.Leave(b.ctx, spec.ID, false) }, false, false},
			{"another move", func() error { return b.d.Leave(b.ctx, spec.ID, true) }, true, false},
			{"a delete of a stack that moved away", func() error { return b.d.Remove(b.ctx, spec.ID) }, false, true},
		} {
			if !c.late {
				b.ensure(spec)
				b.await(spec.ID, driver.Running)
			}
			if now := strings.Join(b.volumes(spec.ID), " "); before != "" && now != before {
				t.Errorf("before %s: the volume %q is not the one that was left, %q", c.name, now, before)
			}
			before = strings.Join(b.volumes(spec.ID), " ")
			folder := filepath.Join(b.dir, string(spec.ID))
			written := filepath.Join(folder, "files", "written")
			if err := os.WriteFile(written, []byte("by a container"), 0o600); err != nil {
				t.Fatal(err)
			}
			no := func(driver.ID) bool { return false }
			found, err := b.d.Garbage(b.ctx, driver.GarbageQuery{Wanted: no, Busy: no})
			if is := func(g driver.Garbage) bool { return g.Kind == driver.Project && g.Workload == spec.ID }; err != nil || c.late && slices.ContainsFunc(found, is) {
				t.Errorf("what a move left is garbage: %v, %v", found, err)
			}
			if err := c.remove(); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			if left, _ := filepath.Glob(filepath.Join(folder, "*")); c.left && (len(left) != 2 || !present(written)) || !c.left && present(folder) {
				t.Errorf("%s: of the folder there is left %q", c.name, left)
			}
			after := strings.Join(b.volumes(spec.ID), " ")
			if c.left && after != before || !c.left && after != "" || before == "" {
				t.Errorf("%s: of the volume %q there is left %q", c.name, before, after)
			}
			if o := b.observed(spec.ID); o.State != driver.Absent {
				t.Errorf("%s: the stack is still there, %s", c.name, o.State)
			}
			before = after
		}
	})
}

func present(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func TestStatesOfAStack(t *testing.T) {
	for _, c := range []struct {
		name, yaml string
		want       driver.State
		content    bool
		message    string
	}{
		{"a completed job beside a server", "services: {job: {image: IMAGE, command: [exit, '0']}, web: {image: IMAGE, command: [serve]}}",
			driver.Running, true, "job: exited with code 0; web: running"},
		{"a crashed service beside a server", "services: {bad: {image: IMAGE, command: [exit, '3']}, web: {image: IMAGE, command: [serve]}}",
			driver.Failed, true, "service bad exited with code 3; bad: exited with code 3; web: running"},
		{"jobs only", "services: {a: {image: IMAGE, command: [exit, '0']}, b: {image: IMAGE, command: [exit, '0']}}",
			driver.Stopped, true, "a: exited with code 0; b: exited with code 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			spec := b.spec(strings.ReplaceAll(c.name, " ", "-"), b.yaml(c.yaml))
			b.ensure(spec)
			testbed.Within(t, time.Minute, "the state", func() error {
				o := b.observed(spec.ID)
				if o.State != c.want || o.Message != c.message {
					return fmt.Errorf("%s (%s), want %s (%s)", o.State, o.Message, c.want, c.message)
				}
				if (o.Content == spec.Content) != c.content {
					t.Errorf("content %q", o.Content)
				}
				return nil
			})
		})
	}
}

func TestAMissingContainerIsMadeAgain(t *testing.T) {
	b := newBench(t)
	spec := b.spec("missing", b.yaml(fmt.Sprintf(twoServices, 1, 1)))
	b.ensure(spec)
	b.await(spec.ID, driver.Running)
	db := b.containerOf(spec.ID, "db")
	if _, err := b.cli.ContainerRemove(b.ctx, b.containerOf(spec.ID, "web"), client.ContainerRemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	if o := b.observed(spec.ID); o.Content != "" || o.Revision != "" {
		t.Errorf("a stack without its web has content %q, revision %q; want none, so that it is made whole", o.Content, o.Revision)
	}
	b.ensure(spec)
	if o := b.await(spec.ID, driver.Running); o.Content != spec.Content || b.containerOf(spec.ID, "web") == "" {
		t.Errorf("content %q, web %q", o.Content, b.containerOf(spec.ID, "web"))
	}
	if b.containerOf(spec.ID, "db") != db {
		t.Error("db was replaced")
	}
}

func TestLogsOfAStackNameTheirContainers(t *testing.T) {
	b := newBench(t)
	spec := b.spec("logs", b.yaml(fmt.Sprintf(twoServices, 1, 1)))
	b.ensure(spec)
	b.await(spec.ID, driver.Running)
	testbed.Within(t, time.Minute, "the logs of both", func() error {
		rc, err := b.d.Logs(b.ctx, spec.ID, driver.LogOptions{})
		if err != nil {
			return testbed.Final(err)
		}
		defer rc.Close()
		text, err := io.ReadAll(rc)
		if err != nil {
			return testbed.Final(err)
		}
		if !strings.Contains(string(text), "db-1 | probe: ready\n") || !strings.Contains(string(text), "web-1 | probe: ready\n") {
			return fmt.Errorf("%q", text)
		}
		return nil
	})
	rc, err := b.d.Logs(b.ctx, spec.ID, driver.LogOptions{Service: "db"})
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	if text, err := io.ReadAll(rc); err != nil || !strings.Contains(string(text), "probe: ready\n") || strings.Contains(string(text), "web") {
		t.Errorf("the log of one service is %q, %v", text, err)
	}
	if _, err := b.d.Logs(b.ctx, spec.ID, driver.LogOptions{Service: "cache"}); driver.ClassOf(err) != driver.InvalidSpecification || !strings.Contains(err.Error(), "db, web") {
		t.Errorf("the log of no service: %v", err)
	}
	// Exec needs a service name.
	if _, err := b.d.Exec(b.ctx, spec.ID, driver.ExecOptions{Command: []string{"/probe", "cat"}}); driver.ClassOf(err) != driver.InvalidSpecification || !strings.Contains(err.Error(), "--service: db, web") {
		t.Errorf("a command in a stack of two: %v", err)
	}
	if _, err := b.d.Exec(b.ctx, spec.ID, driver.ExecOptions{Command: []string{"/probe", "cat"}, Service: "cache"}); driver.ClassOf(err) != driver.InvalidSpecification {
		t.Errorf("a command in no service: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	b := newBench(t)
	for _, c := range []struct {
		name  string
		spec  *agentv1.ComposeSpec
		class driver.Class
		want  string
	}{
		{"nothing", &agentv1.ComposeSpec{}, driver.InvalidSpecification, "compose.compose_yaml: must not be empty"},
		{"neither YAML nor base64", &agentv1.ComposeSpec{ComposeYaml: "%%%"}, driver.InvalidSpecification, "or its base64"},
		{"an unknown key", &agentv1.ComposeSpec{ComposeYaml: "services: {a: {image: x, bogus: 1}}"}, driver.InvalidSpecification, "bogus"},
		{"a build", &agentv1.ComposeSpec{ComposeYaml: "services: {a: {build: .}}"}, driver.InvalidSpecification, "services.a.build: nodes do not build"},
		{"a bad image", &agentv1.ComposeSpec{ComposeYaml: "services: {a: {image: 'UPPER case'}}"}, driver.InvalidImage, "services.a.image"},
		{"no enabled service", &agentv1.ComposeSpec{ComposeYaml: "services: {a: {image: x, profiles: [p]}}"}, driver.InvalidSpecification, "COMPOSE_PROFILES"},
		{"no container", &agentv1.ComposeSpec{ComposeYaml: "services: {a: {image: x, deploy: {replicas: 0}}, b: {image: x, scale: 0}}"}, driver.InvalidSpecification, "every service has 0 replicas"},
		{"a secret in a wrong interpolation is not repeated", &agentv1.ComposeSpec{ComposeYaml: "services: {a: {image: x, environment: {K: 'hunter2${'}}}"}, driver.InvalidSpecification, "interpolation"},
		{"an image with pull_policy build", &agentv1.ComposeSpec{ComposeYaml: "services: {a: {image: '127.0.0.1:1/x:1', build: ., pull_policy: build}}"}, driver.InvalidImage, "pull_policy is build"},
		{"ssh", &agentv1.ComposeSpec{SourceType: "git", GitRepo: "ssh://git@host/x.git"}, driver.InvalidSpecification, "must be an https, http or file URL"},
		{"no such repository", &agentv1.ComposeSpec{SourceType: "git", GitRepo: "file://" + t.TempDir()}, driver.InvalidSpecification, "compose.git_repo file:///"},
		{"an unreachable server", &agentv1.ComposeSpec{SourceType: "git", GitRepo: "http://user:hunter2@127.0.0.1:1/x.git"}, driver.NetworkUnreachable, "http://127.0.0.1:1/x.git"},
		{"unknown credentials", &agentv1.ComposeSpec{SourceType: "git", GitRepo: "http://127.0.0.1:1/x.git", GitCredentials: "team"}, driver.InvalidConfiguration, "PERSYS_CREDENTIALS_FILE"},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := b.spec("refused", body(c.spec))
			err := b.d.Ensure(b.ctx, spec)
			if driver.ClassOf(err) != c.class || err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want class %s and %q", err, c.class, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error tells a secret: %v", err)
			}
		})
	}
}

func TestProjectName(t *testing.T) {
	for _, c := range []struct{ id, want string }{
		{"web", "web"}, {"web-1_a", "web-1_a"}, {"9", "9"}, {"Web", "web-297510"}, {"a.b", "a-b-2e7336"},
	} {
		if got := compose.ProjectName(driver.ID(c.id)); got != c.want {
			t.Errorf("ProjectName(%q) = %q, want %q", c.id, got, c.want)
		}
	}
	if compose.ProjectName("Web") == compose.ProjectName("web") || compose.ProjectName("a.b") == compose.ProjectName("a-b") {
		t.Error("different ids meet in one project")
	}
}

// BenchmarkThreeServices deploys a stack of three small services and removes it.
func BenchmarkThreeServices(b *testing.B) {
	for _, c := range []struct {
		name   string
		change func(*compose.Options)
	}{
		{"library", func(*compose.Options) {}},
		{"program", func(o *compose.Options) { o.Binary = []string{"docker-compose"} }},
	} {
		b.Run(c.name, func(b *testing.B) {
			e := theEngine(b)
			opt := compose.Options{ClusterID: e.cluster, NodeID: "node-a", Dir: b.TempDir(), StopGrace: time.Second}
			c.change(&opt)
			d, err := compose.New(opt)
			if err != nil {
				b.Fatal(err)
			}
			defer d.Close()
			spec := driver.Spec{
				ID: driver.ID("b" + e.run), Revision: "r", Content: "c1:b", ClusterID: e.cluster, NodeID: "node-a", Running: true,
				Body: inline(fmt.Sprintf(strings.ReplaceAll(twoServices, "IMAGE", e.image), 1, 2)),
			}
			var up, again, down time.Duration
			for b.Loop() {
				t0 := time.Now()
				if err := d.Ensure(b.Context(), spec); err != nil {
					b.Fatal(err)
				}
				t1 := time.Now()
				if err := d.Ensure(b.Context(), spec); err != nil {
					b.Fatal(err)
				}
				t2 := time.Now()
				if err := d.Remove(b.Context(), spec.ID); err != nil {
					b.Fatal(err)
				}
				up, again, down = up+t1.Sub(t0), again+t2.Sub(t1), down+time.Since(t2)
			}
			b.ReportMetric(float64(up.Milliseconds())/float64(b.N), "ms/up")
			b.ReportMetric(float64(again.Milliseconds())/float64(b.N), "ms/again")
			b.ReportMetric(float64(down.Milliseconds())/float64(b.N), "ms/down")
		})
	}
}

// The memory limit of a service excludes swap, in whichever form it is written, unless the service sets
// memswap_limit.
func TestMemoryOfAServiceIsWithoutSwap(t *testing.T) {
	eachWay(t, func(t *testing.T, way string, b *bench) {
		spec := b.spec("swap-"+way, b.yaml(`
services:
  old: {image: IMAGE, command: [serve], mem_limit: 64m}
  new: {image: IMAGE, command: [serve], deploy: {resources: {limits: {memory: 64m}}}}
  own: {image: IMAGE, command: [serve], mem_limit: 64m, memswap_limit: 96m}
  any: {image: IMAGE, command: [serve], mem_limit: 64m, memswap_limit: -1}
  none: {image: IMAGE, command: [serve]}
`))
		b.ensure(spec)
		o := b.await(spec.ID, driver.Running)
		got := map[string][2]int64{}
		for _, id := range o.Parts {
			res, err := b.cli.ContainerInspect(b.ctx, id, client.ContainerInspectOptions{})
			if err != nil {
				t.Fatal(err)
			}
			h := res.Container.HostConfig
			got[res.Container.Config.Labels["com.docker.compose.service"]] = [2]int64{h.Memory, h.MemorySwap}
		}
		want := map[string][2]int64{"old": {64 << 20, 64 << 20}, "new": {64 << 20, 64 << 20}, "own": {64 << 20, 96 << 20}, "any": {64 << 20, -1}, "none": {}}
		if !maps.Equal(got, want) {
			t.Errorf("memory, and memory with swap, are %v; want %v", got, want)
		}
	})
}

// Limits of a service are enforced by the kernel: a CPU quota, and memory without swap. The disk usage of a
// stack is the sum over its containers.
func TestLimitsOfAStack(t *testing.T) {
	b := newBench(t)
	spec := b.spec("limits", b.yaml(`
services:
  app:
    image: IMAGE
    command: [write, /data, "2000000"]
    deploy: {replicas: 2, resources: {limits: {cpus: "0.2", memory: 64m}}}
`))
	b.ensure(spec)
	o := b.await(spec.ID, driver.Running)
	if len(o.Parts) != 2 {
		t.Fatalf("parts %v, want two", o.Parts)
	}
	for _, id := range o.Parts {
		res, err := b.cli.ContainerInspect(b.ctx, id, client.ContainerInspectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if h := res.Container.HostConfig; h.NanoCPUs != 200_000_000 || h.Memory != 64<<20 || h.MemorySwap != 64<<20 {
			t.Errorf("quota %d, memory %d, with swap %d; want 200000000 and twice %d", h.NanoCPUs, h.Memory, h.MemorySwap, 64<<20)
		}
	}
	testbed.Within(t, testbed.Patience, "the bytes that it occupies", func() error {
		seen, err := b.d.Occupied(b.ctx, []driver.Observed{o})
		if err != nil {
			return testbed.Final(err)
		}
		if n := seen[spec.ID]; n < 4_000_000 || n >= 5_000_000 {
			return fmt.Errorf("%d, want about 4000000", n)
		}
		return nil
	})
}
