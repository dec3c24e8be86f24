package persysctl

import (
	"context"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/term"
)

// defaultWidth is the width of tables if the width of the terminal is unknown.
const defaultWidth = 100

// world is everything outside the process: streams, the terminal, the environment and the clock. Tests
// replace these.
type world struct {
	name, version string    // of the program, as it was called
	programs      []Program // the other programs in the same executable file

	in       io.Reader
	out, err io.Writer
	// inTerm, outTerm and errTerm report whether in, out and err are terminals.
	inTerm, outTerm, errTerm bool
	// Columns and rows of the terminal; 0 if there is none.
	width, height int
	environ       func(string) (string, bool)
	shell         func() []string // all environment variables, as KEY=VALUE
	home          string
	now           func() time.Time
	looks         looks
	zone          *time.Location
	readFile      func(string) ([]byte, error)

	// Functions for the terminal from which the stream in reads; nil if in is no terminal. raw makes the terminal pass
	// on each key at once, until restore is called. resized sends a value whenever the size of the terminal has
	// changed, until ctx ends.
	raw     func() (restore func(), err error)
	size    func() (columns, rows int)
	resized func(ctx context.Context) <-chan struct{}
}

// system returns the world of this process. name is the name under which the program was called.
func system(name, version string, programs []Program) world {
	w := world{
		name: name, version: version, programs: programs,
		in: os.Stdin, out: os.Stdout, err: os.Stderr,
		inTerm:  term.IsTerminal(int(os.Stdin.Fd())),
		outTerm: term.IsTerminal(int(os.Stdout.Fd())),
		errTerm: term.IsTerminal(int(os.Stderr.Fd())),
		environ: os.LookupEnv, shell: os.Environ, now: time.Now, looks: looks{output: 500 * time.Millisecond, member: 2 * time.Second}, zone: time.Local, readFile: os.ReadFile,
	}
	if w.inTerm {
		fd := int(os.Stdin.Fd())
		w.raw = func() (func(), error) {
			was, err := term.MakeRaw(fd)
			return func() { _ = term.Restore(fd, was) }, err // an error means that the terminal has been closed
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
	w.home, _ = os.UserHomeDir() // "" if the user has no home folder
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

// columns returns the width of tables: that of the terminal, or defaultWidth without one, but at least 40.
func (w world) columns() int {
	if w.width == 0 {
		return defaultWidth
	}
	return max(40, w.width)
}

// colour reports whether output to stdout or stderr has colours: the stream must be a terminal, and neither
// NO_COLOR (no-color.org) nor TERM=dumb may be set.
func (w world) colour(terminal bool) bool {
	if v, ok := w.environ("NO_COLOR"); ok && v != "" {
		return false
	}
	v, _ := w.environ("TERM")
	return terminal && v != "dumb"
}
