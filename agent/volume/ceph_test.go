package volume

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/persys/compute/agent/driver"
)

func TestCephVolumesAreMadeGrownAndRemoved(t *testing.T) {
	ceph := func(c *Config) {
		c.Ceph.Pool, c.Ceph.User, c.Ceph.Cluster = "persys", "client.node", "ceph"
	}
	v := folder("db", by("ceph-rbd"), sized(5))
	t.Run("the error names the setting or program that is missing", func(t *testing.T) {
		newBench(t, &fake{}).refused("PERSYS_STORAGE_CEPH_POOL is not set", driver.StorageProvisionFailed, "w", driver.Container, v)
		newBench(t, &fake{}, ceph).refused("the program rbd is not installed", driver.StorageProvisionFailed, "w", driver.Container, v)
		down := &fake{programs: []string{"rbd"}, answer: func(string, []string) (string, error) { return "", errors.New("rbd: couldn't connect to the cluster!") }}
		newBench(t, down, ceph).refused(`the cluster does not answer for pool "persys"`, driver.StorageProvisionFailed, "w", driver.Container, v)
		newBench(t, &fake{programs: []string{"rbd"}}, ceph, func(c *Config) { c.Ceph.Keyring = "/nowhere/keyring" }).
			refused("PERSYS_STORAGE_CEPH_KEYRING", driver.StorageProvisionFailed, "w", driver.Container, v)
	})
	t.Run("an image is created, mapped, formatted once, mounted, unmapped and removed", func(t *testing.T) {
		made, mapped, formatted := false, false, false
		device := filepath.Join(t.TempDir(), "rbd0")
		write(t, filepath.Dir(device), "rbd0", strings.Repeat("\x00", 1<<20))
		sys := &fake{programs: []string{"rbd", "mkfs.ext4"}}
		sys.answer = func(p string, args []string) (string, error) {
			switch {
			case p == "mkfs.ext4":
				formatted = true
			case p == "blkid" && !formatted:
				return "", exit(2)
			case p == "blkid":
				return "ext4\n", nil
			case p != "rbd":
			case args[0] == "info" && !made:
				return "", exit(2)
			case args[0] == "create":
				made = true
			case args[0] == "rm":
				made = false
			case args[0] == "device" && args[1] == "list" && mapped:
				return `[{"id":"0","pool":"persys","namespace":"","name":"db","snap":"-","device":"` + device + `"}]`, nil
			case args[0] == "device" && args[1] == "map":
				mapped = true
				return device + "\n", nil
			case args[0] == "device" && args[1] == "unmap":
				mapped = false
			}
			return "", nil
		}
		b := newBench(t, sys, ceph)
		at := b.attach("w", driver.Container, v)[0]
		b.attach("w", driver.Container, v)
		if got := sys.calls("rbd create"); len(got) != 1 || got[0] != "rbd create --size 5G persys/db --cluster ceph --id node" {
			t.Errorf("rbd create was called as %q", got)
		}
		if len(sys.calls("mkfs.ext4")) != 1 || len(sys.calls("rbd device map --exclusive persys/db")) != 1 || len(sys.mounts) != 1 || filepath.Base(at.Path) != inside {
			t.Errorf("Attach returned %+v and ran the programs %q; want the RBD image created, mapped, formatted and mounted once each", at, sys.ran)
		}
		if err := b.m.Release(t.Context(), "w", Retention{}); err != nil || made || mapped || len(sys.mounts) != 0 {
			t.Errorf("after Release (error %v) the images are %v, the mapped devices %v and the mounts %v; want no image, no device and no mount", err, made, mapped, sys.mounts)
		}
		if disk := b.attach("vm", driver.VM, folder("vmdisk", by("ceph-rbd"), sized(2)))[0].Disk; disk != "rbd:persys/vmdisk" {
			t.Errorf("disk %q", disk)
		}
	})
}

// An unreadable device is not formatted, although blkid exits with 2 (nothing found) for it as for an empty
// device.
func TestOnlyAnEmptyImageIsFormatted(t *testing.T) {
	for name, c := range map[string]struct {
		holds string // content of the block device of the image
		want  string
	}{
		"a device that cannot be read to the end is not formatted":          {strings.Repeat("\x00", 4096), "cannot be read"},
		"a device with data that blkid does not recognise is not formatted": {strings.Repeat("\x00", 65536) + "x" + strings.Repeat("\x00", 1<<20), "is not empty"},
		"a device that does not exist is not formatted":                     {"", "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if c.holds != "" {
				write(t, dir, "rbd0", c.holds)
			}
			sys := &fake{programs: []string{"rbd", "mkfs.ext4"}, answer: func(p string, args []string) (string, error) {
				switch {
				case p == "blkid":
					return "", exit(2)
				case p == "rbd" && args[0] == "device" && args[1] == "map":
					return filepath.Join(dir, "rbd0"), nil
				}
				return "", nil
			}}
			b := newBench(t, sys, func(c *Config) { c.Ceph.Pool = "persys" })
			b.refused(c.want, driver.StorageAttachFailed, "w", driver.Container, folder("db", by("ceph-rbd"), sized(5)))
			if ran := append(sys.calls("mkfs"), sys.calls("mount")...); len(ran) > 0 {
				t.Errorf("ran %q", ran)
			}
		})
	}
}

// mkfs was interrupted and left an incomplete file system. The device holds no data, so it is formatted
// again.
func TestAnInterruptedFormatIsRepeated(t *testing.T) {
	dir := t.TempDir()
	device := filepath.Join(dir, "rbd0")
	write(t, dir, "rbd0", strings.Repeat("\x00", 1<<20))
	attempts := 0
	sys := &fake{programs: []string{"rbd", "mkfs.ext4"}, answer: func(p string, args []string) (string, error) {
		switch {
		case p == "blkid" && attempts < 3:
			return "", exit(2)
		case p == "mkfs.ext4":
			if attempts++; attempts < 3 {
				write(t, dir, "rbd0", strings.Repeat("\x00", 65536)+"tables"+strings.Repeat("\x00", 1<<20))
				return "", errors.New("Input/output error")
			}
		case p == "rbd" && args[0] == "device" && args[1] == "map":
			return device, nil
		}
		return "", nil
	}}
	b := newBench(t, sys, func(c *Config) { c.Ceph.Pool = "persys" })
	for range 2 {
		b.refused("Input/output error", driver.StorageAttachFailed, "w", driver.Container, folder("db", by(Ceph), sized(5)))
		b.restart()
	}
	b.attach("w", driver.Container, folder("db", by(Ceph), sized(5)))
	if v := b.store.vols["ceph-rbd:db"]; attempts != 3 || v.Formatting || len(sys.mounts) != 1 {
		t.Errorf("the image was formatted in %d attempts, want 3; the mounts are %v, the record of the volume is %+v", attempts, sys.mounts, v)
	}
}
