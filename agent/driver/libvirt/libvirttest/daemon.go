// Package libvirttest starts a private libvirt daemon for tests, and builds guests for it.
//
// The daemon runs in its own mount, network and process namespaces. So it does not touch the machine's
// libvirt and the names of its networks cannot collide with existing ones. All its processes end when Close
// is called. It needs root and the Debian packages that hack/install-test-deps.sh installs.
package libvirttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// script is the shell script that starts the daemon. It runs as process 1 of the daemon's namespaces. It starts
// the daemon again whenever the daemon ends, unless the file "down" exists.
const script = `set -e
D=$1
C=$2
for p in /run/libvirt /var/lib/libvirt /var/log/libvirt /var/cache/libvirt /etc/libvirt; do
	mkdir -p "$D/root$p" "$p"
done
cp -a /etc/libvirt/. "$D/root/etc/libvirt/"
for p in /run/libvirt /var/lib/libvirt /var/log/libvirt /var/cache/libvirt /etc/libvirt; do
	mount --bind "$D/root$p" "$p"
done
# A mounted /sys shows the network namespace in which it was mounted. With the host's /sys, libvirt would
# see the host's bridges and configure those whose names it uses itself.
mkdir "$D/sys"
mount -t sysfs sysfs "$D/sys"
for p in /sys/devices/virtual/net /sys/class/net; do
	mount --bind "$D$p" "$p"
done
umount "$D/sys"
# Without user=root libvirt cannot open /dev/kvm, and asks QEMU for its capabilities at every call.
cat >>/etc/libvirt/qemu.conf <<EOF
user = "root"
group = "root"
security_driver = "none"
namespaces = []
cgroup_controllers = [$C]
EOF
cat >"$D/libvirtd.conf" <<EOF
unix_sock_dir = "$D/sock"
unix_sock_group = "root"
unix_sock_rw_perms = "0700"
auth_unix_rw = "none"
auth_unix_ro = "none"
EOF
mkdir -p "$D/sock" /run/libvirt
ip link set lo up
virtlogd --daemon --pid-file "$D/virtlogd.pid"
set +e
# libvirt starts no guest if a cgroup hierarchy without controllers is mounted beside one with controllers.
[ -z "$C" ] || umount /sys/fs/cgroup/unified 2>/dev/null
while [ ! -e "$D/quit" ]; do
	if [ -e "$D/down" ]; then
		sleep 0.05
		continue
	fi
	libvirtd --config "$D/libvirtd.conf" --pid-file "$D/libvirtd.pid" >>"$D/libvirtd.log" 2>&1 &
	echo $! >"$D/daemon.pid"
	wait $!
done
`

// Daemon is a running libvirtd with its own virtlogd.
type Daemon struct {
	// URI connects libvirt clients, such as virsh, to this daemon.
	URI string
	// Dir holds all files of the daemon. Close removes it.
	Dir string

	cmd  *exec.Cmd
	done chan struct{}
}

// Missing returns the name of a requirement for the daemon that this machine lacks, or "" if it lacks none.
func Missing() string {
	if os.Geteuid() != 0 {
		return "only root can start a private libvirt daemon"
	}
	for _, program := range []string{"libvirtd", "virtlogd", "virsh", "qemu-system-x86_64", "qemu-img", "dnsmasq", "unshare", "nsenter", "ip"} {
		if _, err := exec.LookPath(program); err != nil {
			if _, err := os.Stat("/usr/sbin/" + program); err != nil {
				return program + " is not installed (hack/install-test-deps.sh)"
			}
		}
	}
	return ""
}

// Start starts a daemon and waits until it answers and its network "default" is active. The arguments name the
// cgroup controllers that the daemon uses for its guests; without arguments it uses none.
func Start(ctx context.Context, controllers ...string) (*Daemon, error) {
	dir, err := os.MkdirTemp("", "pv-") // a short path, because the path of a Unix socket has at most 108 bytes
	if err != nil {
		return nil, err
	}
	d := &Daemon{Dir: dir, URI: "qemu+unix:///system?socket=" + dir + "/sock/libvirt-sock", done: make(chan struct{})}
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	out, err := os.Create(filepath.Join(dir, "daemon.log"))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	// Mount this file system outside the namespaces, so that both the daemon and the caller see the
	// file system.
	if err := errors.Join(os.Mkdir(d.Small(), 0o755), syscall.Mount("persys-small", d.Small(), "tmpfs", 0, "mode=0755,size=16m")); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	quoted := make([]string, len(controllers))
	for i, c := range controllers {
		quoted[i] = strconv.Quote(c)
	}
	d.cmd = exec.Command("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child=KILL", "--mount-proc",
		"sh", "-c", script, "sh", dir, strings.Join(quoted, ", "))
	d.cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin", "LC_ALL=C")
	d.cmd.Stdout, d.cmd.Stderr = out, out
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := d.cmd.Start(); err != nil {
		return nil, errors.Join(err, syscall.Unmount(d.Small(), syscall.MNT_DETACH), os.RemoveAll(dir))
	}
	go func() {
		_ = d.cmd.Wait() // the error of Wait is ignored: it would only say that the daemon was killed
		close(d.done)
	}()
	if err := d.Await(ctx); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if _, err := d.Virsh(ctx, "net-start", "default"); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// Small returns a folder on a file system of 16 MiB, which a test can fill.
func (d *Daemon) Small() string { return filepath.Join(d.Dir, "small") }

// Await waits until the daemon answers.
func (d *Daemon) Await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		_, err := d.Virsh(ctx, "version")
		if err == nil {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-d.done:
			return fmt.Errorf("the libvirt daemon ended: %w\n%s", err, d.Log())
		case <-ctx.Done():
			return fmt.Errorf("the libvirt daemon of the test does not answer: %w\n%s", err, d.Log())
		}
	}
}

// Log returns the output of the daemon and of the script that starts it.
func (d *Daemon) Log() string {
	script, _ := os.ReadFile(filepath.Join(d.Dir, "daemon.log"))
	daemon, _ := os.ReadFile(filepath.Join(d.Dir, "libvirtd.log"))
	return string(script) + string(daemon)
}

// Virsh runs a virsh command against the daemon.
func (d *Daemon) Virsh(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "virsh", append([]string{"-q", "-c", d.URI}, args...)...)
	var out, bad bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &bad
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("virsh %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(bad.String()))
	}
	return out.String(), nil
}

// Define defines a domain from its XML.
func (d *Daemon) Define(ctx context.Context, xml string) error {
	file := filepath.Join(d.Dir, fmt.Sprintf("define-%d.xml", time.Now().UnixNano()))
	if err := os.WriteFile(file, []byte(xml), 0o600); err != nil {
		return err
	}
	defer os.Remove(file)
	_, err := d.Virsh(ctx, "define", file)
	return err
}

// Inside runs a program in the daemon's namespaces.
func (d *Daemon) Inside(ctx context.Context, args ...string) (string, error) {
	first, err := d.first()
	if err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, "nsenter", append([]string{"-t", first, "-m", "-n", "-p"}, args...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// first returns the process id, on the host, of process 1 of the daemon's namespaces.
func (d *Daemon) first() (string, error) {
	pid := strconv.Itoa(d.cmd.Process.Pid)
	raw, err := os.ReadFile("/proc/" + pid + "/task/" + pid + "/children")
	if err != nil {
		return "", err
	}
	children := strings.Fields(string(raw))
	if len(children) != 1 {
		return "", fmt.Errorf("%d processes were started as process 1 of the daemon's namespaces, want one", len(children))
	}
	return children[0], nil
}

// Signal sends a signal ("KILL", "STOP", "CONT") to the daemon. If the daemon dies, process 1 of its
// namespaces starts it again at once, unless Down was called.
func (d *Daemon) Signal(ctx context.Context, name string) error {
	pid, err := os.ReadFile(filepath.Join(d.Dir, "daemon.pid"))
	if err != nil {
		return err
	}
	_, err = d.Inside(ctx, "kill", "-"+name, strings.TrimSpace(string(pid)))
	return err
}

// Down kills the daemon, waits until it has ended, and keeps it down until Up is called. Its guests keep
// running.
func (d *Daemon) Down(ctx context.Context) error {
	if err := os.WriteFile(filepath.Join(d.Dir, "down"), nil, 0o600); err != nil {
		return err
	}
	if err := d.Signal(ctx, "KILL"); err != nil {
		return err
	}
	_, err := d.Inside(ctx, "sh", "-c", `while kill -0 "$(cat "$0")" 2>/dev/null; do sleep 0.01; done`, filepath.Join(d.Dir, "daemon.pid"))
	return err
}

// Up starts the daemon after Down and waits until it answers.
func (d *Daemon) Up(ctx context.Context) error {
	if err := os.Remove(filepath.Join(d.Dir, "down")); err != nil {
		return err
	}
	return d.Await(ctx)
}

// Restart kills the daemon with SIGKILL and starts it again with Recover.
func (d *Daemon) Restart(ctx context.Context) error {
	if err := d.Down(ctx); err != nil {
		return err
	}
	return d.Recover(ctx)
}

// Notes returns the path of the file in which the daemon stores the state of a running domain.
func (d *Daemon) Notes(name string) string {
	return filepath.Join(d.Dir, "root", "run", "libvirt", "qemu", name+".xml")
}

// Recover starts the daemon after it was killed. A domain that was being started at that moment stays locked,
// so Recover first removes the status files of domains without a QEMU process, as an operator would do by
// hand.
func (d *Daemon) Recover(ctx context.Context) error {
	notes, err := filepath.Glob(d.Notes("*"))
	for _, note := range notes {
		text, no := os.ReadFile(note)
		if no == nil && bytes.Contains(text, []byte(" pid='0'>")) {
			no = os.Remove(note)
		}
		err = errors.Join(err, no)
	}
	return errors.Join(err, d.Up(ctx))
}

// Close ends the daemon and all its guests, and removes Dir.
func (d *Daemon) Close() error {
	_ = d.cmd.Process.Kill() // this also kills process 1 of the namespaces, and so all their processes
	select {
	case <-d.done:
	case <-time.After(10 * time.Second):
		return errors.New("the libvirt daemon does not end")
	}
	if err := syscall.Unmount(d.Small(), syscall.MNT_DETACH); err != nil {
		return err
	}
	var err error
	for range 50 { // the kernel releases files that guests had open shortly after the kill
		if err = os.RemoveAll(d.Dir); err == nil {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return err
}
