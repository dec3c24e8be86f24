package transfer

import (
	"bytes"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Entry is one file, folder or link of a volume.
type Entry struct {
	Path       string // path below the root; "." is the root itself
	Mode       uint32 // st_mode: type and permissions
	UID, GID   uint32
	Size       int64  // bytes of a regular file
	Modified   int64  // time of the last change of the content, Unix nanoseconds
	Target     string // target of a symbolic link
	Same       string // path of an earlier entry that is the same file
	Attributes map[string][]byte
	Allocated  int64 // bytes on disk
}

func (e *Entry) is(kind uint32) bool { return e.Mode&unix.S_IFMT == kind }

// Plan is how a pass makes the target equal to the source. Numbers refer to the source's list.
type Plan struct {
	Remove []string // paths to remove from the target, children before their folders
	Make   []int    // entries that the target lacks, folders before their children; hard links are made after the content is copied
	Copy   []int    // regular files whose content is compared and copied
	Bytes  int64    // size of all files in Copy
	Need   int64    // bytes that the files in Copy may need on the target's disk
}

// Check returns an error if a list of entries cannot be that of a volume: a path that leads out, an entry twice, or
// an entry whose folder is not listed before it.
func Check(list []Entry) error {
	kinds := map[string]uint32{}
	for i := range list {
		e := &list[i]
		if !filepath.IsLocal(e.Path) || path.Clean(e.Path) != e.Path || strings.ContainsRune(e.Path, 0) {
			return fmt.Errorf("the source lists %q, which is not a path inside the volume", e.Path)
		}
		if _, twice := kinds[e.Path]; twice {
			return fmt.Errorf("the source lists %q twice", e.Path)
		}
		if e.Path != "." && len(list) > 1 && kinds[path.Dir(e.Path)] != unix.S_IFDIR {
			return fmt.Errorf("the source lists %q before its folder", e.Path)
		}
		switch kind := e.Mode & unix.S_IFMT; {
		case kind != unix.S_IFDIR && kind != unix.S_IFREG && kind != unix.S_IFLNK && kind != unix.S_IFIFO:
			return fmt.Errorf("the source lists %q with mode %o, which is not that of a file, folder, link or FIFO", e.Path, e.Mode)
		case e.Path == "." && kind != unix.S_IFDIR:
			return fmt.Errorf("the source says that the root of the volume is not a folder (mode %o)", e.Mode)
		case e.Size < 0:
			return fmt.Errorf("the source lists %q with the size %d", e.Path, e.Size)
		case e.Same != "" && kinds[e.Same] != kind:
			return fmt.Errorf("the source lists %q as a link to %q, which is not listed before it as the same type", e.Path, e.Same)
		}
		kinds[e.Path] = e.Mode & unix.S_IFMT
	}
	return nil
}

// MakePlan compares the lists of source and target. With verify, the content of every file is compared, otherwise only
// that of files whose size or time differs.
func MakePlan(source, target []Entry, verify bool) Plan {
	have := make(map[string]*Entry, len(target))
	for i := range target {
		have[target[i].Path] = &target[i]
	}
	var p Plan
	keep := make(map[string]bool, len(source))
	for i := range source {
		e := &source[i]
		old := have[e.Path]
		if old != nil && old.Mode&unix.S_IFMT == e.Mode&unix.S_IFMT && old.Same == e.Same && old.Target == e.Target {
			keep[e.Path] = true
		} else {
			p.Make, old = append(p.Make, i), nil
		}
		if !e.is(unix.S_IFREG) || e.Same != "" {
			continue
		}
		if old == nil || verify || old.Size != e.Size || old.Modified != e.Modified {
			p.Copy = append(p.Copy, i)
			p.Bytes += e.Size
			p.Need += e.Allocated
			if old != nil {
				p.Need -= min(old.Allocated, e.Allocated)
			}
		}
	}
	for _, e := range slices.Backward(target) {
		if !keep[e.Path] {
			p.Remove = append(p.Remove, e.Path)
		}
	}
	return p
}

// sameAttributes reports whether two sets of extended attributes are equal.
func sameAttributes(a, b map[string][]byte) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || !bytes.Equal(v, w) {
			return false
		}
	}
	return true
}
