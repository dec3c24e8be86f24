package persysctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/testbed"
)

// TestRunOfAJob: persysctl run shows why a job is not running yet, and then its output. It ends with the
// exit code of the job, and deletes the job's record. If the output could not be read from the node, it
// shows the last lines that the record holds.
func TestRunOfAJob(t *testing.T) {
	result := func(code int32) *controlv1.JobResult {
		return &controlv1.JobResult{Succeeded: code == 0, FinishedAt: timestamppb.New(epoch), NodeId: "node-a", Message: "4 of 4 attempts used",
			Exit: &controlv1.Exit{Code: code, Output: "last line\n"}}
	}
	for _, c := range []struct {
		name   string
		args   []string
		runs   bool // whether the watch reports the job as Running before it ends
		result *controlv1.JobResult
		code   int
		stdout string
		stderr string
	}{
		{"a job that is seen running", []string{"run", "pack", "--name", "once"}, true, result(0), exitOK, "from the node\n", "0 of 2 nodes fit"},
		{"a job that ends before it is seen running", []string{"run", "pack", "--name", "once"}, false, result(0), exitOK, "last line\n", ""},
		{"a job that fails with an exit code", []string{"run", "pack", "--name", "once", "--", "sh", "-c", "exit 5"}, true, result(5), 5, "from the node\n", ""},
		{"a job that fails without an exit code", []string{"run", "pack", "--name", "once"}, true, &controlv1.JobResult{Message: "did not finish within its deadline of 2 s"},
			exitFailed, "", "once has failed: did not finish within its deadline of 2 s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := start(t, nil)
			f.logs = []*clusterv1.LogChunk{{Stream: "stdout", Data: []byte("from the node\n")}}
			done := view("once", "Stopped", "node-a", "Completed: ended with exit code 0")
			done.JobResult = c.result
			f.workloads = append(f.workloads, done)
			changes := []*clusterv1.WorkloadChange{told(43, view("once", "Pending", "", "Unplaced: 0 of 2 nodes fit: 2 lack memory")), synced(43)}
			if c.runs {
				changes = append(changes, told(44, view("once", "Running", "node-a", "")))
			}
			f.script = []scene{{changes: append(changes, told(45, done))}}
			s := newSession(t)
			if code := s.run(f, c.args...); code != c.code {
				t.Errorf("the exit code is %d, want %d\n%s", code, c.code, s.stderr.String())
			}
			if got := s.stdout.String(); !strings.Contains(got, c.stdout) {
				t.Errorf("stdout is %q, want %q in it", got, c.stdout)
			}
			if got := s.stderr.String(); !strings.Contains(got, c.stderr) {
				t.Errorf("stderr is %q, want %q", got, c.stderr)
			}
			if !f.deleted("once") {
				t.Error("the record of the job was not deleted")
			}
		})
	}
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprintf("an interrupt stops the job, with --keep: %t", keep), func(t *testing.T) {
			f := start(t, nil)
			f.workloads = append(f.workloads, view("once", "Pending", "", ""))
			f.script = []scene{{changes: []*clusterv1.WorkloadChange{told(43, view("once", "Pending", "", "Unplaced: 0 of 2 nodes fit")), synced(43)}}}
			s := newSession(t)
			ctx, interrupt := context.WithCancel(t.Context())
			s.ctx = ctx
			end := make(chan int, 1)
			go func() { end <- s.run(f, "run", "pack", "--name", "once", fmt.Sprintf("--keep=%t", keep)) }()
			testbed.Until(t, "the watch of the job", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return len(f.watches) > 0 })
			interrupt()
			if code := <-end; code != exitInterrupted || f.deleted("once") == keep || f.stopped("once") != keep {
				t.Errorf("exit code %d, deleted %t, stopped %t\n%s", code, f.deleted("once"), f.stopped("once"), s.stderr.String())
			}
		})
	}
	t.Run("with --keep the record of a job that has ended is not deleted", func(t *testing.T) {
		f := start(t, nil)
		done := view("once", "Stopped", "node-a", "Completed: ended with exit code 0")
		done.JobResult = result(0)
		f.workloads = append(f.workloads, done)
		f.script = []scene{{changes: []*clusterv1.WorkloadChange{told(43, done), synced(43)}}}
		if s := newSession(t); s.run(f, "run", "pack", "--name", "once", "--keep") != exitOK || f.deleted("once") {
			t.Errorf("deleted %t\n%s", f.deleted("once"), s.stderr.String())
		}
	})
	for _, args := range [][]string{{"--env", "A"}, {"--cpu", "fast"}, {"--memory", "10"}, {"--deadline", "1500ms"}} {
		s := newSession(t)
		if code := s.run(start(t, nil), append([]string{"run", "pack"}, args...)...); code != exitUsage || !strings.Contains(s.stderr.String(), args[0]) {
			t.Errorf("persysctl run %v: exit %d\n%s", args, code, s.stderr.String())
		}
	}
}

// deleted reports whether persysctl has called DeleteWorkload for this id.
func (f *fake) deleted(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.requests {
		if d, ok := r.(*controlv1.DeleteWorkloadRequest); ok && d.GetWorkloadId() == id {
			return true
		}
	}
	return false
}

// stopped reports whether persysctl has set the desired state Stopped for this id.
func (f *fake) stopped(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.requests {
		if a, ok := r.(*controlv1.ApplyWorkloadRequest); ok && a.GetWorkloadId() == id && a.GetDesiredState() == "Stopped" {
			return true
		}
	}
	return false
}

// TestWaitForAJobHasNoTimeLimitUnlessOneIsGiven: a job may run longer than the default of --timeout. --wait ends with the
// job, and only --timeout ends it before. A service in the same wait keeps the default limit.
func TestWaitForAJobHasNoTimeLimitUnlessOneIsGiven(t *testing.T) {
	for _, c := range []struct {
		name  string
		given bool
		goals map[string]goal
		code  int
	}{
		{"a job", false, map[string]goal{"pack": goalFinished()}, exitOK},
		{"a job with --timeout", true, map[string]goal{"pack": goalFinished()}, exitTimeout},
		{"a job and a service", false, map[string]goal{"pack": goalFinished(), "web": goalStatus("Running")}, exitTimeout},
	} {
		o := waiting{given: func() bool { return c.given }}
		o.limit(c.goals)
		w := &waiter{c: &cli{world: world{err: io.Discard, now: time.Now}}}
		for _, id := range slices.Sorted(maps.Keys(c.goals)) {
			w.all = append(w.all, &progress{id: id, goal: c.goals[id]})
		}
		late, changes := make(chan time.Time), make(chan watched)
		go func() {
			late <- time.Time{}
			done := view("pack", "Stopped", "node-a", "Completed: ended with exit code 0")
			done.JobResult = &controlv1.JobResult{Succeeded: true}
			select {
			case changes <- watched{view: done}:
			case <-t.Context().Done():
			}
		}()
		err, _ := w.loop(t.Context(), changes, nil, 2*time.Minute, late)
		var f *failure
		if (err == nil) != (c.code == exitOK) || errors.As(err, &f) && f.code != c.code {
			t.Errorf("the wait for %s ended with %v, want exit %d", c.name, err, c.code)
		}
	}
}
