package agentd

import (
	"context"
	"log/slog"
	"time"

	"github.com/persys/compute/pki"
	"github.com/persys/compute/pki/vault"
)

// vaultSettings are the Vault settings of contract/env.md.
type vaultSettings struct {
	Enabled  bool          `env:"PERSYS_VAULT_ENABLED" flag:"vault" yaml:"vault_enabled" default:"false" usage:"get the certificate from Vault's PKI engine and write it to the PERSYS_TLS_* files"`
	Addr     string        `env:"PERSYS_VAULT_ADDR" yaml:"vault_addr" default:"http://localhost:8200" usage:"URL of Vault; Vault's own variables (VAULT_CACERT, VAULT_NAMESPACE, ...) apply too"`
	Auth     string        `env:"PERSYS_VAULT_AUTH_METHOD" yaml:"vault_auth_method" oneof:"token,approle" default:"approle" usage:"auth method of Vault"`
	Token    string        `env:"PERSYS_VAULT_TOKEN" yaml:"vault_token" secret:"true" usage:"token for Vault, with auth method token"`
	RoleID   string        `env:"PERSYS_VAULT_APPROLE_ROLE_ID" yaml:"vault_approle_role_id" usage:"role id, with auth method approle"`
	SecretID string        `env:"PERSYS_VAULT_APPROLE_SECRET_ID" yaml:"vault_approle_secret_id" secret:"true" usage:"secret id, with auth method approle"`
	Mount    string        `env:"PERSYS_VAULT_PKI_MOUNT" yaml:"vault_pki_mount" default:"pki" usage:"mount path of Vault's PKI engine"`
	Role     string        `env:"PERSYS_VAULT_PKI_ROLE" yaml:"vault_pki_role" default:"compute-agent" usage:"role of the PKI engine that issues the certificate"`
	TTL      time.Duration `env:"PERSYS_VAULT_CERT_TTL" yaml:"vault_cert_ttl" seconds:"true" default:"24h" min:"1s" max:"8760h" usage:"validity of the certificate; it is renewed after 80 % of that time"`
	Retry    time.Duration `env:"PERSYS_VAULT_RETRY_INTERVAL" yaml:"vault_retry_interval" seconds:"true" default:"2m" min:"100ms" max:"1h" usage:"pause after a failed request to Vault"`
	Service  string        `env:"PERSYS_VAULT_SERVICE_NAME" yaml:"vault_service_name" default:"compute-agent" usage:"common name of the certificate"`
	Domain   string        `env:"PERSYS_VAULT_SERVICE_DOMAIN" yaml:"vault_service_domain" usage:"the certificate also gets the DNS name <service name>.<this domain>"`
}

// vault gets the certificate from Vault. It returns nil if Vault is not used.
func (c *Config) vault(ctx context.Context, node string, log *slog.Logger) (*vault.Source, error) {
	if !c.Vault.Enabled {
		return nil, nil
	}
	if !c.TLSEnabled {
		log.Warn("PERSYS_VAULT_ENABLED has no effect while TLS is off")
		return nil, nil
	}
	v := &c.Vault
	return vault.Open(ctx, vault.Config{
		Access: vault.Access{Addr: v.Addr, Auth: v.Auth, Token: v.Token, RoleID: v.RoleID, SecretID: v.SecretID},
		Mount:  v.Mount, Role: v.Role, TTL: v.TTL, Retry: v.Retry, Service: v.Service, Domain: v.Domain,
		Bind: c.GRPCAddr, Hosts: append(c.hosts(), node), Files: pki.Paths{CA: c.TLSCA, Cert: c.TLSCert, Key: c.TLSKey}, Log: log,
	})
}
