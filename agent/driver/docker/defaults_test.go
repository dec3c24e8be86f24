package docker_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/docker"
	"github.com/persys/compute/testbed"
)

// TestDefaultsOfAContainer: a container without settings of its own gets a process limit, log rotation,
// seccomp and no_new_privs. The test reads seccomp and no_new_privs from /proc.
func TestDefaultsOfAContainer(t *testing.T) {
	b := newBench(t, func(o *docker.Options) { o.DaemonConfig = filepath.Join(t.TempDir(), "none") })
	spec := b.spec("defaults", containerBody(b.image, "serve"))
	b.ensure(spec)
	o := b.awaitState(spec.ID, driver.Running)
	in := b.inspect(o.RuntimeID)
	if n := in.HostConfig.PidsLimit; n == nil || *n != driver.DefaultPids {
		t.Errorf("a container without a process limit of its own got the limit %v, want driver.DefaultPids", n)
	}
	if l := in.HostConfig.LogConfig; l.Type != "json-file" || l.Config["max-size"] != "20m" || l.Config["max-file"] != "3" {
		t.Errorf("the log configuration of the container is %+v, want rotation", l)
	}
	for _, o := range in.HostConfig.SecurityOpt {
		if strings.HasPrefix(o, "seccomp") {
			t.Errorf("the driver set the security option %s, which replaces the engine's seccomp profile", o)
		}
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", in.State.Pid))
	testbed.Need(t, "the engine's processes", err)
	for _, line := range []string{"Seccomp:\t2\n", "NoNewPrivs:\t1\n"} {
		if !strings.Contains(string(status), line) {
			t.Errorf("the file /proc/self/status in the container lacks %q:\n%s", line, status)
		}
	}
}
