package mobytest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/moby/client"

	"github.com/persys/compute/testbed"
)

// smallScript is the shell script that starts a Small engine. It runs as process 1 in the engine's namespaces.
const smallScript = `ip link set lo up
exec dockerd --config-file "$1/config.json" --data-root "$1/disk/data" --exec-root "$1/exec" --pidfile "$1/pid" \
	-H "unix://$1/sock" --iptables=false --ip6tables=false --ip-masq=false --storage-driver vfs
`

// Small is a private Docker engine with a small disk, in its own namespaces. It does not touch the machine's
// engine.
type Small struct {
	Host string // value of DOCKER_HOST for this engine
	Disk string // a folder on the small disk
}

// NewSmall starts an engine whose disk is a memory file system of size bytes, and loads the image under the
// name ref. The engine ends with the test. It needs root and dockerd.
func NewSmall(t *testing.T, size int64, image v1.Image, ref string) *Small {
	t.Helper()
	const what = "a private Docker engine"
	if os.Geteuid() != 0 {
		testbed.Need(t, what, errors.New("only root can start one"))
	}
	for _, program := range []string{"dockerd", "unshare", "ip"} {
		testbed.Program(t, program)
	}
	dir, err := os.MkdirTemp("", "pe-") // a short path, because the path of a Unix socket has at most 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removed(t, dir) })
	e := &Small{Host: "unix://" + dir + "/sock", Disk: filepath.Join(dir, "disk")}
	err = errors.Join(os.Mkdir(e.Disk, 0o755), os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	err = syscall.Mount("persys-small", e.Disk, "tmpfs", 0, "mode=0755,size="+strconv.FormatInt(size, 10))
	testbed.Need(t, what, err)
	t.Cleanup(func() {
		if err := syscall.Unmount(e.Disk, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	var log bytes.Buffer
	cmd := exec.Command("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "sh", "-c", smallScript, "sh", dir)
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.WaitDelay = 5 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait() // the error of Wait is ignored: it would only say that the engine was killed
		close(done)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // this also kills process 1 of the namespaces, and so all their processes
		<-done
		if t.Failed() {
			t.Logf("the small engine said:\n%s", log.String())
		}
	})
	cli, err := client.New(client.WithHost(e.Host))
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	testbed.Within(t, 2*time.Minute, "the answer of the small engine", func() error {
		select {
		case <-done:
			return testbed.Final(fmt.Errorf("the engine ended:\n%s", log.String()))
		default:
			_, err := cli.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true})
			return err
		}
	})
	if err := Load(ctx, cli, image, ref); err != nil {
		t.Fatal(fmt.Errorf("loading the image: %w", err))
	}
	return e
}

// removed deletes the folder of an engine that has ended. It tries repeatedly, because the engine's mounts
// disappear only shortly after its end.
func removed(t *testing.T, dir string) {
	t.Helper()
	testbed.Within(t, testbed.Patience, "the removal of "+dir, func() error { return os.RemoveAll(dir) })
}
