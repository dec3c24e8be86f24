// Package diskfile makes the disk files of virtual machines with qemu-img, writes mark files that name their
// owners, cleans the folders of domains, and parses the addresses of network disks.
package diskfile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/persys/compute/agent/driver"
)

// Suffixes of file names. PartSuffix marks a disk file that is still being written. StagedSuffix marks a
// complete disk that cannot have its final name yet, because the old guest still uses a disk of that name. The
// disk is renamed when the old guest has stopped.
const (
	PartSuffix   = ".persys-part"
	StagedSuffix = ".persys-staged"
)

// Image describes an image or an existing disk file.
type Image struct {
	Path   string `json:"-"`
	Format string `json:"format"`
	Size   int64  `json:"virtual-size"` // bytes
}

// qemuImg runs qemu-img and returns its output.
func qemuImg(ctx context.Context, class driver.Class, args ...string) ([]byte, error) {
	var out, bad bytes.Buffer
	cmd := exec.CommandContext(ctx, "qemu-img", args...)
	cmd.Stdout, cmd.Stderr = &out, &bad
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if errors.Is(err, exec.ErrNotFound) {
			return nil, driver.Errorf(driver.RuntimeError, "qemu-img", "qemu-img is not installed: %w", err)
		}
		text := strings.TrimSpace(bad.String())
		if strings.Contains(text, "No space left") {
			class = driver.StorageFull
		}
		return nil, driver.Errorf(class, "qemu-img", "%s: %w: %s", args[0], err, text)
	}
	return out.Bytes(), nil
}

// Inspect reads the header of an image or a disk. If format is empty, qemu-img detects it from the content.
// That is not safe for a raw disk, because its guest controls the content.
func Inspect(ctx context.Context, path, format string) (Image, error) {
	f := Image{Path: path}
	// The option -U makes qemu-img read the disk although a running guest holds a lock on it.
	args := []string{"info", "-U", "--output=json"}
	if format != "" {
		args = append(args, "-f", format)
	}
	out, err := qemuImg(ctx, driver.InvalidImage, append(args, path)...)
	if err != nil {
		return f, err
	}
	if err := json.Unmarshal(out, &f); err != nil {
		return f, driver.Errorf(driver.StorageProvisionFailed, "qemu-img", "the description of %s cannot be parsed: %w", path, err)
	}
	return f, nil
}

// Make creates a disk file at the path in to. If img is nil, the disk is empty. Otherwise the disk is
// backed by that image or, if format is raw, is a copy of it. The file at to is either complete or does
// not exist.
func Make(ctx context.Context, to, format string, size int64, img *Image) error {
	part := to + PartSuffix
	if err := os.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Failed(err)
	}
	var args []string
	switch {
	case img == nil:
		args = []string{"create", "-q", "-f", format, part, strconv.FormatInt(size, 10)}
	case format == "qcow2":
		args = []string{"create", "-q", "-f", "qcow2", "-b", img.Path, "-F", img.Format, part}
		if size > img.Size {
			args = append(args, strconv.FormatInt(size, 10))
		}
	default:
		// Do not set the option -U here: without it, qemu-img convert fails if a guest holds a lock on the
		// image. An image must not be copied while a guest writes to it.
		args = []string{"convert", "-q", "-f", img.Format, "-O", "raw", img.Path, part}
	}
	if _, err := qemuImg(ctx, driver.StorageProvisionFailed, args...); err != nil {
		return errors.Join(err, Remove(part))
	}
	if img != nil && format == "raw" && size > img.Size {
		if _, err := qemuImg(ctx, driver.StorageProvisionFailed, "resize", "-q", "-f", "raw", part, strconv.FormatInt(size, 10)); err != nil {
			return errors.Join(err, Remove(part))
		}
	}
	if err := os.Chmod(part, 0o600); err != nil {
		return Failed(err)
	}
	return named(part, to)
}

// Move renames a file durably.
func Move(from, to string) error { return Failed(driver.Rename(from, to)) }

// named syncs the temporary file part, renames it to its final name to, and syncs the folder. If that fails,
// it deletes the file.
func named(part, to string) error {
	if err := driver.Rename(part, to); err != nil {
		return errors.Join(Failed(err), Remove(part))
	}
	return nil
}

// Grow enlarges a disk to at least size bytes. No guest may use the disk during the call.
func Grow(ctx context.Context, path, format string, size int64) error {
	f, err := Inspect(ctx, path, format)
	if err != nil || size <= f.Size {
		return err
	}
	_, err = qemuImg(ctx, driver.StorageProvisionFailed, "resize", "-q", "-f", format, path, strconv.FormatInt(size, 10))
	return err
}

// Exists reports whether the file path exists.
func Exists(path string) (bool, error) {
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Remove deletes a file. An absent file is no error.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Failed(err)
	}
	return nil
}

// Write writes a file atomically.
func Write(path string, data []byte) error {
	part := path + PartSuffix
	if err := os.WriteFile(part, data, 0o600); err != nil {
		return errors.Join(Failed(err), Remove(part))
	}
	return named(part, path)
}

// Failed turns a file error into a *driver.Error.
func Failed(err error) error {
	if err == nil {
		return nil
	}
	class := driver.Generic(err)
	if class == "" {
		class = driver.StorageProvisionFailed
	}
	return driver.Errorf(class, "disk", "%w", err)
}
