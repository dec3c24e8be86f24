package pki

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// During a rotation of the cluster key a scheduler holds several keys. The key file has the key that seals. Each other
// key has a file of its own beside it, whose name ends with the id of the key.

// keptSuffix is the middle part of the file name of a key that is stored beside the key file. The name
// consists of the name of the key file, keptSuffix, and the id of the key.
const keptSuffix = ".kept."

var contentContext = []byte("persys/content-key")

// WithOthers returns a copy of k that also opens what the other keys have sealed. It seals with k.
func (k *Key) WithOthers(others ...*Key) *Key {
	out := *k
	out.others = nil
	for _, o := range others {
		if o.id != k.id {
			out.others = append(out.others, o)
		}
	}
	return &out
}

// SealContentKey returns the key of the content hashes of k, sealed under another key. Content hashes are compared
// with stored ones, so they must stay the same when the cluster key is replaced.
func (k *Key) SealContentKey(under *Key) (string, error) {
	return under.Seal(k.content, contentContext)
}

// WithContentKey returns a copy of k with the key of content hashes that SealContentKey has sealed under k or one of
// its other keys. An empty text stands for the key that is derived from k.
func (k *Key) WithContentKey(sealed string) (*Key, error) {
	if sealed == "" {
		return k, nil
	}
	content, err := k.Open(sealed, contentContext)
	if err == nil && len(content) != keySize {
		err = ErrMalformed
	}
	if err != nil {
		return nil, fmt.Errorf("key of content hashes: %w", err)
	}
	out := *k
	out.content = content
	return &out, nil
}

func (f KeyFile) kept(id string) KeyFile {
	return KeyFile{Path: f.Path + keptSuffix + id, Wrap: f.Wrap}
}

// LoadAll reads the key file, and the files of further keys beside it. The result seals with the key in the key file,
// and opens with all of them.
func (f KeyFile) LoadAll() (*Key, error) {
	k, err := f.Load()
	if err != nil {
		return nil, err
	}
	others, err := f.LoadKept()
	if err != nil {
		return nil, err
	}
	return k.WithOthers(others...), nil
}

// LoadKept reads the files of further keys beside the key file.
func (f KeyFile) LoadKept() (out []*Key, err error) {
	paths, err := filepath.Glob(f.Path + keptSuffix + "*")
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		if id := path[len(f.Path)+len(keptSuffix):]; len(id) != 16 || !isLowerHex(id) {
			continue // skip the temporary file of an interrupted write
		}
		k, err := KeyFile{Path: path, Wrap: f.Wrap}.Load()
		if err != nil {
			return nil, err
		}
		out = append(out, k)
	}
	return out, nil
}

// Keep stores a further key beside the key file. The key is on the disk when Keep returns.
func (f KeyFile) Keep(k *Key) error {
	_, err := f.kept(k.id).Import(k.Export())
	return err
}

// Forget deletes the file of the key with this id beside the key file, which Keep has written.
func (f KeyFile) Forget(id string) error {
	err := os.Remove(f.kept(id).Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("key file: %w", err)
	}
	return SyncDir(filepath.Dir(f.Path))
}

// Replace makes k the key of the key file, atomically. It first keeps the former key beside it, so that no key is lost
// if the machine fails.
func (f KeyFile) Replace(k *Key) error {
	old, err := f.Load()
	if err != nil {
		return err
	}
	if bytes.Equal(old.master[:], k.master[:]) {
		return nil
	}
	if err := f.Keep(old); err != nil {
		return err
	}
	text, err := f.text(k)
	if err != nil {
		return fmt.Errorf("key file: %w", err)
	}
	if err := WriteFile(f.Path, []byte(text+"\n"), 0o600); err != nil {
		return fmt.Errorf("key file %s: %w", f.Path, err)
	}
	return nil
}
