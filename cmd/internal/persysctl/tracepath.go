package persysctl

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

func (c *cli) traceCommand() *cobra.Command {
	var from string
	cmd := &cobra.Command{
		Use: "trace HOST:PORT", Short: "Follow a connection to its container, and show where it stops", Args: args(1, 1, "HOST:PORT"),
		Long: `Follow a TCP connection to its container, and show where it stops.

HOST is a name in a network of the namespace, an address in a network, or a node or its
address with a published port. The agent at the start resolves the name and opens
connections: to the address, and to each instance behind it.

Without --from the connection starts at a node that has the network. From a workload it
is opened inside the container, so it also needs the networks that the container joins.
The command fails (exit code 1) if the connection stops somewhere.`,
		Example: `  persysctl trace db:5432 --from web-0
  persysctl trace 10.216.15.193:80
  persysctl trace node-a:8080`,
	}
	cmd.Flags().StringVar(&from, "from", "", "workload or node at which the connection starts")
	// RegisterFlagCompletionFunc fails only for unknown flags.
	_ = cmd.RegisterFlagCompletionFunc("from", func(cmd *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
		return c.ids(cmd, word, nil, func(ctx context.Context, word string) []string {
			return append(c.workloadIDs(ctx, word), c.nodeIDs(ctx, word)...)
		})
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		host, text, err := net.SplitHostPort(args[0])
		port, fault := strconv.ParseUint(text, 10, 16)
		if err != nil || fault != nil || host == "" || port == 0 {
			return failf(exitUsage, cmd.CommandPath()+" --help", "%s: must be HOST:PORT with a port from 1 to 65535, such as db:5432", args[0])
		}
		if err := c.connect(cmd.Context()); err != nil {
			return err
		}
		r, err := read(cmd.Context(), c, c.cluster.Trace, &clusterv1.TraceRequest{Host: host, Port: uint32(port), From: from, Namespace: c.namespace()})
		if err != nil {
			return err
		}
		if err := c.emit(r, func() { c.showTrace(r) }); err != nil {
			return err
		}
		for _, h := range r.GetHops() {
			if h.GetProblem() != "" && !h.GetIdle() {
				return failf(exitFailed, "", "the connection to %s stops at %s %s", args[0], h.GetStep(), h.GetSubject())
			}
		}
		return nil
	}
	return cmd
}

// showTrace prints the steps of a traced connection, and below the steps their problems.
func (c *cli) showTrace(r *clusterv1.TraceResponse) {
	t := screen.NewTable(screen.Column{Title: "STEP"}, screen.Column{Title: "NAME", Gives: 1, Least: 12, Keeps: screen.Middle}, screen.Column{Title: "RESULT"},
		screen.Column{Title: "TIME"}, screen.Column{Title: "FOUND", Gives: 2, Least: 12})
	var problems []string
	for _, h := range r.GetHops() {
		result, took := "OK", screen.None
		if h.GetProblem() != "" {
			if result = "stops"; h.GetIdle() {
				result = "not used"
			}
			problems = append(problems, fmt.Sprintf("%s %s:", h.GetStep(), screen.Clean(h.GetSubject())))
			for _, line := range screen.Fold(screen.Clean(h.GetProblem()), 96) {
				problems = append(problems, "  "+line)
			}
		}
		if us := h.GetLatencyMicroseconds(); us > 0 {
			took = fmt.Sprintf("%.2f ms", float64(us)/1000)
		}
		t.Add(screen.Text(h.GetStep()), screen.Text(screen.Clean(h.GetSubject())), screen.Text(result), screen.Text(took), screen.Text(screen.Clean(h.GetText())))
	}
	c.print(t)
	if r.GetLeftOut() > 0 {
		problems = append(problems, screen.Plural(int(r.GetLeftOut()), "connection")+" to further instances left out")
	}
	if len(problems) > 0 {
		writeLines(c.out, problems)
	}
}
