// Package cgroup reads the resource usage of containers from the kernel's counters: control groups of version
// 1 and 2, and the network devices of a container's namespace. It sends no requests to the container engine:
// the usage of fifty containers costs a few hundred small file reads.
package cgroup

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/persys/compute/agent/driver"
)

// Reader finds the control group of a container by the container's id, and reads its usage. It is safe for
// concurrent use.
type Reader struct {
	root, proc string
	unified    bool

	mu   sync.Mutex
	dirs map[string]string // container id → its control group, as a path below a controller's folder
	// parents are the path patterns under which control groups of earlier containers were found. They are tried first
	// for a new container. %s stands for the container id.
	parents []string
	missed  map[string]time.Time // when the search last found no control group for a container id
}

// Versions of control groups, as they appear in Usage.Source.
const (
	Version1 = "cgroup1"
	Version2 = "cgroup2"
)

// New returns a Reader that reads below root and proc, usually "/sys/fs/cgroup" and "/proc"; an empty
// argument selects these.
func New(root, proc string) *Reader {
	if root == "" {
		root = "/sys/fs/cgroup"
	}
	if proc == "" {
		proc = "/proc"
	}
	_, err := os.Stat(filepath.Join(root, "cgroup.controllers"))
	return &Reader{
		root: root, proc: proc, unified: err == nil,
		dirs: map[string]string{}, missed: map[string]time.Time{},
		// The first pattern is that of Docker's cgroupfs driver, the second that of its systemd driver.
		parents: []string{"docker/%s", "system.slice/docker-%s.scope"},
	}
}

// Source returns the control group version that this machine uses, as it appears in Usage.Source.
func (r *Reader) Source() string {
	if r.unified {
		return Version2
	}
	return Version1
}

// Usage returns the sum of the resource usage over the containers of one workload. ok is false if Usage could
// read none of the containers.
func (r *Reader) Usage(o driver.Observed, containers ...string) (u driver.Usage, ok bool) {
	u = driver.Usage{
		ID: o.ID, Instance: o.RuntimeID + "@" + strconv.FormatInt(o.StartedAt.UnixNano(), 36),
		Disk: -1, Source: r.Source(), At: time.Now(),
	}
	limited := true
	for _, id := range containers {
		part, err := r.read(id)
		if err != nil {
			continue // the container ended during the measurement, or never ran
		}
		u, ok = u.Add(part), true
		limited = limited && part.MemoryLimit > 0
	}
	if !limited {
		u.MemoryLimit = 0 // a container without a limit leaves the workload without one
	}
	return u, ok
}

// All returns the usage of each workload of which at least one container could be read. The function
// containers returns a workload's container ids.
func (r *Reader) All(ctx context.Context, of []driver.Observed, containers func(driver.Observed) []string) ([]driver.Usage, error) {
	out := make([]driver.Usage, 0, len(of))
	for _, o := range of {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if u, ok := r.Usage(o, containers(o)...); ok {
			out = append(out, u)
		}
	}
	return out, nil
}

// dir returns the folder of a control group under one controller. Version 2 has one tree for all controllers.
func (r *Reader) dir(controller, group string) string {
	if r.unified {
		return filepath.Join(r.root, group)
	}
	return filepath.Join(r.root, controller, group)
}

// searchAgain is the minimum time between two searches for a container id whose control group was not found,
// because a search walks the whole cgroup tree.
const searchAgain = time.Minute

// find returns the control group of a container.
func (r *Reader) find(id string) (string, error) {
	if id == "" || strings.ContainsAny(id, "/*?[") {
		return "", fs.ErrNotExist
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if group, ok := r.dirs[id]; ok {
		return group, nil
	}
	for _, p := range r.parents {
		group := strings.Replace(p, "%s", id, 1)
		if _, err := os.Stat(r.dir("cpuacct", group)); err == nil {
			r.keep(id, group)
			return group, nil
		}
	}
	now := time.Now()
	if at, ok := r.missed[id]; ok && now.Sub(at) < searchAgain {
		return "", fs.ErrNotExist
	}
	if group := r.search(id); group != "" {
		r.keep(id, group)
		r.parents = append(r.parents, strings.Replace(group, id, "%s", 1))
		return group, nil
	}
	if len(r.missed) > 1000 {
		clear(r.missed)
	}
	r.missed[id] = now
	return "", fs.ErrNotExist
}

func (r *Reader) keep(id, group string) {
	if len(r.dirs) > 10_000 {
		clear(r.dirs)
	}
	r.dirs[id] = group
}

// maxDepth is the maximum depth of the search for a control group, because engines put the groups of
// containers two or three levels deep.
const maxDepth = 6

func (r *Reader) search(id string) (group string) {
	top := r.dir("cpuacct", "")
	// Ignore errors of the walk: if the group is not found, the caller reports it as missing.
	_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil
		}
		rel, _ := filepath.Rel(top, path)
		if strings.Contains(d.Name(), id) {
			group = rel
			return fs.SkipAll
		}
		if strings.Count(rel, string(filepath.Separator)) >= maxDepth {
			return fs.SkipDir
		}
		return nil
	})
	return group
}

func (r *Reader) read(id string) (driver.Usage, error) {
	group, err := r.find(id)
	if err != nil {
		return driver.Usage{}, err
	}
	u := driver.Usage{Disk: -1}
	if r.unified {
		err = r.readUnified(group, &u)
	} else {
		err = r.readSplit(group, &u)
	}
	if err != nil {
		r.mu.Lock()
		delete(r.dirs, id) // the cached group is gone; search again, because the container's group may be at another path now
		r.mu.Unlock()
		return driver.Usage{}, err
	}
	r.readNetwork(group, &u)
	return u, nil
}

// noLimit: if there is no limit, control groups of version 1 report the largest number that is a multiple of
// the page size. So a value of noLimit or more means no limit.
const noLimit = 1 << 60

func (r *Reader) readSplit(group string, u *driver.Usage) error {
	cpu, err := number(r.dir("cpuacct", group), "cpuacct.usage")
	if err != nil {
		return err
	}
	u.CPU = time.Duration(cpu)
	memory := r.dir("memory", group)
	// The kernel may lack some of these controllers. Then read the others.
	if used, err := number(memory, "memory.usage_in_bytes"); err == nil {
		u.Memory = max(0, used-fields(memory, "memory.stat")["total_inactive_file"])
	}
	if limit, err := number(memory, "memory.limit_in_bytes"); err == nil && limit < noLimit {
		u.MemoryLimit = limit
	}
	blkio := r.dir("blkio", group)
	raw, err := os.ReadFile(filepath.Join(blkio, "blkio.throttle.io_service_bytes_recursive"))
	if err != nil {
		raw, _ = os.ReadFile(filepath.Join(blkio, "blkio.throttle.io_service_bytes"))
	}
	for line := range bytes.Lines(raw) {
		part := strings.Fields(string(line))
		if len(part) != 3 {
			continue
		}
		n, _ := strconv.ParseInt(part[2], 10, 64)
		switch part[1] {
		case "Read":
			u.DiskRead += n
		case "Write":
			u.DiskWrite += n
		}
	}
	return nil
}

func (r *Reader) readUnified(group string, u *driver.Usage) error {
	dir := r.dir("", group)
	cpu, ok := fields(dir, "cpu.stat")["usage_usec"]
	if !ok {
		return fs.ErrNotExist
	}
	u.CPU = time.Duration(cpu) * time.Microsecond
	if used, err := number(dir, "memory.current"); err == nil {
		u.Memory = max(0, used-fields(dir, "memory.stat")["inactive_file"])
	}
	if limit, err := number(dir, "memory.max"); err == nil { // "max" is not a number and means no limit
		u.MemoryLimit = limit
	}
	raw, err := os.ReadFile(filepath.Join(dir, "io.stat"))
	if err != nil {
		return nil
	}
	for _, word := range strings.Fields(string(raw)) {
		key, value, _ := strings.Cut(word, "=")
		n, _ := strconv.ParseInt(value, 10, 64)
		switch key {
		case "rbytes":
			u.DiskRead += n
		case "wbytes":
			u.DiskWrite += n
		}
	}
	return nil
}

// readNetwork adds the traffic of the network devices of a container's network namespace. A container in the
// host's namespace has no devices of its own, so no traffic is counted.
func (r *Reader) readNetwork(group string, u *driver.Usage) {
	raw, err := os.ReadFile(filepath.Join(r.dir("cpuacct", group), "cgroup.procs"))
	if err != nil {
		return
	}
	first, _, _ := bytes.Cut(raw, []byte("\n"))
	pid := strings.TrimSpace(string(first))
	if pid == "" || pid == "0" {
		return
	}
	theirs, err := os.Readlink(filepath.Join(r.proc, pid, "ns", "net"))
	if err != nil {
		return
	}
	if ours, err := os.Readlink(filepath.Join(r.proc, "self", "ns", "net")); err == nil && ours == theirs {
		return
	}
	raw, err = os.ReadFile(filepath.Join(r.proc, pid, "net", "dev"))
	if err != nil {
		return
	}
	for line := range bytes.Lines(raw) {
		name, rest, ok := strings.Cut(string(line), ":")
		part := strings.Fields(rest)
		if !ok || strings.TrimSpace(name) == "lo" || len(part) < 9 {
			continue
		}
		received, _ := strconv.ParseInt(part[0], 10, 64)
		sent, _ := strconv.ParseInt(part[8], 10, 64)
		u.NetReceived += received
		u.NetSent += sent
	}
}

// number reads a file that holds one number.
func number(dir, name string) (int64, error) {
	raw, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return 0, err
	}
	text := strings.TrimSpace(string(raw))
	n, err := strconv.ParseInt(text, 10, 64)
	if errors.Is(err, strconv.ErrRange) {
		return n, nil // the number does not fit into an int64: return the largest int64
	}
	return n, err
}

// fields reads a file of "name number" lines.
func fields(dir, name string) map[string]int64 {
	out := map[string]int64{}
	raw, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return out
	}
	for line := range bytes.Lines(raw) {
		key, value, ok := strings.Cut(strings.TrimSpace(string(line)), " ")
		if n, err := strconv.ParseInt(value, 10, 64); ok && err == nil {
			out[key] = n
		}
	}
	return out
}
