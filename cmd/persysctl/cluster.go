package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

func (c *cli) summaryCommand() *cobra.Command {
	return c.watchable(&cobra.Command{
		Use: "summary", Short: "Count nodes and workloads by state", Aliases: []string{"metrics"},
		Args: args(0, 0),
		RunE: c.online(func(ctx context.Context, _ []string) error { return c.summary(ctx) }),
	})
}

func (c *cli) summary(ctx context.Context) error {
	r, err := read(ctx, c, c.control.GetClusterSummary, &controlv1.GetClusterSummaryRequest{Level: c.level()})
	if err != nil {
		return err
	}
	return c.emit(r, func() {
		f := &screen.Facts{}
		f.Add("Mode", screen.State(r.GetMode()))
		f.Add("Leader", screen.Text(r.GetLeaderId()))
		nodes := screen.Styled(fmt.Sprintf("%d, all ready", r.GetTotalNodes()), screen.Good)
		switch {
		case r.GetTotalNodes() == 0:
			nodes = screen.Styled("none", screen.Warn)
		case r.GetNotReadyNodes() > 0:
			nodes = screen.Styled(fmt.Sprintf("%d, %d not ready", r.GetTotalNodes(), r.GetNotReadyNodes()), screen.Bad)
		}
		f.Add("Nodes", nodes)
		f.Add("Workloads", screen.Text(fmt.Sprint(r.GetTotalWorkloads())))
		for _, n := range []struct {
			state string
			count int32
			style screen.Style
		}{
			{"running", r.GetRunningWorkloads(), screen.Good}, {"pending", r.GetPendingWorkloads(), screen.Warn}, {"scheduled", r.GetScheduledWorkloads(), screen.Warn},
			{"retry pending", r.GetRetryPendingWorkloads(), screen.Warn}, {"failed", r.GetFailedWorkloads(), screen.Bad},
			{"stopped", r.GetStoppedWorkloads(), screen.Dim}, {"deleting", r.GetDeletedWorkloads(), screen.Dim},
		} {
			if n.count > 0 || n.state == "running" || n.state == "failed" {
				shown := screen.Styled(fmt.Sprint(n.count), n.style)
				if n.count == 0 {
					shown.Style = screen.Dim
				}
				f.Add("  "+n.state, shown)
			}
		}
		c.printFacts(f)
		switch {
		case r.GetTotalNodes() == 0:
			c.empty("", "start an agent on a machine: PERSYS_SCHEDULER_ADDR=HOST:8085 persys-agent")
		case r.GetFailedWorkloads() > 0:
			c.empty("", "persysctl list --status Failed")
		}
	})
}

func (c *cli) statusCommand() *cobra.Command {
	return c.watchable(&cobra.Command{
		Use: "status", Short: "Show the schedulers: leader, term, index, health and mode",
		Args: args(0, 0),
		RunE: c.online(func(ctx context.Context, _ []string) error { return c.status(ctx) }),
	})
}

// status asks the connected replica and then the leader, because only the leader knows
// the indexes of the others. Without a leader the exit code is an error, for scripts.
func (c *cli) status(ctx context.Context) error {
	r, err := read(ctx, c, c.cluster.Status, &clusterv1.StatusRequest{})
	if err != nil {
		return err
	}
	soon, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for r.GetLeaderId() != "" && r.GetLeaderId() != r.GetSelfId() && c.direct != nil && c.direct.Leader() != "" {
		// The answer has named the leader; calls go to it when it is connected.
		select {
		case <-time.After(25 * time.Millisecond):
		case <-soon.Done():
		}
		better, err := call(soon, c, c.cluster.Status, &clusterv1.StatusRequest{})
		if err != nil {
			break // the first replica's answer is shown
		}
		r = better
	}
	if err := c.emit(r, func() { c.showStatus(r) }); err != nil {
		return err
	}
	if r.GetLeaderId() == "" {
		return failf(exitUnavailable, "start the missing schedulers, then: persysctl status", "the cluster has no leader")
	}
	return nil
}

func (c *cli) showStatus(r *clusterv1.StatusResponse) {
	leader := replicaName(r, r.GetLeaderId())
	f := &screen.Facts{}
	f.Add("Cluster", screen.Text(joinNonEmpty(", shard ", orText(r.GetClusterId(), "not formed yet"), r.GetShard())))
	mode := screen.State(r.GetMode())
	if r.GetModeReason() != "" && r.GetMode() != "normal" {
		mode.Text += ": " + screen.Clean(r.GetModeReason())
	}
	f.Add("Mode", mode)
	if leader == "" {
		f.Add("Leader", screen.Styled("none: writes wait until a majority of the replicas is up", screen.Bad))
	} else {
		f.Add("Leader", screen.Styled(screen.Clean(joinNonEmpty(" at ", leader, r.GetLeaderAddr())), screen.Good))
	}
	f.Add("Term", screen.Text(fmt.Sprint(r.GetTerm())))
	f.Add("Index", screen.Text(fmt.Sprintf("%d (committed %d, applied %d)", r.GetLastIndex(), r.GetCommitIndex(), r.GetAppliedIndex())))
	f.Add("Nodes", screen.Text(fmt.Sprintf("%d of %d ready", r.GetNodesReady(), r.GetNodes())))
	f.Add("Workloads", screen.Text(fmt.Sprintf("%d of %d running", r.GetWorkloadsRunning(), r.GetWorkloads())))
	c.printFacts(f)
	if len(r.GetReplicas()) == 0 {
		return
	}
	writeLines(c.out, []string{""})
	c.print(c.replicaTable(r))
}

// replicaName is the name of a replica, or its id if it has none.
func replicaName(r *clusterv1.StatusResponse, id string) string {
	for _, p := range r.GetReplicas() {
		if p.GetId() == id && p.GetName() != "" {
			return p.GetName()
		}
	}
	return id
}

func (c *cli) replicaTable(r *clusterv1.StatusResponse) *screen.Table {
	t := screen.NewTable(screen.Column{Title: "REPLICA", Gives: 1, Least: 16, Keeps: screen.Middle}, screen.Column{Title: "ROLE"},
		screen.Column{Title: "ADDRESS", Gives: 2, Least: 18, Keeps: screen.Tail}, screen.Column{Title: "INDEX", Right: true}, screen.Column{Title: "LAG", Right: true},
		screen.Column{Title: "HEALTH"}, screen.Column{Title: "VERSION", Gives: 3, Least: 8},
		screen.Column{Title: "ID", Wide: true}, screen.Column{Title: "RAFT", Wide: true}, screen.Column{Title: "HTTP", Wide: true}, screen.Column{Title: "GOSSIP", Wide: true})
	fromLeader := r.GetSelfId() == r.GetLeaderId()
	replicas := slices.Clone(r.GetReplicas())
	slices.SortStableFunc(replicas, func(a, b *clusterv1.Replica) int { return natural(a.GetName(), b.GetName()) })
	for _, p := range replicas {
		name, role := screen.Cell{Text: "  " + screen.Clean(orText(p.GetName(), p.GetId()))}, screen.State(p.GetRole())
		index, lag := screen.None, screen.None
		switch {
		case p.GetSelf():
			index, lag = fmt.Sprint(r.GetAppliedIndex()), "0"
			if !fromLeader {
				lag = screen.None
			}
		case fromLeader && p.GetMatchIndex() > 0:
			index = fmt.Sprint(p.GetMatchIndex())
			lag = "0"
			if p.GetMatchIndex() < r.GetLastIndex() {
				lag = fmt.Sprint(r.GetLastIndex() - p.GetMatchIndex())
			}
		}
		if p.GetId() == r.GetLeaderId() && p.GetId() != "" {
			name, role = screen.Styled("* "+screen.Clean(orText(p.GetName(), p.GetId())), screen.Bold), screen.State("leader")
		}
		health := screen.State(p.GetHealth())
		if fromLeader && !p.GetSelf() && p.GetLastContactMs() > 3000 {
			health = screen.Styled(health.Text+", silent "+span(time.Duration(p.GetLastContactMs())*time.Millisecond), screen.Warn)
		}
		t.Add(name, role, screen.Text(p.GetGrpcAddr()), screen.Text(index), screen.Text(lag), health, screen.Text(p.GetVersion()),
			screen.Text(p.GetId()), screen.Text(p.GetRaftAddr()), screen.Text(p.GetHttpAddr()), screen.Text(p.GetGossipAddr()))
	}
	return t
}

func (c *cli) transferCommand() *cobra.Command {
	return &cobra.Command{
		Use: "transfer-leadership [REPLICA]", Short: "Hand leadership to another replica",
		Args: args(0, 1, "REPLICA"), ValidArgsFunction: c.completeReplica,
		RunE: c.online(func(ctx context.Context, args []string) error {
			req := &clusterv1.TransferLeadershipRequest{}
			if len(args) == 1 {
				req.Replica = args[0]
			}
			r, err := change(ctx, c, c.cluster.TransferLeadership, req)
			if err != nil {
				return err
			}
			name := r.GetLeaderId()
			if st, err := call(ctx, c, c.cluster.Status, &clusterv1.StatusRequest{}); err == nil {
				name = replicaName(st, name)
			}
			return c.emit(r, func() {
				writeLines(c.out, []string{fmt.Sprintf("%s leads now (handed over in %d ms)", orText(screen.Clean(name), "another replica"), r.GetTookMs())})
			})
		}),
	}
}

func (c *cli) replicaCommand() *cobra.Command {
	parent := &cobra.Command{Use: "replica", Short: "Change the set of schedulers", Args: args(0, 0), RunE: help}
	var force, yes bool
	remove := &cobra.Command{
		Use: "remove REPLICA", Short: "Remove a scheduler from the cluster, even one that is lost", Aliases: []string{"rm"},
		Args: args(1, 1, "REPLICA"), ValidArgsFunction: c.completeReplica,
		RunE: c.online(func(ctx context.Context, args []string) error {
			if force && !yes {
				if err := c.confirm(fmt.Sprintf("Remove %s even if the cluster then has no quorum to spare?", args[0])); err != nil {
					return err
				}
			}
			r, err := change(ctx, c, c.cluster.RemoveReplica, &clusterv1.RemoveReplicaRequest{Replica: args[0], Force: force})
			if err != nil {
				return err
			}
			c.done(args[0], "removed", r)
			return nil
		}),
	}
	remove.Flags().BoolVar(&force, "force", false, "even if it is alive, or if too few others are")
	remove.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	leave := &cobra.Command{
		Use: "leave REPLICA", Short: "Make a running scheduler leave the cluster for good",
		Long: `Make a running scheduler leave the cluster for good. If it leads, it hands leadership
over first. Then it is removed, and its process ends with status 0. The command fails
if the other schedulers could not go on alone. The data directory cannot be used again:
to bring the scheduler back, start it with an empty one.`,
		Args: args(1, 1, "REPLICA"), ValidArgsFunction: c.completeReplica,
		RunE: c.online(func(ctx context.Context, args []string) error {
			r, err := change(ctx, c, c.cluster.RemoveReplica, &clusterv1.RemoveReplicaRequest{Replica: args[0], Leave: true})
			if err != nil {
				return err
			}
			c.done(args[0], "has left", r)
			return nil
		}),
	}
	parent.AddCommand(remove, leave)
	return parent
}

// modeAuto lets the leader decide the mode again.
const modeAuto = "auto"

func modes() []string { return []string{"normal", "degraded", "recovery", modeAuto} }

func (c *cli) modeCommand() *cobra.Command {
	parent := &cobra.Command{Use: "mode", Short: "Show the mode of the cluster, or set it by hand", Args: args(0, 0), RunE: help}
	var reason string
	set := &cobra.Command{
		Use: "set MODE --reason TEXT", Short: "Set the mode: normal, degraded, recovery, or auto",
		Long: `Set the mode: normal, degraded or recovery. In degraded and recovery the schedulers
refuse changes. Running workloads are not touched in any mode.

The mode stays until it is set again. With auto the schedulers decide by the health of
their etcd; so they do with normal, as soon as etcd is healthy.`,
		Example: "  persysctl mode set degraded --reason 'moving the rack'\n  persysctl mode set auto --reason done",
		Args:    args(1, 1, "MODE"), ValidArgs: modes(),
		RunE: c.online(func(ctx context.Context, args []string) error {
			if reason == "" {
				return usagef("--reason is missing: it is kept in the events")
			}
			r, err := change(ctx, c, c.cluster.SetMode, &clusterv1.SetModeRequest{Mode: args[0], Reason: reason})
			if err != nil {
				return err
			}
			return c.emit(r, func() {
				s := screen.State(r.GetMode())
				text := "mode is " + c.paint.Paint(s.Style, s.Text)
				if args[0] == modeAuto {
					text += ", until the schedulers decide otherwise"
				}
				writeLines(c.out, []string{text})
			})
		}),
	}
	show := &cobra.Command{
		Use: "show", Short: "Show the mode, its reason and time, and whether it was set by hand",
		Args: args(0, 0),
		RunE: c.online(func(ctx context.Context, _ []string) error { return c.modeShow(ctx) }),
	}
	set.Flags().StringVar(&reason, "reason", "", "why, for the events")
	parent.AddCommand(show, set)
	return parent
}

// modeShow reads the state of the connected replica, so it works without a leader.
func (c *cli) modeShow(ctx context.Context) error {
	r, err := read(ctx, c, c.cluster.Status, &clusterv1.StatusRequest{})
	if err != nil {
		return err
	}
	return c.emit(r, func() {
		f := &screen.Facts{}
		f.Add("Mode", modeCell(r.GetMode(), r.GetModeReason(), r.GetModePinned()))
		if at := r.GetModeChangedAt(); at != nil {
			f.Add("Since", screen.Text(at.AsTime().In(c.zone).Format("2006-01-02 15:04:05")+", "+c.age(at)+" ago"))
		}
		c.printFacts(f)
		if r.GetMode() != "normal" {
			c.empty("", "persysctl recovery show")
		}
	})
}
