package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/persys/compute/agent/driver"
)

// NFSConfig names the NFS export that holds volumes with the driver nfs.
type NFSConfig struct {
	Root           string // folder of this machine that contains the mount point
	Server, Export string
	Options        string // options of mount
}

// nfs stores volumes as folders of one NFS export, which all nodes share. The folder usersDir holds a file (a
// mark) for every workload that uses a volume, so that a node does not delete a volume that another node
// uses. A mark contains the node id and the workload id, one on each line. Marks of earlier agents are empty,
// and their file names are ambiguous, because ids may contain "--".
type nfs struct {
	m   *Manager
	cfg NFSConfig

	mu   sync.Mutex
	last *attempt // last attempt to mount the export
}

const usersDir = ".persys-users"

// attempt is one check that the NFS export is mounted; it mounts the export if necessary. Concurrent
// callers share one attempt: mounting from a server that does not answer takes minutes to fail, and must
// not block the agent's other work.
type attempt struct {
	begun, again time.Time     // begun: start of the attempt; again: until this time, callers get the attempt's error and no new attempt is made
	done         chan struct{} // closed at the end of the attempt
	err          error
}

const (
	mountPatience = 5 * time.Second  // how long a caller waits for an attempt
	mountPause    = 30 * time.Second // after an attempt that took at least this long and failed, callers get its error for this long, without a new attempt
)

// able returns an error that names what the machine lacks for nfs; nil if it lacks nothing.
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

// source returns the source of the mount, server:path. An IPv6 address is in brackets.
func (n *nfs) source() string {
	server := n.cfg.Server
	if strings.Contains(server, ":") && !strings.HasPrefix(server, "[") {
		server = "[" + server + "]"
	}
	return server + ":" + n.cfg.Export
}

// point returns the path of the folder at which the export is to be mounted, whether it is mounted or not.
func (n *nfs) point() (string, error) {
	if err := os.MkdirAll(n.cfg.Root, 0o711); err != nil {
		return "", err
	}
	root, err := filepath.EvalSymlinks(n.cfg.Root)
	if err != nil {
		return "", err
	}
	return filepath.Join(root, "export"), nil
}

// ask returns the attempt to mount the export that is in progress, or the last attempt if it failed recently.
// Otherwise it makes a new attempt and waits for its end.
func (n *nfs) ask(ctx context.Context) (*attempt, error) {
	if err := n.able(ctx); err != nil {
		return nil, err
	}
	at, err := n.point()
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	a := n.last
	if a == nil || a.ended() && !time.Now().Before(a.again) {
		a = &attempt{begun: time.Now(), done: make(chan struct{})}
		n.last = a
		n.mu.Unlock()
		a.err = n.mount(ctx, at)
		if now := time.Now(); a.err != nil && !errors.Is(a.err, context.Canceled) {
			a.again = now.Add(min(now.Sub(a.begun), mountPause))
		}
		close(a.done)
		return a, nil
	}
	n.mu.Unlock()
	return a, nil
}

// connect mounts the NFS export, unless it is mounted.
func (n *nfs) connect(ctx context.Context) error {
	a, err := n.ask(ctx)
	if err != nil {
		return err
	}
	patience, cancel := context.WithDeadline(ctx, a.begun.Add(mountPatience))
	defer cancel()
	select {
	case <-a.done:
	case <-patience.Done():
	}
	if a.ended() && (ctx.Err() != nil || !errors.Is(a.err, context.Canceled)) { // Canceled means that the caller that made the attempt gave up, not that the server failed
		return a.err
	}
	return driver.Errorf(driver.RuntimeUnhealthy, "volume", "%s is being mounted and has not answered yet", n.source())
}

// export returns the mount point of the export. It fails if the export is not mounted.
func (n *nfs) export() (string, error) {
	at, err := n.point()
	if err != nil {
		return "", err
	}
	switch there, err := n.mounted(at); {
	case err != nil:
		return "", err
	case !there:
		return "", driver.Errorf(driver.RuntimeUnhealthy, "volume", "%s is no longer mounted at %s", n.source(), at)
	}
	return at, nil
}

// space returns the size and the free space of the mounted export.
func (n *nfs) space() (Space, error) {
	at, err := n.export()
	if err != nil {
		return Space{}, err
	}
	return n.m.sys.Space(at)
}

func (a *attempt) ended() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

func (n *nfs) mounted(at string) (bool, error) {
	have, there, err := n.m.mountedAt(at)
	switch {
	case err != nil || !there:
		return false, err
	case strings.HasPrefix(have.Type, "nfs") && strings.TrimRight(have.Source, "/") == strings.TrimRight(n.source(), "/"):
		return true, nil
	}
	return false, fmt.Errorf("%s (%s) is mounted at %s, not %s; unmount it first", have.Source, have.Type, at, n.source())
}

func (n *nfs) mount(ctx context.Context, at string) error {
	if there, err := n.mounted(at); err != nil || there {
		return err
	}
	if err := os.MkdirAll(at, 0o700); err != nil {
		return err
	}
	options := "nodev,nosuid" // mount uses the last option of each kind, so the settings override these
	if n.cfg.Options != "" {
		options += "," + n.cfg.Options
	}
	if _, err := n.m.sys.Run(ctx, "mount", "-t", "nfs", "-o", options, n.source(), at); err != nil {
		return fmt.Errorf("%s cannot be mounted: %w", n.source(), err)
	}
	return nil
}

func (n *nfs) provision(ctx context.Context, v *Volume) error {
	at, err := n.export()
	if err != nil {
		return err
	}
	v.StagePath = filepath.Join(at, v.stored())
	place := v.StagePath
	if v.Form == Disk {
		v.Device = v.StagePath + ".img"
		place = v.Device
	}
	// While a workload of this node uses the volume, its mark (a file on the export) keeps other nodes from
	// deleting the volume.
	if slices.ContainsFunc(n.m.users(v.ID), func(a Attachment) bool { return a.StagePath == place }) {
		return present(v, place)
	}
	if v.Form == Disk {
		return n.m.makeImage(ctx, v)
	}
	v.Form = Folder
	if err := own(v, v.StagePath, true); err != nil {
		return err
	}
	return os.MkdirAll(v.StagePath, folderMode)
}

func (n *nfs) grow(ctx context.Context, v *Volume) error {
	if v.Form != Disk {
		return nil // nothing to grow: the quota of the NFS server is the only limit
	}
	if _, err := n.export(); err != nil {
		return err
	}
	return n.m.growImage(ctx, v)
}

func (n *nfs) mark(at string, v *Volume, workload string) string {
	return filepath.Join(at, usersDir, v.stored(), n.m.node+"--"+workload)
}

func (n *nfs) attach(ctx context.Context, v *Volume, workload string) (string, string, error) {
	// The record may come from a legacy v1 agent, which never mounted an export. The path in such a record is
	// a folder of this machine's own disk.
	if err := n.provision(ctx, v); err != nil {
		return "", "", err
	}
	at := filepath.Dir(v.StagePath)
	mark := n.mark(at, v, workload)
	if err := os.MkdirAll(filepath.Dir(mark), 0o755); err != nil {
		return "", "", err
	}
	f, err := os.OpenFile(mark, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return "", "", err
	}
	// Ignore the error. If the export is full, the mark file (which says that the workload uses the volume)
	// stays empty, but an empty mark file protects the volume too.
	_, _ = f.WriteString(n.m.node + "\n" + workload + "\n")
	_ = f.Close()
	if v.Form == Disk {
		return "", v.Device, nil
	}
	return v.StagePath, "", nil
}

func (n *nfs) release(_ context.Context, v *Volume, workload string, _ bool) error {
	at, err := n.export()
	if err != nil {
		return err
	}
	if err := os.Remove(n.mark(at, v, workload)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (n *nfs) remove(_ context.Context, v *Volume) error {
	at, err := n.export()
	if err != nil {
		return err
	}
	users := filepath.Join(at, usersDir, v.stored())
	left, err := os.ReadDir(users)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for i, mark := range left {
		path := filepath.Join(users, mark.Name())
		raw, _ := os.ReadFile(path)
		node, workload, ok := strings.Cut(strings.TrimSuffix(string(raw), "\n"), "\n")
		itself := workload == v.Owner
		if !ok {
			node, workload, _ = strings.Cut(mark.Name(), "--")
			itself = strings.HasSuffix(mark.Name(), "--"+v.Owner)
		}
		if itself || i == len(left)-1 {
			return &inUse{v.ID, fmt.Sprintf("%s, workload %s (its mark is %s)", node, workload, path), itself}
		}
	}
	folder := filepath.Join(at, v.stored())
	file := ""
	if v.Form == Disk {
		file = folder + ".img"
	}
	if err := n.m.erase(v, folder, file); err != nil {
		return err
	}
	return os.RemoveAll(users)
}

// inUse is the error of a delete of a volume that another workload or node uses, as a mark file on the export
// shows.
type inUse struct {
	volume, by string
	itself     bool // the mark is of the workload that is being removed, from another node where it ran before
}

func (e *inUse) Error() string { return "volume " + e.volume + " is used by " + e.by }
