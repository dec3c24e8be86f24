package diskfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// MakeFolder creates the folder for the disks of a libvirt domain. Its mode 0711 lets the user of QEMU open files in it.
func MakeFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return Failed(err)
	}
	return nil
}

// RemoveOthers deletes all files in a domain's folder except keep, the files that the domain's definitions
// use.
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
			// Rotated console logs are kept too: their names begin with the name of the log.
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
