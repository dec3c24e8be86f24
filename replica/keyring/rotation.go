package keyring

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
)

// This file carries out a rotation of the cluster key (ADR 75) on the key files of this replica. The state,
// not the files, says which key seals values, which key it replaced and which keys are retired. So a replica
// that restarts between two steps continues from the state, whatever keys its files have.
//
// A key is deleted only if the state lists it as retired. A replica whose state lags behind its files, for instance
// after a restart, therefore never deletes a key that it needs later.

// Fetch asks the other schedulers for the key with an id.
type Fetch func(ctx context.Context, id string) (*pki.Key, error)

// Report describes the keys on the disk of this replica.
type Report struct {
	Held  []string // ids of the keys that are stored, sorted
	Seals string   // id of the key in the key file
	Fault string   // why the last step failed; "" if it did not
}

// Report returns the ids of the keys that this replica has stored, and the error of its last step.
func (k *Keyring) Report() Report {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := Report{Fault: k.fault}
	for id := range k.kept {
		out.Held = append(out.Held, id)
	}
	if k.key != nil {
		out.Seals = k.key.ID()
		out.Held = append(out.Held, out.Seals)
	}
	slices.Sort(out.Held)
	out.Held = slices.Compact(out.Held)
	return out
}

// Held implements rpc.Keys: it returns the key with an id if this replica has stored it, otherwise nil.
func (k *Keyring) Held(id string) *pki.Key {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stored(id)
}

func (k *Keyring) stored(id string) *pki.Key {
	if k.key != nil && k.key.ID() == id {
		return k.key
	}
	return k.kept[id]
}

// Prepare implements rpc.Keys: it makes a new key and stores it, and returns its id. The key is not used
// until the state names it.
func (k *Keyring) Prepare() (string, error) {
	key, err := pki.NewKey()
	if err != nil {
		return "", err
	}
	return key.ID(), k.Keep(key)
}

// Keep implements rpc.Keys: it stores a further key.
func (k *Keyring) Keep(key *pki.Key) error {
	k.storing.Lock()
	defer k.storing.Unlock()
	if k.Held(key.ID()) == nil {
		if err := k.add(key); err != nil {
			return err
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kept[key.ID()] != nil {
		k.made[key.ID()] = time.Now() // the caller needs the key, so Follow must not delete it as a retired one
	}
	return nil
}

// add stores a key in a file of its own beside the key file. k.storing must be held.
func (k *Keyring) add(key *pki.Key) error {
	if err := k.file(k.path).Keep(key); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kept[key.ID()] = key
	k.version++
	return nil
}

// Discard implements rpc.Keys: it deletes a key that Prepare or Keep has stored, unless the state names
// the key.
func (k *Keyring) Discard(id string) error {
	k.storing.Lock()
	defer k.storing.Unlock()
	k.mu.Lock()
	delete(k.made, id)
	k.mu.Unlock()
	info := k.store.View().Info()
	if id == info.ClusterKeyID || id == info.NextKeyID || id == info.FormerKeyID {
		return nil
	}
	return k.forget(id)
}

// forget deletes the file of the key with this id beside the key file. k.storing must be held.
func (k *Keyring) forget(id string) error {
	k.mu.Lock()
	known := k.kept[id] != nil
	k.mu.Unlock()
	if !known {
		return nil
	}
	if err := k.beforeWrite("forget"); err != nil {
		return err
	}
	if err := k.file(k.path).Forget(id); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.kept, id)
	k.version++
	return nil
}

// Follow makes the keys on the disk of this replica those that the state names: it fetches missing keys, makes the
// cluster key the key of the key file, and deletes retired keys. It does nothing if the files are right. Each change is
// on the disk before the next one begins, and after each one the replica holds every key that the state names.
func (k *Keyring) Follow(ctx context.Context, fetch Fetch) error {
	err := k.follows(ctx, fetch)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fault = ""
	if err != nil {
		k.fault = err.Error()
	}
	return err
}

func (k *Keyring) follows(ctx context.Context, fetch Fetch) error {
	info := k.store.View().Info()
	if info.ClusterKeyID == "" || !k.mine(&info) {
		return nil // Run obtains the first key
	}
	for _, id := range []string{info.ClusterKeyID, info.FormerKeyID, info.NextKeyID} {
		if id == "" || k.Held(id) != nil {
			continue
		}
		key, err := fetch(ctx, id)
		if err != nil {
			return err
		}
		if key.ID() != id {
			return fmt.Errorf("key %s was received instead of key %s", key.ID(), id)
		}
		if err := k.fetched(key); err != nil {
			return err
		}
	}
	return k.arrange(&info)
}

// mine reports whether the state names the key in this replica's key file. Only then may the file be replaced: if the
// state does not name the key, an operator has put the file there.
func (k *Keyring) mine(info *fsm.Info) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.key == nil {
		return false
	}
	id := k.key.ID()
	return id == info.ClusterKeyID || id == info.FormerKeyID || id == info.NextKeyID || slices.Contains(info.RetiredKeyIDs, id)
}

func (k *Keyring) fetched(key *pki.Key) error {
	k.storing.Lock()
	defer k.storing.Unlock()
	if err := k.beforeWrite("keep"); err != nil {
		return err
	}
	return k.add(key)
}

// arrange makes the files of this replica match the state: the key file gets the cluster key, the former key
// gets a file beside it, and the keys that the state lists as retired are deleted.
func (k *Keyring) arrange(info *fsm.Info) error {
	k.storing.Lock()
	defer k.storing.Unlock()
	k.mu.Lock()
	for _, id := range []string{info.ClusterKeyID, info.FormerKeyID, info.NextKeyID} {
		delete(k.made, id)
	}
	key, former := k.kept[info.ClusterKeyID], k.key
	k.mu.Unlock()
	if former.ID() != info.ClusterKeyID && former.ID() != info.NextKeyID {
		// The former key gets a file of its own before it leaves the key file.
		if err := k.beforeWrite("keep the former key"); err != nil {
			return err
		}
		if err := k.add(former); err != nil {
			return err
		}
		if err := k.beforeWrite("replace"); err != nil {
			return err
		}
		if err := k.file(k.path).Replace(key); err != nil {
			return err
		}
		k.mu.Lock()
		k.key = key
		k.version++
		k.mu.Unlock()
		k.log.Info("this scheduler seals with the new cluster key", "file", k.path, "id", key.ID(), "former", former.ID())
	}
	if former.ID() != info.NextKeyID { // so the key file has the cluster key
		if err := k.forget(info.ClusterKeyID); err != nil {
			return err
		}
	}
	for _, id := range info.RetiredKeyIDs {
		k.mu.Lock()
		made, known := k.made[id], k.kept[id] != nil
		k.mu.Unlock()
		if !known || time.Since(made) < madeFor {
			continue // the key is gone already, or a restore has just written it and is about to use it
		}
		if err := k.forget(id); err != nil {
			return err
		}
		k.log.Info("a retired cluster key was deleted", "id", id)
	}
	return nil
}

// madeFor is how long a key that Keep has stored stays on disk although the state lists it as retired. It is
// longer than a restore may take (10 minutes).
const madeFor = 15 * time.Minute

// compose returns the key that seals with base, and opens with every key that this replica holds. k.mu must be held.
func (k *Keyring) compose(base *pki.Key, info *fsm.Info) (*pki.Key, error) {
	at := composedOf{base.ID(), info.ContentKey, k.version}
	if k.composed != nil && k.composedAt == at {
		return k.composed, nil
	}
	var others []*pki.Key
	for _, o := range k.kept {
		others = append(others, o)
	}
	if k.key != nil {
		others = append(others, k.key)
	}
	key, err := base.WithOthers(others...).WithContentKey(info.ContentKey)
	if err != nil {
		return nil, err
	}
	k.composed, k.composedAt = key, at
	return key, nil
}

type composedOf struct {
	id, content string
	version     int
}

var errNotHeld = errors.New("no scheduler that can be reached has the key")

// NotHeld returns the error by which a Fetch reports that no scheduler that it reached has the key.
func NotHeld(id string) error { return fmt.Errorf("cluster key %s: %w", id, errNotHeld) }

// IsNotHeld reports whether err comes from NotHeld.
func IsNotHeld(err error) bool { return errors.Is(err, errNotHeld) }
