package volume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// System is the interface to the machine: programs, mounts and file systems. Tests replace it.
type System interface {
	// Run runs a program and returns its standard output. The error contains what the program wrote to
	// standard error, in one line.
	Run(ctx context.Context, program string, args ...string) (string, error)
	// Find reports whether a program is installed.
	Find(program string) bool
	// Mounts returns the mount points in /proc/self/mountinfo.
	Mounts() ([]Mount, error)
	// Filesystems returns the file systems that the kernel supports now.
	Filesystems() ([]string, error)
	// Space returns the size and the free space of the file system that holds path.
	Space(path string) (Space, error)
}

// Mount is one mount point; a later mount on the same path hides an earlier one.
type Mount struct{ Path, Type, Source string }

// Space is the size and the free space of a file system, in bytes. Free is the space that users other than
// root may fill.
type Space struct {
	Total, Used, Free int64
	Device            uint64
}

// Machine implements System on this machine.
type Machine struct{}

// Run implements System.
func (Machine) Run(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.WaitDelay = 2 * time.Second
	var out, bad bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &bad
	err := cmd.Run()
	if err == nil {
		return out.String(), nil
	}
	if ctx.Err() != nil {
		return out.String(), fmt.Errorf("%s: %w", program, ctx.Err())
	}
	text := strings.Join(strings.Fields(bad.String()), " ")
	if text == "" {
		text = err.Error()
	}
	return out.String(), &programError{program: program, text: clip(text, 400), cause: err}
}

type programError struct {
	program, text string
	cause         error
}

func (e *programError) Error() string { return e.program + ": " + e.text }
func (e *programError) Unwrap() error { return e.cause }

// exitCode returns the exit code of a failed program; -1 if it did not start.
func exitCode(err error) int {
	var exit interface{ ExitCode() int }
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return -1
}

// clip shortens a text to at most n bytes. The result is valid UTF-8, which protobuf requires.
func clip(s string, n int) string {
	if len(s) > n {
		return strings.ToValidUTF8(s[:n], "") + "…"
	}
	return strings.ToValidUTF8(s, "\ufffd")
}

// Find implements System.
func (Machine) Find(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}

// Mounts implements System.
func (Machine) Mounts() ([]Mount, error) {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var out []Mount
	for line := range strings.Lines(string(raw)) {
		left, right, ok := strings.Cut(line, " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(r) < 2 {
			continue
		}
		out = append(out, Mount{Path: unescape(l[4]), Type: r[0], Source: unescape(r[1])})
	}
	return out, nil
}

// unescape decodes the octal escapes that the kernel uses in /proc/self/mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace

// Filesystems implements System.
func (Machine) Filesystems() ([]string, error) {
	raw, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return nil, err
	}
	var out []string
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) > 0 {
			out = append(out, f[len(f)-1])
		}
	}
	return out, nil
}

// Space implements System.
func (Machine) Space(path string) (Space, error) {
	var fs unix.Statfs_t
	var st unix.Stat_t
	if err := unix.Statfs(path, &fs); err != nil {
		return Space{}, fmt.Errorf("%s: %w", path, err)
	}
	if err := unix.Stat(path, &st); err != nil {
		return Space{}, fmt.Errorf("%s: %w", path, err)
	}
	unit := int64(fs.Bsize)
	return Space{
		Total: int64(fs.Blocks) * unit, Used: int64(fs.Blocks-fs.Bfree) * unit, Free: int64(fs.Bavail) * unit, Device: uint64(st.Dev),
	}, nil
}

// mountedAt finds the mount exactly at path.
func (m *Manager) mountedAt(path string) (Mount, bool, error) {
	mounts, err := m.sys.Mounts()
	if err != nil {
		return Mount{}, false, err
	}
	for _, mount := range slices.Backward(mounts) {
		if mount.Path == path {
			return mount, true, nil
		}
	}
	return Mount{}, false, nil
}

// mountedBelow finds a mount at path or anywhere below it.
func (m *Manager) mountedBelow(path string) (string, bool, error) {
	mounts, err := m.sys.Mounts()
	if err != nil {
		return "", false, err
	}
	for _, mount := range mounts {
		if mount.Path == path || strings.HasPrefix(mount.Path, path+"/") {
			return mount.Path, true, nil
		}
	}
	return "", false, nil
}

// kernelHas reports whether the kernel supports one of the named file systems, after it has tried to load the
// module.
func (m *Manager) kernelHas(ctx context.Context, module string, names ...string) (bool, error) {
	for range 2 {
		known, err := m.sys.Filesystems()
		if err != nil {
			return false, err
		}
		if slices.ContainsFunc(names, func(n string) bool { return slices.Contains(known, n) }) {
			return true, nil
		}
		if !m.sys.Find("modprobe") {
			return false, nil
		}
		if _, err := m.sys.Run(ctx, "modprobe", "-q", module); err != nil {
			return false, nil // the kernel has no such module, so trying again would not help
		}
	}
	return false, nil
}
