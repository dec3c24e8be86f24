package cluster

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/klauspost/compress/s2"
)

// Much text repeats within an entry: callers, and the specifications of similar workloads. So entries are
// compressed on the wire and on disk: one byte that no uncompressed entry begins with, then an S2 block.
const (
	packedMark = 0x01 // in protobuf a field of number 0; no message begins with it
	// minPacked is the size in bytes from which compression pays.
	minPacked = 512
	// unpackedLimit is more than any entry has: several commands of entryLimit together, or one of
	// commandLimit.
	unpackedLimit = 4 << 20
)

// packer compresses entries. Use it from one goroutine.
type packer struct{ scratch []byte }

// pack returns the data of an entry with frames. It does not keep frames.
func (p *packer) pack(frames []byte) []byte {
	if len(frames) >= minPacked {
		p.scratch = append(slices.Grow(p.scratch[:0], 1+s2.MaxEncodedLen(len(frames))), packedMark)
		if small := s2.Encode(p.scratch[1:cap(p.scratch)], frames); 1+len(small) < len(frames) {
			return bytes.Clone(p.scratch[:1+len(small)])
		}
	}
	return bytes.Clone(frames)
}

// unpacker reverses packer. Use it from one goroutine.
type unpacker struct{ scratch []byte }

// unpack returns the frames of an entry. They are valid until the next call.
func (u *unpacker) unpack(data []byte) ([]byte, error) {
	if len(data) == 0 || data[0] != packedMark {
		return data, nil
	}
	n, err := s2.DecodedLen(data[1:])
	if err != nil {
		return nil, fmt.Errorf("packed entry of %d bytes: %w", len(data), err)
	}
	if n > unpackedLimit {
		return nil, fmt.Errorf("packed entry of %d bytes: it holds %d, limit %d", len(data), n, unpackedLimit)
	}
	if u.scratch, err = s2.Decode(u.scratch[:cap(u.scratch)], data[1:]); err != nil {
		return nil, fmt.Errorf("packed entry of %d bytes: %w", len(data), err)
	}
	return u.scratch, nil
}
