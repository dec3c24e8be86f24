package agent

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/pki"

	"github.com/persys/compute/agent/driver"
)

// intent is what should be true of one workload: the record of bucket workloads. The fields of
// Legacy v1 agents keep their names and meaning (contract/state-etcd.md, "Agent local store"); ours
// follow and are optional. An intent is never changed once published; a new one replaces it.
type intent struct {
	ID           string          `json:"id"`
	Type         driver.Kind     `json:"type"`
	RevisionID   string          `json:"revision_id"`
	DesiredState string          `json:"desired_state"` // running, stopped
	RawSpec      json.RawMessage `json:"spec"`          // one arm of agentv1.WorkloadSpec, secrets sealed
	CreatedAt    time.Time       `json:"created_at"`
	UpdatedAt    time.Time       `json:"updated_at"`

	// SealedBy is the id of the key that sealed RawSpec's secrets; empty in the file of an
	// Legacy v1 agent, where they are plain.
	SealedBy string `json:"sealed_by,omitempty"`
	// SealedStack: the text and the URL of a stack are sealed as well. Earlier versions sealed only its
	// environment.
	SealedStack bool `json:"sealed_stack,omitempty"`

	Generation driver.Generation `json:"generation,omitzero"`
	// Content is the scheduler's name for the specification; empty from schedulers without one.
	Content string `json:"content,omitempty"`
	// SpecHash is our own name for it, so that the same specification is recognised under another
	// scheduler's naming.
	SpecHash string `json:"spec_hash,omitempty"`
	// EngineContent is what the instance is labelled with. It changes only when the specification
	// does, or who may start the instance.
	EngineContent string `json:"engine_content,omitempty"`
	// An instance without content label whose revision label is LegacyRevision has LegacyContent:
	// a legacy v1 agent made it, and we took over its file.
	LegacyRevision string            `json:"legacy_revision,omitempty"`
	LegacyContent  string            `json:"legacy_content,omitempty"`
	Labels         map[string]string `json:"labels,omitempty"`
	Exclusive      bool              `json:"exclusive,omitempty"`
	OnLostLease    string            `json:"on_lost_lease,omitempty"`
	// Deleting: to be removed; Purge also removes volumes that are to be retained.
	Deleting bool `json:"deleting,omitempty"`
	Purge    bool `json:"purge,omitempty"`
	// KeepVolumes: deleted here because it lives on elsewhere, so no volume is deleted. KeepShared:
	// who ordered the delete cannot tell, so none that other nodes can reach is. Both outlast an order
	// that comes before the delete is carried out: what it removes is what was deleted.
	KeepVolumes bool `json:"keep_volumes,omitempty"`
	KeepShared  bool `json:"keep_shared,omitempty"`
	// Recreate: ordered anew before its delete was carried out.
	Recreate bool `json:"recreate,omitempty"`
	// Restart: a forced restart is due.
	Restart bool `json:"restart,omitempty"`
	// PreviousTypes still have an instance to remove after the type changed. Earlier versions wrote only the
	// last of them, as PreviousType.
	PreviousTypes []driver.Kind `json:"previous_types,omitempty"`
	PreviousType  driver.Kind   `json:"previous_type,omitempty"`

	// HealthCheck is beside the specification: no instance is made anew for it.
	HealthCheck json.RawMessage `json:"health_check,omitempty"`

	spec *agentv1.WorkloadSpec
}

func (in *intent) running() bool { return in.DesiredState == "running" }

// waitsAfterRestart: while this agent was away the schedulers may have placed it elsewhere.
func (in *intent) waitsAfterRestart() bool { return in.Exclusive && in.running() }

// keepsEnded: an explicit restart policy under which an ended workload stays ended. The engine
// carries out the restarts that on-failure asks for, except those of exclusive workloads, which are
// the agent's.
func (in *intent) keepsEnded(o *driver.Observed) bool {
	switch in.spec.GetContainer().GetRestartPolicy().GetPolicy() {
	case "no":
		return true
	case "on-failure":
		return !in.Exclusive || o == nil || o.State != driver.Failed
	}
	return false
}

func (in *intent) desired(asked bool, o *driver.Observed) desired {
	return desired{
		running: in.running(), content: in.EngineContent, deleting: in.Deleting,
		recreate: in.Recreate, restart: in.Restart, asked: asked, keepEnded: in.keepsEnded(o),
	}
}

// observed matches an engine's answer with the intent.
func (in *intent) observed(o *driver.Observed) observation {
	if o == nil {
		return observation{state: driver.Absent}
	}
	content := o.Content
	if content == "" {
		content = in.legacyContent(o)
	}
	return observation{state: o.State, content: content, current: content == "" && o.Revision == in.RevisionID}
}

func (in *intent) legacyContent(o *driver.Observed) string {
	switch {
	case in.LegacyRevision == "":
	case o.Revision == in.LegacyRevision:
		return in.LegacyContent
	case (in.Type == driver.Compose || in.Type == driver.VM) && o.Revision == "" && !o.Owned:
		// Legacy v1 agents put no labels on stacks and machines, which are told by their folder or name.
		return in.LegacyContent
	}
	return ""
}

// maxSpec is the size limit of RULES.md, in bytes.
const maxSpec = 512 << 10

var idPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

func checkID(field, id string) error {
	if !idPattern.MatchString(id) {
		return fmt.Errorf("%s: %.140q must match %s", field, id, idPattern)
	}
	return nil
}

// kindOf resolves the type and the arm of a request, which must agree.
func kindOf(t agentv1.WorkloadType, spec *agentv1.WorkloadSpec) (driver.Kind, error) {
	var arm driver.Kind
	switch spec.GetSpec().(type) {
	case *agentv1.WorkloadSpec_Container:
		arm = driver.Container
	case *agentv1.WorkloadSpec_Compose:
		arm = driver.Compose
	case *agentv1.WorkloadSpec_Vm:
		arm = driver.VM
	default:
		return "", errors.New("spec: one of container, compose and vm must be set")
	}
	if want := typeKind(t); t != agentv1.WorkloadType_WORKLOAD_TYPE_UNSPECIFIED && want != arm {
		return "", fmt.Errorf("type: %s does not fit a spec of type %s", t, arm)
	}
	return arm, nil
}

func typeKind(t agentv1.WorkloadType) driver.Kind {
	switch t {
	case agentv1.WorkloadType_WORKLOAD_TYPE_COMPOSE:
		return driver.Compose
	case agentv1.WorkloadType_WORKLOAD_TYPE_VM:
		return driver.VM
	}
	return driver.Container
}

func kindType(k driver.Kind) agentv1.WorkloadType {
	switch k {
	case driver.Container:
		return agentv1.WorkloadType_WORKLOAD_TYPE_CONTAINER
	case driver.Compose:
		return agentv1.WorkloadType_WORKLOAD_TYPE_COMPOSE
	case driver.VM:
		return agentv1.WorkloadType_WORKLOAD_TYPE_VM
	}
	return agentv1.WorkloadType_WORKLOAD_TYPE_UNSPECIFIED
}

// restartCounter reads n of a revision c1-<16 hex>-r<n>; 0 if there is none. A higher one under
// the same content asks for a restart (spec/DESIGN.md).
func restartCounter(revision string) int {
	if !strings.HasPrefix(revision, "c1-") {
		return 0
	}
	i := strings.LastIndex(revision, "-r")
	if i < 0 {
		return 0
	}
	n, err := strconv.Atoi(revision[i+2:])
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// hashSpec names a specification: a keyed SHA-256 over its JSON with sorted keys. JSON, because
// protobuf's bytes may change with the library; keyed, because it covers secrets.
func hashSpec(key *pki.Key, kind driver.Kind, spec *agentv1.WorkloadSpec, labels map[string]string) (string, error) {
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

// eachSecret lets fn replace every secret of a spec: environment values, the text of a Compose file
// (whose environment blocks hold secrets as often as not), the URL of a repository, which may hold
// credentials, and cloud-init documents. Without stack it leaves the text and the URL of a stack.
// The field is part of the seal, so that one secret can not stand in for another.
func eachSecret(spec *agentv1.WorkloadSpec, stack bool, fn func(field, value string) (string, error)) error {
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

// sealed says whether every secret of RawSpec is.
func (in *intent) sealed() bool {
	return in.SealedBy != "" && (in.SealedStack || in.Type != driver.Compose)
}

// seal fills RawSpec from spec.
func (in *intent) seal(key *pki.Key) error {
	spec := proto.Clone(in.spec).(*agentv1.WorkloadSpec)
	err := eachSecret(spec, true, func(field, value string) (string, error) {
		return key.Seal([]byte(value), []byte(in.ID+"\x00"+field))
	})
	if err != nil {
		return fmt.Errorf("workload %q: seal: %w", in.ID, err)
	}
	var arm proto.Message
	switch in.Type {
	case driver.Compose:
		arm = spec.GetCompose()
	case driver.VM:
		arm = spec.GetVm()
	default:
		arm = spec.GetContainer()
	}
	if in.RawSpec, err = (protojson.MarshalOptions{UseProtoNames: true}).Marshal(arm); err != nil {
		return fmt.Errorf("workload %q: spec: %w", in.ID, err)
	}
	in.HealthCheck = nil
	if check := spec.GetHealthCheck(); check != nil {
		if in.HealthCheck, err = (protojson.MarshalOptions{UseProtoNames: true}).Marshal(check); err != nil {
			return fmt.Errorf("workload %q: health_check: %w", in.ID, err)
		}
	}
	in.SealedBy, in.SealedStack = key.ID(), in.Type == driver.Compose
	return nil
}

// open fills spec from RawSpec, and what a legacy v1 agent's record lacks.
func (in *intent) open(key *pki.Key) error {
	if in.Type == "" {
		in.Type = driver.Container
	}
	spec, err := parseSpec(in.Type, in.RawSpec)
	if err != nil {
		return fmt.Errorf("workload %q: spec: %w", in.ID, err)
	}
	if in.SealedBy != "" {
		err := eachSecret(spec, in.SealedStack, func(field, value string) (string, error) {
			plain, err := key.Open(value, []byte(in.ID+"\x00"+field))
			if err != nil {
				return "", fmt.Errorf("%s: %w", field, err)
			}
			return string(plain), nil
		})
		if err != nil {
			return fmt.Errorf("workload %q: %w", in.ID, err)
		}
	}
	if len(in.HealthCheck) > 0 {
		spec.HealthCheck = &agentv1.HealthCheck{}
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(in.HealthCheck, spec.HealthCheck); err != nil {
			return fmt.Errorf("workload %q: health_check: %w", in.ID, err)
		}
	}
	in.spec = spec
	if in.DesiredState == "" {
		in.DesiredState = "running"
	}
	if in.PreviousType != "" {
		in.PreviousTypes, in.PreviousType = []driver.Kind{in.PreviousType}, ""
	}
	if in.SpecHash == "" {
		if in.SpecHash, err = hashSpec(key, in.Type, spec, in.Labels); err != nil {
			return fmt.Errorf("workload %q: %w", in.ID, err)
		}
		in.EngineContent = in.SpecHash
		in.LegacyRevision, in.LegacyContent = in.RevisionID, in.SpecHash
	}
	return nil
}

// parseSpec reads one arm, either bare, as agents write it, or wrapped in its name.
func parseSpec(kind driver.Kind, raw []byte) (*agentv1.WorkloadSpec, error) {
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
	case driver.Container:
		c := &agentv1.ContainerSpec{}
		return &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Container{Container: c}}, read.Unmarshal(raw, c)
	case driver.Compose:
		c := &agentv1.ComposeSpec{}
		return &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Compose{Compose: c}}, read.Unmarshal(raw, c)
	case driver.VM:
		c := &agentv1.VMSpec{}
		return &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Vm{Vm: c}}, read.Unmarshal(raw, c)
	}
	return nil, fmt.Errorf("type: %q is not container, compose or vm", kind)
}

// follow makes the intent that a request leaves behind old (nil: none). Whether anything is to be
// done shows in the differences.
func follow(key *pki.Key, old *intent, kind driver.Kind, req *agentv1.ApplyWorkloadRequest, now time.Time) (*intent, error) {
	state := "running"
	if req.DesiredState == agentv1.DesiredState_DESIRED_STATE_STOPPED {
		state = "stopped"
	}
	next := &intent{
		ID: req.Id, Type: kind, RevisionID: req.RevisionId, DesiredState: state,
		CreatedAt: now, UpdatedAt: now,
		Generation: generationFrom(req.Generation), Content: req.Content,
		Labels: maps.Clone(req.Labels), Exclusive: req.Exclusive, OnLostLease: req.OnLostLease,
		spec: proto.Clone(req.Spec).(*agentv1.WorkloadSpec),
	}
	var err error
	if next.SpecHash, err = hashSpec(key, kind, next.spec, next.Labels); err != nil {
		return nil, err
	}
	next.EngineContent = cmp.Or(next.Content, next.SpecHash)
	if next.Exclusive && kind != driver.VM {
		next.EngineContent += exclusively
	}
	if err := next.seal(key); err != nil {
		return nil, err
	}
	if old == nil {
		return next, nil
	}
	next.CreatedAt = old.CreatedAt
	next.LegacyRevision, next.LegacyContent = old.LegacyRevision, old.LegacyContent
	next.Recreate = old.Recreate || old.Deleting
	next.PreviousTypes = old.PreviousTypes
	if next.Recreate || len(old.PreviousTypes) > 0 {
		next.KeepVolumes, next.KeepShared = old.KeepVolumes, old.KeepShared
	}
	if old.Type != kind {
		// Changed back before the change was carried out: its removal may have begun.
		next.Recreate = slices.Contains(old.PreviousTypes, kind)
		next.PreviousTypes = slices.DeleteFunc(append(slices.Clone(old.PreviousTypes), old.Type), func(k driver.Kind) bool { return k == kind })
		return next, nil
	}
	if next.Generation == (driver.Generation{}) {
		next.Generation = old.Generation
	}
	if next.sameSpec(old) {
		// A guard stops only what is marked as ours, so what a legacy v1 agent made is defined anew for it.
		unmarked := next.guarded() && !old.guarded() && old.EngineContent == old.LegacyContent
		if (next.Exclusive == old.Exclusive || kind == driver.VM) && !unmarked {
			next.EngineContent = old.EngineContent
		} else if old.Exclusive && !next.Exclusive && old.EngineContent == next.EngineContent { // of an agent without that ending
			next.EngineContent += "+ordinary"
		}
		next.Restart = old.Restart || restartCounter(next.RevisionID) > restartCounter(old.RevisionID)
	}
	return next, nil
}

// exclusively ends the content of what its engine must not start by itself (no engine does so to a VM): what becomes
// exclusive, or ordinary, is thus replaced in place, with its volumes, for engines keep the restart policy of before.
const exclusively = "+exclusive"

// removed takes off what was carried out of a delete that an order has overtaken.
func (in *intent) removed() {
	if !in.Recreate && len(in.PreviousTypes) == 0 {
		in.KeepVolumes, in.KeepShared = false, false
	}
}

// sameSpec: nothing that an engine would see differs.
func (in *intent) sameSpec(old *intent) bool {
	if in.Type != old.Type {
		return false
	}
	return in.SpecHash == old.SpecHash || in.Content != "" && in.Content == old.Content
}

// sameEffect: what an engine is to do is the same. old may be nil.
func (in *intent) sameEffect(old *intent) bool {
	return old != nil && in.Type == old.Type && in.EngineContent == old.EngineContent && in.running() == old.running() && in.Recreate == old.Recreate
}

// sameOrder: the order asks for nothing new.
func (in *intent) sameOrder(old *intent) bool {
	return !old.Deleting && in.sameSpec(old) && in.EngineContent == old.EngineContent && in.DesiredState == old.DesiredState &&
		in.Recreate == old.Recreate && in.Restart == old.Restart && slices.Equal(in.PreviousTypes, old.PreviousTypes)
}

// sameRecord: nothing is to be stored either.
func (in *intent) sameRecord(old *intent) bool {
	return in.sameOrder(old) && in.RevisionID == old.RevisionID && in.Generation == old.Generation &&
		in.Content == old.Content && in.Exclusive == old.Exclusive && in.OnLostLease == old.OnLostLease &&
		proto.Equal(in.spec.GetHealthCheck(), old.spec.GetHealthCheck())
}

// promised is what placement reserved for the workload: millicores, MiB, GiB.
func (in *intent) promised() (cpu, memory, disk int64) {
	const mib = 1 << 20
	switch s := in.spec.GetSpec().(type) {
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
