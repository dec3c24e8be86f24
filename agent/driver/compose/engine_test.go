package compose_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/compose"
	"github.com/persys/compute/agent/driver/compose/gitfetch"
	"github.com/persys/compute/agent/driver/drivertest"
	"github.com/persys/compute/agent/driver/moby/mobytest"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/child"
	"github.com/persys/compute/stack"
)

// engine is the real Docker engine for the tests. Everything that a test run creates on the engine has the
// run's cluster id in its labels.
type engine struct {
	cli     *client.Client
	run     string
	cluster string
	image   string
	probe   v1.Image
}

var shared = mobytest.Shared{Name: "compose"}

func TestMain(m *testing.M) {
	child.Serve(stack.Task, gitfetch.Task)
	shared.Main(m, nothingLeft)
}

// theEngine returns the Docker engine of this machine.
func theEngine(t testing.TB) *engine {
	t.Helper()
	e := shared.Open(t)
	return &engine{cli: e.Client, run: e.Run, cluster: clusterOf(e), image: e.Image, probe: e.Probe}
}

func clusterOf(e *mobytest.Engine) string { return "composetest-" + e.Run }

// nothingLeft returns an error if the tests left anything on the engine, and removes it.
func nothingLeft(ctx context.Context, e *mobytest.Engine) error {
	ours := make(client.Filters).Add("label", driver.LabelCluster+"="+clusterOf(e))
	containers, err := e.Client.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: ours})
	if err != nil {
		return err
	}
	for _, c := range containers.Items {
		_, rmErr := e.Client.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		err = fmt.Errorf("the tests left container %v behind (error of its removal: %v)", c.Names, rmErr)
	}
	networks, listErr := e.Client.NetworkList(ctx, client.NetworkListOptions{Filters: ours})
	if listErr != nil {
		return listErr
	}
	for _, n := range networks.Items {
		_, rmErr := e.Client.NetworkRemove(ctx, n.ID, client.NetworkRemoveOptions{})
		err = fmt.Errorf("the tests left network %s behind (error of its removal: %v)", n.Name, rmErr)
	}
	volumes, listErr := e.Client.VolumeList(ctx, client.VolumeListOptions{Filters: ours})
	if listErr != nil {
		return listErr
	}
	for _, v := range volumes.Items {
		_, rmErr := e.Client.VolumeRemove(ctx, v.Name, client.VolumeRemoveOptions{Force: true})
		err = fmt.Errorf("the tests left volume %s behind (error of its removal: %v)", v.Name, rmErr)
	}
	return err
}

// driver returns a Compose driver for a node. The driver is closed when the test ends. All drivers of a test
// may use the same folder dir, as several agents on one machine may.
func (e *engine) driver(t *testing.T, node, dir string, change ...func(*compose.Options)) *compose.Driver {
	t.Helper()
	opt := compose.Options{ClusterID: e.cluster, NodeID: node, Dir: dir, StopGrace: 5 * time.Second, Sealer: mobytest.Sealer(t)}
	for _, f := range change {
		f(&opt)
	}
	opt.Loader = stack.NewLoader(stack.Options{})
	d, err := compose.New(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func inline(yaml string) *agentv1.WorkloadSpec {
	return body(&agentv1.ComposeSpec{ComposeYaml: base64.StdEncoding.EncodeToString([]byte(yaml))})
}

func body(c *agentv1.ComposeSpec) *agentv1.WorkloadSpec {
	return &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Compose{Compose: c}}
}

// one returns a stack with one service, for the conformance suite of drivers.
func (e *engine) one(command string, version int) *agentv1.WorkloadSpec {
	return inline("services:\n  app:\n    image: " + e.image + "\n    command: [" + command + "]\n" +
		"    environment: {VERSION: \"" + strconv.Itoa(version) + "\"}\n")
}

func conform(t *testing.T, prefix string, change ...func(*compose.Options)) {
	e, dir := theEngine(t), t.TempDir()
	drivertest.Run(t, drivertest.Harness{
		Cluster: e.cluster,
		Prefix:  prefix + e.run + "-",
		Open:    func(t *testing.T, node string) driver.Driver { return e.driver(t, node, dir, change...) },
		Steady:  func(version int) *agentv1.WorkloadSpec { return e.one("serve", version) },
		LogLine: "probe: ready",
		Commands: &drivertest.Commands{
			Say: func(out, err string, code int) []string {
				return []string{"/probe", "say", out, err, strconv.Itoa(code)}
			},
			Cat: []string{"/probe", "cat"}, Wait: []string{"/probe", "wait"}, Size: []string{"/probe", "size"}, Service: "app",
		},
		Crash: func(code int) *agentv1.WorkloadSpec { return e.one("exit, \""+strconv.Itoa(code)+"\"", 1) },
		// The spec names an image that the registry reports as missing.
		Missing: func() *agentv1.WorkloadSpec {
			r := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
			t.Cleanup(r.Close)
			return inline("services: {app: {image: '" + r.Listener.Addr().String() + "/nobody/nothing:v1'}}")
		},
		Stranger: func(t *testing.T, id driver.ID) func() { return stranger(t, e, id) },
		Outage: func(t *testing.T, node string) (driver.Driver, func(), func()) {
			r := mobytest.NewRelay(t, e.cli)
			d := e.driver(t, node, dir, append(change, func(o *compose.Options) { o.Host = r.Host() })...)
			return d, r.Cut, func() { r.Restore(t) }
		},
		Away: time.Minute, Apart: true,
		Full: func(t *testing.T, node string) (driver.Driver, func(), func()) {
			small := mobytest.NewSmall(t, 96<<20, e.probe, e.image)
			fill, empty := drivertest.Fill(t, small.Disk)
			d := e.driver(t, node, dir, append(change, func(o *compose.Options) { o.Host = small.Host })...)
			return d, fill, empty
		},
		Patience: time.Minute,
	})
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("the tests left folders behind: %v %v", left, err)
	}
}

func TestConformance(t *testing.T) { conform(t, "c") }

// stranger creates a running container that another person could have made: it belongs to a Compose project
// with the workload's name, but carries none of our labels.
func stranger(t *testing.T, e *engine, id driver.ID) func() {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	res, err := e.cli.ContainerCreate(ctx, client.ContainerCreateOptions{
		Name: string(id) + "-web-1",
		Config: &container.Config{Image: e.image, Labels: map[string]string{
			"com.docker.compose.project": string(id), "com.docker.compose.service": "web", "com.docker.compose.container-number": "1",
			"com.docker.compose.oneoff": "False", "com.docker.compose.config-hash": "0",
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	remove := func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		_, _ = e.cli.ContainerRemove(ctx, res.ID, client.ContainerRemoveOptions{Force: true})
	}
	t.Cleanup(remove)
	if _, err := e.cli.ContainerStart(ctx, res.ID, client.ContainerStartOptions{}); err != nil {
		t.Fatal(err)
	}
	before, err := e.cli.ContainerInspect(ctx, res.ID, client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		after, err := e.cli.ContainerInspect(ctx, res.ID, client.ContainerInspectOptions{})
		if err != nil {
			t.Fatalf("the container of the stranger was removed: %v", err)
		}
		if !after.Container.State.Running || after.Container.State.StartedAt != before.Container.State.StartedAt {
			t.Errorf("the driver changed the stranger's container: its state was %+v and is now %+v", before.Container.State, after.Container.State)
		}
		remove()
	}
}

// startedAt returns when the container of a service was last started, as the engine writes the time.
func (b *bench) startedAt(id driver.ID, service string) string {
	b.Helper()
	res, err := b.cli.ContainerInspect(b.ctx, b.containerOf(id, service), client.ContainerInspectOptions{})
	if err != nil {
		b.Fatal(err)
	}
	return res.Container.State.StartedAt
}
