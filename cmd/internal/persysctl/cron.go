package persysctl

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/spec"
)

func (c *cli) cronCommand() *cobra.Command {
	parent := &cobra.Command{
		Use: "cron", Short: "List and control jobs that start on a schedule",
		Long: `List and control crons: workloads of kind cron, which start a job at each time of a
schedule.`,
		Args: args(0, 0), RunE: help,
	}
	suspend := c.desireCommand("suspend", "Suspend crons: their schedules start no runs", "Stopped", "suspended")
	resume := c.desireCommand("resume", "Resume suspended crons; runs that were due meanwhile are not started", "Running", "resumed")
	suspend.Example, resume.Example = "  persysctl cron suspend nightly", "  persysctl cron resume nightly"
	parent.AddCommand(
		&cobra.Command{
			Use: "list", Aliases: []string{"ls"}, Short: "List crons with their next time and their last run", Args: args(0, 0),
			Example: "  persysctl cron list",
			RunE:    c.online(func(ctx context.Context, _ []string) error { return c.crons(ctx) }),
		},
		&cobra.Command{
			Use: "history NAME", Short: "List the stored runs of a cron or of a parameterized job", Args: args(1, 1, "NAME"), ValidArgsFunction: c.completeWorkload,
			Example: "  persysctl cron history nightly",
			RunE:    c.online(func(ctx context.Context, args []string) error { return c.runs(ctx, args[0]) }),
		},
		c.startRunCommand("trigger NAME", "Start a run of a cron now, also if the cron is suspended", "  persysctl cron trigger nightly\n  persysctl cron trigger nightly --wait", false),
		suspend, resume)
	return parent
}

func (c *cli) jobCommand() *cobra.Command {
	parent := &cobra.Command{
		Use: "job", Short: "Start parameterized jobs",
		Long: `Start runs of parameterized jobs: workloads of kind job with job.parameterized.`,
		Args: args(0, 0), RunE: help,
	}
	parent.AddCommand(c.startRunCommand("dispatch NAME", "Start a run of a parameterized job",
		"  persysctl job dispatch encode -p file=a.wav -p quality=20\n  persysctl job dispatch encode -p file=a.wav --input notes.txt --key order-17 --wait", true))
	return parent
}

// startRunCommand returns a command that starts one run. If takes is true, the command gets flags for the parameters
// and the input of the run (for a parameterized job).
func (c *cli) startRunCommand(use, short, example string, takes bool) *cobra.Command {
	var o waiting
	var key, input string
	var pairs []string
	cmd := &cobra.Command{
		Use: use, Short: short, Example: example, Args: args(1, 1, "NAME"), ValidArgsFunction: c.completeWorkload,
		RunE: c.online(func(ctx context.Context, args []string) error {
			if err := o.check(); err != nil {
				return err
			}
			req := &clusterv1.StartRunRequest{WorkloadId: args[0], Key: key, Parameters: map[string]string{}}
			for _, pair := range pairs {
				name, value, ok := strings.Cut(pair, "=")
				if !ok || name == "" {
					return usagef("-p %q must be NAME=VALUE", pair)
				}
				req.Parameters[name] = value
			}
			if input != "" {
				text, err := c.inputOf(input)
				if err != nil {
					return err
				}
				req.Input = text
			}
			r, err := change(ctx, c, c.cluster.StartRun, req)
			if err != nil {
				return err
			}
			what := "started"
			if r.GetUnchanged() {
				what = screen.Join(": ", "unchanged", r.GetReason())
			}
			c.done(r.GetRunId(), screen.Clean(what), r)
			if !o.wait {
				return nil
			}
			goals := map[string]goal{r.GetRunId(): goalFinished()}
			o.limit(goals)
			return c.awaitAll(ctx, goals, r.GetIndex(), o.timeout, time.After(o.timeout))
		}),
	}
	f := cmd.Flags()
	f.StringVar(&key, "key", "", "key of the run: if the command is repeated with the same key, it starts no second run")
	if takes {
		f.StringArrayVarP(&pairs, "param", "p", nil, "NAME=VALUE of a parameter; may be repeated")
		f.StringVar(&input, "input", "", "file with the input of the run, at most 16 KiB; - is standard input")
	}
	o.flags(f, "the run has finished")
	return cmd
}

// inputOf reads the input of a run from a file, or from standard input.
func (c *cli) inputOf(name string) (string, error) {
	if name != "-" {
		data, err := c.readFile(name)
		if err != nil {
			return "", usagef("--input %s: %v", name, err)
		}
		return string(data), nil
	}
	data, err := io.ReadAll(io.LimitReader(c.in, spec.MaxInput+1))
	if err != nil {
		return "", usagef("--input -: %v", err)
	}
	return string(data), nil
}

// crons lists the crons.
func (c *cli) crons(ctx context.Context) error {
	all, err := c.workloads(ctx, listOptions{kind: spec.KindCron})
	if err != nil {
		return err
	}
	return c.emit(all, func() {
		if len(all.GetWorkloads()) == 0 {
			c.empty("No crons.", "persysctl docs")
			return
		}
		t := screen.NewTable(
			screen.Column{Title: "CRON", Gives: 1, Least: 20, Keeps: screen.Middle}, screen.Column{Title: "SCHEDULE"}, screen.Column{Title: "STATUS"},
			screen.Column{Title: "NEXT RUN"}, screen.Column{Title: "LAST RUN"}, screen.Column{Title: "LAST SUCCESS"}, screen.Column{Title: "LAST FAILURE"})
		for _, w := range all.GetWorkloads() {
			v := w.GetTemplate()
			t.Add(screen.Text(w.GetWorkloadId()), screen.Text(scheduleText(v.GetCron())), screen.State(cronStatus(w)), screen.Text(c.moment(v.GetNextRun())),
				screen.Text(c.moment(v.GetLastRun())), screen.Text(c.moment(v.GetLastSuccess())), screen.Text(c.moment(v.GetLastFailure())))
		}
		c.print(t)
	})
}

func cronStatus(w *controlv1.WorkloadView) string {
	if w.GetDesiredState() == "Stopped" {
		return "Suspended"
	}
	return w.GetStatus()
}

// runs lists the runs of a cron or of a parameterized job, newest first.
func (c *cli) runs(ctx context.Context, id string) error {
	if _, err := read(ctx, c, c.control.GetWorkload, &controlv1.GetWorkloadRequest{WorkloadId: id, Level: c.level()}); err != nil {
		return err
	}
	all, err := c.allPages(ctx, &controlv1.ListWorkloadsRequest{Namespace: c.namespace(), Search: id, Kind: spec.KindJob})
	if err != nil {
		return err
	}
	all.Workloads = slices.DeleteFunc(all.GetWorkloads(), func(w *controlv1.WorkloadView) bool { return w.GetOwner() != id })
	slices.SortFunc(all.Workloads, func(a, b *controlv1.WorkloadView) int {
		return b.GetCreatedAt().AsTime().Compare(a.GetCreatedAt().AsTime())
	})
	return c.emit(all, func() {
		if len(all.GetWorkloads()) == 0 {
			c.empty("No runs yet.", "persysctl get "+id)
			return
		}
		t := screen.NewTable(screen.Column{Title: "RUN", Gives: 1, Least: 20, Keeps: screen.Middle}, screen.Column{Title: "STATUS"},
			screen.Column{Title: "SCHEDULED"}, screen.Column{Title: "CREATED"}, screen.Column{Title: "RESULT", Gives: 2, Least: 14})
		for _, w := range all.GetWorkloads() {
			result := screen.None
			if r := w.GetJobResult(); r != nil {
				result = c.resultText(r)
			}
			t.Add(screen.Text(w.GetWorkloadId()), screen.State(w.GetStatus()), screen.Text(c.momentOr(w.GetScheduledAt(), "by hand")),
				screen.Text(c.moment(w.GetCreatedAt())), screen.Text(result))
		}
		c.print(t)
	})
}

// momentOr formats a time, or returns other if there is none.
func (c *cli) momentOr(ts *timestamppb.Timestamp, other string) string {
	if ts == nil {
		return other
	}
	return c.moment(ts)
}

// scheduleText returns a schedule with its time zone, for example "30 2 * * * Europe/Berlin".
func scheduleText(s *controlv1.CronSpec) string {
	if s == nil {
		return "started by calls"
	}
	return fmt.Sprintf("%s %s", s.GetSchedule(), s.GetTimeZone())
}
