package vault

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/persys/compute/pki"
)

// Config of a Source.
type Config struct {
	Access
	Mount string        // of the PKI engine
	Role  string        // of the PKI engine
	TTL   time.Duration // that certificates are asked for
	Retry time.Duration // how long to wait after a failure
	// Service is the common name; <Service>.<Domain> is another name when Domain is set.
	Service, Domain string
	// Hosts are further names and addresses that this program answers at: its bind
	// address, the id of a node, an external address.
	Hosts []string
	// Bind is the name or address that it binds to: a file pair that is there is taken
	// when it is made out to it, to Service or to <Service>.<Domain>.
	Bind  string
	Files pki.Paths
	Log   *slog.Logger
	Now   func() time.Time // default time.Now
}

// Source is where a program's certificate comes from. Start it, then Run it.
type Source struct {
	cfg   Config
	stale bool // Vault was away at the start: what lies there is used until it answers
	// unsaved is a good answer that could not be written: Vault is not asked for another until it can.
	unsaved map[string]any
}

// New checks the settings. Errors name them.
func New(cfg Config) (*Source, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	for _, s := range []struct{ name, value string }{{"PKI_MOUNT", cfg.Mount}, {"PKI_ROLE", cfg.Role}, {"SERVICE_NAME", cfg.Service}} {
		if s.value == "" {
			return nil, fmt.Errorf("%s must not be blank", cfg.setting(s.name))
		}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.Retry = cmp.Or(cfg.Retry, time.Minute)
	return &Source{cfg: cfg}, nil
}

// Open is New and Start.
func Open(ctx context.Context, cfg Config) (*Source, error) {
	s, err := New(cfg)
	if err != nil {
		return nil, err
	}
	return s, s.Start(ctx)
}

// Start sees to it that there are files: those that lie there and are this program's
// own, or new ones from Vault; while Vault is away, whatever pair can be loaded. With
// none of these it fails.
func (s *Source) Start(ctx context.Context) error {
	leaf, err := s.leaf()
	if err == nil && s.own(leaf) && s.valid(leaf) {
		s.cfg.Log.Info("the certificate that is here is good", "file", s.cfg.Files.Cert, "not_after", leaf.NotAfter)
		return nil
	}
	away := s.Renew(ctx)
	switch {
	case away == nil:
		return nil
	case err != nil:
		return fmt.Errorf("%w; and the files hold no certificate to begin with: %w", away, err)
	}
	s.stale = true
	s.cfg.Log.Warn("Vault gives no certificate; beginning with the one that is here, and trying on", "err", away, "file", s.cfg.Files.Cert, "not_after", leaf.NotAfter, "retry", s.cfg.Retry)
	return nil
}

// Run renews the certificate at 80 % of its life, and at least 30 s before its end,
// until ctx ends. What fails is tried again after Config.Retry.
func (s *Source) Run(ctx context.Context) {
	for {
		wait := s.cfg.Retry
		if leaf, err := s.leaf(); err == nil && !s.stale {
			// A certificate that lives short, or is backdated by more than it lives, is
			// due at once: Vault is not asked without a pause.
			now := s.cfg.Now()
			wait = max(RenewAt(leaf).Sub(now), min(s.cfg.Retry, leaf.NotAfter.Sub(now)/2))
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		if err := s.Renew(ctx); err != nil {
			if ctx.Err() != nil {
				return
			}
			s.stale = true // wait for Retry
			s.cfg.Log.Warn("the certificate was not renewed by Vault; trying on", "err", err, "retry", s.cfg.Retry)
		}
	}
}

// RenewAt is when a certificate of Vault should be replaced. One that lives so short
// that both bounds lie before its middle is replaced then.
func RenewAt(leaf *x509.Certificate) time.Time {
	life := leaf.NotAfter.Sub(leaf.NotBefore)
	at := leaf.NotBefore.Add(life * 8 / 10)
	if last := leaf.NotAfter.Add(-30 * time.Second); last.Before(at) {
		at = last
	}
	if middle := leaf.NotBefore.Add(life / 2); at.Before(middle) {
		at = middle
	}
	return at
}

// Renew asks Vault for a certificate and replaces the files.
func (s *Source) Renew(ctx context.Context) error {
	data := s.unsaved
	if data == nil {
		var err error
		names, ips := s.names()
		data, err = s.cfg.write(ctx, s.cfg.Mount+"/issue/"+s.cfg.Role, map[string]any{
			"common_name": s.cfg.Service,
			"ttl":         s.cfg.TTL.String(),
			"alt_names":   strings.Join(names, ","),
			"ip_sans":     strings.Join(ips, ","),
		})
		if err != nil {
			return err
		}
	}
	leaf, err := s.save(data)
	s.unsaved = nil
	if err != nil && leaf != nil {
		s.unsaved = data
	}
	if err != nil {
		return err
	}
	s.stale = false
	s.cfg.Log.Info("certificate issued by Vault", "mount", s.cfg.Mount, "role", s.cfg.Role, "not_after", leaf.NotAfter)
	return nil
}

// save checks what was answered, and writes it: key, certificate, CA, each whole. The certificate is not nil
// where no more than the writing failed.
func (s *Source) save(data map[string]any) (*x509.Certificate, error) {
	cert, err := text(data, "certificate")
	if err != nil {
		return nil, err
	}
	key, err := text(data, "private_key")
	if err != nil {
		return nil, err
	}
	ca, err := text(data, "issuing_ca")
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	if err != nil {
		return nil, fmt.Errorf("vault: certificate and private_key: %s", strings.TrimPrefix(err.Error(), "tls: "))
	}
	bundle := line(ca)
	if chain, ok := data["ca_chain"].([]any); ok {
		for _, c := range chain {
			if c, ok := c.(string); ok && !strings.Contains(bundle, strings.TrimSpace(c)) {
				bundle += line(c)
			}
		}
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(bundle)) {
		return nil, errors.New("vault: issuing_ca and ca_chain hold no certificate")
	}
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: s.cfg.Now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		return nil, fmt.Errorf("vault: the certificate that it issued: %w", err)
	}
	for _, f := range []struct {
		path, text string
		mode       os.FileMode
	}{{s.cfg.Files.Key, line(key), 0o600}, {s.cfg.Files.Cert, line(cert), 0o644}, {s.cfg.Files.CA, bundle, 0o644}} {
		if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
			return pair.Leaf, err
		}
		if err := pki.WriteFile(f.path, []byte(f.text), f.mode); err != nil {
			return pair.Leaf, err
		}
	}
	return pair.Leaf, nil
}

func line(s string) string { return strings.TrimSpace(s) + "\n" }

// leaf is the certificate that lies there, with its key.
func (s *Source) leaf() (*x509.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(s.cfg.Files.Cert, s.cfg.Files.Key)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(s.cfg.Files.CA); err != nil {
		return nil, err
	}
	return pair.Leaf, nil
}

func (s *Source) valid(leaf *x509.Certificate) bool {
	now := s.cfg.Now()
	return !now.Before(leaf.NotBefore) && now.Before(leaf.NotAfter)
}

// own reports whether a certificate is made out to this program.
func (s *Source) own(leaf *x509.Certificate) bool {
	for _, name := range append([]string{leaf.Subject.CommonName}, leaf.DNSNames...) {
		if name != "" && (name == s.cfg.Bind || name == s.cfg.Service || name == s.qualified(s.cfg.Service)) {
			return true
		}
	}
	return false
}

// qualified is a name in the service domain, "" without one.
func (s *Source) qualified(name string) string {
	if s.cfg.Domain == "" {
		return ""
	}
	return name + "." + s.cfg.Domain
}

// names are the subject alternative names to ask for.
func (s *Source) names() (dns, ips []string) {
	seen := map[string]bool{"": true, "0.0.0.0": true, "::": true}
	add := func(names ...string) {
		for _, n := range names {
			if seen[n] {
				continue
			}
			seen[n] = true
			if net.ParseIP(n) != nil {
				ips = append(ips, n)
			} else {
				dns = append(dns, n)
			}
		}
	}
	add(s.cfg.Service, "localhost", s.qualified(s.cfg.Service), "127.0.0.1", "::1")
	if host, err := os.Hostname(); err == nil {
		short, _, _ := strings.Cut(host, ".")
		add(host, s.qualified(short))
	}
	add(s.cfg.Bind)
	add(s.cfg.Hosts...)
	if addrs, err := net.InterfaceAddrs(); err == nil {
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && !n.IP.IsLinkLocalUnicast() {
				add(n.IP.String())
			}
		}
	}
	if u, err := url.Parse(s.cfg.Addr); err == nil && net.ParseIP(u.Hostname()) != nil {
		add(u.Hostname())
	}
	return dns, ips
}
