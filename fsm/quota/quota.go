// Package quota adds up the demands of workloads and compares the sums with the limits of a
// namespace.
package quota

import (
	"fmt"
	"strings"
)

// Amounts are the resources that workloads demand, or the limits of a namespace. As a limit, 0
// means any amount.
type Amounts struct {
	CPU       int64 // millicores
	Memory    int64 // MiB
	Disk      int64 // GB
	Workloads int64
}

// Max is the largest limit of each amount. It is far above the size of any cluster, and low enough
// that sums of demands do not overflow.
const Max = 1 << 50

// kinds lists the amounts and the names of their fields.
var kinds = [...]struct {
	name string
	of   func(*Amounts) *int64
}{
	{"cpu_millicores", func(a *Amounts) *int64 { return &a.CPU }},
	{"memory_mib", func(a *Amounts) *int64 { return &a.Memory }},
	{"disk_gb", func(a *Amounts) *int64 { return &a.Disk }},
	{"workloads", func(a *Amounts) *int64 { return &a.Workloads }},
}

// Plus returns a+b.
func (a Amounts) Plus(b Amounts) Amounts {
	return Amounts{CPU: a.CPU + b.CPU, Memory: a.Memory + b.Memory, Disk: a.Disk + b.Disk, Workloads: a.Workloads + b.Workloads}
}

// Minus returns a-b.
func (a Amounts) Minus(b Amounts) Amounts {
	return Amounts{CPU: a.CPU - b.CPU, Memory: a.Memory - b.Memory, Disk: a.Disk - b.Disk, Workloads: a.Workloads - b.Workloads}
}

// Fault describes the first amount that is not a valid limit ("quota.cpu_millicores: …"); "" if
// all are valid.
func (a Amounts) Fault() string {
	for _, k := range kinds {
		if v := *k.of(&a); v < 0 || v > Max {
			return fmt.Sprintf("quota.%s: %d is not in 0..%d", k.name, v, int64(Max))
		}
	}
	return ""
}

// Over reports whether any amount of a exceeds its limit.
func (a Amounts) Over(limit Amounts) bool {
	for _, k := range kinds {
		if most := *k.of(&limit); most > 0 && *k.of(&a) > most {
			return true
		}
	}
	return false
}

// Excess describes the amounts that exceed their limit if used grows by asked; "" if none does.
// An amount that does not grow is never reported, even if it is above its limit, so that a
// namespace whose quota was lowered can still shrink.
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
