package docker_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/docker"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

// Without an engine every call says so, and none claims that nothing runs.
func TestEngineDown(t *testing.T) {
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
			t.Errorf("%s: no error", name)
		} else if class := driver.ClassOf(err); class != driver.RuntimeUnhealthy || !class.Transient() {
			t.Errorf("%s: class %s: %v", name, class, err)
		}
	}
	if capacity, _ := d.Probe(ctx); capacity.Healthy || capacity.Reason == "" {
		t.Errorf("capacity %+v, want unhealthy with a reason", capacity)
	}
}

// relay stands between driver and engine and can be cut.
type relay struct {
	path   string
	target string
	mu     sync.Mutex
	l      net.Listener
	conns  []net.Conn
	wg     sync.WaitGroup
}

func (r *relay) open(t *testing.T) {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "unix", r.path)
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	r.l = l
	r.mu.Unlock()
	r.wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			var dialer net.Dialer
			out, err := dialer.DialContext(context.Background(), "unix", r.target)
			if err != nil {
				_ = in.Close()
				continue
			}
			r.mu.Lock()
			r.conns = append(r.conns, in, out)
			r.mu.Unlock()
			r.wg.Go(func() { _, _ = io.Copy(out, in); _ = out.Close() })
			r.wg.Go(func() { _, _ = io.Copy(in, out); _ = in.Close() })
		}
	})
}

func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.l != nil {
		_ = r.l.Close()
	}
	for _, c := range r.conns {
		_ = c.Close()
	}
	r.l, r.conns = nil, nil
}

func TestEventsSurviveAnOutage(t *testing.T) {
	e := theEngine(t)
	host := e.cli.DaemonHost()
	if len(host) < 8 || host[:7] != "unix://" {
		t.Skipf("the engine is at %s; this test needs a unix socket", host)
	}
	r := &relay{path: filepath.Join(t.TempDir(), "relay.sock"), target: host[7:]}
	r.open(t)
	t.Cleanup(func() { r.cut(); r.wg.Wait() })
	b := newBench(t, func(o *docker.Options) {
		o.Host = "unix://" + r.path
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
				t.Fatalf("no hint for %q", want)
			}
		}
	}
	next("") // the stream is open; what happened before it is not known
	r.cut()
	if got, err := b.d.List(b.ctx); driver.ClassOf(err) != driver.RuntimeUnhealthy {
		t.Errorf("List during the outage: %v, %v", got, err)
	}
	r.open(t)
	next("") // anything may have changed meanwhile
	spec := b.spec("outage", containerBody(e.image))
	b.ensure(spec)
	next(spec.ID)
}

func TestRefusedSpecs(t *testing.T) {
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
			t.Errorf("%s: class %s, want %s: %v", c.field, driver.ClassOf(err), c.class, err)
		} else if want := c.field + ":"; !containsText(err, want) {
			t.Errorf("the error does not name %s: %v", c.field, err)
		}
	}
}
