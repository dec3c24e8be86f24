package screen

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Span formats a duration with its two largest units, as in 3m12s, 2h5m, 4d3h.
func Span(d time.Duration) string {
	if d < 0 {
		d = 0
	}
	s := int64(d / time.Second)
	two := func(big int64, bigUnit string, small int64, smallUnit string) string {
		if small == 0 {
			return fmt.Sprintf("%d%s", big, bigUnit)
		}
		return fmt.Sprintf("%d%s%d%s", big, bigUnit, small, smallUnit)
	}
	switch {
	case s < 60:
		return fmt.Sprintf("%ds", s)
	case s < 3600:
		return two(s/60, "m", s%60, "s")
	case s < 86400:
		return two(s/3600, "h", s%3600/60, "m")
	case s < 10*86400:
		return two(s/86400, "d", s%86400/3600, "h")
	}
	return fmt.Sprintf("%dd", s/86400)
}

// Elapsed formats a duration like Span, but durations below a minute with tenths of a second.
func Elapsed(d time.Duration) string {
	if d < time.Minute {
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return Span(d)
}

// Number formats v with at most the given number of decimal places.
func Number(v float64, decimals int) string {
	s := strconv.FormatFloat(v, 'f', decimals, 64)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}

// Cores formats millicores as cores.
func Cores(millicores int64) string { return Number(float64(millicores)/1000, 2) }

// MiB formats an amount in MiB with the largest fitting unit.
func MiB(n int64) string {
	switch {
	case n == 0:
		return "0"
	case n >= 1<<20:
		return Number(float64(n)/(1<<20), 1) + "Ti"
	case n >= 1<<10:
		return Number(float64(n)/(1<<10), 1) + "Gi"
	}
	return strconv.FormatInt(n, 10) + "Mi"
}

// GiB formats an amount in GiB.
func GiB(n int64) string { return MiB(n << 10) }

// Bytes formats an amount in bytes.
func Bytes(n int64) string {
	switch {
	case n >= 1<<20:
		return MiB(n >> 20)
	case n >= 1<<10:
		return strconv.FormatInt(n>>10, 10) + "Ki"
	}
	return strconv.FormatInt(n, 10) + "B"
}

// Plural returns a number with its noun: "1 node" or "3 nodes".
func Plural[T ~int | ~int32 | ~int64](n T, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Join joins the parts that are not empty.
func Join(sep string, parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), sep)
}

// Natural compares ids. Numbers at the end of the ids are compared by value: web-2 comes before web-10.
func Natural(a, b string) int {
	stem := func(s string) (string, string) {
		i := len(s)
		for i > 0 && s[i-1] >= '0' && s[i-1] <= '9' {
			i--
		}
		return s[:i], s[i:]
	}
	as, an := stem(a)
	bs, bn := stem(b)
	if as == bs && len(an) != len(bn) && an != "" && bn != "" {
		return len(an) - len(bn)
	}
	return strings.Compare(a, b)
}
