package e2e

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/persys/compute/fsm"
)

// op is one operation (read or write) on one workload, with the times and the result that its client saw.
// Times are in nanoseconds since the recorder was created.
type op struct {
	Client   int            `json:"client"`
	Workload string         `json:"workload"`
	Write    string         `json:"write,omitempty"` // content that the operation applied, unique in the test; empty for a read
	Via      int            `json:"via"`             // index of the scheduler that was called first
	Call     int64          `json:"call"`
	Return   int64          `json:"return"` // time at which the client got the answer; 0 if the outcome is unknown
	Found    bool           `json:"found,omitempty"`
	Read     string         `json:"read,omitempty"` // content that was read
	Gen      fsm.Generation `json:"generation"`
	Index    uint64         `json:"index,omitempty"`
	Error    string         `json:"error,omitempty"` // why the outcome of the operation is unknown
}

// recorder collects a history.
type recorder struct {
	began time.Time
	mu    sync.Mutex
	ops   []op
}

func newRecorder() *recorder { return &recorder{began: time.Now()} }

func (r *recorder) now() int64 { return int64(time.Since(r.began)) + 1 }

func (r *recorder) add(o op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops = append(r.ops, o)
}

func (r *recorder) all() []op {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.ops)
}

// acks returns the writes that were acknowledged, in the order of their acknowledgements.
func (r *recorder) acks() []op {
	out := slices.DeleteFunc(r.all(), func(o op) bool { return o.Write == "" || o.Return == 0 })
	slices.SortFunc(out, func(a, b op) int { return int(a.Return - b.Return) })
	return out
}

// register is the model's state of one workload: its content, and the lowest generation and log index that
// it can have. The planner may raise generation and log index between two operations; neither ever gets
// lower.
type register struct {
	content string
	gen     fsm.Generation
	index   uint64
}

// model is a register with a generation for each workload. An acknowledged write has a higher generation
// than all operations before it. A write with an unknown outcome may have been applied at any time after
// its call, or never. If it was never applied, the model places it after all other operations. A read
// returns the content of the last write.
func model() porcupine.Model {
	return porcupine.Model{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			at := map[string]int{}
			var out [][]porcupine.Operation
			for _, o := range history {
				id := o.Input.(op).Workload
				i, ok := at[id]
				if !ok {
					i = len(out)
					at[id] = i
					out = append(out, nil)
				}
				out[i] = append(out[i], o)
			}
			return out
		},
		Init: func() any { return register{} },
		Step: func(state, input, _ any) (bool, any) {
			s, o := state.(register), input.(op)
			switch {
			case o.Write != "" && o.Return == 0:
				// The outcome of this write is unknown. It raised the generation by at least one, but the
				// exact value is known only from the next acknowledged write.
				return true, register{o.Write, s.gen, s.index}
			case o.Write != "":
				return s.gen.Less(o.Gen) && s.index <= o.Index, register{o.Write, o.Gen, o.Index}
			case !o.Found:
				return s.content == "", s
			}
			return o.Read == s.content && !o.Gen.Less(s.gen) && s.index <= o.Index, register{s.content, o.Gen, o.Index}
		},
		Equal: func(a, b any) bool { return a == b },
		DescribeOperation: func(input, _ any) string {
			o := input.(op)
			switch {
			case o.Write != "" && o.Return == 0:
				return fmt.Sprintf("apply %s ?", o.Write)
			case o.Write != "":
				return fmt.Sprintf("apply %s → generation %s", o.Write, o.Gen)
			}
			return fmt.Sprintf("get → %q, generation %s", o.Read, o.Gen)
		},
		DescribeState: func(s any) string { return fmt.Sprintf("%q ≥ %s", s.(register).content, s.(register).gen) },
	}
}

// judge checks the history of operations that clients saw. If it is not linearizable, judge fails the test
// and writes the history to the folder artifacts. It ignores reads without an answer.
func judge(t *testing.T, ops []op) {
	t.Helper()
	verdict, info := check(ops)
	if verdict == porcupine.Ok {
		return
	}
	t.Errorf("the history of %d operations is not linearizable (%s): an acknowledged write was lost or a read was stale", len(ops), verdict)
	keep(t, "history.json", ops)
	if err := porcupine.VisualizePath(model(), info, artifacts(t)+"/history.html"); err != nil {
		t.Errorf("drawing the history: %v", err)
	}
}

func check(ops []op) (porcupine.CheckResult, porcupine.LinearizationInfo) {
	type content struct{ workload, is string }
	read := map[content]bool{}
	for _, o := range ops {
		read[content{o.Workload, o.Read}] = true
	}
	history := make([]porcupine.Operation, 0, len(ops))
	for _, o := range ops {
		end := o.Return
		if end == 0 {
			// No read returned the content of this write, so the write can be placed after all other operations,
			// where it changes nothing. Leaving it out keeps the checker's search small.
			if o.Write == "" || !read[content{o.Workload, o.Write}] {
				continue
			}
			end = math.MaxInt64 // the outcome is unknown: the write may still be applied at any later time
		}
		history = append(history, porcupine.Operation{ClientId: o.Client, Input: o, Call: o.Call, Output: nil, Return: end})
	}
	return porcupine.CheckOperationsVerbose(model(), history, 30*time.Second)
}

// TestHistoryChecker: each kind of violation of linearizability, written by hand into a history, must be
// found by the checker that other tests use.
func TestHistoryChecker(t *testing.T) {
	gen := func(n uint64) fsm.Generation { return fsm.Generation{Incarnation: 1, Sequence: n} }
	write := func(v string, n uint64, call, ret int64) op {
		return op{Workload: "w", Write: v, Gen: gen(n), Index: n, Call: call, Return: ret}
	}
	read := func(v string, n uint64, call, ret int64) op {
		return op{Workload: "w", Read: v, Found: v != "", Gen: gen(n), Index: n, Call: call, Return: ret}
	}
	for _, c := range []struct {
		name string
		ops  []op
		want porcupine.CheckResult
	}{
		{"a read after a write sees the write", []op{write("a", 1, 1, 2), read("a", 1, 3, 4)}, porcupine.Ok},
		{"a read concurrent with a write may miss the write", []op{write("a", 1, 1, 5), read("", 0, 2, 3)}, porcupine.Ok},
		{"the planner may raise the generation", []op{write("a", 1, 1, 2), read("a", 4, 3, 4), write("b", 5, 5, 6)}, porcupine.Ok},
		{"a lost write", []op{write("a", 1, 1, 2), read("", 0, 3, 4)}, porcupine.Illegal},
		{"a stale read", []op{write("a", 1, 1, 2), write("b", 2, 3, 4), read("a", 1, 5, 6)}, porcupine.Illegal},
		{"a read that goes back", []op{write("a", 1, 1, 2), write("b", 2, 3, 9), read("b", 2, 4, 5), read("a", 1, 6, 7)}, porcupine.Illegal},
		{"a generation given twice", []op{write("a", 1, 1, 2), write("b", 1, 3, 4)}, porcupine.Illegal},
		{"an unknown write that happened", []op{write("a", 1, 1, 2), write("b", 0, 3, 0), read("b", 2, 5, 6)}, porcupine.Ok},
		{"an unknown write that did not happen", []op{write("a", 1, 1, 2), write("b", 0, 3, 0), read("a", 1, 5, 6)}, porcupine.Ok},
		{"an unknown write that happened twice", []op{
			write("a", 1, 1, 2), write("b", 0, 3, 0), read("b", 2, 5, 6), write("c", 3, 7, 8), read("b", 4, 9, 10),
		}, porcupine.Illegal},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, _ := check(c.ops); got != c.want {
				t.Errorf("the checker says %s, want %s", got, c.want)
			}
		})
	}
}
