package transfer

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	agentv1 "github.com/persys/compute/api/agent/v1"
)

// TargetStream is the target's end of a stream.
type TargetStream interface {
	Send(*agentv1.VolumeReadRequest) error
	Recv() (*agentv1.VolumeReadResponse, error)
	CloseSend() error
}

// Options of a pass.
type Options struct {
	// Open is the first message to the source. Pull sets its key and its bandwidth limit.
	Open *agentv1.VolumeReadOpen
	// Last: nothing changes the source during this pass, because the workload is stopped. The pass compares the content of
	// all files, also of those whose size and time are equal: writes to mapped memory and programs that set times can
	// change a file and leave both.
	Last bool
	// BytesPerSecond is the most that the source sends; 0 = no limit.
	BytesPerSecond int64
	// Stall is how long the pass waits for a message of the source; default 5 min. Work of the target does not count.
	Stall time.Duration
	// Progress may be read at any time during the pass; it may be nil.
	Progress *Progress
}

// Progress counts the bytes of a pass.
type Progress struct {
	Total atomic.Int64 // size of the files whose content is compared
	Done  atomic.Int64 // part of Total that the target has
	Sent  atomic.Int64 // content that had to be sent
}

// Result of a pass.
type Result struct {
	Total, Sent int64 // as in Progress
	Changed     int   // files that changed during the pass; a later pass copies them
}

// ErrNoSpace is the error if the target's file system has too little space for the volume.
var ErrNoSpace = errors.New("too little space on the target")

// ErrKind is the error if the volume has content that cannot be copied.
var ErrKind = errors.New("the volume has content that cannot be moved")

// ErrLimit is the error if the volume has too many files, names or attributes.
var ErrLimit = errors.New("the volume is too large to be moved")

// ErrCorrupt is the error if a block does not match its checksum.
var ErrCorrupt = errors.New("checksum mismatch")

// window is the number of parts that are requested before their answers have arrived.
const window = 4

// part is a part of a file that was requested.
type part struct {
	entry    *Entry
	file     *os.File
	from, to int64
	last     bool // last part of the file
}

// Pull makes one pass: it makes t equal to the source. open opens the stream; the context that it gets ends with the
// pass. After an error, the next pass continues where this one ended. Nothing else may use t during the pass.
func Pull(ctx context.Context, t Tree, opts Options, open func(context.Context) (TargetStream, error)) (Result, error) {
	if opts.Progress == nil {
		opts.Progress = &Progress{}
	}
	if opts.Stall == 0 {
		opts.Stall = 5 * time.Minute
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.AfterFunc(opts.Stall, func() { cancel(fmt.Errorf("the source has sent nothing for %s", opts.Stall)) })
	defer watch.Stop()
	stream, err := open(ctx)
	if err != nil {
		return Result{}, err
	}
	key := make([]byte, keySize)
	if _, err := rand.Read(key); err != nil {
		return Result{}, err
	}
	watch.Stop()
	d := &target{tree: t, opts: opts, stream: stream, blocks: newHasher(key), watch: watch, abort: cancel}
	err = d.pass(ctx)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return Result{Total: opts.Progress.Total.Load(), Sent: opts.Progress.Sent.Load(), Changed: d.changed}, err
}

type target struct {
	tree    Tree
	opts    Options
	stream  TargetStream
	blocks  *hasher
	watch   *time.Timer // ends the pass; it runs while the target waits for a message of the source
	abort   func(error) // ends the stream
	changed int
	copied  []stamp // files whose content is complete, but perhaps not on the disk yet
}

// stamp is the time of change that a file gets when it is on the disk.
type stamp struct {
	entry *Entry
	at    int64
}

// syncAfter is the number of files that are written to the disk together.
const syncAfter = 256

// recv receives a message of the source.
func (d *target) recv() (*agentv1.VolumeReadResponse, error) {
	d.watch.Reset(d.opts.Stall)
	defer d.watch.Stop()
	return d.stream.Recv()
}

func (d *target) pass(ctx context.Context) error {
	open := d.opts.Open
	if open == nil {
		open = &agentv1.VolumeReadOpen{}
	}
	open.Key, open.BytesPerSecond = d.blocks.key, d.opts.BytesPerSecond
	if err := d.stream.Send(&agentv1.VolumeReadRequest{Open: open}); err != nil {
		return d.why(err)
	}
	source, err := d.listed()
	if err != nil {
		return err
	}
	if err := Check(source); err != nil {
		return err
	}
	have, err := d.tree.list(ctx, nil)
	if err != nil && (d.tree.File == "" || missing(err) != nil) {
		return err
	}
	plan := MakePlan(source, have, d.opts.Last)
	if err := d.prepare(source, plan); err != nil {
		return err
	}
	if err := d.copy(ctx, source, plan); err != nil {
		return err
	}
	if err := d.stamp(); err != nil {
		return err
	}
	return d.settle(source, plan)
}

// why returns the error of the source, which Recv returns, in place of that of Send.
func (d *target) why(err error) error {
	if _, cause := d.recv(); cause != nil {
		return cause
	}
	return err
}

// listed receives the source's list.
func (d *target) listed() (out []Entry, err error) {
	weight := 0
	for {
		m, err := d.recv()
		if err != nil {
			return nil, err
		}
		for _, e := range m.GetEntries() {
			out = append(out, entryOf(e))
			weight += out[len(out)-1].weight()
		}
		if len(out) > maxEntries || weight > maxListBytes {
			return nil, errTooMany(len(out), weight)
		}
		if m.GetListed() {
			return out, nil
		}
		if m.GetBlock() != nil || m.GetEnd() != nil {
			return nil, fmt.Errorf("the source sent a broken list of files (%d so far)", len(out))
		}
	}
}

// prepare removes the files that the source does not have, and creates those that the target lacks, without content.
func (d *target) prepare(source []Entry, plan Plan) error {
	for _, p := range plan.Remove {
		if p == d.tree.File || p == "." {
			return fmt.Errorf("the volume is a file here and a folder at the source, or the reverse (%q)", p)
		}
		if err := d.tree.Root.RemoveAll(p); err != nil {
			return err
		}
	}
	free, err := d.tree.free()
	if err != nil {
		return err
	}
	if plan.Need > free {
		return fmt.Errorf("%w: the volume needs %d bytes more, and %d are free", ErrNoSpace, plan.Need, free)
	}
	for _, i := range plan.Make {
		if source[i].Same != "" {
			continue // linked when its content is complete
		}
		if err := d.tree.make(&source[i]); err != nil {
			return err
		}
	}
	d.opts.Progress.Total.Store(plan.Bytes)
	return nil
}

// copy requests and receives the content of files.
func (d *target) copy(ctx context.Context, source []Entry, plan Plan) error {
	parts := make(chan part, window)
	group, ctx := errgroup.WithContext(ctx)
	var files sync.Map // files that are open, for the case of an error
	defer files.Range(func(f, _ any) bool {
		_ = f.(*os.File).Close() // only after an error, which is reported
		return true
	})
	group.Go(func() error {
		defer close(parts)
		return d.request(ctx, source, plan, parts, &files)
	})
	group.Go(func() error {
		for p := range parts {
			if err := d.receive(p, &files); err != nil {
				d.abort(err) // a request that waits for the source ends too
				return err
			}
		}
		return nil
	})
	if err := group.Wait(); err != nil {
		return err
	}
	return d.stream.CloseSend()
}

// request requests the parts of files one after another, with the hashes of the blocks that the target has.
func (d *target) request(ctx context.Context, source []Entry, plan Plan, parts chan<- part, files *sync.Map) error {
	buf := make([]byte, blockSize)
	for _, i := range plan.Copy {
		e := &source[i]
		f, err := d.tree.open(e.Path, os.O_RDWR, unix.S_IFREG)
		if err != nil {
			return err
		}
		files.Store(f, nil)
		if err := f.Truncate(e.Size); err != nil {
			return err
		}
		for from := int64(0); from == 0 || from < e.Size; from += partSize {
			p := part{entry: e, file: f, from: from, to: min(e.Size, from+partSize), last: from+partSize >= e.Size}
			hashes := make([]byte, 0, blocksIn(p.to-p.from)*hashSize)
			err := d.blocks.each(f, buf, p.from, p.to, func(_ int64, _ []byte, _ int64, sum [hashSize]byte) error {
				hashes = append(hashes, sum[:]...)
				return ctx.Err()
			})
			if err != nil {
				return err
			}
			select {
			case parts <- p:
			case <-ctx.Done():
				return ctx.Err()
			}
			if err := d.stream.Send(&agentv1.VolumeReadRequest{Part: &agentv1.VolumeReadPart{Entry: int64(i), Offset: from, Hashes: hashes}}); err != nil {
				return nil // the receiver gets the cause from the stream
			}
		}
	}
	return nil
}

// receive writes the blocks of one part. A file that is complete gets its owner and mode, and no time yet: see stamp.
func (d *target) receive(p part, files *sync.Map) error {
	for {
		m, err := d.recv()
		if err != nil {
			return err
		}
		if b := m.GetBlock(); b != nil {
			if err := d.write(p, b); err != nil {
				return err
			}
			continue
		}
		end := m.GetEnd()
		if end == nil {
			return fmt.Errorf("the source sent neither a block nor the end of a part of %q", p.entry.Path)
		}
		d.opts.Progress.Done.Add(p.to - p.from)
		if !p.last {
			return nil
		}
		files.Delete(p.file)
		if err := p.file.Close(); err != nil {
			return err
		}
		at := p.entry.Modified
		if end.GetChanged() {
			d.changed++
		}
		if end.GetChanged() || end.GetRecent() && !d.opts.Last {
			at = 0 // the next pass compares the content
		}
		if err := d.tree.finish(p.entry, 0); err != nil {
			return err
		}
		if d.copied = append(d.copied, stamp{p.entry, at}); len(d.copied) < syncAfter {
			return nil
		}
		return d.stamp()
	}
}

// stamp writes the complete files to the disk and then gives them their times. A file that has its time of change is thus
// complete, also after a crash of the machine.
func (d *target) stamp() error {
	if len(d.copied) == 0 {
		return nil
	}
	if err := d.tree.sync(); err != nil {
		return err
	}
	for _, c := range d.copied {
		if err := d.tree.stamp(c.entry, c.at); err != nil {
			return err
		}
	}
	d.copied = d.copied[:0]
	return nil
}

// write checks a block and writes it to its file.
func (d *target) write(p part, b *agentv1.VolumeBlock) error {
	at, data := b.GetOffset(), b.GetData()
	n := int64(len(data))
	if n == 0 {
		n = b.GetZeros()
	}
	if at < p.from || at%blockSize != 0 || n != min(blockSize, p.to-at) || n <= 0 {
		return fmt.Errorf("the source sent %d bytes for offset %d of %q, which were not requested", n, at, p.entry.Path)
	}
	if len(data) == 0 {
		if err := unix.Fallocate(int(p.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at, n); err == nil {
			return nil
		}
		data = d.blocks.zeros[:n] // the file system cannot make holes
	} else if sum := d.blocks.sum(data); string(sum[:]) != string(b.GetHash()) {
		return fmt.Errorf("%w: the block at offset %d of %q does not match its hash, so it was corrupted on the way", ErrCorrupt, at, p.entry.Path)
	}
	if _, err := p.file.WriteAt(data, at); err != nil {
		return err
	}
	d.opts.Progress.Sent.Add(n)
	return nil
}

// settle makes the hard links, gives the entries without content their properties, and writes all to the disk.
func (d *target) settle(source []Entry, plan Plan) error {
	done := make([]bool, len(source))
	for _, i := range plan.Copy {
		done[i] = true
	}
	for _, i := range plan.Make {
		if e := &source[i]; e.Same != "" {
			if err := d.tree.Root.Link(e.Same, e.Path); err != nil {
				return err
			}
		}
	}
	for i := len(source) - 1; i >= 0; i-- { // folders after their children, which change the time of the folder
		if e := &source[i]; !done[i] && e.Same == "" {
			if err := d.tree.finish(e, e.Modified); err != nil {
				return err
			}
		}
	}
	return d.tree.sync()
}
