package rpc

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
)

// TestGatewaysMakeNoSessions: a session of the console is made with the certificate of its person. Its code depends
// on the person, so another person cannot learn it with the same request id.
func TestGatewaysMakeNoSessions(t *testing.T) {
	w := newOwnCA(t)
	w.holds(pki.Identity{Role: pki.RoleUser, ID: "ada"})
	gateway := clusterv1.NewClusterClient(w.as(0, w.holds(pki.Identity{Role: pki.RoleGateway, ID: "g"})))
	request := requestID(t)
	ask := func(ctx context.Context, c clusterv1.ClusterClient) (*clusterv1.LinkConsoleResponse, error) {
		return c.LinkConsole(ctx, &clusterv1.LinkConsoleRequest{RequestId: request})
	}
	_, err := ask(metadata.AppendToOutgoingContext(ctxFor(t), dial.KeyOnBehalf, "persys://home/user/ada"), gateway)
	says(t, err, codes.PermissionDenied, "gateway")
	ada := clusterv1.NewClusterClient(w.as(0, w.holds(pki.Identity{Role: pki.RoleUser, ID: "ada"})))
	first, err := ask(ctxFor(t), ada)
	ok(t, err)
	again, err := ask(ctxFor(t), ada)
	ok(t, err)
	is(t, "code of the repeated request", again.GetCode(), first.GetCode())
	bob := clusterv1.NewClusterClient(w.as(0, w.holds(pki.Identity{Role: pki.RoleUser, ID: "bob"})))
	got, err := ask(ctxFor(t), bob)
	if err == nil {
		t.Errorf("user bob used the request id of user ada and got session %s of user %s, want an error", got.GetSession().GetId(), got.GetSession().GetUser())
	}
}
