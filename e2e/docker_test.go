package e2e

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// docker is the Docker engine of this machine and the image of this run. The first test that needs them
// opens them.
type docker struct {
	once   sync.Once
	engine *harness.Engine
	image  string // image name with a random part, because other test runs may use the engine at the same time
	err    error
}

var shared docker

// theEngine returns the Docker engine and an image. It reserves the engine until the test ends: container
// names are made from workload names, and some containers publish a port of the machine, so two tests at
// once would conflict.
func theEngine(t *testing.T) (*harness.Engine, string) {
	t.Helper()
	if testbed.HasOwnNetwork() {
		t.Fatalf("a test with the Docker engine must run in the network of the machine, where ports are published: list it in e2e/lanes.txt with the lane host")
	}
	shared.once.Do(func() { shared.err = shared.open() })
	testbed.Need(t, "a Docker engine", shared.err)
	t.Cleanup(got[func()](t)(shared.engine.Alone(t.Context())))
	return shared.engine, shared.image
}

func (d *docker) open() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	e, err := harness.OpenEngine(ctx)
	if err != nil {
		return err
	}
	if d.image, err = e.BuildForRun(ctx, "persys/hello:e2e", "./examples/hello"); err != nil {
		return errors.Join(err, e.Close())
	}
	d.engine = e
	return nil
}

func (d *docker) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return errors.Join(d.engine.RemoveImage(ctx, d.image), d.engine.Close())
}

// onDocker removes the containers of a cluster at the end of the test, before the cluster stops,
// and returns the cluster id.
func onDocker(t *testing.T, e *harness.Engine, c *harness.Cluster) string {
	t.Helper()
	st, err := c.Status(t.Context(), 0)
	must(t, err)
	id := st.GetClusterId()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		// Stop the agents first: they would start removed containers again.
		for _, a := range c.Agents {
			if err := a.Kill(); err != nil {
				t.Error(err)
			}
		}
		if err := e.RemoveAll(ctx, id); err != nil {
			t.Errorf("removing containers: %v", err)
		}
	})
	return id
}
