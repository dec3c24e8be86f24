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

// Config is the configuration of a Source.
type Config struct {
	Access
	Mount string        // path at which the PKI engine is mounted
	Role  string        // role of the PKI engine
	TTL   time.Duration // requested validity of certificates
	Retry time.Duration // pause after a failed request to Vault
	// Service is the common name of the certificate. If Domain is set, the certificate also contains
	// <Service>.<Domain>.
	Service, Domain string
	// Hosts are further names and addresses of this program in the certificate: its bind address, a node id,
	// an external address.
	Hosts []string
	// Bind is the name or address on which the program listens. An existing certificate is used only if it
	// contains Bind, Service or <Service>.<Domain>.
	Bind  string
	Files pki.Paths
	Log   *slog.Logger
	Now   func() time.Time // function that returns the present time; default time.Now
}

// Source keeps a program's certificate files up to date with certificates from Vault. Call Start, then Run.
type Source struct {
	cfg   Config
	stale bool // the last renewal failed: try again after Retry, and use the stored certificate until then
	// unsaved is a valid answer of Vault that could not be written to the files. No further certificate is
	// requested until it is written.
	unsaved map[string]any
}

// New checks the settings and returns a Source. An error names the setting.
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

// Open calls New and then Start.
func Open(ctx context.Context, cfg Config) (*Source, error) {
	s, err := New(cfg)
	if err != nil {
		return nil, err
	}
	return s, s.Start(ctx)
}

// Start ensures that the certificate files exist. If they hold a certificate of this program, it keeps them.
// Otherwise it gets a new certificate from Vault. While Vault is unreachable, Start accepts any key and
// certificate in the files that can be loaded, and fails if there are none.
func (s *Source) Start(ctx context.Context) error {
	leaf, err := s.leaf()
	if err == nil && s.own(leaf) && s.valid(leaf) {
		s.cfg.Log.Info("the stored certificate is valid", "file", s.cfg.Files.Cert, "not_after", leaf.NotAfter)
		return nil
	}
	away := s.Renew(ctx)
	switch {
	case away == nil:
		return nil
	case err != nil:
		return fmt.Errorf("%w; and no certificate is stored in the files: %w", away, err)
	}
	s.stale = true
	s.cfg.Log.Warn("Vault issued no certificate; the program starts with the stored one and asks Vault again later", "err", away, "file", s.cfg.Files.Cert, "not_after", leaf.NotAfter, "retry", s.cfg.Retry)
	return nil
}

// Run renews the certificate until ctx ends. A renewal is due after 80 % of the validity, or 30 s before its
// end if that is earlier. A failed renewal is repeated after Config.Retry.
func (s *Source) Run(ctx context.Context) {
	for {
		wait := s.cfg.Retry
		if leaf, err := s.leaf(); err == nil && !s.stale {
			// A new certificate may be due for renewal as soon as it is issued, if its validity is short or began long
			// before. So always pause between two requests to Vault.
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
			s.stale = true // mark the renewal as failed, so that the next attempt waits for Retry
			s.cfg.Log.Warn("Vault did not renew the certificate; the program asks again later", "err", err, "retry", s.cfg.Retry)
		}
	}
}

// RenewAt returns the time at which a certificate from Vault should be renewed: after 80 % of its validity,
// or 30 s before its end if that is earlier, but not before half of its validity.
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

// Renew requests a new certificate from Vault and replaces the files.
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

// save checks an answer of Vault and writes key, certificate and CA to their files, each atomically. If only
// the writing fails, save returns the certificate together with the error.
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

// leaf returns the certificate in the files. It returns an error if the key in the files does not match.
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

// own reports whether a certificate was issued for this program: it must contain Bind, Service or <Service>.<Domain>.
func (s *Source) own(leaf *x509.Certificate) bool {
	for _, name := range append([]string{leaf.Subject.CommonName}, leaf.DNSNames...) {
		if name != "" && (name == s.cfg.Bind || name == s.cfg.Service || name == s.qualified(s.cfg.Service)) {
			return true
		}
	}
	return false
}

// qualified returns <name>.<Domain>; "" if no domain is set.
func (s *Source) qualified(name string) string {
	if s.cfg.Domain == "" {
		return ""
	}
	return name + "." + s.cfg.Domain
}

// names returns the DNS names and the IP addresses to request as subject alternative names.
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
