// Package health runs the health checks of workloads: a request for an HTTP path, a connection to a TCP port,
// or a command inside the workload. The result is shown in the status of the workload, and DNS leaves out
// unhealthy workloads. The package restarts nothing; agent/core does.
package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	agentv1 "github.com/persys/compute/api/agent/v1"

	"github.com/persys/compute/agent/driver"
)

// The states of a health check.
const (
	Starting  = "starting" // the health check has no result yet
	Healthy   = "healthy"
	Unhealthy = "unhealthy"
)

// atOnce is the maximum number of checks that run at the same time. A check that has run for longer than hold
// is not counted any more, so that hanging checks do not block other checks.
const (
	atOnce = 16
	hold   = 10 * time.Second
)

// The defaults of a health check, the maximum size of the answer that it reads, and the maximum length of the
// reason that it reports.
const (
	defaultInterval = 10 * time.Second
	defaultTimeout  = 3 * time.Second
	defaultRetries  = 3
	maxAnswer       = 64 << 10 // how many bytes of an HTTP answer the check reads
	maxDetail       = 200      // maximum size, in bytes, of the text that says why a workload is not healthy
)

// Target is an instance whose health is checked.
type Target struct {
	ID driver.ID
	// Instance changes when the workload is recreated or started again. Results of an earlier Instance are
	// dropped.
	Instance string
	Started  time.Time
	// Addresses are the addresses of the workload. If it has none, the host forwards Ports to it, and the
	// check uses these.
	Addresses []string
	Ports     []driver.Port
	Check     *agentv1.HealthCheck
	// Execer runs commands in the workload; if it is nil, checks with a command fail.
	Execer driver.Execer
}

// Checker runs the health checks of workloads, each in a goroutine of its own. Its methods do not block.
type Checker struct {
	ctx     context.Context
	spawn   func(func())
	changed func(driver.ID)
	slots   chan struct{}
	dial    net.Dialer

	mu      sync.Mutex
	watched map[driver.ID]*watch
}

type watch struct {
	target Target
	cancel context.CancelFunc
	state  string
	detail string
	failed int // number of consecutive failures
}

// New makes a checker whose checks end with ctx. The checker starts its goroutines with spawn. One of these
// goroutines calls changed when the result of State for a workload has changed.
func New(ctx context.Context, spawn func(func()), changed func(driver.ID)) *Checker {
	return &Checker{ctx: ctx, spawn: spawn, changed: changed, slots: make(chan struct{}, atOnce), watched: map[driver.ID]*watch{}}
}

// Watch checks a target from now on, and replaces an earlier target with the same ID. If the Instance is the
// same, the running check only gets the new addresses.
func (c *Checker) Watch(t Target) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.watched[t.ID]; old != nil {
		if old.target.Instance == t.Instance {
			old.target.Addresses, old.target.Ports = t.Addresses, t.Ports
			return
		}
		old.cancel()
	}
	ctx, cancel := context.WithCancel(c.ctx)
	w := &watch{target: t, cancel: cancel, state: Starting}
	c.watched[t.ID] = w
	c.spawn(func() { c.run(ctx, w) })
}

// Drop ends the checks of a workload.
func (c *Checker) Drop(id driver.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.watched[id]; w != nil {
		w.cancel()
		delete(c.watched, id)
	}
}

// State returns the state of a workload's health check, and why the workload is not healthy. Both are empty
// if it has no check.
func (c *Checker) State(id driver.ID) (state, detail string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.watched[id]; w != nil {
		return w.state, w.detail
	}
	return "", ""
}

func or(v int32, otherwise time.Duration) time.Duration {
	if v <= 0 {
		return otherwise
	}
	return time.Duration(v) * time.Second
}

// run makes the first check at once and then one check per interval. Until the workload is reported as healthy
// or unhealthy for the first time, run checks ten times as often, so that a workload that is ready is reported
// soon.
func (c *Checker) run(ctx context.Context, w *watch) {
	check := w.target.Check
	interval := or(check.GetIntervalSeconds(), defaultInterval)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		select {
		case <-ctx.Done():
			return
		case c.slots <- struct{}{}:
		}
		leave := sync.OnceFunc(func() { <-c.slots })
		held := time.AfterFunc(hold, leave)
		limited, cancel := context.WithTimeout(ctx, or(check.GetTimeoutSeconds(), defaultTimeout))
		c.mu.Lock()
		t := w.target
		c.mu.Unlock()
		err := c.once(limited, t)
		cancel()
		held.Stop()
		leave()
		if ctx.Err() != nil {
			return
		}
		next := interval
		if c.note(w, err) == Starting {
			next = max(interval/10, 100*time.Millisecond)
		}
		timer.Reset(next)
	}
}

// note adds the result of one check to the consecutive successes or failures, and returns the new state of the
// workload.
func (c *Checker) note(w *watch, err error) string {
	check := w.target.Check
	c.mu.Lock()
	was, detail := w.state, w.detail
	switch {
	case err == nil:
		w.state, w.detail, w.failed = Healthy, "", 0
	case w.state != Healthy && time.Since(w.target.Started) < time.Duration(check.GetStartPeriodSeconds())*time.Second:
		// The check failed in the start period of the workload. Ignore the failure.
	default:
		retries := int(check.GetRetries())
		if retries <= 0 {
			retries = defaultRetries
		}
		if w.failed++; w.failed >= retries {
			w.state, w.detail = Unhealthy, brief(err)
		}
	}
	state := w.state
	changed := state != was || w.detail != detail
	c.mu.Unlock()
	if changed {
		c.changed(w.target.ID)
	}
	return state
}

// brief shortens an error for the status: without semicolons, which separate the parts of a status, and
// always UTF-8, which protobuf requires.
func brief(err error) string {
	out := strings.Map(func(r rune) rune {
		if r == ';' || r < ' ' {
			return ','
		}
		return r // a byte that is not UTF-8 becomes the replacement character U+FFFD
	}, err.Error())
	return strings.ToValidUTF8(out[:min(len(out), maxDetail)], "") // ToValidUTF8 removes a rune that the limit has cut
}

// once makes one check of a target.
func (c *Checker) once(ctx context.Context, t Target) error {
	switch check := t.Check; {
	case len(check.GetCommand()) > 0:
		return command(ctx, t)
	case check.GetHttp() != "":
		return c.each(ctx, t, func(ctx context.Context, addr string) error { return c.get(ctx, addr, check.GetHttp()) })
	default:
		return c.each(ctx, t, func(ctx context.Context, addr string) error {
			conn, err := c.dial.DialContext(ctx, "tcp", addr)
			if err != nil {
				return err
			}
			return conn.Close()
		})
	}
}

// each tries all addresses of a workload's port at the same time; one success is enough. If it tried one
// address after another, an address that does not answer would use up the time limit of the check.
func (c *Checker) each(ctx context.Context, t Target, try func(ctx context.Context, addr string) error) error {
	port := int(t.Check.GetPort())
	var places []string
	for _, a := range t.Addresses {
		places = append(places, net.JoinHostPort(a, strconv.Itoa(port)))
	}
	for _, p := range t.Ports {
		if p.Port == port && p.Protocol != "udp" && p.HostPort > 0 {
			host := p.HostIP
			if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
				host = "127.0.0.1"
			}
			places = append(places, net.JoinHostPort(host, strconv.Itoa(p.HostPort)))
		}
	}
	if len(places) == 0 {
		return errors.New("the workload has no address")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(places))
	var tries sync.WaitGroup
	for i, p := range places {
		tries.Go(func() {
			if errs[i] = try(ctx, p); errs[i] == nil {
				cancel()
			}
		})
	}
	tries.Wait()
	if slices.Contains(errs, nil) {
		return nil
	}
	return errs[0]
}

func (c *Checker) get(ctx context.Context, addr, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "persys-agent health check")
	// Each check makes a new connection, because an old connection may lead to an earlier instance.
	tr := &http.Transport{DialContext: c.dial.DialContext, DisableKeepAlives: true, Proxy: nil}
	defer tr.CloseIdleConnections()
	client := http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, maxAnswer) // only the status code of the answer counts, not its body
	if resp.StatusCode < 200 || resp.StatusCode > 399 {
		return fmt.Errorf("GET %s answered %s", path, resp.Status)
	}
	return nil
}

func command(ctx context.Context, t Target) error {
	if t.Execer == nil {
		return errors.New("this kind of workload cannot run commands")
	}
	s, err := t.Execer.Exec(ctx, t.ID, driver.ExecOptions{Command: t.Check.GetCommand(), Service: t.Check.GetService()})
	if err != nil {
		return err
	}
	defer s.Close()
	defer context.AfterFunc(ctx, func() { s.Close() })()
	var said []byte
	for {
		out, err := s.Output()
		if err != nil {
			break
		}
		said = append(said, out.Data[:min(len(out.Data), max(0, maxDetail-len(said)))]...)
	}
	if ctx.Err() != nil {
		return errors.New("the command took too long")
	}
	code, err := s.Exit(ctx)
	if err != nil {
		return err
	}
	if code != 0 {
		return fmt.Errorf("the command ended with code %d: %s", code, said)
	}
	return nil
}
