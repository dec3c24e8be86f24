package health

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"

	agentv1 "github.com/persys/compute/api/agent/v1"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/sim"
	"github.com/persys/compute/testbed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type rig struct {
	*Checker
	t    *testing.T
	news atomic.Int32
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t}
	ctx, cancel := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	r.Checker = New(ctx, func(f func()) { tasks.Go(f) }, func(driver.ID) { r.news.Add(1) })
	t.Cleanup(func() { cancel(); tasks.Wait() })
	return r
}

// becomes waits until the health check of a workload is in the state want, and returns the text with the
// reason.
func (r *rig) becomes(id driver.ID, want string) string {
	r.t.Helper()
	var detail string
	testbed.Within(r.t, testbed.Patience, "health", func() (err error) {
		var state string
		if state, detail = r.State(id); state != want {
			err = fmt.Errorf("the health of workload %s is %q (%s), want %q", id, state, detail, want)
		}
		return err
	})
	return detail
}

func split(t *testing.T, addr string) (string, int32) {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return host, int32(n)
}

func TestHTTPChecksReportHealth(t *testing.T) {
	var broken atomic.Bool
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/ready" || broken.Load() {
			http.Error(w, "no", http.StatusServiceUnavailable)
		}
	}))
	defer srv.Close()
	host, port := split(t, srv.Listener.Addr().String())
	r := newRig(t)
	target := Target{ID: "web", Instance: "1", Started: time.Now(), Addresses: []string{host},
		Check: &agentv1.HealthCheck{Http: "/ready", Port: port, IntervalSeconds: 1, Retries: 2}}
	r.Watch(target)
	r.becomes("web", Healthy)
	broken.Store(true)
	if detail := r.becomes("web", Unhealthy); !strings.Contains(detail, "503") {
		t.Errorf("the HTTP health check failed with the reason %q, want one that names HTTP status 503", detail)
	}
	broken.Store(false)
	r.becomes("web", Healthy)
	if n := r.news.Load(); n != 3 {
		t.Errorf("the checker called changed %d times, want once for each change of the workload's health", n)
	}
	// A new instance starts without a result: results of earlier instances are dropped.
	broken.Store(true)
	target.Instance = "2"
	r.Watch(target)
	if state, _ := r.State("web"); state != Starting {
		t.Errorf("the health check of a new instance has the state %q of the old instance, want starting", state)
	}
	r.becomes("web", Unhealthy)
	r.Drop("web")
	if state, _ := r.State("web"); state != "" {
		t.Errorf("after Drop the health check of the workload has state %q, want none", state)
	}
}

func TestTCPOverAForwardedPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port := split(t, l.Addr().String())
	r := newRig(t)
	r.Watch(Target{ID: "db", Instance: "1", Ports: []driver.Port{{HostPort: int(port), Port: 5432, Protocol: "tcp"}},
		Check: &agentv1.HealthCheck{Tcp: true, Port: 5432, IntervalSeconds: 1, Retries: 1}})
	r.becomes("db", Healthy)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if detail := r.becomes("db", Unhealthy); !strings.Contains(detail, "refused") {
		t.Errorf("the TCP health check failed with the reason %q, want a refused connection", detail)
	}
	r.Watch(Target{ID: "lost", Instance: "1", Check: &agentv1.HealthCheck{Tcp: true, Port: 1, Retries: 1}})
	if detail := r.becomes("lost", Unhealthy); !strings.Contains(detail, "no address") {
		t.Errorf("the health check of a workload without addresses and ports failed with the reason %q, want one about the missing address", detail)
	}
}

// A workload has two addresses. The first address does not answer, for example because it is in a network
// that this machine cannot reach. The health check still succeeds within its time limit, because the second
// address answers.
func TestASilentAddressLeavesTimeForTheOthers(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.2:0") // this listener accepts connections and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	_, port := split(t, silent.Addr().String())
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	srv.Listener.Close()
	srv.Listener = l
	srv.Start()
	defer srv.Close()
	r := newRig(t)
	r.Watch(Target{ID: "web", Instance: "1", Addresses: []string{"127.0.0.2", "127.0.0.1"},
		Check: &agentv1.HealthCheck{Http: "/", Port: port, TimeoutSeconds: 1, Retries: 1}})
	r.becomes("web", Healthy)
}

func TestFailuresInTheStartPeriodDoNotCount(t *testing.T) {
	r := newRig(t)
	target := Target{ID: "slow", Instance: "1", Started: time.Now(), Check: &agentv1.HealthCheck{Tcp: true, Port: 1, IntervalSeconds: 1, Retries: 1, StartPeriodSeconds: 3600}}
	r.Watch(target)
	target.ID, target.Started = "old", time.Now().Add(-2*time.Hour)
	r.Watch(target)
	r.becomes("old", Unhealthy)
	if state, _ := r.State("slow"); state != Starting {
		t.Errorf("a health check that fails in the start period of the workload has state %q, want starting", state)
	}
}

func TestCommandChecksReportHealth(t *testing.T) {
	engine, err := sim.NewEngine(sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	d := engine.Driver(driver.Identity{ClusterID: "c", NodeID: "n"})
	err = d.Ensure(t.Context(), driver.Spec{ID: "app", Content: "c1:x", ClusterID: "c", NodeID: "n", Running: true,
		Body: &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Container{Container: &agentv1.ContainerSpec{Image: "app"}}}})
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t)
	for i, c := range []struct {
		command []string
		state   string
		says    string
	}{
		{[]string{"true"}, Healthy, ""},
		{[]string{"sh", "-c", "err not; exit 3"}, Unhealthy, "code 3: not"},
		{[]string{"sleep", "600"}, Unhealthy, "too long"},
		{[]string{"sh", "-c", "err " + strings.Repeat("ä", maxDetail) + "; exit 3"}, Unhealthy, "ää"},  // maxDetail cuts the reason between two letters
		{[]string{"sh", "-c", "err a" + strings.Repeat("ä", maxDetail) + "; exit 3"}, Unhealthy, "aä"}, // maxDetail cuts the reason within a letter of two bytes
		{[]string{"sh", "-c", "err gr\xf6\xdfer; exit 3"}, Unhealthy, "code 3: gr"},                    // the output of the command is not UTF-8
	} {
		r.Watch(Target{ID: "app", Instance: fmt.Sprint(i), Execer: d, Check: &agentv1.HealthCheck{Command: c.command, Retries: 1, TimeoutSeconds: 1}})
		if detail := r.becomes("app", c.state); !strings.Contains(detail, c.says) || len(detail) > maxDetail || !utf8.ValidString(detail) {
			t.Errorf("the command %v gives the reason %q, want valid UTF-8 with %q", c.command, detail, c.says)
		}
	}
}

// mute is an Execer whose commands never end.
type mute struct{ driver.Execer }

func (mute) Exec(ctx context.Context, _ driver.ID, _ driver.ExecOptions) (driver.Session, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// Checks that hang do not keep other checks from running.
func TestHangingChecksDoNotBlockOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		for i := range 3 * atOnce {
			r.Watch(Target{ID: driver.ID(fmt.Sprint("mute-", i)), Execer: mute{}, Check: &agentv1.HealthCheck{Command: []string{"x"}, TimeoutSeconds: 600}})
		}
		synctest.Wait()
		r.Watch(Target{ID: "other", Check: &agentv1.HealthCheck{Command: []string{"x"}, Retries: 1}}) // this check fails at once
		time.Sleep(4 * hold)
		if state, detail := r.State("other"); state != Unhealthy {
			t.Errorf("while other checks hang, a check that fails at once has state %q with reason %q, want unhealthy", state, detail)
		}
	})
}
