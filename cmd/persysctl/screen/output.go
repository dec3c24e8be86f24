package screen

import (
	"bytes"
	"io"
)

// maxColour is the maximum length in bytes of an escape sequence that sets colours.
const maxColour = 64

// Output is a writer that passes the output of an untrusted program to a terminal. Colours are kept. Every
// other escape sequence and control character, which could move the cursor, rename the window or make the
// terminal send input, is disabled: its first character is replaced by '?'.
type Output struct {
	To io.Writer

	held []byte // an incomplete escape sequence, which may become a colour, or an incomplete C1 control character
}

// Write implements io.Writer. An escape sequence may be split between two calls.
func (o *Output) Write(p []byte) (int, error) {
	var out bytes.Buffer
	out.Grow(len(p))
	for _, b := range p {
		o.add(&out, b)
	}
	if _, err := o.To.Write(out.Bytes()); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (o *Output) add(out *bytes.Buffer, b byte) {
	const escape, c1 = 0x1b, 0xc2 // 0xc2 is the first byte of the C1 control characters in UTF-8, and of other characters
	n := len(o.held)
	switch {
	case n == 0 && (b == escape || b == c1):
		o.held = append(o.held, b)
	case n == 0:
		out.WriteByte(plain(b))
	case o.held[0] == c1:
		o.held = o.held[:0]
		if b >= 0x80 && b < 0xa0 {
			out.WriteByte('?')
			return
		}
		out.WriteByte(c1)
		o.add(out, b)
	case n == 1 && b == '[', n > 1 && n < maxColour && (b >= '0' && b <= '9' || b == ';' || b == ':'):
		o.held = append(o.held, b)
	case n > 1 && b == 'm':
		out.Write(append(o.held, b))
		o.held = o.held[:0]
	default:
		// The escape sequence is not a colour, so its characters are shown as text.
		out.WriteByte('?')
		out.Write(o.held[1:])
		o.held = o.held[:0]
		o.add(out, b)
	}
}

func plain(b byte) byte {
	if b < 0x20 && b != '\n' && b != '\t' && b != '\r' || b == 0x7f {
		return '?'
	}
	return b
}
