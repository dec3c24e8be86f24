// Package spec reads specifications and orders of the agent API, and gives the agent's core what it has
// to know of them.
package spec

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/volume"
	"github.com/persys/compute/agent/workload"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/pki"
)

// MaxSize of a specification, in bytes.
const MaxSize = 512 << 10

// idPattern of workloads and nodes.
var idPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

// CheckID refuses what cannot be the id of a workload or node.
func CheckID(field, id string) error {
	if !idPattern.MatchString(id) {
		return fmt.Errorf("%s: %.140q must match %s", field, id, idPattern)
	}
	return nil
}

// kindOf resolves the type and the arm of a request, which must agree.
func kindOf(t agentv1.WorkloadType, spec *agentv1.WorkloadSpec) (workload.Kind, error) {
	var arm workload.Kind
	switch spec.GetSpec().(type) {
	case *agentv1.WorkloadSpec_Container:
		arm = workload.Container
	case *agentv1.WorkloadSpec_Compose:
		arm = workload.Compose
	case *agentv1.WorkloadSpec_Vm:
		arm = workload.VM
	default:
		return "", errors.New("spec: one of container, compose and vm must be set")
	}
	if want := kindFrom(t); t != agentv1.WorkloadType_WORKLOAD_TYPE_UNSPECIFIED && want != arm {
		return "", fmt.Errorf("type: %s does not fit a spec of type %s", t, arm)
	}
	return arm, nil
}

func kindFrom(t agentv1.WorkloadType) workload.Kind {
	switch t {
	case agentv1.WorkloadType_WORKLOAD_TYPE_COMPOSE:
		return workload.Compose
	case agentv1.WorkloadType_WORKLOAD_TYPE_VM:
		return workload.VM
	}
	return workload.Container
}

// TypeOf is the API's name for a kind.
func TypeOf(k workload.Kind) agentv1.WorkloadType {
	switch k {
	case workload.Container:
		return agentv1.WorkloadType_WORKLOAD_TYPE_CONTAINER
	case workload.Compose:
		return agentv1.WorkloadType_WORKLOAD_TYPE_COMPOSE
	case workload.VM:
		return agentv1.WorkloadType_WORKLOAD_TYPE_VM
	}
	return agentv1.WorkloadType_WORKLOAD_TYPE_UNSPECIFIED
}

// Hash names a specification: a keyed SHA-256 over its JSON with sorted keys. It is over JSON because
// protobuf's bytes may change with the library, and keyed because it covers secrets.
func Hash(key *pki.Key, kind workload.Kind, spec *agentv1.WorkloadSpec, labels map[string]string) (string, error) {
	raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(spec)
	if err != nil {
		return "", fmt.Errorf("spec: %w", err)
	}
	var tree any
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	if err := decoder.Decode(&tree); err != nil {
		return "", fmt.Errorf("spec: %w", err)
	}
	if fields, ok := tree.(map[string]any); ok {
		delete(fields, "health_check") // no engine sees it
	}
	canonical, err := json.Marshal([]any{kind, tree, labels})
	if err != nil {
		return "", fmt.Errorf("spec: %w", err)
	}
	h := key.ContentHash()
	h.Write(canonical)
	return "a1:" + hex.EncodeToString(h.Sum(nil)), nil
}

// EachSecret lets fn replace every secret of a specification: environment values, cloud-init documents,
// passwords, and, with stack, the text of a Compose file and the URL of its repository, which may both
// contain secrets. The field is part of the seal, so that one secret cannot replace another.
func EachSecret(spec *agentv1.WorkloadSpec, stack bool, fn func(field, value string) (string, error)) error {
	values := func(field string, m map[string]string) error {
		for k, v := range m {
			out, err := fn(field+"."+k, v)
			if err != nil {
				return err
			}
			m[k] = out
		}
		return nil
	}
	text := func(field string, s *string) error {
		if *s == "" {
			return nil
		}
		out, err := fn(field, *s)
		if err != nil {
			return err
		}
		*s = out
		return nil
	}
	if c := spec.GetContainer(); c != nil {
		return values("container.env", c.Env)
	}
	if c := spec.GetCompose(); c != nil {
		if err := values("compose.env", c.Env); err != nil || !stack {
			return err
		}
		return errors.Join(text("compose.compose_yaml", &c.ComposeYaml), text("compose.git_repo", &c.GitRepo))
	}
	vm := spec.GetVm()
	if vm == nil {
		return nil
	}
	if err := text("vm.cloud_init", &vm.CloudInit); err != nil {
		return err
	}
	if l := vm.Login; l != nil {
		if err := text("vm.login.password", &l.Password); err != nil {
			return err
		}
	}
	if c := vm.CloudInitConfig; c != nil {
		return errors.Join(
			text("vm.user_data", &c.UserData), text("vm.meta_data", &c.MetaData),
			text("vm.network_config", &c.NetworkConfig), text("vm.vendor_data", &c.VendorData))
	}
	return nil
}

// Parse reads one arm of a specification, either bare, as agents write it, or under its name.
func Parse(kind workload.Kind, raw []byte) (*agentv1.WorkloadSpec, error) {
	if kind == "" {
		return nil, errors.New("type: must not be empty")
	}
	var outer map[string]json.RawMessage
	if err := json.Unmarshal(raw, &outer); err != nil {
		return nil, err
	}
	for _, name := range []string{"spec", "Spec", string(kind), strings.ToUpper(string(kind[:1])) + string(kind[1:]), strings.ToUpper(string(kind))} {
		inner, ok := outer[name]
		if !ok || len(inner) == 0 || inner[0] != '{' {
			continue
		}
		raw = inner
		var next map[string]json.RawMessage
		if err := json.Unmarshal(raw, &next); err != nil {
			return nil, err
		}
		outer = next
	}
	read := protojson.UnmarshalOptions{DiscardUnknown: true}
	switch kind {
	case workload.Container:
		c := &agentv1.ContainerSpec{}
		return &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Container{Container: c}}, read.Unmarshal(raw, c)
	case workload.Compose:
		c := &agentv1.ComposeSpec{}
		return &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Compose{Compose: c}}, read.Unmarshal(raw, c)
	case workload.VM:
		c := &agentv1.VMSpec{}
		return &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Vm{Vm: c}}, read.Unmarshal(raw, c)
	}
	return nil, fmt.Errorf("type: %q is not container, compose or vm", kind)
}

// Order reads an apply. The key is for Hash. The error names the field that is wrong.
func Order(key *pki.Key, req *agentv1.ApplyWorkloadRequest) (core.Order, error) {
	kind, err := check(req)
	if err != nil {
		return core.Order{}, err
	}
	body := proto.CloneOf(req.Spec)
	hash, err := Hash(key, kind, body, req.Labels)
	if err != nil {
		return core.Order{}, err
	}
	traits, err := Traits(body)
	if err != nil {
		return core.Order{}, err
	}
	return core.Order{
		Sender: core.Sender{Epoch: Epoch(req.Epoch), Node: req.NodeId, Instance: req.InstanceId},
		ID:     req.Id, Kind: kind, Revision: req.RevisionId, Content: req.Content, SpecHash: hash,
		Generation: Generation(req.Generation), Running: req.DesiredState != agentv1.DesiredState_DESIRED_STATE_STOPPED,
		Labels: req.Labels, Exclusive: req.Exclusive, OnLostLease: req.OnLostLease, Traits: traits, Body: body,
	}, nil
}

func check(req *agentv1.ApplyWorkloadRequest) (workload.Kind, error) {
	if err := CheckID("id", req.GetId()); err != nil {
		return "", err
	}
	if req.Spec == nil {
		return "", errors.New("spec: one of container, compose and vm must be set")
	}
	n := proto.Size(req.Spec)
	if text := req.Spec.GetCompose().GetComposeYaml(); !strings.Contains(text, ":") {
		n -= len(text) / 4 // schedulers measure it before they encode it in base64, which has no colon
	}
	if n > MaxSize {
		return "", fmt.Errorf("spec: %d bytes, limit %d", n, MaxSize)
	}
	kind, err := kindOf(req.Type, req.Spec)
	if err != nil {
		return "", err
	}
	switch req.OnLostLease {
	case "", "keep", "stop":
	default:
		return "", fmt.Errorf("on_lost_lease: %q is not keep or stop", req.OnLostLease)
	}
	return kind, nil
}

// Delete reads a delete.
func Delete(req *agentv1.DeleteWorkloadRequest) (core.Delete, error) {
	return core.Delete{
		Sender: core.Sender{Epoch: Epoch(req.Epoch), Node: req.NodeId, Instance: req.InstanceId},
		ID:     req.Id, Generation: Generation(req.Generation), Purge: req.Purge, KeepVolumes: req.KeepVolumes,
	}, CheckID("id", req.GetId())
}

// Epoch reads the epoch of a message of either API; nil if there is none.
func Epoch[M interface {
	comparable
	GetClusterId() string
	GetShard() string
	GetIncarnation() uint64
	GetTerm() uint64
}](m M) *core.Epoch {
	var none M
	if m == none {
		return nil
	}
	return &core.Epoch{ClusterID: m.GetClusterId(), Shard: m.GetShard(), Incarnation: m.GetIncarnation(), Term: m.GetTerm()}
}

// Generation reads a generation; none is zero.
func Generation(m *agentv1.Generation) workload.Generation {
	return workload.Generation{Incarnation: m.GetIncarnation(), Sequence: m.GetSequence()}
}

// Of is the specification of an intent.
func Of(in *core.Intent) *agentv1.WorkloadSpec {
	body, _ := in.Body.(*agentv1.WorkloadSpec)
	return body
}

// Traits are what the core has to know of a specification.
func Traits(spec *agentv1.WorkloadSpec) (core.Traits, error) {
	cpu, memory, disk := promised(spec)
	t := core.Traits{
		RestartPolicy: spec.GetContainer().GetRestartPolicy().GetPolicy(),
		Promises:      [3]int64{cpu, memory, disk}, DiskLimit: diskLimit(spec),
	}
	if check := spec.GetHealthCheck(); check != nil {
		raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(check)
		if err != nil {
			return t, fmt.Errorf("health_check: %w", err)
		}
		t.HealthCheck = "check " + hex.EncodeToString(raw)
	}
	return t, nil
}

// Volumes are the managed volumes that a specification names.
func Volumes(spec *agentv1.WorkloadSpec) []*agentv1.ManagedVolumeSpec {
	switch s := spec.GetSpec().(type) {
	case *agentv1.WorkloadSpec_Container:
		return s.Container.GetManagedVolumes()
	case *agentv1.WorkloadSpec_Compose:
		return s.Compose.GetManagedVolumes()
	case *agentv1.WorkloadSpec_Vm:
		return s.Vm.GetManagedVolumes()
	}
	return nil
}

// promised is what placement reserves for a workload: millicores, MiB, GiB.
func promised(spec *agentv1.WorkloadSpec) (cpu, memory, disk int64) {
	const mib = 1 << 20
	switch s := spec.GetSpec().(type) {
	case *agentv1.WorkloadSpec_Container:
		c := s.Container
		cpu = c.GetCpuMillicores()
		if cpu == 0 {
			cpu = c.GetResources().GetCpuMillicores()
		}
		if cpu == 0 {
			cpu = c.GetResources().GetCpuShares()
		}
		return cpu, c.GetResources().GetMemoryBytes() / mib, c.GetDiskGb()
	case *agentv1.WorkloadSpec_Compose:
		c := s.Compose
		return c.GetCpuMillicores(), c.GetMemoryMb(), c.GetDiskGb()
	case *agentv1.WorkloadSpec_Vm:
		for _, d := range s.Vm.GetDisks() {
			disk += d.GetSizeGb()
		}
		cpu = s.Vm.GetCpuMillicores()
		if cpu == 0 {
			cpu = int64(s.Vm.GetVcpus()) * 1000
		}
		return cpu, s.Vm.GetMemoryMb(), disk
	}
	return 0, 0, 0
}

// diskLimit is how many bytes a workload may occupy: the disk that it reserves, less its local volumes of
// a fixed size. 0 is no limit. VMs have none: each of their disks has a size.
func diskLimit(spec *agentv1.WorkloadSpec) int64 {
	const gib = 1 << 30
	var promised int64
	switch s := spec.GetSpec().(type) {
	case *agentv1.WorkloadSpec_Container:
		promised = s.Container.GetDiskGb()
	case *agentv1.WorkloadSpec_Compose:
		promised = s.Compose.GetDiskGb()
	}
	for _, v := range Volumes(spec) {
		if d := v.GetDriver(); d == "" || d == volume.Local {
			promised -= v.GetSizeGb()
		}
	}
	return max(0, min(promised, 1<<30)) * gib
}
