package dial

import (
	"errors"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
)

// ErrorDomain is the domain of every google.rpc.ErrorInfo that Persys attaches
// to a status.
const ErrorDomain = "persys"

// Reasons in an ErrorInfo that decide what a client does next. Existing ones must not change.
const (
	// ReasonUnknownOutcome: the mutation may or may not have been applied. Repeating it with the
	// same request id is safe and returns the outcome, unless it is one of Once.
	ReasonUnknownOutcome = "UNKNOWN_OUTCOME"
	// ReasonNoLeader: there is no leader; nothing was applied.
	ReasonNoLeader = "NO_LEADER"
	// ReasonNotLeader: a forwarded call reached a replica that does not lead; nothing was applied.
	ReasonNotLeader = "NOT_LEADER"
	// ReasonNoAgent: the replica works, but it cannot reach the agent.
	ReasonNoAgent = "NO_AGENT"
)

// Error returns a status error with an ErrorInfo of the given reason.
func Error(code codes.Code, reason, message string) error {
	st, err := status.New(code, message).WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: ErrorDomain})
	if err != nil {
		return status.Error(code, message)
	}
	return st.Err()
}

// UnknownOutcome returns the error of a mutation that may or may not have been applied. Its code is
// Aborted and not Unavailable, because proxies and retry policies repeat Unavailable by themselves,
// without the request id.
func UnknownOutcome(message string) error {
	return Error(codes.Aborted, ReasonUnknownOutcome, message)
}

// IsUnknownOutcome reports whether err says that a mutation may or may not have
// been applied.
func IsUnknownOutcome(err error) bool { return Reason(err) == ReasonUnknownOutcome }

// Reason returns the reason of our ErrorInfo in a status error; empty if there is none.
func Reason(err error) string {
	var with interface{ GRPCStatus() *status.Status }
	if err == nil || !errors.As(err, &with) {
		return ""
	}
	for _, d := range with.GRPCStatus().Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == ErrorDomain {
			return info.GetReason()
		}
	}
	return ""
}

// verdict says how a call continues after a failed attempt.
type verdict int

const (
	surface verdict = iota // return the error to the caller
	next                   // nothing was applied: ask another replica
	broken                 // the connection failed: the call may have been applied
)

// judge decides by the status. Unavailable without a reason of ours is a failed connection (or a
// legacy v1 peer that is not ready); with a reason it is a replica's own answer.
func judge(err error) verdict {
	if status.Code(err) != codes.Unavailable {
		return surface
	}
	switch Reason(err) {
	case "":
		return broken
	case ReasonNoLeader, ReasonNotLeader:
		return next
	}
	return surface
}

// IsRead reports whether a method is a read, by its name. Unknown methods count as mutations: they
// get a request id, and a lost answer is an unknown outcome.
func IsRead(method string) bool {
	name := method[strings.LastIndexByte(method, '/')+1:]
	for _, verb := range []string{"Get", "List", "Watch", "Check", "Explain", "Status", "Heartbeat", "Why", "Plan", "Recovery", "Bundle", "ClusterKey"} {
		if strings.HasPrefix(name, verb) {
			return true
		}
	}
	return false
}

// Once reports whether a method is a mutation without receipts. It would be applied again even with
// the same request id, so it must not be repeated if a replica may have received it.
func Once(method string) bool {
	switch method {
	case clusterv1.Cluster_DeleteVolume_FullMethodName, clusterv1.Cluster_TransferLeadership_FullMethodName, clusterv1.Cluster_RemoveReplica_FullMethodName,
		clusterv1.Cluster_RestoreMirror_FullMethodName, clusterv1.Cluster_ImportMirror_FullMethodName,
		clusterv1.Cluster_Exec_FullMethodName, clusterv1.Cluster_RestoreBackup_FullMethodName:
		return true
	}
	return false
}
