package docker

import (
	"context"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/moby"
)

// List implements driver.Driver.
func (d *Driver) List(ctx context.Context) ([]driver.Observed, error) {
	seen, err := d.observe(ctx, driver.LabelManaged+"=true")
	if err != nil {
		return nil, err
	}
	kept := make(map[string]bool, len(seen))
	for _, o := range seen {
		kept[o.RuntimeID] = true
	}
	d.eng.KeepTails(kept)
	return seen, nil
}

// Look implements driver.Looker. The engine answers an inspection of a starting container only when it has
// started, which delays List. Look inspects only the containers of one workload, so the start of another
// workload does not delay it.
func (d *Driver) Look(ctx context.Context, id driver.ID) (*driver.Observed, error) {
	seen, err := d.observe(ctx, driver.LabelManaged+"=true", driver.LabelWorkload+"="+string(id))
	if err != nil || len(seen) == 0 {
		return nil, err
	}
	return &seen[0], nil
}

// observe returns the observed state of our containers that carry all given labels.
func (d *Driver) observe(ctx context.Context, labels ...string) ([]driver.Observed, error) {
	listCtx, cancel := d.eng.Call(ctx)
	res, err := d.eng.Client.ContainerList(listCtx, client.ContainerListOptions{
		All:     true,
		Filters: make(client.Filters).Add("label", labels...),
	})
	cancel()
	if err != nil {
		return nil, moby.Classify("list", err)
	}
	chosen := d.choose(res.Items)
	items := make([]container.Summary, len(chosen))
	for i, in := range chosen {
		items[i] = in.Summary
	}
	out := make([]*driver.Observed, len(chosen))
	err = d.eng.InspectAll(ctx, items, func(i int, _ container.InspectResponse, o driver.Observed) {
		o.Owned = d.of(o.Labels) == driver.Owned
		out[i] = &o
	})
	if err != nil {
		return nil, err
	}
	seen := make([]driver.Observed, 0, len(out))
	for _, o := range out {
		if o != nil {
			seen = append(seen, *o)
		}
	}
	return seen, nil
}

// choose returns our containers among items, one for each workload. After an interrupted replacement a
// workload has two; the next Ensure removes one of them.
func (d *Driver) choose(items []container.Summary) []instance {
	best := make(map[string]instance, len(items))
	for _, item := range items {
		if ownership := d.of(item.Labels); ownership != driver.Owned && ownership != driver.Claimed {
			continue
		}
		id := item.Labels[driver.LabelWorkload]
		in := instance{Summary: item, name: nameOf(item)}
		if other, dup := best[id]; dup && (rank(other) > rank(in) || rank(other) == rank(in) && other.Created >= in.Created) {
			continue
		}
		best[id] = in
	}
	out := make([]instance, 0, len(best))
	for _, in := range best {
		out = append(out, in)
	}
	slices.SortFunc(out, func(a, b instance) int {
		return strings.Compare(a.Labels[driver.LabelWorkload], b.Labels[driver.LabelWorkload])
	})
	return out
}
