// Package vault obtains a program's certificate from the PKI engine of HashiCorp Vault and renews it
// (contract/semantics.md, section 13). It writes the certificate to the PERSYS_TLS_* files, which pki.Files
// reloads: a running program uses the new certificate at its next handshake.
//
// The package uses Vault's official client. So the client's usual environment variables configure TLS to
// Vault, namespaces and proxies (VAULT_CACERT, VAULT_NAMESPACE, …).
package vault
