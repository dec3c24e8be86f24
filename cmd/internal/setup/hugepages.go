package setup

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// heapAhead is how much of the heap to come is put into huge pages: what a replica under
// load fills between two collections, and what it holds.
const heapAhead = 2 * roomMax

// HugePages asks the kernel to back the heap with huge pages as it grows. Under load a
// replica fills fresh memory by the hundred MB, and a fault for each 4 KiB of it costs as
// much as the records written there: half of all CPU where the machine is virtual and its
// page tables are kept by software.
//
// Many kernels do it only for memory that a process names (transparent_hugepage=madvise),
// and the Go runtime names none. So a part of the address space as large as the heap may
// become is taken once, untouched, named, and given back to the runtime, which fills it from
// then on, from its start. It takes no memory until then. To be called before PaceGC, which
// would take it for records. Where it cannot be done nothing is lost but speed: the error is
// for a log.
func HugePages() error {
	if raw, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled"); err != nil {
		return fmt.Errorf("huge pages: %w", err)
	} else if strings.Contains(string(raw), "[never]") {
		return errors.New("huge pages: /sys/kernel/mm/transparent_hugepage/enabled is never: set madvise or always")
	}
	if underRace {
		return errors.New("huge pages: the race detector keeps notes of all memory that is taken")
	}
	size := uint64(heapAhead)
	if total := memoryTotal(); total > 0 {
		size = min(size, total/4)
	}
	if why := bounded(size); why != "" {
		return fmt.Errorf("huge pages: %s", why)
	}
	err := name(size)
	debug.FreeOSMemory() // so that the next collection does not wait for as much again
	return err
}

// name takes memory that is fresh, which nobody has to clear, and leaves it to the next
// collection.
func name(size uint64) error {
	ahead := make([]byte, size)
	defer runtime.KeepAlive(ahead)
	if err := unix.Madvise(ahead, unix.MADV_HUGEPAGE); err != nil {
		return fmt.Errorf("huge pages: %w", err)
	}
	return nil
}

// bounded says why so much address space must not be taken at once, "" if it may.
func bounded(size uint64) string {
	if raw, err := os.ReadFile("/proc/sys/vm/overcommit_memory"); err != nil || strings.TrimSpace(string(raw)) == "2" {
		return "the kernel promises no memory that it does not have (vm.overcommit_memory is 2)"
	}
	for name, which := range map[string]int{"address space": unix.RLIMIT_AS, "data segment": unix.RLIMIT_DATA} {
		var l unix.Rlimit
		if err := unix.Getrlimit(which, &l); err != nil || l.Cur < 4*size {
			return fmt.Sprintf("the %s of this process is limited to %d bytes", name, l.Cur)
		}
	}
	return ""
}
