package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/testbed"
)

// keyRotation is the part of the answer of `persysctl cluster-key status` that the test reads.
type keyRotation struct {
	KeyID    string `json:"key_id"`
	Step     string `json:"step"`
	Values   int    `json:"values"`
	WaitsFor string `json:"waits_for"`
}

// TestClusterKeyRotation replaces the cluster key of three schedulers while workloads use secrets, and kills the leader
// twice in the middle. All secrets must stay readable and no workload may be touched. In the end the former key must be
// on no disk and open nothing in the snapshots. A backup from before needs the former key.
func TestClusterKeyRotation(t *testing.T) {
	c := start(t, harness.Options{Binaries: raced(t), TLS: true, OwnCA: true, SchedulerEnv: fast(nil)})
	got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true}))
	const secrets = 40
	for i := range secrets {
		ctl(t, c, "secret", "put", fmt.Sprintf("s%d", i), "--from-literal", fmt.Sprintf("value-%d", i))
	}
	spec := filepath.Join(t.TempDir(), "web.yaml")
	must(t, os.WriteFile(spec, []byte("id: web\nresources: {cpu: 10m, memory: 8Mi}\ncontainer:\n  image: sim/one\n  env: {PASSWORD: in-the-specification}\n  env_secrets: {TOKEN: s0}\n"), 0o600))
	ctl(t, c, "apply", "-f", spec, "--wait", "--timeout", "2m")
	before := got1(c.WaitWorkload(t.Context(), "web", settle, running))
	keyFile := func(i int) string { return filepath.Join(c.Schedulers[i].DataDir, "cluster.key") }
	former := got[*pki.Key](t)(pki.LoadKey(keyFile(0)))
	backup := filepath.Join(t.TempDir(), "backup")
	ctl(t, c, "backup", "create", backup)
	formerFile := filepath.Join(t.TempDir(), "former.key")
	must(t, os.WriteFile(formerFile, got[[]byte](t)(os.ReadFile(keyFile(0))), 0o600))

	status := func(ctx context.Context) (s keyRotation, err error) {
		res, err := c.Ctl(ctx, "cluster-key", "status", "-o", "json")
		if err == nil && res.Code != 0 {
			err = errors.New(res.Stderr)
		}
		if err == nil {
			err = json.Unmarshal([]byte(res.Stdout), &s)
		}
		return s, err
	}
	readable := func() {
		t.Helper()
		for _, i := range []int{0, secrets - 1} {
			if out := ctl(t, c, "secret", "get", fmt.Sprintf("s%d", i), "--show"); out != fmt.Sprintf("value-%d", i) {
				t.Errorf("secret s%d is %q", i, out)
			}
		}
	}

	// The first leader dies at once, maybe with the only copy of the new key. A scheduler that is off must be named.
	leader := got[int](t)(c.WaitLeader(t.Context(), electionLimit))
	ctl(t, c, "cluster-key", "rotate")
	must(t, c.Schedulers[leader].Kill())
	readable()
	name := fmt.Sprintf("scheduler-%d", leader+1)
	must(t, testbed.Poll(t.Context(), settle, "the scheduler that is off named", func(ctx context.Context) error {
		s, err := status(ctx)
		if err == nil && !strings.Contains(s.WaitsFor, name+" does not answer") {
			err = fmt.Errorf("step %s waits for %q", s.Step, s.WaitsFor)
		}
		return err
	}))
	ctl(t, c, "secret", "put", "during", "--from-literal", "put-during-the-rotation")
	must(t, c.Schedulers[leader].Restart())

	// The next leader dies as soon as values are sealed under the new key.
	must(t, testbed.Poll(t.Context(), settle, "the switch to the new key", func(ctx context.Context) error {
		s, err := status(ctx)
		if err == nil && s.KeyID == former.ID() {
			err = fmt.Errorf("step %s waits for %q", s.Step, s.WaitsFor)
		}
		return err
	}))
	leader = got[int](t)(c.WaitLeader(t.Context(), electionLimit))
	must(t, c.Schedulers[leader].Kill())
	readable()
	must(t, c.Schedulers[leader].Restart())
	must(t, testbed.Poll(t.Context(), 2*time.Minute, "the end of the rotation", func(ctx context.Context) error {
		s, err := status(ctx)
		if err == nil && s.Step != "settled" {
			err = fmt.Errorf("step %s waits for %q", s.Step, s.WaitsFor)
		}
		return err
	}))
	readable()
	if out := ctl(t, c, "secret", "get", "during", "--show"); out != "put-during-the-rotation" {
		t.Errorf("the secret that was put during the rotation is %q", out)
	}
	after := got1(c.WaitWorkload(t.Context(), "web", settle, running))
	if before.GetGeneration().String() != after.GetGeneration().String() {
		t.Errorf("the rotation has changed the generation of the workload from %s to %s", before.GetGeneration(), after.GetGeneration())
	}
	if out := ctl(t, c, "apply", "-f", spec); !strings.Contains(out, "unchanged") {
		t.Errorf("an apply of the same specification is not unchanged: %s", out)
	}
	for _, line := range strings.Split(ctl(t, c, "cluster-key", "status"), "\n") {
		if len([]rune(line)) > 100 {
			t.Errorf("the line is longer than 100 columns: %s", line)
		}
	}

	// The former key is on no disk within moments, and the disks have no value that it opens.
	must(t, testbed.Poll(t.Context(), settle, "the former key deleted", func(context.Context) error {
		for i := range c.Schedulers {
			left, err := filepath.Glob(keyFile(i) + ".*")
			if err != nil || len(left) > 0 {
				return fmt.Errorf("scheduler %d has the files %v (error %w)", i, left, err)
			}
			if key, err := pki.LoadKey(keyFile(i)); err != nil || key.ID() == former.ID() {
				return fmt.Errorf("scheduler %d still seals with %v (error %w)", i, key, err)
			}
		}
		return nil
	}))
	for _, s := range c.Schedulers {
		must(t, filepath.WalkDir(s.DataDir, func(path string, d fs.DirEntry, err error) error {
			// The pages of the log that are free again may still hold deleted entries (ADR 75).
			if err != nil || d.IsDir() || filepath.Base(path) == "log.db" {
				return err
			}
			raw, err := os.ReadFile(path)
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if bytes.Contains(raw, []byte(pki.SealPrefix+former.ID())) {
				t.Errorf("%s has values that are sealed under the former key", path)
			}
			return err
		}))
	}
	fresh := filepath.Join(t.TempDir(), "fresh")
	ctl(t, c, "backup", "create", fresh)
	state := readBackup(t, fresh)
	if ids := state.SealedKeys(); len(ids) != 1 || ids[0] == former.ID() {
		t.Errorf("the state has values that are sealed under the keys %v", ids)
	}

	// The backup from before the rotation names the key that it needs.
	res := got[harness.CtlResult](t)(c.Ctl(t.Context(), "backup", "restore", backup, "--yes"))
	if res.Code == 0 || !strings.Contains(res.Stderr, former.ID()) || !strings.Contains(res.Stderr, "--cluster-key") {
		t.Errorf("a restore without the former key ended with exit %d: %s", res.Code, res.Stderr)
	}
	ctl(t, c, "backup", "restore", backup, "--yes", "--cluster-key", formerFile)
	must(t, testbed.Poll(t.Context(), 2*time.Minute, "the end of the restore", func(ctx context.Context) error {
		s, err := status(ctx)
		if err == nil && (s.Step != "settled" || s.KeyID == former.ID()) {
			err = fmt.Errorf("step %s waits for %q", s.Step, s.WaitsFor)
		}
		return err
	}))
	readable()
}

func readBackup(t *testing.T, path string) fsm.State {
	t.Helper()
	f := got[*os.File](t)(os.Open(path))
	defer f.Close()
	return got[fsm.State](t)(fsm.ReadSnapshot(f))
}
