package sim

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/session/heartbeat"
)

// seedsAsked returns the first seed and the number of seeds that a test runs, as SIM_FROM and
// SIM_SEEDS say. The defaults are 1 and short.
func seedsAsked(t *testing.T, short int) (from, count uint64) {
	t.Helper()
	read := func(name string, def int) uint64 {
		text := os.Getenv(name)
		if text == "" {
			return uint64(def)
		}
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			t.Fatalf("setting %s: %v", name, err)
		}
		return n
	}
	return read("SIM_FROM", 1), read("SIM_SEEDS", short)
}

// each simulates seeds on all processors and returns the reports of the runs that broke a promise.
// It stops after limit such reports. The function see gets every report; calls may be concurrent.
func each(t *testing.T, from, count uint64, limit int, make func(seed uint64) Config, see ...func(Report)) []Report {
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
				for _, f := range see {
					f(r)
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
		t.Errorf("no promise may be broken, but: %s", r)
	}
	t.Logf("ran %d seeds in %s", count, time.Since(began).Round(time.Millisecond))
}

func TestASeedAlwaysGivesTheSameRun(t *testing.T) {
	for seed := uint64(1); seed <= 3; seed++ {
		a, b := Run(Config{Seed: seed}), Run(Config{Seed: seed})
		if a.Hash != b.Hash || a.Events != b.Events {
			t.Errorf("seed %d must give the same run twice, but gave %d events with hash %x, then %d events with hash %x", seed, a.Events, a.Hash, b.Events, b.Hash)
		}
	}
}

// TestCommittedSeeds runs the seeds that once failed, with State.Check after every entry. A line of
// testdata/seeds.txt has the seed, the kinds of faults if they are not AllFaults, and the reason after #.
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
		number, kinds, _ := strings.Cut(text, " ")
		seed, err := strconv.ParseUint(number, 10, 64)
		faults, wrong := parseFaults(strings.TrimSpace(kinds))
		if err := errors.Join(err, wrong); err != nil {
			t.Fatalf("testdata/seeds.txt: %v", err)
		}
		if r := Run(Config{Seed: seed, Faults: faults, Check: 1}); r.Violation != nil {
			t.Errorf("no promise may be broken, but: %s", r)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
}

func TestFaultsAreNamed(t *testing.T) {
	for _, f := range []Fault{ReplicaCrash, FencedReturns, AllFaults, Fencers | DiskStalls, AllFaults | Fencers | Rollouts | Drift | StopTrouble | Crons} {
		if got, err := parseFaults(f.String()); err != nil || got != f {
			t.Errorf("the text of faults %s was parsed as %s (error %v), want the same faults", f, got, err)
		}
	}
	if f, err := parseFaults("AllFaults|Fencers"); err != nil || f != AllFaults|Fencers {
		t.Errorf("parseFaults of AllFaults|Fencers returned %s with error %v, want both kinds", f, err)
	}
	all := AllFaults
	for f, name := range extraFaults {
		if all&f != 0 || f&(f-1) != 0 {
			t.Errorf("%s = %x must be one bit that no other kind has", name, uint32(f))
		}
		all |= f
	}
	if len(extraFaults) < 7 {
		t.Errorf("%d kinds are not in AllFaults, want at least 7", len(extraFaults))
	}
	if _, err := parseFaults("Fences"); err == nil {
		t.Error("parseFaults must refuse an unknown kind of fault, but accepted it")
	}
}

// TestOracleFindsWorkloadOnTwoNodes: the oracle reports a workload that runs on two nodes at once although both
// have held their leases for longer than overlapAllowed.
func TestOracleFindsWorkloadOnTwoNodes(t *testing.T) {
	const never = -1
	for _, c := range []struct {
		name   string
		forced int64 // time since a user deleted the workload with --force; never = it was not deleted
		found  bool
	}{
		{"without delete --force, a workload on two nodes is a violation", never, true},
		{"just after delete --force, it is no violation", sec, false},
		{"long after delete --force, it is a violation", overlapAllowed + sec, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &world{hash: xxhash.New(), oracle: newOracle()}
			w.now = start + 1000*sec
			for _, id := range []string{"n1", "n2"} {
				m := &machine{w: w, id: id, proc: proc{alive: true}, power: proc{alive: true}}
				m.session = session{State: heartbeat.State{Registered: true, LeaseUntil: time.Unix(0, m.local(w.now+sec))}, heldSince: start}
				m.engine = &engine{m: m, has: map[string]*instance{"w1": {id: "w1", state: driver.Running}}}
				w.machines = append(w.machines, m)
			}
			if c.forced != never {
				w.oracle.forced["w1"] = w.now - c.forced
			}
			w.begun(w.machines[0], w.machines[0].engine.has["w1"])
			if v := w.report.Violation; (v != nil) != c.found {
				t.Errorf("the oracle reported %+v, want a violation: %t", v, c.found)
			}
		})
	}
}

// TestASabotagedFenceIsFound switches off one safety mechanism at a time and expects the simulator to
// report a broken promise. If the simulator could not find such faults, a run without a violation would prove
// nothing.
func TestASabotagedFenceIsFound(t *testing.T) {
	late := MessageDelay | MessageDup | MessageLoss
	for _, c := range []struct {
		name   string
		fence  Sabotage
		faults Fault
		rules  []string // the violation must break one of these rules
		seeds  uint64   // a violation must be found within this number of seeds
	}{
		{"agents obey any epoch", NoEpochFence, late | LeaderChange, []string{"epoch"}, 60},
		{"agents obey any generation", NoGenerationFence, late, []string{"generation", "tombstone"}, 60},
		{"agents forget tombstones", NoTombstones, late | Operator, []string{"tombstone"}, 200},
		{"agents forget the epoch when they restart", NoDurableEpoch, ReplicaPause | ReplicaCut | LinkCut | AgentCrash, []string{"epoch"}, 300},
		{"agents answer before they store", AnswerBeforeStore, AgentCrash, []string{"durable"}, 60},
		{"agents obey orders for another instance", NoInstanceFence, late | Reinstall | AgentCrash, []string{"exclusive"}, 600},
		{"leases are extended without a Confirm", NoLeaseConfirm, ReplicaCut | LinkCut, []string{"early expiry"}, 300},
		{"the leader ends leases before the promised time", ShortLeases, LinkCut | MessageLoss, []string{"early expiry"}, 60},
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
				t.Fatalf("a safety mechanism is switched off, but %d seeds ran without a violation", c.seeds)
			}
			v := bad[0].Violation
			if !strings.Contains(fmt.Sprint(c.rules), v.Rule) {
				t.Fatalf("the violation breaks rule %q, want one of the rules %q, which the switched-off mechanism keeps: %s", v.Rule, c.rules, bad[0])
			}
			t.Logf("seed %d after %s: %s: %s", bad[0].Config.Seed, v.At, v.Rule, v.Detail)
		})
	}
}

// TestFencersKeepExclusiveWorkloadsSingle: an exclusive workload with on_lost_lease: stop moves without an
// operator and never runs twice. The test also breaks the fencers on purpose (they do nothing, or stop the
// workload too late) and checks that the simulator finds it.
func TestFencersKeepExclusiveWorkloadsSingle(t *testing.T) {
	from, count := seedsAsked(t, 60)
	for _, r := range each(t, from, count, limit(), func(seed uint64) Config { return Config{Seed: seed, Faults: AllFaults | Fencers} }) {
		t.Error(r)
	}
	faults := AgentCrash | AgentPause | LinkCut | ReplicaCut | ClockTrouble | Fencers
	for name, fence := range map[string]Sabotage{"fencers do nothing": NoFencer, "nodes register a fence bound shorter than their fencers need": ShortBound} {
		bad := each(t, 1, 100, 1, func(seed uint64) Config { return Config{Seed: seed, Faults: faults, Sabotage: fence} })
		if len(bad) == 0 {
			t.Fatalf("%s: the simulator must find a violation, but found none", name)
		}
		if v := bad[0].Violation; v.Rule != "exclusive" {
			t.Fatalf("%s: the violation breaks rule %q, want rule \"exclusive\": %s", name, v.Rule, bad[0])
		}
		t.Logf("%s: seed %d after %s: %s", name, bad[0].Config.Seed, bad[0].Violation.At, bad[0].Violation.Detail)
	}
}

// TestStopsAreCarriedOutEventually: a workload that is to be stopped is stopped in the end, even if the first
// order failed. The test also checks that the simulator would find a planner that orders a stop only once.
func TestStopsAreCarriedOutEventually(t *testing.T) {
	from, count := seedsAsked(t, 40)
	for _, r := range each(t, from, count, limit(), func(seed uint64) Config { return Config{Seed: seed, Faults: AllFaults | StopTrouble} }) {
		t.Error(r)
	}
	bad := each(t, 1, 60, 1, func(seed uint64) Config {
		return Config{Seed: seed, Faults: StopTrouble, Sabotage: NoStopRetry, Settle: 5 * time.Minute}
	})
	if len(bad) == 0 {
		t.Fatal("the planner ordered stops only once, so the simulator must find a violation, but found none")
	}
	if v := bad[0].Violation; v.Rule != "desired state" {
		t.Fatalf("the violation breaks rule %q, want rule \"desired state\": %s", v.Rule, bad[0])
	}
	t.Logf("found: %s", bad[0].Violation.Detail)
}

// TestDriftIsRecordedAndClosed: in a cluster that is at rest after all faults, an orphan (an instance
// without a record), a missing workload and an instance with another revision are recorded as drifts, and
// closed once they are repaired.
func TestDriftIsRecordedAndClosed(t *testing.T) {
	from, count := seedsAsked(t, 24)
	var closed atomic.Int64
	bad := each(t, from, count, 3, func(seed uint64) Config { return Config{Seed: seed, Faults: AllFaults | Drift} },
		func(r Report) { closed.Add(int64(r.Drifts)) })
	for _, r := range bad {
		t.Error(r)
	}
	if n := closed.Load(); len(bad) == 0 && n < 2*int64(count) {
		t.Errorf("only %d differences in %d runs were recorded and closed, want at least 2 per run", n, count)
	}
}

// TestHangingDisksBreakNothing: the disk of a replica hangs at any point, both with all other faults and with
// none. If there are no other faults, no lease ends. The test also checks that the simulator would find a
// leader that keeps leading while its disk hangs.
func TestHangingDisksBreakNothing(t *testing.T) {
	from, count := seedsAsked(t, 60)
	var stalls atomic.Int64
	for _, faults := range []Fault{AllFaults | Fencers | Rollouts | DiskStalls, Fencers | DiskStalls} {
		for _, r := range each(t, from, count, limit(), func(seed uint64) Config { return Config{Seed: seed, Faults: faults} },
			func(r Report) { stalls.Add(int64(r.Stalls)) }) {
			t.Error(r)
		}
	}
	t.Logf("%d leaders gave up leadership because of a hanging disk", stalls.Load())
	if n := stalls.Load(); n < int64(count) {
		t.Errorf("leaders gave up leadership because of a hanging disk only %d times, want at least once per run", n)
	}
	bad := each(t, 1, 60, 1, func(seed uint64) Config {
		return Config{Seed: seed, Faults: Fencers | DiskStalls, Sabotage: UnnoticedStall}
	})
	if len(bad) == 0 {
		t.Fatal("leaders kept leading while their disks hung, so the simulator must find a violation, but found none")
	}
	if v := bad[0].Violation; v.Rule != "lease" {
		t.Fatalf("the violation breaks rule %q, want rule \"lease\": %s", v.Rule, bad[0])
	}
	t.Logf("keeps leading: seed %d after %s: %s", bad[0].Config.Seed, bad[0].Violation.At, bad[0].Violation.Detail)
}

// TestRolloutsKeepTheBound: under any faults, an update makes at most max_parallel members of a group
// unavailable, and ends. The test also checks that the simulator would find an update that exceeds the bound.
func TestRolloutsKeepTheBound(t *testing.T) {
	from, count := seedsAsked(t, 60)
	for _, r := range each(t, from, count, limit(), func(seed uint64) Config { return Config{Seed: seed, Faults: AllFaults | Rollouts} }) {
		t.Error(r)
	}
	bad := each(t, 1, 60, 1, func(seed uint64) Config {
		return Config{Seed: seed, Faults: Rollouts | LeaderChange, Sabotage: AllAtOnce}
	})
	if len(bad) == 0 {
		t.Fatal("all members were changed at once, so the simulator must find a violation, but found none")
	}
	if v := bad[0].Violation; v.Rule != "rollout" {
		t.Fatalf("the violation breaks rule %q, want rule \"rollout\": %s", v.Rule, bad[0])
	}
	t.Logf("found an update of all members at once: seed %d: %s", bad[0].Config.Seed, bad[0].Violation.Detail)
}

// TestRequiredRulesHold: under any faults, each assignment satisfies the required rules of its workload and the node
// pool of its namespace. The test also checks that the simulator would find a planner that ignores them.
func TestRequiredRulesHold(t *testing.T) {
	from, count := seedsAsked(t, 60)
	for _, r := range each(t, from, count, limit(), func(seed uint64) Config { return Config{Seed: seed, Faults: AllFaults | Placement} }) {
		t.Error(r)
	}
	found := map[string]uint64{}
	for _, r := range each(t, 1, 30, 30, func(seed uint64) Config { return Config{Seed: seed, Faults: AllFaults | Placement, Sabotage: AnyNode} }) {
		if rule := r.Violation.Rule; found[rule] == 0 {
			found[rule] = r.Config.Seed
		}
	}
	for _, rule := range []string{"affinity", "anti-affinity", "spread", "pool"} {
		if found[rule] == 0 {
			t.Errorf("workloads were assigned to any nodes, so the simulator must find a violation of %s, but found only %v", rule, found)
		}
	}
	t.Logf("found, by rule and seed: %v", found)
}

// TestEachTimeOfACronHasOneRun: under any faults, and while the clocks of schedulers jump, each time of a cron
// has one run. The test also checks that the simulator would find a planner that drops times which passed while
// no leader planned.
func TestEachTimeOfACronHasOneRun(t *testing.T) {
	from, count := seedsAsked(t, 60)
	var runs atomic.Int64
	bad := each(t, from, count, limit(), func(seed uint64) Config {
		return Config{Seed: seed, Faults: AllFaults | Crons, Trouble: 4 * time.Minute}
	}, func(r Report) { runs.Add(int64(r.Runs)) })
	for _, r := range bad {
		t.Error(r)
	}
	t.Logf("crons created %d runs", runs.Load())
	if n := runs.Load(); len(bad) == 0 && n < 6*int64(count) {
		t.Errorf("crons created only %d runs in %d simulations, want at least 6 in each", n, count)
	}
	late := each(t, 1, 60, 1, func(seed uint64) Config {
		return Config{Seed: seed, Faults: LeaderChange | ReplicaCrash | Crons, Sabotage: LateRunsDropped, Trouble: 4 * time.Minute}
	})
	if len(late) == 0 {
		t.Fatal("late times had no runs, so the simulator must find a violation, but found none")
	}
	if v := late[0].Violation; v.Rule != "cron" {
		t.Fatalf("the violation breaks rule %q, want rule \"cron\": %s", v.Rule, late[0])
	}
	t.Logf("found a time without a run: seed %d: %s", late[0].Config.Seed, late[0].Violation.Detail)
}

// TestJobsThatSucceededStaySo: under any faults, a job that reported success is not run again, no exclusive job runs
// twice at once, and retries keep their back-off and their number. The exit of an instance reaches the record of its job, if
// its node keeps the files of agent and engine, before the job runs again. The test also checks that the simulator would find
// a planner that ignores the success of a job, and agents that lose exits.
func TestJobsThatSucceededStaySo(t *testing.T) {
	from, count := seedsAsked(t, 60)
	var ended atomic.Int64
	for _, faults := range []Fault{AllFaults | Jobs, AllFaults | Jobs | Fencers} {
		for _, r := range each(t, from, count, limit(), func(seed uint64) Config { return Config{Seed: seed, Faults: faults} },
			func(r Report) { ended.Add(int64(r.Jobs)) }) {
			t.Error(r)
		}
	}
	t.Logf("%d jobs ended", ended.Load())
	if n := ended.Load(); n < int64(count) {
		t.Errorf("%d jobs ended in %d runs, want at least %d: with fewer jobs, the test does not check enough", n, 2*count, count)
	}
	for _, c := range []struct {
		what     string
		sabotage Sabotage
		faults   Fault
		rule     string
	}{
		{"a planner that ignores success", SuccessIgnored, Jobs, "job"},
		{"agents that lose exits when they restart", ExitsForgotten, AgentCrash | Jobs, "exit"},
	} {
		bad := each(t, 1, 60, 1, func(seed uint64) Config { return Config{Seed: seed, Faults: c.faults, Sabotage: c.sabotage} })
		if len(bad) == 0 {
			t.Errorf("the run had %s, so the simulator must find a violation, but found none", c.what)
		} else if v := bad[0].Violation; v.Rule != c.rule {
			t.Errorf("%s: the violation breaks rule %q, want rule %q: %s", c.what, v.Rule, c.rule, bad[0])
		} else {
			t.Logf("found %s: seed %d: %s", c.what, bad[0].Config.Seed, v.Detail)
		}
	}
}

// TestDrainsLetRunningJobsEnd: under any faults, a drain moves no running job before its deadline, also if the order of the
// job is renewed. Without faults, it moves all jobs after the deadline. The test also checks that the simulator would find
// drains that move running jobs at once, and drains that never move them.
func TestDrainsLetRunningJobsEnd(t *testing.T) {
	from, count := seedsAsked(t, 60)
	var spared, overdue, emptied atomic.Int64
	for _, r := range each(t, from, count, limit(), func(seed uint64) Config { return Config{Seed: seed, Faults: AllFaults | Jobs | Drains} },
		func(r Report) {
			spared.Add(int64(r.Spared))
			overdue.Add(int64(r.Overdue))
			emptied.Add(int64(r.Emptied))
		}) {
		t.Error(r)
	}
	t.Logf("%d jobs ended on a draining node, %d were moved after the deadline, %d nodes were checked after it", spared.Load(), overdue.Load(), emptied.Load())
	if n := int64(count); spared.Load() < n/4 || overdue.Load() < n/20 || emptied.Load() < n*9/10 {
		t.Errorf("in %d runs, %d jobs ended on a draining node, %d were moved after the deadline, and %d nodes were checked after it, want at least %d, %d and %d",
			count, spared.Load(), overdue.Load(), emptied.Load(), n/4, n/20, n*9/10)
	}
	for name, s := range map[string]Sabotage{"drains move jobs at once": DeadlinesDropped, "drains never move jobs": JobsStay} {
		bad := each(t, 1, 60, 1, func(seed uint64) Config { return Config{Seed: seed, Faults: Operator | Jobs | Drains, Sabotage: s} })
		if len(bad) == 0 {
			t.Errorf("%s, so the simulator must find a violation, but found none", name)
		} else if v := bad[0].Violation; v.Rule != "drain" {
			t.Errorf("%s: the violation breaks rule %q, want rule \"drain\": %s", name, v.Rule, bad[0])
		} else {
			t.Logf("%s: seed %d: %s", name, bad[0].Config.Seed, v.Detail)
		}
	}
}

// TestFencesAreAdvisedOnlyIfTrue: machines are reinstalled, agents lose their files, and messages are late. The answer to
// a registration advises to fence the node only if the engine of the node's former instance is gone. The test also checks
// that the simulator would find answers that always advise it.
func TestFencesAreAdvisedOnlyIfTrue(t *testing.T) {
	var advices atomic.Int64
	for _, r := range each(t, 1, 150, limit(), func(seed uint64) Config {
		return Config{Seed: seed, Faults: MessageDelay | MessageDup | MessageLoss | Reinstall | StateLoss, Stress: true}
	}, func(r Report) { advices.Add(int64(r.Advices)) }) {
		t.Error(r)
	}
	if advices.Load() == 0 {
		t.Error("no machine was advised to have its node fenced in 150 runs, want at least one advice")
	}
	bad := each(t, 1, 60, 1, func(seed uint64) Config { return Config{Seed: seed, Faults: StateLoss, Sabotage: AdviceToAll} })
	if len(bad) == 0 {
		t.Fatal("all refusals were taken as the advice to fence, so the simulator must find a violation, but found none")
	}
	if v := bad[0].Violation; v.Rule != "advice" {
		t.Fatalf("the violation breaks rule %q, want rule \"advice\": %s", v.Rule, bad[0])
	}
	t.Logf("%d advices; found false advice: seed %d: %s", advices.Load(), bad[0].Config.Seed, bad[0].Violation.Detail)
}

// TestLocalTroublesBreakNothing: writes to state files fail, engines do not answer, and leaders miss changes of the state,
// together with all other faults.
func TestLocalTroublesBreakNothing(t *testing.T) {
	from, count := seedsAsked(t, 40)
	for _, r := range each(t, from, count, limit(), func(seed uint64) Config {
		return Config{Seed: seed, Faults: AllFaults | Hiccups | Jobs | Fencers}
	}) {
		t.Error(r)
	}
}

// TestWorkloadsLeaveMachinesThatCannotRunThem: under any faults, a workload ends on a machine that can run it, if
// one has room, and does not move more often than its specification allows. The test also checks that the
// simulator would find a planner that moves nothing.
func TestWorkloadsLeaveMachinesThatCannotRunThem(t *testing.T) {
	from, count := seedsAsked(t, 60)
	var moved atomic.Int64
	for _, r := range each(t, from, count, limit(), func(seed uint64) Config { return Config{Seed: seed, Faults: AllFaults | NodeTrouble} },
		func(r Report) { moved.Add(int64(r.Moves)) }) {
		t.Error(r)
	}
	if moved.Load() == 0 {
		t.Error("no workload left a machine that could not run it, want at least one such workload")
	}
	bad := each(t, 1, 30, 1, func(seed uint64) Config {
		return Config{Seed: seed, Faults: NodeTrouble, Sabotage: NoMoves, Settle: 5 * time.Minute}
	})
	if len(bad) == 0 {
		t.Fatal("no workload may move, so the simulator must find a violation, but found none")
	}
	if v := bad[0].Violation; v.Rule != "desired state" {
		t.Fatalf("the violation breaks rule %q, want rule \"desired state\": %s", v.Rule, bad[0])
	}
	t.Logf("%d moves; found a planner that moves nothing: seed %d: %s", moved.Load(), bad[0].Config.Seed, bad[0].Violation.Detail)
}

// TestRebalancingKeepsItsPromises: under faults, rebalancing by the leader moves no exclusive workload, no workload
// twice within an hour, at most one member of a group at a time, and never raises the cost of the loads. The test
// also checks that the simulator would find a state machine that does not check planned moves again before it makes
// them.
func TestRebalancingKeepsItsPromises(t *testing.T) {
	from, count := seedsAsked(t, 15)
	var moves atomic.Int64
	for _, faults := range []Fault{AllFaults | Rebalancing, LeaderChange | ReplicaCrash | AgentCrash | MessageDelay | Rebalancing} {
		for _, r := range each(t, from, count, limit(), func(seed uint64) Config {
			return Config{Seed: seed, Faults: faults, Trouble: 4 * time.Minute}
		}, func(r Report) { moves.Add(int64(r.Balanced)) }) {
			t.Error(r)
		}
	}
	if moves.Load() < int64(count)/4 {
		t.Errorf("the leader made %d moves in %d runs, want at least %d: with fewer moves, the test does not check enough", moves.Load(), 2*count, count/4)
	}
	bad := each(t, 1, 1000, 1, func(seed uint64) Config {
		return Config{Seed: seed, Faults: Rebalancing, Sabotage: StaleMoves, Trouble: 4 * time.Minute, Check: 200}
	})
	if len(bad) == 0 {
		t.Fatal("planned moves were made without a second check, so the simulator must find a violation, but found none")
	}
	if v := bad[0].Violation; v.Rule != "rebalance" {
		t.Fatalf("the violation breaks rule %q, want rule \"rebalance\": %s", v.Rule, bad[0])
	}
	t.Logf("%d moves; found a move that was not checked a second time: seed %d: %s", moves.Load(), bad[0].Config.Seed, bad[0].Violation.Detail)
}
