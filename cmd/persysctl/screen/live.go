package screen

import (
	"fmt"
	"io"
	"strings"
)

// Live is a block of lines at the bottom of a terminal that is redrawn in place. Lines
// must be shorter than the width of the terminal.
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
		b.WriteString("\x1b[J") // clears the rest of the longer block before
	}
	l.shown = len(lines)
	// An error means that the reader is gone, and there is nowhere to report it.
	_, _ = io.WriteString(l.W, b.String())
}

// Leave keeps the block on the screen: the next Draw begins below it.
func (l *Live) Leave() { l.shown = 0 }

// Fit sets the present width of the terminal. In a narrower terminal the old lines have wrapped and
// cannot be redrawn, so the block is left.
func (l *Live) Fit(columns int) {
	if columns < l.width {
		l.Leave()
	}
	l.width = columns
}

// Spinner is the n-th frame of a spinner.
func Spinner(n int) string {
	frames := []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")
	return string(frames[n%len(frames)])
}
