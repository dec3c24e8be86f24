package runner

import (
	"context"
	"slices"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/volume"
)

// lookAtPools asks the drivers for the storage pools of their engines. If an engine does not answer, its
// previous pools are kept. lookAtPools reports whether a pool of the node's registration changed, so that the
// node must register again.
func (r *Runner) lookAtPools(ctx context.Context) (changed bool) {
	for _, e := range r.engines.list() {
		pooler, ok := e.drv.(driver.Pooler)
		if !ok {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, r.cfg.ListTimeout)
		pools, err := pooler.Pools(limited)
		cancel()
		if err != nil {
			r.log.Debug("could not read the storage pools of an engine", "kind", e.drv.Kind(), "err", err)
			continue
		}
		e.mu.Lock()
		same := slices.EqualFunc(e.pools, pools, func(x, y driver.Pool) bool { return x.Name == y.Name && x.Type == y.Type && x.Total>>30 == y.Total>>30 })
		changed = changed || !same
		e.pools = pools
		e.mu.Unlock()
	}
	return changed
}

// Pools returns the storage pools of the node, with sizes in GB. The default pool is first: it is
// the machine's disk, unless volumes have a separate disk. Pool names are unique on a node; the
// agent's own pools take precedence over those of engines.
func (r *Runner) Pools() []volume.Pool {
	list := r.cfg.Storage.Pools()
	own := len(list) > 0 && list[0].Name == volume.DefaultPool
	if !own || !r.ownDisk {
		disk := volume.Pool{Name: volume.DefaultPool, Type: volume.Local, TotalGB: r.cfg.Host.Totals().DiskGB, UsedGB: r.cfg.Host.Usage().DiskGB}
		if own {
			list = list[1:]
		}
		list = append([]volume.Pool{disk}, list...)
	}
	for _, e := range r.engines.list() {
		e.mu.Lock()
		pools := e.pools
		e.mu.Unlock()
		for _, p := range pools {
			if !slices.ContainsFunc(list, func(o volume.Pool) bool { return o.Name == p.Name }) {
				list = append(list, volume.Pool{Name: p.Name, Type: p.Type, TotalGB: p.Total >> 30, UsedGB: p.Used >> 30})
			}
		}
	}
	return list
}
