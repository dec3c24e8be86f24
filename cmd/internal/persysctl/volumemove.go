package persysctl

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/spec/quantity"
)

// moveLook is the time between two looks at a move in progress.
const moveLook = time.Second

func (c *cli) volumeMoveCommand() *cobra.Command {
	var (
		to, node, rate       string
		cancel, settle, wait bool
		timeout              time.Duration
	)
	cmd := &cobra.Command{
		Use: "move NAME --to NODE", Short: "Move a local volume and its workload to another node", Args: args(1, 1, "NAME"),
		Long: `Move a local volume to another node, with the workload that uses it and with the other local
volumes of that workload. The data is copied while the workload runs; then the workload is
stopped, all of the data is compared and what has changed is copied, and the workload starts on
the other node. The former copy is deleted when the workload has run healthy there for a minute;
otherwise it is kept until you say so.

--cancel ends a move: the volume stays on its node. After the workload was started on the other
node, --cancel returns the volume to the former copy; stop the workload first. --settle deletes
the copy that is not used now, without waiting for proof that the other one is good. After a backup was restored into new schedulers, a move is kept until you
say which copy is used: --cancel (the former one) or --settle (the one on the other node).`,
		Example: `  persysctl volume move data --to node-b --wait
  persysctl volume move data --to node-b --rate 50Mi
  persysctl volume move data --cancel`,
	}
	cmd.RunE = c.online(func(ctx context.Context, args []string) error {
		req := &clusterv1.MoveVolumeRequest{To: to}
		switch {
		case cancel:
			req.End = "cancel"
		case settle:
			req.End = "settle"
		case to == "":
			return usagef("name the node to which the volume moves: --to NODE")
		}
		if rate != "" {
			n, err := quantity.Size(rate, 0, "50Mi")
			if err != nil {
				return usagef("--rate: %v", err)
			}
			req.BytesPerSecond = n
		}
		which := volumeChoice{node: node, driver: "local"}
		v, err := which.one(ctx, c, args[0])
		var f *failure
		if errors.As(err, &f) && f.code == exitNotFound && (cancel || settle) && node != "" {
			// The volume of a move may have been deleted since.
			v, err = &clusterv1.Volume{Id: "local:" + args[0], NodeId: node, Namespace: c.namespace()}, nil
		}
		if err != nil {
			return err
		}
		req.Id, req.NodeId, req.Namespace = v.GetId(), v.GetNodeId(), v.GetNamespace()
		r, err := change(ctx, c, c.cluster.MoveVolume, req)
		if err != nil {
			return err
		}
		switch {
		case cancel && r.GetMove() == nil:
			c.done(args[0], "does not move any more", r)
		case cancel:
			c.done(args[0], "stays on "+r.GetMove().GetFrom(), r)
		case settle:
			c.done(args[0], "is settled", r)
		case !wait:
			c.done(args[0], "moves to "+to, r)
		default:
			return c.awaitMove(ctx, v, r.GetMove(), timeout)
		}
		return nil
	})
	f := cmd.Flags()
	f.StringVar(&to, "to", "", "node to which the volume moves")
	f.StringVar(&node, "node", "", "node of the volume, if several nodes have one of this name")
	f.StringVar(&rate, "rate", "", "most bytes per second, such as 50Mi; no limit if it is not given")
	f.BoolVar(&cancel, "cancel", false, "end the move: the volume stays on its node, or returns to it")
	f.BoolVar(&settle, "settle", false, "delete the former copy now")
	f.BoolVar(&wait, "wait", false, "wait until the workload runs on the new node")
	f.DurationVar(&timeout, "timeout", time.Hour, "give up waiting after this time; the move goes on")
	cmd.MarkFlagsMutuallyExclusive("to", "cancel", "settle")
	cmd.MarkFlagsMutuallyExclusive("wait", "cancel")
	cmd.MarkFlagsMutuallyExclusive("wait", "settle")
	return cmd
}

// awaitMove waits until the workload of a move runs on the new node. It prints each change of the progress.
func (c *cli) awaitMove(ctx context.Context, v *clusterv1.Volume, m *clusterv1.VolumeMove, timeout time.Duration) error {
	late := time.After(timeout)
	look := time.NewTicker(moveLook)
	defer look.Stop()
	name, said := v.GetName(), ""
	hint := "persysctl volume inspect " + name
	for {
		r, err := read(ctx, c, c.cluster.ListVolumes, &clusterv1.ListVolumesRequest{Namespace: v.GetNamespace(), Name: name})
		if err != nil {
			return err
		}
		now := moveIn(r, m)
		line := moveLine(now)
		if line != "" && line != said {
			fmt.Fprintln(c.err, screen.Clean(line))
			said = line
		}
		switch phase := now.GetPhase(); {
		case phase == "undone", phase == "dropping":
			return failf(exitFailed, hint, "volume %q stays on node %s: %s", name, m.GetFrom(), now.GetReason())
		case phase == "kept":
			return failf(exitFailed, hint, "the move of volume %q is kept: %s", name, now.GetReason())
		case phase == "placed", phase == "done", now == nil && holds(r, m.GetTo()):
			if err := c.awaitAll(ctx, map[string]goal{m.GetWorkloadId(): goalOff(m.GetFrom())}, r.GetIndex(), timeout, late); err != nil {
				return err
			}
			c.done(name, "is on "+m.GetTo(), r)
			return nil
		case now == nil:
			return failf(exitFailed, hint, "volume %q stays on node %s: persysctl events shows why", name, m.GetFrom())
		}
		select {
		case <-look.C:
		case <-late:
			return failf(exitTimeout, hint, "the move has not ended within %s, and goes on", timeout)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// moveIn returns the present state of a move in a list of volumes; nil if it has ended.
func moveIn(r *clusterv1.ListVolumesResponse, m *clusterv1.VolumeMove) *clusterv1.VolumeMove {
	for _, v := range r.GetVolumes() {
		if x := v.GetMove(); x.GetWorkloadId() == m.GetWorkloadId() && x.GetStartedAt().AsTime().Equal(m.GetStartedAt().AsTime()) && x != nil {
			return x
		}
	}
	return nil
}

// holds reports whether a list of volumes has a local volume on a node.
func holds(r *clusterv1.ListVolumesResponse, node string) bool {
	for _, v := range r.GetVolumes() {
		if v.GetDriver() == "local" && v.GetNodeId() == node {
			return true
		}
	}
	return false
}

// moveLine describes the progress of a move; "" for none.
func moveLine(m *clusterv1.VolumeMove) string {
	if m == nil {
		return ""
	}
	text := m.GetPhase()
	switch text {
	case "copying", "final":
		if total := m.GetTotalBytes(); total > 0 {
			text += fmt.Sprintf(" %d%% of %s, %s sent", m.GetDoneBytes()*100/total, screen.Bytes(total), screen.Bytes(m.GetSentBytes()))
		}
	}
	return strings.Join(nonEmpty(m.GetFrom()+" to "+m.GetTo()+": "+text, m.GetReason(), m.GetProblem()), "; ")
}

func nonEmpty(texts ...string) (out []string) {
	for _, t := range texts {
		if t != "" {
			out = append(out, t)
		}
	}
	return out
}
