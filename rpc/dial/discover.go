package dial

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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

// discover keeps the addresses of an SRV name current until ctx ends: it asks
// again when the TTL is over and, at most every half second, when a connection
// failed. When DNS does not answer, the last good set stays.
func (c *Conn) discover(ctx context.Context, t Target) {
	retry := minRetry
	first := true
	for {
		qctx, cancel := context.WithTimeout(ctx, lookupTimeout)
		a, err := lookup(qctx, t)
		cancel()
		if ctx.Err() != nil {
			return
		}
		wait := a.ttl
		if err == nil {
			retry = minRetry
			c.adopt(a.endpoints)
			if err := c.store(t, a.endpoints); err != nil {
				c.log.Warn("scheduler addresses are not cached", "error", err)
			}
		} else {
			wait, retry = retry, min(2*retry, maxRetry)
			c.lookupFailed(err)
			if cached := c.recall(t); first && len(cached) > 0 {
				c.log.Warn("scheduler discovery failed; using the addresses of last time", "error", err)
				c.adopt(cached)
			}
		}
		first = false
		if !c.pause(ctx, wait) {
			return
		}
	}
}

// pause waits for the time, or for a nudge once minRetry is over; false when
// ctx ended.
func (c *Conn) pause(ctx context.Context, wait time.Duration) bool {
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
	case <-c.nudge:
	case <-ctx.Done():
		return false
	}
	return true
}

// cache is the content of Options.CacheFile.
type cache struct {
	SRV       string     `json:"srv"`
	Endpoints []endpoint `json:"endpoints"`
}

func (c *Conn) store(t Target, eps []endpoint) error {
	if c.opt.CacheFile == "" || slices.EqualFunc(eps, c.stored, sameEndpoint) {
		return nil
	}
	data, err := json.Marshal(cache{SRV: t.SRV, Endpoints: eps})
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(c.opt.CacheFile), ".persys-addrs.*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), c.opt.CacheFile)
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("write %s: %w", c.opt.CacheFile, err)
	}
	c.stored = eps
	return nil
}

// recall reads the cache; anything odd in it means there is none.
func (c *Conn) recall(t Target) []endpoint {
	if c.opt.CacheFile == "" {
		return nil
	}
	st, err := os.Stat(c.opt.CacheFile)
	if err != nil || st.Size() > cacheMax {
		return nil
	}
	data, err := os.ReadFile(c.opt.CacheFile)
	if err != nil {
		return nil
	}
	var have cache
	if json.Unmarshal(data, &have) != nil || have.SRV != t.SRV || len(have.Endpoints) > maxAddresses {
		return nil
	}
	for _, e := range have.Endpoints {
		if addr, err := parseAddr(e.Addr, ""); err != nil || addr != e.Addr || len(e.Names) == 0 {
			return nil
		}
	}
	return have.Endpoints
}

func sameEndpoint(a, b endpoint) bool {
	return a.Addr == b.Addr && slices.Equal(a.Names, b.Names)
}
