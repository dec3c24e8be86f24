package compose

import (
	"maps"
	"slices"

	"github.com/compose-spec/compose-go/v2/types"

	agentv1 "github.com/persys/compute/api/agent/v1"
	stackfile "github.com/persys/compute/stack"
)

// memoryFiles replaces the external secrets and configs of a stack by bind mounts of files in memory. paths[i]
// is the path of the file list[i] on this machine. Compose gets no values of secrets, because it would write
// them to the engine's disk.
func memoryFiles(p *types.Project, list []*agentv1.MemoryFile, paths []string) error {
	if len(list) != len(paths) {
		return invalid("compose.memory_files: the specification has %d files, but the agent has prepared %d", len(list), len(paths))
	}
	type place struct{ service, target string }
	ready := map[place]string{}
	for i, f := range list {
		ready[place{f.GetService(), f.GetTarget()}] = paths[i]
	}
	for _, x := range stackfile.Externals(p) {
		path, ok := ready[place{x.Service, x.Target}]
		if !ok {
			return invalid("compose: services.%s.%ss: %s %q with external: true has no value here: only inline stacks have secrets and configs of the cluster, because schedulers do not read Git repositories",
				x.Service, x.Kind, x.Kind, x.Key)
		}
		s := p.Services[x.Service]
		s.Volumes = append(s.Volumes, types.ServiceVolumeConfig{
			Type: types.VolumeTypeBind, Source: path, Target: x.Target, ReadOnly: true, Bind: &types.ServiceVolumeBind{CreateHostPath: false},
		})
		p.Services[x.Service] = s
	}
	for name, s := range p.Services {
		s.Secrets = slices.DeleteFunc(s.Secrets, func(f types.ServiceSecretConfig) bool { return bool(p.Secrets[f.Source].External) })
		s.Configs = slices.DeleteFunc(s.Configs, func(f types.ServiceConfigObjConfig) bool { return bool(p.Configs[f.Source].External) })
		p.Services[name] = s
	}
	maps.DeleteFunc(p.Secrets, func(_ string, s types.SecretConfig) bool { return bool(s.External) })
	maps.DeleteFunc(p.Configs, func(_ string, c types.ConfigObjConfig) bool { return bool(c.External) })
	return nil
}
