package pki

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// GossipRing is the keys of a cluster's gossip, newest last. All of them open what
// others have sealed; one seals. It travels and rests sealed under the cluster key, so
// whoever was thrown out of the cluster, with that key, does not get the next ring.
type GossipRing struct {
	Keys []RingKey `json:"keys"`
	// Seals is the id of the key that seals.
	Seals string `json:"seals"`
}

// RingKey is one key of a ring. Blank stands for the one that follows from the cluster
// key, which every cluster begins with.
type RingKey struct {
	ID  string `json:"id"`
	Key []byte `json:"key,omitempty"`
	// Against stands for the schedulers that were revoked when the key was made, who never
	// get it.
	Against string `json:"against,omitempty"`
}

const (
	// FirstGossipKey is the id of the key that follows from the cluster key.
	FirstGossipKey = "first"
	ringMax        = 3
	maxAgainst     = 128
)

var ringContext = []byte("persys/gossip-ring")

// NewGossipRing is what a cluster begins with.
func NewGossipRing() GossipRing {
	return GossipRing{Keys: []RingKey{{ID: FirstGossipKey}}, Seals: FirstGossipKey}
}

// OpenGossipRing opens what Seal made; "" is what a cluster begins with.
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
		return GossipRing{}, errors.New("gossip ring: not in the form that was expected")
	}
	if len(r.Keys) == 0 || len(r.Keys) > ringMax || !slices.Contains(r.IDs(), r.Seals) {
		return GossipRing{}, fmt.Errorf("gossip ring: %d keys, and %q seals", len(r.Keys), clipWord(r.Seals))
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

// Seal makes what the log holds of a ring.
func (r GossipRing) Seal(key *Key) (string, error) {
	raw, err := json.Marshal(r)
	if err != nil {
		return "", err
	}
	return key.Seal(raw, ringContext)
}

// IDs are the ids of its keys, in order.
func (r GossipRing) IDs() []string {
	out := make([]string, len(r.Keys))
	for i, k := range r.Keys {
		out[i] = k.ID
	}
	return out
}

// Settled reports whether there is one key, which seals.
func (r GossipRing) Settled() bool { return len(r.Keys) == 1 }

// Newest is the id of the key that is to seal in the end.
func (r GossipRing) Newest() string { return r.Keys[len(r.Keys)-1].ID }

// Against is what its newest key was made against.
func (r GossipRing) Against() string { return r.Keys[len(r.Keys)-1].Against }

// Add is the first step of a rotation: a new key, which opens, made against whom that stands
// for.
func (r GossipRing) Add(against string) (GossipRing, error) {
	if !r.Settled() {
		return r, fmt.Errorf("gossip key %s is being brought in; wait for it", r.Newest())
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

// Next is the step after the one that every replica has made: the new key seals, then
// the others go. A step is what an event says of it.
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

// Raw are the keys themselves: the one that seals, and all.
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
