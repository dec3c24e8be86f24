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
		Long: `Set labels of a node, or take them away with KEY-. What you say about a key holds, also
after restarts and whatever the agent reports about it (PERSYS_NODE_LABELS).

A label can move workloads: those whose labels or constraints no longer match the node
go to another one, as persysctl why tells.`,
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
						return usagef("label %q is there twice", key)
					}
					req.Labels[key] = value
				case remove && !set && gone != "":
					if _, twice := req.Labels[gone]; twice {
						return usagef("label %q is there twice", gone)
					}
					req.Remove = append(req.Remove, gone)
				default:
					return usagef("label %q must be KEY=VALUE, or KEY- to remove it", a)
				}
			}
			return c.nodeAction(ctx, args[:1], func(string) (*clusterv1.NodeActionResponse, error) {
				return change(ctx, c, c.cluster.LabelNode, req)
			}, "labelled")
		}),
	}
}

func (c *cli) taintCommand() *cobra.Command {
	return &cobra.Command{
		Use: "taint NODE KEY=VALUE:EFFECT[:SECONDS]… KEY-…", Short: "Set taints of a node, or remove them with KEY-",
		Long: `Set taints of a node, or take them away with KEY-. Workloads that do not tolerate a taint
(tolerations in their file) stay away from the node. What you say about a key holds, also
after restarts and whatever the agent reports about it (PERSYS_NODE_TAINTS).

Effects:
  NoSchedule        the node gets no such workload; those that run there stay
  PreferNoSchedule  the node gets one only if no other node takes it
  NoExecute         the node gets none, and those that run there leave after SECONDS
                    (default 0), counted from when the node got the taint

A workload leaves only if another node takes it, and none leaves local data behind: see
persysctl why.`,
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
					return usagef("%s; KEY- takes one away", err)
				}
				req.Taints = append(req.Taints, t)
			}
			return c.nodeAction(ctx, args[:1], func(string) (*clusterv1.NodeActionResponse, error) {
				return change(ctx, c, c.cluster.TaintNode, req)
			}, "tainted")
		}),
	}
}

// setText lists the keys of labels and taints that users set or removed on a node; "zone disk-" means that a user set
// zone and removed disk.
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
