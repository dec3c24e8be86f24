package fsm

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// labelNode returns a command that sets the label k=v for each argument "k=v", and removes the label k for
// each argument "k-".
func labelNode(id string, list ...string) Command {
	b := &commandv1.LabelNode{Id: id}
	for _, s := range list {
		l := &commandv1.NodeLabel{}
		l.Key, l.Value, _ = strings.Cut(s, "=")
		l.Key, l.Removed = strings.CutSuffix(l.Key, "-")
		b.Labels = append(b.Labels, l)
	}
	return &commandv1.Command{Body: &commandv1.Command_LabelNode{LabelNode: b}}
}

// taintNode returns a command that sets taints. A taint without an effect is removed.
func taintNode(id string, list ...Taint) Command {
	b := &commandv1.TaintNode{Id: id}
	for _, t := range list {
		b.Taints = append(b.Taints, &commandv1.NodeTaint{Taint: taintPB(t), Removed: t.Effect == ""})
	}
	return &commandv1.Command{Body: &commandv1.Command_TaintNode{TaintNode: b}}
}

func reports(labels map[string]string, taints ...Taint) func(*commandv1.RegisterNode) {
	return func(n *commandv1.RegisterNode) {
		n.Labels, n.Taints = nil, nil
		for _, k := range []string{"disk", "zone"} {
			if v, ok := labels[k]; ok {
				n.Labels = append(n.Labels, &commandv1.Label{Key: k, Value: v})
			}
		}
		for _, t := range taints {
			n.Taints = append(n.Taints, taintPB(t))
		}
	}
}

func labelsOf(n *Node) string { return strings.Trim(fmt.Sprint(n.Labels()), "[]") }

func taintsOf(n *Node) string {
	var out []string
	for _, t := range n.Taints() {
		out = append(out, t.String())
	}
	return strings.Join(out, " ")
}

func TestPeopleSetLabelsAndTaints(t *testing.T) {
	gpu := Taint{Key: "gpu", Effect: TaintNoSchedule}
	spot := func(seconds uint32) Taint { return Taint{Key: "spot", Effect: TaintNoExecute, Seconds: seconds} }
	prove(t, []fact{
		{"a label set by a person replaces the label of the agent, even after a registration", func(t *testing.T, w *world) {
			w.ok(register("a", reports(map[string]string{"zone": "x", "disk": "ssd"})))
			w.ok(labelNode("a", "zone=y"))
			is(t, `labels of node "a"`, labelsOf(w.node("a")), "{disk ssd} {zone y}")
			is(t, "message of the event NodeLabelsChanged", w.eventOf(EventNodeLabelsChanged).Message, "zone=y")
			w.ok(register("a", reports(map[string]string{"zone": "z"})))
			is(t, `labels of node "a"`, labelsOf(w.node("a")), "{zone y}")
		}},
		{"a label removed by a person stays removed, whatever the agent reports", func(t *testing.T, w *world) {
			w.ok(register("a", reports(map[string]string{"zone": "x", "disk": "ssd"})))
			w.ok(labelNode("a", "zone-", "disk=hdd"))
			is(t, `labels of node "a"`, labelsOf(w.node("a")), "{disk hdd}")
			is(t, "message of the event NodeLabelsChanged", w.eventOf(EventNodeLabelsChanged).Message, "zone-, disk=hdd")
			w.ok(register("a", reports(map[string]string{"zone": "z"})))
			is(t, `labels of node "a"`, labelsOf(w.node("a")), "{disk hdd}")
			w.ok(labelNode("a", "zone=x"))
			is(t, `labels of node "a"`, labelsOf(w.node("a")), "{disk hdd} {zone x}")
		}},
		{"removing a label that only a person set leaves no setting", func(t *testing.T, w *world) {
			w.ok(labelNode("a", "zone=y"))
			w.ok(labelNode("a", "zone-"))
			is(t, `number of labels that people set on node "a"`, len(w.node("a").Set.Labels), 0)
			is(t, "verdict on the repeated command", w.do(labelNode("a", "zone-")).Kind, AlreadyDone)
		}},
		{"setting the present values again changes nothing", func(t *testing.T, w *world) {
			w.ok(labelNode("a", "zone=y"))
			w.ok(taintNode("a", spot(5)))
			is(t, "verdict on setting the present label again", w.do(labelNode("a", "zone=y")).Kind, AlreadyDone)
			is(t, "verdict on setting the present taint again", w.do(taintNode("a", spot(5))).Kind, AlreadyDone)
		}},
		{"a taint set by a person replaces the taints of the agent with its key", func(t *testing.T, w *world) {
			w.ok(register("a", reports(nil, gpu, spot(9))))
			w.ok(taintNode("a", Taint{Key: "gpu", Value: "a100", Effect: TaintNoExecute, Seconds: 60}))
			is(t, `taints of node "a"`, taintsOf(w.node("a")), "gpu=a100:NoExecute:60 spot:NoExecute:9")
			is(t, "message of the event NodeTaintsChanged", w.eventOf(EventNodeTaintsChanged).Message, "gpu=a100:NoExecute:60")
			w.ok(taintNode("a", Taint{Key: "gpu"}, Taint{Key: "spot"}))
			is(t, `taints of node "a"`, taintsOf(w.node("a")), "")
			is(t, "message of the event NodeTaintsChanged", w.eventOf(EventNodeTaintsChanged).Message, "gpu-, spot-")
			w.ok(register("a", reports(nil, gpu)))
			is(t, `taints of node "a"`, taintsOf(w.node("a")), "")
		}},
		{"a NoExecute taint keeps the time at which it was first set", func(t *testing.T, w *world) {
			w.ok(taintNode("a", spot(300)))
			since := w.now
			w.ok(taintNode("a", spot(60)))
			is(t, `start time of the taint of node "a"`, w.node("a").Taints()[0].Since, since)
			is(t, `seconds of the taint of node "a"`, w.node("a").Taints()[0].Seconds, uint32(60))
			w.ok(taintNode("a", Taint{Key: "spot", Value: "other", Effect: TaintNoExecute}))
			is(t, "Since of a taint whose value was changed", w.node("a").Taints()[0].Since, w.now)
		}},
		{"a reported NoExecute taint keeps its time through registrations", func(t *testing.T, w *world) {
			w.ok(register("a", reports(nil, spot(30))))
			since := w.now
			is(t, `SameFacts of node "a"`, w.node("a").SameFacts(register("a", reports(nil, spot(30))).GetRegisterNode()), true)
			w.ok(register("a", reports(map[string]string{"zone": "x"}, spot(30))))
			is(t, `start time of the taint of node "a"`, w.node("a").Taints()[0].Since, since)
		}},
		{"the removal of a node removes its settings", func(t *testing.T, w *world) {
			w.ok(labelNode("a", "zone=y"))
			w.ok(removeNode("a", false))
			w.ok(register("a"))
			is(t, `labels of node "a"`, labelsOf(w.node("a")), "")
		}},
		{"a policy that is bound to a label set by a person holds on the node", func(t *testing.T, w *world) {
			w.ok(bindNodes("restricted", "zone", "y"))
			w.ok(labelNode("a", "zone=y"))
			is(t, `number of policies that hold on node "a"`, len(w.s.NodePolicies(w.node("a"))), 1)
		}},
		{"settings are in snapshots and in the digest", func(t *testing.T, w *world) {
			before := w.s.Info().Digest
			w.ok(register("a", reports(map[string]string{"zone": "x"})))
			w.ok(labelNode("a", "zone-", "rack=1"))
			w.ok(taintNode("a", spot(30)))
			if before == w.s.Info().Digest {
				t.Error("a label that a person sets on a node must change the digest, but did not")
			}
			back, err := ReadSnapshot(bytes.NewReader(snapshotBytes(t, w.s)))
			if err != nil {
				t.Fatal(err)
			}
			n, _ := back.Node("a")
			is(t, "labels of the node after the restore", labelsOf(n), "{rack 1}")
			is(t, "taints of the node after the restore", taintsOf(n), "spot:NoExecute:30")
		}},
	})
	many := make([]string, 65)
	for i := range many {
		many[i] = fmt.Sprintf("k%d=v", i)
	}
	for _, c := range []struct {
		name string
		c    Command
		kind Kind
		want []string
	}{
		{"an unknown node is refused", labelNode("zz", "zone=y"), NotFound, []string{"zz"}},
		{"a command without labels is refused", labelNode("a"), Invalid, []string{"labels"}},
		{"an invalid label key is refused", labelNode("a", "a b=c"), Invalid, []string{"labels[0].key", "a b"}},
		{"a label key that schedulers set is refused", labelNode("a", "node.id=b"), Invalid, []string{"node.id"}},
		{"the same key twice is refused", labelNode("a", "zone=x", "zone-"), Invalid, []string{"labels[1].key", "zone", "twice"}},
		{"a value with a line end is refused", labelNode("a", "zone=x\ny"), Invalid, []string{"labels[0].value"}},
		{"more than 64 labels in one command are refused", labelNode("a", many...), Invalid, []string{"65", "64"}},
		{"an unknown effect is refused", taintNode("a", Taint{Key: "k", Effect: "Never"}), Invalid, []string{"taints[0].effect", "Never"}},
		{"seconds of a taint that is not NoExecute are refused", taintNode("a", Taint{Key: "k", Effect: TaintNoSchedule, Seconds: 1}), Invalid, []string{"taints[0].seconds"}},
	} {
		t.Run("refuses "+c.name, func(t *testing.T) { refused(t, formed(t, "a").do(c.c), c.kind, c.want...) })
	}
	t.Run("refuses more than 64 labels on one node", func(t *testing.T) {
		w := formed(t, "a")
		w.ok(labelNode("a", many[:64]...))
		refused(t, w.do(labelNode("a", "more=v")), Conflict, "64", "a")
	})
}
