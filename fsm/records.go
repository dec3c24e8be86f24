package fsm

import (
	"fmt"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/fsm/receipts"
	"github.com/persys/compute/order"
)

// Conversions between records and their snapshot messages.

func infoPB(m *Info) *commandv1.MetaRecord {
	return &commandv1.MetaRecord{
		ClusterId: m.ClusterID, Incarnation: m.Incarnation, Shard: m.Shard, Sequence: m.Sequence, Clock: m.Clock,
		Mode: string(m.Mode), ModeReason: m.ModeReason, ModeChangedAt: m.ModeChangedAt, FeatureLevel: m.FeatureLevel,
		Digest: m.Digest, EventSeq: m.EventSeq, ReceiptSeq: m.ReceiptSeq, ReceiptsDroppedUntil: m.ReceiptsDroppedUntil,
		Index: m.Index, Term: m.Term, MirrorEtcd: m.MirrorEtcd, ModePinned: m.ModePinned,
		ClusterKeyId: m.ClusterKeyID, TrustVersion: m.TrustVersion,
		GossipRing: m.GossipRing, GossipVersion: m.GossipVersion,
		MirrorPin: m.MirrorPin, MirrorEndpoints: m.MirrorEndpoints,
		NetworkId: m.NetworkID, NetworkIndex: m.NetworkIndex,
		ObjectFloor: m.ObjectFloor,
		NextKeyId:   m.NextKeyID, FormerKeyId: m.FormerKeyID, CleanIndex: m.CleanIndex, RetiredKeyIds: m.RetiredKeyIDs,
		ContentKey: m.ContentKey, KeyChangedAt: m.KeyChangedAt,
		Rebalance: m.Rebalance.PB(),
	}
}

func infoOf(m *commandv1.MetaRecord) Info {
	return Info{
		ClusterID: m.GetClusterId(), Incarnation: m.GetIncarnation(), Shard: m.GetShard(), Sequence: m.GetSequence(),
		Clock: m.GetClock(), Mode: Mode(m.GetMode()), ModeReason: m.GetModeReason(), ModeChangedAt: m.GetModeChangedAt(),
		FeatureLevel: m.GetFeatureLevel(), Digest: m.GetDigest(), EventSeq: m.GetEventSeq(), ReceiptSeq: m.GetReceiptSeq(),
		ReceiptsDroppedUntil: m.GetReceiptsDroppedUntil(), Index: m.GetIndex(), Term: m.GetTerm(),
		MirrorEtcd: m.GetMirrorEtcd(), ModePinned: m.GetModePinned(),
		ClusterKeyID: m.GetClusterKeyId(), TrustVersion: m.GetTrustVersion(),
		GossipRing: m.GetGossipRing(), GossipVersion: m.GetGossipVersion(),
		MirrorPin: m.GetMirrorPin(), MirrorEndpoints: m.GetMirrorEndpoints(),
		NetworkID: m.GetNetworkId(), NetworkIndex: m.GetNetworkIndex(),
		ObjectFloor: m.GetObjectFloor(),
		KeyRotation: KeyRotation{
			NextKeyID: m.GetNextKeyId(), FormerKeyID: m.GetFormerKeyId(), CleanIndex: m.GetCleanIndex(), RetiredKeyIDs: convert(m.GetRetiredKeyIds(), strings.Clone),
			ContentKey: m.GetContentKey(), KeyChangedAt: m.GetKeyChangedAt(),
		},
		Rebalance: rebalancePolicyOf(m.GetRebalance()),
	}
}

func workloadPB(w *Workload) *commandv1.WorkloadRecord {
	return &commandv1.WorkloadRecord{
		Put: &commandv1.WorkloadPut{
			Id: w.ID, Spec: w.Spec, Content: w.Content, CallerRevision: w.CallerRevision,
			Demand: demandPB(w.Demand), Desired: string(w.Desired), MaxAttempts: w.Retry.MaxAttempts,
			Namespace: w.Namespace, Policy: w.Policy, Confined: w.Confined, Bundle: w.Bundle,
			Objects: usesPB(w.Objects), SpecContent: w.SpecContent, Update: updatePB(w.Update),
		},
		Status:          string(w.Status),
		Node:            w.Node,
		Generation:      GenerationPB(w.Generation),
		Acknowledged:    w.Acknowledged,
		Restarts:        w.Restarts,
		ReasonCode:      w.Reason.Code,
		ReasonMessage:   w.Reason.Message,
		ReasonAt:        w.Reason.At,
		ReasonRetryable: w.Reason.Retryable,
		Attempts:        w.Retry.Attempts,
		NextRetryAt:     w.Retry.NextAt,
		FirstFailureAt:  w.Retry.FirstFailureAt,
		Terminal:        w.Retry.Terminal,
		Actual:          w.Actual.Report("", ""),
		CreatedAt:       w.CreatedAt,
		UpdatedAt:       w.UpdatedAt,
		AssignedAt:      w.AssignedAt,
		CreateIndex:     w.CreateIndex,
		ModifyIndex:     w.ModifyIndex,
		PreviousNode:    w.PreviousNode,

		StableSince: w.Retry.StableSince, AcknowledgedAt: w.AcknowledgedAt, SameSince: GenerationPB(w.SameSince),
		VerdictCode: w.Retry.Verdict.Code, VerdictMessage: w.Retry.Verdict.Message,
		Actions:         convert(w.Actions, actionPB),
		FormerPorts:     convert(w.FormerPorts, hostPortPB),
		MayOutliveLease: w.MayOutliveLease,
		Data:            convert(w.Data, localDataPB),
		DiscardData:     w.DiscardData,
		KeepVolumes:     w.KeepVolumes,
		PreemptedBy:     w.PreemptedBy,
		PreemptedAt:     w.PreemptedAt,
		Moved:           movedPB(w.Moved),
		Adopted:         w.Adopted,
		JobSince:        w.JobSince,
		JobResult:       jobResultPB(w.Result),
		FailedOn:        convert(w.FailedOn, nodeFailurePB),
		Owner:           w.Owner,
		SealedFor:       w.SealedFor,
		Run:             runPB(w.Run),
		TemplateState:   templateStatePB(w.Template),
	}
}

func workloadOf(m *commandv1.WorkloadRecord) (*Workload, error) {
	put, a := m.GetPut(), m.GetActual()
	if !bounds.ValidID(put.GetId()) {
		return nil, fmt.Errorf("workload id %q does not match %s", clip(put.GetId()), bounds.IDRule)
	}
	if err := portsInRange(put.GetDemand()); err != nil {
		return nil, fmt.Errorf("workload %q: %w", put.GetId(), err)
	}
	if err := portsInRange(&commandv1.Demand{HostPorts: m.GetFormerPorts()}); err != nil {
		return nil, fmt.Errorf("workload %q: former ports: %w", put.GetId(), err)
	}
	for _, p := range a.GetPorts() {
		if p.GetHostPort() > 65535 || p.GetContainerPort() > 65535 {
			return nil, fmt.Errorf("workload %q: published port %d:%d is not in 0..65535", put.GetId(), p.GetHostPort(), p.GetContainerPort())
		}
	}
	return &Workload{
		ID:             put.GetId(),
		Spec:           nonEmpty(put.GetSpec()),
		Content:        put.GetContent(),
		CallerRevision: put.GetCallerRevision(),
		Namespace:      stored(put.GetNamespace()),
		Policy:         put.GetPolicy(),
		Confined:       put.GetConfined(),
		Bundle:         put.GetBundle(),
		Objects:        usesOf(put.GetObjects()),
		SpecContent:    put.GetSpecContent(),
		Update:         updateOf(put),
		Demand:         demandOf(put.GetDemand()),
		Desired:        Desired(put.GetDesired()),
		Status:         Status(m.GetStatus()),
		Reason: Reason{
			Code: m.GetReasonCode(), Message: m.GetReasonMessage(), At: m.GetReasonAt(), Retryable: m.GetReasonRetryable(),
		},
		Node:         m.GetNode(),
		PreviousNode: m.GetPreviousNode(),
		Generation:   order.GenerationOf(m.GetGeneration()),
		Acknowledged: m.GetAcknowledged(),
		Restarts:     m.GetRestarts(),
		Actual:       observationOf(m.GetActual()),
		FormerPorts:  convert(m.GetFormerPorts(), hostPortOf),
		Retry: Retry{
			Attempts: m.GetAttempts(), MaxAttempts: put.GetMaxAttempts(), NextAt: m.GetNextRetryAt(),
			FirstFailureAt: m.GetFirstFailureAt(), Terminal: m.GetTerminal(), StableSince: m.GetStableSince(),
			Verdict: Verdict{m.GetVerdictCode(), m.GetVerdictMessage()},
		},
		AcknowledgedAt:  m.GetAcknowledgedAt(),
		SameSince:       order.GenerationOf(m.GetSameSince()),
		MayOutliveLease: m.GetMayOutliveLease(),
		Data:            convert(m.GetData(), localDataOf),
		DiscardData:     m.GetDiscardData(),
		KeepVolumes:     m.GetKeepVolumes(),
		PreemptedBy:     m.GetPreemptedBy(),
		PreemptedAt:     m.GetPreemptedAt(),
		Moved:           movedOf(m.GetMoved()),
		Adopted:         m.GetAdopted(),
		JobSince:        m.GetJobSince(),
		Result:          resultOfJob(m.GetJobResult()),
		FailedOn:        convert(m.GetFailedOn(), nodeFailureOf),
		Owner:           m.GetOwner(),
		SealedFor:       m.GetSealedFor(),
		Run:             runOf(m.GetRun()),
		Template:        templateStateOf(m.GetTemplateState()),
		Actions:         convert(m.GetActions(), actionOf),
		CreatedAt:       m.GetCreatedAt(),
		UpdatedAt:       m.GetUpdatedAt(),
		AssignedAt:      m.GetAssignedAt(),
		CreateIndex:     m.GetCreateIndex(),
		ModifyIndex:     m.GetModifyIndex(),
	}, nil
}

func actionPB(a AgentAction) *commandv1.AgentAction {
	return &commandv1.AgentAction{
		TaskId: a.TaskID, Workload: a.Workload, ActionType: a.Type, Status: a.Status, Error: a.Error,
		CreatedAt: a.CreatedAt, StartedAt: a.StartedAt, EndedAt: a.EndedAt,
	}
}

func actionOf(m *commandv1.AgentAction) AgentAction {
	return AgentAction{
		TaskID: m.GetTaskId(), Workload: m.GetWorkload(), Type: m.GetActionType(), Status: m.GetStatus(), Error: m.GetError(),
		CreatedAt: m.GetCreatedAt(), StartedAt: m.GetStartedAt(), EndedAt: m.GetEndedAt(),
	}
}

func portsInRange(d *commandv1.Demand) error {
	for _, p := range d.GetHostPorts() {
		if p.GetPort() < 1 || p.GetPort() > 65535 {
			return fmt.Errorf("host port %d is not in 1..65535", p.GetPort())
		}
	}
	for _, p := range d.GetPortNames() {
		if p.GetContainerPort() > 65535 || p.GetHostPort() > 65535 {
			return fmt.Errorf("named port %d:%d is not in 0..65535", p.GetHostPort(), p.GetContainerPort())
		}
	}
	return nil
}

func nodePB(n *Node) *commandv1.NodeRecord {
	return &commandv1.NodeRecord{
		Facts: factsPB(n.ID, &n.Facts), Up: n.Up, Draining: n.Draining, JobsUntil: n.JobsUntil, Cordoned: n.Cordoned, Fenced: n.Fenced,
		Reason: n.Reason, UpdatedBy: n.UpdatedBy, UpdatedAt: n.UpdatedAt, LastHeartbeat: n.LastHeartbeat,
		RegisteredAt: n.RegisteredAt, CreateIndex: n.CreateIndex, ModifyIndex: n.ModifyIndex, Lacks: n.Lacks,
		Labels: convert(n.Set.Labels, nodeLabelPB), Taints: convert(n.Set.Taints, nodeTaintPB),
	}
}

func nodeRecordOf(m *commandv1.NodeRecord) *Node {
	n := &Node{
		ID: m.GetFacts().GetId(), Facts: factsOf(m.GetFacts()), Up: m.GetUp(), Draining: m.GetDraining(), JobsUntil: m.GetJobsUntil(),
		Cordoned: m.GetCordoned(), Fenced: m.GetFenced(), Reason: m.GetReason(), UpdatedBy: m.GetUpdatedBy(),
		UpdatedAt: m.GetUpdatedAt(), LastHeartbeat: m.GetLastHeartbeat(), RegisteredAt: m.GetRegisteredAt(),
		CreateIndex: m.GetCreateIndex(), ModifyIndex: m.GetModifyIndex(),
		Lacks: convert(m.GetLacks(), func(s string) string { return s }),
		Set:   NodeKeys{convert(m.GetLabels(), nodeLabelOf), convert(m.GetTaints(), nodeTaintOf)},
	}
	n.merge()
	return n
}

func residualPB(r *Residual) *commandv1.ResidualRecord {
	return &commandv1.ResidualRecord{
		Node: r.Node, Workload: r.Workload, Generation: GenerationPB(r.Generation), EngineId: r.Engine,
		Demand: demandPB(&r.Demand), Since: r.Since, Reason: r.Reason, KeepVolumes: r.KeepVolumes,
	}
}

func residualOf(m *commandv1.ResidualRecord) (*Residual, error) {
	if !bounds.ValidID(m.GetNode()) || !bounds.ValidID(m.GetWorkload()) {
		return nil, fmt.Errorf("residual %q on %q: an id does not match %s", clip(m.GetWorkload()), clip(m.GetNode()), bounds.IDRule)
	}
	if err := portsInRange(m.GetDemand()); err != nil {
		return nil, fmt.Errorf("residual %q on %q: %w", m.GetWorkload(), m.GetNode(), err)
	}
	return &Residual{
		Node: m.GetNode(), Workload: m.GetWorkload(), Generation: order.GenerationOf(m.GetGeneration()), Engine: m.GetEngineId(),
		Demand: demandValue(m.GetDemand()), Since: m.GetSince(), Reason: m.GetReason(), KeepVolumes: m.GetKeepVolumes(),
	}, nil
}

// eventPB converts an event for a snapshot. It drops invalid UTF-8 from the texts: a former version cut texts
// within a character, and no protobuf decoder accepts such a string.
func eventPB(e *Event) *commandv1.EventRecord {
	m := &commandv1.EventRecord{
		Seq: e.Seq, Index: e.Index, At: e.At, Type: e.Type, Workload: e.Workload, Node: e.Node,
		Reason: e.Reason, Message: strings.ToValidUTF8(e.Message, ""), By: e.By, Details: convert(e.Details, labelPB),
		Namespace: e.Namespace,
	}
	for _, l := range m.Details {
		l.Value = strings.ToValidUTF8(l.Value, "")
	}
	return m
}

func eventOf(m *commandv1.EventRecord) *Event {
	return &Event{
		Seq: m.GetSeq(), Index: m.GetIndex(), At: m.GetAt(), Type: m.GetType(), Workload: m.GetWorkload(), Node: m.GetNode(),
		Reason: m.GetReason(), Message: m.GetMessage(), By: m.GetBy(), Details: convert(m.GetDetails(), labelOf),
		Namespace: m.GetNamespace(),
	}
}

// receiptPB converts a receipt for a snapshot. It drops invalid UTF-8 from the reason, as eventPB does.
func receiptPB(r receipts.Receipt) *commandv1.ReceiptRecord {
	o := outcomeOf(r)
	o.Reason = strings.ToValidUTF8(o.Reason, "")
	return &commandv1.ReceiptRecord{Request: r.Request[:], Seq: r.Seq, At: r.At, Outcome: o}
}

func receiptOf(m *commandv1.ReceiptRecord, w *outcomes) (receipts.Receipt, error) {
	if len(m.GetRequest()) != 16 {
		return receipts.Receipt{}, fmt.Errorf("receipt %d: request id has %d bytes, must have 16", m.GetSeq(), len(m.GetRequest()))
	}
	res := resultOf(m.GetOutcome())
	return receipts.Receipt{Seq: m.GetSeq(), Request: [16]byte(m.GetRequest()), At: m.GetAt(), Answer: w.of(&res, m.GetOutcome().GetRequestHash())}, nil
}

func resultOf(o *commandv1.Outcome) Result {
	return Result{
		Kind: Kind(o.GetKind()), Reason: o.GetReason(), Index: o.GetIndex(),
		Items: convert(o.GetItems(), func(i *commandv1.ItemOutcome) Item {
			return Item{ID: i.GetId(), Generation: order.GenerationOf(i.GetGeneration()), Revision: i.GetRevision(), Unchanged: i.GetUnchanged(), Kind: Kind(i.GetKind()), Reason: i.GetReason(), Deleted: i.GetDeleted()}
		}),
	}
}

func authorityOf(m *commandv1.PutAuthority) *Authority {
	return &Authority{
		ID: m.GetId(), RootID: m.GetRootId(), Cert: nonEmpty(m.GetCert()), Root: nonEmpty(m.GetRoot()),
		SealedKey: m.GetSealedKey(), ActiveAt: m.GetActiveAt(), NotAfter: m.GetNotAfter(),
	}
}

func authorityPB(a *Authority) *commandv1.PutAuthority {
	return &commandv1.PutAuthority{
		Id: a.ID, RootId: a.RootID, Cert: a.Cert, Root: a.Root, SealedKey: a.SealedKey, ActiveAt: a.ActiveAt, NotAfter: a.NotAfter,
	}
}

func tokenOf(m *commandv1.TokenRecord) *Token {
	t := m.GetToken()
	return &Token{
		ID: t.GetId(), SecretHash: nonEmpty(t.GetSecretSha256()), Role: t.GetRole(), Name: t.GetName(), Access: t.GetAccess(),
		Hosts: convert(t.GetHosts(), strings.Clone), Uses: t.GetUses(), ExpiresAt: t.GetExpiresAt(), CreatedAt: m.GetCreatedAt(), CreatedBy: m.GetCreatedBy(),
	}
}

func tokenPB(t *Token) *commandv1.TokenRecord {
	return &commandv1.TokenRecord{
		Token: &commandv1.PutToken{
			Id: t.ID, SecretSha256: t.SecretHash, Role: t.Role, Name: t.Name, Access: t.Access, Hosts: t.Hosts, Uses: t.Uses, ExpiresAt: t.ExpiresAt,
		},
		CreatedAt: t.CreatedAt, CreatedBy: t.CreatedBy,
	}
}

// admissionOf converts an Admit command to the record of the admission. It leaves out the hash of the token's secret,
// which Apply checks and does not store.
func admissionOf(m *commandv1.Admit) *Admission {
	return &Admission{
		Role: m.GetRole(), Name: m.GetName(), Access: m.GetAccess(), Token: m.GetToken(), Hosts: convert(m.GetHosts(), strings.Clone), KeyHash: nonEmpty(m.GetKeySha256()),
		Fingerprint: m.GetFingerprint(), IssuedAt: m.GetIssuedAt(), NotAfter: m.GetNotAfter(),
	}
}

func admissionPB(a *Admission) *commandv1.Admit {
	return &commandv1.Admit{
		Role: a.Role, Name: a.Name, Access: a.Access, Token: a.Token, Hosts: a.Hosts, KeySha256: a.KeyHash,
		Fingerprint: a.Fingerprint, IssuedAt: a.IssuedAt, NotAfter: a.NotAfter,
	}
}

func revocationOf(m *commandv1.RevocationRecord) *Revocation {
	r := m.GetRevoke()
	return &Revocation{
		Role: r.GetRole(), Name: r.GetName(), Fingerprint: r.GetFingerprint(), Reason: r.GetReason(), At: m.GetAt(), By: m.GetBy(),
	}
}

func revocationPB(r *Revocation) *commandv1.RevocationRecord {
	return &commandv1.RevocationRecord{
		Revoke: &commandv1.Revoke{Role: r.Role, Name: r.Name, Fingerprint: r.Fingerprint, Reason: r.Reason},
		At:     r.At, By: r.By,
	}
}
