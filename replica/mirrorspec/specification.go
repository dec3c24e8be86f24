// Package mirrorspec translates between specifications of the API and the workload records that the mirror
// writes to etcd.
package mirrorspec

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"

	agentv1 "github.com/persys/compute/api/agent/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/mirror"
	"github.com/persys/compute/spec"
)

// schedulerKeys are the metadata keys that legacy v1 schedulers and agents add to the metadata that the workload's
// owner has set (contract/state-etcd.md, "Workload metadata keys", and contract/semantics.md, section 11). A name that
// ends in a dot or underscore stands for all keys with this prefix.
var schedulerKeys = [...]string{
	"created_at", "last_action", "assignment_reason", "previous_node", "drift_reason", "drift_reconciled_at",
	"lastApplyRequestAt", "lastApplyRevision", "lastLaunchTime", "reapplyAttempts", "reapplyNextAt",
	"failureObservedAt", "failureGraceUntil", "lastReconciliation", "lastReconciliationAction", "lastReconciliationSuccess",
	"reconciliationRetryCount", "last_error", "scheduler_last_error", "last_runtime_error", "terminal_failure_reason",
	"reason_", "usage_", "managed_storage_state", "task_id", "task_status", "container.", "vm.",
	"failure_reason", "failure_message", "last_failure_at", "last_delete_error", "retry_attempts", "next_retry_time",
	"retry_terminal", "retry_terminal_reason", "resource_issues", "pending_since", "pending_recovery_",
}

func schedulersOwn(key string) bool {
	return slices.ContainsFunc(schedulerKeys[:], func(k string) bool {
		if end := k[len(k)-1]; end == '.' || end == '_' {
			return strings.HasPrefix(key, k)
		}
		return key == k
	})
}

// Specification turns the documented fields of a record in etcd back into the apply request that its owner
// made. It is the inverse of Fields. Fields that records never contained (group, constraints, privileges)
// stay unset.
func Specification(w *mirror.Workload) (*controlv1.ApplyWorkloadRequest, error) {
	s := &controlv1.WorkloadSpec{
		Resources: &controlv1.ResourceRequirements{
			CpuMillicores: int64(math.Round(w.Resources.CPU * 1000)), MemoryMb: int64(math.Round(w.Resources.Memory)), DiskGb: w.Resources.Disk,
		},
		Labels: w.Labels,
	}
	for k, v := range w.Metadata {
		if text, ok := v.(string); ok && !schedulersOwn(k) {
			if s.Metadata == nil {
				s.Metadata = map[string]string{}
			}
			s.Metadata[k] = text
		}
	}
	var err error
	switch kind := typeOf(w); kind {
	case spec.TypeContainer:
		s.Type = kind
		var c *controlv1.ContainerSpec
		if c, err = containerOf(w); err == nil {
			s.Workload = &controlv1.WorkloadSpec_Container{Container: c}
		}
	case spec.TypeCompose:
		s.Type = kind
		var c *controlv1.ComposeSpec
		if c, err = composeOf(w); err == nil {
			s.Workload = &controlv1.WorkloadSpec_Compose{Compose: c}
		}
	case spec.TypeVM:
		s.Type = kind
		if s.Metadata == nil {
			s.Metadata = map[string]string{}
		}
		if s.Metadata[spec.MetadataVMSpec] == "" {
			s.Metadata[spec.MetadataVMSpec], err = vmOf(w)
		}
	default:
		return nil, fmt.Errorf("type: %q is none of container, compose, vm", w.Type)
	}
	if err != nil {
		return nil, err
	}
	return &controlv1.ApplyWorkloadRequest{WorkloadId: w.ID, RevisionId: w.RevisionID, Spec: s}, nil
}

// typeOf returns the workload type of a record. It translates the type names of legacy v1 peers. If a record
// has no type, the type follows from its other fields.
func typeOf(w *mirror.Workload) string {
	switch t := strings.ToLower(strings.TrimSpace(w.Type)); t {
	case "docker-container", "docker":
		return spec.TypeContainer
	case "docker-compose", "git-compose":
		return spec.TypeCompose
	case "":
		switch {
		case w.VM != nil:
			return spec.TypeVM
		case w.Compose != "" || w.ComposeYAML != "" || w.GitRepo != "":
			return spec.TypeCompose
		case w.Image != "":
			return spec.TypeContainer
		}
		return ""
	default:
		return t
	}
}

func containerOf(w *mirror.Workload) (*controlv1.ContainerSpec, error) {
	c := &controlv1.ContainerSpec{
		Image: w.Image, Command: w.CommandList, Env: w.EnvVars, RestartPolicy: w.RestartPolicy, ManagedVolumes: volumesOf(w.ManagedVolumes),
	}
	if len(c.Command) == 0 && w.Command != "" {
		c.Command = strings.Fields(w.Command)
	}
	for i, text := range w.Ports {
		p, err := portOf(text)
		if err != nil {
			return nil, fmt.Errorf("ports[%d]: %q %w", i, text, err)
		}
		c.Ports = append(c.Ports, p)
	}
	for i, text := range w.Volumes {
		host, rest, ok := strings.Cut(text, ":")
		inside, how, _ := strings.Cut(rest, ":")
		if !ok || host == "" || inside == "" {
			return nil, fmt.Errorf("volumes[%d]: %q is not host:container[:ro]", i, text)
		}
		c.Volumes = append(c.Volumes, &controlv1.VolumeMount{HostPath: host, ContainerPath: inside, ReadOnly: slices.Contains(strings.Split(how, ","), "ro")})
	}
	return c, nil
}

// portOf parses a port of the form host:container/protocol.
func portOf(text string) (*controlv1.Port, error) {
	numbers, protocol, _ := strings.Cut(text, "/")
	host, inside, ok := strings.Cut(numbers, ":")
	if !ok {
		host, inside = "0", numbers // no host port is given, so the engine chooses one
	}
	h, err := strconv.ParseInt(host, 10, 32)
	if err == nil {
		var c int64
		if c, err = strconv.ParseInt(inside, 10, 32); err == nil {
			return &controlv1.Port{HostPort: int32(h), ContainerPort: int32(c), Protocol: protocol}, nil
		}
	}
	return nil, errors.New("is not host:container/protocol")
}

func volumesOf(list []mirror.ManagedVolume) (out []*controlv1.ManagedVolumeSpec) {
	for _, v := range list {
		out = append(out, &controlv1.ManagedVolumeSpec{
			Name: v.Name, Driver: v.Driver, SizeGb: v.SizeGB, AccessMode: v.AccessMode, FsType: v.FSType,
			MountPath: v.MountPath, ReadOnly: v.ReadOnly, RetainPolicy: v.RetainPolicy,
		})
	}
	return out
}

// composeOf returns the Compose part of a record's specification. A Git token in the record becomes the user
// in the URL, as the API expects it.
func composeOf(w *mirror.Workload) (*controlv1.ComposeSpec, error) {
	c := &controlv1.ComposeSpec{Env: w.EnvVars}
	if w.GitRepo == "" {
		c.SourceType, c.InlineYaml = "inline", w.ComposeYAML
		if c.InlineYaml == "" {
			c.InlineYaml = w.Compose
		}
		return c, nil
	}
	c.SourceType, c.GitRepo, c.GitRef = "git", w.GitRepo, w.GitBranch
	if w.GitToken == "" {
		return c, nil
	}
	u, err := url.Parse(w.GitRepo)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("gitToken: is set, but gitRepo is no https URL into which it could be put")
	}
	if u.User == nil {
		u.User = url.User(w.GitToken)
		c.GitRepo = u.String()
	}
	return c, nil
}

// vmOf returns the virtual machine of a record as JSON of the agent API, which has the same fields. Paths,
// formats and addresses of a machine that is already running stay unchanged.
func vmOf(w *mirror.Workload) (string, error) {
	v := w.VM
	if v == nil {
		return "", errors.New("vm: is missing")
	}
	out := &agentv1.VMSpec{
		Name: v.Name, Vcpus: int32(min(v.VCPUs, math.MaxInt32)), MemoryMb: v.MemoryMB, CloudInit: v.CloudInit, Metadata: v.Metadata, OsImage: w.Image,
	}
	volumes := v.ManagedVolumes
	if len(volumes) == 0 {
		volumes = w.ManagedVolumes
	}
	for _, m := range volumes {
		out.ManagedVolumes = append(out.ManagedVolumes, &agentv1.ManagedVolumeSpec{
			Name: m.Name, Driver: m.Driver, SizeGb: m.SizeGB, AccessMode: m.AccessMode, FsType: m.FSType,
			MountPath: m.MountPath, ReadOnly: m.ReadOnly, RetainPolicy: m.RetainPolicy,
		})
	}
	for _, d := range v.Disks {
		out.Disks = append(out.Disks, &agentv1.DiskConfig{Path: d.Path, Device: d.Device, Format: d.Format, SizeGb: d.SizeGB, Type: d.Type, Boot: d.Boot})
	}
	for _, n := range v.Networks {
		out.Networks = append(out.Networks, &agentv1.NetworkConfig{Network: n.Network, MacAddress: n.MACAddress, IpAddress: n.IPAddress})
	}
	if c := v.CloudInitConfig; c != nil {
		out.CloudInitConfig = &agentv1.CloudInitConfig{UserData: c.UserData, MetaData: c.MetaData, NetworkConfig: c.NetworkConfig, VendorData: c.VendorData}
	}
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(out)
	return base64.StdEncoding.EncodeToString(text), err
}
