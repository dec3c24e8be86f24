package dnsserver

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// Sizes of the benchmarks dns-a, dns-srv and dns-change.
const (
	benchNodes     = 10_000
	benchWorkloads = 50_000
)

var bigWorld = sync.OnceValue(func() fsm.State {
	w := newWorld(new(testing.B))
	three(w)
	for i := range benchNodes {
		w.node(fmt.Sprint("node-", i), fmt.Sprintf("10.%d.%d.%d:50051", 1+i>>16, i>>8&255, i&255))
	}
	const chunk = 500
	for first := 0; first < benchWorkloads; first += chunk {
		var ids []string
		for i := first; i < first+chunk; i++ {
			ids = append(ids, fmt.Sprint("w-", i))
		}
		for i := 0; i < chunk; i += 10 {
			w.put(fmt.Sprint("g-", (first+i)/10), ids[i:i+10]...)
		}
		var to []*commandv1.Assignment
		for i, id := range ids {
			to = append(to, &commandv1.Assignment{Workload: id, Node: fmt.Sprint("node-", (first+i)%benchNodes), IfGeneration: w.generation(id)})
		}
		w.do(&commandv1.Command{Body: &commandv1.Command_Assign{Assign: &commandv1.Assign{Assignments: to}}})
		var said []*commandv1.WorkloadReport
		for i, id := range ids {
			n := first + i
			said = append(said, &commandv1.WorkloadReport{
				Workload: id, Node: fmt.Sprint("node-", n%benchNodes), Generation: w.generation(id), Acknowledged: true, State: "Running",
				Addresses: []string{fmt.Sprintf("172.%d.%d.%d", 16+n>>16, n>>8&255, n&255)},
				Ports:     []*commandv1.PortBinding{{HostPort: uint32(20000 + n/benchNodes), ContainerPort: 80, Protocol: "tcp"}},
			})
		}
		w.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: said}}})
		w.feed = nil
	}
	return w.s
})

func bigZone(b *testing.B) *Builder {
	b.Helper()
	builder, err := NewBuilder(Config{}, bigWorld(), Hints{Leader: "r1"})
	if err != nil {
		b.Fatal(err)
	}
	return builder
}

func benchmarkAnswer(b *testing.B, format string) {
	z := bigZone(b).Zone()
	var queries [1024][]byte
	for i := range queries {
		queries[i] = question(fmt.Sprintf(format, i*37%benchNodes), edns(1232))
	}
	buf := make([]byte, 0, 2*maxUDP)
	var r reader
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		if out, _ := z.answer(buf, queries[i%len(queries)], Ask{Turn: uint32(i)}, &r); out[7] == 0 {
			b.Fatal("the DNS server answered no query")
		}
	}
}

func BenchmarkAnswerA(b *testing.B) { benchmarkAnswer(b, "w-%d.default.workloads.persys.local. A") }
func BenchmarkAnswerSRV(b *testing.B) {
	benchmarkAnswer(b, "_80._tcp.w-%d.default.workloads.persys.local. SRV")
}

// BenchmarkBuild measures how long a zone takes to build from scratch.
func BenchmarkBuild(b *testing.B) {
	bigWorld()
	for b.Loop() {
		z := bigZone(b).Zone()
		b.ReportMetric(float64(z.Names()), "names")
	}
}

// BenchmarkChange measures an update and a new zone after one workload stops or starts.
func BenchmarkChange(b *testing.B) {
	builder := bigZone(b)
	w := &world{t: b, s: bigWorld(), index: bigWorld().Info().Index}
	var changes [2][]fsm.Change
	var views [2]fsm.View
	for i, state := range [...]string{"Failed", "Running"} {
		w.feed = nil
		w.report("w-777", state, "172.16.0.9", "20000:80/tcp")
		changes[i], views[i] = w.feed, w.s
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		builder.Update(views[i%2], changes[i%2])
		builder.Zone()
	}
}

// BenchmarkUDP runs the server and its clients on one machine. Every client always has a fixed number of
// unanswered queries.
func BenchmarkUDP(b *testing.B) {
	for _, c := range []struct{ name, format string }{
		{"A", "w-%d.default.workloads.persys.local. A"},
		{"SRV", "_80._tcp.w-%d.default.workloads.persys.local. SRV"},
	} {
		b.Run(c.name, func(b *testing.B) {
			w := &world{t: b, s: bigWorld(), index: bigWorld().Info().Index}
			r := serve(b, w, Options{})
			var queries [1024][]byte
			for i := range queries {
				queries[i] = question(fmt.Sprintf(c.format, i*37%benchNodes))
			}
			const clients, window = 8, 32
			var left atomic.Int64
			left.Store(int64(b.N))
			var lost atomic.Int64
			var wg sync.WaitGroup
			b.ResetTimer()
			for c0 := range clients {
				wg.Go(func() {
					conn, err := net.Dial("udp", r.addr)
					if err != nil {
						b.Error(err)
						return
					}
					defer conn.Close()
					buf := make([]byte, 2048)
					sent := 0
					send := func() bool {
						if left.Add(-1) < 0 {
							return false
						}
						conn.Write(queries[(c0*131+sent)%len(queries)])
						sent++
						return true
					}
					inflight := 0
					for inflight < window && send() {
						inflight++
					}
					for inflight > 0 {
						conn.SetReadDeadline(time.Now().Add(time.Second))
						if _, err := conn.Read(buf); err != nil {
							lost.Add(int64(inflight))
							inflight = 0
						} else {
							inflight--
						}
						for inflight < window && send() {
							inflight++
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "queries/s")
			b.ReportMetric(float64(lost.Load()), "lost")
		})
	}
}
