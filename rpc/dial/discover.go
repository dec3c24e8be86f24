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
	// lookupTimeout is the time limit of one lookup with all its queries.
	lookupTimeout = 10 * time.Second
	// A failed lookup is repeated after minRetry. The pause doubles with every failure, up to maxRetry.
	minRetry = 500 * time.Millisecond
	maxRetry = 30 * time.Second
	cacheMax = 64 << 10
)

// source provides the scheduler addresses of a Conn, from a fixed list or an SRV name. After the addresses from the
// list or from DNS it adds the addresses that schedulers have sent, in case the configuration is outdated.
type source struct {
	target Target
	fixed  []Endpoint // addresses of a target that is a list
	file   string     // path of the cache file, Options.CacheFile
	log    *slog.Logger
	nudge  chan struct{} // signal that another lookup was requested

	// publish is called with every new set of addresses, one call at a time. failed is called for every
	// lookup that found no addresses.
	publish func([]Endpoint)
	failed  func(error)

	mu     sync.Mutex
	have   cache // addresses that this process knows
	stored cache // addresses that are in the cache file
}

// cache is the content of Options.CacheFile. The first two fields identify the target to which the addresses
// belong.
type cache struct {
	SRV       string     `json:"srv,omitempty"`
	Addrs     []string   `json:"addrs,omitempty"`
	Endpoints []Endpoint `json:"endpoints,omitempty"` // result of the last successful lookup
	Learned   []Endpoint `json:"learned,omitempty"`   // addresses that schedulers sent
}

func (c cache) equal(o cache) bool {
	return c.SRV == o.SRV && slices.Equal(c.Addrs, o.Addrs) &&
		slices.EqualFunc(c.Endpoints, o.Endpoints, Endpoint.Equal) && slices.EqualFunc(c.Learned, o.Learned, Endpoint.Equal)
}

// newSource returns a source of scheduler addresses: from the address list or the SRV name that opt contains.
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

// begin publishes the addresses that are known without a lookup. For an SRV name these are the addresses in
// the cache file, because waiting for a silent DNS server would take longer than an agent's lease. When DNS answers,
// its answer replaces the cached addresses.
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

// run keeps the addresses of an SRV name up to date until ctx ends. It repeats the lookup when the TTL
// expires and when the method refresh is called, at most every half second. If DNS does not answer, the result
// of the last successful lookup stays in use. For a fixed list of addresses, run need not be called.
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

// found takes over the result of a lookup.
func (s *source) found(ends []Endpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.have.Endpoints = ends
	s.publish(s.all())
	s.store()
}

// fallBack logs that DNS does not answer, so that the addresses in the cache file are used.
func (s *source) fallBack(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all()) > 0 {
		s.log.Warn("the DNS lookup of the schedulers failed; using the addresses in the cache file", "error", cause)
	}
}

// learn adds addresses that a scheduler has sent. They are tried after all other addresses.
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

// all returns the addresses to try, in order. The caller holds s.mu.
func (s *source) all() []Endpoint {
	out := slices.Clone(s.have.Endpoints)
	for _, e := range s.have.Learned {
		if !slices.ContainsFunc(out, func(o Endpoint) bool { return o.Addr == e.Addr }) {
			out = append(out, e)
		}
	}
	return out
}

// refresh requests another lookup. It never blocks.
func (s *source) refresh() {
	select {
	case s.nudge <- struct{}{}:
	default:
	}
}

// pause waits for the duration wait, or only for minRetry if the method refresh is called meanwhile. It
// returns false if ctx ends first.
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

// store writes the known addresses to the cache file if the addresses have changed. The caller
// holds s.mu.
func (s *source) store() {
	if s.file == "" || s.have.equal(s.stored) {
		return
	}
	keep := s.have
	if keep.SRV == "" {
		keep.Endpoints = nil // do not store addresses that the target itself lists
	}
	if err := writeCache(s.file, keep); err != nil {
		s.log.Warn("scheduler addresses could not be written to the cache file", "error", err)
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

// recall reads the cache file. An invalid file is ignored.
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
