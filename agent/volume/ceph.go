package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/persys/compute/agent/driver"
)

// CephConfig names the Ceph pool that holds volumes with the driver ceph-rbd.
type CephConfig struct {
	Root                         string // folder of this machine that contains the mount points
	Cluster, Pool, User, Keyring string
}

// ceph stores volumes as RBD images of one pool, through the programs of the package ceph-common. Only one node
// at a time can map an image, so that two nodes never write to one file system.
type ceph struct {
	m   *Manager
	cfg CephConfig
}

// isSetUp checks that the settings are complete and that the programs are installed. It does not contact the
// Ceph cluster.
func (c *ceph) isSetUp() error {
	if c.cfg.Pool == "" {
		return errors.New("driver ceph-rbd: PERSYS_STORAGE_CEPH_POOL is not set on this node")
	}
	if !c.m.sys.Find("rbd") {
		return errors.New("driver ceph-rbd: the program rbd is not installed on this node (Debian: ceph-common)")
	}
	if c.cfg.Keyring != "" {
		if _, err := os.Stat(c.cfg.Keyring); err != nil {
			return fmt.Errorf("driver ceph-rbd: PERSYS_STORAGE_CEPH_KEYRING: %w", err)
		}
	}
	return nil
}

func (c *ceph) answers(ctx context.Context) error {
	if _, err := c.rbd(ctx, "ls", c.cfg.Pool); err != nil {
		return fmt.Errorf("driver ceph-rbd: the cluster does not answer for pool %q: %w", c.cfg.Pool, err)
	}
	return nil
}

func (c *ceph) connect(context.Context) error { return nil } // connect does nothing: each call of the rbd program contacts the Ceph cluster by itself

// rbd runs the rbd program with the settings of the Ceph cluster.
func (c *ceph) rbd(ctx context.Context, args ...string) (string, error) {
	for _, o := range []struct{ flag, value string }{
		{"--cluster", c.cfg.Cluster}, {"--id", strings.TrimPrefix(c.cfg.User, "client.")}, {"--keyring", c.cfg.Keyring},
	} {
		if o.value != "" {
			args = append(args, o.flag, o.value)
		}
	}
	return c.m.sys.Run(ctx, "rbd", args...)
}

func (c *ceph) image(v *Volume) string { return c.cfg.Pool + "/" + v.stored() }

const noSuchImage = 2 // rbd exits with ENOENT if the image does not exist

func (c *ceph) provision(ctx context.Context, v *Volume) error {
	if err := c.isSetUp(); err != nil {
		return err
	}
	if err := c.answers(ctx); err != nil {
		return err
	}
	has, err := c.size(ctx, v)
	if err != nil && exitCode(err) != noSuchImage {
		return err
	}
	v.StagePath = filepath.Join(c.cfg.Root, v.stored())
	if err == nil {
		if v.SizeGB = min(v.SizeGB, has); v.Form == Image {
			v.SizeGB = 0 // the size is known only after the image and its file system have grown
		}
		return nil
	}
	_, err = c.rbd(ctx, "create", "--size", strconv.FormatInt(v.SizeGB, 10)+"G", c.image(v))
	return err
}

// size returns the size of a volume's existing image in GB.
func (c *ceph) size(ctx context.Context, v *Volume) (int64, error) {
	out, err := c.rbd(ctx, "info", "--format", "json", c.image(v))
	if err != nil {
		return 0, err
	}
	var info struct{ Size int64 }
	if err := json.Unmarshal([]byte(out), &info); err != nil {
		return 0, fmt.Errorf("rbd info: %w", err)
	}
	return info.Size / gib, nil
}

func (c *ceph) grow(ctx context.Context, v *Volume) error {
	has, err := c.size(ctx, v)
	if err == nil && has < v.SizeGB { // another node may have enlarged the image, which is never shrunk
		_, err = c.rbd(ctx, "resize", "--size", strconv.FormatInt(v.SizeGB, 10)+"G", c.image(v))
	}
	if err != nil || v.Form == Disk {
		return err
	}
	if _, _, err := c.attach(ctx, v, ""); err != nil {
		return classed(driver.StorageAttachFailed, v.ID, err)
	}
	return c.m.stretch(ctx, v, v.Device)
}

// mapped returns the device to which a volume's image is mapped on this machine. It is "" if the image is not
// mapped.
func (c *ceph) mapped(ctx context.Context, v *Volume) (string, error) {
	out, err := c.rbd(ctx, "device", "list", "--format", "json")
	if err != nil {
		return "", err
	}
	var list []struct{ Pool, Name, Device string }
	if strings.TrimSpace(out) != "" {
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			return "", fmt.Errorf("rbd device list: %w", err)
		}
	}
	for _, d := range list {
		if d.Pool == c.cfg.Pool && d.Name == v.stored() {
			return d.Device, nil
		}
	}
	return "", nil
}

func (c *ceph) attach(ctx context.Context, v *Volume, _ string) (string, string, error) {
	if v.Form == Disk {
		_, err := c.rbd(ctx, "info", c.image(v))
		return "", "rbd:" + c.image(v), err
	}
	device, err := c.mapped(ctx, v)
	if err != nil {
		return "", "", err
	}
	if device == "" {
		out, err := c.rbd(ctx, "device", "map", "--exclusive", c.image(v))
		if err != nil {
			return "", "", fmt.Errorf("image %s cannot be mapped (is it used by another node?): %w", c.image(v), err)
		}
		device = strings.TrimSpace(out)
	}
	v.Device = device
	// Format only an empty device. blkid exits with 2 ("nothing found") for an unreadable device too. So the
	// function blank checks that the device can be read and is empty.
	const nothing = 2
	_, err = c.m.sys.Run(ctx, "blkid", "-p", "-o", "value", "-s", "TYPE", device)
	if exitCode(err) == nothing {
		err = c.format(ctx, v)
	}
	if err == nil && v.Formatting {
		v.Formatting = false // clear the flag before the mount, because a volume that was mounted may hold data
		err = c.m.put(v)
	}
	if err != nil {
		return "", "", err
	}
	path, err := c.m.mount(ctx, v.StagePath, device, "-t", v.FSType, "-o", "nodev,nosuid")
	return path, "", err
}

// format makes the file system of a volume on a device that is empty or holds the remains of an interrupted
// mkfs. blkid finds no file system in such remains, because mkfs writes the signature last.
func (c *ceph) format(ctx context.Context, v *Volume) error {
	if !v.Formatting {
		if err := blank(v.Device); err != nil {
			return err
		}
		v.Formatting = true
		if err := c.m.put(v); err != nil {
			return err
		}
	}
	return c.m.format(ctx, v.FSType, v.Device)
}

// blank returns nil if the start of a device is readable and all zero. There a file system would have its
// superblock.
func blank(device string) error {
	f, err := os.Open(device)
	if err != nil {
		return err
	}
	defer f.Close()
	start := make([]byte, 1<<20)
	if _, err := io.ReadFull(f, start); err != nil {
		return fmt.Errorf("will not format %s, because it cannot be read: %w", device, err)
	}
	if slices.Max(start) != 0 {
		return fmt.Errorf("will not format %s, because it is not empty although blkid finds no file system on it; if its data is not needed, delete the volume", device)
	}
	return nil
}

func (c *ceph) release(ctx context.Context, v *Volume, _ string, last bool) error {
	if v.Form == Disk || !last {
		return nil
	}
	if err := c.m.unmount(ctx, v.StagePath); err != nil {
		return err
	}
	device, err := c.mapped(ctx, v)
	if err != nil {
		return err
	}
	v.Formatting = false // after the unmap another node may use the image and write data to it
	if device == "" {
		return nil
	}
	_, err = c.rbd(ctx, "device", "unmap", device)
	return err
}

// remove deletes the image. It fails while another node has the image mapped or open, because the Ceph cluster
// then refuses to delete it.
func (c *ceph) remove(ctx context.Context, v *Volume) error {
	if _, err := c.rbd(ctx, "info", c.image(v)); exitCode(err) == noSuchImage {
		return os.RemoveAll(v.StagePath)
	} else if err != nil {
		return err
	}
	if _, err := c.rbd(ctx, "rm", "--no-progress", c.image(v)); err != nil {
		return err
	}
	if at, ok, err := c.m.mountedBelow(v.StagePath); err != nil || ok {
		return errors.Join(err, fmt.Errorf("something is mounted at %s", at))
	}
	return os.RemoveAll(v.StagePath)
}
