package rpc

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
)

// BenchmarkApplyUnary measures calls of ApplyWorkload with one workload each, made by 256 callers over
// eight connections. The leader's log is a stub that costs nothing, so the benchmark measures the gRPC
// layer.
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

// BenchmarkApplyHandler measures the handler of ApplyWorkload with one workload per call, without a connection.
func BenchmarkApplyHandler(b *testing.B) {
	s, ctx := hollowServer(b)
	info := &grpc.UnaryServerInfo{FullMethod: controlv1.AgentControl_ApplyWorkload_FullMethodName}
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

// BenchmarkApplyManyHandler measures the handler of ApplyWorkloads without a connection: the time per workload of a
// call with many workloads.
func BenchmarkApplyManyHandler(b *testing.B) {
	const each = 64
	s, ctx := hollowServer(b)
	info := &grpc.UnaryServerInfo{FullMethod: clusterv1.Cluster_ApplyWorkloads_FullMethodName}
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i += each {
		req := &clusterv1.ApplyWorkloadsRequest{}
		for j := range each {
			req.Workloads = append(req.Workloads, web(fmt.Sprintf("w%d", (i+j)%10_000)))
		}
		_, err := s.unary(ctx, req, info, func(ctx context.Context, req any) (any, error) {
			return s.ApplyWorkloads(ctx, req.(*clusterv1.ApplyWorkloadsRequest))
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

// hollowServer returns a server whose replica leads and whose log stores nothing, and the context of a call
// to it.
func hollowServer(b *testing.B) (*Server, context.Context) {
	g := newGroup(b, 1)
	g.replicas[0].hollow = true
	ctx := peer.NewContext(context.Background(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}})
	return g.replicas[0].server, grpc.NewContextWithServerTransportStream(ctx, quiet{})
}

// quiet stands for the transport of a call in a benchmark; it discards the trailers that the handler sets.
type quiet struct{ grpc.ServerTransportStream }

func (quiet) SetTrailer(metadata.MD) error { return nil }
