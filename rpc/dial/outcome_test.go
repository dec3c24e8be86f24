package dial

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
)

var answerNames = map[Answer]string{Final: "final", Refusal: "refusal", Busy: "busy", Elsewhere: "elsewhere", Lost: "lost", TimeUp: "time up"}

// TestPairsOfAnswers checks which step follows each pair of a first and a second answer, for a call whose answer the
// schedulers store (receipt). A call without a receipt must end at the first lost answer.
func TestPairsOfAnswers(t *testing.T) {
	const none Step = -1 // no second attempt: the first answer ended the call
	order := []Answer{Final, Refusal, Busy, Elsewhere, Lost, TimeUp}
	table := map[Answer]struct {
		first Step
		then  [6]Step // expected step for each second answer, in the order of the slice order
	}{
		Final:     {Return, [6]Step{none, none, none, none, none, none}},
		Refusal:   {Return, [6]Step{none, none, none, none, none, none}},
		Busy:      {Return, [6]Step{none, none, none, none, none, none}},
		Elsewhere: {Repeat, [6]Step{Return, Return, Return, Repeat, Repeat, Return}},
		Lost:      {Repeat, [6]Step{Return, Doubt, Repeat, Repeat, Repeat, Doubt}},
		TimeUp:    {Return, [6]Step{none, none, none, none, none, none}},
	}
	for first, row := range table {
		for i, second := range order {
			t.Run(answerNames[first]+", then "+answerNames[second], func(t *testing.T) {
				var o Outcome
				if got := o.After(first, false); got != row.first {
					t.Fatalf("the step after the first answer of a call is %d, want %d", got, row.first)
				}
				if row.first != Repeat {
					return
				}
				if got := o.After(second, false); got != row.then[i] {
					t.Errorf("the step after the second answer is %d, want %d", got, row.then[i])
				}
				if got, want := o.Unknown(), first == Lost || second == Lost; got != want {
					t.Errorf("after the second answer, Unknown returned %v, want %v", got, want)
				}
				if second == Lost {
					return
				}
				// A third answer leads to the same step as a second answer.
				if row.then[i] == Repeat && o.After(Refusal, false) != map[bool]Step{true: Doubt, false: Return}[first == Lost] {
					t.Error("a refusal of the third attempt must end the call: with an unknown outcome if the first answer was lost, and otherwise with the refusal")
				}
			})
		}
	}
	t.Run("a call without a receipt ends with the first lost answer", func(t *testing.T) {
		for _, a := range order {
			var o Outcome
			want := table[a].first
			if a == Lost {
				want = Doubt
			}
			if got := o.After(a, true); got != want {
				t.Errorf("a call without a receipt continues with step %d after the answer %s, want %d", got, answerNames[a], want)
			}
		}
	})
}

func TestAnswersOfAttempts(t *testing.T) {
	good, bad := &controlv1.ApplyWorkloadResponse{Success: true}, &controlv1.ApplyWorkloadResponse{}
	for _, c := range []struct {
		fact               string
		err                error
		reply              any
		sent, judged, over bool
		change, read       Answer // expected class of the answer to a mutation and to a read
	}{
		{"a success", nil, good, true, false, false, Final, Final},
		{"a response with a refusal from before anything was proposed", nil, bad, true, false, false, Refusal, Final},
		{"a response with a refusal by the state machine", nil, bad, true, true, false, Final, Final},
		{"a response to a batch in which one request is refused", nil, &clusterv1.ApplyWorkloadsResponse{Results: []*controlv1.ApplyWorkloadResponse{good, bad}}, true, false, false, Refusal, Final},
		{"a gRPC error with a refusal by the state machine", status.Error(codes.FailedPrecondition, "x"), nil, true, true, false, Final, Final},
		{"a gRPC error with a refusal from before anything was proposed", status.Error(codes.FailedPrecondition, "x"), nil, true, false, false, Refusal, Final},
		{"a missing permission", status.Error(codes.PermissionDenied, "x"), nil, true, false, false, Refusal, Final},
		{"busy", status.Error(codes.ResourceExhausted, "x"), nil, true, false, false, Busy, Final},
		{"no leader", Error(codes.Unavailable, ReasonNoLeader, "x"), nil, true, false, false, Elsewhere, Elsewhere},
		{"not the leader", Error(codes.Unavailable, ReasonNotLeader, "x"), nil, true, false, false, Elsewhere, Elsewhere},
		{"a connection that broke before the call was sent", status.Error(codes.Unavailable, "x"), nil, false, false, false, Elsewhere, Elsewhere},
		{"a connection that broke after the call was sent", status.Error(codes.Unavailable, "x"), nil, true, false, false, Lost, Elsewhere},
		{"an unknown outcome", UnknownOutcome("x"), nil, true, false, false, Lost, Final},
		{"the caller's deadline has passed", status.Error(codes.DeadlineExceeded, "x"), nil, true, false, true, TimeUp, TimeUp},
		{"a call that the caller gave up", status.Error(codes.Canceled, "x"), nil, true, false, true, TimeUp, TimeUp},
		{"a deadline inside the replica has passed", status.Error(codes.DeadlineExceeded, "x"), nil, true, false, false, Refusal, Final},
	} {
		t.Run(c.fact, func(t *testing.T) {
			if got := answerTo(c.err, c.reply, true, c.sent, c.judged, c.over); got != c.change {
				t.Errorf("the class of a mutation's answer is %s, want %s", answerNames[got], answerNames[c.change])
			}
			if got := answerTo(c.err, c.reply, false, c.sent, c.judged, c.over); got != c.read {
				t.Errorf("the class of a read's answer is %s, want %s", answerNames[got], answerNames[c.read])
			}
		})
	}
}

// TestTheSecondAnswerAfterALostOne: one replica dies during a mutation, and another replica answers the
// second attempt.
func TestTheSecondAnswerAfterALostOne(t *testing.T) {
	verdict := func(err error) func(context.Context) error {
		return func(ctx context.Context) error {
			_ = grpc.SetTrailer(ctx, metadata.Pairs(KeyJudged, "true"))
			return err
		}
	}
	refuse := func(err error) func(context.Context) error {
		return func(context.Context) error { return err }
	}
	for _, c := range []struct {
		fact    string
		second  func(context.Context) error
		unknown bool
		code    codes.Code
	}{
		{"a success settles the unknown outcome", verdict(nil), false, codes.OK},
		{"a refusal by the state machine settles the unknown outcome", verdict(status.Error(codes.FailedPrecondition, "x")), false, codes.FailedPrecondition},
		{"a replica in a mode that refuses changes does not settle the unknown outcome", refuse(status.Error(codes.FailedPrecondition, "frozen")), true, codes.Aborted},
		{"a busy replica does not settle the unknown outcome", refuse(status.Error(codes.ResourceExhausted, "busy")), true, codes.Aborted},
		{"a missing permission does not settle the unknown outcome", refuse(status.Error(codes.PermissionDenied, "x")), true, codes.Aborted},
		{"a cluster without a leader does not settle the unknown outcome", refuse(Error(codes.Unavailable, ReasonNoLeader, "x")), true, codes.Aborted},
	} {
		t.Run(c.fact, func(t *testing.T) {
			a, b := start(t, nil), start(t, nil)
			a.on(func(ctx context.Context) error {
				go a.grpc.Stop()
				<-ctx.Done()
				return nil
			})
			b.on(c.second)
			err := call(dialTo(t, Options{Addrs: []string{a.addr, b.addr}}), apply, time.Second)
			wantCode(t, err, c.code)
			if IsUnknownOutcome(err) != c.unknown {
				t.Errorf("after a lost first answer and this second answer, whether the outcome is unknown is %v, want %v; error %v", !c.unknown, c.unknown, err)
			}
			if a.calls.Load() != 1 {
				t.Errorf("the first replica got %d calls, want 1", a.calls.Load())
			}
		})
	}
}
