package mirror

import (
	"context"
	"fmt"
	"time"
)

// Probe contacts an etcd and returns the id of its cluster, 0 if it cannot be reached. If etcd holds records
// below the prefix that do not belong to the given cluster, Probe returns the id together with
// ErrForeignData.
func Probe(ctx context.Context, kv Etcd, prefix, cluster string, limit time.Duration) (uint64, error) {
	keys, err := newKeyspace(prefix)
	if err != nil {
		return 0, err
	}
	f, err := (server{kv: kv, limit: limit}).look(ctx, keys, cluster)
	switch {
	case err != nil:
		return 0, err
	case f.ownerErr != nil:
		return f.etcdCluster, fmt.Errorf("%w: %w", ErrForeignData, f.ownerErr)
	case f.owner.raw != "" && f.owner.ClusterID != cluster:
		return f.etcdCluster, fmt.Errorf("%w: the data belongs to cluster %s, this is cluster %s", ErrForeignData, f.owner.ClusterID, cluster)
	case f.data && f.owner.raw == "":
		return f.etcdCluster, fmt.Errorf("%w: there are nodes, workloads or assignments, but no key that names the cluster that owns them", ErrForeignData)
	}
	return f.etcdCluster, nil
}
