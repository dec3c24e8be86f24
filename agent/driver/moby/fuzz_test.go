package moby

import (
	"bufio"
	"bytes"
	"testing"

	"github.com/moby/moby/client"
)

// FuzzFrames decodes arbitrary frames of a session's output. The decoder must end, and must not return more
// bytes than its input contains.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x00\x00\x00\x00\x03abc\x02\x00\x00\x00\x00\x00\x00\x01x"), true)
	f.Add([]byte("\x01\x00\x00\x00\xff\xff\xff\xffabc"), true)
	f.Add(bytes.Repeat([]byte{0}, 64), true)
	f.Add([]byte("plain"), false)
	f.Fuzz(func(t *testing.T, data []byte, framed bool) {
		s := &session{conn: client.HijackedResponse{Reader: bufio.NewReader(bytes.NewReader(data))}, framed: framed}
		left := len(data)
		for {
			out, err := s.Output()
			if err != nil {
				return
			}
			if left -= len(out.Data); left < 0 || len(out.Data) == 0 {
				t.Fatalf("Output returned an empty piece, or %d more bytes than the frames contain", -left)
			}
		}
	})
}
