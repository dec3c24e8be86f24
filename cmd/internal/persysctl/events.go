package persysctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/encode"
	"github.com/persys/compute/cmd/persysctl/screen"
)

// errEOF is the error of a stream that has ended without a fault.
var errEOF = io.EOF

type message = proto.Message

type eventOptions struct {
	watch          bool
	workload, node string
	types          []string
	tail           int32
}

func (c *cli) eventsCommand() *cobra.Command {
	var o eventOptions
	cmd := &cobra.Command{
		Use: "events", Short: "Show past events, and new ones with -w",
		Example: "  persysctl events -w\n  persysctl events --workload web --tail 20",
		Args:    args(0, 0),
		RunE:    c.online(func(ctx context.Context, _ []string) error { return c.events(ctx, o) }),
	}
	f := cmd.Flags()
	f.BoolVarP(&o.watch, "watch", "w", false, "show new events until Ctrl-C")
	f.StringVar(&o.workload, "workload", "", "only events of this workload")
	f.StringVar(&o.node, "node", "", "only events of this node")
	f.StringSliceVar(&o.types, "type", nil, "only events of these types, for example NodeLost")
	f.Int32Var(&o.tail, "tail", 50, "show only this many of the newest past events; 0 shows all")
	// RegisterFlagCompletionFunc fails only for unknown flags.
	_ = cmd.RegisterFlagCompletionFunc("workload", c.completeWorkload)
	_ = cmd.RegisterFlagCompletionFunc("node", c.completeNode)
	return cmd
}

func (c *cli) events(ctx context.Context, o eventOptions) error {
	if o.tail < 0 {
		return usagef("--tail %d must be 0 or more", o.tail)
	}
	req := &clusterv1.EventsRequest{WorkloadId: o.workload, NodeId: o.node, Types: o.types, Tail: o.tail, Namespace: c.namespace()}
	if o.watch {
		return c.watchEvents(ctx, req)
	}
	list, err := c.pastEvents(ctx, req)
	if err != nil {
		return err
	}
	if c.machine() {
		return c.emitEvents(list)
	}
	if len(list) == 0 {
		c.empty("No events.", "persysctl events -w")
		return nil
	}
	c.print(c.eventTable(list, c.output == outWide))
	return nil
}

func (c *cli) pastEvents(ctx context.Context, req *clusterv1.EventsRequest) ([]*clusterv1.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout())
	defer cancel()
	var list []*clusterv1.Event
	open := func(ctx context.Context) (receiver[*clusterv1.Event], error) { return c.cluster.Events(ctx, req) }
	_, err := drainStream(ctx, open, func(e *clusterv1.Event) error {
		list = append(list, e)
		return nil
	})
	if !errors.Is(err, errEOF) {
		return nil, c.explain(err, false)
	}
	return list, nil
}

// emitEvents writes a list of events as {"events": […]}. The API has no message for a list of events, because
// it streams events.
func (c *cli) emitEvents(list []*clusterv1.Event) error {
	var b strings.Builder
	if c.output == outYAML {
		b.WriteString("events:")
		if len(list) == 0 {
			b.WriteString(" []")
		}
		b.WriteByte('\n')
		for _, e := range list {
			data, err := encode.YAML(e, false)
			if err != nil {
				return err
			}
			lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
			b.WriteString("  - " + strings.Join(lines, "\n    ") + "\n")
		}
	} else {
		b.WriteString("{\"events\":[")
		for i, e := range list {
			data, err := encode.JSON(e, false)
			if err != nil {
				return err
			}
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString("\n  " + strings.TrimSpace(string(data)))
		}
		b.WriteString("\n]}\n")
	}
	if c.output == outYAML {
		_, err := io.WriteString(c.out, b.String())
		return err
	}
	return c.emitData([]byte(b.String()))
}

func (c *cli) eventTable(list []*clusterv1.Event, full bool) *screen.Table {
	t := screen.NewTable(screen.Column{Title: "SEQ", Right: true, Wide: true}, screen.Column{Title: "WHEN", Right: true}, screen.Column{Title: "EVENT", Gives: 1, Least: 12},
		screen.Column{Title: "WORKLOAD", Gives: 3, Least: 12, Keeps: screen.Middle}, screen.Column{Title: "NODE", Gives: 2, Least: 10, Keeps: screen.Middle},
		screen.Column{Title: "MESSAGE", Gives: 4, Least: 16}, screen.Column{Title: "BY", Wide: true})
	for _, e := range list {
		when := c.age(e.GetAt())
		if full && e.GetAt() != nil {
			when = e.GetAt().AsTime().In(c.zone).Format(time.RFC3339)
		}
		t.Add(screen.Text(fmt.Sprint(e.GetSeq())), screen.Text(when), screen.Styled(screen.Clean(e.GetType()), eventStyle(e.GetType())), screen.Text(e.GetWorkloadId()),
			screen.Text(e.GetNodeId()), screen.Text(eventText(e)), screen.Text(e.GetBy()))
	}
	return t
}

func eventStyle(kind string) screen.Style {
	switch kind {
	case "WorkloadFailed", "NodeLost", "DriftDetected":
		return screen.Bad
	case "RetryTriggered", "Rescheduled", "WorkloadUnplaced", "WorkloadEvicted", "NodeDraining", "NodeFenced", "ModeChanged":
		return screen.Warn
	}
	return screen.Plain
}

// eventText returns the reason, the message and the details of an event in one line. A change of state is
// shown as FROM → TO.
func eventText(e *clusterv1.Event) string {
	details := maps.Clone(e.GetDetails())
	var first string
	if from, to := details["from"], details["to"]; to != "" {
		first = from + " → " + to
		delete(details, "to")
	}
	// Leave out the caller's address, which `persysctl audit` shows.
	delete(details, "from")
	delete(details, "caller")
	out := screen.Join("; ", first, screen.Join(": ", e.GetReason(), e.GetMessage()))
	var rest []string
	for _, k := range slices.Sorted(maps.Keys(details)) {
		rest = append(rest, k+"="+details[k])
	}
	return screen.Join(" ", out, strings.Join(rest, " "))
}

// eventWidth is the width of the column for event types: the length of the longest event type.
const eventWidth = 18

// watchEvents prints events as they happen. If the connection breaks, it continues after the last printed
// event.
func (c *cli) watchEvents(ctx context.Context, req *clusterv1.EventsRequest) error {
	req.Follow = true
	open := func(ctx context.Context) (receiver[*clusterv1.Event], error) { return c.cluster.Events(ctx, req) }
	err := follow(ctx, c, open, func(e *clusterv1.Event) error {
		req.AfterSeq, req.Tail = e.GetSeq(), 0
		if c.machine() {
			return c.emitItem(e)
		}
		kind := e.GetType()
		about := screen.Join(" ", e.GetWorkloadId(), onNode(e.GetNodeId()))
		when, rest := c.moment(e.GetAt()), screen.Clean(screen.Join("  ", about, eventText(e)))
		if c.output != outWide {
			rest = screen.Cut(rest, c.columns()-len(when)-eventWidth-2*screen.Gap, screen.Head)
		}
		name := c.paint.Paint(eventStyle(kind), fmt.Sprintf("%-*s", eventWidth, screen.Clean(kind)))
		writeLines(c.out, []string{strings.TrimRight(when+"  "+name+"  "+rest, " ")})
		return nil
	})
	return endWatch(ctx, err)
}

func onNode(node string) string {
	if node == "" {
		return ""
	}
	return "on " + node
}

// showRecent adds the latest events to a detailed view. If the events cannot be read, it adds a note instead.
func (c *cli) showRecent(ctx context.Context, req *clusterv1.EventsRequest) {
	list, err := c.pastEvents(ctx, req)
	if err != nil {
		fmt.Fprintln(c.err, c.errPaint.Paint(screen.Dim, "no events: "+c.explain(err, false).text))
		return
	}
	if len(list) == 0 {
		return
	}
	c.section("Latest events")
	t := screen.NewTable(screen.Column{Title: "WHEN", Right: true}, screen.Column{Title: "EVENT"}, screen.Column{Title: "NODE", Gives: 1, Least: 10, Keeps: screen.Middle},
		screen.Column{Title: "MESSAGE", Gives: 2, Least: 16})
	if req.GetNodeId() != "" {
		t.Cols[2].Title = "WORKLOAD"
	}
	for _, e := range list {
		other := e.GetNodeId()
		if req.GetNodeId() != "" {
			other = e.GetWorkloadId()
		}
		t.Add(screen.Text(c.age(e.GetAt())), screen.Styled(screen.Clean(e.GetType()), eventStyle(e.GetType())), screen.Text(other), screen.Text(eventText(e)))
	}
	c.print(t)
}
