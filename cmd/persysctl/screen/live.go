package screen

import (
	"fmt"
	"io"
	"strings"
)

// Live is a block of lines at the bottom of a terminal that is drawn again in
// place. Lines must be shorter than the terminal is wide.
type Live struct {
	W            io.Writer
	shown, width int
}

// Draw replaces the block.
func (l *Live) Draw(lines []string) {
	var b strings.Builder
	if l.shown > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", l.shown)
	}
	for _, line := range lines {
		b.WriteString("\r\x1b[2K" + line + "\n")
	}
	if len(lines) < l.shown {
		b.WriteString("\x1b[J") // what the longer block before left behind
	}
	l.shown = len(lines)
	// Nobody is left to tell when the reader went away.
	_, _ = io.WriteString(l.W, b.String())
}

// Leave lets the block stand: the next one begins where the terminal is now.
func (l *Live) Leave() { l.shown = 0 }

// Fit says how wide the terminal is by now: what was drawn in a wider one has wrapped, and stands.
func (l *Live) Fit(columns int) {
	if columns < l.width {
		l.Leave()
	}
	l.width = columns
}

// Spinner turns at the rate at which the block is drawn.
func Spinner(n int) string {
	frames := []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")
	return string(frames[n%len(frames)])
}
