package rpc

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/rpc/dial"
)

const (
	adaHere = "persys://c1/user/ada"
	token1  = "oidc:https://idp.example.com/realms/x#ada"
)

// TestHistoryNamesTheUser: a gateway makes a change on behalf of a user. The history must name both the user and the
// gateway, on every replica. A user name that any other caller sends must be ignored or refused.
func TestHistoryNamesTheUser(t *testing.T) {
	g, as := tlsGroup(t)
	last := func() *fsm.Event {
		events := kept(g)
		return events[len(events)-1]
	}
	apply := func(i int, who, id string, md ...string) error {
		ctx := metadata.AppendToOutgoingContext(ctxFor(t), md...)
		return inBand(controlv1.NewAgentControlClient(as(i, who)).ApplyWorkload(ctx, web(id)))
	}
	says := func(what string, e *fsm.Event, by, via, from string) {
		t.Helper()
		got, _, _ := strings.Cut(e.By, "?")
		is(t, what+": by", got, by)
		is(t, what+": via", viaOf(e), via)
		is(t, what+": from "+from, slices.Contains(e.Details, fsm.Label{Key: "from", Value: from}), true)
	}
	for i, where := range []string{"leader", "follower"} {
		for name, x := range map[string]struct {
			md  []string
			by  string
			via string
			at  string
		}{
			"nobody": {nil, "persys://c1/gateway/g", "", "127.0.0.1"},
			"a user of the gateway with a certificate":       {[]string{dial.KeyOnBehalf, adaHere}, adaHere, "persys://c1/gateway/g", "127.0.0.1"},
			"a user of the gateway with a token":             {[]string{dial.KeyUser, token1, dial.KeyFrom, "10.1.2.3"}, token1, "persys://c1/gateway/g", "10.1.2.3"},
			"both":                                           {[]string{dial.KeyOnBehalf, adaHere, dial.KeyUser, token1}, adaHere, "persys://c1/gateway/g", "127.0.0.1"},
			"the gateway sends an address but names no user": {[]string{dial.KeyFrom, "10.1.2.3"}, "persys://c1/gateway/g", "", "127.0.0.1"},
		} {
			ok(t, apply(i, "gateway/g", "web-"+strings.ReplaceAll(name, " ", "-")+where, x.md...))
			says(name+" at the "+where, last(), x.by, x.via, x.at)
		}
		ok(t, apply(i, "user/ada", "own-"+where, dial.KeyFrom, "10.1.2.3"))
		says("a user at the "+where, last(), adaHere, "", "127.0.0.1")
		for _, who := range []string{"user/ada", "user/admin", "agent/a", "scheduler/s1"} {
			for _, md := range [][]string{{dial.KeyUser, token1}, {dial.KeyOnBehalf, adaHere}} {
				code(t, apply(i, who, "forged", md...), codes.PermissionDenied)
			}
		}
	}
	t.Run("the event of a refused call names the user and the gateway", func(t *testing.T) {
		viewer(g, "vera")
		code(t, apply(1, "gateway/g", "x", dial.KeyOnBehalf, "persys://c1/user/vera"), codes.PermissionDenied)
		is(t, "type", last().Type, fsm.EventCallRefused)
		says("a viewer", last(), "persys://c1/user/vera", "persys://c1/gateway/g", "127.0.0.1")
	})
	t.Run("a call that is not a command is recorded before it is carried out", func(t *testing.T) {
		calls := 0
		for what, do := range map[string]func(clusterv1.ClusterClient) error{
			"garbage": func(c clusterv1.ClusterClient) error {
				return second(c.CollectGarbage(ctxFor(t), &clusterv1.CollectGarbageRequest{NodeId: "a"}))
			},
			"replica s1": func(c clusterv1.ClusterClient) error {
				return second(c.RemoveReplica(ctxFor(t), &clusterv1.RemoveReplicaRequest{Replica: "s1"}))
			},
			"leadership to s1": func(c clusterv1.ClusterClient) error {
				defer g.elect(0)
				return second(c.TransferLeadership(ctxFor(t), &clusterv1.TransferLeadershipRequest{Replica: "s1"}))
			},
		} {
			before := len(kept(g))
			err := do(clusterv1.NewClusterClient(as(1, "user/admin")))
			now := kept(g)[before:]
			if len(now) == 0 || now[0].Type != fsm.EventCallMade || now[0].Message != what {
				t.Errorf("call about %q: the history has %v, want the call as the first new event", what, now)
				continue
			}
			calls++
			says(what, now[0], "persys://c1/user/admin", "", "127.0.0.1")
			failed := slices.ContainsFunc(now[len(now)-1].Details, func(l fsm.Label) bool { return l.Key == "error" && l.Value != "" })
			is(t, "whether the failure of the call about "+what+" is recorded", failed, err != nil)
		}
		is(t, "number of calls that were recorded", calls, 3)
		before := len(kept(g))
		_, _ = clusterv1.NewClusterClient(as(0, "user/admin")).CollectGarbage(ctxFor(t), &clusterv1.CollectGarbageRequest{NodeId: "a", DryRun: true})
		is(t, "number of events after a dry run, which is a read and is not recorded", len(kept(g)), before)
	})
	t.Run("a namespace record names the user", func(t *testing.T) {
		ctx := with(t, dial.KeyUser, token1)
		r, err := clusterv1.NewClusterClient(as(1, "gateway/g")).PutNamespace(ctx, &clusterv1.PutNamespaceRequest{Name: "shop"})
		ok(t, err)
		is(t, "updated by", r.GetNamespace().GetUpdatedBy(), token1)
	})
	t.Run("an import through a gateway names the user", func(t *testing.T) {
		e := &etcd{state: "foreign", content: &clusterv1.MirrorContent{Workloads: 1, Nodes: 1}, found: held(t, "c1")}
		g, as := tlsGroup(t, withMirror(e))
		_, err := clusterv1.NewClusterClient(as(1, "gateway/g")).ImportMirror(with(t, dial.KeyUser, token1), &clusterv1.ImportMirrorRequest{})
		ok(t, err)
		i := slices.IndexFunc(kept(g), func(e *fsm.Event) bool { return e.Type == fsm.EventClusterRestored })
		if i < 0 {
			t.Fatalf("the history has no import: %v", kept(g))
		}
		is(t, "by", kept(g)[i].By, token1)
		is(t, "whether the event of the import names the gateway", strings.Contains(kept(g)[i].Message, "through persys://c1/gateway/g"), true)
	})
	t.Run("a scheduler may forward only the identity that a gateway has named", func(t *testing.T) {
		of := func(who string) error {
			return apply(0, "scheduler/s1", "passed", dial.KeyHop, "1", dial.KeyForwardedIdentity, "persys://c1/"+who, dial.KeyOnBehalf, adaHere, dial.KeyFrom, "10.9.9.9")
		}
		ok(t, of("gateway/g"))
		says("passed on", last(), adaHere, "persys://c1/gateway/g", "10.9.9.9")
		code(t, of("user/admin"), codes.PermissionDenied)
	})
	t.Run("invalid names of token users are refused", func(t *testing.T) {
		for _, v := range []string{
			"persys://c1/user/admin", "ada", "oidc:", "oidc:https://idp", "oidc:https://idp#", "oidc:https://idp#a b", "oidc:#" + strings.Repeat("x", 600),
		} {
			code(t, apply(0, "gateway/g", "x", dial.KeyUser, v), codes.InvalidArgument)
		}
		code(t, apply(0, "gateway/g", "x", dial.KeyOnBehalf, adaHere, dial.KeyIssued, "yesterday"), codes.InvalidArgument)
	})
}
