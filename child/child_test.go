package child

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// task is a task whose input selects what it does, for example use too much memory or crash.
var task = Task{Name: "test-child", Do: func(input []byte) (any, error) {
	var what string
	if err := json.Unmarshal(input, &what); err != nil {
		return nil, err
	}
	switch what {
	case "memory":
		var all [][]byte
		for {
			page := make([]byte, 1<<20)
			for i := range page {
				page[i] = 1
			}
			all = append(all, page)
			if len(all) > 1<<20 {
				return len(all), nil
			}
		}
	case "cpu":
		for n := 0; ; n++ {
			if n < 0 {
				return n, nil
			}
		}
	case "wait":
		select {}
	case "long":
		return strings.Repeat("x", 2<<20), nil
	case "deep":
		return deep(1), nil
	case "panic":
		panic("no more")
	case "fail":
		return nil, errors.New("the task's own error")
	case "file":
		return nil, os.WriteFile(filepath.Join(os.TempDir(), "persys-child-test"), make([]byte, 8<<20), 0o600)
	case "env":
		return os.Environ(), nil
	}
	return "did " + what, nil
}}

// deep calls itself without end, so that the stack of the goroutine reaches its maximum size.
func deep(n int) int {
	var frame [1024]int
	if n < 0 {
		return 0
	}
	frame[n%1024] = deep(n + 1)
	return frame[0]
}

func TestMain(m *testing.M) {
	Serve(task)
	goleak.VerifyTestMain(m)
}

func runner() *Runner {
	return &Runner{Task: task.Name, Limits: Limits{Memory: 256 << 20, CPU: time.Minute, Wall: time.Minute, Output: 1 << 20, FileSize: 1 << 20}}
}

func TestRunReturnsTheAnswer(t *testing.T) {
	var got string
	if err := runner().Run(t.Context(), "something", &got); err != nil || got != "did something" {
		t.Errorf("Run of a task that succeeds returned %q, error %v, want \"did something\", the answer of the task", got, err)
	}
	err := runner().Run(t.Context(), "fail", &got)
	if err == nil || !strings.Contains(err.Error(), "the task's own error") {
		t.Errorf("Run of a task that fails returned %v, want the task's own error", err)
	}
}

func TestTheEnvironmentIsEmpty(t *testing.T) {
	t.Setenv("SECRET", "1")
	var env []string
	r := runner()
	r.Env = []string{"NO_PROXY=*"}
	if err := r.Run(t.Context(), "env", &env); err != nil || strings.Join(env, " ") != "GOMAXPROCS=1 GOTRACEBACK=none NO_PROXY=*" {
		t.Errorf("the child's environment is %q, error %v, want only the limits and no proxy", env, err)
	}
}

func TestLimitsEndTheChild(t *testing.T) {
	for _, c := range []struct {
		do    string
		limit func(*Limits)
		want  Cause
	}{
		{"memory", func(l *Limits) { l.Memory = 16 << 20 }, Memory},
		{"cpu", func(l *Limits) { l.CPU = time.Second }, CPU},
		{"wait", func(l *Limits) { l.Wall = time.Second }, Wall},
		{"long", func(*Limits) {}, Output},
		{"panic", func(*Limits) {}, Crash},
		{"deep", func(l *Limits) { l.Memory = 2 << 30 }, Depth},
	} {
		t.Run(c.do, func(t *testing.T) {
			r := runner()
			c.limit(&r.Limits)
			var got any
			err := r.Run(t.Context(), c.do, &got)
			var end *Ended
			if !errors.As(err, &end) || end.Cause != c.want {
				t.Errorf("Run of a task that exceeds a limit returned %v, want %v", err, &Ended{Cause: c.want})
			}
		})
	}
}

func TestAFileThatIsTooLong(t *testing.T) {
	defer os.Remove(filepath.Join(os.TempDir(), "persys-child-test"))
	if err := runner().Run(t.Context(), "file", new(any)); err == nil || !strings.Contains(err.Error(), "file too large") {
		t.Errorf("Run of a task that writes a file above Limits.FileSize returned %v, want the error \"file too large\"", err)
	}
}

func TestACallerThatGoesAway(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	var got any
	if err := runner().Run(ctx, "wait", &got); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Run after the end of its context returned %v, want DeadlineExceeded", err)
	}
}

func TestAProgramThatDoesNotServe(t *testing.T) {
	served.Store(false)
	defer served.Store(true)
	if err := runner().Run(t.Context(), "something", new(string)); err == nil || !strings.Contains(err.Error(), "does not call child.Serve") {
		t.Errorf("Run without Serve returned %v, want an error that says that Serve was not called", err)
	}
}
