package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/minio/highwayhash"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	agentv1 "github.com/persys/compute/api/agent/v1"
)

const (
	blockSize  = 256 << 10       // bytes that are compared and sent at once
	partSize   = 256 * blockSize // bytes of a file that one request asks for
	hashSize   = highwayhash.Size
	keySize    = 32
	batch      = 256 // entries in one message of the list, and the bytes after which a message is sent
	batchBytes = 1 << 20

	// MinRate is the lowest limit of Options.BytesPerSecond.
	MinRate = 1 << 20

	// keepAlive is the longest time between two messages of the source while it makes its list, which can take minutes.
	keepAlive = 10 * time.Second

	// recently is how long after a change of a file another change could get the same time.
	recently = 2 * time.Second
)

// SourceStream is the source's end of a stream. Send has encoded the message when it returns.
type SourceStream interface {
	Recv() (*agentv1.VolumeReadRequest, error)
	Send(*agentv1.VolumeReadResponse) error
}

// Serve answers the target of one pass until the target ends the stream. open is the target's first message, which the
// caller has received.
func Serve(ctx context.Context, t Tree, open *agentv1.VolumeReadOpen, s SourceStream) (err error) {
	if len(open.GetKey()) != keySize {
		return fmt.Errorf("open.key: must have %d bytes (got %d)", keySize, len(open.GetKey()))
	}
	src := source{tree: t, stream: s, blocks: newHasher(open.GetKey()), buf: make([]byte, blockSize)}
	if n := open.GetBytesPerSecond(); n != 0 {
		if n < MinRate {
			return fmt.Errorf("open.bytes_per_second: must be 0 (no limit) or at least %d (got %d)", MinRate, n)
		}
		src.limit = rate.NewLimiter(rate.Limit(n), blockSize)
	}
	defer src.close()
	if src.list, err = t.list(ctx, src.alive(cmp.Or(t.alive, keepAlive))); err != nil {
		return err
	}
	out, size := &agentv1.VolumeReadResponse{}, 0
	for i := range src.list {
		out.Entries = append(out.Entries, entryPB(&src.list[i]))
		if size += src.list[i].weight(); len(out.Entries) == batch || size >= batchBytes {
			size = 0
			if err := s.Send(out); err != nil {
				return err
			}
			out = &agentv1.VolumeReadResponse{}
		}
	}
	out.Listed = true
	if err := s.Send(out); err != nil {
		return err
	}
	for ctx.Err() == nil {
		req, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := src.answer(ctx, req.GetPart()); err != nil {
			return err
		}
	}
	return ctx.Err()
}

type source struct {
	tree   Tree
	stream SourceStream
	list   []Entry
	blocks *hasher
	limit  *rate.Limiter // nil = no limit
	buf    []byte

	file  *os.File // the file that was read last
	entry int64    // its number
}

// alive returns a function that sends an empty message if it has sent none for a time.
func (s *source) alive(every time.Duration) func() error {
	last := time.Now()
	return func() error {
		if time.Since(last) < every {
			return nil
		}
		last = time.Now()
		return s.stream.Send(&agentv1.VolumeReadResponse{})
	}
}

func (s *source) close() {
	if s.file != nil {
		_ = s.file.Close() // it was only read
		s.file = nil
	}
}

// answer sends the blocks of one part that the target does not have.
func (s *source) answer(ctx context.Context, p *agentv1.VolumeReadPart) error {
	i, offset, hashes := p.GetEntry(), p.GetOffset(), p.GetHashes()
	if i < 0 || i >= int64(len(s.list)) || !s.list[i].is(unix.S_IFREG) || offset < 0 || offset%blockSize != 0 || offset > s.list[i].Size {
		return fmt.Errorf("part: the list of this pass has no regular file with the number %d that has a block at offset %d", i, offset)
	}
	e := &s.list[i]
	end := min(e.Size, offset+partSize)
	if int64(len(hashes)) != blocksIn(end-offset)*hashSize {
		return fmt.Errorf("part: %d bytes of hashes do not match the %d bytes of the part", len(hashes), end-offset)
	}
	if s.file == nil || s.entry != i {
		s.close()
		f, err := s.tree.open(e.Path, os.O_RDONLY, unix.S_IFREG)
		if err != nil {
			if missing(err) == nil {
				return s.end(true, false)
			}
			return err
		}
		s.file, s.entry = f, i
	}
	err := s.blocks.each(s.file, s.buf, offset, end, func(at int64, data []byte, zeros int64, sum [hashSize]byte) error {
		if string(hashes[:hashSize]) == string(sum[:]) {
			hashes = hashes[hashSize:]
			return nil
		}
		hashes = hashes[hashSize:]
		if s.limit != nil {
			if err := s.limit.WaitN(ctx, max(1, len(data))); err != nil {
				return err
			}
		}
		return s.stream.Send(&agentv1.VolumeReadResponse{Block: &agentv1.VolumeBlock{Offset: at, Data: data, Zeros: zeros, Hash: sum[:]}})
	})
	if errors.Is(err, errShort) {
		return s.end(true, false)
	}
	if err != nil {
		return err
	}
	info, err := s.file.Stat()
	if err != nil {
		return err
	}
	now := info.ModTime()
	return s.end(info.Size() != e.Size || now.UnixNano() != e.Modified, time.Since(now) < recently)
}

func (s *source) end(changed, recent bool) error {
	return s.stream.Send(&agentv1.VolumeReadResponse{End: &agentv1.VolumePartEnd{Changed: changed, Recent: recent}})
}

// blocksIn returns the number of blocks of a length.
func blocksIn(n int64) int64 { return (n + blockSize - 1) / blockSize }

// errShort is the error of hasher.each if the file became shorter.
var errShort = errors.New("the file became shorter")

// hasher computes the hashes of blocks. The key is new for each pass, so nobody can prepare two blocks with one hash.
type hasher struct {
	key   []byte
	zeros []byte
	zero  [hashSize]byte // hash of a full block of zeros
}

func newHasher(key []byte) *hasher {
	h := &hasher{key: key, zeros: make([]byte, blockSize)}
	h.zero = h.sum(h.zeros)
	return h
}

func (h *hasher) sum(data []byte) [hashSize]byte { return highwayhash.Sum(data, h.key) }

// zeroSum returns the hash of n zeros.
func (h *hasher) zeroSum(n int64) [hashSize]byte {
	if n == blockSize {
		return h.zero
	}
	return h.sum(h.zeros[:n])
}

// each calls fn for each block of a part of f. A block of zeros has no data, and its length in zeros. Holes are not
// read. data is valid only during the call.
func (h *hasher) each(f *os.File, buf []byte, from, to int64, fn func(at int64, data []byte, zeros int64, sum [hashSize]byte) error) error {
	var now span
	known := false
	for at := from; at < to; at += blockSize {
		n := min(blockSize, to-at)
		for !known || now.to <= at && now.from < to {
			s, ok := nextData(f, at, to)
			if !ok {
				s = span{from: to, to: to}
			}
			now, known = s, true
		}
		if now.from >= at+n {
			if err := fn(at, nil, n, h.zeroSum(n)); err != nil {
				return err
			}
			continue
		}
		got, err := readAt(f, buf[:n], at)
		if err != nil {
			return err
		}
		if int64(got) < n {
			return errShort
		}
		sum := h.sum(buf[:n])
		if sum == h.zeroSum(n) {
			err = fn(at, nil, n, sum)
		} else {
			err = fn(at, buf[:n], 0, sum)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func entryPB(e *Entry) *agentv1.VolumeEntry {
	return &agentv1.VolumeEntry{
		Path: []byte(e.Path), Mode: e.Mode, Uid: e.UID, Gid: e.GID, Size: e.Size, Modified: e.Modified, Target: []byte(e.Target), Same: []byte(e.Same),
		Attributes: e.Attributes, Allocated: e.Allocated,
	}
}

func entryOf(m *agentv1.VolumeEntry) Entry {
	return Entry{
		Path: string(m.GetPath()), Mode: m.GetMode(), UID: m.GetUid(), GID: m.GetGid(), Size: m.GetSize(), Modified: m.GetModified(), Target: string(m.GetTarget()), Same: string(m.GetSame()),
		Attributes: m.GetAttributes(), Allocated: m.GetAllocated(),
	}
}
