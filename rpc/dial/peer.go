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

// peer is one scheduler address with its connection, which is made on first use and replaced after
// a failure.
type peer struct {
	end   Endpoint
	owner *Conn

	mu      sync.Mutex
	cc      *grpc.ClientConn
	gen     int // number of replaced connections
	closed  bool
	retired bool      // the address was removed; closed after its last call
	fails   int       // consecutive failures
	until   time.Time // until then a failed peer is tried last
	unary   int       // unary calls in progress
	streams int
	heard   time.Time   // time of the last received message while calls are in progress
	watch   *time.Timer // fires if nothing was received for too long
	probing bool
}

// lane is the use of a connection by one call.
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
	// Only the first call starts the clock. Otherwise a steady flow of calls to a dead peer would
	// keep resetting it.
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

// end releases the lane; alive reports that the peer answered.
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

// cut reports whether the connection was replaced during the call.
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

// patience returns how long calls may receive nothing before the peer is probed. Streams are often
// silent for good reasons.
func (p *peer) patience() time.Duration {
	if p.unary > 0 {
		return p.owner.opt.StallAfter
	}
	return 3 * p.owner.opt.StallAfter
}

// onSilence detects peers that hang (stopped, paused, cut off) while their TCP connection stays
// open. gRPC's keepalive takes at least 13 s for that.
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

// suspect probes a peer that let a call's deadline pass.
func (p *peer) suspect(l lane) { go p.probe(l) }

// probe checks whether a peer answers, with one probe at a time, and replaces its connection if
// not.
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
	// Any answer counts, also an error status. A broken connection has failed its calls already.
	if status.Code(err) == codes.DeadlineExceeded && p.owner.ctx.Err() == nil {
		p.owner.log.Warn("scheduler does not answer; its calls go elsewhere", "addr", p.end.Addr)
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

// replace closes the connection of generation gen, which ends its calls, and replaces it by a new
// idle one.
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

// state returns the state of the connection. It replaces a failed connection without calls, so that
// it does not redial by itself.
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

// retire closes the peer after its last call.
func (p *peer) retire() {
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
