package cluster

import (
	"sync"
	"testing"
	"time"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/testbed"
)

// counted implements Metrics for tests: it counts the calls of each method.
type counted struct {
	mu    sync.Mutex
	calls map[string]int
}

func (c *counted) add(what string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls == nil {
		c.calls = map[string]int{}
	}
	c.calls[what] += n
}

func (c *counted) of(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[what]
}

func (c *counted) Append(entries, _ int, _ time.Duration) { c.add("append", entries) }
func (c *counted) Commit(commands, _ int, _ time.Duration, err error) {
	if err == nil {
		c.add("commit", commands)
	}
}
func (c *counted) Apply(changes []fsm.Change, _ time.Duration) { c.add("changes", len(changes)) }
func (c *counted) Snapshot(what string, _ time.Duration, err error) {
	if err == nil {
		c.add(what, 1)
	}
}
func (c *counted) Stalled()     { c.add("stalled", 1) }
func (c *counted) Election()    { c.add("election", 1) }
func (c *counted) TermRefused() { c.add("refused term", 1) }

// A replica reports its disk writes, commits, elections and snapshots to Metrics.
func TestMetricsAreReported(t *testing.T) {
	var m counted
	g := newGroup(t, 1)
	g.cfg = func(_ int, c *Config) { c.Metrics = &m }
	leader := g.form()
	g.put("w", 1)
	if err := leader.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"append", "commit", "changes", "election", "write"} {
		if m.of(what) == 0 {
			t.Errorf("the replica reported no %q to Metrics, want at least one", what)
		}
	}
	if m.of("restore") != 0 {
		t.Error("the replica reported a restore of a snapshot, but restored none")
	}
	g.close(0)
	again := g.start(0)
	testbed.Until(t, "the restarted replica reports the restore of its snapshot", func() bool { return m.of("restore") > 0 && again.Store().View().WorkloadCount() > 0 })
}
