// Package ui is the screen of persysctl: workloads, nodes and events as they
// change, and what one does with them.
//
// The model is pure: messages go in, a view and effects come out, so that tests
// drive it without a terminal. Streams of the API become messages in feed.go.
package ui

import (
	"context"
	"io"
	"time"

	tea "charm.land/bubbletea/v2"
	"google.golang.org/grpc"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
)

// Control is what the screen asks of the control API.
type Control interface {
	ListNodes(context.Context, *controlv1.ListNodesRequest, ...grpc.CallOption) (*controlv1.ListNodesResponse, error)
	ApplyWorkload(context.Context, *controlv1.ApplyWorkloadRequest, ...grpc.CallOption) (*controlv1.ApplyWorkloadResponse, error)
	DeleteWorkload(context.Context, *controlv1.DeleteWorkloadRequest, ...grpc.CallOption) (*controlv1.DeleteWorkloadResponse, error)
	RetryWorkload(context.Context, *controlv1.RetryWorkloadRequest, ...grpc.CallOption) (*controlv1.RetryWorkloadResponse, error)
}

// Cluster is what it asks of the cluster API.
type Cluster interface {
	Status(context.Context, *clusterv1.StatusRequest, ...grpc.CallOption) (*clusterv1.StatusResponse, error)
	WatchWorkloads(context.Context, *clusterv1.WatchWorkloadsRequest, ...grpc.CallOption) (grpc.ServerStreamingClient[clusterv1.WorkloadChange], error)
	Events(context.Context, *clusterv1.EventsRequest, ...grpc.CallOption) (grpc.ServerStreamingClient[clusterv1.Event], error)
	Logs(context.Context, *clusterv1.LogsRequest, ...grpc.CallOption) (grpc.ServerStreamingClient[clusterv1.LogChunk], error)
	CordonNode(context.Context, *clusterv1.CordonNodeRequest, ...grpc.CallOption) (*clusterv1.NodeActionResponse, error)
	DrainNode(context.Context, *clusterv1.DrainNodeRequest, ...grpc.CallOption) (*clusterv1.NodeActionResponse, error)
}

// Options of the screen.
type Options struct {
	Control Control
	Cluster Cluster
	// Where is the cluster's name for people: a context, or an address.
	Where string
	// Namespace narrows workloads and events to one; empty is all.
	Namespace string
	// Describe writes a page about something, as the command of that name does:
	// kind is "get" or "why" for workloads, "node" for nodes.
	Describe func(ctx context.Context, kind, id string, width int) (string, error)
	// Explain is an error in one sentence.
	Explain func(error) string
	// Timeout bounds one call.
	Timeout time.Duration
	Now     func() time.Time
	Zone    *time.Location
	Colour  bool
	Environ []string
}

// Run shows the screen until the person leaves it or ctx ends.
func Run(ctx context.Context, in io.Reader, out io.Writer, opt Options) error {
	ctx, cancel := context.WithCancel(ctx)
	m := newModel(ctx, opt)
	options := []tea.ProgramOption{tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out), tea.WithoutSignalHandler()}
	if opt.Environ != nil {
		options = append(options, tea.WithEnvironment(opt.Environ))
	}
	p := tea.NewProgram(m, options...)
	f := &feed{opt: opt, send: p.Send}
	m.feed = f
	f.start(ctx)
	_, err := p.Run()
	outside := ctx.Err() != nil
	cancel()
	f.wait()
	if outside {
		return nil // Ctrl-C from outside is how one leaves, too
	}
	return err
}
