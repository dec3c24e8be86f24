package gateway

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/rpc/dial"
)

// Routing strategies decide which replica of a cluster gets a call first. Any replica answers any call, so the choice
// affects only the speed, and whether a client keeps the same replica.
const (
	LeaderOnly = "leader-only" // try the leader first, then the other replicas
	Sticky     = "sticky"      // choose the replica by the caller's session
	Shard      = "shard"       // choose the replica by the workload id
)

// Cluster is one cluster that the gateway serves.
type Cluster struct {
	ID   string
	Name string
	// Strategy is LeaderOnly (the default), Sticky or Shard.
	Strategy string
	// Schedulers have fixed addresses. If Schedulers is empty, Discovery finds the addresses:
	// srv://NAME[?dns=HOST:PORT].
	Schedulers []Scheduler
	Discovery  string
}

// Scheduler is one replica as configured.
type Scheduler struct {
	ID      string
	Address string // address as host[:port]
	Leader  bool   // calls try this replica first, until a replica has named the leader
}

const (
	probeTimeout = 4 * time.Second
	// retirement is the time between two checks whether a replaced connection still has calls; without calls it is
	// closed. The time is long enough for a request that has just chosen the connection to start its call.
	retirement = 30 * time.Second
)

// Dialer opens a connection to schedulers; see dial.Options.
type Dialer func(ctx context.Context, opt dial.Options) (*dial.Conn, error)

// backend holds the connections to a cluster and the results of the probes.
type backend struct {
	Cluster
	log  *slog.Logger
	dial Dialer
	ctx  context.Context // the context ends with the gateway
	wg   sync.WaitGroup
	lead *dial.Conn // connection that calls the leader first

	mu       sync.Mutex
	replicas []*replica   // replicas in the order of their ids
	rings    []*dial.Conn // rings[i] tries replicas i, i+1, … in this order
}

// replica is one scheduler and the result of its last probe.
type replica struct {
	id       string
	end      dial.Endpoint
	conn     *dial.Conn // connection to this scheduler only
	leader   bool
	healthy  bool
	lastSeen time.Time
}

func newBackend(ctx context.Context, c Cluster, dialer Dialer, log *slog.Logger) (*backend, error) {
	// Sort the replicas in the order in which calls try them until one of them has named the leader
	// (contract/gateway-rest.md, "Routing").
	c.Schedulers = slices.Clone(c.Schedulers)
	slices.SortStableFunc(c.Schedulers, func(a, b Scheduler) int {
		if a.Leader != b.Leader {
			return map[bool]int{true: -1, false: 1}[a.Leader]
		}
		return cmp.Compare(a.ID, b.ID)
	})
	b := &backend{Cluster: c, log: log.With("cluster", c.ID), dial: dialer, ctx: ctx}
	opt := dial.Options{Discovery: c.Discovery}
	for _, s := range c.Schedulers {
		opt.Addrs = append(opt.Addrs, s.Address)
	}
	var err error
	if b.lead, err = dialer(ctx, opt); err != nil {
		return nil, fmt.Errorf("cluster %q: %w", c.ID, err)
	}
	if err := b.reconcile(); err != nil {
		b.close()
		return nil, fmt.Errorf("cluster %q: %w", c.ID, err)
	}
	return b, nil
}

func (b *backend) close() {
	b.mu.Lock()
	conns := append([]*dial.Conn{b.lead}, b.rings...)
	for _, r := range b.replicas {
		conns = append(conns, r.conn)
	}
	b.rings, b.replicas = nil, nil
	b.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
	b.wg.Wait()
}

// reconcile updates the list of replicas, and the tables by which Sticky and Shard choose a replica, to the scheduler
// addresses that were discovered. An endpoint keeps its discovered name beside the address, because a certificate may
// contain only the name.
func (b *backend) reconcile() error {
	ends := b.lead.Endpoints()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(ends) == len(b.replicas) && !slices.ContainsFunc(b.replicas, func(r *replica) bool { return !slices.ContainsFunc(ends, r.end.Equal) }) {
		return nil
	}
	var next []*replica
	var fresh, old []*dial.Conn
	undo := func(err error) error {
		for _, c := range fresh {
			_ = c.Close()
		}
		return err
	}
	for i, end := range ends {
		if at := slices.IndexFunc(b.replicas, func(r *replica) bool { return r.end.Equal(end) }); at >= 0 {
			next = append(next, b.replicas[at])
			continue
		}
		conn, err := b.dial(b.ctx, dial.Options{Endpoints: []dial.Endpoint{end}, Pinned: true})
		if err != nil {
			return undo(err)
		}
		fresh = append(fresh, conn)
		r := &replica{id: end.Addr, end: end, conn: conn}
		// The resolver keeps the order of configured addresses, so the endpoint with index i belongs to Schedulers[i].
		if i < len(b.Schedulers) && len(ends) == len(b.Schedulers) {
			r.id, r.leader = cmp.Or(b.Schedulers[i].ID, end.Addr), b.Schedulers[i].Leader
		}
		next = append(next, r)
	}
	slices.SortFunc(next, func(a, b *replica) int { return cmp.Compare(a.id, b.id) })
	var rings []*dial.Conn
	if b.Strategy == Sticky || b.Strategy == Shard {
		for i := range next {
			var order []dial.Endpoint
			for j := range next {
				order = append(order, next[(i+j)%len(next)].end)
			}
			conn, err := b.dial(b.ctx, dial.Options{Endpoints: order, Pinned: true})
			if err != nil {
				return undo(err)
			}
			fresh, rings = append(fresh, conn), append(rings, conn)
		}
	}
	for _, r := range b.replicas {
		if !slices.Contains(next, r) {
			old = append(old, r.conn)
		}
	}
	old = append(old, b.rings...)
	b.replicas, b.rings = next, rings
	if len(old) > 0 {
		b.wg.Go(func() { b.closeReplaced(old, retirement) })
	}
	return nil
}

// closeReplaced closes replaced connections, each after its last call has ended. A call may last for days if it is a session
// or a stream of events.
func (b *backend) closeReplaced(conns []*dial.Conn, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for len(conns) > 0 {
		select {
		case <-tick.C:
		case <-b.ctx.Done():
		}
		conns = slices.DeleteFunc(conns, func(c *dial.Conn) bool {
			if b.ctx.Err() == nil && c.Busy() {
				return false
			}
			_ = c.Close()
			return true
		})
	}
}

// watch probes the replicas until ctx ends.
func (b *backend) watch(ctx context.Context, every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		if err := b.reconcile(); err != nil {
			b.log.Warn("the schedulers' addresses are not usable", "error", err)
		}
		b.probe(ctx)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// probe asks all replicas for their status, at the same time.
func (b *backend) probe(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	b.mu.Lock()
	replicas := slices.Clone(b.replicas)
	b.mu.Unlock()
	var wg sync.WaitGroup
	for _, r := range replicas {
		wg.Go(func() {
			st, err := clusterv1.NewClusterClient(r.conn).Status(ctx, &clusterv1.StatusRequest{})
			b.mu.Lock()
			was := r.healthy
			r.healthy = err == nil
			if err == nil {
				r.lastSeen = time.Now()
				r.leader = st.GetLeaderId() != "" && st.GetLeaderId() == st.GetSelfId()
			} else {
				r.leader = false
			}
			b.mu.Unlock()
			if was != (err == nil) {
				b.log.Info("scheduler health changed", "scheduler", r.id, "addr", r.end.Addr, "healthy", err == nil, "error", err)
			}
		})
	}
	wg.Wait()
}

// view is a cluster as the route /clusters shows it (contract/gateway-rest.md).
type view struct {
	ID       string          `json:"id"`
	Name     string          `json:"name"`
	Strategy string          `json:"routing_strategy"`
	Total    int             `json:"total_schedulers"`
	Healthy  int             `json:"healthy_schedulers"`
	Members  []schedulerView `json:"schedulers"`
}

type schedulerView struct {
	ID       string `json:"id"`
	Address  string `json:"address"`
	IsLeader bool   `json:"is_leader"`
	Healthy  bool   `json:"healthy"`
	LastSeen string `json:"last_seen"`
}

func (b *backend) view() view {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := view{ID: b.ID, Name: b.Name, Strategy: b.Strategy, Total: len(b.replicas), Members: []schedulerView{}}
	for _, r := range b.replicas {
		if r.healthy {
			v.Healthy++
		}
		v.Members = append(v.Members, schedulerView{r.id, r.end.Addr, r.leader, r.healthy, r.lastSeen.UTC().Format(time.RFC3339)})
	}
	return v
}

// conn returns the connection for one request, by the cluster's strategy.
func (b *backend) conn(session, workload string) grpc.ClientConnInterface {
	key := session
	switch b.Strategy {
	case Shard:
		key = workload
	case Sticky:
	default:
		return b.lead
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.rings) == 0 {
		return b.lead
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(key)) // writing to a hash never fails
	return b.rings[int(h.Sum32()%uint32(len(b.rings)))]
}
