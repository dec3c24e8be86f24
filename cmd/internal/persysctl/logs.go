package persysctl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

type logOptions struct {
	follow, timestamps bool
	tail               int64
	since, service     string
}

func (c *cli) logsCommand() *cobra.Command {
	var o logOptions
	cmd := &cobra.Command{
		Use: "logs WORKLOAD|GROUP", Short: "Show the output of a workload, or of all members of a group",
		Long: `Show the output of a workload, or of all members of a group, each line with the name of its
member. With --follow, the output of a member goes on over restarts and moves, and members
that the group gets later join. The command ends when no member runs or will run.`,
		Example: "  persysctl logs web -f --tail 20\n  persysctl logs web --since 10m",
		Args:    args(1, 1, "WORKLOAD"), ValidArgsFunction: c.completeWorkload,
		RunE: c.online(func(ctx context.Context, args []string) error { return c.logs(ctx, args[0], o) }),
	}
	f := cmd.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "follow the output until Ctrl-C, also after restarts, and the output of members that start later")
	f.Int64Var(&o.tail, "tail", -1, "show only this many of the last lines; -1 shows all")
	f.BoolVarP(&o.timestamps, "timestamps", "t", false, "print the time before each line")
	f.StringVar(&o.since, "since", "", "only newer output: a duration (10m) or a time (RFC 3339)")
	f.StringVar(&o.service, "service", "", "service of a Compose workload")
	return cmd
}

func (c *cli) logs(ctx context.Context, id string, o logOptions) error {
	if o.tail < -1 || o.tail == 0 {
		return usagef("--tail %d must be -1 or at least 1", o.tail)
	}
	var from int64
	if o.since != "" {
		at, err := c.since(o.since)
		if err != nil {
			return err
		}
		from = at.Unix()
	}
	stdout, stderr := c.programOutput()
	err := c.logsOf(ctx, id, o, from, &logPosition{}, stdout, stderr)
	var f *failure
	if !errors.As(err, &f) || f.code != exitNotFound {
		return err
	}
	members, merr := c.members(ctx, id)
	if merr != nil || len(members) == 0 {
		return c.orGroup(ctx, id, f)
	}
	return c.logsOfMembers(ctx, id, members, o, from, stdout, stderr)
}

// logPosition is the end of the part of an output that is written already.
type logPosition struct {
	lines bool  // at least one line is written
	at    int64 // time of the last written line in Unix nanoseconds, by the node's clock; 0 if the engine gives no times
}

// logsOf writes the output of one workload, from the time from on (in Unix seconds; 0 means from the
// beginning), without the part that is written already according to written. It keeps written up to date. With
// --follow it continues when the workload runs again after a restart or a move.
func (c *cli) logsOf(ctx context.Context, id string, o logOptions, from int64, written *logPosition, stdout, stderr io.Writer) error {
	req := &clusterv1.LogsRequest{WorkloadId: id, Follow: o.follow, TailLines: o.tail, Timestamps: o.timestamps, Service: o.service, SinceUnixSeconds: from}
	open := func(ctx context.Context) (receiver[*clusterv1.LogChunk], error) { return c.cluster.Logs(ctx, req) }
	again := false // whether the output is opened again after it had ended
	resume := func() {
		again, req.TailLines = true, -1
		if written.at > 0 {
			req.SinceUnixSeconds = written.at / 1e9
		} else if written.lines {
			req.SinceUnixSeconds = c.now().Unix()
		}
	}
	if written.lines {
		resume()
	}
	write := func(m *clusterv1.LogChunk) error {
		if again && m.GetAtUnixNanos() > 0 && m.GetAtUnixNanos() <= written.at && m.GetAtUnixNanos()/1e9 == written.at/1e9 {
			return nil // this line was written before the stream broke; the new stream began with the second of the last written line
		}
		// If the stream breaks, it is opened again from the second (by the node's clock) in which the last
		// line was written. No line is lost, but lines of that second may be repeated.
		written.lines = true
		if at := m.GetAtUnixNanos(); at > 0 {
			req.SinceUnixSeconds, req.TailLines, written.at = at/1e9, -1, at
		}
		to := stdout
		if m.GetStream() == "stderr" {
			to = stderr
		}
		_, err := to.Write(m.GetData())
		return err
	}
	if !o.follow {
		_, err := drainStream(ctx, open, write)
		if errors.Is(err, errEOF) {
			err = nil
		}
		return c.logsFailure(endWatch(ctx, err))
	}
	for {
		if err := follow(ctx, c, open, write); err != nil {
			return c.logsFailure(endWatch(ctx, err))
		}
		if ctx.Err() != nil || !c.outputGoesOn(ctx, id) {
			return nil
		}
		resume()
	}
}

func (c *cli) logsFailure(err error) error {
	if err == nil {
		return nil
	}
	return c.explain(err, false)
}

// programOutput returns the writers for the output of a workload. On a terminal they remove control sequences
// from the output, except colours.
func (c *cli) programOutput() (stdout, stderr io.Writer) {
	stdout, stderr = c.out, c.err
	if c.outTerm {
		stdout = &screen.Output{To: stdout}
	}
	if c.errTerm {
		stderr = &screen.Output{To: stderr}
	}
	return stdout, stderr
}

// looks holds the intervals at which logs --follow reads the state of the cluster.
type looks struct {
	output time.Duration // outputGoesOn reads a workload whose output has ended, to find out whether it runs again
	member time.Duration // memberOutputs.follow lists the members of a group, to find members that run later
}

// longestLook is the longest time that outputGoesOn and memberOutputs.follow wait after a failed read. After each further
// failed read they wait twice as long, up to this time.
const longestLook = 30 * time.Second

// outputGoesOn prints to stderr why the output of a workload has ended. If the workload will run again, the
// function waits for the next run and returns true.
func (c *cli) outputGoesOn(ctx context.Context, id string) bool {
	look := time.NewTimer(c.looks.output)
	defer look.Stop()
	pause := c.looks.output
	for waiting, failing := false, false; ; {
		r, err := call(ctx, c, c.control.GetWorkload, &controlv1.GetWorkloadRequest{WorkloadId: id, Level: c.level()})
		w := r.GetWorkload()
		why := ""
		switch {
		case ctx.Err() != nil:
			return false
		case status.Code(err) == codes.NotFound:
			why = "it is deleted"
		case err != nil && !failing:
			fmt.Fprintf(c.err, "The output of %s has ended, and the state of the workload cannot be read: %s. persysctl reads the state again until a scheduler answers; Ctrl-C ends.\n", id, c.explain(err, false).text)
		case err != nil:
		case w.GetStatus() == "Running":
			fmt.Fprintf(c.err, "%s was restarted or moved, and runs on %s; its output goes on.\n", id, screen.Clean(w.GetAssignedNodeId()))
			return true
		case outputEnds(w):
			why = "it is " + screen.Join(": ", shownStatus(w), screen.Clean(reasonText(w)))
		}
		if why != "" {
			c.empty("The output of "+id+" has ended: "+why+".", "persysctl logs "+id+" --follow")
			return false
		}
		if failing = err != nil; failing {
			pause = min(2*pause, longestLook)
		} else if pause = c.looks.output; !waiting {
			waiting = true
			fmt.Fprintf(c.err, "The output of %s has ended: it is %s. It goes on when %s runs again; Ctrl-C ends.\n", id, screen.Join(": ", shownStatus(w), screen.Clean(reasonText(w))), id)
		}
		look.Reset(pause)
		select {
		case <-look.C:
		case <-ctx.Done():
			return false
		}
	}
}

// outputEnds reports whether a workload that is not running stays so until a user changes it, so that no further
// output can come.
func outputEnds(w *controlv1.WorkloadView) bool {
	return w.GetDesiredState() != "Running" || w.GetStatus() == "Failed" || w.GetJobResult() != nil || completed(w) || hopeless(w)
}

// mostOutputs is the maximum number of group members whose logs one command shows together.
const mostOutputs = 50

// logsOfMembers writes the outputs of the members of a group together, each line with the name of its member. With
// --follow it also waits for members that do not run yet.
func (c *cli) logsOfMembers(ctx context.Context, group string, ids []string, o logOptions, from int64, stdout, stderr io.Writer) error {
	if len(ids) > mostOutputs {
		return failf(exitUsage, "persysctl logs "+ids[0], "group %s has %d members, and at most %d outputs are shown together", group, len(ids), mostOutputs)
	}
	outs := memberOutputs{c: c, group: group, o: o, from: from, stdout: stdout, stderr: stderr, ended: make(chan struct{}, 1), members: map[string]memberOutput{}, written: map[string]*logPosition{}, result: several{c: c}}
	for _, id := range ids {
		outs.width = max(outs.width, utf8.RuneCountInString(id))
	}
	if o.follow {
		outs.follow(ctx)
	} else {
		for _, id := range ids {
			outs.begin(ctx, id, o, from)
		}
	}
	outs.wg.Wait()
	return outs.result.err()
}

// memberOutput is the state of the output of one member of a group.
type memberOutput int

const (
	outputWaits  memberOutput = iota + 1 // the member is on no node, and the user was told
	outputShown                          // its output is being written
	outputEnded                          // its output has ended; it joins again when it runs again
	outputFailed                         // its output ended with an error; it does not join again
)

// memberOutputs writes the outputs of all members of a group to the terminal, each line with the name of its member.
type memberOutputs struct {
	c              *cli
	group          string
	o              logOptions
	from           int64 // Unix seconds; 0 = from the beginning
	width          int   // of the names
	stdout, stderr io.Writer
	ended          chan struct{} // gets a value when an output has ended
	wg             sync.WaitGroup

	mu      sync.Mutex // also keeps the lines of the members apart
	members map[string]memberOutput
	written map[string]*logPosition // of each member whose output was begun
	result  several
}

// begin starts a goroutine that writes the output of the member id until the output ends.
func (s *memberOutputs) begin(ctx context.Context, id string, o logOptions, from int64) {
	prefix := []byte(fmt.Sprintf("%-*s | ", s.width, id))
	out, problems := &named{mu: &s.mu, to: s.stdout, prefix: prefix}, &named{mu: &s.mu, to: s.stderr, prefix: prefix}
	s.mu.Lock()
	s.members[id] = outputShown
	written := s.written[id]
	if written == nil {
		written = &logPosition{}
		s.written[id] = written
	}
	s.mu.Unlock()
	s.wg.Go(func() {
		err := s.c.logsOf(ctx, id, o, from, written, out, problems)
		out.end()
		problems.end()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.result.add(err)
		s.members[id] = outputEnded
		if err != nil {
			s.members[id] = outputFailed
		}
		select {
		case s.ended <- struct{}{}:
		default: // the loop has yet to take the previous value, and then looks at all members
		}
	})
}

// follow starts to write the output of each member that runs, and of members that run later. It returns when no output
// is being written and no member will run again. If the members cannot be listed, it says so once and lists them again.
func (s *memberOutputs) follow(ctx context.Context) {
	look := time.NewTimer(s.c.looks.member)
	defer look.Stop()
	pause := s.c.looks.member
	for first, failing := true, false; ctx.Err() == nil; {
		r, err := s.c.allPages(ctx, &controlv1.ListWorkloadsRequest{Group: s.group})
		waits := false
		for _, w := range r.GetWorkloads() {
			waits = s.join(ctx, w, first) || waits
		}
		s.mu.Lock()
		shown := s.shown()
		s.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && !shown && !waits:
			return
		case err == nil:
			first, failing, pause = false, false, s.c.looks.member
		case !failing:
			failing = true
			s.say("The members of %s cannot be listed: %s. persysctl lists them again until a scheduler answers; Ctrl-C ends.\n", s.group, s.c.explain(err, false).text)
		default:
			pause = min(2*pause, longestLook)
		}
		look.Reset(pause)
		select {
		case <-look.C:
		case <-s.ended:
		case <-ctx.Done():
		}
	}
}

// shown reports whether the output of at least one member is being written. s.mu must be locked.
func (s *memberOutputs) shown() bool {
	for _, state := range s.members {
		if state == outputShown {
			return true
		}
	}
	return false
}

// join starts to write the output of a member if there is output now. waits is true if there may be output later.
// first is true for the members that the group had when the command was started; their output is written even if they
// do not run any more.
func (s *memberOutputs) join(ctx context.Context, w *controlv1.WorkloadView, first bool) (waits bool) {
	id := w.GetWorkloadId()
	s.mu.Lock()
	state, shown := s.members[id], 0
	for _, m := range s.members {
		if m == outputShown {
			shown++
		}
	}
	s.mu.Unlock()
	o, from := s.o, s.from
	switch {
	case state == outputShown || state == outputFailed:
		return false
	case first && (w.GetAssignedNodeId() != "" || outputEnds(w)):
		s.begin(ctx, id, o, from)
		return false
	case outputEnds(w):
		return false
	case w.GetStatus() == "Running" && shown < mostOutputs:
		s.say("%s runs on %s; its output joins.\n", id, screen.Clean(w.GetAssignedNodeId()))
		o.tail = -1
		s.begin(ctx, id, o, from)
		return false
	case state == 0 && shown >= mostOutputs:
		s.say("The output of %s is not shown: at most %d outputs are shown together.\n", id, mostOutputs)
	case state == 0:
		s.say("%s is %s; its output joins when it runs.\n", id, screen.Clean(shownStatus(w)))
	default:
		return true
	}
	s.mu.Lock()
	s.members[id] = outputWaits
	s.mu.Unlock()
	return true
}

func (s *memberOutputs) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.c.err, format, args...)
}

// named writes complete lines, each with a prefix. Several writers share the mutex mu, so that their lines do
// not mix.
type named struct {
	mu     *sync.Mutex
	to     io.Writer
	prefix []byte
	rest   []byte // beginning of a line whose end has not arrived yet
}

// longestLine is the number of bytes after which an unfinished line is written.
const longestLine = 64 << 10

func (n *named) Write(data []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rest = append(n.rest, data...)
	for {
		i := bytes.IndexByte(n.rest, '\n')
		if i < 0 && len(n.rest) < longestLine {
			return len(data), nil
		}
		if i < 0 {
			i = len(n.rest) - 1
		}
		if err := n.line(n.rest[:i+1]); err != nil {
			return 0, err
		}
		n.rest = n.rest[i+1:]
	}
}

func (n *named) line(text []byte) error {
	line := append(slices.Clone(n.prefix), text...)
	if line[len(line)-1] != '\n' {
		line = append(line, '\n')
	}
	_, err := n.to.Write(line)
	return err
}

// end writes the last line of the output if it did not end with a line break.
func (n *named) end() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.rest) > 0 {
		_ = n.line(n.rest) // an error means that the reader of the output has gone, so nobody could read it
		n.rest = nil
	}
}

// since parses the value of --since: a duration before now, or a point in time.
func (c *cli) since(v string) (time.Time, error) {
	if d, err := time.ParseDuration(v); err == nil && d > 0 {
		return c.now().Add(-d), nil
	}
	for _, form := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02"} {
		if t, err := time.ParseInLocation(form, v, c.zone); err == nil {
			return t, nil
		}
	}
	return time.Time{}, usagef("--since %q must be a duration such as 10m or a time such as %s", v, fmt.Sprint(c.now().UTC().Format(time.RFC3339)))
}
