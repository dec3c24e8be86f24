package testbed

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// Patience is the time limit of Until. It is much longer than any condition takes on a busy machine, so that
// a test fails only if the condition is never met.
const Patience = 40 * time.Second

// The pause between two attempts doubles from firstPause to lastPause. So a condition that is met early is
// noticed early, and a long wait costs little CPU.
const (
	firstPause = time.Millisecond
	lastPause  = 20 * time.Millisecond
)

// errNotYet is the error that Until reports after a timeout. The condition of Until returns only true or false, so
// there is no other error to report.
var errNotYet = errors.New("it does not hold yet")

// Until waits until ready returns true, and fails the test if that takes longer than Patience. what describes
// the condition.
func Until(t testing.TB, what string, ready func() bool) {
	t.Helper()
	Within(t, Patience, what, func() error {
		if !ready() {
			return errNotYet
		}
		return nil
	})
}

// Within waits until check returns nil. If that takes longer than limit, it fails the test with the last
// error of check. what describes the condition.
func Within(t testing.TB, limit time.Duration, what string, check func() error) {
	t.Helper()
	// Do not use the test's own context, because it has already ended when cleanup functions run.
	if err := Poll(context.Background(), limit, what, func(context.Context) error { return check() }); err != nil {
		t.Fatal(err)
	}
}

// errFinal marks an error after which Poll and Within do not try again.
type errFinal struct{ err error }

func (e errFinal) Error() string { return e.err.Error() }
func (e errFinal) Unwrap() error { return e.err }

// Final marks an error as final: Poll and Within return it at once and do not try again.
func Final(err error) error { return errFinal{err} }

// Poll calls ready until it returns nil, for at most limit. The error contains what, which describes the
// condition, and the error of the last attempt.
func Poll(ctx context.Context, limit time.Duration, what string, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTimer(0)
	defer tick.Stop()
	var last error
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		select {
		case <-ctx.Done():
			if last == nil {
				last = errors.New("not tried")
			}
			return fmt.Errorf("%s: not within %s: %w", what, limit, last)
		case <-tick.C:
		}
		err := ready(ctx)
		var final errFinal
		switch {
		case err == nil:
			return nil
		case errors.As(err, &final):
			return fmt.Errorf("%s: %w", what, final.err)
		}
		// Keep the error of the previous attempt if the deadline interrupted this attempt, because its own error says
		// less.
		if ctx.Err() == nil || last == nil {
			last = err
		}
		tick.Reset(pause)
	}
}
