package server

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/limits"
)

// TestReadsDoNotUseUpTheLimitOfOrders: a host that has used up its reads can still send orders, and the
// other way round. The caller has no certificate, so a call that the limits admit is refused as
// unauthenticated.
func TestReadsDoNotUseUpTheLimitOfOrders(t *testing.T) {
	s := &Server{cfg: Config{Limits: limits.Limits{Calls: 1}}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(s.Authorize(pki.Mapping{})...)
	agentv1.RegisterAgentServiceServer(g, s)
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	cc, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cc.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c := agentv1.NewAgentServiceClient(cc)
	read := func() error { _, err := c.ListUsage(ctx, &agentv1.ListUsageRequest{}); return err }
	order := func() error { _, err := c.ApplyWorkload(ctx, &agentv1.ApplyWorkloadRequest{}); return err }
	for range 100 {
		if err = read(); status.Code(err) == codes.ResourceExhausted {
			break
		}
	}
	if status.Code(err) != codes.ResourceExhausted {
		t.Fatalf("a hundred reads at once end with %v, want ResourceExhausted", err)
	}
	if err := order(); status.Code(err) != codes.Unauthenticated {
		t.Errorf("an order after too many reads is refused with %v, want Unauthenticated", err)
	}
}
