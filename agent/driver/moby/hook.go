package moby

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/persys/compute/agent/driver"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/stack"
)

// Hooks are the commands that run in a container after its start and before its stop.
type Hooks struct {
	PostStart []types.ServiceHook `json:"post_start,omitempty"`
	PreStop   []types.ServiceHook `json:"pre_stop,omitempty"`
}

// HooksLabel returns the value of driver.LabelHooks for a container with these other labels. The agent starts and stops
// existing containers without reading their specification, so it finds their hooks there. Environments of hooks may hold
// secrets, so the label is sealed.
func (e *Engine) HooksLabel(labels map[string]string, h Hooks) (string, error) {
	if len(h.PostStart)+len(h.PreStop) == 0 {
		return "", nil
	}
	if e.opt.Sealer == nil {
		return "", driver.Errorf(driver.InvalidConfiguration, "ensure", "Options.Sealer: must be set for a workload with post_start or pre_stop")
	}
	raw, err := json.Marshal(h)
	if err != nil {
		return "", &driver.Error{Class: driver.InvalidSpecification, Op: "ensure", Err: err}
	}
	return e.opt.Sealer.SealSame(raw, hooksContext(labels)), nil
}

// HooksOf returns the hooks in the labels of a container. Containers without a node label, which legacy v1 agents made,
// have none: the label may come from the image or from a user, and no policy has judged those hooks. For the same reason
// HooksOf returns an error if this agent did not seal the label for this workload.
func (e *Engine) HooksOf(labels map[string]string) (h Hooks, err error) {
	text := labels[driver.LabelHooks]
	if text == "" || labels[driver.LabelNode] == "" {
		return h, nil
	}
	if e.opt.Sealer == nil {
		return h, fmt.Errorf("label %s: the key of the agent is missing", driver.LabelHooks)
	}
	raw, err := e.opt.Sealer.Open(text, hooksContext(labels))
	if err == nil {
		err = json.Unmarshal(raw, &h)
	}
	if err != nil {
		return Hooks{}, fmt.Errorf("label %s: %w", driver.LabelHooks, err)
	}
	return h, nil
}

// hooksContext returns the context under which the hooks label is sealed: cluster, node and workload. So a
// sealed label is valid only for this workload on this node.
func hooksContext(labels map[string]string) []byte {
	return fmt.Appendf(nil, "%s %q %q %q", driver.LabelHooks, labels[driver.LabelCluster], labels[driver.LabelNode], labels[driver.LabelWorkload])
}

// PostStart runs the post_start hooks of a container that was just started, in their order. The error is of class
// RuntimeError and names the hook. Until all hooks have succeeded, Unready returns true for the container.
func (e *Engine) PostStart(ctx context.Context, id string, hooks []types.ServiceHook) error {
	if len(hooks) == 0 {
		return nil
	}
	e.unready.Store(id, true)
	for i, h := range hooks {
		if err := e.hook(ctx, id, h); err != nil {
			return driver.Errorf(driver.RuntimeError, "start", "post_start[%d]: %w", i, err)
		}
	}
	e.unready.Delete(id)
	return nil
}

// Unready reports whether post_start hooks of a container failed, or were interrupted, since its last start.
// Such a container must be stopped (StopFailed) before it counts as started. It knows only the hooks that
// this process ran, and returns false if a previous process of the agent ran them.
func (e *Engine) Unready(id string) bool {
	_, unready := e.unready.Load(id)
	return unready
}

// PreStop runs the pre_stop hooks in the labels of a container, in their order, if the container runs. It returns how
// much of the grace period is left. A hook that fails or takes too long is logged and does not prevent the stop.
func (e *Engine) PreStop(ctx context.Context, in container.InspectResponse, grace time.Duration) time.Duration {
	if in.State == nil || !in.State.Running || in.State.Paused || in.Config == nil || grace <= 0 {
		return grace
	}
	id, labels := in.ID, in.Config.Labels
	end := time.Now().Add(grace)
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	hooks, err := e.HooksOf(labels)
	if err != nil {
		e.log.Warn("the pre_stop hooks of a container are not run", "workload", labels[driver.LabelWorkload], "container", Short(id), "error", err)
	}
	for i, h := range hooks.PreStop {
		if err := e.hook(ctx, id, h); err != nil {
			e.log.Warn("a pre_stop hook failed; the container is stopped nevertheless", "workload", labels[driver.LabelWorkload],
				"container", Short(id), "hook", i, "error", err)
		}
	}
	return max(time.Until(end), 0)
}

// failedGrace is the longest grace period of a container whose post_start failed. It is the engine's default,
// and is short because new orders for the workload wait for this stop, which cannot be interrupted.
const failedGrace = 10 * time.Second

// StopFailed stops a container whose post_start hooks failed, so that its next start runs them again. The stop goes on
// after the end of ctx.
func (e *Engine) StopFailed(ctx context.Context, id string) error {
	ctx = context.WithoutCancel(ctx)
	in, err := e.Inspect(ctx, id)
	switch {
	case cerrdefs.IsNotFound(err):
		e.unready.Delete(id)
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
	if err != nil && !cerrdefs.IsNotFound(err) {
		return Classify("stop", err)
	}
	e.unready.Delete(in.ID)
	return nil
}

// hook runs one command in a container and waits for its end. If the command fails, the error is a HookError.
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
	if state.ExitCode == 0 {
		return nil
	}
	text := fmt.Sprintf("%q ended with exit code %d", h.Command[0], state.ExitCode)
	if out := e.shown(ctx, id, h, said); out != "" {
		text += ": " + out
	}
	return HookError(text)
}

// HookError is the error of a hook that ended with another exit code than 0. It contains the end of the
// hook's output.
type HookError string

func (e HookError) Error() string { return string(e) }

// shown returns the end of the output of a hook, in which the values of the environments of the hook and of the container
// are masked. It returns "" if the environment of the container cannot be read.
func (e *Engine) shown(ctx context.Context, id string, h types.ServiceHook, said tail) string {
	in, err := e.Inspect(ctx, id)
	if err != nil || in.Config == nil {
		return ""
	}
	hidden := map[string]string{}
	for _, assignment := range in.Config.Env {
		_, hidden["container: "+assignment], _ = strings.Cut(assignment, "=")
	}
	for k, v := range h.Environment {
		if v != nil {
			hidden["hook: "+k] = *v
		}
	}
	return driver.Bound(strings.TrimSpace(stack.Masked(said.text(), hidden)))
}

// MaskFiles masks the lines of files in memory (secrets and configs) in the error of a hook.
func MaskFiles(err error, files []*agentv1.MemoryFile) error {
	var hook HookError
	if !errors.As(err, &hook) {
		return err
	}
	hidden := map[string]string{}
	for i, f := range files {
		hidden[strconv.Itoa(i)] = string(f.GetData())
	}
	return Masked(err, hidden)
}

// Masked returns an error of the same class in which the values of env are masked.
func Masked(err error, env map[string]string) error {
	if err == nil || len(env) == 0 {
		return err
	}
	var typed *driver.Error
	if !errors.As(err, &typed) {
		typed = &driver.Error{Class: driver.ClassOf(err), Op: "ensure", Err: err}
	}
	text := typed.Err.Error()
	hidden := stack.Masked(text, env)
	if hidden == text {
		return err
	}
	return &driver.Error{Class: typed.Class, Op: typed.Op, Err: errors.New(hidden), Started: typed.Started}
}

// tail keeps the last bytes that are written to it.
type tail struct {
	kept []byte
	cut  bool // the start of the output was dropped
}

func (t *tail) Write(p []byte) (int, error) {
	const most = 2048
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - most; over > 0 {
		t.kept, t.cut = t.kept[over:], true
	}
	return len(p), nil
}

// text returns the kept bytes. If the start of the output was dropped, it leaves out the rest of the first line, because that
// may be the end of a value that is to be masked.
func (t *tail) text() string {
	if !t.cut {
		return string(t.kept)
	}
	_, whole, _ := strings.Cut(string(t.kept), "\n")
	return whole
}
