package cluster

import (
	"bytes"
	"strings"
	"testing"

	"github.com/klauspost/compress/s2"
)

func TestPackedEntriesAreRestored(t *testing.T) {
	alike := []byte(strings.Repeat("\x0a\x20the same command, nearly", 200))
	var p packer
	var u unpacker
	for _, c := range []struct {
		name   string
		frames []byte
		packed bool
	}{
		{"an entry with many similar commands is compressed", alike, true},
		{"an entry below minPacked is not compressed", alike[:minPacked-1], false},
		{"an entry that compression does not make smaller is not compressed", append([]byte{0x0a}, incompressible(2000)...), false},
		{"an empty entry is not compressed", nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			data := p.pack(c.frames)
			if is := len(data) > 0 && data[0] == packedMark; is != c.packed || c.packed && len(data) >= len(c.frames) {
				t.Errorf("whether the entry was compressed: %t, from %[3]d to %[2]d bytes; want the result of the case, and fewer bytes if compressed", is, len(data), len(c.frames))
			}
			p.pack(alike) // a further call of pack must not change the previous result
			frames, err := u.unpack(data)
			if err != nil || !bytes.Equal(frames, c.frames) {
				t.Errorf("an entry of %d bytes was unpacked to %d bytes (error %v), want the same bytes", len(c.frames), len(frames), err)
			}
		})
	}
	for _, c := range []struct{ name, data, says string }{
		{"a truncated entry", string(p.pack(alike)[:40]), "packed entry of 40 bytes"},
		{"a compression mark without data", "\x01", "packed entry of 1 bytes"},
		{"an entry that unpacks to more than the size limit", "\x01" + string(s2.Encode(nil, make([]byte, unpackedLimit+1))), "limit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := u.unpack([]byte(c.data)); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("unpack of a damaged entry returned error %v, want the error of this case", err)
			}
		})
	}
}

func incompressible(n int) []byte {
	b := make([]byte, n)
	for x, i := uint32(1), 0; i < n; i++ {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

// FuzzUnpack unpacks random bytes, as a log entry from another replica or from a broken disk may
// contain. unpack must return an error or the packed content.
func FuzzUnpack(f *testing.F) {
	var p packer
	f.Add(p.pack([]byte(strings.Repeat("command ", 100))))
	f.Add([]byte{packedMark, 0xff, 0xff, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, data []byte) {
		var u unpacker
		frames, err := u.unpack(data)
		if err == nil && len(frames) > max(unpackedLimit, len(data)) {
			t.Fatalf("an entry of %d bytes was unpacked to %d bytes, want at most unpackedLimit", len(data), len(frames))
		}
	})
}
