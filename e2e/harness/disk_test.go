package harness

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/persys/compute/testbed"
)

// TestAFrozenDiskHangsWrites: on a frozen disk a write hangs until the disk thaws or its limit has passed.
// Close leaves no mount behind.
func TestAFrozenDiskHangsWrites(t *testing.T) {
	testbed.LoopDevices(t)
	d, err := openDisk(t.TempDir(), 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	for _, request := range []bool{true, false} {
		if err := d.Freeze(); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- os.WriteFile(filepath.Join(d.Dir, "file"), []byte("text"), 0o600) }()
		select {
		case err := <-done:
			t.Fatalf("a write to the frozen file system must hang, but ended with %v", err)
		case <-time.After(200 * time.Millisecond):
		}
		if request {
			if err := d.Thaw(); err != nil {
				t.Fatal(err)
			}
		}
		if err := <-done; err != nil { // the write must end after Thaw, and also without Thaw after the time limit
			t.Fatal(err)
		}
	}
	if err := d.Freeze(); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(d.Dir); err != nil || len(left) > 0 {
		t.Errorf("after Close the mount point still has the files %v (%v)", left, err)
	}
	if err := d.Thaw(); err == nil {
		t.Error("Thaw of a closed disk succeeded, want an error")
	}
}
