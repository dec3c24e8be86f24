package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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

func (c *ceph) able(ctx context.Context) error {
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
	if _, err := c.rbd(ctx, "ls", c.cfg.Pool); err != nil {
		return fmt.Errorf("driver ceph-rbd: the cluster does not answer for pool %q: %w", c.cfg.Pool, err)
	}
	return nil
}

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
	if err := c.able(ctx); err != nil {
		return err
	}
	v.StagePath = filepath.Join(c.cfg.Root, clean(v.Name))
	_, err := c.rbd(ctx, "info", c.image(v))
	if exitCode(err) == noSuchImage {
		_, err = c.rbd(ctx, "create", "--size", strconv.FormatInt(v.SizeGB, 10)+"G", c.image(v))
	}
	return err
}

func (c *ceph) grow(ctx context.Context, v *Volume) error {
	if _, err := c.rbd(ctx, "resize", "--size", strconv.FormatInt(v.SizeGB, 10)+"G", c.image(v)); err != nil || v.Form == Disk {
		return err
	}
	if _, _, err := c.attach(ctx, v, ""); err != nil {
		return err
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
	// Only what blkid knows to hold nothing is formatted.
	const nothing = 2
	if _, err := c.m.sys.Run(ctx, "blkid", "-p", "-o", "value", "-s", "TYPE", device); exitCode(err) == nothing {
		if err := c.m.format(ctx, v.FSType, device); err != nil {
			return "", "", err
		}
	} else if err != nil {
		return "", "", err
	}
	path, err := c.m.mount(ctx, v.StagePath, device, "-t", v.FSType, "-o", "nodev")
	return path, "", err
}

func (c *ceph) release(ctx context.Context, v *Volume, _ string, last bool) error {
	if v.Form == Disk || !last {
		return nil
	}
	if err := c.m.unmount(ctx, v.StagePath); err != nil {
		return err
	}
	device, err := c.mapped(ctx, v)
	if err != nil || device == "" {
		return err
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
