package replica

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/x509"
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

// trust manages the certificate of this replica if the certificate comes from the cluster's own CA.
type trust struct {
	identityStore pki.IdentityStore
	dir           string // path of the data folder
	hosts         []string
	life, user    time.Duration // validity of the certificates of programs, and of people
	name          string
	log           *slog.Logger
}

// defaultCert is the default value of PERSYS_TLS_CERT.
const defaultCert = "/etc/persys/certs/persys-scheduler/persys_scheduler.crt"

// identity decides where this replica's certificate comes from: the PERSYS_TLS_* files (it then returns nil),
// a new CA that this replica creates (--init), a join token, or an earlier start with --init or a token.
func (c *Config) identity(ctx context.Context, file pki.KeyFile, log *slog.Logger) (*trust, error) {
	if c.Insecure {
		if c.Init || c.hasToken() {
			return nil, errors.New("-init and a join token are for clusters with certificates: leave out -insecure")
		}
		return nil, nil
	}
	t := &trust{
		identityStore: pki.IdentityStore{Dir: filepath.Join(c.DataDir, "tls")}, dir: c.DataDir, name: c.Name, life: c.CertLife, user: c.UserCertLife, log: log,
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

// join gets a certificate with the join token in the settings. The cluster key is sent with the certificate.
func (t *trust) join(ctx context.Context, c *Config, file pki.KeyFile) error {
	r, _ := t.recall() // ignore the error of reading the stored authority: reissue reports it
	keep := func(got *clusterv1.EnrolResponse) error {
		if _, err := file.Import(got.GetClusterKey()); err != nil {
			return fmt.Errorf("SCHEDULER_CLUSTER_KEY_FILE: %w", err)
		}
		// An empty ring means that the cluster still uses the initial gossip key, which is derived from the cluster
		// key.
		if got.GetGossipRing() == "" {
			return nil
		}
		return pki.WriteFile(c.gossipRing(), []byte(got.GetGossipRing()), 0o600)
	}
	if err := enrol.Join(ctx, enrol.Options{Token: c.Join[0], Identity: t.identityStore, Role: pki.RoleScheduler, Name: c.Name, Hosts: t.hosts, Keep: keep, Reissues: r != nil, Status: c.Status, Log: t.log}); err != nil {
		return fmt.Errorf("SCHEDULER_JOIN: %w", err)
	}
	c.Join = nil
	return nil
}

// begin creates the identities of a new cluster: a CA (unless SCHEDULER_CA_DIR contains one), the cluster
// key, and a certificate for this replica.
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
		t.log.Warn("made a CA; move the root's key to a place that no machine of the cluster can read: only `persysctl ca rotate` needs it", "key", folder.RootKeyPath(), "cluster", a.Cluster)
	}
	// Store the issuing authority first, so that it can issue certificates again after a crash.
	if err := t.remember(key, a, time.Now()); err != nil {
		return err
	}
	if err := t.identityStore.SaveMembership(pki.Membership{Cluster: a.Cluster, Role: pki.RoleScheduler, Name: t.name}); err != nil {
		return err
	}
	return t.sign(a, t.identityStore, pki.RoleScheduler, t.name, time.Now(), t.life, nil)
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

// sign issues a certificate with the key of authority a, without another scheduler, and stores it in the identity
// store to. If admit is not nil, it is called before the certificate is stored, to admit its holder to the cluster.
func (t *trust) sign(a *pki.Authority, to pki.IdentityStore, role pki.Role, name string, at time.Time, life time.Duration, admit func(*x509.Certificate) error) error {
	keyPEM, csr, err := to.Request(t.hosts)
	if err != nil {
		return err
	}
	got, err := a.Sign(csr, pki.Identity{Role: role, ID: name}, pki.Hosts{Requested: true}, at, life)
	if err != nil {
		return err
	}
	if admit != nil {
		if err := admit(got.Cert); err != nil {
			return err
		}
	}
	return to.SaveBeside(keyPEM, got.Chain, a.Root.Raw)
}

// remembered is the content of a file beside the state: the issuing certificate authority. With it a replica can issue
// its own certificate if the certificates of all replicas expired while the replicas were off.
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

// reissue makes a new certificate for this replica, signed with the stored key of the authority, if the present one
// has expired, is incomplete, or does not contain the replica's present addresses. With such a certificate the
// replicas could not connect to each other, so this replica could not request another certificate from them.
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
	if good { // keep the times of the former certificate, so that a revocation of the name still covers the new certificate
		at, life = pki.IssuedAt(leaf), pki.Life(leaf)
	}
	err = t.signAgain(file, at, life)
	if !good {
		return err
	}
	if leaf, lerr := t.identityStore.Leaf(); err != nil || lerr != nil || !pki.Covers(leaf, t.hosts) {
		t.log.Warn("this scheduler keeps a certificate that does not contain its present addresses", "name", t.name, "err", err)
	}
	return nil
}

// signAgain issues a new certificate for this scheduler, with the cluster's authority that the replica has stored; file
// has the key that opens it. Without a stored authority, signAgain fails if the present certificate has expired.
func (t *trust) signAgain(file pki.KeyFile, at time.Time, life time.Duration) error {
	r, err := t.recall()
	if err != nil || r == nil {
		return errors.Join(err, enrol.Expired(t.identityStore, pki.RoleScheduler, t.name))
	}
	key, err := file.LoadAll()
	if err != nil {
		return fmt.Errorf("SCHEDULER_CLUSTER_KEY_FILE: %w", err)
	}
	a, err := r.open(key)
	if err != nil {
		return err
	}
	t.log.Warn("this scheduler's certificate has expired or does not contain its present addresses; issuing a new one with the cluster's authority", "name", t.name)
	return t.sign(a, t.identityStore, pki.RoleScheduler, t.name, at, life, nil)
}

const (
	trustEvery = 250 * time.Millisecond
	trustCall  = 10 * time.Second
	// adminEvery is the period at which the admin's identity is checked.
	adminEvery = 5 * time.Second
	// adminBridge is the validity of a certificate of the admin that serves only to request the admin's next
	// certificate. Half of the validity is in the past, so that the program renews it at its next check.
	adminBridge = 10 * time.Minute
	caSoon      = 60 * 24 * time.Hour // how long before the expiry of the CA a warning is logged
)

// runTrust applies the certificates, roots and revocations in the state to this replica. With --init it also stores
// the CA in the state. It tries failed steps again until ctx ends.
func (r *Replica) runTrust(ctx context.Context) {
	var version uint64
	said := ""
	var again, told time.Time // again: time of the next check for --init; told: time of the last warning about the expiry of the CA
	var admin time.Time       // time of the next check of the admin's identity
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
			r.log.Warn("the cluster's CA will expire, and with it every certificate; before that, run persysctl ca rotate DIR on the machine with the root key, then persysctl ca install DIR", "not_after", end.UTC())
		}
		if now := time.Now(); err == nil && r.trust != nil && r.cfg.Init && now.After(again) {
			var done bool
			if done, err = r.beginTrust(ctx, again.IsZero()); done {
				again = now.Add(adminEvery)
			}
			if err == nil && !r.node.IsLeader() && now.After(admin) {
				admin = now.Add(adminEvery)
				err = r.keepAdmin(ctx)
			}
		}
		if err != nil && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			r.log.Warn("this scheduler could not apply the cluster's certificates and revocations yet; trying again", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// caNotAfter returns the time at which the certificate of the present issuing authority expires, in Unix
// seconds. If all authorities have expired, it returns the latest of their expiry times; 0 if there is no authority.
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

// follow writes the roots and the issuing authority in the state to this replica's files.
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

// beginTrust stores the CA in the state, and admits this scheduler and the admin. The first time, it also
// creates join tokens for the other machines. It does not repeat parts that were done before. It renews the admin's
// identity as long as the identity's files are on this machine; an admin who has moved the files to another machine
// renews the identity there.
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
		return err == nil, err // this replica stores no authority, so another scheduler has made the CA
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
	own, err := r.trust.identityStore.Leaf()
	if err != nil {
		return false, err
	}
	if err := r.admit(ctx, own, pki.RoleScheduler, r.cfg.Name, ""); err != nil {
		return false, err
	}
	admin := r.trust.admin()
	leaf, err := admin.Leaf()
	_, revoked := v.RevokedIdentity(string(pki.RoleUser), pki.AdminID)
	if err == nil && !revoked {
		_, revoked = v.RevokedCertificate(pki.Fingerprint(leaf.Raw))
	}
	if revoked || !first && !admin.Exists() {
		return true, nil // do not create a revoked admin again
	}
	if err != nil || time.Now().After(pki.RenewAt(leaf)) || leaf.CheckSignatureFrom(a.Cert) != nil {
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		// Record the admission of the certificate before the certificate's files are written, because a program that
		// reads the files may connect at once.
		admit := func(leaf *x509.Certificate) error { return r.admit(ctx, leaf, pki.RoleUser, pki.AdminID, "admin") }
		if err := r.trust.sign(a, admin, pki.RoleUser, pki.AdminID, time.Now(), r.trust.user, admit); err != nil {
			return false, err
		}
		if err := admin.SaveMembership(pki.Membership{Cluster: a.Cluster, Role: pki.RoleUser, Name: pki.AdminID}); err != nil {
			return false, err
		}
		r.log.Info("made a certificate for the admin", "persysctl", adminHint(admin, r.GRPCAddr()))
	} else if err := r.admit(ctx, leaf, pki.RoleUser, pki.AdminID, "admin"); err != nil {
		return false, err
	}
	if !first {
		return true, nil
	}
	err = r.firstTokens(ctx, admin)
	return err == nil, err
}

// keepAdmin renews the admin's identity on the scheduler with --init while another scheduler leads.
// An expired certificate cannot be used to request a new certificate. If the admin's certificate has expired, keepAdmin
// first issues a certificate that is valid for a few minutes, and uses it for the request.
func (r *Replica) keepAdmin(ctx context.Context) error {
	admin, v := r.trust.admin(), r.node.Store().View()
	leaf, err := admin.Leaf()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || time.Now().Before(pki.RenewAt(leaf)) {
		return err
	}
	if _, ok := v.Admission(string(pki.RoleUser), pki.AdminID); !ok {
		return nil
	}
	if at, ok := v.RevokedIdentity(string(pki.RoleUser), pki.AdminID); ok && pki.IssuedAt(leaf).UnixNano() <= at.At {
		return nil
	}
	if _, ok := v.RevokedCertificate(pki.Fingerprint(leaf.Raw)); ok {
		return nil
	}
	if time.Now().After(leaf.NotAfter) {
		known, err := r.trust.recall()
		if err != nil || known == nil {
			return err
		}
		key, err := r.keys.Key()
		if err != nil {
			return err
		}
		a, err := known.open(key)
		if err != nil {
			return err
		}
		if err := r.trust.sign(a, admin, pki.RoleUser, pki.AdminID, time.Now().Add(-adminBridge/2), adminBridge, nil); err != nil {
			return err
		}
		r.log.Warn("the admin's certificate had expired; asking the leader for a new one", "folder", admin.Dir)
	}
	files, cc, err := r.dialAs(admin)
	if err != nil {
		return err
	}
	defer cc.Close()
	ctx, cancel := context.WithTimeout(ctx, trustCall)
	defer cancel()
	k := enrol.Keeper{Identity: admin, Files: files, Conn: cc, Log: r.log, RenewOnly: true, Eager: true}
	return k.Once(ctx)
}

// admin returns the folder in which --init stores the identity of the admin.
func (t *trust) admin() pki.IdentityStore {
	return pki.IdentityStore{Dir: filepath.Join(t.dir, "admin")}
}

func adminHint(k pki.IdentityStore, addr string) string {
	p := k.Paths()
	return fmt.Sprintf("export PERSYS_SCHEDULER_ADDR=%s PERSYS_TLS_CA=%s PERSYS_TLS_CERT=%s PERSYS_TLS_KEY=%s", addr, p.CA, p.Cert, p.Key)
}

// admit records in the state that the holder of a certificate, which this replica has issued itself, is
// admitted to the cluster.
func (r *Replica) admit(ctx context.Context, leaf *x509.Certificate, role pki.Role, name, access string) error {
	// If the state already has an admission with a later certificate of this identity, perhaps from another machine,
	// keep that admission. The comparison uses whole seconds, as certificates do.
	v, print := r.node.Store().View(), pki.Fingerprint(leaf.Raw)
	if old, ok := v.Admission(string(role), name); ok && (old.Fingerprint == print || old.IssuedAt/1e9 > pki.IssuedAt(leaf).Unix()) {
		return nil
	}
	return r.commitTrust(ctx, &commandv1.Command{Body: &commandv1.Command_Admit{Admit: &commandv1.Admit{
		Role: string(role), Name: name, Access: access, KeySha256: pki.KeyHash(leaf), Fingerprint: print,
		IssuedAt: pki.IssuedAt(leaf).UnixNano(), NotAfter: leaf.NotAfter.UnixNano(),
	}}})
}

// commitTrust proposes a command about identities, with this replica as its author.
func (r *Replica) commitTrust(ctx context.Context, c fsm.Command) error {
	return r.propose(ctx, r.tls.Identity().String(), c)
}

// Number of uses of each join token that the first start with --init creates.
const (
	firstSchedulers = 8
	firstAgents     = 100
)

// firstTokens creates a join token for schedulers and one for agents, valid for an hour. It writes them to
// files in the folders of SCHEDULER_TOKEN_DIR, by default in the admin's folder, and prints them if the
// output is a terminal.
func (r *Replica) firstTokens(ctx context.Context, admin pki.IdentityStore) error {
	_, cc, err := r.dialAs(admin)
	if err != nil {
		return err
	}
	defer cc.Close()
	var lines []string
	for _, t := range []struct {
		role pki.Role
		uses uint32
	}{{pki.RoleScheduler, firstSchedulers}, {pki.RoleAgent, firstAgents}} {
		folder := pki.IdentityStore{Dir: cmp.Or(r.cfg.TokenDirs[string(t.role)], admin.Dir)}
		path := filepath.Join(folder.Dir, string(t.role)+".token")
		if _, err := os.Stat(path); err == nil {
			continue
		}
		resp, err := clusterv1.NewTrustClient(cc).CreateToken(ctx, &clusterv1.CreateTokenRequest{Role: string(t.role), Uses: t.uses})
		if err != nil {
			return err
		}
		if err := folder.SaveFile(path, []byte(resp.GetToken()+"\n")); err != nil {
			return err
		}
		r.log.Info("made a join token that is valid for an hour", "role", t.role, "file", path, "id", resp.GetInfo().GetId())
		lines = append(lines, "", fmt.Sprintf("To add %s within the hour:", map[pki.Role]string{pki.RoleScheduler: "schedulers", pki.RoleAgent: "agents"}[t.role]),
			fmt.Sprintf("  persys-%s --join %s", t.role, resp.GetToken()))
	}
	// Tokens are secrets: print them only on a terminal, so that they do not get into a journal.
	if len(lines) > 0 && term.IsTerminal(int(os.Stdout.Fd())) {
		fmt.Println(strings.Join(append(lines, "", "To use persysctl on this machine:", "  "+adminHint(admin, r.GRPCAddr()), ""), "\n"))
	}
	return nil
}

// dialAs connects to this replica's own API with the certificate in id.
func (r *Replica) dialAs(id pki.IdentityStore) (*pki.Files, *grpc.ClientConn, error) {
	p := id.Paths()
	files, err := pki.LoadFiles(pki.FilesConfig{CA: p.CA, Cert: p.Cert, Key: p.Key})
	if err != nil {
		return nil, nil, err
	}
	cc, err := r.dialSelf(files)
	return files, cc, err
}

// dialSelf connects to this replica's own API at the listen address, because the published address may be
// reachable only from other machines. The connection verifies the name localhost, which every scheduler's certificate
// contains.
func (r *Replica) dialSelf(files *pki.Files) (*grpc.ClientConn, error) {
	at, err := netip.ParseAddrPort(r.grpcLis.Addr().String())
	if err != nil {
		return nil, err
	}
	if at.Addr().IsUnspecified() { // a listener at [::] accepts IPv4 as well
		at = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), at.Port())
	}
	return grpc.NewClient("passthrough:///"+at.String(), grpc.WithNoProxy(), grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(dial.Codec())),
		grpc.WithTransportCredentials(credentials.NewTLS(files.ClientConfig(pki.Peer{Hosts: []string{"localhost"}, Role: pki.RoleScheduler}))))
}

// keepIdentity renews this replica's certificate. It makes the request through this replica's own API, which
// forwards it to the leader.
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

// gossips returns the gossip addresses of all replicas in the state, at which a new scheduler can join.
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
