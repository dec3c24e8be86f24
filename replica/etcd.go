package replica

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/persys/compute/mirror"
)

// noEtcd as ETCD_ENDPOINTS turns the mirror off.
const noEtcd = "none"

// defaultEtcd is dialled when ETCD_ENDPOINTS is not set (contract/env.md).
const defaultEtcd = "localhost:2379"

// completeEtcd checks the settings of the mirror. A blank ETCD_ENDPOINTS counts as not set.
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
		return fmt.Errorf("ETCD_ENDPOINTS %q: none stands alone", strings.Join(given, ","))
	case (c.EtcdUsername == "") != (c.EtcdPassword == ""):
		return errors.New("ETCD_USERNAME and ETCD_PASSWORD must be set together")
	case (c.EtcdTLSCert == "") != (c.EtcdTLSKey == ""):
		return errors.New("ETCD_TLS_CERT and ETCD_TLS_KEY must be set together")
	}
	if !c.mirrored() {
		return nil
	}
	for _, e := range c.etcdAddresses() {
		if u, err := url.Parse(e); strings.Contains(e, "://") && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
			return fmt.Errorf("ETCD_ENDPOINTS %q must be host:port, http://host:port or https://host:port", e)
		}
	}
	return nil
}

// mirrored reports whether there is a mirror.
func (c *Config) mirrored() bool {
	return len(c.EtcdEndpoints) != 1 || c.EtcdEndpoints[0] != noEtcd
}

// etcdRequired reports whether a missing etcd makes the mode degraded from the first boot.
func (c *Config) etcdRequired() bool { return c.mirrored() && len(c.EtcdEndpoints) > 0 }

func (c *Config) etcdAddresses() []string {
	if len(c.EtcdEndpoints) == 0 {
		return []string{defaultEtcd}
	}
	return c.EtcdEndpoints
}

// dialEtcd makes the client; it does not wait for a server.
func (c *Config) dialEtcd(addresses []string) (*mirror.Client, error) {
	files, err := c.etcdTLS(addresses)
	if err != nil {
		return nil, err
	}
	return mirror.Dial(mirror.Endpoint{Addresses: addresses, Username: c.EtcdUsername, Password: c.EtcdPassword, TLS: files})
}

// etcdTLS returns nil for plain connections. The client certificate is read again for every connection, so
// that a renewed one is used.
func (c *Config) etcdTLS(addresses []string) (*tls.Config, error) {
	https := slices.ContainsFunc(addresses, func(e string) bool { return strings.HasPrefix(e, "https://") })
	if c.EtcdTLSCA == "" && c.EtcdTLSCert == "" && !https {
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
