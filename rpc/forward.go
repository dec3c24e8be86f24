package rpc

import (
	"context"
	"errors"
	"fmt"
	"strconv"
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

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/rpc/limits"
)

// unary is the interceptor of every gRPC call with one request and one answer. It identifies the caller, checks the
// caller's limits and rights, and routes the call.
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
			// Ignore the error: SetTrailer fails only if the stream has ended, and then the call's own error says so.
			_ = grpc.SetTrailer(ctx, md)
		}
	}
	return resp, err
}

// carry checks the rights for one call, or for one message of a stream, and routes it. The returned call
// is nil if the caller is not allowed to make the call.
func (s *Server) carry(ctx context.Context, who caller, full string, req any, h grpc.UnaryHandler) (any, *call, error) {
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	m, err := s.judge(ctx, who, full)
	c := &call{caller: s.named(who, err == nil), method: m}
	ctx = withCall(ctx, c)
	if err != nil {
		resp, err := s.refuse(ctx, c, full, req, err)
		return resp, nil, edge("", err)
	}
	resp, err := s.route(ctx, c, full, req, h)
	return resp, c, edge(m.op, err)
}

// defaultDeadline is the deadline of calls whose callers set none.
const defaultDeadline = 20 * time.Second

func withDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, defaultDeadline)
}

// route answers a call on this replica or forwards it to the leader. The class of the method in the policy table
// (local, leader or read) decides which.
func (s *Server) route(ctx context.Context, c *call, full string, req any, h grpc.UnaryHandler) (any, error) {
	switch c.class {
	case leader:
		if err := ensureRequestID(ctx, req); err != nil {
			return nil, err
		}
		if c.repetition == receipted {
			c.hash = hashOfCall(ctx, c, full, req)
		}
		return s.atLeader(ctx, c, full, req, h)
	case read:
		asked, err := c.wish(ctx, req)
		if err != nil {
			return nil, err
		}
		if c.level != linearizable {
			return s.here(ctx, c, full, req, h)
		}
		resp, err := s.atLeader(ctx, c, full, req, h)
		if err != nil && !asked && !c.forwarded && status.Code(edge("", err)) == codes.Unavailable {
			// There is no leader, and the caller has asked for no read level, as legacy v1 clients do. It gets an
			// answer that is marked as stale, instead of an error.
			c.level = staleFallback
			return s.here(ctx, c, full, req, h)
		}
		return resp, err
	}
	return s.here(ctx, c, full, req, h)
}

// retryEvery is the longest pause between two attempts of a call that waits for a leader.
const retryEvery = 25 * time.Millisecond

// atLeader calls h if this replica leads, and otherwise forwards the call to the leader. If the leader cannot
// be reached, or the replica that answers does not lead, it tries again, for at most the time for which such
// a call waits for a leader (Config.HoldWrites, HoldReads). A repetition is safe even if an earlier attempt
// may have been applied: reads change nothing, and mutations carry a request id. dial.Outcome decides what
// follows after each attempt.
func (s *Server) atLeader(ctx context.Context, c *call, full string, req any, h grpc.UnaryHandler) (any, error) {
	hold := s.cfg.HoldWrites
	if c.class == read {
		hold = s.cfg.HoldReads
	}
	var began time.Time
	var outcome dial.Outcome
	for {
		changed := s.replica.LeaderChanged()
		to, known := s.replica.Leader()
		c.judged, c.wrote = false, false
		resp, err := s.attempt(ctx, c, to, known, changed, full, req, h)
		if c.forwarded {
			return resp, err // no attempt is repeated here: only the replica that forwarded the call knows its earlier attempts
		}
		switch outcome.After(c.answer(resp, err), c.repetition == once) {
		case dial.Return:
			return resp, err
		case dial.Doubt:
			return nil, doubt(err)
		}
		now := time.Now()
		if began.IsZero() {
			began = now
			if c.class == read && !known {
				began = began.Add(-s.age()) // the hold time of a read begins when the leader was lost
			}
		}
		if left := hold - now.Sub(began); left <= 0 || !waitFor(ctx, changed, min(left, retryEvery)) {
			return nil, heldInVain(err, outcome.Unknown(), hold)
		}
	}
}

// attempt makes one attempt at a call, on this replica or at the leader.
func (s *Server) attempt(ctx context.Context, c *call, to Peer, known bool, changed <-chan struct{}, full string, req any, h grpc.UnaryHandler) (any, error) {
	switch {
	case known && to.ID == s.replica.Self().ID:
		if s.store.View().Info().ClusterID == "" {
			// The first leader of a new cluster commits the cluster's id right after its election. Until
			// then the state machine refuses all commands, so let the call wait, as without a leader.
			return nil, errorf(KindNotLeader, "the cluster is being formed")
		}
		resp, err := s.here(ctx, c, full, req, h)
		if err != nil && c.wrote && passing(err) {
			err = doubt(err)
		}
		return resp, err
	case c.forwarded:
		return nil, errorf(KindNotLeader, "replica %s received a forwarded call and does not lead", s.replica.Self().Name)
	case known && to.GRPCAddr != "":
		return s.forward(ctx, c, to, changed, full, req)
	}
	return nil, errorf(KindNoLeader, "there is no leader; `persysctl status` shows the replicas")
}

// heldInVain returns the error of a call that did not succeed within hold, the longest time for which a
// call waits for a leader. last is the error of the last attempt, and unknown says whether an attempt may
// have been applied.
func heldInVain(last error, unknown bool, hold time.Duration) error {
	if unknown {
		return doubt(last)
	}
	return errorf(KindNoLeader, "no leader answered within %s: %w", hold, last)
}

// doubt returns the error of a call of which an attempt may have been applied. last is the error of the last
// attempt; nil if the last answer was a refusal without a gRPC error.
func doubt(last error) error {
	switch {
	case last == nil:
		return errorf(KindUnknownOutcome, "%w; a later attempt was refused", ErrUnknownOutcome)
	case edgeKind(last) == KindUnknownOutcome:
		return last
	}
	return errorf(KindUnknownOutcome, "%w: %w", ErrUnknownOutcome, last)
}

// answer returns the class (dial.Answer) of the answer to an attempt, by which dial.Outcome decides whether the call
// is repeated.
func (c *call) answer(resp any, err error) dial.Answer {
	kind := edgeKind(err)
	switch {
	case c.repetition <= idempotent && (err == nil || !passing(err)):
		return dial.Final
	case c.repetition <= idempotent:
		return dial.Elsewhere
	case err == nil && !c.judged && dial.Declined(resp):
		return dial.Refusal
	case err == nil:
		return dial.Final
	case kind == KindUnknownOutcome:
		return dial.Lost
	case passing(err):
		return dial.Elsewhere
	case kind == KindDeadline, kind == KindCanceled:
		return dial.TimeUp
	case c.judged:
		return dial.Final
	case kind == KindBusy:
		return dial.Busy
	}
	return dial.Refusal
}

// judging wraps the Replica. It records whether the state machine has decided the present call, for the trailer
// KeyJudged. If one command of a call was committed and a later command failed, the outcome of the whole call is
// unknown.
type judging struct{ Replica }

func (j judging) Propose(ctx context.Context, cmds ...fsm.Command) ([]fsm.Result, error) {
	c := callOf(ctx)
	if err := otherRequest(j.Store().View(), c, cmds); err != nil {
		return nil, err
	}
	results, err := j.Replica.Propose(ctx, cmds...)
	if c.repetition != receipted || len(cmds) == 0 || len(cmds[0].GetHead().GetRequest()) == 0 {
		return results, err
	}
	c.judged = err == nil
	if err != nil && c.wrote && !errors.Is(err, ErrUnknownOutcome) {
		err = fmt.Errorf("%w: a part of the call was committed: %w", ErrUnknownOutcome, err)
	}
	c.wrote = c.wrote || err == nil
	for _, r := range results {
		if r.Kind == fsm.TooOld { // the request id is too old for a receipt: an earlier attempt may have been applied and its receipt dropped since
			c.judged = false
		}
	}
	return results, err
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

// passing reports whether a failed call may succeed if it is repeated. That is the case if the replica did not answer
// or does not lead, or if the outcome of the call is unknown.
func passing(err error) bool {
	switch edgeKind(err) {
	case KindNotLeader, KindNoLeader, KindUnavailable, KindUnknownOutcome:
		return true
	}
	return false
}

// forward makes the same call at the leader, with the caller's identity. If the replica in to loses its leadership
// meanwhile, it returns an error.
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
	if c.hash != 0 {
		md.Set(dial.KeyRequestHash, strconv.FormatUint(c.hash, 16))
	}
	if in, ok := metadata.FromIncomingContext(ctx); ok {
		for _, k := range [...]string{dial.KeyRequestID, dial.KeyRead, dial.KeyIndex, dial.KeyOnBehalf, dial.KeyIssued, dial.KeyUser, dial.KeyAccess, dial.KeyGroups, dial.KeyAccountToken, dial.KeyAccount, dial.KeyConsole, dial.KeyNamespaces, "traceparent", "tracestate"} {
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
	var trailer metadata.MD
	err = conn.Invoke(out, full, req, reply, grpc.Peer(&reached), grpc.Trailer(&trailer))
	c.judged = dial.Judged(trailer)
	if err == nil {
		return reply, nil
	}
	return nil, c.broken(ctx, out, to, reached.Addr != nil, err)
}

var errDeposed = errors.New("the called replica is no longer known as the leader")

// whileLeads returns a context that ends when this replica learns that the replica in to does not lead any more.
// Without it, a call to a leader that hangs would wait until the connection fails, which takes much longer.
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

// broken returns the error for a forwarded call that failed. An error that the leader itself sent stays unchanged. If
// the connection failed, the error is Unavailable for a call that was never sent, and UnknownOutcome for a call that
// the leader may have applied.
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

// replyFor returns an empty message of the method's response type, into which gRPC decodes the leader's answer.
func replyFor(full string) (proto.Message, error) {
	name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(full, "/"), "/", "."))
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	if err != nil {
		return nil, errorf(KindInternal, "method %s: %w", full, err)
	}
	md, ok := d.(protoreflect.MethodDescriptor)
	if !ok {
		return nil, errorf(KindInternal, "%s is not a known method", full)
	}
	mt, err := protoregistry.GlobalTypes.FindMessageByName(md.Output().FullName())
	if err != nil {
		return nil, errorf(KindInternal, "method %s: %w", full, err)
	}
	return mt.New().Interface(), nil
}

// stream is the interceptor of every streaming call. If the messages of a stream change the state, its handler checks
// the rights for each message.
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
	entry, err = s.enterStream(who)
	if err != nil {
		return edge("", err)
	}
	defer entry.Leave()
	m, err := s.judge(ss.Context(), who, info.FullMethod)
	c := &call{caller: s.named(who, err == nil), method: m}
	if err == nil {
		err = s.stillMay(ss.Context(), c, info.FullMethod)
	}
	if err != nil {
		_, err = s.refuse(ss.Context(), c, "", nil, err)
		return edge("", err)
	}
	ctx := withCall(ss.Context(), c)
	return edge(m.op, s.whileTrusted(ctx, info.FullMethod, func(ctx context.Context) error {
		return h(srv, &callStream{ss, ctx})
	}))
}

// whileTrusted runs the handler of a stream. It ends the stream if the peer's certificate is revoked or
// expires, if the user of a gateway is revoked or, for people, if this replica is cut off. This is needed
// because a stream may be open for days, and the rights of its caller are checked only once. whileTrusted may return
// while the handler still waits for a message; gRPC then closes the stream, which ends the wait.
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
	lost := make(chan error, 5)
	go func() {
		err := s.cfg.TLS.Await(ctx, info.State)
		if err != nil {
			err = fmt.Errorf("the certificate from %s: %w", p.Addr, err)
		}
		lost <- err
	}()
	c := callOf(ctx)
	if c.account.name != "" {
		go func() { lost <- s.awaitAccount(ctx, c.account) }()
	}
	if c.console.id != "" {
		go func() { lost <- s.awaitConsole(ctx, c.console) }()
	}
	if !c.behalf.IsZero() {
		go func() { lost <- s.cfg.TLS.AwaitRevoked(ctx, c.behalf, c.issued) }()
	}
	if c.isPerson() && !c.exempt() {
		go func() { lost <- s.awaitCutOff(ctx) }()
	}
	select {
	case err := <-done:
		return err
	case err := <-lost:
		if err == nil { // the handler waits for no further message: the caller has ended its side of the stream
			return <-done
		}
		if edgeKind(err) == KindNoLeader {
			return err
		}
		return errorf(KindUnauthenticated, "%w", err)
	}
}

type callStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (c *callStream) Context() context.Context { return c.ctx }
