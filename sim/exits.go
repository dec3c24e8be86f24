package sim

import (
	"strings"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/fsm"
)

// owed is the exit of an instance of a job that ended by itself, and that the record of the job does not show yet.
type owed struct {
	node   string
	create uint64 // create index of the job's record
	order  fsm.Generation
	disk   *disk
	run    string // id of the instance on its engine
	made   int    // number of the engine that ran the instance; a wiped machine gets a new engine
	code   int
	good   bool // the exit code means success
	leased bool // the job must be stopped when the lease of its node ends
	boot   int  // number of power losses of the machine when the instance ended
}

// lives reports whether the machine still has the state file of the agent and the engine that know the exit. After a power
// loss no fencer knows when the lease ended, so the exit of a leased job counts as a stop unless the agent had seen it.
func (o *owed) lives(m *machine) bool {
	return m.disk == o.disk && m.made == o.made && (!o.leased || m.power.life == o.boot)
}

// owes notes that the record of a job must show the exit of instance i, which has ended by itself, if i ran for the run
// that the present order of the job asks for: an order for this run was accepted before i started, and no order for another run
// has been committed. An instance that may have been stopped because its lease ended is left out.
func (w *world) owes(m *machine, i *instance) {
	if !isJob(i.flavour) {
		return
	}
	x, ok := w.truth.Workload(i.id)
	if !ok || x.Demand.Job == nil || x.IsTemplate() || x.Finished() || x.Desired != fsm.DesiredRunning || x.Node != m.id || !strings.HasPrefix(i.content, x.Content) {
		return
	}
	n, ok := w.truth.Node(m.id)
	in, at := m.disk.intents[i.id], m.disk.ordered[i.id]
	lapsed := in != nil && in.Leased() && !(m.holds() && m.session.heldSince != 0 && m.session.heldSince <= i.started)
	if !ok || n.Facts.InstanceID != m.disk.instance || in == nil || lapsed || !asksForRun(x, in.Generation) || at.run != in.Run || i.started < at.at || in.Restart || in.Recreate {
		return
	}
	w.oracle.owed[i.id] = &owed{
		node: m.id, create: x.CreateIndex, order: x.Generation, disk: m.disk, run: i.runtimeID, made: m.made, code: i.exit, good: succeeds(i),
		leased: in.Leased(), boot: m.power.life,
	}
}

// asksForRun reports whether the present order of job x asks for the same run as its order of generation g.
func asksForRun(x *fsm.Workload, g fsm.Generation) bool {
	return g == x.Generation || !x.SameSince.IsZero() && !g.Less(x.SameSince)
}

// ordered is the run for which an agent has accepted an order (core.Intent.Run), and the virtual time at which it accepted the
// first order for this run.
type ordered struct {
	run driver.Generation
	at  int64
}

// exitKept checks the promises of the exits of jobs after the record of a job was changed. A record need not show the exit of
// an instance any more if the job has left the node, was ended by its deadline, was replaced by the next run of its cron, or
// was changed by a user so that its node has to run it again.
func (w *world) exitKept(c fsm.Command, old, x *fsm.Workload) {
	o := w.oracle.owed[x.ID]
	if o == nil {
		return
	}
	switch {
	case !o.lives(w.machine(o.node)), x.CreateIndex != o.create, x.Node != o.node && !x.Finished(), x.Desired != fsm.DesiredRunning,
		old.Content != x.Content, len(c.GetHead().GetRequest()) > 0 && !asksForRun(x, old.Generation):
		delete(w.oracle.owed, x.ID)
	case x.Finished() && x.Result.Succeeded != o.good && x.Result.Code != fsm.CodeDeadlineExceeded && x.Result.Code != fsm.CodeReplaced:
		w.violate("exit", x.ID, o.node, "%s records success %t (%s), but the instance of generation %s ended with exit code %d", fsm.ArmName(c), x.Result.Succeeded, x.Result.Code, o.order, o.code)
	case x.Finished(), x.Actual.Exit != nil && int(x.Actual.Exit.Code) == o.code && x.ReportsPresent():
		delete(w.oracle.owed, x.ID)
	case c.GetScheduleRetries() != nil && !asksForRun(x, old.Generation):
		w.violate("exit", x.ID, o.node, "generation %s asks for another run, although the instance of generation %s ended with exit code %d, which the record does not show", x.Generation, o.order, o.code)
	}
}

// startsOwing checks, when instance i starts, that the record of its job shows the exit of the former run on this machine.
func (w *world) startsOwing(m *machine, i *instance) {
	if o := w.oracle.owed[i.id]; o != nil && o.node == m.id && o.lives(m) {
		w.violate("exit", i.id, m.id, "an instance starts, although the former one (generation %s) ended with exit code %d, which the record does not show", o.order, o.code)
	}
}

// owing returns a job whose record does not show an exit that its node knows, in a cluster that should be at rest; nil if
// there is none.
func (w *world) owing() (id string, o *owed) {
	for _, id := range keys(w.oracle.owed) {
		if o := w.oracle.owed[id]; o.lives(w.machine(o.node)) {
			return id, o
		}
	}
	return "", nil
}

// forgetsExits removes the ended instances of jobs from an engine (sabotage ExitsForgotten).
func (m *machine) forgetsExits() {
	for _, id := range keys(m.engine.has) {
		if i := m.engine.has[id]; isJob(i.flavour) && i.state != driver.Running {
			delete(m.engine.has, id)
		}
	}
}
