package driver

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
)

// Rename gives a file the name by which it is looked for, to last: a machine that loses its power the next moment
// has it whole. Of what is only named it may keep the name alone.
func Rename(from, to string) error {
	if err := Synced(from); err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return Synced(filepath.Dir(to))
}

// Synced waits until a file, or what a folder names, is on the disk. Not every file system can be asked that of a
// folder.
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
