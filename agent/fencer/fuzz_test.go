package fencer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/persys/compute/agent/fencer/lease"
)

// FuzzLease gives the fencer any lease file and any message of an agent. It checks that after a lapse (the end
// of a lease) the list of leased workloads is empty, and that the deadline never becomes earlier.
func FuzzLease(f *testing.F) {
	dir := f.TempDir()
	f.Add([]byte(`{"boot":"b","deadline":5,"leased":[{"kind":"container","id":"x"}]}`), []byte(`{"boot":"b","leased":[{"kind":"container","id":"y"}],"deadline":9}`), int64(7))
	f.Add([]byte(`{"boot":"b","lapsed":true,"lapses":2,"condemned":[{"kind":"vm","id":"x"}]}`), []byte(`{"lapses":3,"ask":true}`), int64(-1))
	f.Add([]byte(`null`), []byte(`{}`), int64(0))
	f.Fuzz(func(t *testing.T, stored, said []byte, now int64) {
		if err := os.WriteFile(filepath.Join(dir, leaseFile), stored, 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := load(dir, "b")
		if err != nil {
			return
		}
		before := l
		var in lease.Renewal
		if json.Unmarshal(said, &in) != nil {
			return
		}
		next, _ := lease.Step(lease.State{Lease: l}, time.Duration(now), in)
		l = next.Lease
		if l.Deadline < before.Deadline || l.Lapses < before.Lapses {
			t.Fatalf("a message of the agent made the deadline of the lease earlier: the lease %+v became %+v", before, l)
		}
		if l.Lapsed && len(l.Leased) != 0 && !before.Lapsed {
			t.Fatalf("the lease has lapsed, but workloads are still leased: %+v", l)
		}
		if err := save(dir, l); err != nil {
			t.Fatal(err)
		}
	})
}
