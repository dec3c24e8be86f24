package harness

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/persys/compute/testbed"
)

//go:embed systemd.sh
var systemdScript string

// Systemd is a set of namespaces with systemd as process 1. It shares the network, the clock and the
// Docker engine of this machine. Its file system is a copy-on-write view of this machine's files, without
// the units that would start. Its processes and control groups are its own.
type Systemd struct {
	init  *exec.Cmd
	group string // folder of the unit's control group
	log   string
}

// BootSystemd starts a systemd and returns when it answers. Files go below dir. It needs root, systemd and
// a mounted cgroup2. The error names the missing requirement.
func BootSystemd(ctx context.Context, dir string) (s *Systemd, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("starting systemd as process 1 of new namespaces needs root")
	}
	unified, err := cgroup2()
	if err != nil {
		return nil, err
	}
	s = &Systemd{log: filepath.Join(dir, "systemd.log")}
	if err := os.MkdirAll(filepath.Join(dir, "systemd"), 0o755); err != nil {
		return nil, err
	}
	if s.group, err = os.MkdirTemp(unified, "persys-e2e-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	group, err := os.Open(s.group)
	if err != nil {
		return s, err
	}
	defer group.Close()
	out, err := os.Create(s.log)
	if err != nil {
		return s, err
	}
	defer out.Close()
	// The command is process 1 of its namespace, and stays so through every exec. The control group in
	// which it starts becomes the root of its cgroup namespace.
	cmd := exec.Command("unshare", "--cgroup", "--mount", "--uts", "--ipc", "sh", "-ec", systemdScript, "sh", filepath.Join(dir, "systemd"))
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID, Setsid: true, Pdeathsig: syscall.SIGKILL,
		UseCgroupFD: true, CgroupFD: int(group.Fd()),
	}
	if err := cmd.Start(); err != nil {
		return s, err
	}
	s.init = cmd
	err = testbed.Poll(ctx, 30*time.Second, "systemd to answer", func(ctx context.Context) error {
		_, err := s.Ctl(ctx, "show", "--property=Version")
		return err
	})
	if err != nil {
		log, _ := os.ReadFile(s.log)
		err = fmt.Errorf("%w; its log ends with: %s", err, log[max(0, len(log)-2000):])
	}
	return s, err
}

// cgroup2 returns the mount point of the unified control group hierarchy.
func cgroup2() (string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		before, after, _ := strings.Cut(lines.Text(), " - ")
		if fields := strings.Fields(before); strings.HasPrefix(after, "cgroup2 ") && len(fields) > 4 && fields[3] == "/" {
			return fields[4], nil
		}
	}
	return "", errors.Join(lines.Err(), errors.New("no cgroup2 is mounted here"))
}

// Path returns the path by which this process reaches a file of the systemd machine.
func (s *Systemd) Path(path string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", s.init.Process.Pid), path)
}

// Install copies a file of this machine into the systemd machine.
func (s *Systemd) Install(path, from string, mode os.FileMode) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return s.Write(path, content, mode)
}

// Write writes a file in the systemd machine and creates its folder.
func (s *Systemd) Write(path string, content []byte, mode os.FileMode) error {
	if err := os.MkdirAll(s.Path(filepath.Dir(path)), 0o755); err != nil {
		return err
	}
	return os.WriteFile(s.Path(path), content, mode)
}

// Ctl runs systemctl in the systemd machine and returns its output without the last newline.
func (s *Systemd) Ctl(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	enter := []string{"--target", fmt.Sprint(s.init.Process.Pid), "--mount", "--uts", "--ipc", "--pid", "--cgroup", "--root", "systemctl", "--no-pager"}
	out, err := exec.CommandContext(ctx, "nsenter", append(enter, args...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}

// Log returns the output of the services, followed by the output of systemd.
func (s *Systemd) Log() string {
	services, _ := os.ReadFile(s.Path("/var/log/services.log"))
	own, _ := os.ReadFile(s.log)
	return string(services) + "\n" + string(own)
}

// Close kills all processes of the systemd machine and removes its control groups.
func (s *Systemd) Close() error {
	if s.init != nil {
		_ = s.init.Process.Kill() // the death of process 1 kills all other processes of its namespace
		_ = s.init.Wait()
	}
	return testbed.Poll(context.Background(), 10*time.Second, "the end of "+s.group, func(context.Context) error {
		return removeGroup(s.group)
	})
}

// removeGroup removes a control group and the groups below it.
func removeGroup(group string) error {
	below, err := os.ReadDir(group)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range below {
		if e.IsDir() {
			err = errors.Join(err, removeGroup(filepath.Join(group, e.Name())))
		}
	}
	return errors.Join(err, os.Remove(group))
}
