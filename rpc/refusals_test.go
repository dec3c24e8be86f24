package rpc

import (
	"context"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/rpc/dial"
)

// TestRefusalsAreKept: callers without the permission make every kind of call at every replica. Each refused mutation
// must be recorded in the history, and no refused read.
func TestRefusalsAreKept(t *testing.T) {
	g, dialAs := tlsGroup(t)
	viewer(g, "vera")
	control := func(message *controlv1.ControlMessage) func(context.Context, grpc.ClientConnInterface) error {
		return func(ctx context.Context, cc grpc.ClientConnInterface) error {
			st, err := controlv1.NewAgentControlClient(cc).ControlStream(ctx)
			ok(t, err)
			_ = st.Send(message)
			m, err := st.Recv()
			if err != nil {
				return err
			}
			is(t, "answer", codes.Code(m.GetError().GetCode()), codes.PermissionDenied)
			ok(t, st.CloseSend())
			return second(st.Recv()) // this second Recv returns the error that ends the stream
		}
	}
	beat := &controlv1.HeartbeatRequest{NodeId: "b"}
	beats := func(ctx context.Context, cc grpc.ClientConnInterface) error {
		return second(controlv1.NewAgentControlClient(cc).Heartbeat(ctx, beat))
	}
	applies := func(ctx context.Context, cc grpc.ClientConnInterface) error {
		return second(controlv1.NewAgentControlClient(cc).ApplyWorkload(ctx, web("w")))
	}
	for i, where := range []string{"leader", "follower"} {
		for _, c := range []struct {
			fact, cert, behalf string
			do                 func(context.Context, grpc.ClientConnInterface) error
			want               string // expected record in the audit log; "" if nothing must be recorded
		}{
			{"an agent registers another node", "agent/a", "", func(ctx context.Context, cc grpc.ClientConnInterface) error {
				return second(controlv1.NewAgentControlClient(cc).RegisterNode(ctx, registration("b")))
			}, `agent "a" may not act as node "b" call=register node`},
			{"a gateway registers a node", "gateway/g", "", func(ctx context.Context, cc grpc.ClientConnInterface) error {
				return second(controlv1.NewAgentControlClient(cc).RegisterNode(ctx, registration("b")))
			}, `gateway "g" may not register node call=register node`},
			{"an agent sends a heartbeat for another node", "agent/a", "", beats, `agent "a" may not act as node "b" call=heartbeat`},
			{"an agent removes garbage", "agent/a", "", func(ctx context.Context, cc grpc.ClientConnInterface) error {
				return second(clusterv1.NewClusterClient(cc).CollectGarbage(ctx, &clusterv1.CollectGarbageRequest{NodeId: "a"}))
			}, `agent "a" may not collect garbage call=collect garbage`},
			{"an agent applies", "agent/a", "", applies, `agent "a" may not apply workload call=apply workload`},
			{"an agent applies in a stream", "agent/a", "", control(&controlv1.ControlMessage{Message: &controlv1.ControlMessage_Apply{Apply: web("w")}}),
				`agent "a" may not apply workload call=apply workload`},
			{"an agent sends a heartbeat for another node in a stream", "agent/a", "", control(&controlv1.ControlMessage{Message: &controlv1.ControlMessage_Heartbeat{Heartbeat: beat}}),
				`agent "a" may not act as node "b" call=heartbeat`},
			{"a viewer opens a control stream", "gateway/g", "persys://c1/user/vera", control(&controlv1.ControlMessage{}),
				"user \"vera\" (called through gateway \"g\") may not control stream: this needs the permission deploy; `persysctl auth whoami` shows yours call=control stream"},
			{"an agent opens a stream of applies", "agent/a", "", func(ctx context.Context, cc grpc.ClientConnInterface) error {
				st, err := clusterv1.NewClusterClient(cc).ApplyStream(ctx)
				ok(t, err)
				return second(st.Recv())
			}, `agent "a" may not apply stream call=apply stream`},
			{"a user restores a backup", "user/ada", "", func(ctx context.Context, cc grpc.ClientConnInterface) error {
				st, err := clusterv1.NewClusterClient(cc).RestoreBackup(ctx)
				ok(t, err)
				return second(st.CloseAndRecv())
			}, "user \"ada\" may not restore backup: this needs the permission backups; `persysctl auth whoami` shows yours call=restore backup"},
			{"an agent reads a list", "agent/a", "", func(ctx context.Context, cc grpc.ClientConnInterface) error {
				return second(controlv1.NewAgentControlClient(cc).ListWorkloads(ctx, &controlv1.ListWorkloadsRequest{}))
			}, ""},
			{"an agent opens a watch", "agent/a", "", func(ctx context.Context, cc grpc.ClientConnInterface) error {
				st, err := clusterv1.NewClusterClient(cc).WatchWorkloads(ctx, &clusterv1.WatchWorkloadsRequest{})
				ok(t, err)
				return second(st.Recv())
			}, ""},
		} {
			t.Run(c.fact+", asked at the "+where, func(t *testing.T) {
				ctx, md := ctxFor(t), []string(nil)
				if c.behalf != "" {
					md = []string{dial.KeyOnBehalf, c.behalf}
				}
				before := len(kept(g))
				if err := c.do(metadata.AppendToOutgoingContext(ctx, md...), dialAs(i, c.cert)); !strings.Contains(err.Error(), "EOF") {
					code(t, err, codes.PermissionDenied)
				}
				if c.want == "" {
					is(t, "number of events after the call, which must not be recorded", len(kept(g))-before, 0)
					return
				}
				if n := len(kept(g)) - before; n != 1 {
					t.Fatalf("the refused call was recorded in %d events, want 1", n)
				}
				lines, e := audited(g), kept(g)[len(kept(g))-1]
				is(t, "line", lines[len(lines)-1], fsm.EventCallRefused+" @ "+c.want)
				who, via := "persys://c1/"+c.cert, ""
				if c.behalf != "" {
					who, via = c.behalf, who
				}
				by, _, _ := strings.Cut(e.By, "?")
				is(t, "who", by, who)
				is(t, "through which gateway", viaOf(e), via)
				is(t, "whether the event has the caller's address", slices.Contains(e.Details, fsm.Label{Key: "from", Value: "127.0.0.1"}), true)
			})
		}
	}
	t.Run("an agent that repeats heartbeats for another node causes few events, and its other refused calls are still recorded", func(t *testing.T) {
		before := len(kept(g))
		cc := dialAs(0, "agent/a")
		for range 100 {
			code(t, beats(ctxFor(t), cc), codes.PermissionDenied)
		}
		if n := len(kept(g)) - before; n > beatEach {
			t.Errorf("%d events were recorded for %d heartbeats, want at most the limit per window", n, 100)
		}
		before = len(kept(g))
		code(t, applies(ctxFor(t), cc), codes.PermissionDenied)
		is(t, "number of events of another refused call of the same agent", len(kept(g))-before, 1)
	})
}
