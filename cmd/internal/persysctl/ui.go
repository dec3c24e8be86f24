package persysctl

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/cmd/persysctl/ui"
)

func (c *cli) uiCommand() *cobra.Command {
	return &cobra.Command{
		Use: "ui", Short: "Show workloads, nodes, events and logs in a full-screen view",
		Long: `Show workloads, nodes, events and logs in a full-screen view that follows changes. Keys
filter, sort, describe, explain, follow logs, and start, stop, restart or delete
workloads; "?" lists them. --namespace limits workloads and events to one namespace.`,
		Example: "  persysctl ui\n  persysctl ui -n shop",
		Args:    args(0, 0),
		RunE: c.online(func(ctx context.Context, _ []string) error {
			if !c.inTerm || !c.outTerm {
				return failf(exitUsage, "persysctl list --watch", "persysctl ui needs a terminal")
			}
			where := c.settings.Server
			if c.context != "" {
				where = c.context
			}
			return ui.Run(ctx, c.in, c.out, ui.Options{
				Control: c.control, Cluster: c.cluster, Where: where, Namespace: c.namespace(), Describe: c.page,
				Explain: func(err error) string { return c.explain(err, false).text },
				Timeout: c.timeout(), Now: c.now, Zone: c.zone, Colour: bool(c.paint),
			})
		}),
	}
}

// page returns the output of `persysctl KIND ID` as text that is at most width characters wide.
func (c *cli) page(ctx context.Context, kind, id string, width int) (string, error) {
	var out bytes.Buffer
	one := *c
	one.out, one.err, one.output, one.path = &out, &out, outTable, nil
	one.paint, one.errPaint, one.width, one.outTerm, one.errTerm = screen.Painter(false), screen.Painter(false), width, false, false
	var err error
	switch kind {
	case "get":
		err = one.get(ctx, id)
	case "why":
		err = one.why(ctx, id, "")
	case "node":
		err = one.node(ctx, id)
	default:
		err = fmt.Errorf("no command shows %q", kind)
	}
	var f *failure
	if errors.As(err, &f) && f.hint != "" {
		return "", fmt.Errorf("%w; %s", f, f.hint)
	}
	return out.String(), err
}
