package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// testLimit is how long one process may take; the longest takes two minutes on an idle machine.
const testLimit = 15 * time.Minute

// build builds everything that the tests run into dir: both sets of programs, servers of other projects,
// and the test binary. Tests cannot build servers themselves, because their network namespaces do not reach
// a module proxy. If full is set, it also builds the servers that only tests of the lane full need.
func build(ctx context.Context, root, dir string, full bool) (string, error) {
	for name, opt := range harness.Sets(dir) {
		if _, err := harness.Build(ctx, opt); err != nil {
			return "", fmt.Errorf("the programs %q: %w", name, err)
		}
	}
	servers := []string{"etcd", "coredns"}
	if full {
		servers = append(servers, "dockerd", "runc")
	}
	for _, name := range servers {
		if _, err := testbed.Server(ctx, name); err != nil {
			return "", err
		}
	}
	binary := filepath.Join(dir, "e2e.test")
	cmd := exec.CommandContext(ctx, "go", "test", "-race", "-vet=off", "-c", "-o", binary, "./e2e")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the tests: %w\n%s", err, out)
	}
	return binary, nil
}

// list returns the names of the tests in the order of the source files.
func list(ctx context.Context, binary string) ([]string, error) {
	out, err := exec.CommandContext(ctx, binary, "-test.list", "^Test").Output()
	if err != nil {
		return nil, fmt.Errorf("listing the tests: %w", err)
	}
	return slices.DeleteFunc(strings.Fields(string(out)), func(line string) bool { return !strings.HasPrefix(line, "Test") }), nil
}

// canUnshare reports whether this process may create network namespaces, which normally takes root.
func canUnshare(ctx context.Context) bool {
	cmd := exec.CommandContext(ctx, "true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	return cmd.Run() == nil
}

// runner runs tests, each in a process of its own but those that share a cluster.
type runner struct {
	binary     string // path of the test binary
	dir        string // folder of the package, in which its tests run
	builds     string // folder of the built programs
	namespaces bool
	out        io.Writer

	mu     sync.Mutex
	failed []string
	spent  time.Duration // sum of the times that the tests took
	cpu    time.Duration // sum of the CPU times of the tests and of the programs that they started
	count  int
}

// all runs a plan and returns an error that names the tests that failed.
func (r *runner) all(ctx context.Context, p plan, workers int) error {
	if workers <= 0 {
		workers = workersFor()
	}
	began := time.Now()
	queue := make(chan []string)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for names := range queue {
				r.process(ctx, names, true)
			}
		})
	}
	wg.Go(func() {
		for _, name := range p.host {
			r.process(ctx, []string{name}, false)
		}
	})
	if len(p.shared) > 0 {
		queue <- p.shared
	}
	for _, name := range p.namespaced {
		queue <- []string{name}
	}
	close(queue)
	wg.Wait()
	fmt.Fprintf(r.out, "e2e: %d tests in %s (%s one after another, CPU %s), %d failed\n", r.count, seconds(time.Since(began)), seconds(r.spent), seconds(r.cpu), len(r.failed))
	if len(r.failed) > 0 {
		return fmt.Errorf("these tests failed: %s", strings.Join(r.failed, ", "))
	}
	if r.count == 0 {
		return errors.New("no test ran: -run matches none")
	}
	return ctx.Err()
}

// process runs one test, or several that share a cluster, in one process. It prints one line for each test, and before
// it all of the output if a test fails.
func (r *runner) process(ctx context.Context, names []string, namespace bool) {
	if ctx.Err() != nil {
		return
	}
	cmd := exec.CommandContext(ctx, r.binary, "-test.run=^("+strings.Join(names, "|")+")$", "-test.v", "-test.timeout="+testLimit.String())
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), harness.BuildsEnv+"="+r.builds)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if namespace {
		cmd.Env = append(cmd.Env, testbed.NetworkEnv+"=1")
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNET
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	began := time.Now()
	out, err := cmd.CombinedOutput()
	took := time.Since(began)
	var cpu time.Duration // of the test and of the programs for which it waited
	if s := cmd.ProcessState; s != nil {
		cpu = s.UserTime() + s.SystemTime()
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	r.count, r.spent, r.cpu = r.count+len(names), r.spent+took, r.cpu+cpu
	if err != nil {
		fmt.Fprintf(r.out, "%s\n%v\n", bytes.TrimSpace(out), err)
	} else {
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, testbed.SkipNotice) {
				fmt.Fprintf(r.out, "%s\n", strings.TrimSpace(line))
			}
		}
	}
	for _, name := range names {
		verdict := "ok  "
		if err != nil && (len(names) == 1 || !ended(out, name)) {
			r.failed = append(r.failed, name)
			verdict = "FAIL"
		}
		if len(names) > 1 {
			fmt.Fprintf(r.out, "%s e2e %-40s on the shared cluster\n", verdict, name)
			continue
		}
		fmt.Fprintf(r.out, "%s e2e %-40s %8s, CPU %7s\n", verdict, name, seconds(took), seconds(cpu))
	}
	if len(names) > 1 {
		fmt.Fprintf(r.out, "     e2e %-40s %8s, CPU %7s\n", fmt.Sprintf("%d tests on the shared cluster", len(names)), seconds(took), seconds(cpu))
		if err != nil && !slices.ContainsFunc(names, func(n string) bool { return slices.Contains(r.failed, n) }) {
			r.failed = append(r.failed, "the shared cluster") // each test passed, and the process failed
		}
	}
}

// ended reports whether the output of go test -v says that a test passed or was skipped.
func ended(out []byte, name string) bool {
	for _, verdict := range []string{"PASS", "SKIP"} {
		line := []byte("--- " + verdict + ": " + name + " ")
		if bytes.HasPrefix(out, line) || bytes.Contains(out, append([]byte("\n"), line...)) {
			return true
		}
	}
	return false
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
