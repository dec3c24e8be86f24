package persysctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/pflag"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/spec"
)

// goal is the state of a workload for which --wait waits.
type goal struct {
	name    string // name of the awaited state: "Running", "Stopped", "deleted", "off node-a"
	met     func(*controlv1.WorkloadView) bool
	gone    bool // whether the goal is reached when the workload is deleted
	members bool // whether the members of a system workload have to reach its state, too
	job     bool // whether this is the end of a job, for which --wait has no time limit unless --timeout is given
}

func goalStatus(status string) goal {
	return goal{name: status, members: true, met: func(w *controlv1.WorkloadView) bool {
		return w.GetStatus() == status && healthy(w) || status == "Running" && completed(w)
	}}
}

// goalKept is reached when a workload is in its desired state. It is the goal of a restart, because the restart of a
// stopped workload leaves the workload stopped.
func goalKept() goal {
	return goal{name: "in its desired state", members: true, met: func(w *controlv1.WorkloadView) bool {
		return w.GetStatus() == w.GetDesiredState() && healthy(w) || completed(w)
	}}
}

// completed reports whether a workload has ended with success and its restart policy does not start it again
// (fsm.CodeCompleted).
func completed(w *controlv1.WorkloadView) bool {
	return w.GetStatus() == "Stopped" && w.GetDesiredState() == "Running" && w.GetReason().GetCode() == "Completed"
}

// healthy reports whether a running workload has no health check, or a healthy one.
func healthy(w *controlv1.WorkloadView) bool {
	return w.GetStatus() != "Running" || w.GetHealth() == "" || w.GetHealth() == "healthy"
}

// goalFinished is reached when a job has succeeded.
func goalFinished() goal {
	return goal{name: "finished", job: true, met: func(w *controlv1.WorkloadView) bool { return w.GetJobResult().GetSucceeded() }}
}

func goalDeleted() goal {
	return goal{name: "deleted", gone: true, met: func(*controlv1.WorkloadView) bool { return false }}
}

// goalOff is reached when a workload has left the node: it is in its desired state on another node, is deleted, has
// completed, or is a job that has ended, with success or not.
func goalOff(node string) goal {
	return goal{name: "off " + node, gone: true, met: func(w *controlv1.WorkloadView) bool {
		return w.GetAssignedNodeId() != node && w.GetStatus() == w.GetDesiredState() || completed(w) || w.GetJobResult() != nil
	}}
}

// desiredGoal returns the goal for which apply --wait waits. word is the desired state in the
// specification.
func desiredGoal(word string) goal {
	switch strings.ToLower(word) {
	case "stopped", "stop":
		return goalStatus("Stopped")
	case "deleted", "delete":
		return goalDeleted()
	}
	return goalStatus("Running")
}

// hopeless reports whether the state of a workload does not change until a user acts: the planner has given up
// (fsm.CodeExhausted, fsm.CodePermanentFailure), or the workload must not leave its data (fsm.CodeHoldsData).
func hopeless(w *controlv1.WorkloadView) bool {
	if r := w.GetJobResult(); r != nil && !r.GetSucceeded() {
		return true
	}
	switch w.GetReason().GetCode() {
	case "RetriesExhausted", "PermanentFailure":
		return w.GetStatus() == "Failed"
	case "HoldsData":
		return true
	}
	return false
}

// waiting holds the flags --wait and --timeout.
type waiting struct {
	wait    bool
	timeout time.Duration
	given   func() bool // reports whether --timeout was given
}

func (w *waiting) flags(f *pflag.FlagSet, what string) {
	f.BoolVar(&w.wait, "wait", false, "wait until "+what+", and show the progress")
	f.DurationVar(&w.timeout, "timeout", 2*time.Minute, "time limit of --wait; for jobs there is no limit unless this flag is given")
	w.given = func() bool { return f.Changed("timeout") }
}

// limit applies the time limit to the ends of jobs too if the user gave --timeout.
func (w *waiting) limit(goals map[string]goal) {
	for id, g := range goals {
		g.job = g.job && !w.given()
		goals[id] = g
	}
}

func (w *waiting) check() error {
	if w.timeout <= 0 {
		return usagef("--timeout %s must be longer than 0", w.timeout)
	}
	return nil
}

// progress is the state of one workload while --wait waits for it.
type progress struct {
	id       string
	goal     goal
	view     *controlv1.WorkloadView
	done     bool
	failed   bool
	took     time.Duration
	reported string    // last line that was printed about a change of this workload
	stopping time.Time // when the workload was first seen to be stopping; zero while it is not
}

type waiter struct {
	c      *cli
	began  time.Time
	all    []*progress
	block  screen.Live
	frames int
	passed bool // the time limit has passed
}

// maxWatchIDs is the maximum total length in bytes of the ids in a watch request. Through a gateway the ids
// are part of a URL, which must be shorter than 64 KiB. If the ids are longer in total, the request watches
// all workloads.
const maxWatchIDs = 16 << 10

// awaitAll waits until every workload has reached its goal. after is the log index of the change. late
// receives a value when timeout has passed.
func (c *cli) awaitAll(ctx context.Context, goals map[string]goal, after uint64, timeout time.Duration, late <-chan time.Time) error {
	if len(goals) == 0 {
		return nil
	}
	w := &waiter{c: c, began: c.now(), block: screen.Live{W: c.err}}
	ids, size := make([]string, 0, len(goals)), 0
	for id := range goals {
		ids = append(ids, id)
		size += len("&workload_ids=") + len(id)
	}
	slices.SortFunc(ids, screen.Natural)
	for _, id := range ids {
		w.all = append(w.all, &progress{id: id, goal: goals[id]})
	}
	watching, cancel := context.WithCancel(ctx)
	changes := make(chan watched)
	ended := make(chan error, 1)
	go func() {
		req := &clusterv1.WatchWorkloadsRequest{MinIndex: after}
		if size <= maxWatchIDs {
			req.WorkloadIds = ids
		}
		ended <- c.watch(watching, req, ids, func(ch watched) error {
			id := cmp.Or(ch.gone, ch.view.GetWorkloadId())
			if _, ours := goals[id]; id != "" && !ours {
				return nil // this workload is not waited for; the watch sends all workloads
			}
			select {
			case changes <- ch:
				return nil
			case <-watching.Done():
				return watching.Err()
			}
		})
	}()
	err, streamEnded := w.loop(watching, changes, ended, timeout, late)
	cancel()
	if !streamEnded {
		<-ended
	}
	for _, p := range w.all {
		if k := kindText(p.view); err == nil && p.goal.members && p.view.GetAssignedNodeId() == "" && (k == spec.KindSystem || k == spec.KindJob) {
			limit := late
			if p.goal.job {
				limit = nil
			} else if w.passed {
				limit = time.After(0) // the loop above has taken the only value of late
			}
			err = c.awaitMembers(ctx, p.id, timeout, limit)
		}
	}
	return err
}

// awaitMembers waits until the members of a system workload are in the state of that workload, and prints the
// progress. It returns at once for other workloads.
func (c *cli) awaitMembers(ctx context.Context, id string, timeout time.Duration, late <-chan time.Time) error {
	hint, last := "persysctl list --group "+id, ""
	look := time.NewTicker(rolloutLook)
	defer look.Stop()
	for {
		r, err := read(ctx, c, c.control.GetWorkload, &controlv1.GetWorkloadRequest{WorkloadId: id})
		if err != nil {
			return err
		}
		m := r.GetWorkload().GetMembers()
		if m == nil {
			return nil
		}
		line := id + ": " + membersText(m)
		if line != last {
			fmt.Fprintln(c.err, line)
		}
		last = line
		if m.GetReady() == m.GetNodes() {
			if m.GetNodes() == 0 {
				c.empty("", "persysctl why "+id)
			}
			return nil
		}
		if m.GetFailed() > 0 {
			if member := m.GetWaiting()[0].GetWorkloadId(); member != "" {
				hint = "persysctl logs " + member + " --tail 20"
			}
			return failf(exitFailed, hint, "%s", line)
		}
		select {
		case <-look.C:
		case <-late:
			return failf(exitTimeout, hint, "not all members are ready after %s: %s", timeout, line)
		case <-ctx.Done():
			return failf(exitInterrupted, hint, "interrupted; the change itself stays")
		}
	}
}

// membersText describes the members of a system workload in one line.
func membersText(m *controlv1.SystemMembers) string {
	if m.GetNodes() == 0 {
		return "no node matches now; nodes that match later get a member"
	}
	out := fmt.Sprintf("%d of %s ready", m.GetReady(), screen.Plural(int(m.GetNodes()), "member"))
	waiting := m.GetWaiting()
	if len(waiting) == 0 {
		return out
	}
	w := waiting[0]
	out += "; " + cmp.Or(w.GetWorkloadId(), "the member for "+w.GetNodeId()) + " is " + w.GetStatus()
	if why := screen.Join(": ", w.GetReasonCode(), w.GetReasonMessage()); why != "" {
		out += ": " + why
	}
	if more := int(m.GetNodes()-m.GetReady()) - 1; more > 0 {
		out += fmt.Sprintf("; and %d more", more)
	}
	return screen.Clean(out)
}

// loop waits until all goals are reached or the wait fails. Its second result is true if the watch of
// workloads has ended, which a value in the channel ended reports.
func (w *waiter) loop(ctx context.Context, changes <-chan watched, ended <-chan error, timeout time.Duration, late <-chan time.Time) (error, bool) {
	var redraw <-chan time.Time
	if w.c.errTerm {
		t := time.NewTicker(100 * time.Millisecond)
		defer t.Stop()
		redraw = t.C
	}
	w.show()
	for !w.over() {
		select {
		case ch := <-changes:
			w.take(ch)
			w.show()
		case <-redraw:
			w.show()
		case err := <-ended:
			if err == nil {
				err = failf(exitUnavailable, "persysctl status", "the scheduler ended the watch")
			}
			return err, true
		case <-late:
			w.show()
			if len(w.limited()) > 0 {
				return w.late(timeout), false
			}
			late, w.passed = nil, true
		case <-ctx.Done():
			return failf(exitInterrupted, "persysctl get "+w.open()[0].id, "interrupted; the change itself stays"), false
		}
	}
	return w.verdict(), false
}

func (w *waiter) take(ch watched) {
	for _, p := range w.all {
		switch {
		case p.done:
		case ch.gone == p.id:
			p.done, p.failed, p.took = true, !p.goal.gone, w.elapsed()
			p.view = &controlv1.WorkloadView{WorkloadId: p.id, Status: "Deleted"}
		case ch.view.GetWorkloadId() == p.id:
			p.view = ch.view
			if ch.view.GetStopping() == nil {
				p.stopping = time.Time{}
			} else if p.stopping.IsZero() {
				p.stopping = w.c.now()
			}
			if met := p.goal.met(ch.view); met || hopeless(ch.view) {
				p.done, p.failed, p.took = true, !met, w.elapsed()
			}
		}
	}
}

func (w *waiter) elapsed() time.Duration { return w.c.now().Sub(w.began) }

// open returns the workloads for which the command still waits, because they have not reached their goal.
func (w *waiter) open() []*progress {
	var out []*progress
	for _, p := range w.all {
		if !p.done {
			out = append(out, p)
		}
	}
	return out
}

// limited returns the workloads that have not reached their goal and whose goal has a time limit.
func (w *waiter) limited() []*progress {
	return slices.DeleteFunc(w.open(), func(p *progress) bool { return p.goal.job })
}

func (w *waiter) over() bool { return len(w.open()) == 0 }

// show redraws the lines about the awaited workloads on a terminal. If the output is no terminal, it prints
// the lines that have changed.
func (w *waiter) show() {
	if w.c.errTerm {
		w.frames++
		w.c.measure(&w.block)
		w.block.Draw(w.lines())
		return
	}
	for _, p := range w.all {
		line := p.line(time.Time{})
		if p.view == nil || line == p.reported {
			continue
		}
		p.reported = line
		fmt.Fprintf(w.c.err, "%7s  %-*s  %s\n", screen.Elapsed(w.elapsed()), w.widest(w.all), p.id, line)
	}
}

// line returns the state of a workload and the reason why it has not reached its goal. now is the present
// time, from which the remaining time of a stop is computed; it may be zero.
func (p *progress) line(now time.Time) string {
	v := p.view
	if v == nil {
		return "asking"
	}
	out := shownStatus(v)
	if node := shownNode(v); node != "" {
		out += " on " + node
	}
	since := p.stopping
	if s := v.GetStopping(); now.IsZero() {
		since = time.Time{}
	} else if s.GetSince() != nil {
		since = ordered(s)
	}
	if why := stoppingReason(v, since, now); why != "" {
		return out + ": " + why
	}
	if !p.done && !healthy(v) {
		check := strings.TrimPrefix(screen.Clean(v.GetMessage()), "running, ")
		return out + ": " + cmp.Or(check, "health check: "+v.GetHealth())
	}
	if p.done && !p.failed || v.GetStatus() == v.GetDesiredState() && v.GetReason().GetCode() == "" {
		return out
	}
	why := screen.Clean(v.GetReason().GetMessage())
	if why == "" {
		why = screen.Clean(v.GetMessage())
	}
	switch code := v.GetReason().GetCode(); {
	case code == v.GetStatus() && why != "":
		out += ": " + why
	case code != "" && why != "":
		out += ": " + code + ": " + why
	case code != "":
		out += ": " + code
	case v.GetStatus() == "Scheduled":
		// Until the agent has accepted an order, the agent's message is left out, because the message is still about
		// the previous order.
		out += ": waits for the agent to accept it"
	case why != "":
		out += ": " + why
	case v.GetStatus() == "Pending" && v.GetAssignedNodeId() == "":
		out += ": waits for a node"
	}
	return out
}

// lines returns the lines that show draws: one line per workload. If they do not fit on the screen, it returns only the
// lines of workloads that have not reached their goal.
func (w *waiter) lines() []string {
	show := w.all
	room := 20
	if h := w.c.height; h > 4 {
		room = min(room, h-3)
	}
	hidden := 0
	if len(show) > room {
		show = w.open()
		show = show[:min(len(show), room-1)]
		hidden = len(w.all) - len(show)
	}
	width := w.widest(show)
	var out []string
	paint, cols := w.c.errPaint, w.c.columns()-1
	for _, p := range show {
		mark, s, took := screen.Spinner(w.frames), screen.Warn, w.elapsed()
		if p.done {
			mark, s, took = "✓", screen.Good, p.took
			if p.failed {
				mark, s = "✗", screen.Bad
			}
		}
		clock := screen.Elapsed(took)
		id := screen.Cut(p.id, width, screen.Middle)
		id += strings.Repeat(" ", width-utf8.RuneCountInString(id))
		room := cols - 2 - width - 2 - 2 - len(clock)
		out = append(out, paint.Paint(s, mark)+" "+paint.Paint(screen.Bold, id)+"  "+screen.Cut(p.line(w.c.now()), room, screen.Head)+"  "+paint.Paint(screen.Dim, clock))
	}
	if hidden > 0 {
		out = append(out, paint.Paint(screen.Dim, fmt.Sprintf("  and %d more; %d of %d done", hidden, len(w.all)-len(w.open()), len(w.all))))
	}
	return out
}

// widest returns the width of the column of ids, at most 30.
func (w *waiter) widest(list []*progress) int {
	width := 0
	for _, p := range list {
		width = max(width, min(utf8.RuneCountInString(p.id), 30))
	}
	return width
}

// verdict returns the result of the wait when no workload is waited for any more: nil if all have reached their goals.
func (w *waiter) verdict() error {
	var failed []*progress
	for _, p := range w.all {
		if p.failed {
			failed = append(failed, p)
		}
	}
	if len(failed) == 0 {
		if len(w.all) > 1 && !w.c.errTerm {
			fmt.Fprintf(w.c.err, "%7s  all %d done\n", screen.Elapsed(w.elapsed()), len(w.all))
		}
		return nil
	}
	p := failed[0]
	if p.view.GetStatus() == "Deleted" {
		return failf(exitFailed, "persysctl events --workload "+p.id, "%s was deleted during the wait", p.id)
	}
	hint := "persysctl why " + p.id
	if p.view.GetJobResult() != nil {
		hint = "persysctl get " + p.id // persysctl get shows the last lines of the job's output
	} else if p.view.GetAssignedNodeId() != "" {
		hint = "persysctl logs " + p.id + " --tail 20"
	}
	return failf(exitFailed, hint, "%s%s is %s", p.id, others(failed), p.line(time.Time{}))
}

func (w *waiter) late(timeout time.Duration) error {
	open := w.limited()
	p := open[0]
	line := p.line(time.Time{})
	if p.view == nil {
		line = "not known: no scheduler has answered"
	}
	wanted, hint := p.goal.name, "persysctl why "+p.id
	if p.view != nil && !healthy(p.view) {
		wanted, hint = wanted+" and healthy", "persysctl logs "+p.id+" --tail 20"
	}
	return failf(exitTimeout, hint, "%s%s is not %s after %s: %s", p.id, others(open), wanted, timeout, line)
}

func others(list []*progress) string {
	if len(list) < 2 {
		return ""
	}
	return fmt.Sprintf(" (and %s)", screen.Plural(len(list)-1, "other"))
}

// waited returns the error of a command that made a change and then waited: the error wait, or, if wait is nil or only
// Ctrl-C, the error before of the change.
func waited(before, wait error) error {
	if wait == nil || errors.Is(wait, context.Canceled) && before != nil {
		return before
	}
	return wait
}
