package dial

import (
	"errors"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
)

// ErrorDomain is the domain in every google.rpc.ErrorInfo that Persys adds to a status.
const ErrorDomain = "persys"

// Reasons in a google.rpc.ErrorInfo, by which a client decides how to continue. Existing reasons must not
// change.
const (
	// ReasonUnknownOutcome: it is not known whether the mutation was applied. Repeating the call with the same request
	// id is safe and returns the outcome, except for the methods for which Once returns true.
	ReasonUnknownOutcome = "UNKNOWN_OUTCOME"
	// ReasonNoLeader: the cluster has no leader, so nothing was applied.
	ReasonNoLeader = "NO_LEADER"
	// ReasonNotLeader: a forwarded call reached a replica that does not lead, so nothing was applied.
	ReasonNotLeader = "NOT_LEADER"
	// ReasonNoAgent: the replica works, but it cannot reach the agent of the node.
	ReasonNoAgent = "NO_AGENT"
	// ReasonOtherRevision: the workload has another revision than the request's condition demands, so
	// nothing was changed.
	ReasonOtherRevision = "OTHER_REVISION"
	// ReasonOtherRequest: the request id was already used for another request, so nothing was changed.
	ReasonOtherRequest = "OTHER_REQUEST"
)

// Error returns a status error with a google.rpc.ErrorInfo that contains the reason.
func Error(code codes.Code, reason, message string) error {
	st, err := status.New(code, message).WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: ErrorDomain})
	if err != nil {
		return status.Error(code, message)
	}
	return st.Err()
}

// UnknownOutcome returns the error for a mutation of which it is not known whether it was applied. Its code
// is Aborted and not Unavailable, because proxies and retry policies repeat Unavailable by themselves,
// without the request id.
func UnknownOutcome(message string) error {
	return Error(codes.Aborted, ReasonUnknownOutcome, message)
}

// IsUnknownOutcome reports whether err says that it is not known whether a mutation was applied.
func IsUnknownOutcome(err error) bool { return Reason(err) == ReasonUnknownOutcome }

// Reason returns the reason in the ErrorInfo that Persys added to a status error; empty if there is none.
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

// verdict is what a client does after a failed attempt of a call.
type verdict int

const (
	surface verdict = iota // return the error to the caller
	next                   // nothing was applied: call another replica
	broken                 // the connection failed: the call may have been applied
)

// judge decides how a client continues after an error. Unavailable without a Persys reason means a failed connection,
// or a legacy v1 peer that is not ready; Unavailable with a Persys reason is the answer of a replica.
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

// IsRead reports, by its name, whether a method only reads. A method that this client does not know is treated as a
// mutation: its call gets a request id, and if the answer is lost, the caller gets UnknownOutcome.
func IsRead(method string) bool {
	name := method[strings.LastIndexByte(method, '/')+1:]
	for _, verb := range []string{"Get", "List", "Watch", "Check", "Explain", "Status", "Heartbeat", "Why", "Plan", "Recovery", "Bundle", "ClusterKey", "MirrorStatus", "ProbeMirror", "Preview", "Trace"} {
		if strings.HasPrefix(name, verb) {
			return true
		}
	}
	return false
}

// Once reports whether a method is a mutation without a receipt (a stored answer to its request id). Such a
// mutation would be applied again, so it must not be repeated if a replica may have received it.
func Once(method string) bool {
	switch method {
	case clusterv1.Cluster_TransferLeadership_FullMethodName, clusterv1.Cluster_RemoveReplica_FullMethodName,
		clusterv1.Cluster_RestoreMirror_FullMethodName, clusterv1.Cluster_ImportMirror_FullMethodName,
		clusterv1.Cluster_Exec_FullMethodName, clusterv1.Cluster_RestoreBackup_FullMethodName:
		return true
	}
	return false
}
