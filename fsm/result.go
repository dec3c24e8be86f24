package fsm

import "fmt"

// Kind classifies the outcome of a command. Append-only: receipts keep it.
type Kind uint32

// Outcomes. rpc maps each to one gRPC code and HTTP status.
const (
	OK              Kind = 0
	Invalid         Kind = 1  // a field breaks a rule; Reason names field, rule and value
	NotFound        Kind = 2  // no such workload, node or replica
	Frozen          Kind = 3  // the mode refuses it; Reason says mode and why
	StaleEpoch      Kind = 4  // planned in another leadership term
	StaleGeneration Kind = 5  // the record changed since it was planned
	NoCapacity      Kind = 6  // the node lacks the capacity or the ports
	NotReady        Kind = 7  // the node is down, draining or cordoned
	Conflict        Kind = 8  // contradicts the present state, e.g. a node id of another machine
	TooOld          Kind = 9  // request id older than the receipts that are kept
	AlreadyDone     Kind = 10 // nothing to do; not an error
	Unsupported     Kind = 11 // needs a higher feature level
	Denied          Kind = 12 // not permitted by the join token, the certificate or the namespace
	OverQuota       Kind = 13 // above the quota of its namespace; Reason has the figures
)

var kindNames = [...]string{
	"ok", "invalid", "not found", "frozen", "stale epoch", "stale generation",
	"no capacity", "not ready", "conflict", "too old", "already done", "unsupported",
	"denied", "over quota",
}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint32(k))
}

// Item is the outcome for one workload of a command.
type Item struct {
	ID         string
	Generation Generation
	Revision   string
	Unchanged  bool // same content and desired state as before

	// Verdict on this workload, in a command whose workloads are judged one by one.
	Kind   Kind
	Reason string
}

// Result is the state machine's verdict on one command. Commands that carry
// several independent items (Assign, Evict, Report …) are OK as a whole and
// skip the items that no longer hold, see Skipped.
type Result struct {
	Kind      Kind
	Reason    string
	Index     uint64 // log index of the entry that first judged it
	Items     []Item
	Skipped   int  // items refused within a planner command
	Duplicate bool // answered from a receipt
}

// Err is nil for OK and AlreadyDone, else a *Refusal.
func (r Result) Err() error {
	if r.Kind == OK || r.Kind == AlreadyDone {
		return nil
	}
	return &Refusal{Kind: r.Kind, Reason: r.Reason}
}

// Refusal is the error form of a Result.
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
