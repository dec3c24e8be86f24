package screen

import (
	"slices"
	"testing"
	"time"
)

func TestSpanPrintsDurations(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 0: "0s", 1900 * time.Millisecond: "1s", 59 * time.Second: "59s", time.Minute: "1m", 192 * time.Second: "3m12s",
		time.Hour: "1h", 125 * time.Minute: "2h5m", 24 * time.Hour: "1d", 99 * time.Hour: "4d3h", 400 * 24 * time.Hour: "400d",
	} {
		if got := Span(d); got != want {
			t.Errorf("Span(%s) = %s, want %s", d, got, want)
		}
	}
}

func TestMiBPrintsSizes(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 1: "1Mi", 1023: "1023Mi", 1024: "1Gi", 7900: "7.7Gi", 1 << 20: "1Ti"} {
		if got := MiB(n); got != want {
			t.Errorf("MiB(%d) = %s, want %s", n, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0", 250: "0.25", 1000: "1", 12500: "12.5", 128000: "128"} {
		if got := Cores(n); got != want {
			t.Errorf("Cores(%d) = %s, want %s", n, got, want)
		}
	}
}

func TestNaturalSortsNumbersByValue(t *testing.T) {
	ids := []string{"web-10", "db", "web-2", "web", "web-0", "2", "10"}
	slices.SortFunc(ids, Natural)
	if want := []string{"2", "10", "db", "web", "web-0", "web-2", "web-10"}; !slices.Equal(ids, want) {
		t.Errorf("the sorted ids are %v, want %v", ids, want)
	}
}
