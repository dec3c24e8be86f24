package driver

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// Rename renames a file durably. It syncs the file before the rename and the folder after it. So after a
// power failure either the old file or the complete new file exists.
func Rename(from, to string) error {
	if err := Synced(from); err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return Synced(filepath.Dir(to))
}

// WriteFile creates the file name below root, and missing parent folders with mode 0755. The file survives a
// power failure. It gets exactly the given mode, regardless of the umask. The file must not exist before.
func WriteFile(root *os.Root, name string, mode os.FileMode, from io.Reader) error {
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	w, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, from)
	return errors.Join(err, w.Chmod(mode), w.Sync(), w.Close())
}

// Synced flushes a file, or the entries of a folder, to the disk (fsync). Some file systems do not
// support syncing a folder; Synced ignores that error.
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
