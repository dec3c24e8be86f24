package screen

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// None is shown for a missing value.
const None = "-"

// Gap is the space between columns.
const Gap = 2

// Column describes one column of a table.
type Column struct {
	Title string
	// Gives is the rank in which the column is shortened if the table is too wide: columns with the highest value are
	// shortened first; a column with the value 0 is never shortened. Least is the smallest width in characters to
	// which the column is shortened.
	Gives, Least int
	// Keeps says which part of a text remains when it is shortened.
	Keeps Part
	Right bool // align the column to the right, for numbers
	Wide  bool // show the column only in tables without a width limit
}

// Part is a part of a text.
type Part uint8

// The parts of a text that can remain when it is shortened.
const (
	Head   Part = iota // the beginning remains: "0/3 nodes fit: 2 lack m…"
	Tail               // the end remains: "…ry.example/team/web:1.2", for images and paths
	Middle             // both ends remain: "billing-api-…-7", for ids
)

// Cell is one value of a table and its style.
type Cell struct {
	Text  string
	Style Style
}

// Text returns a cell with text from a server, which it cleans (see Clean).
func Text(s string) Cell { return Cell{Text: orNone(Clean(s))} }

// Styled returns a cell with a colour. The caller must have cleaned the text (see Clean).
func Styled(s string, how Style) Cell { return Cell{Text: s, Style: how} }

// State returns a cell with a state in the colour of the state.
func State(s string) Cell { return Cell{orNone(Clean(s)), StateStyle(s)} }

func orNone(s string) string {
	if s == "" {
		return None
	}
	return s
}

// Table is rows of cells under titles.
type Table struct {
	Cols []Column
	Rows [][]Cell
}

// NewTable starts a table without rows.
func NewTable(cols ...Column) *Table { return &Table{Cols: cols} }

// Add adds a row with one cell for each column.
func (t *Table) Add(cells ...Cell) { t.Rows = append(t.Rows, cells) }

// Lines returns the lines of the table. No line is longer than width characters. If width is 0, there is no
// limit, and columns with Wide are shown too.
func (t *Table) Lines(width int, p Painter) []string {
	var use []int
	for i, c := range t.Cols {
		if width == 0 || !c.Wide {
			use = append(use, i)
		}
	}
	use, widths := t.fit(use, width)
	titles := make([]Cell, len(t.Cols))
	for i, c := range t.Cols {
		titles[i] = Cell{c.Title, Bold}
	}
	var b bytes.Buffer
	out := make([]string, 0, 1+len(t.Rows))
	out = append(out, t.line(&b, titles, use, widths, p))
	for _, row := range t.Rows {
		out = append(out, t.line(&b, row, use, widths, p))
	}
	return out
}

// fit chooses which of the columns use to show in a table of this width, and returns them with the width of each.
// First it shortens columns of more than twice their least width, the longest first. Then it shortens columns in the
// order of Gives, down to their least widths. If the table is still too wide, it drops the last columns.
func (t *Table) fit(use []int, width int) ([]int, []int) {
	widths := make([]int, len(t.Cols))
	for _, i := range use {
		widths[i] = length(t.Cols[i].Title)
		for _, row := range t.Rows {
			widths[i] = max(widths[i], length(row[i].Text))
		}
	}
	floor := func(i int) int { return max(t.Cols[i].Least, length(t.Cols[i].Title)) }
	for width > 0 {
		over := (len(use)-1)*Gap - width
		longest, first := -1, -1
		for _, i := range use {
			over += widths[i]
			gives := t.Cols[i].Gives
			if gives == 0 || widths[i] <= floor(i) {
				continue
			}
			if extra := widths[i] - 2*floor(i); extra > 0 && (longest < 0 || extra > widths[longest]-2*floor(longest)) {
				longest = i
			}
			if first < 0 || gives > t.Cols[first].Gives {
				first = i
			}
		}
		switch {
		case over <= 0:
			return use, widths
		case longest >= 0:
			widths[longest]--
		case first >= 0:
			widths[first]--
		case len(use) > 1:
			use = use[:len(use)-1]
		default:
			widths[use[0]] = width
		}
	}
	return use, widths
}

// line formats one row, with b as its buffer.
func (t *Table) line(b *bytes.Buffer, row []Cell, use, widths []int, p Painter) string {
	b.Reset()
	for n, i := range use {
		shown := Cut(row[i].Text, widths[i], t.Cols[i].Keeps)
		pad := widths[i] - length(shown)
		if n > 0 {
			blank(b, Gap)
		}
		if t.Cols[i].Right {
			blank(b, pad)
		}
		b.WriteString(p.Paint(row[i].Style, shown))
		if !t.Cols[i].Right && n < len(use)-1 {
			blank(b, pad)
		}
	}
	return string(bytes.TrimRight(b.Bytes(), " "))
}

func blank(b *bytes.Buffer, n int) {
	for range n {
		b.WriteByte(' ')
	}
}

func length(s string) int { return utf8.RuneCountInString(s) }

// Cut shortens s to n characters, with an ellipsis for the missing part.
func Cut(s string, n int, keeps Part) string {
	if length(s) <= n {
		return s
	}
	if n <= 0 {
		return ""
	}
	r := []rune(s)
	switch keeps {
	case Tail:
		return "…" + string(r[len(r)-n+1:])
	case Middle:
		left := n / 2
		return string(r[:left]) + "…" + string(r[len(r)-(n-1-left):])
	}
	return strings.TrimRight(string(r[:n-1]), " ") + "…"
}

// Facts is a list of names and values, one per line.
type Facts struct{ rows []fact }

type fact struct {
	name  string
	value Cell
}

// Add adds a name with its value, unless the value is empty.
func (f *Facts) Add(name string, value Cell) {
	if value.Text != "" && value.Text != None {
		f.rows = append(f.rows, fact{name, value})
	}
}

// Lines returns the names and values as lines of a terminal. Long values are wrapped at spaces.
func (f *Facts) Lines(width int, p Painter) []string {
	var out []string
	label := 0
	for _, r := range f.rows {
		label = max(label, length(r.name))
	}
	for _, r := range f.rows {
		name := r.name + strings.Repeat(" ", label-length(r.name)+Gap)
		for i, part := range Fold(r.value.Text, width-label-Gap) {
			if i > 0 {
				name = strings.Repeat(" ", label+Gap)
			}
			out = append(out, p.Paint(Dim, name)+p.Paint(r.value.Style, part))
		}
	}
	return out
}

// Fold wraps text at spaces, and breaks words that are longer than a line. The width is
// at least 20.
func Fold(s string, width int) []string {
	width = max(width, 20)
	var out []string
	var line []rune
	for _, word := range strings.Fields(s) {
		w := []rune(word)
		if len(line) > 0 && len(line)+1+len(w) > width {
			out = append(out, string(line))
			line = nil
		}
		if len(line) > 0 {
			line = append(line, ' ')
		}
		for len(line)+len(w) > width {
			n := width - len(line)
			out = append(out, string(append(line, w[:n]...)))
			line, w = nil, w[n:]
		}
		line = append(line, w...)
	}
	if len(line) > 0 || len(out) == 0 {
		out = append(out, string(line))
	}
	return out
}
