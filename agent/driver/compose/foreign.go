package compose

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/compose/v5/pkg/api"
	"github.com/moby/moby/api/types/volume"
	"github.com/moby/moby/client"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/moby"
)

// foreign returns an error if a stack would use a volume, a network or a container of another namespace. A
// stack would do so if it names the resource as external, gives its own resource the same name, or has the id
// of a deleted stack whose volumes were kept. A resource without our labels was made by an administrator of the
// machine, so every stack may use it.
func (d *Driver) foreign(ctx context.Context, spec driver.Spec, p *types.Project) error {
	for _, key := range slices.Sorted(maps.Keys(p.Volumes)) {
		labels, err := d.labelsOf(ctx, "volume", p.Volumes[key].Name)
		if err == nil {
			err = d.apart(spec, "volume "+p.Volumes[key].Name, labels)
		}
		if err != nil {
			return err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(p.Networks)) {
		n := p.Networks[key]
		if !n.External {
			continue // networks of the stack's own project are checked elsewhere
		}
		labels, err := d.labelsOf(ctx, "network", n.Name)
		if err == nil {
			err = d.apart(spec, "network "+n.Name, labels)
		}
		if err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Services)) {
		s := p.Services[name]
		for _, ref := range append([]string{s.NetworkMode, s.Ipc, s.Pid}, s.VolumesFrom...) {
			other, ok := strings.CutPrefix(ref, "container:")
			if !ok {
				continue
			}
			other, _, _ = strings.Cut(other, ":") // volumes_from has the form "name:mode"
			labels, err := d.labelsOf(ctx, "container", other)
			if err == nil {
				err = d.apart(spec, "container "+other, labels)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// Foreign implements driver.Namespaced. It checks the stack's volumes too, because a deleted stack of another
// namespace may have left volumes.
func (d *Driver) Foreign(ctx context.Context, id driver.ID, namespace string) (bool, error) {
	have, err := d.find(ctx, id)
	if err != nil {
		return false, err
	}
	for _, members := range have {
		if slices.ContainsFunc(members, func(m member) bool { return driver.OtherNamespace(m.Labels, namespace) }) {
			return true, nil
		}
	}
	there, err := d.volumes(ctx, id)
	return slices.ContainsFunc(there, func(v volume.Volume) bool { return driver.OtherNamespace(v.Labels, namespace) }), err
}

// volumes lists the volumes of a workload on the engine.
func (d *Driver) volumes(ctx context.Context, id driver.ID) ([]volume.Volume, error) {
	ctx, cancel := d.eng.Call(ctx)
	defer cancel()
	filters := make(client.Filters).Add("label", driver.LabelWorkload+"="+string(id), driver.LabelKind+"="+string(driver.Compose))
	res, err := d.eng.Client.VolumeList(ctx, client.VolumeListOptions{Filters: filters})
	if err != nil {
		return nil, moby.Classify("list", err)
	}
	return slices.DeleteFunc(res.Items, func(v volume.Volume) bool {
		_, ownership := d.of(v.Labels)
		return ownership != driver.Owned || !slices.Contains(d.names(id), v.Labels[api.ProjectLabel]) // Compose marks each volume of a stack
	}), nil
}

// apart returns an error if the labels of an existing resource name another namespace than the spec. The text
// of parameter what describes the resource in the error.
func (d *Driver) apart(spec driver.Spec, what string, labels map[string]string) error {
	if labels[driver.LabelManaged] == "" {
		return nil
	}
	return driver.CheckNamespace(spec, what, labels, false)
}

// labelsOf returns the labels of a container, network or volume on the engine, nil if it does not exist.
func (d *Driver) labelsOf(ctx context.Context, kind, name string) (labels map[string]string, err error) {
	ctx, cancel := d.eng.Call(ctx)
	defer cancel()
	switch kind {
	case "volume":
		res, failed := d.eng.Client.VolumeInspect(ctx, name, client.VolumeInspectOptions{})
		labels, err = res.Volume.Labels, failed
	case "network":
		res, failed := d.eng.Client.NetworkInspect(ctx, name, client.NetworkInspectOptions{})
		labels, err = res.Network.Labels, failed
	default:
		res, failed := d.eng.Inspect(ctx, name)
		if err = failed; err == nil && res.Config != nil {
			labels = res.Config.Labels
		}
	}
	if cerrdefs.IsNotFound(err) {
		return nil, nil
	}
	return labels, moby.Classify("list", err)
}
