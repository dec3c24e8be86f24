package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	controlv1 "github.com/persys/compute/api/control/v1"

	"github.com/persys/compute/agent/fencer"
	"github.com/persys/compute/agent/volume"
)

// protocol that this agent speaks: epochs, generations and our lease lengths.
const protocol = 1

const (
	// coalesce is how long a change waits for others before it is reported.
	coalesce = 100 * time.Millisecond
	// fullEvery is how many heartbeats carry changes only before one carries everything.
	fullEvery = 20

	backoffMin = 50 * time.Millisecond
	backoffMax = 2 * time.Second

	callMin, callMax = time.Second, 5 * time.Second
	defaultInterval  = 10 * time.Second // contract/wire-control.md
)

// SessionState is how the conversation with the schedulers stands.
type SessionState struct {
	Registered    bool
	LastHeartbeat time.Time // acknowledged
	LeaseUntil    time.Time // by this machine's clock, counted from when the request was sent
	Draining      bool      // takes no new workloads
	Problem       string    // of the last call, empty if it succeeded
}

// Session says how the conversation with the schedulers stands.
func (a *Agent) Session() SessionState {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.session
}

// conversation is the state of converse, which alone uses it.
type conversation struct {
	a          *Agent
	registered bool
	leaseUntil time.Time
	lease      time.Duration
	asked      time.Duration // by fencer.Now, when the last call was sent
	interval   time.Duration
	sequence   uint64
	acked      uint64 // version that the schedulers have
	measured   uint64 // version of the usage that they have
	full       bool
	sinceFull  int
	answered   Epoch
	failures   int
	problem    string
}

// converse registers and sends heartbeats until ctx ends. Nothing that happens here stops a
// workload.
func (a *Agent) converse(ctx context.Context) error {
	select {
	case <-a.looked:
	case <-time.After(callMax): // an engine that hangs must not keep the node away
	case <-ctx.Done():
		return nil
	}
	select {
	case <-a.met: // so that the first registration says whether there is a guard
	case <-time.After(callMax):
	case <-ctx.Done():
		return nil
	}
	c := &conversation{a: a, interval: defaultInterval, lease: 3 * defaultInterval}
	for ctx.Err() == nil {
		now := time.Now()
		if c.registered && !now.Before(c.leaseUntil) {
			a.log.Warn("the lease has lapsed; registering again", "since", c.leaseUntil)
			c.registered = false
		}
		if a.facts.Swap(false) {
			c.registered = false
		}
		var err error
		if !c.registered {
			err = c.register(ctx)
		}
		if err == nil {
			err = c.beat(ctx)
		}
		if ctx.Err() != nil {
			return nil
		}
		c.note(err)
		if err != nil {
			c.pause(ctx)
			continue
		}
		c.wait(ctx, time.Now())
	}
	return nil
}

// note keeps the outcome of a call; a lasting problem is logged when it begins, changes and ends.
func (c *conversation) note(err error) {
	problem := ""
	if err != nil {
		problem = err.Error()
		c.failures++
	} else {
		c.failures = 0
	}
	if problem != c.problem {
		if problem != "" {
			c.a.log.Warn("schedulers", "error", problem)
		} else {
			c.a.log.Info("schedulers answer again")
		}
		c.problem = problem
	}
	c.a.mu.Lock()
	c.a.session.Problem = problem
	c.a.session.Registered = c.registered
	c.a.session.LeaseUntil = c.leaseUntil
	c.a.mu.Unlock()
}

func (c *conversation) pause(ctx context.Context) {
	d := backoffMin << min(c.failures-1, 10)
	d = min(d, backoffMax)
	d = d/2 + rand.N(d/2+1)
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// wait returns when the next heartbeat is due: at the interval, less up to a tenth so that agents
// do not march in step, or soon after a change.
func (c *conversation) wait(ctx context.Context, from time.Time) {
	d := c.interval - rand.N(c.interval/10+1)
	timer := time.NewTimer(time.Until(from.Add(d)))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case <-c.a.dirty:
		}
		select {
		case <-time.After(coalesce):
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
		c.a.mu.Lock()
		news := c.a.version > c.acked
		c.a.mu.Unlock()
		if news || c.a.facts.Load() {
			return
		}
	}
}

// deadline of one call: well inside the lease, so that another can follow.
func (c *conversation) deadline() time.Duration {
	return min(max(c.lease/3, callMin), callMax)
}

func (c *conversation) register(ctx context.Context) error {
	a := c.a
	request := a.introduction()
	c.asked = fencer.Now()
	sent := time.Now()
	request.Timestamp = timestamppb.New(sent)
	limited, cancel := context.WithTimeout(ctx, c.deadline())
	defer cancel()
	reply, err := a.control.RegisterNode(limited, request)
	a.metrics.said("register", status.Code(err).String())
	if err != nil {
		return fmt.Errorf("register: %w", err)
	}
	if !reply.Accepted {
		return fmt.Errorf("register: refused: %s", reply.Reason)
	}
	if err := a.learn(reply.ClusterId, reply.Epoch); err != nil {
		return fmt.Errorf("register: %w", err)
	}
	c.registered, c.full, c.sequence = true, true, 0
	c.extend(sent, reply.LeaseSeconds, reply.LeaseExpiresAt, reply.Epoch != nil)
	c.setInterval(reply.HeartbeatIntervalSeconds)
	c.answered = epochFrom(reply.Epoch)
	c.discovered(reply.SchedulerAddrs, reply.LeaderAddr)
	a.log.Info("registered", "interval", c.interval, "lease", c.lease, "epoch", c.answered.String())
	return nil
}

func (c *conversation) setInterval(seconds int32) {
	if seconds > 0 {
		c.interval = time.Duration(seconds) * time.Second
	}
}

// extend takes over a lease. Ours come as a length, counted from when the request was sent; an
// Legacy v1 scheduler gives the end by its own clock, which has to be believed.
func (c *conversation) extend(sent time.Time, seconds int32, end *timestamppb.Timestamp, ours bool) {
	switch {
	case seconds > 0:
		c.lease = time.Duration(seconds) * time.Second
		c.leaseUntil = sent.Add(c.lease)
		c.a.leased(c.asked + c.lease)
	case ours:
		// Not extended: the leader could not confirm itself.
	case end.IsValid() && end.AsTime().After(sent):
		c.leaseUntil = end.AsTime()
		c.lease = c.leaseUntil.Sub(sent)
	default:
		c.leaseUntil = sent.Add(c.lease)
	}
}

func (c *conversation) discovered(addresses []string, leader string) {
	if fn := c.a.cfg.Discovered; fn != nil && (len(addresses) > 0 || leader != "") {
		fn(addresses, leader)
	}
}

func (c *conversation) beat(ctx context.Context) error {
	a := c.a
	// Legacy v1 schedulers, which name no epoch, expect everything each time.
	ours := c.answered != Epoch{}
	full := c.full || c.sinceFull >= fullEvery || !ours
	c.asked = fencer.Now()
	sent := time.Now()
	statuses, version := a.changes(full, ours, c.acked, sent)
	c.sequence++
	request := &controlv1.HeartbeatRequest{
		NodeId: a.cfg.NodeID, ClusterId: a.Epoch().ClusterID, Usage: a.usage(), WorkloadStatuses: statuses,
		Timestamp: timestamppb.New(sent), Sequence: c.sequence, Full: full,
	}
	since := c.measured
	if full {
		since = 0
	}
	var measured uint64
	request.WorkloadUsage, measured = a.workloadUsage(since)
	limited, cancel := context.WithTimeout(ctx, c.deadline())
	defer cancel()
	reply, err := a.control.Heartbeat(limited, request)
	a.metrics.said("heartbeat", status.Code(err).String())
	switch {
	case status.Code(err) == codes.NotFound:
		c.registered = false
		return fmt.Errorf("heartbeat: this node is not known; registering again: %w", err)
	case err != nil:
		return fmt.Errorf("heartbeat: %w", err)
	case !reply.Acknowledged:
		return errors.New("heartbeat: not acknowledged")
	}
	clusterID := reply.Epoch.GetClusterId()
	if err := a.learn(clusterID, reply.Epoch); err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	answered := epochFrom(reply.Epoch)
	c.acked, c.measured = version, measured
	c.sinceFull++
	if full {
		c.sinceFull = 0
	}
	// A new leadership knows nothing of what the one before it was told.
	c.full = reply.SendFull || answered != c.answered
	c.answered = answered
	c.extend(sent, reply.LeaseSeconds, reply.LeaseExpiresAt, reply.Epoch != nil)
	c.setInterval(reply.HeartbeatIntervalSeconds)
	c.discovered(reply.SchedulerAddrs, reply.LeaderAddr)
	a.mu.Lock()
	changed := a.draining != reply.DrainNode
	a.draining = reply.DrainNode
	a.session.Draining = reply.DrainNode
	a.session.LastHeartbeat = time.Now()
	a.mu.Unlock()
	if changed {
		a.log.Info("drain", "draining", reply.DrainNode)
	}
	if c.full {
		a.signal()
	}
	return nil
}

// introduction is what a node says of itself.
func (a *Agent) introduction() *controlv1.RegisterNodeRequest {
	totals := a.host.Totals()
	pools, _ := a.pools()
	a.mu.Lock()
	defer a.mu.Unlock()
	fencing, bound := a.selfFencing()
	var types, all []string
	for _, e := range inOrder(a.engines) {
		kind := string(e.drv.Kind())
		all = append(all, kind)
		if e.capacity.Healthy {
			types = append(types, kind)
		}
	}
	// An empty list would mean "an old agent: everything except vm". What is offered fails for the
	// moment, as the status says; where nothing ever is, no workload is of type none.
	switch {
	case len(all) == 0:
		types = []string{"none"}
	case len(types) == 0:
		types = all
	}
	return &controlv1.RegisterNodeRequest{
		NodeId: a.cfg.NodeID,
		Capabilities: &controlv1.NodeCapabilities{
			CpuTotalMillicores: totals.CPUMillicores, MemoryTotalMb: totals.MemoryMB,
			StoragePools:            pools,
			SupportedWorkloadTypes:  types,
			SupportedStorageDrivers: append([]string{volume.Local}, a.storage.Drivers()...),
			EngineId:                engineID(a.engines), Taints: a.cfg.Taints, Protocol: protocol,
			SelfFencing: fencing, FenceBoundSeconds: bound,
			CpuReservedMillicores: a.cfg.ReservedCPU, MemoryReservedMb: a.cfg.ReservedMemory,
			DiskReservedGb: a.cfg.ReservedDisk, ResourceThresholdPercent: uint32(a.cfg.Threshold),
		},
		Labels: a.cfg.Labels, AgentVersion: a.cfg.Version, GrpcEndpoint: a.cfg.Advertise,
		ClusterId: a.meta.Epoch.ClusterID, Shard: a.meta.Epoch.Shard, InstanceId: a.meta.InstanceID, FeatureLevel: a.cfg.FeatureLevel,
	}
}

// usage is what is promised to workloads and what is in use.
func (a *Agent) usage() *controlv1.NodeUsage {
	used := a.host.Usage()
	out := &controlv1.NodeUsage{
		CpuUsedMillicores: used.CPUMillicores, MemoryUsedMb: used.MemoryMB, DiskUsedGb: used.DiskGB,
		NetRxBytes: used.NetReceived, NetTxBytes: used.NetSent,
	}
	_, out.StoragePools = a.pools()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.workloads {
		if w.intent == nil {
			continue
		}
		cpu, memory, disk := w.intent.promised()
		out.CpuAllocatedMillicores += cpu
		out.MemoryAllocatedMb += memory
		out.DiskAllocatedGb += disk
	}
	return out
}
