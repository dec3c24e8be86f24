package spec

import (
	"strings"
	"testing"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
)

// TestJobsInFiles: the command for a file with kind: job must contain what the planner reads about the job, the number
// of attempts, and the members.
func TestJobsInFiles(t *testing.T) {
	text := "id: pack\nkind: job\njob: {completions: 3, parallelism: 2, retries: 1, deadline: 10m, success_codes: [3, 0, 3], ttl_after_finished: 1h}\ncontainer: {image: a}\n"
	p, err := Prepare(parseOne(t, text), nil)
	if err != nil {
		t.Fatal(err)
	}
	put := p.Command.GetPutWorkloads()
	if len(put.GetWorkloads()) != 3 || put.GetGroupOf() != "pack" || put.GetWorkloads()[2].GetId() != "pack-2" {
		t.Fatalf("the command is %v, want three members", put)
	}
	w := put.GetWorkloads()[0]
	want := `parallelism:2 deadline:600000000000 success_codes:0 success_codes:3 ttl:3600000000000`
	if got := strings.Join(strings.Fields(w.GetDemand().GetJob().String()), " "); got != want || w.GetMaxAttempts() != 2 {
		t.Errorf("the demand of the job is %s with at most %d attempts, want %s with 2", got, w.GetMaxAttempts(), want)
	}
	stored := &controlv1.WorkloadSpec{}
	if err := stored.UnmarshalVT(w.GetSpec()); err != nil {
		t.Fatal(err)
	}
	order := ToAgent(&fsm.Workload{ID: "pack-0", Demand: &fsm.Demand{}, Actual: &fsm.Observation{}}, stored)
	if got := order.GetSpec().GetContainer().GetRestartPolicy().GetPolicy(); got != "no" || !order.GetSpec().GetJob() {
		t.Errorf("the agent gets restart policy %q and the job flag %t, want \"no\" and true", got, order.GetSpec().GetJob())
	}
}

// TestOrdersOfJobsNameTheirRun: an order for a job says since which generation orders ask for the same run. An order for a
// service does not, because the agent must start a service again.
func TestOrdersOfJobsNameTheirRun(t *testing.T) {
	since := fsm.Generation{Incarnation: 1, Sequence: 5}
	for kind, want := range map[string]uint64{"job": 5, "service": 0} {
		w := &fsm.Workload{ID: "pack", SameSince: since, Demand: &fsm.Demand{}, Actual: &fsm.Observation{}}
		got := ToAgent(w, &controlv1.WorkloadSpec{Type: TypeContainer, Kind: kind})
		if n := got.GetSameSince().GetSequence(); n != want {
			t.Errorf("the order for a %s has the sequence %d in same_since, want %d", kind, n, want)
		}
		w.SameSince = fsm.Generation{}
		if got = ToAgent(w, &controlv1.WorkloadSpec{Type: TypeContainer, Kind: kind}); got.SameSince != nil {
			t.Errorf("the order for a new run of a %s has same_since %v, want none", kind, got.SameSince)
		}
	}
}

// TestContentOfJobs: a job and a service with the same container must have different content hashes, because the agent
// makes different containers of them. Other settings of the job must not change the hash.
func TestContentOfJobs(t *testing.T) {
	content := func(text string) string {
		p, err := Prepare(parseOne(t, "id: pack\ncontainer: {image: a, restart: 'no'}\n"+text), nil)
		if err != nil {
			t.Fatal(err)
		}
		return p.Content
	}
	service, job, other := content(""), content("kind: job\n"), content("kind: job\njob: {retries: 9, deadline: 1m}\n")
	if service != content("kind: service\n") {
		t.Error("the explicit default kind: service must not change the content hash, but does")
	}
	if service == job {
		t.Error("a service and a job with the same container must have different content hashes, but have the same")
	}
	if job != other {
		t.Error("the settings of a job must not change its content hash, but do")
	}
}

// TestJobFaults: a job with an invalid setting is refused, and the error names the line.
func TestJobFaults(t *testing.T) {
	const job = "id: pack\nkind: job\n"
	for _, c := range []struct{ text, want string }{
		{"id: pack\nkind: batch\ncontainer: {image: a}\n", "t.yaml:2:7: kind: must be one of service, job, cron, system"},
		{"id: pack\njob: {retries: 1}\ncontainer: {image: a}\n", "t.yaml:2:7: job: is only for jobs"},
		{job + "job: {completions: 2, parallelism: 3}\ncontainer: {image: a}\n", "job.parallelism: must be at most completions, 2"},
		{job + "job: {completions: 0}\ncontainer: {image: a}\n", "job.completions"},
		{job + "job: {retries: -1}\ncontainer: {image: a}\n", "job.retries"},
		{job + "job: {deadline: soon}\ncontainer: {image: a}\n", "job.deadline: must be whole seconds"},
		{job + "job: {success_codes: [256]}\ncontainer: {image: a}\n", "job.success_codes[0]"},
		{job + "count: 2\ncontainer: {image: a}\n", "t.yaml:3:8: count: is for services: set job.completions"},
		{job + "update: {max_parallel: 1}\ncontainer: {image: a}\n", "update: is for services"},
		{job + "health_check: {tcp: true, port: 80}\ncontainer: {image: a}\n", "health_check: is for services"},
		{job + "container: {image: a, restart: always}\n", "restart: must be no or absent in a job"},
		{job + "vm: {image: /a.qcow2, disks: [{size: 1Gi}]}\n", "job is for containers and Compose stacks"},
	} {
		if _, err := Parse("t.yaml", []byte(c.text), Options{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Parse returned %v, want an error that contains %q, for the file\n%s", err, c.want, c.text)
		}
	}
}

// TestCronsInFiles: the command for a cron must contain the schedule from the file, and a suspended cron must be
// stored as stopped.
func TestCronsInFiles(t *testing.T) {
	text := "id: nightly\nkind: cron\ncron: {schedule: '30  2 * * *', time_zone: Europe/Berlin, concurrency: Forbid, starting_deadline: 10m, suspend: true}\njob: {retries: 1}\ncontainer: {image: a}\n"
	p, err := Prepare(parseOne(t, text), nil)
	if err != nil {
		t.Fatal(err)
	}
	w := p.Command.GetPutWorkloads().GetWorkloads()[0]
	want := `kind:"cron" cron:{schedule:"30 2 * * *" time_zone:"Europe/Berlin" concurrency:"forbid" starting_deadline:600000000000 keep_succeeded:3 keep_failed:1}`
	if got := strings.Join(strings.Fields(w.GetDemand().GetTemplate().String()), " "); got != want {
		t.Errorf("the command stores the cron's template as %s, want %s", got, want)
	}
	if w.GetDesired() != "Stopped" || w.GetDemand().GetJob() == nil || w.GetMaxAttempts() != 2 {
		t.Errorf("the suspended cron is stored as %v, want a workload with desired state Stopped", w)
	}
}

// TestTemplateFaults: a cron or parameterized job with an invalid setting is refused, and the error names the
// line.
func TestTemplateFaults(t *testing.T) {
	const cron, job, image = "id: nightly\nkind: cron\n", "id: pack\nkind: job\n", "container: {image: a}\n"
	for _, c := range []struct{ text, want string }{
		{cron + image, "t.yaml:2:7: kind: a cron needs a schedule"},
		{cron + "cron: {schedule: 0 0 30 2 *}\n" + image, "t.yaml:3:18: cron.schedule: never fires"},
		{cron + "cron: {schedule: often}\n" + image, "t.yaml:3:18: cron.schedule: must have five fields"},
		{cron + "cron: {schedule: '@daily', time_zone: Mars/Base}\n" + image, "t.yaml:3:39: cron.time_zone: is no time zone"},
		{cron + "cron: {schedule: '@daily', starting_deadline: -5s}\n" + image, "cron.starting_deadline: must be whole seconds"},
		{cron + "cron: {schedule: '@daily', keep_failed: -1}\n" + image, "cron.keep_failed"},
		{cron + "cron: {schedule: '@daily', concurrency: queue}\n" + image, "cron.concurrency: must be one of allow, forbid, replace"},
		{cron + "cron: {schedule: '@daily'}\ncount: 2\n" + image, "t.yaml:4:8: count: is for services"},
		{cron + "cron: {schedule: '@daily'}\njob: {completions: 2}\n" + image, "job: completions and parallelism"},
		{cron + "cron: {schedule: '@daily'}\nvm: {image: /a.qcow2, disks: [{size: 1Gi}]}\n", "cron is for containers and Compose stacks"},
		{cron + "cron: {schedule: '@daily'}\njob: {parameterized: {}}\n" + image, "job.parameterized: is only for kind: job"},
		{"id: web\ncron: {schedule: '@daily'}\n" + image, "t.yaml:2:8: cron: is only for crons"},
		{job + "job: {parameterized: {parameters: [{name: a-b}]}}\n" + image, "parameters[0].name: must be 1 to 64 letters"},
		{job + "job: {parameterized: {parameters: [{name: a}, {name: A}]}}\n" + image, "parameters[1].name: is used twice"},
		{job + "job: {parameterized: {parameters: [{name: a, required: true, default: x}]}}\n" + image, "parameters[0].default: is never used"},
		{job + "job: {parameterized: {input: sometimes}}\n" + image, "parameterized.input: must be one of optional, required, forbidden"},
	} {
		if _, err := Parse("t.yaml", []byte(c.text), Options{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Parse returned %v, want an error that contains %q, for the file\n%s", err, c.want, c.text)
		}
	}
}

// TestDispatched: the parameters and the input of a run become environment variables; invalid ones are refused.
func TestDispatched(t *testing.T) {
	req := parseOne(t, "id: pack\nkind: job\njob: {parameterized: {parameters: [{name: file, required: true}, {name: level, default: low}]}}\ncontainer: {image: a, env: {A: b}}\n")
	s := req.GetSpec()
	Normalise(s)
	run, err := Dispatched(s, map[string]string{"file": "x.wav"}, "text")
	if err != nil {
		t.Fatal(err)
	}
	env := run.GetContainer().GetEnv()
	if env["PERSYS_PARAM_FILE"] != "x.wav" || env["PERSYS_PARAM_LEVEL"] != "low" || env["PERSYS_INPUT"] != "text" || env["A"] != "b" || IsTemplate(run) || !IsTemplate(s) {
		t.Errorf("the specification of the run is %v, want the parameters and the input as variables", run)
	}
	if len(s.GetContainer().GetEnv()) != 1 {
		t.Errorf("Dispatched must not change the specification of the parameterized job, but changed it to %v", s)
	}
	for _, c := range []struct {
		parameters  map[string]string
		input, want string
	}{
		{nil, "", "parameters.file: is required"},
		{map[string]string{"file": "a", "speed": "b"}, "", "parameters.speed: is not a parameter of this job, which has file, level"},
		{map[string]string{"file": "a"}, strings.Repeat("x", MaxInput+1), "input: has 16385 bytes"},
		{map[string]string{"file": "a"}, "a\x00", "input: must be UTF-8"},
		{map[string]string{"file": "\xff"}, "", "parameters.file: must be text"},
	} {
		if _, err := Dispatched(s, c.parameters, c.input); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Dispatched returned error %v, want an error that contains %q", err, c.want)
		}
	}
}
