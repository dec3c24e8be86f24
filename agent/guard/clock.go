package guard

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Now is the time since the machine started, in suspension too. Unlike the clock of the wall nobody
// sets it, and unlike Go's own it goes on while the machine sleeps.
func Now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("CLOCK_BOOTTIME: " + err.Error()) // Linux has had it since 2.6.39
	}
	return time.Duration(ts.Nano())
}

// BootID differs after each start of the machine: a time of Now means nothing after the next one.
func BootID() (string, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(raw)), nil
}

// Process names a process for good: its id may be given to another one, its start may not.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // ticks since the machine started
}

// Self is the calling process.
func Self() (Process, error) { return processOf(os.Getpid()) }

func processOf(pid int) (Process, error) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Process{}, err
	}
	// The name stands in parentheses and may hold anything.
	text := string(raw)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 {
		return Process{}, fmt.Errorf("/proc/%d/stat: %d fields", pid, len(fields))
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return Process{}, os.ErrProcessDone
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	return Process{PID: pid, Start: start}, err
}

// Alive reports whether the process exists, be it paused.
func (p Process) Alive() bool {
	now, err := processOf(p.PID)
	return p.PID > 0 && err == nil && now == p
}

// Kill kills exactly this process.
func (p Process) Kill() error {
	if p.PID <= 0 {
		return os.ErrProcessDone
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return os.ErrProcessDone
	}
	defer unix.Close(fd)
	if !p.Alive() { // asked after the descriptor holds the process
		return os.ErrProcessDone
	}
	return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
}
