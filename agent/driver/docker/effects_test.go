package docker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"golang.org/x/sync/errgroup"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/docker"
	"github.com/persys/compute/agent/driver/moby/mobytest"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/testbed"
)

// served returns the spec of a workload that runs the web server of the test program (the probe) on
// a free host port.
func (b *bench) served(id string, change func(*agentv1.ContainerSpec)) driver.Spec {
	body := containerBody(b.image, "serve")
	body.Ports = []*agentv1.PortMapping{{ContainerPort: 8080}}
	if change != nil {
		change(body)
	}
	return b.spec(id, body)
}

// url returns the URL of a page of the test program's web server, with the host port in the
// observation o.
func (b *bench) url(o driver.Observed, path string) string {
	b.Helper()
	for _, p := range o.Ports {
		if p.Port == 8080 {
			return fmt.Sprintf("http://127.0.0.1:%d%s", p.HostPort, path)
		}
	}
	b.Fatalf("port 8080 is not among the published ports %+v", o.Ports)
	return ""
}

func (b *bench) inspect(id string) container.InspectResponse {
	b.Helper()
	res, err := b.cli.ContainerInspect(b.ctx, id, client.ContainerInspectOptions{})
	if err != nil {
		b.Fatal(err)
	}
	return res.Container
}

// freePort returns a TCP port of this machine that was free a moment ago.
func freePort(t *testing.T) int {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

func TestCommandEnvironmentAndLabels(t *testing.T) {
	b := newBench(t)
	spec := b.served("facts", func(c *agentv1.ContainerSpec) {
		c.Args = []string{"two words", "$HOME"}
		c.Env = map[string]string{"GREETING": "hello = world\nsecond line", "EMPTY": ""}
		c.Labels = map[string]string{"team": "blue", "persys.content": "forged"}
	})
	b.ensure(spec)
	o := b.awaitState(spec.ID, driver.Running)
	var facts struct{ Args, Env []string }
	if err := json.Unmarshal([]byte(b.get(b.url(o, "/facts"))), &facts); err != nil {
		t.Fatal(err)
	}
	if want := []string{"/probe", "serve", "two words", "$HOME"}; !slices.Equal(facts.Args, want) {
		t.Errorf("the program in the container got the arguments %q, want %q", facts.Args, want)
	}
	for _, want := range []string{"GREETING=hello = world\nsecond line", "EMPTY="} {
		if !slices.Contains(facts.Env, want) {
			t.Errorf("the environment %q of the program in the container lacks %q", facts.Env, want)
		}
	}
	if o.Labels["team"] != "blue" || o.Labels[driver.LabelContent] != spec.Content {
		t.Errorf("the container has the labels %v, want the user's label and the content label", o.Labels)
	}
	if o.Name != string(spec.ID) {
		t.Errorf("the container is named %q, want the workload's id", o.Name)
	}
	if len(o.Addresses) == 0 || o.Metadata["container.id"] != o.RuntimeID[:12] || o.Metadata["container.image"] != b.image {
		t.Errorf("the addresses are %v and the metadata %v, want at least one address, and the id and the image of the container", o.Addresses, o.Metadata)
	}
}

func TestVolumesAreMounted(t *testing.T) {
	b := newBench(t)
	dir := t.TempDir()
	for _, sub := range []string{"ro", "rw"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "ro", "page"), []byte("from the machine"), 0o644); err != nil {
		t.Fatal(err)
	}
	spec := b.served("volumes", func(c *agentv1.ContainerSpec) {
		c.Volumes = []*agentv1.VolumeMount{
			{HostPath: filepath.Join(dir, "ro"), ContainerPath: "/in", ReadOnly: true},
			{HostPath: filepath.Join(dir, "rw"), ContainerPath: "/out"},
		}
	})
	b.ensure(spec)
	o := b.awaitState(spec.ID, driver.Running)
	if got := b.get(b.url(o, "/read?path=/in/page")); got != "from the machine" {
		t.Errorf("read %q", got)
	}
	if got := b.get(b.url(o, "/write?path=/in/new")); !strings.Contains(got, "read-only") {
		t.Errorf("writing to a file on a read-only volume returned %q, want the error \"read-only\"", got)
	}
	b.get(b.url(o, "/write?path=/out/new"))
	if data, err := os.ReadFile(filepath.Join(dir, "rw", "new")); err != nil || string(data) != "probe" {
		t.Errorf("a file that the container wrote to its mounted folder contains %q on the machine, error %v", data, err)
	}
}

func TestPortsArePublished(t *testing.T) {
	b := newBench(t)
	port := freePort(t)
	spec := b.served("ports", func(c *agentv1.ContainerSpec) {
		c.Ports = []*agentv1.PortMapping{
			{HostPort: int32(port), ContainerPort: 8080, Protocol: "tcp"},
			{ContainerPort: 8080},
			{HostPort: int32(port), ContainerPort: 9090, Protocol: "UDP"},
		}
	})
	b.ensure(spec)
	o := b.awaitState(spec.ID, driver.Running)
	if len(o.Ports) != 3 {
		t.Fatalf("the published ports are %+v, want three", o.Ports)
	}
	for _, p := range o.Ports {
		if p.HostPort == 0 || p.HostIP != "" {
			t.Errorf("the published port is %+v, want a host port on all addresses of the machine", p)
		}
	}
	if got := b.get(fmt.Sprintf("http://127.0.0.1:%d/", port)); got != "probe" {
		t.Errorf("the container's web server on the fixed host port answered %q", got)
	}
	ephemeral := o.Ports[slices.IndexFunc(o.Ports, func(p driver.Port) bool { return p.Port == 8080 && p.HostPort != port })]
	if got := b.get(fmt.Sprintf("http://127.0.0.1:%d/", ephemeral.HostPort)); got != "probe" {
		t.Errorf("the container's web server on the ephemeral host port %d answered %q", ephemeral.HostPort, got)
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(b.ctx, "udp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	buf := make([]byte, 16)
	for try := 0; ; try++ {
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		_, _ = conn.Write([]byte("echo"))
		if n, err := conn.Read(buf); err == nil {
			if string(buf[:n]) != "echo" {
				t.Errorf("udp: %q", buf[:n])
			}
			break
		} else if try == 10 {
			t.Fatalf("udp: %v", err)
		}
	}
}

func TestAUsedHostPortIsAnError(t *testing.T) {
	b := newBench(t)
	var lc net.ListenConfig
	l, err := lc.Listen(b.ctx, "tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	taken := int32(l.Addr().(*net.TCPAddr).Port)
	spec := b.served("conflict", func(c *agentv1.ContainerSpec) { c.Ports[0].HostPort = taken })
	err = b.d.Ensure(b.ctx, spec)
	if got := driver.ClassOf(err); got != driver.PortBindConflict {
		t.Fatalf("Ensure with a host port that is in use returned class %s: %v; want PORT_BIND_CONFLICT", got, err)
	}
	if o := b.observed(spec.ID); o.State != driver.Failed || o.Class != driver.PortBindConflict || !strings.Contains(o.Message, strconv.Itoa(int(taken))) {
		t.Errorf("the container with a used host port is %s, %s: %s; want Failed and a message that names the port", o.State, o.Class, o.Message)
	}
	_ = l.Close()
	b.ensure(spec)
	b.awaitState(spec.ID, driver.Running)

	second := b.served("conflict-2", func(c *agentv1.ContainerSpec) { c.Ports[0].HostPort = taken })
	if err := b.d.Ensure(b.ctx, second); driver.ClassOf(err) != driver.PortBindConflict {
		t.Errorf("a host port of another container returned %v, want class PORT_BIND_CONFLICT", err)
	}
}

// When a container is replaced by one with the same host port, the two never hold the port at the same
// time.
func TestReplaceKeepsHostPort(t *testing.T) {
	b := newBench(t)
	port := int32(freePort(t))
	spec := b.served("sameport", func(c *agentv1.ContainerSpec) { c.Ports[0].HostPort = port })
	b.ensure(spec)
	b.awaitState(spec.ID, driver.Running)
	spec.Content += "-2"
	spec.Body.GetContainer().Env = map[string]string{"VERSION": "two"}
	b.ensure(spec)
	o := b.awaitState(spec.ID, driver.Running)
	if got := b.get(b.url(o, "/facts")); !strings.Contains(got, "VERSION=two") {
		t.Errorf("after the replacement the host port answers with the page of the old container: %s", got)
	}
}

func TestResourceLimitsReachTheKernel(t *testing.T) {
	b := newBench(t)
	spec := b.served("limits", func(c *agentv1.ContainerSpec) {
		c.Resources = &agentv1.ResourceLimits{CpuShares: 5, CpuMillicores: 200, MemoryBytes: 64 << 20}
	})
	b.ensure(spec)
	o := b.awaitState(spec.ID, driver.Running)
	host := b.inspect(o.RuntimeID).HostConfig
	if host.NanoCPUs != 200_000_000 || host.CPUShares != 204 || host.Memory != 64<<20 || host.MemorySwap != 64<<20 {
		t.Errorf("the container has CPU quota %d, CPU shares %d, memory %d, and memory with swap %d; want 200000000, 204, 64 MiB and 64 MiB", host.NanoCPUs, host.CPUShares, host.Memory, host.MemorySwap)
	}
	// The kernel's CPU time of the process shows whether the quota is enforced. With a quota of a fifth of a
	// core, the probe uses at most 200 ms plus one scheduling period; without a quota it would use about
	// 1,000 ms, even on a busy machine with two cores.
	got, err := strconv.Atoi(b.get(b.url(o, "/burn")))
	if err != nil || got > 400 {
		t.Errorf("a container with a quota of a fifth of a core got %d ms of CPU time in a second (%v), want about 200", got, err)
	}
}

// Usage reports the kernel's counters of a container. The container works for one second at a fifth of a core
// and causes some network traffic.
func TestUsageReportsTheKernelsCounters(t *testing.T) {
	b := newBench(t)
	spec := b.served("usage", func(c *agentv1.ContainerSpec) {
		c.Resources = &agentv1.ResourceLimits{CpuMillicores: 200, MemoryBytes: 64 << 20}
	})
	b.ensure(spec)
	o := b.awaitState(spec.ID, driver.Running)
	measure := func() driver.Usage {
		t.Helper()
		all, err := b.d.Usage(b.ctx, []driver.Observed{o, {ID: "stopped", RuntimeID: "x", State: driver.Stopped}})
		if err != nil || len(all) != 1 || all[0].ID != spec.ID {
			t.Fatalf("Usage returned %+v, %v; want the usage of %s and of no other workload", all, err, spec.ID)
		}
		return all[0]
	}
	before := measure()
	b.get(b.url(o, "/burn"))
	after := measure()
	if used := after.CPU - before.CPU; used < 50*time.Millisecond || used > 450*time.Millisecond {
		t.Errorf("Usage reports that the container used %s of CPU time, want about 200 ms", used)
	}
	if after.Instance != before.Instance || !after.At.After(before.At) {
		t.Errorf("the counters did not grow between two readings of one instance: %+v, %+v", before, after)
	}
	if after.Memory < 100<<10 || after.Memory > 64<<20 || after.MemoryLimit != 64<<20 {
		t.Errorf("the usage has %d bytes of memory and the limit %d, want the limit of the specification", after.Memory, after.MemoryLimit)
	}
	if after.NetReceived <= before.NetReceived || after.NetSent <= before.NetSent {
		t.Errorf("received bytes went from %d to %d, sent bytes from %d to %d; want both to grow, because the probe answered requests", before.NetReceived, after.NetReceived, before.NetSent, after.NetSent)
	}
}

func TestSharesOfLegacySchedulers(t *testing.T) {
	b := newBench(t)
	spec := b.served("shares", func(c *agentv1.ContainerSpec) {
		c.Resources = &agentv1.ResourceLimits{CpuShares: 500}
	})
	spec.Running = false
	b.ensure(spec)
	host := b.inspect(b.observed(spec.ID).RuntimeID).HostConfig
	if host.NanoCPUs != 0 || host.CPUShares != 500 || host.Memory != 0 {
		t.Errorf("a container with only CPU shares has quota %d, shares %d, memory %d; want 0, 500 and 0", host.NanoCPUs, host.CPUShares, host.Memory)
	}
}

func TestMemoryLimitKills(t *testing.T) {
	b := newBench(t)
	body := containerBody(b.image, "allocate", "256")
	body.Resources = &agentv1.ResourceLimits{MemoryBytes: 32 << 20}
	spec := b.spec("oom", body)
	b.ensure(spec)
	o := b.awaitState(spec.ID, driver.Failed)
	if !strings.Contains(o.Message, "OOMKilled") || !strings.Contains(o.Message, "limit of 32 MiB") || o.Class != driver.ResourceQuotaExceeded {
		t.Errorf("a container that exceeded its memory limit has class %s and message %q; want RESOURCE_QUOTA_EXCEEDED and a message with OOMKilled and the limit", o.Class, o.Message)
	}
	// The container exits at once, and the engine restarts it again and again. Meanwhile the driver reports
	// the reason.
	body.RestartPolicy = &agentv1.RestartPolicy{Policy: "always"}
	again := b.spec("oom-again", body)
	b.ensure(again)
	testbed.Until(t, "the message gives the reason for the restarts", func() bool {
		return strings.Contains(b.observed(again.ID).Message, "exceeded its memory limit of 32 MiB")
	})
}

func TestMoreCPUThanTheMachineHas(t *testing.T) {
	b := newBench(t)
	body := containerBody(b.image)
	body.CpuMillicores = 4_096_000
	if err := b.d.Ensure(b.ctx, b.spec("greedy", body)); driver.ClassOf(err) != driver.InsufficientResources {
		t.Errorf("Ensure with more CPUs than the machine has returned class %s: %v; want INSUFFICIENT_RESOURCES", driver.ClassOf(err), err)
	}
}

func TestPrivilegedReachesTheEngine(t *testing.T) {
	b := newBench(t)
	body := containerBody(b.image)
	body.Privileged = true
	spec := b.spec("privileged", body)
	spec.Running = false
	b.ensure(spec)
	if !b.inspect(b.observed(spec.ID).RuntimeID).HostConfig.Privileged {
		t.Error("not privileged")
	}
}

func TestRestartPoliciesOfTheEngine(t *testing.T) {
	t.Run("with policy on-failure the engine gives up after max_retry_count restarts", func(t *testing.T) {
		b := newBench(t)
		body := containerBody(b.image, "exit", "5")
		body.RestartPolicy = &agentv1.RestartPolicy{Policy: "on-failure", MaxRetryCount: 2}
		spec := b.spec("retries", body)
		b.ensure(spec)
		o := b.awaitState(spec.ID, driver.Failed)
		if o.RestartCount != 2 || o.ExitCode != 5 {
			t.Errorf("the container had %d restarts and exit code %d; want 2 and 5", o.RestartCount, o.ExitCode)
		}
		if !strings.Contains(o.Metadata["container.stderr"], "exiting with code 5") {
			t.Errorf("stderr %q", o.Metadata["container.stderr"])
		}
	})
	t.Run("with policy always, the state is Pending between two starts", func(t *testing.T) {
		b := newBench(t)
		body := containerBody(b.image, "exit", "0")
		body.RestartPolicy = &agentv1.RestartPolicy{Policy: "always"}
		spec := b.spec("always", body)
		b.ensure(spec)
		b.await(spec.ID, "Pending after a restart", func(o driver.Observed) bool {
			return o.State == driver.Pending && o.RestartCount > 0
		})
		if err := b.d.Halt(b.ctx, spec.ID, time.Second); err != nil {
			t.Fatal(err)
		}
		if o := b.observed(spec.ID).Under(false); o.State != driver.Stopped {
			t.Errorf("after Halt the container is %s (%s), want Stopped", o.State, o.Message)
		}
	})
}

func TestHaltKillsAfterGrace(t *testing.T) {
	b := newBench(t)
	spec := b.spec("stubborn", containerBody(b.image, "stubborn"))
	b.ensure(spec)
	b.await(spec.ID, "ready", func(driver.Observed) bool { // from "ready" on the program ignores SIGTERM
		rc, err := b.d.Logs(b.ctx, spec.ID, driver.LogOptions{})
		if err != nil {
			return false
		}
		defer rc.Close()
		text, err := io.ReadAll(rc)
		return err == nil && strings.Contains(string(text), "ready")
	})
	start := time.Now()
	if err := b.d.Halt(b.ctx, spec.ID, time.Second); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 900*time.Millisecond || took > 15*time.Second {
		t.Errorf("Halt took %s, want the grace period of 1s", took)
	}
	if o := b.observed(spec.ID); o.ExitCode != 137 || o.Under(false).State != driver.Stopped {
		t.Errorf("the container that ignored SIGTERM has exit code %d and state %s, want exit code 137 and Stopped", o.ExitCode, o.State)
	}
}

func TestStderrIsBounded(t *testing.T) {
	b := newBench(t)
	spec := b.spec("chatter", containerBody(b.image, "chatter"))
	b.ensure(spec)
	o := b.awaitState(spec.ID, driver.Failed)
	tail := o.Metadata["container.stderr"]
	if len(tail) > driver.MaxMetadata || !strings.HasSuffix(strings.TrimSpace(tail), "complaint 1999") {
		t.Errorf("the metadata has %d bytes of stderr that end with %q; want at most the limit, and the last line of the output", len(tail), tail[max(0, len(tail)-60):])
	}
}

func TestAMissingCommandIsAnError(t *testing.T) {
	b := newBench(t)
	// A read-only folder mounted over the probe's entrypoint hides the program that the container should
	// run, so the container cannot start.
	body := containerBody(b.image)
	body.Volumes = []*agentv1.VolumeMount{{HostPath: t.TempDir(), ContainerPath: "/probe"}}
	spec := b.spec("nocommand", body)
	err := b.d.Ensure(b.ctx, spec)
	if got := driver.ClassOf(err); got != driver.InvalidConfiguration && got != driver.StorageAttachFailed {
		t.Errorf("Ensure of a container whose program is missing returned class %s: %v; want INVALID_CONFIGURATION or STORAGE_ATTACH_FAILED", got, err)
	}
	if o := b.observed(spec.ID); o.State != driver.Failed || o.Class == "" {
		t.Errorf("the container that could not start is %s with class %q: %s; want Failed with a class", o.State, o.Class, o.Message)
	}
}

// made creates a container as a legacy v1 agent does: with only those three of our labels that legacy v1 agents
// know.
func (b *bench) made(id driver.ID, revision string) string {
	b.Helper()
	res, err := b.cli.ContainerCreate(b.ctx, client.ContainerCreateOptions{
		Name: string(id),
		Config: &container.Config{Image: b.image, Labels: map[string]string{
			driver.LabelManaged: "true", driver.LabelWorkload: string(id), driver.LabelRevision: revision,
		}},
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_, _ = b.cli.ContainerRemove(ctx, res.ID, client.ContainerRemoveOptions{Force: true})
	})
	if _, err := b.cli.ContainerStart(b.ctx, res.ID, client.ContainerStartOptions{}); err != nil {
		b.Fatal(err)
	}
	return res.ID
}

func TestContainerOfALegacyAgent(t *testing.T) {
	claim := func(yes bool) func(*docker.Options) {
		return func(o *docker.Options) { o.Owns = func(driver.ID) bool { return yes } }
	}
	t.Run("a container that the store does not list belongs to a stranger", func(t *testing.T) {
		b := newBench(t, claim(false))
		spec := b.spec("old-1", containerBody(b.image))
		made := b.made(spec.ID, "rev-1")
		if o := b.observed(spec.ID); o.State != driver.Absent {
			t.Errorf("listed: %+v", o)
		}
		if err := b.d.Ensure(b.ctx, spec); driver.ClassOf(err) != driver.NameConflict || !strings.Contains(err.Error(), made[:12]) {
			t.Errorf("Ensure: %v", err)
		}
		if err := b.d.Remove(b.ctx, spec.ID); err != nil || !b.inspect(made).State.Running {
			t.Errorf("after Remove (%v) the container must still run", err)
		}
	})
	t.Run("a container that the store lists, with the same revision, is adopted", func(t *testing.T) {
		b := newBench(t, claim(true))
		spec := b.spec("old-2", containerBody(b.image))
		made := b.made(spec.ID, "rev-1")
		if o := b.observed(spec.ID); o.Owned || o.Content != "" || o.State != driver.Running {
			t.Errorf("List returned %+v; want a running container with Owned false and without content", o)
		}
		b.ensure(spec)
		if o := b.observed(spec.ID); o.RuntimeID != made {
			t.Errorf("the adopted container was recreated as %s", o.RuntimeID)
		}
	})
	t.Run("a container that the store lists, with another revision, is replaced", func(t *testing.T) {
		b := newBench(t, claim(true))
		spec := b.spec("old-3", containerBody(b.image))
		made := b.made(spec.ID, "rev-0")
		b.ensure(spec)
		if o := b.awaitState(spec.ID, driver.Running); o.RuntimeID == made || !o.Owned || o.Name != string(spec.ID) {
			t.Errorf("List returned %+v; want a new container of ours", o)
		}
	})
	t.Run("the content recorded in the store takes precedence over the revision label", func(t *testing.T) {
		noted := ""
		b := newBench(t, claim(true), func(o *docker.Options) {
			o.Content = func(driver.ID, string) (string, bool) { return noted, true }
		})
		spec := b.spec("old-4", containerBody(b.image))
		made := b.made(spec.ID, "rev-0")
		noted = spec.Content
		b.ensure(spec)
		if o := b.observed(spec.ID); o.RuntimeID != made {
			t.Errorf("the container was created again as %s, but the store has recorded its content", o.RuntimeID)
		}
		spec.Content += "-2"
		b.ensure(spec)
		if o := b.observed(spec.ID); o.RuntimeID == made {
			t.Error("new content did not replace the container")
		}
	})
}

func TestAWorkloadIDOfOneLetterWorks(t *testing.T) {
	b := newBench(t)
	spec := b.spec("x", containerBody(b.image))
	spec.ID = "x"
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := b.d.Remove(ctx, "x"); err != nil {
			t.Error(err)
		}
	})
	b.ensure(spec)
	if o := b.awaitState("x", driver.Running); o.Name != "x--node-a" {
		t.Errorf("name %q", o.Name)
	}
}

func TestManyContainersStartAtTheSameTime(t *testing.T) {
	b := newBench(t)
	const count, parallel = 16, 8
	specs := make([]driver.Spec, count)
	for i := range specs {
		specs[i] = b.spec("many-"+strconv.Itoa(i), containerBody(b.image))
	}
	start := time.Now()
	group, ctx := errgroup.WithContext(b.ctx)
	group.SetLimit(parallel)
	for _, spec := range specs {
		group.Go(func() error { return b.d.Ensure(ctx, spec) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("starting %d containers, %d at a time, took %s", count, parallel, time.Since(start))
	all, err := b.d.List(b.ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, spec := range specs {
		i := slices.IndexFunc(all, func(o driver.Observed) bool { return o.ID == spec.ID })
		if i < 0 || all[i].State != driver.Running {
			t.Errorf("the workload %s does not run", spec.ID)
		}
	}
	remove, ctx := errgroup.WithContext(b.ctx)
	remove.SetLimit(parallel)
	for _, spec := range specs {
		remove.Go(func() error { return b.d.Remove(ctx, spec.ID) })
	}
	if err := remove.Wait(); err != nil {
		t.Fatal(err)
	}
}

// If the caller cancels an Ensure while the engine creates the container, and then calls Remove,
// the engine does not list the container later.
func TestRemoveAfterCancelledCreation(t *testing.T) {
	b := newBench(t)
	spec := b.spec("ghost", containerBody(b.image))
	for _, after := range []time.Duration{2, 5, 10, 20} {
		ctx, cancel := context.WithTimeout(b.ctx, after*time.Millisecond)
		err := b.d.Ensure(ctx, spec)
		cancel()
		if err := b.d.Remove(b.ctx, spec.ID); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); {
			if o := b.observed(spec.ID); o.State != driver.Absent {
				t.Fatalf("Ensure was cancelled after %d ms (%v) and followed by Remove, but then the engine listed the container in state %s", after, err, o.State)
			}
		}
	}
}

// The engine removes a new container again if the caller that created it disconnects. If a container
// disappears between the list and its start, the driver creates it again.
func TestContainerRolledBackBeforeItsStart(t *testing.T) {
	b := newBench(t)
	host, taken := mobytest.TakeBackFirst(t, b.cli)
	d := b.driver(t, "node-a", func(o *docker.Options) { o.Host = host })
	spec := b.spec("taken", containerBody(b.image))
	if err := d.Ensure(b.ctx, spec); err != nil {
		t.Fatal(err)
	}
	if o := b.awaitState(spec.ID, driver.Running); o.RuntimeID == taken() {
		t.Errorf("the workload runs in container %s, which the engine had removed", taken())
	}
	if taken() == "" {
		t.Error("the proxy saw no start of a container, so the test did not cover the rollback")
	}
}

// TestLabelsOfAnImageGiveNoOwnership: a container has the labels that the agent gives it, also if its image has other
// values for them.
func TestLabelsOfAnImageGiveNoOwnership(t *testing.T) {
	b := newBench(t)
	ref := "persys/forged-" + b.run + ":1"
	keys := []string{"own", driver.LabelWorkload, driver.LabelNamespace, driver.LabelJob, driver.LabelDevices, driver.LabelRestart, driver.LabelAwaited,
		"com.docker.compose.project", "com.docker.compose.service", "com.docker.compose.container-number", "com.docker.compose.oneoff"}
	mobytest.Forge(t, b.cli, b.probe, ref, keys...)
	spec := b.spec("forged", containerBody(ref, "serve"))
	b.ensure(spec)
	labels := b.inspect(b.observed(spec.ID).RuntimeID).Config.Labels
	for _, key := range keys {
		if (labels[key] == "forged") != (key == "own") {
			t.Errorf("the container has the label %s=%q of its image, want the value of the agent", key, labels[key])
		}
	}
}
