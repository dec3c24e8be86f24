package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/persys/compute/agent/driver"
)

// provider is one kind of storage. Every call can be repeated.
type provider interface {
	// reach connects to the server that all its volumes share, which may take minutes. It is asked before a
	// volume is locked; the calls below then wait for no connection.
	reach(ctx context.Context) error
	// provision makes the storage of a volume, or finds what is there already, and fills StagePath. SizeGB is
	// less afterwards if that is smaller than what was asked for.
	provision(ctx context.Context, v *Volume) error
	// grow makes it larger; v has the new size.
	grow(ctx context.Context, v *Volume) error
	// attach mounts or maps it for a workload and gives what a driver is told: a folder or a disk.
	attach(ctx context.Context, v *Volume, workload string) (path, disk string, err error)
	// release ends one workload's use; last tells that nobody else here uses it.
	release(ctx context.Context, v *Volume, workload string, last bool) error
	// remove deletes the storage. It is an error if anybody still uses it.
	remove(ctx context.Context, v *Volume) error
}

// unreached is a provider whose server was not reached: what needs it fails at once, and says why.
type unreached struct {
	provider
	err error
}

func (u unreached) provision(context.Context, *Volume) error { return u.err }
func (u unreached) grow(context.Context, *Volume) error      { return u.err }
func (u unreached) attach(context.Context, *Volume, string) (string, string, error) {
	return "", "", u.err
}
func (u unreached) release(context.Context, *Volume, string, bool) error { return u.err }
func (u unreached) remove(context.Context, *Volume) error                { return u.err }

// inside is the folder of a mounted file system that workloads see: it is missing when nothing is
// mounted, and it keeps lost+found out of sight.
const inside = "data"

// folderMode of what workloads get. Its parents are for root only, or known by name only.
const folderMode = 0o755

// local keeps volumes on file systems of this machine.
type local struct {
	m     *Manager
	pools []PoolConfig // the first is the default
}

func (l *local) reach(context.Context) error { return nil }

func (l *local) root(name string) (string, error) {
	for _, p := range l.pools {
		if p.Name == name || name == "" {
			if err := os.MkdirAll(p.Path, 0o711); err != nil {
				return "", err
			}
			// Mount points are compared with the kernel's list, which knows no links.
			return filepath.EvalSymlinks(p.Path)
		}
	}
	names := make([]string, len(l.pools))
	for i, p := range l.pools {
		names[i] = p.Name
	}
	return "", invalid("storage pool %q is not one of this node's: %s (PERSYS_STORAGE_POOLS)", name, strings.Join(names, ", "))
}

func (l *local) provision(ctx context.Context, v *Volume) error {
	root, err := l.root(v.Pool)
	if err != nil {
		return err
	}
	v.StagePath = filepath.Join(root, clean(v.Name))
	mode := os.FileMode(folderMode)
	if v.Form != Disk {
		if err := own(v, v.StagePath, true); err != nil {
			return err
		}
	}
	if v.Form != Folder {
		mode = 0o700
		v.Device = v.StagePath + ".img"
		if err := l.room(v); err != nil {
			v.StagePath, v.Device = "", "" // nothing was made
			return err
		}
		if err := l.m.makeImage(ctx, v); err != nil {
			return err
		}
	}
	if v.Form != Disk {
		if err := os.MkdirAll(v.StagePath, mode); err != nil {
			return err
		}
	}
	return driver.Synced(root)
}

// own refuses a place that is another volume's: the folder of data.img has the name of the file of data.
func own(v *Volume, path string, folder bool) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() != folder {
		return invalid("volume %q would be stored at %s, which is another volume's: choose another name", v.Name, path)
	}
	return nil
}

// room refuses early, with the figures, what the pool cannot hold once it is full.
func (l *local) room(v *Volume) error {
	missing := v.SizeGB * gib
	if info, err := os.Stat(v.Device); err == nil {
		missing -= info.Size()
	}
	if missing <= 0 {
		return nil // it is there already
	}
	root := filepath.Dir(v.Device)
	space, err := l.m.sys.Space(root)
	if err != nil {
		return err
	}
	promised := l.m.promised(v.Pool, v.ID)
	if want := promised + v.SizeGB; want > space.Total/gib {
		return driver.Errorf(driver.StorageFull, "volume", "volume %q: %d GB and the %d GB of the other volumes are more than the %d GB of pool %q (%s)",
			v.Name, v.SizeGB, promised, space.Total/gib, l.name(v.Pool), root)
	}
	if space.Free < missing {
		return driver.Errorf(driver.StorageFull, "volume", "volume %q: %d GB are wanted, %d GB are free in pool %q (%s)",
			v.Name, missing/gib, space.Free/gib, l.name(v.Pool), root)
	}
	return nil
}

func (l *local) name(pool string) string {
	if pool == "" {
		return l.pools[0].Name
	}
	return pool
}

func (l *local) grow(ctx context.Context, v *Volume) error {
	if v.Form == Folder {
		return nil
	}
	if err := l.room(v); err != nil {
		return err
	}
	return l.m.growImage(ctx, v)
}

func (l *local) attach(ctx context.Context, v *Volume, _ string) (string, string, error) {
	switch v.Form {
	case Disk:
		return "", v.Device, present(v, v.Device)
	case Image:
		path, err := l.m.mountImage(ctx, v)
		return path, "", err
	}
	// Also the folder that a legacy v1 agent made, wherever it is.
	return v.StagePath, "", present(v, v.StagePath)
}

// present refuses a volume that was here and is not: made anew it would be an empty one in its stead.
func present(v *Volume, path string) error {
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("volume %q is missing: is the file system that holds it mounted? %w", v.Name, err)
	}
	return err
}

func (l *local) release(ctx context.Context, v *Volume, _ string, last bool) error {
	if v.Form != Image || !last {
		return nil
	}
	return l.m.unmount(ctx, v.StagePath)
}

func (l *local) remove(_ context.Context, v *Volume) error {
	return l.m.erase(v, v.StagePath, v.Device)
}

// erase deletes a volume's file and, unless it is a disk, its folder, if nothing is mounted there: it
// would not be ours.
func (m *Manager) erase(v *Volume, folder, file string) error {
	if v.Form != Disk { // a folder of a disk's name is another volume's
		if err := m.eraseFolder(folder); err != nil {
			return err
		}
	}
	if file == "" {
		return nil
	}
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (m *Manager) eraseFolder(folder string) error {
	if folder == "" || !filepath.IsAbs(folder) || folder == "/" {
		return fmt.Errorf("folder %q is no place for a volume", folder)
	}
	if at, ok, err := m.mountedBelow(folder); err != nil {
		return err
	} else if ok {
		return fmt.Errorf("something is mounted at %s; unmount it first", at)
	}
	if info, err := os.Lstat(folder); err == nil && info.Mode().IsRegular() {
		return nil // another volume's file
	}
	return os.RemoveAll(folder)
}

// makeImage makes the file of a volume. It is complete once it has its name, and a file that is there
// is never formatted.
func (m *Manager) makeImage(ctx context.Context, v *Volume) error {
	if err := own(v, v.Device, false); err != nil {
		return err
	}
	if err := taken(v); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	part := v.Device + "." + m.node + ".part" // others may make it too, on an export
	f, err := os.OpenFile(part, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	// Sparse: room was looked for, and writing it all would take minutes.
	err = errors.Join(f.Truncate(v.SizeGB*gib), f.Close())
	if err == nil && v.Form == Image {
		err = m.format(ctx, v.FSType, part)
	}
	if err == nil {
		err = driver.Synced(part)
	}
	if err == nil {
		// Unlike a rename, a link replaces no other node's. Not every file system has them.
		err = os.Link(part, v.Device)
		if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, fs.ErrPermission) {
			if err = os.Rename(part, v.Device); err == nil {
				return nil
			}
		}
	}
	if errors.Is(err, fs.ErrExist) {
		err = taken(v)
	}
	return errors.Join(err, os.Remove(part))
}

// taken takes the file that is there for a volume's, which may be smaller than was asked for.
func taken(v *Volume) error {
	info, err := os.Stat(v.Device)
	if err == nil {
		v.SizeGB = min(v.SizeGB, info.Size()/gib)
	}
	return err
}

// format makes a file system on a file or device that has none.
func (m *Manager) format(ctx context.Context, kind, path string) error {
	program, args := "mkfs."+kind, []string{"-q"}
	if kind == "ext4" {
		// No blocks kept for root: the size is the workload's.
		args = append(args, "-F", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1")
	}
	if !m.sys.Find(program) {
		return fmt.Errorf("%s is not installed (Debian: %s)", program, map[string]string{"ext4": "e2fsprogs", "xfs": "xfsprogs"}[kind])
	}
	_, err := m.sys.Run(ctx, program, append(args, path)...)
	return err
}

// mountImage mounts a volume's file, which takes a loop device, and gives the folder for workloads.
func (m *Manager) mountImage(ctx context.Context, v *Volume) (string, error) {
	return m.mount(ctx, v.StagePath, v.Device, "-t", v.FSType, "-o", "loop,nodev")
}

// mount makes source the file system at path, if it is not yet, and gives the folder in it that
// workloads see.
func (m *Manager) mount(ctx context.Context, path, source string, args ...string) (string, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return "", err
	}
	_, there, err := m.mountedAt(path)
	if err != nil {
		return "", err
	}
	if !there {
		if _, err := m.sys.Run(ctx, "mount", append(args, source, path)...); err != nil {
			return "", fmt.Errorf("%s cannot be mounted at %s: %w", source, path, err)
		}
	}
	folder := filepath.Join(path, inside)
	return folder, os.MkdirAll(folder, folderMode)
}

func (m *Manager) unmount(ctx context.Context, path string) error {
	_, there, err := m.mountedAt(path)
	if err != nil || !there {
		return err
	}
	if _, err := m.sys.Run(ctx, "umount", path); err != nil {
		return fmt.Errorf("%s cannot be unmounted: %w", path, err)
	}
	return nil
}

// growImage makes the file larger, and the file system in it: while it is mounted, or, where the agent
// lacks the right to do so (CAP_SYS_RESOURCE), between two mounts, if nobody uses it.
func (m *Manager) growImage(ctx context.Context, v *Volume) error {
	info, err := os.Stat(v.Device)
	if err == nil && info.Size() < v.SizeGB*gib { // another node may have made it larger than that: it is never cut
		err = os.Truncate(v.Device, v.SizeGB*gib)
	}
	if err != nil || v.Form == Disk {
		return err
	}
	if _, err := m.mountImage(ctx, v); err != nil {
		return err
	}
	loop, err := m.loop(ctx, v)
	if err != nil {
		return err
	}
	if _, err = m.sys.Run(ctx, "losetup", "-c", loop); err == nil {
		err = m.stretch(ctx, v, loop)
	}
	if err == nil || v.FSType != "ext4" {
		return err
	}
	if unmounted := m.unmount(ctx, v.StagePath); unmounted != nil {
		return errors.Join(err, unmounted)
	}
	// A container keeps the file system alive after it was unmounted here.
	if held, looked := m.loop(ctx, v); looked != nil || held != "" {
		_, again := m.mountImage(ctx, v)
		return errors.Join(fmt.Errorf("it cannot grow while it is in use; stop its workload first: %w", err), looked, again)
	}
	if _, err := m.sys.Run(ctx, "e2fsck", "-f", "-p", v.Device); err != nil && exitCode(err) != 1 { // 1: repaired
		return err
	}
	_, err = m.sys.Run(ctx, "resize2fs", v.Device)
	return err
}

// loop is the device that holds a volume's file, "" for none.
func (m *Manager) loop(ctx context.Context, v *Volume) (string, error) {
	out, err := m.sys.Run(ctx, "losetup", "-n", "-O", "NAME", "-j", v.Device)
	name, _, _ := strings.Cut(strings.TrimSpace(out), "\n")
	return name, err
}

// stretch makes a mounted file system as large as its device.
func (m *Manager) stretch(ctx context.Context, v *Volume, device string) error {
	if v.FSType == "xfs" {
		_, err := m.sys.Run(ctx, "xfs_growfs", v.StagePath)
		return err
	}
	_, err := m.sys.Run(ctx, "resize2fs", device)
	return err
}
