package pki

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/chacha20poly1305"
	"golang.org/x/crypto/scrypt"
)

const (
	// keyFileMax is the maximum size of a key file in bytes.
	keyFileMax = 4096
	// wrapPrefix is the beginning of a key file with a wrapped (encrypted) key:
	// persys-wrapped-key-1.<kind>.<wrapped key>.
	wrapPrefix = "persys-wrapped-key-1."
)

// Wrapper encrypts the key in a key file, so that the file alone does not reveal the key.
type Wrapper interface {
	// Kind returns the name of the wrapper in a key file, in lower-case letters.
	Kind() string
	// Wrap encrypts the key. Its result is one line of printable ASCII without spaces.
	Wrap(plain []byte) (string, error)
	Unwrap(wrapped string) ([]byte, error)
}

// KeyFile is a file with a Key, such as the cluster key. Group and others must not have access to it.
type KeyFile struct {
	Path string
	// Wrap encrypts the key in the file. If Wrap is nil, the key is stored in plain text. If it is set, Load
	// replaces a plain file by an encrypted one.
	Wrap Wrapper
}

// LoadKey reads a key file whose key is not encrypted.
func LoadKey(path string) (*Key, error) { return KeyFile{Path: path}.Load() }

// LoadOrCreateKey reads a key file whose key is not encrypted, or creates one.
func LoadOrCreateKey(path string) (k *Key, created bool, err error) {
	return KeyFile{Path: path}.LoadOrCreate()
}

// ImportKey writes an exported key to a key file without encryption.
func ImportKey(path, text string) (*Key, error) { return KeyFile{Path: path}.Import(text) }

// Load reads the key from the file, which must be a regular file with mode 0600 or less.
func (f KeyFile) Load() (*Key, error) {
	text, err := f.read()
	if err != nil {
		return nil, err
	}
	k, err := f.parse(text)
	if err != nil {
		return nil, fmt.Errorf("key file %s: %w", f.Path, err)
	}
	if f.Wrap != nil && !strings.HasPrefix(text, wrapPrefix) {
		if err := f.protect(k); err != nil {
			return nil, fmt.Errorf("key file %s: protecting it by %s: %w", f.Path, f.Wrap.Kind(), err)
		}
	}
	return k, nil
}

func (f KeyFile) read() (string, error) {
	file, err := os.Open(f.Path)
	if err != nil {
		return "", fmt.Errorf("key file: %w", err)
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return "", fmt.Errorf("key file: %w", err)
	}
	if !st.Mode().IsRegular() {
		return "", fmt.Errorf("key file %s: not a regular file", f.Path)
	}
	if perm := st.Mode().Perm(); perm&0o077 != 0 {
		return "", fmt.Errorf("key file %s: mode %04o lets other users read the key, want 0600: run chmod 600 %s", f.Path, perm, f.Path)
	}
	if st.Size() > keyFileMax {
		return "", fmt.Errorf("key file %s: %d bytes, limit %d", f.Path, st.Size(), keyFileMax)
	}
	b := make([]byte, st.Size())
	if _, err := file.ReadAt(b, 0); err != nil && len(b) > 0 {
		return "", fmt.Errorf("key file %s: %w", f.Path, err)
	}
	return strings.TrimSpace(string(b)), nil
}

// parse reads the key from the text of a key file. Errors never contain the key.
func (f KeyFile) parse(text string) (*Key, error) {
	rest, wrapped := strings.CutPrefix(text, wrapPrefix)
	if !wrapped {
		return ParseKey(text)
	}
	kind, body, _ := strings.Cut(rest, ".")
	if f.Wrap == nil || f.Wrap.Kind() != kind {
		return nil, fmt.Errorf("the key in the file is encrypted by %s, which is not configured here", clipWord(kind))
	}
	plain, err := f.Wrap.Unwrap(body)
	if err != nil {
		return nil, err
	}
	return ParseKey(string(plain))
}

func clipWord(s string) string {
	if len(s) > 16 || strings.Trim(s, "abcdefghijklmnopqrstuvwxyz") != "" {
		return "something unknown"
	}
	return s
}

// protect replaces a key file in plain text by an encrypted one. Before that it checks that the encrypted key can be
// decrypted.
func (f KeyFile) protect(k *Key) error {
	text, err := f.text(k)
	if err != nil {
		return err
	}
	again, err := f.parse(text)
	if err != nil {
		return err
	}
	if again.id != k.id {
		return errors.New("the encrypted key does not decrypt to the same key")
	}
	return WriteFile(f.Path, []byte(text+"\n"), 0o600)
}

// text returns the content of a key file for key k.
func (f KeyFile) text(k *Key) (string, error) {
	if f.Wrap == nil {
		return k.Export(), nil
	}
	body, err := f.Wrap.Wrap([]byte(k.Export()))
	if err != nil {
		return "", err
	}
	return wrapPrefix + f.Wrap.Kind() + "." + body, nil
}

// LoadOrCreate reads the file, or creates it with a new key if it does not exist. If several callers do this
// at the same time, one of them creates the file and all get that key. A missing folder is created with mode
// 0700.
func (f KeyFile) LoadOrCreate() (k *Key, created bool, err error) {
	k, err = f.Load()
	if !errors.Is(err, fs.ErrNotExist) {
		return k, false, err
	}
	if k, err = NewKey(); err != nil {
		return nil, false, err
	}
	err = f.store(k)
	if errors.Is(err, fs.ErrExist) {
		k, err = f.Load()
		return k, false, err
	}
	if err != nil {
		return nil, false, err
	}
	return k, true, nil
}

// Import writes an exported key to the file. If the file already holds this key, it stays as it is. If it
// holds another key, Import returns an error, because secrets that were sealed under that key would be lost.
func (f KeyFile) Import(text string) (*Key, error) {
	k, err := ParseKey(text)
	if err != nil {
		return nil, err
	}
	old, err := f.Load() // read first, because the folder may be a read-only mount with the key
	if errors.Is(err, fs.ErrNotExist) {
		if err = f.store(k); err == nil {
			return k, nil
		}
		if errors.Is(err, fs.ErrExist) {
			old, err = f.Load()
		}
	}
	if err != nil {
		return nil, err
	}
	if old.id != k.id {
		return nil, fmt.Errorf("key file %s: holds key %s, not %s: move it away first", f.Path, old.id, k.id)
	}
	return old, nil
}

// store creates the file atomically. It fails with fs.ErrExist if the file exists.
func (f KeyFile) store(k *Key) error {
	text, err := f.text(k)
	if err != nil {
		return fmt.Errorf("key file: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(f.Path), 0o700); err != nil {
		return fmt.Errorf("key file: %w", err)
	}
	temp, err := writeTemp(f.Path, []byte(text+"\n"), 0o600)
	if err != nil {
		return fmt.Errorf("key file: %w", err)
	}
	defer os.Remove(temp)
	// Create the name by a hard link, which fails if the name exists. A rename would replace the existing
	// file.
	if err := os.Link(temp, f.Path); err != nil {
		return fmt.Errorf("key file: %w", err)
	}
	return SyncDir(filepath.Dir(f.Path))
}

// Passphrase is a Wrapper that encrypts the key with a passphrase, by means of scrypt.
type Passphrase string

// String hides the passphrase from printed text.
func (Passphrase) String() string { return Redacted }

// GoString hides the passphrase from text printed with %#v.
func (Passphrase) GoString() string { return Redacted }

const (
	// passphraseLeast is the minimum length of a passphrase in bytes.
	passphraseLeast = 12
	// Parameters of scrypt: N = 2^15, r = 8, p = 1. One derivation takes about 0.1 s and 32 MiB.
	scryptN, scryptR, scryptP = 1 << 15, 8, 1
	scryptSalt                = 16
)

// ErrPassphrase is returned for a wrong passphrase.
var ErrPassphrase = errors.New("the passphrase is wrong, or the file was changed")

// Check returns an error if the passphrase is too short.
func (p Passphrase) Check() error {
	if len(p) < passphraseLeast {
		return fmt.Errorf("the passphrase has %d bytes, want %d or more", len(p), passphraseLeast)
	}
	return nil
}

// Kind implements Wrapper.
func (Passphrase) Kind() string { return "scrypt" }

func (p Passphrase) key(salt []byte) ([]byte, error) {
	return scrypt.Key([]byte(p), salt, scryptN, scryptR, scryptP, chacha20poly1305.KeySize)
}

// Wrap implements Wrapper.
func (p Passphrase) Wrap(plain []byte) (string, error) {
	if err := p.Check(); err != nil {
		return "", err
	}
	box := make([]byte, scryptSalt+chacha20poly1305.NonceSizeX)
	if _, err := rand.Read(box); err != nil {
		return "", err
	}
	salt, nonce := box[:scryptSalt], box[scryptSalt:]
	key, err := p.key(salt)
	if err != nil {
		return "", err
	}
	seal, err := chacha20poly1305.NewX(key)
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(seal.Seal(box, nonce, plain, []byte(wrapPrefix))), nil
}

// Unwrap implements Wrapper.
func (p Passphrase) Unwrap(wrapped string) ([]byte, error) {
	box, err := base64.RawURLEncoding.Strict().DecodeString(wrapped)
	if err != nil || len(box) < scryptSalt+chacha20poly1305.NonceSizeX+chacha20poly1305.Overhead {
		return nil, errors.New("key: the base64 text is malformed or incomplete")
	}
	salt, rest := box[:scryptSalt], box[scryptSalt:]
	key, err := p.key(salt)
	if err != nil {
		return nil, err
	}
	seal, err := chacha20poly1305.NewX(key)
	if err != nil {
		return nil, err
	}
	plain, err := seal.Open(nil, rest[:chacha20poly1305.NonceSizeX], rest[chacha20poly1305.NonceSizeX:], []byte(wrapPrefix))
	if err != nil {
		return nil, ErrPassphrase
	}
	return plain, nil
}
