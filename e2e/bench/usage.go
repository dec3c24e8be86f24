package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// usage is the memory and the CPU time of a process.
type usage struct {
	mib     float64 // resident memory in MiB at the end of the measurement
	seconds float64 // used CPU time in seconds
}

// usageOf measures processes over a time.
func usageOf(ctx context.Context, window time.Duration, pids ...int) ([]usage, error) {
	out := make([]usage, len(pids))
	for i, pid := range pids {
		before, err := cpuSeconds(pid)
		if err != nil {
			return nil, err
		}
		out[i].seconds = -before
	}
	wait(ctx, window)
	for i, pid := range pids {
		after, err := cpuSeconds(pid)
		if err != nil {
			return nil, err
		}
		if out[i].mib, err = residentMiB(pid); err != nil {
			return nil, err
		}
		out[i].seconds += after
	}
	return out, ctx.Err()
}

// cpuOf returns the sum of the CPU times of processes in seconds. A process that has exited adds 0.
func cpuOf(pids ...int) (sum float64) {
	for _, pid := range pids {
		if s, err := cpuSeconds(pid); err == nil {
			sum += s
		}
	}
	return sum
}

// cpuSeconds is the CPU time of a process in seconds (proc(5), stat fields 14 and 15).
func cpuSeconds(pid int) (float64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(raw), ") ")
	f := strings.Fields(rest)
	if len(f) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(f))
	}
	user, err := strconv.ParseFloat(f[11], 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseFloat(f[12], 64)
	return (user + system) / 100, err // a second has 100 clock ticks on Linux
}

// processCPU returns the CPU time of this process in seconds. It is more precise than cpuSeconds, which reads
// /proc.
func processCPU() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

func residentMiB(pid int) (float64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(raw)) {
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(v)[0], 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no VmRSS", pid)
}
