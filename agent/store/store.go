package store

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/volume"
	"github.com/persys/compute/agent/workload"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/pki"
)

// The buckets of the state file. Legacy v1 agents have workloads, status, volumes and attachments
// (contract/state-etcd.md, "Agent local store").
const (
	bucketWorkloads   = "workloads"
	bucketStatus      = "status"
	bucketTasks       = "tasks"
	bucketTombstones  = "tombstones"
	bucketMeta        = "meta"
	bucketImages      = "images" // images that this agent pulled; the key is the name of the image, or the id of the image once its name refers to a newer image
	bucketVolumes     = "volumes"
	bucketAttachments = "attachments"
	bucketAddresses   = "addresses" // addresses of containers on networks that span nodes
)

// Keys in the bucket meta. The values are, in this order: the core.Meta, the view of the networks that
// this node has to set up, and the names of the members of these networks.
const (
	metaKey    = "agent"
	networkKey = "networks"
	namesKey   = "network names"
)

// Store is the agent's state file. Every write is one transaction, on disk before it returns.
type Store struct {
	db  *bolt.DB
	key *pki.Key
}

// Open opens or creates the state file, and its key file <path>.key with mode 0600. Writes to a volatile
// store do not wait for the disk. Use a volatile store only in simulations.
func Open(path string, volatile bool) (*Store, error) {
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
	s := &Store{db: db}
	if err := s.prepare(path); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

// sound reads the whole state file, if there is one, to find damage. The bbolt library would panic on a
// damaged file in its own goroutines, where the panic cannot be turned into an error that names the file.
// Other errors of the library are ignored here, because Open returns them.
func sound(path string) (err error) {
	if info, err := os.Stat(path); err != nil || info.Size() == 0 {
		return nil
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // reading a page beyond the end of a mapped file then causes a panic, which can be recovered, and not a crash
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
	sum := crc32.NewIEEE() // computing the checksum reads every page
	return db.View(func(tx *bolt.Tx) error {
		return tx.ForEach(func(_ []byte, b *bolt.Bucket) error {
			return b.ForEach(func(_, value []byte) error {
				_, err := sum.Write(value)
				return err
			})
		})
	})
}

// KeyPath returns the path of the key file of a state file.
func KeyPath(state string) string { return state + ".key" }

func (s *Store) prepare(path string) error {
	m, err := s.meta()
	if err != nil {
		return fmt.Errorf("state file %s: %w", path, err)
	}
	keyPath := KeyPath(path)
	if m.KeyID != "" {
		// If the key file is missing, fail: the secrets in the state file could not be decrypted with a new
		// key.
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
			return w.put(bucketMeta, metaKey, m)
		})
		if err != nil {
			return fmt.Errorf("state file %s: %w", path, err)
		}
	}
	return nil
}

func (s *Store) Close() error { return s.db.Close() }

func (s *Store) meta() (core.Meta, error) {
	var m core.Meta
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

// Load reads the state file. Secrets that an earlier version stored in plain text are encrypted in the file.
func (s *Store) Load() (core.Saved, error) {
	out := core.Saved{Status: map[string]core.SavedStatus{}}
	var err error
	if out.Meta, err = s.meta(); err != nil {
		return out, err
	}
	var plain []*core.Intent
	byID := map[string]*core.Intent{}
	err = s.db.View(func(tx *bolt.Tx) error {
		return errors.Join(
			each(tx, bucketWorkloads, func(key string, r *record) error {
				r.ID = cmp.Or(r.ID, key)
				if err := r.open(s.key); err != nil {
					return err
				}
				if !r.sealed() {
					plain = append(plain, &r.Intent)
				}
				byID[r.ID] = &r.Intent
				out.Intents = append(out.Intents, &r.Intent)
				return nil
			}),
			each(tx, bucketStatus, func(key string, st *status) error {
				if in := byID[key]; in != nil {
					out.Status[key] = st.saved(in)
				}
				return nil
			}),
			each(tx, bucketTasks, func(_ string, t *core.Task) error {
				out.Tasks = append(out.Tasks, t)
				return nil
			}),
			each(tx, bucketTombstones, func(_ string, t *core.Tombstone) error {
				out.Tombstones = append(out.Tombstones, t)
				return nil
			}),
		)
	})
	if err == nil && len(plain) > 0 {
		err = s.Write(core.Store{Intents: plain})
	}
	return out, err
}

// Write carries out the effect Store of the core.
func (s *Store) Write(e core.Store) error {
	return s.update(func(w write) error {
		if e.Meta != nil {
			if err := w.put(bucketMeta, metaKey, e.Meta); err != nil {
				return err
			}
		}
		return errors.Join(
			all(e.Tasks, func(t *core.Task) error { return w.put(bucketTasks, t.ID, t) }),
			all(e.DropTasks, func(t *core.Task) error { return w.drop(bucketTasks, t.ID) }),
			all(e.Intents, func(in *core.Intent) error {
				r := record{Intent: *in}
				if err := r.seal(s.key); err != nil {
					return err
				}
				return w.put(bucketWorkloads, in.ID, &r)
			}),
			all(e.Forget, func(id string) error { return errors.Join(w.drop(bucketWorkloads, id), w.drop(bucketStatus, id)) }),
			all(e.Tombstones, func(t *core.Tombstone) error { return w.put(bucketTombstones, t.ID, t) }),
			all(e.DropTombstones, func(id string) error { return w.drop(bucketTombstones, id) }),
		)
	})
}

// WriteStatuses stores the reports and failures of workloads. Each of them must have an order.
func (s *Store) WriteStatuses(list []*core.Workload) error {
	return s.update(func(w write) error {
		return all(list, func(wl *core.Workload) error { return w.put(bucketStatus, wl.ID, statusOf(wl)) })
	})
}

// Key returns the key of the state file. The secrets in the file are encrypted with it, and the hashes of
// specifications are computed with it.
func (s *Store) Key() *pki.Key { return s.key }

// Pulled is called after a driver pulled an image. If before is empty, Pulled records that this agent pulled
// the image with the name ref. If before is set, ref was until the pull the name of an older image, whose id
// is before. If the store already has a record for ref, this agent pulled the older image too: Pulled then
// records the older image, by its id. Otherwise Pulled records nothing.
func (s *Store) Pulled(ref, before string, at time.Time) error {
	return s.update(func(w write) error {
		if before != "" {
			if !w.has(bucketImages, ref) {
				return nil
			}
			ref = before
		}
		return w.put(bucketImages, ref, driver.PulledImage{Ref: ref, At: at.UTC()})
	})
}

// DropImage deletes the record of a pulled image.
func (s *Store) DropImage(ref string) error {
	return s.update(func(w write) error { return w.drop(bucketImages, ref) })
}

// Images returns the images that this agent pulled, oldest first.
func (s *Store) Images() (out []driver.PulledImage, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		return each(tx, bucketImages, func(_ string, p *driver.PulledImage) error {
			out = append(out, *p)
			return nil
		})
	})
	slices.SortFunc(out, func(a, b driver.PulledImage) int { return cmp.Or(a.At.Compare(b.At), strings.Compare(a.Ref, b.Ref)) })
	return out, err
}

// PutNetworks stores the schedulers' view of the networks that this node has to set up.
func (s *Store) PutNetworks(m *agentv1.NetworkView) error { return s.putMessage(networkKey, m) }

// Networks returns the stored networks; nil if there are none.
func (s *Store) Networks() (*agentv1.NetworkView, error) {
	m := &agentv1.NetworkView{}
	if found, err := s.message(networkKey, m); err != nil || !found {
		return nil, err
	}
	return m, nil
}

// PutNetworkNames stores the names of the members of networks.
func (s *Store) PutNetworkNames(m *agentv1.NetworkNames) error { return s.putMessage(namesKey, m) }

// NetworkNames returns the stored names; nil if there are none.
func (s *Store) NetworkNames() (*agentv1.NetworkNames, error) {
	m := &agentv1.NetworkNames{}
	if found, err := s.message(namesKey, m); err != nil || !found {
		return nil, err
	}
	return m, nil
}

// putMessage stores a message in the bucket meta.
func (s *Store) putMessage(key string, m proto.Message) error {
	raw, err := writeJSON.Marshal(m)
	if err != nil {
		return fmt.Errorf("bucket %s, key %s: %w", bucketMeta, key, err)
	}
	return s.update(func(w write) error { return w.put(bucketMeta, key, json.RawMessage(raw)) })
}

// message reads the protobuf message that is stored under key in the bucket meta, and stores it in m. found is
// false if there is no such message.
func (s *Store) message(key string, m proto.Message) (found bool, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte(bucketMeta))
		if b == nil {
			return nil
		}
		raw := b.Get([]byte(key))
		if raw == nil {
			return nil
		}
		found = true
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(raw, m); err != nil {
			return fmt.Errorf("bucket %s, key %s: %w", bucketMeta, key, err)
		}
		return nil
	})
	return found, err
}

// PutVolume stores the record of a volume.
func (s *Store) PutVolume(r volume.Volume) error {
	return s.update(func(w write) error { return w.put(bucketVolumes, r.ID, r) })
}

// DropVolume deletes the record of a volume.
func (s *Store) DropVolume(id string) error {
	return s.update(func(w write) error { return w.drop(bucketVolumes, id) })
}

// PutAttachment stores the record that a workload uses a volume.
func (s *Store) PutAttachment(r volume.Attachment) error {
	return s.update(func(w write) error { return w.put(bucketAttachments, r.ID, r) })
}

// DropAttachment deletes the record that a workload uses a volume.
func (s *Store) DropAttachment(id string) error {
	return s.update(func(w write) error { return w.drop(bucketAttachments, id) })
}

// Volumes returns the records of managed volumes.
func (s *Store) Volumes() (out volume.Records, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		err := each(tx, bucketVolumes, func(key string, v *volume.Volume) error {
			v.ID = key
			out.Volumes = append(out.Volumes, *v)
			return nil
		})
		if err != nil {
			return err
		}
		return each(tx, bucketAttachments, func(key string, a *volume.Attachment) error {
			a.ID = key
			out.Attachments = append(out.Attachments, *a)
			return nil
		})
	})
	return out, err
}

// PutAddress stores the record of a container's address on a network.
func (s *Store) PutAddress(a workload.NetworkAddress) error {
	return s.update(func(w write) error { return w.put(bucketAddresses, addressKey(a), a) })
}

// DropAddress deletes the record of an address.
func (s *Store) DropAddress(a workload.NetworkAddress) error {
	return s.update(func(w write) error { return w.drop(bucketAddresses, addressKey(a)) })
}

// Addresses returns the records of addresses on networks.
func (s *Store) Addresses() (out []workload.NetworkAddress, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		return each(tx, bucketAddresses, func(_ string, a *workload.NetworkAddress) error {
			out = append(out, *a)
			return nil
		})
	})
	return out, err
}

func addressKey(a workload.NetworkAddress) string { return fmt.Sprintf("%d/%s", a.Network, a.Address) }

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

// all calls write for each element of a list. It stops at the first call that fails, and returns its error.
func all[T any](list []T, write func(T) error) error {
	for _, v := range list {
		if err := write(v); err != nil {
			return err
		}
	}
	return nil
}

// write is one transaction that changes the state file.
type write struct{ tx *bolt.Tx }

func (s *Store) update(fn func(write) error) error {
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
