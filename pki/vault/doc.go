// Package vault gets a program's certificate from the PKI engine of a HashiCorp
// Vault, and keeps it good (contract/semantics.md, section 13). What it gets, it
// writes into the PERSYS_TLS_* files, which pki.Files follows: a running program
// takes the new certificate over at its next handshake.
//
// The client is the official one, so TLS towards Vault, namespaces and proxies are
// set by the variables that every Vault tool knows (VAULT_CACERT, VAULT_NAMESPACE, …).
package vault
