package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/persys/compute/testbed"
)

// MemoryGroup is a control group with a memory limit, in which a program runs.
type MemoryGroup struct {
	// Program is the path of a script that joins the control group and then executes the program given to
	// LimitMemory, with the same arguments. A test starts the script in place of that program.
	Program string

	dir, events string
	peak        string
}

// LimitMemory makes a control group of version 1 or 2 with a limit in bytes. It writes a script into dir that runs
// the program there.
func LimitMemory(dir, program string, limit int64) (*MemoryGroup, error) {
	root, files := "/sys/fs/cgroup/memory", [3]string{"memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control"}
	if _, err := os.Stat(root); err != nil {
		if root, err = cgroup2(); err != nil {
			return nil, err
		}
		files = [3]string{"memory.max", "memory.peak", "memory.events"}
		if err := os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
			return nil, fmt.Errorf("the memory controller: %w", err)
		}
	}
	group := filepath.Join(root, fmt.Sprintf("persys-e2e-%d-%d", os.Getpid(), time.Now().UnixNano()))
	if err := os.Mkdir(group, 0o755); err != nil {
		return nil, err
	}
	g := &MemoryGroup{Program: filepath.Join(dir, filepath.Base(program)+"-limited"), dir: group, peak: filepath.Join(group, files[1]), events: filepath.Join(group, files[2])}
	script := fmt.Sprintf("#!/bin/sh\necho $$ > '%s/cgroup.procs' && exec '%s' \"$@\"\n", group, program)
	err := errors.Join(os.WriteFile(filepath.Join(group, files[0]), []byte(strconv.FormatInt(limit, 10)), 0), os.WriteFile(g.Program, []byte(script), 0o700))
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// oomKills matches the line that counts processes killed for lack of memory, in control groups of version 1
// and 2.
var oomKills = regexp.MustCompile(`(?m)^oom_kill (\d+)$`)

// Kills returns how many processes of the group were killed for lack of memory.
func (g *MemoryGroup) Kills() (int, error) {
	raw, err := os.ReadFile(g.events)
	if err != nil {
		return 0, err
	}
	m := oomKills.FindSubmatch(raw)
	if m == nil {
		return 0, fmt.Errorf("%s has no line oom_kill: %s", g.events, raw)
	}
	return strconv.Atoi(string(m[1]))
}

// Peak returns the largest use of memory by the group in bytes, including the page cache.
func (g *MemoryGroup) Peak() (int64, error) {
	raw, err := os.ReadFile(g.peak)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
}

// Close removes the group. Its processes must have ended.
func (g *MemoryGroup) Close() error {
	return testbed.Poll(context.Background(), 10*time.Second, "the end of "+g.dir, func(context.Context) error {
		if err := os.Remove(g.dir); !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	})
}
