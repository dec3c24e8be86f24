package memfile

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/persys/compute/testbed"
)

// memory returns an empty Store whose folder is on a tmpfs of the machine.
func memory(t *testing.T) *Store {
	t.Helper()
	s := Open(t.TempDir(), Bases()...)
	if s.Root() == "" {
		testbed.Need(t, "a tmpfs at /run or /dev/shm", os.ErrNotExist)
	}
	t.Cleanup(func() { _ = os.RemoveAll(s.Root()) })
	return s
}

func own(data string) File {
	return File{Mode: 0o440, UID: os.Geteuid(), GID: os.Getegid(), Data: []byte(data)}
}

func put(t *testing.T, s *Store, workload, content string, files ...File) []string {
	t.Helper()
	paths, err := s.Put(workload, content, files)
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

func TestFilesOfAWorkload(t *testing.T) {
	s := memory(t)
	paths := put(t, s, "web", "c1:a", own("one"), own("two"))
	for i, want := range []string{"one", "two"} {
		data, err := os.ReadFile(paths[i])
		if err != nil || string(data) != want {
			t.Errorf("file %d of the workload has the content %q (error %v), want %q", i, data, err, want)
		}
		if info, _ := os.Stat(paths[i]); info.Mode() != 0o440 {
			t.Errorf("file %d of the workload has mode %s, want 0440", i, info.Mode())
		}
	}
	if info, _ := os.Stat(s.Root()); info.Mode().Perm() != 0o700 {
		t.Errorf("the folder of the store has mode %s, want 0700", info.Mode())
	}
	inode := func(path string) uint64 {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Sys().(*syscall.Stat_t).Ino
	}
	before := inode(paths[0])
	put(t, s, "web", "c1:a", own("one"), own("two"))
	if inode(paths[0]) != before {
		t.Error("Put replaced an unchanged file by a new one, want the same inode, because a container may have mounted it")
	}
	put(t, s, "web", "c1:a", own("new"), own("two"))
	if data, _ := os.ReadFile(paths[0]); string(data) != "new" {
		t.Errorf("after Put with other content the file has the content %q, want \"new\"", data)
	}
	next := put(t, s, "web", "c1:b", own("three"))
	live := own("before it changed")
	live.InPlace, live.Key = true, "db secret/live"
	at := put(t, s, "web", "c1:a", live)[0]
	was := inode(at)
	live.Data = []byte("short")
	put(t, s, "web", "c1:a", live)
	data, _ := os.ReadFile(at)
	if info, _ := os.Stat(at); string(data) != "short" || inode(at) != was || info.Mode() != 0o440 {
		t.Errorf("the file with InPlace has the content %q, inode %d and mode %s; want \"short\", inode %d and mode 0440", data, inode(at), info.Mode(), was)
	}
	shared := own("four")
	shared.Key = "db secret/four/1"
	kept := put(t, s, "web", "c1:a", shared)
	if again := put(t, s, "web", "c1:b", shared); again[0] != kept[0] {
		t.Errorf("for another specification (content) of the workload the file with a key is at %s, want the same path %s", again[0], kept[0])
	}
	gone := shared
	gone.Key = "db secret/four/2"
	dropped := put(t, s, "web", "c1:b", gone)
	if err := s.Trim("web", append(next, kept...)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(paths[0]); !os.IsNotExist(err) {
		t.Errorf("after Trim a file that is not in the list to keep still exists: %v", err)
	}
	if _, err := os.Stat(dropped[0]); !os.IsNotExist(err) {
		t.Errorf("after Trim a file with a key that is not in the list to keep still exists: %v", err)
	}
	for _, path := range append(next, kept...) {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
	other := put(t, s, "other", "c1:a", own("x"))
	if err := s.Keep(func(w string) bool { return w == "web" }); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(other[0]); !os.IsNotExist(err) {
		t.Errorf("after Keep a file of a workload that is not to be kept still exists: %v", err)
	}
	if err := s.Remove("web"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(s.Root(), "web")); !os.IsNotExist(err) {
		t.Errorf("after Remove the folder of the workload still exists: %v", err)
	}
}

func TestForeignFolderIsRefused(t *testing.T) {
	s := memory(t)
	if err := os.Mkdir(s.Root(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(s.Root(), 0o777); err != nil { //nolint:gosec // the test needs a folder that every user can write to
		t.Fatal(err)
	}
	if _, err := s.Put("web", "c1:a", []File{own("x")}); err == nil || !strings.Contains(err.Error(), "0700") {
		t.Errorf("Put into a folder that every user can write to returned %v, want a refusal", err)
	}
}

func TestPutNeedsATmpfs(t *testing.T) {
	s := Open("x", filepath.Join(t.TempDir(), "none"))
	if _, err := s.Put("web", "c1:a", []File{own("x")}); err == nil || !strings.Contains(err.Error(), "tmpfs") {
		t.Errorf("Put without a tmpfs returned %v, want an error", err)
	}
	if err := s.Trim("web", nil); err != nil {
		t.Error(err)
	}
}
