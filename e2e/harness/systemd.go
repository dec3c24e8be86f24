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

// Systemd is a machine on this one with systemd as its process 1. It has this machine's network, clock
// and Docker engine; of its files it has a copy on write, without any unit that starts by itself.
// Processes and control groups are its own.
type Systemd struct {
	init  *exec.Cmd
	group string // its control group, as a folder
	log   string
}

// BootSystemd starts a machine and returns when its systemd answers. Files go below dir. It needs root,
// systemd and a mounted cgroup2; the error says what is missing.
func BootSystemd(ctx context.Context, dir string) (s *Systemd, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("only root can start a systemd as process 1 of its own namespaces")
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
	// It is process 1 of its namespace from the start, and stays it through every exec; the root of its
	// control groups is where it is when it leaves ours.
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
	err = testbed.Poll(ctx, 30*time.Second, "an answer of systemd", func(ctx context.Context) error {
		_, err := s.Ctl(ctx, "show", "--property=Version")
		return err
	})
	if err != nil {
		log, _ := os.ReadFile(s.log)
		err = fmt.Errorf("%w; it says: %s", err, log[max(0, len(log)-2000):])
	}
	return s, err
}

// cgroup2 is where the unified hierarchy is mounted.
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

// Path is one of the machine's files as we reach it.
func (s *Systemd) Path(path string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", s.init.Process.Pid), path)
}

// Install copies a file of ours onto the machine.
func (s *Systemd) Install(path, from string, mode os.FileMode) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return s.Write(path, content, mode)
}

// Write writes a file of the machine, and its folder.
func (s *Systemd) Write(path string, content []byte, mode os.FileMode) error {
	if err := os.MkdirAll(s.Path(filepath.Dir(path)), 0o755); err != nil {
		return err
	}
	return os.WriteFile(s.Path(path), content, mode)
}

// Ctl runs systemctl on the machine and returns what it prints, without the last line's end.
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

// Log is what the machine's services have printed, and below it what its systemd said.
func (s *Systemd) Log() string {
	services, _ := os.ReadFile(s.Path("/var/log/services.log"))
	own, _ := os.ReadFile(s.log)
	return string(services) + "\n" + string(own)
}

// Close ends everything that runs on the machine, and the machine.
func (s *Systemd) Close() error {
	if s.init != nil {
		_ = s.init.Process.Kill() // the kernel ends the others before it lets the first go
		_ = s.init.Wait()
	}
	return testbed.Poll(context.Background(), 10*time.Second, "the end of "+s.group, func(context.Context) error {
		return removeGroup(s.group)
	})
}

// removeGroup removes a control group and those below it.
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
