package fsm

import "fmt"

// Kind classifies the outcome of a command. Numbers are never reused for another kind, because receipts store
// them.
type Kind uint32

// The kinds of outcomes. Package rpc maps each to one gRPC code and HTTP status.
const (
	OK              Kind = 0
	Invalid         Kind = 1  // a field of the command is invalid; Reason names field, rule and value
	NotFound        Kind = 2  // the state has no such workload, node or replica
	Frozen          Kind = 3  // the mode of the control plane refuses the command; Reason names the mode and its cause
	StaleEpoch      Kind = 4  // the command was planned in another leadership term
	StaleGeneration Kind = 5  // the record changed since the leader planned the command
	NoCapacity      Kind = 6  // the node lacks the capacity or the ports
	NotReady        Kind = 7  // the node is down, draining or cordoned
	Conflict        Kind = 8  // the command contradicts the present state, e.g. uses the node id of another machine
	TooOld          Kind = 9  // the request id is older than the receipts that are kept
	AlreadyDone     Kind = 10 // the state is already as the command demands; not an error
	Unsupported     Kind = 11 // the command needs a higher feature level
	Denied          Kind = 12 // the join token, the certificate or the namespace does not permit the command
	OverQuota       Kind = 13 // the workloads exceed the quota of their namespace; Reason has the figures
	NotAllowed      Kind = 14 // the policy of the namespace does not allow the workload; Reason names the rule
	OtherRevision   Kind = 15 // the condition on the present revision does not hold
	OtherRequest    Kind = 16 // the request id belongs to another request, whose receipt must not answer this one
)

var kindNames = [...]string{
	"ok", "invalid", "not found", "frozen", "stale epoch", "stale generation",
	"no capacity", "not ready", "conflict", "too old", "already done", "unsupported",
	"denied", "over quota", "not allowed", "other revision", "other request",
}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint32(k))
}

// Item is the outcome of a command for one workload.
type Item struct {
	ID         string
	Generation Generation
	Revision   string
	Unchanged  bool // nothing changed: the workload has the same content and desired state as before
	Deleted    bool // the command deleted this member of a group, see PutWorkloads.list_deleted

	// Kind is the verdict on this workload, if the command accepts or refuses each workload separately
	// (field each).
	Kind   Kind
	Reason string
}

// Result is the verdict of the state machine on one command. A command with several independent items
// (Assign, Evict, Report …) is OK as a whole. Items that are no longer valid are skipped and counted in
// Skipped.
type Result struct {
	Kind      Kind
	Reason    string
	Index     uint64 // log index of the entry in which the command was first judged
	Items     []Item
	Skipped   int  // number of items of a planner command that were refused
	Duplicate bool // the answer came from the receipt of an earlier request
}

// Err returns nil if the result is OK or AlreadyDone, otherwise a *Refusal.
func (r Result) Err() error {
	if r.Kind == OK || r.Kind == AlreadyDone {
		return nil
	}
	return &Refusal{Kind: r.Kind, Reason: r.Reason}
}

// Refusal is the error form of a Result that refuses a command.
type Refusal struct {
	Kind   Kind
	Reason string
}

func (r *Refusal) Error() string {
	if r.Reason == "" {
		return r.Kind.String()
	}
	return r.Reason
}
