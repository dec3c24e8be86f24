package pki

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A wrapped file opens only with its passphrase, and a plain file is replaced by a wrapped one.
func TestPassphrase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cluster.key")
	plain, _, err := LoadOrCreateKey(path)
	if err != nil {
		t.Fatal(err)
	}
	f := KeyFile{Path: path, Wrap: Passphrase("correct horse battery")}
	if got, err := f.Load(); err != nil || got.ID() != plain.ID() {
		t.Fatalf("%v: %v", got, err)
	}
	raw, err := os.ReadFile(path)
	if err != nil || !strings.HasPrefix(string(raw), wrapPrefix+"scrypt.") {
		t.Errorf("the file still holds %.40q: %v", raw, err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v: %v", st.Mode(), err)
	}
	if got, err := f.Load(); err != nil || got.ID() != plain.ID() {
		t.Errorf("again: %v: %v", got, err)
	}
	wrong := Passphrase("correct horse battery.")
	if _, err := (KeyFile{Path: path, Wrap: wrong}).Load(); !errors.Is(err, ErrPassphrase) {
		t.Errorf("another passphrase: %v", err)
	}
	if _, err := LoadKey(path); err == nil || !strings.Contains(err.Error(), "protected by scrypt") {
		t.Errorf("no passphrase: %v", err)
	}
	if _, _, err := (KeyFile{Path: path + "2", Wrap: Passphrase("short")}).LoadOrCreate(); err == nil || !strings.Contains(err.Error(), "12 or more") {
		t.Errorf("a short one: %v", err)
	}
	if text := fmt.Sprintf("%v %#v %s", wrong, wrong, wrong); strings.Contains(text, "horse") {
		t.Errorf("printed: %s", text)
	}
}
