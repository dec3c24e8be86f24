package docker_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/moby/client"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/docker"
	"github.com/persys/compute/agent/driver/moby/mobytest"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/testbed"
)

// engine is the machine's Docker engine, with the cluster id that the labels of this test run's containers
// contain.
type engine struct {
	*mobytest.Engine
	cli     *client.Client
	run     string
	cluster string
	image   string
	probe   v1.Image
}

var shared = mobytest.Shared{Name: "driver"}

func TestMain(m *testing.M) { shared.Main(m, nothingLeft) }

// theEngine returns the Docker engine of this machine.
func theEngine(t *testing.T) *engine {
	t.Helper()
	e := shared.Open(t)
	return &engine{Engine: e, cli: e.Client, run: e.Run, cluster: clusterOf(e), image: e.Image, probe: e.Probe}
}

func clusterOf(e *mobytest.Engine) string { return "drivertest-" + e.Run }

func (e *engine) load(ctx context.Context, ref string) error {
	return mobytest.Load(ctx, e.cli, e.probe, ref)
}

func (e *engine) removeImage(ref string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return e.RemoveImage(ctx, ref)
}

// nothingLeft returns an error if the tests left containers on the engine, and removes them.
func nothingLeft(ctx context.Context, e *mobytest.Engine) error {
	res, err := e.Client.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: make(client.Filters).Add("label", driver.LabelCluster+"="+clusterOf(e)),
	})
	if err != nil {
		return err
	}
	for _, c := range res.Items {
		_, rmErr := e.Client.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		err = fmt.Errorf("the tests left container %v behind (error of its removal: %v)", c.Names, rmErr)
	}
	return err
}

// driver returns a driver for a node. The driver is closed when the test ends.
func (e *engine) driver(t *testing.T, node string, change ...func(*docker.Options)) *docker.Driver {
	t.Helper()
	opt := docker.Options{ClusterID: e.cluster, NodeID: node, StopGrace: 5 * time.Second, Sealer: mobytest.Sealer(t)}
	for _, f := range change {
		f(&opt)
	}
	d, err := docker.New(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func containerBody(image string, command ...string) *agentv1.ContainerSpec {
	return &agentv1.ContainerSpec{Image: image, Command: command}
}

func wrap(c *agentv1.ContainerSpec) *agentv1.WorkloadSpec {
	return &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Container{Container: c}}
}

// bench is the fixture of one test: the Docker driver of a node named node-a, and its workloads.
type bench struct {
	*testing.T
	*engine
	d   *docker.Driver
	ctx context.Context
}

func newBench(t *testing.T, change ...func(*docker.Options)) *bench {
	t.Helper()
	e := theEngine(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute) // beside other tests the engine may be slow
	t.Cleanup(cancel)
	return &bench{T: t, engine: e, d: e.driver(t, "node-a", change...), ctx: ctx}
}

func (b *bench) spec(id string, body *agentv1.ContainerSpec) driver.Spec {
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
		Generation: driver.Generation{Incarnation: 1, Sequence: 1}, Running: true, Body: wrap(body),
	}
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

func (b *bench) await(id driver.ID, what string, ok func(driver.Observed) bool) driver.Observed {
	b.Helper()
	var o driver.Observed
	testbed.Within(b, testbed.Patience, what, func() error {
		if o = b.observed(id); !ok(o) {
			return fmt.Errorf("%s (%s)", o.State, o.Message)
		}
		return nil
	})
	return o
}

func (b *bench) awaitState(id driver.ID, want driver.State) driver.Observed {
	b.Helper()
	return b.await(id, string(want), func(o driver.Observed) bool { return o.State == want })
}

// get requests url until the test program in the container (the probe) answers, and returns the
// answer.
func (b *bench) get(url string) string {
	b.Helper()
	var answer string
	testbed.Within(b, testbed.Patience, "GET "+url, func() error {
		req, err := http.NewRequestWithContext(b.ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return testbed.Final(err)
		}
		res, err := httpClient().Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			return testbed.Final(err)
		}
		if answer = string(text); res.StatusCode != http.StatusOK {
			answer = fmt.Sprintf("%d %s", res.StatusCode, text)
		}
		return nil
	})
	return answer
}

func httpClient() *http.Client {
	return &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
}

func containsText(err error, text string) bool { return strings.Contains(err.Error(), text) }

func quiet() *log.Logger { return log.New(io.Discard, "", 0) }
