// Package spec parses specifications and orders of the agent API, and derives the properties that the
// agent's core needs.
package spec

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/volume"
	"github.com/persys/compute/agent/workload"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/order"
	"github.com/persys/compute/pki"
)

// MaxSize is the maximum size of a specification, in bytes.
const MaxSize = 512 << 10

// MaxFiles is the maximum size of the archive with the files of a stack, in bytes.
const MaxFiles = 512 << 10

// MaxMemoryFiles is the maximum size, in bytes, of a workload's in-memory files in an order: 2 MiB of values, and 64
// KiB for names and other fields.
const MaxMemoryFiles = 2<<20 + 64<<10

// MaxPolicies is the maximum size of all policies in one order, in bytes.
const MaxPolicies = 1 << 20

// idPattern is the pattern of ids of workloads and nodes.
var idPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

// CheckID returns an error if id cannot be the id of a workload or node.
func CheckID(field, id string) error {
	if !idPattern.MatchString(id) {
		return fmt.Errorf("%s: %.140q must match %s", field, id, idPattern)
	}
	return nil
}

// kindOf returns the kind of a workload. It returns an error if the type in a request does not match the
// field of the oneof that is set in its specification.
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

// TypeOf returns the value of the agent API's enum WorkloadType for a kind.
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

// Hash returns a hash that identifies a specification: a keyed SHA-256 of its JSON with sorted keys. It uses
// JSON because the bytes of the protobuf encoding may change with the library. It uses a key because the
// specification contains secrets.
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
		delete(fields, "health_check") // the hash leaves out the health check, because engines do not use it
		delete(fields, "namespace")    // the hash leaves out the namespace: a workload never changes it, and older orders lack it
	}
	canonical, err := json.Marshal([]any{kind, tree, labels})
	if err != nil {
		return "", fmt.Errorf("spec: %w", err)
	}
	h := key.ContentHash()
	h.Write(canonical)
	return "a1:" + hex.EncodeToString(h.Sum(nil)), nil
}

// MemoryFiles returns the in-memory files (secrets and configs) of a container or a stack.
func MemoryFiles(spec *agentv1.WorkloadSpec) []*agentv1.MemoryFile {
	if c := spec.GetCompose(); c != nil {
		return c.GetMemoryFiles()
	}
	return spec.GetContainer().GetMemoryFiles()
}

// EachSecret replaces every secret of a specification by the result of fn: environment values, cloud-init
// documents and passwords. If stack is set, it also replaces the text of a Compose file, the files of the
// stack and the URL of its repository, which may all contain secrets. fn also gets the name of the field, and
// encrypts the value together with this name. So the encrypted value of one field cannot be decrypted as that
// of another field.
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
	files := func(of string, list []*agentv1.MemoryFile) error {
		for i, f := range list {
			data := string(f.Data)
			if err := text(fmt.Sprintf("%s.memory_files[%d]", of, i), &data); err != nil {
				return err
			}
			f.Data = []byte(data)
		}
		return nil
	}
	if c := spec.GetContainer(); c != nil {
		if err := values("container.env", c.Env); err != nil {
			return err
		}
		return files("container", c.MemoryFiles)
	}
	if c := spec.GetCompose(); c != nil {
		if err := values("compose.env", c.Env); err != nil || !stack {
			return err
		}
		archive := string(c.Files)
		err := errors.Join(text("compose.compose_yaml", &c.ComposeYaml), text("compose.git_repo", &c.GitRepo), text("compose.files", &archive), files("compose", c.MemoryFiles))
		if archive != "" {
			c.Files = []byte(archive)
		}
		return err
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

// Parse reads the specification of one kind of workload. The JSON is either the specification alone, as
// agents store it, or an object whose only key is the name of the kind.
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

// Order converts an apply request to an order of the core. The key is for Hash. If a field is invalid, the
// error names it.
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
	policies := slices.Clone(req.NodePolicies)
	if req.Policy != "" {
		policies = slices.Insert(policies, 0, req.Policy)
	}
	return core.Order{
		Sender: core.Sender{Epoch: Epoch(req.Epoch), Node: req.NodeId, Instance: req.InstanceId},
		ID:     req.Id, Kind: kind, Revision: req.RevisionId, Content: req.Content, SpecHash: hash,
		Generation: order.GenerationOf(req.Generation), SameSince: order.GenerationOf(req.SameSince), Running: req.DesiredState != agentv1.DesiredState_DESIRED_STATE_STOPPED,
		Labels: req.Labels, Adopts: req.Adopts, Exclusive: req.Exclusive, OnLostLease: req.OnLostLease,
		OnUnhealthy: req.OnUnhealthy, Traits: traits, Body: body,
		// Schedulers that send no epoch are legacy v1 schedulers. They have neither policies nor users
		// with less rights than an admin, so their orders are not Confined.
		Policies: policies, Confined: req.Epoch != nil && !req.AdminsOnly,
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
		n -= len(text) / 4 // schedulers limit the size of the text before they encode it in base64; base64 text has no colon
	}
	files := len(req.Spec.GetCompose().GetFiles())
	if files > MaxFiles {
		return "", fmt.Errorf("compose.files: %d bytes, limit %d", files, MaxFiles)
	}
	memory := 0
	for _, f := range MemoryFiles(req.Spec) {
		memory += proto.Size(f)
	}
	if memory > MaxMemoryFiles {
		return "", fmt.Errorf("memory_files: %d bytes, limit %d", memory, MaxMemoryFiles)
	}
	if n -= files + memory; n > MaxSize {
		return "", fmt.Errorf("spec: %d bytes, limit %d", n, MaxSize)
	}
	size := len(req.Policy)
	for _, p := range req.NodePolicies {
		size += len(p)
	}
	if size > MaxPolicies {
		return "", fmt.Errorf("policy, node_policies: %d bytes, limit %d", size, MaxPolicies)
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
	switch req.OnUnhealthy {
	case "", "keep", core.OnUnhealthyRestart:
	default:
		return "", fmt.Errorf("on_unhealthy: %q is not keep or restart", req.OnUnhealthy)
	}
	return kind, nil
}

// Delete converts a delete request to a delete of the core.
func Delete(req *agentv1.DeleteWorkloadRequest) (core.Delete, error) {
	return core.Delete{
		Sender: core.Sender{Epoch: Epoch(req.Epoch), Node: req.NodeId, Instance: req.InstanceId},
		ID:     req.Id, Generation: order.GenerationOf(req.Generation), Purge: req.Purge,
		KeepVolumes: req.KeepVolumes && !req.RetainVolumes, Retain: req.RetainVolumes,
	}, CheckID("id", req.GetId())
}

// Epoch converts the epoch in a message of the agent or control API. It returns nil if there is none.
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

// Of returns the specification in an intent.
func Of(in *core.Intent) *agentv1.WorkloadSpec {
	body, _ := in.Body.(*agentv1.WorkloadSpec)
	return body
}

// Traits returns the properties of a specification that the core needs.
func Traits(spec *agentv1.WorkloadSpec) (core.Traits, error) {
	cpu, memory, disk := promised(spec)
	t := core.Traits{
		RestartPolicy: spec.GetContainer().GetRestartPolicy().GetPolicy(), MaxRestarts: spec.GetContainer().GetRestartPolicy().GetMaxRetryCount(),
		Job:      spec.GetJob(),
		Promises: [3]int64{cpu, memory, disk}, DiskLimit: diskLimit(spec),
	}
	if check := spec.GetHealthCheck(); check != nil {
		raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(check)
		if err != nil {
			return t, fmt.Errorf("health_check: %w", err)
		}
		t.HealthCheck = "check " + hex.EncodeToString(raw)
	}
	t.LiveFiles = liveFiles(spec)
	return t, nil
}

// liveFiles returns a hash of the in-memory files that the agent replaces while the instance runs, and after
// which it signals the instance. It returns "" if there are none.
func liveFiles(spec *agentv1.WorkloadSpec) string {
	h, some := sha256.New(), false
	for _, f := range MemoryFiles(spec) {
		if f.GetSignal() != "" {
			some = true
			fmt.Fprintf(h, "%q %q %q %d ", f.GetService(), f.GetTarget(), f.GetSignal(), len(f.GetData()))
			h.Write(f.GetData())
		}
	}
	if !some {
		return ""
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Volumes returns the managed volumes that a specification names.
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

// promised returns the resources that placement reserves for a workload: millicores, MiB, GiB.
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

// diskLimit returns how many bytes a workload may occupy: the disk that it reserves, less the sizes of its
// local volumes that have a fixed size. 0 means no limit. VMs have no limit, because each of their disks has
// a fixed size.
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
