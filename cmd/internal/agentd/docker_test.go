package agentd

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/moby/client"

	"github.com/persys/compute/agent"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/compose/gitfetch"
	"github.com/persys/compute/agent/driver/moby/mobytest"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/child"
	"github.com/persys/compute/stack"
	"github.com/persys/compute/testbed"
)

// engine is the Docker engine of this machine, on which the image of the probe program (a small test server) was
// built.
type engine struct {
	*mobytest.Engine
	cli   *client.Client
	run   string
	image string
	probe v1.Image
}

var shared = mobytest.Shared{Name: "agentd"}

func TestMain(m *testing.M) {
	child.Serve(stack.Task, gitfetch.Task)
	shared.Main(m, nil)
}

// machine is a test fixture: one node without schedulers, with the agent's state file, the engine and, between start
// and stop, the agent.
type machine struct {
	*testing.T
	*engine
	cfg  Config
	node string
	a    *agent.Agent
	api  agentv1.AgentServiceServer
	stop func()
	log  testbed.Output
	gc   agent.GC
}

func newMachine(t *testing.T, change ...func(*Config)) *machine {
	t.Helper()
	e := shared.Open(t)
	m := &machine{T: t, engine: &engine{Engine: e, cli: e.Client, run: e.Run, image: e.Image, probe: e.Probe}, node: "n" + e.Run, gc: agent.GC{Settled: time.Millisecond}}
	m.cfg = Config{Standalone: true, Insecure: true, StatePath: filepath.Join(t.TempDir(), "state.db"), Docker: true, Compose: true, Reconcile: true, ReconcileInterval: time.Second, DockerConf: "none"}
	for _, fn := range change {
		fn(&m.cfg)
	}
	if err := m.cfg.complete(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if m.stop != nil {
			m.stop()
		}
		m.sweep()
		if t.Failed() {
			t.Logf("the agent's log:\n%s", m.log.String())
		}
	})
	return m
}

// sweep removes the containers and mounts that a failed test has left on the machine.
func (m *machine) sweep() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ours := make(client.Filters).Add("label", driver.LabelManaged+"=true")
	all, err := m.cli.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: ours})
	if err != nil {
		m.Error(err)
	}
	for _, c := range all.Items {
		if c.Labels[driver.LabelNode] == m.node || strings.HasPrefix(c.Labels[driver.LabelWorkload], m.id("")) {
			_, _ = m.cli.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		}
	}
	mounted, _ := filepath.Glob(filepath.Join(m.cfg.LocalRoot, "*"))
	for _, path := range mounted {
		_ = syscall.Unmount(path, syscall.MNT_DETACH)
	}
}

// id returns a workload id with a random part, because several test runs may use the engine at the same time.
func (m *machine) id(name string) string { return "t" + m.run + "-" + name }

func (m *machine) start() {
	m.Helper()
	log := slog.New(slog.NewJSONHandler(&m.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	a, err := agent.New(agent.Config{
		NodeID: m.node, StatePath: m.cfg.StatePath, Storage: m.cfg.storage(), Logger: log, ReconcileInterval: m.cfg.ReconcileInterval,
		GC: m.gc, RetryBase: 100 * time.Millisecond, RetryMax: time.Second,
	}, drivers(&m.cfg, false, log))
	if err != nil {
		m.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	m.a, m.api = a, a.API()
	m.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			m.Errorf("the agent ended with %v", err)
		}
	})
	testbed.Until(m, "the runtimes answer", func() bool {
		out, err := m.api.HealthCheck(m.Context(), &agentv1.HealthCheckRequest{})
		return err == nil && out.Healthy && len(out.RuntimeStatus) == 2
	})
}

func (m *machine) apply(name string, spec *agentv1.WorkloadSpec) {
	m.Helper()
	out, err := m.api.ApplyWorkload(m.Context(), &agentv1.ApplyWorkloadRequest{Id: m.id(name), Spec: spec, RevisionId: "rev-1"})
	if err != nil || !out.Applied {
		m.Fatalf("apply %s: %v %v", name, out, err)
	}
}

func (m *machine) status(name string) *agentv1.WorkloadStatus {
	out, err := m.api.GetWorkloadStatus(m.Context(), &agentv1.GetWorkloadStatusRequest{Id: m.id(name)})
	if err != nil {
		return nil
	}
	return out.Status
}

func (m *machine) running(name string) *agentv1.WorkloadStatus {
	m.Helper()
	var st *agentv1.WorkloadStatus
	testbed.Until(m, name+" runs", func() bool {
		st = m.status(name)
		return st.GetActualState() == agentv1.ActualState_ACTUAL_STATE_RUNNING && st.GetMetadata()["task_id"] == ""
	})
	return st
}

func (m *machine) delete(name string) {
	m.Helper()
	if _, err := m.api.DeleteWorkload(m.Context(), &agentv1.DeleteWorkloadRequest{Id: m.id(name)}); err != nil {
		m.Fatal(err)
	}
	testbed.Until(m, name+" is gone", func() bool { return m.status(name) == nil })
}

// containers returns the containers of a workload, which it finds by label.
func (m *machine) containers(name string) []string {
	m.Helper()
	all, err := m.cli.ContainerList(m.Context(), client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("label", driver.LabelWorkload+"="+m.id(name))})
	if err != nil {
		m.Fatal(err)
	}
	var out []string
	for _, c := range all.Items {
		out = append(out, c.ID)
	}
	return out
}

// ask sends a request to the probe program in a workload's container, and returns the answer. It repeats the request
// until the probe program has started.
func (m *machine) ask(name, path, file string) string {
	m.Helper()
	text := ""
	testbed.Until(m, "an answer of "+name, func() bool {
		ctx, cancel := context.WithTimeout(m.Context(), 5*time.Second)
		defer cancel()
		st := m.running(name)
		if len(st.Ports) == 0 {
			return false // the container runs, but was started only after the check before
		}
		at := fmt.Sprintf("http://127.0.0.1:%d%s?path=%s", st.Ports[0].HostPort, path, url.QueryEscape(file))
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
		if err != nil {
			m.Fatal(err)
		}
		req.Close = true
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		defer res.Body.Close()
		raw, err := io.ReadAll(res.Body)
		text = fmt.Sprintf("%d %s", res.StatusCode, raw)
		return err == nil
	})
	return text
}

func (m *machine) container(volumes ...*agentv1.ManagedVolumeSpec) *agentv1.WorkloadSpec {
	return &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Container{Container: &agentv1.ContainerSpec{
		Image: m.image, ManagedVolumes: volumes, Ports: []*agentv1.PortMapping{{ContainerPort: 8080}},
		RestartPolicy: &agentv1.RestartPolicy{Policy: "always"},
	}}}
}

// If the start of a container fails, the engine shows it in the state "created" with an error. The agent must start
// such a container again, whatever its restart policy is.
func TestAStartThatFailedIsTriedAgain(t *testing.T) {
	m := newMachine(t)
	m.start()
	spec := m.container()
	spec.GetContainer().RestartPolicy.Policy = "no"
	spec.GetContainer().Volumes = []*agentv1.VolumeMount{{HostPath: t.TempDir(), ContainerPath: "/proc/none"}} // this mount makes the engine refuse the start
	m.apply("web", spec)
	testbed.Until(m, "a third start", func() bool { return m.status("web").GetMetadata()["retry_attempts"] == "3" })
}
