package setup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/persys/compute/testbed"
)

// TestSlowSysmon: the kernel may wake the monitor late and no other thread, also none that was
// started by it, and where there is one processor not even the monitor.
func TestSlowSysmon(t *testing.T) {
	m, err := findMonitor()
	if errors.Is(err, os.ErrPermission) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := SlowSysmon(ctx); err == nil || !strings.Contains(err.Error(), "CAP_SYS_NICE") {
			t.Errorf("it does not say what it needs: %v", err)
		}
		testbed.Need(t, "CAP_SYS_NICE", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !monitors(t, m.tid) {
		t.Errorf("thread %s is not the monitor", m.tid)
	}
	before := runtime.GOMAXPROCS(0)
	t.Cleanup(func() {
		runtime.GOMAXPROCS(1)
		if err := m.settle(); err != nil {
			t.Error(err)
		}
		runtime.GOMAXPROCS(before)
	})

	// Another thread that has the monitor's slack, as one that it started.
	tid, end := make(chan string), make(chan struct{})
	defer close(end)
	go func() {
		runtime.LockOSThread() // and end with this goroutine
		if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(sysmonSlack), 0, 0, 0); err != nil {
			t.Error(err)
		}
		tid <- strconv.Itoa(unix.Gettid())
		<-end
	}()
	child := <-tid
	if late := lateThreads(t); !slices.Equal(late, []string{child}) {
		t.Fatalf("threads %v may be woken late before anything was done, want %s", late, child)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var identityStore sync.WaitGroup
	identityStore.Go(func() { m.keep(ctx, time.Millisecond) })
	for _, step := range []struct {
		procs int
		late  []string
	}{{1, nil}, {2, []string{m.tid}}, {1, nil}, {2, []string{m.tid}}} {
		runtime.GOMAXPROCS(step.procs)
		testbed.Until(t, fmt.Sprintf("with %d processors threads %v that may be woken late; %s is the monitor, %s took its slack over", step.procs, step.late, m.tid, child),
			func() bool { return slices.Equal(lateThreads(t), step.late) })
	}
	cancel()
	identityStore.Wait()
}

// lateThreads are those that the kernel may wake as late as the monitor.
func lateThreads(t *testing.T) (late []string) {
	names, err := threads()
	if err != nil {
		t.Fatal(err)
	}
	for _, tid := range names {
		if have, err := slackOf(tid); err == nil && have == strconv.Itoa(int(sysmonSlack)) {
			late = append(late, tid)
		}
	}
	return late
}

// monitors reports whether a thread is met asleep for a time again and again while this one
// works.
func monitors(t *testing.T, tid string) bool {
	asleep := 0
	for until := time.Now().Add(10 * time.Second); asleep < 20 && time.Now().Before(until); {
		raw, err := os.ReadFile("/proc/self/task/" + tid + "/syscall")
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(string(raw), strconv.Itoa(unix.SYS_NANOSLEEP)+" ") {
			asleep++
		}
	}
	return asleep == 20
}
