package fencer

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/persys/compute/agent/fencer/lease"
)

// Now is the time since the machine started (CLOCK_BOOTTIME). Unlike the wall clock nobody sets it, and
// unlike Go's monotonic clock it goes on while the machine is suspended.
func Now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("CLOCK_BOOTTIME: " + err.Error()) // Linux has had it since 2.6.39
	}
	return time.Duration(ts.Nano())
}

// BootID is another one after each start of the machine. A time of Now is valid for one BootID.
func BootID() (string, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(raw)), nil
}

// Self is the calling process.
func Self() (lease.Process, error) { return processOf(os.Getpid()) }

func processOf(pid int) (lease.Process, error) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return lease.Process{}, err
	}
	// The name of the program is in parentheses and may contain any character.
	text := string(raw)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 {
		return lease.Process{}, fmt.Errorf("/proc/%d/stat: %d fields", pid, len(fields))
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return lease.Process{}, os.ErrProcessDone
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	return lease.Process{PID: pid, Start: start}, err
}

// Alive reports whether the process exists; it may be paused.
func Alive(p lease.Process) bool {
	now, err := processOf(p.PID)
	return p.PID > 0 && err == nil && now == p
}

// Kill kills this process, and no other one that got its process id.
func Kill(p lease.Process) error {
	if p.PID <= 0 {
		return os.ErrProcessDone
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return os.ErrProcessDone
	}
	defer unix.Close(fd)
	if !Alive(p) { // checked after the descriptor refers to the process
		return os.ErrProcessDone
	}
	return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
}
