package names

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	agentv1 "github.com/persys/compute/api/agent/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
)

// Store holds the newest names across restarts; *store.Store implements it.
type Store interface {
	NetworkNames() (*agentv1.NetworkNames, error) // nil if there are none
	PutNetworkNames(*agentv1.NetworkNames) error
}

// Source is what Follow needs of the schedulers.
type Source interface {
	WatchNetworkNames(context.Context, *controlv1.WatchNetworkNamesRequest, ...grpc.CallOption) (*controlv1.WatchNetworkNamesResponse, error)
}

const (
	// OldAfter is the time without an answer of a scheduler after which names count as old.
	OldAfter = 30 * time.Second
	// watchLimit is the deadline of one call: schedulers wait 4 s for a change.
	watchLimit = 15 * time.Second
	// calm is the shortest time between two calls, so that many changes cost few answers. failed is that after an error.
	calm, failed = 100 * time.Millisecond, time.Second
)

// Resolver answers the queries of containers. Its zero value is not usable: New makes it, and Open gives it the
// stored names.
type Resolver struct {
	log      *slog.Logger
	networks func(netip.Addr) []uint32 // networks of the container with an address
	upstream *upstream
	store    Store

	view atomic.Pointer[view] // nil as long as there are no names
	turn atomic.Uint32        // counts answers with several records, which it rotates

	mu        sync.Mutex
	names     *agentv1.NetworkNames // newest; nil if there are none
	confirmed time.Time             // when a scheduler last said that the names are the newest; zero if none did since the start
	since     time.Time             // when the first network came, from which the age counts until the first answer
	old       bool                  // it was logged that the names are old

	listening map[uint32]*listener // by network
	closed    bool
	wake      chan struct{} // Listen was called
}

// New returns a resolver. networks returns the networks of the container with an address; nil if none has it. resolvConf
// is the file with the machine's resolvers.
func New(networks func(netip.Addr) []uint32, resolvConf string, log *slog.Logger) *Resolver {
	return &Resolver{log: log, networks: networks, upstream: newUpstream(resolvConf), listening: map[uint32]*listener{}, wake: make(chan struct{}, 1)}
}

// Open gives the resolver the stored names. Those of another cluster than cluster are ignored; "" means that the agent
// belongs to none yet.
func (r *Resolver) Open(store Store, cluster string) error {
	r.store = store
	m, err := store.NetworkNames()
	if err != nil || m == nil {
		return err
	}
	if cluster != "" && cluster != m.GetEpoch().GetClusterId() {
		r.log.Warn("the stored names are of another cluster", "stored", m.GetEpoch().GetClusterId(), "cluster", cluster)
		return nil
	}
	r.names = m
	r.view.Store(newView(m))
	return nil
}

// Follow keeps the names current until ctx ends. It asks for none while the machine has no networks. cluster returns the
// id of the agent's cluster; "" if it belongs to none.
func (r *Resolver) Follow(ctx context.Context, source Source, node string, cluster func() string) {
	for ctx.Err() == nil {
		pause := failed
		if cluster() != "" && r.serves() {
			if err := r.ask(ctx, source, node, cluster()); err == nil {
				pause = calm
			} else if ctx.Err() == nil {
				r.log.Debug("names of networks", "error", err)
			}
		}
		r.warn()
		select {
		case <-time.After(pause):
		case <-r.wake:
		case <-ctx.Done():
		}
	}
}

// serves reports whether the resolver listens on a network.
func (r *Resolver) serves() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.listening) > 0
}

// ask asks a scheduler once for names that differ from the present ones.
func (r *Resolver) ask(ctx context.Context, source Source, node, cluster string) error {
	ctx, cancel := context.WithTimeout(ctx, watchLimit)
	defer cancel()
	r.mu.Lock()
	have := r.names
	r.mu.Unlock()
	reply, err := source.WatchNetworkNames(ctx, &controlv1.WatchNetworkNamesRequest{
		NodeId: node, ClusterId: cluster, Index: have.GetIndex(), Incarnation: have.GetEpoch().GetIncarnation(), Digest: have.GetDigest(),
	})
	if err != nil {
		return err
	}
	if m := reply.GetNames(); m != nil {
		if err := r.offer(m, cluster); err != nil {
			return err
		}
	}
	r.mu.Lock()
	r.confirmed = time.Now()
	r.mu.Unlock()
	return nil
}

// offer stores names and uses them. It returns an error if they are of another cluster or older than the present ones.
func (r *Resolver) offer(m *agentv1.NetworkNames, cluster string) error {
	r.mu.Lock()
	have := r.names
	r.mu.Unlock()
	was, is := have.GetEpoch().GetIncarnation(), m.GetEpoch().GetIncarnation()
	switch {
	case m.GetEpoch().GetClusterId() != cluster:
		return fmt.Errorf("the names are of cluster %s, this node belongs to %s", m.GetEpoch().GetClusterId(), cluster)
	case is < was || is == was && m.GetIndex() < have.GetIndex():
		return fmt.Errorf("the names have index %d of incarnation %d, the present ones %d of %d", m.GetIndex(), is, have.GetIndex(), was)
	}
	if err := r.store.PutNetworkNames(m); err != nil {
		return fmt.Errorf("storing the names: %w", err)
	}
	r.mu.Lock()
	r.names = m
	r.mu.Unlock()
	r.view.Store(newView(m))
	return nil
}

// Age returns for how long no scheduler has confirmed the names; 0 if that is less than OldAfter, or if
// the machine has no networks.
func (r *Resolver) Age() time.Duration {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	from := r.confirmed
	if from.IsZero() {
		from = r.since
	}
	age := time.Since(from)
	if len(r.listening) == 0 || age < OldAfter {
		return 0
	}
	return age
}

// warn logs when names become old, and when they are current again.
func (r *Resolver) warn() {
	age := r.Age()
	switch {
	case age > 0 && !r.old:
		r.old = true
		r.log.Warn("the names of networks are old: no scheduler has confirmed them", "for", age.Round(time.Second))
	case age == 0 && r.old:
		r.old = false
		r.log.Info("the names of networks are current again")
	}
}
