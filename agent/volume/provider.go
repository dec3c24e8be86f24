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

// provider is one kind of storage. All calls are idempotent.
type provider interface {
	// reach connects to the server that all its volumes share, which may take minutes. It is called before a
	// volume is locked, so that the calls below do not wait for a connection.
	reach(ctx context.Context) error
	// provision creates the storage of a volume, or finds existing storage, and sets StagePath. It lowers
	// SizeGB if existing storage is smaller.
	provision(ctx context.Context, v *Volume) error
	// grow enlarges the storage to the size in v.
	grow(ctx context.Context, v *Volume) error
	// attach mounts or maps the volume for a workload and returns a folder or a disk for the driver.
	attach(ctx context.Context, v *Volume, workload string) (path, disk string, err error)
	// release ends one workload's use; last means that no other workload on this node uses it.
	release(ctx context.Context, v *Volume, workload string, last bool) error
	// remove deletes the storage. It fails if the storage is in use.
	remove(ctx context.Context, v *Volume) error
}

// unreached is a provider whose server is unreachable: calls that need the server fail at once with the reason.
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

// inside is the folder of a mounted file system that workloads see. It is missing if nothing is mounted, and
// it hides lost+found.
const inside = "data"

// folderMode is the mode of folders for workloads. Their parents are accessible by root only.
const folderMode = 0o755

// local stores volumes on file systems of this machine.
type local struct {
	m     *Manager
	pools []PoolConfig // the first pool is the default
}

func (l *local) reach(context.Context) error { return nil }

func (l *local) root(name string) (string, error) {
	for _, p := range l.pools {
		if p.Name == name || name == "" {
			if err := os.MkdirAll(p.Path, 0o711); err != nil {
				return "", err
			}
			// Mount points are compared with the kernel's list, which has no symbolic links.
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
			v.StagePath, v.Device = "", "" // nothing was created
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

// own refuses a path of another volume. For example the folder of the volume "data.img" is the file of the volume "data".
func own(v *Volume, path string, folder bool) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() != folder {
		return invalid("volume %q would be stored at %s, which is another volume's: choose another name", v.Name, path)
	}
	return nil
}

// room refuses a volume that the pool could not hold once all its volumes are full. The error has the figures.
func (l *local) room(v *Volume) error {
	missing := v.SizeGB * gib
	if info, err := os.Stat(v.Device); err == nil {
		missing -= info.Size()
	}
	if missing <= 0 {
		return nil // the file exists already
	}
	root := filepath.Dir(v.Device)
	space, err := l.m.sys.Space(root)
	if err != nil {
		return err
	}
	promised := l.m.promised(v.Pool, v.ID)
	if want := promised + v.SizeGB; want > space.Total/gib {
		return driver.Errorf(driver.StorageFull, "volume", "volume %q: %d GB and the %d GB of the other volumes exceed the %d GB of pool %q (%s)",
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

// present fails for a volume whose storage has disappeared: creating it again would replace it by an empty one.
func present(v *Volume, path string) error {
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("volume %q is missing: check that its file system is mounted: %w", v.Name, err)
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

// erase deletes a volume's file and, unless it is a disk, its folder. It fails if something is mounted there.
func (m *Manager) erase(v *Volume, folder, file string) error {
	if v.Form != Disk { // a folder with the disk's name belongs to another volume
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
		return fmt.Errorf("folder %q is not below a storage pool", folder)
	}
	if at, ok, err := m.mountedBelow(folder); err != nil {
		return err
	} else if ok {
		return fmt.Errorf("something is mounted at %s; unmount it first", at)
	}
	if info, err := os.Lstat(folder); err == nil && info.Mode().IsRegular() {
		return nil // the file of another volume
	}
	return os.RemoveAll(folder)
}

// makeImage creates the file of a volume. The file gets its final name once it is complete, and an existing
// file is never formatted.
func (m *Manager) makeImage(ctx context.Context, v *Volume) error {
	if err := own(v, v.Device, false); err != nil {
		return err
	}
	if err := taken(v); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	part := v.Device + "." + m.node + ".part" // on an export other nodes may create it at the same time
	f, err := os.OpenFile(part, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	// Sparse: the free space was checked, and writing every block would take minutes.
	err = errors.Join(f.Truncate(v.SizeGB*gib), f.Close())
	if err == nil && v.Form == Image {
		err = m.format(ctx, v.FSType, part)
	}
	if err == nil {
		err = driver.Synced(part)
	}
	if err == nil {
		// Unlike a rename, a hard link does not replace another node's file. Some file systems lack hard links.
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

// taken uses an existing file for a volume. It may be smaller than requested.
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
		// No blocks reserved for root: the workload gets the full size.
		args = append(args, "-F", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1")
	}
	if !m.sys.Find(program) {
		return fmt.Errorf("%s is not installed (Debian: %s)", program, map[string]string{"ext4": "e2fsprogs", "xfs": "xfsprogs"}[kind])
	}
	_, err := m.sys.Run(ctx, program, append(args, path)...)
	return err
}

// mountImage mounts a volume's file through a loop device, and returns the folder for workloads.
func (m *Manager) mountImage(ctx context.Context, v *Volume) (string, error) {
	return m.mount(ctx, v.StagePath, v.Device, "-t", v.FSType, "-o", "loop,nodev")
}

// mount mounts source at path unless it is mounted, and returns the folder in it that workloads see.
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

// growImage enlarges the file and its file system: while it is mounted or, if the agent lacks CAP_SYS_RESOURCE,
// between unmount and mount if the volume is not in use.
func (m *Manager) growImage(ctx context.Context, v *Volume) error {
	info, err := os.Stat(v.Device)
	if err == nil && info.Size() < v.SizeGB*gib { // another node may have made the file larger; it is never shrunk
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
	// A container may keep the file system mounted in its own namespace.
	if held, looked := m.loop(ctx, v); looked != nil || held != "" {
		_, again := m.mountImage(ctx, v)
		return errors.Join(fmt.Errorf("the volume cannot grow while it is in use; stop its workload first: %w", err), looked, again)
	}
	if _, err := m.sys.Run(ctx, "e2fsck", "-f", "-p", v.Device); err != nil && exitCode(err) != 1 { // 1: repaired
		return err
	}
	_, err = m.sys.Run(ctx, "resize2fs", v.Device)
	return err
}

// loop returns the loop device of a volume's file, "" for none.
func (m *Manager) loop(ctx context.Context, v *Volume) (string, error) {
	out, err := m.sys.Run(ctx, "losetup", "-n", "-O", "NAME", "-j", v.Device)
	name, _, _ := strings.Cut(strings.TrimSpace(out), "\n")
	return name, err
}

// stretch enlarges a mounted file system to the size of its device.
func (m *Manager) stretch(ctx context.Context, v *Volume, device string) error {
	if v.FSType == "xfs" {
		_, err := m.sys.Run(ctx, "xfs_growfs", v.StagePath)
		return err
	}
	_, err := m.sys.Run(ctx, "resize2fs", device)
	return err
}
