package rpc

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	controlv1 "github.com/persys/compute/api/control/v1"
)

// BenchmarkApplyUnary is one ApplyWorkload per call from 256 callers over eight
// connections to a leader whose log takes nothing: what the gRPC face costs.
func BenchmarkApplyUnary(b *testing.B) {
	g := newGroup(b, 1)
	g.replicas[0].hollow = true
	var clients []controlv1.AgentControlClient
	for range 8 {
		g.replicas[0].conn = nil
		clients = append(clients, g.control(0))
	}
	var n atomic.Int64
	b.SetParallelism(128)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			i := n.Add(1)
			r, err := clients[i%8].ApplyWorkload(context.Background(), web(fmt.Sprintf("w%d", i%10_000)))
			if err != nil || !r.GetSuccess() {
				b.Error(err, r)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
}

// BenchmarkApplyHandler is the same without a connection.
func BenchmarkApplyHandler(b *testing.B) {
	g := newGroup(b, 1)
	g.replicas[0].hollow = true
	s := g.replicas[0].server
	info := &grpc.UnaryServerInfo{FullMethod: controlv1.AgentControl_ApplyWorkload_FullMethodName}
	ctx := grpc.NewContextWithServerTransportStream(context.Background(), quiet{})
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		_, err := s.unary(ctx, web(fmt.Sprintf("w%d", i%10_000)), info, func(ctx context.Context, req any) (any, error) {
			return s.ApplyWorkload(ctx, req.(*controlv1.ApplyWorkloadRequest))
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

// quiet takes trailers and forgets them.
type quiet struct{ grpc.ServerTransportStream }

func (quiet) SetTrailer(metadata.MD) error { return nil }
