package spec

import (
	"fmt"
	"path"
	"slices"
	"strings"

	agentv1 "github.com/persys/compute/api/agent/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/bounds"
)

func fromControlVolumes(in []*controlv1.ManagedVolumeSpec) []*agentv1.ManagedVolumeSpec {
	var out []*agentv1.ManagedVolumeSpec
	for _, v := range in {
		out = append(out, &agentv1.ManagedVolumeSpec{
			Name: v.GetName(), Driver: v.GetDriver(), SizeGb: v.GetSizeGb(), AccessMode: v.GetAccessMode(),
			FsType: v.GetFsType(), MountPath: v.GetMountPath(), ReadOnly: v.GetReadOnly(), RetainPolicy: v.GetRetainPolicy(),
		})
	}
	return out
}

func toControlVolumes(in []*agentv1.ManagedVolumeSpec) []*controlv1.ManagedVolumeSpec {
	var out []*controlv1.ManagedVolumeSpec
	for _, v := range in {
		out = append(out, &controlv1.ManagedVolumeSpec{
			Name: v.GetName(), Driver: v.GetDriver(), SizeGb: v.GetSizeGb(), AccessMode: v.GetAccessMode(),
			FsType: v.GetFsType(), MountPath: v.GetMountPath(), ReadOnly: v.GetReadOnly(), RetainPolicy: v.GetRetainPolicy(),
		})
	}
	return out
}

// normaliseVolumes fills the defaults of volumes and sorts them by name. It is idempotent.
func normaliseVolumes(volumes []*agentv1.ManagedVolumeSpec) []*agentv1.ManagedVolumeSpec {
	for _, v := range volumes {
		v.Name = strings.TrimSpace(v.GetName())
		v.Driver = driverOf(v.GetDriver())
		v.AccessMode = strings.TrimSpace(v.AccessMode)
		v.FsType = strings.ToLower(strings.TrimSpace(v.FsType))
		if strings.EqualFold(strings.TrimSpace(v.RetainPolicy), "Retain") {
			v.RetainPolicy = "Retain"
		} else {
			v.RetainPolicy = "Delete"
		}
		if v.MountPath != "" {
			v.MountPath = path.Clean(v.MountPath)
		}
	}
	slices.SortStableFunc(volumes, func(a, b *agentv1.ManagedVolumeSpec) int { return strings.Compare(a.GetName(), b.GetName()) })
	return volumes
}

// volumeUses returns the volumes of a workload in the form that the planner reads. pool is the storage pool of its
// local volumes. The list is sorted by name, because normaliseVolumes sorts volumes.
func volumeUses(volumes []*agentv1.ManagedVolumeSpec, pool string) (out []*commandv1.VolumeUse) {
	for _, v := range volumes {
		u := &commandv1.VolumeUse{Name: v.GetName(), Driver: driverOf(v.GetDriver()), SizeGb: v.GetSizeGb(), Retain: v.GetRetainPolicy() == "Retain"}
		if u.Driver == fsm.DriverLocal {
			u.Pool = pool
		}
		out = append(out, u)
	}
	return out
}

func driverOf(s string) string {
	switch s = strings.ToLower(strings.TrimSpace(s)); s {
	case "":
		return "local"
	case "ceph_rbd":
		return "ceph-rbd"
	}
	return s
}

// managed checks the managed volumes of a workload. kind is the type of the workload. mounts holds the mount paths
// that other mounts of the container use already; nil for a stack, whose Compose file says where volumes are mounted.
func (e *Errors) managed(at, kind string, volumes []*agentv1.ManagedVolumeSpec, mounts map[string]string) {
	if len(volumes) > maxEntriesOf {
		e.addf(at, "", "has %d entries, at most %d", len(volumes), maxEntriesOf)
		return
	}
	names := map[string]int{}
	for i, v := range volumes {
		w := fmt.Sprintf("%s[%d]", at, i)
		name := strings.TrimSpace(v.GetName())
		if !bounds.ValidID(name) {
			e.add(w+".name", idRule, v.GetName())
		} else if first, twice := names[name]; twice {
			e.addf(w+".name", name, "is already the name of managed_volumes[%d]", first)
		}
		names[name] = i
		e.word(w+".driver", driverOf(v.GetDriver()), volumeDrivers)
		e.between(w+".size_gb", v.GetSizeGb(), 0, MaxDisk, " GB")
		ceph := driverOf(v.GetDriver()) == "ceph-rbd"
		if v.GetSizeGb() == 0 && (kind == TypeVM || ceph) {
			e.add(w+".size_gb", "must be set: a volume of a virtual machine or of ceph-rbd is a disk with a size", "")
		}
		if fs := strings.ToLower(strings.TrimSpace(v.GetFsType())); fs != "" && kind != TypeVM && (ceph || v.GetSizeGb() > 0 && driverOf(v.GetDriver()) == "local") {
			e.word(w+".fs_type", fs, []string{"ext4", "xfs"})
		}
		e.word(w+".retain_policy", v.GetRetainPolicy(), []string{"Delete", "Retain"})
		if mounts == nil {
			if v.GetMountPath() != "" {
				e.add(w+".mount_path", "must be empty: the Compose file says where its external volumes are mounted", v.GetMountPath())
			}
		} else if e.absolute(w+".mount_path", v.GetMountPath()) {
			e.mount(w+".mount_path", v.GetMountPath(), mounts)
		}
		for _, f := range []struct{ name, text string }{{".access_mode", v.GetAccessMode()}, {".fs_type", v.GetFsType()}} {
			if len(f.text) > 64 || !printable(f.text) {
				e.add(w+f.name, "must be printable text of at most 64 bytes", f.text)
			}
		}
	}
}
