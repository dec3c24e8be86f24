package libvirt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/persys/compute/agent/driver"
)

// A disk that is being made, and one that waits for the former guest's end.
const (
	partSuffix   = ".persys-part"
	stagedSuffix = ".persys-staged"
)

const gib = 1 << 30

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

// imageFacts are of one image file.
type imageFacts struct {
	Format string `json:"format"`
	Size   int64  `json:"virtual-size"`
}

func inspect(ctx context.Context, path string) (imageFacts, error) {
	var f imageFacts
	// -U: the guest that runs on it has it locked.
	out, err := qemuImg(ctx, driver.InvalidImage, "info", "-U", "--output=json", path)
	if err != nil {
		return f, err
	}
	if err := json.Unmarshal(out, &f); err != nil {
		return f, driver.Errorf(driver.StorageProvisionFailed, "qemu-img", "info %s: %w", path, err)
	}
	return f, nil
}

func exists(path string) (bool, error) {
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// marker is the text beside a disk that we made: the time, as existing agents write it, then whose it is.
func marker(spec driver.Spec) string {
	return time.Now().UTC().Format(time.RFC3339) + "\n" + spec.ClusterID + "\n" + string(spec.ID) + "\n"
}

// marked says whether a disk was made by an agent for this workload. The marker of an existing agent
// names none; it counts if the disk's name begins with the workload's.
func marked(path string, spec driver.Spec) bool {
	raw, err := os.ReadFile(path + markerSuffix)
	if err != nil {
		return false
	}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	if len(lines) < 3 {
		return strings.HasPrefix(filepath.Base(path), string(spec.ID)+"-")
	}
	return lines[1] == spec.ClusterID && lines[2] == string(spec.ID)
}

// makeDisk makes the file of a disk at to: empty, over an image, or (raw) as a copy of one. It appears
// whole or not at all.
func makeDisk(ctx context.Context, d diskPlan, img *imageFacts, to string) error {
	part := to + partSuffix
	if err := os.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return storage(err)
	}
	var args []string
	size := d.sizeGB * gib
	switch {
	case img == nil:
		args = []string{"create", "-q", "-f", d.format, part, strconv.FormatInt(size, 10)}
	case d.format == "qcow2":
		args = []string{"create", "-q", "-f", "qcow2", "-b", d.image, "-F", img.Format, part}
		if size > img.Size {
			args = append(args, strconv.FormatInt(size, 10))
		}
	default:
		// -U is not given: an image that somebody writes to must not be copied.
		args = []string{"convert", "-q", "-f", img.Format, "-O", "raw", d.image, part}
	}
	if _, err := qemuImg(ctx, driver.StorageProvisionFailed, args...); err != nil {
		return errors.Join(err, removeFile(part))
	}
	if img != nil && d.format == "raw" && size > img.Size {
		if _, err := qemuImg(ctx, driver.StorageProvisionFailed, "resize", "-q", "-f", "raw", part, strconv.FormatInt(size, 10)); err != nil {
			return errors.Join(err, removeFile(part))
		}
	}
	if err := os.Chmod(part, 0o600); err != nil {
		return storage(err)
	}
	return storage(os.Rename(part, to))
}

// grow makes a disk larger that is smaller than it should be. Nobody may use it meanwhile.
func grow(ctx context.Context, path, format string, sizeGB int64) error {
	f, err := inspect(ctx, path)
	if err != nil || sizeGB*gib <= f.Size {
		return err
	}
	_, err = qemuImg(ctx, driver.StorageProvisionFailed, "resize", "-q", "-f", format, path, strconv.FormatInt(sizeGB*gib, 10))
	return err
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return storage(err)
	}
	return nil
}

// storage makes an error of files one of ours.
func storage(err error) error {
	if err == nil {
		return nil
	}
	class := driver.Generic(err)
	if class == "" {
		class = driver.StorageProvisionFailed
	}
	return driver.Errorf(class, "disk", "%w", err)
}

// writeFile writes a file that appears whole.
func writeFile(path string, data []byte) error {
	part := path + partSuffix
	if err := os.WriteFile(part, data, 0o600); err != nil {
		return storage(errors.Join(err, os.Remove(part)))
	}
	return storage(os.Rename(part, path))
}

// makeKeep makes a domain's folder, which QEMU's user must be able to enter.
func makeKeep(dir string) error {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return storage(err)
	}
	return nil
}

// removeOthers removes from a domain's folder what a replaced definition left.
func removeOthers(dir string, keep ...string) error {
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return storage(err)
	}
	for _, f := range files {
		stays := false
		for _, k := range keep {
			// Rotated logs have a number after the name.
			stays = stays || k != "" && (f.Name() == filepath.Base(k) || strings.HasPrefix(f.Name(), filepath.Base(k)+"."))
		}
		if stays {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, f.Name())); err != nil {
			return storage(err)
		}
	}
	return nil
}

func describe(d diskPlan) string { return fmt.Sprintf("disk %s (%s)", d.device, d.path) }
