package main

import (
	"context"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/term"
)

// defaultWidth is the width of tables when that of the terminal is not known.
const defaultWidth = 100

// world is the outside of the process: streams, the terminal, the environment and the
// clock. Tests replace it.
type world struct {
	in       io.Reader
	out, err io.Writer
	// Whether in, out and err are terminals.
	inTerm, outTerm, errTerm bool
	// Columns and rows of the terminal; 0 when there is none.
	width, height int
	environ       func(string) (string, bool)
	home          string
	now           func() time.Time
	zone          *time.Location
	readFile      func(string) ([]byte, error)

	// Functions of the terminal that in is; nil if it is none. raw passes keys on unbuffered until
	// restore is called; resized sends when the size has changed, until ctx ends.
	raw     func() (restore func(), err error)
	size    func() (columns, rows int)
	resized func(ctx context.Context) <-chan struct{}
}

// system is the world of this process.
func system() world {
	w := world{
		in: os.Stdin, out: os.Stdout, err: os.Stderr,
		inTerm:  term.IsTerminal(int(os.Stdin.Fd())),
		outTerm: term.IsTerminal(int(os.Stdout.Fd())),
		errTerm: term.IsTerminal(int(os.Stderr.Fd())),
		environ: os.LookupEnv, now: time.Now, zone: time.Local, readFile: os.ReadFile,
	}
	if w.inTerm {
		fd := int(os.Stdin.Fd())
		w.raw = func() (func(), error) {
			was, err := term.MakeRaw(fd)
			return func() { _ = term.Restore(fd, was) }, err // the terminal may be gone
		}
		w.size = func() (int, int) {
			columns, rows, err := term.GetSize(fd)
			if err != nil {
				return 0, 0
			}
			return columns, rows
		}
		w.resized = resized
	}
	w.home, _ = os.UserHomeDir() // "" if there is none
	for _, f := range []*os.File{os.Stdout, os.Stderr} {
		if cols, rows, err := term.GetSize(int(f.Fd())); err == nil && cols > 0 {
			w.width, w.height = cols, rows
			break
		}
	}
	if v, ok := os.LookupEnv("COLUMNS"); ok && w.width == 0 {
		if n, err := strconv.Atoi(v); err == nil && n >= 40 && n <= 1000 {
			w.width = n
		}
	}
	return w
}

// columns is the width of tables, at least 40.
func (w world) columns() int {
	if w.width == 0 {
		return defaultWidth
	}
	return max(40, w.width)
}

// colour reports whether a stream gets colours: if it is a terminal, unless NO_COLOR
// (no-color.org) or TERM=dumb is set.
func (w world) colour(terminal bool) bool {
	if v, ok := w.environ("NO_COLOR"); ok && v != "" {
		return false
	}
	v, _ := w.environ("TERM")
	return terminal && v != "dumb"
}
