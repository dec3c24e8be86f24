package persysctl

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/cmd/internal/taint"
)

func (c *cli) labelCommand() *cobra.Command {
	return &cobra.Command{
		Use: "label NODE KEY=VALUE… KEY-…", Short: "Set labels of a node, or remove them with KEY-",
		Long: `Set labels of a node, or remove them with KEY-. A key that you set or remove here takes
precedence over the labels that the agent reports (PERSYS_NODE_LABELS), also after
restarts.

A label can move workloads: those whose labels or constraints no longer match the node
move to another node. persysctl why shows the reason.`,
		Example: "  persysctl node label node-a zone=b disk=ssd\n  persysctl node label node-a disk-",
		Args:    args(2, -1, "NODE", "KEY=VALUE or KEY-"), ValidArgsFunction: c.completeNode,
		RunE: c.online(func(ctx context.Context, args []string) error {
			req := &clusterv1.LabelNodeRequest{NodeId: args[0], Labels: map[string]string{}}
			for _, a := range args[1:] {
				key, value, set := strings.Cut(a, "=")
				gone, remove := strings.CutSuffix(a, "-")
				switch {
				case set && key != "":
					if _, twice := req.Labels[key]; twice || slices.Contains(req.Remove, key) {
						return usagef("label %q is given twice", key)
					}
					req.Labels[key] = value
				case remove && !set && gone != "":
					if _, twice := req.Labels[gone]; twice {
						return usagef("label %q is given twice", gone)
					}
					req.Remove = append(req.Remove, gone)
				default:
					return usagef("label %q must be KEY=VALUE, or KEY- to remove it", a)
				}
			}
			return c.nodeAction(ctx, args[:1], func(string) (*clusterv1.NodeActionResponse, error) {
				return change(ctx, c, c.cluster.LabelNode, req)
			}, setOrRemoved("labelled", "label", len(req.Labels) > 0, req.Remove))
		}),
	}
}

func (c *cli) taintCommand() *cobra.Command {
	return &cobra.Command{
		Use: "taint NODE KEY=VALUE:EFFECT[:SECONDS]… KEY-…", Short: "Set taints of a node, or remove them with KEY-",
		Long: `Set taints of a node, or remove them with KEY-. Workloads that do not tolerate a taint
(tolerations in their file) are not placed on the node. A key that you set or remove here
takes precedence over the taints that the agent reports (PERSYS_NODE_TAINTS), also after
restarts.

Effects on workloads that do not tolerate the taint:
  NoSchedule        none is placed on the node; those that run there stay
  PreferNoSchedule  one is placed on the node only if no other node has room for it
  NoExecute         none is placed on the node, and those that run there leave after
                    SECONDS (default 0), counted from when the node got the taint

A workload leaves only if another node has room for it, and stays if a move would leave
local data behind: see persysctl why.`,
		Example: "  persysctl node taint node-a dedicated=gpu:NoSchedule\n  persysctl node taint node-a repair:NoExecute:600\n  persysctl node taint node-a repair-",
		Args:    args(2, -1, "NODE", "KEY=VALUE:EFFECT or KEY-"), ValidArgsFunction: c.completeNode,
		RunE: c.online(func(ctx context.Context, args []string) error {
			req := &clusterv1.TaintNodeRequest{NodeId: args[0]}
			for _, a := range args[1:] {
				if key, remove := strings.CutSuffix(a, "-"); remove && key != "" && !strings.ContainsAny(key, ":=") {
					req.Remove = append(req.Remove, key)
					continue
				}
				t, err := taint.Parse(a)
				if err != nil {
					return usagef("%s; KEY- removes one", err)
				}
				req.Taints = append(req.Taints, t)
			}
			return c.nodeAction(ctx, args[:1], func(string) (*clusterv1.NodeActionResponse, error) {
				return change(ctx, c, c.cluster.TaintNode, req)
			}, setOrRemoved("tainted", "taint", len(req.Taints) > 0, req.Remove))
		}),
	}
}

// setOrRemoved returns a text that says what a command has done to the labels or taints of a node. said is the text for
// keys that were set, and what is the noun for one key, "label" or "taint".
func setOrRemoved(said, what string, set bool, removed []string) string {
	if len(removed) == 0 {
		return said
	}
	if len(removed) > 1 {
		what += "s"
	}
	gone := "removed " + what + " " + strings.Join(removed, ", ")
	if set {
		return said + ", " + gone
	}
	return gone
}

// setText lists the keys of those labels and taints of a node that users have set or removed by command; "zone disk-"
// means that a user has set zone and removed disk.
func setText(n *controlv1.NodeView) string {
	var out []string
	for _, list := range [][]string{n.GetSetLabels(), n.GetSetTaints()} {
		out = append(out, list...)
	}
	for _, list := range [][]string{n.GetRemovedLabels(), n.GetRemovedTaints()} {
		for _, k := range list {
			out = append(out, k+"-")
		}
	}
	return strings.Join(out, ", ")
}
