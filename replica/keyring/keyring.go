// Package keyring settles on the key that seals a cluster's secrets and hands it from one scheduler to
// another.
package keyring

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/store"
	"github.com/persys/compute/pki"
)

// Keyring holds the cluster key of one replica. The key comes from a file, or a leader creates it in a
// cluster that holds no secrets yet, or another scheduler hands it over. The key is never in the log, but
// its id is: the first id that is committed (PinClusterKey) is the cluster's, and no other key seals or
// opens anything.
//
// A key that a leader created is a candidate, in a file of its own. A majority of the replicas must hold it
// before it is pinned, so that it is not lost with one machine. No replica deletes a candidate before one
// is pinned: a leader may have died with its proposal under way.
type Keyring struct {
	path  string
	wrap  pki.Wrapper // protects the files; nil: no protection
	log   *slog.Logger
	store *store.Store

	mu         sync.Mutex
	key        *pki.Key            // in path
	candidates map[string]*pki.Key // in path + candidateSuffix + id
	current    *pki.Key            // the candidate that this replica offers
	// shared: a majority is known to hold the key, or the file existed before this process. A key that
	// could be lost with one machine seals nothing.
	shared bool
}

const candidateSuffix = ".new."

// Offer is a key that another scheduler hands over.
type Offer struct {
	Text      string // in the form of pki.Key.Export
	Candidate bool
}

// Ask asks other schedulers for their keys: the leader alone, or all of them.
type Ask func(ctx context.Context, leader bool) []Offer

func Open(file pki.KeyFile, st *store.Store, log *slog.Logger) (*Keyring, error) {
	k := &Keyring{path: file.Path, wrap: file.Wrap, store: st, log: log, candidates: map[string]*pki.Key{}}
	key, err := file.Load()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err == nil {
		k.key, k.shared = key, true
	}
	files, err := filepath.Glob(k.path + candidateSuffix + "*")
	if err != nil {
		return nil, err
	}
	for _, path := range files {
		c, err := k.file(path).Load()
		if err != nil {
			return nil, err
		}
		k.candidates[c.ID()] = c
		if k.current == nil || c.ID() < k.current.ID() {
			k.current = c
		}
	}
	return k, nil
}

func (k *Keyring) file(path string) pki.KeyFile { return pki.KeyFile{Path: path, Wrap: k.wrap} }

// Key implements rpc.Keys.
func (k *Keyring) Key() (*pki.Key, error) {
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

// held returns the cluster's key, if this replica has it.
func (k *Keyring) held() (*pki.Key, error) {
	view := k.store.View()
	pinned := view.Info().ClusterKeyID
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.key != nil && k.key.ID() == pinned:
		return k.key, nil
	case k.key != nil && pinned == "" && sealedSomething(view):
		// A cluster from before keys were pinned: its secrets are sealed with this key.
		return k.key, nil
	case k.key != nil && pinned != "":
		return nil, fmt.Errorf("%s holds key %s, but this cluster's secrets are sealed with key %s: move the file away, and another scheduler hands the right one over", k.path, k.key.ID(), pinned)
	case pinned == "":
		return nil, errors.New("the cluster has not settled on a key yet; try again in a moment")
	}
	return nil, fmt.Errorf("this scheduler has no cluster key yet (%s): copy %s from another scheduler, or wait until one hands it over", pinned, k.path)
}

// Settled reports whether this replica has the pinned key.
func (k *Keyring) Settled() bool {
	pinned := k.store.View().Info().ClusterKeyID
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.key != nil && k.key.ID() == pinned
}

// adopt stores a key that another scheduler handed over, if it is the pinned one. A file with another key
// is not overwritten.
func (k *Keyring) adopt(exported string) error {
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
	if k.key, err = k.file(k.path).Import(exported); err != nil {
		return err
	}
	// Existing secrets were sealed with it, so a majority held it then.
	k.shared = sealedSomething(k.store.View())
	k.log.Info("has the cluster key", "file", k.path, "id", key.ID())
	return k.forgetCandidates()
}

// forgetCandidates removes keys that never sealed anything. The caller holds mu.
func (k *Keyring) forgetCandidates() error {
	for id := range k.candidates {
		if err := os.Remove(k.path + candidateSuffix + id); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		delete(k.candidates, id)
	}
	k.current = nil
	return nil
}

// propose makes the leader pin a key: the one of its file, one that another replica holds, or a new one,
// once a majority holds it. It returns nil once any key is pinned, and while the key is being handed to a
// majority.
func (k *Keyring) propose(ctx context.Context, commit func(context.Context, ...fsm.Command) ([]fsm.Result, error), others Ask) error {
	view := k.store.View()
	if view.Info().ClusterKeyID != "" {
		return nil
	}
	offers := others(ctx, false)
	key, own, err := k.choose(view, offers)
	if err != nil {
		return err
	}
	// A key that an operator placed here is kept by the operator as well, so it needs no majority.
	if !own && !k.majority(key.ID(), offers) {
		return nil
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

// choose returns the key to propose. own: it is in this replica's file.
func (k *Keyring) choose(view fsm.View, offers []Offer) (key *pki.Key, own bool, err error) {
	k.mu.Lock()
	key, current := k.key, k.current
	k.mu.Unlock()
	if key != nil {
		return key, true, nil
	}
	// A key that an operator placed on any machine takes precedence over a generated one.
	for _, o := range offers {
		if found, err := pki.ParseKey(o.Text); err == nil && !o.Candidate {
			key, err = k.keepCandidate(found)
			return key, false, err
		}
	}
	switch {
	case current != nil:
		return current, false, nil
	case sealedSomething(view):
		return nil, false, fmt.Errorf("%s is missing and workloads hold secrets sealed with it: copy it from another scheduler", k.path)
	}
	fresh, err := pki.NewKey()
	if err != nil {
		return nil, false, err
	}
	key, err = k.keepCandidate(fresh)
	return key, false, err
}

// sealedSomething reports whether a stored specification holds a sealed value. A cluster may have workloads
// without secrets before it has a key.
func sealedSomething(view fsm.View) bool {
	found := false
	view.Workloads("", func(w *fsm.Workload) bool {
		found = bytes.Contains(w.Spec, []byte(pki.SealPrefix))
		return !found
	})
	return found
}

// keepCandidate stores a key before it is offered: it may be pinned without this replica learning of it.
func (k *Keyring) keepCandidate(key *pki.Key) (*pki.Key, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	stored, ok := k.candidates[key.ID()]
	if !ok {
		var err error
		if stored, err = k.file(k.path + candidateSuffix + key.ID()).Import(key.Export()); err != nil {
			return nil, err
		}
		k.candidates[key.ID()] = stored
	}
	k.current = stored
	return stored, nil
}

// promote stores the candidate that was pinned as the cluster's key, and forgets the others.
func (k *Keyring) promote() error {
	pinned := k.store.View().Info().ClusterKeyID
	k.mu.Lock()
	defer k.mu.Unlock()
	if pinned == "" || len(k.candidates) == 0 {
		return nil
	}
	if c := k.candidates[pinned]; c != nil && k.key == nil {
		key, err := k.file(k.path).Import(c.Export())
		if err != nil {
			return err
		}
		k.key = key
		k.log.Info("has the cluster key", "file", k.path, "id", key.ID())
	}
	return k.forgetCandidates()
}

// Offered implements rpc.Keys. It returns the cluster's key or, while none is pinned, the key that an
// operator placed here, or a candidate.
func (k *Keyring) Offered() (*pki.Key, bool, error) {
	pinned := k.store.View().Info().ClusterKeyID
	k.mu.Lock()
	key, current := k.key, k.current
	if c := k.candidates[pinned]; c != nil {
		key = c
	}
	k.mu.Unlock()
	switch {
	case key != nil && (pinned == "" || key.ID() == pinned):
		return key, false, nil
	case pinned == "" && current != nil:
		return current, true, nil
	}
	key, err := k.held()
	return key, false, err
}

// majority reports whether more than half of the replicas hold a key, this replica among them.
func (k *Keyring) majority(id string, offers []Offer) bool {
	replicas, holders := 0, 1
	k.store.View().Replicas(func(*fsm.Replica) bool { replicas++; return true })
	for _, o := range offers {
		if key, err := pki.ParseKey(o.Text); err == nil && key.ID() == id {
			holders++
		}
	}
	return holders > replicas/2
}

// share counts the holders of the key. It is not used until a majority holds it.
func (k *Keyring) share(ctx context.Context, others Ask) {
	all := k.majority(k.store.View().Info().ClusterKeyID, nil) || k.majority(k.store.View().Info().ClusterKeyID, others(ctx, false))
	k.mu.Lock()
	defer k.mu.Unlock()
	k.shared = k.shared || all
}

// ready reports whether there is nothing left to do.
func (k *Keyring) ready() bool {
	k.mu.Lock()
	shared := k.shared
	k.mu.Unlock()
	return shared && k.Settled()
}

// Run works until this replica has the key and a majority holds it. The leader proposes a key; other
// replicas ask for one. Every step is retried.
func (k *Keyring) Run(ctx context.Context, leads func() bool, commit func(context.Context, ...fsm.Command) ([]fsm.Result, error), others Ask) {
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
			k.log.Warn("this scheduler cannot open or seal secrets yet; trying again", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

const settleEvery = 100 * time.Millisecond

// settle makes the next possible step.
func (k *Keyring) settle(ctx context.Context, leads bool, commit func(context.Context, ...fsm.Command) ([]fsm.Result, error), others Ask) error {
	err := k.obtain(ctx, leads, commit, others)
	if k.Settled() {
		k.share(ctx, others)
	}
	return err
}

// obtain gets the pinned key, or gets a key pinned.
func (k *Keyring) obtain(ctx context.Context, leads bool, commit func(context.Context, ...fsm.Command) ([]fsm.Result, error), others Ask) error {
	if err := k.promote(); err != nil || k.Settled() {
		return err
	}
	if leads {
		if err := k.propose(ctx, commit, others); err != nil {
			return err
		}
		if err := k.promote(); err != nil || k.Settled() {
			return err
		}
	}
	if k.store.View().Info().ClusterKeyID == "" {
		if leads {
			return nil // waits for a majority
		}
		return k.follow(ctx, others)
	}
	err := errors.New("no scheduler that can be reached has the cluster key")
	for _, o := range others(ctx, false) {
		if err = k.adopt(o.Text); err == nil {
			return nil
		}
	}
	return err
}

// follow stores the key that the leader is about to propose.
func (k *Keyring) follow(ctx context.Context, others Ask) error {
	k.mu.Lock()
	own := k.key != nil
	k.mu.Unlock()
	if own {
		return nil // an operator placed this key, and the leader will find it
	}
	for _, o := range others(ctx, true) {
		key, err := pki.ParseKey(o.Text)
		if err == nil {
			_, err = k.keepCandidate(key)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
