package agent

import (
	"context"
	"path/filepath"
	"slices"

	bolt "go.etcd.io/bbolt"

	agentv1 "github.com/persys/compute/api/agent/v1"
	controlv1 "github.com/persys/compute/api/control/v1"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/volume"
)

// Buckets of legacy v1 agents (contract/state-etcd.md, "Agent local store"); see package volume.
const (
	bucketVolumes     = "volumes"
	bucketAttachments = "attachments"
)

// volumeStore keeps the records of package volume in the agent's file.
type volumeStore struct{ s *store }

func (v volumeStore) PutVolume(r volume.Volume) error {
	return v.s.update(func(w write) error { return w.put(bucketVolumes, r.ID, r) })
}

func (v volumeStore) DropVolume(id string) error {
	return v.s.update(func(w write) error { return w.drop(bucketVolumes, id) })
}

func (v volumeStore) PutAttachment(r volume.Attachment) error {
	return v.s.update(func(w write) error { return w.put(bucketAttachments, r.ID, r) })
}

func (v volumeStore) DropAttachment(id string) error {
	return v.s.update(func(w write) error { return w.drop(bucketAttachments, id) })
}

func (s *store) volumes() (volume.Records, error) {
	var out volume.Records
	err := s.db.View(func(tx *bolt.Tx) error {
		err := each(tx, bucketVolumes, func(key string, v *volume.Volume) error {
			v.ID = key
			out.Volumes = append(out.Volumes, *v)
			return nil
		})
		if err != nil {
			return err
		}
		return each(tx, bucketAttachments, func(key string, a *volume.Attachment) error {
			a.ID = key
			out.Attachments = append(out.Attachments, *a)
			return nil
		})
	})
	return out, err
}

// openStorage makes the manager of this machine's volumes.
func (a *Agent) openStorage() error {
	have, err := a.store.volumes()
	if err != nil {
		return err
	}
	cfg := a.cfg.Storage
	cfg.Node, cfg.Logger = a.cfg.NodeID, a.log
	if len(cfg.Pools) == 0 {
		dir, err := filepath.Abs(filepath.Dir(a.cfg.StatePath))
		if err != nil {
			return err
		}
		cfg.Pools = []volume.PoolConfig{{Name: volume.DefaultPool, Path: filepath.Join(dir, "volumes", "local")}}
	}
	if a.storage, err = volume.New(cfg, volumeStore{a.store}, have); err != nil {
		return err
	}
	a.ownDisk = a.storage.OwnDisk()
	return nil
}

// volumesOf are the managed volumes that a specification names.
func volumesOf(spec *agentv1.WorkloadSpec) []*agentv1.ManagedVolumeSpec {
	switch s := spec.GetSpec().(type) {
	case *agentv1.WorkloadSpec_Container:
		return s.Container.GetManagedVolumes()
	case *agentv1.WorkloadSpec_Compose:
		return s.Compose.GetManagedVolumes()
	case *agentv1.WorkloadSpec_Vm:
		return s.Vm.GetManagedVolumes()
	}
	return nil
}

// ensure makes a workload's volumes ready, then the workload, then lets go of volumes that it names no
// more.
func (a *Agent) ensure(ctx context.Context, e *engine, in *intent, cluster string) error {
	id, specs := driver.ID(in.ID), volumesOf(in.spec)
	volumes, err := a.storage.Attach(ctx, in.ID, in.Type, specs)
	if err != nil {
		return err
	}
	within, cancel := a.interruptible(ctx, in)
	defer cancel()
	err = e.drv.Ensure(within, driver.Spec{
		ID: id, Revision: in.RevisionID, Content: in.EngineContent, Generation: in.Generation,
		ClusterID: cluster, NodeID: a.cfg.NodeID, Running: in.running(), Body: in.spec, Labels: in.Labels,
		Exclusive: in.Exclusive, Volumes: volumes, DiskLimit: in.diskLimit(),
	})
	if err != nil {
		return err
	}
	return a.storage.Trim(ctx, in.ID, specs)
}

// interruptible is for what a driver does for an order, which may be to wait for a registry: see interrupt.
func (a *Agent) interruptible(ctx context.Context, in *intent) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	if w := a.workloads[in.ID]; w != nil && w.intent == in {
		w.interrupt = cancel
	} else {
		cancel() // another order has come meanwhile
	}
	return ctx, cancel
}

// fate of the volumes of a workload that is deleted. in is nil for an id without order.
func (a *Agent) fate(in *intent, t *tombstone) volume.Fate {
	switch {
	case in != nil:
		return volume.Fate{Keep: in.KeepVolumes, KeepShared: in.KeepShared, Purge: in.Purge}
	case t != nil:
		return volume.Fate{Keep: t.KeepVolumes, KeepShared: t.KeepShared}
	}
	return volume.Fate{Keep: true}
}

// lookAtPools asks the drivers for pools of their engines. One that does not answer has those that it
// had. It reports whether what is registered changed.
func (a *Agent) lookAtPools(ctx context.Context) (changed bool) {
	for _, e := range a.allEngines() {
		pooler, ok := e.drv.(driver.Pooler)
		if !ok {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, a.cfg.ListTimeout)
		pools, err := pooler.Pools(limited)
		cancel()
		if err != nil {
			a.log.Debug("looking at storage pools", "kind", e.drv.Kind(), "err", err)
			continue
		}
		a.mu.Lock()
		same := slices.EqualFunc(e.pools, pools, func(x, y driver.Pool) bool { return x.Name == y.Name && x.Type == y.Type && x.Total>>30 == y.Total>>30 })
		changed = changed || !same
		e.pools = pools
		a.mu.Unlock()
	}
	return changed
}

// pools are what a node offers, and what is in use of it. The default pool is the machine's disk,
// unless volumes have one of their own.
func (a *Agent) pools() ([]*controlv1.StoragePool, []*controlv1.StoragePoolUsage) {
	list := a.storage.Pools()
	if len(list) == 0 || list[0].Name != volume.DefaultPool || !a.ownDisk {
		disk := volume.Pool{Name: volume.DefaultPool, Type: volume.Local, TotalGB: a.host.Totals().DiskGB, UsedGB: a.host.Usage().DiskGB}
		if len(list) > 0 && list[0].Name == volume.DefaultPool {
			list = list[1:]
		}
		list = append([]volume.Pool{disk}, list...)
	}
	a.mu.Lock()
	for _, e := range inOrder(a.engines) {
		for _, p := range e.pools {
			// A name means one thing on a node: the agent's own pools come first.
			if !slices.ContainsFunc(list, func(o volume.Pool) bool { return o.Name == p.Name }) {
				list = append(list, volume.Pool{Name: p.Name, Type: p.Type, TotalGB: p.Total >> 30, UsedGB: p.Used >> 30})
			}
		}
	}
	a.mu.Unlock()
	var pools []*controlv1.StoragePool
	var usage []*controlv1.StoragePoolUsage
	for _, p := range list {
		pools = append(pools, &controlv1.StoragePool{Name: p.Name, Type: p.Type, TotalGb: p.TotalGB})
		usage = append(usage, &controlv1.StoragePoolUsage{Name: p.Name, UsedGb: p.UsedGB, TotalGb: p.TotalGB})
	}
	return pools, usage
}
