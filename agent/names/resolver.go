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

	"github.com/persys/compute/agent/workload"
	agentv1 "github.com/persys/compute/api/agent/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
)

// Store keeps the newest names over restarts of the agent; *store.Store implements it.
type Store interface {
	NetworkNames() (*agentv1.NetworkNames, error) // nil if there are none
	PutNetworkNames(*agentv1.NetworkNames) error
}

// Source is the API of the schedulers: the call with which Follow fetches the names.
type Source interface {
	WatchNetworkNames(context.Context, *controlv1.WatchNetworkNamesRequest, ...grpc.CallOption) (*controlv1.WatchNetworkNamesResponse, error)
}

const (
	// If no scheduler has answered for the time OldAfter, the resolver reports that its names may be outdated.
	OldAfter = 30 * time.Second
	// watchLimit is the deadline of one call to a scheduler, which answers at the latest after 4 s, even if no
	// name has changed.
	watchLimit = 15 * time.Second
	// calm is the minimum time between two calls to the schedulers, so that one answer carries many
	// changes. failed is the minimum time between a failed call and the next one.
	calm, failed = 100 * time.Millisecond, time.Second
)

// Resolver answers the DNS queries of containers. New makes one, and Open loads the stored names; the zero
// value cannot be used.
type Resolver struct {
	log      *slog.Logger
	machine  Machine
	upstream *upstream
	store    Store

	view atomic.Pointer[view] // nil until the first names arrive
	turn atomic.Uint32        // counts answers with several records; selects the record that comes first in the next answer

	mu        sync.Mutex
	names     *agentv1.NetworkNames // the newest names; nil before the first ones
	confirmed time.Time             // time at which a scheduler last confirmed that the names are the newest; zero before the first confirmation
	since     time.Time             // when the machine got its first network; before the first confirmation, the age of the names is counted from this time
	old       bool                  // whether the log says that the names are outdated

	listening map[uint32]*listener // by network id
	closed    bool
	wake      chan struct{} // receives a value when Listen was called
}

// Machine has the functions of the machine's networks that the resolver calls. *overlay.Overlay implements it.
type Machine interface {
	// NetworksAt returns the ids of the networks of the container that has an address; nil if no container has
	// it.
	NetworksAt(netip.Addr) []uint32
	// SetServices makes the machine balance connections to the addresses of services over their instances.
	// It must not block.
	SetServices(workload.ServiceView)
	// Serves reports whether containers of this machine can already reach the service with this address.
	Serves(netip.Addr) bool
}

// New returns a resolver. resolvConf is the path of the file that lists the machine's own resolvers.
func New(machine Machine, resolvConf string, log *slog.Logger) *Resolver {
	return &Resolver{log: log, machine: machine, upstream: newUpstream(resolvConf), listening: map[uint32]*listener{}, wake: make(chan struct{}, 1)}
}

// Open loads the stored names. It ignores stored names of another cluster than the agent's, whose id is
// cluster; cluster is "" if the agent belongs to no cluster yet.
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
	r.use(m)
	return nil
}

// use makes the resolver answer with the names in m from now on. It passes the services in m to the
// machine, which balances connections to them.
func (r *Resolver) use(m *agentv1.NetworkNames) {
	r.view.Store(newView(m))
	r.machine.SetServices(services(m))
}

// Follow fetches the names from the schedulers whenever they change, until ctx ends. It makes no call while
// the machine has no networks. cluster returns the id of the agent's cluster; "" if it belongs to none.
func (r *Resolver) Follow(ctx context.Context, source Source, node string, cluster func() string) {
	for ctx.Err() == nil {
		pause := failed
		if cluster() != "" && r.serves() {
			if err := r.ask(ctx, source, node, cluster()); err == nil {
				pause = calm
			} else if ctx.Err() == nil {
				r.log.Debug("could not fetch the names of networks", "error", err)
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

// serves reports whether the resolver listens on at least one network.
func (r *Resolver) serves() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.listening) > 0
}

// ask makes one call to a scheduler. The scheduler waits for a change, and returns the names if
// they differ from those that the resolver has.
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

// offer stores the names in m on disk, and then uses them for the answers to queries. It returns an error if
// the names belong to another cluster or are older than the present names.
func (r *Resolver) offer(m *agentv1.NetworkNames, cluster string) error {
	r.mu.Lock()
	have := r.names
	r.mu.Unlock()
	was, is := have.GetEpoch().GetIncarnation(), m.GetEpoch().GetIncarnation()
	switch {
	case m.GetEpoch().GetClusterId() != cluster:
		return fmt.Errorf("the names are of cluster %s, but this node belongs to cluster %s", m.GetEpoch().GetClusterId(), cluster)
	case is < was || is == was && m.GetIndex() < have.GetIndex():
		return fmt.Errorf("the names are older than the present ones: they have index %d of incarnation %d, the present ones have index %d of incarnation %d", m.GetIndex(), is, have.GetIndex(), was)
	}
	if err := r.store.PutNetworkNames(m); err != nil {
		return fmt.Errorf("storing the names: %w", err)
	}
	r.mu.Lock()
	r.names = m
	r.mu.Unlock()
	r.use(m)
	return nil
}

// Age returns how long ago a scheduler last confirmed that the names are current. It returns 0 if that was less
// than OldAfter ago, or if the machine has no networks.
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

// warn logs when no scheduler has confirmed the names for the time OldAfter, and when one confirms them again.
func (r *Resolver) warn() {
	age := r.Age()
	switch {
	case age > 0 && !r.old:
		r.old = true
		r.log.Warn("the names of networks may be outdated: no scheduler has confirmed them", "for", age.Round(time.Second))
	case age == 0 && r.old:
		r.old = false
		r.log.Info("the names of networks are current again")
	}
}
