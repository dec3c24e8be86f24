package e2e

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/persys/compute/e2e/harness"
)

// docker is the real engine with an image to run, made ready by the first test
// that wants it.
type docker struct {
	once   sync.Once
	engine *harness.Engine
	image  string
	err    error
}

var shared docker

// theEngine skips on a machine without Docker, and fails there when CI is set.
func theEngine(t *testing.T) (*harness.Engine, string) {
	t.Helper()
	shared.once.Do(func() { shared.err = shared.open() })
	if shared.err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("a Docker engine is needed: %v", shared.err)
		}
		t.Skipf("SKIPPED, NOTHING TESTED: a Docker engine is needed: %v", shared.err)
	}
	return shared.engine, shared.image
}

func (d *docker) open() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	e, err := harness.OpenEngine(ctx)
	if err != nil {
		return err
	}
	d.image = "persys/hello:e2e"
	if err := e.BuildGo(ctx, d.image, "./examples/hello", nil); err != nil {
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

// onDocker is a cluster whose containers are removed at the end, before the
// cluster goes.
func onDocker(t *testing.T, e *harness.Engine, c *harness.Cluster) string {
	t.Helper()
	st, err := c.Status(t.Context(), 0)
	must(t, err)
	id := st.GetClusterId()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		// The agents first: they would bring back what is removed.
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
