// Package quota adds up the demands of workloads and compares the sums with the limits of a
// namespace.
package quota

import (
	"fmt"
	"strings"
)

// Amounts holds CPU, memory, disk, and numbers of workloads, devices and volumes: either what workloads reserve, or the limits of a
// namespace. As a limit, 0 means unlimited.
type Amounts struct {
	CPU       int64 // millicores
	Memory    int64 // MiB
	Disk      int64 // GB
	Workloads int64
	Devices   int64 // of all names together
	Volumes   int64
	VolumeGB  int64 // GB of all volumes together
}

// Max is the largest value that a limit may have. It is far above the size of any cluster, and low enough
// that sums of demands do not overflow.
const Max = 1 << 50

// kinds lists the resources that a quota limits, each with the name of its field.
var kinds = [...]struct {
	name string
	of   func(*Amounts) *int64
}{
	{"cpu_millicores", func(a *Amounts) *int64 { return &a.CPU }},
	{"memory_mib", func(a *Amounts) *int64 { return &a.Memory }},
	{"disk_gb", func(a *Amounts) *int64 { return &a.Disk }},
	{"workloads", func(a *Amounts) *int64 { return &a.Workloads }},
	{"devices", func(a *Amounts) *int64 { return &a.Devices }},
	{"volumes", func(a *Amounts) *int64 { return &a.Volumes }},
	{"volume_gb", func(a *Amounts) *int64 { return &a.VolumeGB }},
}

// Plus returns the sum of amounts a and b for each resource.
func (a Amounts) Plus(b Amounts) Amounts {
	for _, k := range kinds {
		*k.of(&a) += *k.of(&b)
	}
	return a
}

// Minus returns the difference of amounts a and b for each resource.
func (a Amounts) Minus(b Amounts) Amounts {
	for _, k := range kinds {
		*k.of(&a) -= *k.of(&b)
	}
	return a
}

// Fault describes the first limit that is invalid ("quota.cpu_millicores: …"); "" if every limit is valid.
func (a Amounts) Fault() string {
	for _, k := range kinds {
		if v := *k.of(&a); v < 0 || v > Max {
			return fmt.Sprintf("quota.%s: %d is not in 0..%d", k.name, v, int64(Max))
		}
	}
	return ""
}

// Over reports whether amounts a are above limit for at least one resource.
func (a Amounts) Over(limit Amounts) bool {
	for _, k := range kinds {
		if most := *k.of(&limit); most > 0 && *k.of(&a) > most {
			return true
		}
	}
	return false
}

// Times returns how many times the amounts in each can be added to the amounts in used without
// exceeding limit. limited is false if no limit applies.
func Times(used, each, limit Amounts) (n int64, limited bool) {
	for _, k := range kinds {
		have, more, most := *k.of(&used), *k.of(&each), *k.of(&limit)
		if most == 0 || more <= 0 {
			continue
		}
		if room := max(0, most-have) / more; !limited || room < n {
			n, limited = room, true
		}
	}
	return n, limited
}

// Excess describes the resources that exceed their limit if asked is added to used; "" if none
// does. A resource whose use does not grow is never reported, even if it is above its limit, so
// that a namespace whose quota was lowered can still shrink.
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
