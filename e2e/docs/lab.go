package docs

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/persys/compute/testbed"
)

// standIn replaces apt-get, systemctl and journalctl on a machine without an init system.
//
//go:embed standin.sh
var standIn []byte

const laptop = "laptop"

// Lab is a set of machines on one bridge. The caller must run in a network namespace of its own
// (CLONE_NEWNET). The bridge and the machines exist only inside this namespace, so they end with the
// caller, and the network of the host is not changed.
type Lab struct {
	opt      LabOptions
	machines map[string]*Machine
}

// Machine is one machine of a lab.
type Machine struct {
	Name, Addr string
	dir        string
	home       string    // working folder of the machine's shell
	env        []string  // additional environment
	init       *exec.Cmd // process that keeps the machine's namespaces alive
	jobs       []*job
}

// LabOptions configure the machines of a lab.
type LabOptions struct {
	Dir      string   // folder for the files of all machines
	Packages string   // folder with .deb files, linked into the home of each machine
	Root     string   // root of the repository, the working folder of the laptop
	Image    string   // folder with a Dockerfile, from which every machine builds ImageRef
	ImageRef string   // name of the built image
	Env      []string // environment of the laptop, for the Go tools
}

// NewLab makes the bridge of a lab, without machines.
func NewLab(ctx context.Context, opt LabOptions) (*Lab, error) {
	l := &Lab{opt: opt, machines: map[string]*Machine{}}
	return l, run(ctx, `ip link set lo up
ip link add persys0 type bridge
ip addr add 10.66.0.254/24 dev persys0
ip link set persys0 up`)
}

// Add starts machines. The hosts file of each machine has the names of all machines.
func (l *Lab) Add(ctx context.Context, names ...string) error {
	var hosts strings.Builder
	hosts.WriteString("127.0.0.1 localhost\n")
	for i, name := range names {
		fmt.Fprintf(&hosts, "10.66.0.%d %s\n", i+1, name)
	}
	for i, name := range names {
		m := &Machine{Name: name, home: "/root", Addr: fmt.Sprintf("10.66.0.%d", i+1), dir: filepath.Join(l.opt.Dir, name)}
		l.machines[name] = m
		if err := m.start(ctx, i+1, hosts.String(), l.opt); err != nil {
			return fmt.Errorf("machine %s: %w", name, err)
		}
	}
	return nil
}

func (m *Machine) start(ctx context.Context, n int, hosts string, opt LabOptions) error {
	for _, d := range []string{"bin", "etc", "lib", "home", "run", "units", "log", "docker"} {
		if err := os.MkdirAll(filepath.Join(m.dir, d), 0o755); err != nil {
			return err
		}
	}
	for _, name := range []string{"apt-get", "systemctl", "journalctl"} {
		if err := os.WriteFile(filepath.Join(m.dir, "bin", name), standIn, 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(m.dir, "hosts"), []byte(hosts), 0o644); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(opt.Packages, "*.deb"))
	if err != nil {
		return err
	}
	for _, deb := range debs {
		if err := os.Link(deb, filepath.Join(m.dir, "home", filepath.Base(deb))); err != nil {
			return err
		}
	}
	m.init = exec.Command("unshare", "--net", "--mount", "--uts", "sleep", "infinity")
	m.init.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.init.Start(); err != nil {
		return err
	}
	// The process starts as the program unshare, which makes the namespaces and then executes the program sleep.
	// So when the process is called sleep, the namespaces exist.
	pid := strconv.Itoa(m.init.Process.Pid)
	if err := testbed.Poll(ctx, time.Minute, "its namespaces", func(context.Context) error {
		comm, err := os.ReadFile("/proc/" + pid + "/comm")
		if err == nil && strings.TrimSpace(string(comm)) != "sleep" {
			err = fmt.Errorf("the process that keeps the namespaces is still %s, not sleep", comm)
		}
		return err
	}); err != nil {
		return err
	}
	if err := run(ctx, fmt.Sprintf(`ip link add v%[1]d type veth peer name eth0 netns %[2]s
ip link set v%[1]d master persys0 up
nsenter -t %[2]s -n ip link set lo up
nsenter -t %[2]s -n ip addr add %[3]s/24 dev eth0
nsenter -t %[2]s -n ip link set eth0 up
nsenter -t %[2]s -u hostname %[4]s
mkdir -p /var/lib/persys /etc/persys
nsenter -t %[2]s -m mount --bind %[5]s/lib /var/lib/persys
nsenter -t %[2]s -m mount --bind %[5]s/etc /etc/persys
nsenter -t %[2]s -m mount --bind %[5]s/hosts /etc/hosts
nsenter -t %[2]s -m mount --bind %[5]s/run /run`, n, pid, m.Addr, m.Name, m.dir)); err != nil {
		return err
	}
	if m.Name == laptop {
		m.home = opt.Root
		m.env = opt.Env
	} else if err := run(ctx, fmt.Sprintf("nsenter -t %s -m mount --bind %s/home /root", pid, m.dir)); err != nil {
		return err
	}
	return m.startDocker(ctx, opt)
}

// startDocker gives the machine a Docker engine of its own, and an image.
func (m *Machine) startDocker(ctx context.Context, opt LabOptions) error {
	if err := os.WriteFile(filepath.Join(m.dir, "daemon.json"), []byte("{}"), 0o644); err != nil {
		return err
	}
	daemon := m.command(context.Background(), "exec dockerd --config-file $MACHINE/daemon.json --data-root $MACHINE/docker >$MACHINE/log/dockerd.log 2>&1")
	if _, err := finish(ctx, daemon, Block{background: true}, &m.jobs); err != nil {
		return err
	}
	err := testbed.Poll(ctx, 2*time.Minute, "its answer", func(ctx context.Context) error { return m.command(ctx, "docker version >/dev/null 2>&1").Run() })
	if err == nil {
		var out []byte
		out, err = m.command(ctx, "docker build -q -t "+opt.ImageRef+" "+opt.Image+" 2>&1").CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
	}
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(m.dir, "log", "dockerd.log"))
		return fmt.Errorf("starting the machine's Docker engine: %w\n%s", err, log[max(0, len(log)-2000):])
	}
	return nil
}

// command returns a command that runs script on the machine.
func (m *Machine) command(ctx context.Context, script string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "nsenter", "-t", strconv.Itoa(m.init.Process.Pid), "-n", "-m", "-u", "--", "bash", "-c", script)
	cmd.Env = append([]string{"PATH=" + filepath.Join(m.dir, "bin") + ":" + os.Getenv("PATH") + ":/usr/sbin:/sbin",
		"HOME=/root", "USER=root", "TERM=dumb", "LANG=C.UTF-8", "MACHINE=" + m.dir}, m.env...)
	return cmd
}

// Close ends all processes on the machines, and removes the machines.
func (l *Lab) Close() error {
	var errs []error
	for _, m := range l.machines {
		if m.init == nil || m.init.Process == nil {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		if out, err := m.command(ctx, "docker ps -aq | xargs -r docker rm -fv").CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("removing the containers of %s: %w: %s", m.Name, err, out))
		}
		cancel()
		for _, j := range m.jobs {
			j.end()
		}
		// Find the processes that systemd units of the machine have started: they are in the machine's network
		// namespace.
		ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", m.init.Process.Pid))
		errs = append(errs, err)
		procs, _ := filepath.Glob("/proc/[0-9]*")
		for _, p := range procs {
			if other, err := os.Readlink(p + "/ns/net"); err != nil || other != ns {
				continue
			}
			if pid, err := strconv.Atoi(filepath.Base(p)); err == nil && pid != m.init.Process.Pid {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		errs = append(errs, m.init.Process.Kill())
		_ = m.init.Wait()
	}
	return errors.Join(errs...)
}

// Run runs a block on a machine and returns its output.
func (l *Lab) Run(ctx context.Context, on string, b Block) (string, error) {
	m, ok := l.machines[on]
	if !ok {
		return "", fmt.Errorf("there is no machine %q", on)
	}
	for _, do := range b.Before {
		if out, err := l.Run(ctx, do.On, Block{Text: do.Command}); err != nil {
			return out, fmt.Errorf("the command to run before the block, on %s: %w", do.On, err)
		}
	}
	text := b.Text
	for _, token := range b.Tokens {
		out, err := l.Run(ctx, token.On, Block{Text: token.Command})
		if err != nil {
			return out, fmt.Errorf("the command that replaces %s, on %s: %w", token.Word, token.On, err)
		}
		text = strings.ReplaceAll(text, token.Word, strings.TrimSpace(out))
	}
	// At the end of a block, store the shell's folder and exported variables in a file, from which the next
	// block restores them.
	story := filepath.Join(m.dir, "story")
	script := fmt.Sprintf("set -euo pipefail\ncd %s\n[ ! -e %[2]s ] || . %[2]s\ntrap '{ export -p; echo cd \"$PWD\"; } > %[2]s' EXIT\n%[3]s", m.home, story, text)
	cmd := m.command(ctx, script)
	return finish(ctx, cmd, b, &m.jobs)
}

// finish runs the command of a block and checks the result by the block's run comment: exit code, expected
// output, or a command that does not end.
func finish(ctx context.Context, cmd *exec.Cmd, b Block, jobs *[]*job) (string, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second
	out := &testbed.Output{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return "", err
	}
	j := &job{cmd: cmd, done: make(chan struct{})}
	go func() { j.err = cmd.Wait(); close(j.done) }()
	if b.background {
		*jobs = append(*jobs, j)
		return "", nil
	}
	if b.Until != "" {
		*jobs = append(*jobs, j)
		err := testbed.Poll(ctx, 5*time.Minute, fmt.Sprintf("the word %q", b.Until), func(context.Context) error {
			ended := false
			select {
			case <-j.done: // read done before the last check of the output, so that the check sees all output
				ended = true
			default:
			}
			switch {
			case out.Has(b.Until):
				return nil
			case ended:
				return testbed.Final(errors.New("the command has ended"))
			}
			return errors.New("the output does not contain the expected text")
		})
		return out.String(), err
	}
	<-j.done
	if code := cmd.ProcessState.ExitCode(); code != b.Exit {
		return out.String(), fmt.Errorf("the command ended with exit code %d (%v), want %d", code, j.err, b.Exit)
	}
	for _, says := range b.Says {
		if !strings.Contains(out.String(), says) {
			return out.String(), fmt.Errorf("the output does not contain %q", says)
		}
	}
	return out.String(), nil
}

// job is a command in the background.
type job struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

func (j *job) end() {
	_ = syscall.Kill(-j.cmd.Process.Pid, syscall.SIGTERM)
	select {
	case <-j.done:
	case <-time.After(10 * time.Second):
		_ = syscall.Kill(-j.cmd.Process.Pid, syscall.SIGKILL)
		<-j.done
	}
}

func run(ctx context.Context, script string) error {
	out, err := exec.CommandContext(ctx, "sh", "-ec", script).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// Logs returns the last bytes of each log of each machine.
func (l *Lab) Logs(last int) string {
	var out strings.Builder
	for _, m := range l.machines {
		files, _ := filepath.Glob(filepath.Join(m.dir, "log", "persys*.log"))
		for _, file := range files {
			text, _ := os.ReadFile(file)
			fmt.Fprintf(&out, "%s %s:\n%s\n", m.Name, filepath.Base(file), text[max(0, len(text)-last):])
		}
	}
	return out.String()
}
