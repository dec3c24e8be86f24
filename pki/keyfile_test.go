package pki

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A key file that was encrypted with a passphrase can be read only with this passphrase. A plain file is
// replaced by an encrypted one.
func TestPassphraseProtectsTheKeyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cluster.key")
	plain, _, err := LoadOrCreateKey(path)
	if err != nil {
		t.Fatal(err)
	}
	f := KeyFile{Path: path, Wrap: Passphrase("correct horse battery")}
	if got, err := f.Load(); err != nil || got.ID() != plain.ID() {
		t.Fatalf("Load returned %v, error %v, want the key", got, err)
	}
	raw, err := os.ReadFile(path)
	if err != nil || !strings.HasPrefix(string(raw), wrapPrefix+"scrypt.") {
		t.Errorf("after Load the key file must contain only the encrypted key, but contains %.40q (error %v)", raw, err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the encrypted key file has mode %v (error %v), want 0600", st.Mode(), err)
	}
	if got, err := f.Load(); err != nil || got.ID() != plain.ID() {
		t.Errorf("the second Load returned %v, error %v, want the same key", got, err)
	}
	wrong := Passphrase("correct horse battery.")
	if _, err := (KeyFile{Path: path, Wrap: wrong}).Load(); !errors.Is(err, ErrPassphrase) {
		t.Errorf("Load with another passphrase returned %v, want ErrPassphrase", err)
	}
	if _, err := LoadKey(path); err == nil || !strings.Contains(err.Error(), "encrypted by scrypt") {
		t.Errorf("LoadKey of an encrypted file without a passphrase returned %v, want an error that says that the key is encrypted by scrypt", err)
	}
	if _, _, err := (KeyFile{Path: path + "2", Wrap: Passphrase("short")}).LoadOrCreate(); err == nil || !strings.Contains(err.Error(), "12 or more") {
		t.Errorf("LoadOrCreate with a short passphrase returned %v, want an error that demands 12 bytes or more", err)
	}
	if text := fmt.Sprintf("%v %#v %s", wrong, wrong, wrong); strings.Contains(text, "horse") {
		t.Errorf("a printed passphrase must be hidden, but is %s", text)
	}
}
