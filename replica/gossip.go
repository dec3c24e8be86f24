package replica

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc"
	"github.com/persys/compute/rpc/dial"
)

// gossipKeys holds the ids of the gossip keys that this replica has installed. These are the keys of the gossip ring
// (list of valid gossip keys) in the replicated state. It also stores the ring, sealed, in the data directory, because
// a starting replica needs gossip before it has any state.
type gossipKeys struct {
	mu  sync.Mutex
	ids []string // ids of the gossip keys, the encrypting key first; nil = gossip is not encrypted
}

// gossipRing returns the path of the file that stores the last gossip ring of the state.
func (c *Config) gossipRing() string { return filepath.Join(c.DataDir, "gossip.ring") }

// gossipRing returns the ring with which this replica starts: the ring of the last run, the ring in the
// answer to a join, or the ring of a new cluster, whose key is derived from the cluster key.
func (r *Replica) gossipRing(key *pki.Key) (pki.GossipRing, error) {
	raw, err := os.ReadFile(r.cfg.gossipRing())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return pki.GossipRing{}, err
	}
	ring, err := pki.OpenGossipRing(key, string(raw))
	if err != nil {
		r.log.Warn("the gossip keys in this file cannot be decrypted; starting with the initial key, which is derived from the cluster key", "file", r.cfg.gossipRing(), "err", err)
		return pki.NewGossipRing(), nil
	}
	return ring, nil
}

// installed returns the ids of the gossip keys that this replica can use at present.
func (g *gossipKeys) installed() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.ids)
}

// ringIDs returns the ids of the keys in a ring, the encrypting key first.
func ringIDs(r pki.GossipRing) []string {
	ids := []string{r.Seals}
	for _, id := range r.IDs() {
		if id != r.Seals {
			ids = append(ids, id)
		}
	}
	return ids
}

// followGossip installs the gossip keys of the ring in the replicated state.
func (r *Replica) followGossip(v fsm.View) error {
	sealed := v.Info().GossipRing
	if sealed == "" {
		return nil
	}
	key, err := r.keys.Key()
	if err != nil {
		return err
	}
	ring, err := pki.OpenGossipRing(key, sealed)
	if err != nil {
		return err
	}
	ids := ringIDs(ring)
	same := slices.Equal(ids, r.gossip.installed())
	// The file is written again too if the ring is now sealed under another cluster key.
	if stored, err := os.ReadFile(r.cfg.gossipRing()); same && err == nil && string(stored) == sealed {
		return nil
	}
	if err := pki.WriteFile(r.cfg.gossipRing(), []byte(sealed), 0o600); err != nil || same {
		return err
	}
	if err := r.node.SetGossipKeys(ring.Raw(key)); err != nil {
		return err
	}
	r.gossip.mu.Lock()
	r.gossip.ids = ids
	r.gossip.mu.Unlock()
	r.log.Info("gossip keys changed", "seals", ring.Seals, "keys", ids)
	return nil
}

// advanceGossip makes the next step of a gossip key rotation once every replica, except revoked replicas, has made the
// previous step. If it did not wait, a replica that is down during the rotation could not decrypt gossip afterwards.
// If schedulers were revoked after the gossip key was made, one of them may still hold the key, so advanceGossip
// starts a rotation (docs/adr/0019). It must be called after the revocations in v were applied to this replica.
func (r *Replica) advanceGossip(ctx context.Context, v fsm.View) error {
	info, against := v.Info(), rpc.GossipAgainst(v)
	if !r.node.IsLeader() || info.GossipRing == "" && against == "" || r.gossip.installed() == nil {
		return nil
	}
	key, err := r.keys.Key()
	if err != nil {
		return err
	}
	ring, err := pki.OpenGossipRing(key, info.GossipRing)
	if settled := err == nil && ring.Settled(); err != nil || settled && (against == "" || against == ring.Against() || rpc.SchedulerRevoked(v, r.cfg.Name)) {
		return err
	} else if settled {
		next, err := ring.Add(against)
		if err != nil {
			return err
		}
		return r.setGossip(ctx, key, next, info.GossipVersion, "opens "+next.Newest()+": a scheduler was revoked")
	}
	want := ringIDs(ring)
	var replicas []*fsm.Replica
	v.Replicas(func(p *fsm.Replica) bool { replicas = append(replicas, p); return true })
	for _, p := range replicas {
		if rpc.SchedulerRevoked(v, p.Name) {
			continue
		}
		have := r.gossip.installed()
		if p.ID != r.node.ID() {
			if have, err = r.askGossip(ctx, p.GRPCAddr); err != nil {
				return fmt.Errorf("gossip key %s waits for scheduler %s: %w", ring.Newest(), p.Name, err)
			}
		}
		if !slices.Equal(have, want) {
			return nil // a replica has not made the last step yet; try again at the next tick
		}
	}
	next, step := ring.Next()
	return r.setGossip(ctx, key, next, info.GossipVersion, step)
}

func (r *Replica) setGossip(ctx context.Context, key *pki.Key, next pki.GossipRing, version uint64, step string) error {
	sealed, err := next.Seal(key)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, trustCall)
	defer cancel()
	return r.commitTrust(ctx, &commandv1.Command{Body: &commandv1.Command_SetGossipRing{SetGossipRing: &commandv1.SetGossipRing{
		IfVersion: version, Sealed: sealed, Step: step,
	}}})
}

func (r *Replica) askGossip(ctx context.Context, addr string) ([]string, error) {
	cc, err := dial.To(r.tls, addr, pki.Peer{Role: pki.RoleScheduler})
	if err != nil {
		return nil, err
	}
	defer cc.Close()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	st, err := clusterv1.NewClusterClient(cc).Status(ctx, &clusterv1.StatusRequest{})
	return st.GetGossipKeys(), err
}
