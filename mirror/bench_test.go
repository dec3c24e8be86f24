package mirror

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/testbed"
)

// BenchmarkMirrorRate changes 20,000 workloads, 100 per log entry, as fast as etcd, which syncs its log to
// disk, accepts the writes. The benchmark reports changed workloads per second and written keys per second.
// Every change also writes an event.
func BenchmarkMirrorRate(b *testing.B) {
	e := startEtcd(b, currentEtcd(b), safe)
	c := newCluster(b, "c1")
	c.do(register("a"))
	const n = 20_000
	var list []fsm.Command
	for i := range n {
		list = append(list, put(name(i)))
	}
	c.do(list...)
	for i := range 20 { // 20 nodes have room for all workloads
		c.do(register(fmt.Sprintf("n%02d", i)))
	}
	list = nil
	for i := range n {
		list = append(list, c.assign(name(i), fmt.Sprintf("n%02d", i%20)))
	}
	c.do(list...)
	r := c.start(e.client, Options{})
	r.awaitEqual(e)
	keys := r.Stats().Records
	states := [...]string{"Running", "Stopped"}
	b.ResetTimer()
	start := time.Now()
	changes := 0
	for b.Loop() {
		list = list[:0]
		for i := range 100 {
			list = append(list, c.says(name((changes+i)%n), states[(changes/n)%2], ""))
		}
		c.do(list...)
		changes += 100
		// Wait while the mirror is more than 20 log entries behind, so that the change feed does
		// not drop changes that the mirror has not written.
		for r.Stats().LagIndex > 20 {
			time.Sleep(time.Millisecond)
		}
	}
	r.awaitIndex()
	b.StopTimer()
	s := time.Since(start).Seconds()
	b.ReportMetric(float64(changes)/s, "changes/s")
	b.ReportMetric(float64(r.Stats().Records-keys)/s, "keys/s")
	if r.Stats().Comparisons > 1 {
		b.Error("the change feed has dropped changes before the mirror read them, so the measured rate is wrong")
	}
}

// BenchmarkMirrorLag changes one record per millisecond and reports the longest time until a change
// was in etcd.
func BenchmarkMirrorLag(b *testing.B) {
	e := startEtcd(b, currentEtcd(b), safe)
	c := newCluster(b, "c1")
	r := c.start(e.client, Options{})
	r.awaitEqual(e)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	var worst time.Duration
	i := 0
	for b.Loop() {
		<-tick.C
		c.do(put(fmt.Sprintf("w%05d", i%5000)))
		i++
		worst = max(worst, r.Stats().Lag)
	}
	b.ReportMetric(float64(worst.Milliseconds()), "worst-lag-ms")
}

// BenchmarkFullComparison measures how long the mirror takes to compare all records of 20,000 workloads
// with an etcd that already holds them.
func BenchmarkFullComparison(b *testing.B) {
	e := startEtcd(b, currentEtcd(b), safe)
	c := newCluster(b, "c1")
	for i := range 20 {
		var list []fsm.Command
		for j := range 1000 {
			list = append(list, put(fmt.Sprintf("w%02d-%03d", i, j)))
		}
		c.do(list...)
	}
	r := c.start(e.client, Options{})
	r.awaitEqual(e)
	for b.Loop() {
		p, err := r.Preview(b.Context())
		if err != nil || p.Create+p.Change+p.Remove > 0 {
			b.Fatal(err, p.Create, p.Change, p.Remove)
		}
	}
}

func name(i int) string { return fmt.Sprintf("w%05d", i) }

// awaitIndex waits until the mirror reports that etcd holds the state at the current index. It does not
// compare keys.
func (r *run) awaitIndex() {
	r.t.Helper()
	index := r.c.st.View().Info().Index
	testbed.Within(r.t, testbed.Patience, "the mirror caught up", func() error {
		if s := r.Stats(); s.Index < index {
			return errors.New("the mirror has not caught up yet")
		}
		return nil
	})
}
