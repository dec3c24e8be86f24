package moby

import (
	"context"
	"slices"
	"strings"

	"github.com/moby/moby/client"

	"github.com/persys/compute/agent/driver"
)

// LayerSize is the storage option that limits the bytes that a container writes beyond its image.
const LayerSize = "size"

// layerDrivers are the storage drivers that may support LayerSize. All other storage drivers refuse it,
// except the containerd image store, which accepts and ignores it.
var layerDrivers = [...]string{"overlay2", "btrfs", "zfs", "devicemapper", "vfs"}

// SizesLayers reports whether containers may be created with LayerSize. Whether the engine's file system
// supports the option is known only after a create call (see RefusesLayerSize).
func (e *Engine) SizesLayers(ctx context.Context) bool {
	e.layers.mu.Lock()
	defer e.layers.mu.Unlock()
	if e.layers.known {
		return e.layers.able
	}
	ctx, cancel := e.Call(ctx)
	defer cancel()
	res, err := e.Client.Info(ctx, client.InfoOptions{})
	if err != nil {
		return false // not known now; the next call asks the engine again
	}
	snapshotter := slices.ContainsFunc(res.Info.DriverStatus, func(kv [2]string) bool { return kv[0] == "driver-type" })
	e.layers.known = true
	e.layers.able = slices.Contains(layerDrivers[:], res.Info.Driver) && !snapshotter
	return e.layers.able
}

// RefusesLayerSize reports whether err says that the engine does not support LayerSize on its file system,
// and remembers this for SizesLayers.
func (e *Engine) RefusesLayerSize(err error) bool {
	if err == nil {
		return false
	}
	text := strings.ToLower(err.Error())
	if !strings.Contains(text, "storage-opt") && !strings.Contains(text, "storage opt") && !strings.Contains(text, "enabled quotas") {
		return false
	}
	e.layers.mu.Lock()
	defer e.layers.mu.Unlock()
	e.layers.known, e.layers.able = true, false
	return true
}

// fewIDs is the maximum number of container ids for which a list request filters by id.
const fewIDs = 100

// Written returns how many bytes each container wrote beyond its image. The engine walks the files of all
// listed containers for this, so the list request filters by id unless there are many ids.
func (e *Engine) Written(ctx context.Context, ids []string) (map[string]int64, error) {
	if len(ids) == 0 {
		return nil, nil // without an id filter the engine would list all containers
	}
	filters := make(client.Filters).Add("label", driver.LabelManaged+"=true")
	if len(ids) <= fewIDs {
		filters = filters.Add("id", ids...)
	}
	res, err := e.Client.ContainerList(ctx, client.ContainerListOptions{All: true, Size: true, Filters: filters})
	if err != nil {
		return nil, Classify("list", err)
	}
	out := make(map[string]int64, len(res.Items))
	for _, item := range res.Items {
		out[item.ID] = item.SizeRw
	}
	return out, nil
}
