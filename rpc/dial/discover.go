package dial

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

const (
	// lookupTimeout bounds one lookup with all its questions.
	lookupTimeout = 10 * time.Second
	// A failed lookup is repeated after these waits, doubling.
	minRetry = 500 * time.Millisecond
	maxRetry = 30 * time.Second
	cacheMax = 64 << 10
)

// source is where the resolver has addresses from: a fixed list or an SRV name,
// and behind either what schedulers said of themselves, for the day on which none
// of the former is right any more.
type source struct {
	target Target
	fixed  []Endpoint // the target's, when it is a list
	file   string     // Options.CacheFile
	log    *slog.Logger
	nudge  chan struct{} // asks for another look

	// publish is told of every new set, one call at a time; failed of every
	// lookup that found nothing.
	publish func([]Endpoint)
	failed  func(error)

	mu     sync.Mutex
	have   cache // what is known
	stored cache // what is in the file
}

// cache is the content of Options.CacheFile. Its first two fields say for which
// target it holds.
type cache struct {
	SRV       string     `json:"srv,omitempty"`
	Addrs     []string   `json:"addrs,omitempty"`
	Endpoints []Endpoint `json:"endpoints,omitempty"` // of the last good lookup
	Learned   []Endpoint `json:"learned,omitempty"`   // that schedulers named
}

func (c cache) equal(o cache) bool {
	return c.SRV == o.SRV && slices.Equal(c.Addrs, o.Addrs) &&
		slices.EqualFunc(c.Endpoints, o.Endpoints, Endpoint.Equal) && slices.EqualFunc(c.Learned, o.Learned, Endpoint.Equal)
}

// newSource reads the target of opt. Nothing happens before run.
func newSource(opt Options) (*source, error) {
	var t Target
	var err error
	fixed := opt.Endpoints
	switch {
	case len(fixed) > 0:
		for _, e := range fixed {
			err = cmp.Or(err, e.check())
			t.Addrs = append(t.Addrs, e.Addr)
		}
	case len(opt.Addrs) > 0:
		t.Addrs, err = parseAddrs(opt.Addrs, DefaultPort)
	case opt.Discovery != "":
		t, err = ParseTarget(opt.Discovery)
	default:
		err = fmt.Errorf("no scheduler address and no discovery given")
	}
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	if len(fixed) == 0 {
		for _, addr := range t.Addrs {
			fixed = append(fixed, endpointOf(addr))
		}
	}
	s := &source{target: t, fixed: fixed, file: opt.CacheFile, log: opt.Log, nudge: make(chan struct{}, 1)}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.have = cache{SRV: t.SRV, Addrs: t.Addrs}
	return s, nil
}

// begin publishes what is known without asking anybody: an SRV name's addresses of last
// time too, because a DNS server that says nothing takes longer to give up than an agent's
// lease lives. What it answers replaces them.
func (s *source) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	cached := s.recall()
	s.have.Learned = cached.Learned
	s.stored = cached
	s.have.Endpoints = s.fixed
	if s.target.SRV != "" {
		s.have.Endpoints = cached.Endpoints
	}
	if all := s.all(); len(all) > 0 {
		s.publish(all)
	}
}

// run keeps the addresses of an SRV name current until ctx ends: it asks again
// when the TTL is over and, at most every half second, when it is nudged. When
// DNS does not answer, the last good set stays. A list needs no run.
func (s *source) run(ctx context.Context) {
	if s.target.SRV == "" {
		return
	}
	retry := minRetry
	first, hadSRV := true, false
	for {
		qctx, cancel := context.WithTimeout(ctx, lookupTimeout)
		a, err := lookup(qctx, s.target, hadSRV)
		cancel()
		if ctx.Err() != nil {
			return
		}
		wait := a.ttl
		if err == nil {
			retry, hadSRV = minRetry, a.srv
			s.found(a.endpoints)
		} else {
			wait, retry = retry, min(2*retry, maxRetry)
			s.failed(err)
			if first {
				s.fallBack(err)
			}
		}
		first = false
		if !s.pause(ctx, wait) {
			return
		}
	}
}

// found takes over the answer of a lookup.
func (s *source) found(ends []Endpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.have.Endpoints = ends
	s.publish(s.all())
	s.store()
}

// fallBack tells of a start without DNS: the addresses of last time stay in use.
func (s *source) fallBack(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all()) > 0 {
		s.log.Warn("scheduler discovery failed; using the addresses of last time", "error", cause)
	}
}

// learn takes the addresses that a scheduler gives as those of all of them. They
// come behind the others.
func (s *source) learn(addrs []string) {
	var ends []Endpoint
	for _, addr := range addrs {
		if good, err := parseAddr(addr, ""); err == nil && good == addr && len(ends) < maxAddresses {
			ends = append(ends, endpointOf(addr))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(ends) == 0 || slices.EqualFunc(ends, s.have.Learned, Endpoint.Equal) {
		return
	}
	s.have.Learned = ends
	s.publish(s.all())
	s.store()
}

// all is what to try, in order; s.mu is held.
func (s *source) all() []Endpoint {
	out := slices.Clone(s.have.Endpoints)
	for _, e := range s.have.Learned {
		if !slices.ContainsFunc(out, func(o Endpoint) bool { return o.Addr == e.Addr }) {
			out = append(out, e)
		}
	}
	return out
}

// again asks for another look soon. It never blocks.
func (s *source) again() {
	select {
	case s.nudge <- struct{}{}:
	default:
	}
}

// pause waits for the time, or for a nudge once minRetry is over; false when
// ctx ended.
func (s *source) pause(ctx context.Context, wait time.Duration) bool {
	soon, late := time.NewTimer(min(wait, minRetry)), time.NewTimer(wait)
	defer soon.Stop()
	defer late.Stop()
	select {
	case <-soon.C:
	case <-ctx.Done():
		return false
	}
	select {
	case <-late.C:
	case <-s.nudge:
	case <-ctx.Done():
		return false
	}
	return true
}

// store keeps what is known for the next start, when it changed; s.mu is held.
func (s *source) store() {
	if s.file == "" || s.have.equal(s.stored) {
		return
	}
	keep := s.have
	if keep.SRV == "" {
		keep.Endpoints = nil // they are the target itself
	}
	if err := writeCache(s.file, keep); err != nil {
		s.log.Warn("scheduler addresses are not cached", "error", err)
		return
	}
	s.stored = s.have
}

func writeCache(file string, c cache) error {
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".persys-addrs.*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}

// recall reads the cache; anything odd in it means there is none.
func (s *source) recall() cache {
	none := cache{}
	if s.file == "" {
		return none
	}
	st, err := os.Stat(s.file)
	if err != nil || st.Size() > cacheMax {
		return none
	}
	data, err := os.ReadFile(s.file)
	if err != nil {
		return none
	}
	var have cache
	if json.Unmarshal(data, &have) != nil || have.SRV != s.target.SRV || !slices.Equal(have.Addrs, s.target.Addrs) {
		return none
	}
	for _, list := range [][]Endpoint{have.Endpoints, have.Learned} {
		if len(list) > maxAddresses {
			return none
		}
		for _, e := range list {
			if e.check() != nil {
				return none
			}
		}
	}
	return have
}
