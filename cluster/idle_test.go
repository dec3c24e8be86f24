package cluster

import (
	"syscall"
	"testing"
	"time"
)

// BenchmarkIdle measures the CPU that three idle replicas use with the default timing.
func BenchmarkIdle(b *testing.B) {
	g := newGroup(b, 3)
	g.cfg = func(_ int, c *Config) { c.Timing = Timing{Stabilize: 200 * time.Millisecond} }
	g.form()
	var before, after syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &before); err != nil {
		b.Fatal(err)
	}
	const span = 4 * time.Second
	time.Sleep(span)
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &after); err != nil {
		b.Fatal(err)
	}
	cpu := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
	b.ReportMetric(100*float64(cpu)/float64(span)/3, "%core/replica")
	b.ReportMetric(float64(after.Maxrss)/1024/3, "MiB/replica")
	b.ReportMetric(0, "ns/op")
}
