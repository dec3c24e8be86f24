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

// machine returns the System that acts on the real machine. It skips the test if this machine cannot make
// volumes with a size limit.
func machine(t *testing.T) System {
	t.Helper()
	testbed.LoopDevices(t)
	if !(Machine{}).Find("mkfs.ext4") {
		testbed.Need(t, "mkfs.ext4", errors.New("mkfs.ext4 is not installed"))
	}
	return Machine{}
}

// TestVolumeSizeIsEnforced proves on a real file system that the size of a volume is enforced, and that a
// volume can grow while a workload uses it. Its content survives a restart of the agent, a reboot and an
// update. After the delete nothing is left.
func TestVolumeSizeIsEnforced(t *testing.T) {
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
		t.Fatalf("writing 1100 MiB to a volume of 1 GB returned %v, want an error", err)
	}
	b.attach("db", driver.Container, folder("data", sized(2)))
	if err := fill(1100); err != nil {
		t.Fatalf("after the volume grew to 2 GB, writing 1100 MiB returned %v, want success", err)
	}
	if err := os.Remove(filepath.Join(at, "fill")); err != nil {
		t.Fatal(err)
	}

	b.restart()
	b.m.Mount(t.Context())
	if n := mounts(t, filepath.Dir(at)); n != 1 {
		t.Fatalf("after a restart of the agent the volume has %d mounts, want one", n)
	}
	// Unmount the volume, as a reboot does. The folder that workloads see is then missing.
	if err := syscall.Unmount(filepath.Dir(at), 0); err != nil {
		t.Fatal(err)
	}
	if !gone(at) {
		t.Error("the volume was unmounted, but the folder that workloads see still exists, so that the volume looks empty")
	}
	b.restart()
	b.m.Mount(t.Context())
	if !holds(at, "kept", "one") {
		t.Fatal("after the reboot the volume was not mounted again")
	}
	if err := b.m.Release(t.Context(), "db", Retention{}); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(b.cfg.Pools[0].Path)
	if err != nil || len(left) != 0 || mounts(t, filepath.Dir(at)) != 0 {
		t.Errorf("the delete of the volume left the files %v (error %v), or mounts; want none", left, err)
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

// The file of a volume exists, but the agent has lost the volume's record. The agent must not format the file
// again.
func TestImageIsNotFormattedTwice(t *testing.T) {
	b := newBench(t, machine(t))
	t.Cleanup(func() { _ = syscall.Unmount(filepath.Join(b.cfg.Pools[0].Path, "data"), syscall.MNT_DETACH) })
	at := b.attach("db", driver.Container, folder("data", sized(1), retain))[0].Path
	write(t, at, "kept", "one")
	if err := b.m.Release(t.Context(), "db", Retention{}); err != nil {
		t.Fatal(err)
	}
	b.store = newMemory() // the agent's state file is lost
	b.restart()
	b.attach("db", driver.Container, folder("data", sized(1)))
	if !holds(at, "kept", "one") {
		t.Fatal("the existing file of the volume was formatted again")
	}
	if err := b.m.Release(t.Context(), "db", Retention{}); err != nil {
		t.Fatal(err)
	}
}

// If this machine's kernel has no NFS client, the error says that it is missing. If the kernel has an NFS
// client, mount fails because the server does not exist.
func TestNFSOnThisMachine(t *testing.T) {
	b := newBench(t, Machine{}, func(c *Config) { c.NFS.Server, c.NFS.Export = "127.0.0.1", "/nowhere" })
	_, err := b.m.Attach(t.Context(), "w", "", driver.Container, []*agentv1.ManagedVolumeSpec{folder("a", by("nfs"))})
	if err == nil || !strings.Contains(err.Error(), "nfs") && !strings.Contains(err.Error(), "cannot be mounted") {
		t.Fatalf("Attach of an nfs volume without a server returned %v, want an error about the kernel's NFS client or the mount", err)
	}
	t.Log(err)
	if !gone(filepath.Join(b.cfg.NFS.Root, "export", "a")) {
		t.Error("a local folder was made in place of the nfs volume")
	}
}

// Program output that is not UTF-8 is converted, so that it can be sent in protobuf messages.
func TestProgramOutputBecomesUTF8(t *testing.T) {
	for text, want := range map[string]string{"kurz": "kurz", "über": "übe…", "abcü": "abc…", "h\xfc": "h\ufffd"} {
		if got := clip(text, 4); got != want {
			t.Errorf("the program output %q becomes %q, want %q", text, got, want)
		}
	}
}
