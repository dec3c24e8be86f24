package ui

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var now = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// api is a fake API that records its calls.
type api struct {
	Control
	Cluster
	asked  []string
	refuse string
}

func (a *api) ApplyWorkload(_ context.Context, r *controlv1.ApplyWorkloadRequest, _ ...grpc.CallOption) (*controlv1.ApplyWorkloadResponse, error) {
	a.asked = append(a.asked, r.GetWorkloadId()+" "+r.GetDesiredState())
	return &controlv1.ApplyWorkloadResponse{Success: a.refuse == "", ErrorMessage: a.refuse}, nil
}

func (a *api) DeleteWorkload(_ context.Context, r *controlv1.DeleteWorkloadRequest, _ ...grpc.CallOption) (*controlv1.DeleteWorkloadResponse, error) {
	a.asked = append(a.asked, "delete "+r.GetWorkloadId())
	return &controlv1.DeleteWorkloadResponse{Success: true}, nil
}

func (a *api) RetryWorkload(_ context.Context, r *controlv1.RetryWorkloadRequest, _ ...grpc.CallOption) (*controlv1.RetryWorkloadResponse, error) {
	a.asked = append(a.asked, "restart "+r.GetWorkloadId())
	return &controlv1.RetryWorkloadResponse{Accepted: true}, nil
}

func (a *api) CordonNode(_ context.Context, r *clusterv1.CordonNodeRequest, _ ...grpc.CallOption) (*clusterv1.NodeActionResponse, error) {
	a.asked = append(a.asked, fmt.Sprintf("cordon %s %v", r.GetNodeId(), r.GetOn()))
	return &clusterv1.NodeActionResponse{}, nil
}

func (a *api) DrainNode(_ context.Context, r *clusterv1.DrainNodeRequest, _ ...grpc.CallOption) (*clusterv1.NodeActionResponse, error) {
	a.asked = append(a.asked, "drain "+r.GetNodeId())
	return nil, errors.New("the mode is degraded")
}

func (a *api) logs(_ context.Context, id string) { a.asked = append(a.asked, "logs "+id) }
func (a *api) endLogs()                          { a.asked = append(a.asked, "end of logs") }

// bench is the fixture of a test: a model that is filled with data, and the fake API that it calls.
type bench struct {
	*model
	t   *testing.T
	api *api
}

func newBench(t *testing.T, width, height int) *bench {
	a := &api{}
	m := newModel(t.Context(), Options{
		Control: a, Cluster: a, Where: "home", Now: func() time.Time { return now }, Explain: func(err error) string { return err.Error() },
		Describe: func(_ context.Context, kind, id string, width int) (string, error) {
			if id == "web-2" {
				return "", errors.New("not found")
			}
			return fmt.Sprintf("%s of %s at %d\nsecond line\n", kind, id, width), nil
		},
	})
	m.feed = a
	b := &bench{m, t, a}
	b.send(tea.WindowSizeMsg{Width: width, Height: height})
	var changes []*clusterv1.WorkloadChange
	for i, state := range []string{"Running", "Failed", "Running", "Pending"} {
		changes = append(changes, &clusterv1.WorkloadChange{Workload: &controlv1.WorkloadView{
			WorkloadId: fmt.Sprintf("web-%d", []int{1, 2, 10, 3}[i]), Status: state, DesiredState: "Running", AssignedNodeId: fmt.Sprintf("node-%c", 'a'+i%2),
			CreatedAt: timestamppb.New(now.Add(-time.Duration(i+1) * time.Minute)), ImageOrSource: "hello:demo",
			Reason: &controlv1.ReasonDetail{Code: "Because", Message: "said \x1b[31mred"},
		}})
	}
	b.send(workloadsMsg{changes: changes, whole: true})
	b.send(nodesMsg{{NodeId: "node-a", Status: "Ready", TotalCpuCores: 4, ReservedCpuMillicores: 1000, TotalMemoryMb: 100, ReservedMemoryMb: 50, Workloads: 2},
		{NodeId: "node-b", Status: "NotReady", StatusReason: "the lease ended", Cordoned: true}})
	b.send(eventsMsg{{Seq: 1, Type: "NodeLost", NodeId: "node-b", At: timestamppb.New(now)}, {Seq: 2, Type: "WorkloadState", WorkloadId: "web-2", Details: map[string]string{"from": "Running", "to": "Failed"}}})
	b.send(statusMsg(&clusterv1.StatusResponse{Mode: "normal", LeaderId: "r1", Nodes: 2, NodesReady: 1, Workloads: 4, WorkloadsRunning: 2, Replicas: []*clusterv1.Replica{{Id: "r1", Name: "scheduler-1"}}}))
	return b
}

// send passes a message to the model and runs the effects that the model returns, except timers.
func (b *bench) send(msg tea.Msg) {
	b.t.Helper()
	_, cmd := b.Update(msg)
	if cmd == nil {
		return
	}
	if _, timer := msg.(tickMsg); timer {
		return
	}
	switch out := cmd().(type) {
	case nil, tea.QuitMsg:
	default:
		b.send(out)
	}
}

func (b *bench) keys(names ...string) {
	b.t.Helper()
	for _, n := range names {
		b.send(press(n))
	}
}

func press(name string) tea.KeyPressMsg {
	special := map[string]rune{"enter": tea.KeyEnter, "esc": tea.KeyEscape, "up": tea.KeyUp, "down": tea.KeyDown, "tab": tea.KeyTab,
		"pgdown": tea.KeyPgDown, "pgup": tea.KeyPgUp, "home": tea.KeyHome, "end": tea.KeyEnd, "backspace": tea.KeyBackspace, "space": tea.KeySpace}
	if code, ok := special[name]; ok {
		return tea.KeyPressMsg{Code: code}
	}
	r := []rune(name)[0]
	return tea.KeyPressMsg{Code: r, Text: name}
}

// view returns the screen, and fails the test if the screen is larger than the terminal.
func (b *bench) view() string {
	b.t.Helper()
	lines := b.lines()
	if len(lines) != b.height {
		b.t.Errorf("%d lines on a screen of %d", len(lines), b.height)
	}
	for _, l := range lines {
		if n := utf8.RuneCountInString(l); n > b.width {
			b.t.Errorf("a line of the view has %d columns on a terminal of %d: %s", n, b.width, l)
		}
		if strings.ContainsRune(l, '\x1b') {
			b.t.Errorf("a line of a view without colours contains an escape sequence: %q", l)
		}
	}
	return strings.Join(lines, "\n")
}

func (b *bench) want(what string, texts ...string) {
	b.t.Helper()
	view := b.view()
	for _, text := range texts {
		if strings.HasPrefix(text, "!") == strings.Contains(view, strings.TrimPrefix(text, "!")) {
			b.t.Errorf("after %s the screen wrongly has or lacks %q:\n%s", what, text, view)
		}
	}
}

func TestTablesShowTheirRows(t *testing.T) {
	b := newBench(t, 100, 20)
	b.want("workloads in their natural order", "mode normal  leader scheduler-1  nodes 1/2 ready  workloads 4, 2 running", "live", "[1 Workloads (4)]", ">web-1", "Because: said ?[31mred")
	if view := b.view(); strings.Index(view, "web-2") > strings.Index(view, "web-10") {
		t.Errorf("the view shows web-10 before web-2:\n%s", view)
	}
	b.keys("2")
	b.want("nodes", "[2 Nodes (2)]", "25 %", "50 %", "NotReady,cordoned", "the lease ended")
	b.keys("3")
	b.want("events, the newest first", "[3 Events (2)]", "Running → Failed", "NodeLost")
	b.keys("tab")
	b.want("Tab on the last tab, which selects the first", "[1 Workloads (4)]")
	for _, size := range [][2]int{{40, 8}, {60, 12}, {200, 50}} {
		b.send(tea.WindowSizeMsg{Width: size[0], Height: size[1]})
		for _, k := range []string{"1", "2", "3", "?"} {
			b.keys(k)
			b.view()
		}
		b.keys("q")
	}
}

func TestTheCursorFollowsItsWorkload(t *testing.T) {
	b := newBench(t, 100, 20)
	b.keys("down", "down") // move to the row of web-3
	b.want("the cursor", ">web-3")
	b.send(workloadsMsg{changes: []*clusterv1.WorkloadChange{{Workload: &controlv1.WorkloadView{WorkloadId: "web-0", Status: "Running", DesiredState: "Running"}}}})
	b.want("the cursor stays on its workload when another workload is inserted above it", ">web-3", "web-0", "(5)")
	b.send(workloadsMsg{changes: []*clusterv1.WorkloadChange{{Workload: &controlv1.WorkloadView{WorkloadId: "web-3"}, Deleted: true}}})
	b.want("the workload under the cursor is deleted", "!web-3 ", "(4)", ">web-10")
	b.send(lostMsg{"workloads", errors.New("no scheduler answers")})
	b.want("a failed stream", "stale for 0s", "workloads: no scheduler answers", "!live")
	b.send(lostMsg{what: "workloads"})
	b.want("the failed stream works again", "live")
	b.send(workloadsMsg{whole: true})
	b.want("a new, empty list replaces the old list", "(0)", "No workloads yet: persysctl apply -f FILE")
}

func TestFilterAndSort(t *testing.T) {
	b := newBench(t, 100, 20)
	b.keys("/", "n", "o", "d", "e", "-", "a")
	b.want("typing a filter", "filter: node-a (2)", "web-1", "web-10", "!web-2 ")
	b.keys("q", "x", "backspace", "backspace", "enter")
	b.want("typing letters that are keys outside of the filter", "filter: node-a (2)")
	b.keys("esc")
	b.want("Esc, which removes the filter", "!filter:", "web-2")
	b.keys("/", "z", "z", "enter")
	b.want("a filter that matches nothing", `Nothing matches "zz"`)
	b.keys("esc", "s")
	b.want("sorting by state, failed workloads first", "sort: state", ">web-2")
	b.keys("s", "s", "S")
	b.want("sorting by age, the oldest first", "sort: age, reversed", ">web-3")
	b.keys("e")
	b.want("opening the events of the workload", "[3 Events (2)]", "filter: web-3 (0)")
	b.keys("2", "down", "w")
	b.want("opening the workloads of a node", "[1 Workloads (4)]", "filter: node-b (2)")
}

func TestActionsAskForConfirmation(t *testing.T) {
	for _, c := range []struct {
		keys     []string
		question string
		asked    string
		said     string
	}{
		{[]string{"x", "y"}, "Stop web-1 and keep its specification? [y/N]", "web-1 Stopped", "web-1: stopping"},
		{[]string{"a", "y"}, "Start web-1? [y/N]", "web-1 Running", "web-1: starting"},
		{[]string{"r", "Y"}, "Restart web-1? [y/N]", "restart web-1", "web-1: restarting"},
		{[]string{"D", "y"}, "Delete web-1? [y/N]", "delete web-1", "web-1: deleting"},
		{[]string{"D", "enter"}, "Delete web-1? [y/N]", "", "nothing was done"},
		{[]string{"D", "D"}, "Delete web-1? [y/N]", "", "nothing was done"},
		{[]string{"2", "c", "y"}, "Place nothing new on node-a? [y/N]", "cordon node-a true", "node-a: cordoned"},
		{[]string{"2", "D", "y"}, "Move every workload off node-a? Running jobs may end there for an hour. [y/N]", "drain node-a", "the mode is degraded"},
		{[]string{"3", "D", "y"}, "", "", ""},
	} {
		b := newBench(t, 100, 20)
		b.keys(c.keys[:len(c.keys)-1]...)
		if c.question != "" {
			b.want("the question", c.question)
		}
		if len(b.api.asked) > 0 {
			t.Errorf("after the keys %v, before the question was answered, the action was carried out: %v", c.keys, b.api.asked)
		}
		b.keys(c.keys[len(c.keys)-1])
		if got := strings.Join(b.api.asked, ","); got != c.asked {
			t.Errorf("after the keys %v the view made the calls %q, want %q", c.keys, got, c.asked)
		}
		if c.said != "" {
			b.want("the result", c.said)
		}
	}
	b := newBench(t, 100, 20)
	b.api.refuse = "it is being deleted"
	b.keys("x", "y")
	b.want("a refused action", "it is being deleted")
}

func TestPagesOpenAndClose(t *testing.T) {
	b := newBench(t, 100, 20)
	b.keys("enter")
	b.want("opening the description of a workload", "get of web-1 at 100", "second line")
	b.keys("y")
	b.want("the key y on that page", "why of web-1 at 100")
	b.keys("q", "down", "d")
	b.want("a description that cannot be read", "not found")
	b.keys("esc", "up", "l")
	b.want("opening logs that have not arrived", "logs web-1", "asking …")
	b.send(logMsg{"web-1", []byte("one\ntwo\npar")})
	b.want("two complete lines and an incomplete one", "one", "two", "!par", "2 lines, follows")
	b.send(logMsg{"other", []byte("not mine\n")})
	var many strings.Builder
	for i := range 100 {
		fmt.Fprintf(&many, "line %d\n", i)
	}
	b.send(logMsg{"web-1", []byte("tial\x1b[2J\n" + many.String())})
	b.want("more lines than fit, when the view follows the log", "line 99", "!line 80\n", "!not mine")
	b.keys("pgup")
	b.want("moving up, which ends the following", "line 70", "!line 99", "!follows")
	b.send(logMsg{"web-1", []byte("newest\n")})
	b.want("new output, when the view does not follow the log", "!newest")
	b.keys("g")
	b.want("the key g, which shows the first line", "one", "partial?[2J")
	b.keys("f")
	b.want("the key f, which follows the log again", "newest", "follows")
	b.send(logMsg{"web-1", []byte("last words")})
	b.want("an incomplete last line", "!asking", "!last words")
	b.send(logEndMsg{"web-1", errors.New("the agent does not answer")})
	b.want("the end of the logs gives the reason, and no line of output is lost", "last words", "the agent does not answer")
	b.keys("q")
	b.want("closing the page", "[1 Workloads (4)]", ">web-1")
	if got := strings.Join(b.api.asked, ","); !strings.HasSuffix(got, "logs web-1,end of logs") {
		t.Errorf("the stream of logs was not closed: %s", got)
	}
}

func TestKeysQuitTheScreen(t *testing.T) {
	b := newBench(t, 80, 20)
	for _, k := range []tea.KeyPressMsg{press("q"), {Code: 'c', Mod: tea.ModCtrl}} {
		_, cmd := b.Update(k)
		if cmd == nil {
			t.Fatal("nothing happens")
		}
		if _, ok := cmd().(tea.QuitMsg); !ok {
			t.Errorf("the key %s does not quit the view", k)
		}
	}
}

// source is a fake API that records its calls and whose streams end at once.
type source struct {
	api
	watched, told chan string
}

func (s *source) WatchWorkloads(_ context.Context, r *clusterv1.WatchWorkloadsRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[clusterv1.WorkloadChange], error) {
	s.watched <- r.GetNamespace()
	return nil, errors.New("enough")
}

func (s *source) Events(_ context.Context, r *clusterv1.EventsRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[clusterv1.Event], error) {
	s.told <- r.GetNamespace()
	return nil, errors.New("enough")
}

// TestAViewShowsOneNamespace: a view of one namespace requests only that namespace and shows its name.
func TestAViewShowsOneNamespace(t *testing.T) {
	s := &source{watched: make(chan string, 1), told: make(chan string, 1)}
	f := &feed{opt: Options{Cluster: s, Namespace: "shop"}, send: func(tea.Msg) {}}
	_, _ = f.workloads(t.Context()), f.events()(t.Context())
	if w, e := <-s.watched, <-s.told; w != "shop" || e != "shop" {
		t.Errorf("requested workloads of %q and events of %q, want namespace shop for both", w, e)
	}
	b := newBench(t, 120, 20)
	b.want("opening a view of all namespaces", "!namespace")
	b.opt.Namespace = "shop"
	b.want("selecting namespace shop", "persysctl  home  namespace shop  mode normal")
	b.send(workloadsMsg{whole: true})
	b.want("an empty list of the namespace", "No workloads in namespace shop; persysctl ui -n '*' shows all.")
	b.send(lostMsg{"status", errors.New("no scheduler answers")})
	b.want("a failed read of the status", "namespace shop  status: no scheduler answers")
}

// silent is a fake API whose event stream sends nothing.
type silent struct {
	api
	grpc.ServerStreamingClient[clusterv1.Event]
	ctx context.Context
}

func (s *silent) Events(ctx context.Context, _ *clusterv1.EventsRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[clusterv1.Event], error) {
	s.ctx = ctx
	return s, nil
}

func (s *silent) Recv() (*clusterv1.Event, error) { <-s.ctx.Done(); return nil, s.ctx.Err() }

// TestSilentEventsAreLive: if the event stream was opened again and no events occur, the view does not report
// the stream as lost.
func TestSilentEventsAreLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		back := make(chan tea.Msg, 10)
		ctx, cancel := context.WithCancel(t.Context())
		f := &feed{opt: Options{Cluster: &silent{}}, send: func(m tea.Msg) { back <- m }}
		done := make(chan error, 1)
		go func() { done <- f.events()(ctx) }()
		time.Sleep(time.Minute)
		cancel()
		<-done
		if len(back) == 0 || <-back != (lostMsg{what: "events"}) {
			t.Error("after a minute without events the stream is still shown as lost")
		}
	})
}

// TestManyWorkloadsAreDrawnInTime: a view of 10,000 changing workloads is drawn fast enough for a smooth
// display.
func TestManyWorkloadsAreDrawnInTime(t *testing.T) {
	b := newBench(t, 100, 40)
	var changes []*clusterv1.WorkloadChange
	for i := range 10_000 {
		changes = append(changes, &clusterv1.WorkloadChange{Workload: &controlv1.WorkloadView{WorkloadId: fmt.Sprintf("w-%d", i), Status: "Running", DesiredState: "Running"}})
	}
	b.send(workloadsMsg{changes: changes, whole: true})
	b.want("all", "(10000)", ">w-0")
	b.keys("G")
	b.want("the last", ">w-9999")
	began := time.Now()
	const frames = 20
	for i := range frames {
		b.send(workloadsMsg{changes: changes[i : i+1]})
		_ = b.lines()
	}
	if per := time.Since(began) / frames; per > time.Second {
		t.Errorf("drawing the view takes %s", per)
	} else {
		t.Logf("a change and its frame: %s", per)
	}
}
