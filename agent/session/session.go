// Package session registers an agent with the schedulers of its cluster and sends heartbeats.
//
//   - The agent registers, then sends heartbeats: at the interval that the schedulers name, and soon after
//     a report has changed. Package heartbeat decides when, and what they report.
//   - Any replica may answer any call. An answer of another cluster, or of a replica that was
//     leader in an earlier term, is ignored.
//   - If the schedulers are unreachable, this package stops no workload. The agent registers again.
package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/fencer"
	"github.com/persys/compute/agent/host"
	"github.com/persys/compute/agent/message"
	"github.com/persys/compute/agent/metrics"
	"github.com/persys/compute/agent/mover"
	"github.com/persys/compute/agent/names"
	"github.com/persys/compute/agent/network"
	"github.com/persys/compute/agent/runner"
	"github.com/persys/compute/agent/session/heartbeat"
	"github.com/persys/compute/agent/spec"
	"github.com/persys/compute/agent/volume"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/order/wire"
)

// startWait is the longest wait for the engines and the fencer before the first registration.
const startWait = 5 * time.Second

// Control is the schedulers' API; controlv1.AgentControlClient satisfies it. Any replica may answer any
// call.
type Control interface {
	RegisterNode(context.Context, *controlv1.RegisterNodeRequest, ...grpc.CallOption) (*controlv1.RegisterNodeResponse, error)
	Heartbeat(context.Context, *controlv1.HeartbeatRequest, ...grpc.CallOption) (*controlv1.HeartbeatResponse, error)
}

// Config configures a Session. Metrics and Discovered may be nil.
type Config struct {
	Control Control
	Runner  *runner.Runner
	Host    host.Host
	Storage *volume.Manager
	Metrics *metrics.Metrics
	Logger  *slog.Logger
	// Discovered is called with the addresses of all scheduler replicas and of the leader, as named in a
	// scheduler's answer. leader may be empty. Discovered must not block.
	Discovered func(addresses []string, leader string)

	NodeID, Version, Advertise string
	Labels                     map[string]string
	Taints                     []*controlv1.Taint
	// Devices: see agent.Config.
	Devices      map[string]int64
	FeatureLevel uint32
	// ReservedCPU, ReservedMemory, ReservedDisk and Threshold say how much of the machine is not offered to
	// workloads; agent.Config documents these fields.
	ReservedCPU, ReservedMemory, ReservedDisk int64
	Threshold                                 int
	// Networks holds the schedulers' view of this node's networks. agent.Config documents Networking and
	// HeldPorts. All three may be nil.
	Networks   *network.Keeper
	Networking func(advertise string) *controlv1.NodeNetworking
	HeldPorts  func() string
	// Names is the DNS resolver for containers on networks between nodes; it may be nil.
	Names *names.Resolver
	// Moves copies volumes from other nodes; nil if this agent cannot.
	Moves *mover.Mover
	// MetricsPort is the port of /metrics; 0 = none.
	MetricsPort int
	// MemoryFiles: this machine can keep secrets and configs as files in memory.
	MemoryFiles bool
}

// State is the state of the agent's connection to the schedulers.
type State struct {
	Registered    bool
	LastHeartbeat time.Time // time of the last acknowledged heartbeat
	LeaseUntil    time.Time // end of the lease by this machine's clock, counted from when the request was sent
	Draining      bool      // the node is being drained and takes no new workloads
	Problem       string    // problem of the last call to the schedulers; empty if it succeeded
}

// Session registers the node and sends heartbeats.
type Session struct {
	cfg   Config
	r     *runner.Runner
	state atomic.Pointer[State]

	// Only Run uses the fields below.
	link     heartbeat.State
	held     string                  // what HeldPorts returned at the last registration
	measured uint64                  // newest version of usage readings that the schedulers have acknowledged
	volumes  *controlv1.VolumeReport // newest report of volumes that the schedulers have acknowledged
	problem  string
}

// New makes a Session; nothing is sent before Run.
func New(cfg Config) *Session {
	c := &Session{cfg: cfg, r: cfg.Runner, link: heartbeat.New()}
	c.state.Store(&State{})
	return c
}

// State returns the state of the connection to the schedulers.
func (c *Session) State() State { return *c.state.Load() }

func (c *Session) set(change func(*State)) {
	next := c.State()
	change(&next)
	c.state.Store(&next)
}

// Run registers and sends heartbeats until ctx ends.
func (c *Session) Run(ctx context.Context) {
	// The first registration reports the engines and the fencer, so wait for the first list of the engines
	// and for the fencer's first answer. Do not wait long: an engine that hangs must not delay the
	// registration of the node.
	for _, ready := range []<-chan struct{}{c.r.FirstSweep(), c.r.FencerAnswered()} {
		select {
		case <-ready:
		case <-time.After(startWait):
		case <-ctx.Done():
			return
		}
	}
	for ctx.Err() == nil {
		was := c.link.Registered
		if c.link = c.link.Expire(time.Now()); was && !c.link.Registered {
			c.cfg.Logger.Warn("the lease has ended; registering again", "since", c.link.LeaseUntil)
		}
		if c.r.Registers(true) || c.cfg.HeldPorts != nil && c.cfg.HeldPorts() != c.held {
			c.link.Registered = false
		}
		var err error
		if !c.link.Registered {
			err = c.register(ctx)
		}
		if err == nil {
			err = c.beat(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		c.note(err)
		c.wait(ctx, time.Now())
	}
}

// note records whether a call to the schedulers succeeded. It writes a log line only when calls begin to fail,
// fail with another error, or succeed again.
func (c *Session) note(err error) {
	problem := ""
	if err != nil {
		problem = err.Error()
		c.link = c.link.Failed(status.Code(err) == codes.NotFound)
	}
	if problem != c.problem {
		if problem != "" {
			c.cfg.Logger.Warn("a call to the schedulers failed", "error", problem)
		} else {
			c.cfg.Logger.Info("schedulers answer again")
		}
		c.problem = problem
	}
	c.set(func(s *State) { s.Problem, s.Registered, s.LeaseUntil = problem, c.link.Registered, c.link.LeaseUntil })
}

// wait blocks until the next call is due: after a failure when its wait is over, otherwise soon after a report has changed,
// or when the interval has passed since the time from.
func (c *Session) wait(ctx context.Context, from time.Time) {
	d := c.link.Wait(func(most time.Duration) time.Duration { return rand.N(most + 1) })
	timer := time.NewTimer(time.Until(from.Add(d)))
	defer timer.Stop()
	changed := c.r.Changed()
	if c.link.Failing() {
		changed = nil
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case <-changed:
		}
		select {
		case <-time.After(heartbeat.Coalesce):
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
		if c.link.Due(c.r.State().Version) || c.r.Registers(false) {
			return
		}
	}
}

func (c *Session) register(ctx context.Context) error {
	request := c.Registration()
	asked, sent := fencer.Now(), time.Now()
	request.Timestamp = timestamppb.New(sent)
	limited, cancel := context.WithTimeout(ctx, c.link.Deadline())
	defer cancel()
	reply, err := c.cfg.Control.RegisterNode(limited, request)
	c.cfg.Metrics.CountAnswer("register", status.Code(err).String())
	if err != nil {
		return fmt.Errorf("register: %w", err)
	}
	if !reply.Accepted {
		return fmt.Errorf("register: refused: %s", reply.Reason)
	}
	if err := c.hear(reply.ClusterId, spec.Epoch(reply.Epoch)); err != nil {
		return fmt.Errorf("register: %w", err)
	}
	c.held = request.GetCapabilities().GetNetworking().GetHeldPorts()
	a := message.RegistrationAnswer(sent, reply)
	c.link = c.link.Accepted(a)
	c.leased(asked, a)
	c.discovered(reply.SchedulerAddrs, reply.LeaderAddr)
	c.cfg.Logger.Info("registered", "interval", c.link.Interval, "lease", c.link.Lease, "epoch", a.Epoch.String())
	return nil
}

func (c *Session) discovered(addresses []string, leader string) {
	if fn := c.cfg.Discovered; fn != nil && (len(addresses) > 0 || leader != "") {
		fn(addresses, leader)
	}
}

func (c *Session) beat(ctx context.Context) error {
	var b heartbeat.Beat
	c.link, b = c.link.Beat()
	asked, sent := fencer.Now(), time.Now()
	statuses, version := message.Reports(c.r.State(), b.Full, !b.Legacy, c.link.Acked, sent)
	request := &controlv1.HeartbeatRequest{
		NodeId: c.cfg.NodeID, ClusterId: c.r.State().Meta.Epoch.ClusterID, Usage: c.Usage(), WorkloadStatuses: statuses,
		Timestamp: timestamppb.New(sent), Sequence: b.Sequence, Full: b.Full,
	}
	since := c.measured
	if b.Full {
		since = 0
	}
	request.NetworkIndex, request.NetworkIncarnation = c.cfg.Networks.Have()
	held := c.Volumes()
	if b.Full || !proto.Equal(held, c.volumes) {
		request.Volumes = held
	}
	request.Moves = c.cfg.Moves.Reports()
	var measured uint64
	request.WorkloadUsage, measured = c.WorkloadUsage(since)
	limited, cancel := context.WithTimeout(ctx, c.link.Deadline())
	defer cancel()
	reply, err := c.cfg.Control.Heartbeat(limited, request)
	c.cfg.Metrics.CountAnswer("heartbeat", status.Code(err).String())
	switch {
	case status.Code(err) == codes.NotFound:
		return fmt.Errorf("heartbeat: the schedulers do not know this node; registering again: %w", err)
	case err != nil:
		return fmt.Errorf("heartbeat: %w", err)
	case !reply.Acknowledged:
		return errors.New("heartbeat: the scheduler did not acknowledge it")
	}
	clusterID := reply.Epoch.GetClusterId()
	if err := c.hear(clusterID, spec.Epoch(reply.Epoch)); err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	c.cfg.Networks.Heard(reply.Networks)
	c.cfg.Moves.Heard(reply.Moves)
	c.measured, c.volumes = measured, held
	a := message.HeartbeatAnswer(sent, reply)
	c.link = c.link.Acknowledged(b, version, a)
	c.leased(asked, a)
	c.discovered(reply.SchedulerAddrs, reply.LeaderAddr)
	changed := c.State().Draining != reply.DrainNode
	c.set(func(s *State) { s.Draining, s.LastHeartbeat = reply.DrainNode, time.Now() })
	if changed {
		if _, err := c.r.Do(core.Drain{On: reply.DrainNode}); err != nil {
			return fmt.Errorf("heartbeat: storing whether the node drains: %w", err)
		}
		c.cfg.Logger.Info("the schedulers switched draining on or off", "draining", reply.DrainNode)
	}
	if c.link.Full {
		c.r.Signal()
	}
	return nil
}

// hear passes the cluster id and the epoch of a scheduler's answer to the core, which checks them. If hear
// returns an error, the answer must be ignored.
func (c *Session) hear(cluster string, epoch *core.Epoch) error {
	answer, err := c.r.Do(core.Heard{ClusterID: cluster, Epoch: epoch})
	switch {
	case err != nil:
		return fmt.Errorf("storing the epoch: %w", err)
	case answer.Refusal != nil:
		return answer.Refusal
	}
	return nil
}

// leased tells the core of a lease that the schedulers granted this node. It counts from the time asked, at which the
// request was sent, on the clock of fencer.Now.
func (c *Session) leased(asked time.Duration, a heartbeat.Answer) {
	if a.Lease <= 0 {
		return
	}
	if _, err := c.r.Do(core.Leased{Until: asked + a.Lease}); err != nil {
		c.cfg.Logger.Error("could not write the state file", "error", err)
	}
}

// Reports returns the reports of all workloads, as in a full heartbeat.
func (c *Session) Reports() []*controlv1.WorkloadStatus {
	out, _ := message.Reports(c.r.State(), true, true, 0, time.Now())
	return out
}

// maxReported is the maximum number of volumes in a heartbeat.
const maxReported = 2000

// Volumes returns the report of the managed volumes that the node holds.
func (c *Session) Volumes() *controlv1.VolumeReport {
	out := &controlv1.VolumeReport{Complete: true}
	for _, v := range c.cfg.Storage.List() {
		if !v.Made() {
			continue
		}
		if len(out.Volumes) == maxReported {
			out.Complete = false
			break
		}
		held := &controlv1.HeldVolume{
			Name: v.Name, Namespace: v.In(), Driver: v.Driver, SizeGb: v.SizeGB, Pool: v.Pool, Retain: v.Retain, Owner: v.Owner, ByHand: v.ByHand, Aside: v.Idle(),
		}
		if !v.Copy.IsZero() {
			held.Copy = wire.Control(v.Copy)
		}
		out.Volumes = append(out.Volumes, held)
	}
	return out
}

// Registration returns the message with which the node registers with the schedulers: its address, engines,
// resources and settings.
func (c *Session) Registration() *controlv1.RegisterNodeRequest {
	totals := c.cfg.Host.Totals()
	var pools []*controlv1.StoragePool
	for _, p := range c.r.Pools() {
		pools = append(pools, &controlv1.StoragePool{Name: p.Name, Type: p.Type, TotalGb: p.TotalGB})
	}
	cfg := &c.cfg
	var networking *controlv1.NodeNetworking
	if cfg.Networking != nil {
		networking = cfg.Networking(cfg.Advertise)
	}
	out := message.Registration(c.r.State())
	out.Labels, out.AgentVersion = cfg.Labels, cfg.Version
	out.GrpcEndpoint, out.FeatureLevel = cfg.Advertise, cfg.FeatureLevel
	caps := out.Capabilities
	caps.CpuTotalMillicores, caps.MemoryTotalMb, caps.StoragePools = totals.CPUMillicores, totals.MemoryMB, pools
	caps.SupportedStorageDrivers = append([]string{volume.Local}, cfg.Storage.Drivers()...)
	caps.CpuReservedMillicores, caps.MemoryReservedMb, caps.DiskReservedGb = cfg.ReservedCPU, cfg.ReservedMemory, cfg.ReservedDisk
	caps.ResourceThresholdPercent = uint32(cfg.Threshold)
	caps.Taints, caps.Networking, caps.MetricsPort, caps.MemoryFiles, caps.VolumeMoves = cfg.Taints, networking, uint32(cfg.MetricsPort), cfg.MemoryFiles, cfg.Moves != nil
	maps.Copy(caps.Devices, cfg.Devices)
	return out
}

// Usage returns how much of the node's resources is reserved for workloads, and how much is in use.
func (c *Session) Usage() *controlv1.NodeUsage {
	used, promised := c.cfg.Host.Usage(), c.r.State().Promised()
	out := &controlv1.NodeUsage{
		CpuUsedMillicores: used.CPUMillicores, MemoryUsedMb: used.MemoryMB, DiskUsedGb: used.DiskGB,
		NetRxBytes: used.NetReceived, NetTxBytes: used.NetSent, NetworkNamesAgeSeconds: uint32(c.cfg.Names.Age() / time.Second),
		CpuAllocatedMillicores: promised[0], MemoryAllocatedMb: promised[1], DiskAllocatedGb: promised[2],
	}
	for _, p := range c.r.Pools() {
		out.StoragePools = append(out.StoragePools, &controlv1.StoragePoolUsage{Name: p.Name, UsedGb: p.UsedGB, TotalGb: p.TotalGB})
	}
	return out
}

// WorkloadUsage returns the usage readings of workloads that are newer than the version given as after, and
// the version of the newest reading. A complete list, which a new leader gets, may have outdated readings.
// Their CPU use is marked as unmeasured.
func (c *Session) WorkloadUsage(after uint64) ([]*controlv1.WorkloadUsageSnapshot, uint64) {
	fresh, version := c.r.Used().After(after)
	state := c.r.State()
	out, now := make([]*controlv1.WorkloadUsageSnapshot, 0, len(fresh)), time.Now()
	for _, r := range fresh {
		limit, capped := int64(0), false
		if w := state.Get(string(r.ID)); w != nil && w.Intent != nil {
			limit, capped = w.Intent.Traits.DiskLimit, w.Observed != nil && w.Observed.DiskCapped
		}
		out = append(out, &controlv1.WorkloadUsageSnapshot{
			WorkloadId: string(r.ID), Type: string(r.Kind), CpuPercent: r.Percent(), CpuUnmeasured: r.Unmeasured(now), MemoryBytes: r.Memory,
			DiskReadBytes: r.DiskRead, DiskWriteBytes: r.DiskWrite, NetRxBytes: r.NetReceived, NetTxBytes: r.NetSent,
			CollectedAt: timestamppb.New(r.At), Source: r.Source,
			MemoryLimitBytes: r.MemoryLimit, DiskBytes: max(0, r.Disk), DiskLimitBytes: limit, DiskCapped: capped,
		})
	}
	return out, version
}
