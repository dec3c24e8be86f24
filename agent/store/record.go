package store

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/spec"
	"github.com/persys/compute/agent/workload"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/pki"
)

// record is an intent (the last order for a workload) as it is stored in the state file. Fields that legacy v1
// agents have keep their names and meaning (contract/state-etcd.md, "Agent local store"). Our further fields
// are optional.
type record struct {
	core.Intent
	RawSpec json.RawMessage `json:"spec"` // the specification of the workload's type as JSON, with sealed secrets
	// SealedBy is the id of the key with which the secrets in RawSpec are encrypted. It is empty in the state
	// file of a legacy v1 agent, where secrets are in plain text.
	SealedBy string `json:"sealed_by,omitempty"`
	// SealedStack: in the specification of a stack, the Compose text and the repository URL are encrypted too.
	// Earlier versions encrypted only the environment.
	SealedStack bool `json:"sealed_stack,omitempty"`
	// PreviousType is used only in state files that an earlier version of the agent wrote. It stored one type
	// there, which is now the last element of PreviousTypes.
	PreviousType workload.Kind `json:"previous_type,omitempty"`
	// HealthCheck is stored outside RawSpec, because a changed health check does not replace the instance.
	HealthCheck json.RawMessage `json:"health_check,omitempty"`
}

// sealed reports whether every secret in RawSpec is encrypted.
func (r *record) sealed() bool {
	return r.SealedBy != "" && (r.SealedStack || r.Type != workload.Compose)
}

var writeJSON = protojson.MarshalOptions{UseProtoNames: true}

// seal fills RawSpec with the specification, in which the secrets are encrypted with key.
func (r *record) seal(key *pki.Key) error {
	body := proto.CloneOf(spec.Of(&r.Intent))
	err := spec.EachSecret(body, true, func(field, value string) (string, error) {
		return key.Seal([]byte(value), []byte(r.ID+"\x00"+field))
	})
	if err != nil {
		return fmt.Errorf("workload %q: seal: %w", r.ID, err)
	}
	var arm proto.Message
	switch r.Type {
	case workload.Compose:
		arm = body.GetCompose()
	case workload.VM:
		arm = body.GetVm()
	default:
		arm = body.GetContainer()
	}
	if r.RawSpec, err = writeJSON.Marshal(arm); err != nil {
		return fmt.Errorf("workload %q: spec: %w", r.ID, err)
	}
	r.HealthCheck = nil
	if check := body.GetHealthCheck(); check != nil {
		if r.HealthCheck, err = writeJSON.Marshal(check); err != nil {
			return fmt.Errorf("workload %q: health_check: %w", r.ID, err)
		}
	}
	r.SealedBy, r.SealedStack = key.ID(), r.Type == workload.Compose
	return nil
}

// open fills the specification from RawSpec, and decrypts its secrets with key. It also fills fields that the
// record of a legacy v1 agent lacks.
func (r *record) open(key *pki.Key) error {
	if r.Type == "" {
		r.Type = workload.Container
	}
	body, err := spec.Parse(r.Type, r.RawSpec)
	if err != nil {
		return fmt.Errorf("workload %q: spec: %w", r.ID, err)
	}
	if r.SealedBy != "" {
		err := spec.EachSecret(body, r.SealedStack, func(field, value string) (string, error) {
			plain, err := key.Open(value, []byte(r.ID+"\x00"+field))
			if err != nil {
				return "", fmt.Errorf("%s: %w", field, err)
			}
			return string(plain), nil
		})
		if err != nil {
			return fmt.Errorf("workload %q: %w", r.ID, err)
		}
	}
	if len(r.HealthCheck) > 0 {
		body.HealthCheck = &agentv1.HealthCheck{}
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(r.HealthCheck, body.HealthCheck); err != nil {
			return fmt.Errorf("workload %q: health_check: %w", r.ID, err)
		}
	}
	r.Body = body
	if r.Traits, err = spec.Traits(body); err != nil {
		return fmt.Errorf("workload %q: %w", r.ID, err)
	}
	if r.DesiredState == "" {
		r.DesiredState = "running"
	}
	if r.PreviousType != "" {
		r.PreviousTypes, r.PreviousType = []workload.Kind{r.PreviousType}, ""
	}
	if r.SpecHash == "" {
		if r.SpecHash, err = spec.Hash(key, r.Type, body, r.Labels); err != nil {
			return fmt.Errorf("workload %q: %w", r.ID, err)
		}
		r.EngineContent = r.SpecHash
		r.LegacyRevision, r.LegacyContent = r.RevisionID, r.SpecHash
	}
	return nil
}

// status is the last report of a workload as it is stored in the state file. Legacy v1 agents have the fields
// up to Metadata.
type status struct {
	ID           string            `json:"id"`
	Type         workload.Kind     `json:"type"`
	RevisionID   string            `json:"revision_id"`
	DesiredState string            `json:"desired_state"`
	ActualState  string            `json:"actual_state"` // state of the workload: "pending", "running", "stopped", "failed" or "unknown"
	Message      string            `json:"message"`
	CreatedAt    time.Time         `json:"created_at"`
	UpdatedAt    time.Time         `json:"updated_at"`
	Metadata     map[string]string `json:"metadata,omitempty"`
	Failure      core.Failure      `json:"failure,omitzero"`
	Healing      core.Healing      `json:"healing,omitzero"`
}

func statusOf(w *core.Workload) status {
	st := w.Status
	return status{
		ID: w.ID, Type: w.Kind, RevisionID: st.Revision, DesiredState: w.Intent.DesiredState,
		ActualState: strings.ToLower(string(st.State)), Message: st.Message,
		CreatedAt: w.Intent.CreatedAt, UpdatedAt: st.UpdatedAt.UTC(), Metadata: st.Metadata, Failure: w.Failure, Healing: w.Healing,
	}
}

// saved converts the stored report to the core's form. After a restart the agent shows this report until the
// engine has answered.
func (s *status) saved(in *core.Intent) core.SavedStatus {
	state := workload.Unknown
	for _, known := range []workload.State{workload.Pending, workload.Running, workload.Stopped, workload.Failed} {
		if strings.EqualFold(string(known), s.ActualState) {
			state = known
		}
	}
	return core.SavedStatus{Failure: s.Failure, Healing: s.Healing, Status: &core.Status{
		ID: in.ID, Kind: in.Type, Revision: in.RevisionID, DesiredState: in.DesiredState, State: state, Message: s.Message,
		Class: s.Failure.Class, Generation: in.Generation, Metadata: s.Metadata, CreatedAt: in.CreatedAt,
		UpdatedAt: s.UpdatedAt, Since: s.UpdatedAt, RetryAt: s.Failure.Next,
	}}
}
