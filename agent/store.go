package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/google/uuid"
	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/persys/compute/pki"

	"github.com/persys/compute/agent/driver"
)

// Buckets. The first two are those of legacy v1 agents, as are those of volumes.go; the others are ours.
const (
	bucketWorkloads  = "workloads"
	bucketStatus     = "status"
	bucketTasks      = "tasks"
	bucketTombstones = "tombstones"
	bucketMeta       = "meta"
)

// meta is the agent's own record, under metaKey.
type meta struct {
	// Epoch is the first fence; with only a ClusterID, the cluster this node joined.
	Epoch Epoch `json:"epoch,omitzero"`
	// InstanceID is random, made once for each file: it tells two machines under one node id apart.
	InstanceID string `json:"instance_id"`
	// Node is the node whose workloads these are.
	Node string `json:"node,omitempty"`
	// KeyID names the key that sealed what is in the file.
	KeyID string `json:"key_id"`
	// Engine is the cluster id on the labels of what we run. It is fixed while there are
	// workloads, because labels can not be changed on what exists.
	Engine string `json:"engine,omitempty"`
}

const metaKey = "agent"

// tombstone keeps the generation at which a workload was deleted, so that an older order that
// comes late is refused.
type tombstone struct {
	ID         string            `json:"id"`
	Generation driver.Generation `json:"generation,omitzero"`
	DeletedAt  time.Time         `json:"deleted_at"`
	// KeepVolumes, KeepShared: see intent.
	KeepVolumes bool `json:"keep_volumes,omitempty"`
	KeepShared  bool `json:"keep_shared,omitempty"`
	// Done: nothing of it is left. Until then it is an order to be carried out.
	Done bool `json:"done,omitempty"`

	version uint64 // of the last change to report; not stored
}

// ordered is what an order leaves of the tombstone: what is not removed yet is the order's to remove, and
// no delete under way any more. nil: the tombstone, if there is one, stays as it is.
func (t *tombstone) ordered() *tombstone {
	if t == nil || t.Done {
		return nil
	}
	done := *t
	done.Done = true
	return &done
}

// savedStatus is the record of bucket status: the last report, so that it outlives a restart while
// an engine is away.
type savedStatus struct {
	ID           string            `json:"id"`
	Type         driver.Kind       `json:"type"`
	RevisionID   string            `json:"revision_id"`
	DesiredState string            `json:"desired_state"`
	ActualState  string            `json:"actual_state"` // pending, running, stopped, failed, unknown
	Message      string            `json:"message"`
	CreatedAt    time.Time         `json:"created_at"`
	UpdatedAt    time.Time         `json:"updated_at"`
	Metadata     map[string]string `json:"metadata,omitempty"`
	Failure      failure           `json:"failure,omitzero"`
}

// store is the agent's file. Every update is one transaction on disk before it returns.
type store struct {
	db  *bolt.DB
	key *pki.Key
}

// openStore opens or makes the file and its key, <path>.key with mode 0600. A volatile store does
// not wait for the disk; it is for simulations.
func openStore(path string, volatile bool) (*store, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("state file %s: %w", path, err)
	}
	if err := sound(path); err != nil {
		return nil, fmt.Errorf("state file %s: damaged (%w): put back a copy of it and of %s.key", path, err, path)
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{
		Timeout: 500 * time.Millisecond, NoSync: volatile, NoGrowSync: volatile, NoFreelistSync: true, FreelistType: bolt.FreelistMapType,
	})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("state file %s: in use by another agent", path)
	}
	if err != nil {
		return nil, fmt.Errorf("state file %s: %w", path, err)
	}
	s := &store{db: db}
	if err := s.prepare(path); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

// sound reads all of a file that is there. The library ends the process over a damaged one, from goroutines of its
// own, where nobody can say which file it was; what it says itself, it says again when the file is opened.
func sound(path string) (err error) {
	if info, err := os.Stat(path); err != nil || info.Size() == 0 {
		return nil
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // pages that the file ends before
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
			if _, ok := p.(interface{ Addr() uintptr }); ok {
				err = errors.New("pages are missing at its end")
			}
		}
	}()
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: 500 * time.Millisecond, ReadOnly: true})
	if err != nil {
		return nil
	}
	defer db.Close()
	sum := crc32.NewIEEE() // reads them
	return db.View(func(tx *bolt.Tx) error {
		return tx.ForEach(func(_ []byte, b *bolt.Bucket) error {
			return b.ForEach(func(_, value []byte) error {
				_, err := sum.Write(value)
				return err
			})
		})
	})
}

func (s *store) prepare(path string) error {
	m, err := s.meta()
	if err != nil {
		return fmt.Errorf("state file %s: %w", path, err)
	}
	keyPath := path + ".key"
	if m.KeyID != "" {
		// A new key would not open what is there; say so instead of making one.
		if _, err := os.Stat(keyPath); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("state file %s: sealed under key %s, but the key file %s is missing", path, m.KeyID, keyPath)
		}
	}
	key, _, err := pki.LoadOrCreateKey(keyPath)
	if err != nil {
		return fmt.Errorf("key file %s: %w", keyPath, err)
	}
	if m.KeyID != "" && m.KeyID != key.ID() {
		return fmt.Errorf("state file %s: sealed under key %s, but %s holds key %s", path, m.KeyID, keyPath, key.ID())
	}
	s.key = key
	if m.KeyID == "" {
		m.KeyID = key.ID()
		m.InstanceID = uuid.NewString()
		err = s.update(func(w write) error {
			for _, name := range []string{bucketWorkloads, bucketStatus, bucketTasks, bucketTombstones} {
				if _, err := w.tx.CreateBucketIfNotExists([]byte(name)); err != nil {
					return err
				}
			}
			return w.meta(m)
		})
		if err != nil {
			return fmt.Errorf("state file %s: %w", path, err)
		}
	}
	return nil
}

func (s *store) close() error { return s.db.Close() }

func (s *store) meta() (meta, error) {
	var m meta
	err := s.db.View(func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte(bucketMeta))
		if b == nil {
			return nil
		}
		raw := b.Get([]byte(metaKey))
		if raw == nil {
			return nil
		}
		if err := json.Unmarshal(raw, &m); err != nil {
			return fmt.Errorf("bucket %s, key %s: %w", bucketMeta, metaKey, err)
		}
		return nil
	})
	return m, err
}

// saved is all that the file holds.
type saved struct {
	meta       meta
	intents    []*intent
	status     map[string]savedStatus
	tasks      []*task
	tombstones []*tombstone
}

func (s *store) load() (saved, error) {
	out := saved{status: map[string]savedStatus{}}
	var err error
	if out.meta, err = s.meta(); err != nil {
		return out, err
	}
	err = s.db.View(func(tx *bolt.Tx) error {
		return errors.Join(
			each(tx, bucketWorkloads, func(key string, in *intent) error {
				if in.ID == "" {
					in.ID = key
				}
				out.intents = append(out.intents, in)
				return in.open(s.key)
			}),
			each(tx, bucketStatus, func(key string, st *savedStatus) error {
				out.status[key] = *st
				return nil
			}),
			each(tx, bucketTasks, func(_ string, t *task) error {
				out.tasks = append(out.tasks, t)
				return nil
			}),
			each(tx, bucketTombstones, func(_ string, t *tombstone) error {
				out.tombstones = append(out.tombstones, t)
				return nil
			}),
		)
	})
	return out, err
}

func each[T any](tx *bolt.Tx, bucket string, fn func(key string, v *T) error) error {
	b := tx.Bucket([]byte(bucket))
	if b == nil {
		return nil
	}
	return b.ForEach(func(k, raw []byte) error {
		v := new(T)
		if err := json.Unmarshal(raw, v); err != nil {
			return fmt.Errorf("bucket %s, key %s: %w", bucket, k, err)
		}
		return fn(string(k), v)
	})
}

// all does the same write for each of a list, until one fails.
func all[T any](list []T, write func(T) error) error {
	for _, v := range list {
		if err := write(v); err != nil {
			return err
		}
	}
	return nil
}

// write is one transaction of the store.
type write struct{ tx *bolt.Tx }

func (s *store) update(fn func(write) error) error {
	return s.db.Update(func(tx *bolt.Tx) error { return fn(write{tx}) })
}

func (w write) put(bucket, key string, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("bucket %s, key %s: %w", bucket, key, err)
	}
	b, err := w.tx.CreateBucketIfNotExists([]byte(bucket))
	if err != nil {
		return err
	}
	return b.Put([]byte(key), raw)
}

func (w write) has(bucket, key string) bool {
	b := w.tx.Bucket([]byte(bucket))
	return b != nil && b.Get([]byte(key)) != nil
}

func (w write) drop(bucket, key string) error {
	if b := w.tx.Bucket([]byte(bucket)); b != nil {
		return b.Delete([]byte(key))
	}
	return nil
}

func (w write) meta(m meta) error             { return w.put(bucketMeta, metaKey, m) }
func (w write) intent(in *intent) error       { return w.put(bucketWorkloads, in.ID, in) }
func (w write) status(st savedStatus) error   { return w.put(bucketStatus, st.ID, st) }
func (w write) task(t *task) error            { return w.put(bucketTasks, t.ID, t) }
func (w write) dropTask(t *task) error        { return w.drop(bucketTasks, t.ID) }
func (w write) tombstone(t *tombstone) error  { return w.put(bucketTombstones, t.ID, t) }
func (w write) dropTombstone(id string) error { return w.drop(bucketTombstones, id) }
func (w write) forget(id string) error {
	return errors.Join(w.drop(bucketWorkloads, id), w.drop(bucketStatus, id))
}
