package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/persys/compute/pki"
	"github.com/persys/compute/pki/vault"
)

// vaultSettings are the settings for Vault, as in contract/env.md.
type vaultSettings struct {
	Enabled  bool          `env:"PERSYS_VAULT_ENABLED" flag:"vault" yaml:"vault_enabled" bool:"word" default:"false" usage:"get the certificate from Vault's PKI engine and write it to the PERSYS_TLS_* files"`
	Addr     string        `env:"PERSYS_VAULT_ADDR" yaml:"vault_addr" default:"http://127.0.0.1:8200" usage:"URL of Vault; Vault's own variables (VAULT_CACERT, VAULT_NAMESPACE, ...) apply too"`
	Auth     string        `env:"PERSYS_VAULT_AUTH_METHOD" yaml:"vault_auth_method" oneof:"token,approle" default:"token" usage:"auth method of Vault"`
	Token    string        `env:"PERSYS_VAULT_TOKEN" yaml:"vault_token" secret:"true" usage:"token for Vault, with auth method token"`
	RoleID   string        `env:"PERSYS_VAULT_APPROLE_ROLE_ID" yaml:"vault_approle_role_id" usage:"role id, with auth method approle"`
	SecretID string        `env:"PERSYS_VAULT_APPROLE_SECRET_ID" yaml:"vault_approle_secret_id" secret:"true" usage:"secret id, with auth method approle"`
	Mount    string        `env:"PERSYS_VAULT_PKI_MOUNT" yaml:"vault_pki_mount" default:"pki" usage:"mount path of Vault's PKI engine"`
	Role     string        `env:"PERSYS_VAULT_PKI_ROLE" yaml:"vault_pki_role" default:"persys-scheduler" usage:"role of the PKI engine that issues the certificate"`
	TTL      time.Duration `env:"PERSYS_VAULT_CERT_TTL" yaml:"vault_cert_ttl" seconds:"true" default:"24h" min:"1s" max:"8760h" usage:"validity of the certificate; it is renewed after 80 % of that time"`
	Retry    time.Duration `env:"PERSYS_VAULT_RETRY_INTERVAL" yaml:"vault_retry_interval" seconds:"true" default:"1m" min:"100ms" max:"1h" usage:"pause after a failed request to Vault"`
	Service  string        `env:"PERSYS_VAULT_SERVICE_NAME" yaml:"vault_service_name" default:"persys-scheduler" usage:"common name of the certificate"`
	Domain   string        `env:"PERSYS_VAULT_SERVICE_DOMAIN" yaml:"vault_service_domain" usage:"the certificate also gets the DNS name <service name>.<this domain>"`
	Transit  string        `env:"PERSYS_VAULT_TRANSIT_MOUNT" yaml:"vault_transit_mount" default:"transit" usage:"mount path of Vault's transit engine, for SCHEDULER_CLUSTER_KEY_TRANSIT"`
}

func (v *vaultSettings) access() vault.Access {
	return vault.Access{Addr: v.Addr, Auth: v.Auth, Token: v.Token, RoleID: v.RoleID, SecretID: v.SecretID}
}

// vault obtains this replica's certificate from Vault and returns the source that renews it. It returns nil if Vault
// is not enabled.
func (c *Config) vault(ctx context.Context, log *slog.Logger) (*vault.Source, error) {
	if !c.Vault.Enabled {
		return nil, nil
	}
	if c.Insecure {
		log.Warn("PERSYS_VAULT_ENABLED has no effect with -insecure")
		return nil, nil
	}
	if c.Init || c.hasToken() {
		return nil, errors.New("PERSYS_VAULT_ENABLED is true beside -init or a join token: set one of them")
	}
	return vault.Open(ctx, vault.Config{
		Access: c.Vault.access(), Mount: c.Vault.Mount, Role: c.Vault.Role, TTL: c.Vault.TTL, Retry: c.Vault.Retry,
		Service: c.Vault.Service, Domain: c.Vault.Domain, Bind: c.BindAddr, Hosts: []string{c.AdvertiseIP, c.ExternalIP},
		Files: pki.Paths{CA: c.TLSCA, Cert: c.TLSCert, Key: c.TLSKey}, Log: log,
	})
}

// keyFile returns the file of the cluster key, and how the key in it is encrypted.
func (c *Config) keyFile() (pki.KeyFile, error) {
	f := pki.KeyFile{Path: c.ClusterKey}
	switch {
	case c.KeyPassphrase != "" && c.KeyTransit != "":
		return f, errors.New("SCHEDULER_CLUSTER_KEY_PASSPHRASE and SCHEDULER_CLUSTER_KEY_TRANSIT are both set: set one of them")
	case c.KeyPassphrase != "":
		p := pki.Passphrase(c.KeyPassphrase)
		if err := p.Check(); err != nil {
			return f, fmt.Errorf("SCHEDULER_CLUSTER_KEY_PASSPHRASE: %w", err)
		}
		f.Wrap = p
	case c.KeyTransit != "":
		t := vault.Transit{Access: c.Vault.access(), Mount: c.Vault.Transit, Key: c.KeyTransit}
		if err := t.Check(); err != nil {
			return f, fmt.Errorf("SCHEDULER_CLUSTER_KEY_TRANSIT: %w", err)
		}
		f.Wrap = t
	}
	return f, nil
}
