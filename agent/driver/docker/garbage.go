package docker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/moby"
)

var _ driver.Collector = (*Driver)(nil)

// Garbage implements driver.Collector.
func (d *Driver) Garbage(ctx context.Context, q driver.GarbageQuery) ([]driver.Garbage, error) {
	callCtx, cancel := d.eng.Call(ctx)
	res, err := d.eng.Client.ContainerList(callCtx, client.ContainerListOptions{All: true})
	cancel()
	if err != nil {
		return nil, moby.Classify("list", err)
	}
	kept := map[string]bool{}
	for _, in := range d.choose(res.Items) {
		kept[in.ID] = true
	}
	var out []driver.Garbage
	var ids []string
	used := map[string]bool{}
	for _, item := range res.Items {
		used[item.ImageID] = true
		// Containers without a node label are never garbage: no label proves that they are ours, only the
		// record in the agent's store says so.
		if d.of(item.Labels) != driver.Owned {
			continue
		}
		id := driver.ID(item.Labels[driver.LabelWorkload])
		if q.Busy(id) || time.Since(time.Unix(item.Created, 0)) < q.Settled {
			continue
		}
		g := driver.Garbage{Name: nameOf(item), Workload: id}
		switch {
		case !q.Wanted(id):
			g.Kind, g.Reason = driver.Orphan, fmt.Sprintf("container %s (%s) of a workload for which this agent has no order", moby.Short(item.ID), item.State)
		case !kept[item.ID]:
			g.Kind, g.Reason = driver.Leftover, fmt.Sprintf("container %s (%s), left by an interrupted replacement", moby.Short(item.ID), item.State)
		default:
			continue
		}
		out, ids = append(out, g), append(ids, item.ID)
	}
	images, err := d.images(ctx, q, used)
	if err != nil {
		return nil, err
	}
	// To compute sizes, the engine walks the files of all listed containers. That may be slow or fail. The
	// sizes are only shown to users, so request them in a separate call and ignore its error.
	callCtx, cancel = d.eng.Call(ctx)
	written, _ := d.eng.Written(callCtx, ids)
	cancel()
	for i, id := range ids {
		out[i].Bytes = written[id]
	}
	slices.SortFunc(out, func(a, b driver.Garbage) int { return strings.Compare(a.Name, b.Name) })
	return append(out, images...), nil
}

// images returns the pulled images to remove, so that the remaining unused images fit in q.ImageBudget. The
// result begins with the images whose name a newer image has taken, because nothing refers to them. The other
// images follow, oldest first.
func (d *Driver) images(ctx context.Context, q driver.GarbageQuery, used map[string]bool) ([]driver.Garbage, error) {
	if q.ImageBudget < 0 {
		return nil, nil
	}
	var idle []driver.Garbage
	var total int64
	counted := map[string]bool{}
	for _, p := range q.Pulled {
		callCtx, cancel := d.eng.Call(ctx)
		res, err := d.eng.Client.ImageInspect(callCtx, p.Ref)
		cancel()
		if cerrdefs.IsNotFound(err) {
			idle = append(idle, driver.Garbage{Kind: driver.Record, Name: "image " + p.Ref, Reason: "the image is not on the engine any more"})
			continue
		}
		if err != nil {
			return nil, moby.Classify("image", err)
		}
		if used[res.ID] || time.Since(p.At) < q.Settled || nameless(p.Ref) && len(res.RepoTags) > 0 {
			continue // the image is in use, is too young, or was recorded without a name and has one now
		}
		size := res.Size
		if counted[res.ID] {
			size = 0
		}
		counted[res.ID] = true
		total += size
		idle = append(idle, driver.Garbage{Kind: driver.ImageFile, Name: p.Ref, Bytes: size})
	}
	slices.SortStableFunc(idle, func(a, b driver.Garbage) int {
		switch {
		case nameless(a.Name) == nameless(b.Name):
			return 0
		case nameless(a.Name):
			return -1
		}
		return 1
	})
	var out []driver.Garbage
	for _, g := range idle {
		if g.Kind == driver.ImageFile {
			if total <= q.ImageBudget {
				continue
			}
			g.Reason = fmt.Sprintf("unused; %d MiB of unused images are more than the budget of %d MiB", total>>20, q.ImageBudget>>20)
			total -= g.Bytes
		}
		out = append(out, g)
	}
	return out, nil
}

// nameless reports whether ref is the id of an image without a name.
func nameless(ref string) bool { return strings.HasPrefix(ref, "sha256:") }

// Collect implements driver.Collector.
func (d *Driver) Collect(ctx context.Context, g driver.Garbage) error {
	switch g.Kind {
	case driver.Orphan, driver.Leftover:
		have, err := d.find(ctx, g.Workload)
		if err != nil {
			return err
		}
		for _, in := range have.ours {
			if in.name == g.Name && d.of(in.Labels) == driver.Owned {
				if err := d.discard(ctx, in); err != nil || len(have.ours) > 1 {
					return err
				}
				return d.leave(g.Workload)
			}
		}
		return nil
	case driver.ImageFile:
		callCtx, cancel := d.eng.Call(ctx)
		defer cancel()
		// Without Force the engine refuses to remove an image that a container uses or that has got a name
		// since it was listed.
		if nameless(g.Name) {
			if res, err := d.eng.Client.ImageInspect(callCtx, g.Name); err == nil && len(res.RepoTags) > 0 {
				return nil
			}
		}
		_, err := d.eng.Client.ImageRemove(callCtx, g.Name, client.ImageRemoveOptions{PruneChildren: true})
		if cerrdefs.IsNotFound(err) {
			return nil
		}
		return moby.Classify("image", err)
	case driver.Record:
		return nil
	}
	return driver.Errorf(driver.InvalidConfiguration, "collect", "the container driver cannot remove garbage of kind %s", g.Kind)
}
