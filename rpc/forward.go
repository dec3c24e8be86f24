package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/rpc/limits"
)

// unary handles every unary call: it identifies the caller, checks its limits and rights, and
// routes the call.
func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
	who, err := s.identify(ctx)
	if err != nil {
		return nil, edge("", err)
	}
	entry, err := s.enter(who)
	if err != nil {
		return nil, edge("", err)
	}
	defer entry.Leave()
	resp, c, err := s.carry(ctx, who, info.FullMethod, req, h)
	if c != nil {
		if md := s.trailer(c); md != nil {
			// SetTrailer fails only if the stream has ended, which the error of the call reports.
			_ = grpc.SetTrailer(ctx, md)
		}
	}
	return resp, err
}

// carry authorizes and routes one call, or one message of a stream. The returned call is nil if the
// caller has no right to make it.
func (s *Server) carry(ctx context.Context, who caller, full string, req any, h grpc.UnaryHandler) (any, *call, error) {
	m, err := s.authorize(who, full)
	c := &call{caller: who, method: m}
	ctx, cancel := withDeadline(withCall(ctx, c))
	defer cancel()
	if err != nil {
		resp, err := s.refuse(ctx, c, full, req, err)
		return resp, nil, edge("", err)
	}
	resp, err := s.route(ctx, c, full, req, h)
	return resp, c, edge(m.op, err)
}

// defaultDeadline applies to calls without a deadline.
const defaultDeadline = 20 * time.Second

func withDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, defaultDeadline)
}

// route answers a call here or at the leader, by the class of its method.
func (s *Server) route(ctx context.Context, c *call, full string, req any, h grpc.UnaryHandler) (any, error) {
	switch c.class {
	case leader:
		if err := ensureRequestID(ctx, req); err != nil {
			return nil, err
		}
		return s.atLeader(ctx, c, full, req, h)
	case read:
		asked, err := c.wish(ctx, req)
		if err != nil {
			return nil, err
		}
		if c.level != linearizable {
			return h(ctx, req)
		}
		resp, err := s.atLeader(ctx, c, full, req, h)
		if err != nil && !asked && !c.forwarded && status.Code(edge("", err)) == codes.Unavailable {
			// Legacy v1 clients send no index. A stale answer that is marked as such is better than
			// none.
			c.level = staleFallback
			return h(ctx, req)
		}
		return resp, err
	}
	return h(ctx, req)
}

// retryEvery is the longest time between two attempts of a held call.
const retryEvery = 25 * time.Millisecond

// atLeader runs h if this replica leads, else it forwards the call to the leader. It repeats the
// call until the hold time has passed if the leader could not be reached or the answering replica
// did not lead. That is safe even if an earlier attempt may have been applied: reads change
// nothing, and mutations carry a request id.
func (s *Server) atLeader(ctx context.Context, c *call, full string, req any, h grpc.UnaryHandler) (any, error) {
	hold := s.cfg.HoldWrites
	if c.class == read {
		hold = s.cfg.HoldReads
	}
	var began time.Time
	unknown := false
	for {
		changed := s.replica.LeaderChanged()
		to, known := s.replica.Leader()
		resp, err := s.attempt(ctx, c, to, known, changed, full, req, h)
		if err == nil || c.forwarded || !passing(err) {
			return resp, err
		}
		if c.repetition > idempotent && edgeKind(err) == KindUnknownOutcome {
			if unknown = true; c.repetition == once {
				return nil, err
			}
		}
		now := time.Now()
		if began.IsZero() {
			began = now
			if c.class == read && !known {
				began = began.Add(-s.age()) // the leader has been gone for that time already
			}
		}
		if left := hold - now.Sub(began); left <= 0 || !waitFor(ctx, changed, min(left, retryEvery)) {
			return nil, heldInVain(err, unknown, hold)
		}
	}
}

// attempt makes one attempt at a call, here or at the leader.
func (s *Server) attempt(ctx context.Context, c *call, to Peer, known bool, changed <-chan struct{}, full string, req any, h grpc.UnaryHandler) (any, error) {
	switch {
	case known && to.ID == s.replica.Self().ID:
		if s.store.View().Info().ClusterID == "" {
			// The first leader commits the cluster's id right after its election. Until then the
			// state machine refuses everything, so the call waits as it does without a leader.
			return nil, errorf(KindNotLeader, "the cluster is being formed")
		}
		return h(ctx, req)
	case c.forwarded:
		return nil, errorf(KindNotLeader, "replica %s received a forwarded call and does not lead", s.replica.Self().Name)
	case known && to.GRPCAddr != "":
		return s.forward(ctx, c, to, changed, full, req)
	}
	return nil, errorf(KindNoLeader, "there is no leader; `persysctl status` shows the replicas")
}

// heldInVain returns the error of a call whose hold time has passed.
func heldInVain(last error, unknown bool, hold time.Duration) error {
	if unknown {
		return errorf(KindUnknownOutcome, "%w: %w", ErrUnknownOutcome, last)
	}
	return errorf(KindNoLeader, "no leader answered within %s: %w", hold, last)
}

// waitFor waits until wake is closed or d has passed. It returns false if ctx ends first.
func waitFor(ctx context.Context, wake <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-wake:
	case <-t.C:
	case <-ctx.Done():
		return false
	}
	return true
}

// passing reports whether a repeated call may succeed: the replica did not answer, it does not
// lead, or the outcome of the call is unknown.
func passing(err error) bool {
	switch edgeKind(err) {
	case KindNotLeader, KindNoLeader, KindUnavailable, KindUnknownOutcome:
		return true
	}
	return false
}

// forward makes the same call at the leader with the caller's identity. It gives up if that replica
// is no longer the leader.
func (s *Server) forward(ctx context.Context, c *call, to Peer, changed <-chan struct{}, full string, req any) (any, error) {
	conn, err := s.peers.conn(to.GRPCAddr)
	if err != nil {
		return nil, errorf(KindUnavailable, "leader %s at %s: %w", to.Name, to.GRPCAddr, err)
	}
	reply, err := replyFor(full)
	if err != nil {
		return nil, err
	}
	md := metadata.Pairs(dial.KeyHop, "1", dial.KeyForwardedIdentity, c.identity(), dial.KeyFrom, c.from)
	if in, ok := metadata.FromIncomingContext(ctx); ok {
		for _, k := range [...]string{dial.KeyRequestID, dial.KeyRead, dial.KeyIndex, dial.KeyOnBehalf, dial.KeyIssued, dial.KeyUser, dial.KeyNamespaces, "traceparent", "tracestate"} {
			if v := in.Get(k); len(v) > 0 {
				md.Set(k, v...)
			}
		}
	}
	out := metadata.NewOutgoingContext(ctx, md)
	if c.repetition != once {
		var stop func()
		out, stop = s.whileLeads(out, to, changed)
		defer stop()
	}
	var reached peer.Peer
	err = conn.Invoke(out, full, req, reply, grpc.Peer(&reached))
	if err == nil {
		return reply, nil
	}
	return nil, c.broken(ctx, out, to, reached.Addr != nil, err)
}

var errDeposed = errors.New("it is no longer known as the leader")

// whileLeads returns a context that ends when to is no longer the known leader. A leader that hangs
// does not answer, and its connection would fail only much later.
func (s *Server) whileLeads(ctx context.Context, to Peer, changed <-chan struct{}) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
			changed = s.replica.LeaderChanged()
			if now, known := s.replica.Leader(); !known || now.ID != to.ID {
				cancel(errDeposed)
				return
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}

// broken classifies the error of a forwarded call. An error that the leader answered stays as it
// is. A call that was never sent had no effect; a call that was sent may have had one.
func (c *call) broken(ctx, out context.Context, to Peer, sent bool, err error) error {
	deposed := errors.Is(context.Cause(out), errDeposed)
	if ctx.Err() != nil && !deposed || !deposed && (status.Code(err) != codes.Unavailable || dial.Reason(err) != "") {
		return err
	}
	if deposed {
		err = fmt.Errorf("%w: %w", errDeposed, err)
	}
	kind := KindUnavailable
	if sent && c.repetition > idempotent {
		kind = KindUnknownOutcome
	}
	return errorf(kind, "leader %s at %s: %w", to.Name, to.GRPCAddr, err)
}

// replyFor returns an empty response message of a method.
func replyFor(full string) (proto.Message, error) {
	name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(full, "/"), "/", "."))
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	if err != nil {
		return nil, errorf(KindInternal, "method %s: %w", full, err)
	}
	md, ok := d.(protoreflect.MethodDescriptor)
	if !ok {
		return nil, errorf(KindInternal, "%s is not a method", full)
	}
	mt, err := protoregistry.GlobalTypes.FindMessageByName(md.Output().FullName())
	if err != nil {
		return nil, errorf(KindInternal, "method %s: %w", full, err)
	}
	return mt.New().Interface(), nil
}

// stream handles every streaming call. The handlers of streams that mutate authorize each message.
func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, h grpc.StreamHandler) error {
	who, err := s.identify(ss.Context())
	if err != nil {
		return edge("", err)
	}
	entry, err := s.enter(who)
	if err != nil {
		return edge("", err)
	}
	defer entry.Leave()
	m, err := s.authorize(who, info.FullMethod)
	c := &call{caller: who, method: m}
	if err != nil {
		_, err = s.refuse(ss.Context(), c, "", nil, err)
		return edge("", err)
	}
	ctx := withCall(ss.Context(), c)
	return edge(m.op, s.whileTrusted(ctx, info.FullMethod, func(ctx context.Context) error {
		return h(srv, &callStream{ss, ctx})
	}))
}

// whileTrusted runs a stream until it ends, until the peer's certificate is revoked or expires, or
// until the user of a gateway is revoked. A stream may be open for days, and its caller is
// authorized only once. If whileTrusted returns while the handler waits for a message, gRPC closes
// the stream, which ends that wait.
func (s *Server) whileTrusted(ctx context.Context, full string, h func(context.Context) error) error {
	p, _ := peer.FromContext(ctx)
	info, secure := p.AuthInfo.(credentials.TLSInfo)
	if s.cfg.TLS == nil || !secure || len(info.State.PeerCertificates) == 0 {
		return h(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- limits.Survive(s.log, full, func() error { return h(ctx) })
	}()
	lost := make(chan error, 2)
	go func() {
		err := s.cfg.TLS.Await(ctx, info.State)
		if err != nil {
			err = fmt.Errorf("the certificate from %s: %w", p.Addr, err)
		}
		lost <- err
	}()
	if c := callOf(ctx); !c.behalf.IsZero() {
		go func() { lost <- s.cfg.TLS.AwaitRevoked(ctx, c.behalf, c.issued) }()
	}
	select {
	case err := <-done:
		return err
	case err := <-lost:
		if err == nil { // the caller ended the stream
			return <-done
		}
		return errorf(KindUnauthenticated, "%w", err)
	}
}

type callStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (c *callStream) Context() context.Context { return c.ctx }
