package replica

import "context"

// scaler changes the number of members of groups for the leader's loop. It holds the replica and not the replica's
// gRPC server, because the leader's loop is created before that server.
type scaler struct{ r *Replica }

func (s scaler) Autoscale(ctx context.Context, group string, from, count int, reason string) error {
	return s.r.server.Autoscale(ctx, group, from, count, reason)
}
