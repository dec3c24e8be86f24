package replica

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cluster"
)

// If the data directory of a scheduler is a copy of another scheduler's, the other replicas do not accept it and its
// state is not updated. So it answers only the call Status. Other calls fail with Unavailable, so that clients use
// another scheduler.

// refusesCopy returns an error for all calls but Status if this scheduler runs, or may run, on a copy of
// another scheduler's data directory; otherwise nil.
func (r *Replica) refusesCopy(method string) error {
	if method == clusterv1.Cluster_Status_FullMethodName {
		return nil
	}
	if err := r.node.Err(); errors.Is(err, cluster.ErrCopied) {
		return status.Error(codes.Unavailable, err.Error())
	}
	if why := r.node.Waiting(); why != "" {
		return status.Error(codes.Unavailable, why)
	}
	return nil
}

func (r *Replica) ifNoCopy(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
	if err := r.refusesCopy(info.FullMethod); err != nil {
		return nil, err
	}
	return h(ctx, req)
}

func (r *Replica) streamIfNoCopy(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, h grpc.StreamHandler) error {
	if err := r.refusesCopy(info.FullMethod); err != nil {
		return err
	}
	return h(srv, ss)
}
