package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/persys/compute/cmd/persysctl/screen"
)

func plural2(n, what string) string {
	if n == "1" {
		return n + " " + what
	}
	return n + " " + what + "s"
}

func joinNonEmpty(sep string, parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), sep)
}

// span formats a duration with its two largest units.
func span(d time.Duration) string { return screen.Span(d) }

// elapsed is span with tenths of a second below a minute.
func elapsed(d time.Duration) string {
	if d < time.Minute {
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return span(d)
}

// age formats the time since ts, or "-" for none.
func (c *cli) age(ts *timestamppb.Timestamp) string {
	if ts == nil {
		return screen.None
	}
	return span(c.now().Sub(ts.AsTime()))
}

// moment formats a time in the local zone, with the date unless it is today.
func (c *cli) moment(ts *timestamppb.Timestamp) string {
	if ts == nil {
		return screen.None
	}
	t, now := ts.AsTime().In(c.zone), c.now().In(c.zone)
	if t.YearDay() == now.YearDay() && t.Year() == now.Year() {
		return t.Format("15:04:05")
	}
	return t.Format("2006-01-02 15:04:05")
}

// ago is age and moment.
func (c *cli) ago(ts *timestamppb.Timestamp) string {
	if ts == nil {
		return screen.None
	}
	return c.age(ts) + " ago (" + c.moment(ts) + ")"
}

// number formats v with at most that many decimals.
func number(v float64, decimals int) string {
	s := strconv.FormatFloat(v, 'f', decimals, 64)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}

// cores formats millicores as cores.
func cores(millicores int64) string { return number(float64(millicores)/1000, 2) }

// mib formats an amount in MiB with its largest unit.
func mib(n int64) string {
	switch {
	case n == 0:
		return "0"
	case n >= 1<<20:
		return number(float64(n)/(1<<20), 1) + "Ti"
	case n >= 1<<10:
		return number(float64(n)/(1<<10), 1) + "Gi"
	}
	return strconv.FormatInt(n, 10) + "Mi"
}

// gib formats an amount in GiB.
func gib(n int64) string { return mib(n << 10) }

// bytesize formats an amount in bytes.
func bytesize(n int64) string {
	switch {
	case n >= 1<<20:
		return mib(n >> 20)
	case n >= 1<<10:
		return strconv.FormatInt(n>>10, 10) + "Ki"
	}
	return strconv.FormatInt(n, 10) + "B"
}

// plural is "1 node" or "3 nodes".
func plural[T ~int | ~int32 | ~int64](n T, what string) string {
	if n == 1 {
		return fmt.Sprintf("1 %s", what)
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func orText(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
