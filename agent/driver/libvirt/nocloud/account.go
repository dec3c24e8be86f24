package nocloud

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"

	"go.yaml.in/yaml/v3"
)

// WithAccount returns the vendor-data of cloud-init with a user account that has full sudo rights. cloud-init
// lets the user-data of the workload override vendor-data.
func WithAccount(vendor, user, password string, keys []string) (string, error) {
	if user == "" || password == "" && len(keys) == 0 {
		return "", errors.New("needs a user, and a password or ssh_authorized_keys")
	}
	text, err := account(user, password, keys)
	if err != nil || vendor == "" {
		return text, err
	}
	// The MIME boundary is computed from the text and is not random, so that the same specification makes the
	// same input of cloud-init.
	sum := sha256.Sum256([]byte(text + "\x00" + vendor))
	return Together("persys-"+hex.EncodeToString(sum[:4]), text, vendor)
}

func account(user, password string, keys []string) (string, error) {
	type entry struct {
		Name   string   `yaml:"name"`
		Shell  string   `yaml:"shell"`
		Sudo   string   `yaml:"sudo"`
		Lock   bool     `yaml:"lock_passwd"`
		Passwd string   `yaml:"plain_text_passwd,omitempty"`
		Keys   []string `yaml:"ssh_authorized_keys,omitempty"`
	}
	doc := struct {
		Users  []any           `yaml:"users"`
		SSH    bool            `yaml:"ssh_pwauth,omitempty"`
		Expire map[string]bool `yaml:"chpasswd,omitempty"`
	}{Users: []any{"default", entry{
		Name: user, Shell: "/bin/bash", Sudo: "ALL=(ALL) NOPASSWD:ALL", Lock: password == "",
		Passwd: password, Keys: keys,
	}}}
	if password != "" {
		doc.SSH, doc.Expire = true, map[string]bool{"expire": false}
	}
	body, err := yaml.Marshal(doc)
	return "#cloud-config\n" + string(body), err
}
