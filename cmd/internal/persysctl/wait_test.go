package persysctl

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/testbed"
)

// view returns a workload as the API shows it, with the given state and node. reason has the form "Code: message".
func view(id, state, node, reason string) *controlv1.WorkloadView {
	code, message, _ := strings.Cut(reason, ": ")
	w := &controlv1.WorkloadView{WorkloadId: id, Status: state, DesiredState: "Running", AssignedNodeId: node}
	if code != "" {
		w.Reason = &controlv1.ReasonDetail{Code: code, Message: message}
	}
	return w
}

func told(index uint64, w *controlv1.WorkloadView) *clusterv1.WorkloadChange {
	return &clusterv1.WorkloadChange{Index: index, Workload: w}
}

func gone(index uint64, id string) *clusterv1.WorkloadChange {
	return &clusterv1.WorkloadChange{Index: index, Workload: &controlv1.WorkloadView{WorkloadId: id, Status: "Deleted"}, Deleted: true}
}

func synced(index uint64) *clusterv1.WorkloadChange {
	return &clusterv1.WorkloadChange{Index: index, Synced: true}
}

const webYAML = "id: web\ncontainer: {image: \"hello:demo\"}\n"

func TestWaitEndsAtItsGoal(t *testing.T) {
	unplaced := "Unplaced: 0 of 2 nodes fit: 2 lack memory"
	stopped := view("old", "Stopped", "", "UserStop: stopped by request")
	stopped.DesiredState = "Stopped"
	web0 := view("web-0", "Stopped", "node-a", "UserStop: stopped by request")
	web0.DesiredState = "Stopped"
	ill := view("web", "Running", "node-a", "")
	ill.Health, ill.Message = "unhealthy", "running, health check: unhealthy (GET /ready: 503)"
	for _, c := range []struct {
		name   string
		stdin  string
		args   []string
		script []scene
		code   int
	}{
		{"wait-apply", webYAML, []string{"apply", "-f", "-", "--wait"}, []scene{{changes: []*clusterv1.WorkloadChange{
			told(43, view("web", "Pending", "", "")), synced(43), told(44, view("web", "Pending", "", unplaced)), told(45, view("web", "Scheduled", "node-a", "")),
			told(46, view("web", "Running", "node-a", "")),
		}}}, exitOK},
		{"wait-count", "id: web\ncount: 2\ncontainer: {image: \"hello:demo\"}\n", []string{"apply", "-f", "-", "--wait"}, []scene{{changes: []*clusterv1.WorkloadChange{
			told(43, view("web-0", "Scheduled", "node-a", "")), told(43, view("web-1", "Scheduled", "node-b", "")), synced(43),
			told(45, view("web-1", "Running", "node-b", "")), told(46, view("web-0", "Running", "node-a", "")),
		}}}, exitOK},
		{"wait-gives-up", webYAML, []string{"apply", "-f", "-", "--wait"}, []scene{{changes: []*clusterv1.WorkloadChange{
			told(43, view("web", "Scheduled", "node-a", "")), synced(43),
			told(44, view("web", "RetryPending", "node-a", "BackoffWait: Failed: ImagePull: no route to host; attempt 1 of 5 failed, next in 2.0 s")),
			told(45, view("web", "Failed", "node-a", "PermanentFailure: Failed: ImageNotFound: hello:demo; a retry cannot help: correct the image")),
		}}}, exitFailed},
		{"wait-timeout", webYAML, []string{"apply", "-f", "-", "--wait", "--timeout", "300ms"}, []scene{{changes: []*clusterv1.WorkloadChange{
			told(43, view("web", "Pending", "", unplaced)), synced(43),
		}}}, exitTimeout},
		{"wait-unhealthy", webYAML, []string{"apply", "-f", "-", "--wait", "--timeout", "300ms"}, []scene{{changes: []*clusterv1.WorkloadChange{
			told(43, view("web", "Scheduled", "node-a", "")), synced(43), told(44, ill),
		}}}, exitTimeout},
		{"wait-deleted-meanwhile", webYAML, []string{"apply", "-f", "-", "--wait"}, []scene{{changes: []*clusterv1.WorkloadChange{
			told(43, view("web", "Pending", "", "")), synced(43), gone(44, "web"),
		}}}, exitFailed},
		{"wait-over-a-broken-stream", webYAML, []string{"apply", "-f", "-", "--wait"}, []scene{
			{changes: []*clusterv1.WorkloadChange{told(43, view("web", "Pending", "", "")), synced(44)}, err: status.Error(codes.Unavailable, "the replica stops")},
			{changes: []*clusterv1.WorkloadChange{told(46, view("web", "Running", "node-a", "")), synced(46)}},
		}, exitOK},
		{"wait-delete", "", []string{"delete", "web", "old", "--wait"}, []scene{{changes: []*clusterv1.WorkloadChange{
			told(44, view("web-0", "Deleting", "node-a", "Deleting: waits until the nodes have removed the workload")), synced(44), gone(45, "web-0"),
		}}}, exitOK},
		{"wait-stop", "", []string{"stop", "web-0", "--wait"}, []scene{{changes: []*clusterv1.WorkloadChange{
			told(44, view("web-0", "Updating", "node-a", "")), synced(44), told(45, view("web-0", "Stopped", "node-a", "UserStop: stopped by request")),
		}}}, exitOK},
		{"wait-rollback-of-a-stopped-one", "", []string{"rollback", "old", "--wait"}, []scene{{changes: []*clusterv1.WorkloadChange{told(44, stopped), synced(44)}}}, exitOK},
		{"wait-drain", "", []string{"drain", "node-a", "--wait"}, []scene{{changes: []*clusterv1.WorkloadChange{
			told(46, view("web-0", "Running", "node-a", "Draining: moves to node-c")), told(46, view("batch", "Running", "node-a", "")), told(46, view("evil", "Failed", "", "")), synced(46),
			told(47, view("web-0", "Pending", "", "AwaitStop: waits until node-a has stopped it")), told(48, view("web-0", "Running", "node-c", "")),
			told(49, view("batch", "Running", "node-c", "")), gone(50, "evil"),
		}}}, exitOK},
		{"wait-scaled-to-0", "id: web\ncount: 1\nautoscale: {min: 1, max: 4, cpu: 70}\nresources: {cpu: 100m}\ncontainer: {image: \"hello:demo\"}\n", []string{"apply", "-f", "-", "--wait"}, []scene{{changes: []*clusterv1.WorkloadChange{
			told(44, web0), synced(44),
		}}}, exitOK},
		{"wait-completed", webYAML, []string{"apply", "-f", "-", "--wait"}, []scene{{changes: []*clusterv1.WorkloadChange{
			told(43, view("web", "Scheduled", "node-a", "")), synced(43), told(44, view("web", "Stopped", "node-a", "Completed: exited with code 0; its restart policy does not start it again")),
		}}}, exitOK},
		{"wait-refused", "id: same\ncontainer: {image: x}\n---\nid: bad\ncontainer: {image: x}\n", []string{"apply", "-f", "-", "--wait"}, []scene{{changes: []*clusterv1.WorkloadChange{
			told(43, view("same", "Running", "node-a", "")), synced(43),
		}}}, exitFailed},
		{"wait-json", webYAML, []string{"apply", "-f", "-", "--wait", "-o", "json"}, []scene{{changes: []*clusterv1.WorkloadChange{
			told(43, view("web", "Running", "node-a", "")), synced(43),
		}}}, exitOK},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f, s := start(t, nil), newSession(t)
			f.refuse["bad"] = "resources.memory: must be at most 1 TiB, got \"9Ti\""
			f.script = c.script
			s.in = strings.NewReader(c.stdin)
			code := s.run(f, c.args...)
			if code != c.code {
				t.Errorf("the exit code is %d, want %d", code, c.code)
			}
			golden(t, c.name, f, s, code, c.args...)
			if len(f.watches) != len(c.script) {
				t.Errorf("%d watches were opened, want %d", len(f.watches), len(c.script))
			}
		})
	}
}

// TestWaitForAGroup: a user changes a group by its name with --wait. The command must wait for all members of the
// group.
func TestWaitForAGroup(t *testing.T) {
	for verb, last := range map[string][]*clusterv1.WorkloadChange{
		"delete":  {gone(46, "web-0"), gone(47, "web-1")},
		"restart": {told(46, view("web-0", "Running", "node-a", "")), told(47, view("web-1", "Running", "node-a", ""))},
	} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			f, s := start(t, nil), newSession(t)
			i := slices.IndexFunc(f.workloads, func(w *controlv1.WorkloadView) bool { return w.GetWorkloadId() == "web-1" })
			f.workloads = slices.Insert(f.workloads, i, &controlv1.WorkloadView{WorkloadId: "web-0-logs", Group: "web"})
			f.script = []scene{{changes: append([]*clusterv1.WorkloadChange{
				told(45, view("web-0", "Updating", "node-a", "")), told(45, view("web-0-logs", "Pending", "", "")), told(45, view("web-1", "Updating", "node-a", "")), synced(45),
			}, last...)}}
			if code := s.run(f, verb, "web", "--wait", "--timeout", "20s"); code != exitOK {
				t.Errorf("the command ended with exit code %d: %s", code, s.stderr.String())
			}
			if !strings.Contains(s.stderr.String(), "all 2 done") {
				t.Errorf("--wait did not wait for both members: %s", s.stderr.String())
			}
		})
	}
}

// TestWaitForTheMembersOfASystemWorkload: --wait ends when the members are ready on all nodes, and ends with an error
// when a member has failed for good.
func TestWaitForTheMembersOfASystemWorkload(t *testing.T) {
	none := &controlv1.SystemMember{NodeId: "node-c", Status: "Pending"}
	failed := &controlv1.SystemMember{NodeId: "node-c", WorkloadId: "log-node-c", Status: "Failed", ReasonCode: "PermanentFailure", ReasonMessage: "no such image", Failed: true}
	two := &controlv1.SystemMembers{Nodes: 3, Ready: 2, Waiting: []*controlv1.SystemMember{none}}
	for _, c := range []struct {
		name    string
		members []*controlv1.SystemMembers
		code    int
	}{
		{"wait-system", []*controlv1.SystemMembers{{Nodes: 3, Waiting: []*controlv1.SystemMember{none}}, two, two, {Nodes: 3, Ready: 3}}, exitOK},
		{"wait-system-failed", []*controlv1.SystemMembers{two, {Nodes: 3, Ready: 2, Failed: 1, Waiting: []*controlv1.SystemMember{failed}}}, exitFailed},
		{"wait-system-late", []*controlv1.SystemMembers{two}, exitTimeout},
		{"wait-system-no-node", []*controlv1.SystemMembers{{}}, exitOK},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f, s := start(t, nil), newSession(t)
			log := view("log", "Running", "", "")
			log.Kind = "system"
			f.script, f.members = []scene{{changes: []*clusterv1.WorkloadChange{told(43, log), synced(43)}}}, c.members
			s.in = strings.NewReader("id: log\nkind: system\ncontainer: {image: \"hello:demo\"}\n")
			args, timeout := []string{"apply", "-f", "-", "--wait"}, "20s"
			if c.code == exitTimeout {
				timeout = "500ms"
			}
			args = append(args, "--timeout", timeout)
			code := s.run(f, args...)
			if code != c.code {
				t.Errorf("the exit code is %d, want %d", code, c.code)
			}
			golden(t, c.name, f, s, code, args...)
		})
	}
}

// TestWaitSeesItsOwnWrite: --wait follows a stream of changes, which must start at the log index of the command's own
// change. After a broken connection, the new stream must start at the last index that was received.
func TestWaitSeesItsOwnWrite(t *testing.T) {
	f, s := start(t, nil), newSession(t)
	f.script = []scene{
		{changes: []*clusterv1.WorkloadChange{told(50, view("web", "Pending", "", "")), synced(50)}, err: status.Error(codes.Unavailable, "stops")},
		{changes: []*clusterv1.WorkloadChange{told(51, view("web", "Running", "n", "")), synced(51)}},
	}
	s.in = strings.NewReader(webYAML)
	if code := s.run(f, "apply", "-f", "-", "--wait"); code != 0 {
		t.Fatalf("the command ended with exit code %d: %s", code, s.stderr.String())
	}
	if f.watches[0].GetMinIndex() != 43 || f.watches[1].GetMinIndex() != 50 {
		t.Errorf("the watches began at log index %d and then %d, want 43 and 50", f.watches[0].GetMinIndex(), f.watches[1].GetMinIndex())
	}
}

// TestWaitOnATerminal: --wait shows one line for each workload, redrawn in place and never wider than the
// terminal.
func TestWaitOnATerminal(t *testing.T) {
	f, s := start(t, nil), newSession(t).terminal(60, 24)
	s.env["NO_COLOR"] = "1"
	f.script = []scene{{changes: []*clusterv1.WorkloadChange{
		told(43, view("web", "Pending", "", "Unplaced: 0 of 2 nodes fit: 2 lack memory and a lot of other things as well")), synced(43),
		told(46, view("web", "Running", "node-a", "")),
	}}}
	s.in = strings.NewReader(webYAML)
	if code := s.run(f, "apply", "-f", "-", "--wait"); code != 0 {
		t.Fatalf("the command ended with exit code %d: %s", code, s.stderr.String())
	}
	drawn := strings.Split(strings.TrimSuffix(s.stderr.String(), "\n"), "\n")
	if last := drawn[len(drawn)-1]; !strings.HasSuffix(last, "\x1b[1A\r\x1b[2K✓ web  Running on node-a  0.0s") {
		t.Errorf("the last line of the progress is %q", last)
	}
	for _, line := range drawn {
		line = line[strings.LastIndex(line, "K")+1:]
		if n := utf8.RuneCountInString(line); n >= 60 {
			t.Errorf("a line of %d columns wraps on a screen of 60: %s", n, line)
		}
	}
}

func TestWaitOfManyFitsTheScreen(t *testing.T) {
	w := &waiter{c: &cli{world: newSession(t).terminal(80, 12).world}, began: epoch}
	for i := range 40 {
		w.all = append(w.all, &progress{id: "web-" + string(rune('a'+i%26)), goal: goalStatus("Running"), done: i%2 == 0})
	}
	lines := w.lines()
	if len(lines) > 9 || !strings.Contains(lines[len(lines)-1], "and 32 more; 20 of 40 done") {
		t.Errorf("the progress has %d lines and ends with %q", len(lines), lines[len(lines)-1])
	}
}

func TestAnInterruptedWaitReportsTheState(t *testing.T) {
	f, s := start(t, nil), newSession(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.ctx = ctx
	f.script = []scene{{changes: []*clusterv1.WorkloadChange{told(43, view("web", "Pending", "", "")), synced(43)}}}
	s.in = strings.NewReader(webYAML)
	done := make(chan int, 1)
	go func() { done <- s.run(f, "apply", "-f", "-", "--wait") }()
	testbed.Until(t, "Pending", func() bool { return s.stderr.Has("Pending") })
	cancel()
	if code := <-done; code != exitInterrupted || !strings.Contains(s.stderr.String(), "the change itself stays") {
		t.Errorf("the command ended with exit code %d: %s", code, s.stderr.String())
	}
}

func TestWatchShowsChangesOfTheList(t *testing.T) {
	f, s := start(t, nil), newSession(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.ctx = ctx
	f.script = []scene{
		{changes: []*clusterv1.WorkloadChange{told(1, view("a", "Pending", "", "")), told(1, view("b", "Running", "node-b", "")), synced(1),
			told(2, view("a", "Running", "node-a", ""))}, err: status.Error(codes.Unavailable, "stops")},
		// The stream breaks, and the new stream does not contain workload b, because b was deleted in between. The
		// wait must notice this.
		{changes: []*clusterv1.WorkloadChange{told(5, view("a", "Failed", "node-a", "PermanentFailure: no")), synced(5)}},
	}
	done := make(chan int, 1)
	go func() { done <- s.run(f, "list", "-w") }()
	testbed.Until(t, "Deleted", func() bool { return s.stdout.Has("Deleted") })
	cancel()
	code := <-done
	golden(t, "list-watch", f, s, code, "list", "-w")
}

func TestWatchListOnATerminal(t *testing.T) {
	f, s := start(t, nil), newSession(t).terminal(80, 24)
	s.env["NO_COLOR"] = "1"
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.ctx = ctx
	f.script = []scene{{changes: []*clusterv1.WorkloadChange{told(1, view("a", "Pending", "", "")), synced(1), told(2, view("a", "Running", "node-a", ""))}}}
	done := make(chan int, 1)
	go func() { done <- s.run(f, "list", "-w") }()
	testbed.Until(t, "Running", func() bool { return s.stdout.Has("Running") })
	cancel()
	if code := <-done; code != 0 {
		t.Errorf("Ctrl-C must end a watch without an error, but the exit code is %d: %s", code, s.stderr.String())
	}
	if !strings.Contains(s.stdout.String(), "\x1b[3A") {
		t.Errorf("the table of three lines is not redrawn in place: %q", s.stdout.String())
	}
}

func TestWatchEventsContinuesAfterTheLastEvent(t *testing.T) {
	f, s := start(t, nil), newSession(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.ctx = ctx
	done := make(chan int, 1)
	go func() { done <- s.run(f, "events", "-w", "--tail", "3") }()
	testbed.Until(t, "NodeLost", func() bool { return s.stdout.Has("NodeLost") })
	cancel()
	code := <-done
	golden(t, "events-watch", f, s, code, "events", "-w", "--tail", "3")
	if r := last[*clusterv1.EventsRequest](f); !r.GetFollow() || r.GetTail() != 3 {
		t.Errorf("the request for events is %v", r)
	}
}

// TestStreamThatNeverWorks: a command follows a stream that can never be opened. It must end soon, with the server's
// error.
func TestStreamThatNeverWorks(t *testing.T) {
	unavailable := status.Error(codes.Unavailable, "node node-a: connection to the agent timed out")
	f, s := start(t, nil), newSession(t)
	f.fail["Logs"] = []error{unavailable, unavailable, unavailable, unavailable, unavailable, unavailable}
	if code := s.run(f, "logs", "web-0", "-f"); code != exitUnavailable || !strings.Contains(s.stderr.String(), "timed out") {
		t.Errorf("the command ended with exit code %d: %s", code, s.stderr.String())
	}
	if left := len(f.fail["Logs"]); left != 1 {
		t.Errorf("%d of 6 prepared errors were not used, want 1", left)
	}
	for _, verb := range []string{"events -w", "list -w", "logs web-0 -f"} {
		s, began := newSession(t), time.Now()
		code := s.run(nil, append([]string{"--insecure", "-s", "127.0.0.1:1", "--rpc-timeout-seconds", "1"}, strings.Fields(verb)...)...)
		if code != exitUnavailable || time.Since(began) > 8*time.Second {
			t.Errorf("command %s without a scheduler ended with exit %d after %s: %s", verb, code, time.Since(began), s.stderr.String())
		}
	}
}

// TestFollowedLogsGoOnByTheNodesClock: after a broken connection, logs are requested from the time of the
// last line. The time must be the node's, because the local clock may differ.
func TestFollowedLogsGoOnByTheNodesClock(t *testing.T) {
	f, s := start(t, nil), newSession(t)
	f.logs, f.logBreaks = []*clusterv1.LogChunk{
		{Data: []byte("one\n"), AtUnixNanos: 1_000_000_000_000_000_000}, {Data: []byte("two\n"), AtUnixNanos: 1_000_000_007_900_000_000},
	}, 1
	f.logEnds = func() { f.ends("web-0") }
	if code := s.run(f, "logs", "web-0", "-f", "--tail", "2"); code != 0 {
		t.Fatalf("the command ended with exit code %d: %s", code, s.stderr.String())
	}
	r := last[*clusterv1.LogsRequest](f)
	if r.GetSinceUnixSeconds() != 1_000_000_007 || r.GetTailLines() != -1 || !r.GetFollow() {
		t.Errorf("the second request for logs is %v", r)
	}
}

// ends makes the fake scheduler report that a workload has stopped because its desired state is Stopped.
func (f *fake) ends(id string) {
	w := f.find(id)
	w.Status, w.DesiredState = "Stopped", "Stopped"
}

func TestFollowedLogsSayWhyTheyEnd(t *testing.T) {
	f, s := start(t, nil), newSession(t)
	f.logEnds = func() { f.ends("web-0") }
	if code, want := s.run(f, "logs", "web-0", "-f"), "The output of web-0 has ended: it is Stopped.\nhint: persysctl logs web-0 --follow\n"; code != 0 || !strings.HasSuffix(s.stderr.String(), want) {
		t.Errorf("the command ended with exit code %d and stderr %q, want %q", code, s.stderr.String(), want)
	}
}

// Followed logs continue after a restart of the workload, and a message says so. Lines that were written
// before are not written again.
func TestFollowedLogsGoOnOverARestart(t *testing.T) {
	f, s := start(t, nil), newSession(t)
	at := func(text string, second, nanos int64) *clusterv1.LogChunk {
		return &clusterv1.LogChunk{Data: []byte(text + "\n"), AtUnixNanos: second*1e9 + nanos}
	}
	f.logs = []*clusterv1.LogChunk{at("one", 1_000_000_000, 0), at("two", 1_000_000_007, 5)}
	ends := 0
	f.logEnds = func() {
		if ends++; ends == 1 {
			f.logs = []*clusterv1.LogChunk{at("two", 1_000_000_007, 5), at("three", 1_000_000_007, 6)}
		} else {
			f.ends("web-0")
		}
	}
	code := s.run(f, "logs", "web-0", "-f")
	if got, want := s.stdout.String(), "one\ntwo\nthree\n"; code != 0 || got != want {
		t.Errorf("the command ended with exit code %d and the output %q, want %q", code, got, want)
	}
	if want := "web-0 was restarted or moved, and runs on node-a; its output goes on.\nThe output of web-0 has ended: it is Stopped.\n"; !strings.HasPrefix(s.stderr.String(), want) {
		t.Errorf("stderr is %q, want %q", s.stderr.String(), want)
	}
	if r := last[*clusterv1.LogsRequest](f); r.GetSinceUnixSeconds() != 1_000_000_007 {
		t.Errorf("the second request for logs is %v", r)
	}
}

// The logs of a group are the outputs of its members; each line begins with the name of the member.
func TestLogsOfAGroup(t *testing.T) {
	f, s := start(t, nil), newSession(t)
	f.logs = []*clusterv1.LogChunk{{Data: []byte("first\nsec")}, {Data: []byte("ond\nlast")}, {Data: []byte("bad\n"), Stream: "stderr"}}
	if code := s.run(f, "logs", "web"); code != exitOK {
		t.Fatalf("the command ended with exit code %d: %s", code, s.stderr.String())
	}
	for _, id := range []string{"web-0", "web-1"} {
		if want := id + " | first\n" + id + " | second\n" + id + " | last\n"; !containsInOrder(s.stdout.String(), want) {
			t.Errorf("the output does not contain the lines of %s: %q", id, s.stdout.String())
		}
		if want := id + " | bad\n"; !strings.Contains(s.stderr.String(), want) {
			t.Errorf("stderr does not contain %q: %q", want, s.stderr.String())
		}
	}
}

// A user follows the logs of a group. The output of a member that runs later, or runs again after a stop, must appear
// too. The command must end when no member will run any more.
func TestMembersJoinFollowedLogs(t *testing.T) {
	f, s := start(t, nil), newSession(t)
	member := func(id, status, node, desired string) *controlv1.WorkloadView {
		w := view(id, status, node, "")
		w.Group, w.DesiredState = "web", desired
		return w
	}
	f.workloads = []*controlv1.WorkloadView{member("web-0", "Running", "node-a", "Running"), member("web-1", "Pending", "", "Running")}
	f.logs = []*clusterv1.LogChunk{{Data: []byte("line\n")}}
	ends := 0
	f.logEnds = func() {
		switch ends++; ends {
		case 1: // the output of web-0 has ended for good, web-1 runs, and the group has a new member
			f.workloads = []*controlv1.WorkloadView{
				member("web-0", "Stopped", "node-a", "Stopped"), member("web-1", "Running", "node-a", "Running"), member("web-2", "Running", "node-b", "Running"),
			}
		case 2:
			f.workloads = []*controlv1.WorkloadView{
				member("web-0", "Stopped", "node-a", "Stopped"), member("web-1", "Stopped", "node-a", "Stopped"), member("web-2", "Stopped", "node-b", "Stopped"),
			}
		}
	}
	if code := s.run(f, "logs", "web", "-f", "--tail", "5"); code != exitOK {
		t.Fatalf("the command ended with exit code %d: %s", code, s.stderr.String())
	}
	for _, id := range []string{"web-0", "web-1", "web-2"} {
		if want := id + " | line\n"; strings.Count(s.stdout.String(), want) != 1 {
			t.Errorf("the output must have the line of %s once: %q", id, s.stdout.String())
		}
	}
	for _, want := range []string{"web-1 is Pending; its output joins when it runs.\n", "web-1 runs on node-a; its output joins.\n", "web-2 runs on node-b; its output joins.\n"} {
		if strings.Count(s.stderr.String(), want) != 1 {
			t.Errorf("stderr must contain %q once: %q", want, s.stderr.String())
		}
	}
}

// containsInOrder reports whether text has the lines of want in their order, perhaps with others between them.
func containsInOrder(text, want string) bool {
	for line := range strings.Lines(want) {
		_, after, ok := strings.Cut(text, line)
		if !ok {
			return false
		}
		text = after
	}
	return true
}

func TestFlagsOfLogsReachTheRequest(t *testing.T) {
	f, s := start(t, nil), newSession(t)
	if code := s.run(f, "logs", "web-0", "--tail", "7", "--since", "10m", "-t", "--service", "api"); code != 0 {
		t.Fatalf("the command ended with exit code %d: %s", code, s.stderr.String())
	}
	r := last[*clusterv1.LogsRequest](f)
	if r.GetTailLines() != 7 || r.GetSinceUnixSeconds() != epoch.Add(-10*time.Minute).Unix() || !r.GetTimestamps() || r.GetService() != "api" || r.GetFollow() {
		t.Errorf("the request for logs is %v", r)
	}
}

// joined copies the admin's certificate, key and CA of pki.DevCerts to the folder in which persysctl join
// stores an identity.
func joined(t *testing.T, s *session, dir string) {
	t.Helper()
	for from, to := range map[string]string{"ca.pem": "ca.pem", "cert.pem": "persysctl.pem", "key.pem": "persysctl-key.pem"} {
		data, err := os.ReadFile(filepath.Join(dir, "user/admin", from))
		if err != nil {
			t.Fatal(err)
		}
		write(t, s.home, ".persys/"+to, string(data))
	}
}

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestApplyReportsItsOutcome(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		args  []string
	}{
		{"apply-one", map[string]string{"web.yaml": webYAML}, []string{"-f", "HOME/web.yaml"}},
		{"apply-json", map[string]string{"web.json": `{"workload_id":"web","spec":{"type":"container","container":{"image":"hello:demo"}}}`}, []string{"-f", "HOME/web.json", "-o", "wide"}},
		{"apply-folder", map[string]string{"d/b.yml": "id: same\ncontainer: {image: b}\n", "d/a.yaml": "id: a\ncount: 3\ncontainer: {image: a}\n", "d/readme.txt": "x", "d/sub/c.yaml": "nonsense"},
			[]string{"-f", "HOME/d"}},
		{"apply-recursive", map[string]string{"d/a.yaml": "id: a\ncontainer: {image: a}\n", "d/sub/c.yaml": "id: c\ncontainer: {image: c}\n"}, []string{"-f", "HOME/d", "-R"}},
		{"apply-empty-folder", map[string]string{"d/readme.txt": "x"}, []string{"-f", "HOME/d"}},
		{"apply-no-specification", map[string]string{"web.yaml": "id: web\n"}, []string{"-f", "HOME/web.yaml"}},
		{"apply-invalid", map[string]string{"web.yaml": "id: web\ncontainer:\n  imgae: hello\n---\nid: web 2\ncontainer: {image: x, ports: [\"99999:80\"]}\n"}, []string{"-f", "HOME/web.yaml"}},
		{"apply-twice-the-same-id", map[string]string{"a.yaml": webYAML, "b.yaml": webYAML}, []string{"-f", "HOME/a.yaml", "-f", "HOME/b.yaml"}},
		{"apply-refused", map[string]string{"a.yaml": "id: bad\ncontainer: {image: x}\n---\nid: good\ncontainer: {image: x}\n"}, []string{"-f", "HOME/a.yaml"}},
		{"apply-older-file", map[string]string{"a.yaml": "id: older\ncontainer: {image: \"web:1\"}\n"}, []string{"-f", "HOME/a.yaml"}},
		{"plan-older-file", map[string]string{"a.yaml": "id: older\ncontainer: {image: \"web:1\"}\n"}, []string{"-f", "HOME/a.yaml"}},
		{"apply-none", map[string]string{"a.yaml": "id: web\ncount: 0\ncontainer: {image: x}\n"}, []string{"-f", "HOME/a.yaml"}},
		{"apply-dry-run-none", map[string]string{"a.yaml": "id: web\ncount: 0\ncontainer: {image: x}\n"}, []string{"-f", "HOME/a.yaml", "--dry-run"}},
		{"apply-condition", map[string]string{"a.yaml": webYAML}, []string{"-f", "HOME/a.yaml", "--if-revision", "7", "--dry-run", "-o", "json"}},
		{"apply-condition-of-several", map[string]string{"a.yaml": "id: a\ncontainer: {image: x}\n---\nid: b\ncontainer: {image: x}\n"}, []string{"-f", "HOME/a.yaml", "--if-revision", "7"}},
		{"apply-dry-run", map[string]string{"a.yaml": "id: web\ncount: 3\nresources: {cpu: 250m, memory: 128Mi}\ncontainer: {image: \"registry.example/team/web:1.2\"}\n---\nid: s\ndesired: stopped\ncompose: {inline: \"services: {a: {image: x}}\"}\n"},
			[]string{"-f", "HOME/a.yaml", "--dry-run"}},
		{"apply-file-beside-it", map[string]string{"d/s.yaml": "id: s\ncompose: {file: compose.yaml}\n", "d/compose.yaml": "services:\n  a:\n    image: x\n"},
			[]string{"-f", "HOME/d/s.yaml", "--dry-run", "-o", "yaml"}},
		{"apply-files-go-along", map[string]string{"shop/stack.yml": "services:\n  a:\n    image: x\n    env_file: a.env\n    volumes: [\"./conf:/conf:ro\", \"./data:/data\"]\n",
			"shop/a.env": "A=secret\n", "shop/conf/a.conf": "one", "shop/README": "no"}, []string{"-f", "HOME/shop/stack.yml", "--dry-run"}},
		{"apply-files-missing", map[string]string{"shop/stack.yml": "services:\n  a:\n    image: x\n    env_file: a.env\n    volumes:\n    - ../up:/up\n    - ./no.conf:/x\n"},
			[]string{"-f", "HOME/shop/stack.yml"}},
		{"plan", map[string]string{"a.yaml": "id: a\ncontainer: {image: x}\n---\nid: b\ncontainer: {image: x}\n---\nid: c\ncontainer: {image: x}\n"}, []string{"-f", "HOME/a.yaml"}},
		{"plan-turns", map[string]string{"a.yaml": "id: a\ncount: 3\nupdate: {max_parallel: 2}\ncontainer: {image: x}\n"}, []string{"-f", "HOME/a.yaml"}},
		{"plan-turns-of-several", map[string]string{"a.yaml": "id: web-eu\ncount: 1\nupdate: {max_parallel: 1}\ncontainer: {image: x}\n---\nid: b\ncontainer: {image: x}\n---\nid: api\ncount: 12\nupdate: {max_parallel: 3}\ncontainer: {image: x}\n"},
			[]string{"-f", "HOME/a.yaml"}},
		{"plan-wide", map[string]string{"a.yaml": "id: a\ncontainer: {image: x}\n---\nid: b\ncontainer: {image: x}\n"}, []string{"-f", "HOME/a.yaml", "-o", "wide"}},
		{"apply-refused-twice", map[string]string{"a.yaml": "id: worse\ncontainer:\n  image: x\n  privileged: true\n  volumes: [\"/etc:/etc\"]\n"}, []string{"-f", "HOME/a.yaml"}},
		{"plan-refused-twice", map[string]string{"a.yaml": "id: worse\ncontainer:\n  image: x\n  privileged: true\n  volumes: [\"/etc:/etc\"]\n"}, []string{"-f", "HOME/a.yaml"}},
		{"plan-refused", map[string]string{"a.yaml": "id: bad\ncontainer: {image: x}\n"}, []string{"-f", "HOME/a.yaml", "-o", "json"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, s := start(t, nil), newSession(t)
			verb, _, _ := strings.Cut(c.name, "-")
			f.refuse["bad"] = "resources.memory: must be at most 1 TiB"
			f.refuse["worse"] = "workload worse: container.volumes[0].host_path: /etc: policy baseline allows none\ncontainer.privileged: true: policy baseline allows none; change the workload"
			for name, text := range c.files {
				write(t, s.home, name, text)
			}
			args := []string{verb}
			for _, a := range c.args {
				args = append(args, strings.ReplaceAll(a, "HOME", s.home))
			}
			code := s.run(f, args...)
			golden(t, c.name, f, s, code, append([]string{verb}, c.args...)...)
		})
	}
}

// TestApplyInBatches: apply sends many specifications in few calls, each within the size limit of a call.
func TestApplyInBatches(t *testing.T) {
	var reqs []*controlv1.ApplyWorkloadRequest
	for range 600 {
		reqs = append(reqs, &controlv1.ApplyWorkloadRequest{WorkloadId: "w"})
	}
	big := &controlv1.ApplyWorkloadRequest{WorkloadId: "b", Spec: &controlv1.WorkloadSpec{Metadata: map[string]string{"x": strings.Repeat("x", 1500<<10)}}}
	reqs = append(reqs, big, big, big)
	var sizes []int
	for len(reqs) > 0 {
		sizes = append(sizes, len(take(&reqs)))
	}
	if want := []int{256, 256, 89, 1, 1}; !equal(sizes, want) {
		t.Errorf("the calls had %v specifications, want %v", sizes, want)
	}
}

// TestApplyBreaksOff: if a later call of apply fails, the results of the earlier calls are still shown.
func TestApplyBreaksOff(t *testing.T) {
	for _, args := range [][]string{{"apply", "-f", "-", "--wait"}, {"apply", "-f", "-", "-o", "json"}} {
		f, s := start(t, nil), newSession(t)
		f.fail["ApplyWorkloads"] = []error{nil, status.Error(codes.NotFound, "namespace shop is no more")}
		f.refuse["w-007"] = "no such image"
		var b strings.Builder
		for i := range 300 {
			fmt.Fprintf(&b, "id: w-%03d\ncontainer: {image: x}\n---\n", i)
		}
		s.in = strings.NewReader(b.String())
		code, said := s.run(f, args...), s.stderr.String()
		if code != exitFailed || !strings.Contains(said, "namespace shop is no more (255 workloads had been applied before)\nhint: ") || !strings.Contains(said, "w-007 was refused") {
			t.Errorf("%v: exit code %d, %s", args, code, said)
		}
		if out := s.stdout.String(); !strings.Contains(out, "w-255") || strings.Contains(out, "w-256") {
			t.Errorf("%v prints %s", args, out)
		}
	}
}

// TestWaitForMoreIDsThanAURLHolds: if the ids for which --wait waits do not fit into a URL, the request watches
// all workloads.
func TestWaitForMoreIDsThanAURLHolds(t *testing.T) {
	f, s := start(t, nil), newSession(t)
	var b strings.Builder
	var changes []*clusterv1.WorkloadChange
	for i := range 300 {
		id := fmt.Sprintf("w-%03d-%s", i, strings.Repeat("x", 50))
		fmt.Fprintf(&b, "id: %s\ncontainer: {image: x}\n---\n", id)
		if i > 0 {
			changes = append(changes, told(43, view(id, "Running", "node-a", "")))
		}
	}
	f.script = []scene{{changes: append(changes, told(43, view("stranger", "Failed", "", "")), gone(43, "stranger"), synced(43))}}
	s.in = strings.NewReader(b.String())
	code := s.run(f, "apply", "--wait", "-f", "-")
	if said := s.stderr.String(); code != exitFailed || !strings.Contains(said, "Error: w-000-") || !strings.Contains(said, "was deleted during the wait") || strings.Contains(said, "stranger") {
		t.Errorf("the command ended with exit code %d: %s", code, said)
	}
	if len(f.watches) != 1 || len(f.watches[0].GetWorkloadIds()) > 0 || f.watches[0].GetMinIndex() != 43 {
		t.Errorf("the request of the watch is %v", f.watches)
	}
}

func equal(a, b []int) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func TestComposeCheckReportsOptions(t *testing.T) {
	const file = "services:\n  web:\n    build: .\n    image: x\n    profiles: [p]\n    deploy: {replicas: 2, placement: {constraints: [a]}}\n  api: {image: y}\n"
	for _, c := range []struct {
		name, text string
		args       []string
	}{
		{"compose-check", file, nil},
		{"compose-check-refused", "services:\n  web:\n    build: .\n    bogus: 1\n", nil},
		{"compose-check-faults", "services:\n  web:\n    image: a:${TAG:?give a tag}\n    env_file: /etc/shadow\n", nil},
		{"compose-check-json", file, []string{"-o", "json"}},
		{"compose-check-yaml", file, []string{"-o", "yaml"}},
		{"compose-check-no-services", "a: 1\n", nil},
		{"compose-check-specification", "id: shop\ncompose: {inline: \"services: {web: {image: x}}\"}\n", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, s := start(t, nil), newSession(t)
			write(t, s.home, "compose.yaml", c.text)
			args := append([]string{"compose", "check"}, c.args...)
			code := s.run(f, append(args, s.home+"/compose.yaml")...)
			golden(t, c.name, f, s, code, append(args, "HOME/compose.yaml")...)
		})
	}
}

// TestComposeFilesAreFoundAsByCompose: apply finds the project name and the variables of a Compose file as
// docker compose does, and prints the names of the files that it used.
func TestComposeFilesAreFoundAsByCompose(t *testing.T) {
	files := map[string]string{
		"shop/compose.yaml": "services:\n  web:\n    image: web:${TAG}\n    command: $WHO\n",
		"shop/.env":         "TAG=1\nUNUSED=secret\n",
		"prod.env":          "TAG=3\nCOMPOSE_PROJECT_NAME=prod\n",
	}
	for _, c := range []struct {
		name  string
		shell map[string]string
		args  []string
	}{
		{"apply-compose-file", nil, []string{"apply", "-f", "HOME/shop/compose.yaml", "--dry-run", "-o", "yaml"}},
		{"apply-compose-file-and-shell", map[string]string{"TAG": "2", "WHO": "me", "EDITOR": "vi"}, []string{"apply", "-f", "HOME/shop/compose.yaml", "--dry-run", "-o", "yaml"}},
		{"apply-compose-file-env-file", nil, []string{"apply", "-f", "HOME/shop/compose.yaml", "--env-file", "HOME/prod.env", "--dry-run", "-o", "yaml"}},
		{"compose-check-env-file", nil, []string{"compose", "check", "HOME/shop/compose.yaml", "--env-file", "HOME/none.env"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, s := start(t, nil), newSession(t)
			for name, text := range files {
				write(t, s.home, name, text)
			}
			maps.Copy(s.env, c.shell)
			var args []string
			for _, a := range c.args {
				args = append(args, strings.Replace(a, "HOME", s.home, 1))
			}
			golden(t, c.name, f, s, s.run(f, args...), c.args...)
		})
	}
}

// TestApplyWaitsForARollout: in a rolling update, members that wait for their turn still run with the former
// specification. So apply --wait waits for the end of the rolling update, and fails if the rolling update fails.
func TestApplyWaitsForARollout(t *testing.T) {
	for _, c := range []struct {
		group, want string
		code        int
	}{
		{"stuck", "stuck is paused, 1 of 3 done: stuck-1 was given up: RetriesExhausted", exitFailed},
		{"back", "back goes back, 1 of 3 done: back-1 was not healthy for 10 s within 300 s", exitFailed},
		{"slow", "time is up; slow is being updated, 1 of 3 done", exitTimeout},
		{"fresh", "fresh waits for its promotion, 0 of 3 done: persysctl rollout promote fresh, or abort", exitOK},
	} {
		t.Run(c.group, func(t *testing.T) {
			f, s := start(t, nil), newSession(t)
			s.in = strings.NewReader("id: " + c.group + "\ncount: 3\nupdate: {max_parallel: 1}\ncontainer: {image: \"nginx:1.28\"}\n")
			code := s.run(f, "apply", "--wait", "--timeout", "100ms", "-f", "-")
			if code != c.code || !strings.Contains(s.stderr.String(), c.want) || !strings.Contains(s.stdout.String(), "applied, a few members at a time") {
				t.Errorf("the command ended with exit code %d\n%s%s", code, s.stdout.String(), s.stderr.String())
			}
		})
	}
}

// apply --wait first waits for a rolling update and then for workloads. --timeout must limit the total time of both
// waits.
func TestApplyWaitsOnceForAll(t *testing.T) {
	f, s := start(t, nil), newSession(t)
	f.script = []scene{{pause: 600 * time.Millisecond, changes: []*clusterv1.WorkloadChange{told(44, view("web-0", "Running", "node-a", "")), synced(44)}}}
	s.in = strings.NewReader("id: web\ncount: 1\nupdate: {max_parallel: 1}\ncontainer: {image: \"nginx:1.28\"}\n")
	if code := s.run(f, "apply", "--wait", "--timeout", "1s", "-f", "-"); code != exitTimeout { // the rolling update takes 900 ms of the timeout of 1 s
		t.Errorf("the command ended with exit code %d\n%s%s", code, s.stdout.String(), s.stderr.String())
	}
}

// TestDrainWaitsEvenIfTheSecondListFails: drain --wait lists the node's workloads before and after the drain begins.
// If the second list cannot be read, it must still wait for the workloads in the first.
func TestDrainWaitsEvenIfTheSecondListFails(t *testing.T) {
	f, s := start(t, nil), newSession(t)
	f.workloads = []*controlv1.WorkloadView{view("web-0", "Running", "node-a", "")}
	f.fail["ListWorkloads"] = []error{nil, status.Error(codes.Internal, "list workloads: it was lost")}
	code := s.run(f, "drain", "node-a", "--wait", "--timeout", "10ms")
	f.mu.Lock()
	watches := len(f.watches)
	f.mu.Unlock()
	if code != exitTimeout || watches == 0 {
		t.Errorf("exit %d after %d watches: %s", code, watches, s.stderr.String())
	}
	f, s = start(t, nil), newSession(t)
	f.fail["ListWorkloads"] = []error{nil, status.Error(codes.Internal, "list workloads: it was lost")}
	if code := s.run(f, "drain", "node-a", "--wait"); code == 0 {
		t.Errorf("the output calls a node empty whose workloads could not be listed: %s", s.stdout.String())
	}
}

// TestDrainWaitsForWorkloadsPlacedMeanwhile: drain --wait also waits for a workload that was placed on the
// node between the first list and the drain.
func TestDrainWaitsForWorkloadsPlacedMeanwhile(t *testing.T) {
	f, s := start(t, nil), newSession(t)
	s.run(f, "drain", "node-a", "--wait", "--timeout", "10ms")
	drained, looked := false, false
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.requests {
		switch r.(type) {
		case *clusterv1.DrainNodeRequest:
			drained = true
		case *controlv1.ListWorkloadsRequest:
			looked = drained
		}
	}
	if !looked {
		t.Error("the workloads of the node were not listed again after the drain began")
	}
}

// TestPlansAreBounded: persysctl plan refuses workloads that do not fit into one call before it sends them,
// and names the limit.
func TestPlansAreBounded(t *testing.T) {
	s := newSession(t)
	for i := range 9 {
		text := fmt.Sprintf("id: w%d\ncontainer:\n  image: x\n  env:\n", i)
		for v := range 5 {
			text += fmt.Sprintf("    V%d: %s\n", v, strings.Repeat("x", 100_000))
		}
		if err := os.WriteFile(filepath.Join(s.home, fmt.Sprintf("w%d.yaml", i)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	code := s.run(nil, "--insecure", "-s", "127.0.0.1:1", "plan", "-f", s.home)
	if said := s.stderr.String(); code != exitUsage || !strings.Contains(said, "the 9 workloads and the files beside them have ") || !strings.Contains(said, " KiB, at most 4032 KiB can be planned at once") {
		t.Errorf("the command ended with exit code %d: %s", code, said)
	}
}

// TestWarningsOfStacksNameTheirPlace: a warning about a key of a Compose file begins with the file and the line, and
// names them only once.
func TestWarningsOfStacksNameTheirPlace(t *testing.T) {
	s := newSession(t)
	file := filepath.Join(s.home, "app.yaml")
	if err := os.WriteFile(file, []byte("name: app\nservices:\n  app:\n    image: a\n    healthcheck: {start_period: 9s, start_interval: 1s}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code := s.run(nil, "compose", "check", file)
	if said := s.stderr.String(); code != 0 || !strings.HasPrefix(said, file+":5: services.app.healthcheck.start_interval: is left out by engines before Docker 25") {
		t.Errorf("the command ended with exit code %d: %s", code, said)
	}
}
