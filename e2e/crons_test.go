package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/testbed"
)

// TestCronsFireWhileLeadersDie: ten crons fire at the same moments. Around eight of these moments the leader
// is killed. For each time at which a cron was due, exactly one run must have been created, and its container
// must have been started exactly once.
func TestCronsFireWhileLeadersDie(t *testing.T) {
	cronsWhileLeadersDie(t, raced(t), 8)
}

// TestCronsFireWhileFiftyLeadersDie is TestCronsFireWhileLeadersDie with fifty kills.
func TestCronsFireWhileFiftyLeadersDie(t *testing.T) {
	cronsWhileLeadersDie(t, shipped(t), 50)
}

const (
	cronCount = 10
	runTime   = "20060102-1504" // the time in the id of a run, in UTC
)

// cronsWhileLeadersDie kills leaders at the times of crons. A cron fires at most once a minute. To save
// time, the test restarts all schedulers before each kill, with clocks that show a few seconds before the
// crons are due.
func cronsWhileLeadersDie(t *testing.T, b harness.Binaries, kills int) {
	testbed.Need(t, "another process's clock", harness.CanShiftClock())
	c := start(t, harness.Options{Binaries: b})
	ctx := t.Context()
	for range 2 {
		got[*harness.Agent](t)(c.StartAgent(ctx, harness.AgentOptions{Simulate: true}))
	}
	crons := make([]string, cronCount)
	for i := range crons {
		crons[i] = fmt.Sprintf("tick-%d", i)
		apply(t, c, crons[i], &controlv1.WorkloadSpec{
			Type: "container", Kind: "cron", Cron: &controlv1.CronSpec{Schedule: "* * * * *", KeepSucceeded: new(int32(1000)), KeepFailed: new(int32(1000))},
			Resources: &controlv1.ResourceRequirements{CpuMillicores: 10, MemoryMb: 8},
			Workload:  &controlv1.WorkloadSpec_Container{Container: &controlv1.ContainerSpec{Image: "sim/exit"}},
		})
	}
	var first time.Time
	hits, lead := 0, 4*time.Second // how long before the time of the crons the schedulers start
	for i := range kills {
		due := nextTime(t, c, crons)
		if i == 0 {
			first = due
		}
		restartAt(t, c, due.Add(-lead))
		leader := c.Schedulers[got[int](t)(c.WaitLeader(ctx, electionLimit))]
		// The leader creates the runs some milliseconds after their time. Some kills happen before the runs
		// are created, others after it.
		at := due.Add(time.Duration(i%8*15-30) * time.Millisecond)
		if wait := time.Until(at.Add(-leader.Clock)); wait > 0 {
			hits++
			pause(ctx, wait)
		} else { // on a busy machine the start took longer
			lead = min(2*lead, 32*time.Second)
		}
		must(t, leader.Kill())
		for _, id := range crons {
			finished(t, c, id+"-"+due.UTC().Format(runTime))
		}
	}
	if hits < (kills+1)/2 {
		t.Errorf("%d of %d leaders were killed at the time of the crons, want at least half", hits, kills)
	}
	s := got[fsm.State](t)(stateOf(ctx, got[clusterv1.ClusterClient](t)(c.LeaderAdmin(ctx))))
	fired, events := map[string]int{}, map[string][]string{}
	s.Events(0, func(e *fsm.Event) bool {
		events[e.Workload] = append(events[e.Workload], fmt.Sprintf("%s %s: %s %s", e.Type, e.Node, e.Reason, e.Message))
		switch e.Type {
		case fsm.EventCronFired:
			fired[e.Message]++
		case fsm.EventCronMissed, fsm.EventCronSkipped:
			t.Errorf("cron %s missed or skipped a time: %s", e.Workload, e.Message)
		}
		return true
	})
	for _, id := range crons {
		of, _ := s.Workload(id)
		var want, have []string
		for at := first; at.UnixNano() <= of.Template.Last; at = at.Add(time.Minute) {
			want = append(want, id+"-"+at.UTC().Format(runTime))
		}
		s.Children(id, func(w *fsm.Workload) bool { have = append(have, w.ID); return true })
		if len(want) < kills || !slices.Equal(have, want) {
			t.Errorf("cron %s has the runs %v, want %v", id, have, want)
		}
		for _, run := range have {
			w := finished(t, c, run)
			if runs := runsOf(t, c, run); len(runs) != 1 || fired["run "+run] != 1 || !w.GetJobResult().GetSucceeded() || w.GetRetryAttempts() != 0 {
				t.Errorf("run %s was created %d times, ran %d times, failed %d times and has the result %v, want one successful run; events:\n%s",
					run, fired["run "+run], len(runs), w.GetRetryAttempts(), w.GetJobResult(), strings.Join(events[run], "\n"))
			}
		}
	}
}

// finished waits until the record of a job has its result (succeeded or failed), and returns the record.
func finished(t *testing.T, c *harness.Cluster, id string) *controlv1.WorkloadView {
	t.Helper()
	return got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, 2*settle, func(w *controlv1.WorkloadView) bool { return w.GetJobResult() != nil }))
}

// nextTime returns the time at which all of the crons are due next.
func nextTime(t *testing.T, c *harness.Cluster, crons []string) (next time.Time) {
	t.Helper()
	for i, id := range crons {
		w := got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, func(w *controlv1.WorkloadView) bool { return w.GetTemplate().GetNextRun() != nil }))
		if at := w.GetTemplate().GetNextRun().AsTime(); i == 0 || at.After(next) {
			next = at
		}
	}
	return next
}

// restartAt restarts all schedulers with shifted clocks, which show the time at, so that the crons fire soon.
func restartAt(t *testing.T, c *harness.Cluster, at time.Time) {
	t.Helper()
	for _, s := range c.Schedulers {
		must(t, s.Kill())
	}
	by := time.Until(at).Truncate(time.Second) // a clock is shifted by whole seconds
	for _, s := range c.Schedulers {
		s.Clock = by
		must(t, s.Start())
	}
	must(t, c.WaitReady(t.Context(), 2*settle))
}
