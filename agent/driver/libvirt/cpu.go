package libvirt

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"libvirt.org/go/libvirtxml"
)

// noQuota is inside the error of a hypervisor that cannot keep a guest within a CPU quota.
type noQuota struct{ says string }

func (e *noQuota) Error() string { return e.says }

// cpuFact is the CPU quota of a definition.
type cpuFact struct {
	Millicores int64 `json:"millicores"`
	// Unkept is why the guest runs without it; empty if the hypervisor keeps it.
	Unkept string `json:"unkept,omitempty"`
}

// shown is what the status says of a quota, and the message for one that is not kept.
func (c *cpuFact) shown() (limit, message string) {
	if c.Unkept == "" {
		return fmt.Sprintf("%d millicores, kept by the hypervisor", c.Millicores), ""
	}
	return fmt.Sprintf("%d millicores, not kept", c.Millicores),
		fmt.Sprintf("its CPU limit of %d millicores is not kept on this node, only the number of its processors: %s", c.Millicores, c.Unkept)
}

// cpuTune is a quota for all of a guest together, its processors, emulator and disks' threads, as
// containers have it. One for each processor would need to know their threads, which emulation may
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

// refusesQuota says whether libvirt's message, in lower case, is that it has no cgroups to keep a CPU
// quota with: a session's daemon, one whose cgroups are switched off, or not writable.
func refusesQuota(text string) bool {
	for _, words := range [...]string{"cgroup cpu is required", "cpu tuning is not available", "cpu.cfs_", "cpu.max"} {
		if strings.Contains(text, words) {
			return true
		}
	}
	return false
}

// quotas remembers that a hypervisor keeps none, for as long as its facts hold: its next daemon is asked
// again.
type quotas struct {
	mu  sync.Mutex
	of  *facts
	why string
}

// refused says whether an error is the hypervisor's word that it keeps no quotas, and remembers it.
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
