// Package diskfile makes the files of virtual machines' disks with qemu-img, marks them as made by us, keeps order in
// the folders beside them, and reads the addresses of disks on the network.
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

// A disk that is being made, and one that waits for the former guest's end.
const (
	PartSuffix   = ".persys-part"
	StagedSuffix = ".persys-staged"
)

// Image is what a disk is made from, or a disk as it is.
type Image struct {
	Path   string `json:"-"`
	Format string `json:"format"`
	Size   int64  `json:"virtual-size"` // bytes
}

// qemuImg runs qemu-img and gives what it says.
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

// Inspect reads the header of an image or a disk. Without a format it is told by the content, which must not be
// that of a raw disk: what stands there a guest has written.
func Inspect(ctx context.Context, path, format string) (Image, error) {
	f := Image{Path: path}
	// -U: the guest that runs on it has it locked.
	args := []string{"info", "-U", "--output=json"}
	if format != "" {
		args = append(args, "-f", format)
	}
	out, err := qemuImg(ctx, driver.InvalidImage, append(args, path)...)
	if err != nil {
		return f, err
	}
	if err := json.Unmarshal(out, &f); err != nil {
		return f, driver.Errorf(driver.StorageProvisionFailed, "qemu-img", "info %s: %w", path, err)
	}
	return f, nil
}

// Make makes the file of a disk at to: empty, over an image, or (raw) as a copy of one. It appears whole
// or not at all.
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
		// -U is not given: an image that somebody writes to must not be copied.
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

// Move gives a file another name, to last: also when the power is lost the next moment.
func Move(from, to string) error { return Failed(driver.Rename(from, to)) }

// named is Move for a file that is worth nothing without its name.
func named(part, to string) error {
	if err := driver.Rename(part, to); err != nil {
		return errors.Join(Failed(err), Remove(part))
	}
	return nil
}

// Grow makes a disk larger that is smaller than size bytes. Nobody may use it meanwhile.
func Grow(ctx context.Context, path, format string, size int64) error {
	f, err := Inspect(ctx, path, format)
	if err != nil || size <= f.Size {
		return err
	}
	_, err = qemuImg(ctx, driver.StorageProvisionFailed, "resize", "-q", "-f", format, path, strconv.FormatInt(size, 10))
	return err
}

// Exists says whether there is something at path.
func Exists(path string) (bool, error) {
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Remove removes a file; one that is absent is removed.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Failed(err)
	}
	return nil
}

// Write writes a file that appears whole.
func Write(path string, data []byte) error {
	part := path + PartSuffix
	if err := os.WriteFile(part, data, 0o600); err != nil {
		return errors.Join(Failed(err), Remove(part))
	}
	return named(part, path)
}

// Failed makes an error of files one of ours.
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
