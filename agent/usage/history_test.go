package usage_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/persys/compute/agent/usage"
)

func TestHistoryAveragesSteps(t *testing.T) {
	var h usage.History
	noon := time.Unix(1_790_000_040, 0).Truncate(time.Hour)
	add := func(id, instance string, after time.Duration, millicores float64, bytes int64) {
		h.Add(id, instance, noon.Add(after), usage.Counters{Millicores: millicores, Memory: 1 << 20, NetReceived: bytes, NetSent: 2 * bytes})
	}
	add("", "", 10*time.Second, 100, 0)
	add("", "", 20*time.Second, 300, 1000)
	add("", "", 15*time.Second, 9000, 1000) // older than the previous measurement, so it is ignored
	add("", "", 70*time.Second, 500, 1000)
	add("web", "1", 10*time.Second, -1, 500) // the processor use is unknown before the second measurement
	add("web", "1", 20*time.Second, 40, 1500)
	add("web", "2", 30*time.Second, 60, 10) // the byte counters of a new instance start at 0
	now := noon.Add(2 * time.Minute)
	shown := func(id string, span usage.Span) (out string) {
		for _, s := range h.List(id, span, now) {
			out += fmt.Sprintf("%s %.0fm %d %d %d; ", s.Start.Sub(noon), s.Millicores, s.Memory>>20, s.NetReceived, s.NetSent)
		}
		return out
	}
	for _, c := range []struct {
		id   string
		span usage.Span
		want string
	}{
		{"", usage.Hour, "0s 200m 1 50 100; 1m0s 500m 1 0 0; "},
		{"", usage.Day, "0s 300m 1 33 66; "},
		{"web", usage.Hour, "0s 50m 1 50 100; "},
		{"none", usage.Hour, ""},
	} {
		if got := shown(c.id, c.span); got != c.want {
			t.Errorf("the history of workload %q (the machine if empty) over %s has the samples %q, want %q", c.id, c.span.Length, got, c.want)
		}
	}
}

func TestHistoryIsBounded(t *testing.T) {
	var h usage.History
	start := time.Unix(1_790_000_000, 0)
	at := start
	for range 25 * 60 * 4 {
		at = at.Add(15 * time.Second)
		h.Add("web", "1", at, usage.Counters{Millicores: 10})
	}
	if n := len(h.List("web", usage.Hour, at)); n < 59 || n > 61 {
		t.Errorf("the history of the last hour has %d samples, want 60 (one per minute)", n)
	}
	if n := len(h.List("web", usage.Day, at)); n < 95 || n > 97 {
		t.Errorf("the history of the last day has %d samples, want 96 (one per 15 min)", n)
	}
	if n := len(h.List("web", usage.Hour, at.Add(2*time.Hour))); n != 0 {
		t.Errorf("two hours after the last measurement the history of the last hour has %d samples, want none", n)
	}
	h.Forget(at.Add(23 * time.Hour))
	if h.List("web", usage.Day, at) == nil {
		t.Error("Forget dropped the history of a workload that was measured within the last day")
	}
	h.Forget(at.Add(25 * time.Hour))
	if h.List("web", usage.Day, at) != nil {
		t.Error("Forget kept the history of a workload without a measurement in the last day")
	}
}
