package agentd

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A program is mostly code that runs once, when it starts, or now and then, and the kernel maps sixteen pages
// where one is needed. What is mapped counts as resident until memory is short. So a process that is to be
// small gives back what it does not use, and faults in again, from the page cache, what it does: some hundred
// faults of microseconds.
const (
	smallFirst = 10 * time.Second
	smallEvery = time.Minute
	// little is the share of a processor below which nothing is under way that pages or heap are wanted for.
	little = 0.05
)

// KeepSmall gives back the heap that is free and the pages of this program that are not used, soon after the
// start and then once a minute while the process does little, until ctx ends.
func KeepSmall(ctx context.Context) {
	tick := time.NewTimer(smallFirst)
	defer tick.Stop()
	last, used := time.Now(), time.Duration(-1)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now, cpu := time.Now(), processorTime()
		if idle := float64(cpu-used) < little*float64(now.Sub(last)); idle || used < 0 {
			debug.FreeOSMemory()
			_ = dropPages() // what cannot be given back stays
		}
		last, used = now, processorTime()
		tick.Reset(smallEvery)
	}
}

// processorTime is what this process has used.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// dropPages unmaps the pages of the program file. They stay in the page cache.
func dropPages() error {
	spans, err := programSpans()
	if err != nil {
		return err
	}
	for _, s := range spans {
		if _, _, no := syscall.Syscall(syscall.SYS_MADVISE, s.from, s.to-s.from, syscall.MADV_DONTNEED); no != 0 {
			return fmt.Errorf("madvise: %w", no)
		}
	}
	return nil
}

type span struct{ from, to uintptr }

// programSpans are the mappings of the program file whose every page is the file's: neither can they be
// written nor were they, as pages are that a loader relocates.
func programSpans() ([]span, error) {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []span
	var one span // whose attributes follow
	ours := false
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		head := strings.Fields(lines.Text())
		switch {
		case len(head) == 0:
		case head[0] == "Anonymous:":
			if ours && len(head) > 1 && head[1] == "0" {
				out = append(out, one)
			}
		case !strings.HasSuffix(head[0], ":"): // from-to perms offset device inode path; proc_pid_maps(5)
			if one, ours = parseSpan(head[0]); ours {
				ours = !strings.Contains(head[1], "w") && strings.HasSuffix(lines.Text(), " "+self)
			}
		}
	}
	return out, lines.Err()
}

// parseSpan reads the form that /proc writes: two hexadecimal numbers with a dash between.
func parseSpan(text string) (span, bool) {
	from, to, ok := strings.Cut(text, "-")
	begin, err := strconv.ParseUint(from, 16, 64)
	end, last := strconv.ParseUint(to, 16, 64)
	return span{uintptr(begin), uintptr(end)}, ok && err == nil && last == nil
}
