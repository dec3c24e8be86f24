package pki

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// checkEvery is the shortest time between two checks of the files' modification times.
const checkEvery = time.Second

// awaitEvery is the longest time after which Await reads the clock again.
const awaitEvery = time.Minute

// pemMax is the maximum size of a certificate or key file in bytes.
const pemMax = 1 << 20

// Settings holds the names of a program's TLS settings, which error messages show. Defaults are
// PERSYS_TLS_CA, PERSYS_TLS_CERT, PERSYS_TLS_KEY and -insecure.
type Settings struct {
	CA, Cert, Key, Insecure string
}

func (s Settings) withDefaults() Settings {
	def := func(p *string, v string) {
		if *p == "" {
			*p = v
		}
	}
	def(&s.CA, "PERSYS_TLS_CA")
	def(&s.Cert, "PERSYS_TLS_CERT")
	def(&s.Key, "PERSYS_TLS_KEY")
	def(&s.Insecure, "-insecure")
	return s
}

// FilesConfig is the configuration of Files.
type FilesConfig struct {
	CA   string // path of a PEM file with one or more CA certificates
	Cert string // path of a PEM file with this program's certificate, then intermediate certificates
	Key  string // path of a PEM file with the private key of this program's certificate
	// Mapping gives an identity to certificates without a persys:// URI. The zero value accepts only
	// certificates with such a URI. See PeerMapping.
	Mapping  Mapping
	Settings Settings
	// Log gets one line for each reload and for each failed reload of the files. Reloads happen during
	// handshakes. Default: no log.
	Log *slog.Logger
	// Now returns the present time; default time.Now.
	Now func() time.Time
}

// Files is a TLS identity (CA, certificate, key) that is reloaded when its files change. If the new content
// is invalid, Status reports the error and the old content stays in use. Files is safe for concurrent use.
type Files struct {
	cfg FilesConfig

	revoked atomic.Pointer[Revoked]

	mu      sync.Mutex
	changed chan struct{} // channel that the next Revoke closes
	open    map[*cuttable]struct{}
	current *material
	checked time.Time
	err     error // error of the last reload; nil if the content in use is that of the files
}

// material is the parsed content of the three files (CA, certificate and key) as they were when they were last read
// without an error.
type material struct {
	stamp    [3]stamp
	loaded   time.Time
	cert     tls.Certificate
	leaf     *x509.Certificate
	roots    *x509.CertPool
	identity Identity
	warnings []string
}

type stamp struct {
	mod  time.Time
	size int64
}

// LoadFiles reads and checks the three files. An error names the file, its setting and what is wrong: a file
// is missing, a file is not PEM, the key does not match the certificate, or the CA file has no certificate.
func LoadFiles(cfg FilesConfig) (*Files, error) {
	cfg.Settings = cfg.Settings.withDefaults()
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	f := &Files{cfg: cfg, changed: make(chan struct{}), open: map[*cuttable]struct{}{}}
	m, err := f.read()
	if err != nil {
		return nil, err
	}
	f.current, f.checked = m, cfg.Now()
	for _, w := range f.warnings(m) {
		cfg.Log.Warn("the TLS credentials have a problem", "warning", w)
	}
	return f, nil
}

// FilesStatus describes the certificate in use.
type FilesStatus struct {
	Identity Identity  // identity of this program; zero if its certificate names none
	NotAfter time.Time // time at which the certificate expires
	Loaded   time.Time // when the certificate in use was read from the files
	Warnings []string  // warnings, for instance that the certificate has expired
	// Err is the reason why the present content of the files is not in use; nil if it is in use.
	Err error
}

// Status describes the certificate in use. It checks the files for changes, at most once per second.
func (f *Files) Status() FilesStatus {
	m, err := f.refresh()
	return FilesStatus{
		Identity: m.identity,
		NotAfter: m.leaf.NotAfter,
		Loaded:   m.loaded,
		Warnings: f.warnings(m),
		Err:      err,
	}
}

// Identity returns the identity in this program's own certificate. It is zero if the certificate names none.
func (f *Files) Identity() Identity {
	m, _ := f.refresh()
	return m.identity
}

// Identify returns the identity of a peer, with the configured mapping. The handshake must have verified the
// peer's chain, as every handshake of ServerConfig and ClientConfig does. Identify refuses a certificate that
// has expired or was revoked since the handshake.
func (f *Files) Identify(state tls.ConnectionState) (Identity, error) {
	if len(state.PeerCertificates) == 0 {
		return Identity{}, fmt.Errorf("%w: the peer showed no certificate", ErrNoIdentity)
	}
	leaf := state.PeerCertificates[0]
	id, err := FromCertificate(leaf, f.cfg.Mapping)
	if err != nil {
		return Identity{}, err
	}
	if now := f.cfg.Now(); now.After(leaf.NotAfter) {
		return Identity{}, fmt.Errorf("certificate of %s %q expired at %s", id.Role, id.ID, leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	if err := f.revoked.Load().Check(leaf, id); err != nil {
		return Identity{}, err
	}
	return id, nil
}

// Await waits until the certificate of a connected peer expires or is revoked, and returns the reason. It
// returns nil if ctx ends first.
func (f *Files) Await(ctx context.Context, state tls.ConnectionState) error {
	for {
		f.mu.Lock()
		changed := f.changed
		f.mu.Unlock()
		if _, err := f.Identify(state); err != nil {
			return err
		}
		// A timer does not notice when somebody sets the clock, so check again at least every awaitEvery.
		left := state.PeerCertificates[0].NotAfter.Sub(f.cfg.Now())
		over := time.NewTimer(min(max(left, 0)+time.Millisecond, awaitEvery))
		select {
		case <-ctx.Done():
		case <-changed:
		case <-over.C:
		}
		over.Stop()
		if ctx.Err() != nil {
			return nil
		}
	}
}

// Leaf returns this program's own certificate that is in use.
func (f *Files) Leaf() *x509.Certificate {
	m, _ := f.refresh()
	return m.leaf
}

// ServerOptions selects which clients may connect to a server.
type ServerOptions struct {
	// Roles are the roles that may connect. If it is empty, every client with a certificate of the CA may
	// connect.
	Roles []Role
	// NextProtos are the ALPN protocols of the server, as in tls.Config.
	NextProtos []string
	// Optional admits clients without a certificate. The server must authenticate these by other means, such
	// as a bearer token. If a client presents a certificate, it is verified anyway.
	Optional bool
	// OwnOnly requires TLS 1.3. It is for a port that only programs of this project use.
	OwnOnly bool
}

// least returns the lowest version of TLS that the server accepts in a handshake. It is 1.2 if programs of other
// projects may connect. The function modern then refuses versions below 1.3 for a peer with a persys:// certificate.
func (o ServerOptions) least() uint16 {
	if o.OwnOnly {
		return tls.VersionTLS13
	}
	return tls.VersionTLS12
}

// ErrDowngraded is returned, wrapped, if a peer with a persys:// certificate negotiates a version below TLS 1.3. All
// such peers support 1.3, so somebody may be manipulating the connection.
var ErrDowngraded = errors.New("programs of this cluster must use TLS 1.3 with each other")

// modern returns an error if a peer with a persys:// certificate does not use TLS 1.3.
func modern(state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 || state.Version >= tls.VersionTLS13 {
		return nil
	}
	for _, u := range state.PeerCertificates[0].URIs {
		if u.Scheme == scheme {
			return fmt.Errorf("%s speaks %s: %w", u, tls.VersionName(state.Version), ErrDowngraded)
		}
	}
	return nil
}

// ServerConfig returns a server's configuration for mutual TLS that always uses the present content of the
// files. Programs of this project must use TLS 1.3, others 1.2 or newer.
func (f *Files) ServerConfig(opt ServerOptions) *tls.Config {
	auth := tls.RequireAndVerifyClientCert
	if opt.Optional {
		auth = tls.VerifyClientCertIfGiven
	}
	forClient := func(*tls.ClientHelloInfo) (*tls.Config, error) {
		m, _ := f.refresh()
		return &tls.Config{
			MinVersion:   opt.least(),
			NextProtos:   opt.NextProtos,
			Certificates: []tls.Certificate{m.cert},
			ClientAuth:   auth,
			ClientCAs:    m.roots,
			Time:         f.cfg.Now,
			VerifyConnection: func(state tls.ConnectionState) error {
				if opt.Optional && len(state.PeerCertificates) == 0 {
					return nil
				}
				if err := modern(state); err != nil {
					return err
				}
				return f.admit(state, opt.Roles)
			},
		}, nil
	}
	return &tls.Config{
		MinVersion: opt.least(),
		NextProtos: opt.NextProtos,
		// net/http requires that this field is set. Handshakes do not use it, because GetConfigForClient returns
		// another configuration.
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			m, _ := f.refresh()
			return &m.cert, nil
		},
		ClientAuth:         auth,
		GetConfigForClient: forClient,
	}
}

// admit returns an error if the peer has none of the roles. An empty list of roles admits every peer.
func (f *Files) admit(state tls.ConnectionState, roles []Role) error {
	if len(roles) == 0 {
		return nil
	}
	id, err := f.Identify(state)
	if err != nil {
		return err
	}
	if !slices.Contains(roles, id.Role) {
		return fmt.Errorf("peer %s: role %s may not connect here, want %v", id.CommonName, id.Role, roles)
	}
	return nil
}

// Peer describes the server to which a client wants to connect.
type Peer struct {
	// Hosts are the dialled names or IP addresses. The server's certificate must contain one of them.
	Hosts []string
	// Role, if set, is the role that the server must have. A server certificate without an identity is
	// accepted if its CA and host are valid, because legacy v1 peers have arbitrary names.
	Role Role
	// Node, if set, is the node whose agent the server must be. Orders for the node then reach no other agent, even if
	// the node registers with another agent's address. If the certificate names the node, it need not contain any of
	// Hosts.
	Node string
}

// ClientConfig returns a client's TLS configuration. The client presents this program's certificate, and
// checks CA, host and role of the server with the present content of the files. Servers of this project must
// use TLS 1.3, others 1.2 or newer.
func (f *Files) ClientConfig(p Peer) *tls.Config {
	cfg := &tls.Config{
		MinVersion: tls.VersionTLS12,
		Time:       f.cfg.Now,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			m, _ := f.refresh()
			return &m.cert, nil
		},
		// Turn off the check of crypto/tls, which would always use the CA as it is now. VerifyConnection below makes
		// the same check with the CA that is in the file at the time of the handshake.
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			return f.verifyServer(state, p)
		},
	}
	if len(p.Hosts) > 0 {
		cfg.ServerName = p.Hosts[0]
	}
	return cfg
}

func (f *Files) verifyServer(state tls.ConnectionState, p Peer) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("server showed no certificate")
	}
	if len(p.Hosts) == 0 {
		return errors.New("there is no host name to check the server's certificate against")
	}
	if err := modern(state); err != nil {
		return err
	}
	m, _ := f.refresh()
	leaf := state.PeerCertificates[0]
	between := x509.NewCertPool()
	for _, c := range state.PeerCertificates[1:] {
		between.AddCert(c)
	}
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots:         m.roots,
		Intermediates: between,
		CurrentTime:   f.cfg.Now(),
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return fmt.Errorf("certificate of %s is not valid for the CA in %s: %w", p.Hosts[0], f.cfg.CA, err)
	}
	var hostErr error
	for _, host := range p.Hosts {
		if hostErr = leaf.VerifyHostname(host); hostErr == nil {
			break
		}
	}
	id, err := FromCertificate(leaf, f.cfg.Mapping)
	// The persys:// URI in an agent's certificate names the node, which proves more than a host name does. So the
	// certificate need not contain the dialled host.
	if hostErr != nil && !(err == nil && p.Node != "" && id.Role == RoleAgent && !id.Mapped) {
		return hostErr
	}
	if errors.Is(err, ErrNoIdentity) {
		// The CA and the host are valid. Refuse the certificate if it contains a service name that legacy v1 peers use
		// for another role than the expected one. This check can only refuse a peer; it gives the peer no rights.
		id, err = FromCertificate(leaf, LegacyMapping(""))
	}
	if errors.Is(err, ErrNoIdentity) || p.Role == "" && err != nil {
		return nil
	}
	if err != nil {
		return err
	}
	if err := f.revoked.Load().Check(leaf, id); err != nil {
		return err
	}
	if p.Role == "" {
		return nil
	}
	if id.Role != p.Role {
		return fmt.Errorf("certificate of %s belongs to %s %q, want role %s", p.Hosts[0], id.Role, id.ID, p.Role)
	}
	if p.Node != "" && id.Role == RoleAgent && !id.SpeaksFor(p.Node) {
		return fmt.Errorf("the certificate that %s presented belongs to agent %q, which is not the agent of node %q", p.Hosts[0], id.ID, p.Node)
	}
	return nil
}

// refresh returns the material in use. It checks the files for changes if the last check was at least a
// second ago.
func (f *Files) refresh() (*material, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.cfg.Now()
	if d := now.Sub(f.checked); d >= 0 && d < checkEvery {
		return f.current, f.err
	}
	f.checked = now
	stamps, err := f.stamps()
	if err == nil && f.err == nil && stamps == f.current.stamp {
		return f.current, nil
	}
	// Ignore an error of os.Stat: read then fails too, with an error that names the setting.
	m, err := f.read()
	if err != nil {
		if f.err == nil || f.err.Error() != err.Error() {
			f.cfg.Log.Error("the TLS files have changed but cannot be used; the former ones stay in use", "error", err)
		}
		f.err = err
		return f.current, err
	}
	if m.stamp != f.current.stamp {
		f.cfg.Log.Info("TLS credentials reloaded", "not_after", m.leaf.NotAfter, "warnings", f.warnings(m))
	}
	f.current, f.err = m, nil
	return m, nil
}

func (f *Files) stamps() (s [3]stamp, err error) {
	for i, path := range []string{f.cfg.CA, f.cfg.Cert, f.cfg.Key} {
		st, err := os.Stat(path)
		if err != nil {
			return s, err
		}
		s[i] = stamp{st.ModTime(), st.Size()}
	}
	return s, nil
}

// read takes the modification times before it reads the content. If a file changes in between, the next check
// reads it again.
func (f *Files) read() (*material, error) {
	set := f.cfg.Settings
	files := []struct{ setting, path string }{{set.CA, f.cfg.CA}, {set.Cert, f.cfg.Cert}, {set.Key, f.cfg.Key}}
	m := &material{loaded: f.cfg.Now()}
	var data [3][]byte
	for i, file := range files {
		if file.path == "" {
			return nil, fmt.Errorf("TLS: %s is not set: set %s, %s and %s, or start with %s",
				file.setting, set.CA, set.Cert, set.Key, set.Insecure)
		}
		st, err := os.Stat(file.path)
		if err == nil && st.Size() > pemMax {
			return nil, fmt.Errorf("TLS: %s=%s: %d bytes, limit %d", file.setting, file.path, st.Size(), pemMax)
		}
		if err == nil {
			data[i], err = os.ReadFile(file.path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("TLS: no file %s: set %s, %s and %s, or start with %s: %w",
				file.path, set.CA, set.Cert, set.Key, set.Insecure, err)
		}
		if err != nil {
			return nil, fmt.Errorf("TLS: %s=%s: %w", file.setting, file.path, err)
		}
		m.stamp[i] = stamp{st.ModTime(), st.Size()}
		if file.setting == set.Key && st.Mode().Perm()&0o004 != 0 {
			m.warnings = append(m.warnings, fmt.Sprintf("%s: mode %04o lets everybody read the private key, want 0600", file.path, st.Mode().Perm()))
		}
	}
	var err error
	if m.roots, err = parseRoots(data[0]); err != nil {
		return nil, fmt.Errorf("TLS: %s=%s: %w", set.CA, f.cfg.CA, err)
	}
	if m.cert, err = tls.X509KeyPair(data[1], data[2]); err != nil {
		return nil, fmt.Errorf("TLS: %s=%s with %s=%s: %s", set.Cert, f.cfg.Cert, set.Key, f.cfg.Key,
			strings.TrimPrefix(err.Error(), "tls: "))
	}
	m.leaf = m.cert.Leaf
	// This program's own certificate may lack an identity, because other CAs use arbitrary names. A
	// malformed identity is an error.
	m.identity, err = FromCertificate(m.leaf, f.cfg.Mapping)
	if err != nil && !errors.Is(err, ErrNoIdentity) {
		return nil, fmt.Errorf("TLS: %s=%s: %w", set.Cert, f.cfg.Cert, err)
	}
	return m, nil
}

// warnings returns what is questionable about the files, and about the validity of this program's
// certificate. An expired certificate is not an error: the clock may be wrong, and peers refuse it anyway.
func (f *Files) warnings(m *material) []string {
	all := slices.Clone(m.warnings)
	now := f.cfg.Now()
	switch {
	case now.After(m.leaf.NotAfter):
		all = append(all, fmt.Sprintf("%s: expired at %s", f.cfg.Cert, m.leaf.NotAfter.UTC().Format(time.RFC3339)))
	case now.Before(m.leaf.NotBefore):
		all = append(all, fmt.Sprintf("%s: not valid before %s", f.cfg.Cert, m.leaf.NotBefore.UTC().Format(time.RFC3339)))
	}
	return all
}

func parseRoots(data []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	n := 0
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", n+1, err)
		}
		pool.AddCert(cert)
		n++
	}
	if n == 0 {
		return nil, errors.New("holds no PEM certificate")
	}
	return pool, nil
}
