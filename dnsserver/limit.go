package dnsserver

import (
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"
)

// limiter is a token bucket per client: per IPv4 address, per IPv6 /64. Its memory is bounded: a new
// client replaces the client of its set that was idle for longest. A client that was replaced starts
// with a full bucket when it returns.
type limiter struct {
	rate, burst float64 // tokens per second; bucket size
	seed        uint64
	start       time.Time // reference for bucket.last; read from the monotonic clock, because the wall clock may be set back
	shards      [limitShards]limitShard
}

const (
	limitShards = 64
	limitSets   = 64
	limitWays   = 4 // 16,384 clients in all
)

type limitShard struct {
	mu   sync.Mutex
	sets [limitSets][limitWays]bucket
}

type bucket struct {
	client uint64
	tokens float64
	last   int64 // nanoseconds since the limiter's start; 0 = free
	over   uint32
}

// verdict is the limiter's decision on a query.
type verdict uint8

const (
	pass verdict = iota
	slip         // over the limit: reply with the TC bit, so that a real client retries over TCP
	drop
)

// slipEvery: one in slipEvery queries over the limit gets a truncated reply; the others are dropped.
const slipEvery = 4

// newLimiter returns nil for rate 0, which limits no client.
func newLimiter(rate, burst int) *limiter {
	if rate == 0 {
		return nil
	}
	return &limiter{rate: float64(rate), burst: float64(burst), seed: rand.Uint64(), start: time.Now()}
}

// take spends one token of a client. Loopback is never limited, because its address cannot be forged
// by other hosts.
func (l *limiter) take(a netip.Addr, now time.Time) verdict {
	if l == nil || a.IsLoopback() {
		return pass
	}
	h := l.hash(a)
	s := &l.shards[h%limitShards]
	at := int64(now.Sub(l.start))
	s.mu.Lock()
	defer s.mu.Unlock()
	set := &s.sets[h/limitShards%limitSets]
	b := &set[0]
	for i := range set {
		if set[i].last != 0 && set[i].client == h {
			b = &set[i]
			break
		}
		if set[i].last < b.last {
			b = &set[i]
		}
	}
	if b.last == 0 || b.client != h {
		*b = bucket{client: h, tokens: l.burst, last: at}
	}
	if gone := at - b.last; gone > 0 {
		b.tokens = min(l.burst, b.tokens+l.rate*float64(gone)/1e9)
		b.last = at
	}
	if b.tokens >= 1 {
		b.tokens--
		return pass
	}
	if b.over++; b.over%slipEvery == 0 {
		return slip
	}
	return drop
}

// hash returns the key of the client's /32 or /64. The seed prevents clients from choosing addresses
// that share a set.
func (l *limiter) hash(a netip.Addr) uint64 {
	var x uint64
	if a = a.Unmap(); a.Is4() {
		b := a.As4()
		x = 1<<63 | uint64(b[0])<<24 | uint64(b[1])<<16 | uint64(b[2])<<8 | uint64(b[3])
	} else {
		b := a.As16()
		for _, c := range b[:8] {
			x = x<<8 | uint64(c)
		}
	}
	// This is the finaliser of SplitMix64.
	x += l.seed
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
