package libvirt

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/persys/compute/agent/driver/libvirt/diskfile"
)

const gib = 1 << 30

// makeKeep makes a domain's folder, which QEMU's user must be able to enter.
func makeKeep(dir string) error {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return diskfile.Failed(err)
	}
	return nil
}

// removeOthers removes from a domain's folder what a replaced definition left.
func removeOthers(dir string, keep ...string) error {
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return diskfile.Failed(err)
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
			return diskfile.Failed(err)
		}
	}
	return nil
}

func describe(d diskPlan) string { return fmt.Sprintf("disk %s (%s)", d.device, d.path) }
