package libvirttest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/persys/compute/testbed"
)

// Layout of a real guest's disk, in sectors of 512 bytes. The first megabyte holds the boot loader. The
// guest counts its boots in the last sector of that megabyte.
const (
	sector      = 512
	kernelStart = 2048
)

// GuestMissing returns the name of a program or file that is needed to build a guest and that this machine
// lacks, or "" if nothing is missing.
func GuestMissing(ctx context.Context) string {
	root, err := testbed.Root(ctx)
	if err != nil {
		return err.Error()
	}
	if found, _ := filepath.Glob(filepath.Join(root, ".cache/cloud-kernel/boot/vmlinuz-*")); len(found) == 0 {
		return "no kernel in .cache/cloud-kernel (hack/install-test-deps.sh)"
	}
	if _, err := os.Stat(grubDir + "/boot.img"); err != nil {
		return "GRUB for BIOS is not installed (hack/install-test-deps.sh)"
	}
	if _, err := exec.LookPath("grub-mkimage"); err != nil {
		return "grub-mkimage is not installed (hack/install-test-deps.sh)"
	}
	return ""
}

const grubDir = "/usr/lib/grub/i386-pc"

// Guest returns the path of a real guest's qcow2 image: GRUB, Debian's cloud kernel, and an initramfs
// whose /init is e2e/guest. The image is built once for each version of these parts and cached in .cache.
func Guest(ctx context.Context) (string, error) {
	if missing := GuestMissing(ctx); missing != "" {
		return "", errors.New(missing)
	}
	root, err := testbed.Root(ctx)
	if err != nil {
		return "", err
	}
	cache := filepath.Join(root, ".cache")
	work, err := os.MkdirTemp(cache, "guest-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	initramfs, err := packInit(ctx, root, work)
	if err != nil {
		return "", err
	}
	kernels, _ := filepath.Glob(filepath.Join(cache, "cloud-kernel/boot/vmlinuz-*"))
	kernel, err := os.ReadFile(kernels[0])
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	sum.Write(initramfs)
	sum.Write(kernel)
	image := filepath.Join(cache, "guest-"+hex.EncodeToString(sum.Sum(nil)[:6])+".qcow2")
	if _, err := os.Stat(image); err == nil {
		return image, nil
	}
	raw := filepath.Join(work, "disk.raw")
	if err := writeDisk(ctx, work, raw, kernel, initramfs); err != nil {
		return "", err
	}
	if err := run(ctx, root, nil, "qemu-img", "convert", "-q", "-f", "raw", "-O", "qcow2", raw, filepath.Join(work, "disk.qcow2")); err != nil {
		return "", err
	}
	return image, os.Rename(filepath.Join(work, "disk.qcow2"), image)
}

func run(ctx context.Context, dir string, env []string, args ...string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// packInit builds the guest's /init and packs it into an initramfs with the kernel modules that it needs. The
// /init program itself prints the list of these modules.
func packInit(ctx context.Context, root, work string) ([]byte, error) {
	bin := filepath.Join(work, "init")
	if err := run(ctx, root, []string{"CGO_ENABLED=0"}, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", bin, "./e2e/guest"); err != nil {
		return nil, err
	}
	names, err := exec.CommandContext(ctx, bin, "modules").Output()
	if err != nil {
		return nil, fmt.Errorf("asking the guest for its modules: %w", err)
	}
	program, err := os.ReadFile(bin)
	if err != nil {
		return nil, err
	}
	var c cpio
	c.add("dev", 0o040755, nil)
	c.device("dev/console", 5, 1)
	c.add("init", 0o100755, program)
	c.add("modules", 0o040755, nil)
	for _, name := range strings.Fields(string(names)) {
		body, err := os.ReadFile(filepath.Join(root, ".cache/cloud-kernel/modules", name+".ko"))
		if err != nil {
			return nil, err
		}
		c.add("modules/"+name+".ko", 0o100644, body)
	}
	return c.finish(), nil
}

// writeDisk writes the disk of a guest that a BIOS can boot: GRUB's boot sector, its core image, then the
// kernel and the initramfs in contiguous sectors, which GRUB reads without a file system.
func writeDisk(ctx context.Context, work, disk string, kernel, initramfs []byte) error {
	run2 := func(start int, body []byte) string {
		return fmt.Sprintf("(hd0)%d+%d", start, (len(body)+sector-1)/sector)
	}
	initrdStart := kernelStart + (len(kernel)+sector-1)/sector
	config := fmt.Sprintf("linux %s console=ttyS0 panic=-1 no_timer_check quiet\ninitrd %s\nboot\n", run2(kernelStart, kernel), run2(initrdStart, initramfs))
	file := filepath.Join(work, "grub.cfg")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return err
	}
	core := filepath.Join(work, "core.img")
	if err := run(ctx, work, nil, "grub-mkimage", "-O", "i386-pc", "-o", core, "-p", "/", "-c", file, "biosdisk", "linux", "boot"); err != nil {
		return err
	}
	boot, err := os.ReadFile(grubDir + "/boot.img")
	if err != nil {
		return err
	}
	loader, err := os.ReadFile(core)
	if err != nil {
		return err
	}
	if len(loader) > (kernelStart-2)*sector {
		return fmt.Errorf("the core image of GRUB has %d bytes, more than fit before the first partition", len(loader))
	}
	f, err := os.Create(disk)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, part := range []struct {
		at   int
		body []byte
	}{{0, boot}, {1, loader}, {kernelStart, kernel}, {initrdStart, initramfs}} {
		if _, err := f.WriteAt(part.body, int64(part.at)*sector); err != nil {
			return err
		}
	}
	const size = 64 << 20
	return f.Truncate(size)
}

// cpio is an archive in the format of an initramfs ("newc").
type cpio struct {
	buf  bytes.Buffer
	next int
}

func (c *cpio) add(name string, mode uint32, body []byte) { c.entry(name, mode, 0, 0, body) }

func (c *cpio) device(name string, major, minor uint32) { c.entry(name, 0o020600, major, minor, nil) }

func (c *cpio) entry(name string, mode, major, minor uint32, body []byte) {
	c.next++
	fmt.Fprintf(&c.buf, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		c.next, mode, 0, 0, 1, 0, len(body), 0, 0, major, minor, len(name)+1, 0)
	c.buf.WriteString(name + "\x00")
	c.pad()
	c.buf.Write(body)
	c.pad()
}

func (c *cpio) pad() {
	for c.buf.Len()%4 != 0 {
		c.buf.WriteByte(0)
	}
}

func (c *cpio) finish() []byte {
	c.entry("TRAILER!!!", 0, 0, 0, nil)
	return c.buf.Bytes()
}
