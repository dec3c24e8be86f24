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
		Example: "  persysctl logs web -f --tail 20\n  persysctl logs web --since 10m",
		Args:    args(1, 1, "WORKLOAD"), ValidArgsFunction: c.completeWorkload,
		RunE: c.online(func(ctx context.Context, args []string) error { return c.logs(ctx, args[0], o) }),
	}
	f := cmd.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "follow the output until Ctrl-C, over restarts too")
	f.Int64Var(&o.tail, "tail", -1, "number of lines, the last; -1 shows all")
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
	err := c.logsOf(ctx, id, o, from, stdout, stderr)
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

// logsOf writes the output of one workload, from the time from on (Unix seconds, 0 = from the beginning). A followed
// output goes on when the workload runs again after a restart or a move.
func (c *cli) logsOf(ctx context.Context, id string, o logOptions, from int64, stdout, stderr io.Writer) error {
	req := &clusterv1.LogsRequest{WorkloadId: id, Follow: o.follow, TailLines: o.tail, Timestamps: o.timestamps, Service: o.service, SinceUnixSeconds: from}
	open := func(ctx context.Context) (receiver[*clusterv1.LogChunk], error) { return c.cluster.Logs(ctx, req) }
	written := int64(0) // time of the last line that was written, by the node's clock
	again := false      // the output was opened again after its end
	write := func(m *clusterv1.LogChunk) error {
		if again && m.GetAtUnixNanos() > 0 && m.GetAtUnixNanos() <= written && m.GetAtUnixNanos()/1e9 == written/1e9 {
			return nil // a line of the second from which on the output was asked for again
		}
		// If the stream breaks, it is opened again from the second (of the node's clock) in which the last
		// line was written. No line is lost, but lines of this second may be repeated.
		if at := m.GetAtUnixNanos(); at > 0 {
			req.SinceUnixSeconds, req.TailLines, written = at/1e9, -1, at
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
		if again = true; written == 0 { // nothing was written, or the engine gives no times
			req.SinceUnixSeconds, req.TailLines = c.now().Unix(), -1
		}
	}
}

func (c *cli) logsFailure(err error) error {
	if err == nil {
		return nil
	}
	return c.explain(err, false)
}

// programOutput returns the writers for the output of a workload. On a terminal, only colours are kept of the
// control sequences in the output.
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

// outputLook is the interval at which a workload is looked at while its output has ended.
const outputLook = 500 * time.Millisecond

// outputGoesOn says on stderr why the output of a workload has ended. If the workload will run again, it waits for that and
// returns true.
func (c *cli) outputGoesOn(ctx context.Context, id string) bool {
	look := time.NewTicker(outputLook)
	defer look.Stop()
	for waiting := false; ; {
		r, err := call(ctx, c, c.control.GetWorkload, &controlv1.GetWorkloadRequest{WorkloadId: id, Level: c.level()})
		w := r.GetWorkload()
		why := ""
		switch {
		case ctx.Err() != nil:
			return false
		case status.Code(err) == codes.NotFound:
			why = "it is deleted"
		case err != nil:
			why = "its state is not known: " + c.explain(err, false).text
		case w.GetStatus() == "Running":
			fmt.Fprintf(c.err, "%s was restarted or moved, and runs on %s; its output goes on.\n", id, screen.Clean(w.GetAssignedNodeId()))
			return true
		case w.GetDesiredState() != "Running" || w.GetStatus() == "Failed" || w.GetJobResult() != nil || completed(w) || hopeless(w):
			why = "it is " + screen.Join(": ", shownStatus(w), screen.Clean(reasonText(w)))
		}
		if why != "" {
			c.empty("The output of "+id+" has ended: "+why+".", "persysctl logs "+id+" --follow")
			return false
		}
		if !waiting {
			fmt.Fprintf(c.err, "The output of %s has ended: it is %s. It goes on when %s runs again; Ctrl-C ends.\n", id, screen.Join(": ", shownStatus(w), screen.Clean(reasonText(w))), id)
		}
		waiting = true
		select {
		case <-look.C:
		case <-ctx.Done():
			return false
		}
	}
}

// mostOutputs is the largest number of group members whose logs one command shows together.
const mostOutputs = 50

// logsOfMembers writes the outputs of the members of a group together, each line with the name of its member.
func (c *cli) logsOfMembers(ctx context.Context, group string, ids []string, o logOptions, from int64, stdout, stderr io.Writer) error {
	if len(ids) > mostOutputs {
		return failf(exitUsage, "persysctl logs "+ids[0], "group %s has %d members, and at most %d outputs are shown together", group, len(ids), mostOutputs)
	}
	width := 0
	for _, id := range ids {
		width = max(width, utf8.RuneCountInString(id))
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	result := several{c: c}
	for _, id := range ids {
		prefix := []byte(fmt.Sprintf("%-*s | ", width, id))
		out, problems := &named{mu: &mu, to: stdout, prefix: prefix}, &named{mu: &mu, to: stderr, prefix: prefix}
		wg.Go(func() {
			err := c.logsOf(ctx, id, o, from, out, problems)
			out.end()
			problems.end()
			mu.Lock()
			defer mu.Unlock()
			result.add(err)
		})
	}
	wg.Wait()
	return result.err()
}

// named writes whole lines, each with a prefix. Several of them share the mutex mu, so that lines do not mix.
type named struct {
	mu     *sync.Mutex
	to     io.Writer
	prefix []byte
	rest   []byte // beginning of a line whose end has not been written yet
}

// longestLine is the number of bytes after which a line without an end is written.
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

// end writes a last line that has no line end.
func (n *named) end() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.rest) > 0 {
		_ = n.line(n.rest) // the output is gone, and so is the reader of the error
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
