// Package quota is the arithmetic of quotas: what workloads ask for together, and what
// of that is more than a namespace allows.
package quota

import (
	"fmt"
	"strings"
)

// Amounts of a namespace. As a limit, 0 means any amount.
type Amounts struct {
	CPU       int64 // millicores
	Memory    int64 // MiB
	Disk      int64 // GB
	Workloads int64
}

// Max is the largest limit of each amount: far above what one cluster runs, and low enough
// that sums of the demands of as many workloads as there can be do not overflow.
const Max = 1 << 50

// kinds are the amounts by the names of their fields.
var kinds = [...]struct {
	name string
	of   func(*Amounts) *int64
}{
	{"cpu_millicores", func(a *Amounts) *int64 { return &a.CPU }},
	{"memory_mib", func(a *Amounts) *int64 { return &a.Memory }},
	{"disk_gb", func(a *Amounts) *int64 { return &a.Disk }},
	{"workloads", func(a *Amounts) *int64 { return &a.Workloads }},
}

// Plus is a+b.
func (a Amounts) Plus(b Amounts) Amounts {
	return Amounts{CPU: a.CPU + b.CPU, Memory: a.Memory + b.Memory, Disk: a.Disk + b.Disk, Workloads: a.Workloads + b.Workloads}
}

// Minus is a-b.
func (a Amounts) Minus(b Amounts) Amounts {
	return Amounts{CPU: a.CPU - b.CPU, Memory: a.Memory - b.Memory, Disk: a.Disk - b.Disk, Workloads: a.Workloads - b.Workloads}
}

// Fault names the first amount that is no limit, "" if all are: quota.cpu_millicores: …
func (a Amounts) Fault() string {
	for _, k := range kinds {
		if v := *k.of(&a); v < 0 || v > Max {
			return fmt.Sprintf("quota.%s: %d is not in 0..%d", k.name, v, int64(Max))
		}
	}
	return ""
}

// Over reports whether a is more than limit allows, of anything.
func (a Amounts) Over(limit Amounts) bool {
	for _, k := range kinds {
		if most := *k.of(&limit); most > 0 && *k.of(&a) > most {
			return true
		}
	}
	return false
}

// Excess says what of an increase from used by asked is more than limit allows, with the
// figures; "" if nothing is. What does not increase is never too much, also where the limit
// is below it already: so a namespace whose quota was lowered can still shrink.
func Excess(used, asked, limit Amounts) string {
	var over []string
	for _, k := range kinds {
		have, more, most := *k.of(&used), *k.of(&asked), *k.of(&limit)
		if most > 0 && more > 0 && have+more > most {
			over = append(over, fmt.Sprintf("%s: %d used, %d more asked for, limit %d", k.name, have, more, most))
		}
	}
	return strings.Join(over, "; ")
}
