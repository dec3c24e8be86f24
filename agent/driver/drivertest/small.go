package drivertest

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/persys/compute/testbed"
)

// Small mounts an in-memory file system of the given size at dir, which it creates, and unmounts it when the
// test ends. It needs root.
func Small(t *testing.T, dir string, bytes int64) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	testbed.Need(t, "a small file system", syscall.Mount("persys-small", dir, "tmpfs", 0, "mode=0755,size="+strconv.FormatInt(bytes, 10)))
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmounting %s: %v", dir, err)
		}
	})
}

// Fill returns two functions: fill writes a file in dir until the file system is full; empty removes the
// file.
func Fill(t *testing.T, dir string) (fill, empty func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	fill = func() {
		t.Helper()
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		// Write in pieces of decreasing size, down to one byte, so that not even the smallest file fits.
		for _, size := range []int{1 << 20, 4 << 10, 1} {
			block := make([]byte, size)
			for err == nil {
				_, err = f.Write(block)
			}
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("filling %s: %v", dir, err)
			}
			err = nil
		}
	}
	empty = func() {
		t.Helper()
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	return fill, empty
}
