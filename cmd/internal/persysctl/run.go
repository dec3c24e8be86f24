package persysctl

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/spec"
	"github.com/persys/compute/spec/quantity"
)

// runTTL is how long schedulers keep the record of a job of persysctl run if persysctl could not delete it.
const runTTL = time.Hour

// runCleanup is the time limit for deleting a job that was interrupted.
const runCleanup = 15 * time.Second

type runOptions struct {
	name, cpu, memory, user string
	env                     []string
	deadline                time.Duration
	keep                    bool
}

func (c *cli) runCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use: "run IMAGE [-- COMMAND [ARG…]]", Short: "Run a container to completion, with its output here",
		Long: `Run a container as a job: show its output, and exit with its exit code. Ctrl-C cancels the
job: its container is stopped. When the job has ended or was cancelled, its record is deleted
unless --keep is given. A run that could not be placed waits for a node, and says what it
waits for.`,
		Example: `  persysctl run alpine -- echo hello
  persysctl run shop/migrate:7 -e DB=db.shop --deadline 10m
  persysctl run busybox --name probe --keep -- sh -c 'exit 3'`,
		Args: args(1, -1, "IMAGE"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.online(func(ctx context.Context, args []string) error { return c.run(ctx, args[0], args[1:], o) }),
	}
	f := cmd.Flags()
	f.StringVar(&o.name, "name", "", "name of the job; default run-<random>")
	f.StringArrayVarP(&o.env, "env", "e", nil, "KEY=VALUE in the environment of the container; may be repeated")
	f.StringVar(&o.cpu, "cpu", "", "CPU to reserve, such as 0.5 or 500m")
	f.StringVar(&o.memory, "memory", "", "memory to reserve, such as 256Mi")
	f.StringVar(&o.user, "user", "", "user, or UID[:GID], of the container")
	f.DurationVar(&o.deadline, "deadline", 0, "time after which an unfinished job is stopped; 0 = no limit")
	f.BoolVar(&o.keep, "keep", false, "keep the record of the job; persysctl get shows its result")
	return cmd
}

// request returns the request that applies the job: the image, the command in words, and the settings from the flags.
func (o *runOptions) request(image string, words []string) (*controlv1.ApplyWorkloadRequest, error) {
	s := &controlv1.WorkloadSpec{
		Type: spec.TypeContainer, Kind: spec.KindJob, Resources: &controlv1.ResourceRequirements{},
		Workload: &controlv1.WorkloadSpec_Container{Container: &controlv1.ContainerSpec{Image: image, Command: words, User: o.user, Env: map[string]string{}}},
		Job:      &controlv1.JobSpec{Retries: new(int32(0)), DeadlineSeconds: int64(o.deadline / time.Second)},
	}
	if o.deadline < 0 || o.deadline%time.Second != 0 {
		return nil, usagef("--deadline %s must be whole seconds, such as 90s or 10m", o.deadline)
	}
	if !o.keep {
		s.Job.TtlAfterFinishedSeconds = int64(runTTL / time.Second)
	}
	var err error
	if o.cpu != "" {
		if s.Resources.CpuMillicores, err = quantity.CPU(o.cpu); err != nil {
			return nil, usagef("--cpu %s %v", o.cpu, err)
		}
	}
	if o.memory != "" {
		if s.Resources.MemoryMb, err = quantity.Size(o.memory, 20, "256Mi"); err != nil {
			return nil, usagef("--memory %s %v", o.memory, err)
		}
	}
	for _, pair := range o.env {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, usagef("--env %q must be KEY=VALUE", pair)
		}
		s.GetContainer().Env[key] = value
	}
	id := cmp.Or(o.name, "run-"+strings.ToLower(rand.Text()[:8]))
	return &controlv1.ApplyWorkloadRequest{WorkloadId: id, IfRevision: "0", Spec: s}, nil
}

// run runs a job in the foreground.
func (c *cli) run(ctx context.Context, image string, words []string, o runOptions) error {
	req, err := o.request(image, words)
	if err != nil {
		return err
	}
	list := []*controlv1.ApplyWorkloadRequest{req}
	if err := c.place(list); err != nil {
		return err
	}
	id := req.GetWorkloadId()
	got, err := c.send(ctx, list)
	if ctx.Err() != nil {
		return c.cancelJob(ctx, id, o.keep) // the command was interrupted, but the job may have been accepted, so delete it
	}
	if err != nil {
		return err
	}
	if r := got.GetResults()[0]; !r.GetSuccess() {
		return failf(exitFailed, "", "%s was refused: %s", id, refusalText(r))
	}
	follower := &jobFollower{c: c, id: id}
	follower.out, follower.err = c.programOutput()
	result, err := follower.follow(ctx, got.GetIndex())
	if result == nil && ctx.Err() != nil {
		return c.cancelJob(ctx, id, o.keep)
	}
	if err == nil && !o.keep {
		err = c.deleteJob(context.WithoutCancel(ctx), id)
	}
	if err != nil {
		return err
	}
	switch code := result.GetExit().GetCode(); {
	case result.GetSucceeded():
		return nil
	case code > 0:
		return &failure{code: int(code), text: fmt.Sprintf("exit code %d", code), quiet: true}
	}
	return failf(exitFailed, "", "%s has failed: %s", id, screen.Clean(result.GetMessage()))
}

// cancelJob stops a job whose run was interrupted. It deletes the record of the job unless keep is set.
func (c *cli) cancelJob(ctx context.Context, id string, keep bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), runCleanup)
	defer cancel()
	do, hint, what := c.deleteJob, "persysctl delete "+id, "stopped and deleted"
	if keep {
		do, hint, what = c.stopJob, "persysctl stop "+id, "stopped; its record stays"
	}
	if err := do(ctx, id); err != nil {
		return failf(exitInterrupted, hint, "interrupted, and it is not known whether the job was stopped: %v", err)
	}
	return failf(exitInterrupted, "", "interrupted; the job %s is %s", id, what)
}

// stopJob stops a job and keeps its record.
func (c *cli) stopJob(ctx context.Context, id string) error {
	r, err := change(ctx, c, c.control.ApplyWorkload, &controlv1.ApplyWorkloadRequest{WorkloadId: id, DesiredState: "Stopped"})
	if err == nil && !r.GetSuccess() {
		err = c.refusedWorkload(ctx, id, refusalText(r))
	}
	return err
}

// deleteJob deletes the record of a job. A node that still runs the job stops it.
func (c *cli) deleteJob(ctx context.Context, id string) error {
	r, err := change(ctx, c, c.control.DeleteWorkload, &controlv1.DeleteWorkloadRequest{WorkloadId: id})
	if err == nil && !r.GetSuccess() {
		err = failf(exitFailed, "persysctl get "+id, "the record of job %s was not deleted: %s", id, screen.Clean(r.GetErrorMessage()))
	}
	return err
}

// jobFollower shows the output of a job while it runs.
type jobFollower struct {
	c        *cli
	id       string
	out, err io.Writer
	mu       sync.Mutex // held during each write, so that outputs do not mix

	line    string        // the last printed line about a job that does not run yet
	reading chan struct{} // closed when the output of the present run has ended; nil before the first run
	run     string        // node and number of the run whose output is read
	written atomic.Bool   // whether output was written
}

// follow returns the result of the job once it has finished. after is the log index of the apply.
func (f *jobFollower) follow(ctx context.Context, after uint64) (*controlv1.JobResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var ended error
	finished := false
	err := f.c.watch(ctx, &clusterv1.WatchWorkloadsRequest{WorkloadIds: []string{f.id}, MinIndex: after}, []string{f.id}, func(ch watched) error {
		if ch.gone == f.id {
			ended = failf(exitFailed, "persysctl events --workload "+f.id, "the job %s was deleted while it ran", f.id)
			return errEOF
		}
		if ch.view.GetWorkloadId() != f.id {
			return nil
		}
		f.take(ctx, ch.view)
		if finished = ch.view.GetJobResult() != nil; finished {
			return errEOF
		}
		return nil
	})
	switch {
	case ended != nil:
		return nil, ended
	case !finished && err != nil:
		return nil, err
	case !finished:
		return nil, failf(exitUnavailable, "persysctl get "+f.id, "the scheduler ended the watch of the job %s", f.id)
	}
	if f.reading != nil {
		select {
		case <-f.reading:
		case <-time.After(5 * time.Second): // if the container was removed, its output stream may never end, so wait only 5 s
		case <-ctx.Done():
		}
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), runCleanup) // the job has ended, so reading its result ignores an interrupt
	defer stop()
	r, err := call(ctx, f.c, f.c.control.GetWorkload, &controlv1.GetWorkloadRequest{WorkloadId: f.id, Level: f.c.level()})
	if err != nil {
		return nil, err
	}
	result := r.GetWorkload().GetJobResult()
	if text := result.GetExit().GetOutput(); !f.written.Load() && text != "" {
		f.write(f.out, []byte(text)) // the job ended before its output could be read from its node
	}
	return result, nil
}

// take handles one change of the job. It prints why the job is not placed yet, and starts to read the
// output of each new run of its container.
func (f *jobFollower) take(ctx context.Context, v *controlv1.WorkloadView) {
	if v.GetStatus() == "Running" {
		run := fmt.Sprintf("%s %d", v.GetAssignedNodeId(), v.GetRetryAttempts())
		if run != f.run {
			former := f.reading
			f.run, f.reading = run, make(chan struct{})
			go f.read(ctx, former, f.reading)
		}
		return
	}
	if v.GetJobResult() != nil || v.GetReason().GetCode() == "" {
		return
	}
	p := progress{id: f.id, view: v}
	if line := p.line(time.Time{}); line != f.line {
		f.line = line
		f.write(f.c.err, fmt.Appendf(nil, "%s: %s\n", f.id, line))
	}
}

// write writes data to one of the standard streams. A mutex keeps the output of a run and the messages of persysctl
// apart.
func (f *jobFollower) write(to io.Writer, data []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, _ = to.Write(data) // a write to a closed pipe ends the program, as in persysctl logs
}

// read copies the output of one run of the job until it ends. The channel former is closed when the output of the
// previous run has been copied. read first waits for this, so that the outputs of two runs do not mix. former is nil
// for the first run. If the node of a run is lost, the end of its output is lost.
func (f *jobFollower) read(ctx context.Context, former <-chan struct{}, done chan<- struct{}) {
	defer close(done)
	if former != nil {
		select {
		case <-former:
		case <-ctx.Done():
			return
		}
	}
	stream, err := f.c.cluster.Logs(ctx, &clusterv1.LogsRequest{WorkloadId: f.id, Follow: true, TailLines: -1})
	for err == nil {
		var m *clusterv1.LogChunk
		if m, err = stream.Recv(); err != nil {
			return // an error is ignored: the job's result says how the job ended
		}
		to := f.out
		if m.GetStream() == "stderr" {
			to = f.err
		}
		f.written.Store(true)
		f.write(to, m.GetData())
	}
}
