package docker_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/docker"
	"github.com/persys/compute/agent/driver/moby/mobytest"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

// Without an engine every method of the driver returns an error; none returns an empty list.
func TestEveryCallFailsWithoutAnEngine(t *testing.T) {
	d, err := docker.New(docker.Options{
		Host: "unix://" + filepath.Join(t.TempDir(), "none.sock"), ClusterID: "c", NodeID: "n",
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	spec := driver.Spec{ID: "w", Content: "c1:x", ClusterID: "c", NodeID: "n", Body: wrap(containerBody("image:v1"))}
	for name, call := range map[string]func() error{
		"Probe":  func() error { _, err := d.Probe(ctx); return err },
		"Ensure": func() error { return d.Ensure(ctx, spec) },
		"Halt":   func() error { return d.Halt(ctx, "w", 0) },
		"Remove": func() error { return d.Remove(ctx, "w") },
		"List":   func() error { _, err := d.List(ctx); return err },
		"Logs":   func() error { _, err := d.Logs(ctx, "w", driver.LogOptions{}); return err },
	} {
		err := call()
		if err == nil {
			t.Errorf("%s succeeded without an engine, want an error", name)
		} else if class := driver.ClassOf(err); class != driver.RuntimeUnhealthy || class.Cause() != driver.Passing {
			t.Errorf("without an engine %s returned class %s: %v; want RUNTIME_UNHEALTHY", name, class, err)
		}
	}
	if capacity, _ := d.Probe(ctx); capacity.Healthy || capacity.Reason == "" {
		t.Errorf("Probe returned %+v, want an unhealthy engine with a reason", capacity)
	}
}

func TestEventsSurviveAnOutage(t *testing.T) {
	e := theEngine(t)
	r := mobytest.NewRelay(t, e.cli)
	b := newBench(t, func(o *docker.Options) {
		o.Host = r.Host()
		o.Logger = slog.New(slog.DiscardHandler)
	})
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	events, err := b.d.Events(ctx)
	if err != nil {
		t.Fatal(err)
	}
	next := func(want driver.ID) {
		t.Helper()
		timeout := time.After(20 * time.Second)
		for {
			select {
			case id := <-events:
				if id == want {
					return
				}
			case <-timeout:
				t.Fatalf("the driver sent no event hint for workload %q (\"\" means any workload)", want)
			}
		}
	}
	next("") // the empty hint means that any workload may have changed: the driver sends it when its event stream opens
	r.Cut()
	if got, err := b.d.List(b.ctx); driver.ClassOf(err) != driver.RuntimeUnhealthy {
		t.Errorf("List during the outage returned %v, %v; want an error of class RuntimeUnhealthy", got, err)
	}
	r.Restore(t)
	next("") // the empty hint: any workload may have changed during the outage
	spec := b.spec("outage", containerBody(e.image))
	b.ensure(spec)
	next(spec.ID)
}

func TestInvalidSpecificationsAreRefused(t *testing.T) {
	d, err := docker.New(docker.Options{Host: "unix:///nowhere", ClusterID: "c", NodeID: "n"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	for _, c := range []struct {
		field string
		class driver.Class
		spoil func(*agentv1.ContainerSpec)
	}{
		{"container.image", driver.InvalidSpecification, func(c *agentv1.ContainerSpec) { c.Image = "" }},
		{"container.image", driver.InvalidImage, func(c *agentv1.ContainerSpec) { c.Image = "not an image" }},
		{"container.managed_volumes", driver.InvalidSpecification, func(c *agentv1.ContainerSpec) {
			c.ManagedVolumes = []*agentv1.ManagedVolumeSpec{{Name: "data"}}
		}},
		{"container.env", driver.InvalidSpecification, func(c *agentv1.ContainerSpec) { c.Env = map[string]string{"A=B": ""} }},
		{"container.volumes[0].host_path", driver.InvalidSpecification, func(c *agentv1.ContainerSpec) {
			c.Volumes = []*agentv1.VolumeMount{{HostPath: "relative", ContainerPath: "/x"}}
		}},
		{"container.volumes[0].container_path", driver.InvalidSpecification, func(c *agentv1.ContainerSpec) {
			c.Volumes = []*agentv1.VolumeMount{{HostPath: "/x", ContainerPath: "/x:rw"}}
		}},
		{"container.volumes[1].container_path", driver.InvalidSpecification, func(c *agentv1.ContainerSpec) {
			c.Volumes = []*agentv1.VolumeMount{{HostPath: "/x", ContainerPath: "/x"}, {HostPath: "/y", ContainerPath: "/x/"}}
		}},
		{"container.ports[0].protocol", driver.InvalidSpecification, func(c *agentv1.ContainerSpec) {
			c.Ports = []*agentv1.PortMapping{{ContainerPort: 1, Protocol: "sctp"}}
		}},
		{"container.ports[0].container_port", driver.InvalidSpecification, func(c *agentv1.ContainerSpec) {
			c.Ports = []*agentv1.PortMapping{{ContainerPort: 65536}}
		}},
		{"container.ports[0].host_port", driver.InvalidSpecification, func(c *agentv1.ContainerSpec) {
			c.Ports = []*agentv1.PortMapping{{ContainerPort: 1, HostPort: -1}}
		}},
		{"container.ports[1].host_port", driver.InvalidSpecification, func(c *agentv1.ContainerSpec) {
			c.Ports = []*agentv1.PortMapping{{ContainerPort: 1, HostPort: 80}, {ContainerPort: 2, HostPort: 80}}
		}},
		{"container.cpu_millicores", driver.InvalidSpecification, func(c *agentv1.ContainerSpec) { c.CpuMillicores = -1 }},
		{"container.resources.cpu_millicores", driver.InvalidSpecification, func(c *agentv1.ContainerSpec) {
			c.Resources = &agentv1.ResourceLimits{CpuMillicores: 1 << 60}
		}},
		{"container.resources.cpu_shares", driver.InvalidSpecification, func(c *agentv1.ContainerSpec) {
			c.Resources = &agentv1.ResourceLimits{CpuShares: -1}
		}},
		{"container.resources.memory_bytes", driver.InvalidSpecification, func(c *agentv1.ContainerSpec) {
			c.Resources = &agentv1.ResourceLimits{MemoryBytes: -1}
		}},
		{"container.resources.memory_swap_bytes", driver.InvalidSpecification, func(c *agentv1.ContainerSpec) {
			c.Resources = &agentv1.ResourceLimits{MemoryBytes: 2 << 20, MemorySwapBytes: 1 << 20}
		}},
		{"container.restart_policy.policy", driver.InvalidSpecification, func(c *agentv1.ContainerSpec) {
			c.RestartPolicy = &agentv1.RestartPolicy{Policy: "sometimes"}
		}},
		{"container.restart_policy.max_retry_count", driver.InvalidSpecification, func(c *agentv1.ContainerSpec) {
			c.RestartPolicy = &agentv1.RestartPolicy{Policy: "always", MaxRetryCount: 3}
		}},
	} {
		body := containerBody("image:v1")
		c.spoil(body)
		err := d.Ensure(context.Background(), driver.Spec{
			ID: "w", Content: "c1:x", ClusterID: "c", NodeID: "n", Body: wrap(body),
		})
		if driver.ClassOf(err) != c.class {
			t.Errorf("an invalid %s returned class %s, want %s: %v", c.field, driver.ClassOf(err), c.class, err)
		} else if want := c.field + ":"; !containsText(err, want) {
			t.Errorf("the error does not name %s: %v", c.field, err)
		}
	}
}
