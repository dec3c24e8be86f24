// Package pki provides identities in certificates, TLS credentials that are reloaded when their
// files change, certificate authorities, join tokens, and the key that seals secrets at rest. It
// imports no other package of the project.
package pki
