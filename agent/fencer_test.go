package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "github.com/persys/compute/api/agent/v1"
	controlv1 "github.com/persys/compute/api/control/v1"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/fencer"
	"github.com/persys/compute/agent/fencer/lease"
)

func stops(r *agentv1.ApplyWorkloadRequest) { r.Exclusive, r.OnLostLease = true, "stop" }

// scripted is a fake fencer that stops no workloads and gives the answers that a test has set.
type scripted struct {
	mu      sync.Mutex
	st      lease.Status
	err     error
	heard   []lease.Renewal
	confirm uint64
}

func (g *scripted) Renew(_ context.Context, in lease.Renewal) (lease.Status, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return lease.Status{}, g.err
	}
	g.heard = append(g.heard, in)
	if !in.Ask && in.Lapses >= g.st.Lapses {
		g.confirm = in.Lapses
		g.st.Lapsed, g.st.Deadline, g.st.Leased = false, max(g.st.Deadline, in.Deadline), in.Leased
	}
	return g.st, nil
}

func (g *scripted) Close() {}

func (g *scripted) set(fn func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	fn()
}

func (g *scripted) lapse() {
	g.set(func() { g.st.Lapses++; g.st.Lapsed, g.st.Deadline, g.st.Leased = true, fencer.Now(), nil })
}

func (g *scripted) covers(id string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.ContainsFunc(g.st.Leased, func(w lease.Workload) bool { return string(w.ID) == id })
}

func leasedRig(t *testing.T) (*rig, *scripted) {
	g := &scripted{st: lease.Status{Grace: 10 * time.Second, Second: true}}
	c := leader() // this leader grants no lease
	c.onRegister = func(*controlv1.RegisterNodeRequest) (*controlv1.RegisterNodeResponse, error) {
		return &controlv1.RegisterNodeResponse{Accepted: true, HeartbeatIntervalSeconds: 3, ClusterId: "c1", Epoch: controlEpoch("c1", 1)}, nil
	}
	c.onBeat = func(*controlv1.HeartbeatRequest) (*controlv1.HeartbeatResponse, error) {
		out := beatOK(1)
		out.LeaseSeconds = 0
		return out, nil
	}
	r := newRig(t, under(c), func(c *Config) {
		c.Fencer = g
		c.RetryBase = 20 * time.Millisecond
	})
	return r, g
}

func TestALeasedOrderNeedsALeaseAndAFencer(t *testing.T) {
	r, g := leasedRig(t)
	r.start()
	order := func() error {
		_, err := r.a.API().ApplyWorkload(t.Context(), &agentv1.ApplyWorkloadRequest{
			Id: "db", RevisionId: "r1", Spec: container("sim/run"), Exclusive: true, OnLostLease: "stop", Content: "c1:a",
			Epoch: &agentv1.Epoch{ClusterId: "c1", Incarnation: 1, Term: 7}, Generation: &agentv1.Generation{Incarnation: 1, Sequence: 5},
		})
		return err
	}
	if err := order(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "no lease") {
		t.Errorf("a leased order on a node without a lease was answered %v; want the code Unavailable with the text \"no lease\"", err)
	}
	g.set(func() { g.err = errors.New("away") }) // the fencer fails before the lease is granted, because after that it may confirm at once
	r.leased(fencer.Now() + time.Minute)
	if err := order(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "away") {
		t.Errorf("the node has a lease, but its fencer does not answer: the order was answered with %v, want Unavailable", err)
	}
	if r.observed("db") != nil {
		t.Error("the workload was started without a fencer")
	}
	g.set(func() { g.err = nil })
	if err := order(); err != nil {
		t.Fatal(err)
	}
	r.reaches("db", running)
	if !g.covers("db") {
		t.Error("the workload runs, but the fencer does not have it in its list")
	}
	caps := r.a.session.Registration().Capabilities
	if !caps.SelfFencing || caps.FenceBoundSeconds != 15 {
		t.Errorf("the node is registered with self_fencing %v and a fence bound of %d s; want true and 15 s", caps.SelfFencing, caps.FenceBoundSeconds)
	}
}

// The settings of a fencer leave out containers, so it cannot stop a container. So the agent refuses orders for
// containers with on_lost_lease: stop, and registers that the node is not self-fencing.
func TestAFencerThatCannotStopAKind(t *testing.T) {
	r, g := leasedRig(t)
	g.st.Stops = []driver.Kind{driver.VM}
	r.start()
	r.leased(fencer.Now() + time.Minute)
	fencing := func() bool { return r.a.session.Registration().Capabilities.SelfFencing }
	r.until(func() bool { g.mu.Lock(); defer g.mu.Unlock(); return len(g.heard) > 2 }, func() string { return "the agent sent no message to the fencer" })
	if out := r.apply("db", "sim/run", stops, content("c1:a"), by(7), at(5)); out.Applied || !strings.Contains(out.Message, "container") {
		t.Errorf("the order was answered %v; want a refusal that names the kind that the fencer cannot stop", out)
	}
	if fencing() {
		t.Error("the node is registered as self_fencing, although its fencer cannot stop containers")
	}
	r.apply("web", "sim/run", content("c1:a"), by(7), at(5))
	r.reaches("web", running)
	g.set(func() { g.st.Stops = append(g.st.Stops, driver.Container) })
	r.until(fencing, func() string {
		return "the fencer can stop containers now, but the node is not registered as self_fencing"
	})
	r.apply("db", "sim/run", stops, content("c1:a"), by(7), at(6))
	r.reaches("db", running)
}

// lapsed is the message in the agent's report about a workload that was stopped at the end of the lease.
const lapsed = "exclusive: stopped when the node's lease ended; waits for the scheduler's next order"

func TestAfterALapseOnlyANewerOrderStarts(t *testing.T) {
	r, g := leasedRig(t)
	r.start()
	r.leased(fencer.Now() + time.Minute)
	r.apply("db", "sim/run", stops, content("c1:a"), by(7), at(5))
	r.apply("web", "sim/run", content("c1:a"), by(7), at(5))
	r.reaches("db", running)
	r.reaches("web", running)
	g.lapse()
	if st := r.reaches("db", halted); st.Message != lapsed {
		t.Errorf("the status message of the workload is %q, want %q", st.Message, lapsed)
	}
	r.until(func() bool { g.mu.Lock(); defer g.mu.Unlock(); return g.confirm == 1 }, func() string { return "the agent never confirms to the fencer that it has seen the end of the lease" })
	r.reaches("web", running)
	r.leased(fencer.Now() + time.Minute)
	before := r.hooks.count("ensure db")
	if out := r.apply("db", "sim/run", stops, content("c1:a"), by(7), at(5)); !out.Applied {
		t.Errorf("after the end of the lease the repeated order was refused: %v", out)
	}
	r.a.runner.Sweep()
	r.until(func() bool { return r.a.runner.State().Depth() == 0 }, func() string { return "the work queue of the agent never becomes empty" })
	if n := r.hooks.count("ensure db"); n != before {
		t.Errorf("the repetition of an order from before the end of the lease started the workload %d times, want 0", n-before)
	}
	r.apply("db", "sim/run", stops, content("c1:a"), by(7), at(6))
	r.reaches("db", running)
	if !g.covers("db") {
		t.Error("the workload runs, but the fencer does not have it in its list")
	}
}

func TestTheAgentStopsLeasedWorkloadsIfTheFencerDoesNotAnswer(t *testing.T) {
	r, g := leasedRig(t)
	r.start()
	r.leased(fencer.Now() + time.Second)
	r.apply("db", "sim/run", stops, content("c1:a"), by(7), at(5))
	r.reaches("db", running)
	g.set(func() { g.err = errors.New("away") })
	r.leased(fencer.Now() + time.Hour) // a heartbeat extends the lease, but the fencer does not confirm it
	r.reaches("db", halted)
}

func TestAfterARestartTheFencerDecides(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*scripted)
		want   agentv1.ActualState
	}{
		{"the workload keeps running if the fencer says that the lease has not ended", func(*scripted) {}, running},
		{"the workload is stopped if the fencer says that the lease has lapsed", (*scripted).lapse, halted},
		{"the workload is stopped if the fencer does not have it in its list", func(g *scripted) { g.set(func() { g.st.Leased = nil }) }, halted},
		{"the workload is stopped if the fencer does not answer", func(g *scripted) { g.set(func() { g.err = errors.New("away") }) }, halted},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, g := leasedRig(t)
			r.start()
			r.leased(fencer.Now() + time.Minute)
			r.apply("db", "sim/run", stops, content("c1:a"), by(7), at(5))
			r.reaches("db", running)
			r.halt()
			c.change(g)
			r.start()
			r.reaches("db", c.want)
			if c.want == running {
				r.a.runner.Sweep()
				r.until(func() bool { return g.covers("db") }, func() string { return "the workload runs, but the fencer does not have it in its list" })
				r.reaches("db", running)
			}
		})
	}
}
