package overlay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moby/moby/client"

	"github.com/persys/compute/agent/overlay/plan"
	"github.com/persys/compute/agent/workload"
)

// Config configures an Overlay. Node, Store and Logger are required.
type Config struct {
	Node string
	// DockerHost is the address of the container engine. Empty means DOCKER_HOST, else the default socket.
	DockerHost string
	// Store holds the addresses of containers.
	Store AddressStore
	// Names answers the DNS queries of containers. If Names is nil, containers get no DNS server on this
	// machine.
	Names Names
	// Forbids reports whether the policy of this machine (PERSYS_POLICY) forbids a port in ingress mode. If Forbids is
	// nil, no port is forbidden.
	Forbids func(workload.IngressPort) bool
	// Metrics may be nil.
	Metrics Metrics
	Logger  *slog.Logger
}

// Names answers the DNS queries of containers. *names.Resolver implements it.
type Names interface {
	// Listen listens at the address of each bridge, and nowhere else. It returns the sorted ids of the
	// networks on which it answers queries, and the reasons why it does not answer on others. It must not
	// block.
	Listen(bridges []workload.NetworkBridge) (works []uint32, problems []string)
}

// Metrics counts repairs of the networks, and records the number of problems. *metrics.Metrics implements it.
type Metrics interface {
	NetworkRepaired()
	NetworkProblems(n int)
}

// noMetrics counts nothing.
type noMetrics struct{}

func (noMetrics) NetworkRepaired()    {}
func (noMetrics) NetworkProblems(int) {}

// AddressStore stores the addresses of containers on networks. *store.Store implements it.
type AddressStore interface {
	Addresses() ([]workload.NetworkAddress, error)
	PutAddress(workload.NetworkAddress) error
	DropAddress(workload.NetworkAddress) error
}

// Overlay sets up the networks between nodes on this machine, as the newest view of the schedulers
// describes them.
type Overlay struct {
	cfg     Config
	log     *slog.Logger
	engine  func(cluster string) (engine, error)
	compare time.Duration // time between two comparisons of the whole machine with the view

	wake    chan struct{} // receives a value when there is a new view
	foreign chan struct{} // receives a value when the kernel has announced a change by another program
	balance chan struct{} // receives a value when the kernel's table of services must be compared with the view

	addresses addresses
	bridges   atomic.Pointer[map[int]bool] // indexes of our bridges

	mu       sync.Mutex
	view     *workload.NetworkView // the newest view; nil before the first Set
	stale    bool                  // the reconciler's list of the engine's networks is outdated
	ready    []uint32              // ids of networks that are set up, sorted
	named    []uint32              // ids of networks on which the resolver answers containers, sorted
	problems []string
	passed   chan struct{} // closed at the end of the next pass
	services serviceState
}

const (
	// compareEvery is the time between two comparisons of the whole machine with the schedulers' view of its
	// networks. Such a comparison finds changes that no monitor announced.
	compareEvery = time.Minute
	// calm is how long Run waits after the kernel announced a change by another program, to collect further
	// changes, before it compares the machine with the view.
	calm = 200 * time.Millisecond
	// A failed pass (one comparison of the machine with the view) is repeated after a delay: retryMin at
	// first, then doubled each time up to retryMax.
	retryMin, retryMax = time.Second, 30 * time.Second
	// maxPasses is the maximum number of passes for one view. In a pass the agent compares the machine with
	// the view and makes changes. Two passes are enough unless other programs interfere: the second pass sees
	// the addresses of the bridges that the first one created.
	maxPasses = 5
)

// New makes an Overlay from its settings. The sockets through which it configures the kernel are opened by Run.
func New(cfg Config) (*Overlay, error) {
	if cfg.Metrics == nil {
		cfg.Metrics = noMetrics{}
	}
	if cfg.Forbids == nil {
		cfg.Forbids = func(workload.IngressPort) bool { return false }
	}
	o := &Overlay{
		cfg: cfg, log: cfg.Logger, compare: compareEvery, passed: make(chan struct{}),
		wake: make(chan struct{}, 1), foreign: make(chan struct{}, 1), balance: make(chan struct{}, 1), addresses: addresses{store: cfg.Store},
	}
	o.services.told = make(chan struct{})
	o.engine = func(cluster string) (engine, error) {
		opts := []client.Opt{client.FromEnv}
		if cfg.DockerHost != "" {
			opts = append(opts, client.WithHost(cfg.DockerHost))
		}
		cli, err := client.New(opts...)
		if err != nil {
			return nil, fmt.Errorf("engine address %q: %w", cfg.DockerHost, err)
		}
		return &docker{cli: cli, cluster: cluster, node: cfg.Node}, nil
	}
	return o, o.addresses.load()
}

// Set gives Run a new view of the node's networks from the schedulers. It does not block. Until the first call
// of Set, Run changes nothing.
func (o *Overlay) Set(v workload.NetworkView) {
	o.mu.Lock()
	o.view, o.stale = &v, true
	o.mu.Unlock()
	signal(o.wake)
	signal(o.balance)
}

// Problems returns one text for each reason why a network of this machine does not work.
func (o *Overlay) Problems() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Concat(o.problems, o.services.problems)
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run sets up this machine as the newest view describes it, until ctx ends. At the end it removes nothing.
// It must run in the network namespace of the container engine.
func (o *Overlay) Run(ctx context.Context) {
	var workers sync.WaitGroup
	defer workers.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &reconciler{o: o, ports: map[int]bool{}}
	defer r.close()
	ticker := time.NewTicker(o.compare)
	defer ticker.Stop()
	retry := time.NewTimer(0)
	defer retry.Stop()
	pause := retryMin
	watching := false
	broken := make(chan struct{}, 1) // receives a value when a monitor has failed
	balancing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-o.wake:
		case <-retry.C:
		case <-broken:
			watching = false
		case <-ticker.C:
			o.refresh()
		case <-o.foreign:
			if !sleep(ctx, calm) {
				return
			}
			drain(o.foreign)
			signal(o.balance)
		}
		if o.current() == nil {
			continue
		}
		if !balancing { // opened on this thread, because a socket belongs to the network namespace of its thread
			if b, err := OpenBalancer(); err != nil {
				o.log.Warn("cannot balance connections to the services of networks", "error", err)
			} else {
				balancing = true
				workers.Go(func() { o.runServices(ctx, b) })
			}
		}
		if !watching { // start the monitors before the comparison, so that no change is missed
			if err := o.watch(ctx, &workers, broken); err != nil {
				o.log.Warn("cannot watch the kernel's networks: changes by other programs are found only once a minute", "error", err)
			} else {
				watching = true
			}
		}
		if r.reconcile(ctx) {
			pause = retryMin
			continue
		}
		retry.Reset(pause)
		pause = min(2*pause, retryMax)
	}
}

func drain(c <-chan struct{}) {
	select {
	case <-c:
	default:
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// watch starts the monitors, which announce changes of the kernel's networks.
func (o *Overlay) watch(ctx context.Context, workers *sync.WaitGroup, broken chan<- struct{}) error {
	monitors, err := openMonitors(func(bridge int) bool {
		ours := o.bridges.Load()
		return ours != nil && (*ours)[bridge]
	})
	if err != nil {
		for _, m := range monitors {
			_ = m.conn.Close()
		}
		return err
	}
	workers.Go(func() {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		var all sync.WaitGroup
		for _, m := range monitors {
			all.Go(func() {
				defer cancel() // if one monitor fails, stop the others too
				if err := m.watch(ctx, func() { signal(o.foreign) }); err != nil {
					o.log.Warn("watching the kernel's networks failed; it starts again", "error", err)
					signal(broken)
				}
			})
		}
		all.Wait()
	})
	return nil
}

func (o *Overlay) current() *workload.NetworkView {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.view
}

// Address returns this node's address on the network between the nodes, from the schedulers' newest view; the
// zero address if no view has arrived yet.
func (o *Overlay) Address() netip.Addr {
	if v := o.current(); v != nil {
		return v.Address
	}
	return netip.Addr{}
}

// NetworksAt returns the networks of the container with an address; the resolver uses it to decide which
// names a container may resolve. For a container that another program started on a bridge, it returns only
// the network whose slice (the part of the subnet that this node uses) contains the address.
func (o *Overlay) NetworksAt(a netip.Addr) []uint32 {
	if list := o.addresses.networksAt(a); len(list) > 0 {
		return list
	}
	if v := o.current(); v != nil {
		for _, n := range v.Networks {
			if n.Slice.Contains(a) {
				return []uint32{n.ID}
			}
		}
	}
	return nil
}

// refresh makes the next pass list the engine's networks again, because they may have changed.
func (o *Overlay) refresh() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stale = true
}

func (o *Overlay) takeStale() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	stale := o.stale
	o.stale = false
	return stale
}

// report publishes the result of a pass: the ids of the networks that are set up, and the problems. It wakes
// the calls of Join that wait for a network.
func (o *Overlay) report(ready []uint32, problems []string) {
	slices.Sort(problems)
	problems = slices.Compact(problems)
	o.mu.Lock()
	changed := !slices.Equal(problems, o.problems)
	o.ready, o.problems = ready, problems
	o.route(o.view, ready)
	close(o.passed)
	o.passed = make(chan struct{})
	o.mu.Unlock()
	o.cfg.Metrics.NetworkProblems(len(problems))
	if changed && len(problems) > 0 {
		o.log.Warn("networks between nodes have problems", "problems", strings.Join(problems, "; "))
	}
}

// reconciler is the state of Run.
type reconciler struct {
	o       *Overlay
	kernel  *kernel
	engine  engine
	cluster string // cluster of the engine's labels

	networks []plan.ObservedNetwork // as the engine listed them last
	listed   bool                   // the engine has answered at least once
	settled  *workload.NetworkView  // view for which the last pass found nothing to do
	ports    map[int]bool           // ports of bridges in hairpin mode, see kernel.Reflect
}

func (r *reconciler) close() {
	if r.kernel != nil {
		r.kernel.Close()
	}
}

// open opens the connections to the kernel and to the engine, unless they are open.
func (r *reconciler) open(v *workload.NetworkView) (err error) {
	if r.kernel == nil {
		if r.kernel, err = openKernel(); err != nil {
			return err
		}
	}
	if r.engine == nil || r.cluster != v.Cluster {
		r.engine, err = r.o.engine(v.Cluster)
		r.cluster, r.listed, r.networks = v.Cluster, false, nil
		r.o.refresh()
	}
	return err
}

// reconcile changes the machine until its networks equal the present view. It returns false if operations
// failed or are still needed.
func (r *reconciler) reconcile(ctx context.Context) bool {
	v := r.o.current()
	if err := r.open(v); err != nil {
		r.o.report(nil, []string{err.Error()})
		return false
	}
	foreign := r.settled == v // the machine has matched this view before, so any operation repairs a change by another program
	var repaired []string
	var res plan.Result
	var failed error
	done := false
	for pass := 0; pass < maxPasses && ctx.Err() == nil; pass++ {
		// Carry out the kernel's operations first, because the engine may take long to answer.
		ops, err := r.pass(ctx, v, &res, &repaired, false)
		if r.o.takeStale() {
			r.list(ctx, v)
			continue
		}
		more, err2 := r.pass(ctx, v, &res, &repaired, true)
		failed = errors.Join(err, err2)
		if done = ops+more == 0; done || failed != nil {
			break
		}
	}
	problems := slices.Clone(res.Problems)
	if failed != nil {
		problems = append(problems, strings.Split(failed.Error(), "\n")...)
	}
	if !r.listed {
		problems = append(problems, "the container engine does not answer")
	}
	if ctx.Err() != nil {
		return true
	}
	problems = append(problems, r.listen(v)...)
	r.o.report(res.Ready, problems)
	switch {
	case foreign && len(repaired) > 0:
		r.o.cfg.Metrics.NetworkRepaired()
		r.o.log.Warn("another program changed the networks between nodes; repaired", "operations", strings.Join(repaired, "; "))
	case len(repaired) > 0:
		r.o.log.Info("changed the networks between nodes", "index", v.Index, "operations", strings.Join(repaired, "; "))
	}
	if done {
		r.settled = v
	}
	return done && r.listed && len(problems) == 0
}

// listen tells the resolver to listen on the bridges that the engine has made. It returns the reasons why the
// resolver does not listen on some of them.
func (r *reconciler) listen(v *workload.NetworkView) []string {
	if r.o.cfg.Names == nil {
		return nil
	}
	var bridges []workload.NetworkBridge
	for _, n := range v.Networks {
		if slices.ContainsFunc(r.networks, func(have plan.ObservedNetwork) bool { return have.ID == n.ID && have.Slice == n.Slice }) {
			bridges = append(bridges, workload.NetworkBridge{Network: n.ID, Address: plan.Gateway(n.Slice), Slice: n.Slice})
		}
	}
	works, problems := r.o.cfg.Names.Listen(bridges)
	r.o.mu.Lock()
	r.o.named = works
	r.o.mu.Unlock()
	return problems
}

// list asks the engine for its networks with our labels and stores the list. If the engine does not answer, the
// previous list is kept.
func (r *reconciler) list(ctx context.Context, v *workload.NetworkView) {
	networks, held, err := r.engine.Networks(ctx)
	if err != nil {
		r.o.log.Debug("cannot list the networks of the container engine", "error", err)
		r.o.refresh()
		r.listed = false
		return
	}
	r.networks, r.listed = networks, true
	if err := r.o.addresses.learn(held, v, networks); err != nil {
		r.o.log.Error("could not store the addresses of containers", "error", err)
	}
}

// alias returns the text that marks the VXLAN device and the nftables tables as those of this
// agent.
func alias(cluster, node string) string { return "persys " + cluster + " " + node }

// pass reads the state of the machine and computes the operations that are needed. Then it carries out either
// those on the engine or those on the kernel, and returns how many there were.
func (r *reconciler) pass(ctx context.Context, v *workload.NetworkView, res *plan.Result, log *[]string, ofEngine bool) (n int, err error) {
	seen, err := r.kernel.Observe(v.Address)
	if err != nil {
		return 1, err
	}
	seen.Engine, seen.Answers = slices.Clone(r.networks), r.listed
	bridges := map[int]bool{}
	for i := range seen.Engine {
		n := &seen.Engine[i]
		index, set, err := r.kernel.Bridge(plan.Bridge(n.ID))
		if err != nil {
			return 1, err
		}
		if n.Link, n.Set = index != 0, set; n.Link {
			bridges[index] = true
		}
	}
	r.o.bridges.Store(&bridges)
	if err := r.kernel.Reflect(bridges, r.ports); err != nil {
		return 1, err
	}
	*res = plan.Plan(plan.Input{View: *v, Alias: alias(v.Cluster, r.o.cfg.Node), Seen: seen})
	var errs []error
	for _, op := range res.Ops {
		var err error
		switch op := op.(type) {
		case plan.CreateNetwork:
			if !ofEngine {
				continue
			}
			err = r.engine.Create(ctx, op.EngineNetwork)
			r.o.refresh()
		case plan.RemoveNetwork:
			if !ofEngine {
				continue
			}
			err = r.engine.Remove(ctx, op.ID)
			r.o.refresh()
		default:
			if ofEngine {
				continue
			}
			err = r.kernel.Apply(op)
		}
		n++
		name, _, _ := strings.Cut(op.String(), "\n")
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", strings.TrimSuffix(name, " {"), err))
			continue
		}
		*log = append(*log, strings.TrimSuffix(name, " {"))
	}
	return n, errors.Join(errs...)
}
