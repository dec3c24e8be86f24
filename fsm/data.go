package fsm

import (
	"slices"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// Local data is the data that a workload keeps on its node and that no other node can reach: disks of a virtual
// machine, local volumes, volumes of a Compose stack. When a workload moves, such data is not copied to the
// next node. So a workload with local data leaves its node only after a person said that the data may be given
// up (discard_data in DrainNode, FenceNode, RemoveNode or WorkloadPut). See ADR 36.

// LocalData is one piece of local data, such as a disk or a volume.
type LocalData struct {
	Name string // name for messages, e.g. "volume data"
	Pool string // storage pool of the data: the data is local if the pool is; "" = always local
}

// DataOn returns the names of the data of w that only its node n holds.
func (w *Workload) DataOn(n *Node) (names []string) {
	for _, d := range w.Data {
		if d.localTo(n) {
			names = append(names, d.Name)
		}
	}
	return names
}

// BoundByData reports whether w must stay on its node n because n has the only copy of its local data.
func (w *Workload) BoundByData(n *Node) bool {
	return !w.DiscardData && n != nil && slices.ContainsFunc(w.Data, func(d LocalData) bool { return d.localTo(n) })
}

// localTo reports whether only node n can reach the data. A storage pool that n does not report may be down for
// a while, so its data is treated as local.
func (d LocalData) localTo(n *Node) bool {
	for _, p := range n.Facts.Pools {
		if d.Pool != "" && p.Name == d.Pool {
			return p.Type == "" || p.Type == "local"
		}
	}
	return true
}

// namedData is the maximum number of names (of data or of workloads) that one message lists.
const namedData = 3

// DataText lists the first namedData names and says how many more there are.
func DataText(names []string) string {
	if more := len(names) - namedData; more > 0 {
		return strings.Join(names[:namedData], ", ") + " and " + decimal(more) + " more"
	}
	return strings.Join(names, ", ")
}

// onlyCopy describes the local data of w on node n, for messages.
func (w *Workload) onlyCopy(n *Node) string {
	return "node " + n.ID + " has the only copy of " + DataText(w.DataOn(n))
}

// KeptByData returns the message for a workload that should leave node n, which is up, but must stay because only n has
// its data.
func (w *Workload) KeptByData(n *Node) string {
	say := "persysctl apply --discard-data"
	if n.Draining {
		say = "persysctl drain " + n.ID + " --discard-data"
	}
	return w.onlyCopy(n) + ", so it stays there; to move it without the data: " + say
}

// AwaitsData returns the message for a workload that is not moved although its node n is lost, because only
// n has its data.
func (w *Workload) AwaitsData(n *Node) string {
	state := "is lost"
	if n.Fenced {
		state = "is fenced"
	}
	return "node " + n.ID + " " + state + " and has the only copy of " + DataText(w.DataOn(n)) +
		"; it goes on when the node is back; to start it elsewhere without the data, once the node is known to be off: persysctl node fence " +
		n.ID + " --discard-data"
}

// stake records which local data of w is now on its node: it adds the local data in the demand of w to w.Data. It
// is called when the node has accepted an order for w.
func (w *Workload) stake() {
	for i, d := range w.Demand.LocalData {
		if slices.Contains(w.Data, d) {
			continue
		}
		if i == 0 && len(w.Data) == 0 {
			w.Data = w.Demand.LocalData // sharing the list is safe: a Demand never changes
			return
		}
		w.Data = append(slices.Clip(w.Data), d)
	}
}

// settleDiscard clears DiscardData (a person's permission to leave local data behind) once the node has
// accepted the order that set it. During a drain, DiscardData stays set until the drain ends.
func (w *Workload) settleDiscard(n *Node) {
	if !n.Draining {
		w.DiscardData = false
	}
}

// keepsData returns the error text for a workload that must stay on its node because the node has the
// only copy of its local data; "" if the workload may leave.
func (t *Tx) keepsData(w *Workload) string {
	if n := t.nodeOf(w); w.BoundByData(n) {
		return "workload " + quoted(w.ID) + " may not leave its node: " + w.onlyCopy(n) + ", and no request has allowed leaving the data behind (--discard-data)"
	}
	return ""
}

// boundOn returns the workloads that must stay on node n because only n has their local data.
func (t *Tx) boundOn(n *Node) (bound []*Workload) {
	t.state().WorkloadsOn(n.ID, func(w *Workload) bool {
		if w.BoundByData(n) {
			bound = append(bound, w)
		}
		return true
	})
	return bound
}

// discardOn sets DiscardData (the permission to leave local data behind) in each of the bound
// workloads, at the request of a person. For each workload it writes an event with reason code and
// the names of the data on node n.
func (t *Tx) discardOn(n *Node, bound []*Workload, code string) {
	for _, old := range bound {
		w := *old
		w.DiscardData = true
		if w.Reason.Code == CodeHoldsData {
			w.Reason = t.reason(&w, n)
		}
		t.putWorkload(old, &w)
		t.event(discarded(&w, n, code))
	}
}

func discarded(w *Workload, n *Node, code string) Event {
	return Event{
		Type: EventDataDiscarded, Workload: w.ID, Node: n.ID, Reason: code,
		Message: "a request allows the workload to start on another node without " + DataText(w.DataOn(n)) + ", which stays behind on node " + n.ID,
	}
}

// keepOn clears DiscardData (the permission to leave local data behind) in the workloads that are
// still on a node, for example after a drain was cancelled.
func (t *Tx) keepOn(node string) {
	for _, old := range t.workloadsOn(node) {
		if old.DiscardData {
			w := *old
			w.DiscardData = false
			t.putWorkload(old, &w)
		}
	}
}

// boundText lists the bound workloads (at most namedData of them), each with the names of its local data.
func boundText(n *Node, bound []*Workload) string {
	var out []string
	for _, w := range bound[:min(len(bound), namedData)] {
		out = append(out, w.ID+" ("+DataText(w.DataOn(n))+")")
	}
	if more := len(bound) - namedData; more > 0 {
		out = append(out, decimal(more)+" more")
	}
	return strings.Join(out, ", ")
}

func localDataOf(d *commandv1.LocalData) LocalData { return LocalData{d.GetName(), d.GetPool()} }

func localDataPB(d LocalData) *commandv1.LocalData {
	return &commandv1.LocalData{Name: d.Name, Pool: d.Pool}
}

// localData encodes the local data of a record. It adds no bytes for an empty list, so the digest of
// records without local data is the same as in versions before the list existed.
func (e *encoder) localData(list []LocalData) {
	if len(list) == 0 {
		return
	}
	e.str("local data")
	e.u64(uint64(len(list)))
	for _, d := range list {
		e.str(d.Name)
		e.str(d.Pool)
	}
}

// leftText returns a text for the event of a move: the names of the local data that stays on node n; ""
// if there is none.
func leftText(n *Node, names []string) string {
	if len(names) == 0 {
		return ""
	}
	return DataText(names) + " behind on node " + n.ID
}
