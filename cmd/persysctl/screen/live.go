package screen

import (
	"fmt"
	"io"
	"strings"
)

// Live is a block of lines at the bottom of a terminal that is redrawn in place. The lines must be shorter
// than the width of the terminal.
type Live struct {
	W            io.Writer
	shown, width int
}

// Draw replaces the block on the screen by lines.
func (l *Live) Draw(lines []string) {
	var b strings.Builder
	if l.shown > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", l.shown)
	}
	for _, line := range lines {
		b.WriteString("\r\x1b[2K" + line + "\n")
	}
	if len(lines) < l.shown {
		b.WriteString("\x1b[J") // erases the remaining lines of a former, longer block
	}
	l.shown = len(lines)
	// The error is ignored: it means that the process that reads the output has ended.
	_, _ = io.WriteString(l.W, b.String())
}

// Leave ends the block and keeps it on the screen. The next Draw starts a new block below it.
func (l *Live) Leave() { l.shown = 0 }

// Fit tells Live the present width of the terminal. If the terminal became narrower, the old lines have
// wrapped and cannot be redrawn, so the old block stays and a new one begins.
func (l *Live) Fit(columns int) {
	if columns < l.width {
		l.Leave()
	}
	l.width = columns
}

// Spinner returns frame number n of an animated spinner.
func Spinner(n int) string {
	frames := []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")
	return string(frames[n%len(frames)])
}
