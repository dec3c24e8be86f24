package gatewayd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/persys/compute/cmd/internal/setup"
	"github.com/persys/compute/gateway"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/rpc/enrol"
)

// defaultCert is the default of PERSYS_GATEWAY_TLS_CERT.
const defaultCert = "/etc/persys/certs/gateway.crt"

// identityStore returns the store of the identity (key and certificate) that this gateway got for a join
// token.
func (c *Config) identityStore() pki.IdentityStore {
	return pki.IdentityStore{Dir: filepath.Join(c.StateDir, "tls")}
}

// identity obtains an identity (key and certificate) with the join token, or loads the identity that an earlier start
// has stored. It returns false if the PERSYS_GATEWAY_TLS_* files are used instead.
func (c *Config) identity(ctx context.Context, log *slog.Logger) (bool, error) {
	switch {
	case c.Join != "" && c.Insecure:
		return false, errors.New("PERSYS_GATEWAY_JOIN is set, but TLS is off: leave out -insecure")
	case c.Insecure:
		return false, nil
	case c.Join != "" && c.TLSCert != defaultCert:
		return false, fmt.Errorf("PERSYS_GATEWAY_JOIN and PERSYS_GATEWAY_TLS_CERT_PATH=%s are both set: set one of them", c.TLSCert)
	}
	if err := c.place(); err != nil {
		return false, err
	}
	identityStore := c.identityStore()
	if c.Join == "" && (c.TLSCert != defaultCert || !identityStore.Exists()) {
		return false, nil
	}
	if c.Join != "" {
		if err := enrol.Join(ctx, enrol.Options{Token: c.Join, Identity: identityStore, Role: pki.RoleGateway, Name: c.Name, Hosts: c.hosts(), Status: setup.Status, Log: log}); err != nil {
			return false, fmt.Errorf("PERSYS_GATEWAY_JOIN: %w", err)
		}
	}
	m, err := enrol.LoadMembership(identityStore, "PERSYS_GATEWAY_NAME", c.Name, "start with that name, or with an empty PERSYS_GATEWAY_STATE_DIR and a join token")
	if err != nil {
		return false, err
	}
	if err := enrol.Expired(identityStore, pki.RoleGateway, c.Name); err != nil {
		return false, err
	}
	p := identityStore.Paths()
	c.TLSCA, c.TLSCert, c.TLSKey = p.CA, p.Cert, p.Key
	if len(c.Schedulers) == 0 && c.Discovery == "" {
		c.Schedulers = m.Schedulers
	}
	return true, nil
}

// place sets the default name of the gateway and the default folder for its identity.
func (c *Config) place() error {
	if c.Name == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("PERSYS_GATEWAY_NAME is not set and the host has no name: %w", err)
		}
		c.Name = name
	}
	if c.StateDir != "" {
		return nil
	}
	if os.Geteuid() == 0 {
		c.StateDir = "/var/lib/persys/gateway"
		return nil
	}
	base := os.Getenv("XDG_STATE_HOME")
	if base == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return fmt.Errorf("PERSYS_GATEWAY_STATE_DIR is not set and there is no home directory: %w", err)
		}
		base = filepath.Join(home, ".local", "state")
	}
	c.StateDir = filepath.Join(base, "persys", "gateway")
	return nil
}

// deliveryFile returns the file in which the gateway remembers webhook deliveries; "" if it forwards none, or if it has no
// folder that it can write to.
func (c *Config) deliveryFile(log *slog.Logger) string {
	if c.WebhookForward == "" {
		return ""
	}
	own := *c
	err := own.place()
	if err == nil {
		err = os.MkdirAll(own.StateDir, 0o700)
	}
	if err != nil {
		log.Warn("webhook deliveries can be repeated after a restart of this gateway: set PERSYS_GATEWAY_STATE_DIR to a folder that it can write to", "error", err)
		return ""
	}
	return filepath.Join(own.StateDir, "deliveries")
}

// hosts returns the names and addresses under which callers may connect to this gateway.
func (c *Config) hosts() []string {
	host, _, err := net.SplitHostPort(c.HTTPAddr)
	if err != nil {
		host = ""
	}
	return enrol.Hosts(host)
}

// keeper returns a loop that renews the gateway's identity and fetches the list of revoked certificates, both
// from the schedulers of the cluster that issued the join token. A gateway with certificate files instead of
// a join token only fetches revocations, and only if it serves one cluster. With several clusters keeper
// returns nil, because each cluster revokes its own certificates.
func (s *Server) keeper(ctx context.Context, c *Config, keeps bool, files *pki.Files, clusters []gateway.Cluster) (*enrol.Keeper, error) {
	opt := dial.Options{TLS: files, UserAgent: "persys-gateway", Log: s.log}
	k := &enrol.Keeper{Files: files, Hosts: c.hosts(), Log: s.log, RevokedOnly: !keeps}
	switch {
	case keeps:
		m, err := c.identityStore().Membership()
		if err != nil {
			return nil, err
		}
		k.Identity, opt.Addrs = c.identityStore(), m.Schedulers
	case len(clusters) != 1:
		return nil, nil
	default:
		opt.Discovery = clusters[0].Discovery
		for _, at := range clusters[0].Schedulers {
			opt.Addrs = append(opt.Addrs, at.Address)
		}
	}
	conn, err := dial.Dial(ctx, opt)
	if err != nil {
		return nil, err
	}
	s.cleanup = append(s.cleanup, func() { _ = conn.Close() })
	k.Conn = conn
	return k, nil
}
