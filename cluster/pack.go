package cluster

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/klauspost/compress/s2"
)

// What is said once per command repeats within an entry: who asks, the kinds and amounts
// of workloads that resemble each other. So the data of an entry travels and is kept
// packed: S2 in its block format after one byte that no entry without it begins with. From
// feature level packedLevel on, for a replica of an earlier version could not read it.
const (
	packedLevel = 6
	packedMark  = 0x01 // as protobuf, a field of number 0: no message begins with it
	// minPacked is how much an entry must hold for it to pay.
	minPacked = 512
	// unpackedLimit is more than any entry holds: several commands of entryLimit together,
	// or one of commandLimit.
	unpackedLimit = 4 << 20
)

// packer packs entries. It is for one goroutine.
type packer struct{ scratch []byte }

// pack returns the data of an entry that holds frames, which it does not keep.
func (p *packer) pack(frames []byte, level uint32) []byte {
	if level >= packedLevel && len(frames) >= minPacked {
		p.scratch = append(slices.Grow(p.scratch[:0], 1+s2.MaxEncodedLen(len(frames))), packedMark)
		if small := s2.Encode(p.scratch[1:cap(p.scratch)], frames); 1+len(small) < len(frames) {
			return bytes.Clone(p.scratch[:1+len(small)])
		}
	}
	return bytes.Clone(frames)
}

// unpacker reads what packer made. It is for one goroutine.
type unpacker struct{ scratch []byte }

// unpack returns the frames in the data of an entry, good until the next call.
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
