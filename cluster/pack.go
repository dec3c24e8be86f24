package cluster

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/klauspost/compress/s2"
)

// Log entries are compressed on the wire and on disk, because much text repeats within an entry:
// callers, and the specifications of similar workloads. A compressed entry consists of a mark byte
// and an S2 block. No uncompressed entry begins with the mark byte.
const (
	packedMark = 0x01 // as a protobuf tag this byte would mean field 0, with which no message begins
	// minPacked is the size in bytes from which an entry is compressed.
	minPacked = 512
	// unpackedLimit is the largest size in bytes of an unpacked entry. It is more than any entry has: an
	// entry holds several commands of at most entryLimit together, or one command of at most commandLimit.
	unpackedLimit = 4 << 20
)

// packer compresses log entries. It must be used from one goroutine.
type packer struct{ scratch []byte }

// pack returns the data of a log entry that has these frames (encoded commands), compressed if that
// saves space. It keeps no reference to frames.
func (p *packer) pack(frames []byte) []byte {
	if len(frames) >= minPacked {
		p.scratch = append(slices.Grow(p.scratch[:0], 1+s2.MaxEncodedLen(len(frames))), packedMark)
		if small := s2.Encode(p.scratch[1:cap(p.scratch)], frames); 1+len(small) < len(frames) {
			return bytes.Clone(p.scratch[:1+len(small)])
		}
	}
	return bytes.Clone(frames)
}

// unpacker decompresses the entries that packer made. It must be used from one goroutine.
type unpacker struct{ scratch []byte }

// unpack returns the frames (encoded commands) of an entry. They are valid until the next call of unpack.
func (u *unpacker) unpack(data []byte) ([]byte, error) {
	if len(data) == 0 || data[0] != packedMark {
		return data, nil
	}
	n, err := s2.DecodedLen(data[1:])
	if err != nil {
		return nil, fmt.Errorf("packed entry of %d bytes: %w", len(data), err)
	}
	if n > unpackedLimit {
		return nil, fmt.Errorf("compressed log entry of %d bytes: its content has %d bytes, limit %d", len(data), n, unpackedLimit)
	}
	if u.scratch, err = s2.Decode(u.scratch[:cap(u.scratch)], data[1:]); err != nil {
		return nil, fmt.Errorf("packed entry of %d bytes: %w", len(data), err)
	}
	return u.scratch, nil
}
