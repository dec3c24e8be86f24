// Package document reads and writes policies as YAML. JSON is accepted too.
package document

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/persys/compute/policy"
)

// MaxSize is the largest policy document, in bytes.
const MaxSize = 256 << 10

// Parse reads a policy that a person wrote. It refuses unknown fields, because a misspelt field would make
// the policy allow less or more than its author wants. The error names the line or the field.
func Parse(text []byte) (*policy.Policy, error) {
	if len(text) > MaxSize {
		return nil, fmt.Errorf("policy: %d bytes, at most %d", len(text), MaxSize)
	}
	p := &policy.Policy{}
	d := yaml.NewDecoder(bytes.NewReader(text), yaml.DisallowUnknownField())
	if err := d.Decode(p); err != nil {
		return nil, fmt.Errorf("policy: %s", strings.TrimSpace(yaml.FormatError(err, false, false)))
	}
	if fault := p.Fault(); fault != "" {
		return nil, fmt.Errorf("policy: %s", fault)
	}
	for i, key := range p.ImageKeys {
		if _, err := PublicKey(key); err != nil {
			return nil, fmt.Errorf("policy: image_keys[%d]: %w", i, err)
		}
	}
	return p, nil
}

// PublicKey reads an entry of Policy.ImageKeys.
func PublicKey(text string) (crypto.PublicKey, error) {
	der, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("write the lines between BEGIN PUBLIC KEY and END PUBLIC KEY as one line: %w", err)
	}
	key, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return nil, fmt.Errorf("it is no public key: %w", err)
	}
	switch k := key.(type) {
	case *ecdsa.PublicKey, ed25519.PublicKey:
		return k, nil
	}
	return nil, fmt.Errorf("a key of type %T: it must be an ECDSA or Ed25519 key", key)
}

// Read reads a policy that a scheduler sent to an agent. It ignores unknown fields, which a later version of
// the scheduler may have added. Most rules still hold, because the scheduler has judged the workload by all
// fields. But a rule that only agents check, such as image_keys, would be ignored, so the scheduler must not send the
// order to an agent that does not know the rule.
func Read(text []byte) (*policy.Policy, error) {
	if len(text) > MaxSize {
		return nil, fmt.Errorf("policy: %d bytes, at most %d", len(text), MaxSize)
	}
	p := &policy.Policy{}
	if err := yaml.NewDecoder(bytes.NewReader(text)).Decode(p); err != nil {
		return nil, fmt.Errorf("policy: %s", strings.TrimSpace(yaml.FormatError(err, false, false)))
	}
	return p, nil
}

// Format writes a policy as YAML. Parse reads that YAML.
func Format(p *policy.Policy) (string, error) {
	text, err := yaml.MarshalWithOptions(p, yaml.IndentSequence(true))
	return string(text), err
}
