package spec

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/stack/service"
)

// Kinds of workloads (the field kind). In a normalised specification of a service, the field is empty.
const (
	KindService = "service"
	KindJob     = "job"
	KindCron    = "cron"
	KindSystem  = "system"
)

var kinds = []string{KindService, KindJob, KindCron, KindSystem}

// Kinds returns the kinds of workloads.
func Kinds() []string { return slices.Clone(kinds) }

// KindOf returns the kind of a workload.
func KindOf(w *fsm.Workload) string {
	switch {
	case w.IsTemplate() && w.Demand.Template.Cron != nil:
		return KindCron
	case w.Demand.Job != nil:
		return KindJob
	case w.IsSystem() || w.IsMember():
		return KindSystem
	}
	return KindService
}

const (
	defaultRetries = 3
	maxRetries     = 100
	maxExitCode    = 255
)

// IsJob reports whether a specification describes a job, or a cron, whose runs are jobs.
func IsJob(s *controlv1.WorkloadSpec) bool { return isKind(s, KindJob) || IsCron(s) }

func isKind(s *controlv1.WorkloadSpec, kind string) bool {
	return strings.EqualFold(strings.TrimSpace(s.GetKind()), kind)
}

// job reads the settings of a job: `job: {completions: 5, parallelism: 2, retries: 3, deadline: 10m,
// success_codes: [0, 3], ttl_after_finished: 1h}`.
func (d *decoder) job(n *node, here where) *controlv1.JobSpec {
	j := &controlv1.JobSpec{}
	w := here.wire
	d.object(n, here, []field{
		{"completions", w + ".completions", func(_ string, n *node, at where) { j.Completions = new(int32(d.integer(n, at, 32))) }},
		{"parallelism", w + ".parallelism", func(_ string, n *node, at where) { j.Parallelism = int32(d.integer(n, at, 32)) }},
		{"retries", w + ".retries", func(_ string, n *node, at where) { j.Retries = new(int32(d.integer(n, at, 32))) }},
		{"deadline deadline_seconds", w + ".deadline_seconds", d.longSeconds(&j.DeadlineSeconds)},
		{"every_node", w + ".every_node", func(_ string, n *node, at where) { j.EveryNode = d.boolean(n, at) }},
		{"success_codes", w + ".success_codes", func(_ string, n *node, at where) {
			d.list(n, at, func(n *node, at where) { j.SuccessCodes = append(j.SuccessCodes, int32(d.integer(n, at, 32))) })
		}},
		{"parameterized", w + ".parameterized", func(_ string, n *node, at where) { j.Parameterized = d.parameterized(n, at) }},
		{"ttl_after_finished ttl_after_finished_seconds", w + ".ttl_after_finished_seconds", d.longSeconds(&j.TtlAfterFinishedSeconds)},
	})
	return j
}

// longSeconds reads a duration of whole seconds, at most a year.
func (d *decoder) longSeconds(into *int64) func(string, *node, where) {
	return func(name string, n *node, at where) {
		if strings.HasSuffix(name, "_seconds") {
			*into = d.integer(n, at, 64)
			return
		}
		v, err := time.ParseDuration(strings.TrimSpace(d.str(n, at)))
		if n.probe == nil && (err != nil || v%time.Second != 0 || v < 0 || v > bounds.MaxJobSeconds*time.Second) {
			d.fail(n, at, "must be whole seconds such as 90s, 10m or 24h", n.text)
			return
		}
		*into = int64(v / time.Second)
	}
}

// job validates the kind and the settings of a job.
func (e *Errors) job(id string, s *controlv1.WorkloadSpec) {
	e.word("spec.kind", s.GetKind(), kinds)
	e.template(id, s)
	j := s.GetJob()
	e.system(id, s)
	if !IsJob(s) {
		if j != nil {
			e.add("spec.job", "is only for jobs: set kind: job as well", "")
		}
		return
	}
	switch {
	case s.GetType() == TypeVM:
		e.addf("spec.kind", s.GetKind(), "%s is for containers and Compose stacks: a virtual machine does not end with an exit code", strings.ToLower(strings.TrimSpace(s.GetKind())))
	case s.Count != nil && IsCron(s):
		e.add("spec.count", "is for services: a cron starts one run at each time", strconv.Itoa(int(s.GetCount())))
	case s.Count != nil:
		e.add("spec.count", "is for services: set job.completions for a job", strconv.Itoa(int(s.GetCount())))
	case s.GetUpdate() != nil:
		e.add("spec.update", "is for services: a job is not updated while it runs", "")
	case s.GetHealthCheck() != nil:
		e.add("spec.health_check", "is for services: a job is judged by its exit code", "")
	}
	if data := localData(s); len(data) > 0 {
		e.addf("spec.kind", KindJob, "cannot have data that only its node keeps (%s), because a job leaves its node when it ends: use a volume that other nodes reach too", data[0].GetName())
	}
	p := strings.ToLower(strings.TrimSpace(s.GetContainer().GetRestartPolicy()))
	if rule := service.InJob(p); rule != "" {
		e.add("spec.container.restart_policy", rule, p)
	}
	if j == nil {
		return
	}
	completions := int64(1)
	if j.Completions != nil {
		completions = int64(j.GetCompletions())
		e.between("spec.job.completions", completions, 1, MaxCount, "")
		e.members("completions", id, s, int(completions))
	}
	e.between("spec.job.parallelism", int64(j.GetParallelism()), 0, MaxCount, "")
	// The specification of a single member of a job has the parallelism of the whole job but no completions. So do not
	// compare the two for a member, which has a group and no completions of its own.
	// A job with every_node has as many members as nodes match, which is not known here.
	if p := int64(j.GetParallelism()); p > completions && completions > 0 && (j.Completions != nil || s.Group == "") && !j.GetEveryNode() {
		e.addf("spec.job.parallelism", strconv.FormatInt(p, 10), "must be at most completions, %d", completions)
	}
	e.between("spec.job.retries", int64(j.GetRetries()), 0, maxRetries, "")
	e.between("spec.job.deadline_seconds", j.GetDeadlineSeconds(), 0, bounds.MaxJobSeconds, " seconds")
	e.between("spec.job.ttl_after_finished_seconds", j.GetTtlAfterFinishedSeconds(), 0, bounds.MaxJobSeconds, " seconds")
	if s.GetType() == TypeCompose && len(j.GetSuccessCodes()) > 0 {
		e.add("spec.job.success_codes", "is for containers: a stack has succeeded when all of its services ended with exit code 0", "")
	}
	if n := len(j.GetSuccessCodes()); n > bounds.MaxSuccessCodes {
		e.addf("spec.job.success_codes", "", "has %d entries, at most %d", n, bounds.MaxSuccessCodes)
		return
	}
	for i, c := range j.GetSuccessCodes() {
		e.between(fmt.Sprintf("spec.job.success_codes[%d]", i), int64(c), 0, maxExitCode, "")
	}
}

// members checks the ids of all members that a specification with a count, or with the completions of a job, would
// get: id with a number appended.
func (e *Errors) members(field, id string, s *controlv1.WorkloadSpec, n int) {
	if n < 0 || n > MaxCount || !bounds.ValidID(id) {
		return
	}
	if last := memberID(id, max(0, n-1)); !bounds.ValidID(last) {
		e.add("workload_id", "is too long to make the ids <id>-<n> from it, which may have 128 characters", last)
	}
	if s.Group != "" && s.Group != id {
		e.addf("spec.group", s.Group, "must be empty or %q: the members that %s makes form the group of that name", id, field)
	}
}

// normaliseJob rewrites the kind and the settings of a job in one canonical form.
func normaliseJob(s *controlv1.WorkloadSpec) {
	normaliseTemplate(s)
	if !IsJob(s) {
		if s.Job = nil; isKind(s, KindSystem) {
			s.Kind = KindSystem
		} else {
			s.Kind = ""
		}
		return
	}
	if !IsCron(s) {
		s.Kind = KindJob
	}
	if s.Job == nil {
		s.Job = &controlv1.JobSpec{}
	}
	slices.Sort(s.Job.SuccessCodes)
	s.Job.SuccessCodes = slices.Compact(s.Job.SuccessCodes)
	if c := s.GetContainer(); c != nil {
		c.RestartPolicy = "no"
	}
}

// FirstID returns the id of the first or only workload that a specification with the given id creates.
func FirstID(id string, s *controlv1.WorkloadSpec) string {
	if _, group := membersOf(s); group {
		return memberID(id, 0)
	}
	return id
}

// membersOf returns how many workloads with ids <id>-<n> a specification creates: by the count or the
// autoscaler of a service, or by the completions of a job. ok is false if it creates a single workload.
func membersOf(s *controlv1.WorkloadSpec) (n int, ok bool) {
	if IsJob(s) {
		return int(s.GetJob().GetCompletions()), s.GetJob() != nil && s.Job.Completions != nil
	}
	if s.GetAutoscale() != nil && s.Count == nil {
		return int(s.GetAutoscale().GetMin()), true
	}
	return int(s.GetCount()), s != nil && s.Count != nil
}

// jobDemand returns the settings of a job that the planner needs; nil for a service.
func jobDemand(s *controlv1.WorkloadSpec) *commandv1.Job {
	if !IsJob(s) {
		return nil
	}
	j := s.GetJob()
	return &commandv1.Job{
		Parallelism: uint32(j.GetParallelism()), Deadline: j.GetDeadlineSeconds() * int64(time.Second),
		SuccessCodes: j.GetSuccessCodes(), Ttl: j.GetTtlAfterFinishedSeconds() * int64(time.Second),
	}
}

// maxAttempts returns how often a job runs at most; 0 for a service, whose attempts the state machine limits.
func maxAttempts(s *controlv1.WorkloadSpec) int32 {
	if !IsJob(s) {
		return 0
	}
	if s.GetJob() == nil || s.Job.Retries == nil {
		return defaultRetries + 1
	}
	return s.GetJob().GetRetries() + 1
}
