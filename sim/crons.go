package sim

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
)

const (
	minute   = 60 * sec
	jumpMost = 200 // seconds by which a clock that jumps may be off; it must stay below the time for which receipts are kept
)

// concurrencies holds the crons of a run with the fault Crons: for each value of concurrency one cron, which fires
// each minute.
var concurrencies = map[string]string{"c0": fsm.ConcurrencyAllow, "c1": fsm.ConcurrencyForbid, "c2": fsm.ConcurrencyReplace, localCron: fsm.ConcurrencyAllow}

// localCron is a cron that follows the local time of Berlin: each minute of the hours 1 and 2. Its last times of the day
// are those before backToWinter. The clock then shows the hour 2 again, and the cron must not fire again.
const localCron = "c3"

// backToWinter is the end of summer time in Berlin, where clocks go from 3:00 back to 2:00. It is three minutes of virtual time after the start of each simulation.
// localCron fires again at 1:00 of the next day, 23 hours later.
const (
	backToWinter = start + 3*minute
	localAgain   = backToWinter + 23*60*minute
)

// nextTime returns the time of a cron's schedule after one of its times.
func nextTime(id string, last int64) int64 {
	if id == localCron && last+minute == backToWinter {
		return localAgain
	}
	return last + minute
}

// createCrons makes users create the crons. Nobody changes them before suspendCrons.
func (w *world) createCrons() {
	for _, id := range keys(concurrencies) {
		w.users.version++
		flavour := fmt.Sprintf("job:v%d", w.users.version)
		raw, err := proto.Marshal(&controlv1.WorkloadSpec{
			Type: "container", Kind: "job",
			Workload: &controlv1.WorkloadSpec_Container{Container: &controlv1.ContainerSpec{Image: flavour, RestartPolicy: "no"}},
		})
		if err != nil {
			w.violate("simulator", id, "", "%v", err)
		}
		schedule, zone := "* * * * *", "UTC"
		if id == localCron {
			schedule, zone = "* 1-2 * * *", "Europe/Berlin"
		}
		p := &commandv1.WorkloadPut{
			Id: id, Spec: raw, Desired: "Running", MaxAttempts: 2, Content: fmt.Sprintf("c1:%016x%048x", w.users.version*0x10001, len(id)),
			Demand: &commandv1.Demand{
				Type: "container", CpuMillicores: 10, MemoryMib: 8, Job: &commandv1.Job{},
				Template: &commandv1.Template{Kind: fsm.TemplateCron, Cron: &commandv1.Cron{
					Schedule: schedule, TimeZone: zone, Concurrency: concurrencies[id], KeepSucceeded: 3, KeepFailed: 1,
				}},
			},
		}
		w.users.flavours[p.Content] = madeOf{flavour: flavour}
		w.ask("apply cron "+id, func(c *commandv1.Command) {
			c.Body = &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: []*commandv1.WorkloadPut{p}}}
		}, nil).must = true
	}
}

// jump sets the clock of a replica forward or back.
func (w *world) jump() {
	r := pick(&w.clock, w.replicas)
	if l := w.log.leader; l >= 0 && w.chance(700) {
		r = w.replicas[l]
	}
	r.skew = w.between(-jumpMost, jumpMost) * sec
	w.tracef("", "", "the clock of replica %d is set to %+ds", r.idx, r.skew/sec)
}

// runChanged checks the promises of crons after the record of a run was created or changed:
//
//   - Each time of a schedule has one run, and the runs are created in order. With the concurrency allow none is left
//     out; with the others a time may be skipped or missed.
//   - Without the concurrency allow, at most one run of a cron is active.
//   - Only runs that have ended are deleted.
func (w *world) runChanged(after fsm.State, c fsm.Command, old, x *fsm.Workload) {
	o := &w.oracle
	if old != nil {
		if old.Desired == fsm.DesiredRunning && x.Desired == fsm.DesiredDeleted && !old.Finished() {
			w.violate("cron", x.ID, "", "%s deletes a run that has not ended", fsm.ArmName(c))
		}
		return
	}
	w.report.Runs++
	last, at := o.fired[x.Owner], x.Run.ScheduledAt
	o.fired[x.Owner] = at
	allow := concurrencies[x.Owner] == fsm.ConcurrencyAllow
	switch {
	case at%minute != 0 || last != 0 && at <= last:
		w.violate("cron", x.ID, "", "%s creates a run for minute %d after the run for minute %d", fsm.ArmName(c), at/minute, last/minute)
	case allow && last != 0 && at != nextTime(x.Owner, last), x.Owner == localCron && at >= backToWinter && at < localAgain:
		w.violate("cron", x.ID, "", "%s creates a run for minute %d, but the run before it was for minute %d", fsm.ArmName(c), at/minute, last/minute)
	}
	after.Children(x.Owner, func(y *fsm.Workload) bool {
		if !allow && y.ID != x.ID && y.Active() {
			w.violate("cron", x.ID, "", "%s creates a run while run %s is active, and the concurrency is %s", fsm.ArmName(c), y.ID, concurrencies[x.Owner])
		}
		return true
	})
}

// suspendCrons waits, after the faults, until each start time that has passed has its run. Then
// users suspend the crons, so that the cluster can come to rest.
func (w *world) suspendCrons(bound int64) {
	for {
		until := w.now + sec
		for w.report.Violation == nil && w.next(until) {
		}
		id, why := w.overdue()
		switch {
		case w.report.Violation != nil:
			return
		case why != "" && w.now >= bound:
			w.violate("cron", id, "", "%s, %s after the last fault", why, w.cfg.Settle)
			return
		case why != "":
			continue
		}
		for _, id := range keys(concurrencies) {
			w.ask("suspend "+id, desire(id, "Stopped"), nil)
		}
		return
	}
}

// overdue returns a cron with a start time that has passed and that the leader has not handled yet,
// and the reason; "" if there is none.
func (w *world) overdue() (id, why string) {
	l := w.log.leader
	if l < 0 || w.replicas[l].leads == nil {
		return "", "no replica leads"
	}
	for _, id := range keys(concurrencies) {
		x, ok := w.truth.Workload(id)
		if !ok {
			return id, "the cron does not exist"
		}
		if x.Template.Next <= w.replicas[l].clockNow() {
			return id, fmt.Sprintf("the next time of the cron is minute %d, which has come", x.Template.Next/minute)
		}
		if last := w.oracle.fired[id]; concurrencies[id] == fsm.ConcurrencyAllow && last != 0 && x.Template.Next != nextTime(id, last) {
			w.violate("cron", id, "", "the next time is minute %d, but the newest run is for minute %d", x.Template.Next/minute, last/minute)
		}
	}
	return "", ""
}

// dropLateRuns removes from the planner's commands the runs whose time passed more than 3 s ago. So it imitates
// a planner that never creates a run if its start time passed while no leader was planning.
func dropLateRuns(now int64, cmds []fsm.Command) {
	for _, c := range cmds {
		for _, s := range c.GetCreateRuns().GetSteps() {
			if s.GetIfNext() < now-3*sec {
				s.Run = ""
			}
		}
	}
}
