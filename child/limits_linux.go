package child

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// limit sets the limits of this process. The memory limit is set on the data segment, which is the memory
// that Go writes to. A limit on the address space would also count memory that Go only reserves.
func limit(l Limits) error {
	// If the machine runs out of memory, the kernel should kill this child before the program that waits for
	// its answer. Ignore the error, because the limits below also bound the memory of this child.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0o600)
	present, err := dataSegment()
	if err != nil {
		return err
	}
	for of, max := range map[int]uint64{
		unix.RLIMIT_DATA: present + l.Memory*memoryFactor, unix.RLIMIT_CPU: uint64(max(1, l.CPU/time.Second)) * cpuFactor,
		unix.RLIMIT_CORE: 0, unix.RLIMIT_FSIZE: l.FileSize,
	} {
		// The hard limit is set as well as the soft one, because at the soft limit of CPU time the kernel
		// only sends a signal, which Go ignores.
		if err := unix.Setrlimit(of, &unix.Rlimit{Cur: max, Max: max}); err != nil {
			return os.NewSyscallError("setrlimit", err)
		}
	}
	return nil
}

// dataSegment returns the present size of this process's data segment in bytes. The memory limit is this size
// plus Limits.Memory.
func dataSegment() (uint64, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if size, ok := strings.CutPrefix(line, "VmData:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(size), "kB")), 10, 64)
			return n << 10, err
		}
	}
	return 0, errors.New("/proc/self/status has no VmData")
}

// Confine makes the parent folder of dir the root directory of this process, and returns the new path of dir.
// The root is the parent and not dir itself, so that an absolute path such as /data cannot be mistaken for the
// path data in dir. Only root can do this; for other users Confine returns dir unchanged.
func Confine(dir string) string {
	if os.Geteuid() != 0 {
		return dir
	}
	if err := unix.Chroot(filepath.Dir(dir)); err != nil {
		return dir // ignore the error: a container may lack the capability for chroot
	}
	return "/" + filepath.Base(dir)
}

// killed reports whether a signal ended a child, as when the kernel kills it.
func killed(exit *exec.ExitError) bool {
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && (status.Signal() == syscall.SIGKILL || status.Signal() == syscall.SIGXCPU)
}
