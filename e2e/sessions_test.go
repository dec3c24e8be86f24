package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// terminal runs persysctl on a pseudo terminal, with the address of only one replica, through which the
// session then runs.
func terminal(t *testing.T, c *harness.Cluster, replica int, args ...string) *harness.Terminal {
	t.Helper()
	term, err := c.OpenTerminal(t.Context(), c.CtlEnv(c.Schedulers[replica].GRPC), 31, 77, args...)
	must(t, err)
	return term
}

// endTerminal waits until the program of a terminal exits and checks its exit code.
func endTerminal(t *testing.T, term *harness.Terminal, code int) {
	t.Helper()
	if got, err := term.Close(settle); err != nil || got != code {
		t.Fatalf("exit code %d (%v), want %d; the terminal shows %q", got, err, code, term.Screen())
	}
}

// TestSessions opens exec, console and log sessions of a container and of the services of a stack
// on a real terminal, through each replica. Then the agent is replaced by a newer build while
// sessions and workloads run.
func TestSessions(t *testing.T) {
	e, _ := theEngine(t)
	// probe is an image with a test program that, depending on its arguments, prints text, repeats its input or
	// prints the size of its terminal.
	probe := got[string](t)(e.BuildForRun(t.Context(), "persys/probe:e2e", "./agent/driver/moby/mobytest/probe"))
	t.Cleanup(func() {
		if err := e.RemoveImage(context.Background(), probe); err != nil {
			t.Error(err)
		}
	})
	c := start(t, harness.Options{Binaries: shipped(t), SchedulerEnv: fast(nil)})
	id := onDocker(t, e, c)
	a := got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{}))
	t.Cleanup(func() {
		if err := a.Kill(); err != nil {
			t.Error(err)
		}
		if err := a.SignalFencers(syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	})
	file := filepath.Join(t.TempDir(), "all.yaml")
	must(t, os.WriteFile(file, fmt.Appendf(nil, `id: box
resources: {cpu: 50m, memory: 32Mi}
container: {image: %[1]q}
---
id: shop
resources: {cpu: 100m, memory: 64Mi}
compose:
  inline: |
    services:
      web: {image: %[1]q}
      worker: {image: %[1]q}
`, probe), 0o600))
	res, err := c.Ctl(t.Context(), "apply", "-f", file, "--wait")
	must(t, err)
	if res.Code != 0 {
		t.Fatalf("persysctl apply failed: %s%s", res.Stdout, res.Stderr)
	}
	for _, w := range []string{"box", "shop"} {
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), w, settle, running))
	}

	for i := range c.Schedulers {
		t.Run(fmt.Sprintf("through replica %d", i+1), func(t *testing.T) {
			for _, of := range [][]string{{"box"}, {"shop", "--service", "worker"}} {
				exec := func(flags string, command ...string) []string {
					return append(append(append([]string{"exec", flags}, of...), "--", "/probe"), command...)
				}
				// The terminal of the command must have the size of the user's terminal.
				term := terminal(t, c, i, exec("-it", "size")...)
				must(t, term.Shows(t.Context(), settle, "31 77"))
				endTerminal(t, term, 0)
				// Input arrives, and Ctrl-D ends it.
				term = terminal(t, c, i, exec("-it", "cat")...)
				must(t, term.Type("typed\r"))
				must(t, term.Shows(t.Context(), settle, "typed\r\ntyped\r\n")) // the first line is the echo of the terminal, the second the answer of the program
				must(t, term.Type("\x04"))
				endTerminal(t, term, 0)
				// Ctrl-C ends the command, not persysctl.
				term = terminal(t, c, i, exec("-it", "wait")...)
				must(t, term.Shows(t.Context(), settle, "waiting"))
				must(t, term.Type("\x03"))
				endTerminal(t, term, 130)
				term = terminal(t, c, i, exec("-t", "say", "one", "two", "7")...)
				must(t, term.Shows(t.Context(), settle, "two"))
				endTerminal(t, term, 7)

				shout := func(text string) {
					t.Helper()
					term := terminal(t, c, i, exec("-t", "shout", text)...)
					endTerminal(t, term, 0)
				}
				// Open a console and a log stream (logs -f). Both must show what the program prints afterwards.
				console := terminal(t, c, i, append([]string{"console"}, of...)...)
				must(t, console.Shows(t.Context(), settle, "connected to the console of "+of[0]))
				logs := terminal(t, c, i, "logs", "-f", of[0])
				must(t, logs.Shows(t.Context(), settle, "probe: ready"))
				said := fmt.Sprintf("said to %s through %d", of[0], i)
				shout(said)
				must(t, console.Shows(t.Context(), settle, said))
				must(t, logs.Shows(t.Context(), settle, said))
				must(t, console.Type("\x1d"))
				endTerminal(t, console, 0)
				must(t, logs.Type("\x03"))
				if _, err := logs.Close(settle); err != nil {
					t.Error(err)
				}
			}
		})
	}

	t.Run("the agent is upgraded while sessions and workloads run", func(t *testing.T) {
		next, err := harness.Build(t.Context(), harness.BuildOptions{
			Dir: t.TempDir(), Version: "e2e-next",
		})
		must(t, err)
		type instance struct {
			id, started string
			restarts    int
		}
		all := func() map[string]instance {
			t.Helper()
			list, err := e.Containers(t.Context(), id)
			must(t, err)
			out := map[string]instance{}
			for _, x := range list {
				if string(x.State) != "running" {
					t.Errorf("container %v has the state %s, want running", x.Names, x.State)
				}
				started, err := e.Started(t.Context(), x.ID)
				must(t, err)
				restarts, err := e.Restarts(t.Context(), x.ID)
				must(t, err)
				out[x.Names[0]] = instance{x.ID, started, restarts}
			}
			return out
		}
		version := func(want string) error {
			res, err := c.Ctl(t.Context(), "node", a.NodeID)
			if err == nil && !strings.Contains(res.Stdout, want) {
				err = fmt.Errorf("persysctl node says:\n%s%s", res.Stdout, res.Stderr)
			}
			return err
		}
		before := all()
		if len(before) != 3 {
			t.Fatalf("before the agent is replaced the engine has the containers %v, want three", before)
		}
		must(t, version("dev"))
		must(t, a.Terminate(settle))
		a.Path = next.Agent
		at := time.Now()
		must(t, a.Start())
		must(t, testbed.Poll(t.Context(), settle, "the new agent", func(context.Context) error { return version("e2e-next") }))
		must(t, c.WaitNode(t.Context(), a.NodeID, "Ready", settle))
		t.Logf("the new agent was registered after %s", time.Since(at).Round(time.Millisecond))
		for _, w := range []string{"box", "shop"} {
			got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), w, settle, running))
		}
		// The fencers, which outlive the agent, must be replaced by fencers of the new build too.
		must(t, testbed.Poll(t.Context(), settle, "fencers of the new build", func(context.Context) error {
			fencers := a.Fencers()
			for _, pid := range fencers {
				if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err != nil || exe != next.Dev { // the file behind the links
					return fmt.Errorf("fencer %d runs the program %s (%v), want the new build", pid, exe, err)
				}
			}
			if len(fencers) != 2 {
				return fmt.Errorf("%d fencers run, want 2", len(fencers))
			}
			return nil
		}))
		after := all()
		for name, was := range before {
			if after[name] != was {
				t.Errorf("container %s is now %+v and was %+v, want it untouched", name, after[name], was)
			}
		}
		// Check that the new agent has taken the workloads over: it must execute commands in them and remove them.
		term := terminal(t, c, 0, "exec", "-t", "box", "--", "/probe", "say", "still", "here", "0")
		must(t, term.Shows(t.Context(), settle, "here"))
		endTerminal(t, term, 0)
		for _, w := range []string{"box", "shop"} {
			res, err := c.Ctl(t.Context(), "delete", w, "--wait")
			must(t, err)
			if res.Code != 0 {
				t.Errorf("persysctl delete %s failed: %s%s", w, res.Stdout, res.Stderr)
			}
		}
		if left := all(); len(left) != 0 {
			t.Errorf("after the deletes these containers are left: %v", left)
		}
	})
}
