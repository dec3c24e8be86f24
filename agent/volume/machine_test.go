package volume

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/persys/compute/agent/driver"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/testbed"
)

// machine returns the real machine, if it can make volumes with a limit.
func machine(t *testing.T) System {
	t.Helper()
	testbed.LoopDevices(t)
	if !(Machine{}).Find("mkfs.ext4") {
		testbed.Need(t, "mkfs.ext4", errors.New("it is not installed"))
	}
	return Machine{}
}

// TestLimit proves on a real file system that a size is enforced, that it can grow while in use, that content
// survives a restart, a reboot and an update, and that nothing is left at the end.
func TestLimit(t *testing.T) {
	b := newBench(t, machine(t))
	t.Cleanup(func() { _ = syscall.Unmount(filepath.Join(b.cfg.Pools[0].Path, "data"), syscall.MNT_DETACH) })
	at := b.attach("db", driver.Container, folder("data", sized(1)))[0].Path
	write(t, at, "kept", "one")

	fill := func(mib int) error {
		f, err := os.Create(filepath.Join(at, "fill"))
		if err != nil {
			return err
		}
		defer f.Close()
		return syscall.Fallocate(int(f.Fd()), 0, 0, int64(mib)<<20)
	}
	if err := fill(1100); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("1100 MiB in a volume of 1 GB: %v", err)
	}
	b.attach("db", driver.Container, folder("data", sized(2)))
	if err := fill(1100); err != nil {
		t.Fatalf("after it grew to 2 GB: %v", err)
	}
	if err := os.Remove(filepath.Join(at, "fill")); err != nil {
		t.Fatal(err)
	}

	b.restart()
	b.m.Mount(t.Context())
	if n := mounts(t, filepath.Dir(at)); n != 1 {
		t.Fatalf("%d mounts after the agent's restart, want the one", n)
	}
	// After a reboot the volume is not mounted, and the folder for workloads is missing.
	if err := syscall.Unmount(filepath.Dir(at), 0); err != nil {
		t.Fatal(err)
	}
	if !gone(at) {
		t.Error("an unmounted volume looks like an empty one")
	}
	b.restart()
	b.m.Mount(t.Context())
	if !holds(at, "kept", "one") {
		t.Fatal("not mounted again")
	}
	if err := b.m.Release(t.Context(), "db", Fate{}); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(b.cfg.Pools[0].Path)
	if err != nil || len(left) != 0 || mounts(t, filepath.Dir(at)) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func mounts(t *testing.T, path string) int {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(raw), " "+path+" ")
}

// An existing file without a record is never formatted.
func TestImageIsNotFormattedTwice(t *testing.T) {
	b := newBench(t, machine(t))
	t.Cleanup(func() { _ = syscall.Unmount(filepath.Join(b.cfg.Pools[0].Path, "data"), syscall.MNT_DETACH) })
	at := b.attach("db", driver.Container, folder("data", sized(1), retain))[0].Path
	write(t, at, "kept", "one")
	if err := b.m.Release(t.Context(), "db", Fate{}); err != nil {
		t.Fatal(err)
	}
	b.store = newMemory() // the agent's state file is lost
	b.restart()
	b.attach("db", driver.Container, folder("data", sized(1)))
	if !holds(at, "kept", "one") {
		t.Fatal("the volume was made anew")
	}
	if err := b.m.Release(t.Context(), "db", Fate{}); err != nil {
		t.Fatal(err)
	}
}

// If this machine's kernel has no NFS client, the error says so. If it has one, mount refuses a server that does
// not exist.
func TestNFSOnThisMachine(t *testing.T) {
	b := newBench(t, Machine{}, func(c *Config) { c.NFS.Server, c.NFS.Export = "127.0.0.1", "/nowhere" })
	_, err := b.m.Attach(t.Context(), "w", driver.Container, []*agentv1.ManagedVolumeSpec{folder("a", by("nfs"))})
	if err == nil || !strings.Contains(err.Error(), "nfs") && !strings.Contains(err.Error(), "cannot be mounted") {
		t.Fatalf("%v", err)
	}
	t.Log(err)
	if !gone(filepath.Join(b.cfg.NFS.Root, "export", "a")) {
		t.Error("a local folder was made in its stead")
	}
}

// Program output that is not UTF-8 is converted, so that it can be sent in protobuf messages.
func TestWhatProgramsSayIsUTF8(t *testing.T) {
	for text, want := range map[string]string{"kurz": "kurz", "über": "übe…", "abcü": "abc…", "h\xfc": "h\ufffd"} {
		if got := clip(text, 4); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}
