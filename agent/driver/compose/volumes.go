package compose

import (
	"path/filepath"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/persys/compute/agent/driver"
)

// external replaces the external volumes of a stack by bind mounts of the folders of its managed volumes.
// Compose must not create a missing folder: the folder is missing while the volume is not mounted, and then the
// stack must not start.
func external(p *types.Project, volumes []driver.Volume) error {
	by := map[string]driver.Volume{}
	for _, v := range volumes {
		by[v.Name] = v
	}
	used := map[string]bool{}
	chosen := map[string]driver.Volume{}
	for key, config := range p.Volumes {
		v, ok := by[config.Name]
		if !ok {
			v, ok = by[key]
		}
		if !ok || !bool(config.External) {
			continue
		}
		if v.Path == "" {
			return invalid("compose: volumes.%s: volume %q is a disk of a virtual machine", key, v.Name)
		}
		chosen[key], used[v.Name] = v, true
	}
	for _, v := range volumes {
		if !used[v.Name] {
			return invalid("compose.managed_volumes: the file has no volume %q with external: true", v.Name)
		}
	}
	for name, service := range p.Services {
		for i, m := range service.Volumes {
			v, ok := chosen[m.Source]
			if m.Type != types.VolumeTypeVolume || !ok {
				continue
			}
			source := v.Path
			if m.Volume != nil && m.Volume.Subpath != "" {
				if !filepath.IsLocal(m.Volume.Subpath) {
					return invalid("compose: services.%s.volumes[%d].volume.subpath: must be a path inside the volume (got %q)", name, i, m.Volume.Subpath)
				}
				source = filepath.Join(v.Path, m.Volume.Subpath)
			}
			service.Volumes[i] = types.ServiceVolumeConfig{
				Type: types.VolumeTypeBind, Source: source, Target: m.Target, ReadOnly: m.ReadOnly || v.ReadOnly,
				Bind: &types.ServiceVolumeBind{CreateHostPath: false},
			}
		}
	}
	for key := range chosen {
		delete(p.Volumes, key)
	}
	return nil
}
