package agent

import (
	"iter"
	"time"

	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/pki"

	"github.com/persys/compute/agent/driver"
)

// Rules are the decisions of this package as functions over plain values: no file, no engine, no
// clock and no goroutine. They call what an Agent calls, so that a simulator can hold the very same
// fences and the very same convergence against random histories.
type Rules struct {
	node   string
	key    *pki.Key
	policy retryPolicy
}

// Records that an Agent keeps on disk, and its memory of failures.
type (
	Intent    = intent
	Tombstone = tombstone
	Failure   = failure
)

// Refusal is why an order is not taken. A fenced one is final for the sender.
type Refusal struct {
	Fenced  bool
	Message string
}

func refusalOf(r *refusal) *Refusal {
	if r == nil {
		return nil
	}
	return &Refusal{Fenced: r.fenced, Message: r.message}
}

// NewRules are those of an agent with schedulers and default settings.
func NewRules(node string, key *pki.Key) Rules {
	return Rules{node: node, key: key, policy: retryPolicy{
		base: 5 * time.Second, max: 2 * time.Minute, limit: 3, stable: 30 * time.Second,
	}}
}

// Admit is the first fence: it returns the epoch to remember before anything is done for the
// sender. node is whom the order is meant for, empty for a scheduler's answer.
func (r Rules) Admit(seen Epoch, in *agentv1.Epoch, node string) (Epoch, *Refusal) {
	if no := judgeNode(r.node, node); no != nil {
		return seen, refusalOf(no)
	}
	next, no := judgeEpoch(seen, false, in)
	return next, refusalOf(no)
}

// Meant is the part of the first fence that knows one instance from another; self is the agent's own.
func (r Rules) Meant(self, instance string) *Refusal { return refusalOf(judgeInstance(self, instance)) }

// Apply is the second fence and what an apply leaves behind old (nil: none). skip is true if the
// order asks for nothing new; whether old is carried out is for the caller to know.
func (r Rules) Apply(old *Intent, tomb *Tombstone, req *agentv1.ApplyWorkloadRequest, draining bool, now time.Time) (next *Intent, skip bool, no *Refusal) {
	kind, refused := checkApply(req)
	if refused != nil {
		return nil, false, refusalOf(refused)
	}
	var held, buried driver.Generation
	if old != nil {
		held = old.Generation
	}
	if tomb != nil {
		buried = tomb.Generation
	}
	if refused := judgeApply(req.GetId(), held, buried, generationFrom(req.GetGeneration()), false); refused != nil {
		return nil, false, refusalOf(refused)
	}
	if draining && old == nil {
		return nil, false, &Refusal{Message: "draining: takes no new workloads"}
	}
	next, err := follow(r.key, old, kind, req, now)
	if err != nil {
		return nil, false, &Refusal{Message: err.Error()}
	}
	if old == nil && tomb.ordered() != nil {
		next.Recreate = true
	}
	return next, old != nil && next.sameOrder(old), nil
}

// Ordered is what an order that was taken leaves of a tombstone; nil: it stays as it is.
func (r Rules) Ordered(tomb *Tombstone) *Tombstone { return tomb.ordered() }

// Delete is the second fence for deletes.
func (r Rules) Delete(old *Intent, req *agentv1.DeleteWorkloadRequest) *Refusal {
	if old == nil {
		return nil
	}
	return refusalOf(judgeDelete(req.GetId(), old.Generation, generationFrom(req.GetGeneration()), false))
}

// Excess says that an instance occupies more than its disk limit. It is stopped, and what is not
// changed or made anew stays so. The zero value says nothing.
type Excess struct {
	Content, Instance string
	Message           string
	At                time.Time
}

// of says whether it is about what an engine shows, under the content that is wanted.
func (x Excess) of(content string, o *driver.Observed) bool {
	return x.Message != "" && o != nil && x.Instance == o.RuntimeID && x.Content == content
}

// Memory is what an agent's process remembers of one workload.
type Memory struct {
	Asked   bool // an order came since the last attempt
	Waits   bool // for an order, see WaitsAfterRestart
	Lapsed  bool // with the lease, and waits for a newer order
	Over    Excess
	Failure Failure
}

// WaitsAfterRestart reports whether a process that finds an intent in its file leaves it alone until
// it is ordered anew, or seen to run.
func (r Rules) WaitsAfterRestart(in *Intent) bool { return in.waitsAfterRestart() }

// Next settles the memory with what the engine shows (nil: nothing) and decides the next step:
// nothing, wait (until a time), ensure, halt, restart, recreate or remove.
func (r Rules) Next(in *Intent, m Memory, o *driver.Observed, now time.Time) (do string, until time.Time, after Memory) {
	s, m := consider(r.policy, in, m, o, now)
	return s.do.String(), s.until, m
}

// Failed counts a failed step on a machine with these tombstones and workloads, of which works says what
// the engines show.
func (r Rules) Failed(in *Intent, f Failure, err error, tombs map[string]*Tombstone, works iter.Seq2[*Intent, *driver.Observed], now time.Time) Failure {
	return r.policy.after(f, in, err, ending(tombs, works, now), now)
}

// Report is the state that an ordered workload is reported in; open says that its last order is
// not carried out yet.
func (r Rules) Report(in *Intent, open bool, o *driver.Observed, m Memory, now time.Time) (agentv1.ActualState, driver.Class, string) {
	w := &workload{id: in.ID, intent: in, kind: in.Type, observed: o, fail: m.Failure, waits: m.Waits, lapsed: m.Lapsed}
	if open {
		w.task = newTask(actionApply, in.ID, now)
	}
	out := report{status: &agentv1.WorkloadStatus{Id: in.ID, Metadata: map[string]string{}}}
	(&Agent{}).judge(&out, w, &engine{listed: true, probed: true}, now)
	return out.status.ActualState, out.class, out.status.Message
}
