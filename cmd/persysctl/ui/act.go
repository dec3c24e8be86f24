package ui

import (
	"context"
	"errors"
	"time"

	tea "charm.land/bubbletea/v2"
	"google.golang.org/grpc"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
)

// Messages about the results of actions.
type (
	// doneMsg is the result of an action.
	doneMsg struct {
		said string
		err  error
	}
	pageMsg struct {
		kind, id, text string
		err            error
	}
	tickMsg time.Time
)

func call[Req, Resp any](ctx context.Context, o Options, do func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req) (Resp, error) {
	if o.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.Timeout)
		defer cancel()
	}
	return do(ctx, req)
}

// action is a change of a workload or a node.
type action struct {
	key, verb, doing string
	ask              string // question that confirms the action; %s stands for the id
	do               func(ctx context.Context, o Options, id string) error
}

func desire(state string) func(context.Context, Options, string) error {
	return func(ctx context.Context, o Options, id string) error {
		r, err := call(ctx, o, o.Control.ApplyWorkload, &controlv1.ApplyWorkloadRequest{WorkloadId: id, DesiredState: state})
		if err == nil && !r.GetSuccess() {
			err = errors.New(r.GetErrorMessage())
		}
		return err
	}
}

func workloadActions() []action {
	return []action{
		{"a", "start", "starting", "Start %s?", desire("Running")},
		{"x", "stop", "stopping", "Stop %s and keep its specification?", desire("Stopped")},
		{"r", "restart", "restarting", "Restart %s?", func(ctx context.Context, o Options, id string) error {
			r, err := call(ctx, o, o.Control.RetryWorkload, &controlv1.RetryWorkloadRequest{WorkloadId: id, Restart: true})
			if err == nil && !r.GetAccepted() {
				err = errors.New(r.GetReason())
			}
			return err
		}},
		{"D", "delete", "deleting", "Delete %s?", func(ctx context.Context, o Options, id string) error {
			r, err := call(ctx, o, o.Control.DeleteWorkload, &controlv1.DeleteWorkloadRequest{WorkloadId: id})
			if err == nil && !r.GetSuccess() {
				err = errors.New(r.GetErrorMessage())
			}
			return err
		}},
	}
}

func nodeActions() []action {
	cordon := func(on bool) func(context.Context, Options, string) error {
		return func(ctx context.Context, o Options, id string) error {
			_, err := call(ctx, o, o.Cluster.CordonNode, &clusterv1.CordonNodeRequest{NodeId: id, On: on})
			return err
		}
	}
	return []action{
		{"c", "cordon", "cordoned", "Place nothing new on %s?", cordon(true)},
		{"u", "uncordon", "uncordoned", "Place on %s again?", cordon(false)},
		{"D", "drain", "draining", "Move every workload off %s? Running jobs may end there for an hour.", func(ctx context.Context, o Options, id string) error {
			_, err := call(ctx, o, o.Cluster.DrainNode, &clusterv1.DrainNodeRequest{NodeId: id, On: true})
			return err
		}},
	}
}

func (m *model) run(a action, id string) tea.Cmd {
	return func() tea.Msg { return doneMsg{id + ": " + a.doing, a.do(m.ctx, m.opt, id)} }
}

func (m *model) describe(kind, id string) tea.Cmd {
	width := m.width
	return func() tea.Msg {
		text, err := m.opt.Describe(m.ctx, kind, id, width)
		return pageMsg{kind, id, text, err}
	}
}

func tick() tea.Cmd {
	return tea.Tick(time.Second, func(t time.Time) tea.Msg { return tickMsg(t) })
}
