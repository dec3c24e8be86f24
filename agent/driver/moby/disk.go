package moby

import (
	"context"
	"slices"
	"strings"

	"github.com/moby/moby/client"

	"github.com/persys/compute/agent/driver"
)

// LayerSize is the storage option that bounds what a container writes beyond its image.
const LayerSize = "size"

// layerDrivers are storage drivers that may know LayerSize. All others refuse it, and the containerd
// image store takes it and does nothing.
var layerDrivers = [...]string{"overlay2", "btrfs", "zfs", "devicemapper", "vfs"}

// SizesLayers says whether the engine may be asked for LayerSize. Whether the file system below plays
// along shows only then: see RefusesLayerSize.
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
		return false // asked again the next time
	}
	snapshotter := slices.ContainsFunc(res.Info.DriverStatus, func(kv [2]string) bool { return kv[0] == "driver-type" })
	e.layers.known = true
	e.layers.able = slices.Contains(layerDrivers[:], res.Info.Driver) && !snapshotter
	return e.layers.able
}

// RefusesLayerSize says whether an error is the engine's word that it does not know LayerSize here, and
// remembers it.
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

// fewIDs is up to how many containers a list is asked for by their ids.
const fewIDs = 100

// Written is how many bytes each of the containers wrote beyond its image, by its id. The engine walks their
// files for it, so that only they are asked for, unless they are many.
func (e *Engine) Written(ctx context.Context, ids []string) (map[string]int64, error) {
	if len(ids) == 0 {
		return nil, nil // without ids the engine would list all
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
