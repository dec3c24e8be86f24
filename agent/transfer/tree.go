package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Tree is the place of a volume's files: a folder, or one file of a folder.
type Tree struct {
	Root *os.Root
	File string // name of the one file, such as the disk image of a virtual machine; "" = everything below Root

	alive time.Duration  // longest time between two messages while the source makes its list; 0 = keepAlive
	seen  func(p string) // called before a path is listed, for tests; may be nil
	saved func()         // called before the tree is written to its disk, for tests; may be nil
}

// maxEntries is the most files of one volume that are copied. It bounds the memory of both agents.
const maxEntries = 4 << 20

// maxListBytes bounds the memory of the list of a volume's files: names, targets of links and extended attributes.
// maxAttributes bounds the extended attributes of one file, so that each entry fits into a message.
const (
	maxListBytes  = 512 << 20
	maxAttributes = 1 << 20
	entryOverhead = 160
)

// weight returns about how many bytes of memory an entry takes.
func (e *Entry) weight() int {
	n := entryOverhead + len(e.Path) + len(e.Target) + len(e.Same)
	for k, v := range e.Attributes {
		n += len(k) + len(v)
	}
	return n
}

// errTooMany returns the error for a list of files that is too large.
func errTooMany(files, bytes int) error {
	return fmt.Errorf("%w: the volume has more than %d files, or their names and attributes take more than %d MiB (%d files, %d MiB so far)", ErrLimit, maxEntries, maxListBytes>>20, files, bytes>>20)
}

type inode struct{ device, number uint64 }

// list lists a tree, each folder before its children. It leaves out sockets, and files that disappear during the walk. Device
// files, and folders of another file system or subvolume, are an error: a copy without them would not be complete. list calls
// alive, which may be nil, before each path.
func (t Tree) list(ctx context.Context, alive func() error) ([]Entry, error) {
	var out []Entry
	links := map[inode]string{}
	if t.File != "" {
		_, err := t.add(&out, links, t.File, 0)
		return out, err
	}
	info, err := t.Root.Lstat(".")
	if err != nil {
		return out, err
	}
	top := info.Sys().(*syscall.Stat_t)
	weight := 0
	var walk func(p string) error
	walk = func(p string) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if t.seen != nil {
			t.seen(p)
		}
		if alive != nil {
			if err := alive(); err != nil {
				return err
			}
		}
		before := len(out)
		folder, err := t.add(&out, links, p, top.Dev)
		if err != nil {
			return err
		}
		for i := before; i < len(out); i++ {
			weight += out[i].weight()
		}
		if len(out) > maxEntries || weight > maxListBytes {
			return errTooMany(len(out), weight)
		}
		if !folder {
			return nil
		}
		d, err := t.open(p, os.O_RDONLY, unix.S_IFDIR)
		if err != nil {
			return missing(err)
		}
		names, err := d.Readdirnames(-1)
		if err := errors.Join(err, d.Close()); err != nil {
			return missing(err)
		}
		slices.Sort(names)
		for _, name := range names {
			if err := walk(path.Join(p, name)); err != nil {
				return err
			}
		}
		return nil
	}
	return out, walk(".")
}

// missing returns nil for the error that a file does not exist any more, or that another file has replaced it.
func missing(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errReplaced) {
		return nil
	}
	return err
}

// add adds one path to a list, and reports whether it is a folder to walk.
func (t Tree) add(out *[]Entry, links map[inode]string, p string, device uint64) (folder bool, err error) {
	info, err := t.Root.Lstat(p)
	if err != nil {
		if p == t.File {
			return false, err
		}
		return false, missing(err)
	}
	st := info.Sys().(*syscall.Stat_t)
	e := Entry{Path: p, Mode: st.Mode, UID: st.Uid, GID: st.Gid, Modified: st.Mtim.Nano()}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR, unix.S_IFREG, unix.S_IFIFO:
	case unix.S_IFLNK:
		if e.Target, err = t.Root.Readlink(p); err != nil {
			return false, missing(err)
		}
	case unix.S_IFSOCK:
		return false, nil // a socket has no content, and its program makes it again
	default:
		return false, fmt.Errorf("%w: %q is a device file: remove it", ErrKind, p)
	}
	if e.is(unix.S_IFDIR) && p != "." && st.Dev != device {
		return false, fmt.Errorf("%w: the folder %q is on another file system or subvolume than the volume: unmount it, or replace it by a folder of the volume", ErrKind, p)
	}
	if e.is(unix.S_IFREG) {
		e.Size, e.Allocated = st.Size, st.Blocks*512
	}
	if !e.is(unix.S_IFDIR) && st.Nlink > 1 {
		id := inode{st.Dev, st.Ino}
		if e.Same = links[id]; e.Same == "" {
			links[id] = p
		}
	}
	if e.is(unix.S_IFDIR) || e.is(unix.S_IFREG) {
		if e.Attributes, err = t.attributes(p, st.Mode&unix.S_IFMT); err != nil {
			return false, missing(err)
		}
	}
	*out = append(*out, e)
	return e.is(unix.S_IFDIR), nil
}

// errReplaced is the error of open if the path has another type than it had in the list.
var errReplaced = errors.New("another type of file has replaced it")

// open opens a file or folder of a type (S_IFREG or S_IFDIR). A workload may replace a file between the list and this call:
// by a link, by a FIFO, which would block, or by a device, of which opening alone can have effects. So open looks at the
// type through a handle that opens nothing, and then opens the file behind that handle.
func (t Tree) open(p string, flags int, kind uint32) (*os.File, error) {
	handle, err := t.Root.OpenFile(p, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		if errors.Is(err, unix.ELOOP) {
			err = &fs.PathError{Op: "open", Path: p, Err: errReplaced}
		}
		return nil, err
	}
	defer handle.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(handle.Fd()), &st); err != nil {
		return nil, &fs.PathError{Op: "fstat", Path: p, Err: err}
	}
	if st.Mode&unix.S_IFMT != kind {
		return nil, &fs.PathError{Op: "open", Path: p, Err: errReplaced}
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", handle.Fd()), flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: p, Err: err}
	}
	return os.NewFile(uintptr(fd), p), nil
}

// attributes returns the extended attributes of a file or folder.
func (t Tree) attributes(p string, kind uint32) (map[string][]byte, error) {
	f, err := t.open(p, os.O_RDONLY, kind)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fd := int(f.Fd())
	names := make([]byte, 64<<10)
	n, err := unix.Flistxattr(fd, names)
	if errors.Is(err, unix.ENOTSUP) || n == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, &fs.PathError{Op: "flistxattr", Path: p, Err: err}
	}
	out, sum := map[string][]byte{}, 0
	value := make([]byte, 64<<10)
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00") {
		if !utf8.ValidString(name) {
			return nil, fmt.Errorf("%w: %q has the extended attribute %q, whose name is not UTF-8", ErrLimit, p, name)
		}
		n, err := unix.Fgetxattr(fd, name, value)
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return nil, &fs.PathError{Op: "fgetxattr " + name, Path: p, Err: err}
		}
		out[name] = slices.Clone(value[:n])
		if sum += len(name) + n; sum > maxAttributes {
			return nil, fmt.Errorf("%w: the extended attributes of %q take more than %d bytes", ErrLimit, p, maxAttributes)
		}
	}
	return out, nil
}

// setAttributes sets the extended attributes of a file or folder, and removes all others. It leaves those alone that the
// machine sets itself (see ours).
func (t Tree) setAttributes(p string, kind uint32, want map[string][]byte) error {
	have, err := t.attributes(p, kind)
	if err != nil || sameAttributes(have, want) {
		return err
	}
	f, err := t.open(p, os.O_RDONLY, kind)
	if err != nil {
		return err
	}
	defer f.Close()
	fd := int(f.Fd())
	for name := range have {
		if _, ok := want[name]; ok || ours(name) {
			continue
		}
		if err := unix.Fremovexattr(fd, name); err != nil && !errors.Is(err, unix.ENODATA) {
			return &fs.PathError{Op: "fremovexattr " + name, Path: p, Err: err}
		}
	}
	for name, value := range want {
		if ours(name) {
			continue
		}
		if err := unix.Fsetxattr(fd, name, value, 0); err != nil {
			return &fs.PathError{Op: "fsetxattr " + name, Path: p, Err: err}
		}
	}
	return nil
}

// ours reports whether an extended attribute is set by the machine itself: the label of SELinux belongs to its policy.
func ours(name string) bool {
	return name == "security.selinux" || strings.HasPrefix(name, "system.") && !strings.HasPrefix(name, "system.posix_acl_")
}

// make creates an entry that the target does not have.
func (t Tree) make(e *Entry) error {
	switch e.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		if e.Path == "." {
			return nil
		}
		return t.Root.Mkdir(e.Path, 0o700)
	case unix.S_IFLNK:
		return t.Root.Symlink(e.Target, e.Path)
	case unix.S_IFREG:
		f, err := t.Root.OpenFile(e.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		return f.Close()
	}
	d, err := t.open(path.Dir(e.Path), os.O_RDONLY, unix.S_IFDIR)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := unix.Mknodat(int(d.Fd()), path.Base(e.Path), unix.S_IFIFO|0o600, 0); err != nil {
		return &fs.PathError{Op: "mkfifo", Path: e.Path, Err: err}
	}
	return nil
}

// finish sets the owner, the mode, the attributes and the times of an entry. at is the time of change to set.
func (t Tree) finish(e *Entry, at int64) error {
	if err := t.Root.Lchown(e.Path, int(e.UID), int(e.GID)); err != nil {
		return err
	}
	if !e.is(unix.S_IFLNK) {
		mode := fs.FileMode(e.Mode & 0o777)
		for bit, m := range map[uint32]fs.FileMode{unix.S_ISUID: fs.ModeSetuid, unix.S_ISGID: fs.ModeSetgid, unix.S_ISVTX: fs.ModeSticky} {
			if e.Mode&bit != 0 {
				mode |= m
			}
		}
		if err := t.Root.Chmod(e.Path, mode); err != nil { // after Lchown, which clears the setuid bit
			return err
		}
	}
	if e.is(unix.S_IFREG) || e.is(unix.S_IFDIR) {
		if err := t.setAttributes(e.Path, e.Mode&unix.S_IFMT, e.Attributes); err != nil {
			return err
		}
	}
	return t.stamp(e, at)
}

// stamp sets the time of change of an entry.
func (t Tree) stamp(e *Entry, at int64) error {
	d, err := t.open(path.Dir(e.Path), os.O_RDONLY, unix.S_IFDIR)
	if err != nil {
		return err
	}
	defer d.Close()
	when := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(at)}
	if err := unix.UtimesNanoAt(int(d.Fd()), path.Base(e.Path), when, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &fs.PathError{Op: "utimensat", Path: e.Path, Err: err}
	}
	return nil
}

// free returns the free bytes of the file system that holds a tree.
func (t Tree) free() (int64, error) {
	d, err := t.Root.Open(".")
	if err != nil {
		return 0, err
	}
	defer d.Close()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(d.Fd()), &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// sync writes the file system of a tree to its disk.
func (t Tree) sync() error {
	if t.saved != nil {
		t.saved()
	}
	d, err := t.Root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
}

// span is a part of a file that may have data. The file system says that everything else is zero.
type span struct{ from, to int64 }

// nextData returns the next part of f with data at or after an offset; ok is false if there is none.
func nextData(f *os.File, at, size int64) (s span, ok bool) {
	from, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return s, false
	}
	if err != nil {
		return span{from: at, to: size}, at < size // the file system does not know holes
	}
	to, err := unix.Seek(int(f.Fd()), from, unix.SEEK_HOLE)
	if err != nil {
		to = size
	}
	return span{from: from, to: min(to, size)}, from < size
}

// readAt reads a block. A short read at the end of the file is no error.
func readAt(f *os.File, buf []byte, at int64) (int, error) {
	n, err := f.ReadAt(buf, at)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}
