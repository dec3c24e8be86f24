package testbed

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// Patience is how long Until waits: much longer than anything takes, on a machine that is busy with
// other tests, so that only what never comes fails.
const Patience = 40 * time.Second

// The pause between two looks grows from the first to the last: what comes at once is seen at once,
// and waiting long costs little.
const (
	firstPause = time.Millisecond
	lastPause  = 20 * time.Millisecond
)

// errNotYet stands for the reason where there is none to tell.
var errNotYet = errors.New("it is not so yet")

// Until looks until ready is true, and ends the test when that takes longer than Patience.
func Until(t testing.TB, what string, ready func() bool) {
	t.Helper()
	Within(t, Patience, what, func() error {
		if !ready() {
			return errNotYet
		}
		return nil
	})
}

// Within looks until check returns nil, and ends the test when that takes longer than limit, with
// the last error.
func Within(t testing.TB, limit time.Duration, what string, check func() error) {
	t.Helper()
	// Not the test's own context: whoever cleans up after it waits too.
	if err := Poll(context.Background(), limit, what, func(context.Context) error { return check() }); err != nil {
		t.Fatal(err)
	}
}

// errFinal marks an error that no waiting mends.
type errFinal struct{ err error }

func (e errFinal) Error() string { return e.err.Error() }
func (e errFinal) Unwrap() error { return e.err }

// Final makes Poll and Within give up at once.
func Final(err error) error { return errFinal{err} }

// Poll calls ready until it returns nil, at most for limit. The error names what was waited for and
// why it was not so at the last look.
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
				last = errors.New("not looked at")
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
		// An answer cut off by the deadline says less than the one before it.
		if ctx.Err() == nil || last == nil {
			last = err
		}
		tick.Reset(pause)
	}
}
