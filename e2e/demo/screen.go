package main

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// screen prints steps as they begin and end. Only a terminal gets colours and lines that change.
type screen struct {
	w            io.Writer
	live, colour bool
}

const (
	bold  = "1"
	dim   = "2"
	green = "32"
	red   = "31"
)

func (s screen) paint(style, text string) string {
	if !s.colour {
		return text
	}
	return "\033[" + style + "m" + text + "\033[0m"
}

func (s screen) line(format string, args ...any) {
	// A write error does not matter: a closed pipe ends the program by SIGPIPE.
	_, _ = fmt.Fprintf(s.w, format+"\n", args...)
}

func (s screen) title(text string) {
	s.line("\n%s\n", s.paint(bold, text))
}

// doneColumn is the column of the terminal at which the elapsed time of a step is printed.
const doneColumn = 72

// step runs do and prints its outcome. On success it prints the text that do returns, or the parameter text
// if do returns "".
func (s screen) step(text string, do func() (string, error)) error {
	began := time.Now()
	if s.live {
		_, _ = fmt.Fprintf(s.w, "  %s %s", s.paint(dim, "…"), text)
	}
	said, err := do()
	if said == "" {
		said = text
	}
	if s.live {
		_, _ = fmt.Fprint(s.w, "\r\033[K")
	}
	if err != nil {
		s.line("  %s %s", s.paint(red, "✗"), text)
		return err
	}
	pad := max(1, doneColumn-utf8.RuneCountInString(said))
	s.line("  %s %s%s%s", s.paint(green, "✓"), said, strings.Repeat(" ", pad), s.paint(dim, elapsed(time.Since(began))))
	return nil
}

func elapsed(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// command prints a command as a user types it.
func (s screen) command(text string) {
	s.line("\n  %s", s.paint(bold, "$ "+text))
}
