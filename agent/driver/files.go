package driver

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
)

// Rename renames a file durably: it syncs the file before and the folder after the rename, so that
// a power failure leaves either the old or the complete new file.
func Rename(from, to string) error {
	if err := Synced(from); err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return Synced(filepath.Dir(to))
}

// Synced flushes a file or a folder's entries to the disk. Some file systems do not support syncing
// a folder; Synced ignores that error.
func Synced(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	if err = f.Sync(); errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		err = nil
	}
	return errors.Join(err, f.Close())
}
