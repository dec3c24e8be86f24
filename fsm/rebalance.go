package fsm

import (
	"fmt"
	"slices"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/fsm/rollout"
	"github.com/persys/compute/policy"
)

// The leader moves a workload to another node if the move evens out the load of the nodes by enough
// (sched/rebalance.go). The workload leaves like an evicted workload: its node stops it, and then
// placement chooses its next node. See ADR 62.

// Moved describes the last move by which the leader took a workload to another node to even out the
// load.
type Moved struct {
	At       int64  // Unix nanoseconds
	From, To string // To is the node that placement was expected to choose
	Gain     int64  // decrease of the placement score, in millionths of a node
}

// RebalancePolicy limits how many workloads the leader moves to other nodes without a request by a person, to even out
// the load of the nodes. The zero value forbids all such moves.
type RebalancePolicy struct {
	PerHour        uint32 // maximum number of moves within an hour; 0 = none
	AtOnce         uint32 // maximum number of moves that have not ended
	MinGainPercent uint32 // smallest gain of a move in percent of a node
}

// Maximum values of a RebalancePolicy.
const (
	MaxMovesPerHour = 10_000
	MaxGainPercent  = 100
)

// PB returns the encoding of the policy in commands and snapshots; nil for the zero value.
func (p RebalancePolicy) PB() *commandv1.RebalancePolicy {
	if p == (RebalancePolicy{}) {
		return nil
	}
	return &commandv1.RebalancePolicy{PerHour: p.PerHour, AtOnce: p.AtOnce, MinGainPercent: p.MinGainPercent}
}

func rebalancePolicyOf(m *commandv1.RebalancePolicy) RebalancePolicy {
	return RebalancePolicy{PerHour: m.GetPerHour(), AtOnce: m.GetAtOnce(), MinGainPercent: m.GetMinGainPercent()}
}

// check returns which field of the policy is out of its range; "" if none is.
func (p RebalancePolicy) check() (why string) {
	off := p.PerHour == 0
	switch {
	case p.PerHour > MaxMovesPerHour:
		return fmt.Sprintf("per_hour: %d is not in 0..%d", p.PerHour, MaxMovesPerHour)
	case off && p != RebalancePolicy{}:
		return fmt.Sprintf("per_hour: must not be 0, which means no moves, if at_once (%d) or min_gain_percent (%d) is set", p.AtOnce, p.MinGainPercent)
	case !off && (p.AtOnce == 0 || p.AtOnce > MaxBalanceMoves):
		return fmt.Sprintf("at_once: %d is not in 1..%d", p.AtOnce, MaxBalanceMoves)
	case !off && (p.MinGainPercent == 0 || p.MinGainPercent > MaxGainPercent):
		return fmt.Sprintf("min_gain_percent: %d is not in 1..%d", p.MinGainPercent, MaxGainPercent)
	}
	return ""
}

func (t *Tx) setRebalancePolicy(b *commandv1.SetRebalancePolicy) Result {
	info, next := &t.r.info, rebalancePolicyOf(b.GetPolicy())
	if why := next.check(); why != "" {
		return refuse(Invalid, "%s", why)
	}
	if next == info.Rebalance {
		return Result{Kind: AlreadyDone}
	}
	before := *info
	info.Rebalance = next
	t.infoChanged(before)
	t.event(Event{Type: EventRebalancePolicy, Message: next.String()})
	return Result{}
}

// String describes the policy in a sentence without a full stop.
func (p RebalancePolicy) String() string {
	if p.PerHour == 0 {
		return "the leader moves no workload by itself"
	}
	return fmt.Sprintf("the leader may move %d workloads an hour by itself, %d at once, for a gain of at least %d %% of a node", p.PerHour, p.AtOnce, p.MinGainPercent)
}

// BalanceQuiet is how long a workload is not moved again to even out the load, in nanoseconds.
const BalanceQuiet = 3600 * int64(1e9)

// MaxBalanceMoves is the largest number of moves in one MoveWorkloads command.
const MaxBalanceMoves = 250

// maxMoveReason is the maximum size of the reason of a move in bytes.
const maxMoveReason = 512

// Reserved holds the amounts that are reserved on a node, and the numbers of its workloads and of its
// residuals (instances that it must still remove).
type Reserved struct{ CPU, Memory, Disk, Workloads, Residuals int64 }

// Reserved returns the amounts that are reserved on the node.
func (a *Alloc) Reserved() Reserved {
	r := Reserved{CPU: a.CPU, Memory: a.Memory, Workloads: int64(a.Workloads), Residuals: int64(a.Residuals)}
	for _, u := range a.Disk {
		r.Disk += u.GB
	}
	return r
}

// PB returns the encoding of the amounts in commands.
func (r Reserved) PB() *commandv1.ReservedAmounts {
	return &commandv1.ReservedAmounts{CpuMillicores: r.CPU, MemoryMib: r.Memory, DiskGb: r.Disk, Workloads: r.Workloads, Residuals: r.Residuals}
}

func reservedOf(m *commandv1.ReservedAmounts) Reserved {
	return Reserved{m.GetCpuMillicores(), m.GetMemoryMib(), m.GetDiskGb(), m.GetWorkloads(), m.GetResiduals()}
}

// moving records how the earlier moves of a command change a node: the demands that arrive, and the number of
// workloads that leave.
type moving struct {
	node    string
	coming  []*Demand
	leaving int64
	unsure  bool // an earlier move from or to the node was dropped, so the later ones were computed for another load
}

// movingAt returns the element of list for a node; if there is none, it appends one.
func movingAt(list *[]moving, node string) *moving {
	i := slices.IndexFunc(*list, func(m moving) bool { return m.node == node })
	if i < 0 {
		i = len(*list)
		*list = append(*list, moving{node: node})
	}
	return &(*list)[i]
}

// moveWorkloads makes workloads leave their nodes to even out the load. Each item of the result has
// the verdict on one move. The check of a move takes the earlier moves of the command into account.
func (t *Tx) moveWorkloads(b *commandv1.MoveWorkloads) (res Result) {
	if why := movesFault(b.GetMoves()); why != "" {
		return refuse(Invalid, "%s", why)
	}
	if len(b.GetMoves()) == 0 {
		return Result{Kind: AlreadyDone, Reason: "no move has the required gain"}
	}
	var at []moving
	for _, m := range b.GetMoves() {
		old, why := t.moves(m, &at)
		if why != "" {
			res.skip(why)
			res.Items = append(res.Items, Item{ID: m.GetWorkload(), Kind: Conflict, Reason: why})
			movingAt(&at, m.GetFrom()).unsure = true
			movingAt(&at, m.GetTo()).unsure = true
			continue
		}
		to := movingAt(&at, m.GetTo())
		to.coming = append(to.coming, old.Demand)
		movingAt(&at, m.GetFrom()).leaving++
		w := *old
		t.release(&w, false, CodeRebalanced)
		message := "moves to node " + m.GetTo() + " to even out the load" + suffix(": ", m.GetReason())
		w.Reason = Reason{Code: CodeRebalanced, Message: message, At: t.r.info.Clock, Retryable: true}
		w.Moved = &Moved{At: t.r.info.Clock, From: m.GetFrom(), To: m.GetTo(), Gain: m.GetGain()}
		t.putWorkload(old, &w)
		t.event(Event{
			Type: EventWorkloadEvicted, Workload: w.ID, Node: old.Node, Reason: CodeRebalanced, Message: message,
			Details: []Label{{"gain_percent", fmt.Sprintf("%d.%d", m.GetGain()/10_000, m.GetGain()/1000%10)}, {"to", m.GetTo()}},
		})
		res.Items = append(res.Items, itemOf(&w))
	}
	return res
}

// movesFault describes the first invalid field of a MoveWorkloads command; "" if every field is valid.
func movesFault(moves []*commandv1.WorkloadMove) string {
	if n := len(moves); n > MaxBalanceMoves {
		return fmt.Sprintf("moves: has %d entries, at most %d", n, MaxBalanceMoves)
	}
	for i, m := range moves {
		switch {
		case !bounds.ValidID(m.GetTo()):
			return fmt.Sprintf("moves[%d].to: %.64q does not match %s", i, m.GetTo(), bounds.IDRule)
		case m.GetGain() < 1:
			return fmt.Sprintf("moves[%d].gain: %d is not above 0", i, m.GetGain())
		case len(m.GetReason()) > maxMoveReason:
			return fmt.Sprintf("moves[%d].reason: has %d bytes, at most %d", i, len(m.GetReason()), maxMoveReason)
		}
	}
	return ""
}

// moves returns the workload that move m names, or the reason why the move is skipped. at has, for each node, the
// effect of the earlier moves of the command.
func (t *Tx) moves(m *commandv1.WorkloadMove, at *[]moving) (w *Workload, why string) {
	w, why = t.planned(m.GetWorkload(), m.GetIfGeneration())
	if why != "" {
		return nil, why
	}
	v := t.state()
	switch {
	case w.Node != m.GetFrom():
		return nil, fmt.Sprintf("workload %q is on node %q, not on %q", w.ID, w.Node, m.GetFrom())
	case w.Node == m.GetTo():
		return nil, fmt.Sprintf("workload %q is on node %s already", w.ID, w.Node)
	}
	if why := Immovable(v, w, t.r.info.Clock); why != "" {
		return nil, fmt.Sprintf("workload %q stays: %s", w.ID, why)
	}
	if why := GroupWaits(v, w.Demand.Group); why != "" {
		return nil, fmt.Sprintf("workload %q stays: %s", w.ID, why)
	}
	for _, n := range []struct {
		id   string
		seen *commandv1.ReservedAmounts
	}{{m.GetFrom(), m.GetFromReserved()}, {m.GetTo(), m.GetToReserved()}} {
		a := v.Alloc(n.id)
		r := a.Reserved()
		if movingAt(at, n.id).unsure {
			return nil, fmt.Sprintf("an earlier move from or to node %q was dropped, so the gain for workload %q is not known any more", n.id, w.ID)
		}
		left := movingAt(at, n.id).leaving
		r.Workloads, r.Residuals = r.Workloads+left, r.Residuals-left
		if r != reservedOf(n.seen) {
			return nil, fmt.Sprintf("the amounts that are reserved on node %q have changed, so the gain for workload %q is not known any more", n.id, w.ID)
		}
	}
	gone := *w
	gone.Node = ""
	n, _ := t.r.nodes.Get(m.GetTo())
	if why := t.unfit(&gone, n, m.GetTo()); why != "" {
		return nil, why
	}
	if keys := m.GetToKeys(); keys != 0 && keys != n.KeysHash() {
		return nil, fmt.Sprintf("the labels or taints of node %q have changed, so placement may not choose it for workload %q any more", n.ID, w.ID)
	}
	return w, t.crowded(w, n, movingAt(at, n.ID).coming)
}

// crowded returns why the free resources and ports of node n do not suffice for w; "" if they do. coming lists the
// demands of the workloads that earlier moves of the same command bring to n.
func (t *Tx) crowded(w *Workload, n *Node, coming []*Demand) string {
	a, d := t.state().Alloc(n.ID), w.Demand
	pool := n.pool(d.Pool)
	cpu, mem, disk := a.CPU+d.CPU, a.Memory+d.Memory, a.poolUse(pool)+d.Disk
	var devices []DeviceCount
	for _, c := range coming {
		cpu, mem = cpu+c.CPU, mem+c.Memory
		devices = addDevices(devices, c.Devices, +1)
		if n.pool(c.Pool) == pool {
			disk += c.Disk
		}
		if slices.ContainsFunc(c.Ports, func(p HostPort) bool { return slices.ContainsFunc(d.Ports, p.Collides) }) {
			return fmt.Sprintf("an earlier move to node %q takes a host port of workload %q", n.ID, w.ID)
		}
	}
	if why := lacksDevices(n, &a, d, nil, devices); why != "" {
		return why
	}
	if d.CPU > 0 && cpu > n.Facts.CPU || d.Memory > 0 && mem > n.Facts.Memory || d.Disk > 0 && disk > n.poolTotal(pool) {
		return fmt.Sprintf("earlier moves to node %q leave too few free resources for workload %q", n.ID, w.ID)
	}
	return ""
}

// Immovable returns why a workload may not be moved only to balance the load of the nodes; "" if it may. The texts
// contain no figures, so that workloads with the same reason can be counted.
func Immovable(v View, w *Workload, now int64) string {
	n, placed := v.Node(w.Node)
	switch {
	case w.IsTemplate() || w.Demand.Job != nil:
		return "the workload is a job or a template"
	case w.IsMember():
		return "the workload is a member of a system workload and belongs to its node"
	case w.Demand.Exclusive:
		return "the workload is exclusive"
	case !placed || w.Desired != DesiredRunning || w.EndedForGood():
		return "the workload does not run"
	case !n.Schedulable():
		return "the workload's node is not ready, is draining or is cordoned"
	case len(w.DataOn(n)) > 0:
		return "the workload has local data on its node"
	case slices.ContainsFunc(w.Demand.Asks, func(a policy.Ask) bool { return a.Rule == policy.RuleHostPath }):
		return "the workload can write to folders of its host"
	case w.Demand.MoveLimit().Attempts == 0:
		return "the specification forbids moves (reschedule.attempts: 0)"
	case w.Adopted != "":
		return "a legacy v1 scheduler chose the node of the workload"
	case !w.Acknowledged || !w.Available():
		return "the workload is being updated or is not available"
	case w.Retry.FirstFailureAt != 0:
		return "the workload failed a short time ago and has not run long enough since"
	case w.Reason.Code != "":
		return "the workload waits or must stay on its node (see persysctl why)"
	case w.Moved != nil && w.Moved.At+BalanceQuiet > now:
		return "the workload was moved within the last hour to even out the load"
	}
	return ""
}

// GroupWaits returns why no member of a group may be moved now to balance the load; "" if a member
// may be moved, or if group is "".
func GroupWaits(v View, group string) string {
	if group == "" {
		return ""
	}
	if r, ok := v.Rollout(group); ok && r.Phase != rollout.Completed {
		return "the group of the workload is being updated"
	}
	why := ""
	v.Group(group, func(m *Workload) bool {
		if m.Desired == DesiredDeleted || m.Desired == DesiredRunning && !m.Available() {
			why = "another member of the workload's group is not available"
		}
		return why == ""
	})
	return why
}

func movedOf(m *commandv1.Moved) *Moved {
	if m == nil {
		return nil
	}
	return &Moved{At: m.GetAt(), From: m.GetFrom(), To: m.GetTo(), Gain: m.GetGain()}
}

func movedPB(m *Moved) *commandv1.Moved {
	if m == nil {
		return nil
	}
	return &commandv1.Moved{At: m.At, From: m.From, To: m.To, Gain: m.Gain}
}

func (e *encoder) moved(m *Moved) {
	if m == nil {
		return
	}
	for _, s := range [...]string{"moved", m.From, m.To} {
		e.str(s)
	}
	e.i64(m.At)
	e.i64(m.Gain)
}
