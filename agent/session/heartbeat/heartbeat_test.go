package heartbeat

import (
	"testing"
	"time"

	"github.com/persys/compute/agent/core"
)

var (
	sent   = time.Unix(1000, 0)
	first  = core.Epoch{ClusterID: "c", Incarnation: 1, Term: 4}
	second = core.Epoch{ClusterID: "c", Incarnation: 1, Term: 5}
)

func registered() State {
	return New().Accepted(Answer{Sent: sent, Epoch: first, Lease: 9 * time.Second, Interval: 3 * time.Second})
}

func TestLeases(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer Answer
		until  time.Duration // after the time at which the heartbeat was sent, which is 6 s after the registration
		length time.Duration
	}{
		{"a lease counts from the time at which the heartbeat was sent", Answer{Epoch: first, Lease: 12 * time.Second}, 12 * time.Second, 12 * time.Second},
		{"an answer without a lease keeps the end of the last lease", Answer{Epoch: first}, 3 * time.Second, 9 * time.Second},
		{"a legacy v1 scheduler sends the end of the lease", Answer{LeaseEnd: sent.Add(26 * time.Second)}, 20 * time.Second, 20 * time.Second},
		{"an end of the lease in the past is ignored", Answer{LeaseEnd: sent.Add(-time.Second)}, 9 * time.Second, 9 * time.Second},
		{"a legacy v1 scheduler sends no lease", Answer{}, 9 * time.Second, 9 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.answer.Sent = sent.Add(6 * time.Second)
			s, b := registered().Beat()
			s = s.Acknowledged(b, 1, c.answer)
			if want := c.answer.Sent.Add(c.until); !s.LeaseUntil.Equal(want) || s.Lease != c.length {
				t.Errorf("the lease has the length %s and ends at %s, want the length %s and the end %s", s.Lease, s.LeaseUntil, c.length, want)
			}
			if at := s.LeaseUntil; s.Expire(at).Registered || !s.Expire(at.Add(-1)).Registered {
				t.Error("the agent must register again when its lease has ended, and not before")
			}
		})
	}
}

func TestFullHeartbeats(t *testing.T) {
	ok := Answer{Sent: sent, Epoch: first}
	s := registered()
	full := func(a Answer) bool {
		var b Beat
		s, b = s.Beat()
		s = s.Acknowledged(b, 1, a)
		return b.Full
	}
	if !full(ok) {
		t.Error("the first heartbeat after a registration must have all reports")
	}
	for i := range FullEvery {
		if full(ok) {
			t.Errorf("heartbeat number %d after a heartbeat with all reports has all reports too, want only changed reports", i+1)
		}
	}
	if !full(ok) || full(ok) {
		t.Errorf("after %d heartbeats with changed reports, the next heartbeat must have all reports", FullEvery)
	}
	full(Answer{Sent: sent, Epoch: first, SendFull: true})
	if !full(Answer{Sent: sent, Epoch: second}) {
		t.Error("the heartbeat after an answer with SendFull must have all reports")
	}
	if !full(Answer{Sent: sent, Epoch: second}) {
		t.Error("the heartbeat after a change of the leader must have all reports")
	}
	full(Answer{Sent: sent})
	for i := range 2 {
		if !full(Answer{Sent: sent}) {
			t.Errorf("heartbeat %d to a legacy v1 scheduler must have all reports", i+1)
		}
	}
}

// A new leader has no reports, so the agent does not wait for the interval before it sends them.
func TestReportsThatTheSchedulerLacksAreDue(t *testing.T) {
	for _, c := range []struct {
		name    string
		answer  Answer
		version uint64
		want    bool
	}{
		{"nothing changed", Answer{Epoch: first}, 5, false},
		{"a report changed", Answer{Epoch: first}, 6, true},
		{"the leader asks for all reports", Answer{Epoch: first, SendFull: true}, 5, true},
		{"the leader changed", Answer{Epoch: second}, 5, true},
	} {
		s, b := registered().Beat()
		c.answer.Sent = sent
		if got := s.Acknowledged(b, 5, c.answer).Due(c.version); got != c.want {
			t.Errorf("%s: a heartbeat is due before the interval has passed: %t, want %t", c.name, got, c.want)
		}
	}
}

func TestSequencesBeginAnewWithEachRegistration(t *testing.T) {
	s, _ := registered().Beat()
	if _, b := s.Beat(); b.Sequence != 2 {
		t.Errorf("the second heartbeat has sequence %d, want 2", b.Sequence)
	}
	if _, b := s.Accepted(Answer{Sent: sent, Epoch: first}).Beat(); b.Sequence != 1 {
		t.Errorf("the first heartbeat after a registration has sequence %d, want 1", b.Sequence)
	}
}

func TestWaitBetweenCalls(t *testing.T) {
	least := func(time.Duration) time.Duration { return 0 }
	most := func(d time.Duration) time.Duration { return d }
	s := registered()
	if got := []time.Duration{s.Wait(most), s.Wait(least)}; got[0] != 2700*time.Millisecond || got[1] != 3*time.Second {
		t.Errorf("between two heartbeats the agent waits %s to %s, want 2.7 s to the interval of 3 s", got[0], got[1])
	}
	for _, want := range []time.Duration{50, 100, 200, 400, 800, 1600, 2000, 2000} {
		s = s.Failed(false)
		if got := s.Wait(most); got != want*time.Millisecond || s.Wait(least) != got/2 {
			t.Errorf("after a failure the agent waits between %s and %s, want %dms and half of it", s.Wait(least), got, want)
		}
	}
	if !s.Failing() || !s.Registered || s.Failed(true).Registered {
		t.Error("an agent must register again only if the schedulers do not know its node")
	}
	s, b := s.Beat()
	if s = s.Acknowledged(b, 7, Answer{Sent: sent, Epoch: first}); s.Failing() || s.Acked != 7 {
		t.Errorf("after an acknowledged heartbeat the session state is %+v, want no failures and the acknowledged version 7", s)
	}
}

func TestTimeLimitOfACall(t *testing.T) {
	for lease, want := range map[time.Duration]time.Duration{time.Second: time.Second, 9 * time.Second: 3 * time.Second, time.Hour: 5 * time.Second} {
		if got := (State{Lease: lease}).Deadline(); got != want {
			t.Errorf("with a lease of %s a call may take %s, want %s", lease, got, want)
		}
	}
}
