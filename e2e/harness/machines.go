package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/persys/compute/testbed"
)

// Machine is a machine of its own, as far as the network is concerned: a network namespace with the interface eth0 and
// a Docker engine. It shares processes, files and users with the machine of the test.
type Machine struct {
	Name    string
	Address netip.Addr
	// DockerHost is the address of the machine's Docker engine, in the form of the variable DOCKER_HOST.
	DockerHost string
	Engine     *Process
	Docker     *Engine // client of the engine, after StartEngine

	holder *Process // keeps the namespace
	dir    string
	config string // path of the engine's configuration file
}

// MachineHost is the address at which machines reach the network namespace of the test.
var MachineHost = netip.MustParseAddr("10.99.0.1")

const (
	machineBridge = "machines"
	machineBits   = 24
	firstMachine  = 11 // last number of the first machine's address
)

// LacksMachines returns an error that says why this process cannot make Machines, or nil if it can.
func LacksMachines() error {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces need root")
	}
	for _, program := range []string{"dockerd", "containerd", "nsenter", "unshare"} {
		if _, err := exec.LookPath(program); err != nil {
			return err
		}
	}
	return nil
}

// OpenMachines makes n machines on one network. The calling process must be in a network namespace of its own, where
// the machines find it at MachineHost. dir is a folder for the engines. The machines must be closed, also after an
// error.
func OpenMachines(ctx context.Context, dir string, n int) ([]*Machine, error) {
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: machineBridge, TxQLen: -1, MTU: 1500}}
	err := netlink.LinkAdd(br)
	if err == nil {
		err = addAddress(machineBridge, MachineHost)
	}
	if err != nil {
		return nil, fmt.Errorf("network between machines: %w", err)
	}
	var out []*Machine
	for i := range n {
		a := MachineHost.As4()
		a[3] = byte(firstMachine + i)
		m := &Machine{Name: "machine-" + strconv.Itoa(i+1), Address: netip.AddrFrom4(a)}
		m.dir = filepath.Join(dir, m.Name)
		m.DockerHost = "unix://" + filepath.Join(m.dir, "docker.sock")
		out = append(out, m)
		if err := m.open(ctx, br, i); err != nil {
			return out, fmt.Errorf("%s: %w", m.Name, err)
		}
	}
	return out, nil
}

func addAddress(link string, a netip.Addr) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(netip.PrefixFrom(a, machineBits).String())
	if err != nil {
		return err
	}
	return errors.Join(netlink.AddrAdd(l, addr), netlink.LinkSetUp(l))
}

// open makes the namespace, connects it, and prepares the engine.
func (m *Machine) open(ctx context.Context, br netlink.Link, i int) error {
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return err
	}
	m.holder = &Process{Name: m.Name, Path: "unshare", Args: []string{"--net", "sleep", "infinity"}, Log: filepath.Join(m.dir, "namespace.log"), Env: environment()}
	var err error
	if m.holder.Path, err = exec.LookPath("unshare"); err != nil {
		return err
	}
	if err := m.holder.Start(); err != nil {
		return err
	}
	err = testbed.Poll(ctx, 10*time.Second, "network namespace", func(context.Context) error {
		// Read /proc/thread-self and not /proc/self: /proc/self is the main thread, which InNetNS may have left in the
		// namespace of another machine.
		own, err := os.Readlink("/proc/thread-self/ns/net")
		if err != nil {
			return err
		}
		if its, err := os.Readlink(m.NetNS()); err != nil || its == own {
			return fmt.Errorf("unshare has not made the network namespace yet (%v)", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	ns, err := netns.GetFromPath(m.NetNS())
	if err != nil {
		return err
	}
	defer ns.Close()
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "m" + strconv.Itoa(i), TxQLen: -1, MTU: 1500}, PeerName: "eth0", PeerNamespace: netlink.NsFd(ns)}
	if err := netlink.LinkAdd(veth); err != nil {
		return err
	}
	if err := errors.Join(netlink.LinkSetMaster(veth, br), netlink.LinkSetUp(veth)); err != nil {
		return err
	}
	err = InNetNS(m.NetNS(), func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		if err := errors.Join(netlink.LinkSetUp(lo), addAddress("eth0", m.Address)); err != nil {
			return err
		}
		if err := netlink.RouteAdd(&netlink.Route{Gw: MachineHost.AsSlice()}); err != nil {
			return err
		}
		// IP forwarding is off, as on a machine that was just installed. A Docker engine that has to switch forwarding
		// on then drops forwarded packets that no rule accepts.
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0o644)
	})
	if err != nil {
		return err
	}
	m.config = filepath.Join(m.dir, "daemon.json")
	daemon, err := exec.LookPath("dockerd")
	if err != nil {
		return err
	}
	return m.UseEngine(daemon, map[string]any{})
}

// UseEngine sets the path of the program dockerd that StartEngine runs, and the content of dockerd's
// configuration file.
func (m *Machine) UseEngine(daemon string, config map[string]any) error {
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	if err := os.WriteFile(m.config, text, 0o600); err != nil {
		return err
	}
	// The engine runs in a mount namespace of its own, so its mounts end with the engine. Docker engines
	// before version 23 derive their id from a key in /etc/docker. Each machine has its own /etc/docker, so
	// two engines cannot have the same id.
	etc := filepath.Join(m.dir, "etc")
	if err := os.MkdirAll(etc, 0o700); err != nil {
		return err
	}
	const own = `if [ -d /etc/docker ]; then mount --bind "$0" /etc/docker || exit 1; fi; exec "$@"`
	path, args := m.command("unshare", "--mount", "sh", "-c", own, etc, daemon, "--config-file", m.config, "--data-root", filepath.Join(m.dir, "data"),
		"--exec-root", filepath.Join(m.dir, "exec"), "--pidfile", filepath.Join(m.dir, "pid"), "--host", m.DockerHost,
		"--bip", "172.31.0.1/24", "--storage-driver", "vfs")
	m.Engine = &Process{Name: m.Name + "-engine", Path: path, Args: args, Log: filepath.Join(m.dir, "engine.log"), Env: environment()}
	return nil
}

// NetNS returns the path of the machine's network namespace.
func (m *Machine) NetNS() string { return fmt.Sprintf("/proc/%d/ns/net", m.holder.PID()) }

// command returns the command that runs a program on the machine.
func (m *Machine) command(program string, args ...string) (string, []string) {
	path, err := exec.LookPath("nsenter")
	if err != nil {
		path = "nsenter"
	}
	return path, append([]string{"--net=" + m.NetNS(), program}, args...)
}

// StartEngine starts the container engine and waits until it answers.
func (m *Machine) StartEngine(ctx context.Context) error {
	if err := m.Engine.Start(); err != nil {
		return err
	}
	return testbed.Poll(ctx, 90*time.Second, "engine of "+m.Name, func(ctx context.Context) (err error) {
		if !m.Engine.Running() {
			return testbed.Final(fmt.Errorf("the engine has exited: %s", m.Engine.Tail(5)))
		}
		if m.Docker == nil {
			m.Docker, err = openEngine(ctx, m.DockerHost)
			return err
		}
		_, err = m.Docker.Containers(ctx, "none")
		return err
	})
}

// StopEngine stops the engine and its containers, as systemctl stop docker does.
func (m *Machine) StopEngine() error { return m.Engine.Terminate(60 * time.Second) }

// Close removes the containers of a cluster and ends the machine. cluster may be empty.
func (m *Machine) Close(cluster string) error {
	var errs []error
	if m.Docker != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if cluster != "" {
			errs = append(errs, m.Docker.RemoveAll(ctx, cluster))
		}
		errs = append(errs, m.Docker.Close())
	}
	if m.Engine != nil {
		errs = append(errs, m.StopEngine())
	}
	if m.holder != nil {
		errs = append(errs, m.holder.Kill())
	}
	return errors.Join(append(errs, os.RemoveAll(m.dir))...)
}

// InNetNS runs f in a network namespace, on a thread of its own. f must not start goroutines that use the network.
func InNetNS(path string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends together with the goroutine
		ns, err := netns.GetFromPath(path)
		if err == nil {
			err = netns.Set(ns)
			_ = ns.Close()
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}
