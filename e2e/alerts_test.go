package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/persys/compute/agent/driver/sim"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// prometheusServer is a Prometheus with the configuration and the rules of deploy/. It gets the list of
// programs to scrape from a gateway and scrapes them twice a second. Alerts have no waiting time: each
// fires as soon as its condition holds.
type prometheusServer struct {
	t    *testing.T
	addr string
}

var forClause = regexp.MustCompile(`(?m)^( +for: ).*$`)

func watched(t *testing.T, c *harness.Cluster) *prometheusServer {
	t.Helper()
	bin := testbed.Program(t, "prometheus")
	dir := t.TempDir()
	rules := got[[]byte](t)(os.ReadFile("../deploy/prometheus/persys.rules.yml"))
	must(t, os.WriteFile(filepath.Join(dir, "persys.rules.yml"), forClause.ReplaceAll(rules, []byte("${1}0s")), 0o600))
	var cfg map[string]any
	must(t, yaml.Unmarshal(got[[]byte](t)(os.ReadFile("../deploy/prometheus/prometheus.yml")), &cfg))
	cfg["global"] = map[string]any{"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"}
	gateway := gatewayOf(t, c)
	cfg["scrape_configs"] = slices.DeleteFunc(cfg["scrape_configs"].([]any), func(job any) bool {
		at, found := job.(map[string]any)["http_sd_configs"].([]any)
		if found {
			at[0] = map[string]any{"url": "http://" + gateway + "/v1/sd/prometheus", "refresh_interval": "500ms"}
		}
		return !found
	})
	file := filepath.Join(dir, "prometheus.yml")
	must(t, os.WriteFile(file, got[[]byte](t)(yaml.Marshal(cfg)), 0o600))
	w := &prometheusServer{t: t, addr: freeAddr(t)}
	p := &harness.Process{Name: "prometheus", Path: bin, Dir: dir, Env: os.Environ(), Log: filepath.Join(c.Dir, "prometheus.log"), Args: []string{
		"--config.file=" + file, "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=" + w.addr, "--log.level=warn",
	}}
	must(t, p.Start())
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("Prometheus has printed:\n%s", p.Tail(10))
		}
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	// Wait until Prometheus scrapes every program and the workload "well", and all of them are up.
	must(t, testbed.Poll(t.Context(), settle, "every program scraped", func(ctx context.Context) error {
		var out struct {
			Data struct {
				ActiveTargets []struct{ Health, LastError string }
			}
		}
		if err := w.ask(ctx, "targets", &out); err != nil {
			return err
		}
		up := 0
		for _, x := range out.Data.ActiveTargets {
			if x.Health == "up" {
				up++
			}
		}
		if up != len(c.Schedulers)+len(c.Agents)+1 {
			return fmt.Errorf("only %d targets are up: %+v", up, out.Data.ActiveTargets)
		}
		return nil
	}))
	return w
}

func (w *prometheusServer) ask(ctx context.Context, what string, out any) error {
	code, body, err := getText(ctx, "http://"+w.addr+"/api/v1/"+what)
	if err == nil && code != 200 {
		err = fmt.Errorf("Prometheus answered %d %s", code, body)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(body, out)
}

// firing returns the names of the alerts that fire now, without duplicates.
func (w *prometheusServer) firing(ctx context.Context) ([]string, error) {
	var out struct {
		Data struct {
			Alerts []struct {
				Labels map[string]string
				State  string
			}
		}
	}
	if err := w.ask(ctx, "alerts", &out); err != nil {
		return nil, err
	}
	var names []string
	for _, a := range out.Data.Alerts {
		// PersysNodeDiskFull depends on the disk of the test machine, so it may fire too.
		if name := a.Labels["alertname"]; a.State == "firing" && name != "PersysNodeDiskFull" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// fires waits until all alerts in want fire after the fault that the text after names. Other alerts may fire
// too.
func (w *prometheusServer) fires(after string, want ...string) {
	w.t.Helper()
	must(w.t, testbed.Poll(w.t.Context(), settle, strings.Join(want, ", ")+" after "+after, func(ctx context.Context) error {
		now, err := w.firing(ctx)
		for _, name := range want {
			if err == nil && !slices.Contains(now, name) {
				err = fmt.Errorf("alert %s is not among %v", name, now)
			}
		}
		return err
	}))
}

// TestAlertsFire: the most important alerts must fire for real faults of real programs. A rule that names a
// label which no program sets never fires. Only a test with real programs finds such a mistake:
// TestRulesByPromtool (cmd/persys) tests every rule with promtool, but on metrics that are written by hand.
func TestAlertsFire(t *testing.T) {
	etcd := etcdPart(t)
	c := start(t, harness.Options{
		Binaries: shipped(t), SchedulerEnv: mirrored(etcd, nil), AgentEnv: map[string]string{"PERSYS_RECONCILE_INTERVAL": "1s"},
	})
	for range 2 {
		got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true}))
	}
	// The simulated engine publishes no ports, so the test itself serves the metrics of the workload.
	metrics := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stats" {
			_, _ = io.WriteString(w, "well_requests_total 7\n")
		}
	}))
	t.Cleanup(metrics.Close)
	well := container("sim/run")
	well.Tags = map[string]string{"prometheus.io/path": "/stats"}
	well.GetContainer().Ports = []*controlv1.Port{{HostPort: int32(metrics.Listener.Addr().(*net.TCPAddr).Port), ContainerPort: 9090, Name: "metrics"}}
	apply(t, c, "well", well)
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "well", settle, running))
	waitMode(t, c, "normal")
	w := watched(t, c)
	var series struct {
		Data struct {
			Result []struct{ Metric map[string]string }
		}
	}
	must(t, w.ask(t.Context(), "query?query=well_requests_total", &series))
	if len(series.Data.Result) != 1 || series.Data.Result[0].Metric["workload"] != "well" || series.Data.Result[0].Metric["node"] == "" {
		t.Errorf("the series of the workload are %+v, want one with the labels workload and node", series.Data.Result)
	}
	must(t, testbed.Poll(t.Context(), settle, "no alert in a healthy cluster", func(ctx context.Context) error {
		now, err := w.firing(ctx)
		if err == nil && len(now) > 0 {
			err = fmt.Errorf("in a healthy cluster the alerts %v fire", now)
		}
		return err
	}))

	huge := container("sim/run")
	huge.Resources.CpuMillicores = 1_000_000
	apply(t, c, "huge", huge)
	apply(t, c, "broken", container("sim/missing"))
	w.fires("one workload that fits on no node and one that cannot run", "PersysWorkloadsPending", "PersysWorkloadsFailed")

	must(t, got[*sim.Engine](t)(sim.NewEngine(sim.Options{Dir: c.Agents[0].SimDir})).SetDown("by the test"))
	must(t, c.Agents[1].Kill())
	w.fires("the end of an engine and of an agent", "PersysRuntimeUnhealthy", "PersysAgentDown", "PersysNodesNotReady")

	must(t, etcd.Kill())
	w.fires("the end of etcd", "PersysModeNotNormal", "PersysMirrorFails")

	leader := got[int](t)(c.WaitLeader(t.Context(), electionLimit))
	rest := others(c, leader)
	must(t, rest[0].Kill())
	w.fires("the end of a replica", "PersysSchedulerDown", "PersysReplicaDead")
	must(t, rest[1].Kill())
	w.fires("the end of the majority", "PersysNoLeader")
}
