package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// NFSConfig is the export that nfs volumes are folders of.
type NFSConfig struct {
	Root           string // for mount points on this machine
	Server, Export string
	Options        string // of mount
}

// nfs keeps volumes as folders of one export, which all nodes share. Beside them, in usersDir, is a
// mark for every workload that uses one: what another node uses is not deleted.
type nfs struct {
	m   *Manager
	cfg NFSConfig
}

const usersDir = ".persys-users"

func (n *nfs) able(ctx context.Context) error {
	if n.cfg.Server == "" || n.cfg.Export == "" {
		return errors.New("driver nfs: PERSYS_STORAGE_NFS_SERVER and PERSYS_STORAGE_NFS_EXPORT are not set on this node")
	}
	known, err := n.m.kernelHas(ctx, "nfs", "nfs", "nfs4")
	if err != nil {
		return err
	}
	if !known {
		return errors.New("driver nfs: the kernel of this node has no NFS client (neither nfs nor nfs4 in /proc/filesystems, and no module nfs)")
	}
	if !n.m.sys.Find("mount.nfs") {
		return errors.New("driver nfs: mount.nfs is not installed on this node (Debian: nfs-common)")
	}
	return nil
}

func (n *nfs) source() string { return n.cfg.Server + ":" + n.cfg.Export }

// export mounts the export and gives its mount point.
func (n *nfs) export(ctx context.Context) (string, error) {
	if err := n.able(ctx); err != nil {
		return "", err
	}
	if err := os.MkdirAll(n.cfg.Root, 0o711); err != nil {
		return "", err
	}
	root, err := filepath.EvalSymlinks(n.cfg.Root)
	if err != nil {
		return "", err
	}
	at := filepath.Join(root, "export")
	have, there, err := n.m.mountedAt(at)
	switch {
	case err != nil:
		return "", err
	case there && strings.HasPrefix(have.Type, "nfs") && have.Source == n.source():
		return at, nil
	case there:
		return "", fmt.Errorf("%s (%s) is mounted at %s, not %s; unmount it first", have.Source, have.Type, at, n.source())
	}
	if err := os.MkdirAll(at, 0o700); err != nil {
		return "", err
	}
	args := []string{"-t", "nfs"}
	if n.cfg.Options != "" {
		args = append(args, "-o", n.cfg.Options)
	}
	if _, err := n.m.sys.Run(ctx, "mount", append(args, n.source(), at)...); err != nil {
		return "", fmt.Errorf("%s cannot be mounted: %w", n.source(), err)
	}
	return at, nil
}

func (n *nfs) provision(ctx context.Context, v *Volume) error {
	at, err := n.export(ctx)
	if err != nil {
		return err
	}
	v.StagePath = filepath.Join(at, clean(v.Name))
	if v.Form == Disk {
		v.Device = v.StagePath + ".img"
		return n.m.makeImage(ctx, v)
	}
	v.Form = Folder
	return os.MkdirAll(v.StagePath, folderMode)
}

func (n *nfs) grow(ctx context.Context, v *Volume) error {
	if v.Form != Disk {
		return nil // the server's own quota is the limit
	}
	if _, err := n.export(ctx); err != nil {
		return err
	}
	return n.m.growImage(ctx, v)
}

func (n *nfs) mark(at string, v *Volume, workload string) string {
	return filepath.Join(at, usersDir, clean(v.Name), n.m.node+"--"+workload)
}

func (n *nfs) attach(ctx context.Context, v *Volume, workload string) (string, string, error) {
	// A record of an existing agent has a folder of this machine instead: it never mounted anything.
	if err := n.provision(ctx, v); err != nil {
		return "", "", err
	}
	at := filepath.Dir(v.StagePath)
	mark := n.mark(at, v, workload)
	if err := os.MkdirAll(filepath.Dir(mark), 0o755); err != nil {
		return "", "", err
	}
	if err := os.WriteFile(mark, nil, 0o644); err != nil {
		return "", "", err
	}
	if v.Form == Disk {
		return "", v.Device, nil
	}
	return v.StagePath, "", nil
}

func (n *nfs) release(ctx context.Context, v *Volume, workload string, _ bool) error {
	at, err := n.export(ctx)
	if err != nil {
		return err
	}
	if err := os.Remove(n.mark(at, v, workload)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (n *nfs) remove(ctx context.Context, v *Volume) error {
	at, err := n.export(ctx)
	if err != nil {
		return err
	}
	users := filepath.Join(at, usersDir, clean(v.Name))
	left, err := os.ReadDir(users)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(left) > 0 {
		return &inUse{volume: v.ID, by: strings.Replace(left[0].Name(), "--", ", workload ", 1)}
	}
	folder := filepath.Join(at, clean(v.Name))
	file := ""
	if v.Form == Disk {
		file = folder + ".img"
	}
	if err := n.m.erase(folder, file); err != nil {
		return err
	}
	return os.RemoveAll(users)
}

// inUse says who keeps a volume from being deleted.
type inUse struct{ volume, by string }

func (e *inUse) Error() string { return "volume " + e.volume + " is used by " + e.by }
