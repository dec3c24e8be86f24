package replica

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/persys/compute/mirror"

	"github.com/persys/compute/rpc/dial"
)

// noEtcd as the value of ETCD_ENDPOINTS means that no mirror can be attached.
const noEtcd = "none"

// completeEtcd checks the settings of the etcd mirror. An ETCD_ENDPOINTS of only blanks is treated as not
// set.
func (c *Config) completeEtcd() error {
	var given []string
	for _, e := range c.EtcdEndpoints {
		if e = strings.TrimSpace(e); e != "" {
			given = append(given, e)
		}
	}
	c.EtcdEndpoints = given
	switch {
	case len(given) > 1 && slices.Contains(given, noEtcd):
		return fmt.Errorf("ETCD_ENDPOINTS %q: none cannot be combined with endpoints", strings.Join(given, ","))
	case (c.EtcdUsername == "") != (c.EtcdPassword == ""):
		return errors.New("ETCD_USERNAME and ETCD_PASSWORD must be set together")
	case (c.EtcdTLSCert == "") != (c.EtcdTLSKey == ""):
		return errors.New("ETCD_TLS_CERT and ETCD_TLS_KEY must be set together")
	}
	if !c.etcdRequired() {
		return nil
	}
	if err := c.checkEtcd(given); err != nil {
		return fmt.Errorf("ETCD_ENDPOINTS %w", err)
	}
	return nil
}

// mirrorAllowed reports whether the settings allow a mirror to be attached.
func (c *Config) mirrorAllowed() bool {
	return len(c.EtcdEndpoints) != 1 || c.EtcdEndpoints[0] != noEtcd
}

// etcdRequired reports whether ETCD_ENDPOINTS names an etcd. If it does, the cluster's mode is degraded whenever that
// etcd is unreachable, even before the mirror has been attached for the first time.
func (c *Config) etcdRequired() bool { return c.mirrorAllowed() && len(c.EtcdEndpoints) > 0 }

// checkEtcd checks that etcd endpoints have a valid form, and that endpoints on other machines use TLS.
func (c *Config) checkEtcd(endpoints []string) error {
	for _, e := range endpoints {
		scheme, at, ok := strings.Cut(e, "://")
		if !ok {
			scheme, at = "", e
		}
		if at = strings.TrimSuffix(at, "/"); scheme != "" && scheme != "http" && scheme != "https" {
			return fmt.Errorf("%q must be host:port, http://host:port or https://host:port", e)
		}
		host, _, err := net.SplitHostPort(at)
		if err != nil || host == "" {
			return fmt.Errorf("%q must be host:port, http://host:port or https://host:port", e)
		}
		secure := scheme == "https" || scheme == "" && c.etcdUsesTLS(endpoints)
		if secure || c.Insecure || c.EtcdPlaintext || dial.Loopback(host) {
			continue
		}
		return fmt.Errorf("%q: the state would go to another machine without TLS: use https:// or set ETCD_TLS_CA; ETCD_PLAINTEXT=true allows it", e)
	}
	return nil
}

// dialEtcd makes an etcd client for these addresses. It does not wait until a server answers.
func (c *Config) dialEtcd(addresses []string) (*mirror.Client, error) {
	files, err := c.etcdTLS(addresses)
	if err != nil {
		return nil, err
	}
	return mirror.Dial(mirror.Endpoint{Addresses: addresses, Username: c.EtcdUsername, Password: c.EtcdPassword, TLS: files})
}

func (c *Config) etcdUsesTLS(addresses []string) bool {
	https := slices.ContainsFunc(addresses, func(e string) bool { return strings.HasPrefix(e, "https://") })
	return c.EtcdTLSCA != "" || c.EtcdTLSCert != "" || https
}

// etcdTLS returns the TLS configuration for connections to etcd, or nil for connections without TLS. The
// client certificate is read again for every connection, so that a renewed certificate is used.
func (c *Config) etcdTLS(addresses []string) (*tls.Config, error) {
	if !c.etcdUsesTLS(addresses) {
		return nil, nil
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.EtcdTLSCA != "" {
		pem, err := os.ReadFile(c.EtcdTLSCA)
		if err != nil {
			return nil, fmt.Errorf("ETCD_TLS_CA: %w", err)
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ETCD_TLS_CA %q holds no certificate", c.EtcdTLSCA)
		}
	}
	if c.EtcdTLSCert != "" {
		load := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(c.EtcdTLSCert, c.EtcdTLSKey)
			if err != nil {
				return nil, fmt.Errorf("ETCD_TLS_CERT and ETCD_TLS_KEY: %w", err)
			}
			return &pair, nil
		}
		if _, err := load(); err != nil {
			return nil, err
		}
		out.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	return out, nil
}
