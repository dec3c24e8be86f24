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

// CephConfig is the pool that ceph-rbd volumes are images of.
type CephConfig struct {
	Root                         string // for mount points on this machine
	Cluster, Pool, User, Keyring string
}

// ceph keeps volumes as images of one pool, by the programs of the package ceph-common. An image is
// mapped exclusively, so that two nodes never write to one file system.
type ceph struct {
	m   *Manager
	cfg CephConfig
}

// isSetUp looks at no more than this machine.
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

func (c *ceph) reach(context.Context) error { return nil } // every call is an image's own

// rbd runs the program with the cluster's settings.
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

func (c *ceph) image(v *Volume) string { return c.cfg.Pool + "/" + clean(v.Name) }

const noSuchImage = 2 // rbd's exit code, as of every program: ENOENT

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
	v.StagePath = filepath.Join(c.cfg.Root, clean(v.Name))
	if err == nil {
		if v.SizeGB = min(v.SizeGB, has); v.Form == Image {
			v.SizeGB = 0 // only growing it tells how large the file system in it is
		}
		return nil
	}
	_, err = c.rbd(ctx, "create", "--size", strconv.FormatInt(v.SizeGB, 10)+"G", c.image(v))
	return err
}

// size of an image that is there, GB.
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
	if err == nil && has < v.SizeGB { // another node may have made it larger than that: it is never cut
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

// mapped is the device that holds an image on this machine, "" for none.
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
		if d.Pool == c.cfg.Pool && d.Name == clean(v.Name) {
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
	// Only what holds nothing is formatted. blkid says so also of what it could not read.
	const nothing = 2
	_, err = c.m.sys.Run(ctx, "blkid", "-p", "-o", "value", "-s", "TYPE", device)
	if exitCode(err) == nothing {
		err = c.format(ctx, v)
	}
	if err == nil && v.Formatting {
		v.Formatting = false // before it is mounted: from then on it holds data
		err = c.m.put(v)
	}
	if err != nil {
		return "", "", err
	}
	path, err := c.m.mount(ctx, v.StagePath, device, "-t", v.FSType, "-o", "nodev")
	return path, "", err
}

// format makes the file system of a volume whose device is empty, or holds what an attempt left that was cut
// short: mkfs writes last what blkid looks for.
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

// blank is nil if the start of a device, where file systems keep what describes them, was read and is zero.
func blank(device string) error {
	f, err := os.Open(device)
	if err != nil {
		return err
	}
	defer f.Close()
	start := make([]byte, 1<<20)
	if _, err := io.ReadFull(f, start); err != nil {
		return fmt.Errorf("%s is not formatted, for it cannot be read: %w", device, err)
	}
	if slices.Max(start) != 0 {
		return fmt.Errorf("%s is not formatted, for it is not empty, though blkid knows no file system on it; if nothing of it is needed, delete the volume", device)
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
	v.Formatting = false // another node may put data on it from here on
	if device == "" {
		return nil
	}
	_, err = c.rbd(ctx, "device", "unmap", device)
	return err
}

// remove fails while another node has the image mapped or open: the cluster says so.
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
