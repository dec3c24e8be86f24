package coredns

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// fixture is a state in which events are recorded, and one CoreDNS server to watch.
type fixture struct {
	mu        sync.Mutex
	s         fsm.State
	index     uint64
	probeErr  error // result of every call of Probe
	recordErr error // result of every call of Record
	recorded  []string
}

func (w *fixture) do(t *testing.T, c fsm.Command) {
	t.Helper()
	w.index++
	info := w.s.Info()
	c.Head = &commandv1.Head{At: int64(w.index), By: "leader", Epoch: &commandv1.Epoch{Incarnation: info.Incarnation, Term: 1}}
	next, res, _ := w.s.Apply(fsm.Meta{Index: w.index, Term: 1}, c)
	if res.Kind != fsm.OK {
		t.Fatal(res.Reason)
	}
	w.s = next
}

func newFixture(t *testing.T) *fixture {
	w := &fixture{s: fsm.New()}
	w.do(t, &commandv1.Command{Body: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{ClusterId: "c1", Incarnation: 1}}})
	return w
}

func (w *fixture) watch(t *testing.T, log *slog.Logger) *Watch {
	return &Watch{
		Servers: []string{"10.0.0.9:53"},
		View:    func() fsm.View { w.mu.Lock(); defer w.mu.Unlock(); return w.s },
		Probe: func(context.Context, string) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.probeErr
		},
		Record: func(_ context.Context, eventType, server, reason string) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.recordErr != nil {
				return w.recordErr
			}
			w.do(t, &commandv1.Command{Body: &commandv1.Command_Audit{Audit: &commandv1.Audit{
				Type: eventType, Message: reason, Details: []*commandv1.Label{{Key: "server", Value: server}}}}})
			w.recorded = append(w.recorded, eventType+": "+reason)
			return nil
		},
		Log: log,
	}
}

// When a server stops or starts answering, one event and one log line are written, even if the leader changes. A single
// failed probe causes no event. An event that could not be committed is written later.
func TestChangesAreRecordedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		var logged bytes.Buffer
		log := slog.New(slog.NewTextHandler(&logged, nil))
		set := func(probeErr, recordErr error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.probeErr, w.recordErr = probeErr, recordErr
		}
		term := func(run func(*Watch)) {
			c := w.watch(t, log)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); c.Run(ctx) }()
			synctest.Wait()
			run(c)
			cancel()
			<-done
			c.Each(func(string, bool) { t.Error("Each must list no server after the end of the leadership term, but does") })
		}
		up := func(c *Watch) (out []bool) {
			c.Each(func(_ string, ok bool) { out = append(out, ok) })
			return out
		}
		probes := func(n int) {
			time.Sleep(time.Duration(n)*probeInterval + time.Millisecond)
			synctest.Wait()
		}
		expect := func(want ...string) {
			t.Helper()
			w.mu.Lock()
			defer w.mu.Unlock()
			if lines := strings.Count(logged.String(), "\n"); !slices.Equal(w.recorded, want) || lines != len(want) {
				t.Errorf("the watch recorded the events %q and logged %d lines, want the events %q and as many lines", w.recorded, lines, want)
			}
		}
		noAnswer := errors.New("it does not answer")
		lost, back := "CoreDNSLost: it does not answer", "CoreDNSBack: it answers again"
		term(func(c *Watch) {
			if got := up(c); !slices.Equal(got, []bool{true}) {
				t.Errorf("at the start Each reports the servers as up: %v, want true for the one server", got)
			}
			set(noAnswer, nil)
			probes(1)
			expect() // one lost packet must not count as a change
			set(nil, nil)
			probes(1)
			set(noAnswer, nil)
			probes(5)
			expect(lost)
			if got := up(c); !slices.Equal(got, []bool{false}) {
				t.Errorf("while the server does not answer, Each reports the servers as up: %v, want false for the one server", got)
			}
		})
		term(func(*Watch) { // a second leadership term begins, as with another leader
			probes(5)
			expect(lost)
			set(nil, errors.New("no quorum"))
			probes(3)
			expect(lost)
			set(nil, nil)
			probes(2)
			expect(lost, back)
		})
	})
}

func TestServerAddressesAreParsed(t *testing.T) {
	got, err := ParseServers([]string{" ns1.example.com", "10.0.0.9:5353", "fd00::9", "", "[fd00::a]:53"})
	if want := []string{"ns1.example.com:53", "10.0.0.9:5353", "[fd00::9]:53", "[fd00::a]:53"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("ParseServers returned %q and error %v, want %q", got, err, want)
	}
	for _, bad := range []string{"a:b", "a:0", ":53", "a:b:c"} {
		if _, err := ParseServers([]string{bad}); err == nil || !strings.Contains(err.Error(), "SCHEDULER_COREDNS_ADDR") || !strings.Contains(err.Error(), bad) {
			t.Errorf("ParseServers of %q returned %v, want an error that names the setting and the address", bad, err)
		}
	}
	if _, err := ParseServers(strings.Split("a,b,c,d,e,f,g,h,i", ",")); err == nil {
		t.Error("ParseServers must refuse nine servers, because at most 8 are allowed, but accepted them")
	}
}
