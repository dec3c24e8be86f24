package fsm

import (
	"bytes"
	"fmt"
	"io"
	"testing"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
)

// populated returns a state with n running workloads on 100 nodes.
func populated(b *testing.B, n int) State {
	b.Helper()
	s := formed(b).s
	epoch := &commandv1.Epoch{Incarnation: s.Info().Incarnation, Term: 1}
	tx := s.Begin()
	for i := range 100 {
		tx.Apply(Meta{10, 1}, register(fmt.Sprintf("node-%d", i), func(n *commandv1.RegisterNode) {
			n.CpuMillicores, n.MemoryMib = bounds.MaxCPU, bounds.MaxMemory
		}))
	}
	for i := range n {
		id := fmt.Sprintf("w-%d", i)
		tx.Apply(Meta{uint64(20 + i), 1}, benchPut(id, i))
		w, _ := tx.state().Workload(id)
		c := assign(&commandv1.Assignment{Workload: id, Node: fmt.Sprintf("node-%d", i%100), IfGeneration: GenerationPB(w.Generation)})
		c.Head = &commandv1.Head{Epoch: epoch}
		tx.Apply(Meta{uint64(20 + i), 1}, c)
	}
	return tx.Commit()
}

func benchPut(id string, n int) Command {
	c := put(id, func(p *commandv1.WorkloadPut) { p.Spec = make([]byte, 256) })
	c.Head = &commandv1.Head{Request: requestAt(epoch0, uint32(n)), At: epoch0 + int64(n)*1000, By: "bench"}
	return c
}

// BenchmarkPut stores new workloads in a state that already holds 100,000. Its cases differ in the number of
// commands per log entry.
func BenchmarkPut(b *testing.B) {
	s := populated(b, 100_000)
	for _, batch := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			commands := make([]Command, b.N)
			for i := range commands {
				commands[i] = benchPut(fmt.Sprintf("new-%d", i), 1_000_000+i)
			}
			b.ReportAllocs()
			b.ResetTimer()
			s := s
			for i := 0; i < b.N; {
				tx := s.Begin()
				for range min(batch, b.N-i) {
					if res, _ := tx.Apply(Meta{uint64(1_000_000 + i), 1}, commands[i]); res.Kind != OK {
						b.Fatal(res.Reason)
					}
					i++
				}
				s = tx.Commit()
			}
		})
	}
}

// BenchmarkReport applies reports about running workloads, 100 per command, as the leader
// proposes them after heartbeats.
func BenchmarkReport(b *testing.B) {
	s := populated(b, 100_000)
	epoch := &commandv1.Epoch{Incarnation: s.Info().Incarnation, Term: 1}
	const each = 100
	states := [...]string{"Running", "Stopped"}
	commands := make([]Command, 0, 2000)
	for round := range 2 {
		for c := range 1000 {
			list := make([]*commandv1.WorkloadReport, each)
			for i := range list {
				id := c*each + i
				w, _ := s.Workload(fmt.Sprintf("w-%d", id))
				list[i] = &commandv1.WorkloadReport{Workload: w.ID, Node: w.Node, Generation: GenerationPB(w.Generation), State: states[round]}
			}
			cmd := report(list...)
			cmd.Head = &commandv1.Head{Epoch: epoch}
			commands = append(commands, cmd)
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		var res Result
		if s, res, _ = s.Apply(Meta{uint64(1_000_000 + i), 1}, commands[i%len(commands)]); res.Skipped > 0 {
			b.Fatal(res.Reason)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/each, "ns/item")
}

// BenchmarkSnapshotStall writes a snapshot of 100,000 workloads while PutWorkloads commands are applied, and
// reports the longest time that one command took.
func BenchmarkSnapshotStall(b *testing.B) {
	s := populated(b, 100_000)
	var worst time.Duration
	n := 0
	b.ResetTimer()
	for range b.N {
		done := make(chan error, 1)
		taken := s
		go func() { done <- taken.WriteSnapshot(io.Discard) }()
		for running := true; running; n++ {
			select {
			case err := <-done:
				if err != nil {
					b.Fatal(err)
				}
				running = false
			default:
			}
			c := benchPut(fmt.Sprintf("new-%d", n), 1_000_000+n)
			start := time.Now()
			s, _, _ = s.Apply(Meta{uint64(1_000_000 + n), 1}, c)
			worst = max(worst, time.Since(start))
		}
	}
	b.ReportMetric(float64(worst.Microseconds()), "worst-µs")
	b.ReportMetric(float64(n)/float64(b.N), "puts/snapshot")
}

func BenchmarkReadSnapshot(b *testing.B) {
	data := snapshotBytes(b, populated(b, 100_000))
	b.SetBytes(int64(len(data)))
	b.ResetTimer()
	for range b.N {
		if _, err := ReadSnapshot(bytes.NewReader(data)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDecodeBatch decodes a log entry with one PutWorkloads command of 256 bytes.
func BenchmarkDecodeBatch(b *testing.B) {
	frame, err := AppendCommand(nil, benchPut("web", 1))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeBatch(frame); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkUpdate changes the specifications of workloads in a state that holds 10,000, with
// 256 commands per log entry.
func BenchmarkUpdate(b *testing.B) {
	const held, each = 10_000, 256
	w := formed(b)
	command := func(i int) Command {
		c := put(fmt.Sprintf("bench-%05d", i*7919%held), func(p *commandv1.WorkloadPut) {
			p.Spec = fmt.Appendf(nil, "%093d", i)
			p.Content = fmt.Sprintf("c1:%064d", i)
			p.Demand = &commandv1.Demand{Type: "container", CpuMillicores: 100, MemoryMib: 64}
		})
		c.Head = &commandv1.Head{Request: requestAt(epoch0, uint32(i)), At: epoch0 + int64(i)*1000, From: "127.0.0.1"}
		return c
	}
	var entries [][]byte
	const before = 200 // number of log entries before the measurement, so that every workload has former revisions
	for e := range before + b.N {
		var data []byte
		for i := range each {
			var err error
			if data, err = AppendCommand(data, command(e*each+i)); err != nil {
				b.Fatal(err)
			}
		}
		entries = append(entries, data)
	}
	s, index := w.s, uint64(100)
	var decoder Decoder
	apply := func(data []byte) {
		n, err := decoder.Open(data)
		if err != nil {
			b.Fatal(err)
		}
		tx := s.Begin()
		tx.Expect(n)
		for range n {
			c, err := decoder.Next()
			if err != nil {
				b.Fatal(err)
			}
			if res, _ := tx.Apply(Meta{index, 1}, c); res.Kind != OK {
				b.Fatal(res.Reason)
			}
		}
		s = tx.Commit()
		index++
	}
	for _, data := range entries[:before] {
		apply(data)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for _, data := range entries[before:] {
		apply(data)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/each, "ns/put")
}
