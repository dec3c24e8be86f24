package compose_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/persys/compute/agent/driver"
)

// mounted returns the names of the volumes that a stack's containers mount.
func (b *bench) mounted(id driver.ID) (names []string) {
	b.Helper()
	res, err := b.cli.ContainerList(b.ctx, client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("label", driver.LabelWorkload+"="+string(id))})
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range res.Items {
		for _, m := range c.Mounts {
			if m.Type == mount.TypeVolume {
				names = append(names, m.Name)
			}
		}
	}
	return names
}

// If a person deletes a stack but not its volumes, the named volumes stay, and so do the files that the
// stack uses like volumes. Unnamed volumes are deleted. A stack that is created again with the same id
// gets the kept volumes.
func TestADeleteCanKeepTheVolumesOfAStack(t *testing.T) {
	eachWay(t, func(t *testing.T, way string, b *bench) {
		spec := b.spec("keep-"+way, b.yaml(`
services:
  app: {image: IMAGE, command: [serve], volumes: ["data:/data", "/scratch"]}
volumes: {data: {}}
`))
		b.ensure(spec)
		b.await(spec.ID, driver.Running)
		named, all := b.volumes(spec.ID), b.mounted(spec.ID)
		if len(named) != 1 || len(all) != 2 {
			t.Fatalf("the stack has the named volumes %v, and mounts the volumes %v; want one named and one unnamed", named, all)
		}
		written := filepath.Join(b.dir, string(spec.ID), "files", "written")
		if err := os.WriteFile(written, []byte("by a container"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := b.d.RemoveInstance(b.ctx, spec.ID); err != nil {
			t.Fatal(err)
		}
		if got := b.volumes(spec.ID); strings.Join(got, " ") != strings.Join(named, " ") {
			t.Errorf("after RemoveInstance the stack's named volumes are %v, want %v as before", got, named)
		}
		for _, name := range all {
			_, err := b.cli.VolumeInspect(b.ctx, name, client.VolumeInspectOptions{})
			if gone, unnamed := cerrdefs.IsNotFound(err), len(name) == 64; gone != unnamed {
				t.Errorf("after RemoveInstance the inspection of volume %s returned %v; want only the unnamed volume deleted", name, err)
			}
		}
		if !present(written) {
			t.Error("RemoveInstance deleted the files that the stack uses like volumes")
		}
		b.ensure(spec)
		b.await(spec.ID, driver.Running)
		if got := b.volumes(spec.ID); strings.Join(got, " ") != strings.Join(named, " ") {
			t.Errorf("the stack that was created again has the volumes %v, want the kept volumes %v", got, named)
		}
		if err := b.d.Remove(b.ctx, spec.ID); err != nil || len(b.volumes(spec.ID)) > 0 {
			t.Errorf("Remove returned %v and left the volumes %v, want no error and no volumes", err, b.volumes(spec.ID))
		}
	})
}
