// Package memfile keeps the secrets and configs of workloads as files in memory, below a folder on a tmpfs of
// the machine. Containers mount the files read-only. The files of a workload are deleted with it, and are lost
// when the machine restarts; the agent then writes them again from its sealed state before it starts the
// workload.
package memfile

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// File is one file of a workload.
type File struct {
	// Key names the file in all contents of the workload that have a file with this key; "" = the file belongs to one
	// content only.
	Key string
	// InPlace means that the contents of an existing file change in its inode, so that a container that has mounted the
	// file sees them at once. A reader may see both contents mixed until Put returns.
	InPlace  bool
	Mode     os.FileMode // permission bits
	UID, GID int
	Data     []byte
}

// Store keeps the files of one agent. It is safe for concurrent use.
type Store struct {
	root  string // "" if there is no tmpfs
	bases []string

	mu sync.Mutex
}

// Bases returns the folders below which Open looks for a tmpfs, in order.
func Bases() []string { return []string{"/run", "/dev/shm"} }

// Open returns the store of the agent that has this name, below the first of bases that is on a tmpfs. It creates
// nothing. Names of agents of one machine must differ. If no folder is on a tmpfs, Put returns an error.
func Open(name string, bases ...string) *Store {
	s := &Store{bases: bases}
	for _, base := range bases {
		if inMemory(base) {
			sum := sha256.Sum256([]byte(name))
			s.root = filepath.Join(base, "persys-agent-"+hex.EncodeToString(sum[:6]))
			break
		}
	}
	return s
}

// inMemory reports whether a folder is on a file system that is in memory only.
func inMemory(dir string) bool {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return false
	}
	kind := uint32(fs.Type) // its type depends on the architecture
	return kind == unix.TMPFS_MAGIC || kind == unix.RAMFS_MAGIC
}

// Root returns the folder of the store; "" if there is no tmpfs.
func (s *Store) Root() string { return s.root }

// folder returns the folder for one content of a workload. Ids of workloads are names of files; content is hashed.
func (s *Store) folder(workload, content string) string {
	sum := sha256.Sum256([]byte(content))
	return filepath.Join(s.root, workload, hex.EncodeToString(sum[:8]))
}

// path returns the path of file number i of a content.
func (s *Store) path(workload, content string, i int, f File) string {
	if f.Key == "" {
		return filepath.Join(s.folder(workload, content), strconv.Itoa(i))
	}
	sum := sha256.Sum256([]byte(f.Key))
	return filepath.Join(s.root, workload, keyed, hex.EncodeToString(sum[:8]))
}

// keyed is the folder of the files of a workload that have a key. Names of other folders are hexadecimal.
const keyed = "keyed"

// Put writes the files of one content of a workload and returns their paths. Files that are right already keep
// their inodes, because a running container has mounted them.
func (s *Store) Put(workload, content string, files []File) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.root == "" {
		return nil, fmt.Errorf("none of %v is on a tmpfs: mount one, so that secrets and configs are in memory only", s.bases)
	}
	for _, dir := range []string{s.root, filepath.Join(s.root, workload)} {
		if err := private(dir); err != nil {
			return nil, err
		}
	}
	paths := make([]string, len(files))
	for i, f := range files {
		paths[i] = s.path(workload, content, i, f)
		if err := private(filepath.Dir(paths[i])); err != nil {
			return nil, err
		}
		if err := write(paths[i], f); err != nil {
			return nil, fmt.Errorf("file %d of the secrets and configs: %w", i, err)
		}
	}
	return paths, nil
}

// private makes a folder that only the agent's user can enter. /dev/shm is writable for everybody, so a folder
// that is there must belong to the agent's user.
func private(dir string) error {
	err := os.Mkdir(dir, 0o700)
	if err == nil || !errors.Is(err, os.ErrExist) {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !info.IsDir() || info.Mode().Perm() != 0o700 || !ok || int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s is not a folder with mode 0700 of user %d: remove it", dir, os.Geteuid())
	}
	return nil
}

// Changed reports for each file whether Put would change it. A file that does not exist yet is changed.
func (s *Store) Changed(workload, content string, files []File) []bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]bool, len(files))
	for i, f := range files {
		out[i] = !same(s.path(workload, content, i, f), f)
	}
	return out
}

// rewrite changes the contents of an existing file with the mode and owner of f. It returns false if there is none.
func rewrite(path string, f File) (bool, error) {
	info, err := os.Lstat(path)
	if err != nil || !owned(info, f) {
		return false, ignoreAbsent(err)
	}
	w, err := os.OpenFile(path, os.O_WRONLY, 0)
	if errors.Is(err, os.ErrPermission) { // an agent without root needs permission for its own file too
		if err = os.Chmod(path, f.Mode|0o200); err == nil {
			w, err = os.OpenFile(path, os.O_WRONLY, 0)
		}
	}
	if err != nil {
		return false, err
	}
	_, err = w.WriteAt(f.Data, 0)
	return true, errors.Join(err, w.Truncate(int64(len(f.Data))), w.Chmod(f.Mode), w.Close())
}

// owned reports whether a file is regular and has the mode and owner of f.
func owned(info os.FileInfo, f File) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && info.Mode().IsRegular() && info.Mode().Perm() == f.Mode && int(st.Uid) == f.UID && int(st.Gid) == f.GID
}

// write makes a file complete under a temporary name and then renames it.
func write(path string, f File) error {
	if same(path, f) {
		return nil
	}
	if f.InPlace {
		if done, err := rewrite(path, f); done || err != nil {
			return err
		}
	}
	temp := path + ".new"
	if err := os.RemoveAll(temp); err != nil {
		return err
	}
	w, err := os.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = w.Write(f.Data)
	if f.UID != os.Geteuid() || f.GID != os.Getegid() {
		err = errors.Join(err, w.Chown(f.UID, f.GID))
	}
	if err = errors.Join(err, w.Chmod(f.Mode), w.Close()); err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		_ = os.Remove(temp)
	}
	return err
}

// same reports whether the file at path is f already.
func same(path string, f File) bool {
	info, err := os.Lstat(path)
	if err != nil || !owned(info, f) || info.Size() != int64(len(f.Data)) {
		return false
	}
	have, err := os.ReadFile(path)
	return err == nil && bytes.Equal(have, f.Data)
}

// Trim deletes the files of a workload but those that Put returned in keep.
func (s *Store) Trim(workload string, keep []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.root == "" {
		return nil
	}
	dir := filepath.Join(s.root, workload)
	if len(keep) == 0 {
		return os.RemoveAll(dir)
	}
	folders, err := os.ReadDir(dir)
	if err != nil {
		return ignoreAbsent(err)
	}
	for _, folder := range folders {
		path := filepath.Join(dir, folder.Name())
		if !slices.ContainsFunc(keep, func(k string) bool { return filepath.Dir(k) == path }) {
			err = errors.Join(err, os.RemoveAll(path))
			continue
		}
		files, failed := os.ReadDir(path)
		err = errors.Join(err, failed)
		for _, f := range files {
			if name := filepath.Join(path, f.Name()); !slices.Contains(keep, name) {
				err = errors.Join(err, os.RemoveAll(name))
			}
		}
	}
	return err
}

// Remove deletes all files of a workload.
func (s *Store) Remove(workload string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.root == "" {
		return nil
	}
	return os.RemoveAll(filepath.Join(s.root, workload))
}

// Keep deletes the files of workloads for which keep returns false.
func (s *Store) Keep(keep func(workload string) bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.root == "" {
		return nil
	}
	entries, err := os.ReadDir(s.root)
	if err != nil {
		return ignoreAbsent(err)
	}
	for _, e := range entries {
		if !keep(e.Name()) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(s.root, e.Name())))
		}
	}
	return err
}

func ignoreAbsent(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
