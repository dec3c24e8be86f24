package scheduler

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/fsm/store"
	"github.com/persys/compute/pki"
)

// keyring holds the cluster key of one replica. The file is there, or the first
// leader of a cluster that holds no secrets yet makes it, or another scheduler
// hands it over. It never travels through the log.
type keyring struct {
	path  string
	log   *slog.Logger
	store *store.Store

	mu  sync.Mutex
	key *pki.Key
}

func openKeyring(path string, st *store.Store, log *slog.Logger) (*keyring, error) {
	k := &keyring{path: path, store: st, log: log}
	key, err := pki.LoadKey(path)
	switch {
	case err == nil:
		k.key = key
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	return k, nil
}

// Key implements rpc.Keys.
func (k *keyring) Key() (*pki.Key, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.key == nil {
		return nil, fmt.Errorf("this scheduler has no cluster key yet: copy %s from another scheduler, or wait until one hands it over", k.path)
	}
	return k.key, nil
}

func (k *keyring) has() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.key != nil
}

// lead makes the key if the cluster is new: no workload can hold a secret then.
func (k *keyring) lead() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.key != nil {
		return nil
	}
	if n := k.store.View().WorkloadCount(); n > 0 {
		return fmt.Errorf("%s is missing and %d workloads may hold secrets sealed with it: copy it from another scheduler", k.path, n)
	}
	key, _, err := pki.LoadOrCreateKey(k.path)
	if err != nil {
		return err
	}
	k.key = key
	k.log.Info("made the cluster key", "file", k.path, "id", key.ID())
	return nil
}

// adopt stores a key that another scheduler handed over.
func (k *keyring) adopt(exported string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.key != nil {
		return nil
	}
	key, err := pki.ImportKey(k.path, exported)
	if err != nil {
		return err
	}
	k.key = key
	k.log.Info("took over the cluster key", "file", k.path, "id", key.ID())
	return nil
}

// fetch asks the leader for the key until this replica has one.
func (k *keyring) fetch(ctx context.Context, client func() (clusterv1.ClusterClient, bool)) {
	t := time.NewTicker(500 * time.Millisecond)
	defer t.Stop()
	warned := false
	for !k.has() {
		if c, ok := client(); ok {
			cctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			resp, err := c.ClusterKey(cctx, &clusterv1.ClusterKeyRequest{})
			cancel()
			if err == nil {
				err = k.adopt(resp.GetExported())
			}
			if err != nil && ctx.Err() == nil && !warned {
				warned = true
				k.log.Warn("no scheduler handed over the cluster key yet; trying on", "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}
