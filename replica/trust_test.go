package replica

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc"
	"github.com/persys/compute/testbed"
)

// TestCertificateFollowsTheAddress: a scheduler that starts at another address gets a certificate for that address. If
// its name was revoked, the new certificate must be revoked too, and the trusted roots must stay the same.
func TestCertificateFollowsTheAddress(t *testing.T) {
	dir := t.TempDir()
	file := pki.KeyFile{Path: filepath.Join(dir, "cluster.key")}
	start := func(hosts ...string) (*trust, []byte) {
		t.Helper()
		tr := &trust{identityStore: pki.IdentityStore{Dir: filepath.Join(dir, "tls")}, dir: dir, hosts: hosts, life: time.Hour, name: "s1", log: slog.New(slog.DiscardHandler)}
		if !tr.identityStore.Exists() {
			if err := tr.begin(&Config{DataDir: dir, ClusterID: "c1"}, file); err != nil {
				t.Fatal(err)
			}
		}
		if err := tr.reissue(file); err != nil {
			t.Fatal(err)
		}
		leaf, err := tr.identityStore.Leaf()
		if err != nil {
			t.Fatal(err)
		}
		if !pki.Covers(leaf, hosts) {
			t.Errorf("the certificate of the scheduler is valid for the names %v and the addresses %v, want all hosts %v", leaf.DNSNames, leaf.IPAddresses, hosts)
		}
		return tr, leaf.Raw
	}
	first, before := start("10.0.0.1", "s1.example.com")
	was, err := first.identityStore.Leaf()
	if err != nil {
		t.Fatal(err)
	}
	if _, again := start("10.0.0.1", "s1.example.com"); !bytes.Equal(again, before) {
		t.Error("the scheduler's certificate must be kept while its hosts stay the same, but was replaced")
	}
	// A scheduler must start although its settings contain an invalid host name.
	odd := &trust{identityStore: first.identityStore, dir: dir, hosts: []string{"no host"}, life: time.Hour, name: "s1", log: first.log}
	if err := odd.reissue(file); err != nil {
		t.Error(err)
	}
	// The cluster has changed its root. The scheduler must trust both the old and the new root.
	other, err := pki.NewRoot("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile(first.identityStore.Paths().CA)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.identityStore.SaveRoots(append(pki.EncodeCerts(other.Cert.Raw), own...)); err != nil {
		t.Fatal(err)
	}
	moved, _ := start("10.0.0.2", "fd00::2", "s1.example.com")
	if roots, err := os.ReadFile(moved.identityStore.Paths().CA); err != nil || bytes.Count(roots, []byte("BEGIN")) != 2 || !bytes.Contains(roots, pki.EncodeCerts(other.Cert.Raw)) {
		t.Errorf("the replica trusts the CAs %s (error %v), want both the old and the new one", roots, err)
	}
	now, err := moved.identityStore.Leaf()
	if err != nil || !pki.IssuedAt(now).Equal(pki.IssuedAt(was)) || !now.NotAfter.Equal(was.NotAfter) {
		t.Errorf("the scheduler's new certificate is valid from %s until %s, and the former certificate from %s until %s (error %v); want equal times", pki.IssuedAt(now), now.NotAfter, pki.IssuedAt(was), was.NotAfter, err)
	}
}

// TestAGoodCertificateStarts: a scheduler has a valid certificate, but cannot issue a new one itself. It must start
// with the certificate that it has.
func TestAGoodCertificateStarts(t *testing.T) {
	for name, spoil := range map[string]func(*trust, pki.KeyFile) error{
		"no authority": func(tr *trust, _ pki.KeyFile) error { return os.Remove(tr.rememberedPath()) },
		"the stored authority is damaged": func(tr *trust, _ pki.KeyFile) error {
			return tr.identityStore.SaveFile(tr.rememberedPath(), []byte("{"))
		},
		"the scheduler has no cluster key": func(_ *trust, file pki.KeyFile) error { return os.Remove(file.Path) },
		"the scheduler has another cluster key": func(_ *trust, file pki.KeyFile) error {
			if err := os.Remove(file.Path); err != nil {
				return err
			}
			_, _, err := file.LoadOrCreate()
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := pki.KeyFile{Path: filepath.Join(dir, "cluster.key")}
			tr := &trust{identityStore: pki.IdentityStore{Dir: filepath.Join(dir, "tls")}, dir: dir, hosts: []string{"10.0.0.1"}, life: time.Hour, name: "s1", log: slog.New(slog.DiscardHandler)}
			if err := tr.begin(&Config{DataDir: dir, ClusterID: "c1"}, file); err != nil {
				t.Fatal(err)
			}
			if err := spoil(tr, file); err != nil {
				t.Fatal(err)
			}
			tr.hosts = []string{"10.0.0.2"}
			if err := tr.reissue(file); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestExpiredCertificatesAreReissued: a scheduler with an expired certificate issues its next certificate itself at
// the start, although a join token is still in its settings. It must not depend on the other schedulers, because their
// certificates may have expired too, and they may be waiting for this scheduler.
func TestExpiredCertificatesAreReissued(t *testing.T) {
	dir := t.TempDir()
	file := pki.KeyFile{Path: filepath.Join(dir, "cluster.key")}
	tr := &trust{identityStore: pki.IdentityStore{Dir: filepath.Join(dir, "tls")}, dir: dir, life: time.Nanosecond, name: "s2", log: slog.New(slog.DiscardHandler)}
	if err := tr.begin(&Config{DataDir: dir, ClusterID: "c1"}, file); err != nil {
		t.Fatal(err)
	}
	token := pki.JoinToken{ID: "t1", Secret: make([]byte, 32), Cluster: "c1", Role: pki.RoleScheduler, Root: strings.Repeat("0", 64), Schedulers: []string{"127.0.0.1:1"}}
	text, err := token.Export()
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.identityStore.SaveMembership(pki.Membership{Cluster: "c1", Role: pki.RoleScheduler, Name: "s2", Token: token.ID, Gossip: []string{"10.0.0.1:8088"}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	cfg := &Config{DataDir: dir, Name: "s2", Join: []string{text}, CertLife: time.Hour, TLSCert: defaultCert}
	if _, err := cfg.identity(ctx, file, tr.log); err != nil {
		t.Fatal(err)
	}
	if leaf, err := tr.identityStore.Leaf(); err != nil || time.Now().After(leaf.NotAfter) || len(cfg.Join) != 1 || cfg.Join[0] != "10.0.0.1:8088" {
		t.Errorf("the scheduler's certificate is valid until %v, and the replicas to join are %v (error %v); want a valid certificate and 10.0.0.1:8088", leaf.NotAfter, cfg.Join, err)
	}
}

// TestInitRefusesSettingsThatWaitForReplicas: --init is refused together with settings that make a scheduler wait for
// other replicas, because these other replicas can join only with the tokens that the scheduler with --init creates.
func TestInitRefusesSettingsThatWaitForReplicas(t *testing.T) {
	for _, c := range []Config{{BootstrapExpect: 3}, {Join: []string{"10.0.0.2:8088"}}} {
		c.Init, c.DataDir, c.TLSCert = true, t.TempDir(), defaultCert
		if _, err := c.identity(t.Context(), pki.KeyFile{}, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "SCHEDULER_BOOTSTRAP_EXPECT") {
			t.Errorf("identity with --init and settings of other replicas returned %v, want an error that names SCHEDULER_BOOTSTRAP_EXPECT", err)
		}
	}
}

// TestARevokedAdminStaysRevoked: the first scheduler renews the admin's identity. It must not create the identity again
// after a revocation, and must not replace a newer certificate.
func TestARevokedAdminStaysRevoked(t *testing.T) {
	cfg, err := DefaultConfig()
	if err != nil {
		t.Fatal(err)
	}
	cfg.Name, cfg.DataDir, cfg.Init, cfg.EtcdEndpoints = "a", t.TempDir(), true, []string{"none"}
	cfg.TokenDirs = map[string]string{"agent": filepath.Join(t.TempDir(), "tokens")}
	cfg.BindAddr, cfg.GRPCPort, cfg.MetricsPort = "127.0.0.1", 0, 0
	cfg.RaftAddr, cfg.GossipAddr, cfg.DNSAddr = "127.0.0.1:0", "127.0.0.1:0", "none"
	r, err := Start(t.Context(), cfg, "test", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = r.Run(ctx) })
	defer wg.Wait()
	defer stop()
	testbed.Until(t, "the scheduler with --init writes the first join tokens", func() bool {
		_, err := os.Stat(filepath.Join(cfg.TokenDirs["agent"], "agent.token"))
		return err == nil
	})
	if _, err := os.Stat(filepath.Join(cfg.DataDir, "admin", "scheduler.token")); err != nil {
		t.Errorf("the folder of the admin lacks the join token for schedulers: %v", err)
	}
	if _, err := os.Stat(filepath.Join(cfg.DataDir, "admin", "agent.token")); err == nil {
		t.Error("the folder of the admin has the join token for agents, which must be only in its own folder")
	}
	again := func() (admitted string) {
		t.Helper()
		if done, err := r.beginTrust(ctx, true); !done || err != nil {
			t.Errorf("beginTrust returned done %t and error %v, want true and no error", done, err)
		}
		a, _ := r.node.Store().View().Admission("user", "admin")
		return a.Fingerprint
	}
	revoke := func(what *commandv1.Revoke) {
		t.Helper()
		if err := r.commitTrust(ctx, &commandv1.Command{Body: &commandv1.Command_Revoke{Revoke: what}}); err != nil {
			t.Fatal(err)
		}
	}
	made, err := r.trust.admin().Leaf()
	if err != nil {
		t.Fatal(err)
	}
	if got := pki.Life(made); got != 24*time.Hour {
		t.Errorf("the admin's certificate is valid for %s, want 24 hours", got)
	}
	if m, err := r.trust.admin().Membership(); err != nil || m.Role != pki.RoleUser || m.Name != "admin" {
		t.Errorf("the membership in the admin's folder is %+v (error %v), want user admin", m, err)
	}
	// The admin's certificate has expired, and another scheduler leads. The scheduler with --init must renew the
	// certificate all the same.
	known, err := r.trust.recall()
	if err != nil {
		t.Fatal(err)
	}
	key, err := r.keys.Key()
	if err != nil {
		t.Fatal(err)
	}
	a, err := known.open(key)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.trust.sign(a, r.trust.admin(), pki.RoleUser, pki.AdminID, time.Now().Add(-48*time.Hour), time.Hour, nil); err != nil {
		t.Fatal(err)
	}
	if err := r.keepAdmin(ctx); err != nil {
		t.Fatal(err)
	}
	if made, err = r.trust.admin().Leaf(); err != nil || time.Until(made.NotAfter) < 23*time.Hour {
		t.Fatalf("the admin's certificate ends at %s (error %v), want it valid for at least 23 hours", made.NotAfter, err)
	}
	if now, _ := r.node.Store().View().Admission("user", "admin"); now.Fingerprint != pki.Fingerprint(made.Raw) || now.Access != "admin" {
		t.Errorf("the admission of the admin is %+v, want an admission of the new certificate with access level admin", now)
	}
	// Now the state says that the admin has renewed the identity on another machine. The scheduler must not replace
	// that certificate.
	next := strings.Repeat("ab", 32)
	err = r.commitTrust(ctx, &commandv1.Command{Body: &commandv1.Command_Admit{Admit: &commandv1.Admit{
		Role: "user", Name: "admin", Access: "admin", KeySha256: pki.KeyHash(made), Fingerprint: next,
		IssuedAt: pki.IssuedAt(made).Add(time.Minute).UnixNano(), NotAfter: made.NotAfter.UnixNano(),
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := again(); got != next {
		t.Error("an older certificate of the admin has replaced the newer certificate that the state records")
	}
	revoke(&commandv1.Revoke{Fingerprint: pki.Fingerprint(made.Raw)})
	again()
	revoke(&commandv1.Revoke{Role: "user", Name: "admin"})
	if err := os.RemoveAll(r.trust.admin().Dir); err != nil {
		t.Fatal(err)
	}
	if again(); r.trust.admin().Exists() {
		t.Error("the scheduler has created the revoked admin again")
	}
}

// The scheduler reports the expiry time of the CA, because a new CA must be installed before that time.
func TestTheEndOfTheCAIsReported(t *testing.T) {
	state, index := fsm.New(), uint64(0)
	apply := func(c *commandv1.Command) {
		t.Helper()
		index++
		next, result, _ := state.Apply(fsm.Meta{Index: index, Term: 1}, c)
		if err := result.Err(); err != nil {
			t.Fatal(err)
		}
		state = next
	}
	apply(&commandv1.Command{Body: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{ClusterId: "c1", Incarnation: 1}}})
	if end := caNotAfter(state); end != 0 {
		t.Errorf("without a CA the reported expiry time of the CA is %d, want 0", end)
	}
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	root, err := pki.NewRoot("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	// Add three authorities: an expired authority that is still in the state, the present authority, and an authority
	// that is not in use yet.
	for _, begun := range []time.Duration{-pki.AuthorityLife - time.Hour, 0, time.Hour} {
		a, err := root.NewAuthority("c1", time.Now().Add(begun))
		if err != nil {
			t.Fatal(err)
		}
		put, err := rpc.SealAuthority(key, a, time.Now().Add(begun))
		if err != nil {
			t.Fatal(err)
		}
		apply(&commandv1.Command{Body: &commandv1.Command_PutAuthority{PutAuthority: put}})
		if left := caNotAfter(state) - time.Now().Add(min(begun, 0)+pki.AuthorityLife).Unix(); left > 0 || left < -60 {
			t.Errorf("the reported expiry time of the CA is %d s after the real one, want at most a minute before it", left)
		}
	}
}
