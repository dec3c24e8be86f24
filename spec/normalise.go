package spec

import (
	"path"
	"slices"
	"strings"

	controlv1 "github.com/persys/compute/api/control/v1"
)

// Normalise rewrites a valid specification in place to the stored form: defaults filled in, words
// in lower case, unordered lists sorted, and a VM from the reserved key in canonical form. It is
// idempotent and does not change the meaning. It keeps the order of commands, disks and networks.
func Normalise(s *controlv1.WorkloadSpec) {
	if s == nil {
		return
	}
	s.Type = strings.TrimSpace(s.Type)
	if s.Resources == nil {
		s.Resources = &controlv1.ResourceRequirements{}
	}
	s.Resources.StoragePool = strings.TrimSpace(s.Resources.StoragePool)
	switch w := s.Workload.(type) {
	case *controlv1.WorkloadSpec_Container:
		if w.Container != nil {
			normaliseContainer(w.Container)
		}
	case *controlv1.WorkloadSpec_Compose:
		if w.Compose != nil {
			normaliseCompose(w.Compose)
		}
	}
	if s.Type == TypeVM {
		normaliseVMSpec(s)
	} else {
		delete(s.Metadata, MetadataVMSpec)
	}
	s.Group = strings.TrimSpace(s.Group)
	s.Namespace = strings.TrimSpace(s.Namespace)
	s.OnLostLease = orElse(strings.ToLower(strings.TrimSpace(s.OnLostLease)), "keep")
	if s.Type == TypeVM {
		s.Exclusive = true // sched/DESIGN.md
	}
	for _, c := range s.Constraints {
		c.Key, c.Operator = strings.TrimSpace(c.Key), operatorOf(c.Operator)
		for i := range c.Values {
			c.Values[i] = strings.TrimSpace(c.Values[i])
		}
		if c.Operator == "in" || c.Operator == "not-in" {
			slices.Sort(c.Values)
			c.Values = slices.Compact(c.Values)
		}
	}
	slices.SortStableFunc(s.Constraints, compareConstraints)
	s.Constraints = slices.CompactFunc(s.Constraints, func(a, b *controlv1.Constraint) bool { return compareConstraints(a, b) == 0 })
	for _, t := range s.Tolerations {
		t.Key, t.Value = strings.TrimSpace(t.Key), strings.TrimSpace(t.Value)
		t.Effect = canonicalWord(t.Effect, effects)
	}
	slices.SortStableFunc(s.Tolerations, compareTolerations)
	s.Tolerations = slices.CompactFunc(s.Tolerations, func(a, b *controlv1.Toleration) bool { return compareTolerations(a, b) == 0 })
	if len(s.Metadata) == 0 {
		s.Metadata = nil
	}
	if len(s.Labels) == 0 {
		s.Labels = nil
	}
}

func compareConstraints(a, b *controlv1.Constraint) int {
	if c := strings.Compare(a.Key, b.Key); c != 0 {
		return c
	}
	if c := strings.Compare(a.Operator, b.Operator); c != 0 {
		return c
	}
	return slices.Compare(a.Values, b.Values)
}

func compareTolerations(a, b *controlv1.Toleration) int {
	if c := strings.Compare(a.Key, b.Key); c != 0 {
		return c
	}
	if c := strings.Compare(a.Value, b.Value); c != 0 {
		return c
	}
	return strings.Compare(a.Effect, b.Effect)
}

func canonicalWord(s string, known []string) string {
	s = strings.TrimSpace(s)
	for _, k := range known {
		if strings.EqualFold(k, s) {
			return k
		}
	}
	return s
}

func normaliseContainer(c *controlv1.ContainerSpec) {
	c.Image = strings.TrimSpace(c.Image)
	c.RestartPolicy = orElse(strings.ToLower(strings.TrimSpace(c.RestartPolicy)), "no")
	for _, p := range c.Ports {
		p.Protocol = protocolOf(p.Protocol)
	}
	slices.SortStableFunc(c.Ports, func(a, b *controlv1.Port) int {
		switch {
		case a.HostPort != b.HostPort:
			return int(a.HostPort) - int(b.HostPort)
		case a.ContainerPort != b.ContainerPort:
			return int(a.ContainerPort) - int(b.ContainerPort)
		}
		return strings.Compare(a.Protocol, b.Protocol)
	})
	for _, v := range c.Volumes {
		v.HostPath, v.ContainerPath = cleanPath(v.HostPath), cleanPath(v.ContainerPath)
	}
	slices.SortStableFunc(c.Volumes, func(a, b *controlv1.VolumeMount) int { return strings.Compare(a.ContainerPath, b.ContainerPath) })
	c.ManagedVolumes = toControlVolumes(normaliseVolumes(fromControlVolumes(c.ManagedVolumes)))
	if len(c.Env) == 0 {
		c.Env = nil
	}
}

func cleanPath(p string) string {
	if p == "" {
		return ""
	}
	return path.Clean(p)
}

func normaliseCompose(c *controlv1.ComposeSpec) {
	if isGit(c) {
		c.SourceType, c.InlineYaml = sourceGit, ""
		c.GitRepo, c.GitRef = strings.TrimSpace(c.GitRepo), strings.TrimSpace(c.GitRef)
	} else {
		c.SourceType, c.GitRepo, c.GitRef, c.GitCredentials = sourceInline, "", "", ""
		c.InlineYaml = plainCompose(c.InlineYaml)
	}
	c.ManagedVolumes = toControlVolumes(normaliseVolumes(fromControlVolumes(c.ManagedVolumes)))
	if len(c.Env) == 0 {
		c.Env = nil
	}
}

// normaliseVMSpec leaves one form of the VM: vm, or the reserved key with vm as its copy for views.
func normaliseVMSpec(s *controlv1.WorkloadSpec) {
	v, fromMetadata := vmOf(s)
	if v == nil {
		return
	}
	if fromMetadata {
		if b64, err := encodeVM(v); err == nil {
			s.Metadata[MetadataVMSpec] = b64
			s.Workload = &controlv1.WorkloadSpec_Vm{Vm: projectVM(v)}
			return
		}
	}
	delete(s.Metadata, MetadataVMSpec)
	vm := s.GetVm()
	vm.OsImage = strings.TrimSpace(vm.OsImage)
	for i, d := range vm.Disks {
		d.PoolName, d.SizeGb, d.MountPoint = strings.TrimSpace(d.PoolName), v.Disks[i].SizeGb, v.Disks[i].Device
	}
	for i, n := range vm.Networks {
		n.Bridge, n.StaticIp = v.Networks[i].Network, v.Networks[i].IpAddress
		if n.StaticIp == "" {
			n.Dhcp = true // the contract's default
		}
	}
	if v.CloudInitConfig == nil {
		vm.CloudInit = nil
	}
	vm.ManagedVolumes = toControlVolumes(v.ManagedVolumes)
}

func sortedKeys(m map[string]string) []string {
	if len(m) == 0 {
		return nil
	}
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
