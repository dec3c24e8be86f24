package libvirt

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"libvirt.org/go/libvirtxml"
)

// noQuota is the error that a hypervisor cannot enforce CPU quotas. says is the hypervisor's own error text.
type noQuota struct{ says string }

func (e *noQuota) Error() string { return e.says }

// cpuFact is the CPU quota of a virtual machine, as the driver records it in the domain's metadata.
type cpuFact struct {
	Millicores int64 `json:"millicores"`
	// Unkept is the reason why the hypervisor does not enforce the quota; empty if it does.
	Unkept string `json:"unkept,omitempty"`
}

// shown returns the quota as text for the workload's status, and a message if the hypervisor does not enforce
// it.
func (c *cpuFact) shown() (limit, message string) {
	if c.Unkept == "" {
		return fmt.Sprintf("%d millicores, enforced by the hypervisor", c.Millicores), ""
	}
	return fmt.Sprintf("%d millicores, not enforced", c.Millicores),
		fmt.Sprintf("its CPU limit of %d millicores is not enforced on this node, only its number of processors: %s", c.Millicores, c.Unkept)
}

// cpuTune sets one quota for the whole guest: it limits the processors, the emulator and the disk threads
// together, as the quota of a container limits all its processes. libvirt also has a quota per virtual
// processor, but that needs one thread per virtual processor, and QEMU without KVM may run all of them in one thread.
func cpuTune(c *cpuFact) *libvirtxml.DomainCPUTune {
	if c == nil || c.Unkept != "" {
		return nil
	}
	period := int64(100_000) // scheduling period in µs
	if c.Millicores < 10 {
		period *= 10 // use a period of 1 s, because the kernel refuses a quota of less than 1 ms per period
	}
	return &libvirtxml.DomainCPUTune{
		GlobalPeriod: &libvirtxml.DomainCPUTunePeriod{Value: uint64(period)},
		GlobalQuota:  &libvirtxml.DomainCPUTuneQuota{Value: c.Millicores * period / 1000},
	}
}

// refusesQuota reports whether text, an error message of libvirt in lower case, says that libvirt has no
// cgroups to enforce a CPU quota. That is so for a session daemon, and if cgroups are disabled or not
// writable.
func refusesQuota(text string) bool {
	for _, words := range [...]string{"cgroup cpu is required", "cpu tuning is not available", "cpu.cfs_", "cpu.max"} {
		if strings.Contains(text, words) {
			return true
		}
	}
	return false
}

// quotas remembers that a hypervisor cannot enforce quotas, until the driver reads new facts of the
// hypervisor. The driver reads the facts again after a restart of the daemon, and then tries to set
// a quota again.
type quotas struct {
	mu  sync.Mutex
	of  *facts
	why string
}

// refused reports whether err says that the hypervisor cannot enforce quotas, and remembers it.
func (q *quotas) refused(f *facts, err error) bool {
	var no *noQuota
	if !errors.As(err, &no) {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.of, q.why = f, no.says
	return true
}

func (q *quotas) unkept(f *facts) string {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.of != f {
		return ""
	}
	return q.why
}
