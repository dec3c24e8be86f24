package compose

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/compose/v5/pkg/api"
	"github.com/moby/moby/client"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/moby"
)

var _ driver.Collector = (*Driver)(nil)

// Garbage implements driver.Collector. It finds stacks for which this node has no order, and folders and
// networks of deleted stacks. Volumes hold data, so a stack's volumes are removed only together with the stack.
func (d *Driver) Garbage(ctx context.Context, q driver.GarbageQuery) ([]driver.Garbage, error) {
	all, err := d.containers(ctx)
	if err != nil {
		return nil, err
	}
	live, orphans := map[string]bool{}, map[driver.ID]int{}
	for _, m := range all {
		live[m.project] = true
		if id, ownership := d.of(m.Labels); ownership == driver.Owned && !q.Wanted(id) && !q.Busy(id) {
			orphans[id]++
		}
	}
	var out []driver.Garbage
	for id, n := range orphans {
		out = append(out, driver.Garbage{Kind: driver.Orphan, Name: string(id), Workload: id,
			Reason: fmt.Sprintf("a stack of %d containers for which this agent has no order", n)})
	}
	entries, err := os.ReadDir(d.opt.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, &driver.Error{Class: driver.ClassOf(err), Op: "collect", Err: err}
	}
	for _, e := range entries {
		if rec := d.idle(e.Name(), q.Wanted); rec != nil && !live[e.Name()] && !q.Busy(rec.Workload) {
			out = append(out, driver.Garbage{Kind: driver.Project, Name: e.Name(), Workload: rec.Workload, Reason: "the folder of a stack that no longer exists"})
		}
	}
	networks, err := d.networks(ctx)
	if err != nil {
		return nil, err
	}
	for _, n := range networks {
		id, _ := d.of(n.labels)
		if q.Wanted(id) || q.Busy(id) || live[n.labels[api.ProjectLabel]] {
			continue
		}
		// A network that containers still use is not garbage.
		by, err := d.users(ctx, "network", n.id)
		if err != nil {
			return nil, err
		}
		if len(by) == 0 {
			out = append(out, driver.Garbage{Kind: driver.Network, Name: n.name, Workload: id, Reason: "the network of a stack that no longer exists"})
		}
	}
	slices.SortFunc(out, func(a, b driver.Garbage) int {
		if c := strings.Compare(string(a.Kind), string(b.Kind)); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return out, nil
}

// idle returns the record in a project's folder if this agent wrote the record and has no order for the
// workload in it. A folder without our record is never removed.
func (d *Driver) idle(project string, wanted func(driver.ID) bool) *record {
	rec, err := d.recordOf(project)
	if err != nil || rec == nil || rec.Left || rec.ClusterID != d.identity.ClusterID || rec.NodeID != d.identity.NodeID || wanted != nil && wanted(rec.Workload) {
		return nil
	}
	return rec
}

type network struct {
	id, name string
	labels   map[string]string
}

// networks returns the networks that carry our labels.
func (d *Driver) networks(ctx context.Context) ([]network, error) {
	ctx, cancel := d.eng.Call(ctx)
	defer cancel()
	res, err := d.eng.Client.NetworkList(ctx, client.NetworkListOptions{Filters: make(client.Filters).Add("label", driver.LabelKind+"="+string(driver.Compose))})
	if err != nil {
		return nil, moby.Classify("list", err)
	}
	var out []network
	for _, n := range res.Items {
		if _, ownership := d.of(n.Labels); ownership == driver.Owned {
			out = append(out, network{n.ID, n.Name, n.Labels})
		}
	}
	return out, nil
}

// Collect implements driver.Collector. It removes g if it is still garbage.
func (d *Driver) Collect(ctx context.Context, g driver.Garbage) error {
	switch g.Kind {
	case driver.Orphan:
		return d.Remove(ctx, g.Workload)
	case driver.Project:
		all, err := d.containers(ctx, api.ProjectLabel+"="+g.Name)
		if err != nil {
			return err
		}
		if rec := d.idle(g.Name, nil); rec == nil || rec.Workload != g.Workload || len(all) > 0 {
			return nil // the project is no longer garbage
		}
		if err := d.erase(g.Name, g.Workload, false); err != nil {
			return &driver.Error{Class: driver.ClassOf(err), Op: "collect", Err: err}
		}
		return nil
	case driver.Network:
		all, err := d.networks(ctx)
		if err != nil {
			return err
		}
		for _, n := range all {
			if n.name != g.Name {
				continue
			}
			callCtx, cancel := d.eng.Call(ctx)
			_, err := d.eng.Client.NetworkRemove(callCtx, n.id, client.NetworkRemoveOptions{})
			cancel()
			if err != nil && !cerrdefs.IsNotFound(err) {
				return moby.Classify("collect", err) // an error also if a container uses the network: then the engine refuses to remove it
			}
		}
		return nil
	}
	return driver.Errorf(driver.InvalidConfiguration, "collect", "the Compose driver cannot remove garbage of kind %s", g.Kind)
}
