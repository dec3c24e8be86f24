package persysctl

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/fsm/bounds"
)

type drainOptions struct {
	preview, undo, discard bool
	deadline               *time.Duration // nil = not given
	waiting
}

func (c *cli) drainCommand() *cobra.Command {
	var o drainOptions
	cmd := &cobra.Command{
		Use: "drain NODE", Short: "Move all workloads off a node, or with --preview show where they would go",
		Long: `Move all workloads off a node. A workload for which no other node has room keeps running
on its node, and moves as soon as another node has room. A workload with local data (disks
of a virtual machine, volumes, folders beside a Compose file) stays, because a move would
leave its data behind. With --discard-data it moves without its data, which stays on the
node. The agent deletes disks of virtual machines and volumes without retain: Retain after
PERSYS_GC_VOLUME_AGE.

A running job may end on its node for an hour, and then it moves too. A job that does not run
yet, for example because its image cannot be pulled, moves at once. Another time is given with
--deadline; with --deadline 0 running jobs move at once too. For a node that is draining
already, drain without --deadline keeps the deadline, and with --deadline the time begins anew.`,
		Example: "  persysctl drain node-a --preview\n  persysctl drain node-a --wait\n  persysctl drain node-a --deadline 4h\n  persysctl drain node-a --undo",
		Args:    args(1, 1, "NODE"), ValidArgsFunction: c.completeNode,
	}
	f := cmd.Flags()
	deadline := f.Duration("deadline", time.Hour, "how long running jobs may stay on the node to end there, at most 720h; 0 moves them at once")
	cmd.RunE = c.online(func(ctx context.Context, args []string) error {
		if f.Changed("deadline") {
			o.deadline = deadline
		}
		return c.drain(ctx, args[0], o)
	})
	f.BoolVar(&o.preview, "preview", false, "only show which workloads would move, and where")
	f.BoolVar(&o.undo, "undo", false, "end the drain; workloads that have moved stay where they are")
	discardFlag(f, &o.discard)
	o.flags(f, "the node is empty and its workloads run on other nodes")
	cmd.MarkFlagsMutuallyExclusive("preview", "undo")
	cmd.MarkFlagsMutuallyExclusive("discard-data", "undo")
	cmd.MarkFlagsMutuallyExclusive("deadline", "undo")
	return cmd
}

// maxDrainDeadline is the longest deadline of a drain that the schedulers accept.
const maxDrainDeadline = bounds.MaxDrainDeadline * time.Second

// discardFlag defines the flag --discard-data.
func discardFlag(f *pflag.FlagSet, discard *bool) {
	f.BoolVar(discard, "discard-data", false, "also move workloads that have local data on the node; the data is not moved")
}

func (c *cli) drain(ctx context.Context, id string, o drainOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	request := &clusterv1.DrainNodeRequest{NodeId: id, On: !o.undo, Preview: o.preview, DiscardData: o.discard}
	if d := o.deadline; d != nil {
		if *d < 0 || *d > maxDrainDeadline || *d%time.Second != 0 {
			return usagef("--deadline %s must be a whole number of seconds from 0 to 720h", *d)
		}
		request.DeadlineSeconds = new(uint32(*d / time.Second))
	}
	goals := map[string]goal{}
	look := func() error {
		list, err := c.onNode(ctx, id)
		for _, w := range list.GetWorkloads() {
			goals[w.GetWorkloadId()] = goalOff(id)
		}
		return err
	}
	// List the node's workloads both before and after the start of the drain, because workloads may leave or arrive in
	// between.
	wait := o.wait && !o.preview && !o.undo
	if wait {
		if err := look(); err != nil {
			return err
		}
	}
	r, err := change(ctx, c, c.cluster.DrainNode, request)
	if err != nil {
		return c.nodeFailure(id, err)
	}
	if c.machine() {
		if err := c.emitMessage(r); err != nil {
			return err
		}
	} else {
		c.showDrain(id, r, o)
	}
	if !wait {
		return nil
	}
	unseen := look() // if this second list fails, drain first waits for the workloads of the first list and then returns the error
	limit := o.timeout
	if !o.given() {
		limit += untilJobsLeave(r.GetMoves(), c.now())
	}
	if err := c.awaitAll(ctx, goals, r.GetIndex(), limit, time.After(limit)); err != nil {
		return err
	}
	return unseen // the second list failed, so it is not known whether the node is empty
}

// untilJobsLeave returns how long, from now on, running jobs may stay on the node of a drain; 0 if none may.
func untilJobsLeave(moves []*clusterv1.PlannedMove, now time.Time) time.Duration {
	var longest time.Duration
	for _, m := range moves {
		if t := m.GetStaysUntil(); t != nil {
			longest = max(longest, t.AsTime().Sub(now))
		}
	}
	return longest
}

func (c *cli) showDrain(id string, r *clusterv1.NodeActionResponse, o drainOptions) {
	moves := r.GetMoves()
	leave, bound := 0, false
	for _, m := range moves {
		if m.GetToNodeId() != "" {
			leave++
		} else if len(m.GetLocalData()) > 0 {
			bound = true
		}
	}
	count := screen.Plural(leave, "workload")
	if stay := len(moves) - leave; stay > 0 {
		count = fmt.Sprintf("%d of %s", leave, screen.Plural(len(moves), "workload"))
	}
	switch {
	case o.undo:
		writeLines(c.out, []string{id + " " + c.paint.Paint(screen.Good, "takes workloads again")})
		return
	case len(moves) == 0 && o.preview:
		writeLines(c.out, []string{id + " has nothing to move."})
		return
	case len(moves) == 0:
		writeLines(c.out, []string{id + " " + c.paint.Paint(screen.Good, "is draining") + "; it has nothing to move"})
		return
	case o.preview:
		writeLines(c.out, []string{fmt.Sprintf("Draining %s moves %s:", id, count)})
	default:
		writeLines(c.out, []string{fmt.Sprintf("%s %s; moving %s:", id, c.paint.Paint(screen.Good, "is draining"), count)})
	}
	t := screen.NewTable(screen.Column{Title: "WORKLOAD", Gives: 1, Least: 20, Keeps: screen.Middle}, screen.Column{Title: "TO", Gives: 2, Least: 12, Keeps: screen.Middle},
		screen.Column{Title: "REASON", Gives: 3, Least: 16})
	for _, m := range moves {
		to := screen.Text(m.GetToNodeId())
		why := m.GetReason()
		switch {
		case m.GetStaysUntil() != nil:
			to, why = screen.Styled("may end here", screen.Warn), "until "+c.moment(m.GetStaysUntil())+", and leaves then"
		case m.GetToNodeId() == "":
			to = screen.Styled("nowhere", screen.Bad)
		case len(m.GetLocalData()) > 0:
			why = leavesBehind(m.GetLocalData())
		}
		if evicted := m.GetPreempts(); len(evicted) > 0 {
			why = strings.TrimPrefix(why+"; ", "; ") + evicts(evicted)
		}
		t.Add(screen.Text(m.GetWorkloadId()), to, screen.Text(why))
	}
	c.print(t)
	if bound {
		c.empty("Workloads with local data stay. To move them without their data:", "persysctl drain "+id+" --discard-data")
	}
}

// evicts names the workloads that would be evicted for a workload of higher priority.
func evicts(ids []string) string { return "evicts " + strings.Join(ids, ", ") }

// leavesBehind returns a text that lists the data that a workload would leave on its node if it were moved.
func leavesBehind(data []string) string {
	return "leaves behind: " + strings.Join(data, ", ")
}
