package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/pki/vault"
	"github.com/persys/compute/pki/vault/vaulttest"
	"github.com/persys/compute/testbed"
)

// TestVault: the programs get their certificates from a Vault and renew them there. They keep working
// while the Vault is unreachable, and exit with an error if they have no certificate at the start. The
// file of the cluster key can be opened only with the Vault's transit engine.
func TestVault(t *testing.T) {
	v, err := vaulttest.New()
	must(t, err)
	t.Cleanup(v.Close)
	dir := t.TempDir()
	at := func(name string) pki.Paths {
		return pki.Paths{CA: filepath.Join(dir, name, "ca.pem"), Cert: filepath.Join(dir, name, "cert.pem"), Key: filepath.Join(dir, name, "key.pem")}
	}
	secret := filepath.Join(dir, "secret-id")
	must(t, os.WriteFile(secret, []byte(vaulttest.SecretID+"\n"), 0o600))
	with := func(name, prefix, ca, cert, key string) map[string]string {
		p := at(name)
		env := map[string]string{
			"ENABLED": "true", "ADDR": v.URL, "AUTH_METHOD": "approle", "APPROLE_ROLE_ID": vaulttest.RoleID, "APPROLE_SECRET_ID_FILE": secret,
			"CERT_TTL": "20s", "RETRY_INTERVAL": "1s",
		}
		if prefix != "PERSYS_VAULT_" {
			env["ROLE_ID"], env["SECRET_ID_FILE"] = env["APPROLE_ROLE_ID"], env["APPROLE_SECRET_ID_FILE"]
		}
		out := map[string]string{ca: p.CA, cert: p.Cert, key: p.Key, "PERSYS_TLS_LEGACY_NAMES": "true"}
		for k, val := range env {
			out[prefix+k] = val
		}
		return out
	}
	scheduler := with("scheduler", "PERSYS_VAULT_", "PERSYS_TLS_CA", "PERSYS_TLS_CERT", "PERSYS_TLS_KEY")
	scheduler["SCHEDULER_CLUSTER_KEY_TRANSIT"] = "persys"
	c := got[*harness.Cluster](t)(harness.Prepare(harness.Options{Binaries: raced(t), TLS: true, Schedulers: 1, SchedulerEnv: fast(scheduler)}))
	watchCluster(t, c)
	// Get a certificate for the operator from the same Vault.
	access := vault.Access{Addr: v.URL, Auth: "token", Token: vaulttest.Token}
	person := got[*vault.Source](t)(vault.New(vault.Config{Access: access, Mount: "pki", Role: "persysctl", TTL: time.Hour, Service: "persysctl", Files: at("admin")}))
	must(t, person.Renew(t.Context()))
	c.SetLeaf("user/admin", at("admin"))
	up(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	a := got[*harness.Agent](t)(c.StartAgent(ctx, harness.AgentOptions{Simulate: true, Env: with("agent", "PERSYS_VAULT_", "PERSYS_TLS_CA", "PERSYS_TLS_CERT", "PERSYS_TLS_KEY")}))
	apply(t, c, "first", contentSpec("x"))
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(ctx, "first", settle, running))

	serial := func(name string) (string, error) {
		pair, err := tls.LoadX509KeyPair(at(name).Cert, at(name).Key)
		if err != nil {
			return "", err // the program is just writing the two files, so read them again
		}
		return pair.Leaf.SerialNumber.String(), nil
	}
	renewed := func(t *testing.T, names ...string) {
		t.Helper()
		old := map[string]string{}
		must(t, testbed.Poll(ctx, settle, "new certificates", func(context.Context) error {
			for _, n := range names {
				now, err := serial(n)
				if err != nil {
					return err
				}
				if old[n] == "" {
					old[n] = now
				}
				if old[n] == now {
					return fmt.Errorf("program %s still has its former certificate", n)
				}
			}
			return nil
		}))
	}
	t.Run("certificates are renewed while everything runs", func(t *testing.T) {
		renewed(t, "scheduler", "agent")
		apply(t, c, "second", contentSpec("y"))
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(ctx, "second", settle, running))
	})
	t.Run("a gateway gets a certificate too", func(t *testing.T) {
		env := with("gateway", "PERSYS_GATEWAY_VAULT_", "PERSYS_GATEWAY_TLS_CA_PATH", "PERSYS_GATEWAY_TLS_CERT_PATH", "PERSYS_GATEWAY_TLS_KEY_PATH")
		delete(env, "PERSYS_GATEWAY_VAULT_CERT_TTL") // without this setting the lifetime of a certificate is a day
		addr := gatewayWith(t, c, env)
		if code, out := as(t, c, addr, "admin").do("GET", "/workloads/second", ""); code != 200 || !strings.Contains(fmt.Sprint(out), "Running") {
			t.Errorf("the gateway answered %d %v", code, out)
		}
	})
	t.Run("the file of the cluster key is sealed", func(t *testing.T) {
		raw := got[[]byte](t)(os.ReadFile(filepath.Join(c.Dir, "cluster.key")))
		if !strings.HasPrefix(string(raw), "persys-wrapped-key-1.transit.vault:v1:") {
			t.Errorf("the file of the cluster key begins with %.60q, want an encrypted key", raw)
		}
	})
	t.Run("Vault goes away and comes back", func(t *testing.T) {
		v.Seal(true)
		must(t, testbed.Poll(ctx, settle, "a warning about the failed renewal", func(context.Context) error { return saysOneOf(a.Process, "Vault did not renew the certificate") }))
		must(t, a.Kill())
		must(t, a.Start()) // the agent starts while the Vault is unreachable, with the stored certificate
		must(t, c.WaitNode(ctx, a.NodeID, "Ready", settle))
		b := got[*harness.Agent](t)(c.NewAgent(harness.AgentOptions{Simulate: true, Env: with("other", "PERSYS_VAULT_", "PERSYS_TLS_CA", "PERSYS_TLS_CERT", "PERSYS_TLS_KEY")}))
		must(t, b.Start())
		refuses(t, b.Process, "Vault is sealed", at("other").Cert)
		v.Seal(false)
		renewed(t, "scheduler", "agent")
		must(t, b.Start())
		must(t, c.WaitNode(ctx, b.NodeID, "Ready", settle))
		apply(t, c, "third", contentSpec("z"))
	})
	t.Run("no secret of the Vault is in a log", func(t *testing.T) {
		for _, p := range c.Processes() {
			text := got[string](t)(p.Output())
			for _, s := range []string{vaulttest.SecretID, "hvs.test", "PRIVATE KEY", "persys-key-1."} {
				if strings.Contains(text, s) {
					t.Errorf("the log of %s holds %q", p.Name, s)
				}
			}
		}
	})
}
