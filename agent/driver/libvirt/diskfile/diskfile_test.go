package diskfile

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A disk gets its final name only after its file was synced. The test passes a socket instead of a disk file. A
// socket cannot be synced, so it must not get the final name.
func TestDiskIsWrittenOutBeforeItIsNamed(t *testing.T) {
	programs := t.TempDir()
	t.Setenv("PATH", programs+string(os.PathListSeparator)+os.Getenv("PATH"))
	for name, img := range map[string]*Image{"empty": nil, "copy": {Path: "image.raw", Format: "raw", Size: 1 << 20}} {
		to := filepath.Join(t.TempDir(), "vda.raw")
		l, err := net.Listen("unix", filepath.Join(programs, name))
		if err != nil {
			t.Fatal(err)
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		script := "#!/bin/sh\nexec mv " + filepath.Join(programs, name) + " " + to + PartSuffix + "\n"
		if err := errors.Join(l.Close(), os.WriteFile(filepath.Join(programs, "qemu-img"), []byte(script), 0o700)); err != nil {
			t.Fatal(err)
		}
		if err := Make(t.Context(), to, "raw", 1<<20, img); !errors.Is(err, unix.ENXIO) {
			t.Errorf("making the disk with %s returned %v; want an error, because the file cannot be synced", name, err)
		}
		for _, path := range []string{to, to + PartSuffix} {
			if there, err := Exists(path); err != nil || there {
				t.Errorf("after the failed sync (%s) the file %s exists: %t (error %v); want no file", name, path, there, err)
			}
		}
	}
}
