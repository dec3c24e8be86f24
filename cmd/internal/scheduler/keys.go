package scheduler

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/store"
	"github.com/persys/compute/pki"
)

// keyring holds the cluster key of one replica. The file is there, or a leader of
// a cluster that holds no secrets yet makes it, or another scheduler hands it
// over. The key never travels through the log; its id does: the first one that
// is committed there (PinClusterKey) is the cluster's, and nothing is sealed or
// opened with another. Until then a key that a leader has made is a candidate in
// a file of its own, so two leaders that each made one do no harm.
type keyring struct {
	path  string
	log   *slog.Logger
	store *store.Store

	mu        sync.Mutex
	key       *pki.Key // of path
	candidate *pki.Key // of path + candidateSuffix: made here, and not pinned as far as is known
	// shared: a majority is known to hold the key, or it lay here before this
	// process. Nothing is sealed with a key that could be lost with one machine.
	shared bool
}

const candidateSuffix = ".new"

func openKeyring(path string, st *store.Store, log *slog.Logger) (*keyring, error) {
	k := &keyring{path: path, store: st, log: log}
	for _, f := range []struct {
		path string
		to   **pki.Key
	}{{path, &k.key}, {path + candidateSuffix, &k.candidate}} {
		key, err := pki.LoadKey(f.path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if err == nil {
			*f.to = key
		}
	}
	k.shared = k.key != nil
	return k, nil
}

// Key implements rpc.Keys.
func (k *keyring) Key() (*pki.Key, error) {
	key, err := k.held()
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.shared {
		return nil, errors.New("the cluster key is being handed to a majority of the schedulers; try again in a moment")
	}
	return key, nil
}

// held is the cluster's key, if this replica has it.
func (k *keyring) held() (*pki.Key, error) {
	view := k.store.View()
	pinned := view.Info().ClusterKeyID
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.key != nil && k.key.ID() == pinned:
		return k.key, nil
	case k.key != nil && pinned == "" && view.WorkloadCount() > 0:
		// A cluster from before keys were pinned: it has sealed with this one.
		return k.key, nil
	case k.key != nil && pinned != "":
		return nil, fmt.Errorf("%s holds key %s, but this cluster's secrets are sealed with key %s: move the file away, and another scheduler hands the right one over", k.path, k.key.ID(), pinned)
	case pinned == "":
		return nil, errors.New("the cluster has not settled on a key yet; try again in a moment")
	}
	return nil, fmt.Errorf("this scheduler has no cluster key yet (%s): copy %s from another scheduler, or wait until one hands it over", pinned, k.path)
}

// settled reports whether this replica has the key that is pinned.
func (k *keyring) settled() bool {
	pinned := k.store.View().Info().ClusterKeyID
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.key != nil && k.key.ID() == pinned
}

// adopt stores a key that another scheduler handed over. Only the pinned one is
// taken, and a file that holds another is left alone.
func (k *keyring) adopt(exported string) error {
	key, err := pki.ParseKey(exported)
	if err != nil {
		return err
	}
	if pinned := k.store.View().Info().ClusterKeyID; key.ID() != pinned {
		return fmt.Errorf("key %s was offered, this cluster's is %q", key.ID(), pinned)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.key != nil {
		if k.key.ID() == key.ID() {
			return nil
		}
		return fmt.Errorf("%s holds key %s, not %s: move it away", k.path, k.key.ID(), key.ID())
	}
	if k.key, err = pki.ImportKey(k.path, exported); err != nil {
		return err
	}
	// Where something runs already, it was sealed with: a majority held it then.
	k.shared = k.store.View().WorkloadCount() > 0
	k.log.Info("has the cluster key", "file", k.path, "id", key.ID())
	return k.forgetCandidate()
}

// forgetCandidate removes a key that nothing was ever sealed with. With mu held.
func (k *keyring) forgetCandidate() error {
	k.candidate = nil
	if err := os.Remove(k.path + candidateSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// propose makes this replica, which leads, offer a key for the cluster: the one
// of its file, one that another replica holds, or a new one. It returns nil once
// a key is pinned, whosesoever it is.
func (k *keyring) propose(ctx context.Context, commit func(context.Context, ...fsm.Command) ([]fsm.Result, error), others func(context.Context) []string) error {
	view := k.store.View()
	if info := view.Info(); info.ClusterKeyID != "" {
		return nil
	} else if info.FeatureLevel < 3 {
		return errors.New("not every scheduler is of a version that pins the cluster key")
	}
	key, err := k.offer(ctx, view.WorkloadCount(), others)
	if err != nil {
		return err
	}
	results, err := commit(ctx, &commandv1.Command{
		Head: &commandv1.Head{At: time.Now().UnixNano(), By: "leader"},
		Body: &commandv1.Command_PinClusterKey{PinClusterKey: &commandv1.PinClusterKey{KeyId: key.ID()}},
	})
	if err != nil {
		return err
	}
	return results[0].Err()
}

func (k *keyring) offer(ctx context.Context, workloads int, others func(context.Context) []string) (*pki.Key, error) {
	k.mu.Lock()
	key, candidate := k.key, k.candidate
	k.mu.Unlock()
	if key != nil {
		return key, nil
	}
	// What an operator put on any of the machines goes before what was made up.
	for _, text := range others(ctx) {
		if found, err := pki.ParseKey(text); err == nil {
			return k.keepCandidate(found)
		}
	}
	switch {
	case candidate != nil:
		return candidate, nil
	case workloads > 0:
		return nil, fmt.Errorf("%s is missing and %d workloads may hold secrets sealed with it: copy it from another scheduler", k.path, workloads)
	}
	fresh, err := pki.NewKey()
	if err != nil {
		return nil, err
	}
	return k.keepCandidate(fresh)
}

// keepCandidate makes a key durable before it is proposed: it may be pinned
// although nobody hears of it.
func (k *keyring) keepCandidate(key *pki.Key) (*pki.Key, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.candidate != nil && k.candidate.ID() == key.ID() {
		return k.candidate, nil
	}
	if err := k.forgetCandidate(); err != nil {
		return nil, err
	}
	stored, err := pki.ImportKey(k.path+candidateSuffix, key.Export())
	if err != nil {
		return nil, err
	}
	k.candidate = stored
	return stored, nil
}

// promote makes the candidate the key if it is the one that was pinned, and
// forgets it if another was.
func (k *keyring) promote() error {
	pinned := k.store.View().Info().ClusterKeyID
	k.mu.Lock()
	defer k.mu.Unlock()
	if pinned == "" || k.candidate == nil {
		return nil
	}
	if k.candidate.ID() != pinned {
		return k.forgetCandidate()
	}
	if k.key == nil {
		key, err := pki.ImportKey(k.path, k.candidate.Export())
		if err != nil {
			return err
		}
		k.key = key
		k.log.Info("has the cluster key", "file", k.path, "id", key.ID())
	}
	return k.forgetCandidate()
}

// Offered implements rpc.Keys: what this replica hands over to another scheduler: the cluster's
// key, or, while none is pinned, the one that an operator put here.
func (k *keyring) Offered() (*pki.Key, error) {
	k.mu.Lock()
	key := k.key
	k.mu.Unlock()
	if key != nil && k.store.View().Info().ClusterKeyID == "" {
		return key, nil
	}
	return k.held()
}

// share counts who holds the key. Until a majority does it is not used.
func (k *keyring) share(ctx context.Context, others func(context.Context) []string) {
	view := k.store.View()
	replicas, holders := 0, 1
	view.Replicas(func(*fsm.Replica) bool { replicas++; return true })
	if replicas > 1 {
		for _, text := range others(ctx) {
			if key, err := pki.ParseKey(text); err == nil && key.ID() == view.Info().ClusterKeyID {
				holders++
			}
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.shared = k.shared || holders > replicas/2
}

// ready reports whether there is nothing left to do.
func (k *keyring) ready() bool {
	k.mu.Lock()
	shared := k.shared
	k.mu.Unlock()
	return shared && k.settled()
}

// run settles the key until this replica has it and a majority does: as the
// leader it proposes one, otherwise it asks those that may have it. Everything is
// tried again.
func (k *keyring) run(ctx context.Context, leads func() bool, commit func(context.Context, ...fsm.Command) ([]fsm.Result, error), others func(context.Context) []string) {
	t := time.NewTicker(settleEvery)
	defer t.Stop()
	said := ""
	for {
		cctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := k.settle(cctx, leads(), commit, others)
		cancel()
		if k.ready() {
			return
		}
		if err != nil && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			k.log.Warn("this scheduler cannot open or seal secrets yet; trying on", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

const settleEvery = 100 * time.Millisecond

// settle makes the next step that can be made.
func (k *keyring) settle(ctx context.Context, leads bool, commit func(context.Context, ...fsm.Command) ([]fsm.Result, error), others func(context.Context) []string) error {
	err := k.obtain(ctx, leads, commit, others)
	if k.settled() {
		k.share(ctx, others)
	}
	return err
}

// obtain gets hold of the pinned key, or has one pinned.
func (k *keyring) obtain(ctx context.Context, leads bool, commit func(context.Context, ...fsm.Command) ([]fsm.Result, error), others func(context.Context) []string) error {
	if err := k.promote(); err != nil || k.settled() {
		return err
	}
	if leads {
		if err := k.propose(ctx, commit, others); err != nil {
			return err
		}
		if err := k.promote(); err != nil || k.settled() {
			return err
		}
	}
	if k.store.View().Info().ClusterKeyID == "" {
		return nil // a leader will see to it
	}
	err := errors.New("no scheduler that can be reached has the cluster key")
	for _, text := range others(ctx) {
		if err = k.adopt(text); err == nil {
			return nil
		}
	}
	return err
}
