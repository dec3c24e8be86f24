package persysctl

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

// completeWithin bounds the time that a shell waits for completions.
const completeWithin = 700 * time.Millisecond

type completer func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective)

// asker asks the cluster for candidates to complete a word. It may return candidates that do not begin with
// the word; the caller drops them.
type asker func(ctx context.Context, word string) []string

// ids completes word with the ids that ask returns, without the ids in the parameter not. If the cluster
// does not answer, it returns no ids.
func (c *cli) ids(cmd *cobra.Command, word string, not []string, ask asker) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completeWithin)
	defer cancel()
	c.verbose = false
	if err := c.connect(ctx); err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	taken := map[string]bool{}
	for _, n := range not {
		taken[n] = true
	}
	var out []string
	for _, s := range ask(ctx, word) {
		id, _, _ := strings.Cut(s, "\t")
		if strings.HasPrefix(id, word) && !taken[id] {
			out = append(out, s)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// anyReplica is the read level of the calls for completion: any replica answers, even without a leader.
const anyReplica = controlv1.ReadLevel_READ_LEVEL_STALE

// justBefore returns a page token for the page that begins with the ids that start with word. Lists are in
// the order of ids, so in a large cluster the first page may not contain these ids. Ids are ASCII, and ~
// sorts after all their characters.
func justBefore(word string) string {
	if word == "" {
		return ""
	}
	last := word[len(word)-1]
	if last <= ' ' || last > '~' {
		return "" // no workload id contains a character outside of ASCII, a blank or a control character
	}
	return word[:len(word)-1] + string(rune(last-1)) + "~"
}

func (c *cli) workloadIDs(ctx context.Context, word string) []string {
	r, err := c.control.ListWorkloads(ctx, &controlv1.ListWorkloadsRequest{Level: anyReplica, PageSize: pageSize, PageToken: justBefore(word)})
	if err != nil {
		return nil
	}
	var out []string
	for _, w := range r.GetWorkloads() {
		out = append(out, w.GetWorkloadId()+"\t"+screen.Clean(screen.Join(" ", w.GetStatus(), onNode(w.GetAssignedNodeId()))))
	}
	return out
}

func (c *cli) nodeIDs(ctx context.Context, word string) []string {
	r, err := c.control.ListNodes(ctx, &controlv1.ListNodesRequest{Level: anyReplica, PageSize: pageSize, PageToken: justBefore(word)})
	if err != nil {
		return nil
	}
	var out []string
	for _, n := range r.GetNodes() {
		out = append(out, n.GetNodeId()+"\t"+screen.Clean(nodeStatus(n)))
	}
	return out
}

func (c *cli) replicaNames(ctx context.Context, _ string) []string {
	r, err := c.cluster.Status(ctx, &clusterv1.StatusRequest{})
	if err != nil {
		return nil
	}
	var out []string
	for _, p := range r.GetReplicas() {
		out = append(out, cmp.Or(p.GetName(), p.GetId())+"\t"+p.GetRole())
	}
	return out
}

// one returns a completer for the first argument of a command only; many returns a completer for all arguments of a
// command that takes a list of ids. ask returns the candidates.
func (c *cli) one(ask asker) completer {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return c.ids(cmd, word, nil, ask)
	}
}

func (c *cli) many(ask asker) completer {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		return c.ids(cmd, word, args, ask)
	}
}

func (c *cli) completeWorkload(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	return c.one(c.workloadIDs)(cmd, args, word)
}

func (c *cli) completeWorkloads(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	return c.many(c.workloadIDs)(cmd, args, word)
}

func (c *cli) completeNode(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	return c.one(c.nodeIDs)(cmd, args, word)
}

func (c *cli) completeNodes(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	return c.many(c.nodeIDs)(cmd, args, word)
}

func (c *cli) completeReplica(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	return c.one(c.replicaNames)(cmd, args, word)
}

func (c *cli) completeWorkloadThenNode(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 1 {
		return c.one(c.nodeIDs)(cmd, nil, word)
	}
	return c.one(c.workloadIDs)(cmd, args, word)
}
