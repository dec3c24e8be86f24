package sched

import (
	"fmt"
	"slices"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/schedule"
)

// maxCatchUp is the maximum number of past start times for which a cron with concurrency "allow"
// creates runs at once.
const maxCatchUp = 60

// runTime is the form of the time in the id of a run, in UTC.
const runTime = "20060102-1504"

// CronOf returns the cron whose runs have ids like id, such as backup for backup-20261127-0230; "" if no cron's runs
// do.
func CronOf(id string) string {
	at := len(id) - len(runTime)
	if at < 2 || id[at-1] != '-' {
		return ""
	}
	if _, err := time.Parse(runTime, id[at:]); err != nil {
		return ""
	}
	return id[:at-1]
}

// advanceCrons chooses the next times of crons, creates the runs whose time has come, and deletes the finished
// runs that a cron or a parameterized job does not keep. It evaluates the templates that changed, whose time has
// come, or one of whose runs changed.
func (p *planner) advanceCrons() {
	var prune []string
	for _, id := range p.c.workloads.sorted() {
		w, ok := p.State.Workload(id)
		switch {
		case !ok:
		case w.IsTemplate():
			if w.IsCron() && w.Desired == fsm.DesiredRunning {
				p.advanceCron(w)
			}
			prune = append(prune, id)
		case w.Owner != "" && w.Finished():
			prune = append(prune, w.Owner)
		}
	}
	slices.Sort(prune)
	for _, id := range slices.Compact(prune) {
		if of, ok := p.State.Workload(id); ok && of.IsTemplate() {
			p.prune(of)
		}
	}
}

// advanceCron proposes the steps of one cron:
//
//   - A cron without a next time gets the first time after now.
//   - A start time that passed longer ago than the starting deadline is recorded as missed.
//   - If several times have come, only the latest gets a run with the concurrency forbid or replace, and only
//     the newest maxCatchUp times with allow. The others are missed.
//   - With forbid, times that came while a run is active are skipped.
//
// A start time that has come is handled at the next step of a leader in mode normal, however late that
// is. So no run is lost by a change of the leader, a frozen mode or a pause of the process.
func (p *planner) advanceCron(w *fsm.Workload) {
	c, first := w.Demand.Template.Cron, w.Template.Next
	if first > p.Now {
		return
	}
	s := p.c.schedule(c)
	if s == nil {
		return // another replica accepted this schedule; this one does not know the expression or the time zone
	}
	next := s.Next(p.Now)
	step := func(from, to int64) *commandv1.CronStep {
		return &commandv1.CronStep{Template: w.ID, IfGeneration: fsm.GenerationPB(w.Generation), IfNext: from, Next: to}
	}
	if first == 0 {
		if next != 0 {
			p.cronStep(step(0, next), "first time "+clock(next))
		}
		return
	}
	missed := func(to int64, why string) bool {
		e := step(first, to)
		e.Code, e.Message = fsm.CodeCronMissed, fmt.Sprintf("no run for the times from %s: %s", clock(first), why)
		first = to
		return p.cronStep(e, e.Message)
	}
	if oldest := p.Now - c.StartingDeadline; c.StartingDeadline > 0 && first < oldest {
		cut := s.Next(oldest - 1)
		if cut == 0 || cut > p.Now {
			cut = next
		}
		if !missed(cut, fmt.Sprintf("later than the starting deadline of %d s", c.StartingDeadline/second)) || first == next {
			return
		}
	}
	most, why := 1, "with the concurrency "+c.Concurrency+" only the latest missed time gets a run"
	if c.Concurrency == fsm.ConcurrencyAllow {
		most, why = maxCatchUp, fmt.Sprintf("only the newest %d missed times get a run", maxCatchUp)
	}
	due := newest(s, first, p.Now, most)
	if due[0] != first && !missed(due[0], why) {
		return
	}
	if c.Concurrency == fsm.ConcurrencyForbid {
		if a := fsm.ActiveRun(p.State, w.ID); a != nil {
			e := step(first, next)
			e.Code, e.Times = fsm.CodeCronSkipped, 1
			e.Message = fmt.Sprintf("no run for %s: run %s has not ended", clock(first), a.ID)
			p.cronStep(e, e.Message)
			return
		}
	}
	if c.Concurrency == fsm.ConcurrencyReplace { // the command ends these runs: no other command of this step may change them
		p.State.Children(w.ID, func(run *fsm.Workload) bool {
			if run.Active() {
				p.mark(run.ID)
			}
			return true
		})
	}
	for i, at := range due {
		to := next
		if i+1 < len(due) {
			to = due[i+1]
		}
		e := step(at, to)
		e.Run = w.ID + "-" + time.Unix(0, at).UTC().Format(runTime)
		if !p.cronStep(e, "run "+e.Run) {
			return
		}
	}
}

// newest returns the newest times of a schedule from first to now, oldest first. most is the largest number of
// times to return. first is a time of the schedule that is not after now.
func newest(s *schedule.Schedule, first, now int64, most int) []int64 {
	for back := 60 * second; ; back *= 2 {
		at := first
		if now-back > first {
			at = s.Next(now - back - 1)
		}
		var due []int64
		for ; at != 0 && at <= now; at = s.Next(at) {
			due = append(due, at)
		}
		if len(due) >= most || now-back <= first {
			return due[max(0, len(due)-most):]
		}
	}
}

// cronStep proposes one step of a cron: its next time, and the run to create. It returns false if the limit of
// the planning step is reached.
func (p *planner) cronStep(e *commandv1.CronStep, detail string) bool {
	p.mark(e.Template)
	if !p.spend() {
		return false
	}
	p.crons = append(p.crons, e)
	p.note("AdvanceCron", e.Template, "", detail)
	return true
}

// prune deletes the finished runs of a template beyond those that it keeps.
func (p *planner) prune(of *fsm.Workload) {
	var done [2][]*fsm.Workload
	p.State.Children(of.ID, func(w *fsm.Workload) bool {
		if w.Finished() && w.Desired != fsm.DesiredDeleted {
			i := 0
			if w.Result.Succeeded {
				i = 1
			}
			done[i] = append(done[i], w)
		}
		return true
	})
	for i, list := range done {
		keep := int(of.Demand.Template.Keeps(i == 1))
		if len(list) <= keep {
			continue
		}
		slices.SortFunc(list, fsm.NewestRunFirst)
		for _, w := range list[keep:] {
			if p.over[w.ID] { // its time to live has passed
				continue
			}
			p.mark(of.ID)
			if !p.spend() {
				return
			}
			p.expired = append(p.expired, &commandv1.JobExpiry{Workload: w.ID, IfGeneration: fsm.GenerationPB(w.Generation)})
			p.note("ExpireJob", w.ID, "", of.ID+" keeps newer runs")
		}
	}
}

// dueOfTemplate returns when a template must be evaluated again; 0 = after a change.
func (p *planner) dueOfTemplate(w *fsm.Workload) int64 {
	if w.Desired != fsm.DesiredRunning || p.done[w.ID] {
		return 0
	}
	if c := w.Demand.Template.Cron; c != nil && p.c.schedule(c) == nil {
		return 0 // this replica cannot parse the schedule, e.g. because it lacks the time zone; another leader may
	}
	return w.Template.Next
}

// schedule returns the parsed schedule of a cron; nil if it cannot be parsed.
func (c *Cache) schedule(of *fsm.Cron) *schedule.Schedule {
	key := of.Schedule + "\n" + of.Zone
	s, ok := c.schedules[key]
	if ok {
		return s
	}
	zone, ok := c.zones[of.Zone]
	if !ok {
		zone, _ = schedule.Zone(of.Zone) // nil if the zone is not known
		if c.zones == nil {
			c.zones = map[string]*time.Location{}
		}
		c.zones[of.Zone] = zone
	}
	if zone != nil {
		s, _ = schedule.Parse(of.Schedule, zone) // nil if it is not valid
	}
	if c.schedules == nil || len(c.schedules) >= maxSchedules {
		c.schedules = map[string]*schedule.Schedule{}
	}
	c.schedules[key] = s
	return s
}

// maxSchedules is the maximum number of parsed schedules in the cache. When it is exceeded, the
// cache drops all of them.
const maxSchedules = 100_000

func clock(at int64) string { return time.Unix(0, at).UTC().Format("2006-01-02 15:04 UTC") }
