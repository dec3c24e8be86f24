package sim

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// seedsAsked returns the seeds that a test runs: SIM_SEEDS of them, by default a number
// that keeps the test short, from SIM_FROM on, by default 1.
func seedsAsked(t *testing.T, short int) (from, count uint64) {
	t.Helper()
	read := func(name string, def int) uint64 {
		text := os.Getenv(name)
		if text == "" {
			return uint64(def)
		}
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return n
	}
	return read("SIM_FROM", 1), read("SIM_SEEDS", short)
}

// each runs seeds on all processors and returns the reports of those that broke a promise.
// It stops after limit of them. closed adds up Report.Drifts.
func each(t *testing.T, from, count uint64, limit int, make func(seed uint64) Config, closed ...*atomic.Int64) []Report {
	t.Helper()
	var next atomic.Uint64
	next.Store(from)
	var mu sync.Mutex
	var bad []Report
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for {
				seed := next.Add(1) - 1
				mu.Lock()
				enough := len(bad) >= limit
				mu.Unlock()
				if seed >= from+count || enough {
					return
				}
				r := Run(make(seed))
				for _, n := range closed {
					n.Add(int64(r.Drifts))
				}
				if r.Violation != nil {
					mu.Lock()
					bad = append(bad, r)
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return bad
}

func limit() int {
	if n, err := strconv.Atoi(os.Getenv("SIM_LIMIT")); err == nil && n > 0 {
		return n
	}
	return 3
}

func TestManySeedsKeepEveryPromise(t *testing.T) {
	from, count := seedsAsked(t, 150)
	began := time.Now()
	for _, r := range each(t, from, count, limit(), func(seed uint64) Config { return Config{Seed: seed} }) {
		if os.Getenv("SIM_RAW") == "" {
			r = Shrink(r)
		}
		t.Errorf("%s", r)
	}
	t.Logf("%d seeds in %s", count, time.Since(began).Round(time.Millisecond))
}

func TestASeedAlwaysGivesTheSameRun(t *testing.T) {
	for seed := uint64(1); seed <= 3; seed++ {
		a, b := Run(Config{Seed: seed}), Run(Config{Seed: seed})
		if a.Hash != b.Hash || a.Events != b.Events {
			t.Errorf("seed %d: %d events, hash %x, and then %d events, hash %x", seed, a.Events, a.Hash, b.Events, b.Hash)
		}
	}
}

// TestCommittedSeeds runs the seeds that once failed, with State.Check after every entry.
func TestCommittedSeeds(t *testing.T) {
	f, err := os.Open("testdata/seeds.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		text, _, _ := strings.Cut(lines.Text(), "#")
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("testdata/seeds.txt: %v", err)
		}
		if r := Run(Config{Seed: seed, Check: 1}); r.Violation != nil {
			t.Errorf("%s", r)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
}

// TestASabotagedFenceIsFound switches off one fence at a time and expects a violation: a
// simulator that finds nothing proves nothing.
func TestASabotagedFenceIsFound(t *testing.T) {
	late := MessageDelay | MessageDup | MessageLoss
	for _, c := range []struct {
		name   string
		fence  Sabotage
		faults Fault
		rules  []string // any of them
		seeds  uint64   // within so many
	}{
		{"agents obey any epoch", NoEpochFence, late | LeaderChange, []string{"epoch"}, 60},
		{"agents obey any generation", NoGenerationFence, late, []string{"generation", "tombstone"}, 60},
		{"agents forget what was deleted", NoTombstones, late | Operator, []string{"tombstone"}, 200},
		{"agents forget the epoch when they restart", NoDurableEpoch, ReplicaPause | ReplicaCut | LinkCut | AgentCrash, []string{"epoch"}, 300},
		{"agents answer before they store", AnswerBeforeStore, AgentCrash, []string{"durable"}, 60},
		{"agents obey what is meant for another instance", NoInstanceFence, late | Reinstall, []string{"exclusive"}, 600},
		{"leases are extended without a Confirm", NoLeaseConfirm, ReplicaCut | LinkCut, []string{"early expiry"}, 300},
		{"the leader ends leases before the time that it told", ShortLeases, LinkCut | MessageLoss, []string{"early expiry"}, 60},
		{"the planner does not wait for a stop", NoAwaitStop, Operator, []string{"await stop", "twice"}, 60},
		{"request ids are not kept", NoReceipts, late, []string{"receipt"}, 60},
		{"calls are acknowledged before they are committed", AckBeforeCommit, late, []string{"acknowledged"}, 60},
		{"a replica leaves out a command", SkipAnEntry, late, []string{"same digest", "same verdict"}, 60},
	} {
		t.Run(c.name, func(t *testing.T) {
			bad := each(t, 1, c.seeds, 1, func(seed uint64) Config {
				return Config{Seed: seed, Sabotage: c.fence, Faults: c.faults, Stress: c.faults&late == late, Check: 200}
			})
			if len(bad) == 0 {
				t.Fatalf("%d seeds and nothing was noticed", c.seeds)
			}
			v := bad[0].Violation
			if !strings.Contains(fmt.Sprint(c.rules), v.Rule) {
				t.Fatalf("found as %q, which says little about the fence: %s", v.Rule, bad[0])
			}
			t.Logf("seed %d after %s: %s: %s", bad[0].Config.Seed, v.At, v.Rule, v.Detail)
		})
	}
}

// TestFencersKeepExclusiveWorkloadsSingle: an exclusive workload with on_lost_lease: stop
// moves without a person and never runs twice. Fencers that do nothing, or a bound that
// they cannot keep, are found.
func TestFencersKeepExclusiveWorkloadsSingle(t *testing.T) {
	from, count := seedsAsked(t, 60)
	for _, r := range each(t, from, count, limit(), func(seed uint64) Config { return Config{Seed: seed, Faults: AllFaults | Fencers} }) {
		t.Error(r)
	}
	faults := AgentCrash | AgentPause | LinkCut | ReplicaCut | ClockTrouble | Fencers
	for name, fence := range map[string]Sabotage{"fencers do nothing": NoFencer, "the bound is too short": ShortBound} {
		bad := each(t, 1, 100, 1, func(seed uint64) Config { return Config{Seed: seed, Faults: faults, Sabotage: fence} })
		if len(bad) == 0 {
			t.Fatalf("%s, and nothing was noticed", name)
		}
		if v := bad[0].Violation; v.Rule != "exclusive" {
			t.Fatalf("%s: found as %q: %s", name, v.Rule, bad[0])
		}
		t.Logf("%s: seed %d after %s: %s", name, bad[0].Config.Seed, bad[0].Violation.At, bad[0].Violation.Detail)
	}
}

// TestStopsArriveInTheEnd: a workload that is to be stopped ends stopped, even if the first
// order failed. A planner that orders a stop only once is found.
func TestStopsArriveInTheEnd(t *testing.T) {
	from, count := seedsAsked(t, 40)
	for _, r := range each(t, from, count, limit(), func(seed uint64) Config { return Config{Seed: seed, Faults: AllFaults | StopTrouble} }) {
		t.Error(r)
	}
	bad := each(t, 1, 60, 1, func(seed uint64) Config {
		return Config{Seed: seed, Faults: StopTrouble, Sabotage: NoStopRetry, Settle: 5 * time.Minute}
	})
	if len(bad) == 0 {
		t.Fatal("stops were ordered once, and nothing was noticed")
	}
	if v := bad[0].Violation; v.Rule != "desired state" {
		t.Fatalf("found as %q: %s", v.Rule, bad[0])
	}
	t.Logf("ordered once: %s", bad[0].Violation.Detail)
}

// TestDriftComesOnRecordAndEnds: in a world at rest after all faults, an orphan, a missing
// workload and another revision are recorded and closed.
func TestDriftComesOnRecordAndEnds(t *testing.T) {
	from, count := seedsAsked(t, 24)
	var closed atomic.Int64
	bad := each(t, from, count, 3, func(seed uint64) Config { return Config{Seed: seed, Faults: AllFaults | Drift} }, &closed)
	for _, r := range bad {
		t.Error(r)
	}
	if n := closed.Load(); len(bad) == 0 && n < 2*int64(count) {
		t.Errorf("only %d differences in %d runs were on record and closed", n, count)
	}
}

// TestRolloutsKeepTheBound: under any faults, an update makes at most max_parallel members
// of a group unavailable, and ends. An update with a larger bound is found.
func TestRolloutsKeepTheBound(t *testing.T) {
	from, count := seedsAsked(t, 60)
	for _, r := range each(t, from, count, limit(), func(seed uint64) Config { return Config{Seed: seed, Faults: AllFaults | Rollouts} }) {
		t.Error(r)
	}
	bad := each(t, 1, 60, 1, func(seed uint64) Config {
		return Config{Seed: seed, Faults: Rollouts | LeaderChange, Sabotage: AllAtOnce}
	})
	if len(bad) == 0 {
		t.Fatal("all members were changed at once, and nothing was noticed")
	}
	if v := bad[0].Violation; v.Rule != "rollout" {
		t.Fatalf("found as %q: %s", v.Rule, bad[0])
	}
	t.Logf("all at once: seed %d: %s", bad[0].Config.Seed, bad[0].Violation.Detail)
}
