// Package memfile keeps the secrets and configs of workloads as files in memory, below a folder on a tmpfs of
// the machine. Containers mount the files read-only. The files of a workload are deleted with it, and are lost
// when the machine restarts; the agent then writes them again, from the encrypted copy in its state file,
// before it starts the workload.
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
	// Key identifies the file across updates of its workload: the file keeps its path when the specification,
	// and so the content (its hash), changes. If Key is "", the file is used for one content only, and another
	// content gets a new file.
	Key string
	// InPlace: if the file changes, its existing inode is overwritten, so that a container that has mounted
	// the file sees the change at once. Until Put returns, a reader may see a mixture of the old and the new
	// bytes.
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

// Open returns the store of the agent with this name, below the first folder of bases that is on a tmpfs. It
// creates no files. Agents on one machine must have different names. If no folder of bases is on a tmpfs, Put
// returns an error.
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

// inMemory reports whether a folder is on a tmpfs or ramfs.
func inMemory(dir string) bool {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return false
	}
	kind := uint32(fs.Type) // the type of fs.Type depends on the architecture
	return kind == unix.TMPFS_MAGIC || kind == unix.RAMFS_MAGIC
}

// Root returns the folder of the store; "" if there is no tmpfs.
func (s *Store) Root() string { return s.root }

// folder returns the folder for the files of a workload with one content (hash of the specification). A
// workload id is a valid file name; the content is hashed.
func (s *Store) folder(workload, content string) string {
	sum := sha256.Sum256([]byte(content))
	return filepath.Join(s.root, workload, hex.EncodeToString(sum[:8]))
}

// path returns the path of f, which is file number i of a workload with this content.
func (s *Store) path(workload, content string, i int, f File) string {
	if f.Key == "" {
		return filepath.Join(s.folder(workload, content), strconv.Itoa(i))
	}
	sum := sha256.Sum256([]byte(f.Key))
	return filepath.Join(s.root, workload, keyed, hex.EncodeToString(sum[:8]))
}

// keyed is the name of the folder for those files of a workload whose Key is set. All other folder names are
// hexadecimal hashes, so none equals keyed.
const keyed = "keyed"

// Put writes the files of a workload for one content (hash of the specification) and returns their
// paths. An unchanged file keeps its inode, because a running container has mounted it.
func (s *Store) Put(workload, content string, files []File) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.root == "" {
		return nil, fmt.Errorf("secrets and configs are kept in memory only, but none of the folders %v is on a tmpfs: mount a tmpfs at one of them", s.bases)
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

// private creates a folder that only the agent's user can enter. Every user can write to /dev/shm, so an
// existing folder must belong to the agent's user.
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

// rewrite overwrites an existing file that has the mode and owner of f. It returns false if there is no such file.
func rewrite(path string, f File) (bool, error) {
	info, err := os.Lstat(path)
	if err != nil || !owned(info, f) {
		return false, ignoreAbsent(err)
	}
	w, err := os.OpenFile(path, os.O_WRONLY, 0)
	if errors.Is(err, os.ErrPermission) { // the file may be read-only, and an agent that is not root must make it writable first
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

// write writes a file under a temporary name and then renames it, so that readers never see an incomplete
// file.
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

// same reports whether the file at path already has the content, mode and owner of f.
func same(path string, f File) bool {
	info, err := os.Lstat(path)
	if err != nil || !owned(info, f) || info.Size() != int64(len(f.Data)) {
		return false
	}
	have, err := os.ReadFile(path)
	return err == nil && bytes.Equal(have, f.Data)
}

// Trim deletes all files of a workload except those whose paths are in keep, for example after an update.
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
