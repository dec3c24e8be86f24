package spec

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	agentv1 "github.com/persys/compute/api/agent/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
)

// healthCheck reads a health check, such as `health_check: {http: /ready, port: 8080, interval: 5s}`.
func (d *decoder) healthCheck(n *node, here where) *controlv1.HealthCheck {
	c := &controlv1.HealthCheck{}
	w := here.wire
	d.object(n, here, []field{
		{"http", w + ".http", func(_ string, n *node, at where) { c.Http = d.str(n, at) }},
		{"tcp", w + ".tcp", func(_ string, n *node, at where) { c.Tcp = d.boolean(n, at) }},
		{"command", w + ".command", func(_ string, n *node, at where) { c.Command = d.command(n, at) }},
		{"port", w + ".port", func(_ string, n *node, at where) { c.Port = int32(d.integer(n, at, 32)) }},
		{"service", w + ".service", func(_ string, n *node, at where) { c.Service = d.str(n, at) }},
		{"interval interval_seconds", w + ".interval_seconds", d.seconds(&c.IntervalSeconds)},
		{"timeout timeout_seconds", w + ".timeout_seconds", d.seconds(&c.TimeoutSeconds)},
		{"retries", w + ".retries", func(_ string, n *node, at where) { c.Retries = int32(d.integer(n, at, 32)) }},
		{"start_period start_period_seconds", w + ".start_period_seconds", d.seconds(&c.StartPeriodSeconds)},
	})
	return c
}

// seconds reads a duration such as 10s. If the document uses the API's name of the field, a whole number is
// accepted too.
func (d *decoder) seconds(into *int32) func(string, *node, where) {
	return func(name string, n *node, at where) {
		if strings.HasSuffix(name, "_seconds") {
			*into = int32(d.integer(n, at, 32))
			return
		}
		v, err := time.ParseDuration(strings.TrimSpace(d.str(n, at)))
		if err != nil || v%time.Second != 0 || v < 0 || v > 24*time.Hour {
			d.fail(n, at, "must be whole seconds such as 10s or 1m", n.text)
			return
		}
		*into = int32(v / time.Second)
	}
}

// healthCheck checks the fields of a health check.
func (e *Errors) healthCheck(s *controlv1.WorkloadSpec) {
	c := s.GetHealthCheck()
	if c == nil {
		return
	}
	const at = "spec.health_check"
	ways := 0
	for _, set := range []bool{c.GetHttp() != "", c.GetTcp(), len(c.GetCommand()) > 0} {
		if set {
			ways++
		}
	}
	if ways != 1 {
		e.add(at, "must have exactly one of http, tcp and command", "")
		return
	}
	switch {
	case len(c.GetCommand()) == 0:
		e.between(at+".port", int64(c.GetPort()), 1, 65535, "")
		if h := c.GetHttp(); h != "" && (!strings.HasPrefix(h, "/") || strings.ContainsFunc(h, func(r rune) bool { return r <= ' ' || r == 0x7f }) || len(h) > 1024) {
			e.add(at+".http", "must be a path that begins with / and holds no blanks", h)
		}
	case s.GetType() == TypeVM:
		e.add(at+".command", "cannot be run in a virtual machine: use http or tcp", "")
	case len(c.GetCommand()) > maxEntriesOf:
		e.addf(at+".command", "", "has %d words, at most %d", len(c.GetCommand()), maxEntriesOf)
	case c.GetCommand()[0] == "":
		e.add(at+".command", "must begin with a program", "")
	default:
		for i, word := range c.GetCommand() {
			if !isText(word) {
				e.add(fmt.Sprintf("%s.command[%d]", at, i), "must be text without NUL", "")
			}
		}
	}
	if c.GetService() != "" && (s.GetType() != TypeCompose || len(c.GetCommand()) == 0) {
		e.add(at+".service", "is for a command in a Compose stack", c.GetService())
	}
	e.between(at+".interval_seconds", int64(c.GetIntervalSeconds()), 0, 3600, "")
	e.between(at+".timeout_seconds", int64(c.GetTimeoutSeconds()), 0, 600, "")
	e.between(at+".retries", int64(c.GetRetries()), 0, 100, "")
	e.between(at+".start_period_seconds", int64(c.GetStartPeriodSeconds()), 0, 3600, "")
}

// healthCheck adds the health check to the content hash, so that a changed health check reaches the agent.
// The agent does not recreate the workload for such a change.
func (e *encoder) healthCheck(c *controlv1.HealthCheck) {
	if c == nil {
		return
	}
	e.text("health_check.http", c.GetHttp())
	e.flag("health_check.tcp", c.GetTcp())
	for i, word := range c.GetCommand() {
		e.recordAt("health_check.command", strconv.Itoa(i), 't', word)
	}
	e.number("health_check.port", int64(c.GetPort()))
	e.text("health_check.service", c.GetService())
	e.number("health_check.interval_seconds", int64(c.GetIntervalSeconds()))
	e.number("health_check.timeout_seconds", int64(c.GetTimeoutSeconds()))
	e.number("health_check.retries", int64(c.GetRetries()))
	e.number("health_check.start_period_seconds", int64(c.GetStartPeriodSeconds()))
}

func agentHealthCheck(c *controlv1.HealthCheck) *agentv1.HealthCheck {
	if c == nil {
		return nil
	}
	return &agentv1.HealthCheck{
		Http: c.GetHttp(), Tcp: c.GetTcp(), Command: c.GetCommand(), Port: c.GetPort(), Service: c.GetService(),
		IntervalSeconds: c.GetIntervalSeconds(), TimeoutSeconds: c.GetTimeoutSeconds(), Retries: c.GetRetries(),
		StartPeriodSeconds: c.GetStartPeriodSeconds(),
	}
}
