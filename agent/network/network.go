// Package network keeps the newest view of the networks that this node has to set up.
//
//   - A view comes with the answer to a heartbeat, and with the order of a container that joins a network.
//   - A view of another cluster or of a superseded leadership is refused, and so is a view that is older than the
//     present one.
//   - A view is on disk before it is used, so that a restarted agent sets up the same networks while no scheduler
//     answers.
package network

import (
	"context"
	"fmt"
	"log/slog"
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
	driver.Networks
}

// Store holds the newest view across restarts; *store.Store implements it.
type Store interface {
	Networks() (*agentv1.NetworkView, error) // nil if there is none
	PutNetworks(*agentv1.NetworkView) error
}

// Keeper holds the newest view. A nil Keeper ignores all views.
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

// Have returns the index of the present view and its incarnation; zeros if there is none.
func (k *Keeper) Have() (index, incarnation uint64) {
	if k == nil {
		return 0, 0
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.index, k.epoch.Incarnation
}

// Offer stores the view m and has the overlay set it up, if m is newer than the current view. It ignores a view that is
// the current one already. It returns an error if m is invalid, is of another cluster, or is older than the current view.
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
		return fmt.Errorf("the view is of cluster %s, this node belongs to %s", epoch.ClusterID, k.epoch.ClusterID)
	case epoch.Less(k.epoch):
		return fmt.Errorf("the view is of epoch %s, the present one of %s", epoch, k.epoch)
	case epoch.Incarnation == k.epoch.Incarnation && v.Index < k.index:
		return fmt.Errorf("the view has index %d, the present one %d", v.Index, k.index)
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

// Heard is Offer for callers that can do nothing about an error: it logs the error.
func (k *Keeper) Heard(m *agentv1.NetworkView) {
	if err := k.Offer(m); err != nil {
		k.log.Warn("networks: the view of the schedulers is ignored", "error", err)
	}
}
