package moby

import (
	"context"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/system"
)

// cdiDevices returns the names of the CDI devices that an engine reports, by kind (VENDOR/CLASS). A kind
// usually also has the name all, and NVIDIA devices have their UUID as a second name. cdiDevices leaves out
// these names, so that each device is counted once. Engines before Docker 28.2 report no devices.
func cdiDevices(list []system.DeviceInfo) map[string][]string {
	out := map[string][]string{}
	for _, d := range list {
		kind, name, ok := strings.Cut(d.ID, "=")
		if !ok || d.Source != "cdi" || name == "all" || strings.HasPrefix(name, "GPU-") || strings.HasPrefix(name, "MIG-") {
			continue
		}
		if !slices.Contains(out[kind], name) {
			out[kind] = append(out[kind], name)
		}
	}
	for _, names := range out {
		slices.Sort(names)
	}
	return out
}

// CDIDevices returns the names of the engine's CDI devices of one kind, as the engine reported them at the
// last probe.
func (e *Engine) CDIDevices(ctx context.Context, kind string) []string {
	return e.facts(ctx).devices[kind]
}
