package docker_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/moby/client"
	"go.uber.org/goleak"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/docker"
	"github.com/persys/compute/agent/driver/moby/mobytest"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

// engine is the real engine under test and what this run of the tests put there. Names carry a
// random part, so runs do not meet.
type engine struct {
	cli     *client.Client
	run     string // random
	cluster string
	image   string // local only: it came from no registry
	probe   v1.Image
}

// open is the engine, made ready by the first test that wants it.
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
	e.cluster = "drivertest-" + e.run
	e.image = "persys-driver-probe-" + e.run + ":v1"
	if e.probe, err = mobytest.BuildProbe(ctx); err != nil {
		return nil, err
	}
	return e, e.load(ctx, e.image)
}

func (e *engine) load(ctx context.Context, ref string) error {
	return mobytest.Load(ctx, e.cli, e.probe, ref)
}

func (e *engine) removeImage(ref string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := e.cli.ImageRemove(ctx, ref, client.ImageRemoveOptions{Force: true, PruneChildren: true})
	return err
}

// close fails if a test left a container behind, and removes everything.
func (e *engine) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	defer func() { _ = e.cli.Close() }()
	res, err := e.cli.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: make(client.Filters).Add("label", driver.LabelCluster+"="+e.cluster),
	})
	if err != nil {
		return err
	}
	for _, c := range res.Items {
		_, rmErr := e.cli.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		err = fmt.Errorf("container %v was left behind (removed: %v)", c.Names, rmErr)
	}
	if rmErr := e.removeImage(e.image); rmErr != nil {
		err = rmErr
	}
	return err
}

// driver of a node, closed when the test ends.
func (e *engine) driver(t *testing.T, node string, change ...func(*docker.Options)) *docker.Driver {
	t.Helper()
	opt := docker.Options{ClusterID: e.cluster, NodeID: node, StopGrace: 5 * time.Second}
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

// bench is one test's workbench: a driver of node-a and its workloads.
type bench struct {
	*testing.T
	*engine
	d   *docker.Driver
	ctx context.Context
}

func newBench(t *testing.T, change ...func(*docker.Options)) *bench {
	t.Helper()
	e := theEngine(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return &bench{T: t, engine: e, d: e.driver(t, "node-a", change...), ctx: ctx}
}

func (b *bench) spec(id string, body *agentv1.ContainerSpec) driver.Spec {
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
	deadline := time.Now().Add(30 * time.Second)
	for {
		o := b.observed(id)
		if ok(o) {
			return o
		}
		if time.Now().After(deadline) {
			b.Fatalf("never %s: %s (%s)", what, o.State, o.Message)
		}
		time.Sleep(20 * time.Millisecond) // between polls
	}
}

func (b *bench) awaitState(id driver.ID, want driver.State) driver.Observed {
	b.Helper()
	return b.await(id, string(want), func(o driver.Observed) bool { return o.State == want })
}

// get polls the probe until it answers.
func (b *bench) get(url string) string {
	b.Helper()
	deadline := time.Now().Add(15 * time.Second)
	for {
		req, err := http.NewRequestWithContext(b.ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			b.Fatal(err)
		}
		res, err := httpClient().Do(req)
		if err == nil {
			text, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil {
				b.Fatal(err)
			}
			if res.StatusCode != http.StatusOK {
				return fmt.Sprintf("%d %s", res.StatusCode, text)
			}
			return string(text)
		}
		if time.Now().After(deadline) {
			b.Fatalf("GET %s: %v", url, err)
		}
		time.Sleep(20 * time.Millisecond) // between polls
	}
}

func httpClient() *http.Client {
	return &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
}

func containsText(err error, text string) bool { return strings.Contains(err.Error(), text) }

func quiet() *log.Logger { return log.New(io.Discard, "", 0) }
