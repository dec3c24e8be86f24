package spec

import (
	"cmp"
	"path"
	"slices"
	"strings"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/policy/asks"
)

// Normalise rewrites a valid specification in place to the stored form: defaults filled in, words in lower case, and
// unordered lists sorted. A VM that is described in the metadata is rewritten in the same way. Normalise is idempotent
// and does not change the meaning. It keeps the order of commands, disks and networks.
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
	normaliseJob(s)
	s.OnUnhealthy = normalOnUnhealthy(s)
	s.Group = strings.TrimSpace(s.Group)
	s.Namespace = strings.TrimSpace(s.Namespace)
	s.OnLostLease = orElse(strings.ToLower(strings.TrimSpace(s.OnLostLease)), "keep")
	if s.Type == TypeVM {
		s.Exclusive = true // a VM must never run twice (sched/DESIGN.md)
	}
	normaliseRules(s)
	normaliseReschedule(s)
	for i, c := range s.Constraints {
		s.Constraints[i] = normalConstraint(c)
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

// normalConstraint returns a constraint on node labels in the form in which it is stored; nil for nil.
func normalConstraint(c *controlv1.Constraint) *controlv1.Constraint {
	if c == nil {
		return nil
	}
	out := &controlv1.Constraint{Key: strings.TrimSpace(c.Key), Operator: operatorOf(c.Operator), Values: slices.Clone(c.Values)}
	for i := range out.Values {
		out.Values[i] = strings.TrimSpace(out.Values[i])
	}
	if out.Operator == "in" || out.Operator == "not-in" {
		slices.Sort(out.Values)
		out.Values = slices.Compact(out.Values)
	}
	return out
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
	normaliseObjects(c)
	c.Image = strings.TrimSpace(c.Image)
	c.RestartPolicy = normalRestartPolicy(c)
	c.User = strings.TrimSpace(c.User)
	c.CapAdd, c.CapDrop = normaliseWords(c.CapAdd, asks.Capability), normaliseWords(c.CapDrop, asks.Capability)
	c.SecurityOpt = normaliseWords(c.SecurityOpt, asks.SecurityOption)
	c.PidsLimit = max(c.PidsLimit, -1)
	c.StopSignal = strings.ToUpper(strings.TrimSpace(c.StopSignal))
	normaliseOptions(c)
	for _, p := range c.Ports {
		p.Protocol, p.Mode = protocolOf(p.Protocol), portMode(p)
	}
	slices.SortStableFunc(c.Ports, func(a, b *controlv1.Port) int {
		switch {
		case a.HostPort != b.HostPort:
			return int(a.HostPort) - int(b.HostPort)
		case a.ContainerPort != b.ContainerPort:
			return int(a.ContainerPort) - int(b.ContainerPort)
		}
		return cmp.Or(strings.Compare(a.Protocol, b.Protocol), strings.Compare(a.Address, b.Address))
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

// normaliseWords applies the function word to each entry of a list and sorts the list, because its order has
// no meaning.
func normaliseWords(list []string, word func(string) string) []string {
	if len(list) == 0 {
		return nil
	}
	out := make([]string, len(list))
	for i, w := range list {
		out[i] = word(w)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func cleanPath(p string) string {
	if p == "" {
		return ""
	}
	return path.Clean(p)
}

func normaliseCompose(c *controlv1.ComposeSpec) {
	if isGit(c) {
		c.SourceType, c.InlineYaml, c.MainFile = sourceGit, "", ""
		c.GitRepo, c.GitRef = strings.TrimSpace(c.GitRepo), strings.TrimSpace(c.GitRef)
	} else {
		c.SourceType, c.GitRepo, c.GitRef, c.GitCredentials = sourceInline, "", "", ""
		c.InlineYaml = plainCompose(c.InlineYaml)
	}
	c.ManagedVolumes = toControlVolumes(normaliseVolumes(fromControlVolumes(c.ManagedVolumes)))
	c.Objects = nil // schedulers read them from the Compose file
	if len(c.Env) == 0 {
		c.Env = nil
	}
}

// normaliseVMSpec rewrites the VM in one of two forms: only the field vm, or the VM under the reserved metadata
// key, with a copy in the field vm that answers to users show.
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
			n.Dhcp = true // default value according to the contract
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
