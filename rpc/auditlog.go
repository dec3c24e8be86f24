package rpc

import (
	"context"
	"slices"
	"strings"
	"time"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/fsm"
)

// auditConfirm is how long a read of the audit logs waits until the leader has proved that it still leads.
const auditConfirm = time.Second

// Audit implements the call of cluster.v1: it streams the audit logs. Without a leader it streams this
// replica's copy. A user who has rights only in some namespaces gets only the records about these namespaces.
func (s *Server) Audit(req *clusterv1.AuditRequest, out clusterv1.Cluster_AuditServer) error {
	logs := fsm.AuditLogs()
	switch l := fsm.AuditLog(req.GetLog()); {
	case l == "" && req.GetAfter() > 0:
		return errorf(KindInvalid, "after: %d needs log, one of %s: each log has numbers of its own", req.GetAfter(), auditNames(logs))
	case l == "":
	case slices.Contains(logs, l):
		logs = []fsm.AuditLog{l}
	default:
		return errorf(KindInvalid, "log: %q must be one of %s", clip(req.GetLog(), 64), auditNames(logs))
	}
	view, in := s.recent(out.Context()), s.scopeOf(out.Context())
	var err error
	for _, l := range logs {
		view.Audit(l, req.GetAfter(), func(before fsm.AuditHash, r *fsm.AuditRecord) bool {
			if of := r.Event.In(); !in.Everywhere() && (of == "" || !in.Has(of)) {
				return true
			}
			err = out.Send(AuditRecord(l, before, r))
			return err == nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func auditNames(logs []fsm.AuditLog) string {
	var names []string
	for _, l := range logs {
		names = append(names, string(l))
	}
	return strings.Join(names, ", ")
}

// recent returns the state of a confirmed leader, or this replica's state if there is no leader.
func (s *Server) recent(ctx context.Context) fsm.View {
	ctx, cancel := context.WithTimeout(ctx, auditConfirm)
	defer cancel()
	if view, err := s.latest(ctx); err == nil {
		return view
	}
	return s.store.View()
}

// AuditRecord converts a record of an audit log to the message of the API. before is the hash of the previous
// record.
func AuditRecord(l fsm.AuditLog, before fsm.AuditHash, r *fsm.AuditRecord) *clusterv1.AuditRecord {
	e := &r.Event
	out := &clusterv1.AuditRecord{
		Log: string(l), Number: r.Number, PreviousHash: before[:], Hash: r.Hash[:],
		EventSeq: e.Seq, Index: e.Index, AtUnixNanos: e.At, Type: e.Type, WorkloadId: e.Workload, NodeId: e.Node,
		Namespace: e.Namespace, Reason: e.Reason, Message: e.Message, By: e.By,
	}
	for _, d := range e.Details {
		out.Details = append(out.Details, &clusterv1.AuditDetail{Key: d.Key, Value: d.Value})
	}
	return out
}
