package mirrorspec

import (
	"cmp"
	"fmt"
	"strings"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/mirror"
)

// Fields returns the fields of a stored specification that the mirror writes to etcd (mirror.Describe). Sealed
// (encrypted) values stay sealed: somebody who reads etcd cannot decrypt them without the cluster key, nor by copying
// them into another workload. If a specification cannot be read, Fields returns none; the stored bytes are mirrored
// anyway.
func Fields(w *fsm.Workload) mirror.Fields {
	s := &controlv1.WorkloadSpec{}
	if s.UnmarshalVT(w.Spec) != nil {
		return mirror.Fields{}
	}
	f := mirror.Fields{Metadata: s.GetMetadata()}
	if c := s.GetContainer(); c != nil {
		f.Image, f.Command, f.EnvVars, f.RestartPolicy = c.GetImage(), c.GetCommand(), c.GetEnv(), c.GetRestartPolicy()
		f.ManagedVolumes = managedVolumes(c.GetManagedVolumes())
		for _, p := range c.GetPorts() {
			f.Ports = append(f.Ports, portText(p))
		}
		for _, v := range c.GetVolumes() {
			f.Volumes = append(f.Volumes, volumeText(v))
		}
	}
	if c := s.GetCompose(); c != nil {
		f.EnvVars, f.ProjectName = c.GetEnv(), w.ID
		if strings.EqualFold(c.GetSourceType(), "git") {
			f.GitRepo, f.GitBranch = c.GetGitRepo(), c.GetGitRef()
		} else {
			f.ComposeYAML = c.GetInlineYaml()
		}
	}
	if v := s.GetVm(); v != nil {
		f.Image = v.GetOsImage()
		f.VM = vmFields(w.ID, v)
	}
	return f
}

func portText(p *controlv1.Port) string {
	return fmt.Sprintf("%d:%d/%s", p.GetHostPort(), p.GetContainerPort(), cmp.Or(p.GetProtocol(), "tcp"))
}

func volumeText(v *controlv1.VolumeMount) string {
	text := v.GetHostPath() + ":" + v.GetContainerPath()
	if v.GetReadOnly() {
		text += ":ro"
	}
	return text
}

func managedVolumes(list []*controlv1.ManagedVolumeSpec) (out []mirror.ManagedVolume) {
	for _, v := range list {
		out = append(out, mirror.ManagedVolume{
			Name: v.GetName(), Driver: v.GetDriver(), SizeGB: v.GetSizeGb(), AccessMode: v.GetAccessMode(),
			FSType: v.GetFsType(), MountPath: v.GetMountPath(), ReadOnly: v.GetReadOnly(), RetainPolicy: v.GetRetainPolicy(),
		})
	}
	return out
}

func vmFields(id string, v *controlv1.VMSpec) *mirror.VM {
	out := &mirror.VM{Name: id, VCPUs: int64(v.GetVcpus()), MemoryMB: v.GetMemoryMb(), ManagedVolumes: managedVolumes(v.GetManagedVolumes())}
	for _, d := range v.GetDisks() {
		out.Disks = append(out.Disks, mirror.VMDisk{Device: d.GetMountPoint(), SizeGB: d.GetSizeGb()})
	}
	for _, n := range v.GetNetworks() {
		out.Networks = append(out.Networks, mirror.VMNetwork{Network: n.GetBridge(), IPAddress: n.GetStaticIp()})
	}
	if c := v.GetCloudInit(); c != nil {
		out.CloudInitConfig = &mirror.CloudInit{
			UserData: c.GetUserData(), MetaData: c.GetMetaData(), NetworkConfig: c.GetNetworkConfig(), VendorData: c.GetVendorData(),
		}
	}
	return out
}
