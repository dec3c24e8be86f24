package persysctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

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
		Use: "logs WORKLOAD", Short: "Show the output of a workload",
		Example: "  persysctl logs web -f --tail 20\n  persysctl logs web --since 10m",
		Args:    args(1, 1, "WORKLOAD"), ValidArgsFunction: c.completeWorkload,
		RunE: c.online(func(ctx context.Context, args []string) error { return c.logs(ctx, args[0], o) }),
	}
	f := cmd.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "follow the output until Ctrl-C")
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
	req := &clusterv1.LogsRequest{WorkloadId: id, Follow: o.follow, TailLines: o.tail, Timestamps: o.timestamps, Service: o.service}
	if o.since != "" {
		from, err := c.since(o.since)
		if err != nil {
			return err
		}
		req.SinceUnixSeconds = from.Unix()
	}
	open := func(ctx context.Context) (receiver[*clusterv1.LogChunk], error) { return c.cluster.Logs(ctx, req) }
	stdout, stderr := c.programOutput()
	write := func(m *clusterv1.LogChunk) error {
		// If the stream breaks, it is opened again from the second (of the node's clock) in which the last
		// line was written. No line is lost, but lines of this second may be repeated.
		if at := m.GetAtUnixNanos(); at > 0 {
			req.SinceUnixSeconds, req.TailLines = at/1e9, -1
		}
		to := stdout
		if m.GetStream() == "stderr" {
			to = stderr
		}
		_, err := to.Write(m.GetData())
		return err
	}
	var err error
	if o.follow {
		err = follow(ctx, c, open, write)
	} else if _, err = drainStream(ctx, open, write); errors.Is(err, errEOF) {
		err = nil
	}
	if err = endWatch(ctx, err); err == nil {
		if o.follow && ctx.Err() == nil {
			c.outputEnded(ctx, id)
		}
		return nil
	}
	f := c.explain(err, false)
	if f.code == exitNotFound {
		return c.orGroup(ctx, id, f)
	}
	return f
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

// outputEnded prints on stderr why the output of a workload has ended.
func (c *cli) outputEnded(ctx context.Context, id string) {
	r, err := call(ctx, c, c.control.GetWorkload, &controlv1.GetWorkloadRequest{WorkloadId: id, Level: c.level()})
	why := "it is deleted"
	switch w := r.GetWorkload(); {
	case status.Code(err) == codes.NotFound:
	case err != nil:
		why = "its state is not known: " + c.explain(err, false).text
	case w.GetStatus() == "Running":
		why = "it was restarted or moved, and is Running on " + w.GetAssignedNodeId()
	default:
		why = "it is " + screen.Join(": ", w.GetStatus(), screen.Clean(reasonText(w)))
	}
	c.empty("The output of "+id+" has ended: "+why+".", "persysctl logs "+id+" --follow")
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
