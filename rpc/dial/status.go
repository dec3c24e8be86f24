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

// Reasons in an ErrorInfo that decide what a client does next. Only ever added
// to.
const (
	// ReasonUnknownOutcome: the mutation may or may not have been applied.
	// Repeating it under the same request id is safe and tells, unless it is one
	// to be made Once.
	ReasonUnknownOutcome = "UNKNOWN_OUTCOME"
	// ReasonNoLeader: this replica knows no leader; nothing was applied.
	ReasonNoLeader = "NO_LEADER"
	// ReasonNotLeader: the call was already forwarded once and reached a
	// replica that does not lead (any more); nothing was applied.
	ReasonNotLeader = "NOT_LEADER"
	// ReasonNoAgent: the replica answers, but the agent that the call is about
	// cannot be reached.
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

// UnknownOutcome returns the error of a mutation that may or may not have been
// applied. Its code is Aborted and not Unavailable, because proxies and retry
// policies repeat Unavailable on their own and would do so without the request
// id.
func UnknownOutcome(message string) error {
	return Error(codes.Aborted, ReasonUnknownOutcome, message)
}

// IsUnknownOutcome reports whether err says that a mutation may or may not have
// been applied.
func IsUnknownOutcome(err error) bool { return Reason(err) == ReasonUnknownOutcome }

// Reason returns the reason of the ErrorInfo of our domain in a status error;
// empty when there is none.
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

// verdict is what a failed attempt means for the call.
type verdict int

const (
	surface verdict = iota // the answer is the answer
	next                   // nothing was applied; ask another replica
	broken                 // the connection failed; it may have been applied
)

// judge decides from the status alone. A bare Unavailable is a connection that
// failed (or a legacy v1 peer that is not ready); one with a reason of ours is
// a replica's own answer.
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

// IsRead tells reads from mutations by the method's name. What it does not
// know counts as a mutation: it gets a request id, and a lost answer is an
// unknown outcome.
func IsRead(method string) bool {
	name := method[strings.LastIndexByte(method, '/')+1:]
	for _, verb := range []string{"Get", "List", "Watch", "Check", "Explain", "Status", "Heartbeat", "Why", "Plan", "Recovery", "Bundle", "ClusterKey"} {
		if strings.HasPrefix(name, verb) {
			return true
		}
	}
	return false
}

// Once reports a mutation that has no receipt: under the same request id it would
// be done again, so nobody repeats what a replica may have got.
func Once(method string) bool {
	switch method {
	case clusterv1.Cluster_DeleteVolume_FullMethodName, clusterv1.Cluster_TransferLeadership_FullMethodName, clusterv1.Cluster_RemoveReplica_FullMethodName,
		clusterv1.Cluster_RestoreMirror_FullMethodName, clusterv1.Cluster_ImportMirror_FullMethodName,
		clusterv1.Cluster_Exec_FullMethodName, clusterv1.Cluster_RestoreBackup_FullMethodName:
		return true
	}
	return false
}
