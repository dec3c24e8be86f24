package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// builds holds the paths of the sets of programs under test (with and without the race detector). A set is
// built when the first test asks for it.
type builds struct {
	dir  string
	made bool // whether another process has built the programs
	once map[string]func() (harness.Binaries, error)
}

var built builds

func TestMain(m *testing.M) {
	if testbed.HasOwnNetwork() {
		if err := testbed.RaiseLoopback(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	dir, err := os.MkdirTemp("", "persys-e2e-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	built.dir = dir
	if made := os.Getenv(harness.BuildsEnv); made != "" {
		built.dir, built.made = made, true
	}
	built.prepare()
	code := m.Run()
	if shared.engine != nil {
		err = shared.close()
	}
	if err := errors.Join(err, closeShared()); err != nil {
		fmt.Fprintln(os.Stderr, "cleaning up:", err)
		code = 1
	}
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	testbed.Exit(code)
}

// shipped returns the static programs as they are released.
func shipped(t *testing.T) harness.Binaries { return built.get(t, harness.ShippedSet) }

// raced returns programs with the race detector. A data race in any log fails the test.
func raced(t *testing.T) harness.Binaries {
	b := built.get(t, harness.RaceSet)
	b.Ctl = shipped(t).Ctl
	return b
}

func (b *builds) prepare() {
	b.once = map[string]func() (harness.Binaries, error){}
	for name, opt := range harness.Sets(b.dir) {
		b.once[name] = sync.OnceValues(func() (harness.Binaries, error) {
			if b.made {
				return harness.BuiltIn(opt.Dir), nil
			}
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
			defer cancel()
			return harness.Build(ctx, opt)
		})
	}
}

func (b *builds) get(t *testing.T, set string) harness.Binaries {
	t.Helper()
	return got[harness.Binaries](t)(b.once[set]())
}

// start starts a cluster and closes it at the end of the test. A failed test writes the logs to
// artifacts.
func start(t *testing.T, opt harness.Options) *harness.Cluster {
	t.Helper()
	c, err := harness.Start(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	watchCluster(t, c)
	return c
}

// watchCluster registers a cleanup that closes a cluster at the end of the test, and fails the test if a log reports
// a data race or a panic.
func watchCluster(t *testing.T, c *harness.Cluster) {
	t.Cleanup(func() {
		reportAlarms(t, c)
		if t.Failed() {
			saveLogs(t, c)
		}
		if err := c.Close(); err != nil {
			t.Errorf("taking the cluster down: %v", err)
		}
	})
}

// reportAlarms fails the test if the log of a program has a data race or a panic.
func reportAlarms(t *testing.T, c *harness.Cluster) {
	t.Helper()
	for _, a := range c.Alarms() {
		t.Errorf("the log of a program has a panic or a data race: %s", a)
	}
}

// saveLogs copies the logs of all programs to artifacts, and writes their last lines to the test's log.
func saveLogs(t *testing.T, c *harness.Cluster) {
	t.Helper()
	dir := artifacts(t)
	if err := c.SaveLogs(dir); err != nil {
		t.Errorf("saving logs: %v", err)
	}
	t.Logf("logs are in %s; the logs end with:\n%s", dir, c.Tails(12))
}

// artifacts returns the folder for the files of a failed test.
func artifacts(t *testing.T) string {
	t.Helper()
	root, err := testbed.Root(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "artifacts", strings.ReplaceAll(t.Name(), "/", "_"))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// keep writes a value as JSON into the folder artifacts, under the given name.
func keep(t *testing.T, name string, v any) {
	t.Helper()
	data, err := json.MarshalIndent(v, "", " ")
	if err == nil {
		err = os.WriteFile(filepath.Join(artifacts(t), name), data, 0o644)
	}
	if err != nil {
		t.Errorf("writing %s into artifacts: %v", name, err)
	}
}

// figuresEnv is the environment variable that names the file of measured figures, which hack/test.sh
// prints at its end. A passing test prints nothing itself.
const figuresEnv = "E2E_FIGURES"

// measured writes a measured figure to the test's log, and appends it to the file that E2E_FIGURES names.
func measured(t *testing.T, format string, args ...any) {
	t.Helper()
	line := fmt.Sprintf(format, args...)
	t.Log(line)
	path := os.Getenv(figuresEnv)
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	must(t, err)
	_, err = fmt.Fprintf(f, "%s: %s\n", t.Name(), line)
	must(t, errors.Join(err, f.Close()))
}

// must fails the test at once if err is not nil.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func got[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		must(t, err)
		return v
	}
}

// fast returns scheduler settings with the shortest possible lease, so that tests need not wait long for its
// end: three heartbeat intervals of one second. The settings in more are added.
func fast(more map[string]string) map[string]string {
	env := map[string]string{"SCHEDULER_HEARTBEAT_INTERVAL": "1s", "SCHEDULER_NODE_LEASE": "3s", "SCHEDULER_MISSING_GRACE_PERIOD": "3s"}
	for k, v := range more {
		env[k] = v
	}
	return env
}
