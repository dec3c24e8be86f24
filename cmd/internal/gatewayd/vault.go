package gatewayd

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/persys/compute/pki"
	"github.com/persys/compute/pki/vault"
)

// vaultSettings are the Vault settings of contract/env.md.
type vaultSettings struct {
	Enabled  bool          `env:"PERSYS_GATEWAY_VAULT_ENABLED" flag:"vault" yaml:"vault.enabled" default:"false" usage:"get the certificate from Vault's PKI engine and write it to the PERSYS_GATEWAY_TLS_* files"`
	Addr     string        `env:"PERSYS_GATEWAY_VAULT_ADDR" yaml:"vault.addr" default:"http://127.0.0.1:8200" usage:"URL of Vault; Vault's own variables (VAULT_CACERT, VAULT_NAMESPACE, ...) apply too"`
	Auth     string        `env:"PERSYS_GATEWAY_VAULT_AUTH_METHOD" yaml:"vault.auth_method" oneof:"token,approle" default:"approle" usage:"auth method of Vault"`
	Token    string        `env:"PERSYS_GATEWAY_VAULT_TOKEN" yaml:"vault.token" secret:"true" usage:"token for Vault, with auth method token"`
	RoleID   string        `env:"PERSYS_GATEWAY_VAULT_ROLE_ID,PERSYS_GATEWAY_VAULT_APPROLE_ROLE_ID" yaml:"vault.approle_id" usage:"role id, with auth method approle"`
	SecretID string        `env:"PERSYS_GATEWAY_VAULT_SECRET_ID,PERSYS_GATEWAY_VAULT_APPROLE_SECRET_ID" yaml:"vault.approle_secret_id" secret:"true" usage:"secret id, with auth method approle"`
	Mount    string        `env:"PERSYS_GATEWAY_VAULT_PKI_MOUNT" yaml:"vault.pki_mount" default:"pki" usage:"mount path of Vault's PKI engine"`
	Role     string        `env:"PERSYS_GATEWAY_VAULT_PKI_ROLE" yaml:"vault.pki_role" default:"persys-gateway" usage:"role of the PKI engine that issues the certificate"`
	TTL      time.Duration `env:"PERSYS_GATEWAY_VAULT_CERT_TTL" yaml:"vault.cert_ttl" seconds:"true" default:"24h" min:"1s" max:"8760h" usage:"validity of the certificate; it is renewed after 80 % of that time"`
	Retry    time.Duration `env:"PERSYS_GATEWAY_VAULT_RETRY_INTERVAL" yaml:"vault.retry_interval" seconds:"true" default:"30s" min:"100ms" max:"1h" usage:"pause after a failed request to Vault"`
	Service  string        `env:"PERSYS_GATEWAY_VAULT_SERVICE_NAME" yaml:"vault.service_name" usage:"common name of the certificate; default: service_name, else persys-gateway"`
	Domain   string        `env:"PERSYS_GATEWAY_VAULT_SERVICE_DOMAIN" yaml:"vault.service_domain" usage:"the certificate also gets the DNS name <service name>.<this domain>"`
	Program  string        `yaml:"service_name" usage:"default of vault.service_name"`
	Bind     string        `yaml:"vault.bind_host" usage:"host name of this gateway; default: the host of app.http_addr"`
}

// vault gets the certificate from Vault. It returns nil if Vault is not used.
func (c *Config) vault(ctx context.Context, log *slog.Logger) (*vault.Source, error) {
	v := &c.Vault
	if !v.Enabled {
		return nil, nil
	}
	if c.Insecure {
		log.Warn("vault.enabled has no effect with -insecure")
		return nil, nil
	}
	if c.Join != "" {
		return nil, errors.New("PERSYS_GATEWAY_JOIN and vault.enabled are both set: set one of them")
	}
	host, _, err := net.SplitHostPort(c.HTTPAddr)
	if err != nil {
		host = ""
	}
	return vault.Open(ctx, vault.Config{
		Access: vault.Access{Addr: v.Addr, Auth: v.Auth, Token: v.Token, RoleID: v.RoleID, SecretID: v.SecretID, Settings: "PERSYS_GATEWAY_VAULT_"},
		Mount:  v.Mount, Role: v.Role, TTL: v.TTL, Retry: v.Retry, Domain: v.Domain, Bind: cmp.Or(v.Bind, host), Hosts: c.hosts(),
		Service: cmp.Or(v.Service, v.Program, "persys-gateway"),
		Files:   pki.Paths{CA: c.TLSCA, Cert: c.TLSCert, Key: c.TLSKey}, Log: log,
	})
}
