package fsm

import (
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

func maxPriority(n int32) func(*commandv1.PutNamespace) {
	return func(b *commandv1.PutNamespace) { b.MaxPriority = n }
}

func priority(n int32) func(*commandv1.WorkloadPut) {
	return demand(func(d *commandv1.Demand) { d.Priority = n })
}

// preempt returns the command that evicts workload id so that workload by gets its place.
func (w *world) preempt(id, by string) Command {
	return evict(&commandv1.Eviction{
		Workload: id, IfGeneration: w.generation(id), Code: CodePreempted, Message: "makes room for " + by, PreemptedBy: by, PreemptedAt: w.now,
	})
}

// TestApplyJudgesEveryPreemption: the state machine checks each preemption of the planner, and skips those that are not
// allowed.
func TestApplyJudgesEveryPreemption(t *testing.T) {
	for name, x := range map[string]struct {
		victim, by []func(*commandv1.WorkloadPut)
		grants     int32    // MaxPriority of the namespace a
		refused    []string // words that the refusal contains; nil if the preemption is allowed
	}{
		"a higher priority in the same namespace preempts":                                                                        {victim: in("a", 0), by: in("a", 5)},
		"an equal priority in the same namespace does not preempt":                                                                {victim: in("a", 5), by: in("a", 5), refused: []string{"priority 5"}},
		"a lower priority in the same namespace does not preempt":                                                                 {victim: in("a", 6), by: in("a", 5), refused: []string{"priority 6"}},
		"without max_priority, a workload of another namespace is not preempted":                                                  {victim: in("b", 0), by: in("a", 1000), refused: []string{"priority 1000 in namespace a", "priority 0 in namespace b"}},
		"without max_priority, a workload of another namespace with a negative priority is not preempted":                         {victim: in("b", -7), by: in("a", 5), refused: []string{"priority -7"}},
		"a workload of another namespace with a priority below max_priority is preempted":                                         {victim: in("b", 4), by: in("a", 5), grants: 5},
		"a workload of another namespace with a priority equal to max_priority is not preempted":                                  {victim: in("b", 4), by: in("a", 9), grants: 4, refused: []string{"priority 4"}},
		"max_priority decides about a workload of another namespace, even if it is below the priority of the preempting workload": {victim: in("b", 3), by: in("a", 9), grants: 4},
		"without max_priority, a workload of the default namespace is not preempted":                                              {victim: in("", 0), by: in("a", 1), refused: []string{"namespace default"}},
		"an exclusive workload is not preempted": {
			victim: append(in("a", 0), demand(func(d *commandv1.Demand) { d.Exclusive = true })), by: in("a", 5), refused: []string{"exclusive"},
		},
		"a workload with local data is not preempted": {victim: append(in("a", 0), keeps("volume data")), by: in("a", 5), refused: []string{"volume data"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := formed(t, "n")
			w.ok(putNamespace("a", maxPriority(x.grants)))
			w.ok(putNamespace("b"))
			w.place("low", "n", x.victim...)
			w.run("low")
			w.ok(put("high", x.by...))
			audited := w.s.AuditLast(AuditChanges)
			res := w.do(w.preempt("low", "high"))
			if x.refused != nil {
				is(t, "number of skipped items of the command", res.Skipped, 1)
				for _, word := range x.refused {
					if !strings.Contains(res.Reason, word) {
						t.Errorf("the preemption was skipped with reason %q, want one that contains %q", res.Reason, word)
					}
				}
				is(t, `node of workload "low"`, w.workload("low").Node, "n")
				return
			}
			is(t, "number of skipped items of the command", res.Skipped, 0)
			low, high := w.workload("low"), w.workload("high")
			is(t, `node of workload "low"`, low.Node, "")
			is(t, `PreemptedBy of workload "low"`, low.PreemptedBy, "high")
			left, takes := w.eventOf(EventWorkloadEvicted), w.eventOf(EventPreemption)
			is(t, "workloads and namespaces of the events WorkloadEvicted and Preemption", left.Workload+" of "+left.In()+", "+takes.Workload+" of "+takes.In(), "low of "+low.In()+", high of "+high.In())
			is(t, "details preempted_by and preempted_by_namespace of the event about the evicted workload", detail(left, "preempted_by")+" "+detail(left, "preempted_by_namespace"), "high a")
			is(t, "details preempted and preempted_namespace of the event about the preempting workload", detail(takes, "preempted")+" "+detail(takes, "preempted_namespace"), "low "+low.In())
			var kept []string
			w.s.Audit(AuditChanges, audited, func(_ AuditHash, r *AuditRecord) bool {
				kept = append(kept, r.Event.Type)
				return true
			})
			is(t, "events in the audit log of changes", strings.Join(kept, " "), EventWorkloadEvicted+" "+EventPreemption)
			w.ok(report(&commandv1.WorkloadReport{Workload: "low", Node: "n", Generation: GenerationPB(low.Generation), Gone: true}))
			w.bind("low", "n")
			is(t, `PreemptedAt of workload "low" stays when it has a node again`, w.workload("low").PreemptedAt > 0 && w.workload("low").PreemptedAt == low.PreemptedAt, true)
			is(t, `PreemptedBy of workload "low" when it has a node again`, w.workload("low").PreemptedBy, "")
		})
	}
	t.Run("a preemption is skipped if the preempting workload is unknown, the same or stopped", func(t *testing.T) {
		w := formed(t, "n")
		w.place("low", "n")
		is(t, "number of skipped preemptions by a workload that does not exist", w.do(w.preempt("low", "none")).Skipped, 1)
		is(t, "number of skipped preemptions of a workload by itself", w.do(w.preempt("low", "low")).Skipped, 1)
		w.ok(put("idle", priority(3), func(p *commandv1.WorkloadPut) { p.Desired = "Stopped" }))
		is(t, "number of skipped preemptions by a workload with the desired state Stopped", w.do(w.preempt("low", "idle")).Skipped, 1)
		is(t, `node of workload "low"`, w.workload("low").Node, "n")
	})
}

func in(namespace string, prio int32) []func(*commandv1.WorkloadPut) {
	return []func(*commandv1.WorkloadPut){inNamespace(namespace), priority(prio)}
}

func detail(e *Event, key string) string {
	for _, l := range e.Details {
		if l.Key == key {
			return l.Value
		}
	}
	return ""
}

// TestMaxPriority: callers who may act only in certain namespaces cannot set a priority above the
// maximum of the namespace.
func TestMaxPriority(t *testing.T) {
	w := spaced(t)
	of := func(n int32) Command { return put("web", inNamespace("a"), priority(n)) }
	refused(t, w.do(confined(of(1), "a")), NotAllowed, "web", "priority: 1", `namespace "a"`, "which is 0", "persysctl namespace set a --max-priority 1")
	w.ok(confined(of(0), "a"))
	w.ok(confined(of(-5), "a"))
	w.ok(of(900)) // the caller is not confined to namespaces
	refused(t, w.do(confined(put("web", priority(900), content("c1:new")), "a")), NotAllowed, "priority: 900")
	res := w.do(confined(each(put("x", inNamespace("a"), priority(2)).GetPutWorkloads().Workloads[0]), "a"))
	is(t, "verdict on a workload with a priority above the maximum, in a put with the field each", res.Items[0].Kind, NotAllowed)
	w.ok(putNamespace("a", maxPriority(50)))
	is(t, "max_priority in the event", detail(w.eventOf(EventNamespaceChanged), "max_priority"), "50")
	w.ok(confined(of(50), "a"))
	refused(t, w.do(confined(of(51), "a")), NotAllowed, "which is 50")
	is(t, "verdict on the repeated command", w.do(putNamespace("a", maxPriority(50))).Kind, AlreadyDone)
	refused(t, w.do(putNamespace("a", maxPriority(1001))), Invalid, "max_priority: 1001 is not in 0..1000")
	refused(t, w.do(putNamespace("a", maxPriority(-1))), Invalid, "max_priority")
}

// TestTimesOfPreemptions: Preempted lists the workloads that were preempted after a given time, the earliest first, and
// no deleted ones.
func TestTimesOfPreemptions(t *testing.T) {
	w := formed(t, "n")
	for i, id := range []string{"c", "a", "b"} {
		w.place(id, "n")
		w.run(id)
		w.ok(put("high", priority(5)))
		w.now += int64(i) * minute
		w.ok(w.preempt(id, "high"))
	}
	list := func(after int64) (out []string) {
		w.s.Preempted(after, func(x *Workload) bool {
			out = append(out, x.ID)
			return true
		})
		return out
	}
	first := w.workload("c").PreemptedAt
	is(t, "workloads that were ever preempted, the earliest first", strings.Join(list(0), " "), "c a b")
	is(t, "workloads preempted after the first preemption", strings.Join(list(first), " "), "a b")
	is(t, "number of workloads preempted after the present time", len(list(w.now)), 0)
	w.ok(remove("a", true))
	is(t, `workloads that were ever preempted, after workload "a" was deleted`, strings.Join(list(0), " "), "c b")
	if err := w.s.Check(); err != nil {
		t.Fatal(err)
	}
}

func preemptionTimesScenario(w *world) {
	w.do(register("n"))
	w.do(put("low"))
	w.do(w.assign("low", "n"))
	w.do(w.says("low", "Running"))
	w.do(put("high", priority(5)))
	w.do(w.preempt("low", "high"))
	w.do(gone("low", "n", nil))
	w.do(w.assign("low", "n"))
	w.do(w.preempt("low", "high"))
}
