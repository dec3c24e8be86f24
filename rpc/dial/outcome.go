package dial

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
)

// Answer is the class of an answer to one attempt of a call.
type Answer int

const (
	// Final: a success, or the verdict of the state machine on the request id of the call.
	Final Answer = iota
	// Refusal: a replica refused the attempt before anything was proposed, for instance because a permission
	// is missing.
	Refusal
	// Busy: like Refusal, but a further attempt may soon be accepted.
	Busy
	// Elsewhere: the attempt changed nothing, and another replica may be able to answer.
	Elsewhere
	// Lost: the answer was lost, and the attempt may have changed something.
	Lost
	// TimeUp: the caller's deadline passed during the attempt.
	TimeUp
)

// Step says what the caller does after an attempt: return the answer, repeat the call, or return UnknownOutcome.
type Step int

const (
	Return Step = iota // return the answer to the caller
	Repeat             // make another attempt under the same request id
	Doubt              // return UnknownOutcome to the caller
)

// Outcome decides what follows after each attempt of a call. Once the outcome of an attempt is unknown, only a Final
// answer makes the outcome of the call known, because the refusal of a later attempt does not tell what the earlier
// attempt has changed. The zero value is for a call before its first attempt. Clients, and schedulers that forward
// calls, use the same rule.
type Outcome struct{ unknown bool }

// After returns the step that follows after an attempt with answer a. once means that the call has no receipt
// (a stored answer), so it must not be repeated if a replica may have received it.
func (o *Outcome) After(a Answer, once bool) Step {
	switch {
	case a == Lost && once:
		o.unknown = true
		return Doubt
	case a == Lost:
		o.unknown = true
		return Repeat
	case a == Elsewhere:
		return Repeat
	case a == Final || !o.unknown:
		return Return
	case a == Busy:
		return Repeat
	}
	return Doubt
}

// Unknown reports whether an attempt may have changed something and no later attempt has shown what its
// outcome was.
func (o *Outcome) Unknown() bool { return o.unknown }

// Judged reports whether the trailer of an answer contains KeyJudged.
func Judged(trailer metadata.MD) bool {
	v := trailer.Get(KeyJudged)
	return len(v) > 0 && v[0] == "true"
}

// Declined reports whether an answer has no gRPC error but contains the refusal of the call or of a part of
// it.
func Declined(reply any) bool {
	switch r := reply.(type) {
	case *clusterv1.ApplyWorkloadsResponse:
		for _, one := range r.GetResults() {
			if !one.GetSuccess() {
				return true
			}
		}
	case interface{ GetSuccess() bool }:
		return !r.GetSuccess()
	case interface{ GetAccepted() bool }:
		return !r.GetAccepted()
	}
	return false
}

// answerTo returns the class of an answer that a client got. sent means that a replica may have received the attempt;
// judged, that the answer is the decision of the state machine; over, that the caller's deadline has passed.
func answerTo(err error, reply any, mutation, sent, judged, over bool) Answer {
	code := status.Code(err)
	switch verdict := judge(err); {
	case err == nil && mutation && !judged && Declined(reply):
		return Refusal
	case err == nil, !mutation && verdict == surface && !over:
		return Final
	case verdict == next, verdict == broken && !(sent && mutation):
		return Elsewhere
	case verdict == broken, mutation && IsUnknownOutcome(err):
		return Lost
	case over && (code == codes.DeadlineExceeded || code == codes.Canceled):
		return TimeUp
	case judged:
		return Final
	case code == codes.ResourceExhausted:
		return Busy
	}
	return Refusal
}
