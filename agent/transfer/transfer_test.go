package transfer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/testbed"
)

// wire is a stream in this process. Messages are encoded, as on a network.
type wire struct {
	ctx  context.Context
	req  chan *agentv1.VolumeReadRequest
	resp chan *agentv1.VolumeReadResponse
	end  chan error // result of Serve
	cut  int        // the stream breaks after this many messages of the source; 0 = never
	harm func(*agentv1.VolumeReadResponse)
}

var errCut = errors.New("connection cut")

func pass[M any](ctx context.Context, to chan<- M, m M) error {
	select {
	case to <- m:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

type sourceEnd struct{ *wire }

func (w sourceEnd) Recv() (*agentv1.VolumeReadRequest, error) {
	select {
	case m, ok := <-w.req:
		if !ok {
			return nil, io.EOF
		}
		return m, nil
	case <-w.ctx.Done():
		return nil, w.ctx.Err()
	}
}

func (w sourceEnd) Send(m *agentv1.VolumeReadResponse) error {
	if w.cut--; w.cut == 0 {
		return errCut
	}
	raw, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	m = &agentv1.VolumeReadResponse{}
	if err := proto.Unmarshal(raw, m); err != nil {
		return err
	}
	if w.harm != nil {
		w.harm(m)
	}
	return pass(w.ctx, w.resp, m)
}

type targetEnd struct{ *wire }

func (w targetEnd) Send(m *agentv1.VolumeReadRequest) error { return pass(w.ctx, w.req, m) }

func (w targetEnd) CloseSend() error {
	close(w.req)
	return nil
}

func (w targetEnd) Recv() (*agentv1.VolumeReadResponse, error) {
	select {
	case m := <-w.resp:
		return m, nil
	case err := <-w.end:
		if err == nil {
			err = io.EOF
		}
		return nil, err
	case <-w.ctx.Done():
		return nil, w.ctx.Err()
	}
}

// volumes is a source and a target on this machine.
type volumes struct {
	t        *testing.T
	from, to string
	file     string
}

func newVolumes(t *testing.T) *volumes {
	return &volumes{t: t, from: t.TempDir(), to: t.TempDir()}
}

func (v *volumes) tree(dir string) Tree {
	v.t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		v.t.Fatal(err)
	}
	v.t.Cleanup(func() { _ = root.Close() })
	return Tree{Root: root, File: v.file}
}

// try makes one pass. change may be nil, or sets the faults of the stream.
func (v *volumes) try(opts Options, change func(*wire)) (Result, error) {
	v.t.Helper()
	source, target := v.tree(v.from), v.tree(v.to)
	ctx, cancel := context.WithTimeout(v.t.Context(), time.Minute)
	defer cancel()
	return Pull(ctx, target, opts, v.serve(source, change))
}

func (v *volumes) pull(opts Options) Result {
	v.t.Helper()
	r, err := v.try(opts, nil)
	if err != nil {
		v.t.Fatal(err)
	}
	return r
}

// same fails the test unless the target has the list and the content of the source.
func (v *volumes) same() {
	v.t.Helper()
	a, err := v.tree(v.from).list(v.t.Context(), nil)
	b, err2 := v.tree(v.to).list(v.t.Context(), nil)
	if err := errors.Join(err, err2); err != nil {
		v.t.Fatal(err)
	}
	for _, l := range [][]Entry{a, b} {
		for i := range l {
			l[i].Allocated = 0
		}
	}
	equal := slices.EqualFunc(a, b, func(x, y Entry) bool {
		again := sameAttributes(x.Attributes, y.Attributes)
		x.Attributes, y.Attributes = nil, nil
		return again && x.Path == y.Path && x.Mode == y.Mode && x.UID == y.UID && x.GID == y.GID && x.Size == y.Size && x.Modified == y.Modified && x.Target == y.Target && x.Same == y.Same
	})
	if !equal {
		v.t.Fatalf("the target lists\n%+v\nand the source\n%+v", b, a)
	}
	for _, e := range a {
		if e.is(unix.S_IFREG) && !bytes.Equal(v.read(v.from, e.Path), v.read(v.to, e.Path)) {
			v.t.Errorf("the content of %q differs", e.Path)
		}
	}
}

func (v *volumes) read(dir, name string) []byte {
	v.t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		v.t.Fatal(err)
	}
	return raw
}

// write writes n random bytes to a file of the source and makes it an hour old.
func (v *volumes) write(name string, n int) {
	v.t.Helper()
	data := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(n), byte(len(name))})
	_, _ = r.Read(data)
	v.must(os.WriteFile(filepath.Join(v.from, name), data, 0o640))
	v.age(name)
}

func (v *volumes) age(name string) {
	at := time.Now().Add(-time.Hour)
	v.must(os.Chtimes(filepath.Join(v.from, name), at, at))
}

func (v *volumes) must(err error) {
	v.t.Helper()
	if err != nil {
		v.t.Fatal(err)
	}
}

func allocated(t *testing.T, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

func TestAPassMakesTheTargetEqual(t *testing.T) {
	v := newVolumes(t)
	at := func(p ...string) string { return filepath.Join(append([]string{v.from}, p...)...) }
	v.must(os.MkdirAll(at("a", "b"), 0o750))
	v.write("a/small", 3)
	v.write("a/b/large", 3*blockSize+17)
	v.write("empty", 0)
	v.write("not\xffutf8", 5)
	v.must(os.Link(at("a", "small"), at("z-linked")))
	v.must(os.Symlink("/etc/passwd", at("leads-out")))
	v.must(os.Symlink("../../..", at("a", "folder-leads-out")))
	v.must(unix.Mkfifo(at("fifo"), 0o600))
	v.must(os.Chmod(at("empty"), 0o755|os.ModeSetuid))
	if err := unix.Setxattr(at("a", "small"), "user.note", []byte("x"), 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
		t.Fatal(err)
	}
	v.age("a/b")
	v.pull(Options{})
	v.same()

	if r := v.pull(Options{Last: true}); r.Sent != 0 || r.Total == 0 {
		t.Errorf("a pass that verifies equal volumes compared %d bytes and sent %d; want more than none and none", r.Total, r.Sent)
	}
	if r := v.pull(Options{}); r.Total != 0 {
		t.Errorf("a pass over equal volumes read %d bytes again", r.Total)
	}

	// The source changes: types of entries, names, links.
	v.must(os.RemoveAll(at("a", "b")))
	v.write("a/b", 9)
	v.must(os.Remove(at("empty")))
	v.must(os.Mkdir(at("empty"), 0o700))
	v.must(os.Remove(at("leads-out")))
	v.write("leads-out", 4)
	v.must(os.Remove(at("a", "small")))
	v.pull(Options{Last: true})
	v.same()
}

func TestOnlyChangedBlocksAreSent(t *testing.T) {
	v := newVolumes(t)
	v.file = "disk.img"
	v.write("disk.img", 20*blockSize)
	v.write("another volume", 10)
	v.pull(Options{})
	f, err := os.OpenFile(filepath.Join(v.from, "disk.img"), os.O_RDWR, 0)
	v.must(err)
	_, err = f.WriteAt([]byte("changed"), 5*blockSize+100)
	v.must(errors.Join(err, f.Truncate(21*blockSize), f.Close()))
	r := v.pull(Options{Last: true})
	v.same()
	if r.Sent != blockSize {
		t.Errorf("after a change in one block %d bytes were sent, want %d", r.Sent, blockSize)
	}
	if _, err := os.Stat(filepath.Join(v.to, "another volume")); err == nil {
		t.Error("the copy of one file has copied another file of the folder")
	}
}

func TestHolesStayHoles(t *testing.T) {
	v := newVolumes(t)
	f, err := os.Create(filepath.Join(v.from, "sparse"))
	v.must(err)
	_, err = f.WriteAt([]byte("end"), 1<<24)
	v.must(errors.Join(err, f.Close()))
	v.age("sparse")
	r := v.pull(Options{})
	v.same()
	if n := allocated(t, filepath.Join(v.to, "sparse")); n > 1<<20 || r.Sent > blockSize {
		t.Errorf("the copy of a sparse file occupies %d bytes, and %d were sent", n, r.Sent)
	}
	// Data that the source has replaced by a hole is removed from the target too.
	v.write("full", 4*blockSize)
	v.pull(Options{})
	v.must(os.Truncate(filepath.Join(v.from, "full"), 0))
	v.must(os.Truncate(filepath.Join(v.from, "full"), 4*blockSize))
	v.pull(Options{Last: true})
	v.same()
	if n := allocated(t, filepath.Join(v.to, "full")); n > blockSize {
		t.Errorf("the target still occupies %d bytes for a file that became a hole", n)
	}
}

func TestACutPassIsContinued(t *testing.T) {
	v := newVolumes(t)
	v.write("a", 12*blockSize)
	v.write("b", 12*blockSize)
	if _, err := v.try(Options{}, func(w *wire) { w.cut = 19 }); !errors.Is(err, errCut) {
		t.Fatalf("the pass returned %v, want that the connection was cut", err)
	}
	r := v.pull(Options{})
	v.same()
	if most := int64(9 * blockSize); r.Sent > most || r.Sent == 0 {
		t.Errorf("the second pass sent %d bytes, want the missing ones, at most %d", r.Sent, most)
	}
}

func TestACorruptedBlockIsFound(t *testing.T) {
	v := newVolumes(t)
	v.write("a", 2*blockSize)
	_, err := v.try(Options{}, func(w *wire) {
		w.harm = func(m *agentv1.VolumeReadResponse) {
			if d := m.GetBlock().GetData(); m.GetBlock().GetOffset() > 0 && len(d) > 0 {
				d[7] ^= 1
			}
		}
	})
	if err == nil || !strings.Contains(err.Error(), "corrupted on the way") {
		t.Fatalf("the pass returned %v, want that a block was corrupted", err)
	}
	v.pull(Options{})
	v.same()
}

func TestASilentSourceEndsThePass(t *testing.T) {
	v := newVolumes(t)
	_, err := Pull(t.Context(), v.tree(v.to), Options{Stall: 20 * time.Millisecond}, func(ctx context.Context) (TargetStream, error) {
		return targetEnd{&wire{ctx: ctx, req: make(chan *agentv1.VolumeReadRequest, 1), end: make(chan error)}}, nil
	})
	if err == nil || !strings.Contains(err.Error(), "the source has sent nothing for 20ms") {
		t.Fatalf("the pass returned %v, want that the source is silent", err)
	}
}

// A file that changed in the last moments, or during the pass, is compared again by the next pass, even if its time is
// the same then.
func TestAFileThatChangesIsComparedAgain(t *testing.T) {
	v := newVolumes(t)
	v.write("f", blockSize)
	now := time.Now()
	v.must(os.Chtimes(filepath.Join(v.from, "f"), now, now))
	v.pull(Options{})
	v.must(os.WriteFile(filepath.Join(v.from, "f"), bytes.Repeat([]byte("x"), blockSize), 0o640))
	v.must(os.Chtimes(filepath.Join(v.from, "f"), now, now))
	v.pull(Options{Last: true})
	v.same()

	v.write("g", 2*blockSize)
	r, err := v.try(Options{}, func(w *wire) {
		w.harm = func(m *agentv1.VolumeReadResponse) {
			if m.GetListed() {
				v.must(os.Truncate(filepath.Join(v.from, "g"), 5))
			}
		}
	})
	if err != nil || r.Changed != 1 {
		t.Fatalf("the pass returned %v and %d changed files, want success and 1", err, r.Changed)
	}
	v.pull(Options{Last: true})
	v.same()
}

// The target's disk is too small, or fills during the pass. After there is space, the copy is completed.
func TestAFullDisk(t *testing.T) {
	v := newVolumes(t)
	if err := unix.Mount("tmpfs", v.to, "tmpfs", 0, "size=4m"); err != nil {
		testbed.Need(t, "mounting tmpfs", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(v.to, unix.MNT_DETACH) })
	v.write("a", 8<<20)
	if _, err := v.try(Options{}, nil); !errors.Is(err, ErrNoSpace) {
		t.Fatalf("the pass returned %v, want too little space", err)
	}
	v.write("a", 3<<20)
	_, err := v.try(Options{}, func(w *wire) {
		w.harm = func(m *agentv1.VolumeReadResponse) {
			if m.GetBlock().GetOffset() == blockSize {
				v.must(unix.Mount("", v.to, "", unix.MS_REMOUNT, "size=1m"))
			}
		}
	})
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the pass returned %v, want that the disk is full", err)
	}
	v.must(unix.Mount("", v.to, "", unix.MS_REMOUNT, "size=8m"))
	v.pull(Options{})
	v.same()
}

func TestBadListsAreRefused(t *testing.T) {
	const dir, file, link = unix.S_IFDIR, unix.S_IFREG, unix.S_IFLNK
	root := Entry{Path: ".", Mode: dir}
	for want, list := range map[string][]Entry{
		"not a path inside": {root, {Path: "../x", Mode: file}},
		"not that of a":     {root, {Path: "x", Mode: unix.S_IFBLK}},
		"twice":             {root, {Path: "x", Mode: file}, {Path: "x", Mode: file}},
		"before its folder": {root, {Path: "l", Mode: link, Target: "/etc"}, {Path: "l/passwd", Mode: file}},
		"is not a folder":   {{Path: ".", Mode: file}},
		"is not listed":     {root, {Path: "x", Mode: file, Same: "y"}},
		"with the size":     {root, {Path: "x", Mode: file, Size: -1}},
	} {
		if err := Check(list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Check returned %v, want an error with %q", err, want)
		}
	}
	if err := Check([]Entry{root, {Path: "d", Mode: dir}, {Path: "d/x", Mode: file}, {Path: "y", Mode: file, Same: "d/x"}}); err != nil {
		t.Error(err)
	}
}

// A link in the target that leads out, in the place of a folder of the source, is replaced and not followed.
func TestLinksOfTheTargetAreNotFollowed(t *testing.T) {
	v := newVolumes(t)
	outside := t.TempDir()
	v.must(os.Mkdir(filepath.Join(v.from, "d"), 0o755))
	v.write("d/f", 10)
	v.write("g", 10)
	v.must(os.WriteFile(filepath.Join(outside, "g"), []byte("mine"), 0o600))
	v.must(os.Symlink(outside, filepath.Join(v.to, "d")))
	v.must(os.Symlink(filepath.Join(outside, "g"), filepath.Join(v.to, "g")))
	v.pull(Options{})
	v.same()
	list, err := os.ReadDir(outside)
	if err != nil || len(list) != 1 || string(v.read(outside, "g")) != "mine" {
		t.Errorf("the pass changed files outside the volume: %v %v", list, err)
	}
}
