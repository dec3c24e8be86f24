package replica

import "context"

// scaler changes the number of members of groups for the leader's loop. It refers to the replica and not to its server,
// because the loop is made before the server.
type scaler struct{ r *Replica }

func (s scaler) Autoscale(ctx context.Context, group string, from, count int, reason string) error {
	return s.r.server.Autoscale(ctx, group, from, count, reason)
}
