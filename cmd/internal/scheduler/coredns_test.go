package scheduler

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// watched is a state whose events a watch goes on from, and a server that can be
// away.
type watched struct {
	mu    sync.Mutex
	s     fsm.State
	index uint64
	away  error
	deaf  error // of tell
	told  []string
	asked int
}

func (w *watched) do(t *testing.T, c fsm.Command) {
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

func watchedState(t *testing.T) *watched {
	w := &watched{s: fsm.New()}
	w.do(t, &commandv1.Command{Body: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{ClusterId: "c1", Incarnation: 1}}})
	w.do(t, &commandv1.Command{Body: &commandv1.Command_PutReplica{PutReplica: &commandv1.PutReplica{Id: "r1", FeatureLevel: fsm.FeatureLevel}}})
	w.do(t, &commandv1.Command{Body: &commandv1.Command_SetFeatureLevel{SetFeatureLevel: &commandv1.SetFeatureLevel{Level: fsm.FeatureLevel}}})
	return w
}

func (w *watched) watch(t *testing.T, logged *[]string) *coreDNS {
	return &coreDNS{
		servers: []string{"10.0.0.9:53"},
		view:    func() fsm.View { w.mu.Lock(); defer w.mu.Unlock(); return w.s },
		probe: func(context.Context, string) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.asked++
			return w.away
		},
		tell: func(_ context.Context, kind, server, why string) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.deaf != nil {
				return w.deaf
			}
			w.do(t, &commandv1.Command{Body: &commandv1.Command_Audit{Audit: &commandv1.Audit{
				Type: kind, Message: why, Details: []*commandv1.Label{{Key: "server", Value: server}}}}})
			w.told = append(w.told, kind+": "+why)
			return nil
		},
		log: func(server string, err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			*logged = append(*logged, server)
		},
		unsaid: func(string, error) {},
	}
}

// Every change is told once, whoever leads; one lost packet is none; what could not
// be committed is told later.
func TestCoreDNSIsWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watchedState(t)
		var logged []string
		set := func(away error) {
			w.mu.Lock()
			w.away = away
			w.mu.Unlock()
		}
		stint := func(run func(*coreDNS)) {
			c := w.watch(t, &logged)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); c.run(ctx) }()
			synctest.Wait()
			run(c)
			cancel()
			<-done
			c.seen(func(string, bool) { t.Error("a server is seen by one who does not lead") })
		}
		up := func(c *coreDNS) (out []bool) {
			c.seen(func(_ string, ok bool) { out = append(out, ok) })
			return out
		}
		wait := func(n int) {
			time.Sleep(time.Duration(n)*probeCoreDNS + time.Millisecond)
			synctest.Wait()
		}
		said := func(want ...string) {
			t.Helper()
			w.mu.Lock()
			defer w.mu.Unlock()
			if !slices.Equal(w.told, want) || len(logged) != len(want) {
				t.Errorf("told %q, logged %d times, want %q", w.told, len(logged), want)
			}
		}
		lost, back := "CoreDNSLost: it does not answer", "CoreDNSBack: it answers again"
		stint(func(c *coreDNS) {
			if got := up(c); !slices.Equal(got, []bool{true}) {
				t.Errorf("it is seen as %v at first", got)
			}
			set(errors.New("it does not answer"))
			wait(1)
			said() // one packet may be lost
			set(nil)
			wait(1)
			set(errors.New("it does not answer"))
			wait(5)
			said(lost)
			if got := up(c); !slices.Equal(got, []bool{false}) {
				t.Errorf("it is seen as %v while it is away", got)
			}
		})
		stint(func(*coreDNS) { // another leader
			wait(5)
			said(lost)
			w.mu.Lock()
			w.deaf = errors.New("no quorum")
			w.mu.Unlock()
			set(nil)
			wait(3)
			said(lost)
			w.mu.Lock()
			w.deaf = nil
			w.mu.Unlock()
			wait(2)
			said(lost, back)
		})
	})
}

func TestCoreDNSSetting(t *testing.T) {
	c := Config{CoreDNS: []string{" ns1.example.com", "10.0.0.9:5353", "fd00::9", "", "[fd00::a]:53"}}
	if err := c.completeCoreDNS(); err != nil || !slices.Equal(c.CoreDNS, []string{"ns1.example.com:53", "10.0.0.9:5353", "[fd00::9]:53", "[fd00::a]:53"}) {
		t.Errorf("%q, %v", c.CoreDNS, err)
	}
	for _, bad := range []string{"a:b", "a:0", ":53", "a:b:c"} {
		c := Config{CoreDNS: []string{bad}}
		if err := c.completeCoreDNS(); err == nil || !strings.Contains(err.Error(), "SCHEDULER_COREDNS_ADDR") || !strings.Contains(err.Error(), bad) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if err := (&Config{CoreDNS: strings.Split("a,b,c,d,e,f,g,h,i", ",")}).completeCoreDNS(); err == nil {
		t.Error("nine servers are taken")
	}
}
