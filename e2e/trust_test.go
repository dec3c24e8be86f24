package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/testbed"
)

// TestFiveCommands sets up a secure cluster as the README does: five programs in new folders, each started
// by one command, without preparation. Certificates live 45 seconds here, so all of them are renewed
// during the test.
func TestFiveCommands(t *testing.T) {
	c := start(t, harness.Options{Binaries: raced(t), OwnCA: true, SchedulerEnv: fast(map[string]string{"SCHEDULER_CERT_LIFE": "45s"})})
	for range 2 {
		got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true}))
	}
	for _, p := range c.Processes() {
		if len(p.Args) > 2 {
			t.Errorf("%s needs more than one setting: %v", p.Name, p.Args)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	ctl := func(t *testing.T, code int, want string, args ...string) string {
		t.Helper()
		res, err := c.Ctl(ctx, args...)
		must(t, err)
		if res.Code != code || !strings.Contains(res.Stdout+res.Stderr, want) {
			t.Fatalf("persysctl %s: code %d, want %d and %q:\n%s%s", strings.Join(args, " "), res.Code, code, want, res.Stdout, res.Stderr)
		}
		return res.Stdout
	}
	token := func(t *testing.T, args ...string) string {
		t.Helper()
		return strings.TrimSpace(ctl(t, 0, "persys-join-1.", append([]string{"token", "create"}, args...)...))
	}
	says := func(t *testing.T, p *harness.Process, within time.Duration, texts ...string) {
		t.Helper()
		must(t, testbed.Poll(ctx, within, "the log of "+p.Name, func(context.Context) error { return saysOneOf(p, texts...) }))
	}
	ended := func(t *testing.T, p *harness.Process) {
		t.Helper()
		must(t, testbed.Poll(ctx, settle, "the end of "+p.Name, func(context.Context) error {
			if p.Running() {
				return errors.New("the program still runs")
			}
			return nil
		}))
	}

	t.Run("the cluster survives its leader and accepts TLS only", func(t *testing.T) {
		apply(t, c, "first", contentSpec("x"))
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(ctx, "first", settle, running))
		leader := got[int](t)(c.WaitLeader(ctx, electionLimit))
		must(t, c.Schedulers[leader].Kill())
		apply(t, c, "second", contentSpec("y"))
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(ctx, "second", settle, running))
		must(t, c.Schedulers[leader].Start()) // start the killed scheduler again with the same command line
		must(t, c.WaitReady(ctx, 2*settle))
	})
	t.Run("files are readable by their owner only", func(t *testing.T) {
		for _, dir := range []string{c.Schedulers[0].DataDir, c.Schedulers[1].DataDir, filepath.Dir(c.Agents[0].StatePath)} {
			must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
				if err != nil {
					return err
				}
				st, err := d.Info()
				if err != nil {
					return err
				}
				want := os.FileMode(0o600)
				switch {
				case strings.HasPrefix(path, c.Agents[0].SimDir):
					return nil // skip the folder of the simulated engine
				case d.IsDir():
					want = 0o700
				case slices.Contains([]string{"ca.pem", "root.pem", "issuing.pem"}, d.Name()):
					want = 0o644 // certificates may be readable for everyone, unlike keys
				}
				if got := st.Mode().Perm(); got&^want != 0 {
					t.Errorf("file %s has mode %o, want %o", path, got, want)
				}
				return nil
			}))
		}
	})
	t.Run("no token is on a command line", func(t *testing.T) {
		for _, p := range c.Processes() {
			line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID()))
			must(t, err)
			if strings.Contains(string(line), "persys-join-1.") {
				t.Errorf("the command line of %s, which every user of this machine can see, has the join token: %q", p.Name, line)
			}
		}
	})
	t.Run("a restarted agent needs no token", func(t *testing.T) {
		a := c.Agents[1]
		must(t, a.Kill())
		a.Args = nil
		must(t, a.Start())
		must(t, c.WaitNode(ctx, a.NodeID, "Ready", settle))
	})
	join := func(t *testing.T, node, token string) *harness.Agent {
		t.Helper()
		a := got[*harness.Agent](t)(c.NewAgent(harness.AgentOptions{Simulate: true, NodeID: node}))
		a.Args = []string{"--join", token}
		must(t, a.Start())
		return a
	}
	t.Run("a used, a stolen and a deleted token are refused, with an event", func(t *testing.T) {
		one := token(t, "--role", "agent")
		a := join(t, "node-one", one)
		must(t, c.WaitNode(ctx, "node-one", "Ready", settle))
		must(t, a.Kill())
		again := join(t, "node-two", one)
		ended(t, again.Process)
		says(t, again.Process, settle, "is used up")

		stolen := join(t, "thief", token(t, "--role", "agent", "--name", "node-x"))
		ended(t, stolen.Process)
		says(t, stolen.Process, settle, "is only for \\\"node-x\\\"", `is only for "node-x"`)

		text := token(t, "--role", "agent")
		tok := got[pki.JoinToken](t)(pki.ParseJoinToken(text))
		ctl(t, 0, "deleted", "token", "delete", tok.ID)
		gone := join(t, "node-three", text)
		ended(t, gone.Process)
		says(t, gone.Process, settle, "was deleted")
		ctl(t, 0, "is used up", "audit", "--tail", "0", "-o", "wide")
	})
	t.Run("a gateway joins with a token", func(t *testing.T) {
		must(t, c.WaitNode(ctx, "node-one", "NotReady", settle)) // the schedulers must send no call to the killed agent of this node
		addr := gatewayWith(t, c, map[string]string{"PERSYS_GATEWAY_STATE_DIR": filepath.Join(c.Dir, "gateway"), "PERSYS_SCHEDULER_ADDR": ""}, "--join", token(t, "--role", "gateway", "--name", "door"), "--name", "door")
		if code, out := as(t, c, addr, "admin").do("GET", "/workloads/first", ""); code != 200 || !strings.Contains(fmt.Sprint(out), "Running") {
			t.Errorf("the gateway answered %d %v, want 200", code, out)
		}
		throughGateway(t, c, addr, token(t, "--role", "user", "--name", "vera", "--access", "viewer"))
	})
	t.Run("an agent with a token of another cluster does not trust these schedulers", func(t *testing.T) {
		tok := got[pki.JoinToken](t)(pki.ParseJoinToken(c.Token("agent")))
		tok.Root = strings.Repeat("0", 64)
		a := join(t, "node-foreign", got[string](t)(tok.Export()))
		ended(t, a.Process)
		says(t, a.Process, settle, "not a scheduler of the cluster")
	})
	t.Run("a viewer may read but not change; refusals are audited", func(t *testing.T) {
		home := t.TempDir()
		env := append(c.CtlEnv(), "HOME="+home, "PERSYS_TLS_CA=", "PERSYS_TLS_CERT=", "PERSYS_TLS_KEY=")
		run := func(args ...string) (int, string) {
			var out strings.Builder
			code := got[int](t)(c.RunCtl(ctx, env, &out, &out, args...))
			return code, out.String()
		}
		if code, out := run("join", token(t, "--role", "user", "--name", "vic", "--access", "viewer")); code != 0 {
			t.Fatalf("persysctl join with the token of a viewer ended with %d: %s", code, out)
		}
		if code, out := run("list"); code != 0 || !strings.Contains(out, "first") {
			t.Errorf("persysctl list ended with %d: %s", code, out)
		}
		if code, out := run("delete", "first", "--yes"); code == 0 || !strings.Contains(out, "may not delete workload") {
			t.Errorf("persysctl delete ended with %d: %s", code, out)
		}
	})
	t.Run("a revoked agent is refused within seconds, and joins again with a new token", func(t *testing.T) {
		a := c.Agents[0]
		ctl(t, 0, "revoked", "identity", "revoke", "agent/"+a.NodeID, "--reason", "stolen", "--yes")
		says(t, a.Process, settle, "is revoked")
		must(t, c.WaitNode(ctx, a.NodeID, "NotReady", settle))
		must(t, a.Kill())
		a.Args = []string{"--join", token(t, "--role", "agent", "--node", a.NodeID)}
		must(t, a.Start())
		must(t, c.WaitNode(ctx, a.NodeID, "Ready", settle))
		ctl(t, 0, "Revoked", "audit", "--tail", "0")
	})
	t.Run("the CA with its root is rotated and every certificate renewed without downtime", func(t *testing.T) {
		dir := filepath.Join(c.Schedulers[0].DataDir, "ca")
		ctl(t, 0, "Issuing", "ca", "rotate", dir, "--root")
		ctl(t, 0, "issues in", "ca", "install", dir, "--after", "5s")
		next := got[*pki.Authority](t)(pki.CAFolder{Dir: dir}.Authority())
		signed := func(k pki.IdentityStore) error {
			leaf, err := k.Leaf()
			if err == nil {
				err = leaf.CheckSignatureFrom(next.Cert)
			}
			return err
		}
		kepts := []pki.IdentityStore{{Dir: c.Agents[0].StatePath + ".tls"}, {Dir: c.Agents[1].StatePath + ".tls"}}
		for _, s := range c.Schedulers {
			kepts = append(kepts, pki.IdentityStore{Dir: filepath.Join(s.DataDir, "tls")})
		}
		// While the CA is being rotated, apply workloads without pause and kill the leader once. Each apply must be
		// acknowledged.
		acked, writes, dead := map[string]string{}, 0, -1 // acked holds the acknowledged revision of each workload
		must(t, testbed.Poll(ctx, 3*time.Minute, "certificates of the new CA", func(ctx context.Context) error {
			if writes == 3 {
				dead = got[int](t)(c.WaitLeader(ctx, electionLimit))
				must(t, c.Schedulers[dead].Kill())
			}
			if writes == 10 {
				must(t, c.Schedulers[dead].Start())
			}
			id := fmt.Sprintf("busy-%d", writes%20)
			acked[id] = apply(t, c, id, contentSpec(fmt.Sprint(writes))).GetRevisionId()
			writes++
			for _, k := range kepts {
				if err := signed(k); err != nil {
					return err
				}
			}
			return nil
		}))
		if writes <= 10 {
			t.Errorf("only %d writes were made while the CA changed", writes)
		}
		must(t, c.WaitReady(ctx, 2*settle))
		all := got[*controlv1.ListWorkloadsResponse](t)(got[controlv1.AgentControlClient](t)(c.Any(ctx)).ListWorkloads(ctx, &controlv1.ListWorkloadsRequest{}))
		have := map[string]string{}
		for _, w := range all.GetWorkloads() {
			have[w.GetWorkloadId()] = w.GetRevisionId()
		}
		for id, revision := range acked {
			if have[id] != revision {
				t.Errorf("%s: revision %s was acknowledged, but the state has %q", id, revision, have[id])
			}
		}
		for _, a := range c.Agents[:2] {
			must(t, c.WaitNode(ctx, a.NodeID, "Ready", settle))
		}
		admin := got[clusterv1.ClusterClient](t)(c.AnyAdmin(ctx))
		_, err := admin.Status(ctx, &clusterv1.StatusRequest{})
		must(t, err)
		ctl(t, 0, next.ID()[:12], "ca", "list", "-o", "wide")
		// Check that the rotation of the CA has also replaced the gossip key, and that the former key is removed.
		var keys []string
		must(t, testbed.Poll(ctx, time.Minute, "one new gossip key at all schedulers", func(ctx context.Context) error {
			for i, s := range c.Schedulers {
				st, err := c.Status(ctx, i)
				if err != nil {
					return err
				}
				if keys = st.GetGossipKeys(); len(keys) != 1 || keys[0] == pki.FirstGossipKey {
					return fmt.Errorf("after the rotation scheduler %s has the gossip keys %v, want one new key", s.Name, keys)
				}
			}
			return nil
		}))
		// Restart a scheduler. It must use the new gossip key, although no setting of it was changed.
		follows := follower(t, c)
		must(t, c.Schedulers[follows].Kill())
		must(t, c.Schedulers[follows].Start())
		must(t, c.WaitReady(ctx, 2*settle))
	})
}

// throughGateway runs persysctl with a context (stored connection settings) whose server is a gateway. The
// admin must be able to apply, a viewer only to read, and a client with a certificate of another CA or
// without a certificate must be refused.
func throughGateway(t *testing.T, c *harness.Cluster, addr, viewer string) {
	t.Helper()
	type person struct {
		name, home string
	}
	run := func(p person, stdin string, args ...string) (int, string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), shipped(t).Ctl, args...)
		cmd.Env = []string{"HOME=" + p.home, "PATH=" + os.Getenv("PATH"), "PERSYS_SCHEDULER_ADDR="}
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), string(out)
	}
	check := func(p person, code int, want, stdin string, args ...string) {
		t.Helper()
		if got, out := run(p, stdin, args...); got != code && code >= 0 || code < 0 && got == 0 || !strings.Contains(out, want) {
			t.Errorf("%s: persysctl %s: code %d, want %d and %q:\n%s", p.name, strings.Join(args, " "), got, code, want, out)
		}
	}
	admin := person{"admin", t.TempDir()}
	leaf := c.Leaf("user/admin")
	files := []string{"--tls-ca", leaf.CA, "--tls-cert", leaf.Cert, "--tls-key", leaf.Key}
	check(admin, 0, "door added", "", append([]string{"context", "add", "door", "--server", "https://" + addr, "--use"}, files...)...)
	check(admin, 0, "door", "", "context", "list")
	check(admin, 0, "first", "", "list")
	check(admin, 0, "web", "id: web\nresources: {cpu: 100m, memory: 64Mi}\ncontainer: {image: \"nginx:1.27\"}\n", "apply", "--wait", "-f", "-")
	check(admin, 0, `"workload_id": "web"`, "", "get", "web", "-o", "json")
	check(admin, 0, "nginx:1.27", "", "history", "web", "-o", "yaml")
	check(admin, 0, "WorkloadCreated", "", "events", "--workload", "web")
	check(admin, 0, "", "", "logs", "web", "--tail", "1")
	check(admin, 0, "", "", "exec", "web", "--", "true")

	other, err := pki.DevCerts(filepath.Join(t.TempDir(), "other"), pki.DevOptions{Cluster: "e2e", Users: []string{pki.AdminID}})
	must(t, err)
	fake := other.Leaf["user/admin"]
	stranger := []string{"--rpc-timeout-seconds", "30", "-s", "https://" + addr}
	nobody := person{"nobody", t.TempDir()}
	check(nobody, -1, "certificate", "", append(stranger, "--tls-ca", fake.CA, "--tls-cert", fake.Cert, "--tls-key", fake.Key, "list")...)
	// In TLS 1.3 a server refuses a client certificate only after the client's handshake is complete, so
	// persysctl gets the error with its first request and must explain it.
	check(nobody, -1, "the gateway at https://"+addr+" refuses this certificate: ", "", append(stranger, "--tls-ca", leaf.CA, "--tls-cert", fake.Cert, "--tls-key", fake.Key, "list")...)
	check(nobody, -1, "no certificate and no token for the gateway", "", append(stranger, "--tls-ca", leaf.CA, "list")...)
	check(nobody, -1, "certificate", "", append(stranger, "list")...)

	vera := person{"vera", t.TempDir()}
	check(vera, 0, "", "", "join", viewer)
	kept := filepath.Join(vera.home, ".persys", "identity")
	found := pki.IdentityStore{Dir: kept}.Paths()
	check(vera, 0, "door added", "", "context", "add", "door", "--use", "--server", "https://"+addr, "--tls-ca", found.CA, "--tls-cert", found.Cert, "--tls-key", found.Key)
	check(vera, 0, "web", "", "list")
	check(vera, -1, "may not apply workload", "id: hers\ncontainer: {image: \"nginx:1.27\"}\n", "apply", "-f", "-")
	check(vera, -1, "may not delete workload", "", "delete", "web", "--yes")
	check(vera, -1, "may not", "", "exec", "web", "--", "true")
	check(vera, -1, "", "", "cordon", "node-a")
	check(admin, 0, "may not delete workload", "", "audit", "-o", "wide", "--tail", "0")
	check(admin, 0, "user/vera via gateway/", "", "audit", "-o", "wide", "--tail", "0")
	check(admin, 0, "user/admin via gateway/", "", "audit", "-o", "wide", "--tail", "0")
	check(admin, 0, "", "", "delete", "web", "--yes", "--wait")
}
