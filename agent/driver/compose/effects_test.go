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

	"github.com/docker/compose/v5/pkg/api"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/compose"
	"github.com/persys/compute/agent/driver/moby/mobytest"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/stack"
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
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute) // beside other tests docker-compose may get little CPU time
	t.Cleanup(cancel)
	return &bench{T: t, engine: e, d: e.driver(t, "node-a", dir, change...), dir: dir, ctx: ctx}
}

func (b *bench) spec(id string, what *agentv1.WorkloadSpec) driver.Spec {
	b.Helper()
	workload := driver.ID("t" + b.run + "-" + id)
	b.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
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

// yaml returns a stack whose Compose file is text, with IMAGE replaced by the test image.
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
				t.Errorf("the status metadata %s is %q, want %q", key, o.Metadata[key], want)
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
			t.Errorf("after the update the stack is listed with content %q, revision %q and services %q; want those of the update", o.Content, o.Revision, o.Metadata["compose.services"])
		}
		if again := b.containerOf(spec.ID, "db"); again != db {
			t.Errorf("the container of service db was replaced, but its configuration did not change")
		}
		if again := b.containerOf(spec.ID, "web"); again == web {
			t.Errorf("the container of service web was not replaced, although its configuration changed")
		}
		if v := b.environment(spec.ID, "web")["VERSION"]; v != "2" {
			t.Errorf("VERSION=%q", v)
		}
		if after := b.volumes(spec.ID); len(before) != 1 || strings.Join(before, " ") != strings.Join(after, " ") {
			t.Errorf("an update of the stack changed its volumes from %v to %v, want the same volumes", before, after)
		}
		web = b.containerOf(spec.ID, "web")
		if err := b.d.Halt(b.ctx, spec.ID, time.Second); err != nil {
			t.Fatal(err)
		}
		if o = b.observed(spec.ID).Under(false); o.State != driver.Stopped {
			t.Errorf("after Halt the stack is %s (%s), want Stopped", o.State, o.Message)
		}
		b.ensure(spec)
		if o = b.await(spec.ID, driver.Running); b.containerOf(spec.ID, "web") != web || o.Labels[driver.LabelContent] == "" {
			t.Errorf("a stop and a start of the stack created the container of web again, or the stack lost its content label: %v", o.Labels)
		}
		if err := b.d.Remove(b.ctx, spec.ID); err != nil {
			t.Fatal(err)
		}
		if left := b.volumes(spec.ID); len(left) > 0 {
			t.Errorf("after the delete of the stack its volumes %v are left", left)
		}
	})
}

// useProgram makes a driver that runs the docker-compose command instead of the Compose library.
func useProgram(t *testing.T) func(*compose.Options) {
	t.Helper()
	testbed.Program(t, "docker-compose")
	return func(o *compose.Options) { o.Binary = []string{"docker-compose"} }
}

// eachWay runs a test twice: with the built-in Compose library and with the Compose program.
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
	mounted := filepath.Join(b.dir, compose.ProjectName(spec.ID), "files")
	if err := os.MkdirAll(mounted, 0o700); err != nil {
		t.Fatal(err)
	}
	// A container replaced the file .env in its mounted folder by a symbolic link to a file outside the
	// folder. The driver must not read environment variables (here FORMER) from that file.
	host := filepath.Join(t.TempDir(), "host")
	if err := errors.Join(os.WriteFile(host, []byte("FORMER=host\n"), 0o600), os.Symlink(host, filepath.Join(mounted, ".env"))); err != nil {
		t.Fatal(err)
	}
	b.ensure(spec)
	b.await(spec.ID, driver.Running)
	got := b.environment(spec.ID, "app")
	for k, want := range map[string]string{"GREETING": "hello world", "PLAIN": "p", "ODD": odd, "NAME": "world", "PERSYS_TEST_SECRET": "", "FORMER": ""} {
		if got[k] != want {
			t.Errorf("the variable %s in the container is %q, want %q", k, got[k], want)
		}
	}
	if text, err := os.ReadFile(host); err != nil || string(text) != "FORMER=host\n" {
		t.Errorf("the host's file to which the container's link points was changed to %q (error %v)", text, err)
	}
	err := filepath.WalkDir(b.dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), "second") || strings.Contains(string(text), "world") {
			t.Errorf("the file %s contains a value of the stack's environment, which must not be on the disk", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// If the profile of a service is switched off, the service is removed and its host port is released.
func TestAServiceGoesWithItsProfile(t *testing.T) {
	b := newBench(t)
	spec := b.spec("profile", b.yaml("services:\n  app: {image: IMAGE, command: [serve, \"1\"]}\n  extra: {image: IMAGE, command: [serve, \"2\"], profiles: [more]}\n"))
	compose := spec.Body.GetCompose()
	running := func() (out []string) {
		res, err := b.cli.ContainerList(b.ctx, client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("label", driver.LabelWorkload+"="+string(spec.ID))})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range res.Items {
			out = append(out, c.Labels[api.ServiceLabel])
		}
		slices.Sort(out)
		return out
	}
	for i, step := range []struct {
		profiles string
		want     []string
	}{{"", []string{"app"}}, {"more", []string{"app", "extra"}}, {"", []string{"app"}}} {
		compose.Env = map[string]string{"COMPOSE_PROFILES": step.profiles}
		spec.Content = fmt.Sprintf("c1:%d", i)
		b.ensure(spec)
		b.await(spec.ID, driver.Running)
		if got := running(); !slices.Equal(got, step.want) {
			t.Errorf("with the profiles %q the services %v of the stack run, want %v", step.profiles, got, step.want)
		}
	}
}

// If the engine became unreachable during the creation of a network, the network can exist twice. The next
// Ensure removes the second network and starts the stack.
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
		t.Errorf("after Ensure the stack has %d networks of the same name, want one", len(n))
	}
}

// An engine rolls back containers that it created if its caller disconnects. If a container disappears
// between the list of containers and its start, the driver creates it again. The test covers two cases:
// Compose finds the container missing while it creates other containers, or while it starts containers.
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
				t.Errorf("after the engine's rollback and another attempt the stack has content %q, want %q", o.Content, spec.Content)
			}
			if taken() == "" {
				t.Error("the proxy saw no start of a container, so the test did not cover the rollback")
			}
		})
	}
}

// If two stacks use a network or volume of the same name, it belongs to the stack that created it. A
// delete of that stack succeeds, and leaves resources that the second stack uses. Once the second stack
// is deleted too, the network is garbage and is removed. The volume is never garbage, because it holds
// data.
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
			t.Errorf("after the delete of the first stack, the garbage is %v and its volumes are %v; want no garbage, and only the volume that the second stack uses", found, b.volumes(first.ID))
		}
		b.await(second.ID, driver.Running)
		remove(second.ID)
		found := garbage()
		if len(found) != 1 || found[0].Kind != driver.Network || found[0].Name != shared || len(b.volumes(first.ID)) != 1 {
			t.Fatalf("after the delete of both stacks, garbage is %v and volumes are %v; want the network as garbage, and the volume kept", found, b.volumes(first.ID))
		}
		if err := b.d.Collect(b.ctx, found[0]); err != nil || len(garbage()) > 0 {
			t.Errorf("Collect returned %v and left the garbage %v, want none", err, garbage())
		}
		remove(first.ID) // the second delete of the first stack removes its volume too
		if left := b.volumes(first.ID); len(left) > 0 {
			t.Errorf("after the second delete of the first stack its volumes %v are left", left)
		}
	})
}

// The volumes of a stack, and the files of an inline stack's relative paths, may be the only copy of its
// data. They stay on the node when the stack moves to another node, and the stack uses them again when it
// returns. When the stack is deleted, this node removes them, even if the stack runs on another node by
// then. It also removes them if the order does not say whether the stack is deleted or moved.
func TestAMoveLeavesTheVolumesOfAStack(t *testing.T) {
	eachWay(t, func(t *testing.T, way string, b *bench) {
		spec := b.spec("move-"+way, b.yaml(fmt.Sprintf(twoServices, 1, 1)))
		var before string
		for _, c := range []struct {
			name   string
			remove func() error
			left   bool
			late   bool // the stack is not deployed again before this case, so it is in the state in which the previous case left it
		}{
			{"a move", func() error { return b.d.Leave(b.ctx, spec.ID, true) }, true, false},
			{"a delete", func() error { return b.d.Remove(b.ctx, spec.ID) }, false, false},
			{"the delete of a stack that may have moved to another node", func() error { return b.d.Leave(b.ctx, spec.ID, false) }, false, false},
			{"another move", func() error { return b.d.Leave(b.ctx, spec.ID, true) }, true, false},
			{"the delete of a stack that has moved to another node", func() error { return b.d.Remove(b.ctx, spec.ID) }, false, true},
		} {
			if !c.late {
				b.ensure(spec)
				b.await(spec.ID, driver.Running)
			}
			if now := strings.Join(b.volumes(spec.ID), " "); before != "" && now != before {
				t.Errorf("the stack was deployed again before %s, and has volume %q; want %q, the volume from before the move", c.name, now, before)
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
				t.Errorf("Garbage returned %v, error %v; want it without the folder of a stack that moved to another node", found, err)
			}
			if err := c.remove(); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			if left, _ := filepath.Glob(filepath.Join(folder, "*")); c.left && (len(left) != 2 || !present(written)) || !c.left && present(folder) {
				t.Errorf("after %s the stack's folder has the entries %q; want its files and record after a move, and no folder after a delete", c.name, left)
			}
			after := strings.Join(b.volumes(spec.ID), " ")
			if c.left && after != before || !c.left && after != "" || before == "" {
				t.Errorf("before %s the stack had volume %q, and now it has %q; want the same after a move, and none after a delete", c.name, before, after)
			}
			if o := b.observed(spec.ID); o.State != driver.Absent {
				t.Errorf("after %s a container of the stack still exists, in state %s", c.name, o.State)
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
		{"a stack with a completed job and a server is Running", "services: {job: {image: IMAGE, command: [exit, '0']}, web: {image: IMAGE, command: [serve]}}",
			driver.Running, true, "job: exited with code 0; web: running"},
		{"a stack with a crashed service and a server is Failed", "services: {bad: {image: IMAGE, command: [exit, '3']}, web: {image: IMAGE, command: [serve]}}",
			driver.Failed, true, "service bad exited with code 3; bad: exited with code 3; web: running"},
		{"a stack of which all services are completed jobs is Stopped", "services: {a: {image: IMAGE, command: [exit, '0']}, b: {image: IMAGE, command: [exit, '0']}}",
			driver.Stopped, true, "a: exited with code 0; b: exited with code 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			spec := b.spec(strings.ReplaceAll(c.name, " ", "-"), b.yaml(c.yaml))
			b.ensure(spec)
			testbed.Within(t, time.Minute, "the state of the stack", func() error {
				o := b.observed(spec.ID)
				if o.State != c.want || o.Message != c.message {
					return fmt.Errorf("the stack is %s with message %q, want %s with message %q", o.State, o.Message, c.want, c.message)
				}
				if (o.Content == spec.Content) != c.content {
					t.Errorf("content %q", o.Content)
				}
				return nil
			})
		})
	}
}

// A service that others wait for with service_completed_successfully runs once. When another service ends
// and is started again, the completed service is not run again.
func TestACompletedServiceIsNotRunAgain(t *testing.T) {
	eachWay(t, func(t *testing.T, way string, b *bench) {
		spec := b.spec("oneoff-"+way, b.yaml(`
services:
  migrate: {image: IMAGE, command: [exit, "0"]}
  web: {image: IMAGE, command: [serve], depends_on: {migrate: {condition: service_completed_successfully}}}
`))
		b.ensure(spec)
		b.await(spec.ID, driver.Running)
		started := func(service string) string { return b.startedAt(spec.ID, service) }
		once, web := started("migrate"), started("web")
		if _, err := b.cli.ContainerKill(b.ctx, b.containerOf(spec.ID, "web"), client.ContainerKillOptions{Signal: "KILL"}); err != nil {
			t.Fatal(err)
		}
		b.await(spec.ID, driver.Failed)
		b.ensure(spec)
		b.await(spec.ID, driver.Running)
		if started("web") == web || started("migrate") != once {
			t.Errorf("the service web was started at %s, then at %s, want a second start; the service migrate was started at %s, then at %s, want no second start", web, started("web"), once, started("migrate"))
		}
		if err := b.d.Halt(b.ctx, spec.ID, time.Second); err != nil {
			t.Fatal(err)
		}
		b.ensure(spec)
		b.await(spec.ID, driver.Running)
		if started("migrate") != once {
			t.Errorf("a stop and a start of the stack ran the completed service \"migrate\" again")
		}
	})
}

// A stack is complete when all of its services have exited with code 0 and the file's restart policies
// start none of them again.
func TestACompletedStack(t *testing.T) {
	for _, c := range []struct {
		name, yaml string
		want       bool
	}{
		{"jobs", `services: {a: {image: IMAGE, restart: "no", command: [exit, "0"]}, b: {image: IMAGE, command: [exit, "0"], deploy: {restart_policy: {condition: on-failure}}}}`, true},
		{"a service without a policy", `services: {a: {image: IMAGE, restart: "no", command: [exit, "0"]}, b: {image: IMAGE, command: [exit, "0"]}}`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			spec := b.spec("complete-"+strings.ReplaceAll(c.name, " ", "-"), b.yaml(c.yaml))
			b.ensure(spec)
			if o := b.await(spec.ID, driver.Stopped); o.Completed != c.want {
				t.Errorf("Observed.Completed of the stack is %t, want %t", o.Completed, c.want)
			}
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
		t.Errorf("the container of service \"web\" is missing, but the stack is listed with content %q and revision %q; want both empty, so that Ensure creates the container again", o.Content, o.Revision)
	}
	b.ensure(spec)
	if o := b.await(spec.ID, driver.Running); o.Content != spec.Content || b.containerOf(spec.ID, "web") == "" {
		t.Errorf("after Ensure the stack has content %q, and service \"web\" has the container %q; want both set", o.Content, b.containerOf(spec.ID, "web"))
	}
	if b.containerOf(spec.ID, "db") != db {
		t.Error("Ensure replaced the container of service \"db\", although only that of \"web\" was missing")
	}
}

func TestLogsOfAStackNameTheirContainers(t *testing.T) {
	b := newBench(t)
	spec := b.spec("logs", b.yaml(fmt.Sprintf(twoServices, 1, 1)))
	b.ensure(spec)
	b.await(spec.ID, driver.Running)
	testbed.Within(t, time.Minute, "the stack's log contains the lines of both services", func() error {
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
		t.Errorf("the log of service \"db\" is %q (error %v); want the lines of db and none of web", text, err)
	}
	if _, err := b.d.Logs(b.ctx, spec.ID, driver.LogOptions{Service: "cache"}); driver.ClassOf(err) != driver.InvalidSpecification || !strings.Contains(err.Error(), "db, web") {
		t.Errorf("Logs of a service that does not exist returned %v; want an error that names the services of the stack", err)
	}
	// In a stack of several services, Exec without a service name is an error.
	if _, err := b.d.Exec(b.ctx, spec.ID, driver.ExecOptions{Command: []string{"/probe", "cat"}}); driver.ClassOf(err) != driver.InvalidSpecification || !strings.Contains(err.Error(), "--service: db, web") {
		t.Errorf("Exec without a service name in a stack of two services returned %v; want an error that names both services", err)
	}
	if _, err := b.d.Exec(b.ctx, spec.ID, driver.ExecOptions{Command: []string{"/probe", "cat"}, Service: "cache"}); driver.ClassOf(err) != driver.InvalidSpecification {
		t.Errorf("Exec in a service that does not exist returned %v, want an error", err)
	}
}

func TestInvalidStacksAreRefused(t *testing.T) {
	b := newBench(t)
	for _, c := range []struct {
		name  string
		spec  *agentv1.ComposeSpec
		class driver.Class
		want  string
	}{
		{"a specification without a Compose file", &agentv1.ComposeSpec{}, driver.InvalidSpecification, "compose.compose_yaml: must not be empty"},
		{"a Compose file that is neither YAML nor base64", &agentv1.ComposeSpec{ComposeYaml: "%%%"}, driver.InvalidSpecification, "or its base64"},
		{"an unknown key", &agentv1.ComposeSpec{ComposeYaml: "services: {a: {image: x, bogus: 1}}"}, driver.InvalidSpecification, "bogus"},
		{"a build", &agentv1.ComposeSpec{ComposeYaml: "services: {a: {build: .}}"}, driver.InvalidSpecification, "services.a.build: nodes build no images"},
		{"a service with an invalid image name", &agentv1.ComposeSpec{ComposeYaml: "services: {a: {image: 'UPPER case'}}"}, driver.InvalidSpecification, "services.a.image"},
		{"a stack without an enabled service", &agentv1.ComposeSpec{ComposeYaml: "services: {a: {image: x, profiles: [p]}}"}, driver.InvalidSpecification, "COMPOSE_PROFILES"},
		{"no container", &agentv1.ComposeSpec{ComposeYaml: "services: {a: {image: x, deploy: {replicas: 0}}, b: {image: x, scale: 0}}"}, driver.InvalidSpecification, "every service has 0 replicas"},
		{"an error about a wrong variable does not repeat the secret in it", &agentv1.ComposeSpec{ComposeYaml: "services: {a: {image: x, environment: {K: 'hunter2${'}}}"}, driver.InvalidSpecification, "no valid use of a variable"},
		{"an image with pull_policy build", &agentv1.ComposeSpec{ComposeYaml: "services: {a: {image: '127.0.0.1:1/x:1', build: ., pull_policy: build}}"}, driver.ImageNotOnNode, "pull_policy is build"},
		{"a Git repository with an ssh URL", &agentv1.ComposeSpec{SourceType: "git", GitRepo: "ssh://git@host/x.git"}, driver.InvalidSpecification, "must be an https, http or file URL"},
		{"no such repository", &agentv1.ComposeSpec{SourceType: "git", GitRepo: "file://" + t.TempDir()}, driver.InvalidSpecification, "compose.git_repo file:///"},
		{"an unreachable server", &agentv1.ComposeSpec{SourceType: "git", GitRepo: "http://user:hunter2@127.0.0.1:1/x.git"}, driver.NetworkUnreachable, "http://127.0.0.1:1/x.git"},
		{"unknown credentials", &agentv1.ComposeSpec{SourceType: "git", GitRepo: "http://127.0.0.1:1/x.git", GitCredentials: "team"}, driver.InvalidConfiguration, "PERSYS_CREDENTIALS_FILE"},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := b.spec("refused", body(c.spec))
			err := b.d.Ensure(b.ctx, spec)
			if driver.ClassOf(err) != c.class || err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Ensure returned %v; want class %s and %q", err, c.class, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error of Ensure contains a secret value: %v", err)
			}
		})
	}
}

func TestProjectNamesAreValidAndUnique(t *testing.T) {
	for _, c := range []struct{ id, want string }{
		{"web", "web"}, {"web-1_a", "web-1_a"}, {"9", "9"}, {"Web", "web-297510"}, {"a.b", "a-b-2e7336"},
	} {
		if got := compose.ProjectName(driver.ID(c.id)); got != c.want {
			t.Errorf("ProjectName(%q) = %q, want %q", c.id, got, c.want)
		}
	}
	if compose.ProjectName("Web") == compose.ProjectName("web") || compose.ProjectName("a.b") == compose.ProjectName("a-b") {
		t.Error("two different workload ids have the same Compose project name")
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
			opt := compose.Options{ClusterID: e.cluster, NodeID: "node-a", Dir: b.TempDir(), StopGrace: time.Second, Loader: stack.NewLoader(stack.Options{})}
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

// The memory limit of a service does not include swap, unless the service sets memswap_limit. The Compose
// file can write the limit in several forms.
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
			t.Errorf("the services have these limits of memory, and of memory with swap, in bytes: %v; want %v", got, want)
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
		t.Fatalf("the stack has the containers %v, want two", o.Parts)
	}
	for _, id := range o.Parts {
		res, err := b.cli.ContainerInspect(b.ctx, id, client.ContainerInspectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if h := res.Container.HostConfig; h.NanoCPUs != 200_000_000 || h.Memory != 64<<20 || h.MemorySwap != 64<<20 {
			t.Errorf("a container of the stack has CPU quota %d, memory %d, and memory with swap %d; want 200000000 and twice %d", h.NanoCPUs, h.Memory, h.MemorySwap, 64<<20)
		}
	}
	testbed.Within(t, testbed.Patience, "the driver measures the bytes that the containers of the stack wrote", func() error {
		seen, err := b.d.Occupied(b.ctx, []driver.Observed{o})
		if err != nil {
			return testbed.Final(err)
		}
		if n := seen[spec.ID]; n < 4_000_000 || n >= 5_000_000 {
			return fmt.Errorf("the measured disk use is %d bytes, want about 4000000", n)
		}
		return nil
	})
}
