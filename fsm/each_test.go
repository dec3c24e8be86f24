package fsm

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	commandv1 "github.com/persys/compute/api/command/v1"
)

func onePut(id string, opts ...func(*commandv1.WorkloadPut)) *commandv1.WorkloadPut {
	return put(id, opts...).GetPutWorkloads().GetWorkloads()[0]
}

// TestEachWorkloadIsJudgedAlone: a PutWorkloads with the field `each` accepts or refuses every workload
// separately.
func TestEachWorkloadIsJudgedAlone(t *testing.T) {
	prove(t, []fact{
		{"a refused workload does not affect the others", func(t *testing.T, w *world) {
			w.ok(putNamespace("small", func(n *commandv1.PutNamespace) { n.Quota = &commandv1.Quota{CpuMillicores: 1500} }))
			in := func(p *commandv1.WorkloadPut) { p.Namespace = "small" }
			res := w.do(each(onePut("a"), onePut("b", in), onePut("c", in), onePut("bad id"), onePut("d")))
			is(t, "verdict on the command", res.Kind, OK)
			is(t, "number of items in the result", len(res.Items), 5)
			var kinds []Kind
			for _, it := range res.Items {
				kinds = append(kinds, it.Kind)
			}
			is(t, "verdicts on the workloads of the put", fmt.Sprint(kinds), fmt.Sprint([]Kind{OK, OK, OverQuota, Invalid, OK}))
			is(t, "the reason of item 3 names the rule that the id violates", strings.Contains(res.Items[3].Reason, "bad id"), true)
			is(t, "Result.Of returns the verdict on the workload of the item", res.Of(res.Items[2]).Kind, OverQuota)
			for id, there := range map[string]bool{"a": true, "b": true, "c": false, "d": true} {
				_, ok := w.s.Workload(id)
				is(t, id, ok, there)
			}
			is(t, "violations that Check finds", w.s.Check(), nil)
		}},
		{"workloads are applied in their order", func(t *testing.T, w *world) {
			res := w.do(each(onePut("a"), onePut("a", content("c1:other")), onePut("a", content("c1:other"))))
			is(t, "Unchanged of the three items", fmt.Sprint(res.Items[0].Unchanged, res.Items[1].Unchanged, res.Items[2].Unchanged), "false false true")
			a, _ := w.s.Workload("a")
			is(t, `content of workload "a"`, a.Content, "c1:other")
		}},
		{"a repeated request gets the same verdicts after a restore from a snapshot", func(t *testing.T, w *world) {
			id := requestAt(w.now, 1)
			c := each(onePut("a"), onePut("bad\xff"))
			first := w.as(id, c)
			w.ok(put("a", content("c1:later")))
			restored, err := ReadSnapshot(bytes.NewReader(snapshotBytes(t, w.s)))
			if err != nil {
				t.Fatal(err)
			}
			w.s = restored
			again := w.as(id, c)
			is(t, "the answer comes from a receipt", again.Duplicate, true)
			is(t, "items of the repeated request", fmt.Sprint(again.Items), fmt.Sprint(first.Items))
			a, _ := w.s.Workload("a")
			is(t, `content of workload "a"`, a.Content, "c1:later")
		}},
		{"a command with the field each must have 1 to 64 workloads and no group", func(t *testing.T, w *world) {
			c := each(onePut("a"))
			refused(t, w.do(each()), Invalid, "1 to 64")
			many := each()
			for i := range MaxEach + 1 {
				many.GetPutWorkloads().Workloads = append(many.GetPutWorkloads().Workloads, onePut(fmt.Sprint("w", i)))
			}
			refused(t, w.do(many), Invalid, "65 are given")
			c.GetPutWorkloads().GroupOf = "g"
			refused(t, w.do(c), Invalid, "group_of")
		}},
		{"unchanged and refused workloads are in the event history", func(t *testing.T, w *world) {
			w.ok(put("a"))
			c := each(onePut("a"), onePut("bad id"), onePut("b"))
			c.Head = &commandv1.Head{At: w.now + second, By: "carol", From: "10.0.0.9"}
			w.index++
			tx := w.s.Begin()
			_, changes := tx.Apply(Meta{w.index, w.term}, c)
			var seen []string
			for _, ch := range changes {
				if e, ok := ch.New.(*Event); ok {
					seen = append(seen, e.Type+" "+e.Reason)
				}
			}
			is(t, "events of unchanged and refused workloads", strings.Join(seen, ", "), EventMutation+" ok, "+EventMutation+" invalid, "+EventWorkloadCreated+" ")
		}},
	})
}

// TestDecoderReadsPutsWithEach: a Decoder, which reuses its messages, decodes a PutWorkloads with the field
// `each` (every workload is accepted or refused on its own) to the same message as the protobuf runtime.
func TestDecoderReadsPutsWithEach(t *testing.T) {
	long := onePut("long")
	long.Spec = bytes.Repeat([]byte("x"), smallFrame+1)
	off := each(onePut("a"), onePut("b"))
	off.GetPutWorkloads().Each = false
	var d Decoder
	for _, c := range []Command{
		each(onePut("a"), onePut("b"), onePut("c")), each(onePut("a")), put("a"), each(onePut("a"), long), off,
		each(onePut("b"), onePut("a", demand(func(d *commandv1.Demand) { d.Group = "g" }))), each(),
	} {
		frames, err := AppendCommand(nil, c)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Open(frames); err != nil {
			t.Fatal(err)
		}
		got, err := d.Next()
		if err != nil || !proto.Equal(got, c) {
			t.Errorf("command %v was decoded as %v with error %v, want the same command", c, got, err)
		}
	}
}
