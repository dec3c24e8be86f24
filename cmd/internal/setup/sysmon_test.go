package setup

import (
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSlowSysmon: one thread may be woken late, the one that sleeps for 20 µs, and no other.
func TestSlowSysmon(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	if err := SlowSysmon(); err != nil {
		t.Errorf("on one processor: %v", err)
	}
	runtime.GOMAXPROCS(2)
	if err := SlowSysmon(); errors.Is(err, os.ErrPermission) {
		if !strings.Contains(err.Error(), "CAP_SYS_NICE") {
			t.Errorf("it does not say what it needs: %v", err)
		}
		return // the slack of other threads cannot be read either
	} else if err != nil {
		t.Fatal(err)
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	late := 0
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		if err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(slackFile(tid))
		if errors.Is(err, os.ErrNotExist) {
			continue // it ended
		} else if err != nil {
			t.Fatal(err)
		}
		if strings.TrimSpace(string(raw)) != strconv.Itoa(int(sysmonSlack)) {
			continue
		}
		late++
		if !sleeps(t, tid) {
			t.Errorf("thread %d may be woken late and is not the monitor", tid)
		}
	}
	if late != 1 {
		t.Errorf("%d threads may be woken late", late)
	}
}

// sleeps reports whether a thread is met asleep for a time while this one works: the monitor
// alone does.
func sleeps(t *testing.T, tid int) bool {
	for until := time.Now().Add(5 * time.Second); time.Now().Before(until); {
		raw, err := os.ReadFile("/proc/self/task/" + strconv.Itoa(tid) + "/syscall")
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(string(raw), strconv.Itoa(unix.SYS_NANOSLEEP)+" ") {
			return true
		}
	}
	return false
}
