package diskfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// MakeFolder makes a domain's folder, which QEMU's user must be able to enter.
func MakeFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return Failed(err)
	}
	return nil
}

// RemoveOthers deletes the files in a domain's folder that a replaced definition left.
func RemoveOthers(dir string, keep ...string) error {
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return Failed(err)
	}
	for _, f := range files {
		stays := false
		for _, k := range keep {
			// Rotated logs have a number after the name.
			stays = stays || k != "" && (f.Name() == filepath.Base(k) || strings.HasPrefix(f.Name(), filepath.Base(k)+"."))
		}
		if stays {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, f.Name())); err != nil {
			return Failed(err)
		}
	}
	return nil
}
