package spec

import (
	"maps"
	"regexp"
	"strconv"
	"strings"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/schedule"
)

const (
	defaultKeepSucceeded = 3
	defaultKeepFailed    = 1
	maxParameters        = 64
)

// Environment variables of a run of a parameterized job.
const (
	// ParameterPrefix precedes the name of a parameter, in upper case.
	ParameterPrefix = "PERSYS_PARAM_"
	// InputVariable has the input of the run.
	InputVariable = "PERSYS_INPUT"
)

// MaxInput is the maximum size of the input of a run, in bytes.
const MaxInput = 16 << 10

var (
	concurrencies = []string{fsm.ConcurrencyAllow, fsm.ConcurrencyForbid, fsm.ConcurrencyReplace}
	inputs        = []string{"optional", "required", "forbidden"}
	parameterName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,63}$`)
)

// IsCron reports whether a specification has kind: cron.
func IsCron(s *controlv1.WorkloadSpec) bool {
	return isKind(s, KindCron)
}

// IsTemplate reports whether a specification is only a template, from which runs are created: a cron or a
// parameterized job.
func IsTemplate(s *controlv1.WorkloadSpec) bool {
	return IsCron(s) || IsJob(s) && s.GetJob().GetParameterized() != nil
}

// cron reads the schedule of a cron: `cron: {schedule: "30 2 * * *", time_zone: Europe/Berlin, concurrency: forbid,
// starting_deadline: 10m, keep_succeeded: 3, keep_failed: 1, suspend: false}`.
func (d *decoder) cron(n *node, here where) *controlv1.CronSpec {
	c := &controlv1.CronSpec{}
	w := here.wire
	d.object(n, here, []field{
		{"schedule", w + ".schedule", func(_ string, n *node, at where) { c.Schedule = d.str(n, at) }},
		{"time_zone timezone", w + ".time_zone", func(_ string, n *node, at where) { c.TimeZone = d.str(n, at) }},
		{"concurrency", w + ".concurrency", func(_ string, n *node, at where) { c.Concurrency = d.str(n, at) }},
		{"starting_deadline starting_deadline_seconds", w + ".starting_deadline_seconds", d.longSeconds(&c.StartingDeadlineSeconds)},
		{"keep_succeeded", w + ".keep_succeeded", func(_ string, n *node, at where) { c.KeepSucceeded = new(int32(d.integer(n, at, 32))) }},
		{"keep_failed", w + ".keep_failed", func(_ string, n *node, at where) { c.KeepFailed = new(int32(d.integer(n, at, 32))) }},
		{"suspend", w + ".suspend", func(_ string, n *node, at where) { c.Suspend = d.boolean(n, at) }},
	})
	return c
}

// parameterized reads the parameters and the input that the runs of a parameterized job take: `parameterized:
// {parameters: [{name: file, required: true, default: a}], input: optional}`.
func (d *decoder) parameterized(n *node, here where) *controlv1.ParameterizedSpec {
	p := &controlv1.ParameterizedSpec{}
	w := here.wire
	d.object(n, here, []field{
		{"parameters", w + ".parameters", func(_ string, n *node, at where) {
			d.list(n, at, func(n *node, at where) {
				one := &controlv1.ParameterSpec{}
				d.object(n, at, []field{
					{"name", at.wire + ".name", func(_ string, n *node, at where) { one.Name = d.str(n, at) }},
					{"required", at.wire + ".required", func(_ string, n *node, at where) { one.Required = d.boolean(n, at) }},
					{"default", at.wire + ".default", func(_ string, n *node, at where) { one.Default = d.str(n, at) }},
				})
				p.Parameters = append(p.Parameters, one)
			})
		}},
		{"input", w + ".input", func(_ string, n *node, at where) { p.Input = d.str(n, at) }},
	})
	return p
}

// template validates the settings of a cron and of a parameterized job.
func (e *Errors) template(id string, s *controlv1.WorkloadSpec) {
	c := s.GetCron()
	switch {
	case !IsCron(s) && c != nil:
		e.add("spec.cron", "is only for crons: set kind: cron as well", "")
	case IsCron(s) && c == nil:
		e.add("spec.kind", "a cron needs a schedule: set cron.schedule", KindCron)
	case IsCron(s):
		e.cron(c)
	}
	if p := s.GetJob().GetParameterized(); p != nil && IsCron(s) {
		e.add("spec.job.parameterized", "is only for kind: job: the runs of a cron have no parameters", "")
	} else if p != nil {
		e.parameterized(p)
	}
	if !IsTemplate(s) {
		return
	}
	if len(id) > bounds.MaxTemplateID {
		e.addf("workload_id", id, "may have at most %d characters, because the ids of its runs are longer", bounds.MaxTemplateID)
	}
	if s.GetJob().GetCompletions() != 0 || s.GetJob().GetParallelism() != 0 {
		e.add("spec.job", "completions and parallelism are for jobs that apply runs: each run of a cron or a parameterized job is one workload", "")
	}
}

func (e *Errors) cron(c *controlv1.CronSpec) {
	zone, err := schedule.Zone(strings.TrimSpace(c.GetTimeZone()))
	if err != nil {
		e.add("spec.cron.time_zone", err.Error(), c.GetTimeZone())
		zone = time.UTC
	}
	if len(c.GetSchedule()) > bounds.MaxSchedule {
		e.addf("spec.cron.schedule", c.GetSchedule(), "has %d bytes, at most %d", len(c.GetSchedule()), bounds.MaxSchedule)
	} else if _, err := schedule.Parse(c.GetSchedule(), zone); err != nil {
		e.add("spec.cron.schedule", err.Error(), c.GetSchedule())
	}
	e.word("spec.cron.concurrency", c.GetConcurrency(), concurrencies)
	e.between("spec.cron.starting_deadline_seconds", c.GetStartingDeadlineSeconds(), 0, bounds.MaxJobSeconds, " seconds")
	e.between("spec.cron.keep_succeeded", int64(c.GetKeepSucceeded()), 0, bounds.MaxKeptRuns, "")
	e.between("spec.cron.keep_failed", int64(c.GetKeepFailed()), 0, bounds.MaxKeptRuns, "")
}

func (e *Errors) parameterized(p *controlv1.ParameterizedSpec) {
	e.word("spec.job.parameterized.input", p.GetInput(), inputs)
	if n := len(p.GetParameters()); n > maxParameters {
		e.addf("spec.job.parameterized.parameters", "", "has %d entries, at most %d", n, maxParameters)
		return
	}
	seen := map[string]bool{}
	for i, one := range p.GetParameters() {
		at := "spec.job.parameterized.parameters[" + strconv.Itoa(i) + "]"
		switch name := strings.ToUpper(one.GetName()); {
		case !parameterName.MatchString(one.GetName()):
			e.add(at+".name", "must be 1 to 64 letters, digits and underscores, and not begin with a digit", one.GetName())
		case seen[name]:
			e.add(at+".name", "is used twice: upper and lower case give the same variable "+ParameterPrefix+name, one.GetName())
		default:
			seen[name] = true
		}
		if one.GetRequired() && one.GetDefault() != "" {
			e.add(at+".default", "is never used, because the parameter is required", one.GetDefault())
		}
		if !isText(one.GetDefault()) || len(one.GetDefault()) > MaxInput {
			e.addf(at+".default", "", "must be text without NUL of at most %d bytes", MaxInput)
		}
	}
}

// normaliseTemplate rewrites the settings of a cron or a parameterized job in one canonical form, with the
// defaults.
func normaliseTemplate(s *controlv1.WorkloadSpec) {
	if !IsCron(s) {
		s.Cron = nil
	} else {
		s.Kind = KindCron
		if s.Cron == nil {
			s.Cron = &controlv1.CronSpec{}
		}
		c := s.Cron
		c.Schedule, c.TimeZone = strings.Join(strings.Fields(c.Schedule), " "), orElse(strings.TrimSpace(c.TimeZone), "UTC")
		c.Concurrency = orElse(strings.ToLower(strings.TrimSpace(c.Concurrency)), fsm.ConcurrencyAllow)
		if c.KeepSucceeded == nil {
			c.KeepSucceeded = new(int32(defaultKeepSucceeded))
		}
		if c.KeepFailed == nil {
			c.KeepFailed = new(int32(defaultKeepFailed))
		}
	}
	if p := s.GetJob().GetParameterized(); p != nil {
		p.Input = orElse(strings.ToLower(strings.TrimSpace(p.Input)), inputs[0])
	}
}

// templateDemand returns what the planner and the state machine need to know about a template (a cron or a
// parameterized job, from which runs are made); nil if s is no template.
func templateDemand(s *controlv1.WorkloadSpec) *commandv1.Template {
	switch {
	case IsCron(s):
		c := s.GetCron()
		return &commandv1.Template{Kind: fsm.TemplateCron, Cron: &commandv1.Cron{
			Schedule: c.GetSchedule(), TimeZone: c.GetTimeZone(), Concurrency: c.GetConcurrency(),
			StartingDeadline: c.GetStartingDeadlineSeconds() * int64(time.Second),
			KeepSucceeded:    uint32(c.GetKeepSucceeded()), KeepFailed: uint32(c.GetKeepFailed()),
		}}
	case IsTemplate(s):
		return &commandv1.Template{Kind: fsm.TemplateDispatch}
	case OnEveryNode(s):
		return &commandv1.Template{Kind: fsm.TemplateSystem}
	}
	return nil
}

// Dispatched returns the specification for one run of the parameterized job s, with the parameters and the input as
// environment variables. It does not change s. The error lists the invalid parameters and an invalid input.
func Dispatched(s *controlv1.WorkloadSpec, parameters map[string]string, input string) (*controlv1.WorkloadSpec, error) {
	var e Errors
	p := s.GetJob().GetParameterized()
	env := map[string]string{}
	known := map[string]bool{}
	for _, one := range p.GetParameters() {
		known[one.GetName()] = true
		value, given := parameters[one.GetName()]
		if !given && one.GetRequired() {
			e.add("parameters."+one.GetName(), "is required", "")
			continue
		}
		if !given {
			value = one.GetDefault()
		}
		env[ParameterPrefix+strings.ToUpper(one.GetName())] = value
	}
	for _, name := range sortedKeys(parameters) {
		switch value := parameters[name]; {
		case !known[name]:
			e.addf("parameters."+name, "", "is not a parameter of this job, which has %s", names(p))
		case !isText(value) || len(value) > MaxInput:
			e.addf("parameters."+name, "", "must be text without NUL of at most %d bytes", MaxInput)
		}
	}
	switch {
	case input == "" && p.GetInput() == "required":
		e.add("input", "this job requires an input", "")
	case input != "" && p.GetInput() == "forbidden":
		e.add("input", "this job takes no input", "")
	case len(input) > MaxInput:
		e.addf("input", "", "has %d bytes, at most %d", len(input), MaxInput)
	case !isText(input):
		e.add("input", "must be UTF-8 text without NUL: encode other data, for example with base64", "")
	case input != "":
		env[InputVariable] = input
	}
	if err := e.asError(); err != nil {
		return nil, err
	}
	run := s.CloneVT()
	run.Job.Parameterized = nil
	switch {
	case run.GetContainer() != nil:
		run.GetContainer().Env = with(run.GetContainer().Env, env)
	case run.GetCompose() != nil:
		run.GetCompose().Env = with(run.GetCompose().Env, env)
	}
	return run, nil
}

// with returns the union of two sets of environment variables. If both have a variable, the value in more is used.
func with(have, more map[string]string) map[string]string {
	if have == nil {
		return more
	}
	maps.Copy(have, more)
	return have
}

func names(p *controlv1.ParameterizedSpec) string {
	var out []string
	for _, one := range p.GetParameters() {
		out = append(out, one.GetName())
	}
	return orElse(strings.Join(out, ", "), "none")
}

// templateView returns the state of a template (a cron or a parameterized job, from which runs are created) for
// answers to users; nil if w is no template.
func templateView(w *fsm.Workload) *controlv1.TemplateView {
	if !w.IsTemplate() || w.IsSystem() {
		return nil
	}
	t := w.Template
	v := &controlv1.TemplateView{
		NextRun: stamp(t.Next), LastRun: stamp(t.Last), LastRunId: t.LastRun, LastSuccess: stamp(t.LastSuccess), LastFailure: stamp(t.LastFailure),
	}
	if c := w.Demand.Template.Cron; c != nil {
		v.Cron = &controlv1.CronSpec{
			Schedule: c.Schedule, TimeZone: c.Zone, Concurrency: c.Concurrency, StartingDeadlineSeconds: c.StartingDeadline / int64(time.Second),
			KeepSucceeded: new(int32(c.KeepSucceeded)), KeepFailed: new(int32(c.KeepFailed)), Suspend: w.Desired == fsm.DesiredStopped,
		}
	}
	return v
}
