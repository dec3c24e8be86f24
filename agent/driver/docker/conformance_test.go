package docker_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/docker"
	"github.com/persys/compute/agent/driver/drivertest"
	"github.com/persys/compute/agent/driver/moby/mobytest"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

func TestConformance(t *testing.T) {
	e := theEngine(t)
	drivertest.Run(t, drivertest.Harness{
		Cluster: e.cluster,
		Prefix:  "c" + e.run + "-",
		Open:    func(t *testing.T, node string) driver.Driver { return e.driver(t, node) },
		Steady: func(version int) *agentv1.WorkloadSpec {
			body := containerBody(e.image, "serve")
			body.Env = map[string]string{"VERSION": strconv.Itoa(version)}
			return wrap(body)
		},
		LogLine: "probe: ready",
		Commands: &drivertest.Commands{
			Say: func(out, err string, code int) []string {
				return []string{"/probe", "say", out, err, strconv.Itoa(code)}
			},
			Cat: []string{"/probe", "cat"}, Wait: []string{"/probe", "wait"}, Size: []string{"/probe", "size"},
		},
		Crash: func(code int) *agentv1.WorkloadSpec {
			return wrap(containerBody(e.image, "exit", strconv.Itoa(code)))
		},
		// An image that the test's registry reports as missing.
		Missing: func() *agentv1.WorkloadSpec {
			return wrap(containerBody(newRegistry(t).host() + "/nobody/nothing:v1"))
		},
		Stranger: func(t *testing.T, id driver.ID) func() { return stranger(t, e, id) },
		Outage: func(t *testing.T, node string) (driver.Driver, func(), func()) {
			r := mobytest.NewRelay(t, e.cli)
			d := e.driver(t, node, func(o *docker.Options) { o.Host = r.Host() })
			return d, r.Cut, func() { r.Restore(t) }
		},
		Away: time.Minute, Apart: true,
		Full: func(t *testing.T, node string) (driver.Driver, func(), func()) {
			small := mobytest.NewSmall(t, 96<<20, e.probe, e.image)
			fill, empty := drivertest.Fill(t, small.Disk)
			return e.driver(t, node, func(o *docker.Options) { o.Host = small.Host }), fill, empty
		},
	})
}

// stranger creates a running container without our labels.
func stranger(t *testing.T, e *engine, id driver.ID) func() {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	res, err := e.cli.ContainerCreate(ctx, client.ContainerCreateOptions{
		Name: string(id), Config: &container.Config{Image: e.image},
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
			t.Fatalf("the container of the stranger was removed: %v", err)
		}
		if after.Container.Name != before.Container.Name || !after.Container.State.Running ||
			after.Container.State.StartedAt != before.Container.State.StartedAt {
			t.Errorf("the driver changed the stranger's container: its state was %+v and is now %+v", before.Container.State, after.Container.State)
		}
		remove()
	}
}
