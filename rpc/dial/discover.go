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
	// lookupTimeout bounds one lookup with all its queries.
	lookupTimeout = 10 * time.Second
	// A failed lookup is repeated after these times; the wait doubles.
	minRetry = 500 * time.Millisecond
	maxRetry = 30 * time.Second
	cacheMax = 64 << 10
)

// source provides addresses: a fixed list or an SRV name, and then the addresses that schedulers
// named, in case the configured ones are outdated.
type source struct {
	target Target
	fixed  []Endpoint // addresses of a list target
	file   string     // Options.CacheFile
	log    *slog.Logger
	nudge  chan struct{} // requests another lookup

	// publish is called with every new set, one call at a time; failed is called for every lookup
	// without a result.
	publish func([]Endpoint)
	failed  func(error)

	mu     sync.Mutex
	have   cache // known addresses
	stored cache // content of the file
}

// cache is the content of Options.CacheFile. Its first two fields identify the target.
type cache struct {
	SRV       string     `json:"srv,omitempty"`
	Addrs     []string   `json:"addrs,omitempty"`
	Endpoints []Endpoint `json:"endpoints,omitempty"` // result of the last good lookup
	Learned   []Endpoint `json:"learned,omitempty"`   // named by schedulers
}

func (c cache) equal(o cache) bool {
	return c.SRV == o.SRV && slices.Equal(c.Addrs, o.Addrs) &&
		slices.EqualFunc(c.Endpoints, o.Endpoints, Endpoint.Equal) && slices.EqualFunc(c.Learned, o.Learned, Endpoint.Equal)
}

// newSource parses the target of opt.
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

// begin publishes the addresses that are known without a lookup, including those of an SRV name
// from the cache: waiting for a silent DNS server takes longer than an agent's lease. The answer of
// DNS replaces them.
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

// run keeps the addresses of an SRV name current until ctx ends. It looks them up again when the
// TTL expires and when nudged, at most every half second. If DNS does not answer, the last good set
// stays. A list target needs no run.
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

// found uses the answer of a lookup.
func (s *source) found(ends []Endpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.have.Endpoints = ends
	s.publish(s.all())
	s.store()
}

// fallBack logs that DNS does not answer and the cached addresses are used.
func (s *source) fallBack(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all()) > 0 {
		s.log.Warn("scheduler discovery failed; using the addresses of last time", "error", cause)
	}
}

// learn adds the addresses that a scheduler named. They are tried after the others.
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

// all returns the addresses to try, in order; the caller holds s.mu.
func (s *source) all() []Endpoint {
	out := slices.Clone(s.have.Endpoints)
	for _, e := range s.have.Learned {
		if !slices.ContainsFunc(out, func(o Endpoint) bool { return o.Addr == e.Addr }) {
			out = append(out, e)
		}
	}
	return out
}

// again requests another lookup soon. It never blocks.
func (s *source) again() {
	select {
	case s.nudge <- struct{}{}:
	default:
	}
}

// pause waits for d, or for a nudge after minRetry. It returns false if ctx ends first.
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

// store writes the known addresses to the file if they changed; the caller holds s.mu.
func (s *source) store() {
	if s.file == "" || s.have.equal(s.stored) {
		return
	}
	keep := s.have
	if keep.SRV == "" {
		keep.Endpoints = nil // the target itself holds them
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

// recall reads the cache. An invalid cache is ignored.
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
