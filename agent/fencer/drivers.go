package fencer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/fencer/lease"
)

// Drivers is a Runtime that uses the agent's drivers. It calls New to make the drivers for a cluster when they
// are first needed. It calls New again while there is no driver for a kind of workload, because the engine of
// that kind may be installed after the fencer started.
type Drivers struct {
	New func(cluster string) ([]driver.Driver, error)

	mu      sync.Mutex
	cluster string
	list    []driver.Driver
}

func (d *Drivers) of(cluster string, workloads ...lease.Workload) ([]driver.Driver, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	// lacks returns an error if the list has no driver for the kind of one of the workloads: the fencer then
	// cannot know whether that workload runs.
	lacks := func(list []driver.Driver) error {
		for _, w := range workloads {
			if !slices.ContainsFunc(list, func(drv driver.Driver) bool { return drv.Kind() == w.Kind }) {
				return fmt.Errorf("this fencer has no runtime for %s", w.Kind)
			}
		}
		return nil
	}
	if d.cluster != cluster {
		d.cluster, d.list = cluster, nil
	}
	if d.list != nil && lacks(d.list) == nil {
		return d.list, nil
	}
	made, err := d.New(cluster)
	if err != nil {
		return nil, err
	}
	for _, drv := range made {
		if !slices.ContainsFunc(d.list, func(have driver.Driver) bool { return have.Kind() == drv.Kind() }) {
			d.list = append(d.list, drv)
		} else if c, ok := drv.(io.Closer); ok { // the existing driver stays, because a call may be using it; close the new driver
			_ = c.Close()
		}
	}
	return d.list, lacks(d.list)
}

// Running implements Runtime.
func (d *Drivers) Running(ctx context.Context, cluster string, of []lease.Workload) ([]lease.Workload, error) {
	list, err := d.of(cluster, of...)
	if err != nil {
		return nil, err
	}
	var out []lease.Workload
	var errs []error
	for _, drv := range list {
		if !slices.ContainsFunc(of, func(w lease.Workload) bool { return w.Kind == drv.Kind() }) {
			continue
		}
		seen, err := drv.List(ctx)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, o := range seen {
			w := lease.Workload{Kind: drv.Kind(), ID: o.ID}
			if slices.Contains(of, w) && o.State != driver.Stopped && (o.State != driver.Failed || len(o.Parts) > 1) {
				out = append(out, w)
			}
		}
	}
	return out, errors.Join(errs...)
}

// Halt implements Runtime.
func (d *Drivers) Halt(ctx context.Context, cluster string, w lease.Workload, grace time.Duration) error {
	list, err := d.of(cluster, w)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(list, func(drv driver.Driver) bool { return drv.Kind() == w.Kind })
	return list[i].Halt(ctx, w.ID, grace)
}
