package rpc

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/metadata"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
)

// Limits for a replica that lags or is cut off from the leader, so that its state may lack the latest
// admissions, revocations and namespaces. A confirmation shows that the state was up to date at a certain
// time.
const (
	// rightsFresh is the age of the last confirmation up to which a replica checks the rights of a person
	// without a request to the leader.
	rightsFresh = time.Second
	// rightsBound is the age of the last confirmation above which a replica that cannot reach the
	// leader serves no people.
	rightsBound = 10 * time.Second
	// askLimit is the time limit of one request to the leader for its index.
	askLimit = time.Second
	// Rate per second, and burst, of the requests to the leader that calls of callers without an admission
	// can cause.
	unadmittedRate, unadmittedBurst = 10, 50
)

// recency records how recent the state of this replica is. A moment is called confirmed if the state is proven to
// contain every entry that was committed before it. A heartbeat from the leader does not prove this: after a pause of
// the process, old heartbeats that waited in a buffer look like new heartbeats.
type recency struct {
	since time.Time    // start of the scale on which confirmed moments are measured
	at    atomic.Int64 // the last confirmed moment, in nanoseconds after the field since; 0 = none

	mu     sync.Mutex
	asking *question
	failed time.Time // time of the last request to the leader that failed
}

// question is a request to the leader for its index. Several callers can share its answer.
type question struct {
	asked time.Time
	done  chan struct{}
	err   error
}

// age returns the time since the last confirmed moment. Before the first confirmation it returns a very long time.
func (r *recency) age() time.Duration {
	return time.Since(r.since.Add(time.Duration(r.at.Load())))
}

func (r *recency) confirm(moment time.Time) {
	r.at.Store(max(r.at.Load(), int64(moment.Sub(r.since))))
}

// confirmed waits until this replica's state shows everything that was committed before moment. It returns an error if
// the leader does not answer or ctx ends.
func (s *Server) confirmed(ctx context.Context, moment time.Time) error {
	r := &s.recency
	for {
		if r.at.Load() > int64(moment.Sub(r.since)) {
			return nil
		}
		r.mu.Lock()
		q, mine := r.asking, false
		if q == nil {
			q, mine = &question{asked: time.Now(), done: make(chan struct{})}, true
			r.asking = q
		}
		r.mu.Unlock()
		if mine {
			s.ask(ctx, q)
		}
		select {
		case <-q.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		if !q.asked.Before(moment) {
			return q.err
		}
	}
}

// ask asks the leader for its index and waits until this replica's state has reached it.
func (s *Server) ask(ctx context.Context, q *question) {
	// Do not end when the first caller gives up: other callers wait for the same answer.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askLimit)
	defer cancel()
	index, err := s.leadersIndex(ctx)
	if err == nil {
		_, err = s.store.At(ctx, index)
	}
	r := &s.recency
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asking, q.err = nil, err; err == nil {
		r.confirm(q.asked)
	} else {
		r.failed = q.asked
	}
	close(q.done)
}

// leadersIndex asks the leader for its log index; the leader confirms its leadership before it answers. A state at that
// index shows everything that was committed before the call.
func (s *Server) leadersIndex(ctx context.Context) (uint64, error) {
	to, known := s.replica.Leader()
	switch {
	case !known || to.GRPCAddr == "":
		return 0, errorf(KindNoLeader, "there is no leader; `persysctl status` shows the replicas")
	case to.ID == s.replica.Self().ID:
		return s.replica.Confirm(ctx)
	}
	conn, err := s.peers.conn(to.GRPCAddr)
	if err != nil {
		return 0, err
	}
	resp, err := clusterv1.NewClusterClient(conn).GetReadIndex(metadata.AppendToOutgoingContext(ctx, dial.KeyHop, "1"), &clusterv1.GetReadIndexRequest{})
	return resp.GetIndex(), err
}

// GetReadIndex implements the call of cluster.v1: the leader confirms its leadership and returns its log
// index.
func (s *Server) GetReadIndex(ctx context.Context, _ *clusterv1.GetReadIndexRequest) (*clusterv1.GetReadIndexResponse, error) {
	index, err := s.replica.Confirm(ctx)
	if err != nil {
		return nil, err
	}
	return &clusterv1.GetReadIndexResponse{Index: index}, nil
}

// isPerson reports whether a caller is a person, or a gateway, which calls for people.
func (c caller) isPerson() bool {
	return c.id.Role == pki.RoleUser || c.id.Role == pki.RoleGateway
}

// exempt reports whether a replica that is cut off still answers this method for people. Such methods show
// only the replica's status and health, the description of the API, and the roots of the CA.
func (m method) exempt() bool { return m.class == local && m.namespaces == general }

// upToDate makes sure that this replica's state is recent enough to check the rights of people. If the last
// confirmation is older than rightsFresh, it brings the state up to date with the leader's. If the leader
// does not answer and the confirmation is older than rightsBound, it returns an error. asked is true if it
// sent a request to the leader, so that the state may have changed.
func (s *Server) upToDate(ctx context.Context) (asked bool, err error) {
	r := &s.recency
	now := time.Now()
	age := r.age()
	if age < rightsFresh {
		return false, nil
	}
	if age < rightsBound {
		r.mu.Lock()
		vain := now.Sub(r.failed) < rightsFresh
		r.mu.Unlock()
		if vain { // the last request failed a moment ago: do not delay every call while there is no leader
			return false, nil
		}
	}
	err = s.confirmed(ctx, now.Add(-rightsFresh))
	switch {
	case err == nil:
		return true, nil
	case ctx.Err() != nil:
		return false, ctx.Err()
	case r.age() < rightsBound:
		return true, nil
	}
	return false, errorf(KindNoLeader, "this scheduler is cut off from the leader and may not know whose access was revoked, so it answers no user after %s: call another scheduler, `persysctl status` shows them: %w", rightsBound, err)
}

// judge checks whether a caller may call a method, by the policy table (methods.go). If the caller is not admitted
// according to this replica's state, which may be out of date, judge brings the state up to date with the leader's
// before it refuses the caller.
func (s *Server) judge(ctx context.Context, c caller, full string) (method, error) {
	m, err := s.authorize(c, full)
	if err == nil || s.cfg.TLS == nil || c.id.IsZero() {
		return m, err
	}
	switch {
	case errors.Is(err, errNotAdmitted) && c.account.name != "":
		// Anybody who reaches a gateway can send a wrong token. Limit the requests to the leader about unknown tokens
		// separately, so that they do not use up the limit for identities that have just joined.
		if !s.unknownAccounts.Allow() || s.confirmed(ctx, time.Now()) != nil {
			return m, err
		}
	case errors.Is(err, errNotAdmitted):
		if err := s.catchUp(ctx, err); err != nil {
			return m, err
		}
	default:
		if asked, _ := s.upToDate(ctx); !asked {
			return m, err
		}
	}
	return s.authorize(c, full)
}

// catchUp waits until this replica's state shows every admission that was committed before the call of
// catchUp. If it returns an error, it is not known whether the caller is admitted.
func (s *Server) catchUp(ctx context.Context, why error) error {
	if !s.unadmitted.Allow() {
		return errorf(KindBusy, "more than %d calls per second of callers without an admission: try again in a moment", unadmittedRate)
	}
	if err := s.confirmed(ctx, time.Now()); err != nil {
		return errorf(KindNoLeader, "%w; the leader could not be asked: %w", why, err)
	}
	return nil
}

// here runs a handler on this replica. If the caller is a person, it first makes sure that the state by which the
// rights were checked is recent enough.
func (s *Server) here(ctx context.Context, c *call, full string, req any, h func(context.Context, any) (any, error)) (any, error) {
	if err := s.stillMay(ctx, c, full); err != nil {
		return s.refuse(ctx, c, "", nil, err)
	}
	return h(ctx, req)
}

// stillMay brings the state up to date if it is too old. If that needed a request to the leader, stillMay
// checks the rights of the person again.
func (s *Server) stillMay(ctx context.Context, c *call, full string) error {
	if s.cfg.TLS == nil || !c.isPerson() || c.exempt() {
		return nil
	}
	asked, err := s.upToDate(ctx)
	if asked && err == nil {
		_, err = s.authorize(c.caller, full)
	}
	return err
}

// awaitCutOff waits until this replica must no longer serve people, because it is cut off, and returns the
// reason. It returns nil if ctx ends first.
func (s *Server) awaitCutOff(ctx context.Context) error {
	return awaitError(ctx, rightsBound/4, func() error {
		_, err := s.upToDate(ctx)
		return err
	})
}

// awaitError calls check at the interval every until check returns an error, and returns that error. If ctx ends
// first, it returns nil.
func awaitError(ctx context.Context, every time.Duration, check func() error) error {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		if err := check(); err != nil && ctx.Err() == nil {
			return err
		}
	}
}
