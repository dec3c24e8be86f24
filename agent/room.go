package agent

import (
	"fmt"

	"github.com/persys/compute/agent/driver"
)

// limit is how much of one resource may be promised to workloads.
type limit struct {
	resource, unit         string
	total, reserved, offer int64
}

// offered is what a node offers of a total; schedulers compute the same from what it registers.
func (c *Config) offered(total, reserved int64) int64 {
	rest := max(0, total-reserved)
	if c.Threshold == 0 {
		return rest
	}
	return rest/100*int64(c.Threshold) + rest%100*int64(c.Threshold)/100
}

// limits of CPU, memory, and disk in all pools together: an order does not name the pool of its disk.
func (a *Agent) limits() [3]limit {
	totals := a.host.Totals()
	disk := limit{resource: "disk", unit: "GB", reserved: a.cfg.ReservedDisk}
	pools, _ := a.pools()
	for i, p := range pools {
		kept := int64(0)
		if i == 0 {
			kept = a.cfg.ReservedDisk
		}
		disk.total += p.GetTotalGb()
		disk.offer += a.cfg.offered(p.GetTotalGb(), kept)
	}
	return [3]limit{
		{"CPU", "millicores", totals.CPUMillicores, a.cfg.ReservedCPU, a.cfg.offered(totals.CPUMillicores, a.cfg.ReservedCPU)},
		{"memory", "MiB", totals.MemoryMB, a.cfg.ReservedMemory, a.cfg.offered(totals.MemoryMB, a.cfg.ReservedMemory)},
		disk,
	}
}

// maxPromise bounds one promise, so that sums of them stay numbers.
const maxPromise = 1 << 40

func (in *intent) promises() [3]int64 {
	cpu, memory, disk := in.promised()
	return [3]int64{max(0, min(cpu, maxPromise)), max(0, min(memory, maxPromise)), max(0, min(disk, maxPromise))}
}

// room refuses an order (old is the one that it follows, nil for none) that does not fit: what all
// orders promise together, against what this node offers. What happens to be in use this second
// decides nothing. An order that asks for no more than the one before fits: what is here stays, also
// when the settings shrink. Schedulers that know the settings place nothing beyond them; this is for
// those that do not, and for an agent without any.
func (a *Agent) room(next, old *intent) *refusal {
	if a.cfg.Threshold == 0 {
		return nil
	}
	wants, had, held := next.promises(), [3]int64{}, [3]int64{}
	if old != nil {
		had = old.promises()
	}
	limits := a.limits()
	a.mu.Lock()
	for id, w := range a.workloads {
		if w.intent != nil && id != next.ID {
			for i, n := range w.intent.promises() {
				held[i] += n
			}
		}
	}
	a.mu.Unlock()
	for i, l := range limits {
		if wants[i] <= had[i] || held[i]+wants[i] <= l.offer {
			continue
		}
		return &refusal{class: driver.InsufficientResources, message: fmt.Sprintf(
			"%s: %s: needs %d %s, %d of the %d that node %q offers are promised (it has %d, keeps %d for itself, and promises %d %% of the rest: PERSYS_RESOURCE_THRESHOLD)",
			driver.InsufficientResources, l.resource, wants[i], l.unit, held[i], l.offer, a.cfg.NodeID, l.total, l.reserved, a.cfg.Threshold)}
	}
	return nil
}
