package vault

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
)

// Transit encrypts the key in a key file with a key of Vault's transit engine. That key never leaves Vault.
// Transit implements pki.Wrapper.
type Transit struct {
	Access
	Mount string // path at which the transit engine is mounted
	Key   string // name of the key in the transit engine
}

// Kind implements pki.Wrapper.
func (Transit) Kind() string { return "transit" }

// Wrap implements pki.Wrapper.
func (t Transit) Wrap(plain []byte) (string, error) {
	data, err := t.write(context.Background(), t.Mount+"/encrypt/"+t.Key, map[string]any{"plaintext": base64.StdEncoding.EncodeToString(plain)})
	if err != nil {
		return "", err
	}
	return text(data, "ciphertext")
}

// Unwrap implements pki.Wrapper.
func (t Transit) Unwrap(wrapped string) ([]byte, error) {
	data, err := t.write(context.Background(), t.Mount+"/decrypt/"+t.Key, map[string]any{"ciphertext": wrapped})
	if err != nil {
		return nil, err
	}
	s, err := text(data, "plaintext")
	if err != nil {
		return nil, err
	}
	plain, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return nil, errors.New("vault: the plaintext is no base64")
	}
	return plain, nil
}

// Check returns an error if a setting is invalid. The error names the setting.
func (t Transit) Check() error {
	if t.Mount == "" || t.Key == "" {
		return fmt.Errorf("%s and the name of the key must not be blank", t.setting("TRANSIT_MOUNT"))
	}
	return t.Access.Check()
}
