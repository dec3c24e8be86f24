package spec

import (
	"encoding/base64"
	"strings"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/persys/compute/api/agent/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/order/wire"
	"github.com/persys/compute/stack/service"
)

// vmImages is the folder in which agents create disks that have no path (contract/wire-agent.md).
const vmImages = "/var/lib/libvirt/images/"

// ActualOf converts the state in an agent's report to fsm.Actual.
func ActualOf(s agentv1.ActualState) fsm.Actual {
	switch s {
	case agentv1.ActualState_ACTUAL_STATE_PENDING:
		return fsm.ActualPending
	case agentv1.ActualState_ACTUAL_STATE_RUNNING:
		return fsm.ActualRunning
	case agentv1.ActualState_ACTUAL_STATE_STOPPED:
		return fsm.ActualStopped
	case agentv1.ActualState_ACTUAL_STATE_FAILED:
		return fsm.ActualFailed
	}
	return fsm.ActualUnknown
}

// ToAgent translates a workload and its unsealed specification into the agent's API (contract/wire-agent.md). In
// addition to the fields in the table of that page, it translates: privileged, CPU quota, disks of a VM, Git sources,
// and the metadata without the entries that schedulers and agents add. The epoch (number of the leader) and the node
// id are not set; they belong to the order and not to the workload.
func ToAgent(w *fsm.Workload, plain *controlv1.WorkloadSpec) *agentv1.ApplyWorkloadRequest {
	out := &agentv1.ApplyWorkloadRequest{
		Id:           w.ID,
		RevisionId:   w.Revision(),
		DesiredState: agentv1.DesiredState_DESIRED_STATE_RUNNING,
		Generation:   wire.Agent(w.Generation),
		Content:      w.Content,
		Adopts:       w.Adopted != "",
		Exclusive:    plain.GetExclusive(),
		OnLostLease:  orElse(plain.GetOnLostLease(), fsm.OnLostLeaseKeep),
		OnUnhealthy:  orderedOnUnhealthy(plain),
		Labels:       plain.GetLabels(),
		Spec:         &agentv1.WorkloadSpec{},
	}
	out.Spec.HealthCheck = agentHealthCheck(plain.GetHealthCheck())
	out.Spec.Namespace = w.In()
	out.Spec.Job = IsJob(plain)
	if out.Spec.Job && !w.SameSince.IsZero() {
		out.SameSince = wire.Agent(w.SameSince)
	}
	if w.Desired == fsm.DesiredStopped {
		out.DesiredState = agentv1.DesiredState_DESIRED_STATE_STOPPED
	}
	switch plain.GetType() {
	case TypeCompose:
		out.Type = agentv1.WorkloadType_WORKLOAD_TYPE_COMPOSE
		out.Spec.Spec = &agentv1.WorkloadSpec_Compose{Compose: agentCompose(w.ID, plain)}
	case TypeVM:
		out.Type = agentv1.WorkloadType_WORKLOAD_TYPE_VM
		out.Spec.Spec = &agentv1.WorkloadSpec_Vm{Vm: agentVM(w.ID, plain)}
	default:
		out.Type = agentv1.WorkloadType_WORKLOAD_TYPE_CONTAINER
		out.Spec.Spec = &agentv1.WorkloadSpec_Container{Container: agentContainer(plain)}
	}
	return out
}

func agentContainer(s *controlv1.WorkloadSpec) *agentv1.ContainerSpec {
	c, r := s.GetContainer(), s.GetResources()
	word, times := restartPolicyOf(c)
	out := &agentv1.ContainerSpec{
		Image:   c.GetImage(),
		Command: c.GetCommand(),
		Env:     c.GetEnv(),
		Resources: &agentv1.ResourceLimits{
			// Legacy v1 agents use the CPU shares, our agents the quota.
			CpuShares:     r.GetCpuMillicores(),
			CpuMillicores: r.GetCpuMillicores(),
			MemoryBytes:   r.GetMemoryMb() << 20,
		},
		RestartPolicy:  &agentv1.RestartPolicy{Policy: word, MaxRetryCount: times},
		ManagedVolumes: inPool(fromControlVolumes(c.GetManagedVolumes()), s),
		Privileged:     c.GetPrivileged(),
		DiskGb:         r.GetDiskGb(),
		User:           c.GetUser(), CapAdd: c.GetCapAdd(), CapDrop: c.GetCapDrop(), SecurityOpt: c.GetSecurityOpt(), PidsLimit: c.GetPidsLimit(),
		StopGracePeriodSeconds: c.GetStopGracePeriodSeconds(), StopSignal: c.GetStopSignal(),
	}
	for _, v := range c.GetVolumes() {
		out.Volumes = append(out.Volumes, &agentv1.VolumeMount{HostPath: v.GetHostPath(), ContainerPath: v.GetContainerPath(), ReadOnly: v.GetReadOnly()})
	}
	for _, p := range c.GetPorts() {
		if portMode(p) == portIngress {
			continue // the agent publishes no port in mode ingress: every node forwards it to the container's address
		}
		out.Ports = append(out.Ports, &agentv1.PortMapping{HostPort: p.GetHostPort(), ContainerPort: p.GetContainerPort(), Protocol: protocolOf(p.GetProtocol()), Address: p.GetAddress()})
	}
	for k, v := range s.GetMetadata() {
		// Our agents drop reserved labels, a legacy v1 agent would set them. Content keeps such an entry, so that the hashes
		// of stored specifications stay the same.
		if shownMetadata(k, v) && service.ReservedLabel(k) == "" {
			if out.Labels == nil {
				out.Labels = map[string]string{}
			}
			out.Labels[k] = v
		}
	}
	for _, kind := range cdiDevices(r) {
		if out.CountedDevices == nil {
			out.CountedDevices = map[string]int64{}
		}
		out.CountedDevices[kind] = r.GetDevices()[kind]
	}
	agentOptions(c, out)
	return out
}

func agentCompose(id string, s *controlv1.WorkloadSpec) *agentv1.ComposeSpec {
	c, d := s.GetCompose(), DemandOf(id, s)
	out := &agentv1.ComposeSpec{ProjectName: projectName(id), Env: c.GetEnv(), SourceType: sourceInline,
		CpuMillicores: d.GetCpuMillicores(), MemoryMb: d.GetMemoryMib(), DiskGb: d.GetDiskGb(),
		ManagedVolumes: inPool(fromControlVolumes(c.GetManagedVolumes()), s)}
	if isGit(c) {
		out.SourceType, out.GitRepo, out.GitRef, out.GitCredentials = sourceGit, c.GetGitRepo(), c.GetGitRef(), c.GetGitCredentials()
		return out
	}
	// Base64 is the only form of a Compose file that every legacy v1 agent understands.
	out.MainFile = c.GetMainFile()
	out.ComposeYaml = base64.StdEncoding.EncodeToString([]byte(plainCompose(c.GetInlineYaml())))
	return out
}

// inPool sets the workload's storage pool in its local volumes, because the planner reserved their size in
// that pool.
func inPool(volumes []*agentv1.ManagedVolumeSpec, s *controlv1.WorkloadSpec) []*agentv1.ManagedVolumeSpec {
	for _, v := range volumes {
		if driverOf(v.GetDriver()) == "local" {
			v.Pool = s.GetResources().GetStoragePool()
		}
	}
	return volumes
}

// projectName converts an id to a Compose project name: lower-case letters, digits, '-' and '_',
// beginning with a letter or digit.
func projectName(id string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '_':
			return r
		}
		return '-'
	}, id)
	return orElse(strings.TrimLeft(name, "-_"), "workload")
}

func agentVM(id string, s *controlv1.WorkloadSpec) *agentv1.VMSpec {
	from, _ := vmOf(s)
	if from == nil {
		return &agentv1.VMSpec{Name: id}
	}
	out := proto.CloneOf(from)
	inPool(out.ManagedVolumes, s)
	out.Name = orElse(out.Name, id)
	out.CpuMillicores = vmQuota(s, from)
	for _, d := range out.Disks {
		if d.Path == "" && d.Pool == "" && d.Type == "disk" {
			extension := "qcow2"
			if d.Format == "raw" {
				extension = "img"
			}
			d.Path = vmImages + id + "-" + d.Device + "." + extension
		}
	}
	for k, v := range s.GetMetadata() {
		if shownMetadata(k, v) {
			if out.Metadata == nil {
				out.Metadata = map[string]string{}
			}
			if _, own := out.Metadata[k]; !own {
				out.Metadata[k] = v
			}
		}
	}
	return out
}
