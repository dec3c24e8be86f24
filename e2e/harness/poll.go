package harness

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// pollEvery is the pause between two looks.
const pollEvery = 20 * time.Millisecond

// errFatal marks an error that no waiting mends.
type errFatal struct{ err error }

func (e errFatal) Error() string { return e.err.Error() }
func (e errFatal) Unwrap() error { return e.err }

// Fatal makes Poll give up at once.
func Fatal(err error) error { return errFatal{err} }

// Poll calls ready until it returns nil, at most for limit. The error names what
// was waited for and why it was not so at the last look.
func Poll(ctx context.Context, limit time.Duration, what string, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTimer(0)
	defer tick.Stop()
	last := errors.New("not looked at")
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not within %s: %w", what, limit, last)
		case <-tick.C:
		}
		err := ready(ctx)
		var fatal errFatal
		switch {
		case err == nil:
			return nil
		case errors.As(err, &fatal):
			return fmt.Errorf("%s: %w", what, fatal.err)
		}
		// An answer cut off by the deadline says less than the one before it.
		if ctx.Err() == nil || last.Error() == "not looked at" {
			last = err
		}
		tick.Reset(pollEvery)
	}
}
