package sim

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/persys/compute/agent/driver"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

// Default values for the images that doc.go lists.
const (
	moment       = 50 * time.Millisecond // how long workloads with the images sim/crash and sim/exit run
	slowStart    = 2 * time.Second
	never        = time.Duration(1<<63 - 1)
	busyPercent  = 90                     // CPU use of a workload with the image sim/busy
	restartDelay = 100 * time.Millisecond // time between the end of a workload and its restart by the engine
	maxPort      = 65535
)

// behaviour describes how a simulated workload behaves. In JSON, durations are numbers of nanoseconds.
type behaviour struct {
	StartDelay time.Duration `json:"start_delay,omitempty"`
	// CrashAfter is the time from the end of StartDelay to the crash; 0 means no crash.
	CrashAfter time.Duration `json:"crash_after,omitempty"`
	ExitCode   int           `json:"exit_code,omitempty"`
	StopDelay  time.Duration `json:"stop_delay,omitempty"`
	Restart    string        `json:"restart,omitempty"`
	// MaxRestarts is the maximum number of restarts under the restart policy on-failure; 0 means no limit.
	MaxRestarts int           `json:"max_restarts,omitempty"`
	Ports       []driver.Port `json:"ports,omitempty"`

	fail  driver.Class
	flaky int
	busy  int // CPU use in percent of one core; 0 means the default, 1 percent
}

// body holds the fields of a specification that all kinds of workloads have in common.
type body struct {
	image   string
	vars    map[string]string
	labels  map[string]string
	ports   []*agentv1.PortMapping
	restart *agentv1.RestartPolicy
}

func bodyOf(kind driver.Kind, spec driver.Spec) (body, error) {
	switch {
	case kind == driver.Container && spec.Body.GetContainer() != nil:
		c := spec.Body.GetContainer()
		if c.GetImage() == "" {
			return body{}, refuse("container.image: must not be empty (workload %q)", spec.ID)
		}
		return body{c.GetImage(), c.GetEnv(), c.GetLabels(), c.GetPorts(), c.GetRestartPolicy()}, nil
	case kind == driver.Compose && spec.Body.GetCompose() != nil:
		return body{image: "compose", vars: spec.Body.GetCompose().GetEnv()}, nil
	case kind == driver.VM && spec.Body.GetVm() != nil:
		vm := spec.Body.GetVm()
		return body{image: vm.GetOsImage(), vars: vm.GetMetadata()}, nil
	}
	return body{}, refuse("spec: this runtime takes %s, got %T (workload %q)", kind, spec.Body.GetSpec(), spec.ID)
}

func refuse(format string, args ...any) error {
	return driver.Errorf(driver.InvalidSpecification, "ensure", format, args...)
}

// behaviourOf returns the behaviour that the image and the variables of a workload select. Errors name the
// invalid field.
func behaviourOf(b body) (behaviour, error) {
	out, err := ofImage(b.image)
	if err != nil {
		return out, err
	}
	for name, into := range map[string]*time.Duration{
		"SIM_START_DELAY": &out.StartDelay, "SIM_CRASH_AFTER": &out.CrashAfter, "SIM_STOP_DELAY": &out.StopDelay,
	} {
		if text := b.vars[name]; text != "" {
			if *into, err = time.ParseDuration(text); err != nil || *into < 0 {
				return out, refuse("%s: must be a duration of 0 or more (got %q)", name, text)
			}
		}
	}
	if text := b.vars["SIM_EXIT_CODE"]; text != "" {
		if out.ExitCode, err = strconv.Atoi(text); err != nil || out.ExitCode < 0 || out.ExitCode > 255 {
			return out, refuse("SIM_EXIT_CODE: must be 0 to 255 (got %q)", text)
		}
	}
	if text := b.vars["SIM_FAIL"]; text != "" {
		if out.fail, err = class("SIM_FAIL", text); err != nil {
			return out, err
		}
	}
	switch out.Restart = b.restart.GetPolicy(); out.Restart {
	case "", "no", "always", "on-failure", "unless-stopped":
	default:
		return out, refuse("container.restart_policy.policy: must be no, always, on-failure or unless-stopped (got %q)", out.Restart)
	}
	if out.MaxRestarts = int(b.restart.GetMaxRetryCount()); out.MaxRestarts < 0 {
		return out, refuse("container.restart_policy.max_retry_count: must not be negative (got %d)", out.MaxRestarts)
	}
	for i, p := range b.ports {
		port := driver.Port{HostPort: int(p.GetHostPort()), Port: int(p.GetContainerPort()), Protocol: strings.ToLower(p.GetProtocol())}
		if port.Protocol == "" {
			port.Protocol = "tcp"
		}
		if port.Protocol != "tcp" && port.Protocol != "udp" {
			return out, refuse("container.ports[%d].protocol: must be tcp or udp (got %q)", i, p.GetProtocol())
		}
		if port.HostPort < 0 || port.HostPort > maxPort || port.Port < 1 || port.Port > maxPort {
			return out, refuse("container.ports[%d]: host_port must be 0 to 65535 and container_port 1 to 65535 (got %d:%d)", i, port.HostPort, port.Port)
		}
		out.Ports = append(out.Ports, port)
	}
	return out, nil
}

func class(field, text string) (driver.Class, error) {
	c := driver.Class(strings.ToUpper(text))
	if !slices.Contains(driver.Classes(), c) {
		return "", refuse("%s: %q is no error class; use one of %v", field, text, driver.Classes())
	}
	return c, nil
}

func ofImage(image string) (out behaviour, err error) {
	rest, ok := strings.CutPrefix(image, "sim/")
	if !ok {
		return out, nil
	}
	rest, _, _ = strings.Cut(rest, "@")
	kind, tag, _ := strings.Cut(rest, ":")
	duration := func(otherwise time.Duration) time.Duration {
		if tag == "" || tag == "latest" {
			return otherwise
		}
		d, parseErr := time.ParseDuration(tag)
		if parseErr != nil || d < 0 {
			err = refuse("container.image: the tag of sim/%s must be a duration of 0 or more (got %q)", kind, tag)
		}
		return d
	}
	number := func(otherwise int) int {
		if tag == "" || tag == "latest" {
			return otherwise
		}
		n, parseErr := strconv.Atoi(tag)
		if parseErr != nil || n < 0 || n > 255 {
			err = refuse("container.image: the tag of sim/%s must be 0 to 255 (got %q)", kind, tag)
		}
		return n
	}
	switch kind {
	case "slow":
		out.StartDelay = duration(slowStart)
	case "crash":
		out.CrashAfter, out.ExitCode = moment, number(1)
	case "exit":
		out.CrashAfter = moment
	case "stubborn":
		out.StopDelay = duration(never)
	case "busy":
		out.busy = number(busyPercent)
	case "missing":
		out.fail = driver.InvalidImage
	case "flaky":
		out.flaky = number(1)
	case "fail":
		out.fail, err = class("container.image: the tag of sim/fail", tag)
	}
	return out, err
}

// phase is the state of a simulated instance (a record) at a certain time.
type phase struct {
	state    driver.State
	started  time.Duration // start of the latest run; valid only if the record was ever started
	ended    time.Duration // end of the latest run; valid only if finished is true
	finished bool
	code     int
	restarts int
	// next is the time at which the state changes next by itself, without a call of the driver; 0 if it does
	// not.
	next time.Duration
}

// at returns the phase (the state of the simulated instance) at the time now. It has no side effects:
// the fields of the record determine all its phases.
func (r record) at(now time.Duration) phase {
	if r.Refused != "" {
		return phase{state: driver.Failed}
	}
	if !r.Started {
		return phase{state: driver.Stopped}
	}
	if r.Ended && now >= r.EndedAt {
		before := r.running(r.EndedAt)
		return phase{state: ended(r.ExitCode), started: before.started, ended: r.EndedAt, finished: true, code: r.ExitCode, restarts: before.restarts}
	}
	return r.running(now)
}

// running returns the phase at the time now that follows from the simulated behaviour alone. It ignores calls
// that stopped or killed the instance.
func (r record) running(now time.Duration) phase {
	b := r.Behaviour
	if b.CrashAfter <= 0 {
		return r.up(phase{started: r.StartedAt}, now)
	}
	life := b.StartDelay + b.CrashAfter
	if !b.restarts() {
		return r.up(phase{started: r.StartedAt}, now)
	}
	cycle := life + restartDelay
	n := int((now - r.StartedAt) / cycle)
	if b.Restart == "on-failure" && b.MaxRestarts > 0 {
		n = min(n, b.MaxRestarts)
	}
	p := phase{started: r.StartedAt + time.Duration(n)*cycle, restarts: n}
	if n > 0 {
		p.finished, p.code, p.ended = true, b.ExitCode, p.started-restartDelay
	}
	p = r.up(p, now)
	if p.state != driver.Running && p.finished && p.ended > p.started {
		if b.Restart != "on-failure" || b.MaxRestarts == 0 || n < b.MaxRestarts {
			p.state, p.next = driver.Pending, p.ended+restartDelay
		}
	}
	return p
}

// up returns the phase (state and time of the next change) that a container which started at p.started has
// at the time now.
func (r record) up(p phase, now time.Duration) phase {
	b := r.Behaviour
	ready := p.started + b.StartDelay
	end := ready + b.CrashAfter
	switch {
	case now < ready:
		p.state, p.next = driver.Pending, ready
	case b.CrashAfter <= 0:
		p.state = driver.Running
	case now < end:
		p.state, p.next = driver.Running, end
	default:
		p.state, p.finished, p.ended, p.code = ended(b.ExitCode), true, end, b.ExitCode
	}
	return p
}

func (b behaviour) restarts() bool {
	switch b.Restart {
	case "always", "unless-stopped":
		return true
	case "on-failure":
		return b.ExitCode != 0
	}
	return false
}

// until returns the time at which the simulated instance ends by itself and is not restarted; 0 if there is
// no such time.
func (r record) until() time.Duration {
	b := r.Behaviour
	life := b.StartDelay + b.CrashAfter
	switch {
	case b.CrashAfter <= 0:
		return 0
	case !b.restarts():
		return r.StartedAt + life
	case b.Restart == "on-failure" && b.MaxRestarts > 0:
		return r.StartedAt + time.Duration(b.MaxRestarts)*(life+restartDelay) + life
	}
	return 0
}

func ended(code int) driver.State {
	if code == 0 {
		return driver.Stopped
	}
	return driver.Failed
}

// active reports whether the instance was started and has not ended for good. It also returns true while the
// instance waits for its next restart by the engine.
func (p phase) active() bool { return p.state == driver.Running || p.state == driver.Pending }
