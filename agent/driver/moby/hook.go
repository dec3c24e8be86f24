package moby

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/persys/compute/agent/driver"
)

// Hooks are the commands that run in a container after its start and before its stop.
type Hooks struct {
	PostStart []types.ServiceHook `json:"post_start,omitempty"`
	PreStop   []types.ServiceHook `json:"pre_stop,omitempty"`
}

// HooksLabel returns the value of driver.LabelHooks for a service. The agent starts and stops existing containers
// without reading their specification, so it finds their hooks there.
func HooksLabel(s types.ServiceConfig) string {
	if len(s.PostStart)+len(s.PreStop) == 0 {
		return ""
	}
	raw, err := json.Marshal(Hooks{s.PostStart, s.PreStop})
	if err != nil {
		return "" // impossible: a hook has only texts and a flag
	}
	return string(raw)
}

// HooksOf returns the hooks in the labels of a container with this image. If the label cannot be read,
// HooksOf logs this and returns no hooks. A label that the image has too is ignored in the same way:
// containers that legacy v1 agents made have the labels of their image, and no policy has judged those
// hooks.
func (e *Engine) HooksOf(ctx context.Context, image string, labels map[string]string) Hooks {
	text := labels[driver.LabelHooks]
	if text == "" {
		return Hooks{}
	}
	ctx, cancel := context.WithTimeout(ctx, e.CallTimeout())
	defer cancel()
	found, err := e.Client.ImageInspect(ctx, image)
	var h Hooks
	switch {
	case err != nil:
		err = fmt.Errorf("the image, which may be the source of the label with the hooks, cannot be read: %w", err)
	case found.Config != nil && found.Config.Labels[driver.LabelHooks] == text:
		err = errors.New("the label with the hooks comes from the image, not from the agent")
	default:
		err = json.Unmarshal([]byte(text), &h)
	}
	if err != nil {
		e.log.Warn("the hooks of a container are not run", "workload", labels[driver.LabelWorkload], "error", err)
		return Hooks{}
	}
	return h
}

// PostStart runs the post_start hooks of a container that was just started, in their order. The error is of class
// RuntimeError and names the hook.
func (e *Engine) PostStart(ctx context.Context, id string, hooks []types.ServiceHook) error {
	for i, h := range hooks {
		if err := e.hook(ctx, id, h); err != nil {
			return driver.Errorf(driver.RuntimeError, "start", "post_start[%d]: %w", i, err)
		}
	}
	return nil
}

// PreStop runs the pre_stop hooks in the labels of a container, in their order, if the container runs. It returns how
// much of the grace period is left. A hook that fails or takes too long is logged and does not prevent the stop.
func (e *Engine) PreStop(ctx context.Context, in container.InspectResponse, grace time.Duration) time.Duration {
	if in.State == nil || !in.State.Running || in.State.Paused || in.Config == nil || grace <= 0 {
		return grace
	}
	id, labels := in.ID, in.Config.Labels
	if labels[driver.LabelHooks] == "" {
		return grace
	}
	end := time.Now().Add(grace)
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	for i, h := range e.HooksOf(ctx, in.Image, labels).PreStop {
		if err := e.hook(ctx, id, h); err != nil {
			e.log.Warn("a pre_stop hook failed; the container is stopped nevertheless", "workload", labels[driver.LabelWorkload],
				"container", Short(id), "hook", i, "error", err)
		}
	}
	return max(time.Until(end), 0)
}

// failedGrace is the longest grace period of a container whose post_start failed. It is the engine's default, because
// the stop cannot be interrupted, and new orders for the workload wait for it.
const failedGrace = 10 * time.Second

// StopFailed stops a container whose post_start hooks failed, so that its next start runs them again. The stop goes on
// after the end of ctx.
func (e *Engine) StopFailed(ctx context.Context, id string) error {
	ctx = context.WithoutCancel(ctx)
	in, err := e.Inspect(ctx, id)
	switch {
	case cerrdefs.IsNotFound(err):
		return nil
	case err != nil:
		return Classify("stop", err)
	}
	return e.Stop(ctx, in, StopGrace(in, failedGrace, failedGrace))
}

// Stop runs the pre_stop hooks of a container and stops it, both within the grace period. It returns when the container
// has stopped or does not exist.
func (e *Engine) Stop(ctx context.Context, in container.InspectResponse, grace time.Duration) error {
	seconds := int(math.Ceil(e.PreStop(ctx, in, grace).Seconds()))
	ctx, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second+e.CallTimeout())
	defer cancel()
	_, err := e.Client.ContainerStop(ctx, in.ID, client.ContainerStopOptions{Timeout: &seconds})
	if cerrdefs.IsNotFound(err) {
		return nil
	}
	return Classify("stop", err)
}

// hook runs one command in a container and waits for its end. The error contains the last part of its output.
func (e *Engine) hook(ctx context.Context, id string, h types.ServiceHook) error {
	var env []string
	for k, v := range h.Environment {
		if v != nil {
			env = append(env, k+"="+*v)
		}
	}
	made, err := e.Client.ExecCreate(ctx, id, client.ExecCreateOptions{
		Cmd: h.Command, User: h.User, Privileged: h.Privileged, WorkingDir: h.WorkingDir, Env: env, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return Classify("exec", err)
	}
	got, err := e.Client.ExecAttach(ctx, made.ID, client.ExecAttachOptions{})
	if err != nil {
		return Classify("exec", err)
	}
	defer got.Close()
	defer context.AfterFunc(ctx, got.Close)()
	var said tail
	if _, err := stdcopy.StdCopy(&said, &said, got.Reader); ctx.Err() != nil {
		return fmt.Errorf("%q did not end in time: %w", h.Command[0], ctx.Err())
	} else if err != nil {
		return Classify("exec", err)
	}
	state, err := e.Client.ExecInspect(ctx, made.ID, client.ExecInspectOptions{})
	if err != nil {
		return Classify("exec", err)
	}
	if state.ExitCode != 0 {
		return fmt.Errorf("%q ended with exit code %d: %s", h.Command[0], state.ExitCode, driver.Bound(strings.TrimSpace(string(said))))
	}
	return nil
}

// tail keeps the last bytes that are written to it.
type tail []byte

func (t *tail) Write(p []byte) (int, error) {
	const most = 2048
	*t = append(*t, p...)
	*t = (*t)[max(0, len(*t)-most):]
	return len(p), nil
}
