package sched

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// system is an option that makes a workload a system workload (one member on each suitable node).
func system(p *commandv1.WorkloadPut) {
	p.Demand.Template = &commandv1.Template{Kind: fsm.TemplateSystem}
}

// onNodes returns the members of a system workload as texts "id@node", without those being deleted.
func (w *world) onNodes(template string) string {
	var out []string
	w.state.Children(template, func(m *fsm.Workload) bool {
		if m.Desired != fsm.DesiredDeleted {
			out = append(out, m.ID+"@"+m.Node)
		}
		return true
	})
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (w *world) has(template, want string) {
	w.t.Helper()
	w.settle()
	if got := w.onNodes(template); got != want {
		w.t.Fatalf("the members of system workload %s are %q (id@node), want %q", template, got, want)
	}
	if err := w.state.Check(); err != nil {
		w.t.Fatalf("the state is inconsistent: %v", err)
	}
}

func TestSystemWorkloads(t *testing.T) {
	labelled := func(n *commandv1.RegisterNode) { n.Labels = []*commandv1.Label{{Key: "disk", Value: "ssd"}} }
	onSSD := demand(func(d *commandv1.Demand) {
		d.Constraints = []*commandv1.Constraint{{Key: "disk", Op: "=", Values: []string{"ssd"}}}
	})
	for name, test := range map[string]func(w *world){
		"every node that matches has one member, and a new node gets one": func(w *world) {
			w.node("a", labelled)
			w.node("b")
			w.apply("log", system, onSSD)
			w.has("log", "log-a@a")
			w.node("c", labelled)
			w.has("log", "log-a@a log-c@c")
		},
		"a cordoned node gets no member, and keeps the one that it has": func(w *world) {
			w.node("a")
			w.node("b")
			w.cordon("b", true)
			w.apply("log", system)
			w.has("log", "log-a@a")
			w.cordon("a", true)
			w.cordon("b", false)
			w.has("log", "log-a@a log-b@b")
		},
		"a drained node loses its member after its other workloads": func(w *world) {
			w.node("a")
			w.node("b")
			w.apply("log", system)
			w.apply("web", demand(func(d *commandv1.Demand) {
				d.Constraints = []*commandv1.Constraint{{Key: "node.id", Op: "=", Values: []string{"a"}}}
			}))
			w.has("log", "log-a@a log-b@b")
			w.drain("a", true)
			w.has("log", "log-a@a log-b@b") // web has no other node
			if m := w.get("log-a"); !strings.Contains(m.Reason.Message, "leaves it last") {
				w.t.Fatalf("the reason of member log-a is %q, want one that says that it leaves the node last", m.Reason.Message)
			}
			w.do(&commandv1.Command{Body: &commandv1.Command_DeleteWorkload{DeleteWorkload: &commandv1.DeleteWorkload{Id: "web"}}})
			w.has("log", "log-b@b")
			w.drain("a", false)
			w.has("log", "log-a@a log-b@b")
		},
		"the member of a lost node stays, and is not created again": func(w *world) {
			w.node("a")
			w.node("b")
			w.apply("log", system)
			w.has("log", "log-a@a log-b@b")
			was := w.get("log-a").Generation
			for range 3 {
				w.heard["a"] = false
				w.has("log", "log-a@a log-b@b")
				w.heard["a"] = true
				w.has("log", "log-a@a log-b@b")
			}
			if now := w.get("log-a"); now.Generation != was || now.Status != fsm.StatusRunning {
				w.t.Fatalf("the member of the returned node is %s with generation %s, want Running with generation %s as before", now.Status, now.Generation, was)
			}
		},
		"the member of a removed node is deleted": func(w *world) {
			w.node("a")
			w.node("b")
			w.apply("log", system)
			w.has("log", "log-a@a log-b@b")
			w.heard["b"] = false
			w.settle()
			w.do(&commandv1.Command{Body: &commandv1.Command_RemoveNode{RemoveNode: &commandv1.RemoveNode{Id: "b"}}})
			w.has("log", "log-a@a")
		},
		"a label that is gone or a NoExecute taint ends a member": func(w *world) {
			w.node("a", labelled)
			w.node("b", labelled)
			w.apply("log", system, onSSD)
			w.has("log", "log-a@a log-b@b")
			w.node("a")
			w.has("log", "log-b@b")
			w.node("b", labelled, func(n *commandv1.RegisterNode) {
				n.Taints = []*commandv1.Taint{{Key: "gone", Effect: fsm.TaintNoExecute}}
			})
			w.has("log", "")
		},
		"a member without room waits on its own node": func(w *world) {
			w.node("a")
			w.apply("log", system, demand(func(d *commandv1.Demand) { d.CpuMillicores = 100_000 }))
			w.has("log", "log-a@")
			if m := w.get("log-a"); m.Reason.Code != fsm.CodeUnplaced {
				w.t.Fatalf("the reason code of member log-a is %q, want Unplaced", m.Reason.Code)
			}
		},
		"an update goes node by node, and a delete takes all members": func(w *world) {
			for i := range 4 {
				w.node(fmt.Sprintf("n%d", i))
			}
			w.apply("log", system)
			w.has("log", "log-n0@n0 log-n1@n1 log-n2@n2 log-n3@n3")
			changed := put("log", system, demand(func(d *commandv1.Demand) { d.CpuMillicores = 250 }))
			w.do(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{
				Workloads: []*commandv1.WorkloadPut{changed}, Update: &commandv1.UpdatePolicy{MaxParallel: 1, MinHealthy: second, HealthyDeadline: 60 * second},
			}}})
			most, steps := 0, 0
			for ; steps < 200; steps++ {
				away := 0
				w.state.Children("log", func(m *fsm.Workload) bool {
					if !m.Available() {
						away++
					}
					return true
				})
				most = max(most, away)
				r, ok := w.state.Rollout("log")
				if !ok {
					w.t.Fatalf("the put of a system workload with another specification must begin an update, but did not")
				}
				if r.Phase == "Completed" {
					break
				}
				w.step()
				w.answer()
				w.now += second
			}
			if r, _ := w.state.Rollout("log"); r.Phase != "Completed" || most > 1 {
				w.t.Fatalf("after %d steps the update is %s (%s), and %d members were unavailable at once", steps, r.Phase, r.Reason, most)
			}
			w.state.Children("log", func(m *fsm.Workload) bool {
				if m.Demand.CPU != 250 || m.Content != changed.Content {
					w.t.Fatalf("after the update member %s must have the new content, but has not", m.ID)
				}
				return true
			})
			w.do(&commandv1.Command{Body: &commandv1.Command_DeleteWorkload{DeleteWorkload: &commandv1.DeleteWorkload{Id: "log"}}})
			w.has("log", "")
		},
		"a quota that refuses a member is the reason of the system workload": func(w *world) {
			w.do(&commandv1.Command{Body: &commandv1.Command_PutNamespace{PutNamespace: &commandv1.PutNamespace{Name: "default", Quota: &commandv1.Quota{Workloads: 2}}}})
			w.node("a")
			w.node("b")
			w.apply("log", system)
			w.has("log", "log-a@a")
			if of := w.get("log"); of.Reason.Code != fsm.CodeNotCreated || !strings.Contains(of.Reason.Message, "node b") {
				w.t.Fatalf("the reason of system workload is %q: %q, want NotCreated and a message that names node \"b\"", of.Reason.Code, of.Reason.Message)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			test(w)
		})
	}
}

// TestMembersOfSystemWorkloadsHaveTheLimitsOfUsers: the commands that create members of system workloads carry the limits of the state
// for confined users.
func TestMembersOfSystemWorkloadsHaveTheLimitsOfUsers(t *testing.T) {
	w := newWorld(t)
	w.node("a")
	w.apply("log", system)
	made := 0
	for _, c := range w.plan().Commands {
		if c.GetPlaceMembers() == nil {
			continue
		}
		made++
		if h := c.GetHead(); h.GetNamespaceShare() != fsm.NamespaceShare || h.GetRoomReserve() != fsm.AdminReserve {
			t.Errorf("the head has the namespace share %d %% and the reserve %d %%, want those of a confined user", h.GetNamespaceShare(), h.GetRoomReserve())
		}
	}
	if made == 0 {
		t.Error("the planner must create a member, but none of its commands does")
	}
}
