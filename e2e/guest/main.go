//go:build linux

// Guest is all user-space code of the small virtual machine that tests boot: it is /init of an initramfs
// with Debian's cloud kernel. It reads its NoCloud seed as cloud-init does, configures its interfaces from
// the seed, counts its boots on its first disk, and prints all of this on the serial console. It reacts to
// the power button and to a few commands on the console.
package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// modules are the kernel modules that the guest loads, in the order of their dependencies.
var modules = []string{
	"virtio_ring", "virtio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci",
	"virtio_blk", "failover", "net_failover", "virtio_net", "cdrom", "isofs", "evdev", "button", "pvpanic", "pvpanic-mmio",
}

func say(format string, args ...any) { fmt.Printf("guest: "+format+"\n", args...) }

func main() {
	if len(os.Args) > 1 && os.Args[1] == "modules" { // with the argument modules the program lists kernel modules for the build of the initramfs
		fmt.Println(strings.Join(modules, "\n"))
		return
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "this is the init of a test guest; it runs only there")
		os.Exit(2)
	}
	if err := boot(); err != nil {
		say("failed: %v", err)
	}
	go console()
	powerButton()
}

func boot() error {
	for _, m := range []struct{ what, where string }{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}} {
		if err := os.MkdirAll(m.where, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.what, m.where, m.what, 0, ""); err != nil && err != unix.EBUSY {
			return fmt.Errorf("mounting %s: %w", m.where, err)
		}
	}
	// Set the kernel's log level so low that only urgent kernel messages appear on the console between the lines
	// that this program prints.
	_ = os.WriteFile("/proc/sys/kernel/printk", []byte("2 4 1 7\n"), 0o644)
	for _, m := range modules {
		if err := load("/modules/" + m + ".ko"); err != nil {
			return fmt.Errorf("module %s: %w", m, err)
		}
	}
	if err := count(); err != nil {
		return err
	}
	seed, err := readSeed()
	if err != nil {
		return err
	}
	if err := network(seed["network-config"]); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	say("ready")
	return nil
}

func load(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && err != unix.EEXIST {
		return err
	}
	return nil
}

// count increments and prints the number of boots, which the guest keeps in an unused sector of its first
// disk. A higher number proves that the guest booted from the same disk.
func count() error {
	const at = 1<<20 - 512 // offset of the sector between the boot loader and the kernel
	disk, err := waitFor("/dev/vda")
	if err != nil {
		return err
	}
	f, err := os.OpenFile(disk, os.O_RDWR|os.O_SYNC, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	var sector [512]byte
	if _, err := f.ReadAt(sector[:], at); err != nil {
		return err
	}
	n := binary.LittleEndian.Uint32(sector[:]) + 1
	binary.LittleEndian.PutUint32(sector[:], n)
	if _, err := f.WriteAt(sector[:], at); err != nil {
		return err
	}
	size, err := f.Seek(0, 2)
	if err != nil {
		return err
	}
	say("boot %d", n)
	say("disk %d MiB", size>>20)
	return nil
}

func waitFor(path string) (string, error) {
	for range 200 {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return "", fmt.Errorf("%s does not appear", path)
}

// readSeed mounts the file system with the volume id cidata, as cloud-init does, and returns its
// files by name.
func readSeed() (map[string]string, error) {
	disks, err := filepath.Glob("/dev/vd?")
	if err != nil {
		return nil, err
	}
	if optical, err := filepath.Glob("/dev/sr?"); err == nil {
		disks = append(disks, optical...)
	}
	out := map[string]string{}
	for _, d := range disks {
		f, err := os.Open(d)
		if err != nil {
			continue
		}
		volume := make([]byte, 32)
		_, err = f.ReadAt(volume, 16*2048+40)
		f.Close()
		if err != nil || !strings.EqualFold(strings.TrimSpace(string(volume)), "cidata") {
			continue
		}
		say("seed on %s", d)
		if err := os.MkdirAll("/seed", 0o755); err != nil {
			return nil, err
		}
		if err := unix.Mount(d, "/seed", "iso9660", unix.MS_RDONLY, ""); err != nil {
			return nil, fmt.Errorf("mounting %s: %w", d, err)
		}
		files, err := os.ReadDir("/seed")
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			text, err := os.ReadFile("/seed/" + file.Name())
			if err != nil {
				return nil, err
			}
			out[file.Name()] = string(text)
			for line := range strings.Lines(string(text)) {
				say("%s| %s", file.Name(), strings.TrimRight(line, "\n"))
			}
		}
		return out, nil
	}
	say("no seed")
	return out, nil
}

// console executes the commands that arrive on the serial console.
func console() {
	for {
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() {
			switch word := strings.TrimSpace(in.Text()); word {
			case "":
			case "ping":
				say("pong")
			case "panic":
				_ = os.WriteFile("/proc/sys/kernel/sysrq", []byte("1"), 0o644)
				_ = os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0o200)
			case "poweroff":
				off()
			default:
				say("what is %q?", word)
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// powerButton waits for the ACPI power button, which is an input device.
func powerButton() {
	const (
		evKey    = 1
		keyPower = 116
	)
	buttons, _ := filepath.Glob("/dev/input/event*")
	if len(buttons) == 0 {
		say("there is no power button")
	}
	slices.Sort(buttons)
	for _, b := range buttons {
		go func() {
			f, err := os.Open(b)
			if err != nil {
				return
			}
			defer f.Close()
			var event [24]byte
			for {
				if _, err := f.Read(event[:]); err != nil {
					return
				}
				if binary.LittleEndian.Uint16(event[16:]) == evKey && binary.LittleEndian.Uint16(event[18:]) == keyPower {
					say("power button")
					off()
				}
			}
		}()
	}
	select {}
}

func off() {
	say("bye")
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}
