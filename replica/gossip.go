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

// gossipKeys follows the ring in the state. It lies, sealed, beside the data as well: a
// replica that starts speaks to the others before it has any state.
type gossipKeys struct {
	mu  sync.Mutex
	ids []string // installed, the one that seals first; nil: gossip is plain
}

// gossipRing is the file of the ring, as the state had it last.
func (c *Config) gossipRing() string { return filepath.Join(c.DataDir, "gossip.ring") }

// gossipRing finds the keys to begin with: those of the last run, or of the answer to a
// join, or the one that follows from the cluster key.
func (r *Replica) gossipRing(key *pki.Key) (pki.GossipRing, error) {
	raw, err := os.ReadFile(r.cfg.gossipRing())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return pki.GossipRing{}, err
	}
	ring, err := pki.OpenGossipRing(key, string(raw))
	if err != nil {
		r.log.Warn("the keys of gossip that are kept here cannot be opened; beginning with the one that follows from the cluster key", "file", r.cfg.gossipRing(), "err", err)
		return pki.NewGossipRing(), nil
	}
	return ring, nil
}

// installed are the ids of the keys in use.
func (g *gossipKeys) installed() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.ids)
}

// ringIDs are the ids of a ring, the one that seals first.
func ringIDs(r pki.GossipRing) []string {
	ids := []string{r.Seals}
	for _, id := range r.IDs() {
		if id != r.Seals {
			ids = append(ids, id)
		}
	}
	return ids
}

// followGossip installs the ring of the state.
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
	if slices.Equal(ids, r.gossip.installed()) {
		return nil
	}
	if err := pki.WriteFile(r.cfg.gossipRing(), []byte(sealed), 0o600); err != nil {
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

// advanceGossip makes the next step of a rotation, once every replica has made the last one:
// one that is down could not be heard afterwards, and one that is revoked shall not, which
// begins a rotation by itself (ADR 19). v's revocations are in force here already.
func (r *Replica) advanceGossip(ctx context.Context, v fsm.View) error {
	info, against := v.Info(), rpc.GossipAgainst(v)
	if !r.node.IsLeader() || info.GossipRing == "" && against == "" || info.FeatureLevel < 6 || r.gossip.installed() == nil {
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
				return fmt.Errorf("gossip key %s is not brought in yet: scheduler %s: %w", ring.Newest(), p.Name, err)
			}
		}
		if !slices.Equal(have, want) {
			return nil // in a moment
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
