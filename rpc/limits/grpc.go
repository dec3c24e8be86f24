package limits

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// HandshakeLimit is the time limit for the handshake of a connection: TLS and the preface of HTTP/2.
	HandshakeLimit = 10 * time.Second
	// HeaderLimit is the maximum size of the headers of one call, in bytes.
	HeaderLimit = 32 << 10
	// slowCall is the duration from which a unary call is logged as slow.
	slowCall = 5 * time.Second
)

// ServerOptions returns the limits that all gRPC servers of this project have.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ConnectionTimeout(HandshakeLimit), grpc.MaxHeaderListSize(HeaderLimit)}
}

// Survive calls a handler. If the handler panics, Survive logs the panic and returns it as an error.
func Survive(log *slog.Logger, full string, call func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("a call panicked", "method", full, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = status.Errorf(codes.Internal, "the program failed while it handled %s; its log has the details", full)
		}
	}()
	return call()
}

// Unary is an interceptor for unary calls that returns a panic of the handler as an error (Survive). It also logs slow
// calls with their errors: if the caller gave up, the error shows what the call was waiting for.
func Unary(log *slog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (resp any, err error) {
		began := time.Now()
		err = Survive(log, info.FullMethod, func() error {
			resp, err = h(ctx, req)
			return err
		})
		if took := time.Since(began); took > slowCall {
			log.Warn("a call took long", "method", info.FullMethod, "took", took.Round(time.Millisecond), "err", err)
		}
		return resp, err
	}
}

// Stream is an interceptor for streams that returns a panic of the handler as an error (Survive).
func Stream(log *slog.Logger) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, h grpc.StreamHandler) error {
		return Survive(log, info.FullMethod, func() error { return h(srv, ss) })
	}
}
