package fsm

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/order"
)

// A template is a workload that is never placed itself. The state machine creates other workloads from it, its
// children. A child is an ordinary workload with an owner: it is placed, started, retried and stopped as any
// other. It gets the specification that the template has when the child is created. A delete of the template
// deletes its children.
//
// The children of a cron and of a parameterized job are runs: jobs that are created one after the other.

// Kinds of templates.
const (
	TemplateCron     = "cron"     // the planner creates a run at each time of the schedule
	TemplateDispatch = "dispatch" // users create the runs
)

// Template is the part of a demand that says when children are created. It never changes.
type Template struct {
	Kind string
	Cron *Cron // nil unless Kind is TemplateCron
}

// Cron is the schedule of a template. Only the planner reads Schedule and Zone.
type Cron struct {
	Schedule         string
	Zone             string // name of the time zone
	Concurrency      string
	StartingDeadline int64 // nanoseconds after its time within which a run may still start; 0 = no limit
	KeepSucceeded    uint32
	KeepFailed       uint32
}

// Keeps returns how many finished runs with this result are kept. A parameterized job keeps the
// highest number that a user can set for a cron.
func (t *Template) Keeps(succeeded bool) uint32 {
	switch {
	case t.Cron == nil:
		return bounds.MaxKeptRuns
	case succeeded:
		return t.Cron.KeepSucceeded
	}
	return t.Cron.KeepFailed
}

// MaxActiveRuns is the maximum number of runs of a cron or of a parameterized job that have not ended.
const MaxActiveRuns = 1000

// Values of Cron.Concurrency: what happens if a run has not ended at the next time of the schedule.
const (
	ConcurrencyAllow   = "allow"   // another run starts
	ConcurrencyForbid  = "forbid"  // the time gets no run
	ConcurrencyReplace = "replace" // the run that has not ended is stopped, and another one starts
)

// TemplateState records the runs that a template had so far. A value in the state is never modified. Times
// are Unix nanoseconds.
type TemplateState struct {
	Next        int64  // next time of a cron; 0 = none is known
	Last        int64  // time for which the newest run was started
	LastRun     string // id of the newest run
	LastSuccess int64  // newest successful end of a run; 0 = none
	LastFailure int64  // newest failed end of a run; 0 = none
}

// Run says why a run was created. It never changes.
type Run struct {
	ScheduledAt int64  // time of the schedule, Unix nanoseconds; 0 = a user started the run
	Key         string // key of the user's request
	Node        string // node of a member of a system workload; "" for a run
}

// IsTemplate reports whether w is a template.
func (w *Workload) IsTemplate() bool { return w.Demand.Template != nil }

// SpecID returns the id for which the secrets in w.Spec are sealed.
func (w *Workload) SpecID() string {
	if w.SealedFor != "" {
		return w.SealedFor
	}
	return w.ID
}

// IsCron reports whether w is a template with a schedule.
func (w *Workload) IsCron() bool { return w.IsTemplate() && w.Demand.Template.Cron != nil }

// Active reports whether w should run and is not a finished job.
func (w *Workload) Active() bool { return w.Desired == DesiredRunning && !w.Finished() }

type ownerView interface {
	namespaced
	Children(template string, fn func(*Workload) bool)
}

// ActiveRun returns a run of a template that has not ended; nil if there is none.
func ActiveRun(v ownerView, template string) (found *Workload) {
	v.Children(template, func(w *Workload) bool {
		if w.Active() {
			found = w
		}
		return found == nil
	})
	return found
}

// SurplusRun reports whether w is a finished run of a template that keeps only newer runs with the same result.
func SurplusRun(v ownerView, w *Workload) bool {
	if w.Owner == "" || !w.Finished() {
		return false
	}
	of, ok := v.Workload(w.Owner)
	if !ok || !of.IsTemplate() {
		return false
	}
	keep := of.Demand.Template.Keeps(w.Result.Succeeded)
	newer := uint32(0)
	v.Children(of.ID, func(o *Workload) bool {
		if o.Finished() && o.Result.Succeeded == w.Result.Succeeded && o.Desired != DesiredDeleted && NewestRunFirst(o, w) < 0 {
			newer++
		}
		return newer < keep
	})
	return newer >= keep
}

// NewestRunFirst compares finished runs: it is negative if a is newer than b.
func NewestRunFirst(a, b *Workload) int {
	return cmp.Or(cmp.Compare(b.Result.At, a.Result.At), strings.Compare(b.ID, a.ID))
}

// Children scans the workloads that were created from a template, by id.
func (s State) Children(template string, fn func(*Workload) bool) {
	s.scan(s.r.byOwner, template+"/", fn)
}

// childrenOf returns the children of a template as a list, because a tree must not change while it is scanned.
func (t *Tx) childrenOf(template string) (out []*Workload) {
	t.state().Children(template, func(w *Workload) bool { out = append(out, w); return true })
	return out
}

// templateFault returns why p may not be stored in place of record old, which may be nil: a child can only be
// changed through its template, and a workload cannot become a template, or a template of another kind.
func templateFault(p *commandv1.WorkloadPut, old *Workload, group string) string {
	if old == nil {
		return ""
	}
	was, now := "", p.GetDemand().GetTemplate().GetKind()
	if old.IsTemplate() {
		was = old.Demand.Template.Kind
	}
	switch {
	case old.IsMember() && old.Owner == group:
		return ""
	case old.Owner != "":
		return fmt.Sprintf("workload %q was created from %q: apply %q instead", old.ID, old.Owner, old.Owner)
	case was != now:
		return fmt.Sprintf("workload %q is %s and cannot become %s: delete it first, or take another id", old.ID, kindWord(was), kindWord(now))
	}
	return ""
}

func templatesFault(puts []*commandv1.WorkloadPut, olds []*Workload, group string) string {
	for i, p := range puts {
		if fault := templateFault(p, olds[i], group); fault != "" {
			return fault
		}
	}
	return ""
}

func kindWord(kind string) string {
	switch kind {
	case "":
		return "no template"
	case TemplateDispatch:
		return "a parameterized job"
	case TemplateSystem:
		return "a system workload"
	}
	return "a " + kind
}

// reschedule clears the next time of template w, the changed copy of old, if the schedule changed or if the
// template was stopped or started. The planner then stores the first start time of the schedule that is
// still to come.
func reschedule(old, w *Workload) {
	if !w.IsTemplate() || w.Template.Next == 0 {
		return
	}
	if old.Desired != w.Desired || !old.Demand.Template.sameTimes(w.Demand.Template) {
		s := *w.Template
		s.Next = 0
		w.Template = &s
	}
}

// sameTimes reports whether two templates have the same schedule.
func (m *Template) sameTimes(o *Template) bool {
	if m == nil || o == nil || m.Cron == nil || o.Cron == nil {
		return m.equal(o)
	}
	return m.Cron.Schedule == o.Cron.Schedule && m.Cron.Zone == o.Cron.Zone
}

// createRuns carries out what the planner decided about crons: it creates runs that are due, or
// records why none was created, and stores the next time.
func (t *Tx) createRuns(b *commandv1.CreateRuns) (res Result) {
	for _, e := range b.GetSteps() {
		old, why := t.planned(e.GetTemplate(), e.GetIfGeneration())
		switch {
		case why != "":
		case !old.IsCron():
			why = fmt.Sprintf("workload %q is not a cron", old.ID)
		case old.Desired != DesiredRunning:
			why = fmt.Sprintf("cron %q is suspended", old.ID)
		case old.Template.Next != e.GetIfNext():
			why = fmt.Sprintf("the next time of cron %q is %d, planned for %d", old.ID, old.Template.Next, e.GetIfNext())
		case e.GetNext() != 0 && e.GetNext() <= old.Template.Next:
			why = fmt.Sprintf("cron %q: the new next time %d is not after the present one, %d", old.ID, e.GetNext(), old.Template.Next)
		case e.GetRun() != "" && e.GetIfNext() == 0:
			why = fmt.Sprintf("cron %q has no next time yet, so run %q cannot be created", old.ID, clip(e.GetRun()))
		case e.GetRun() != "" && !runID(old.ID, e.GetRun()):
			why = fmt.Sprintf("run %q of %q must have an id that begins with %s-", clip(e.GetRun()), old.ID, old.ID)
		case e.GetRun() != "":
			why = t.concurs(old)
		}
		if why != "" {
			res.skip(why)
			continue
		}
		t.cronStep(old, e, &res)
	}
	return res
}

// cronStep carries out one step of a cron.
func (t *Tx) cronStep(old *Workload, e *commandv1.CronStep, res *Result) {
	last, lastRun := old.Template.Last, old.Template.LastRun
	missed := Event{Type: EventCronMissed, Workload: old.ID, Reason: strings.Clone(e.GetCode()), Message: clipTo(e.GetMessage(), maxJobMessage)}
	if e.GetCode() == CodeCronSkipped {
		missed.Type = EventCronSkipped
	}
	if e.GetRun() != "" {
		run := Run{ScheduledAt: e.GetIfNext()}
		child, refusal := t.createRun(old, e.GetRun(), run, runPut(old, e.GetRun()), old.ID, old.approval())
		if child != nil {
			last, lastRun = run.ScheduledAt, child.ID
			res.Items = append(res.Items, itemOf(child))
		}
		missed.Reason, missed.Message = CodeCronMissed, refusal.Reason
	}
	t.advanceTemplate(old.ID, e.GetNext(), last, lastRun)
	if e.GetRun() != "" && missed.Message == "" {
		t.event(Event{Type: EventCronFired, Workload: old.ID, Message: "run " + lastRun, Details: []Label{{"run", lastRun}}})
	} else if missed.Reason != "" {
		if n := e.GetTimes(); n > 1 {
			missed.Details = []Label{{"times", decimal(int(n))}}
		}
		t.event(missed)
	}
}

// advanceTemplate stores the next time and the newest run of a template. It keeps LastSuccess and LastFailure:
// if a run was replaced, the same command has already stored how that run ended.
func (t *Tx) advanceTemplate(id string, next, last int64, lastRun string) {
	if w, ok := t.r.workloads.Get(id); ok && w.IsTemplate() {
		state := *w.Template
		state.Next, state.Last, state.LastRun = next, last, lastRun
		t.putTemplate(id, &state)
	}
}

// putTemplate stores another state of a template.
func (t *Tx) putTemplate(id string, s *TemplateState) {
	old, ok := t.r.workloads.Get(id)
	if !ok || !old.IsTemplate() || *old.Template == *s {
		return
	}
	w := *old
	w.Template = s
	t.putWorkload(old, &w)
}

// concurs returns why no further run of a template may start now; "" if one may. A run may not
// start while another one is active, if the cron has the concurrency forbid.
func (t *Tx) concurs(of *Workload) string {
	if c := of.Demand.Template.Cron; c != nil && c.Concurrency == ConcurrencyForbid {
		if w := ActiveRun(t.state(), of.ID); w != nil {
			return fmt.Sprintf("run %q of cron %q has not ended, and its concurrency is forbid", w.ID, of.ID)
		}
	}
	return ""
}

// activeRuns returns how many runs of a template have not ended, for the limit MaxActiveRuns. It returns 0 for
// system workloads, which have one member per node, and for crons that replace runs.
func (t *Tx) activeRuns(of *Workload) (n int) {
	if c := of.Demand.Template.Cron; of.IsSystem() || c != nil && c.Concurrency == ConcurrencyReplace {
		return 0
	}
	t.state().Children(of.ID, func(w *Workload) bool {
		if w.Active() {
			n++
		}
		return true
	})
	return n
}

// createRun creates a run of a template (of), with the specification in put. The secrets in put are sealed for
// the workload sealedFor; under is the approval of put. If the template is a
// cron with concurrency "replace", createRun ends the active runs first. If no run can be created, it returns
// nil and a refusal.
func (t *Tx) createRun(of *Workload, id string, run Run, put *commandv1.WorkloadPut, sealedFor string, under approval) (*Workload, Result) {
	if old, ok := t.r.workloads.Get(id); ok {
		if old.Owner == of.ID && old.Run.Key == run.Key {
			return old, Result{}
		}
		return nil, refuse(Conflict, "the id %q is taken by another workload", id)
	}
	one := []*commandv1.WorkloadPut{put}
	if fault := t.putsFault(one, ""); fault != "" {
		return nil, refuse(Invalid, "%s", fault)
	}
	if n := t.activeRuns(of); n >= MaxActiveRuns {
		return nil, refuse(OverQuota, "%q has %d runs that have not ended, which is the limit: wait for them, or delete some: persysctl delete RUN", of.ID, n)
	}
	if shares := t.shares; run.Key == "" { // no user asks for this run
		t.shares = t.sharesOf(under)
		defer func() { t.shares = shares }()
	}
	var replaced []*Workload
	if c := of.Demand.Template.Cron; c != nil && c.Concurrency == ConcurrencyReplace {
		replaced = slices.DeleteFunc(t.childrenOf(of.ID), func(w *Workload) bool { return !w.Active() })
	}
	if res, ok := t.admits(&commandv1.PutWorkloads{Workloads: one}, []*Workload{nil}, replaced); !ok {
		return nil, res
	}
	if len(replaced) > 0 {
		// The new run gets the resources of the runs that it replaces, but their records stay. So check only
		// that the quota has room for one more workload and for the bytes of its specification.
		bare := &commandv1.WorkloadPut{Id: put.GetId(), Namespace: put.GetNamespace(), Desired: put.GetDesired(), Spec: put.GetSpec(), Demand: &commandv1.Demand{}}
		if err := fits(t.state(), []*commandv1.WorkloadPut{bare}, []*Workload{nil}, nil, nil, nil, t.shares); err != nil {
			return nil, refuse(OverQuota, "%s", err)
		}
	}
	for _, w := range replaced {
		t.endJob(w, &JobResult{Code: CodeReplaced, Message: "replaced by run " + id})
	}
	w := t.made(put, t.demanded(put, nil), under)
	w.Owner, w.Run = of.ID, &run
	if sealedFor != id {
		w.SealedFor = sealedFor
	}
	t.create(w)
	return w, Result{}
}

// runPut returns the WorkloadPut of a run, with the specification of its template.
func runPut(of *Workload, id string) *commandv1.WorkloadPut {
	p := workloadPB(of).GetPut()
	p.Id, p.Desired, p.Demand.Template = strings.Clone(id), string(DesiredRunning), nil
	return p
}

// runID reports whether a run of a template may have this id.
func runID(template, id string) bool {
	return bounds.ValidID(id) && strings.HasPrefix(id, template+"-") && len(id) > len(template)+1
}

// startRun creates one run of a cron or parameterized job at the request of a user. If the user
// repeats the request with the same key, no second run is created.
func (t *Tx) startRun(b *commandv1.StartRun) Result {
	of, res, ok := t.theirs(b.GetTemplate(), "")
	put := b.GetPut()
	switch {
	case !ok:
		return res
	case !of.IsTemplate() || of.IsSystem():
		return refuse(Invalid, "workload %q is neither a cron nor a parameterized job", of.ID)
	case b.GetKey() == "" || len(b.GetKey()) > bounds.MaxRunKey:
		return refuse(Invalid, "key: has %d bytes, must have 1 to %d", len(b.GetKey()), bounds.MaxRunKey)
	case !runID(of.ID, b.GetRun()):
		return refuse(Invalid, "run: %q must be an id that begins with %s-", clip(b.GetRun()), of.ID)
	case put != nil && (put.GetId() != b.GetRun() || put.GetDemand().GetTemplate() != nil || put.GetDemand().GetJob() == nil || put.GetIfRevision() != ""):
		return refuse(Invalid, "put: must be a job with the id %q and without a condition", clip(b.GetRun()))
	case put != nil && NamespaceOf(t.state(), put) != of.In():
		return refuse(Invalid, "put: is in namespace %q, the template in %q", clip(put.GetNamespace()), of.In())
	}
	if w, ok := t.r.workloads.Get(b.GetRun()); ok && w.Owner == of.ID && w.Run.Key == b.GetKey() {
		item := itemOf(w)
		item.Unchanged = true
		return Result{Kind: AlreadyDone, Items: []Item{item}}
	}
	if _, ok := t.r.tombstones.Get(b.GetRun()); ok {
		return Result{Kind: AlreadyDone, Reason: "the run with this key was deleted", Items: []Item{{ID: strings.Clone(b.GetRun()), Unchanged: true}}}
	}
	switch {
	case of.Desired == DesiredDeleted:
		return refuse(Conflict, "workload %q is being deleted", of.ID)
	case of.Desired != DesiredRunning && of.Demand.Template.Kind == TemplateDispatch:
		return refuse(Conflict, "parameterized job %q is stopped: persysctl start %s", of.ID, of.ID)
	case b.GetIfGeneration() != nil && order.GenerationOf(b.GetIfGeneration()) != of.Generation:
		return refuse(Conflict, "%q has changed to generation %s meanwhile", of.ID, of.Generation)
	}
	if why := t.concurs(of); why != "" {
		return refuse(Conflict, "%s", why)
	}
	sealedFor, under := of.ID, of.approval()
	if put == nil {
		put = runPut(of, b.GetRun())
		if res, ok := t.judgedAgain(of); !ok {
			return res
		}
	} else {
		one, none := []*commandv1.WorkloadPut{put}, []*Workload{nil}
		if res, ok := t.judged(one, none); !ok {
			return res
		}
		sealedFor, under = put.GetId(), t.approval(put, nil)
	}
	w, refusal := t.createRun(of, b.GetRun(), Run{Key: strings.Clone(b.GetKey())}, put, sealedFor, under)
	if refusal.Kind != OK {
		return refusal
	}
	t.advanceTemplate(of.ID, of.Template.Next, t.r.info.Clock, w.ID)
	t.event(Event{Type: EventRunStarted, Workload: of.ID, Message: "run " + w.ID, Details: []Label{{"run", w.ID}}})
	return Result{Items: []Item{itemOf(w)}}
}

// runEnded is called when w, a run, has ended. It records the time, and whether the run succeeded, in the record
// of the cron or parameterized job that created the run.
func (t *Tx) runEnded(w *Workload) {
	of, ok := t.r.workloads.Get(w.Owner)
	if !ok || !of.IsTemplate() {
		return
	}
	s := *of.Template
	if w.Result.Succeeded {
		s.LastSuccess = w.Result.At
	} else {
		s.LastFailure = w.Result.At
	}
	t.putTemplate(of.ID, &s)
}

// mendTemplates corrects the templates and children of a state that was imported or restored. It clears the
// next time of each cron, so that the cron starts no run for a past time: that run may have existed without
// being recorded here. A child whose template is missing becomes an ordinary workload.
func (t *Tx) mendTemplates() {
	for _, old := range t.r.workloads.Values() {
		w := *old
		if w.IsTemplate() {
			s := TemplateState{}
			if w.Template != nil {
				s = *w.Template
			}
			s.Next = 0
			w.Template = &s
		} else {
			w.Template = nil
		}
		of, ok := t.r.workloads.Get(w.Owner)
		if !ok || !of.IsTemplate() {
			w.Owner, w.Run = "", nil
		}
		if w.Owner != "" && w.Run == nil {
			w.Run = &Run{}
		}
		if w.Template != old.Template || w.Owner != old.Owner || w.Run != old.Run {
			t.r.workloads.Set(w.ID, &w)
		}
	}
}

func (m *Template) equal(o *Template) bool {
	if m == nil || o == nil {
		return m == o
	}
	return m.Kind == o.Kind && (m.Cron == o.Cron || m.Cron != nil && o.Cron != nil && *m.Cron == *o.Cron)
}

func templateOf(m *commandv1.Template) *Template {
	if m == nil {
		return nil
	}
	t := &Template{Kind: strings.Clone(m.GetKind())}
	if c := m.GetCron(); c != nil {
		t.Cron = &Cron{
			Schedule: strings.Clone(c.GetSchedule()), Zone: strings.Clone(c.GetTimeZone()), Concurrency: strings.Clone(c.GetConcurrency()),
			StartingDeadline: c.GetStartingDeadline(), KeepSucceeded: c.GetKeepSucceeded(), KeepFailed: c.GetKeepFailed(),
		}
	}
	return t
}

func templatePB(t *Template) *commandv1.Template {
	if t == nil {
		return nil
	}
	m := &commandv1.Template{Kind: t.Kind}
	if c := t.Cron; c != nil {
		m.Cron = &commandv1.Cron{
			Schedule: c.Schedule, TimeZone: c.Zone, Concurrency: c.Concurrency, StartingDeadline: c.StartingDeadline,
			KeepSucceeded: c.KeepSucceeded, KeepFailed: c.KeepFailed,
		}
	}
	return m
}

func templateStateOf(m *commandv1.TemplateState) *TemplateState {
	if m == nil {
		return nil
	}
	return &TemplateState{m.GetNext(), m.GetLast(), m.GetLastRun(), m.GetLastSuccess(), m.GetLastFailure()}
}

func templateStatePB(s *TemplateState) *commandv1.TemplateState {
	if s == nil {
		return nil
	}
	return &commandv1.TemplateState{Next: s.Next, Last: s.Last, LastRun: s.LastRun, LastSuccess: s.LastSuccess, LastFailure: s.LastFailure}
}

func runOf(m *commandv1.Run) *Run {
	if m == nil {
		return nil
	}
	return &Run{m.GetScheduledAt(), m.GetKey(), strings.Clone(m.GetNode())}
}

func runPB(r *Run) *commandv1.Run {
	if r == nil {
		return nil
	}
	return &commandv1.Run{ScheduledAt: r.ScheduledAt, Key: r.Key, Node: r.Node}
}

func (e *encoder) template(m *Template) {
	e.str("template")
	e.str(m.Kind)
	if c := m.Cron; c != nil {
		e.str("cron schedule")
		for _, s := range [...]string{c.Schedule, c.Zone, c.Concurrency} {
			e.str(s)
		}
		e.i64(c.StartingDeadline)
		e.u64(uint64(c.KeepSucceeded))
		e.u64(uint64(c.KeepFailed))
	}
}

// owned encodes the fields of templates and of their children.
func (e *encoder) owned(w *Workload) {
	if w.Owner != "" || w.SealedFor != "" {
		e.str("owner")
		e.str(w.Owner)
		e.str(w.SealedFor)
	}
	if r := w.Run; r != nil {
		e.str("run of a template")
		e.i64(r.ScheduledAt)
		e.str(r.Key)
		if r.Node != "" {
			e.str("member of node")
			e.str(r.Node)
		}
	}
	if s := w.Template; s != nil {
		e.str("template state")
		e.i64(s.Next)
		e.i64(s.Last)
		e.str(s.LastRun)
		e.i64(s.LastSuccess)
		e.i64(s.LastFailure)
	}
}

// template checks w if it is a template or the child of one.
func (c *checker) template(w *Workload) {
	c.must(w.IsTemplate() == (w.Template != nil), "workload %s is a template: %t, but has the state of one: %t", w.ID, w.IsTemplate(), w.Template != nil)
	c.must(!w.IsTemplate() || w.Node == "" && w.Owner == "" && w.Result == nil, "template %s has a node, an owner or a result", w.ID)
	c.must(!w.IsTemplate() || w.Desired == DesiredRunning || w.Template.Next == 0, "template %s is %s, but has a next time", w.ID, w.Desired)
	c.must((w.Owner == "") == (w.Run == nil), "workload %s has owner %q, but is a run: %t", w.ID, w.Owner, w.Run != nil)
	if w.Owner != "" && w.Desired != DesiredDeleted {
		of, ok := c.s.Workload(w.Owner)
		c.must(ok && of.IsTemplate(), "workload %s has the owner %q, which is no template", w.ID, clip(w.Owner))
	}
}
