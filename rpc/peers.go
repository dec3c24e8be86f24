package rpc

import (
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"

	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
)

// peers holds the connections to the other replicas, one per replica.
type peers struct {
	tls   *pki.Files
	extra []grpc.DialOption

	mu     sync.Mutex
	conns  map[string]*grpc.ClientConn
	closed bool
}

func newPeers(tls *pki.Files, extra ...grpc.DialOption) *peers {
	return &peers{tls: tls, extra: extra, conns: map[string]*grpc.ClientConn{}}
}

func (p *peers) conn(addr string) (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errorf(KindUnavailable, "this replica is shutting down")
	}
	if c := p.conns[addr]; c != nil {
		return c, nil
	}
	c, err := dial.To(p.tls, addr, pki.Peer{Role: pki.RoleScheduler}, append([]grpc.DialOption{
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 25 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 2 * time.Second, Timeout: time.Second, PermitWithoutStream: true}),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(dial.Codec()), grpc.MaxCallRecvMsgSize(dial.MaxAnswer), grpc.MaxCallSendMsgSize(maxMessage)),
	}, p.extra...)...)
	if err != nil {
		return nil, err
	}
	p.conns[addr] = c
	return c, nil
}

func (p *peers) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}
