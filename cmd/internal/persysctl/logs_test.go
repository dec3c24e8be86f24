package persysctl

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/testbed"
)

func logLine(text string, second, nanos int64) *clusterv1.LogChunk {
	return &clusterv1.LogChunk{Data: []byte(text + "\n"), AtUnixNanos: second*1e9 + nanos}
}

// memberView returns a member of the group web.
func memberView(id, status, desired string) *controlv1.WorkloadView {
	w := view(id, status, "node-a", "")
	w.Group, w.DesiredState = "web", desired
	return w
}

// with calls change while the fake serves no call.
func (f *fake) with(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// TestMembersThatJoinAgainLoseNoLines: a member stops, and runs again later. Its output goes on after its last line by
// the node's clock, because lines may have been written before the member joined again.
func TestMembersThatJoinAgainLoseNoLines(t *testing.T) {
	f, s := start(t, nil), newSession(t)
	f.workloads = []*controlv1.WorkloadView{memberView("web-0", "Running", "Running"), view("web-1", "Pending", "", "")}
	f.workloads[1].Group = "web"
	f.logs = []*clusterv1.LogChunk{logLine("one", 1_000_000_000, 0), logLine("two", 1_000_000_007, 5)}
	ends := 0
	f.logEnds = func() {
		f.ends("web-0")
		if ends++; ends == 2 {
			f.ends("web-1")
		}
	}
	done := make(chan int, 1)
	go func() { done <- s.run(f, "logs", "web", "-f") }()
	testbed.Until(t, "the end of the output of web-0", func() bool { return s.stderr.Has("The output of web-0 has ended") })
	f.with(func() {
		f.workloads[0] = memberView("web-0", "Running", "Running")
		f.logs = []*clusterv1.LogChunk{logLine("two", 1_000_000_007, 5), logLine("three", 1_000_000_007, 6)}
	})
	code := <-done
	if got, want := s.stdout.String(), "web-0 | one\nweb-0 | two\nweb-0 | three\n"; code != exitOK || got != want {
		t.Errorf("the command ended with exit code %d and the output %q, want %q; stderr: %s", code, got, want, s.stderr.String())
	}
	if r := last[*clusterv1.LogsRequest](f); r.GetSinceUnixSeconds() != 1_000_000_007 || r.GetTailLines() != -1 {
		t.Errorf("the second request for logs is %v", r)
	}
}

// TestAnOutputWithoutLinesGoesOnFromItsBeginning: a workload that restarts before it writes a line may have written some
// by the time its output is opened again.
func TestAnOutputWithoutLinesGoesOnFromItsBeginning(t *testing.T) {
	f, s := start(t, nil), newSession(t)
	f.logs = nil
	ends := 0
	f.logEnds = func() {
		if ends++; ends == 2 {
			f.ends("web-0")
		}
	}
	if code := s.run(f, "logs", "web-0", "-f", "--since", "10m", "--tail", "3"); code != exitOK {
		t.Fatalf("the command ended with exit code %d: %s", code, s.stderr.String())
	}
	if r := last[*clusterv1.LogsRequest](f); r.GetSinceUnixSeconds() != epoch.Unix()-600 || r.GetTailLines() != -1 {
		t.Errorf("the second request for logs is %v", r)
	}
}

// TestFailedReadsDoNotEndFollowedLogs: while logs are followed, a failed listing of the members or a failed read of a
// workload ends nothing. It is reported once.
func TestFailedReadsDoNotEndFollowedLogs(t *testing.T) {
	broken := status.Error(codes.Internal, "the disk is broken")
	t.Run("of the members", func(t *testing.T) {
		f, s := start(t, nil), newSession(t)
		s.looks = looks{output: 5 * time.Millisecond, member: 5 * time.Millisecond}
		f.workloads = []*controlv1.WorkloadView{memberView("web-0", "Pending", "Running")}
		f.workloads[0].AssignedNodeId = ""
		f.logs = []*clusterv1.LogChunk{logLine("line", 1_000_000_000, 0)}
		f.logEnds = func() { f.ends("web-0") }
		done := make(chan int, 1)
		go func() { done <- s.run(f, "logs", "web", "-f") }()
		testbed.Until(t, "the member that waits", func() bool { return s.stderr.Has("web-0 is Pending; its output joins when it runs.") })
		f.with(func() { f.fail["ListWorkloads"] = []error{broken, broken} })
		testbed.Until(t, "the failed listing", func() bool { return s.stderr.Has("The members of web cannot be listed") })
		f.with(func() { f.workloads = []*controlv1.WorkloadView{memberView("web-0", "Running", "Running")} })
		if code := <-done; code != exitOK || s.stdout.String() != "web-0 | line\n" {
			t.Errorf("the command ended with exit code %d and the output %q; stderr: %s", code, s.stdout.String(), s.stderr.String())
		}
		if n := strings.Count(s.stderr.String(), "the disk is broken"); n != 1 {
			t.Errorf("the failure is reported %d times: %s", n, s.stderr.String())
		}
	})
	t.Run("of a workload", func(t *testing.T) {
		f, s := start(t, nil), newSession(t)
		s.looks = looks{output: 5 * time.Millisecond, member: 5 * time.Millisecond}
		f.logs = []*clusterv1.LogChunk{logLine("line", 1_000_000_000, 0)}
		ends := 0
		f.logEnds = func() {
			if ends++; ends == 1 {
				f.fail["GetWorkload"] = []error{broken, broken}
				f.logs = []*clusterv1.LogChunk{logLine("more", 1_000_000_001, 0)}
			} else {
				f.ends("web-0")
			}
		}
		if code := s.run(f, "logs", "web-0", "-f"); code != exitOK || s.stdout.String() != "line\nmore\n" {
			t.Errorf("the command ended with exit code %d and the output %q; stderr: %s", code, s.stdout.String(), s.stderr.String())
		}
		if n := strings.Count(s.stderr.String(), "the disk is broken"); n != 1 {
			t.Errorf("the failure is reported %d times: %s", n, s.stderr.String())
		}
	})
}
