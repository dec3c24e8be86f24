package replica

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/term"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/rpc/enrol"
)

// trust manages the certificate of a replica if it comes from the cluster's own CA.
type trust struct {
	identityStore pki.IdentityStore
	dir           string // data folder
	hosts         []string
	life          time.Duration
	name          string
	log           *slog.Logger
}

// defaultCert is the default of PERSYS_TLS_CERT.
const defaultCert = "/etc/persys/certs/persys-scheduler/persys_scheduler.crt"

// identity decides where this replica's certificate comes from: the PERSYS_TLS_* files (nil), a CA that
// this replica creates (--init), a join token, or the certificate of an earlier start with --init or a
// token.
func (c *Config) identity(ctx context.Context, file pki.KeyFile, log *slog.Logger) (*trust, error) {
	if c.Insecure {
		if c.Init || c.hasToken() {
			return nil, errors.New("-init and a join token are for clusters with certificates: leave out -insecure")
		}
		return nil, nil
	}
	t := &trust{
		identityStore: pki.IdentityStore{Dir: filepath.Join(c.DataDir, "tls")}, dir: c.DataDir, name: c.Name, life: c.CertLife, log: log,
		hosts: enrol.Hosts(c.BindAddr, c.AdvertiseIP, c.ExternalIP),
	}
	asked := c.Init || c.hasToken()
	if asked && c.TLSCert != defaultCert {
		return nil, fmt.Errorf("PERSYS_TLS_CERT=%s is set beside -init or a join token: set one of them", c.TLSCert)
	}
	if !asked && (c.TLSCert != defaultCert || !t.identityStore.Exists()) {
		return nil, nil
	}
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("SCHEDULER_DATA_DIR %q: %w", c.DataDir, err)
	}
	var err error
	switch {
	case c.hasToken():
		err = t.join(ctx, c, file)
	case c.Init && !t.identityStore.Exists():
		err = t.begin(c, file)
	}
	if err != nil {
		return nil, err
	}
	if err := t.reissue(file); err != nil {
		return nil, err
	}
	m, err := enrol.LoadMembership(t.identityStore, "SCHEDULER_NAME", c.Name, "start with that name, or with an empty SCHEDULER_DATA_DIR and a token")
	if err != nil {
		return nil, err
	}
	if len(c.Join) == 0 {
		c.Join = m.Gossip
	}
	p := t.identityStore.Paths()
	c.TLSCA, c.TLSCert, c.TLSKey = p.CA, p.Cert, p.Key
	return t, nil
}

func (c *Config) hasToken() bool { return len(c.Join) == 1 && pki.IsJoinToken(c.Join[0]) }

// join enrols with a token. The cluster key comes with the certificate.
func (t *trust) join(ctx context.Context, c *Config, file pki.KeyFile) error {
	r, _ := t.recall() // reissue reports the error
	keep := func(got *clusterv1.EnrolResponse) error {
		if _, err := file.Import(got.GetClusterKey()); err != nil {
			return fmt.Errorf("SCHEDULER_CLUSTER_KEY_FILE: %w", err)
		}
		if got.GetGossipRing() == "" { // gossip uses the key that is derived from the cluster key
			return nil
		}
		return pki.WriteFile(c.gossipRing(), []byte(got.GetGossipRing()), 0o600)
	}
	if err := enrol.Join(ctx, enrol.Options{Token: c.Join[0], Identity: t.identityStore, Role: pki.RoleScheduler, Name: c.Name, Hosts: t.hosts, Keep: keep, Reissues: r != nil, Log: t.log}); err != nil {
		return fmt.Errorf("SCHEDULER_JOIN: %w", err)
	}
	c.Join = nil
	return nil
}

// begin creates the identities of a new cluster: a CA (or it reads the one in SCHEDULER_CA_DIR), the cluster key,
// and a certificate for this replica.
func (t *trust) begin(c *Config, file pki.KeyFile) error {
	if c.BootstrapExpect > 1 || len(c.Join) > 0 {
		return errors.New("SCHEDULER_INIT forms a cluster alone, which others join with tokens: leave out SCHEDULER_BOOTSTRAP_EXPECT and SCHEDULER_JOIN")
	}
	key, _, err := file.LoadOrCreate()
	if err != nil {
		return fmt.Errorf("SCHEDULER_CLUSTER_KEY_FILE: %w", err)
	}
	folder := pki.CAFolder{Dir: c.CADir}
	var a *pki.Authority
	if c.CADir != "" {
		if a, err = folder.Authority(); err != nil {
			return fmt.Errorf("SCHEDULER_CA_DIR: %w", err)
		}
	} else {
		folder.Dir = filepath.Join(c.DataDir, "ca")
		if a, err = folder.Authority(); errors.Is(err, fs.ErrNotExist) {
			a, err = newCA(folder, c.ClusterID)
		}
		if err != nil {
			return err
		}
		t.log.Warn("made a CA; move the root's key to a place that no machine of the cluster can read: it is needed for `persysctl ca rotate` only", "key", folder.RootKeyPath(), "cluster", a.Cluster)
	}
	// Store the authority first: after a crash, certificates can be issued from it again.
	if err := t.remember(key, a, time.Now()); err != nil {
		return err
	}
	if err := t.identityStore.SaveMembership(pki.Membership{Cluster: a.Cluster, Role: pki.RoleScheduler, Name: t.name}); err != nil {
		return err
	}
	return t.sign(a, t.identityStore, pki.RoleScheduler, t.name, time.Now(), t.life)
}

func newCA(folder pki.CAFolder, cluster string) (*pki.Authority, error) {
	if cluster == "" {
		b := make([]byte, 4)
		if _, err := rand.Read(b); err != nil {
			return nil, err
		}
		cluster = "persys-" + hex.EncodeToString(b)
	}
	root, err := pki.NewRoot(cluster, time.Now())
	if err != nil {
		return nil, err
	}
	a, err := root.NewAuthority(cluster, time.Now())
	if err != nil {
		return nil, err
	}
	return a, folder.Create(root, a)
}

// sign issues a certificate on this machine.
func (t *trust) sign(a *pki.Authority, to pki.IdentityStore, role pki.Role, name string, at time.Time, life time.Duration) error {
	keyPEM, csr, err := to.Request(t.hosts)
	if err != nil {
		return err
	}
	got, err := a.Sign(csr, pki.Identity{Role: role, ID: name}, at, life)
	if err != nil {
		return err
	}
	return to.SaveBeside(keyPEM, got.Chain, a.Root.Raw)
}

// remembered is the issuing authority in a file beside the state. If the certificates of all replicas
// expired while they were off, none can ask another for a new one.
type remembered struct {
	Cert, Root []byte
	SealedKey  string
	ActiveAt   int64
}

func (t *trust) rememberedPath() string { return filepath.Join(t.identityStore.Dir, "authority.json") }

func (t *trust) remember(key *pki.Key, a *pki.Authority, activeAt time.Time) error {
	put, err := rpc.SealAuthority(key, a, activeAt)
	if err != nil {
		return err
	}
	return t.save(&fsm.Authority{Cert: put.GetCert(), Root: put.GetRoot(), SealedKey: put.GetSealedKey(), ActiveAt: put.GetActiveAt()})
}

func (t *trust) save(a *fsm.Authority) error {
	raw, err := json.Marshal(remembered{a.Cert, a.Root, a.SealedKey, a.ActiveAt})
	if err != nil {
		return err
	}
	return t.identityStore.SaveFile(t.rememberedPath(), raw)
}

func (t *trust) recall() (*remembered, error) {
	r := &remembered{}
	if found, err := pki.ReadJSON(t.rememberedPath(), r); !found {
		return nil, err
	}
	return r, nil
}

func (r *remembered) open(key *pki.Key) (*pki.Authority, error) {
	return rpc.OpenAuthority(key, &fsm.Authority{ID: pki.Fingerprint(r.Cert), Cert: r.Cert, Root: r.Root, SealedKey: r.SealedKey})
}

// reissue replaces a certificate that has expired, is incomplete, or does not name this replica's present
// addresses: other replicas could not connect there, and this one could not ask them for another.
func (t *trust) reissue(file pki.KeyFile) error {
	leaf, err := t.identityStore.Leaf()
	good := err == nil && time.Now().Before(leaf.NotAfter)
	if good && pki.Covers(leaf, t.hosts) {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	at, life := time.Now(), t.life
	if good { // keep the times of the old one, so that a revocation by name still covers it
		at, life = pki.IssuedAt(leaf), pki.Life(leaf)
	}
	err = t.signAgain(file, at, life)
	if !good {
		return err
	}
	if leaf, lerr := t.identityStore.Leaf(); err != nil || lerr != nil || !pki.Covers(leaf, t.hosts) {
		t.log.Warn("this scheduler keeps a certificate that does not name its present addresses", "name", t.name, "err", err)
	}
	return nil
}

// signAgain issues a certificate with the remembered authority, if there is one.
func (t *trust) signAgain(file pki.KeyFile, at time.Time, life time.Duration) error {
	r, err := t.recall()
	if err != nil || r == nil {
		return errors.Join(err, enrol.Expired(t.identityStore, pki.RoleScheduler, t.name))
	}
	key, err := file.Load()
	if err != nil {
		return fmt.Errorf("SCHEDULER_CLUSTER_KEY_FILE: %w", err)
	}
	a, err := r.open(key)
	if err != nil {
		return err
	}
	t.log.Warn("this scheduler's certificate has expired or does not name its present addresses; issuing a new one with the cluster's authority", "name", t.name)
	return t.sign(a, t.identityStore, pki.RoleScheduler, t.name, at, life)
}

const (
	trustEvery = 250 * time.Millisecond
	trustCall  = 10 * time.Second
	// adminEvery is the period of the check of the admin's identity.
	adminEvery = 5 * time.Second
	caSoon     = 60 * 24 * time.Hour // time before the CA ends from which a warning is logged
)

// runTrust applies certificates, roots and revocations of the state to this replica. With --init it also
// puts the CA into the state. Failures are retried.
func (r *Replica) runTrust(ctx context.Context) {
	var version uint64
	said := ""
	var again, told time.Time // next check for --init; last warning about the end of the CA
	t := time.NewTicker(trustEvery)
	defer t.Stop()
	for {
		v := r.node.Store().View()
		var err error
		if now := v.Info().TrustVersion; now != version {
			r.tls.Revoke(rpc.Revoked(v))
			if r.trust != nil {
				err = r.trust.follow(v)
			}
			if err = errors.Join(err, r.followGossip(v)); err == nil {
				version = now
			}
		}
		if err == nil {
			err = r.advanceGossip(ctx, v)
		}
		if end := time.Unix(caNotAfter(v), 0); end.Unix() > 0 && time.Until(end) < caSoon && time.Since(told) > 24*time.Hour {
			told = time.Now()
			r.log.Warn("the cluster's CA ends, and every certificate with it; before that: persysctl ca rotate DIR, where its root key is, and persysctl ca install DIR", "not_after", end.UTC())
		}
		if now := time.Now(); err == nil && r.trust != nil && r.cfg.Init && now.After(again) {
			var done bool
			if done, err = r.beginTrust(ctx, again.IsZero()); done {
				again = now.Add(adminEvery)
			}
		}
		if err != nil && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			r.log.Warn("this scheduler does not follow the cluster's CA yet; trying again", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// caNotAfter is the end of the issuing authority, or of the last one that issued, in Unix seconds; 0
// without one.
func caNotAfter(v fsm.View) int64 {
	now, last := max(time.Now().UnixNano(), v.Info().Clock), int64(0)
	if a, ok := v.Issuer(now); ok {
		return a.NotAfter / 1e9
	}
	v.Authorities(func(a *fsm.Authority) bool {
		if a.ActiveAt <= now {
			last = max(last, a.NotAfter/1e9)
		}
		return true
	})
	return last
}

// follow stores the roots and the authority of the state in files.
func (t *trust) follow(v fsm.View) error {
	a, ok := v.Issuer(time.Now().UnixNano())
	if !ok {
		return nil
	}
	roots := rpc.Roots(v)
	if err := t.identityStore.SaveRoots(roots); err != nil {
		return err
	}
	if admin := t.admin(); admin.Exists() {
		if err := admin.SaveRoots(roots); err != nil {
			return err
		}
	}
	if r, err := t.recall(); err == nil && r != nil && pki.Fingerprint(r.Cert) == a.ID && r.SealedKey == a.SealedKey {
		return nil
	}
	return t.save(a)
}

// beginTrust puts the CA into the state, admits this scheduler and the admin, and the first time creates
// tokens for the other machines. Each part is done once. The admin's identity is renewed while its files
// are here; an admin who moved them away renews it elsewhere.
func (r *Replica) beginTrust(ctx context.Context, first bool) (bool, error) {
	v := r.node.Store().View()
	if !r.node.IsLeader() || !r.keys.Settled() {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, trustCall)
	defer cancel()
	key, err := r.keys.Key()
	if err != nil {
		return false, err
	}
	known, err := r.trust.recall()
	if err != nil || known == nil {
		return err == nil, err // the cluster of another CA
	}
	a, err := known.open(key)
	if err != nil {
		return false, err
	}
	if _, ok := v.Authority(a.ID()); !ok {
		if _, any := v.Issuer(time.Now().UnixNano()); any {
			return true, nil
		}
		err := r.commitTrust(ctx, &commandv1.Command{Body: &commandv1.Command_PutAuthority{PutAuthority: &commandv1.PutAuthority{
			Id: a.ID(), RootId: pki.Fingerprint(a.Root.Raw), Cert: known.Cert, Root: known.Root, SealedKey: known.SealedKey,
			ActiveAt: known.ActiveAt, NotAfter: a.Cert.NotAfter.UnixNano(),
		}}})
		if err != nil {
			return false, err
		}
	}
	if err := r.admitSelf(ctx, r.trust.identityStore, pki.RoleScheduler, r.cfg.Name, ""); err != nil {
		return false, err
	}
	admin := r.trust.admin()
	leaf, err := admin.Leaf()
	_, revoked := v.RevokedIdentity(string(pki.RoleUser), pki.AdminID)
	if err == nil && !revoked {
		_, revoked = v.RevokedCertificate(pki.Fingerprint(leaf.Raw))
	}
	if revoked || !first && !admin.Exists() {
		return true, nil // a revoked admin is not created again
	}
	if err != nil || time.Now().After(pki.RenewAt(leaf)) || leaf.CheckSignatureFrom(a.Cert) != nil {
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		if err := r.trust.sign(a, admin, pki.RoleUser, pki.AdminID, time.Now(), rpc.CertLife(pki.RoleUser, r.trust.life)); err != nil {
			return false, err
		}
		r.log.Info("made an identity for the admin", "persysctl", adminHint(admin, r.GRPCAddr()))
	}
	if err := r.admitSelf(ctx, admin, pki.RoleUser, pki.AdminID, "admin"); err != nil {
		return false, err
	}
	if !first {
		return true, nil
	}
	err = r.firstTokens(ctx, admin)
	return err == nil, err
}

// admin is the folder in which --init leaves the admin's identity.
func (t *trust) admin() pki.IdentityStore {
	return pki.IdentityStore{Dir: filepath.Join(t.dir, "admin")}
}

func adminHint(k pki.IdentityStore, addr string) string {
	p := k.Paths()
	return fmt.Sprintf("export PERSYS_SCHEDULER_ADDR=%s PERSYS_TLS_CA=%s PERSYS_TLS_CERT=%s PERSYS_TLS_KEY=%s", addr, p.CA, p.Cert, p.Key)
}

// admitSelf records a certificate that this replica issued itself.
func (r *Replica) admitSelf(ctx context.Context, k pki.IdentityStore, role pki.Role, name, access string) error {
	leaf, err := k.Leaf()
	if err != nil {
		return err
	}
	// A later certificate, perhaps of a copy of this identity, stays the newest. Certificates count in
	// whole seconds.
	v, print := r.node.Store().View(), pki.Fingerprint(leaf.Raw)
	if old, ok := v.Admission(string(role), name); ok && (old.Fingerprint == print || old.IssuedAt/1e9 > pki.IssuedAt(leaf).Unix()) {
		return nil
	}
	return r.commitTrust(ctx, &commandv1.Command{Body: &commandv1.Command_Admit{Admit: &commandv1.Admit{
		Role: string(role), Name: name, Access: access, KeySha256: pki.KeyHash(leaf), Fingerprint: print,
		IssuedAt: pki.IssuedAt(leaf).UnixNano(), NotAfter: leaf.NotAfter.UnixNano(),
	}}})
}

func (r *Replica) commitTrust(ctx context.Context, c *commandv1.Command) error {
	c.Head = &commandv1.Head{At: time.Now().UnixNano(), By: r.tls.Identity().String()}
	results, err := r.node.Propose(ctx, c)
	if err != nil {
		return err
	}
	return results[0].Err()
}

// Uses of the tokens of a first start.
const (
	firstSchedulers = 8
	firstAgents     = 100
)

// firstTokens creates a token for schedulers and one for agents, valid for an hour, in files of the admin's
// folder, and prints them on a terminal.
func (r *Replica) firstTokens(ctx context.Context, admin pki.IdentityStore) error {
	p := admin.Paths()
	files, err := pki.LoadFiles(pki.FilesConfig{CA: p.CA, Cert: p.Cert, Key: p.Key})
	if err != nil {
		return err
	}
	cc, err := r.dialSelf(files)
	if err != nil {
		return err
	}
	defer cc.Close()
	var lines []string
	for _, t := range []struct {
		role pki.Role
		uses uint32
	}{{pki.RoleScheduler, firstSchedulers}, {pki.RoleAgent, firstAgents}} {
		path := filepath.Join(admin.Dir, string(t.role)+".token")
		if _, err := os.Stat(path); err == nil {
			continue
		}
		resp, err := clusterv1.NewTrustClient(cc).CreateToken(ctx, &clusterv1.CreateTokenRequest{Role: string(t.role), Uses: t.uses})
		if err != nil {
			return err
		}
		if err := admin.SaveFile(path, []byte(resp.GetToken()+"\n")); err != nil {
			return err
		}
		r.log.Info("made a join token, good for an hour", "role", t.role, "file", path, "id", resp.GetInfo().GetId())
		lines = append(lines, "", fmt.Sprintf("To add %s within the hour:", map[pki.Role]string{pki.RoleScheduler: "schedulers", pki.RoleAgent: "agents"}[t.role]),
			fmt.Sprintf("  persys-%s --join %s", t.role, resp.GetToken()))
	}
	// Tokens are secrets: print them for a person, but not into a journal.
	if len(lines) > 0 && term.IsTerminal(int(os.Stdout.Fd())) {
		fmt.Println(strings.Join(append(lines, "", "To use persysctl on this machine:", "  "+adminHint(admin, r.GRPCAddr()), ""), "\n"))
	}
	return nil
}

// dialSelf connects to this replica's own API at its listen address, because the published address may work
// from other machines only. Every certificate of a scheduler names localhost.
func (r *Replica) dialSelf(files *pki.Files) (*grpc.ClientConn, error) {
	at, err := netip.ParseAddrPort(r.grpcLis.Addr().String())
	if err != nil {
		return nil, err
	}
	if at.Addr().IsUnspecified() { // [::] accepts IPv4 as well
		at = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), at.Port())
	}
	return grpc.NewClient("passthrough:///"+at.String(), grpc.WithNoProxy(), grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(dial.Codec())),
		grpc.WithTransportCredentials(credentials.NewTLS(files.ClientConfig(pki.Peer{Hosts: []string{"localhost"}, Role: pki.RoleScheduler}))))
}

// keepIdentity renews this replica's certificate through its own API, which forwards the request to the
// leader.
func (r *Replica) keepIdentity(ctx context.Context) error {
	cc, err := r.dialSelf(r.tls)
	if err != nil {
		return err
	}
	defer cc.Close()
	k := enrol.Keeper{Identity: r.trust.identityStore, Files: r.tls, Conn: cc, Hosts: r.trust.hosts, Log: r.log, RenewOnly: true}
	k.Run(ctx)
	return nil
}

// gossips returns the gossip addresses of all replicas.
func (r *Replica) gossips() []string {
	var out []string
	r.node.Store().View().Replicas(func(p *fsm.Replica) bool {
		if p.GossipAddr != "" {
			out = append(out, p.GossipAddr)
		}
		return true
	})
	return out
}
