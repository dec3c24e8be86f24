package main

import (
	"io"
	"strings"

	"github.com/persys/compute/cmd/persysctl/screen"
)

// print writes a table, with all columns for -o wide.
func (c *cli) print(t *screen.Table) {
	width := c.columns()
	if c.output == outWide {
		width = 0
	}
	writeLines(c.out, t.Lines(width, c.paint))
}

// measure reads the present size of the terminal before a block is drawn again.
func (c *cli) measure(block *screen.Live) {
	if c.size == nil || c.width == 0 {
		return
	}
	if columns, rows := c.size(); columns > 0 {
		c.width, c.height = columns, rows
		block.Fit(columns)
	}
}

func (c *cli) printFacts(f *screen.Facts) { writeLines(c.out, f.Lines(c.columns(), c.paint)) }

// section prints a heading between parts of a detailed view.
func (c *cli) section(title string) {
	writeLines(c.out, []string{"", c.paint.Paint(screen.Bold, title)})
}

// say prints the result of an action on one thing.
func (c *cli) say(about string, s screen.Style, what string) {
	writeLines(c.out, []string{about + " " + c.paint.Paint(s, what)})
}

func writeText(w io.Writer, text string) {
	_, _ = io.WriteString(w, text) // see writeLines
}

func writeLines(w io.Writer, lines []string) {
	// An error means that the reader of stdout is gone, and there is nowhere to report it.
	_, _ = io.WriteString(w, strings.Join(lines, "\n")+"\n")
}
