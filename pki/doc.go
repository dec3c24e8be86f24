// Package pki holds what Persys programs know about who is speaking and how to
// keep a secret: identities in certificates, TLS credentials that follow their
// files, a certificate authority for development, and the key that seals
// secrets at rest. It imports no other package of the project.
package pki
