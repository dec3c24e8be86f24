package cgroup_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/cgroup"
)

// tree writes files below a new folder. A file content that begins with "-> " makes a symbolic link to the
// named target.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if to, link := cutLink(text); link {
			err = os.Symlink(to, path)
		} else {
			err = os.WriteFile(path, []byte(text), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func cutLink(s string) (string, bool) {
	if len(s) > 3 && s[:3] == "-> " {
		return s[3:], true
	}
	return "", false
}

const device = "Inter-|   Receive\n face |bytes\n    lo: 9999 1 0 0 0 0 0 0 9999 1 0 0 0 0 0 0\n  eth0: 700 1 0 0 0 0 0 0 300 1 0 0 0 0 0 0\n"

func TestUsageIsReadFromControlGroups(t *testing.T) {
	proc := tree(t, map[string]string{
		"self/ns/net": "-> net:[1]", "42/ns/net": "-> net:[2]", "42/net/dev": device,
		"43/ns/net": "-> net:[1]", "43/net/dev": device,
	})
	one := map[string]string{
		"cpuacct/docker/abc/cpuacct.usage":                               "2500000000\n",
		"cpuacct/docker/abc/cgroup.procs":                                "42\n77\n",
		"memory/docker/abc/memory.usage_in_bytes":                        "1000\n",
		"memory/docker/abc/memory.stat":                                  "cache 500\ntotal_inactive_file 400\n",
		"memory/docker/abc/memory.limit_in_bytes":                        "9223372036854771712\n",
		"blkio/docker/abc/blkio.throttle.io_service_bytes_recursive":     "8:0 Read 10\n8:0 Write 20\n8:16 Read 1\nTotal 31\n",
		"cpuacct/system.slice/docker-def.scope/cpuacct.usage":            "1\n",
		"cpuacct/system.slice/docker-def.scope/cgroup.procs":             "43\n",
		"memory/system.slice/docker-def.scope/memory.limit_in_bytes":     "2048\n",
		"cpuacct/kubepods/burst/cri-ghi/cpuacct.usage":                   "5000\n",
		"cpuacct/kubepods/burst/cri-jkl/cpuacct.usage":                   "6000\n",
		"memory/kubepods/burst/cri-jkl/memory.usage_in_bytes":            "7\n",
		"blkio/system.slice/docker-def.scope/blkio.throttle.nothing":     "",
		"cpuacct/docker/abc/cpuacct.usage_percpu":                        "1 2\n",
		"memory/system.slice/docker-def.scope/memory.max_usage_in_bytes": "9\n",
	}
	two := map[string]string{
		"cgroup.controllers":              "cpu memory io\n",
		"docker/abc/cpu.stat":             "usage_usec 2500000\nuser_usec 1\n",
		"docker/abc/cgroup.procs":         "42\n",
		"docker/abc/memory.current":       "1000\n",
		"docker/abc/memory.stat":          "anon 600\ninactive_file 400\n",
		"docker/abc/memory.max":           "max\n",
		"docker/abc/io.stat":              "8:0 rbytes=10 wbytes=20 rios=1\n8:16 rbytes=1 wbytes=0\n",
		"custom.slice/x-def-y/cpu.stat":   "usage_usec 3\n",
		"custom.slice/x-def-y/memory.max": "2048\n",
	}
	started := time.Unix(100, 0)
	o := driver.Observed{ID: "web", RuntimeID: "abc", State: driver.Running, StartedAt: started}
	for _, c := range []struct {
		name   string
		files  map[string]string
		ids    []string
		want   driver.Usage
		absent bool
	}{
		{"version 1", one, []string{"abc"}, driver.Usage{CPU: 2500 * time.Millisecond, Memory: 600, DiskRead: 11, DiskWrite: 20,
			NetReceived: 700, NetSent: 300, Source: cgroup.Version1}, false},
		{"cgroup version 1 under systemd, a container on the host's network", one, []string{"def"}, driver.Usage{CPU: 1, MemoryLimit: 2048, Source: cgroup.Version1}, false},
		{"cgroup version 1, two containers of an engine other than Docker", one, []string{"ghi", "jkl"}, driver.Usage{CPU: 11000, Memory: 7, Source: cgroup.Version1}, false},
		{"version 2", two, []string{"abc"}, driver.Usage{CPU: 2500 * time.Millisecond, Memory: 600, DiskRead: 11, DiskWrite: 20,
			NetReceived: 700, NetSent: 300, Source: cgroup.Version2}, false},
		{"cgroup version 2, a container in an unknown parent group", two, []string{"def"}, driver.Usage{CPU: 3000, MemoryLimit: 2048, Source: cgroup.Version2}, false},
		{"two containers, one without a memory limit, so there is no sum of limits", two, []string{"abc", "def"}, driver.Usage{CPU: 2500*time.Millisecond + 3000, Memory: 600, DiskRead: 11, DiskWrite: 20,
			NetReceived: 700, NetSent: 300, Source: cgroup.Version2}, false},
		{"a container that has ended adds no usage", two, []string{"def", "nowhere"}, driver.Usage{CPU: 3000, MemoryLimit: 2048, Source: cgroup.Version2}, false},
		{"all containers ended", two, []string{"nowhere"}, driver.Usage{}, true},
		{"a container id that is a path is not found", two, []string{"../abc"}, driver.Usage{}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := cgroup.New(tree(t, c.files), proc)
			for range 2 { // the second round finds the control groups in the Reader's cache
				got, ok := r.Usage(o, c.ids...)
				if ok == c.absent {
					t.Fatalf("Usage could read at least one of the containers: %t, want %t", ok, !c.absent)
				}
				if c.absent {
					return
				}
				if got.ID != "web" || got.Instance == "" || time.Since(got.At) > time.Minute {
					t.Errorf("the usage %+v lacks the workload id, the instance or the time of the reading", got)
				}
				got.ID, got.Instance, got.At = "", "", time.Time{}
				c.want.Disk = -1
				if got != c.want {
					t.Errorf("the usage is\n%+v\nwant\n%+v", got, c.want)
				}
			}
		})
	}
}

func TestContainerMovesToAnotherGroup(t *testing.T) {
	root := tree(t, map[string]string{"cgroup.controllers": "cpu\n", "docker/abc/cpu.stat": "usage_usec 7\n"})
	r := cgroup.New(root, t.TempDir())
	o := driver.Observed{ID: "web", RuntimeID: "abc", State: driver.Running}
	if _, ok := r.Usage(o, "abc"); !ok {
		t.Fatal("not found")
	}
	if err := os.RemoveAll(filepath.Join(root, "docker/abc")); err != nil {
		t.Fatal(err)
	}
	if _, ok := r.Usage(o, "abc"); ok {
		t.Fatal("the control group of the container was removed, but Usage returned a usage")
	}
	if err := os.MkdirAll(filepath.Join(root, "system.slice/docker-abc.scope"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "system.slice/docker-abc.scope/cpu.stat"), []byte("usage_usec 9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if u, ok := r.Usage(o, "abc"); !ok || u.CPU != 9*time.Microsecond {
		t.Fatalf("usage after the container moved: %v, %v; want 9 µs of CPU time from its new control group", u.CPU, ok)
	}
}
