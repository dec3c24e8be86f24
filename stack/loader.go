package stack

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/sirupsen/logrus"

	"github.com/persys/compute/child"
)

// Task loads one stack in a child process. A program that makes a Loader must give Task to child.Serve.
var Task = child.Task{Name: "persys-load-stack", Do: serve}

// order is the input of Task, which the Loader sends to the child process.
type order struct {
	Source Source
	Dir    string
}

func serve(input []byte) (any, error) {
	logrus.SetOutput(io.Discard)
	said := &warnings{}
	logrus.AddHook(said)
	var o order
	if err := json.Unmarshal(input, &o); err != nil {
		return nil, err
	}
	dir := Root
	if o.Dir != "" {
		// The parent of the stack's folder becomes the root directory of this process. So compose-go can read
		// no file outside that parent, and a path out of the stack's folder still differs from a path in it.
		dir = child.Confine(o.Dir)
		if err := os.Chdir(dir); err != nil {
			return nil, err
		}
	}
	result, err := load(context.Background(), o.Source, dir)
	if err != nil {
		return nil, err
	}
	result.Warnings = append(said.list, result.Warnings...)
	return result, nil
}

// warnings collects the warnings of compose-go, without duplicates.
type warnings struct{ list []string }

func (w *warnings) Levels() []logrus.Level { return []logrus.Level{logrus.WarnLevel} }

func (w *warnings) Fire(e *logrus.Entry) error {
	if len(w.list) < maxWarnings && !slices.Contains(w.list, e.Message) {
		w.list = append(w.list, e.Message)
	}
	return nil
}

// maxWarnings is the maximum number of warnings of one load.
const maxWarnings = 50

// Options are the limits of a Loader. The zero value of a field selects its default.
type Options struct {
	// Command is the command line that starts a child; its argument 0 is replaced by the name of Task.
	// Default: this program itself, which must call child.Serve.
	Command []string
	// AtOnce is the maximum number of child processes that run at the same time; default 2. Wait is how long a
	// load waits until it may start its child process, before it fails with *Busy; default 5 s.
	AtOnce int
	Wait   time.Duration
	// Limits of a child process: its memory in bytes (default 384 MiB), its CPU time (default 3 s) and its
	// wall time (default 20 s).
	Memory    uint64
	CPU, Wall time.Duration
	// Output is the maximum size of a child's answer, in bytes. Default 8 MiB.
	Output int64
}

// Loader loads stacks in child processes. It may be used by several goroutines.
type Loader struct {
	opt   Options
	child child.Runner
	slots chan struct{}
}

// NewLoader returns a Loader with the limits in opt.
func NewLoader(opt Options) *Loader {
	opt.AtOnce = cmp.Or(opt.AtOnce, 2)
	opt.Wait = cmp.Or(opt.Wait, 5*time.Second)
	opt.Memory = cmp.Or(opt.Memory, 384<<20)
	opt.CPU = cmp.Or(opt.CPU, 3*time.Second)
	opt.Wall = cmp.Or(opt.Wall, 20*time.Second)
	opt.Output = cmp.Or(opt.Output, 8<<20)
	return &Loader{opt: opt, slots: make(chan struct{}, opt.AtOnce), child: child.Runner{
		Task: Task.Name, Command: opt.Command,
		Limits: child.Limits{Memory: opt.Memory, CPU: opt.CPU, Wall: opt.Wall, Output: opt.Output, FileSize: 2 * MaxText},
	}}
}

// Load loads a stack. If the stack has mistakes, the error is Faults. If too many stacks are being loaded, it
// is *Busy. If the context ended, it is the context's error. Any other error is a problem of this machine.
func (l *Loader) Load(ctx context.Context, src Source) (*types.Project, error) {
	out, err := l.load(ctx, src)
	if err != nil {
		return nil, err
	}
	return bind(src, out)
}

func (l *Loader) load(ctx context.Context, src Source) (*loaded, error) {
	release, err := l.turn(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	dir, done, err := src.onDisk()
	if err != nil {
		return nil, err
	}
	defer done()
	out := &loaded{}
	if err := l.child.Run(ctx, order{src, dir}, out); err != nil {
		return nil, l.fault(err)
	}
	return out.answer(src)
}

// answer returns the loaded stack, or the faults of the stack as an error.
func (out *loaded) answer(src Source) (*loaded, error) {
	if len(out.Faults) > 0 {
		for i, f := range out.Faults {
			out.Faults[i].Rule = Masked(f.Rule, src.Env)
		}
		return nil, out.Faults
	}
	return out, nil
}

// turn waits until fewer than AtOnce child processes run, so that the caller may start one. The caller calls
// release when its child has ended.
func (l *Loader) turn(ctx context.Context) (release func(), err error) {
	wait := time.NewTimer(l.opt.Wait)
	defer wait.Stop()
	select {
	case l.slots <- struct{}{}:
		return func() { <-l.slots }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-wait.C:
		return nil, &Busy{l.opt.AtOnce}
	}
}

// onDisk returns the folder on the disk from which a source is loaded: Folder or, if Folder is empty, a
// temporary folder to which onDisk writes the source's files except its Compose files.
func (s *Source) onDisk() (dir string, done func(), err error) {
	if s.Folder != "" {
		dir, err = filepath.Abs(s.Folder)
		return dir, func() {}, err
	}
	base, err := os.MkdirTemp("", "persys-stack-")
	if err != nil {
		if len(s.Files) == len(s.Compose) { // no temporary folder is needed, because all files are Compose files; a container image may have no place for one
			return "", func() {}, nil
		}
		return "", nil, err
	}
	done = func() { _ = os.RemoveAll(base) }
	dir = filepath.Join(base, "stack")
	if err = os.Mkdir(dir, 0o700); err == nil {
		err = WriteFiles(dir, s.Files, s.Compose)
	}
	if err != nil {
		done()
		return "", nil, err
	}
	return dir, done, nil
}

// WriteFiles writes files below a folder. It leaves out the files in except.
func WriteFiles(dir string, files map[string][]byte, except []string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for name, data := range files {
		if slices.Contains(except, name) {
			continue
		}
		if parent := filepath.Dir(name); parent != "." {
			if err := root.MkdirAll(parent, 0o700); err != nil {
				return err
			}
		}
		if err := root.WriteFile(name, data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// fault returns a fault of the stack if err says that the child process reached a limit, and err otherwise.
func (l *Loader) fault(err error) error {
	const much = "a Compose file holds configuration, not data; look for aliases, extends and depends_on that multiply"
	var end *child.Ended
	if !errors.As(err, &end) {
		return err
	}
	var rule string
	switch end.Cause {
	case child.Wall:
		rule = fmt.Sprintf("takes more than %s to load; %s", l.opt.Wall, much)
	case child.Memory:
		rule = fmt.Sprintf("needs more than %d MiB of memory to load; %s", l.opt.Memory>>20, much)
	case child.CPU:
		rule = fmt.Sprintf("takes more than %s of CPU time to load; %s", l.opt.CPU, much)
	case child.Output:
		rule = fmt.Sprintf("becomes more than %d MiB when aliases, extends and env_file are resolved", l.opt.Output>>20)
	case child.Depth:
		rule = "is nested too deeply"
	case child.Crash:
		rule = "cannot be loaded: " + firstLine(plainText(end.Text))
	}
	return Faults{{Rule: rule}}
}
