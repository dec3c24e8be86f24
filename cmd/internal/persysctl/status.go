package persysctl

import (
	"cmp"
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

// status asks the connected replica, and then the leader, because only the leader knows the indexes of the
// other replicas. If there is no leader, persysctl exits with an error code, so that scripts notice it.
func (c *cli) status(ctx context.Context) error {
	r, err := read(ctx, c, c.cluster.Status, &clusterv1.StatusRequest{})
	if err != nil {
		return err
	}
	soon, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for r.GetLeaderId() != "" && r.GetLeaderId() != r.GetSelfId() && c.direct != nil && c.direct.Leader() != "" {
		// The trailer of the first answer contains the leader's address, and package dial then connects to
		// the leader in the background. Wait until this connection is ready, so that the next call goes to
		// the leader.
		select {
		case <-time.After(25 * time.Millisecond):
		case <-soon.Done():
		}
		better, err := call(soon, c, c.cluster.Status, &clusterv1.StatusRequest{})
		if err != nil {
			break // the leader did not answer, so the answer of the first replica is shown
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
	f.Add("Cluster", screen.Text(screen.Join(", shard ", cmp.Or(r.GetClusterId(), "not formed yet"), r.GetShard())))
	mode := screen.State(r.GetMode())
	if r.GetModeReason() != "" && r.GetMode() != "normal" {
		mode.Text += ": " + screen.Clean(r.GetModeReason())
	}
	f.Add("Mode", mode)
	if leader == "" {
		f.Add("Leader", screen.Styled("none: writes wait until a majority of the replicas is up", screen.Bad))
	} else {
		f.Add("Leader", screen.Styled(screen.Clean(screen.Join(" at ", leader, r.GetLeaderAddr())), screen.Good))
	}
	f.Add("Term", screen.Text(fmt.Sprint(r.GetTerm())))
	f.Add("Index", screen.Text(fmt.Sprintf("%d (committed %d, applied %d)", r.GetLastIndex(), r.GetCommitIndex(), r.GetAppliedIndex())))
	f.Add("Nodes", screen.Text(fmt.Sprintf("%d of %d ready", r.GetNodesReady(), r.GetNodes())))
	f.Add("Workloads", screen.Text(fmt.Sprintf("%d of %d running", r.GetWorkloadsRunning(), r.GetWorkloads())))
	if r.GetWarning() != "" {
		f.Add("Warning", screen.Styled(screen.Clean(r.GetWarning()), screen.Bad))
	}
	c.printFacts(f)
	if len(r.GetReplicas()) == 0 {
		return
	}
	writeLines(c.out, []string{""})
	c.print(c.replicaTable(r))
	for _, p := range r.GetReplicas() {
		for _, at := range p.GetCopies() {
			writeLines(c.out, []string{"", fmt.Sprintf("A copy of the data directory of %s (Raft address %s) is in use at %s and is refused.",
				screen.Clean(cmp.Or(p.GetName(), p.GetId())), screen.Clean(p.GetRaftAddr()), screen.Clean(at)),
				"Stop the scheduler there, empty its data directory and start it again: it joins as a new one."})
		}
	}
}

// replicaName returns the name of the replica with this id, or the id if the replica has no name.
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
	slices.SortStableFunc(replicas, func(a, b *clusterv1.Replica) int { return screen.Natural(a.GetName(), b.GetName()) })
	for _, p := range replicas {
		name, role := screen.Cell{Text: "  " + screen.Clean(cmp.Or(p.GetName(), p.GetId()))}, screen.State(p.GetRole())
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
			name, role = screen.Styled("* "+screen.Clean(cmp.Or(p.GetName(), p.GetId())), screen.Bold), screen.State("leader")
		}
		health := screen.State(p.GetHealth())
		if fromLeader && !p.GetSelf() && p.GetLastContactMs() > 3000 {
			health = screen.Styled(health.Text+", silent "+screen.Span(time.Duration(p.GetLastContactMs())*time.Millisecond), screen.Warn)
		}
		t.Add(name, role, screen.Text(p.GetGrpcAddr()), screen.Text(index), screen.Text(lag), health, screen.Text(p.GetVersion()),
			screen.Text(p.GetId()), screen.Text(p.GetRaftAddr()), screen.Text(p.GetHttpAddr()), screen.Text(p.GetGossipAddr()))
	}
	return t
}
