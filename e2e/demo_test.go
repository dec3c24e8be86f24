package e2e

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// TestDemo: the demo succeeds, prints each of its steps, and removes everything that it created.
func TestDemo(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "demo")
	root := got[string](t)(testbed.Root(t.Context()))
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", bin, "./e2e/demo")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the demo: %v\n%s", err, out)
	}
	run := func(t *testing.T, env []string, program string, args ...string) (string, error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir(), "NO_COLOR=1")
		cmd.Env = append(cmd.Env, env...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // on SIGTERM the demo cleans up
		cmd.WaitDelay = time.Minute
		out, err := cmd.CombinedOutput()
		left, globErr := filepath.Glob(filepath.Join(envValue(cmd.Env, "TMPDIR"), "persys-*"))
		if globErr != nil || len(left) > 0 {
			t.Errorf("the demo left %v behind (%v)", left, globErr)
		}
		return string(out), err
	}
	shows := func(t *testing.T, out string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("the demo does not show %q", w)
			}
		}
		if t.Failed() {
			t.Logf("the demo showed:\n%s", out)
		}
	}
	common := []string{
		"3 schedulers formed a Raft group", "2 agents are ready", "hello applied", "$ persysctl nodes", "node-a", "$ persysctl list", "Running",
		"$ persysctl status", "the leader", "after the kill", "has restarted from its disk", "stopped and removed everything",
	}
	t.Run("simulated", func(t *testing.T) {
		// In this run the demo builds the programs itself, as users do.
		out, err := run(t, []string{harness.BuildsEnv + "=", "CGO_ENABLED=0", "GOFLAGS=-trimpath"}, "make", "demo", "ARGS=--exit --simulate")
		if err != nil {
			t.Errorf("the simulated demo failed: %v", err)
		}
		shows(t, out, append(common, "simulated, so there is no page")...)
	})
	t.Run("the machine has no engine", func(t *testing.T) {
		out, err := run(t, []string{"DOCKER_HOST=unix:///nowhere/docker.sock"}, bin, "--exit")
		if err != nil {
			t.Errorf("the demo without an engine failed: %v", err)
		}
		shows(t, out, append(common, "no Docker engine answers at unix:///nowhere/docker.sock", "systemctl start docker", "simulated, so there is no page")...)
	})
	t.Run("docker", func(t *testing.T) {
		e, _ := theEngine(t)
		const image = "persys/hello:demo"
		before := e.HasImage(t.Context(), image) && !e.HasLabel(t.Context(), image, "persys.demo")
		out, err := run(t, nil, bin, "--exit")
		if err != nil {
			t.Errorf("the demo on Docker failed: %v", err)
		}
		shows(t, out, append(common, "FROM scratch", "says: Hello from Persys", "says: The leader was killed")...)
		if left := e.HasImage(t.Context(), image); left != before {
			t.Errorf("an image that the demo did not build existed before: %v; afterwards: %v", before, left)
		}
	})
	t.Run("stays up until Ctrl-C", func(t *testing.T) {
		tmp := t.TempDir()
		p := &harness.Process{
			Name: "demo", Path: bin, Args: []string{"--simulate"}, Log: filepath.Join(dir, "demo.log"),
			Env: append(os.Environ(), "TMPDIR="+tmp, "NO_COLOR=1"),
		}
		p.Dir = root
		must(t, p.Start())
		t.Cleanup(func() { _ = p.Terminate(time.Minute) })
		must(t, testbed.Poll(t.Context(), 2*time.Minute, "the invitation", func(context.Context) error {
			if !p.Running() {
				return testbed.Final(errors.New("the demo has ended"))
			}
			return saysOneOf(p, "Ctrl-C stops the cluster")
		}))
		must(t, p.Interrupt())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if code, err := p.Wait(ctx); err != nil || code != 0 {
			t.Errorf("the demo ended after Ctrl-C with status %d, %v; want 0", code, err)
		}
		out, err := p.Output()
		must(t, err)
		shows(t, out, "export PERSYS_SCHEDULER_ADDR=", "persysctl logs hello -f", "kill -9", "stopped and removed everything")
		if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
			t.Errorf("the demo left %v behind (%v)", left, err)
		}
	})
	t.Run("a second demo is refused", func(t *testing.T) {
		theEngine(t)
		l, err := net.Listen("unix", "@persys-demo") // hold the lock that a running demo would hold
		must(t, err)
		defer l.Close()
		out, err := run(t, nil, bin, "--exit")
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 {
			t.Errorf("the program ended with %v, want status 1", err)
		}
		shows(t, out, "another demo runs on this machine", "ARGS=--simulate")
	})
	t.Run("port taken", func(t *testing.T) {
		theEngine(t)
		l, err := net.Listen("tcp", ":18080")
		must(t, err)
		defer l.Close()
		out, err := run(t, nil, bin, "--exit")
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 {
			t.Errorf("the program ended with %v, want status 1", err)
		}
		shows(t, out, "port 18080", "ss -ltnp", "start the demo again")
	})
}

func envValue(env []string, key string) string {
	v := ""
	for _, kv := range env {
		if rest, ok := strings.CutPrefix(kv, key+"="); ok {
			v = rest // the last setting of a variable in a list of NAME=value counts
		}
	}
	return v
}
