package transfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/testbed"
)

// TestAFileGetsItsTimeAfterItIsOnTheDisk: a crash of the machine must not leave a file that has the size and the time of the
// source, but not its content.
func TestAFileGetsItsTimeAfterItIsOnTheDisk(t *testing.T) {
	v := newVolumes(t)
	for i := range syncAfter + 3 {
		v.write(fmt.Sprintf("f%d", i), 10)
	}
	source, target := v.tree(v.from), v.tree(v.to)
	syncs := 0
	onDisk := map[string]bool{} // files that had all of their content at the last sync
	target.saved = func() {
		syncs++
		for i := range syncAfter + 3 {
			name := fmt.Sprintf("f%d", i)
			a, err := os.Stat(filepath.Join(v.from, name))
			v.must(err)
			b, err := os.Stat(filepath.Join(v.to, name))
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			v.must(err)
			if b.ModTime().Equal(a.ModTime()) && !onDisk[name] {
				t.Errorf("%s has its time of change before it was written to the disk", name)
			}
			onDisk[name] = bytes.Equal(v.read(v.from, name), v.read(v.to, name))
		}
	}
	_, err := Pull(t.Context(), target, Options{}, v.serve(source, nil))
	v.must(err)
	if syncs != 3 { // a full batch, the other files, and the end of the pass
		t.Errorf("the disk was written %d times, want 3", syncs)
	}
	v.same()
}

// TestTheLastPassComparesContent: a write to mapped memory can leave the size and the time of a file as they were.
func TestTheLastPassComparesContent(t *testing.T) {
	v := newVolumes(t)
	v.write("db", 2*blockSize)
	v.pull(Options{})
	info, err := os.Stat(filepath.Join(v.from, "db"))
	v.must(err)
	changed := v.read(v.from, "db")
	changed[blockSize+5] ^= 1
	v.must(os.WriteFile(filepath.Join(v.from, "db"), changed, 0o640))
	v.must(os.Chtimes(filepath.Join(v.from, "db"), info.ModTime(), info.ModTime()))
	if r := v.pull(Options{Last: true}); r.Sent != blockSize {
		t.Errorf("the last pass sent %d bytes, want the changed block", r.Sent)
	}
	v.same()
}

// TestAReplacedFileIsNotOpened: a file that was replaced since it was listed is neither opened nor followed.
func TestAReplacedFileIsNotOpened(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "secret")
	for _, c := range []struct {
		name string
		make func(path string) error
	}{
		{"a FIFO", func(p string) error { return unix.Mkfifo(p, 0o600) }},
		{"a link that leads out", func(p string) error { return os.Symlink(outside, p) }},
		{"a link inside", func(p string) error { return os.Symlink("other", p) }},
		{"a folder", func(p string) error { return os.Mkdir(p, 0o700) }},
		{"a device", func(p string) error { return unix.Mknod(p, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))) }}, // /dev/zero
	} {
		t.Run(c.name, func(t *testing.T) {
			v := newVolumes(t)
			v.must(os.WriteFile(outside, []byte("secret"), 0o600))
			v.write("f", 6)
			v.write("other", 6)
			if err := c.make(filepath.Join(t.TempDir(), "f")); err != nil {
				testbed.Need(t, "making "+c.name, err)
			}
			f := filepath.Join(v.from, "f")
			r, err := v.try(Options{}, func(w *wire) {
				w.harm = func(m *agentv1.VolumeReadResponse) {
					if m.GetListed() {
						v.must(os.Remove(f))
						v.must(c.make(f))
					}
				}
			})
			if err != nil || r.Changed != 1 {
				t.Fatalf("the pass returned %v and %d changed files, want success and 1", err, r.Changed)
			}
			if got := v.read(v.to, "f"); !bytes.Equal(got, make([]byte, 6)) {
				t.Errorf("the target got %q from behind the replaced file", got)
			}
			if _, err := v.tree(v.from).open("f", os.O_RDONLY, unix.S_IFREG); !errors.Is(err, errReplaced) {
				t.Errorf("open returned %v, want that the file was replaced", err)
			}
		})
	}
}

// TestALongListIsNoSilence: the source may list its files for longer than the target waits for a message, if it says that it
// is alive. The target's own work does not count either.
func TestALongListIsNoSilence(t *testing.T) {
	for _, slow := range []string{"source", "target"} {
		t.Run(slow, func(t *testing.T) {
			v := newVolumes(t)
			for i := range 6 {
				v.write(fmt.Sprint(i), 10)
			}
			synctest.Test(t, func(t *testing.T) {
				source, target := v.tree(v.from), v.tree(v.to)
				wait := func(string) { time.Sleep(time.Minute) }
				if slow == "source" {
					source.seen = wait
				} else {
					for i := range 6 {
						v.must(os.WriteFile(filepath.Join(v.to, fmt.Sprint(i)), nil, 0o600))
					}
					target.seen = wait
				}
				if _, err := Pull(t.Context(), target, Options{Last: true, Stall: 2 * time.Minute}, v.serve(source, nil)); err != nil {
					t.Fatalf("the pass returned %v after the %s had listed its files for 7 minutes", err, slow)
				}
			})
			v.same()
		})
	}
}

// serve returns a function that opens a stream to a source.
func (v *volumes) serve(source Tree, change func(*wire)) func(context.Context) (TargetStream, error) {
	return func(ctx context.Context) (TargetStream, error) {
		w := &wire{ctx: ctx, req: make(chan *agentv1.VolumeReadRequest), resp: make(chan *agentv1.VolumeReadResponse), end: make(chan error, 1)}
		if change != nil {
			change(w)
		}
		go func() {
			first, err := sourceEnd{w}.Recv()
			if err == nil {
				err = Serve(ctx, source, first.GetOpen(), sourceEnd{w})
			}
			w.end <- err
		}()
		return targetEnd{w}, nil
	}
}

// TestContentIsNotLeftOutSilently: the source is deleted after a move, so content that cannot be copied ends the copy. Sockets
// have no content.
func TestContentIsNotLeftOutSilently(t *testing.T) {
	v := newVolumes(t)
	at := func(p ...string) string { return filepath.Join(append([]string{v.from}, p...)...) }
	v.must(os.Mkdir(at("sub"), 0o755))
	v.must(unix.Mknod(at("sub", "socket"), unix.S_IFSOCK|0o600, 0))
	v.pull(Options{})
	if _, err := os.Lstat(filepath.Join(v.to, "sub", "socket")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket was copied: %v", err)
	}
	refused := func(name string) {
		t.Helper()
		if _, err := v.try(Options{}, nil); err == nil || !strings.Contains(err.Error(), strconv.Quote(name)) {
			t.Errorf("the copy returned %v, want an error that names %q", err, name)
		}
	}
	v.must(unix.Mknod(at("sub", "whiteout"), unix.S_IFCHR|0o600, 0)) // the only device file that every user may make
	if _, err := v.tree(v.from).list(t.Context(), nil); !errors.Is(err, ErrKind) {
		t.Errorf("the list of a volume with a device file has the error %v, want ErrKind", err)
	}
	refused("sub/whiteout")
	v.must(os.Remove(at("sub", "whiteout")))

	var st unix.Stat_t
	v.must(unix.Stat(v.from, &st))
	var out []Entry
	if _, err := v.tree(v.from).add(&out, map[inode]string{}, "sub", st.Dev+1); !errors.Is(err, ErrKind) || !strings.Contains(err.Error(), `"sub"`) {
		t.Errorf("a folder of another file system has the error %v, want ErrKind with its path", err)
	}
	if err := unix.Mount("none", at("sub"), "tmpfs", 0, ""); err != nil {
		t.Skipf("a mount is not possible here: %v", err)
	}
	defer func() { v.must(unix.Unmount(at("sub"), 0)) }()
	refused("sub")
}
