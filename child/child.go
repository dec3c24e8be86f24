package child

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"
)

// Task is a function that runs in a child process of this program.
type Task struct {
	// Name is argument 0 of the child process, by which Serve recognises the task and which ps shows.
	Name string
	// Do runs in the child. It gets the input of Run as JSON. Run returns the result of Do as its answer. If
	// Do returns an error, the child ends with code 1.
	Do func(input []byte) (any, error)
}

// served is true once Serve was called. A child process runs the same program. If the program did not call
// Serve, the child would do the work of its main function. So Run refuses to start a child before Serve was
// called.
var served atomic.Bool

// Serve is called first in the main function of a program that uses a Runner. If a Runner started this
// process as a child, Serve does the task that the Runner names, and exits. Otherwise Serve returns.
func Serve(tasks ...Task) {
	served.Store(true)
	if len(os.Args) == 0 {
		return
	}
	for _, t := range tasks {
		if os.Args[0] == t.Name {
			os.Exit(t.serve(os.Stdin, os.Stdout, os.Stderr))
		}
	}
}

// order holds the limits and the input of a task. A child reads it as a JSON line from its standard input.
type order struct {
	Limits Limits
	Input  json.RawMessage
}

func (t Task) serve(in io.Reader, out, problems io.Writer) int {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // libraries must not log, because the parent reads the error from standard error
	fail := func(err error) int {
		fmt.Fprintln(problems, err)
		return 1
	}
	buffered := bufio.NewReader(in)
	line, err := buffered.ReadBytes('\n')
	if err != nil {
		return fail(err)
	}
	var o order
	if err := json.Unmarshal(line, &o); err != nil {
		return fail(err)
	}
	debug.SetMemoryLimit(int64(o.Limits.Memory / 2 * memoryFactor))
	if err := limit(o.Limits); err != nil {
		return fail(err)
	}
	// The parent closes the pipe to standard input when it no longer waits for the answer. The child then ends
	// itself.
	go func() {
		_, _ = buffered.ReadByte()
		os.Exit(1)
	}()
	answer, err := t.Do(o.Input)
	if err != nil {
		return fail(err)
	}
	if err := json.NewEncoder(out).Encode(answer); err != nil {
		return fail(err)
	}
	return 0
}

// Limits are the limits of one child process. Every limit is required.
type Limits struct {
	Memory   uint64        // memory in bytes that the process may use in addition to its memory at the start
	CPU      time.Duration // CPU time that the process may use; at least a second
	Wall     time.Duration // longest time from the start of the process to its answer
	Output   int64         // maximum size of the answer as JSON, in bytes
	FileSize uint64        // maximum size in bytes of a file that the process writes
}

// Runner starts child processes for one task. It may be used by several goroutines.
type Runner struct {
	Task   string // name of the task to run
	Limits Limits
	// Command is the command line that starts a child; its argument 0 is replaced by the task's name. If
	// Command is empty, this program itself is started as the child, so its main function must call Serve.
	Command []string
	// Env is the environment of the child, together with a few variables that the Runner sets.
	Env []string
}

// Cause is the reason why a child process ended without an answer, such as the limit that it reached.
type Cause int

// The causes for which a child ends without an answer.
const (
	Memory Cause = iota // the child needed more memory than Limits.Memory
	CPU                 // the child needed more CPU time than Limits.CPU
	Wall                // the child took longer than Limits.Wall
	Output              // the answer of the child was longer than Limits.Output
	Depth               // the input was nested too deeply for Go's stack
	Crash               // the Go runtime ended the child for another reason
)

// Ended is the error of a child that reached a limit or crashed.
type Ended struct {
	Cause Cause
	Text  string // first line of the crash report of the Go runtime
}

func (e *Ended) Error() string {
	return [...]string{"too much memory", "too much CPU time", "too much time", "too long an answer", "nested too deeply", "crashed: " + e.Text}[e.Cause]
}

// Run does the task in a child process and decodes its answer. If the child reached a limit or crashed, the
// error is *Ended. If the context ended, it is the error of the context. Otherwise it is an error of this
// machine, or the text of the error that the task returned.
func (r *Runner) Run(caller context.Context, input, answer any) error {
	ctx, cancel := context.WithTimeout(caller, r.Limits.Wall)
	defer cancel()
	cmd, err := r.command(ctx)
	if err != nil {
		return err
	}
	data, err := json.Marshal(input)
	if err != nil {
		return err
	}
	line, err := json.Marshal(order{r.Limits, data})
	if err != nil {
		return err
	}
	cmd.Env = append([]string{"GOMAXPROCS=1", "GOTRACEBACK=none"}, r.Env...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	var said head
	cmd.Stderr = &said
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		if ctx.Err() != nil {
			return cmp.Or(caller.Err(), error(&Ended{Cause: Wall}))
		}
		return fmt.Errorf("starting the process %s: %w", r.Task, err)
	}
	// The error is ignored: a child that ends early closes its side of the pipe, and its exit code tells the
	// reason.
	_, _ = stdin.Write(append(line, '\n'))
	text, readErr := io.ReadAll(io.LimitReader(stdout, r.Limits.Output+1))
	tooLong := int64(len(text)) > r.Limits.Output
	if tooLong || readErr != nil {
		cancel()
	}
	err = cmd.Wait()
	switch {
	case tooLong:
		return &Ended{Cause: Output}
	case err != nil && caller.Err() != nil:
		return caller.Err()
	case err != nil:
		return r.ended(ctx, err, said.String())
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("the answer of the process %s: %w", r.Task, err)
	}
	return nil
}

func (r *Runner) command(ctx context.Context) (*exec.Cmd, error) {
	if len(r.Command) > 0 {
		cmd := exec.CommandContext(ctx, r.Command[0], r.Command[1:]...)
		cmd.Args[0] = r.Task
		return cmd, nil
	}
	if !served.Load() {
		return nil, fmt.Errorf("this program starts itself for the task %s, and its main function does not call child.Serve", r.Task)
	}
	// The link /proc/self/exe leads to the file of the running program, even after an upgrade has replaced
	// the file at its path.
	path := "/proc/self/exe"
	if _, err := os.Stat(path); err != nil {
		if path, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	cmd := exec.CommandContext(ctx, path)
	cmd.Args[0] = r.Task
	return cmd, nil
}

// ended returns the error for a child that ended without an answer, as it follows from the end of ctx, the
// exit status of the process (err), and its standard error (said).
func (r *Runner) ended(ctx context.Context, err error, said string) error {
	var exit *exec.ExitError
	first, _, _ := strings.Cut(strings.TrimSpace(said), "\n")
	switch {
	case ctx.Err() != nil:
		return &Ended{Cause: Wall}
	// If memory runs out, the Go runtime itself may crash with a segmentation fault. So report such a crash as
	// the memory limit.
	case strings.HasPrefix(said, "SIGSEGV"), strings.Contains(said, "out of memory"), strings.Contains(said, "cannot allocate memory"), strings.Contains(said, "failed to allocate"):
		return &Ended{Cause: Memory}
	// The kernel kills a child that reaches its limit of CPU time, and also when the machine has no memory
	// left. The measured CPU time tells these cases apart. It may be below the limit, because the kernel
	// checks the limit by counting clock ticks, and on a busy machine this count is too high.
	case errors.As(err, &exit) && killed(exit) && exit.UserTime()+exit.SystemTime() >= r.Limits.CPU/2:
		return &Ended{Cause: CPU}
	case strings.Contains(said, "stack exceeds"), strings.Contains(said, "goroutine stack"):
		return &Ended{Cause: Depth}
	case errors.As(err, &exit) && exit.ExitCode() == 2: // the child ended with a crash of the Go runtime
		return &Ended{Crash, first}
	}
	return fmt.Errorf("the process %s: %w: %s", r.Task, err, first)
}

// head is a Writer that keeps the first 4 KiB of a child's standard error, in which the Go runtime names the
// reason of a crash.
type head struct{ bytes.Buffer }

func (b *head) Write(p []byte) (int, error) {
	if room := 4096 - b.Len(); room > 0 {
		b.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
