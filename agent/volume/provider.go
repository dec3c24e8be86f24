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

// provider makes and deletes volumes on one kind of storage: local, nfs or ceph-rbd. Every call may
// be repeated.
type provider interface {
	// connect opens the connection to the server that holds all volumes of the provider, which may take minutes. It is
	// called before a volume is locked, so that the calls below do not wait for a connection.
	connect(ctx context.Context) error
	// provision creates the storage of a volume, or finds storage that exists already, and sets StagePath. If
	// the storage is smaller than SizeGB, it lowers SizeGB.
	provision(ctx context.Context, v *Volume) error
	// grow enlarges the storage of a volume to the size in v.
	grow(ctx context.Context, v *Volume) error
	// attach mounts or maps the volume for a workload and returns a folder or a disk for the driver.
	attach(ctx context.Context, v *Volume, workload string) (path, disk string, err error)
	// release ends the use of the volume by one workload. last means that no other workload of this node uses
	// the volume.
	release(ctx context.Context, v *Volume, workload string, last bool) error
	// remove deletes the storage of the volume. It fails if the storage is in use.
	remove(ctx context.Context, v *Volume) error
}

// unconnected is a provider whose server cannot be reached. Calls that need the server fail at once, with the
// reason.
type unconnected struct {
	provider
	err error
}

func (u unconnected) provision(context.Context, *Volume) error { return u.err }
func (u unconnected) grow(context.Context, *Volume) error      { return u.err }
func (u unconnected) attach(context.Context, *Volume, string) (string, string, error) {
	return "", "", u.err
}
func (u unconnected) release(context.Context, *Volume, string, bool) error { return u.err }
func (u unconnected) remove(context.Context, *Volume) error                { return u.err }

// inside is the name of a folder in the mounted file system of a volume. Workloads see this folder and not
// the mount point. So if nothing is mounted, the folder is missing, and workloads do not see lost+found.
const inside = "data"

// folderMode is the mode of the folders that workloads see. Only root can access the folders above them.
const folderMode = 0o755

// local stores volumes in the pools of this machine: folders on its file systems.
type local struct {
	m     *Manager
	pools []PoolConfig // the first pool is the default
}

func (l *local) connect(context.Context) error { return nil }

func (l *local) root(name string) (string, error) {
	for _, p := range l.pools {
		if p.Name == name || name == "" {
			if err := os.MkdirAll(p.Path, 0o711); err != nil {
				return "", err
			}
			// Resolve symbolic links, because the path is compared with the kernel's list of mounts, whose
			// paths have none.
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
	v.StagePath = filepath.Join(root, v.stored())
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
			v.StagePath, v.Device = "", "" // storage for this volume was not created
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

// own returns an error if a path belongs to another volume. For example, the folder of a volume named
// "data.img" has the same path as the file of a volume named "data".
func own(v *Volume, path string, folder bool) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() != folder {
		return invalid("volume %q would be stored at %s, which belongs to another volume: choose another name", v.Name, path)
	}
	return nil
}

// room returns an error if the pool's disk is smaller than the sum of the sizes of v and of all other volumes
// of the pool, or has too little free space for v. The error names the sizes.
func (l *local) room(v *Volume) error {
	missing := v.SizeGB * gib
	if info, err := os.Stat(v.Device); err == nil {
		missing -= info.Size()
	}
	if missing <= 0 {
		return nil // the file of the volume exists already
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
	// The volume is a plain folder. If a legacy v1 agent made it, the folder may be anywhere on the
	// machine.
	return v.StagePath, "", present(v, v.StagePath)
}

// present returns an error if the storage of a volume has disappeared. The storage is not created again,
// because the workload would find an empty volume in place of its data.
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

// erase deletes the file of a volume. Unless the volume is a raw disk, it deletes the folder too. It fails if a
// file system is mounted at the folder or below it, because its files do not belong to the volume.
func (m *Manager) erase(v *Volume, folder, file string) error {
	if v.Form != Disk { // a raw disk has no folder; a folder with its name belongs to another volume
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
		return nil // the file belongs to another volume, so it is not deleted
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
	part := v.Device + "." + m.node + ".part" // the node id is in the name, because several nodes may create the file on a shared export at the same time
	f, err := os.OpenFile(part, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	// The file is sparse: the free space was checked before, and writing every block would take minutes.
	err = errors.Join(f.Truncate(v.SizeGB*gib), f.Close())
	if err == nil && v.Form == Image {
		err = m.format(ctx, v.FSType, part)
	}
	if err == nil {
		err = driver.Synced(part)
	}
	if err == nil {
		// Use a hard link, because it fails if the name exists. A rename would replace a file that another
		// node has made. Some file systems support no hard links.
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

// taken checks the existing file of a volume. If the file is smaller than the requested size, taken stores the
// size of the file in the record.
func taken(v *Volume) error {
	info, err := os.Stat(v.Device)
	if err == nil {
		v.SizeGB = min(v.SizeGB, info.Size()/gib)
	}
	return err
}

// format makes a file system of a kind on a file or device that has none.
func (m *Manager) format(ctx context.Context, kind, path string) error {
	program, args := "mkfs."+kind, []string{"-q"}
	if kind == "ext4" {
		// -m 0: no blocks are reserved for root, so that the workload gets the full size.
		args = append(args, "-F", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1")
	}
	if !m.sys.Find(program) {
		return fmt.Errorf("%s is not installed (Debian: %s)", program, map[string]string{"ext4": "e2fsprogs", "xfs": "xfsprogs"}[kind])
	}
	_, err := m.sys.Run(ctx, program, append(args, path)...)
	return err
}

// mountImage mounts the file of a volume through a loop device. It returns the folder that workloads see.
func (m *Manager) mountImage(ctx context.Context, v *Volume) (string, error) {
	return m.mount(ctx, v.StagePath, v.Device, "-t", v.FSType, "-o", "loop,nodev,nosuid")
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

// growImage enlarges the file of a volume and the file system in it. The file system grows while it is
// mounted. If the agent lacks CAP_SYS_RESOURCE, growImage must unmount it first, which fails while the
// volume is in use.
func (m *Manager) growImage(ctx context.Context, v *Volume) error {
	info, err := os.Stat(v.Device)
	if err == nil && info.Size() < v.SizeGB*gib { // another node may have enlarged the file, which is never shrunk
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
	// If the loop device still exists, the file system is still mounted in the mount namespace of a container.
	if held, looked := m.loop(ctx, v); looked != nil || held != "" {
		_, again := m.mountImage(ctx, v)
		return errors.Join(fmt.Errorf("the volume cannot grow while it is in use; stop its workload first: %w", err), looked, again)
	}
	if _, err := m.sys.Run(ctx, "e2fsck", "-f", "-p", v.Device); err != nil && exitCode(err) != 1 { // exit code 1 means that e2fsck repaired the file system
		return err
	}
	_, err = m.sys.Run(ctx, "resize2fs", v.Device)
	return err
}

// loop returns the loop device of a volume's file; "" if there is none.
func (m *Manager) loop(ctx context.Context, v *Volume) (string, error) {
	out, err := m.sys.Run(ctx, "losetup", "-n", "-O", "NAME", "-j", v.Device)
	name, _, _ := strings.Cut(strings.TrimSpace(out), "\n")
	return name, err
}

// stretch enlarges a mounted file system to the present size of its device.
func (m *Manager) stretch(ctx context.Context, v *Volume, device string) error {
	if v.FSType == "xfs" {
		_, err := m.sys.Run(ctx, "xfs_growfs", v.StagePath)
		return err
	}
	_, err := m.sys.Run(ctx, "resize2fs", device)
	return err
}
