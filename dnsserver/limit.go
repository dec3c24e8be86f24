package dnsserver

import (
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"
)

// limiter limits the rate of queries with a token bucket for each client, which is an IPv4 address or an
// IPv6 /64. Its memory is bounded: a hash of the client selects a set of limitWays entries, and a new
// client replaces the client of its set that was idle for longest. A replaced client starts with a full
// bucket when it returns.
type limiter struct {
	rate, burst float64 // tokens added per second, and maximum number of tokens
	seed        uint64
	start       time.Time // the moment from which the times in bucket.last count; on the monotonic clock, because the wall clock may be set back
	shards      [limitShards]limitShard
}

const (
	limitShards = 64
	limitSets   = 64
	limitWays   = 4 // clients per set; the table holds 16,384 clients in all
)

type limitShard struct {
	mu   sync.Mutex
	sets [limitSets][limitWays]bucket
}

type bucket struct {
	client uint64
	tokens float64
	last   int64 // time of the last query, in nanoseconds since the limiter's start; 0 = the entry is free
	over   uint32
}

// verdict is what the limiter decides about a query: answer it, send a truncated reply, or drop it.
type verdict uint8

const (
	pass verdict = iota
	slip         // the client exceeds its rate and gets an empty reply with the TC bit; a client with a real address then retries over TCP
	drop
)

// slipEvery: of the queries that exceed a client's rate, one in slipEvery gets a truncated reply; the others
// are dropped.
const slipEvery = 4

// newLimiter returns a limiter, or nil for rate 0: a nil limiter limits no client.
func newLimiter(rate, burst int) *limiter {
	if rate == 0 {
		return nil
	}
	return &limiter{rate: float64(rate), burst: float64(burst), seed: rand.Uint64(), start: time.Now()}
}

// take spends one token of the client a, and decides what happens to its query. Loopback addresses are never
// limited, because other hosts cannot forge them.
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

// hash returns a hash of the client's IPv4 address or IPv6 /64. The random seed keeps attackers from choosing
// addresses that share a set.
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
	// Mix the bits with the last step of SplitMix64.
	x += l.seed
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
