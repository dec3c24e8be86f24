package compose_test

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"go.uber.org/goleak"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/compose"
	"github.com/persys/compute/agent/driver/drivertest"
	"github.com/persys/compute/agent/driver/moby/mobytest"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

// engine is the real engine under test and what this run of the tests put there.
type engine struct {
	cli     *client.Client
	run     string // random: runs do not meet
	cluster string
	image   string // local only: it came from no registry
}

type open struct {
	once   sync.Once
	engine *engine
	err    error
}

var shared open

func TestMain(m *testing.M) {
	code := m.Run()
	if e := shared.engine; e != nil {
		if err := e.close(); err != nil {
			fmt.Fprintln(os.Stderr, "cleaning up:", err)
			code = 1
		}
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// theEngine skips on a machine without Docker, and fails there when CI is set.
func theEngine(t *testing.T) *engine {
	t.Helper()
	shared.once.Do(func() { shared.engine, shared.err = openEngine() })
	if shared.err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("a Docker engine is needed: %v", shared.err)
		}
		t.Skipf("SKIPPED, NOTHING TESTED: a Docker engine is needed: %v", shared.err)
	}
	return shared.engine
}

func openEngine() (*engine, error) {
	cli, err := client.New(client.FromEnv)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if _, err := cli.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true}); err != nil {
		return nil, err
	}
	random := make([]byte, 4)
	if _, err := rand.Read(random); err != nil {
		return nil, err
	}
	e := &engine{cli: cli, run: hex.EncodeToString(random)}
	e.cluster = "composetest-" + e.run
	e.image = "persys-compose-probe-" + e.run + ":v1"
	probe, err := mobytest.BuildProbe(ctx)
	if err != nil {
		return nil, err
	}
	return e, mobytest.Load(ctx, cli, probe, e.image)
}

// close fails if a test left something behind, and removes it.
func (e *engine) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	defer func() { _ = e.cli.Close() }()
	ours := make(client.Filters).Add("label", driver.LabelCluster+"="+e.cluster)
	containers, err := e.cli.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: ours})
	if err != nil {
		return err
	}
	for _, c := range containers.Items {
		_, rmErr := e.cli.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		err = fmt.Errorf("container %v was left behind (removed: %v)", c.Names, rmErr)
	}
	networks, listErr := e.cli.NetworkList(ctx, client.NetworkListOptions{Filters: ours})
	if listErr != nil {
		return listErr
	}
	for _, n := range networks.Items {
		_, rmErr := e.cli.NetworkRemove(ctx, n.ID, client.NetworkRemoveOptions{})
		err = fmt.Errorf("network %s was left behind (removed: %v)", n.Name, rmErr)
	}
	volumes, listErr := e.cli.VolumeList(ctx, client.VolumeListOptions{Filters: ours})
	if listErr != nil {
		return listErr
	}
	for _, v := range volumes.Items {
		_, rmErr := e.cli.VolumeRemove(ctx, v.Name, client.VolumeRemoveOptions{Force: true})
		err = fmt.Errorf("volume %s was left behind (removed: %v)", v.Name, rmErr)
	}
	if _, rmErr := e.cli.ImageRemove(ctx, e.image, client.ImageRemoveOptions{Force: true, PruneChildren: true}); rmErr != nil {
		err = rmErr
	}
	return err
}

// driver of a node, closed when the test ends. Drivers of one test share a folder, as agents on one
// machine may.
func (e *engine) driver(t *testing.T, node, dir string, change ...func(*compose.Options)) *compose.Driver {
	t.Helper()
	opt := compose.Options{ClusterID: e.cluster, NodeID: node, Dir: dir, StopGrace: 5 * time.Second}
	for _, f := range change {
		f(&opt)
	}
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

// one service that the conformance suite knows.
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
		// The engine has no such image and may not ask for it.
		Missing: func() *agentv1.WorkloadSpec {
			return inline("services: {app: {image: 'persys/none:v1', pull_policy: never}}")
		},
		Stranger: func(t *testing.T, id driver.ID) func() { return stranger(t, e, id) },
		Outage: func(t *testing.T, node string) (driver.Driver, func(), func()) {
			r := mobytest.NewRelay(t, e.cli)
			d := e.driver(t, node, dir, append(change, func(o *compose.Options) { o.Host = r.Host() })...)
			return d, r.Cut, func() { r.Restore(t) }
		},
		Patience: time.Minute,
	})
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("folders are left behind: %v %v", left, err)
	}
}

func TestConformance(t *testing.T) { conform(t, "c") }

// stranger is a running container of somebody's Compose project that has the workload's name.
func stranger(t *testing.T, e *engine, id driver.ID) func() {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
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
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
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
			t.Fatalf("the stranger is gone: %v", err)
		}
		if !after.Container.State.Running || after.Container.State.StartedAt != before.Container.State.StartedAt {
			t.Errorf("the stranger was touched: %+v, then %+v", before.Container.State, after.Container.State)
		}
		remove()
	}
}
