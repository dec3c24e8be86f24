package moby

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/persys/compute/agent/driver"
	"golang.org/x/sync/errgroup"
)

// inspections is the number of containers that are inspected at the same time.
const inspections = 8

// InspectAll inspects the listed containers, because a list contains neither exit codes nor times. It passes
// each result to the function took, which must allow concurrent calls. Containers that were removed after the
// list are left out. If the engine cannot inspect a container, because the container is damaged or the call
// hangs, its state is unknown. InspectAll stops inspecting when half of the time that is left until ctx ends
// has passed; the state of the remaining containers is then unknown.
func (e *Engine) InspectAll(ctx context.Context, items []container.Summary, took func(i int, full container.InspectResponse, o driver.Observed)) error {
	limit := e.opt.CallTimeout
	if end, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(end)/2)
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var group errgroup.Group
	group.SetLimit(inspections)
	for i, item := range items {
		group.Go(func() error {
			full, err := e.Inspect(limited, item.ID)
			switch {
			case err == nil:
				e.ooms.complete(&full)
				o := Observe(full)
				if o.State == driver.Failed || o.State == driver.Pending || o.State == driver.Stopped && isJob(&o) {
					e.addTail(limited, &o)
				}
				took(i, full, o)
			case cerrdefs.IsNotFound(err):
			case ctx.Err() == nil && limited.Err() != nil:
				took(i, full, untold(item, limited.Err()))
			case unreachable(err):
				return Classify("list", err)
			default:
				took(i, full, untold(item, err))
			}
			return nil
		})
	}
	return group.Wait()
}

// untold returns the observation for a listed container that cannot be inspected. Its state is unknown, and its
// message is the error cause.
func untold(item container.Summary, cause error) driver.Observed {
	o := driver.FromLabels(item.Labels)
	o.RuntimeID, o.State = item.ID, driver.Unknown
	o.Message = driver.Bound("the engine cannot inspect container " + Short(item.ID) + ": " + cause.Error())
	if len(item.Names) > 0 {
		o.Name = strings.TrimPrefix(item.Names[0], "/")
	}
	o.Metadata = map[string]string{
		"container.id": Short(item.ID), "container.state": string(item.State), "container.image": driver.Bound(item.Image),
	}
	return o
}

// Observe translates the engine's inspection of one container. It does not call the engine.
func Observe(in container.InspectResponse) driver.Observed {
	var labels map[string]string
	imageName := in.Image
	if in.Config != nil {
		labels, imageName = in.Config.Labels, in.Config.Image
	}
	o := driver.FromLabels(labels)
	o.RuntimeID = in.ID
	o.Name = strings.TrimPrefix(in.Name, "/")
	o.RestartCount = in.RestartCount
	o.DiskCapped = in.HostConfig != nil && in.HostConfig.StorageOpt[LayerSize] != ""
	state := in.State
	if state == nil {
		state = &container.State{}
	}
	o.ExitCode = state.ExitCode
	o.StartedAt, o.FinishedAt = parseTime(state.StartedAt), parseTime(state.FinishedAt)
	o.State, o.Class, o.Message = StateOf(state, in.RestartCount, memoryLimit(in.HostConfig))
	o.Health = healthOf(state)
	o.Addresses, o.Ports = addresses(in.NetworkSettings)
	o.Metadata = map[string]string{
		"container.id":    Short(in.ID),
		"container.state": string(state.Status),
		"container.image": driver.Bound(imageName),
	}
	if !o.StartedAt.IsZero() {
		o.Metadata["container.started_at"] = o.StartedAt.Format(time.RFC3339)
	}
	if !o.FinishedAt.IsZero() {
		o.Metadata["container.finished_at"] = o.FinishedAt.Format(time.RFC3339)
		o.Metadata["container.exit_code"] = strconv.Itoa(state.ExitCode)
	}
	if state.Error != "" {
		o.Metadata["container.runtime_error"] = driver.Bound(state.Error)
	}
	if o.Class != "" {
		o.Metadata["failure_reason"] = string(o.Class)
		o.Metadata["failure_message"] = driver.Bound(o.Message)
	}
	return o
}

// healthOf returns the result of the engine's health check for a running container.
func healthOf(s *container.State) driver.Health {
	if s.Status != container.StateRunning || s.Health == nil {
		return ""
	}
	switch s.Health.Status {
	case "", container.NoHealthcheck:
		return ""
	case container.Healthy:
		return driver.Healthy
	case container.Starting:
		return driver.Starting
	}
	return driver.Unhealthy
}

// memoryLimit returns a text about the memory limit of a container, such as "its memory limit of 64
// MiB".
func memoryLimit(c *container.HostConfig) string {
	switch {
	case c == nil || c.Memory == 0:
		return "its memory limit"
	case c.Memory%(1<<20) == 0:
		return fmt.Sprintf("its memory limit of %d MiB", c.Memory>>20)
	}
	return fmt.Sprintf("its memory limit of %d bytes", c.Memory)
}

// StateOf returns the state of a container, with the error class and a message, by the table of
// contract/semantics.md section 12. The message names the memory limit if the kernel's OOM killer ended the
// container or, while it runs, one of its processes. limit is the text from memoryLimit.
func StateOf(s *container.State, restarts int, limit string) (driver.State, driver.Class, string) {
	switch s.Status {
	case container.StateRunning:
		message := "running"
		if s.Health != nil && s.Health.Status != "" && s.Health.Status != container.NoHealthcheck {
			message = "running, health check: " + string(s.Health.Status) + checkText(s.Health)
		}
		if s.OOMKilled {
			message += "; a process was killed: the container exceeded " + limit
		}
		return driver.Running, "", message
	case container.StatePaused:
		return driver.Stopped, "", "paused"
	case container.StateRestarting:
		if s.OOMKilled && s.ExitCode != 0 {
			return driver.Pending, "", fmt.Sprintf("restarting after exit code %d (restart %d): OOMKilled: the container exceeded %s", s.ExitCode, restarts, limit)
		}
		return driver.Pending, "", fmt.Sprintf("restarting after exit code %d (restart %d)", s.ExitCode, restarts)
	case container.StateRemoving:
		return driver.Pending, "", "being removed"
	case container.StateDead:
		return driver.Failed, driver.RuntimeError, "the engine could not remove the container: " + s.Error
	case container.StateCreated:
		if s.Error != "" {
			return driver.Failed, ExitClass(s.Error), "could not start: " + s.Error
		}
		return driver.Stopped, "", "created, not started"
	case container.StateExited:
		switch {
		case s.OOMKilled && s.ExitCode != 0:
			return driver.Failed, driver.ResourceQuotaExceeded,
				fmt.Sprintf("OOMKilled: the container exceeded %s (exit code %d)", limit, s.ExitCode)
		case s.Error != "":
			return driver.Failed, ExitClass(s.Error), fmt.Sprintf("exited with code %d: %s", s.ExitCode, s.Error)
		case s.ExitCode != 0:
			return driver.Failed, driver.RuntimeError, fmt.Sprintf("exited with code %d", s.ExitCode)
		}
		return driver.Stopped, "", "exited with code 0"
	}
	return driver.Unknown, "", fmt.Sprintf("the engine reports state %q", s.Status)
}

// checkText returns what the last check of an unhealthy container said, in parentheses.
func checkText(h *container.Health) string {
	if h.Status != container.Unhealthy || len(h.Log) == 0 || h.Log[len(h.Log)-1] == nil {
		return ""
	}
	last := h.Log[len(h.Log)-1]
	text := fmt.Sprintf("exit code %d", last.ExitCode)
	if output := strings.Join(strings.Fields(strings.ToValidUTF8(last.Output, "")), " "); output != "" {
		text += ": " + output
	}
	if len(text) > mostCheckText {
		text = strings.ToValidUTF8(text[:mostCheckText], "") + "…"
	}
	return " (" + text + ")"
}

const mostCheckText = 200 // bytes

func parseTime(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil || t.Year() <= 1 {
		return time.Time{}
	}
	return t.UTC()
}

// addresses returns the sorted IP addresses and published ports of a container. The engine lists a port once
// for IPv4 and once for IPv6; if the port is bound on all addresses, the two entries become one.
func addresses(settings *container.NetworkSettings) ([]string, []driver.Port) {
	if settings == nil {
		return nil, nil
	}
	var ips []string
	for _, endpoint := range settings.Networks {
		if endpoint == nil {
			continue
		}
		if endpoint.IPAddress.IsValid() {
			ips = append(ips, endpoint.IPAddress.String())
		}
		if endpoint.GlobalIPv6Address.IsValid() {
			ips = append(ips, endpoint.GlobalIPv6Address.String())
		}
	}
	slices.Sort(ips)
	var ports []driver.Port
	for inside, bindings := range settings.Ports {
		// Some engines choose different free host ports for IPv4 and IPv6. Then only the IPv4 port is
		// reported.
		four := map[string]bool{}
		for _, b := range bindings {
			if b.HostIP.Is4() || !b.HostIP.IsValid() {
				four[b.HostPort] = true
			}
		}
		for _, b := range bindings {
			host, err := strconv.Atoi(b.HostPort)
			if err != nil || host == 0 || b.HostIP == netip.IPv6Unspecified() && len(four) > 0 && !four[b.HostPort] {
				continue
			}
			p := driver.Port{HostPort: host, Port: int(inside.Num()), Protocol: string(inside.Proto())}
			if b.HostIP.IsValid() && !b.HostIP.IsUnspecified() {
				p.HostIP = b.HostIP.String()
			}
			if !slices.Contains(ports, p) {
				ports = append(ports, p)
			}
		}
	}
	slices.SortFunc(ports, func(a, b driver.Port) int {
		if a.Port != b.Port {
			return a.Port - b.Port
		}
		if c := strings.Compare(a.Protocol, b.Protocol); c != 0 {
			return c
		}
		return a.HostPort - b.HostPort
	})
	return slices.Compact(ips), ports
}

// isJob reports whether o is a container of a job.
func isJob(o *driver.Observed) bool { return o.Labels[driver.LabelJob] == "true" }

// addTail adds the last lines of a container to o: its output if it is a job, its stderr as metadata
// otherwise. It reads the lines only once after each exit of the container.
func (e *Engine) addTail(ctx context.Context, o *driver.Observed) {
	if o.FinishedAt.IsZero() {
		return
	}
	key := tailKey{o.RuntimeID, o.FinishedAt}
	tail, ok := e.tails.get(key)
	if !ok {
		var err error
		if tail, err = e.readTail(ctx, o.RuntimeID, isJob(o)); err != nil {
			o.Metadata["container.stderr_error"] = driver.Bound(err.Error())
			return
		}
		e.tails.put(key, tail)
	}
	switch {
	case isJob(o):
		o.Output = tail
	case tail != "":
		o.Metadata["container.stderr"] = tail
	}
}

// tailLines is the number of last lines of output that are requested, enough to usually fill MaxMetadata
// bytes. tailLimit bounds the bytes that are read, because one line may have 16 KiB. Only the last
// MaxMetadata bytes are kept.
const (
	tailLines = "100"
	tailLimit = 2 << 20
)

// theEnd is a Writer that keeps only the last MaxMetadata bytes written to it.
type theEnd struct{ text []byte }

func (e *theEnd) Write(p []byte) (int, error) {
	e.text = append(e.text, p...)
	if over := len(e.text) - driver.MaxMetadata; over > 0 {
		e.text = append(e.text[:0], e.text[over:]...)
	}
	return len(p), nil
}

// readTail returns the last lines of stderr or, if all is set, of stderr and stdout together.
func (e *Engine) readTail(ctx context.Context, id string, all bool) (string, error) {
	ctx, cancel := e.Call(ctx)
	defer cancel()
	rc, err := e.Client.ContainerLogs(ctx, id, client.ContainerLogsOptions{ShowStderr: true, ShowStdout: all, Tail: tailLines})
	if err != nil {
		return "", err
	}
	defer rc.Close()
	var text theEnd
	if _, err := stdcopy.StdCopy(&text, &text, io.LimitReader(rc, tailLimit)); err != nil {
		return "", err
	}
	return driver.Bound(strings.ToValidUTF8(string(text.text), "�")), nil
}

type tailKey struct {
	id       string
	finished time.Time
}

// tailCache caches the last lines of output of ended containers, so that they are read only once after each
// exit. It keeps them as long as List finds the container.
type tailCache struct {
	mu   sync.Mutex
	tail map[string]cachedTail
}

type cachedTail struct {
	key  tailKey
	text string
}

func (c *tailCache) get(key tailKey) (string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t, ok := c.tail[key.id]
	return t.text, ok && t.key == key
}

func (c *tailCache) put(key tailKey, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tail == nil {
		c.tail = make(map[string]cachedTail)
	}
	c.tail[key.id] = cachedTail{key, text}
}

// KeepTails drops the cached stderr lines of all containers whose ids are not in ids.
func (e *Engine) KeepTails(ids map[string]bool) { e.tails.retain(ids) }

func (c *tailCache) retain(ids map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.tail {
		if !ids[id] {
			delete(c.tail, id)
		}
	}
}
