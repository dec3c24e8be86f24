// Package network keeps the view of networks that the schedulers sent: the networks between nodes that this
// node has to set up.
//
//   - A view arrives with the answer to a heartbeat, and with the order of a container that joins a network.
//   - A view is refused if it is of another cluster, of a replica that was leader in an earlier term, or older
//     than the present view.
//   - A view is on disk before it is used, so that a restarted agent sets up the same networks while no
//     scheduler answers.
package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/spec"
	"github.com/persys/compute/agent/workload"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

// Overlay sets up networks on this machine; *overlay.Overlay implements it.
type Overlay interface {
	Set(v workload.NetworkView) // must not block
	Run(ctx context.Context)    // sets up the newest view until ctx ends
	// ProbePeers sends packets to other nodes of a network and returns, for each node, whether
	// answers came back.
	ProbePeers(ctx context.Context, network uint32, nodes []string) ([]*agentv1.NetworkProbe, error)
	// Trace opens TCP connections from this machine, or from the container of a workload with process pid.
	Trace(ctx context.Context, to []netip.AddrPort, id string, pid int) (out []*agentv1.TracedAddress, left int)
	driver.Networks
}

// Store keeps the newest network view of the schedulers over restarts of the agent; *store.Store implements it.
type Store interface {
	Networks() (*agentv1.NetworkView, error) // nil if there is none
	PutNetworks(*agentv1.NetworkView) error
}

// Keeper holds the newest view that the schedulers sent of this node's networks. A nil Keeper ignores all
// views.
type Keeper struct {
	store   Store
	overlay Overlay
	log     *slog.Logger

	mu    sync.Mutex
	epoch core.Epoch
	index uint64
}

// New returns a Keeper, and gives the stored view to the overlay. cluster is the cluster of the agent; "" if it
// belongs to none yet. A stored view of another cluster is ignored.
func New(store Store, overlay Overlay, cluster string, log *slog.Logger) (*Keeper, error) {
	k := &Keeper{store: store, overlay: overlay, log: log}
	m, err := store.Networks()
	if err != nil || m == nil {
		return k, err
	}
	v, err := spec.NetworkView(m)
	switch {
	case err != nil:
		log.Error("the stored networks are invalid; the schedulers send them again", "error", err)
	case cluster != "" && cluster != v.Cluster:
		log.Warn("the stored networks are of another cluster", "stored", v.Cluster, "cluster", cluster)
	default:
		k.epoch, k.index = *spec.Epoch(m.GetEpoch()), v.Index
		overlay.Set(v)
	}
	return k, nil
}

// Have returns the index (version) of the present view, and the incarnation of the schedulers' state from
// which the view was made. Both are 0 if there is no view.
func (k *Keeper) Have() (index, incarnation uint64) {
	if k == nil {
		return 0, 0
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.index, k.epoch.Incarnation
}

// If the view m is newer than the current view, Offer stores it and passes it to the overlay, which sets it up.
// If m is the current view, Offer does nothing. It returns an error if m is invalid, is of another cluster, or
// is older than the current view.
func (k *Keeper) Offer(m *agentv1.NetworkView) error {
	if k == nil || m == nil {
		return nil
	}
	v, err := spec.NetworkView(m)
	if err != nil {
		return err
	}
	epoch := *spec.Epoch(m.GetEpoch())
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.epoch.ClusterID != "" && k.epoch.ClusterID != epoch.ClusterID:
		return fmt.Errorf("the network view is from cluster %s, but this node belongs to cluster %s", epoch.ClusterID, k.epoch.ClusterID)
	case epoch.Less(k.epoch):
		return fmt.Errorf("the network view is from epoch %s, which is older than epoch %s of the present view", epoch, k.epoch)
	case epoch.Incarnation == k.epoch.Incarnation && v.Index < k.index:
		return fmt.Errorf("the network view has index %d, which is older than index %d of the present view", v.Index, k.index)
	case epoch.Incarnation == k.epoch.Incarnation && v.Index == k.index:
		return nil
	}
	if err := k.store.PutNetworks(m); err != nil {
		return fmt.Errorf("storing the networks: %w", err)
	}
	k.epoch, k.index = epoch, v.Index
	k.overlay.Set(v)
	return nil
}

// Probe sends packets to other nodes of a network and returns, for each node, whether answers came
// back.
func (k *Keeper) Probe(ctx context.Context, network uint32, nodes []string) ([]*agentv1.NetworkProbe, error) {
	if k == nil {
		return nil, errors.New("this node cannot take part in networks")
	}
	return k.overlay.ProbePeers(ctx, network, nodes)
}

// Trace opens TCP connections from this machine or, if pid is not 0, from the container of a workload.
func (k *Keeper) Trace(ctx context.Context, to []netip.AddrPort, id string, pid int) (out []*agentv1.TracedAddress, left int, err error) {
	if k == nil {
		return nil, 0, errors.New("this node cannot take part in networks")
	}
	out, left = k.overlay.Trace(ctx, to, id, pid)
	return out, left, nil
}

// Heard calls Offer and logs the error, for callers that cannot handle it.
func (k *Keeper) Heard(m *agentv1.NetworkView) {
	if err := k.Offer(m); err != nil {
		k.log.Warn("ignored the networks that a scheduler sent", "error", err)
	}
}
