package pki

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// GossipRing holds the gossip keys of a cluster, the newest last. A scheduler encrypts gossip with one of the keys,
// and can decrypt gossip with any of them. A ring is stored and sent sealed (encrypted) under the cluster key.
type GossipRing struct {
	Keys []RingKey `json:"keys"`
	// Seals is the id of the key in the ring that encrypts.
	Seals string `json:"seals"`
}

// RingKey is one gossip key in a ring. An empty Key stands for the initial key, which is derived from the
// cluster key.
type RingKey struct {
	ID  string `json:"id"`
	Key []byte `json:"key,omitempty"`
	// Against is a hash over the schedulers that were already revoked when the key was made, so that they never got
	// it. If the hash of the revoked schedulers is different now, a scheduler that was revoked later may have the key.
	Against string `json:"against,omitempty"`
}

const (
	// FirstGossipKey is the id of the initial gossip key, which is derived from the cluster key.
	FirstGossipKey = "first"
	ringMax        = 3
	maxAgainst     = 128
)

var ringContext = []byte("persys/gossip-ring")

// NewGossipRing returns the ring of a new cluster, with only the initial key.
func NewGossipRing() GossipRing {
	return GossipRing{Keys: []RingKey{{ID: FirstGossipKey}}, Seals: FirstGossipKey}
}

// OpenGossipRing decrypts a ring that Seal has encrypted. An empty text stands for the ring of a new cluster.
func OpenGossipRing(key *Key, sealed string) (GossipRing, error) {
	if sealed == "" {
		return NewGossipRing(), nil
	}
	raw, err := key.Open(sealed, ringContext)
	if err != nil {
		return GossipRing{}, fmt.Errorf("gossip ring: %w", err)
	}
	return parseRing(raw)
}

func parseRing(raw []byte) (GossipRing, error) {
	var r GossipRing
	if err := json.Unmarshal(raw, &r); err != nil {
		return GossipRing{}, errors.New("gossip ring: not valid JSON")
	}
	if len(r.Keys) == 0 || len(r.Keys) > ringMax || !slices.Contains(r.IDs(), r.Seals) {
		return GossipRing{}, fmt.Errorf("gossip ring: it has %d keys, want 1 to %d that include the encrypting key %q", len(r.Keys), ringMax, clipWord(r.Seals))
	}
	for _, k := range r.Keys {
		if len(k.Against) > maxAgainst {
			return GossipRing{}, fmt.Errorf("gossip ring: against has %d bytes, limit %d", len(k.Against), maxAgainst)
		}
		if k.ID == FirstGossipKey && k.Key == nil {
			continue
		}
		if len(k.ID) != 16 || !isLowerHex(k.ID) || len(k.Key) != keySize {
			return GossipRing{}, errors.New("gossip ring: a key is malformed")
		}
	}
	return r, nil
}

// Seal encrypts the ring under the cluster key, so that it can be stored in the log.
func (r GossipRing) Seal(key *Key) (string, error) {
	raw, err := json.Marshal(r)
	if err != nil {
		return "", err
	}
	return key.Seal(raw, ringContext)
}

// IDs returns the ids of the keys in the ring, in their order.
func (r GossipRing) IDs() []string {
	out := make([]string, len(r.Keys))
	for i, k := range r.Keys {
		out[i] = k.ID
	}
	return out
}

// Settled reports whether the ring has only one key, so that no rotation of the gossip key is in progress.
func (r GossipRing) Settled() bool { return len(r.Keys) == 1 }

// Newest returns the id of the newest key. In the first step of a rotation it only decrypts; from the second step on
// it also encrypts.
func (r GossipRing) Newest() string { return r.Keys[len(r.Keys)-1].ID }

// Against returns the hash over the schedulers that were already revoked when the newest key was made
// (RingKey.Against).
func (r GossipRing) Against() string { return r.Keys[len(r.Keys)-1].Against }

// Add is the first step of a rotation: it adds a new key that does not encrypt yet, but only decrypts.
func (r GossipRing) Add(against string) (GossipRing, error) {
	if !r.Settled() {
		return r, fmt.Errorf("the rotation to gossip key %s is in progress; wait for its end", r.Newest())
	}
	k := RingKey{Key: make([]byte, keySize), Against: against}
	if _, err := rand.Read(k.Key); err != nil {
		return r, err
	}
	id := make([]byte, 8)
	if _, err := rand.Read(id); err != nil {
		return r, err
	}
	k.ID = hex.EncodeToString(id)
	return GossipRing{Keys: append(slices.Clone(r.Keys), k), Seals: r.Seals}, nil
}

// Next returns the ring of the next step of a rotation. Call it once every replica has installed the present
// ring. The first call makes the new key encrypt, the second one removes all other keys. step describes what
// changed, for the event.
func (r GossipRing) Next() (next GossipRing, step string) {
	switch newest := r.Newest(); {
	case r.Settled():
		return r, ""
	case r.Seals != newest:
		return GossipRing{Keys: r.Keys, Seals: newest}, "seals " + newest
	default:
		return GossipRing{Keys: r.Keys[len(r.Keys)-1:], Seals: newest}, "only " + newest
	}
}

// Raw returns the bytes of the encrypting key, and of all keys.
func (r GossipRing) Raw(key *Key) (seals []byte, all [][]byte) {
	for _, k := range r.Keys {
		raw := k.Key
		if k.ID == FirstGossipKey {
			raw = key.GossipKey()
		}
		if k.ID == r.Seals {
			seals = raw
		}
		all = append(all, raw)
	}
	return seals, all
}
