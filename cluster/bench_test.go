package cluster

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// BenchmarkMachineApply measures the work of one replica for a log entry with PutWorkloads commands: decode
// the entry, apply its commands, update the secondary indexes and the digest, publish the new state. The
// cases differ in the number of commands per entry. The commands change the same ten thousand workloads again
// and again. Consecutive commands of an entry change workloads that are far apart in the state, as with many
// callers.
func BenchmarkMachineApply(b *testing.B) {
	for _, each := range []int{16, 64, 256} {
		b.Run(fmt.Sprintf("puts=%d", each), func(b *testing.B) {
			m := newMachine()
			now := time.Now()
			index := uint64(1)
			apply := func(frames []byte) {
				index++
				if a, ok := m.Apply(&raft.Log{Index: index, Term: 1, Data: frames}).(*applied); !ok || a.results[0].Err() != nil {
					b.Fatalf("log entry %d was not applied: %v", index, a)
				}
			}
			apply(framed(b, &commandv1.Command{
				Head: &commandv1.Head{At: now.UnixNano()},
				Body: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{ClusterId: "c", Incarnation: 1}},
			}))
			seq := 0
			entries := make([][]byte, 0, 10_000/each+1)
			for range cap(entries) {
				var frames []byte
				for range each {
					frames = append(frames, framed(b, benchPut(seq, now))...)
					seq++
				}
				entries = append(entries, frames)
			}
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; i < b.N; i += each {
				e := entries[i/each%len(entries)]
				freshen(e, seq)
				seq += each
				apply(e)
			}
		})
	}
}

// freshen replaces the request ids in an encoded entry by new ones, so that the state machine applies its
// commands again.
func freshen(entry []byte, seq int) {
	for i := 0; i+16 < len(entry); i++ {
		switch {
		case string(entry[i:i+3]) == "\x01\x90\x00" && entry[i+6] == 0x70:
			// A request id begins with its time in milliseconds. Set the low three bytes of that time, and
			// advance it by one millisecond after every 1,000 ids: about the rate at which one replica
			// makes ids.
			entry[i+3], entry[i+4], entry[i+5] = byte(seq/1000>>16), byte(seq/1000>>8), byte(seq/1000)
			binary.BigEndian.PutUint64(entry[i+8:], 0x8000_0000_0000_0000|uint64(seq))
			seq++
			i += 15
		case string(entry[i:i+3]) == "c1:":
			copy(entry[i+3:], fmt.Sprintf("%016x", seq))
			i += 60
		}
	}
}

func framed(b *testing.B, c fsm.Command) []byte {
	b.Helper()
	f, err := fsm.AppendCommand(nil, c)
	if err != nil {
		b.Fatal(err)
	}
	return f
}

// benchPut returns a command that stores small container workload i.
func benchPut(i int, now time.Time) fsm.Command {
	return &commandv1.Command{
		Head: &commandv1.Head{
			At: now.UnixNano(), By: "anonymous", From: "127.0.0.1",
			Request: append([]byte("\x01\x90\x00\x00\x00\x00\x70\x00"), 0x80, 0, 0, 0, 0, 0, 0, 0),
		},
		Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: []*commandv1.WorkloadPut{{
			Id: fmt.Sprintf("bench-%05d", i*7919%10_000), Spec: make([]byte, 96), Content: "c1:" + strings.Repeat("0", 64), Desired: "Running",
			Demand: &commandv1.Demand{Type: "container", CpuMillicores: 100, MemoryMib: 64, OnLostLease: "keep"},
		}}}},
	}
}
