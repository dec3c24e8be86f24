package testbed

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// judge is a fake testing.TB for calls of Need and Within. It records whether they failed or skipped the
// test, and the message.
type judge struct {
	testing.TB
	failed, skipped string
}

func (j *judge) Helper()                   {}
func (j *judge) Fatal(args ...any)         { j.failed = fmt.Sprint(args...) }
func (j *judge) Fatalf(f string, a ...any) { j.failed = fmt.Sprintf(f, a...) }
func (j *judge) Skipf(f string, a ...any)  { j.skipped = fmt.Sprintf(f, a...) }

func TestNeedSkipsOrFails(t *testing.T) {
	for _, c := range []struct {
		ci      string
		lacks   error
		failed  string
		skipped string
	}{
		{"true", nil, "", ""},
		{"", nil, "", ""},
		{"true", errors.New("no socket"), "an engine is needed: no socket", ""},
		{"", errors.New("no socket"), "", "SKIPPED, NOTHING TESTED: an engine is needed: no socket"},
		{"false", errors.New("no socket"), "", "SKIPPED, NOTHING TESTED: an engine is needed: no socket"},
	} {
		t.Run(fmt.Sprintf("CI=%s lacks=%v", c.ci, c.lacks), func(t *testing.T) {
			t.Setenv("CI", c.ci)
			j := &judge{}
			Need(j, "an engine", c.lacks)
			if j.failed != c.failed || j.skipped != c.skipped {
				t.Errorf("failed %q, skipped %q", j.failed, j.skipped)
			}
		})
	}
}

func TestProgramIsFoundOrNeeded(t *testing.T) {
	if path := Program(t, "go"); !strings.HasSuffix(path, "/go") {
		t.Errorf("Program returned the path %q for go, want an absolute path", path)
	}
	t.Setenv("CI", "true")
	j := &judge{}
	if Program(j, "no-such-program"); !strings.Contains(j.failed, "no-such-program is needed") || !strings.Contains(j.failed, "hack/install-test-deps.sh") {
		t.Errorf("without the program Program failed with %q, want its name and the script that installs it", j.failed)
	}
}

func TestUntilPollsToItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		Until(t, "a condition that is met one second before the limit", func() bool { return time.Since(begun) >= Patience-time.Second })
		if took := time.Since(begun); took > Patience-time.Second+lastPause {
			t.Errorf("Until noticed the condition after %s", took)
		}
		j, begun := &judge{}, time.Now()
		Until(j, "a condition that is never met", func() bool { return false })
		if want := "a condition that is never met: not within 40s: it does not hold yet"; j.failed != want || time.Since(begun) != Patience {
			t.Errorf("the failure after %s is %q, want %q", time.Since(begun), j.failed, want)
		}
	})
}

func TestWithinReportsTheLastError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j, begun, looks := &judge{}, time.Now(), 0
		Within(j, time.Minute, "the third attempt", func() error {
			if looks++; looks < 3 {
				return fmt.Errorf("look %d", looks)
			}
			return Final(errors.New("broken for good"))
		})
		if want := "the third attempt: broken for good"; j.failed != want || time.Since(begun) > time.Second {
			t.Errorf("the failure after %s is %q, want %q", time.Since(begun), j.failed, want)
		}
	})
}

// If the deadline interrupts the last attempt of Poll, Poll reports the error of the attempt before it.
func TestPollKeepsTheReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		err := Poll(t.Context(), time.Second, "an answer", func(ctx context.Context) error {
			if looks++; looks == 1 {
				return errors.New("the leader is away")
			}
			<-ctx.Done()
			return ctx.Err()
		})
		if want := "an answer: not within 1s: the leader is away"; err == nil || err.Error() != want {
			t.Errorf("Poll returned %v, want %q", err, want)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := Poll(ended, time.Second, "an answer", func(ctx context.Context) error { return ctx.Err() }); err == nil {
			t.Error("a poll with a cancelled context returns no error")
		}
	})
}

func TestOutputCollectsText(t *testing.T) {
	var o Output
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { fmt.Fprintln(&o, "a line"); _ = o.String() })
	}
	wg.Wait()
	if got := o.String(); got != strings.Repeat("a line\n", 4) || !o.Has("line") || o.Has("word") {
		t.Errorf("the collected output is %q, want all written text", got)
	}
	if o.Reset(); o.String() != "" {
		t.Errorf("the output after Reset is %q", o.String())
	}
}
