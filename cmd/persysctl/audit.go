package main

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

// auditCommand shows the events that a call has caused.
func (c *cli) auditCommand() *cobra.Command {
	var tail int
	var user string
	cmd := &cobra.Command{
		Use: "audit", Short: "Show who changed what, from which address, and which calls were refused",
		Long: `Show who changed what, from which address, and which calls were refused: every call
that changes something, every join, and their refusals, oldest first. -o json and
-o yaml print the events.`,
		Example: "  persysctl audit --tail 20\n  persysctl audit --by user/ada",
		Args:    args(0, 0),
		RunE: c.online(func(ctx context.Context, _ []string) error {
			if tail < 0 {
				return usagef("--tail %d must be 0 or more", tail)
			}
			all, err := c.pastEvents(ctx, &clusterv1.EventsRequest{})
			if err != nil {
				return err
			}
			list := slices.DeleteFunc(all, func(e *clusterv1.Event) bool {
				return caller(e) == "" || user != "" && who(e.GetBy()) != user
			})
			if tail > 0 && len(list) > tail {
				list = list[len(list)-tail:]
			}
			if c.machine() {
				return c.emitEvents(list)
			}
			if len(list) == 0 {
				c.empty("No changes.", "persysctl events")
				return nil
			}
			c.print(c.auditTable(list))
			return nil
		}),
	}
	cmd.Flags().IntVar(&tail, "tail", 50, "number of events, the newest; 0 shows all")
	cmd.Flags().StringVar(&user, "by", "", "only changes by this identity, for example user/ada")
	return cmd
}

// caller is the address of the call that caused an event; "" for an event without a
// call.
func caller(e *clusterv1.Event) string {
	d := e.GetDetails()
	if v := d["caller"]; v != "" {
		return v
	}
	if d["to"] != "" {
		return "" // the event is a change of state, and "from" is the former state
	}
	return d["from"]
}

func (c *cli) auditTable(list []*clusterv1.Event) *screen.Table {
	t := screen.NewTable(screen.Column{Title: "WHEN", Right: true}, screen.Column{Title: "WHO", Gives: 2, Least: 12, Keeps: screen.Middle},
		screen.Column{Title: "FROM", Gives: 3, Least: 9}, screen.Column{Title: "WHAT", Gives: 1, Least: 12}, screen.Column{Title: "ABOUT", Gives: 4, Least: 12, Keeps: screen.Middle},
		screen.Column{Title: "RESULT", Gives: 5, Least: 16})
	for _, e := range list {
		result := screen.Styled("done", screen.Good)
		switch e.GetType() {
		case "Mutation", "CallRefused", "JoinRefused":
			result = screen.Styled(screen.Clean(screen.Join(": ", e.GetReason(), e.GetMessage())), screen.Warn)
		}
		what := e.GetType()
		switch e.GetType() {
		case "CallMade": // the message names the subject of the call
			if result = screen.Styled(screen.Clean(e.GetMessage()), screen.Plain); e.GetDetails()["error"] != "" {
				result = screen.Styled(screen.Clean(e.GetDetails()["error"]), screen.Warn)
			}
		case "SessionOpened":
			result = screen.Styled(screen.Clean(e.GetMessage()), screen.Plain)
		case "SessionClosed":
			result = screen.Styled(screen.Clean(e.GetMessage()), screen.Dim)
		}
		if v := screen.Join("", e.GetDetails()["command"], e.GetDetails()["call"]); v != "" {
			what = v
		}
		about := screen.Join(" ", e.GetWorkloadId(), onNode(e.GetNodeId()))
		if about == "" && result.Text == "done" {
			about = e.GetMessage()
		}
		when := c.age(e.GetAt())
		if c.output == outWide {
			when = e.GetAt().AsTime().In(c.zone).Format(time.RFC3339)
		}
		t.Add(screen.Text(when), screen.Text(screen.Join(" via ", who(e.GetBy()), who(e.GetDetails()["via"]))), screen.Text(caller(e)), screen.Text(what), screen.Text(about), result)
	}
	return t
}
