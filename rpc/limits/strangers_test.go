package limits

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/persys/compute/hosts"
	"github.com/persys/compute/testbed"
)

// room is a listener that keeps all accepted connections open.
type room struct {
	t       *testing.T
	addr    string
	mu      sync.Mutex
	in      []*conn
	arrived chan struct{}
	refused map[string]int
}

func newRoom(t *testing.T, l Limits) *room {
	t.Helper()
	lis, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	r := &room{t: t, addr: "127.0.0.1:" + port, arrived: make(chan struct{}, 64), refused: map[string]int{}}
	bounded := Listen(lis, l, func(reason string) { r.mu.Lock(); r.refused[reason]++; r.mu.Unlock() })
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := bounded.Accept()
			if err != nil {
				return
			}
			r.mu.Lock()
			r.in = append(r.in, c.(*conn))
			r.mu.Unlock()
			r.arrived <- struct{}{}
		}
	}()
	t.Cleanup(func() {
		_ = lis.Close()
		<-done
		for _, c := range r.in {
			_ = c.Close()
		}
	})
	return r
}

// enters connects from the given local address, and waits until the connection is accepted.
func (r *room) enters(from string) net.Conn {
	r.t.Helper()
	c := dialFrom(r.t, from, r.addr)
	select {
	case <-r.arrived:
	case <-time.After(10 * time.Second):
		r.t.Fatalf("the connection from %s is not accepted", from)
	}
	return c
}

func (r *room) last() *conn {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.in[len(r.in)-1]
}

func TestStrangersHaveFewPlaces(t *testing.T) {
	r := newRoom(t, Limits{Connections: 100, Strangers: 3, StrangersPerNetwork: 2, StrangerLife: time.Hour})
	first := r.enters("127.0.0.2")
	r.enters("127.0.0.3")
	if c := dialFrom(t, "127.0.0.4", r.addr); !closedWithin(t, c, 10*time.Second) {
		t.Error("the third connection without a client certificate from one network is still open, want it closed")
	}
	r.enters("127.0.1.2")
	r.enters("127.0.1.3")
	if !closedWithin(t, first, 10*time.Second) {
		t.Error("the oldest connection without a client certificate is still open, want it closed")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.refused[ReasonStrangers]; n != 2 {
		t.Errorf("%d refusals of connections without a client certificate were counted, want 2", n)
	}
}

func TestAHostWithACertificateIsNoStranger(t *testing.T) {
	r := newRoom(t, Limits{Connections: 100, Strangers: 3, StrangersPerNetwork: 1, StrangerLife: time.Hour})
	r.enters("127.0.0.2")
	r.last().identified()
	for range 5 {
		r.enters("127.0.0.2")
	}
	r.enters("127.0.0.3")
	if c := dialFrom(t, "127.0.0.4", r.addr); !closedWithin(t, c, 10*time.Second) {
		t.Error("the second connection without a client certificate from one network is still open, want it closed")
	}
}

func TestAStrangerLeavesInTime(t *testing.T) {
	r := newRoom(t, Limits{Connections: 100, Strangers: 3, StrangersPerNetwork: 3, StrangerLife: 50 * time.Millisecond})
	if c := r.enters("127.0.0.2"); !closedWithin(t, c, 10*time.Second) {
		t.Error("a connection without a client certificate stays open beyond StrangerLife")
	}
	l := r.last().l
	testbed.Within(t, 10*time.Second, "a closed connection is no longer counted", func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.all != 0 || l.strangers.order.Len() != 0 || len(l.strangers.networks) != 0 {
			return fmt.Errorf("%d connections and %d strangers are still counted; strangers by network: %v", l.all, l.strangers.order.Len(), l.strangers.networks)
		}
		return nil
	})
}

func TestHostsThatShowedACertificateAreForgotten(t *testing.T) {
	s := newStrangers(Limits{Strangers: 1})
	now := time.Now()
	s.now = func() time.Time { return now }
	for i := range maxKnown {
		s.identify(&conn{host: string(rune(i + 1000))})
	}
	s.identify(&conn{host: "one more"})
	if s.known.Has("one more", now) || s.known.Len() != maxKnown {
		t.Errorf("%d hosts that showed a certificate are remembered, want maxKnown and not the host above this maximum", s.known.Len())
	}
	now = now.Add(hosts.KnownFor)
	s.identify(&conn{host: "one more"})
	if !s.known.Has("one more", now) || s.known.Len() != 1 {
		t.Errorf("%d hosts with a certificate are remembered after hosts.KnownFor, want only the host that has just shown a certificate", s.known.Len())
	}
}
