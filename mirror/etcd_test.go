package mirror

import (
	"context"
	"crypto/tls"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/persys/compute/testbed"
)

// debianEtcd is Debian's etcd 3.4, the older of the two tested versions.
const debianEtcd = "/usr/bin/etcd"

// safe is the option that makes etcd sync its log to disk. Benchmarks use it.
const safe = "--unsafe-no-fsync=false"

// currentEtcd returns the path of the current etcd version, built from tools/etcd.
func currentEtcd(t testing.TB) string {
	t.Helper()
	path, err := testbed.Server(t.Context(), "etcd")
	testbed.Need(t, "etcd, built from tools/etcd,", err)
	return path
}

func debian(t testing.TB) string {
	t.Helper()
	_, err := os.Stat(debianEtcd)
	testbed.Need(t, "Debian's etcd-server (hack/install-test-deps.sh)", err)
	return debianEtcd
}

// etcd is a single-member etcd server for tests.
type etcd struct {
	t      testing.TB
	binary string
	dir    string
	url    string
	peer   string
	args   []string
	tls    *tls.Config
	cmd    *exec.Cmd
	client *Client
}

// startEtcd runs a server until the test ends. args are added to its command line.
func startEtcd(t testing.TB, binary string, args ...string) *etcd {
	t.Helper()
	e := &etcd{t: t, binary: binary, dir: filepath.Join(t.TempDir(), "data"), url: "http://" + freeAddress(t), peer: "http://" + freeAddress(t), args: args}
	e.start()
	e.client = e.dial()
	t.Cleanup(func() {
		e.kill()
	})
	return e
}

func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// dial returns a client that is closed when the test ends.
func (e *etcd) dial() *Client {
	e.t.Helper()
	c, err := Dial(Endpoint{Addresses: []string{e.url}, TLS: e.tls})
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = c.Close() })
	return c
}

// admin returns the clientv3 client, for operations that the type Client does not have.
func (e *etcd) admin() *clientv3.Client {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), 5*time.Second)
	defer cancel()
	c, err := e.client.client(ctx)
	if err != nil {
		e.t.Fatal(err)
	}
	return c
}

// start runs the server on its data directory and waits until it answers.
func (e *etcd) start() {
	e.t.Helper()
	args := append([]string{
		"--name=m", "--data-dir=" + e.dir, "--listen-client-urls=" + e.url, "--advertise-client-urls=" + e.url,
		"--listen-peer-urls=" + e.peer, "--initial-advertise-peer-urls=" + e.peer, "--initial-cluster=m=" + e.peer,
		"--heartbeat-interval=20", "--election-timeout=200", "--logger=zap", "--log-level=error",
	}, e.args...)
	if e.binary != debianEtcd && !slices.Contains(e.args, safe) {
		args = append(args, "--unsafe-no-fsync")
	}
	e.cmd = exec.Command(e.binary, args...)
	e.cmd.Stderr = os.Stderr
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := e.cmd.Start(); err != nil {
		e.t.Fatal(err)
	}
	c, err := Dial(Endpoint{Addresses: []string{e.url}, TLS: e.tls})
	if err != nil {
		e.t.Fatal(err)
	}
	defer c.Close()
	testbed.Within(e.t, testbed.Patience, "etcd answers", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := c.Get(ctx, "/health")
		return err
	})
}

func (e *etcd) kill() {
	if e.cmd == nil {
		return
	}
	_ = e.cmd.Process.Kill()
	_ = e.cmd.Wait()
	e.cmd = nil
}

func (e *etcd) signal(s syscall.Signal) {
	e.t.Helper()
	if err := e.cmd.Process.Signal(s); err != nil {
		e.t.Fatal(err)
	}
}

// copyTo copies the data directory of the server to dir. The server is stopped during the copy.
func (e *etcd) copyTo(dir string) {
	e.t.Helper()
	e.kill()
	copyDir(e.t, e.dir, dir)
	e.start()
}

// replaceBy restarts the server with another data directory; with "", it starts with an empty one.
func (e *etcd) replaceBy(dir string) {
	e.t.Helper()
	e.kill()
	if err := os.RemoveAll(e.dir); err != nil {
		e.t.Fatal(err)
	}
	if dir != "" {
		copyDir(e.t, dir, e.dir)
	}
	e.start()
}

func copyDir(t testing.TB, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), b, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// contents returns all keys and values with a prefix.
func (e *etcd) contents(prefix string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(e.t.Context(), 5*time.Second)
	defer cancel()
	r, err := e.client.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	out := make(map[string]string, len(r.Kvs))
	for _, kv := range r.Kvs {
		out[string(kv.Key)] = string(kv.Value)
	}
	return out, nil
}

func (e *etcd) put(key, value string) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), 5*time.Second)
	defer cancel()
	if _, err := e.admin().Put(ctx, key, value); err != nil {
		e.t.Fatal(err)
	}
}

func (e *etcd) delete(key string, opts ...clientv3.OpOption) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), 5*time.Second)
	defer cancel()
	if _, err := e.admin().Delete(ctx, key, opts...); err != nil {
		e.t.Fatal(err)
	}
}

func (e *etcd) value(key string) string {
	e.t.Helper()
	all, err := e.contents(key)
	if err != nil {
		e.t.Fatal(err)
	}
	return all[key]
}

// differ describes the first five differences between two sets of keys; "": they are equal.
func differ(want, got map[string]string) string {
	var b strings.Builder
	n := 0
	note := func(format string, args ...any) {
		if n++; n <= 5 {
			fmt.Fprintf(&b, format+"\n", args...)
		}
	}
	for k, v := range want {
		if g, ok := got[k]; !ok {
			note("key %s is missing in etcd", k)
		} else if g != v {
			note("key %s in etcd has the value\n  %s, want\n  %s", k, g, v)
		}
	}
	for k := range got {
		if _, ok := want[k]; !ok {
			note("key %s exists in etcd, want no such key", k)
		}
	}
	if n > 5 {
		fmt.Fprintf(&b, "and %d more", n-5)
	}
	return b.String()
}
