package control

import (
	"hash/fnv"
	"slices"
	"time"

	"github.com/tidwall/btree"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// drifts is the state of drift detection. Each node is read once in DriftInterval, in its own slot of the
// interval, and its list is compared with the state. A new difference is recorded only if a second comparison
// confirms it.
type drifts struct {
	slot    uint32
	reading map[string]bool               // nodes that are being read at present
	second  btree.Map[string, secondLook] // for each node: its first comparison, whose new differences the second comparison must confirm
}

// secondLook keeps the differences that the first comparison of a node has found, until the second comparison
// of the node confirms or refutes them.
type secondLook struct {
	at    int64 // monotonic time of the first comparison
	found []sched.Difference
}

const (
	// driftSlots is the number of slots of an interval. Nodes are read in the first driftSpread slots only,
	// so that their second comparisons fall into the same interval.
	driftSlots  = 64
	driftSpread = 58
	// lookAgain is the time after which a difference between the state and the list of a node is checked a second
	// time. It is recorded only if it still exists then. It is longer than an agent's report takes to reach the
	// state.
	lookAgain = 2 * time.Second
	// forgetLook is the time after which the result of a first comparison is dropped, if the node has not
	// answered the read for its second comparison.
	forgetLook = time.Minute
)

func (t *Term) beginDrift() {
	if t.cfg.Inspect && t.cfg.DriftInterval > 0 {
		t.drift.reading = map[string]bool{}
		t.nextSlot()
	}
}

func (t *Term) nextSlot() {
	t.after(max(t.cfg.DriftInterval/driftSlots, 10*time.Millisecond), func() {
		t.runSlot(t.drift.slot % driftSlots)
		t.drift.slot++
		t.nextSlot()
	})
}

// runSlot reads the workload lists of the nodes that belong to one slot of the interval, and of the
// nodes for which the second comparison is due.
func (t *Term) runSlot(slot uint32) {
	d := &t.drift
	if t.view.Info().Mode.Frozen() {
		return
	}
	byEndpoint := map[string][]string{}
	t.view.Nodes("", func(n *fsm.Node) bool {
		if n.Up {
			byEndpoint[n.Facts.Endpoint] = append(byEndpoint[n.Facts.Endpoint], n.ID)
		}
		return true
	})
	var due []string
	t.view.Nodes("", func(n *fsm.Node) bool {
		look, second := d.second.Get(n.ID)
		switch {
		case !n.Up:
		case second && t.now.Mono >= look.at, !second && slotOf(n.ID) == slot && t.lastHeard(byEndpoint[n.Facts.Endpoint], n):
			due = append(due, n.ID)
		}
		return true
	})
	for _, id := range due {
		t.list(id)
	}
	var gone []string
	d.second.Scan(func(id string, look secondLook) bool {
		if t.now.Mono-look.at > int64(forgetLook) {
			gone = append(gone, id)
		}
		return true
	})
	for _, id := range gone {
		d.second.Delete(id)
	}
}

// orphanGone is called for each change c of a residual (an instance that a node must remove). If the instance was an
// orphan (it had no record) and is gone, orphanGone makes the next slot read the node, so that the drift of the
// orphan is closed at once and not up to DriftInterval later.
func (t *Term) orphanGone(view fsm.View, c *fsm.Change) {
	old := c.OldResidual()
	if old == nil || c.NewResidual() != nil || t.drift.reading == nil { // reading is nil without drift detection
		return
	}
	if _, open := view.Drift(old.Node, old.Workload, fsm.DriftOrphan); !open {
		return
	}
	if _, due := t.drift.second.Get(old.Node); !due {
		// Request a second comparison without a first one: such a comparison closes drifts that
		// have ended, and records no new ones.
		t.drift.second.Set(old.Node, secondLook{at: t.now.Mono})
	}
}

func slotOf(node string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(node)) // writing to a hash never fails
	return h.Sum32() % driftSpread
}

// lastHeard reports whether the agent at the endpoint of node n works for n. Several node records may have
// the same endpoint (the ids in sharing). The agent there works for the one with the latest heartbeat.
func (t *Term) lastHeard(sharing []string, n *fsm.Node) bool {
	_, mine, _ := t.Lease(n.ID)
	for _, other := range sharing {
		if _, heard, ok := t.Lease(other); ok && other != n.ID && (heard > mine || heard == mine && other < n.ID) {
			return false
		}
	}
	return true
}

// list reads the workloads of a node and compares them with the state. It does nothing if such a read is
// under way.
func (t *Term) list(node string) {
	d := &t.drift
	if d.reading[node] {
		return
	}
	first, second := d.second.Delete(node)
	d.reading[node] = t.inspect(func() {
		began := t.now.Mono
		t.emit(List{Node: node, ID: t.await(func(in Input) {
			done := func() {
				delete(d.reading, node)
				t.inspected()
			}
			n, ok := t.view.Node(node)
			got := in.(Listed)
			if got.Err != nil || !ok || !n.Up || t.view.Info().Mode.Frozen() {
				done()
				return
			}
			if !second { // the finished tasks of the node are recorded once per round, after the first comparison
				audited := done
				done = func() { t.audit(node, auditPage, audited) }
			}
			t.compare(n, got.Reports, first.found, second, began, done)
		})})
	})
}

// compare looks for differences between the workloads that a node lists and the state.
func (t *Term) compare(n *fsm.Node, listed []sched.Reported, first []sched.Difference, second bool, began int64, then func()) {
	found := sched.Compare(t.view, n, listed, func(workload string) bool { return t.orders.busy(n.ID, workload) })
	switch {
	case second:
		found = sched.Confirmed(t.view, n.ID, first, found)
	case sched.Unknown(t.view, n.ID, found):
		t.drift.second.Set(n.ID, secondLook{began + int64(lookAgain), found})
		then()
		return
	}
	view := t.view
	remedy := func() {
		for _, rep := range remedies(view, n, listed, found) {
			if rep.GetState() == string(fsm.ActualMissing) {
				rep.ObservedAt = t.planned()
			}
			t.report(rep)
		}
	}
	c := sched.Drifts(view, n.ID, found, t.planned())
	if c == nil {
		remedy()
		then()
		return
	}
	t.propose(func(err error) {
		if err == nil { // if the command was lost, the next round finds the drift again
			remedy()
		}
		then()
	}, &commandv1.Command{Head: t.head(), Body: &commandv1.Command_SetDrifts{SetDrifts: c}})
}

// remedies returns the reports that make the state agree with a node where they differ. A missing workload is
// reported as missing, and the planner then waits SCHEDULER_MISSING_GRACE_PERIOD before it acts. A workload
// in another state is reported in that state.
func remedies(view fsm.View, n *fsm.Node, listed []sched.Reported, found []sched.Difference) (out []*commandv1.WorkloadReport) {
	for i := range found {
		d := &found[i]
		w, ok := view.Workload(d.Workload)
		if !ok || w.Node != n.ID || !w.Acknowledged {
			continue
		}
		switch d.Type {
		case fsm.DriftMissing:
			if w.Actual.State != fsm.ActualMissing {
				out = append(out, missing(n, w))
			}
		case fsm.DriftState:
			at := slices.IndexFunc(listed, func(r sched.Reported) bool { return r.Workload == d.Workload })
			if at < 0 {
				continue
			}
			if rep := reportDiff(view, n, &listed[at]); rep != nil {
				out = append(out, rep)
			}
		}
	}
	return out
}
