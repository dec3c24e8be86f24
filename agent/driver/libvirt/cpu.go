package libvirt

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"libvirt.org/go/libvirtxml"
)

// noQuota is wrapped by errors of a hypervisor that cannot enforce CPU quotas.
type noQuota struct{ says string }

func (e *noQuota) Error() string { return e.says }

// cpuFact is the CPU quota of a definition.
type cpuFact struct {
	Millicores int64 `json:"millicores"`
	// Unkept is the reason why the quota is not enforced; empty if it is enforced.
	Unkept string `json:"unkept,omitempty"`
}

// shown returns the quota for the status, and the message if it is not enforced.
func (c *cpuFact) shown() (limit, message string) {
	if c.Unkept == "" {
		return fmt.Sprintf("%d millicores, kept by the hypervisor", c.Millicores), ""
	}
	return fmt.Sprintf("%d millicores, not kept", c.Millicores),
		fmt.Sprintf("its CPU limit of %d millicores is not kept on this node, only the number of its processors: %s", c.Millicores, c.Unkept)
}

// cpuTune sets one quota for the whole guest: its processors, the emulator and disk threads, as
// containers have it. Quotas per processor would need the processors' threads, which emulation may
// not have.
func cpuTune(c *cpuFact) *libvirtxml.DomainCPUTune {
	if c == nil || c.Unkept != "" {
		return nil
	}
	period := int64(100_000) // µs
	if c.Millicores < 10 {
		period *= 10 // no quota is shorter than 1 ms
	}
	return &libvirtxml.DomainCPUTune{
		GlobalPeriod: &libvirtxml.DomainCPUTunePeriod{Value: uint64(period)},
		GlobalQuota:  &libvirtxml.DomainCPUTuneQuota{Value: c.Millicores * period / 1000},
	}
}

// refusesQuota reports whether libvirt's error message, in lower case, says that it has no cgroups to
// enforce a CPU quota: a session daemon, or cgroups that are disabled or not writable.
func refusesQuota(text string) bool {
	for _, words := range [...]string{"cgroup cpu is required", "cpu tuning is not available", "cpu.cfs_", "cpu.max"} {
		if strings.Contains(text, words) {
			return true
		}
	}
	return false
}

// quotas remembers that a hypervisor cannot enforce quotas, as long as its facts stay the same. After
// a restart of the daemon it is asked again.
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
