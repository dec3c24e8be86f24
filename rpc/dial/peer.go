package dial

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

const (
	minPenalty = 500 * time.Millisecond
	maxPenalty = 15 * time.Second
)

// peer is the address of one scheduler and the connection to it. The connection is made when it is first
// used, and replaced after a failure.
type peer struct {
	end   Endpoint
	owner *Conn

	mu      sync.Mutex
	cc      *grpc.ClientConn
	gen     int // number of times that the connection was replaced
	closed  bool
	retired bool      // true if the address is no longer used: the connection closes after its last call
	fails   int       // number of consecutive failures
	until   time.Time // end of the penalty: until then this peer is tried last
	unary   int       // number of unary calls in progress
	streams int
	heard   time.Time   // time of the last received message, while calls are in progress
	watch   *time.Timer // calls onSilence if the peer has sent nothing for too long
	probing bool
}

// lane represents one call that uses the connection to a peer. It records which connection that was, because the
// connection may be replaced meanwhile.
type lane struct {
	p   *peer
	cc  *grpc.ClientConn
	gen int
}

func (p *peer) begin(stream bool) (lane, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return lane{}, status.Error(codes.Canceled, "the connection to the schedulers is closed")
	}
	idle := p.unary+p.streams == 0
	if stream {
		p.streams++
	} else {
		p.unary++
	}
	// Only the first of several concurrent calls starts the timer of onSilence. If every call restarted the timer, it
	// would never fire during a steady flow of calls to a dead peer.
	if idle || !stream && p.unary == 1 {
		p.heard = time.Now()
		if p.watch == nil {
			p.watch = time.AfterFunc(p.patience(), p.onSilence)
		} else {
			p.watch.Reset(p.patience())
		}
	}
	return lane{p, p.cc, p.gen}, nil
}

// end must be called when a call no longer uses the connection. alive is true if the peer has answered the call.
func (l lane) end(stream, alive bool) {
	l.p.mu.Lock()
	if stream {
		l.p.streams--
	} else {
		l.p.unary--
	}
	if alive {
		l.p.heard = time.Now()
	}
	unused := l.p.unary+l.p.streams == 0
	if unused {
		l.p.watch.Stop()
	}
	done := unused && l.p.retired
	l.p.mu.Unlock()
	if done {
		l.p.close()
	}
}

// cut reports whether the connection was replaced during this call.
func (l lane) cut() bool {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	return l.gen != l.p.gen
}

func (p *peer) touch() {
	p.mu.Lock()
	p.heard = time.Now()
	p.mu.Unlock()
}

// patience returns how long calls may receive no message before the peer is probed. It is longer if there are
// only streams, because streams are often silent.
func (p *peer) patience() time.Duration {
	if p.unary > 0 {
		return p.owner.opt.StallAfter
	}
	return 3 * p.owner.opt.StallAfter
}

// onSilence is called when calls have received no message for the time that patience returns. It
// probes the peer, to detect a peer that hangs (stopped, paused, cut off) while its TCP connection
// stays open. gRPC's keepalive would take at least 13 s.
func (p *peer) onSilence() {
	p.mu.Lock()
	if p.closed || p.unary+p.streams == 0 {
		p.mu.Unlock()
		return
	}
	if left := p.patience() - time.Since(p.heard); left > 0 {
		p.watch.Reset(left)
		p.mu.Unlock()
		return
	}
	l := lane{p, p.cc, p.gen}
	p.mu.Unlock()
	p.probe(l)
}

// suspect probes a peer that has not answered a call before its deadline.
func (p *peer) suspect(l lane) { go p.probe(l) }

// probe checks whether a peer answers, and replaces the connection if not. Only one probe of a peer runs at a
// time.
func (p *peer) probe(l lane) {
	p.mu.Lock()
	if p.closed || p.probing {
		p.mu.Unlock()
		return
	}
	p.probing = true
	p.owner.background.Add(1)
	p.mu.Unlock()
	defer p.owner.background.Done()

	ctx, cancel := context.WithTimeout(p.owner.ctx, p.owner.opt.ProbeTimeout)
	defer cancel()
	_, err := healthpb.NewHealthClient(l.cc).Check(ctx, &healthpb.HealthCheckRequest{})
	// Any answer, even an error status, proves that the peer is alive. Replace the connection only if the probe timed
	// out: if the connection is broken, its calls have failed already.
	if status.Code(err) == codes.DeadlineExceeded && p.owner.ctx.Err() == nil {
		p.owner.log.Warn("a scheduler does not answer; its calls go to other schedulers", "addr", p.end.Addr)
		p.owner.failed(p)
		p.replace(l.gen)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.probing = false
	p.heard = time.Now()
	if !p.closed && p.unary+p.streams > 0 {
		p.watch.Reset(p.patience())
	}
}

// replace closes the connection with number gen, which ends the calls on it, and creates a new connection, which is
// dialled at its first use. If the connection was already replaced, it does nothing.
func (p *peer) replace(gen int) {
	cc, err := p.owner.connect(p.end)
	p.mu.Lock()
	if err != nil || p.closed || p.gen != gen {
		p.mu.Unlock()
		if err == nil {
			cc.Close()
		}
		return
	}
	old := p.cc
	p.cc = cc
	p.gen++
	p.mu.Unlock()
	old.Close()
}

// state returns the state of the connection. A failed connection without calls is replaced, because gRPC
// would otherwise dial it again and again.
func (p *peer) state() connectivity.State {
	p.mu.Lock()
	cc, gen, busy := p.cc, p.gen, p.unary+p.streams > 0
	p.mu.Unlock()
	s := cc.GetState()
	if s == connectivity.TransientFailure && !busy {
		if !p.penalised(time.Now()) {
			p.owner.failed(p)
		}
		p.replace(gen)
		return connectivity.Idle
	}
	return s
}

func (p *peer) conn() *grpc.ClientConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cc
}

func (p *peer) penalise() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fails++
	p.until = time.Now().Add(min(minPenalty<<min(p.fails-1, 10), maxPenalty))
}

func (p *peer) ok() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fails, p.until = 0, time.Time{}
}

func (p *peer) penalised(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.Before(p.until)
}

func (p *peer) busy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.unary+p.streams > 0
}

// closeWhenIdle marks the peer as removed: its connection closes after its last call.
func (p *peer) closeWhenIdle() {
	p.mu.Lock()
	p.retired = true
	unused := p.unary+p.streams == 0
	p.mu.Unlock()
	if unused {
		p.close()
	}
}

func (p *peer) close() {
	p.mu.Lock()
	p.closed = true
	if p.watch != nil {
		p.watch.Stop()
	}
	cc := p.cc
	p.mu.Unlock()
	cc.Close()
}

func (p *peer) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}
