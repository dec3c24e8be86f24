// Package keyring makes the schedulers of a cluster agree on the cluster key, which seals (encrypts) the
// cluster's secrets, and passes the key from one scheduler to another.
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

// Keyring holds the cluster key of one replica. The key comes from a file, or from another scheduler, or a
// leader creates it in a cluster that has no secrets yet. The replicated log never contains the key, only its id. The
// first key id that is committed (PinClusterKey) is the id of the cluster's key, and no other key seals or opens
// anything.
//
// A key that a leader has created is a candidate, stored in a separate file. A majority of the replicas must
// hold it before it is pinned, so that it is not lost with one machine. No replica deletes a candidate before
// a key is pinned: a leader may have died after it proposed to pin that candidate.
type Keyring struct {
	path  string
	wrap  pki.Wrapper // encryption of the key files; nil = none
	log   *slog.Logger
	store *store.Store

	// storing is held while the keys on the disk change. An encryption of the key files may call another service, so mu,
	// which every reader needs, is not held during the writes of a rotation. Lock storing before mu.
	storing sync.Mutex

	mu         sync.Mutex
	key        *pki.Key            // key in the file at path
	candidates map[string]*pki.Key // candidate keys by id; each is stored in the file path + candidateSuffix + id
	current    *pki.Key            // candidate key that this replica offers to others
	// shared means that a majority is known to hold the key, or that the file existed before this process. A
	// key that is not shared could be lost with one machine, so it seals nothing.
	shared bool

	// State of a rotation of the cluster key; the methods are in rotation.go.
	kept       map[string]*pki.Key  // further keys by id; each is stored in a file beside the key file
	made       map[string]time.Time // when Keep stored keys that the state does not name yet, by id
	version    int                  // counts the changes of key and kept
	composed   *pki.Key             // the result of compose for composedAt
	composedAt composedOf
	fault      string // error of the last call of Follow
	// beforeWrite is called before each disk write of a rotation. A test returns an error from it to simulate
	// a crash of the replica.
	beforeWrite func(what string) error
}

const candidateSuffix = ".new."

// Offer is a cluster key that another scheduler has sent to this one in answer to a request.
type Offer struct {
	Text      string // key in the form of pki.Key.Export
	Candidate bool
}

// Ask requests the keys of other schedulers: of the leader alone if leader is true, otherwise of all.
type Ask func(ctx context.Context, leader bool) []Offer

func Open(file pki.KeyFile, st *store.Store, log *slog.Logger) (*Keyring, error) {
	k := &Keyring{path: file.Path, wrap: file.Wrap, store: st, log: log, candidates: map[string]*pki.Key{}, kept: map[string]*pki.Key{}, made: map[string]time.Time{}, beforeWrite: func(string) error { return nil }}
	key, err := file.Load()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err == nil {
		k.key, k.shared = key, true
	}
	others, err := file.LoadKept()
	if err != nil {
		return nil, err
	}
	for _, o := range others {
		k.kept[o.ID()] = o
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

// Key implements rpc.Keys: it returns the cluster key. It returns an error if this replica has no key, or has a key
// that is not yet pinned (committed as the cluster's key) or not yet held by a majority.
func (k *Keyring) Key() (*pki.Key, error) {
	key, err := k.held()
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.shared {
		return nil, errors.New("the cluster key is being sent to a majority of the schedulers; try again in a moment")
	}
	info := k.store.View().Info()
	return k.compose(key, &info)
}

// held returns the cluster key if this replica has it. It does not check whether a majority of the replicas has it
// too.
func (k *Keyring) held() (*pki.Key, error) {
	view := k.store.View()
	pinned := view.Info().ClusterKeyID
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.key != nil && k.key.ID() == pinned:
		return k.key, nil
	case pinned != "" && k.kept[pinned] != nil:
		return k.kept[pinned], nil
	case k.key != nil && pinned == "" && sealedSomething(view):
		// No key is pinned (committed as the cluster's key) yet, but secrets in the state are already encrypted with
		// the key in this file.
		return k.key, nil
	case k.key != nil && pinned != "":
		return nil, fmt.Errorf("%s holds key %s, but this cluster's secrets are sealed with key %s: move the file away, and another scheduler sends the right key", k.path, k.key.ID(), pinned)
	case pinned == "":
		return nil, errors.New("the cluster has not agreed on a cluster key yet; try again in a moment")
	}
	return nil, fmt.Errorf("this scheduler has no cluster key yet (%s): copy %s from another scheduler, or wait until another scheduler sends the key", pinned, k.path)
}

// Settled reports whether this replica holds the pinned key: the key whose id is committed as that of the cluster key.
func (k *Keyring) Settled() bool {
	pinned := k.store.View().Info().ClusterKeyID
	k.mu.Lock()
	defer k.mu.Unlock()
	return pinned != "" && k.stored(pinned) != nil
}

// adopt stores a key that another scheduler has sent, if it is the pinned key (the key whose id is committed). It does
// not overwrite a file with another key.
func (k *Keyring) adopt(exported string) error {
	key, err := pki.ParseKey(exported)
	if err != nil {
		return err
	}
	if pinned := k.store.View().Info().ClusterKeyID; key.ID() != pinned {
		return fmt.Errorf("another scheduler sent key %s, but the key of this cluster is %q", key.ID(), pinned)
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
	// If secrets have been sealed with this key, a majority held it at that time.
	k.shared = sealedSomething(k.store.View())
	k.log.Info("this scheduler now has the cluster key", "file", k.path, "id", key.ID())
	return k.forgetCandidates()
}

// forgetCandidates deletes the candidates: generated keys that were not pinned and have never encrypted anything. k.mu
// must be held.
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

// propose is called on the leader. It chooses a key: the one in the leader's key file, or one that another replica
// holds, or a new one. When a majority of the replicas holds the key, propose pins it: it commits the key's id as that
// of the cluster key. It returns nil if a key is pinned already, or if a majority does not hold the chosen key yet.
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
	// A key that the operator placed on this machine needs no majority, because the operator has a copy.
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

// choose returns the key that the leader proposes. own is set if the key is the one in this replica's key
// file.
func (k *Keyring) choose(view fsm.View, offers []Offer) (key *pki.Key, own bool, err error) {
	k.mu.Lock()
	key, current := k.key, k.current
	k.mu.Unlock()
	if key != nil {
		return key, true, nil
	}
	// A key that an operator placed on some machine takes precedence over a generated key.
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

// sealedSomething reports whether a specification in the state contains a sealed value. A cluster may have
// workloads without secrets before it has a key.
func sealedSomething(view fsm.View) bool {
	found := false
	view.Workloads("", func(w *fsm.Workload) bool {
		found = bytes.Contains(w.Spec, []byte(pki.SealPrefix))
		return !found
	})
	return found
}

// keepCandidate stores a candidate (a generated key that is not pinned yet) on disk. This happens before other
// replicas get it, because they may pin it while this replica is down.
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

// promote stores the candidate whose id was pinned (committed) as this replica's cluster key, and deletes the other
// candidates.
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
		k.log.Info("this scheduler now has the cluster key", "file", k.path, "id", key.ID())
	}
	return k.forgetCandidates()
}

// Offered implements rpc.Keys: it returns the key that this replica sends to other schedulers. That is the pinned key
// (the key whose id is committed). While no key is pinned, it is the key in an operator's key file, or else a
// candidate (a generated key that may be pinned).
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

// majority reports whether more than half of the replicas, including this one, hold the key with this id.
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

// share asks the other replicas whether they hold this replica's key, and records when a majority does. Until then the
// key is not used.
func (k *Keyring) share(ctx context.Context, others Ask) {
	all := k.majority(k.store.View().Info().ClusterKeyID, nil) || k.majority(k.store.View().Info().ClusterKeyID, others(ctx, false))
	k.mu.Lock()
	defer k.mu.Unlock()
	k.shared = k.shared || all
}

// ready reports whether this replica holds the pinned key (the key whose id is committed) and is known to share it
// with a majority.
func (k *Keyring) ready() bool {
	k.mu.Lock()
	shared := k.shared
	k.mu.Unlock()
	return shared && k.Settled()
}

// Run returns when this replica holds the cluster key and a majority holds it too, or when ctx ends. The leader
// proposes a key; the other replicas ask for the key. Every step is repeated until it succeeds.
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
			k.log.Warn("this scheduler has no cluster key yet, so it can neither open nor seal secrets; trying again", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

const settleEvery = 100 * time.Millisecond

// settle makes one attempt to obtain the cluster key, or to count the replicas that hold it.
func (k *Keyring) settle(ctx context.Context, leads bool, commit func(context.Context, ...fsm.Command) ([]fsm.Result, error), others Ask) error {
	err := k.obtain(ctx, leads, commit, others)
	if k.Settled() {
		k.share(ctx, others)
	}
	return err
}

// obtain gets the pinned key (the key whose id is committed) from another replica. While no key is pinned, the leader
// instead proposes a key, and a follower fetches the key that the leader wants to pin.
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
			return nil // wait: a majority of the replicas must hold the candidate before it is pinned
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

// follow fetches from the leader the key that the leader wants to pin (its candidate), and stores this key.
func (k *Keyring) follow(ctx context.Context, others Ask) error {
	k.mu.Lock()
	own := k.key != nil
	k.mu.Unlock()
	if own {
		return nil // offer the key that an operator placed here; the leader will ask for it
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
