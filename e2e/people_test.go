package e2e

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/testbed"
)

// TestPeople runs the commands of the page on people. In this test, certificates of people live for a minute.
// A certificate must be renewed when persysctl uses it. The admin's certificate is renewed even while the
// leader is not the scheduler that created the admin's identity. A certificate that nobody uses must expire.
func TestPeople(t *testing.T) {
	c := start(t, harness.Options{Binaries: raced(t), OwnCA: true, SchedulerEnv: fast(map[string]string{"SCHEDULER_USER_CERT_LIFE": "1m"})})
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	runPage(t, c, 2, nil, "people")

	join := func(name string) (env []string, leaf func() *x509.Certificate) {
		t.Helper()
		home := t.TempDir()
		env = append(c.CtlEnv(), "HOME="+home, "PERSYS_TLS_CA=", "PERSYS_TLS_CERT=", "PERSYS_TLS_KEY=")
		res := got[harness.CtlResult](t)(c.Ctl(ctx, "token", "create", "--role", "user", "--name", name, "--access", "viewer"))
		var out strings.Builder
		if code := got[int](t)(c.RunCtl(ctx, env, &out, &out, "join", strings.TrimSpace(res.Stdout))); code != 0 {
			t.Fatalf("persysctl join ended with %d: %s", code, out.String())
		}
		k := pki.IdentityStore{Dir: filepath.Join(home, ".persys", "identity")}
		return env, func() *x509.Certificate { return got[*x509.Certificate](t)(k.Leaf()) }
	}
	bea, beas := join("bea")
	cas, _ := join("cas")
	first, joined := beas(), time.Now()
	leader := got[int](t)(c.WaitLeader(ctx, electionLimit))
	if leader == 0 { // the first scheduler was started with --init, so its folder has the admin's identity
		must(t, c.Schedulers[0].Kill())
		got[int](t)(c.WaitLeader(ctx, electionLimit))
		must(t, c.Schedulers[0].Start())
		must(t, c.WaitReady(ctx, 2*settle))
	}
	admin := pki.IdentityStore{Dir: filepath.Join(c.Schedulers[0].DataDir, "admin")}
	admins := got[*x509.Certificate](t)(admin.Leaf())
	must(t, testbed.Poll(ctx, 2*time.Minute, "renewed certificates", func(ctx context.Context) error {
		var out strings.Builder
		if code, err := c.RunCtl(ctx, bea, &out, &out, "list"); err != nil || code != 0 || strings.Contains(out.String(), "renewed") {
			return testbed.Final(fmt.Errorf("persysctl list ended with %d, %v: %s", code, err, out.String()))
		}
		now, err := admin.Leaf()
		switch {
		case err != nil:
			return err
		case beas().Equal(first):
			return errors.New("bea has her first certificate")
		case now.Equal(admins):
			return errors.New("the admin still has the certificate from before the renewal")
		case time.Since(joined) < time.Minute+2*time.Second:
			return errors.New("the admin still has the certificate from the start")
		}
		return nil
	}))
	var out strings.Builder
	code := got[int](t)(c.RunCtl(ctx, cas, &out, &out, "list"))
	if code != 1 || !strings.Contains(out.String(), "expired at") || !strings.Contains(out.String(), "persysctl join TOKEN") {
		t.Errorf("persysctl with an expired certificate ended with code %d, want 1 and the command that gets a new one: %s", code, out.String())
	}
	if res := got[harness.CtlResult](t)(c.Ctl(ctx, "identity", "list")); res.Code != 0 || !strings.Contains(res.Stdout, "user/bea") {
		t.Errorf("persysctl with the admin's certificate ended with code %d, want 0 and the list of identities: %s%s", res.Code, res.Stdout, res.Stderr)
	}
}

// runPage runs the command blocks of guides as the admin, in one folder. files maps the name of a file to
// the beginning of the YAML block with its content. The pages must have at least as many blocks as the
// parameter least says.
func runPage(t *testing.T, c *harness.Cluster, least int, files map[string]string, guides ...string) {
	t.Helper()
	var page []byte
	for _, g := range guides {
		page = append(page, got[[]byte](t)(os.ReadFile("../docs/guides/"+g+".md"))...)
	}
	dir, blocks := t.TempDir(), 0
	for _, m := range shell.FindAllStringSubmatch(string(page), -1) {
		if m[3] != "" {
			for name, begins := range files {
				if strings.HasPrefix(m[3], begins) {
					must(t, os.WriteFile(filepath.Join(dir, name), []byte(m[3]), 0o644))
				}
			}
			continue
		}
		blocks++
		cmd := exec.CommandContext(t.Context(), "sh", "-e", "-c", m[2])
		cmd.Dir, cmd.Env = dir, append(c.CtlEnv(), "PATH="+filepath.Dir(raced(t).Ctl)+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if (err != nil) != strings.Contains(m[1], "exit 1") {
			t.Fatalf("%s: %v\n%s", m[2], err, out)
		}
		t.Logf("%s\n%s", m[2], out)
	}
	if blocks < least {
		t.Fatalf("the pages have %d command blocks, want %d", blocks, least)
	}
}
