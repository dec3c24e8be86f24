// Package ui is the full-screen view of persysctl: it shows workloads, nodes and events as they change, and
// offers actions on them.
//
// The type model has no side effects: it takes messages and returns a view and effects. So tests can use it
// without a terminal. feed.go turns streams of the API into messages.
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

// Control is the set of calls of the control API that the view makes.
type Control interface {
	ListNodes(context.Context, *controlv1.ListNodesRequest, ...grpc.CallOption) (*controlv1.ListNodesResponse, error)
	ApplyWorkload(context.Context, *controlv1.ApplyWorkloadRequest, ...grpc.CallOption) (*controlv1.ApplyWorkloadResponse, error)
	DeleteWorkload(context.Context, *controlv1.DeleteWorkloadRequest, ...grpc.CallOption) (*controlv1.DeleteWorkloadResponse, error)
	RetryWorkload(context.Context, *controlv1.RetryWorkloadRequest, ...grpc.CallOption) (*controlv1.RetryWorkloadResponse, error)
}

// Cluster is the set of calls of the cluster API that the view makes.
type Cluster interface {
	Status(context.Context, *clusterv1.StatusRequest, ...grpc.CallOption) (*clusterv1.StatusResponse, error)
	WatchWorkloads(context.Context, *clusterv1.WatchWorkloadsRequest, ...grpc.CallOption) (grpc.ServerStreamingClient[clusterv1.WorkloadChange], error)
	Events(context.Context, *clusterv1.EventsRequest, ...grpc.CallOption) (grpc.ServerStreamingClient[clusterv1.Event], error)
	Logs(context.Context, *clusterv1.LogsRequest, ...grpc.CallOption) (grpc.ServerStreamingClient[clusterv1.LogChunk], error)
	CordonNode(context.Context, *clusterv1.CordonNodeRequest, ...grpc.CallOption) (*clusterv1.NodeActionResponse, error)
	DrainNode(context.Context, *clusterv1.DrainNodeRequest, ...grpc.CallOption) (*clusterv1.NodeActionResponse, error)
}

// Options configure the view.
type Options struct {
	Control Control
	Cluster Cluster
	// Where is shown as the name of the cluster: a context or an address.
	Where string
	// Namespace limits workloads and events to one namespace; "" shows all.
	Namespace string
	// Describe returns the output of the command `persysctl KIND ID`, wrapped at width. kind is "get" or
	// "why" for a workload, and "node" for a node.
	Describe func(ctx context.Context, kind, id string, width int) (string, error)
	// Explain returns an error as one sentence.
	Explain func(error) string
	// Timeout is the time limit of one call.
	Timeout time.Duration
	Now     func() time.Time
	Zone    *time.Location
	Colour  bool
	Environ []string
}

// Run shows the view until the user quits or ctx ends.
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
		return nil // a program that was ended by a signal has quit normally too
	}
	return err
}
