package sim

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/rollout"
	"github.com/persys/compute/sched"

	"github.com/persys/compute/agent/driver"
)

// oracle is a simple model of the promises to users. It reads the log independently of the state machine.
type oracle struct {
	first     map[[16]byte]fsm.Result // the first answer to each request, by request id
	wanted    map[string]want         // for each workload: the specification that users want; absent if the workload was never created or was deleted
	puts      map[string]*commandv1.WorkloadPut
	highest   map[string]fsm.Generation
	upSince   map[string]int64   // for each node: virtual time since which the node is up
	forced    map[string]int64   // for each workload: virtual time of its last deletion with --force
	fired     map[string]int64   // for each cron: time of the schedule of its newest run
	missing   map[string]bool    // members of group g that were available until an update changed them
	found     map[string]int64   // for each node/workload: virtual time at which a report revealed an instance that should not be there
	jobsUntil map[string]int64   // for each draining node with a deadline: until when running jobs may end there, by the clock of the state
	ran       map[string]string  // for each job: the node that has reported that its present revision runs
	engines   map[string]int     // for each instance of a node: number of the engine that it used
	balanced  map[string]moved   // for each workload: its last move that evened out the load
	finished  map[string]int64   // for each job: virtual time at which its last end was committed
	succeeded map[string]bool    // as workload and flavour, separated by a space: an instance ended by itself with success
	owed      map[string]*owed   // for each job: the exit that its record does not show yet
	moved     map[string][]int64 // for each workload: when it left nodes that could not run it, by the clock of the state
}

type want struct {
	content string
	desired fsm.Desired
}

func newOracle() oracle {
	return oracle{
		first: map[[16]byte]fsm.Result{}, wanted: map[string]want{}, puts: map[string]*commandv1.WorkloadPut{},
		highest: map[string]fsm.Generation{}, upSince: map[string]int64{}, found: map[string]int64{},
		missing: map[string]bool{}, forced: map[string]int64{}, fired: map[string]int64{},
		finished: map[string]int64{}, succeeded: map[string]bool{}, moved: map[string][]int64{}, balanced: map[string]moved{}, jobsUntil: map[string]int64{},
		owed: map[string]*owed{}, ran: map[string]string{}, engines: map[string]int{},
	}
}

// judge checks the promises to users after one command was applied.
func (w *world) judge(before, after fsm.State, c fsm.Command, res fsm.Result, changes []fsm.Change) {
	o := &w.oracle
	if h := c.GetHead(); len(h.GetRequest()) > 0 {
		id := [16]byte(h.GetRequest())
		if first, ok := o.first[id]; ok {
			if !res.Duplicate || !sameResult(res, first, true) || len(changes) > 0 {
				w.violate("receipt", "", "", "request %x was answered with %+v, but when it was sent again with %+v and %d changes", id, first, res, len(changes))
			}
			return
		}
		if res.Duplicate {
			w.violate("receipt", "", "", "request %x is new, but is answered as a repeated one: %+v", id, res)
		}
		if res.Kind != fsm.Frozen && res.Kind != fsm.TooOld {
			o.first[id] = res
		}
	}
	w.rolled(before, after, c)
	w.drained(before, c, res)
	w.learn(c, res, after)
	if b := c.GetMoveWorkloads(); b != nil {
		w.rebalanced(before, after, b, res)
	}
	for i := range changes {
		ch := &changes[i]
		switch ch.Table {
		case fsm.TableWorkload:
			w.workloadChanged(before, after, c, ch)
		case fsm.TableNode:
			w.nodeChanged(c, ch)
		case fsm.TableResidual:
			switch {
			case ch.NewResidual() == nil:
				w.tracef(ch.OldResidual().Workload, ch.OldResidual().Node, "%d: %s: residual %s is gone", res.Index, fsm.ArmName(c), ch.OldResidual().Generation)
			default:
				if ch.NewResidual().Reason == fsm.CodeLeftBehind {
					o.found[ch.Key] = w.now
				}
				w.tracef(ch.NewResidual().Workload, ch.NewResidual().Node, "%d: %s: residual %s (%s)", res.Index, fsm.ArmName(c), ch.NewResidual().Generation, ch.NewResidual().Reason)
			}
		}
	}
	if res.Skipped > 0 && res.Reason != "" {
		w.tracef("", "", "%d: %s: %d skipped: %s", res.Index, fsm.ArmName(c), res.Skipped, res.Reason)
	} else if res.Err() != nil {
		w.tracef("", "", "%d: %s: %s: %s", res.Index, fsm.ArmName(c), res.Kind, res.Reason)
	}
}

// learn updates the oracle's model of what users were promised, after a user's command was
// accepted.
func (w *world) learn(c fsm.Command, res fsm.Result, after fsm.State) {
	if res.Kind != fsm.OK && res.Kind != fsm.AlreadyDone {
		return
	}
	o := &w.oracle
	gone := func(id string) {
		if x, ok := o.wanted[id]; ok {
			x.desired = fsm.DesiredDeleted
			o.wanted[id] = x
		}
	}
	switch b := c.GetBody().(type) {
	case *commandv1.Command_PutWorkloads:
		listed := map[string]bool{}
		for i, p := range b.PutWorkloads.GetWorkloads() {
			listed[p.GetId()] = true
			o.wanted[p.GetId()] = want{p.GetContent(), fsm.Desired(p.GetDesired())}
			o.puts[p.GetId()] = proto.Clone(p).(*commandv1.WorkloadPut)
			if w.waits(after, p) {
				continue
			}
			x, ok := after.Workload(p.GetId())
			if !ok || i >= len(res.Items) || res.Items[i].ID != x.ID || res.Items[i].Generation != x.Generation || res.Items[i].Revision != x.Revision() {
				w.violate("acknowledged", p.GetId(), "", "an apply was accepted as %+v, but the state has %+v", res.Items, x)
			}
		}
		for _, p := range b.PutWorkloads.GetSurge() {
			if x, ok := after.Workload(p.GetId()); ok && x.Demand.Surge && x.Desired != fsm.DesiredDeleted {
				listed[x.ID], o.wanted[x.ID] = true, want{x.Content, x.Desired} // a surge member of the previous update
			}
		}
		if g := b.PutWorkloads.GetGroupOf(); g != "" {
			for _, id := range keys(o.wanted) {
				if id[0] == 'g' && !listed[id] {
					gone(id)
				}
			}
		}
	case *commandv1.Command_SetDesired:
		if have, ok := after.Workload(b.SetDesired.GetId()); ok && have.Finished() {
			break // a job that has ended stays as it is
		}
		if x, ok := o.wanted[b.SetDesired.GetId()]; ok {
			x.desired = fsm.Desired(b.SetDesired.GetDesired())
			o.wanted[b.SetDesired.GetId()] = x
		}
	case *commandv1.Command_DeleteWorkload:
		gone(b.DeleteWorkload.GetId())
		if b.DeleteWorkload.GetForce() {
			delete(o.wanted, b.DeleteWorkload.GetId())
			o.forced[b.DeleteWorkload.GetId()] = w.now
		}
	}
	w.kept(after)
}

// kept checks that the state contains every change that was acknowledged to a user, according to
// the oracle's model.
func (w *world) kept(s fsm.State) {
	for _, id := range keys(w.oracle.wanted) {
		x := w.oracle.wanted[id]
		have, ok := s.Workload(id)
		switch {
		case !ok && x.desired == fsm.DesiredDeleted:
			delete(w.oracle.wanted, id)
		case !ok:
			w.violate("acknowledged", id, "", "an accepted apply of %s is lost", x.content[:19])
		case have.Content != x.content || have.Desired != x.desired:
			w.violate("acknowledged", id, "", "accepted: %s %s; the state has %s %s", x.content[:19], x.desired, have.Content[:19], have.Desired)
		}
	}
	s.Workloads("", func(x *fsm.Workload) bool {
		if _, ok := w.oracle.wanted[x.ID]; !ok && x.Owner == "" {
			w.violate("acknowledged", x.ID, "", "the state has a workload that no user created")
		}
		return true
	})
}

// acknowledged checks that the answer that a user received agrees with the log.
func (w *world) acknowledged(rq *request, res fsm.Result) {
	if res.Kind == fsm.Frozen || res.Kind == fsm.TooOld || w.cfg.Sabotage == NoReceipts {
		return
	}
	if first, ok := w.oracle.first[rq.id]; !ok || !sameResult(first, res, true) {
		w.violate("acknowledged", "", "", "request %s was answered with %+v, but the log has %+v (%t)", rq.what, res, first, ok)
	}
}

func (w *world) workloadChanged(before, after fsm.State, c fsm.Command, ch *fsm.Change) {
	old, x := ch.OldWorkload(), ch.NewWorkload()
	index := after.Info().Index
	if x == nil {
		w.tracef(old.ID, "", "%d: %s: the record is gone", index, fsm.ArmName(c))
		if have, ok := w.oracle.wanted[old.ID]; ok && have.desired != fsm.DesiredDeleted {
			w.violate("acknowledged", old.ID, "", "%s removes a workload whose desired state is %s", fsm.ArmName(c), have.desired)
		}
		if old.Owner != "" && old.Active() {
			w.violate("cron", old.ID, "", "%s removes a run that has not ended", fsm.ArmName(c))
		}
		delete(w.oracle.wanted, old.ID)
		delete(w.oracle.owed, old.ID)
		return
	}
	w.tracef(x.ID, x.Node, "%d: %s: %s, desired %s, generation %s, acknowledged %t, actual %s %s, reason %s %s", index, fsm.ArmName(c),
		x.Status, x.Desired, x.Generation, x.Acknowledged, x.Actual.State, x.Actual.Code, x.Reason.Code, x.Reason.Message)
	w.noteRuns(c, old, x)
	if x.Owner != "" {
		w.runChanged(after, c, old, x)
	}
	if old != nil && x.Demand.Job != nil && !x.IsTemplate() {
		w.jobChanged(after, c, old, x)
	}
	if x.Generation.Less(w.oracle.highest[x.ID]) {
		w.violate("generation", x.ID, "", "%s decreases the generation from %s to %s", fsm.ArmName(c), w.oracle.highest[x.ID], x.Generation)
	}
	w.oracle.highest[x.ID] = x.Generation
	if old != nil && (old.Content != x.Content || old.Desired != x.Desired || old.Node != x.Node) && old.Generation == x.Generation {
		w.violate("generation", x.ID, "", "%s changes the desired state but not the generation %s", fsm.ArmName(c), x.Generation)
	}
	if c.GetAssign() != nil && x.Node != "" && (old == nil || old.Node == "") {
		w.assigned(before, after, x)
	}
	if len(x.FailedOn) == 0 {
		delete(w.oracle.moved, x.ID)
	}
	for _, e := range c.GetEvict().GetEvictions() {
		if e.GetCode() == fsm.CodePreempted {
			w.preemptedAt = w.now
		}
		if e.GetWorkload() == x.ID && e.GetCode() == fsm.CodeFailedOnNode {
			w.movedOn(old, after.Info().Clock)
		}
		if e.GetWorkload() == x.ID && e.GetCode() == fsm.CodeNodeLost && !e.GetGone() && x.Status == fsm.StatusStopped && !saidStopped(old) {
			w.violate("stopped", x.ID, old.Node, "it counts as stopped, but its lost node has reported %s of generation %s", old.Actual.State, old.Actual.Generation)
		}
	}
}

// movedOn checks a workload that leaves its node because the node cannot run it. The workload must not be exclusive, and
// must not move more often than its limit allows.
func (w *world) movedOn(x *fsm.Workload, at int64) {
	w.report.Moves++
	limit := x.Demand.MoveLimit()
	moved := append(w.oracle.moved[x.ID], at)
	w.oracle.moved[x.ID] = moved
	n := 0
	for _, t := range moved {
		if t > at-limit.Interval {
			n++
		}
	}
	if n > int(limit.Attempts) || x.Demand.Exclusive {
		w.violate("moves", x.ID, x.Node, "it leaves the node, exclusive %t, as move %d within %d s, at most %d are allowed", x.Demand.Exclusive, n, limit.Interval/sec, limit.Attempts)
	}
}

// stuck describes why a workload should not stay on a machine that cannot run it; "" if it may stay.
func (w *world) stuck(s fsm.State, x *fsm.Workload) string {
	if x.Demand.Exclusive {
		return ""
	}
	var able []string
	for _, m := range w.machines {
		if !m.refuses(x.ID) {
			able = append(able, m.id)
		}
	}
	d := *x.Demand
	d.Constraints = append(slices.Clone(d.Constraints), fsm.Constraint{Key: fsm.NodeIDLabel, Op: "in", Values: able})
	if at, _ := sched.Place(d, sched.NodesOf(s, w.users.settings.Tuning).For(x.ID)); at != "" {
		return "its node cannot run it, and node " + at + " could"
	}
	return ""
}

// saidStopped reports whether the node has reported that the workload does not run, in a report about the
// present order.
func saidStopped(x *fsm.Workload) bool {
	return x.Acknowledged && x.Actual.Generation == x.Generation && x.Actual.State != fsm.ActualRunning &&
		x.Actual.State != fsm.ActualPending && x.Actual.State != fsm.ActualUnknown && x.Actual.State != fsm.ActualNone
}

// assigned checks that a placement does not exceed the capacity of the node. It does not rely on the
// sums in the state, but adds up the reserved resources from all records.
func (w *world) assigned(before, after fsm.State, x *fsm.Workload) {
	n, ok := after.Node(x.Node)
	if !ok || !n.Schedulable() {
		w.violate("placement", x.ID, x.Node, "placed on a node that accepts no work: %+v", n)
		return
	}
	cpu, mem, devices := int64(0), int64(0), int64(0)
	ports := map[uint16]string{}
	add := func(id string, d *fsm.Demand) {
		cpu, mem, devices = cpu+d.CPU, mem+d.Memory, devices+fsm.DevicesNamed(d.Devices, device)
		for _, p := range d.Ports {
			// A workload that is placed on its previous node again still holds its former ports
			// on that node: see fsm.Workload.FormerPorts.
			holder, on := before.PortHolder(n.Engine(), p)
			if other, ok := ports[p.Port]; ok && (id == x.ID || other == x.ID) && !(holder == x.ID && on == n.ID) {
				w.violate("ports", x.ID, x.Node, "placed although port %d is reserved for %s and %s", p.Port, other, id)
			}
			ports[p.Port] = id
		}
	}
	after.WorkloadsOn(n.ID, func(y *fsm.Workload) bool { add(y.ID, y.Demand); return true })
	after.Residuals(n.ID, func(r *fsm.Residual) bool { add(r.Workload, &r.Demand); return true })
	if x.Demand.CPU > 0 && cpu > n.Facts.CPU || x.Demand.Memory > 0 && mem > n.Facts.Memory {
		w.violate("capacity", x.ID, x.Node, "placed although %d of %d millicores and %d of %d MiB are reserved", cpu, n.Facts.CPU, mem, n.Facts.Memory)
	}
	if total := fsm.DevicesNamed(n.Facts.Devices, device); len(x.Demand.Devices) > 0 && devices > total {
		w.violate("capacity", x.ID, x.Node, "placed although %d of %d devices %s are reserved", devices, total, device)
	}
	before.ResidualsOf(x.ID, func(r *fsm.Residual) bool {
		// Between the planning of a placement and its commit, a node may come up or report an instance that
		// should not be there. So this check uses only instances to be removed (residuals) that have been
		// known for some time. A workload that a user deleted by force does not prevent a placement.
		forced := r.Reason == fsm.CodeDeleting && x.CreatedAt > r.Since
		known := max(w.oracle.upSince[r.Node], w.oracle.found[r.Node+"/"+r.Workload])
		if n, ok := before.Node(r.Node); ok && n.Up && !forced && r.Node != x.Node && w.now-known > 20*sec {
			w.violate("await stop", x.ID, x.Node, "placed although node %s is up and has not stopped it", r.Node)
		}
		return true
	})
	if !x.Demand.Exclusive {
		return
	}
	before.ResidualsOf(x.ID, func(r *fsm.Residual) bool {
		if r.Node != x.Node {
			w.violate("exclusive", x.ID, x.Node, "placed although node %s has not stopped it", r.Node)
		}
		return true
	})
}

func (w *world) nodeChanged(c fsm.Command, ch *fsm.Change) {
	old, n := ch.OldNode(), ch.NewNode()
	if n == nil {
		delete(w.oracle.jobsUntil, old.ID)
	} else {
		w.deadlineKept(n)
	}
	switch {
	case n == nil:
		w.tracef("", old.ID, "%s: the node is removed", fsm.ArmName(c))
		return
	case old == nil || old.Up != n.Up:
		w.tracef("", n.ID, "%s: up %t %s", fsm.ArmName(c), n.Up, n.Reason)
		w.oracle.upSince[n.ID] = w.now
	default:
		w.tracef("", n.ID, "%s: draining %t cordoned %t fenced %t", fsm.ArmName(c), n.Draining, n.Cordoned, n.Fenced)
		return
	}
	if n.Up || old == nil {
		return
	}
	// A node must not be declared lost while its agent still holds the lease. The clock of the machine may be
	// slower than that of the leader by the allowed drift, so allow that difference.
	m := w.machine(n.ID)
	if left := m.session.until() - m.local(w.now); m.holds() && m.disk.instance == n.Facts.InstanceID && left > 50*ms {
		w.violate("early expiry", "", n.ID, "the node is declared lost (%s) while its agent holds a lease for %d ms", n.Reason, left/ms)
	}
}

// overlapAllowed is how long a workload that is not exclusive may run on two machines whose agents both hold
// their leases. After that time, the order to stop one of the instances is overdue. After delete --force the id
// is free at once, so for the same time a new workload with that id may run beside the instance of the deleted
// one (sched/DESIGN.md).
const overlapAllowed = 120 * sec

// begun checks, when instance i starts on machine m, that no other machine runs an instance of the
// same workload.
func (w *world) begun(m *machine, i *instance) {
	if isJob(i.flavour) {
		w.startedAgain(m, i)
		w.startsOwing(m, i)
	}
	for _, o := range w.machines {
		other := o.engine.has[i.id]
		if o == m || other == nil || other.state != driver.Running || !o.power.alive {
			continue
		}
		if exclusive(i.id) {
			w.violate("exclusive", i.id, m.id, "the workload starts here while it runs on %s", o.id)
			return
		}
		held := func(m *machine) bool {
			return m.holds() && m.session.heldSince != 0 && w.now-m.session.heldSince > overlapAllowed
		}
		at, forced := w.oracle.forced[i.id]
		if held(m) && held(o) && !(forced && w.now-at <= overlapAllowed) {
			w.violate("twice", i.id, m.id, "the workload starts here while it runs on %s, and both agents have held their leases for %ds", o.id, overlapAllowed/sec)
		}
	}
}

// unrest checks a cluster that should be at rest after the faults have ended. It returns the rule
// that is broken, why, and the workload and node concerned; rule is "" if nothing is wrong.
func (w *world) unrest() (rule, why, workload, node string) {
	s := w.truth
	bad := func(r, wl, n, format string, args ...any) {
		if why == "" {
			rule, why, workload, node = r, fmt.Sprintf(format, args...), wl, n
		}
	}
	if w.users.open > 0 {
		bad("answers", "", "", "%d requests have no answer", w.users.open)
	}
	if l := w.log.leader; l < 0 || w.replicas[l].leads == nil {
		bad("leader", "", "", "no replica leads")
	}
	w.kept(s)
	if w.balancedAt != 0 && w.now-w.balancedAt < 100*sec {
		bad("rebalance", "", "", "a workload was moved to even out the load %d s ago", (w.now-w.balancedAt)/sec)
	}
	if w.preemptedAt != 0 && w.now-w.preemptedAt < 100*sec {
		bad("preemption", "", "", "a workload was evicted for one of higher priority %d s ago", (w.now-w.preemptedAt)/sec)
	}
	s.Rolling(func(r *rollout.Rollout) bool {
		if r.Phase != rollout.AwaitPromotion { // nobody promotes it
			bad("rollout", "", "", "the update of %s has not ended: %+v", r.Group, r.Members)
		}
		return true
	})
	for _, m := range w.machines {
		if n, ok := s.Node(m.id); !ok || !n.Up || !m.holds() {
			bad("nodes", "", m.id, "the node is known: %t, and its agent holds a lease: %t: %+v", ok, m.holds(), n)
		}
	}
	s.Workloads("", func(x *fsm.Workload) bool {
		if why := w.restless(s, x); why != "" {
			bad("desired state", x.ID, x.Node, "workload %s is %s (desired %s, generation %s, acknowledged %t, actual %s of %s, reason %s: %s; attempts %d next %d terminal %t): %s",
				x.ID, x.Status, x.Desired, x.Generation, x.Acknowledged, x.Actual.State, x.Actual.Generation, x.Reason.Code, x.Reason.Message,
				x.Retry.Attempts, x.Retry.NextAt, x.Retry.Terminal, why)
		}
		return true
	})
	if id, o := w.owing(); o != nil {
		bad("exit", id, o.node, "the instance of generation %s ended with exit code %d, which the record does not show", o.order, o.code)
	}
	s.Residuals("", func(r *fsm.Residual) bool {
		if n, ok := s.Node(r.Node); ok && n.Up {
			bad("residuals", r.Workload, r.Node, "node %s is up and still has a residual of %s at %s (%s)", r.Node, r.Workload, r.Generation, r.Reason)
		}
		return true
	})
	for _, m := range w.machines {
		if !m.power.alive {
			continue
		}
		for _, id := range keys(m.engine.has) {
			i := m.engine.has[id]
			x, ok := s.Workload(id)
			if i.state == driver.Running && (!ok || x.Node != m.id) {
				bad("ghosts", id, m.id, "%s runs on %s, but the state does not show it", id, m.id)
			}
		}
	}
	return rule, why, workload, node
}

// restless describes how a workload differs from its desired state when the cluster should be at rest; "" if
// it does not.
func (w *world) restless(s fsm.State, x *fsm.Workload) string {
	var i *instance
	runs := false
	if m := w.machine(x.Node); m != nil {
		i = m.engine.has[x.ID]
		runs = i != nil && i.state == driver.Running
	}
	flavour, _ := w.users.flavourOf(x.Content)
	fails := flavour[:2] == "ba" || flavour[:2] == "cr" || flavour[:2] == "fl"
	switch {
	case x.Desired == fsm.DesiredDeleted:
		return "it should be gone"
	case x.Finished() && runs:
		return "it has ended, but runs"
	case x.Finished() || x.IsTemplate() && x.Desired == fsm.DesiredStopped:
		return ""
	case x.Desired == fsm.DesiredStopped && runs:
		return "it runs"
	case x.Desired == fsm.DesiredStopped && x.Status == fsm.StatusStopped:
		return ""
	case x.Desired == fsm.DesiredStopped:
		return "it is not stopped"
	case x.Node == "":
		if x.Reason.Code != fsm.CodeUnplaced {
			return "the workload has no node and no reason for that"
		}
		if at, _ := sched.Place(*x.Demand, sched.NodesOf(s, w.users.settings.Tuning).For(x.ID)); at != "" {
			return "node " + at + " could take it"
		}
		return ""
	case x.Reason.Code == fsm.CodeCannotMove:
		if at, _ := sched.Place(*x.Demand, sched.NodesOf(s, w.users.settings.Tuning).For(x.ID)); at != "" {
			return "node " + at + " could take it"
		}
		return "" // a held workload may keep running with its previous content
	case x.Reason.Code == fsm.CodeAwaitStop && w.portIsKept(s, x, 8):
		if at, _ := sched.Place(*x.Demand, sched.NodesOf(s, w.users.settings.Tuning).For(x.ID)); at != "" {
			return "node " + at + " could take it"
		}
		return "" // the workload waits for a port on its node
	case x.Retry.Terminal && x.Status == fsm.StatusFailed:
		if !fails {
			return "the workload was given up, but its specification works"
		}
		if x.Reason.Code != fsm.CodeExhausted && x.Reason.Code != fsm.CodePermanentFailure {
			return "the workload was given up without a reason"
		}
		return ""
	case !runs && x.Desired == fsm.DesiredRunning && w.machine(x.Node) != nil && w.machine(x.Node).refuses(x.ID):
		return w.stuck(s, x)
	case isJob(flavour):
		return "the job has not ended"
	case flavour[:2] == "cr":
		return "the workload never keeps running, but is not given up"
	case !runs:
		return "it does not run"
	case !strings.HasPrefix(i.content, x.Content): // the agent has not reported yet that the engine does not restart the instance
		return "another content runs"
	case x.Status != fsm.StatusRunning:
		return "the workload runs, but the state does not show that"
	case x.Retry.StableSince != 0:
		return "the failures of the workload are not cleared yet"
	}
	return ""
}

// portIsKept reports whether another workload holds a port that workload x demands, and may keep it. A workload
// may keep a port if it has to go on running with its previous content: it can neither get its new content on
// its node nor move, its machine cannot run it, or it waits itself for a port of such a workload.
func (w *world) portIsKept(s fsm.State, x *fsm.Workload, depth int) bool {
	n, ok := s.Node(x.Node)
	if !ok || depth == 0 {
		return false
	}
	for _, p := range x.Demand.Ports {
		holder, _ := s.PortHolder(n.Engine(), p)
		h, ok := s.Workload(holder)
		if !ok || h.ID == x.ID {
			continue
		}
		if (h.Reason.Code == fsm.CodeCannotMove || h.FailsOnNode()) && w.restless(s, h) == "" ||
			h.Reason.Code == fsm.CodeAwaitStop && w.portIsKept(s, h, depth-1) {
			return true
		}
	}
	return false
}
